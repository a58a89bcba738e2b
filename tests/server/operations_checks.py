"""Operating a server, from outside: sockets, TLS, what SIGHUP reads again, the log, the drain."""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time

from serving import Answer, Checks, Server, Skip, certificate, in_a_folder, is_, secure, wait_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
CHAT = "/v1/chat/completions"
SECRET = "the-quick-brown-secret"


def ask(text="a", **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 3, "ignore_eos": True, **more}


def last_line(s, word):
    wait_until(lambda: any(word in line for line in s.lines))
    return [line for line in s.lines if word in line][-1]


def fails(*options):
    """The message of a server that does not start."""
    try:
        with Server(PROGRAM, MODEL, *options):
            raise AssertionError(f"it starts with {options}")
    except RuntimeError as e:
        return str(e)


# ---- Unix sockets


def check_unix_sockets(folder):
    path = folder + "/lathe.sock"
    with Server(PROGRAM, MODEL, "--host", "unix:" + path) as s:
        is_(s.url, "unix:" + path)
        is_(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        is_(any("warning" in line for line in s.lines), False)
        is_(s.send("GET", "/health").status, 200)
        is_(s.send("GET", "/health", host="evil.com").status, 403)
        is_(s.send("POST", CHAT, ask()).status, 200)
        is_("in use" in fails("--host", "unix:" + path), True)
        is_(s.send("GET", "/health").status, 200)
        is_(s.stop(), 0)
    is_(os.path.exists(path), False)


def check_unix_socket_of_a_killed_server(folder):
    path = folder + "/lathe.sock"
    with Server(PROGRAM, MODEL, "--host", "unix:" + path) as s:
        is_(s.stop(signal.SIGKILL), -9)
    is_(os.path.exists(path), True)
    with Server(PROGRAM, MODEL, "--host", "unix:" + path) as s:
        is_(s.send("GET", "/health").status, 200)
        os.rename(path, path + ".away")
        open(path, "w").close()
        is_(s.stop(), 0)
    is_(os.path.isfile(path), True)  # not the server's
    is_("in use" in fails("--host", "unix:" + path), True)
    os.remove(path)
    is_("1 to 107" in fails("--host", "unix:" + folder + "/" + "a" * 120), True)
    is_("No such file" in fails("--host", f"unix:{folder}/none/lathe.sock"), True)


def check_unix_client_that_goes_away(folder):
    path = folder + "/lathe.sock"
    with Server(PROGRAM, MODEL, "--host", "unix:" + path) as s:
        with s.connect() as c:
            data = json.dumps(ask(max_tokens=2000, stream=True)).encode()
            c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
            c.recv(100)
        is_("finish=abort" in last_line(s, "POST"), True)


# ---- TLS


def name_shown(s, ca):
    with secure(s, ca) as c:
        return dict(pair[0] for pair in c.getpeercert()["subject"])["commonName"]


def post(c, body, close=False):
    data = json.dumps(body).encode()
    more = "Connection: close\r\n" if close else ""
    c.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def read_all(c):
    data = b""
    while piece := c.recv(65536):
        data += piece
    return data


def check_tls(folder):
    cert, key = certificate(folder, "one")
    with Server(PROGRAM, MODEL, "--tls-cert", cert, "--tls-key", key) as s:
        is_(s.url.startswith("https://"), True)
        with secure(s, cert) as c:
            for _ in range(2):
                post(c, ask())
                is_(Answer(c).status, 200)
            post(c, ask(stream=True, max_tokens=50), close=True)
            is_(b"data: [DONE]\n\n" in read_all(c), True)
        for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
            with secure(s, cert, version) as c:
                c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                is_(Answer(c).status, 200)
        with s.connect() as c:  # no handshake
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            is_(b"HTTP/1.1 200" in c.recv(100), False)
        with secure(s, cert) as c:
            post(c, ask(stream=True, max_tokens=2000))
            c.recv(100)
        is_("finish=abort" in last_line(s, "finish=abort"), True)
        is_(s.stop(), 0)


def check_tls_certificates_are_replaced(folder):
    cert, key = certificate(folder, "one")
    other_cert, other_key = certificate(folder, "two")
    with Server(PROGRAM, MODEL, "--tls-cert", cert, "--tls-key", key) as s:
        both = folder + "/both.pem"
        with open(both, "w") as f:
            f.write(open(cert).read() + open(other_cert).read())
        is_(name_shown(s, both), "one")
        with secure(s, both) as held:
            os.replace(other_cert, cert)
            s.process.send_signal(signal.SIGHUP)
            is_("not read again" in last_line(s, "not read again"), True)
            is_(name_shown(s, both), "one")  # the key is the old one's
            os.replace(other_key, key)
            s.process.send_signal(signal.SIGHUP)
            wait_until(lambda: name_shown(s, both) == "two")
            held.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            is_(Answer(held).status, 200)
        with open(key, "w") as f:
            f.write("no key")
        s.process.send_signal(signal.SIGHUP)
        is_("no key in PEM form" in last_line(s, "PEM"), True)
        is_(name_shown(s, both), "two")


def check_tls_files_that_do_not_fit(folder):
    cert, key = certificate(folder, "one")
    _, other_key = certificate(folder, "two")
    is_("belong together" in fails("--tls-cert", cert), True)
    is_("one.crt and" in fails("--tls-cert", cert, "--tls-key", other_key), True)
    is_("no certificates in PEM form" in fails("--tls-cert", key, "--tls-key", key), True)
    is_("none.pem: No such file" in fails("--tls-cert", folder + "/none.pem", "--tls-key", key), True)


# ---- What SIGHUP reads again


def status_with(s, key):
    return s.send("GET", "/v1/models", headers=[("x-api-key", key)]).status


def check_keys_are_read_again(folder):
    path = folder + "/keys"
    with open(path, "w") as f:
        f.write("# two keys\none\ntwo\n")
    with Server(PROGRAM, MODEL, "--api-key-file", path, "--api-key", "fixed") as s:
        is_([status_with(s, k) for k in ("one", "two", "three", "fixed")], [200, 200, 401, 200])
        with open(path, "w") as f:
            f.write("three\n")
        s.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status_with(s, "three") == 200)
        is_([status_with(s, k) for k in ("one", "two", "fixed")], [401, 401, 200])
        os.remove(path)
        s.process.send_signal(signal.SIGHUP)
        is_("not read again" in last_line(s, "not read again"), True)
        is_([status_with(s, k) for k in ("three", "fixed")], [200, 200])
        is_(len([line for line in s.lines if "were read again" in line]), 1)
        is_(s.stop(), 0)


