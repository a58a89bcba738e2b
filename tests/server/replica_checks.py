"""Two servers behind HAProxy with docs/haproxy.cfg: a conversation stays on its replica, and a replica that is stopped loses
no request."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serving import Answer, Checks, Server, is_, wait_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Proxy(Server):
    """HAProxy with the documented file, ports aside."""

    def __init__(self, folder, ports):
        self.port, self.path = free_port(), None
        with open("docs/haproxy.cfg") as f:
            text = f.read()
        for documented, port in zip((8080, 8081, 8082), (self.port, *ports)):
            is_(text.count(f"127.0.0.1:{documented}\n"), 1)
            text = text.replace(f"127.0.0.1:{documented}\n", f"127.0.0.1:{port}\n")
        with open(folder + "/haproxy.cfg", "w") as f:
            f.write(text)
        self.process = subprocess.Popen(["haproxy", "-q", "-f", folder + "/haproxy.cfg"], stderr=subprocess.DEVNULL)
        wait_until(self.accepts, 20)

    def accepts(self):
        try:
            self.connect().close()
            return True
        except OSError:
            return False


class Fleet:
    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.ports = [free_port(), free_port()]
        self.replica = {}
        for name in "ab":
            self.start(name)
        self.proxy = Proxy(self.folder.name, self.ports)
        wait_until(lambda: self.replicas() == {"a", "b"}, 20)
        return self

    def start(self, name):
        port = self.ports["ab".index(name)]
        self.replica[name] = Server(PROGRAM, MODEL, "--port", str(port), "--slots", "2", "--drain-delay", "4", "--drain-timeout", "60")

    def __exit__(self, *_):
        for s in (self.proxy, *self.replica.values()):
            s.__exit__()
        self.folder.cleanup()

    def ask(self, body, headers=(), path=CHAT):
        """The replica that answered."""
        return self.answer(body, headers, path).headers["x-replica"]

    def answer(self, body, headers=(), path=CHAT):
        limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
        a = self.proxy.send("POST", path, {limit: 1, "ignore_eos": True, **body}, headers=headers)
        is_((a.status, a.body[:200] if a.status != 200 else ""), (200, ""))
        return a

    def replicas(self):
        """Those that requests without a session go to."""
        return {self.proxy.send("GET", "/v1/models").headers.get("x-replica") for _ in range(8)}


def turns(i, system=None):
    """The messages of three requests of one conversation."""
    messages = [{"role": "system", "content": system}] if system else []
    for turn in range(3):
        messages.append({"role": "user", "content": f"question {turn} of conversation {i}"})
        yield list(messages)
        messages.append({"role": "assistant", "content": "an answer"})


def check_conversations_stay(fleet):
    """By each of the ways to name them; and both replicas have some."""
    ways = {
        "header": lambda i, m: (dict(messages=[{"role": "user", "content": "same"}]), [("x-session-affinity", f"s{i}")]),
        "codex": lambda i, m: (dict(messages=[{"role": "user", "content": "same"}]), [("session-id", f"s{i}"), ("thread-id", m)]),
        "field": lambda i, m: (dict(messages=[{"role": "user", "content": m}], prompt_cache_key=f"k{i}"), [("x-session-affinity", m)]),
    }
    for name, way in ways.items():
        seen = []
        for i in range(10):
            on = {fleet.ask(*way(i, f"{i} {turn}")) for turn in range(3)}
            is_((name, i, len(on)), (name, i, 1))
            seen += on
        is_((name, set(seen)), (name, {"a", "b"}))


def check_conversations_without_a_name_stay(fleet):
    for system in None, "a system text that all conversations have":
        seen = []
        for i in range(10):
            on = {fleet.ask({"messages": m}) for m in turns(i, system)}
            is_((system, i, len(on)), (system, i, 1))
            seen += on
        is_(set(seen), {"a", "b"})
    parts = [{"type": "text", "text": "in parts"}]
    is_(len({fleet.ask({"messages": [{"role": "user", "content": parts}], "temperature": t}) for t in (0, 1)}), 1)


def check_conversations_of_each_dialect_stay(fleet):
    """By a name, by their first message, and by the user of metadata; a system text that all have does not count."""
    system = "a system text that all conversations have"

    def other(i, m):
        return [{"role": "user", "content": f"turn {m}, conversation {i}"}]

    ways = {
        "messages": (MESSAGES, lambda i, m: {"messages": m}),
        "messages with a system text": (MESSAGES, lambda i, m: {"messages": m, "system": system}),
        "user_id": (MESSAGES, lambda i, m: {"messages": other(i, len(m)), "metadata": {"user_id": f"user_{i}_session"}}),
        "input": (RESPONSES, lambda i, m: {"input": m}),
        "input with instructions": (RESPONSES, lambda i, m: {"input": m, "instructions": system}),
        "input with a developer's message": (RESPONSES, lambda i, m: {"input": [{"role": "developer", "content": system}] + m}),
        "a text as input": (RESPONSES, lambda i, m: {"input": m[0]["content"]}),
        "prompt_cache_key": (RESPONSES, lambda i, m: {"input": other(i, len(m)), "prompt_cache_key": f"k{i}"}),
        "prompt": ("/v1/completions", lambda i, m: {"prompt": m[0]["content"]}),
    }
    for name, (path, body) in ways.items():
        seen = []
        for i in range(10):
            on = {fleet.ask(body(i, m), path=path) for m in turns(i)}
            is_((name, i, len(on)), (name, i, 1))
            seen += on
        is_((name, set(seen)), (name, {"a", "b"}))


def stream_to_its_end(fleet, body, path=CHAT):
    """All bytes."""
    data = json.dumps(dict(body, stream=True)).encode()
    with fleet.proxy.connect() as c:
        c.settimeout(120)
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        return b"".join(iter(lambda: c.recv(65536), b""))


def check_stored_responses_are_found(fleet):
    """Each on the replica that has it, whatever else the request says."""
    seen = set()
    for i in range(10):
        first = fleet.answer({"input": f"stored {i}"}, path=RESPONSES)
        id, on = first.json["id"], first.headers["x-replica"]
        is_(first.headers["x-response-id"], id)
        seen.add(on)
        for more in {"input": f"next {i}"}, {"input": "a", "prompt_cache_key": f"key {i}"}:
            next = fleet.answer(dict(more, previous_response_id=id), [("x-session-affinity", f"other {i}")], RESPONSES)
            is_(next.headers["x-replica"], on)
        streamed = stream_to_its_end(fleet, {"input": "a", "previous_response_id": next.json["id"], "max_output_tokens": 1}, RESPONSES)
        streamed = re.search(rb"(?i)x-response-id: (resp_\w+)", streamed)[1].decode()
        last = fleet.answer({"input": "a", "previous_response_id": streamed}, path=RESPONSES)
        is_(last.headers["x-replica"], on)
        path = f"{RESPONSES}/{last.json['id']}"
        is_(fleet.proxy.send("GET", path).json["previous_response_id"], streamed)
        is_(fleet.proxy.send("GET", path + "/input_items?limit=1").status, 200)
        is_(fleet.proxy.send("DELETE", path).status, 200)
        is_(fleet.proxy.send("GET", path).status, 404)
    is_(seen, {"a", "b"})
    is_("x-response-id" in fleet.answer({"input": "a", "store": False}, path=RESPONSES).headers, False)
    is_("x-response-id" in fleet.answer({"input": "a"}, path=RESPONSES + "/input_tokens").headers, False)


def check_large_bodies(fleet):
    """Some larger than what the proxy keeps."""
    for n in 100_000, 3_000_000:
        body = {"messages": [{"role": "user", "content": "hello"}], "metadata": {"filler": "x" * n}}
        is_(fleet.ask(body, [("x-session-affinity", "large")]) in "ab", True)


def check_streams_are_not_held_back(fleet):
    data = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
    with fleet.proxy.connect() as c:
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        first = c.recv(3000)
        is_(b"[DONE]" in first, False)
        # And a client that goes away is noticed through the proxy.
    wait_until(lambda: any("finish=abort" in line for s in fleet.replica.values() for line in s.lines))


class Load(threading.Thread):
    """Requests of ever new conversations, until it is told to stop."""

    def __init__(self, fleet, n):
        super().__init__()
        self.fleet, self.n, self.on, self.wrong, self.going = fleet, n, [], [], True

    def run(self):
        i = 0
        while self.going:
            i += 1
            try:
                self.on.append((time.monotonic(), self.fleet.ask({"messages": [{"role": "user", "content": f"{self.n} {i}"}]})))
            except Exception as e:
                self.wrong.append(repr(e))


def long_stream(fleet, replica, got):
    """A stream on that replica, to its end."""
    i = 0
    while fleet.ask({"messages": [{"role": "user", "content": f"stream {i}"}]}) != replica:
        i += 1
    body = {"messages": [{"role": "user", "content": f"stream {i}"}], "max_tokens": 1900, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    with fleet.proxy.connect() as c:
        c.settimeout(120)
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        while piece := c.recv(65536):
            got.append(piece)


def check_a_replica_that_is_stopped_loses_nothing(fleet):
    session = [("x-session-affinity", next(f"m{i}" for i in range(50) if fleet.ask({"messages": [{"role": "user", "content": "a"}]}, [("x-session-affinity", f"m{i}")]) == "a"))]
    hello = {"messages": [{"role": "user", "content": "a"}]}
    load, got = [Load(fleet, n) for n in range(3)], []
    stream = threading.Thread(target=long_stream, args=(fleet, "a", got))
    for t in (*load, stream):
        t.start()
    wait_until(lambda: len(got) > 2 and all({r for _, r in t.on} == {"a", "b"} for t in load), 60)
    fleet.replica["a"].process.send_signal(signal.SIGTERM)
    is_(fleet.replica["a"].process.wait(90), 0)
    is_(fleet.ask(hello, session), "b")
    time.sleep(1)
    fleet.start("a")
    wait_until(lambda: fleet.replicas() == {"a", "b"}, 30)
    is_(fleet.ask(hello, session), "a")
    for t in load:
        t.going = False
    for t in (*load, stream):
        t.join()
    is_([t.wrong for t in load], [[], [], []])
    is_(b"".join(got).count(b"data: [DONE]"), 1)


def check_a_replica_that_is_killed(fleet):
    """Without a word: what was running there is lost, new requests are not."""
    load = [Load(fleet, n) for n in range(2)]
    fleet.replica["b"].stop(signal.SIGKILL)
    for t in load:
        t.start()
    wait_until(lambda: fleet.replicas() == {"a"} and all(len(t.on) > 3 for t in load), 30)
    fleet.start("b")
    wait_until(lambda: fleet.replicas() == {"a", "b"}, 30)
    for t in load:
        t.going = False
        t.join()
    is_([t.wrong for t in load], [[], []])


ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
with Fleet() as fleet:
    sys.exit(Checks("test_replicas").run(ALL, sys.argv[3:], fleet))
