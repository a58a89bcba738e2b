"""Pages that point their own name at the server, post across origins, send what is too large, too deep or too slow, and heads
that are no HTTP."""

import json
import os
import random
import signal
import socket
import sys
import threading
import time

from serving import Answer, Checks, Server, Skip, is_, wait_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
BODY = {"messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a", "content": "a", "tokens": [1], "max_tokens": 1, "max_output_tokens": 1}
ROUTES = [
    ("POST", p)
    for p in (
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens",
        "/v1/responses/input_tokens", "/tokenize", "/detokenize", "/apply-template", "/slots/0?action=erase", "/reset_prefix_cache",
    )
] + [("GET", p) for p in ("/", "/health", "/v1/models", "/props", "/slots", "/metrics", "/help", "/v1/responses/resp_1")] + [("DELETE", "/v1/responses/resp_1")]
DIALECTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


def ask(s, method, path, headers=(), host="localhost"):
    return s.send(method, path, BODY if method == "POST" else None, headers, host)


def code(a):
    error = a.json["error"]
    return error.get("code") or error["type"]


def check_names_that_point_here(s):
    """DNS rebinding: for the browser the page and the server are one origin, and only Host tells."""
    for method, path in ROUTES:
        for host in "evil.com", f"evil.com:{s.port}", "localhost.evil.com", "127.0.0.1.evil.com", "evil.com.", "localhost@evil.com", "":
            a = ask(s, method, path, [("Origin", f"http://{host}")], host)
            is_((path, host, a.status), (path, host, 403 if host else a.status))
            is_("access-control-allow-origin" in a.headers, False)
            is_(a.status in (400, 403), True)
        a = ask(s, method, path, [("Origin", "http://evil.com")], f"localhost:{s.port}")
        is_((path, a.status, code(a)), (path, 403, "permission_error" if "/messages" in path else "origin_not_allowed"))
    # The name in the request's own line counts for nothing.
    a = s.raw(b"GET http://evil.com/health HTTP/1.1\r\nHost: evil.com\r\n\r\n")
    is_(a.status in (400, 403), True)
    a = s.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n")
    is_(a.status in (400, 403), True)


def check_posts_across_origins(s):
    """What a page can send without asking first, and what its question gets."""
    for _, path in [r for r in ROUTES if r[0] == "POST"]:
        for origin in "http://evil.com", "https://evil.com:8080", "null", f"http://127.0.0.1:{s.port}.evil.com", "http://localhost:1", "file://":
            for kind in "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a":
                a = ask(s, "POST", path, [("Origin", origin), ("Content-Type", kind)])
                is_((path, origin, a.status, "access-control-allow-origin" in a.headers), (path, origin, 403, False))
            a = ask(s, "OPTIONS", path, [("Origin", origin), ("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Private-Network", "true")])
            is_((a.status, "access-control-allow-origin" in a.headers), (403, False))
    a = s.send("POST", "/tokenize", {"content": "a"}, [("Origin", "http://evil.com"), ("Origin", f"http://localhost:{s.port}")], f"localhost:{s.port}")
    is_(a.status, 403)


def check_bodies_that_are_too_deep(s):
    """B101 in every dialect."""
    q = '{"messages":[{"role":"user","content":"q"}],"prompt":"a","input":"q",'
    before = s.memory()
    for path in DIALECTS:
        bodies = ['{"x":' + n * "[" + "0" + n * "]" + "}" for n in (1000, 10000)]
        bodies += [q + '"tools":' + 3000 * "[", 100000 * '{"a":', q + '"max_tokens":1e400}', '{"messages":null}', "[]", "", "{", '{"a":"\ud800'.encode("utf-16", "surrogatepass").decode("latin-1")]
        bodies += [q + '"tools":[{"type":"function","name":"f","function":{"name":"f","parameters":' + 1000 * '{"properties":{"a":' + "{}" + 1000 * "}}" + "}}]}"]
        bodies += [q + '"response_format":{"type":"json_schema","json_schema":' + 5000 * '{"items":' + "{}" + 5000 * "}" + "}}"]
        bodies += ['{"messages":' + 5000 * '[{"role":"user","content":' + "}]" * 5000 + "}"]
        for body in bodies:
            a = s.send("POST", path, body.encode("utf-8", "surrogatepass"))
            is_((path, body[:60], a.status), (path, body[:60], 400))
        is_(s.send("GET", "/health").status, 200)
    is_(s.memory() - before < 64 << 20, True)


def check_bodies_that_are_too_large(s):
    for path in DIALECTS:
        with s.connect() as c:
            c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n".encode())
            a = Answer(c)
            is_((a.status, code(a)), (413, "request_too_large"))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        a = s.raw(head + b"".join(b"%x\r\n%s\r\n" % (100000, b" " * 100000) for _ in range(40)) + b"0\r\n\r\n")
        is_((a.status, code(a)), (413, "request_too_large"))
        many = {"messages": [{"role": "user", "content": "a"}] * 100001, "input": [{"role": "user", "content": "a"}] * 100001, "prompt": ["a"] * 100001}
        data = json.dumps(many[{"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")])
        name = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
        body = ('{"%s":%s}' % (name, data)).encode()
        try:
            is_(s.send("POST", path, body).status in (400, 413), True)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused by its length, and closed while it was still being sent
        tools = [{"type": "function", "name": f"f{i}", "input_schema": {}, "function": {"name": f"f{i}"}} for i in range(1025)]
        if path == "/v1/messages":
            tools = [{"name": f"f{i}", "input_schema": {}} for i in range(1025)]
        if path != "/v1/completions":
            is_(s.send("POST", path, dict(BODY, tools=tools)).status, 400)
    is_(s.send("GET", "/health").status, 200)


