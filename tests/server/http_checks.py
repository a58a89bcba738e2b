"""What the HTTP layer answers, byte by byte where that matters."""

import json
import os
import re
import signal
import socket
import sys
import time

from serving import Answer, Checks, Server, is_, wait_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
HELLO = {"messages": [{"role": "user", "content": "Say hello."}]}


def check_probes(s):
    for path in "/health", "/ready", "/livez", "/ping", "/api/hello", "/health/", "/health?x=1":
        is_(s.send("GET", path).status, 200)
    is_(s.send("GET", "/health").json, {"status": "ok"})
    a = s.raw(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
    is_(a.status, 200)


def check_models(s):
    a = s.send("GET", "/v1/models").json
    is_([m["id"] for m in a["data"]], ["nano"])
    is_(a["data"][0]["max_model_len"], 2048)
    is_(a["data"][0]["aliases"], ["org/other"])
    for name in "nano", "org/other", "org%2Fother", "nano:latest", "nano[1m]":
        is_(s.send("GET", "/models/" + name).json["id"], "nano")
    a = s.send("GET", "/v1/models/none")
    is_((a.status, a.code), (404, "model_not_found"))


def check_properties(s):
    a = s.send("GET", "/props").json
    is_((a["n_ctx"], a["total_slots"], a["eos_token"]), (2048, 1, "<|im_end|>"))
    is_(len(a["chat_template_sha256"]), 64)
    is_(s.send("GET", "/version").json["template_sha256"], a["chat_template_sha256"])
    revision = s.send("GET", "/version").json["revision"]
    is_(bool(re.fullmatch(r"[0-9a-f]{12}(-dirty)?|unknown", revision)), True)
    is_(a["build_info"], s.send("GET", "/version").json["version"] + "-" + revision)
    build = s.send("GET", "/version").json["build"]
    is_(bool(re.match(r"(x86_64|aarch64|other)-linux, .+, cpu(, cuda .+)?", build)), True)


def check_routes(s):
    a = s.send("POST", "/props", {})
    is_((a.status, a.code, a.headers["allow"]), (405, "method_not_allowed", "GET, HEAD, OPTIONS"))
    a = s.send("GET", "/tokenize")
    is_((a.status, a.headers["allow"]), (405, "POST, OPTIONS"))
    a = s.send("POST", "/v1/v1/models", {})
    is_((a.status, "drop one /v1" in a.json["error"]["message"]), (404, True))
    a = s.send("POST", "/v1/messages/batches", {})
    is_((a.status, a.json["error"]["type"]), (404, "not_found_error"))
    is_(a.json["request_id"], a.headers["request-id"])
    a = s.send("POST", "/v1/embeddings", {})
    is_((a.status, "not supported" in a.json["error"]["message"]), (404, True))
    a = s.send("GET", "/a%00b")
    is_((a.status, a.headers["connection"]), (400, "close"))


def check_help(s):
    a = s.send("GET", "/help")
    is_((a.status, a.headers["content-type"]), (200, "text/plain; charset=utf-8"))
    is_(b"/v1/models/{id}\n" in a.body, True)
    is_(a.headers["content-security-policy"], "default-src 'self'; frame-ancestors 'none'")
    is_(a.headers["x-content-type-options"], "nosniff")
    is_("etag" in a.headers, False)


def check_page(s):
    index = s.send("GET", "/")
    is_((index.status, index.headers["content-type"]), (200, "text/html; charset=utf-8"))
    is_(index.headers["content-security-policy"], "default-src 'self'; frame-ancestors 'none'")
    is_(index.headers["x-content-type-options"], "nosniff")
    # All that it names is there, and nothing is named that is not from here.
    names = re.findall(r'(?:src|href)="([^"#]+)"', index.body.decode())
    is_({"page/main.js", "page/style.css", "page/icon.svg"} <= set(names), True)
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    for folder, _, files in os.walk("server/page"):
        for name in files:
            a = s.send("GET", "/" if name == "index.html" else f"/page/{name}")
            with open(os.path.join(folder, name), "rb") as f:
                is_((a.status, a.body), (200, f.read()))
            is_(a.headers["content-type"], types.get(name.rpartition(".")[2], "text/html; charset=utf-8"))
            known = s.send("GET", "/" if name == "index.html" else f"/page/{name}", headers=[("If-None-Match", a.headers["etag"])])
            is_((known.status, known.body, known.headers["etag"]), (304, b"", a.headers["etag"]))
    is_(s.send("GET", "/", headers=[("If-None-Match", '"x"')]).status, 200)
    counted = s.send("GET", "/metrics").body.decode()
    is_(('dialect="other",status="304"' in counted, 'status="504"' in counted), (True, False))
    with s.connect() as c:
        c.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        a = Answer(c, has_body=False)
        is_((a.status, a.headers["content-length"], a.headers["etag"], a.body), (200, str(len(index.body)), index.headers["etag"], b""))
    is_((s.send("POST", "/", {}).status, s.send("GET", "/page/x").status, s.send("GET", "/page/../x").status), (405, 404, 404))
    is_(s.send("GET", "/", host="evil.com").status, 403)


def check_head_has_no_body(s):
    with s.connect() as c:
        c.sendall(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        a = Answer(c, has_body=False)
        is_((a.status, a.headers["content-length"], a.body[:8] or b"HTTP/1.1"), (200, "15", b"HTTP/1.1"))


def check_request_ids(s):
    a = s.send("GET", "/health", headers=[("x-request-id", "mine-1")])
    is_((a.headers["x-request-id"], a.headers["request-id"]), ("mine-1", "mine-1"))
    a = s.send("GET", "/health", headers=[("x-request-id", "bad id")])
    is_(a.headers["x-request-id"].startswith("req_"), True)


def check_hosts(s):
    for host in "localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST", "box.lan":
        is_(s.send("GET", "/health", host=host).status, 200)
    for host in "evil.com", "localhost.evil.com":
        a = s.send("GET", "/health", host=host)
        is_((a.status, a.code), (403, "host_not_allowed"))
    is_(s.send("GET", "/health", host=None).status in (400, 403), True)
    a = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    is_(a.status in (400, 403), True)
    a = s.raw(b"GET /health HTTP/1.0\r\n\r\n")
    is_(a.status, 403)


def check_origins(s):
    for origin in "http://evil.com", "null", "http://localhost:1":
        a = s.send("POST", "/tokenize", HELLO, [("Origin", origin)])
        is_((a.status, a.code), (403, "origin_not_allowed"))
        is_("access-control-allow-origin" in a.headers, False)
    a = s.send("POST", "/tokenize", HELLO, [("Origin", "http://localhost")])
    is_((a.status, "access-control-allow-origin" in a.headers), (200, False))
    a = s.send("POST", "/tokenize", HELLO, [("Origin", "https://app.example")])
    is_((a.status, a.headers["access-control-allow-origin"], a.headers["vary"]), (200, "https://app.example", "Origin"))
    asked = [("Origin", "https://app.example"), ("Access-Control-Request-Headers", "x-a, x-b")]
    a = s.send("OPTIONS", "/tokenize", headers=asked)
    is_((a.status, a.headers["access-control-allow-headers"]), (204, "x-a, x-b"))
    is_(a.headers["access-control-allow-methods"], "GET, POST, DELETE, OPTIONS")
    is_("access-control-allow-credentials" in a.headers, False)
    is_(s.send("OPTIONS", "/tokenize", headers=[("Origin", "http://evil.com")]).status, 403)


def check_framing(s):
    body = b"{}"
    for extra in b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 2\r\nContent-Length: 3\r\n":
        a = s.raw(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + extra + b"\r\n" + body)
        is_(a.status, 400)
    a = s.send("POST", "/tokenize", HELLO, [("Content-Encoding", "gzip")])
    is_((a.status, a.code), (415, "unsupported_media_type"))
    is_(s.send("POST", "/tokenize", HELLO, [("Content-Encoding", "identity")]).status, 200)
    is_(s.send("POST", "/tokenize", HELLO, [("Content-Type", "text/plain")]).status, 200)


def check_heads_that_are_too_large(s):
    is_(s.send("GET", "/" + "a" * 9000).status, 431)
    is_(s.send("GET", "/health", headers=[("x", "y" * 70000)]).status, 431)
    is_(s.send("GET", "/health", headers=[(f"x{i}", "y") for i in range(130)]).status, 431)
    is_(s.send("GET", "/health", headers=[("x", "y" * 60000)]).status, 200)
    is_(s.send("GET", "/health", headers=[("x", "y" * 400000)]).status in (0, 413, 431), True)


def check_chunked_bodies(s):
    data = json.dumps(HELLO).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, data[i : i + 1]) for i in range(len(data))) + b"0\r\n\r\n"
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    is_(s.raw(head + chunks).status, 200)
    chunks = b"".join(b"%x\r\n%s\r\n" % (100000, b" " * 100000) for i in range(40)) + b"0\r\n\r\n"
    a = s.raw(head + chunks)
    is_((a.status, a.code), (413, "request_too_large"))


