"""A soak: connections that open, read half and close at random, then a clean drain.

    python3 tests/server/soak.py ./lathe models/nano [SECONDS [CONNECTIONS]]

Resident memory is compared from a third of the time on; at the end no request is left and the exit code is 0."""

import json
import random
import socket
import struct
import sys
import threading
import time

from serving import Server

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 300
CONNECTIONS = int(sys.argv[4]) if len(sys.argv) > 4 else 200


def body(rng):
    return json.dumps({
        "messages": [{"role": "user", "content": "word " * rng.randrange(1, 200)}],
        "stream": rng.random() < 0.7,
        "max_tokens": rng.randrange(1, 60),
        "ignore_eos": True,
    }).encode()


def one(s, rng):
    data = body(rng)
    with s.connect() as c:
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data))
        c.sendall(data[: len(data) if rng.random() < 0.9 else len(data) // 2])
        c.settimeout(rng.random() * 2)
        try:
            while rng.random() < 0.9 and c.recv(4096):
                pass
        except TimeoutError:
            pass
        if rng.random() < 0.5:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def work(s, seed, until, counts):
    rng = random.Random(seed)
    while time.monotonic() < until:
        try:
            one(s, rng)
            counts["done"] += 1
        except OSError:
            counts["refused"] += 1


with Server(PROGRAM, MODEL, "--slots", "4", "--log", "off") as s:
    start = time.monotonic()
    counts = {"done": 0, "refused": 0}
    threads = [threading.Thread(target=work, args=(s, i, start + SECONDS, counts)) for i in range(CONNECTIONS)]
    for t in threads:
        t.start()
    time.sleep(SECONDS / 3)
    before = s.memory()
    for t in threads:
        t.join()
    after = s.memory()
    a = s.send("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
    code = s.stop()
    growth = (after - before) / before
    print(f"{counts['done']} connections, {counts['refused']} refused; {before >> 20} MiB, then {after >> 20} MiB "
          f"({growth:+.2%}); then a request: {a.status}, exit code {code}")
    sys.exit(0 if a.status == 200 and code == 0 and growth < 0.01 else 1)