def check_log_levels(folder):
    path = folder + "/level"
    with open(path, "w") as f:
        f.write("error\n")
    with Server(PROGRAM, MODEL, "--log-level", "@" + path) as s:
        s.send("GET", "/v1/models")
        s.send("GET", "/livez")
        with open(path, "w") as f:
            f.write("debug\n")
        s.process.send_signal(signal.SIGHUP)
        last_line(s, "were read again")
        s.send("GET", "/health")
        last_line(s, "path=/health")
        is_([line for line in s.lines if "/v1/models" in line], [])
        is_(len([line for line in s.lines if "/health" in line]), 1)
        with open(path, "w") as f:
            f.write("loud\n")
        s.process.send_signal(signal.SIGHUP)
        is_("loud" in last_line(s, "loud"), True)
        s.send("GET", "/ready")
        last_line(s, "path=/ready")
    is_("expected error, info or debug" in fails("--log-level", "warn"), True)


# ---- The log


def check_log_lines(_):
    with Server(PROGRAM, MODEL, "--log", "json") as s:
        s.send("POST", CHAT, ask(SECRET, model="gpt-x", surprise=1, prompt_cache_key="mine"), [("Authorization", "Bearer " + SECRET)])
        line = json.loads(last_line(s, '"path":"/v1/chat'))
        is_((line["model"], line["status"], line["dialect"], line["finish"]), ("gpt-x", 200, "chat", "length"))
        is_((line["output"], line["miss"], len(line["session"])), (3, "cold", 16))
        for again in range(2):
            s.send("POST", CHAT, ask(model="gpt-x", surprise=1, user="mine"), [("x-session-affinity", "other")][again:])
        wait_until(lambda: len([x for x in s.lines if '"path"' in x]) == 3)
        requests = [json.loads(x) for x in s.lines if '"path"' in x]
        is_(requests[2]["session"], line["session"])
        is_(requests[1]["session"] != line["session"], True)
        notices = [json.loads(x)["notice"] for x in s.lines if '"notice"' in x]
        is_(len(notices), 2)
        is_(any("gpt-x" in n for n in notices) and any("surprise" in n for n in notices), True)
        is_(SECRET in "".join(s.lines), False)
    with Server(PROGRAM, MODEL, "--log", "json", "--log-bodies") as s:
        s.send("POST", CHAT, json.dumps(ask(SECRET)).encode() + b"\xff", [("Authorization", "Bearer none")])
        s.send("POST", CHAT, ask(SECRET))
        wait_until(lambda: len([x for x in s.lines if '"body"' in x]) == 2)
        is_([SECRET in json.loads(x)["body"] for x in s.lines if '"body"' in x], [True, True])


# ---- The end


