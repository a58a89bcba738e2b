"""A server whose device fails: what runs then ends in its dialect's way, and the program takes its own place in the same
process, on the same socket."""

import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import threading
import time

from serving import Answer, Checks, Server, certificate, in_a_folder, is_, wait_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
CHAT = "/v1/chat/completions"
TURN = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1500, "ignore_eos": True}
RAW = {"prompt": "A kiln", "max_tokens": 1500, "ignore_eos": True}
INPUT = {"input": "a", "max_output_tokens": 1500, "ignore_eos": True}


class Failing(Server):
    """With a folder for faults; its files take effect while they are there."""

    def __init__(self, folder, *options, env=None):
        self.folder = folder
        super().__init__(PROGRAM, MODEL, *options, env={"FAULTS": folder, **(env or {})})
        self.pid = self.process.pid

    def fault(self, name, there=True):
        path = f"{self.folder}/{name}"
        if there:
            open(path, "w").close()
        elif os.path.exists(path):
            os.remove(path)

    def count(self, word):
        return len([line for line in self.lines if word in line])

    def lose(self):
        """One request meets the fault; its status and body. Comes back before the program is executed again."""
        self.fault("fail")
        a = self.send("POST", CHAT, {**TURN, "max_tokens": 1})
        is_(os.path.exists(self.folder + "/fail"), False)
        return a

    def wait_until_served(self, times):
        wait_until(lambda: self.count(" serving ") == times, 60)
        is_(self.process.poll(), None)
        is_(self.send("GET", "/ready").status, 200)

    def losses(self):
        text = self.send("GET", "/metrics").body.decode()
        return int(re.search(r"^lathe_device_losses_total\{.*\} (\d+)$", text, re.M).group(1))


def post(s, path, body):
    """The connection, once there is the head of an answer if it is a stream."""
    c = s.connect()
    c.settimeout(60)
    data = json.dumps(body).encode()
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return c


def read_all(c, data=b""):
    with c:
        while piece := c.recv(65536):
            data += piece
    return data.decode()


def check_what_runs_ends_and_the_next_is_served(folder):
    with Failing(folder, "--slots", "4", "--max-queue", "8", "--log", "json") as s:
        before = s.send("POST", CHAT, {**TURN, "max_tokens": 12, "temperature": 0})
        stored = s.send("POST", "/v1/responses", {"input": "a", "max_output_tokens": 4}).json["id"]
        idle = s.connect()
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        is_(Answer(idle).status, 200)
        s.fault("slow")
        streams = []
        for path, body in (CHAT, TURN), ("/v1/completions", RAW), ("/v1/responses", INPUT), ("/v1/messages", TURN):
            c = post(s, path, {**body, "stream": True})
            streams.append((c, c.recv(4096)))
        queued = [post(s, path, body) for path, body in ((CHAT, TURN), ("/v1/messages", TURN), ("/v1/messages", {**TURN, "stream": True}))]
        wait_until(lambda: "vllm:num_requests_waiting{model_name=\"nano\"} 3\n" in s.send("GET", "/metrics").body.decode())
        s.fault("fail")
        chat, completions, responses, messages = [read_all(c, data) for c, data in streams]
        for text in chat, completions, responses, messages:
            is_((text.startswith("HTTP/1.1 200"), text.endswith("0\r\n\r\n")), (True, True))
        for text in chat, completions:
            is_(("the rod is bent" in text, '"code":"internal_error"' in text, "data: [DONE]\n\n" in text), (True, True, True))
        is_("event: response.failed\n" in responses and "the rod is bent" in responses, True)
        is_("event: error\n" in messages and "overloaded_error" in messages, True)
        for c, word in zip(queued, ("internal_error", "api_error", "api_error")):
            text = read_all(c)
            is_((text.startswith("HTTP/1.1 500"), word in text, "the rod is bent" in text), (True, True, True))
        is_(idle.recv(100), b"")
        idle.close()
        s.fault("slow", False)
        s.wait_until_served(2)
        is_((s.process.pid, s.losses()), (s.pid, 1))
        is_(s.count("lathe: linear: the rod is bent"), 1)
        with open(f"/proc/{s.pid}/comm") as f:
            is_(f.read().strip(), os.path.basename(PROGRAM)[:15])
        after = s.send("POST", CHAT, {**TURN, "max_tokens": 12, "temperature": 0})
        is_((after.status, after.json["choices"]), (200, before.json["choices"]))
        a = s.send("POST", "/v1/responses", {"input": "b", "previous_response_id": stored})
        is_((a.status, a.code), (400, "previous_response_not_found"))
        is_(s.send("GET", "/").status, 200)
        is_((s.stop(), s.count("shutting down")), (0, 1))


