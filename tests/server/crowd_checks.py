"""Limits of the server as they are without options: connections, streams that wait, the queue, bodies, heads. Memory stays
bounded, and others are served meanwhile."""

import json
import os
import resource
import selectors
import signal
import sys
import time

from serving import Answer, Checks, Server, is_, wait_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
MB = 1 << 20
# Sanitizers keep memory of their own.
ROOM = 4 if os.environ.get("SAN") else 1
DIALECTS = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "a"}]}, b"data: [DONE]\n\n"),
    "/v1/completions": ({"prompt": "a"}, b"data: [DONE]\n\n"),
    "/v1/responses": ({"input": "a"}, b"event: response."),
    "/v1/messages": ({"messages": [{"role": "user", "content": "a"}]}, b"event: "),
}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(path, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data


def stream(path, max_tokens=1):
    limit = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": max_tokens}
    return post(path, dict(DIALECTS[path][0], stream=True, ignore_eos=True, **limit))


class Crowd:
    """Many connections, and what each has got."""

    def __init__(self):
        self.got, self.closed = {}, set()
        self.poll = selectors.DefaultSelector()

    def add(self, s, data):
        c = s.connect()
        c.sendall(data)
        c.setblocking(False)
        self.got[c] = b""
        self.poll.register(c, selectors.EVENT_READ)
        return c

    def read(self, until, seconds=60):
        """Until that holds."""
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                raise AssertionError("it did not happen in time")
            for key, _ in self.poll.select(0.1):
                c = key.fileobj
                try:
                    piece = c.recv(65536)
                except ConnectionResetError:
                    piece = b""
                self.got[c] += piece
                if not piece:
                    self.closed.add(c)
                    self.poll.unregister(c)

    def close(self):
        for c in self.got:
            c.close()
        self.poll.close()

    def drop(self):
        self.close()
        self.__init__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def is_served(s):
    is_(s.send("GET", "/health").status, 200)
    is_(s.send("POST", "/tokenize", {"content": "a"}).json["count"], 1)


def check_a_thousand_idle_connections(_):
    """1024 may be open; those beyond are told so."""
    with Server(PROGRAM, MODEL) as s, Crowd() as crowd:
        is_served(s)
        before = s.memory()
        for _ in range(1000):
            crowd.add(s, HEALTH)
        crowd.read(lambda: all(b'{"status":"ok"}' in g for g in crowd.got.values()))
        # The library's pool of each has 160 KiB, which large pages may make resident.
        is_(s.memory() - before < ROOM * 200 * MB, True)
        is_served(s)
        with Crowd() as last:
            c = last.add(s, stream("/v1/chat/completions", 20))
            last.read(lambda: b"[DONE]" in last.got[c])
        with Crowd() as rest:

            def are_let_in():
                # A connection that was closed counts until the server has seen it.
                rest.drop()
                for _ in range(24):
                    rest.add(s, HEALTH)
                rest.read(lambda: all(rest.got.values()))
                return {g[:12] for g in rest.got.values()} == {b"HTTP/1.1 200"}

            wait_until(are_let_in)
            a = s.send("GET", "/health")
            is_((a.status, a.code, a.headers["connection"]), (503, "server_busy", "close"))
            is_(len(crowd.closed), 0)
        wait_until(lambda: s.send("GET", "/health").status == 200)
        crowd.close()
        is_(s.stop(), 0)


def check_a_thousand_idle_streams(_):
    """They wait in the queue behind one that runs, and show that they live. SIGTERM ends each in its dialect's way."""
    with Server(PROGRAM, MODEL, "--max-queue", "1000", "--drain-timeout", "0") as s, Crowd() as crowd:
        is_served(s)
        before = s.memory()
        crowd.add(s, stream("/v1/chat/completions", 1900))
        crowd.read(lambda: all(crowd.got.values()))
        paths = {}
        for i in range(1000):
            path = list(DIALECTS)[i % 4]
            paths[crowd.add(s, stream(path, 1000))] = path
        crowd.read(lambda: all(crowd.got.values()))
        is_({g[:12] for g in crowd.got.values()}, {b"HTTP/1.1 200"})
        is_(len(crowd.closed), 0)
        # A thread, a connection and its buffers.
        is_(s.memory() - before < ROOM * 300 * MB, True)
        is_served(s)
        a = s.send("POST", "/v1/messages/count_tokens", DIALECTS["/v1/messages"][0])
        is_((a.status, a.json["input_tokens"] > 1), (200, True))
        first = {c: len(g) for c, g in crowd.got.items()}
        crowd.read(lambda: sum(len(g) > first[c] for c, g in crowd.got.items()) > 900, 40)
        s.process.send_signal(signal.SIGTERM)
        crowd.read(lambda: len(crowd.closed) == len(crowd.got))
        for c, path in paths.items():
            got = crowd.got[c]
            tail = got[-2000:]
            is_((path, got.endswith(b"0\r\n\r\n")), (path, True))
            if path == "/v1/responses":
                # Its data repeat the text.
                last = got[got.rindex(b"event: ") :]
                is_(last.startswith((b"event: response.failed", b"event: response.completed", b"event: response.incomplete")), True)
            elif path == "/v1/messages":
                is_(b"event: error" in tail or b"event: message_stop" in tail, True)
            else:
                is_(DIALECTS[path][1] in tail, True)
        is_(s.process.wait(30), 0)


def check_the_queue(_):
    """64 wait for the one slot; the next is refused at once, and the others get their answers."""
    with Server(PROGRAM, MODEL) as s, Crowd() as crowd:
        running = crowd.add(s, stream("/v1/chat/completions", 1900))
        crowd.read(lambda: crowd.got[running])
        waiting = [crowd.add(s, stream(list(DIALECTS)[i % 4])) for i in range(64)]
        wait_until(lambda: b'lathe_requests_waiting{class="interactive",model_name="nano"} 64' in s.send("GET", "/metrics").body)
        for path in DIALECTS:
            a = s.send("POST", path, DIALECTS[path][0])
            is_((a.status, int(a.headers["retry-after"]) >= 1), (429, True))
            is_(a.json["error"]["type"], "rate_limit_error")
        is_served(s)
        is_(crowd.closed, set())
        crowd.poll.unregister(running)
        running.close()
        del crowd.got[running]
        ends = [DIALECTS[list(DIALECTS)[i % 4]][1] for i in range(64)]
        crowd.read(lambda: all(crowd.got[c].endswith(b"0\r\n\r\n") for c in waiting))
        for c, end in zip(waiting, ends):
            is_((crowd.got[c][:12], end in crowd.got[c], b"rror" in crowd.got[c].partition(b"\r\n\r\n")[2].replace(b'"error":null', b"")), (b"HTTP/1.1 200", True, False))
        is_(s.stop(), 0)


def check_large_bodies(s):
    """64 MiB are read, one byte more is refused; 512 MiB are the most of all together."""
    with Server(PROGRAM, MODEL) as s, Crowd() as crowd:
        whole = b'{"content":"a"' + b" " * (64 * MB - 15) + b"}"
        is_(s.send("POST", "/tokenize", whole).status, 200)
        with s.connect() as c:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (64 * MB + 1))
            is_(Answer(c).status, 413)
        before = s.memory()
        for _ in range(10):
            c = s.connect()
            c.sendall(post("/tokenize", whole)[:-1])
            crowd.got[c] = b""
        wait_until(lambda: s.memory() > before + 300 * MB)
        time.sleep(0.5)
        is_(s.memory() - before < ROOM * 600 * MB, True)
        is_(s.send("GET", "/health").status, 200)
        statuses = []
        for c in crowd.got:
            c.sendall(b"}")
            statuses.append(Answer(c).status)
        is_(set(statuses), {200, 503})
        is_served(s)
        crowd.close()
        wait_until(lambda: s.memory() - before < ROOM * 100 * MB)


