"""What Open WebUI sends and reads: its requests, as aiohttp makes them, from here. The program itself, of several gigabytes and
no npm package, does not run."""

import http.client
import json
import sys
import tempfile
import threading

from harness import Nano, Scripted, checks, is_, run_checks, scripted_turn, turn_as_seen

# In a container the server has this name.
HOST = "host.docker.internal"
READS = "read", "path", "a.txt", "b.txt"
TOOL = {"type": "function", "function": {"name": "read", "description": "Reads a file.", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}
# The settings of a model and of a chat, as far as they have a field of their own.
SETTINGS = {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "max_tokens": 4096, "frequency_penalty": 0.0,
            "presence_penalty": 0.0, "reasoning_effort": "low", "seed": 7, "stop": ["<stop>"], "logit_bias": {"5": -100}}


def ask(s, method, path, body=None, key="KEY"):
    """(status, type, text)"""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=120)
    headers = {"Host": f"{HOST}:{s.port}", "Authorization": f"Bearer {key}", "Accept": "*/*",
               "Accept-Encoding": "gzip, deflate, br", "User-Agent": "Python/3.11 aiohttp/3.13.2",
               "X-OpenWebUI-User-Name": "J%C3%BCrgen", "X-OpenWebUI-Chat-Id": "8b2f"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    c.request(method, path, body and json.dumps(body), headers)
    r = c.getresponse()
    answer = r.status, r.getheader("Content-Type").split(";")[0], r.read().decode()
    c.close()
    return answer


def chat(s, messages, **more):
    """The message that it puts together from a stream, and the usage."""
    body = {"stream": True, "model": "nano", "messages": messages, "stream_options": {"include_usage": True}, **more}
    status, kind, text = ask(s, "POST", "/v1/chat/completions", body)
    is_((status, kind), (200, "text/event-stream"))
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    is_(lines.pop(), "[DONE]")
    message, usage, calls = {"role": "assistant", "content": "", "reasoning_content": ""}, None, []
    for chunk in map(json.loads, lines):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            for name in "content", "reasoning_content":
                message[name] += choice["delta"].get(name) or ""
            for call in choice["delta"].get("tool_calls", []):
                if call["index"] == len(calls):
                    calls.append(call)
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    return message, usage


def check_the_connection():
    """As docs/server.md starts the server; the list of models makes the connection count as one that works."""
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("KEY\n")
        keys.flush()
        with Nano("--host", "0.0.0.0", "--api-key-file", keys.name) as s:
            status, kind, text = ask(s, "GET", "/v1/models")
            is_((status, kind), (200, "application/json"))
            models = json.loads(text)
            is_([(m["id"], m["object"], m["owned_by"]) for m in models["data"]], [("nano", "model", "local")])
            status, _, text = ask(s, "GET", "/v1/models", key="another")
            is_((status, "message" in json.loads(text)["error"]), (401, True))
            message, usage = chat(s, [{"role": "user", "content": "What is a kiln?"}], **dict(SETTINGS, max_tokens=64))
            is_(message["content"] + message["reasoning_content"] != "", True)
            is_(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])


def check_a_conversation():
    """Calls go back with their index and without the reasoning, which the server has still; the next turn has the reasoning of
    the last answer, as connections to llama.cpp have it."""
    with Scripted(scripted_turn(*READS) + "== tools\naccepted 3300 3200\nreasoning_end\ntext Yes.\nfinish stop 3300 3200 2 0\n") as s:
        messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Read a.txt and b.txt"}]
        first, usage = chat(s, messages, tools=[TOOL], **SETTINGS)
        is_((first.pop("reasoning_content"), first["content"]), ("The user wants two files.", "I read both."))
        is_([json.loads(c["function"]["arguments"]) for c in first["tool_calls"]], [{"path": "a.txt"}, {"path": "b.txt"}])
        is_((usage["prompt_tokens"], usage["completion_tokens"]), (3000, 60))
        results = [{"role": "tool", "tool_call_id": c["id"], "content": t} for c, t in zip(first["tool_calls"], ("apple", "pear"))]
        last, _ = chat(s, [*messages, first, *results], tools=[TOOL], **SETTINGS)
        is_(last["content"], "They say apple and pear.")
        whole = turn_as_seen(*READS, ["apple", "pear"])
        is_(s.history(), whole)
        is_(last["reasoning_content"], "Both are known.")
        chat(s, [*messages, first, *results, last, {"role": "user", "content": "Sure?"}], tools=[TOOL], preserve_thinking=True)
        is_(s.history().startswith(whole + "Both are known.\n</think>\n\nThey say apple and pear.<|im_end|>\n"), True)


def check_tasks():
    """The title, the tags and the questions that might follow, asked for at once when an answer is there."""
    tasks = "a concise title", "1 to 3 broad tags", "3 to 5 questions"
    bodies = [{"model": "nano", "messages": [{"role": "user", "content": f"### Task:\nGenerate {what}."}], "stream": False} for what in tasks]
    bodies[0]["max_completion_tokens"] = 1000
    answers = {}
    with Scripted("== plain\naccepted 100 0\nreasoning Short.\nreasoning_end\ntext {\"title\": \"Kilns\"}\nfinish stop 100 0 9 1\n") as s:
        def run(i):
            answers[i] = ask(s, "POST", "/v1/chat/completions", bodies[i])

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(bodies))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    for i in range(len(bodies)):
        status, kind, text = answers[i]
        is_((status, kind), (200, "application/json"))
        is_(json.loads(text)["choices"][0]["message"]["content"], '{"title": "Kilns"}')


def check_what_it_cannot_have():
    """Images and embeddings: the message is what it shows."""
    picture = {"role": "user", "content": [{"type": "text", "text": "What is this?"},
                                           {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
    with Scripted("== plain\naccepted 1 0\ntext x\nfinish stop 1 0 1 0\n") as s:
        status, _, text = ask(s, "POST", "/v1/chat/completions", {"stream": True, "model": "nano", "messages": [picture]})
        is_((status, "vision tower" in json.loads(text)["error"]["message"]), (400, True))
        status, _, text = ask(s, "POST", "/v1/embeddings", {"input": ["a"], "model": "nano"})
        is_((status, "embeddings are not supported" in json.loads(text)["error"]["message"]), (404, True))


if __name__ == "__main__":
    sys.exit(run_checks("open_webui", checks(globals())))
