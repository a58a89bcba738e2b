"""Chat completions of the shipped model, from outside."""

import json
import socket
import struct
import sys
import time

from serving import Checks, Server, is_, shortest, wait_until, within

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
KILN = "A kiln is a furnace for firing or burning or drying such things as porcelain or bricks."
CHAT = "/v1/chat/completions"


def ask(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


def post(s, body):
    return s.send("POST", CHAT, body)


def open_stream(s, body):
    """A socket with the request sent, and nothing read."""
    c = s.connect()
    data = json.dumps(body).encode()
    c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
    return c


def read_stream(c):
    """The data of all events."""
    data = b""
    while b"data: [DONE]\n\n" not in data:
        piece = c.recv(65536)
        if not piece:
            break
        data += piece
    is_(b" 200 OK" in data.split(b"\r\n")[0], True)
    # A chunk's size line may stand between any two bytes, so the chunks are joined first.
    body, rest = b"", data.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not size:
            break
        n = int(size, 16)
        body, rest = body + rest[:n], rest[n + 2 :]
        if n == 0:
            break
    lines = [line for line in body.decode().split("\n\n") if line and not line.startswith(":")]
    is_(all(line.startswith("data: ") for line in lines), True)
    is_(lines[-1], "data: [DONE]")
    return [json.loads(line[6:]) for line in lines[:-1]]


def stream(s, body):
    with open_stream(s, dict(body, stream=True)) as c:
        return read_stream(c)


def fold(chunks):
    message = {"content": "", "reasoning_content": ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for name in message:
                message[name] += choice["delta"].get(name, "")
    return message


def is_free(s):
    """The one slot: a short request is answered."""
    return post(s, ask("a", max_tokens=1, ignore_eos=True)).status == 200


def check_an_answer(s):
    a = post(s, ask("What is a kiln?", temperature=0, enable_thinking=False)).json
    is_(a["choices"][0]["message"]["content"], KILN)
    is_("reasoning_content" in a["choices"][0]["message"], False)
    is_(a["choices"][0]["finish_reason"], "stop")
    is_(a["usage"]["total_tokens"], a["usage"]["prompt_tokens"] + a["usage"]["completion_tokens"])
    is_(a["timings"]["prompt_n"] + a["timings"]["cache_n"], a["usage"]["prompt_tokens"])


def check_a_stream_is_the_answer_in_pieces(s):
    for more in {"enable_thinking": False}, {}, {"stop": "furnace"}, {"max_tokens": 7}:
        body = ask("What is a kiln?", temperature=0, **more)
        whole = post(s, body).json["choices"][0]
        chunks = stream(s, body)
        message = fold(chunks)
        is_(message["content"], whole["message"]["content"])
        is_(message["reasoning_content"], whole["message"].get("reasoning_content", ""))
        is_([c["finish_reason"] for k in chunks for c in k["choices"] if c["finish_reason"]], [whole["finish_reason"]])


def check_thinking(s):
    """Reasoning stands apart, and is counted."""
    a = post(s, ask("What is the weather in Oslo?", temperature=0)).json
    is_(len(a["choices"][0]["message"]["reasoning_content"]) > 0, True)
    is_(a["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0, True)
    is_("<" + "think>" in a["choices"][0]["message"]["content"], False)
    a = post(s, ask("What is the weather in Oslo?", temperature=0, include_reasoning=False)).json
    is_("reasoning_content" in a["choices"][0]["message"], False)


def check_the_limit(s):
    """B46, its chat row."""
    body = ask("Say hello.", max_tokens=1, ignore_eos=True)
    a = post(s, body).json
    is_((a["choices"][0]["finish_reason"], a["usage"]["completion_tokens"]), ("length", 1))
    is_(stream(s, body)[-1]["choices"][0]["finish_reason"], "length")


def check_usage_chunks_and_limits(s):
    """B49."""
    chunks = stream(s, ask("Say hello.", max_tokens=4, stream_options={"include_usage": True}))
    is_(chunks[0]["choices"][0]["delta"]["role"], "assistant")
    last = [c for c in chunks if not c["choices"]]
    is_((len(last), last[0] is chunks[-1]), (1, True))
    usage = last[0]["usage"]
    is_(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
    is_(usage["prompt_tokens_details"]["cached_tokens"] >= 0, True)
    is_([c["usage"] for c in chunks[:-1]], [None] * (len(chunks) - 1))
    chunks = stream(s, ask("Say hello.", max_tokens=4))
    is_(all(c["choices"] for c in chunks), True)
    for more in {"max_tokens": 0}, {"max_tokens": -1}, {"temperature": -0.5}, {"top_p": 1.5}:
        is_(post(s, ask("Say hello.", **more)).status, 400)


def padded(s, n):
    """A body whose prompt has n tokens."""
    def tokens(text):
        return s.send("POST", "/tokenize", ask(text)).json["count"]
    text = "a"
    text += " a" * (n - tokens(text))
    is_(tokens(text), n)
    return ask(text, ignore_eos=True)


def check_the_edge_of_the_context(_):
    """B53. What does not fit is refused before a slot or a page is taken, in every dialect, within 100 ms."""
    with Server(PROGRAM, MODEL, "--ctx", "512", "--debug-routes") as s:
        def held():
            slots, cache, lines = s.send("GET", "/slots").json, s.send("GET", "/debug/cache").json, s.send("GET", "/metrics").body.decode().split("\n")
            counts = [float(x.split()[-1]) for x in lines if x.startswith(("vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count"))]
            return slots, cache["pages_running"], cache["pages_idle"], cache["prefixes"], counts

        def refused(path, body, **more):
            answers = []

            def once():
                start = time.monotonic()
                answers.append(s.send("POST", path, {**body, **more}))
                return time.monotonic() - start

            shortest(0.1, once, 10)
            is_([a.status for a in answers], [400] * len(answers))
            is_("512" in answers[0].json["error"]["message"], True)
            return answers[0]

        before = held()
        is_((before[0][0]["is_processing"], before[0][0]["n_held"], *before[1:]), (False, 0, 0, 0, [], [0, 0]))
        text = padded(s, 600)["messages"]
        for more in {}, {"stream": True}:
            a = refused("/v1/chat/completions", {"messages": text}, **more)
            is_(a.code, "context_length_exceeded")
            is_("600" in a.json["error"]["message"], True)
            is_((a.json["error"]["n_prompt_tokens"], a.json["error"]["n_ctx"]), (600, 512))
            is_(refused("/v1/messages", {"messages": text}, max_tokens=1, **more).json["error"]["type"], "invalid_request_error")
            is_(refused("/v1/responses", {"input": text}, **more).code, "context_length_exceeded")
            a = refused("/v1/completions", {"prompt": "a" + " a" * 599}, **more)
            is_((a.code, a.json["error"]["param"]), ("context_length_exceeded", "prompt"))
        refused("/v1/chat/completions", padded(s, 512), max_tokens=1)
        is_(held(), before)
        a = post(s, dict(padded(s, 500), max_tokens=100)).json
        is_((a["choices"][0]["finish_reason"], a["usage"]["completion_tokens"]), ("length", 12))
        is_(post(s, dict(padded(s, 511), max_tokens=5)).json["usage"]["completion_tokens"], 1)


def check_tool_choice(s):
    """B28; what would need constrained decoding is refused."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": n, "parameters": city}} for n in ("get_weather", "get_time")]
    base = ask("Weather in Oslo?", max_tokens=40, temperature=0, tools=tools)
    a = post(s, dict(base, tool_choice="none")).json
    is_("tool_calls" in a["choices"][0]["message"], False)
    for choice in "required", {"type": "function", "function": {"name": "get_time"}}:
        a = post(s, dict(base, tool_choice=choice))
        is_((a.status, a.code, a.json["error"]["param"]), (400, "unsupported_value", "tool_choice"))
    for more in {"tool_choice": {"type": "function", "function": {"name": "nope"}}}, {"tool_choice": "required", "tools": []}, {"tool_choice": "sometimes"}:
        is_(post(s, dict(base, **more)).status, 400)


def check_a_nul_in_a_message(s):
    """B101, its row that is no error."""
    is_(post(s, b'{"messages":[{"role":"user","content":"\\u0000"}],"max_tokens":1}').status, 200)


def check_unknown_fields(s):
    a = post(s, ask("a", max_tokens=1, surprise=1, user="u", prompt_cache_key="k", functions=None))
    is_((a.status, a.headers["x-unknown-fields"]), (200, "surprise"))


def check_completions(s):
    """The raw route, B46's row with it: a rendered prompt as text or as ids gives what the chat route gives."""
    body = ask("What is a kiln?", enable_thinking=False)
    prompt = s.send("POST", "/apply-template", body).json["prompt"]
    ids = s.send("POST", "/tokenize", body).json["tokens"]
    for p in prompt, ids:
        a = s.send("POST", "/v1/completions", {"prompt": p, "temperature": 0}).json
        is_((a["choices"][0]["text"], a["choices"][0]["finish_reason"]), (KILN, "stop"))
        is_(a["usage"]["prompt_tokens"], len(ids))
    plain = s.send("POST", "/v1/completions", {"prompt": prompt, "parse_special": False, "max_tokens": 1}).json
    is_(plain["usage"]["prompt_tokens"] > len(ids), True)
    a = s.send("POST", "/completions", {"prompt": "A", "max_tokens": 2, "ignore_eos": True}).json
    is_((a["choices"][0]["finish_reason"], a["usage"]["completion_tokens"]), ("length", 2))


def check_messages(s):
    """Anthropic's dialect: the limit (B46), and counts that are those of the chat route (B50, texts alone)."""
    hello = {"messages": [{"role": "user", "content": "Say hello."}]}
    a = s.send("POST", "/v1/messages?beta=true", dict(hello, max_tokens=1, ignore_eos=True)).json
    is_((a["stop_reason"], a["usage"]["output_tokens"]), ("max_tokens", 1))
    tool = {"name": "f", "description": "d é", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    called = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "x"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}}, {"type": "tool_use", "id": "t2", "name": "f", "input": {"x": 2}}]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}, {"type": "tool_result", "tool_use_id": "t2", "content": "8"}, {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "7"}]}]},
    ]
    chat_called = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "reasoning_content": "t", "tool_calls": [{"id": f"t{i}", "type": "function", "function": {"name": "f", "arguments": '{"x": %d}' % i}} for i in (1, 2)]},
        {"role": "tool", "tool_call_id": "t1", "content": "7"},
        {"role": "tool", "tool_call_id": "t2", "content": "8"},
        {"role": "user", "content": "go on"},
    ]
    chat_tool = {"type": "function", "function": {"name": "f", "description": "d é", "parameters": tool["input_schema"]}}
    rows = [
        (hello, hello),
        (dict(hello, system="Rules."), {"messages": [{"role": "system", "content": "Rules."}] + hello["messages"]}),
        (dict(hello, system=[{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "Rules."}, {"type": "text", "text": "More."}], tools=[tool]),
         {"messages": [{"role": "system", "content": "Rules.\n\nMore."}] + hello["messages"], "tools": [chat_tool]}),
        ({"messages": called}, {"messages": chat_called}),
    ]
    for body, chat in rows:
        n = s.send("POST", "/v1/messages/count_tokens", body).json["input_tokens"]
        usage = s.send("POST", "/v1/messages", dict(body, max_tokens=1)).json["usage"]
        is_(n, usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"])
        is_(n, post(s, dict(chat, max_tokens=1)).json["usage"]["prompt_tokens"])
    a = s.send("POST", "/v1/messages", {"messages": [{"role": "user", "content": "a " * 5000}], "max_tokens": 1})
    is_((a.status, a.json["error"]["type"]), (400, "invalid_request_error"))
    is_(a.json["error"]["message"].startswith("prompt is too long: 5") and a.json["error"]["message"].endswith("> 2048 maximum"), True)


def check_counts(s):
    """The count is the prompt's of the same body."""
    tools = [{"type": "function", "function": {"name": "f", "description": "d é", "parameters": {"type": "object"}}}]
    for body in ask("Say hello."), ask("a", tools=tools), ask("a", tools=tools, tool_choice="none"), ask("a", reasoning_effort="low"):
        n = s.send("POST", CHAT + "/input_tokens", body).json
        is_(n, {"object": "response.input_tokens", "input_tokens": post(s, dict(body, max_tokens=1)).json["usage"]["prompt_tokens"]})
    is_(s.send("POST", CHAT + "/input_tokens", ask("a " * 5000)).json["input_tokens"] > 2048, True)
    is_(s.send("POST", CHAT + "/input_tokens", ask("a", max_tokens=0)).status, 400)


def check_the_log(_):
    with Server(PROGRAM, MODEL, "--log", "json", "--api-key", "secret-key") as s:
        key = [("Authorization", "Bearer secret-key")]

        def logged(n):
            wait_until(lambda: sum('"path"' in line for line in s.lines) >= n)

        s.send("GET", "/health")
        s.send("POST", CHAT, ask("hidden words", max_tokens=2, ignore_eos=True, model="some name"), key)
        logged(1)
        s.send("POST", CHAT, ask("hidden words", max_tokens=0), key)
        logged(2)
        s.send("GET", "/v1/models")
        logged(3)
        lines = [json.loads(line) for line in s.lines if '"path"' in line]
        is_([(x["path"], x["status"]) for x in lines], [(CHAT, 200), (CHAT, 400), ("/v1/models", 401)])
        is_((lines[0]["output"], lines[0]["finish"], lines[0]["model"], lines[0]["dialect"]), (2, "length", "some name", "chat"))
        is_((lines[1]["error"], lines[2]["error"]), ("invalid_value", "invalid_api_key"))
        is_(any("hidden" in x or "secret" in x for x in s.lines), False)
    with Server(PROGRAM, MODEL) as s:
        s.send("GET", "/v1/models", headers=[("x-request-id", "an-id")])
        wait_until(lambda: any("id=an-id method=GET path=/v1/models status=200" in x for x in s.lines))


def check_model_names(s):
    is_(post(s, ask("a", max_tokens=1, model="gpt-5.5")).json["model"], "gpt-5.5")
    is_(post(s, ask("a", max_tokens=1)).json["model"], "nano")


def is_idle(s):
    lines = s.send("GET", "/metrics").body.decode().split("\n")
    return not any(float(x.split()[-1]) for x in lines if x.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting")))


def check_clients_that_go_away(s):
    """B100, with fewer repeats: the slot is free within a second of the close, in each phase."""
    endless = ask("Tell a story.", ignore_eos=True)
    long_prompt = dict(ask("word " * 1500, ignore_eos=True), stream=True)
    for _ in range(3):
        for body, wait in (dict(endless, stream=True), 0.2), (endless, 0.3), (long_prompt, 0.05):
            for reset in False, True:
                c = open_stream(s, body)
                time.sleep(wait)
                if reset:
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.close()
                within(1, lambda: is_idle(s), body["messages"][0]["content"][:20])
    is_(is_free(s), True)


def check_a_queued_client_that_goes_away(s):
    with open_stream(s, ask("Tell a story.", ignore_eos=True, stream=True)) as first:
        first.recv(100)
        second = open_stream(s, ask("a", max_tokens=1, stream=True))
        wait_until(lambda: b'num_requests_waiting{model_name="nano"} 1\n' in s.send("GET", "/metrics").body)
        second.close()
        within(1, lambda: b'num_requests_waiting{model_name="nano"} 0\n' in s.send("GET", "/metrics").body, "waiting")
    within(1, lambda: is_idle(s), "decoding")
    is_(is_free(s), True)


def check_a_full_queue(_):
    with Server(PROGRAM, MODEL, "--max-queue", "1") as s:
        endless = ask("Tell a story.", ignore_eos=True, stream=True)
        with open_stream(s, endless) as a, open_stream(s, endless) as b:
            a.recv(100)
            wait_until(lambda: post(s, endless).status == 429)
            c = post(s, endless)
            is_((c.code, 1 <= int(c.headers["retry-after"]) <= 60), ("queue_full", True))
            b.close()
        within(1, lambda: is_idle(s), "both")
        is_(is_free(s), True)


def check_requests_beside_each_other(_):
    with Server(PROGRAM, MODEL, "--slots", "3") as s:
        body = ask("What is a kiln?", temperature=0, enable_thinking=False, stream=True)
        sockets = [open_stream(s, body) for _ in range(6)]
        is_([fold(read_stream(c))["content"] for c in sockets], [KILN] * 6)
        for c in sockets:
            c.close()


def check_the_end(_):
    """SIGTERM: what runs ends with an error event after the grace, the exit code is 0."""
    with Server(PROGRAM, MODEL, "--drain-timeout", "0") as s:
        with open_stream(s, ask("Tell a story.", ignore_eos=True, stream=True)) as c:
            c.recv(100)
            s.process.terminate()
            data = b""
            while piece := c.recv(65536):
                data += piece
        is_(b"shutting_down" in data and b"data: [DONE]" in data, True)
        is_(s.process.wait(10), 0)
    with Server(PROGRAM, MODEL) as s:
        with open_stream(s, ask("What is a kiln?", temperature=0, enable_thinking=False, stream=True)) as c:
            time.sleep(0.05)
            s.process.terminate()
            is_(fold(read_stream(c))["content"], KILN)
        is_(s.process.wait(10), 0)


ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
with Server(PROGRAM, MODEL) as server:
    sys.exit(Checks("test_chat_http").run(ALL, sys.argv[3:], server))