def check_heads(s):
    """The last that is taken, and the first that is not."""
    with Server(PROGRAM, MODEL) as s:
        for more, status in (0, 404), (1, 431):
            is_(s.send("GET", "/" + "a" * (8191 + more)).status, status)
        for more, status in (0, 200), (1, 431):
            is_(s.send("GET", "/health", headers=[(f"x{i}", "y") for i in range(127 + more)]).status, status)
        # Each field is its name, its value, ": " and the end of its line.
        used = len("Host: localhost\r\n") + len("x: \r\n")
        for more, status in (0, 200), (1, 431):
            is_(s.send("GET", "/health", headers=[("x", "y" * (65536 - used + more))]).status, status)


def check_long_texts(_):
    """A string of 32 MiB is taken, one byte more names the limit; 128 levels likewise."""
    with Server(PROGRAM, MODEL) as s:
        for more, status in (0, 200), (1, 400):
            a = s.send("POST", "/tokenize", b'{"content":"a","x":"' + b"y" * (32 * MB + more) + b'"}')
            is_(a.status, status)
            is_(status == 200 or str(32 * MB) in a.json["error"]["message"], True)
        for more, status in (0, 200), (1, 400):
            n = 127 + more
            a = s.send("POST", "/tokenize", b'{"content":"a","x":' + b"[" * n + b"]" * n + b"}")
            is_(a.status, status)
            is_(status == 200 or "128" in a.json["error"]["message"], True)


def check_stored_responses(_):
    """256 are kept, those used last."""
    with Server(PROGRAM, MODEL) as s:
        body = dict(DIALECTS["/v1/responses"][0], max_output_tokens=1)
        ids = [s.send("POST", "/v1/responses", body).json["id"] for _ in range(256)]
        is_(s.send("GET", "/v1/responses/" + ids[0]).status, 200)
        ids.append(s.send("POST", "/v1/responses", body).json["id"])
        is_([i for i in range(257) if s.send("GET", "/v1/responses/" + ids[i]).status != 200], [1])
        a = s.send("POST", "/v1/responses", dict(body, previous_response_id=ids[1]))
        is_((a.status, a.code), (400, "previous_response_not_found"))


_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else 4096, hard))
ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
sys.exit(Checks("test_crowd").run(ALL, sys.argv[3:], None))
