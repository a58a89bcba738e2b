"""A server under test, and raw HTTP over sockets to it. Used by the tests beside it."""

import functools
import glob
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import traceback


class Server:
    def __init__(self, program, model, *options, env=None):
        self.start([program, "serve", "-m", model, "--port", "0", "--ctx", "2048", *options], env)

    def start(self, command, env=None):
        environment = dict(os.environ, **(env or {}))
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
        )
        self.url = self.port = self.path = None
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"serving .* on (\S+)$", line)
            if found:
                self.url = found.group(1)
                break
        if not self.url:
            raise RuntimeError("the server did not start: " + "".join(self.lines))
        if self.url.startswith("unix:"):
            self.path = self.url[5:]
        else:
            self.port = int(self.url.rpartition(":")[2])
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        self.lines.extend(self.process.stderr)

    def stop(self, how=signal.SIGTERM):
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def connect(self):
        if self.path:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(20)
            s.connect(self.path)
            return s
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def memory(self):
        """Resident bytes."""
        with open(f"/proc/{self.process.pid}/status") as f:
            return int(re.search(r"VmRSS:\s*(\d+)", f.read()).group(1)) * 1024

    def raw(self, data):
        """Sends bytes on a connection of their own; the answer."""
        with self.connect() as s:
            s.sendall(data)
            return Answer(s)

    def send(self, method, path, body=None, headers=(), host="localhost"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        lines = [f"{method} {path} HTTP/1.1"]
        if host is not None:
            lines.append(f"Host: {host}")
        lines += [f"{name}: {value}" for name, value in headers]
        if body is not None:
            lines.append(f"Content-Length: {len(data)}")
        return self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


class Answer:
    """One response, read from a socket; interim ones before it are skipped, unless one is wanted."""

    def __init__(self, s, has_body=True, interim=False):
        data = b""
        while b"\r\n\r\n" not in data or (data.startswith(b"HTTP/1.1 1") and not interim):
            if data.startswith(b"HTTP/1.1 1") and b"\r\n\r\n" in data:
                data = data.partition(b"\r\n\r\n")[2]
                continue
            piece = s.recv(65536)
            if not piece:
                break
            data += piece
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1]) if " " in lines[0] else 0
        self.headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        length = int(self.headers.get("content-length", 0)) if has_body else 0
        while len(rest) < length:
            piece = s.recv(65536)
            if not piece:
                break
            rest += piece
        self.body = rest

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]


class Skip(Exception):
    """Raised by a check that cannot run here; says why."""


def in_a_folder(check):
    """The check with a folder of its own, which is gone afterwards."""
    @functools.wraps(check)
    def run():
        with tempfile.TemporaryDirectory() as folder:
            check(folder)

    return run


class Checks:
    """Functions named check_*, run in order; one line each and the sum at the end."""

    def __init__(self, name):
        self.name = name
        self.passed = self.failed = self.skipped = 0

    def run(self, functions, only, *args):
        for f in functions:
            short = f.__name__.removeprefix("check_")
            if only and short not in only:
                continue
            try:
                f(*args)
                print(f"ok   {self.name}.{short}", flush=True)
                self.passed += 1
            except Skip as e:
                print(f"skip {self.name}.{short}: {e}", flush=True)
                self.skipped += 1
            except Exception as e:  # a failed check, whatever it is
                # Of the checks, as deep as they go: not of what they call here or in libraries.
                lines = [n for t, n in traceback.walk_tb(e.__traceback__) if t.f_code.co_filename == f.__code__.co_filename]
                line = lines[-1] if lines else 0
                print(f"FAIL {self.name}.{short}: line {line}: {type(e).__name__} {e}", flush=True)
                self.failed += 1
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return self.failed != 0


def is_(got, want):
    if got != want:
        raise AssertionError(f"{got!r}, expected {want!r}")


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.01)


class Pulse(threading.Thread):
    """A clock that stands where this machine has no time for us: beats of 10 ms and more, of a thread that does nothing else."""

    BEAT = 0.01

    def __init__(self):
        super().__init__(daemon=True)
        self.beats, self.going = 0, True

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.going = False
        self.join()

    def run(self):
        while self.going:
            time.sleep(self.BEAT)
            self.beats += 1


def within(seconds, condition, what=""):
    """It happens in so many seconds of such a clock, and in five times as many of the one on the wall."""
    with Pulse() as pulse:
        start = time.monotonic()
        while not condition():
            wall = time.monotonic() - start
            if pulse.beats * Pulse.BEAT > seconds or wall > 5 * seconds:
                raise AssertionError(f"{what}: not within {seconds} s, nor {wall:.2f} s by the clock on the wall")
            time.sleep(0.005)


def stood_in_line(pid):
    """For each thread of a process, the seconds that it could have run and another had the processor."""
    seconds = {}
    for task in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        try:
            with open(task) as f:
                seconds[task] = int(f.read().split()[1]) * 1e-9
        except OSError:
            pass  # it has ended
    return seconds


def time_until(s, condition, at_most=60):
    """Seconds until it happens, but for those that the thread of the server which stood in line longest did so."""
    before, lost = stood_in_line(s.process.pid), 0
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > at_most:
            raise AssertionError(f"it did not happen in {at_most} s")
        now = stood_in_line(s.process.pid)
        lost = max([lost] + [now[task] - before.get(task, 0) for task in now])
        time.sleep(0.005)
    return time.monotonic() - start - lost


def shortest(limit, f, tries=5):
    """f() gives the seconds that something took. It takes less than the limit once; a busy machine has several tries."""
    took = []
    while not took or (min(took) >= limit and len(took) < tries):
        took.append(f())
    if min(took) >= limit:
        raise AssertionError(f"it took {min(took):.2f} s at best, the limit is {limit} s")


def certificate(folder, name):
    """Paths of a fresh self-signed certificate and its key."""
    cert, key = f"{folder}/{name}.crt", f"{folder}/{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def secure(s, ca, version=None):
    context = ssl.create_default_context(cafile=ca)
    if version:
        context.minimum_version = context.maximum_version = version
    return context.wrap_socket(s.connect(), server_hostname="localhost")