def check_connections_while_it_starts_again(folder):
    """None is refused: it is answered before, or waits for the program that comes. While the model is loaded, requests and
    probes hear so."""
    with Failing(folder) as s:
        end, heard, refused = threading.Event(), set(), []

        def knock():
            while not end.is_set():
                try:
                    heard.add(s.send("GET", "/ready").status)  # 0: closed before it was answered
                except ConnectionRefusedError as e:
                    refused.append(e)
                except ConnectionError:
                    pass

        knocking = threading.Thread(target=knock, daemon=True)
        knocking.start()
        s.fault("hold")
        a = s.lose()
        is_((a.status, a.code), (500, "internal_error"))
        wait_until(lambda: s.count("starting again") and is_loading(s), 60)
        is_(s.send("GET", "/livez").status, 200)
        is_(s.send("GET", "/").status, 200)
        is_(s.losses(), 1)
        is_(s.send("GET", "/v1/models").json["data"][0]["id"], "nano")
        a = s.send("POST", CHAT, TURN)
        is_((a.status, a.code, 1 <= int(a.headers["retry-after"]) <= 60), (503, "loading_model", True))
        s.fault("hold", False)
        s.wait_until_served(2)
        end.set()
        knocking.join()
        is_((refused, heard - {0}), ([], {200, 503}))
        is_(s.process.pid, s.pid)


def is_loading(s):
    try:
        a = s.send("GET", "/health")
    except OSError:  # the last one's connections end
        return False
    return a.status == 503 and a.json["status"] == "loading"


def check_too_many_losses(folder):
    with Failing(folder) as s:
        for i in range(3):
            is_(s.lose().status, 500)
            s.wait_until_served(i + 2)
            is_(s.losses(), i + 1)
        is_(s.lose().status, 500)
        is_(s.process.wait(60), 1)
        wait_until(lambda: s.count("too often"))
        is_((s.count("starting again"), s.count("must be closed and opened again")), (3, 4))


def open_files(s):
    """Of the process, pipes' ends and sockets by their number."""
    folder = f"/proc/{s.pid}/fd"
    found = []
    for fd in os.listdir(folder):
        try:
            found.append(os.readlink(f"{folder}/{fd}"))
        except FileNotFoundError:
            pass
    return found


def check_nothing_else_comes_over(folder):
    with Failing(folder) as s:
        count = len(open_files(s))
        with s.connect() as held:
            held.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            Answer(held)
            s.lose()
            s.wait_until_served(2)
        with open(f"/proc/{s.pid}/environ") as f:
            is_(f.read().count("LATHE_RESTART="), 1)
        wait_until(lambda: len(open_files(s)) == count)
        with open(f"/proc/{s.pid}/cmdline") as f:
            is_(f.read().split("\0")[:2], [PROGRAM, "serve"])


def check_restarts_can_be_refused(folder):
    with Failing(folder, "--on-device-loss", "exit") as s:
        s.fault("slow")
        c = post(s, CHAT, {**TURN, "stream": True})
        first = c.recv(4096)
        s.fault("fail")
        is_("data: [DONE]\n\n" in read_all(c, first), True)
        is_(s.process.wait(60), 1)
        wait_until(lambda: s.count("--on-device-loss"))
        is_(s.count("starting again"), 0)
        with socket.socket() as c:
            is_(c.connect_ex(("127.0.0.1", s.port)) != 0, True)


def check_a_signal_while_it_starts_again(folder):
    """Whenever it comes: the process ends with 0, and does not serve again."""
    for delay in (0, 0.02, 0.1, 0.2, 0.3, 0.4, 0.5):
        with Failing(folder) as s:
            s.fault("hold")
            s.lose()
            time.sleep(delay)
            is_((delay, s.stop()), (delay, 0))
            s.fault("hold", False)
            wait_until(lambda: s.count("shutting down"))
            is_((s.count("shutting down"), s.count(" serving ")), (1, 1))
    with Failing(folder) as s:  # and once the model is being loaded for certain
        s.fault("hold")
        s.lose()
        wait_until(lambda: s.count("starting again") and is_loading(s), 60)
        is_(s.stop(), 0)
        is_(s.count(" serving "), 1)