def check_drain_with_a_delay(_):
    with Server(PROGRAM, MODEL, "--drain-delay", "2", "--slots", "2") as s:
        with s.connect() as held:
            post(held, ask(stream=True, max_tokens=1500), close=True)
            held.recv(100)
            s.process.send_signal(signal.SIGTERM)
            wait_until(lambda: s.send("GET", "/ready").status == 503)
            is_(s.send("GET", "/health").json, {"status": "draining"})
            a = s.send("POST", CHAT, ask())
            is_((a.status, a.headers["connection"].lower()), (200, "close"))
            is_(b"data: [DONE]\n\n" in read_all(held), True)
        is_(s.process.wait(30), 0)
    with Server(PROGRAM, MODEL, "--drain-delay", "60") as s:
        s.process.send_signal(signal.SIGHUP)
        s.process.send_signal(signal.SIGTERM)
        wait_until(lambda: s.send("GET", "/ready").status == 503)
        is_(s.stop(), 1)


def check_a_signal_at_the_beginning(folder):
    """One that comes while the command line is read is answered as any other. Here what mallopt is called for sends it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Skip("there is no C compiler")
    with open(folder + "/early.c", "w") as f:
        f.write("#include <signal.h>\n#include <unistd.h>\nint mallopt(int what, int value) { (void)what; (void)value; kill(getpid(), SIGTERM); return 1; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder + "/early.so", folder + "/early.c"], check=True)
    env = dict(os.environ, LD_PRELOAD=folder + "/early.so", ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0")
    a = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--port", "0"], env=env, capture_output=True, text=True, timeout=60)
    is_((a.returncode, a.stderr.count("shutting down")), (0, 1))


def check_a_signal_while_the_model_loads(_):
    """Whenever it comes once the server listens: the exit code is 0, and nothing is served any more."""
    for delay in (0, 0.01, 0.05, 0.1, 0.3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        p = subprocess.Popen([PROGRAM, "serve", "-m", MODEL, "--port", str(port)], stderr=subprocess.PIPE, text=True)
        try:
            def listens():
                with socket.socket() as c:
                    return c.connect_ex(("127.0.0.1", port)) == 0
            wait_until(listens)
            time.sleep(delay)
            p.send_signal(signal.SIGTERM)
            is_(p.wait(20), 0)
            is_((p.stderr.read().count("shutting down"), listens()), (1, False))
        finally:
            p.kill()
            p.wait()
            p.stderr.close()


def check_open_files(_):
    """As many connections as are allowed, though the limit of open files was lower; one more hears so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        raise Skip(f"at most {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    try:
        s = Server(PROGRAM, MODEL, "--max-connections", "600")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1000), hard))
    with s:
        with open(f"/proc/{s.process.pid}/limits") as f:
            is_(re.search(r"Max open files +(\d+)", f.read()).group(1), "728")
        held = [s.connect() for _ in range(600)]
        wait_until(lambda: s.send("GET", "/health").status == 503)
        for c in held:
            c.close()
        wait_until(lambda: s.send("GET", "/health").status == 200)


def check_model_lists(_):
    with Server(PROGRAM, MODEL, "--alias", "nano", "--alias", "claude-nano") as s:
        for query in "", "?limit=1", "?limit=1000&beta=true":
            is_([m["id"] for m in s.send("GET", "/v1/models" + query).json["data"]], ["nano"])
        for query in "?after_id=nano", "?before_id=claude%2Dnano":
            a = s.send("GET", "/v1/models" + query).json
            is_((a["data"], a["first_id"], a["has_more"]), ([], None, False))
        for query, param in ("?limit=0", "limit"), ("?limit=x", "limit"), ("?after_id=other", "after_id"):
            a = s.send("GET", "/v1/models" + query)
            is_((a.status, a.json["error"]["param"]), (400, param))


def check_memory_plan(_):
    """It is said before the model is loaded; what does not fit is refused with it."""
    parts = ["memory at 2048 positions", "weights", "KV cache", "recurrent state", "drafter", "workspace", "total", "head-room"]
    with Server(PROGRAM, MODEL, "--device", "cpu") as s:
        said = [i for i, part in enumerate(parts) if s.lines[i].strip().startswith(part)]
        is_((said, "serving" in s.lines[-1]), (list(range(len(parts))), True))
        is_(s.stop(), 0)
    refusal = fails("--device", "cpu", "--memory", "0.001")
    is_([part in refusal for part in (*parts, "it may take 1.0 MB")], [True] * (len(parts) + 1))


def check_version(_):
    want = hashlib.sha256()
    for name in sorted(os.listdir(MODEL)):
        if name.endswith(".safetensors"):
            with open(f"{MODEL}/{name}", "rb") as f:
                want.update(f.read())
    with Server(PROGRAM, MODEL) as s:
        is_(s.send("GET", "/version").json["weights_sha256"] in (None, want.hexdigest()), True)
        wait_until(lambda: s.send("GET", "/version").json["weights_sha256"] == want.hexdigest(), 60)
        is_(s.stop(), 0)


