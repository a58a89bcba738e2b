"""A soak: clients that open connections in every dialect, read half and close at random, for a while; then a clean drain.

    python3 tests/server/soak.py ./lathe models/nano [SECONDS [CONNECTIONS]]

Resident memory is compared from a third of the time on, which is the warm-up: its median over the time up to the half with that
over the last sixth; in less than 300 s it may grow. At the end no slot is taken, a request is answered, and the exit code is 0."""

import json
import random
import socket
import statistics
import struct
import sys
import threading
import time

from serving import Server

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 300
OPTIONS = ("--slots", "4", "--log", "off")
CONNECTIONS = int(sys.argv[4]) if len(sys.argv) > 4 else 200


def request(rng):
    text = "word " * rng.randrange(1, 200)
    path = rng.choice(("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/tokenize", "/v1/messages/count_tokens"))
    body = {"stream": rng.random() < 0.7, "ignore_eos": True, "max_tokens": rng.randrange(1, 60)}
    if path == "/v1/completions":
        body["prompt"] = [text, "b"] if rng.random() < 0.2 else text
        body["n"] = rng.choice((1, 1, 2))
    elif path == "/v1/responses":
        body["input"] = text
        body["max_output_tokens"] = body.pop("max_tokens")
    elif path == "/tokenize":
        body = {"content": text}
    else:
        body["messages"] = [{"role": "user", "content": text}]
    if "completions" in path and rng.random() < 0.3:
        body["logprobs"] = 3 if path == "/v1/completions" else True
    return path, json.dumps(body).encode()


def one(s, rng):
    path, data = request(rng)
    with s.connect() as c:
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)))
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
            counts["broken"] += 1


def samples(s, until):
    """Resident memory, twice a second."""
    values = []
    while time.monotonic() < until:
        values.append(s.memory())
        time.sleep(0.5)
    return statistics.median(values)


with Server(PROGRAM, MODEL, *OPTIONS) as s:
    start = time.monotonic()
    counts = {"done": 0, "broken": 0}
    threads = [threading.Thread(target=work, args=(s, i, start + SECONDS, counts)) for i in range(CONNECTIONS)]
    for t in threads:
        t.start()
    time.sleep(SECONDS / 3)
    before = samples(s, start + SECONDS / 2)
    time.sleep(max(0, start + SECONDS * 5 / 6 - time.monotonic()))
    after = samples(s, start + SECONDS)
    for t in threads:
        t.join()
    taken = 1
    end = time.monotonic() + 30
    while taken and time.monotonic() < end:
        taken = sum(x["is_processing"] for x in s.send("GET", "/slots").json)
        time.sleep(0.1)
    a = s.send("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
    code = s.stop()
    if code:
        print("".join(s.lines[-80:]))
    growth = (after - before) / before
    print(f"{SECONDS:.0f} s, {CONNECTIONS} clients: {counts['done']} connections, {counts['broken']} broken; "
          f"{before / 2**20:.1f} MiB, then {after / 2**20:.1f} MiB ({growth:+.2%}); {taken} slots taken; "
          f"then a request: {a.status}, exit code {code}")
    sys.exit(0 if a.status == 200 and code == 0 and (growth < 0.01 or SECONDS < 300) and not taken else 1)