def check_refusals_before_the_body(s):
    with s.connect() as c:
        c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
        a = Answer(c)
        is_((a.status, a.headers["connection"].lower()), (413, "close"))
    with s.connect() as c:
        c.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        is_(Answer(c).status, 404)
    with s.connect() as c:
        c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\r\n")
        is_(Answer(c, has_body=False, interim=True).status, 100)
        c.sendall(b'{"content":"a"}')
        is_(Answer(c).status, 200)


def check_refusals_after_the_body(s):
    """The whole body is taken, so that the client sees the status and not a broken connection."""
    with s.connect() as c:
        body = b"x" * 900000
        for path, host, status in ("/nowhere", "localhost", 404), ("/tokenize", "evil.com", 403), ("/health", "localhost", 405):
            c.sendall(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            is_(Answer(c).status, status)


def check_keep_alive(s):
    with s.connect() as c:
        for _ in range(3):
            data = json.dumps(HELLO).encode()
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            is_(Answer(c).status, 200)


def check_tokens(s):
    a = s.send("POST", "/tokenize", {"content": "Say hello.", "with_pieces": True}).json
    is_("".join(t["piece"] for t in a["tokens"]), "Say hello.")
    is_((a["count"], a["max_model_len"]), (5, 2048))
    a = s.send("POST", "/tokenize", {"prompt": "a€🦜", "with_pieces": True, "return_token_strs": True}).json
    joined = b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in (t["piece"] for t in a["tokens"]))
    is_(joined.decode(), "a€🦜")
    is_(len(a["token_strs"]), a["count"])
    plain = s.send("POST", "/tokenize", {"content": "<|im_end|>"}).json["tokens"]
    special = s.send("POST", "/tokenize", {"content": "<|im_end|>", "parse_special": True}).json["tokens"]
    is_((len(plain) > 1, len(special)), (True, 1))
    is_(s.send("POST", "/detokenize", {"tokens": plain}).json["content"], "<|im_end|>")
    a = s.send("POST", "/detokenize", {"tokens": [1, 10**9]})
    is_((a.status, a.json["error"]["param"]), (400, "tokens[1]"))
    for body in {}, {"content": "a", "prompt": "b"}, {"content": 1}:
        is_(s.send("POST", "/tokenize", body).status, 400)


