"""B100 before there is a queue: clients that go away, or shut their side, while their body is read and their prompt is made."""

import json
import signal
import socket
import struct
import sys
import tempfile
import time

from serving import Answer, Checks, Server, certificate, is_, secure, shortest, time_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
# 30 MB take seconds to render and to tokenise.
WORDS = " ".join(f"word{i % 977} the {i % 31};" for i in range(1 << 21))[: 30 << 20]


def body_of(path, text=WORDS):
    said = [{"role": "user", "content": text}]
    return json.dumps({"prompt": text} if path == COMPLETIONS else {"content": text} if path == "/tokenize"
                      else {"input": said} if "responses" in path else {"messages": said}).encode()


def request(path, body, version="1.1"):
    return f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def time_to_leave(s, path, body, pause, reset=False, connect=None):
    """Seconds from the close to the log's line, which comes when all is done; its status is the client's going."""
    before = len(s.lines)
    c = connect() if connect else s.connect()
    c.settimeout(60)
    c.sendall(request(path, body))
    time.sleep(pause)
    if reset:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    seconds = time_until(s, lambda: any(path in x for x in s.lines[before:]))
    is_("status=499 " in [x for x in s.lines[before:] if path in x][0], True)
    return seconds


def check_prompts_that_nobody_waits_for(s):
    for path in (CHAT, CHAT + "/input_tokens", MESSAGES, MESSAGES + "/count_tokens", "/v1/responses/input_tokens", COMPLETIONS,
                 "/tokenize", "/apply-template"):
        body = body_of(path)
        for reset in False, True:
            try:
                shortest(1, lambda: time_to_leave(s, path, body, 0.3, reset))
            except AssertionError as e:
                raise AssertionError(f"{path}, by a {'reset' if reset else 'close'}: {e}") from e
    line = [x for x in s.lines if f"path={CHAT} " in x][0]
    is_(("dialect=chat" in line, "finish=abort" in line), (True, True))
    counted = [x for x in s.send("GET", "/metrics").body.decode().split("\n") if x.startswith("lathe_disconnect_total")]
    is_([float(x.split()[-1]) >= 16 for x in counted], ['phase="prompt"' in x for x in counted])


def check_values_that_nobody_waits_for(s):
    """A million values of JSON."""
    body = b'{"content":"a","x":{' + b",".join(b'"%050d":0' % i for i in range(990000)) + b"}}"
    shortest(1, lambda: time_to_leave(s, "/tokenize", body, 0.05))


def check_the_turns_of_those_who_went(s):
    """What waits for its turn in the pool of these routes is over as well, and gives up its place."""
    body = body_of("/tokenize")

    def once():
        held = [s.connect() for _ in range(2)]
        for c in held:
            c.sendall(request("/tokenize", body))
        time.sleep(0.3)
        seconds = time_to_leave(s, MESSAGES + "/count_tokens", body_of(MESSAGES, "a"), 0.3)
        for c in held:
            c.close()
        return seconds

    shortest(1, once)


def check_secure_clients(_):
    with tempfile.TemporaryDirectory() as folder:
        cert, key = certificate(folder, "one")
        with Server(PROGRAM, MODEL, "--tls-cert", cert, "--tls-key", key) as s:
            for path in CHAT, MESSAGES + "/count_tokens":
                shortest(1, lambda: time_to_leave(s, path, body_of(path), 0.5, connect=lambda: secure(s, cert)))


def check_the_end(_):
    for path in CHAT, MESSAGES + "/count_tokens", COMPLETIONS:
        with Server(PROGRAM, MODEL, "--drain-timeout", "0") as s, s.connect() as c:
            c.settimeout(60)
            c.sendall(request(path, body_of(path)))
            time.sleep(0.3)
            s.process.send_signal(signal.SIGTERM)
            is_(s.process.wait(30), 0)
            a = Answer(c)
            is_((a.status, b"the server is shutting down" in a.body), (503, True))


def answer_when_shut(s, path, body, version="1.1"):
    """The bytes that a client gets which shuts its side behind its request."""
    with s.connect() as c:
        c.settimeout(60)
        c.sendall(request(path, body, version))
        c.shutdown(socket.SHUT_WR)
        data = b""
        while piece := c.recv(65536):
            data += piece
    return data


def check_clients_that_shut_their_side(s):
    """They get what others get, behind interim responses: also the status of a prompt that is too long. Clients of HTTP/1.0 get none
    of these, and of a route that does not generate the plain answer."""
    text = WORDS[: 8 << 20]
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    for path, status in (CHAT, 400), (COMPLETIONS, 400), (MESSAGES, 400), (MESSAGES + "/count_tokens", 200), ("/tokenize", 200):
        data = answer_when_shut(s, path, body_of(path, text))
        is_((path, data.startswith(interim)), (path, True))
        while data.startswith(interim):
            data = data[len(interim):]
        is_((path, data[:12]), (path, b"HTTP/1.1 %d" % status))
        is_(status == 200 or b"context" in data or b"prompt is too long" in data, True)
    for path in MESSAGES + "/count_tokens", COMPLETIONS:
        data = answer_when_shut(s, path, body_of(path, text), "1.0")
        is_((path, data.split()[1]), (path, b"400" if path == COMPLETIONS else b"200"))


ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
with Server(PROGRAM, MODEL) as server:
    sys.exit(Checks("test_leaving").run(ALL, sys.argv[3:], server))