def check_a_second_signal(folder):
    """It ends the process at once, also where the engine of a device that failed does not close. Texts that are tokenised keep the
    server busy until the first one is there, if the machine is not."""
    text = {"content": " ".join(f"word{i % 977}" for i in range(3 << 20))}
    for _ in range(5):
        with Failing(folder) as s:
            s.fault("hang")
            held = [post(s, "/tokenize", text) for _ in range(4)]
            s.lose()
            wait_until(lambda: s.count("starting again"), 60)
            s.process.send_signal(signal.SIGTERM)
            wait_until(lambda: s.count("shutting down"), 60)
            s.process.send_signal(signal.SIGTERM)
            try:
                code = s.process.wait(5)
            except subprocess.TimeoutExpired:
                s.process.kill()
                code = None
            s.fault("hang", False)
            for c in held:
                c.close()
            if code is not None:
                is_(code, 1)
                return
    raise AssertionError("it does not end")


def check_a_model_that_cannot_be_loaded_again(folder):
    with tempfile.TemporaryDirectory() as model:
        for name in os.listdir(MODEL):
            os.symlink(os.path.abspath(f"{MODEL}/{name}"), f"{model}/{name}")
        path = folder + "/lathe.sock"
        with Failing(folder, "-m", model, "--host", "unix:" + path) as s:
            s.fault("slow")
            c = post(s, CHAT, {**TURN, "stream": True})
            c.recv(4096)
            os.remove(model + "/config.json")
            s.fault("fail")
            read_all(c)
            is_(s.process.wait(60), 1)
            wait_until(lambda: s.count("config.json"))
            is_(os.path.exists(path), False)


def check_unix_sockets(folder):
    path = folder + "/lathe.sock"
    with Failing(folder, "--host", "unix:" + path) as s:
        was = os.stat(path)
        is_(s.lose().status, 500)
        s.wait_until_served(2)
        now = os.stat(path)
        is_((now.st_ino, stat.S_IMODE(now.st_mode)), (was.st_ino, 0o600))
        is_(s.stop(), 0)
        is_(os.path.exists(path), False)
    with Failing(folder, "--host", "unix:" + path) as s:
        s.lose()
        s.wait_until_served(2)
        os.rename(path, path + ".away")
        open(path, "w").close()
        is_(s.stop(), 0)
        is_(os.path.isfile(path), True)  # not the server's


def check_keys_and_certificates(folder):
    keys = folder + "/keys"
    with open(keys, "w") as f:
        f.write("one\n")
    cert, key = certificate(folder, "c")
    context = ssl.create_default_context(cafile=cert)

    class Secure(Failing):
        def connect(self):
            return context.wrap_socket(super().connect(), server_hostname="localhost")

    with Secure(folder, "--api-key-file", keys, "--api-key", "fixed", "--tls-cert", cert, "--tls-key", key, env={"LATHE_API_KEY": "mine"}) as s:
        def statuses(*of):
            return [s.send("GET", "/v1/models", headers=[("x-api-key", k)]).status for k in of]

        is_(statuses("one", "two", "fixed", "mine"), [200, 401, 200, 200])
        with open(keys, "w") as f:
            f.write("two\n")
        s.fault("fail")
        is_(s.send("POST", CHAT, {**TURN, "max_tokens": 1}, [("x-api-key", "fixed")]).status, 500)
        s.wait_until_served(2)
        is_(statuses("one", "two", "fixed", "mine"), [401, 200, 200, 200])


def check_an_environment_of_others(folder):
    """What another process wrote does not count; nothing else may stand there."""
    with Failing(folder, env={"LATHE_RESTART": "1 lathe 3 0 0 5 0 0 0"}) as s:
        is_((s.losses(), s.send("GET", "/health").status), (0, 200))
    for value in "x", "lathe 3", "3 0 0 5 0 0 0", "lathe 3 0 0 5 0 0", "lathe 3 0 0 5 0 0 0 0", "lathe 0 0 0 5 0 0 0":
        command = 'LATHE_RESTART="$$ $0" exec "$@"'
        a = subprocess.run(["sh", "-c", command, value, PROGRAM, "serve", "-m", MODEL, "--port", "0"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=60, env={**os.environ, "FAULTS": folder})
        is_((value, a.returncode, "LATHE_RESTART" in a.stderr), (value, 2, True))


ALL = [in_a_folder(f) for name, f in list(globals().items()) if name.startswith("check_")]
sys.exit(Checks("test_device_loss").run(ALL, sys.argv[3:]))