def check_templates(s):
    a = s.send("POST", "/apply-template", HELLO).json
    b = s.send("POST", "/tokenize", HELLO).json
    is_(a["tokens"], b["count"])
    is_("Say hello." in a["prompt"], True)
    off = s.send("POST", "/apply-template", dict(HELLO, reasoning_effort="none")).json["prompt"]
    is_(off, s.send("POST", "/apply-template", dict(HELLO, enable_thinking=False)).json["prompt"])
    is_(off != a["prompt"], True)
    cut = s.send("POST", "/apply-template", dict(HELLO, add_generation_prompt=False)).json["prompt"]
    is_(a["prompt"].startswith(cut) and len(cut) < len(a["prompt"]), True)
    a = s.send("POST", "/apply-template", dict(HELLO, dialect="letters"))
    is_((a.status, a.code), (400, "invalid_value"))
    a = s.send("POST", "/apply-template", dict(HELLO, surprise=1))
    is_((a.status, a.headers["x-unknown-fields"]), (200, "surprise"))
    a = s.send("POST", "/apply-template", {"messages": [{"role": "function", "content": "a"}]})
    is_((a.status, a.json["error"]["param"]), (400, "messages[0].role"))


def check_dialects_render_alike(s):
    """Text, tools, reasoning, calls, and results out of order."""
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    chat = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Add é."},
            {"role": "assistant", "reasoning_content": "I plan.", "content": "Well.", "tool_calls": [
                {"id": f"c{x}", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": x})}} for x in (1, 2)]},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}],
    }
    responses = {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Add é."},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I plan."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
            *({"type": "function_call", "call_id": f"c{x}", "name": "f", "arguments": json.dumps({"x": x})} for x in (1, 2)),
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        ],
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": False}],
    }
    messages = {
        "system": "Be brief.",
        "max_tokens": 10,
        "messages": [
            {"role": "user", "content": "Add é."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I plan.", "signature": ""}, {"type": "text", "text": "Well."},
                *({"type": "tool_use", "id": f"c{x}", "name": "f", "input": {"x": x}} for x in (1, 2))]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c2", "content": "two"},
                {"type": "tool_result", "tool_use_id": "c1", "content": "one"}]},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": schema}],
    }
    want = s.send("POST", "/apply-template", chat).json
    is_(want["prompt"].index("one") < want["prompt"].index("two"), True)
    for dialect, body, count in ("responses", responses, "responses/input_tokens"), ("messages", messages, "messages/count_tokens"):
        is_(s.send("POST", "/apply-template", dict(body, dialect=dialect)).json, want)
        is_(s.send("POST", "/v1/" + count, body).json["input_tokens"], want["tokens"])
        if dialect == "responses":
            is_(s.send("POST", "/tokenize", dict(body, dialect=dialect)).json["count"], want["tokens"])


