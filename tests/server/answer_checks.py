"""Tokens, choices, prompts and limits of answers, in all dialects."""

import json
import os
import socket
import struct
import sys
import threading
import time

from serving import Checks, Server, Skip, is_, wait_until, within

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
KILN = "A kiln is a furnace for firing or burning or drying such things as porcelain or bricks."
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
KILN_BODY = {"messages": [{"role": "user", "content": "What is a kiln?"}], "temperature": 0, "reasoning_effort": "none"}


def post(s, path, **body):
    a = s.send("POST", path, body)
    if a.status != 200:
        raise AssertionError(a.body.decode())
    return a.json


def events(s, path, **body):
    """The data of a stream's events, [DONE] aside."""
    data = json.dumps(dict(body, stream=True)).encode()
    with s.connect() as c:
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        answer = b""
        while piece := c.recv(65536):
            answer += piece
    head, _, rest = answer.partition(b"\r\n\r\n")
    is_(head.split()[1], b"200")
    text = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        text, rest = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    lines = [line[6:] for line in text.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check_log_probabilities(s):
    """B59 through the server: one entry a token, the end token aside; a stream has the same ones; the greedy token is the
    best."""
    body = dict(KILN_BODY, logprobs=True, top_logprobs=2)
    a = post(s, CHAT, **body)
    entries = a["choices"][0]["logprobs"]["content"]
    is_(len(entries), a["usage"]["completion_tokens"] - 1)
    is_("".join(e["token"] for e in entries), KILN)
    is_(b"".join(bytes(e["bytes"]) for e in entries).decode(), KILN)
    is_(all(e["token"] == e["top_logprobs"][0]["token"] and len(e["top_logprobs"]) == 2 for e in entries), True)
    chunks = events(s, CHAT, **body)
    streamed = [e for c in chunks for choice in c["choices"] for e in (choice["logprobs"] or {"content": []})["content"]]
    is_([e["token"] for e in streamed], [e["token"] for e in entries])
    is_(max(abs(x["logprob"] - y["logprob"]) for x, y in zip(streamed, entries)) < 1e-3, True)
    for c in chunks:
        for choice in c["choices"]:
            text = "".join(e["token"] for e in (choice["logprobs"] or {"content": []})["content"])
            is_(choice["delta"].get("content", "") in ("", text), True)


def check_log_probabilities_of_a_prompt(s):
    """The echo's lists cover the prompt; they do not depend on what an earlier request left."""
    text = "A kiln is a furnace for firing"
    rows = [post(s, COMPLETIONS, prompt=text, echo=True, logprobs=1, max_tokens=2, temperature=0, ignore_eos=True) for _ in range(2)]
    for a in rows:
        l = a["choices"][0]["logprobs"]
        n = a["usage"]["prompt_tokens"]
        is_((len(l["tokens"]), l["token_logprobs"][0], l["top_logprobs"][0]), (n + 2, None, None))
        is_("".join(l["tokens"][:n]), text)
        is_(a["choices"][0]["text"], "".join(l["tokens"]))
        is_(l["text_offset"], [len("".join(l["tokens"][:i])) for i in range(n + 2)])
        is_(all(x <= 0 for x in l["token_logprobs"][1:]), True)
    is_(rows[0]["choices"][0]["logprobs"]["token_logprobs"], rows[1]["choices"][0]["logprobs"]["token_logprobs"])
    a = post(s, COMPLETIONS, prompt=text, prompt_logprobs=0, max_tokens=1)["choices"][0]
    is_((len(a["prompt_logprobs"]), a["prompt_logprobs"][0]), (rows[0]["usage"]["prompt_tokens"], None))


def check_choices(s):
    """Choice i has the seed of the request plus i, and is what a request with that seed gets; the prompt counts once."""
    body = dict(KILN_BODY, temperature=10, top_k=-1, top_p=1, max_tokens=12, ignore_eos=True)
    both = post(s, CHAT, **dict(body, seed=7, n=2))
    alone = [post(s, CHAT, **dict(body, seed=7 + i)) for i in range(2)]
    is_([c["message"]["content"] for c in both["choices"]], [a["choices"][0]["message"]["content"] for a in alone])
    is_(both["choices"][0]["message"]["content"] != both["choices"][1]["message"]["content"], True)
    is_((both["usage"]["prompt_tokens"], both["usage"]["completion_tokens"]), (alone[0]["usage"]["prompt_tokens"], 24))
    texts = ["", ""]
    finishes = []
    for chunk in events(s, CHAT, **dict(body, seed=7, n=2)):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            finishes += [(choice["index"], choice["finish_reason"])] if choice["finish_reason"] else []
    is_(texts, [c["message"]["content"] for c in both["choices"]])
    is_(sorted(finishes), [(0, "length"), (1, "length")])


def check_several_prompts(s):
    """More of them than slots: each gets what it gets alone."""
    prompts = ["A kiln is", "One two", "The", "a b c", "Hello"]
    body = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    a = post(s, COMPLETIONS, prompt=prompts, **body)
    alone = [post(s, COMPLETIONS, prompt=p, **body) for p in prompts]
    is_([c["text"] for c in a["choices"]], [x["choices"][0]["text"] for x in alone])
    is_([c["index"] for c in a["choices"]], list(range(5)))
    is_(a["usage"]["prompt_tokens"], sum(x["usage"]["prompt_tokens"] for x in alone))
    a = s.send("POST", COMPLETIONS, {"prompt": ["a", "a " * 5000]})
    is_((a.status, a.code), (400, "context_length_exceeded"))


def check_answers_that_go_on(s):
    begun = KILN_BODY["messages"] + [{"role": "assistant", "content": "A kiln is "}]
    rest = KILN.removeprefix("A kiln is")
    a = post(s, CHAT, **dict(KILN_BODY, messages=begun))
    is_(a["choices"][0]["message"]["content"], rest)
    a = post(s, CHAT, **dict(KILN_BODY, messages=begun, echo=True))
    is_(a["choices"][0]["message"]["content"], KILN)
    a = post(s, MESSAGES, messages=begun, temperature=0, thinking={"type": "disabled"})
    is_(a["content"][0]["text"], rest)
    is_(a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"], post(s, MESSAGES + "/count_tokens", messages=begun, thinking={"type": "disabled"})["input_tokens"])


def check_salts(s):
    """What a request left in a slot is used by those of the same salt alone."""
    body = {"prompt": "word" + " word" * 60, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    longer = dict(body, prompt=body["prompt"] + " and more of it")
    for salt, hits in (("a", True), ("b", False)):
        post(s, COMPLETIONS, **dict(body, cache_salt="a", cache_prompt=False))
        a = post(s, COMPLETIONS, **dict(longer, cache_salt=salt))
        is_(a["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, hits)


def check_stop_strings_that_are_shown(s):
    for path, text in ((CHAT, lambda a: a["choices"][0]["message"]["content"]), (MESSAGES, lambda a: a["content"][0]["text"])):
        for shown in False, True:
            body = dict(KILN_BODY, stop=[" furnace"], include_stop_str_in_output=shown)
            if path == MESSAGES:
                del body["reasoning_effort"]
                body["thinking"] = {"type": "disabled"}
            is_(text(post(s, path, **body)), "A kiln is a furnace" if shown else "A kiln is a")


def check_tokens_that_stop(s):
    """The id that stopped it is told, and is no part of the text; the model's own end token is no reason."""
    a = post(s, CHAT, **dict(KILN_BODY, return_token_ids=True))["choices"][0]
    is_(a["stop_reason"], None)
    b = post(s, CHAT, **dict(KILN_BODY, return_token_ids=True, stop_token_ids=[a["token_ids"][5]]))["choices"][0]
    is_((b["finish_reason"], b["stop_reason"], b["token_ids"]), ("stop", a["token_ids"][5], a["token_ids"][:5]))


def check_images_are_refused(s):
    """Without a vision tower: whatever they are, wherever a dialect may have them, on every route that renders."""
    data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM4IacBAALAAQ/aQIG5AAAAAElFTkSuQmCC"
    urls = "data:image/png;base64," + data, "data:image/png;base64,%%%", "data:", "http://127.0.0.1/a.png", "file:///etc/passwd", ""
    user, text = {"role": "user", "content": "q"}, {"type": "text", "text": "what"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    rows = []
    for url in urls:
        for image in {"type": "image_url", "image_url": {"url": url, "detail": "low"}}, {"type": "image_url", "image_url": url}, {"type": "image", "image": url}:
            rows += [(CHAT, {"messages": [{"role": "user", "content": [text, image]}]}, "messages[0].content[1]"),
                     (CHAT, {"messages": [user, call, {"role": "tool", "tool_call_id": "c", "content": [image]}]}, "messages[2].content[0]")]
        image = {"type": "input_image", "image_url": url}
        rows += [(RESPONSES, {"input": [{"role": "user", "content": [image]}]}, "input[0].content[0]"),
                 (RESPONSES, {"input": [user, called, {"type": "function_call_output", "call_id": "c", "output": [image]}]}, "input[2].output[0]")]
    rows += [(RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0]")]
    sources = [{"type": "base64", "media_type": "image/png", "data": x} for x in (data, "%%%", "", None)]
    for source in sources + [{"type": "url", "url": urls[3]}, {"type": "file", "file_id": "f"}, None]:
        image = {"type": "image", "source": source}
        rows += [(MESSAGES, {"messages": [{"role": "user", "content": [text, image]}]}, None),
                 (MESSAGES, {"messages": [user, use, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [image]}]}]}, None)]
    for path, body, param in rows:
        counts = path + ("/count_tokens" if path == MESSAGES else "/input_tokens")
        dialect = {CHAT: "chat", RESPONSES: "responses", MESSAGES: "messages"}[path]
        for route, more in (path, {}), (path, {"stream": True}), (counts, {}), ("/apply-template", {"dialect": dialect}):
            a = s.send("POST", route, {**body, **more})
            error = a.json["error"]
            is_((route, body, a.status, "image input needs the vision tower" in error["message"]), (route, body, 400, True))
            if route.startswith(MESSAGES):
                is_((error["type"], error["message"].startswith("messages[")), ("invalid_request_error", True))
            elif param:
                is_((error["type"], error["code"], error["param"]), ("invalid_request_error", "invalid_image", param))
    is_(s.send("GET", "/props").json["modalities"]["vision"], False)


def check_the_count_of_an_image(_):
    raise Skip("case B50's row with an image needs vision")


def check_usage_and_timings_in_every_chunk(s):
    chunks = events(s, CHAT, **dict(KILN_BODY, timings_per_token=True, stream_options={"continuous_usage_stats": True}))
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    is_(counts, sorted(counts))
    is_((counts[0] < 3, counts[-1]), (True, post(s, CHAT, **KILN_BODY)["usage"]["completion_tokens"]))
    with_text = [c for c in chunks if c["choices"][0]["delta"].get("content")]
    is_([c["timings"]["predicted_n"] for c in with_text], [c["usage"]["completion_tokens"] for c in with_text])


def check_token_ids(s):
    a = post(s, CHAT, **dict(KILN_BODY, return_token_ids=True))
    text = s.send("POST", "/detokenize", {"tokens": a["choices"][0]["token_ids"]}).json["content"]
    is_((text, len(a["prompt_token_ids"])), (KILN, a["usage"]["prompt_tokens"]))
    chunks = events(s, CHAT, **dict(KILN_BODY, return_token_ids=True))
    is_(sum((c["choices"][0].get("token_ids", []) for c in chunks), []), a["choices"][0]["token_ids"])
    is_([c["prompt_token_ids"] for c in chunks if "prompt_token_ids" in c], [a["prompt_token_ids"]])


def check_the_limit_in_all_dialects(s):
    """B46, streamed too."""
    hello = [{"role": "user", "content": "Say hello."}]
    a = post(s, RESPONSES, input="Say hello.", max_output_tokens=1, ignore_eos=True)
    is_((a["status"], a["incomplete_details"]["reason"]), ("incomplete", "max_output_tokens"))
    last = events(s, RESPONSES, input="Say hello.", max_output_tokens=1, ignore_eos=True)[-1]
    is_((last["type"], last["response"]["incomplete_details"]["reason"]), ("response.incomplete", "max_output_tokens"))
    delta = [e for e in events(s, MESSAGES, messages=hello, max_tokens=1, ignore_eos=True) if e["type"] == "message_delta"][0]
    is_((delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]), ("max_tokens", 1))
    last = events(s, COMPLETIONS, prompt="A", max_tokens=2, ignore_eos=True)[-1]
    is_(last["choices"][0]["finish_reason"], "length")


def check_the_end_of_the_context_in_messages(s):
    """It has a reason of its own for clients that know it."""
    body = {"messages": [{"role": "user", "content": "a " * 2000}], "ignore_eos": True, "thinking": {"type": "disabled"}}
    known = ("anthropic-version", "2026-10-21"), ("anthropic-beta", "a,model-context-window-exceeded-2025-08-26")
    for header in known + (("anthropic-version", "2023-06-01"),):
        a = s.send("POST", MESSAGES, body, [header]).json
        is_(a["stop_reason"], "model_context_window_exceeded" if header in known else "max_tokens")


def check_a_limit_of_no_tokens(s):
    """Messages alone have it: the prompt is read, and cached."""
    body = {"messages": [{"role": "user", "content": "lorem ipsum " * 30}], "max_tokens": 0}
    a = post(s, MESSAGES, **body)
    is_((a["content"], a["stop_reason"], a["usage"]["output_tokens"]), ([], "max_tokens", 0))


def check_tools_that_must_not_be_called(_):
    """B28, its first row, with the tools in the prompt: the beginning of the prompt stays what it is."""
    parameters = {"type": "object", "properties": {"id": {"type": "integer", "description": "The order number"}}, "required": ["id"]}
    tool = {"type": "function", "function": {"name": "order_status", "description": "Get the status of an order.", "parameters": parameters}}
    body = dict(KILN_BODY, messages=[{"role": "user", "content": "Check order number 795914."}], tools=[tool], max_tokens=60)
    with Server(PROGRAM, MODEL, "--tool-choice-none", "keep") as s:
        free = post(s, CHAT, **body)
        is_(free["choices"][0]["finish_reason"], "tool_calls")
        a = post(s, CHAT, **dict(body, tool_choice="none"))
        is_(("tool_calls" in a["choices"][0]["message"], "<tool" in a["choices"][0]["message"]["content"]), (False, False))
        is_(a["usage"]["prompt_tokens"], free["usage"]["prompt_tokens"])


def check_options(_):
    """What the server's options say where a request does not."""
    late = [{"role": "user", "content": "q"}, {"role": "system", "content": "late"}]
    begun = KILN_BODY["messages"] + [{"role": "assistant", "content": "A kiln is"}]
    with Server(PROGRAM, MODEL, "--always-usage", "--prefill-assistant", "off", "--late-system", "inline", "--billing-header", "keep", "--max-calls", "1") as s:
        chunks = events(s, CHAT, **dict(KILN_BODY, max_tokens=1))
        is_((chunks[-1]["choices"], "usage" in chunks[-1]), ([], True))
        is_("user\nq<|im_end|>\n<|im_start|>system\nlate<|im_end|>" in post(s, "/apply-template", messages=late)["prompt"], True)
        is_(post(s, "/apply-template", messages=begun)["prompt"].count("<|im_start|>assistant"), 2)
        a = post(s, MESSAGES + "/count_tokens", system="x-anthropic-billing-header: a\nb", messages=late[:1])["input_tokens"]
        is_(a > post(s, MESSAGES + "/count_tokens", system="b", messages=late[:1])["input_tokens"], True)
    with Server(PROGRAM, MODEL) as s:
        is_("late<|im_end|>\n<|im_start|>user\nq<" in post(s, "/apply-template", messages=late)["prompt"], True)
        is_(post(s, "/apply-template", messages=begun)["prompt"].endswith("A kiln is"), True)


def check_a_reader_that_stalls(_):
    """B100, its last row: a stream that nobody takes is cut off after --write-timeout; others keep their slot."""
    with Server(PROGRAM, MODEL, "--slots", "2", "--write-timeout", "1", "--ctx", "16384") as s:
        # More than the sockets' buffers hold, at once.
        body = {"prompt": "word " * 1700, "max_tokens": 12000, "ignore_eos": True, "stream": True, "n": 2, "echo": True, "logprobs": 20, "prompt_logprobs": 20}
        body = json.dumps(body).encode()
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (COMPLETIONS.encode(), len(body)) + body)
        is_(post(s, CHAT, **KILN_BODY)["choices"][0]["message"]["content"], KILN)
        wait_until(lambda: not any(x["is_processing"] for x in s.send("GET", "/slots").json), 60)
        c.settimeout(20)
        data = b""
        try:
            while piece := c.recv(65536):
                data += piece
        except ConnectionError:
            pass
        c.close()
        is_(data.endswith(b"0\r\n\r\n"), False)


class Neighbour(threading.Thread):
    """One question again and again, until it is told to stop; what is wrong with the answers."""

    def __init__(self, s):
        super().__init__()
        self.s, self.n, self.wrong, self.going = s, 0, [], True

    def run(self):
        while self.going:
            try:
                is_(post(self.s, CHAT, **KILN_BODY)["choices"][0]["message"]["content"], KILN)
                self.n += 1
            except Exception as e:
                self.wrong.append(repr(e))


def check_clients_that_go_away_again_and_again(_):
    """B100: 200 of them (LATHE_QUICK: 20), by the rows of the case in turn, while another client goes on. It keeps its answers;
    each of the others is over within a second; pages and memory come back."""
    endless = dict(KILN_BODY, ignore_eos=True, max_tokens=100000)
    rows = [
        ("first chunk", dict(endless, stream=True), None, False),
        ("300 ms", dict(endless, stream=False), 0.3, False),
        ("queued", dict(endless, stream=True), 0.1, False),
        ("prefill", {"messages": [{"role": "user", "content": "a" + " a" * 20000}], "max_tokens": 100000, "stream": True}, 0.2, False),
        ("reset", dict(endless, stream=False), 0.1, True),
    ]
    with Server(PROGRAM, MODEL, "--slots", "2", "--ctx", "32768", "--debug-routes") as s:
        def begin(body):
            data = json.dumps(body).encode()
            c = s.connect()
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
            return c

        def active():
            lines = s.send("GET", "/metrics").body.decode().split("\n")
            return sum(float(x.split()[-1]) for x in lines if x.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting")))

        def one(name, body, wait, is_reset):
            before_it = [begin(rows[0][1]) for _ in range(2 if name == "queued" else 0)]
            for c in before_it:
                c.recv(1000)
            c = begin(body)
            if wait is None:
                c.recv(1000)
            else:
                time.sleep(wait)
            if name == "queued":
                wait_until(lambda: active() >= 3)
            if is_reset:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.close()
            for c in before_it:
                c.close()
            within(1, lambda: active() <= 1, name)  # the neighbour's

        def rounds(n):
            neighbour = Neighbour(s)
            neighbour.start()
            try:
                for i in range(n):
                    one(*rows[i % len(rows)])
                seen = neighbour.n
                wait_until(lambda: neighbour.n > seen)
            finally:
                neighbour.going = False
                neighbour.join()
            is_(neighbour.wrong, [])

        rounds(4 * len(rows))
        before = s.memory()
        rounds(20 if os.environ.get("LATHE_QUICK") else 200)
        is_(active(), 0)
        is_([x["is_processing"] for x in s.send("GET", "/slots").json], [False, False])
        is_(s.send("GET", "/debug/cache").json["pages_running"], 0)
        after = s.memory()
        is_(after <= before * 1.01 or (before, after), True)
        is_(s.send("POST", "/reset_prefix_cache", {}).status, 200)
        is_(s.send("GET", "/debug/cache").json["pages_idle"], 0)
        is_(s.send("GET", "/health").status, 200)


def check_thinking_budgets(s):
    """The block is closed after so many tokens, a newline, the tag and two newlines, in every dialect; a budget of 0 leaves
    the prompt as it is."""
    question = [{"role": "user", "content": "Name a city."}]
    for budget in (0, 4):
        chat = post(s, CHAT, messages=question, thinking_budget=budget, temperature=0, return_token_ids=True)
        messages = post(s, MESSAGES, messages=question, thinking={"type": "enabled", "budget_tokens": budget}, temperature=0)
        responses = post(s, RESPONSES, input=question, reasoning={"max_tokens": budget}, temperature=0)
        is_(chat["usage"]["completion_tokens_details"]["reasoning_tokens"], budget + 3)
        is_(messages["usage"]["output_tokens_details"]["thinking_tokens"], budget + 3)
        is_(responses["usage"]["output_tokens_details"]["reasoning_tokens"], budget + 3)
        text = chat["choices"][0]["message"]["content"]
        is_(len(text) > 5 and text, messages["content"][-1]["text"])
        is_(text, responses["output"][-1]["content"][0]["text"])
        is_("reasoning_content" in chat["choices"][0]["message"], budget > 0)
        is_(chat["prompt_token_ids"], post(s, CHAT, messages=question, max_tokens=1, return_token_ids=True)["prompt_token_ids"])


ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
with Server(PROGRAM, MODEL, "--slots", "2") as server:
    sys.exit(Checks("test_answers_http").run(ALL, sys.argv[3:], server))