def check_clients_that_are_too_slow(s):
    """Half a minute for a head, however its bytes come; half a minute without a byte of a body; 75 s without a request. Others are
    served meanwhile."""
    if os.environ.get("LATHE_QUICK"):
        raise Skip("it takes a minute and a quarter")
    ends = {}

    def client(name, data, more):
        with s.connect() as c:
            start = time.monotonic()
            c.settimeout(0.5)
            c.sendall(data)
            while time.monotonic() - start < 130:
                try:
                    if more:
                        c.sendall(more)
                    if c.recv(100) == b"":
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            ends[name] = time.monotonic() - start

    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    rows = [("a head that trickles", whole[:-2] + b"x: ", b"y"), ("a head that stops", b"GET /hea", b""), ("a body that stops", head + b'{"a', b"")]
    rows += [("a body that does not begin", head, b""), ("no second request", whole, b"")]
    threads = [threading.Thread(target=client, args=r) for r in rows]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        is_(s.send("GET", "/health").status, 200)
        time.sleep(1)
    for name, _, _ in rows:
        least = 70 if name == "no second request" else 25
        is_((name, least < ends[name] < least + 25), (name, True))


def check_half_closed_in_a_request(s):
    """Nothing can follow, so the connection ends, long before the time that a head may take. Its end comes together with its last
    bytes: the server sleeps meanwhile."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    rows = (b"GET /hea", head, head + b"Content-Length: 100\r\n\r\n{", head + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{", whole + b"GET /hea", whole)
    for data in rows:
        with s.connect() as c:
            c.sendall(data[:4])
            wait_until(lambda: s.send("GET", "/health").status == 200)
            s.process.send_signal(signal.SIGSTOP)
            c.sendall(data[4:])
            c.shutdown(socket.SHUT_WR)
            s.process.send_signal(signal.SIGCONT)
            c.settimeout(15)
            got = b""
            while piece := c.recv(4096):
                got += piece
            is_(got[:12], b"HTTP/1.1 200" if data.startswith(whole) else b"")


def check_half_closed_behind_a_prompt_that_is_too_long(s):
    """It is seen while the prompt is made, and the refusal is a status all the same."""
    text = "word " * 20000
    for path in DIALECTS:
        body = {"prompt": text} if path == "/v1/completions" else {"input": text} if path == "/v1/responses" else {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        data = json.dumps({"model": "a", **body}).encode()
        with s.connect() as c:
            c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            c.shutdown(socket.SHUT_WR)
            is_((path, Answer(c).status), (path, 400))


def mutate(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(6)
        if how == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif how == 1:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
        elif how == 2:
            del data[at : at + rng.randrange(1, 30)]
        elif how == 3:
            data[at:at] = rng.choice((b"\r\n", b"\n", b"\0", b"%00", b"%2f", b"../", b" ", b":", b"\r\n\r\n", b"HTTP/1.1", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"\xff\xfe"))
        elif how == 4:
            data[at:at] = data[max(0, at - 40) : at]
        else:
            data = data[:at]
            break
    return bytes(data)


def check_heads_that_are_no_http(s):
    """Random damage to requests of all routes: what comes back is HTTP, or nothing, and the server lives."""
    rng = random.Random(5)
    seconds = float(os.environ.get("LATHE_HOSTILE_SECONDS", "5"))
    end = time.monotonic() + seconds
    n = 0
    while time.monotonic() < end:
        method, path = rng.choice(ROUTES)
        body = json.dumps(BODY).encode() if method == "POST" else b""
        data = f"{method} {path} HTTP/1.1\r\nHost: localhost:{s.port}\r\nAuthorization: Bearer a\r\nOrigin: http://localhost:{s.port}\r\nx-request-id: r-{n}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        with s.connect() as c:
            try:
                c.sendall(mutate(rng, data))
                c.settimeout(0.2)
                got = c.recv(65536)
                is_(got == b"" or got.startswith(b"HTTP/1."), True)
            except OSError:
                pass
        n += 1
        if n % 50 == 0:
            is_(s.send("GET", "/health").status, 200)
    wait_until(lambda: not any(x["is_processing"] for x in s.send("GET", "/slots").json), 20)
    is_(n > 10, True)


ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
with Server(PROGRAM, MODEL, "--max-body", "3", "--log", "off", "--default-max-tokens", "8") as server:
    failed = Checks("test_hostile_http").run(ALL, sys.argv[3:], server)
    sys.exit(failed or server.stop() != 0)