def chat_of(turns):
    messages = []
    for kind, *v in turns:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        if kind == "call":
            if not last:
                messages.append(last := {"role": "assistant", "content": ""})
            last.setdefault("tool_calls", []).append({"id": v[0], "type": "function", "function": {"name": "f", "arguments": json.dumps(v[1])}})
        elif kind == "result":
            messages.append({"role": "tool", "tool_call_id": v[0], "content": v[1]})
        else:
            messages.append({"role": kind, "content": v[0]})
    return {"messages": messages, "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]}


def responses_of(turns):
    items = []
    for kind, *v in turns:
        if kind == "call":
            items.append({"type": "function_call", "call_id": v[0], "name": "f", "arguments": json.dumps(v[1])})
        elif kind == "result":
            items.append({"type": "function_call_output", "call_id": v[0], "output": v[1]})
        else:
            items.append({"role": kind, "content": v[0]})
    return {"dialect": "responses", "input": items, "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}}]}


def messages_of(turns):
    messages = []
    for kind, *v in turns:
        role = {"call": "assistant", "result": "user"}.get(kind, kind)
        block = {"type": "text", "text": v[0]}
        if kind == "call":
            block = {"type": "tool_use", "id": v[0], "name": "f", "input": v[1]}
        elif kind == "result":
            block = {"type": "tool_result", "tool_use_id": v[0], "content": v[1]}
        joins = messages and messages[-1]["role"] == role and kind in ("call", "result")
        if joins and messages[-1]["content"][0]["type"] != "text":
            messages[-1]["content"].append(block)
        else:
            messages.append({"role": role, "content": [block]})
    return {"dialect": "messages", "messages": messages, "tools": [{"name": "f", "description": "d", "input_schema": {}}]}


def check_histories_of_all_kinds(s):
    """What agents send after they were cut off, resumed or compacted: no error, the same prompt in all dialects, all that was said."""
    big = "y" * (1 << 20)
    rows = [
        ([("user", "a"), ("call", "c", {"x": 1}), ("call", "c", {"x": 2}), ("result", "c", "one"), ("result", "c", "two"), ("user", "b")], ["one", "two"]),
        ([("user", "a"), ("result", "nobody", "lost"), ("user", "b")], ["lost"]),
        ([("user", "a"), ("call", "c1", {"x": 1}), ("call", "c2", {"x": 2}), ("result", "c2", "two"), ("user", "b")], ["two"]),
        ([("user", "a"), ("call", "c1", {"x": 1}), ("result", "c9", "nine"), ("result", "c1", "one"), ("user", "b")], ["nine", "one"]),
        ([("user", "a"), ("assistant", ""), ("user", "b")], ["a<|im_end|>\n<|im_start|>user\nb<"]),
        ([("user", "a"), ("user", ""), ("user", "b")], ["user\n<|im_end|>"]),
        ([("system", "one"), ("system", "two")], ["one\n\ntwo"]),
        ([("user", "a"), ("call", "c", {}), ("result", "c", big), ("user", "b")], [big]),
        ([("user", "a"), ("call", "c", {"x": big}), ("result", "c", ""), ("user", "b")], [big]),
    ]
    for turns, says in rows:
        want = s.send("POST", "/apply-template", chat_of(turns))
        is_((str(turns)[:200], want.status), (str(turns)[:200], 200))
        at = 0
        for text in says:
            at = want.json["prompt"].index(text, at) + len(text)
        for body in responses_of(turns), messages_of(turns):
            a = s.send("POST", "/apply-template", body)
            is_((str(turns)[:200], a.json if len(a.body) < 5000 else hash(a.body)), (str(turns)[:200], want.json if len(want.body) < 5000 else hash(want.body)))
    late = [("user", "a"), ("system", "late"), ("user", "b")]
    inline = s.send("POST", "/apply-template", dict(chat_of(late), chat_template_kwargs={"late_system": "inline"})).json
    is_("<|im_start|>system\nlate<|im_end|>\n<|im_start|>user\nb" in inline["prompt"], True)
    for body in responses_of(late), messages_of(late):
        is_(s.send("POST", "/apply-template", body).json, inline)
    merged = s.send("POST", "/apply-template", chat_of(late)).json["prompt"]
    is_(merged.index("late") < merged.index("user\na"), True)


def check_deep_and_broken_bodies(s):
    """B101 of the shared cases: each is 400, and memory does not grow with the depth."""
    q = '{"messages":[{"role":"user","content":"q"}],'
    before = s.memory()
    bodies = ['{"x":' + n * "[" + "0" + n * "]" + "}" for n in (1000, 10000, 1000000)]
    bodies += [q + '"tools":' + 3000 * "["]
    for n in 1000, 20000:
        schema = n * '{"properties":{"a":' + "{}" + n * "}}"
        bodies += [q + '"tools":[{"type":"function","function":{"name":"f","parameters":' + schema + "}}]}"]
    bodies += [100000 * '{"a":', q + '"max_tokens":1e400}', '{"messages":null}', "[]", ""]
    for body in bodies:
        a = s.send("POST", "/apply-template", body.encode())
        is_((body[:60], a.status), (body[:60], 400))
        is_(s.send("GET", "/health").status, 200)
    is_(s.send("POST", "/apply-template", q.encode()[:-1].replace(b"q", b"\\u0000") + b"}").status, 200)
    is_(s.memory() - before < 64 << 20, True)
    is_(s.send("POST", "/apply-template", b'{"messages":[{"role":"user","content":"' + b"\\ud83d" + b'"}]}').status, 200)


def check_many_values(s):
    """The object, its two members and what is in the array: a million values in all, and one more."""
    for more, status in (0, 200), (1, 400):
        inside = b"0," * (1000000 - 4 + more) + b"0"
        is_(s.send("POST", "/tokenize", b'{"content":"a","x":[' + inside + b"]}").status, status)


def check_keys(_):
    with Server(PROGRAM, MODEL, "--api-key", "one", "--api-key", "two", env={"LATHE_API_KEY": "three"}) as s:
        is_(s.send("GET", "/health").status, 200)
        a = s.send("GET", "/v1/models")
        is_((a.status, a.code, a.headers["www-authenticate"]), (401, "invalid_api_key", "Bearer"))
        for header in ("Authorization", "Bearer one"), ("Authorization", "bearer two"), ("x-api-key", "three"):
            is_(s.send("GET", "/v1/models", headers=[header]).status, 200)
        for header in ("Authorization", "one"), ("Authorization", "Bearer on"), ("x-api-key", "ones"):
            is_(s.send("GET", "/v1/models", headers=[header]).status, 401)
        is_(s.send("OPTIONS", "/v1/models").status, 204)


def check_strict_fields(_):
    with Server(PROGRAM, MODEL, "--unknown-fields", "error") as s:
        a = s.send("POST", "/tokenize", {"content": "a", "surprise": 1})
        is_((a.status, a.code, a.json["error"]["param"]), (400, "unsupported_parameter", "surprise"))


def check_body_timeout(_):
    """Of a body whose bytes come one by one. 30 s without a byte, the other limit, are never reached."""
    with Server(PROGRAM, MODEL, "--body-timeout", "1") as s, s.connect() as c:
        c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        c.settimeout(0.2)
        end = time.monotonic() + 25
        while time.monotonic() < end:
            try:
                c.sendall(b" ")
                if c.recv(100) == b"":
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        raise AssertionError("the connection is still open")


def check_too_many_connections(_):
    with Server(PROGRAM, MODEL, "--max-connections", "4") as s:
        held = [s.connect() for _ in range(4)]
        time.sleep(0.1)
        a = s.send("GET", "/health")
        is_((a.status, a.code, a.headers["connection"].lower()), (503, "server_busy", "close"))
        is_("--max-connections" in message(a), True)
        is_(1 <= int(a.headers["retry-after"]) <= 60, True)
        for c in held:
            c.close()
        wait_until(lambda: s.send("GET", "/health").status == 200)


def check_body_memory(_):
    with Server(PROGRAM, MODEL, "--max-body", "2", "--body-memory", "1") as s:
        a = s.send("POST", "/tokenize", b'{"content":"' + b"a" * 1500000 + b'"}')
        is_((a.status, a.code, "--body-memory" in message(a)), (503, "server_busy", True))
        is_(s.send("POST", "/tokenize", HELLO).status, 200)


def message(a):
    return a.json["error"]["message"]


def check_limits_as_options(_):
    """Lower than they are by themselves: each refusal names the option."""
    low = {"--max-request-line": 1, "--max-header": 2, "--max-fields": 8, "--max-body": 2, "--max-depth": 8, "--max-values": 50,
           "--max-string": 1, "--max-messages": 3, "--max-tools": 2}
    chat = lambda n, more={}: dict({"messages": [{"role": "user", "content": "a"}] * n}, **more)
    tools = lambda n: [{"type": "function", "function": {"name": f"f{i}"}} for i in range(n)]
    plain = lambda n: [{"type": "function", "name": f"f{i}"} for i in range(n)]
    claude = lambda n: [{"name": f"f{i}", "input_schema": {}} for i in range(n)]
    items = lambda n, more={}: dict({"input": [{"role": "user", "content": "a"}] * n, "max_output_tokens": 1}, **more)
    with Server(PROGRAM, MODEL, *[str(x) for option in low.items() for x in option]) as s:
        rows = [
            (431, "--max-request-line", "GET", "/health?" + "a" * 1100, None, ()),
            (431, "--max-header", "GET", "/health", None, [("x", "y" * 3000)]),
            (431, "--max-fields", "GET", "/health", None, [(f"x{i}", "y") for i in range(8)]),
            (413, "--max-body", "POST", "/tokenize", b" " * (3 << 20), ()),
            (400, "--max-depth", "POST", "/tokenize", b'{"x":' + b"[" * 8 + b"]" * 8 + b"}", ()),
            (400, "--max-values", "POST", "/tokenize", {"x": [0] * 50}, ()),
            (400, "--max-string", "POST", "/tokenize", {"content": "a" * ((1 << 20) + 1)}, ()),
            (400, "--max-messages", "POST", "/apply-template", chat(4), ()),
            (400, "--max-messages", "POST", "/v1/messages", chat(4, {"max_tokens": 1}), ()),
            (400, "--max-messages", "POST", "/v1/responses", items(4), ()),
            (400, "--max-tools", "POST", "/apply-template", chat(1, {"tools": tools(3)}), ()),
            (400, "--max-tools", "POST", "/v1/messages", chat(1, {"max_tokens": 1, "tools": claude(3)}), ()),
            (400, "--max-tools", "POST", "/v1/responses", items(1, {"tools": plain(3)}), ()),
        ]
        for status, option, method, path, body, headers in rows:
            try:
                a = s.send(method, path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                is_(option, "--max-body")  # refused by its length, and closed while it was still being sent
                continue
            is_((path, a.status, option in message(a) or message(a)), (path, status, True))
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        a = s.raw(head + b"".join(b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20)) for _ in range(3)) + b"0\r\n\r\n")
        is_((a.status, "--max-body" in message(a)), (413, True))
        is_(s.send("GET", "/health?" + "a" * 900, headers=[("x", "y" * 1900)]).status, 200)
        is_(s.send("POST", "/apply-template", chat(3, {"tools": tools(2)})).status, 200)
        is_(s.send("POST", "/tokenize", b'{"content":"a","x":' + b"[" * 7 + b"]" * 7 + b"}").status, 200)
    high = {"--max-request-line": 16, "--max-header": 200, "--max-fields": 300, "--max-body": 72, "--max-string": 70, "--max-tools": 1100}
    with Server(PROGRAM, MODEL, *[str(x) for option in high.items() for x in option]) as s:
        is_(s.send("GET", "/health?" + "a" * 15000).status, 200)
        is_(s.send("GET", "/health", headers=[("x", "y" * 150000)]).status, 200)
        is_(s.send("GET", "/health", headers=[(f"x{i}", "y") for i in range(250)]).status, 200)
        is_(s.send("POST", "/tokenize", b'{"content":"a","x":"' + b"y" * (69 << 20) + b'"}').status, 200)
        is_(s.send("POST", "/apply-template", chat(1, {"tools": tools(1025)})).status, 200)


def check_times_as_options(_):
    """Each is over long before what it is by itself; what has a longer one goes on."""
    def closes(s, data, more=b""):
        start = time.monotonic()
        with s.connect() as c:
            c.settimeout(0.2)
            c.sendall(data)
            while time.monotonic() - start < 20:
                try:
                    if more:
                        c.sendall(more)
                    if c.recv(1000) == b"":
                        return True
                except TimeoutError:
                    continue
                except OSError:
                    return True
        return False

    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    body = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with Server(PROGRAM, MODEL, "--header-timeout", "1") as s:
        is_(closes(s, whole + b"x: ", b"y"), True)
    with Server(PROGRAM, MODEL, "--stall-timeout", "1") as s:
        is_(closes(s, body), True)
    with Server(PROGRAM, MODEL, "--idle-timeout", "1") as s:
        is_(closes(s, whole + b"\r\n"), True)
        with s.connect() as c:  # it is no limit of a body's
            data = json.dumps(HELLO).encode()
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data))
            time.sleep(3)
            c.sendall(data)
            is_(Answer(c).status, 200)