def check_load(_):
    """bench/load, both ways, counts what the server counts."""
    program = os.path.dirname(PROGRAM) + "/bench/load"
    if not os.path.exists(program):
        raise Skip(f"there is no {program} (make bench)")
    with Server(PROGRAM, MODEL, "--slots", "2", "--api-key", "k") as s:
        common = [program, "--port", str(s.port), "--key", "k", "--max-tokens", "8", "--prompt-words", "4", "--seconds", "1"]
        for more, loop in (["--clients", "3"], "closed"), (["--clients", "3", "--rate", "5", "--sessions", "2"], "open"):
            a = subprocess.run(common + more, capture_output=True, text=True, timeout=120)
            is_((a.returncode, a.stderr), (0, ""))
            result = json.loads(a.stdout)
            is_((result["loop"], result["failed"], result["refused"]), (loop, 0, 0))
            is_(result["completion_tokens"], 8 * result["requests"])
            is_(result["tokens_per_second"] > 0 and result["prompt_tokens"] > 4 * result["requests"], True)
            for name in "ttft_ms", "inter_token_ms", "request_ms":
                times = [result[name][p] for p in ("p50", "p90", "p99", "max")]
                is_((times, all(x > 0 for x in times)), (sorted(times), True))
        a = subprocess.run([program, "--port", str(s.port), "--seconds", "0.1"], capture_output=True, text=True, timeout=120)
        is_((a.returncode, json.loads(a.stdout)["failed"] > 0), (1, True))  # without the key
    for wrong in [], ["--port", "0"], ["--port", "1", "--rate", "x"], ["--port"], ["--port", "1", "--other", "1"]:
        a = subprocess.run([program, *wrong], capture_output=True, text=True, timeout=20)
        is_((wrong, a.returncode, a.stderr.startswith("load: ")), (wrong, 1, True))


def table(text, heading):
    """The section below a heading, and the cells of its tables' rows."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return section, [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]


def check_the_document_has_every_option_and_route(folder):
    """docs/server.md against --help and GET /help, both ways, and which routes need a key."""
    with open("docs/server.md") as f:
        text = f.read()
    option = r"--[a-z][a-z-]*[a-z]"
    known = set(re.findall(option, subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True).stdout))
    (limits, few), (section, rows) = table(text, "Limits"), table(text, "Options")
    section, rows = limits + section, few + rows
    is_((known - set(re.findall(option, section)), set(re.findall(option, " ".join(r[0] for r in rows))) - known), (set(), set()))
    served, said = set(), set()
    with Server(PROGRAM, MODEL, "--api-key", "k", "--debug-routes") as s:
        for line in s.send("GET", "/help").body.decode().splitlines():
            served.add((line.split(",")[0], line.split()[-1].split("{")[0]))
        for cell, key, *_ in table(text, "Routes")[1]:
            for method in re.findall(r"GET|POST|DELETE", cell):
                for path in re.findall(r"/[^`\s]*", cell):
                    said.add((method, path.split("?")[0].split("{")[0]))
                    status = s.send(method, re.sub(r"{\w+}", "0", path), b"{}" if method == "POST" else None).status
                    is_((method, path, status == 401), (method, path, key.strip() == "yes"))
    is_((served - said, said - served), (set(), set()))


def check_the_unit_for_systemd(folder):
    """Its command line is one that the program takes, and systemd has nothing to say about it."""
    with open("docs/lathe.service") as f:
        lines = f.read().splitlines()
    command = next(line for line in lines if line.startswith("ExecStart=")).partition("=")[2].split()
    stop = int(next(line for line in lines if line.startswith("TimeoutStopSec=")).partition("=")[2])
    is_(stop > int(command[command.index("--drain-timeout") + 1]), True)
    keys = folder + "/keys"
    with open(keys, "w") as f:
        f.write("k\n")
    mine = [{"/usr/local/bin/lathe": os.path.abspath(PROGRAM), "/srv/models/model": MODEL, "/etc/lathe/keys": keys, "8080": "0"}.get(w, w) for w in command]
    with Server(PROGRAM, MODEL, *mine[4:]) as s:
        is_(s.send("GET", "/v1/models", headers=[("x-api-key", "k")]).status, 200)
    if shutil.which("systemd-analyze"):
        unit = folder + "/lathe.service"
        with open(unit, "w") as f:
            f.write("\n".join(lines).replace("/usr/local/bin/lathe", os.path.abspath(PROGRAM)) + "\n")
        a = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        is_((a.returncode, [line for line in a.stderr.splitlines() if "lathe" in line]), (0, []))


ALL = [in_a_folder(f) for name, f in list(globals().items()) if name.startswith("check_")]
sys.exit(Checks("test_operating").run(ALL, sys.argv[3:]))