def check_full_pool(s):
    """Requests of the helper routes beyond those at work and waiting are 429; those before are answered."""
    text = json.dumps({"content": "lorem ipsum dolor " * 50000}).encode()
    held = []
    for _ in range(60):
        c = s.connect()
        c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        held.append(c)
    answers = [Answer(c) for c in held]
    statuses = [a.status for a in answers]
    for c in held:
        c.close()
    is_(set(statuses) <= {200, 429}, True)
    is_(statuses.count(200) >= 34, True)
    for a in answers:
        if a.status == 429:
            is_((a.code, int(a.headers["retry-after"]) >= 1), ("queue_full", True))


def check_signals(_):
    with Server(PROGRAM, MODEL) as s:
        is_(s.stop(signal.SIGINT), 0)
    with Server(PROGRAM, MODEL, "--drain-timeout", "30") as s:
        text = json.dumps({"content": "lorem ipsum dolor " * 55000}).encode()
        with s.connect() as c, s.connect() as idle:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            time.sleep(0.05)
            s.process.send_signal(signal.SIGTERM)
            is_(Answer(c).status, 200)
        is_(s.process.wait(30), 0)


def check_port_in_use(s):
    try:
        with Server(PROGRAM, MODEL, "--port", str(s.port)) as other:
            raise AssertionError(f"it listens on {other.port}")
    except RuntimeError as e:
        is_("cannot listen" in str(e) and str(s.port) in str(e), True)


ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
with Server(PROGRAM, MODEL, "--max-body", "3", "--allowed-host", "box.lan", "--cors-origin", "https://app.example",
            "--alias", "nano", "--alias", "org/other") as server:
    sys.exit(Checks("test_http").run(ALL, sys.argv[3:], server))
