"""Watching a server, from outside: metrics through the reader of the Prometheus client library, slots, the last requests,
the trace."""

import hashlib
import json
import math
import os
import re
import stat
import sys
import threading
import time

from prometheus_client.parser import text_string_to_metric_families

from serving import Answer, Checks, Server, in_a_folder, is_, wait_until

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
CHAT = "/v1/chat/completions"
VLLM = """num_requests_waiting num_requests_running kv_cache_usage_perc cache_config_info prompt_tokens generation_tokens
prefix_cache_queries prefix_cache_hits num_preemptions request_success spec_decode_num_drafts spec_decode_num_draft_tokens
spec_decode_num_accepted_tokens spec_decode_num_accepted_tokens_per_pos time_to_first_token_seconds
inter_token_latency_seconds time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
request_generation_tokens iteration_tokens_total""".split()
OWN = """build_info ready device_losses slots requests_waiting requests_running kv_pages memory_bytes requests tool_calls cache_miss queue_rejected disconnect unknown_field
reasoning_tokens eos_in_think forced_think_close step_seconds round_tokens drafts""".split()


def ask(text="a", **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 20, "ignore_eos": True, **more}


def read_metrics(s):
    """{(name, frozenset of labels but the model's name): value}, after a look at what the reader lets pass."""
    a = s.send("GET", "/metrics")
    is_((a.status, a.headers["content-type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
    text = a.body.decode()
    values, seen = {}, set()
    for family in text_string_to_metric_families(text):
        is_(family.name in seen, False)
        seen.add(family.name)
        is_(family.type in ("counter", "gauge", "histogram") and bool(family.documentation), True)
        for sample in family.samples:
            labels = dict(sample.labels)
            is_(labels.pop("model_name"), s.name)
            key = sample.name, frozenset(labels.items())
            is_(key in values, False)
            is_(math.isfinite(sample.value) and sample.value >= 0, True)
            values[key] = sample.value
        if family.type == "histogram":
            check_histogram(family)
    for line in text.splitlines():
        is_(bool(re.fullmatch(r'# (HELP|TYPE) [a-z_:0-9]+ .+|[a-z_:0-9]+\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)+\} [-+0-9.e]+', line)), True)
    is_(text.endswith("\n"), True)
    return values, seen


def check_histogram(family):
    series = {}
    for sample in family.samples:
        labels = dict(sample.labels)
        bound = labels.pop("le", None)
        one = series.setdefault(frozenset(labels.items()), {"bucket": []})
        if bound:
            one["bucket"].append((float(bound), sample.value))
        else:
            one[sample.name.rpartition("_")[2]] = sample.value
    for one in series.values():
        bounds, counts = zip(*one["bucket"])
        is_(list(bounds), sorted(set(bounds)))
        is_(list(counts), sorted(counts))
        is_((bounds[-1], counts[-1]), (math.inf, one["count"]))
        is_(one["sum"] > 0, one["count"] > 0)


def value(metrics, name, **labels):
    return metrics.get((name, frozenset(labels.items())), 0)


def start(*options, name="nano"):
    s = Server(PROGRAM, MODEL, *options)
    s.name = name
    return s


def open_stream(s, body):
    c = s.connect()
    data = json.dumps(dict(body, stream=True)).encode()
    c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
    return c


def read_stream(c):
    """Up to its end."""
    data = b""
    while b"data: [DONE]" not in data:
        piece = c.recv(65536)
        is_(bool(piece), True)
        data += piece
    return data


# ---- Metrics


def check_names(_):
    with start() as s:
        _, seen = read_metrics(s)
        want = {"vllm:" + n for n in VLLM} | {"lathe_" + n for n in OWN}
        is_((sorted(want - seen), sorted(seen - want)), ([], []))
        with s.connect() as c:
            c.sendall(b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            is_(Answer(c, has_body=False).status, 200)


def check_counts(_):
    with start("--slots", "2") as s:
        before, _ = read_metrics(s)
        is_(value(before, "vllm:num_requests_running"), 0)
        is_(value(before, "vllm:cache_config_info", block_size="64", num_gpu_blocks="64"), 1)
        a = s.send("POST", CHAT, ask(surprise=1)).json
        with open_stream(s, ask("another")) as c:
            read_stream(c)
        is_(s.send("POST", CHAT, {"messages": 1}).status, 400)
        is_(s.send("POST", "/v1/messages", {"messages": []}).status, 400)
        wait_until(lambda: value(read_metrics(s)[0], "vllm:e2e_request_latency_seconds_count") == 2)
        m, _ = read_metrics(s)
        is_(value(m, "vllm:request_success_total", finished_reason="length"), 2)
        is_(value(m, "vllm:generation_tokens_total"), 40)
        is_(value(m, "vllm:request_generation_tokens_sum"), 40)
        is_(value(m, "vllm:prompt_tokens_total"), value(m, "vllm:request_prompt_tokens_sum"))
        is_(value(m, "vllm:prompt_tokens_total") > a["usage"]["prompt_tokens"], True)
        for name in "time_to_first_token", "request_queue_time", "request_prefill_time", "request_decode_time":
            is_(value(m, f"vllm:{name}_seconds_count"), 2)
        is_(value(m, "vllm:inter_token_latency_seconds_count") > 2, True)
        rounds = value(m, "lathe_round_tokens_count")
        is_(value(m, "lathe_round_tokens_sum"), rounds + value(m, "vllm:spec_decode_num_accepted_tokens_total"))
        steps = sum(value(m, "lathe_step_seconds_count", kind=k) for k in ("prefill", "decode", "verify"))
        is_(value(m, "vllm:iteration_tokens_total_count"), steps)
        is_(value(m, "lathe_unknown_field_total"), 1)
        is_(value(m, "lathe_requests_total", dialect="chat", status="200"), 2)
        is_(value(m, "lathe_requests_total", dialect="chat", status="400"), 1)
        is_(value(m, "lathe_requests_total", dialect="messages", status="400"), 1)
        is_(value(m, "lathe_cache_miss_total", reason="cold"), 1)
        is_(value(m, "lathe_slots", state="free"), 2)
        is_(sum(value(m, "lathe_kv_pages", state=k) for k in ("free", "idle", "running")), 64)
        for key, number in before.items():
            if re.search("(_total|_count|_sum|_bucket)$", key[0]):
                is_((key, m[key] >= number), (key, True))


def check_choices_have_one_prompt(_):
    """Of n answers the prompt is computed in one pass of the model, and counted once."""
    text, passes, before = " ".join(f"word {i}" for i in range(120)), [], {}
    rows = [(CHAT, 1, False), (CHAT, 4, False), (CHAT, 3, True), ("/v1/completions", 4, False)]
    with start("--slots", "4", "--spec", "none") as s:
        for i, (path, n, stream) in enumerate(rows):
            body = ask(f"{i} {text}", n=n, max_tokens=9, stream=stream, stream_options={"include_usage": True})
            if path != CHAT:
                body["prompt"] = body.pop("messages")[0]["content"]
            if stream:
                with open_stream(s, body) as c:
                    streamed = read_stream(c)
            else:
                a = s.send("POST", path, body)
                is_(a.status, 200)
            wait_until(lambda: value(read_metrics(s)[0], "vllm:e2e_request_latency_seconds_count") == i + 1)
            m, _ = read_metrics(s)
            new = {k: v - before.get(k, 0) for k, v in m.items()}
            before = m
            prompt = value(new, "vllm:request_prompt_tokens_sum")
            is_(prompt > 400, True)
            # Tokens of the model's passes: the prompt's, and of each answer all but the last.
            is_(value(new, "vllm:iteration_tokens_total_sum"), prompt + n * 8)
            passes.append(value(new, "lathe_step_seconds_count", kind="prefill"))
            is_(value(new, "vllm:prefix_cache_queries_total"), n * prompt)
            is_(value(new, "vllm:prefix_cache_hits_total"), (n - 1) * prompt)
            is_(value(new, "vllm:request_generation_tokens_sum"), n * 9)
            # Between two tokens of one answer, not of two.
            is_(value(new, "vllm:inter_token_latency_seconds_count") <= n * 8, True)
            if stream:
                is_(b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,' % (prompt, n * 9) in streamed, True)
            else:
                is_(len(a.json["choices"]), n)
                usage, timings = a.json["usage"], a.json["timings"]
                is_((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]), (prompt, n * 9, prompt + n * 9))
                is_((timings["prompt_n"], timings["cache_n"], timings["predicted_n"]), (prompt, 0, n * 9))
    is_(len(set(passes[:3])), 1)


def check_a_round_is_one_event(_):
    """Tokens that were drafted and kept come together, in every dialect."""
    rows = {CHAT: ("messages", b'"delta":{"'), "/v1/completions": ("prompt", b'"text":"'), "/v1/responses": ("input", b'.delta"'), "/v1/messages": ("messages", b'"type":"content_block_delta"')}
    with start() as s:
        before, _ = read_metrics(s)
        for i, (path, (field, delta)) in enumerate(rows.items()):
            text = "Tell me a story about a fox and a dog."
            body = {field: [{"role": "user", "content": text}] if field == "messages" else text, "temperature": 0, "ignore_eos": True}
            body["max_output_tokens" if field == "input" else "max_tokens"] = 120
            body["stream"] = True
            data = json.dumps(body).encode()
            got = b""
            with s.connect() as c:
                c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
                while piece := c.recv(65536):
                    got += piece
            wait_until(lambda: value(read_metrics(s)[0], "vllm:e2e_request_latency_seconds_count") == i + 1)
            m, _ = read_metrics(s)
            new = {k: v - before.get(k, 0) for k, v in m.items()}
            before = m
            rounds, kept = value(new, "lathe_round_tokens_count"), value(new, "vllm:spec_decode_num_accepted_tokens_total")
            # One more where the reasoning ends, and for what is said at the beginning and the end.
            is_((path, kept > 10, got.count(delta) <= rounds + 4), (path, True, True))


def check_load(_):
    """Waiting and running requests, a client that goes away, and a full queue."""
    with start("--max-queue", "1") as s:
        with open_stream(s, ask(max_tokens=1900)) as running:
            running.recv(100)
            with open_stream(s, ask(max_tokens=5)) as waiting:
                wait_until(lambda: value(read_metrics(s)[0], "vllm:num_requests_waiting") == 1)
                # What is told is the state after a step.
                wait_until(lambda: value(read_metrics(s)[0], "vllm:kv_cache_usage_perc") > 0)
                m, _ = read_metrics(s)
                is_(value(m, "vllm:num_requests_running"), 1)
                is_(value(m, "lathe_slots", state="decode"), 1)
                is_(s.send("POST", CHAT, ask()).status, 429)
                is_(s.send("GET", "/slots?fail_on_no_slot=1").status, 503)
            wait_until(lambda: value(read_metrics(s)[0], "vllm:num_requests_waiting") == 0)
        wait_until(lambda: value(read_metrics(s)[0], "lathe_disconnect_total", phase="decode") == 1)
        m, _ = read_metrics(s)
        is_(value(m, "lathe_queue_rejected_total", reason="full"), 1)
        is_(value(m, "lathe_disconnect_total", phase="queued"), 1)
        is_(value(m, "vllm:request_success_total", finished_reason="abort"), 2)
        wait_until(lambda: value(read_metrics(s)[0], "vllm:num_requests_running") == 0)
        is_(s.send("GET", "/slots?fail_on_no_slot=1").status, 200)


def check_memory(_):
    with start() as s:
        def held(purpose):
            return value(read_metrics(s)[0], "lathe_memory_bytes", where="host", purpose=purpose)

        is_([held(purpose) for purpose in ("bodies", "responses", "answers")], [0, 0, 0])
        is_(held("weights") > 0, True)
        a = s.send("POST", "/v1/responses", {"input": "a", "max_output_tokens": 4, "ignore_eos": True, "metadata": {"k": "v" * 500}})
        is_(a.status, 200)
        is_(held("responses") > 500, True)
        is_(s.send("DELETE", "/v1/responses/" + a.json["id"]).status, 200)
        is_(held("responses"), 0)
        with s.connect() as c:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b" " * 50000)
            wait_until(lambda: held("bodies") >= 50000)
        wait_until(lambda: held("bodies") == 0)


def check_thinking_and_calls(_):
    with start() as s:
        a = s.send("POST", CHAT, ask("What is a kiln?", thinking_budget=4, max_tokens=60, ignore_eos=False, temperature=0))
        is_(a.status, 200)
        m, _ = read_metrics(s)
        is_(value(m, "lathe_forced_think_close_total", why="budget"), 1)
        is_(value(m, "lathe_reasoning_tokens_total"), a.json["usage"]["completion_tokens_details"]["reasoning_tokens"])


def check_metrics_while_others_use_the_engine(_):
    """Scrapes do not wait for steps: a hundred of them while a prompt is read."""
    with start() as s:
        with open_stream(s, ask("word " * 1500)):
            with s.connect() as c:
                for _ in range(100):
                    c.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    is_(Answer(c).status, 200)


def check_who_may_ask(_):
    with start("--metrics", "off") as s:
        a = s.send("GET", "/metrics")
        is_((a.status, "--metrics on" in a.json["error"]["message"]), (404, True))
    with start("--api-key", "k") as s:
        is_(s.send("GET", "/metrics").status, 200)
        is_(s.send("GET", "/slots").status, 401)
    with start("--api-key", "k", "--metrics-auth", "--debug-routes", "--host", "0.0.0.0") as s:
        for path in "/metrics", "/debug/requests", "/debug/cache":
            is_(s.send("GET", path).status, 401)
            is_(s.send("GET", path, headers=[("x-api-key", "k")]).status, 200)
    with start() as s:
        a = s.send("GET", "/debug/requests")
        is_((a.status, "--debug-routes" in a.json["error"]["message"]), (404, True))
    try:
        with start("--debug-routes", "--host", "0.0.0.0"):
            raise AssertionError("it starts")
    except RuntimeError as e:
        is_("needs an API key" in str(e), True)


def check_names_in_labels(_):
    with start("--alias", 'a"b\\c', name='a"b\\c') as s:
        read_metrics(s)


# ---- Slots


def check_slots(_):
    with start("--slots", "2") as s:
        slots = s.send("GET", "/slots").json
        is_([(x["id"], x["is_processing"], x["phase"], x["request_id"]) for x in slots], [(i, False, "idle", None) for i in (0, 1)])
        c = s.connect()
        data = json.dumps(ask("one", max_tokens=1900, stream=True, prompt_cache_key="mine")).encode()
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nx-request-id: this-one\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        wait_until(lambda: any(x["phase"] == "decode" for x in s.send("GET", "/slots").json))
        slots = s.send("GET", "/slots").json
        at = [x["is_processing"] for x in slots].index(True)
        busy = slots[at]
        is_((busy["request_id"], busy["dialect"], busy["n_ctx"]), ("this-one", "chat", 2048))
        is_(busy["session"], hashlib.sha256(b"mine").hexdigest()[:16])
        is_(busy["n_decoded"] > 0 and busy["n_held"] >= busy["n_prompt"] > 0 and busy["seconds"] > 0, True)
        is_(0 <= busy["draft"]["accepted"] <= busy["draft"]["drafted"], True)
        is_([x for x in slots if "one" in json.dumps(x).replace("this-one", "")], [])
        a = s.send("POST", f"/slots/{at}?action=erase")
        is_((a.status, a.code), (409, "slot_busy"))
        is_(s.send("POST", f"/slots/{1 - at}?action=erase").status, 200)
        c.close()
        wait_until(lambda: not any(x["is_processing"] for x in s.send("GET", "/slots").json))
        is_(s.send("GET", "/slots").json[at]["n_held"] > 0, True)
        is_(s.send("POST", f"/slots/{at}?action=erase").json, {"id_slot": at, "status": "ok"})
        is_([x["n_held"] for x in s.send("GET", "/slots").json], [0, 0])
        for path, status in (("/slots/2?action=erase", 404), ("/slots/x?action=erase", 404), ("/slots/0", 400),
                             ("/slots/0?action=save", 501), ("/slots/0?action=restore", 501), ("/slots/0?action=other", 400)):
            is_((path, s.send("POST", path).status), (path, status))
        is_(s.send("GET", "/slots/0").status, 405)


def check_reset_prefix_cache(_):
    with start("--debug-routes") as s:
        first = ask("What is a kiln?", max_tokens=3)
        s.send("POST", CHAT, first)
        cache = s.send("GET", "/debug/cache").json
        is_([p["tokens"] > 0 and p["bytes"] > 0 and not p["in_use"] for p in cache["prefixes"]], [True])
        is_(s.send("POST", "/reset_prefix_cache", {}).json, {"status": "ok"})
        is_(s.send("GET", "/debug/cache").json["prefixes"], [])
        a = s.send("POST", CHAT, first)
        is_(a.json["usage"]["prompt_tokens_details"]["cached_tokens"], 0)


# ---- The last requests and the trace


def check_last_requests(_):
    with start("--debug-routes") as s:
        for i in range(260):
            s.send("POST", "/tokenize", {"content": 1}, headers=[("x-request-id", f"r{i}")])
        s.send("POST", CHAT, ask(user="u", max_tokens=2), headers=[("x-request-id", "answered")])
        wait_until(lambda: s.send("GET", "/debug/requests").json[-1]["id"] == "answered")
        records = s.send("GET", "/debug/requests").json
        ids = [r["id"] for r in records]  # in the order in which their threads ended them
        is_((len(ids), ids[-1], [i for i in range(16, 260) if f"r{i}" not in ids]), (256, "answered", []))
        is_(any(f"r{i}" in ids for i in range(3)), False)
        is_((records[0]["error"], records[-1]["output"], len(records[-1]["session"])), ("invalid_type", 2, 16))


def read_trace(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def check_trace(folder):
    path, secret = folder + "/trace", "quick brown secret"
    with start("--trace", path) as s:
        is_(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        bodies = {
            "one": ask(secret, max_tokens=5, temperature=0.5, stop=["never"], top_p=None),
            "two": ask(secret + "!", max_tokens=5),
            "refused": {"messages": [], "model": secret},
        }
        for name, body in bodies.items():
            s.send("POST", CHAT, body, headers=[("x-request-id", name)])
        s.send("POST", "/tokenize", {"content": "a"})
        wait_until(lambda: len(read_trace(path)) == 3)
        records = {record["id"]: record for record in read_trace(path)}
        one, two, refused = (records[name] for name in bodies)
        is_(one["fields"]["temperature"], 0.5)
        is_((one["fields"]["stop"], one["fields"]["top_p"]), ({"items": 1}, None))
        is_(len(one["choices"]), 1)
        choice = one["choices"][0]
        is_((choice["output"], choice["finish"], choice["miss"], choice["diverged_turn"]), (5, "length", "cold", 0))
        is_(sum(t["tokens"] for t in choice["prompt"]["turns"]), choice["prompt"]["tokens"])
        is_(choice["states"][0]["state"], "reasoning")
        is_([t["sha256"] for t in two["choices"][0]["prompt"]["turns"]][1:], [t["sha256"] for t in choice["prompt"]["turns"]][1:])
        is_(len({t["choices"][0]["prompt"]["turns"][0]["sha256"] for t in (one, two)}), 2)
        is_((refused["status"], "choices" in refused), (400, False))
        is_("secret" in open(path).read().replace('"model":"' + secret, ""), False)


def check_trace_with_texts(folder):
    path = folder + "/trace"
    with start("--trace", path, "--trace-text", "--spec", "none") as s:
        with start("--spec", "none") as plain:
            for more in {}, {"stream": True}:
                body = ask("What is a kiln?", temperature=0, max_tokens=40, ignore_eos=False, seed=1, **more)
                same = [re.sub(rb'"(id|created)":[^,]+|"timings":{[^}]*}', b"", read_all(x, body)) for x in (s, plain)]
                if not body.get("stream"):
                    is_(same[0], same[1])
                is_(same[0].count(b'"logprobs":{'), 0)
        wait_until(lambda: len(read_trace(path)) == 2)
        for record in read_trace(path):
            choice = record["choices"][0]
            is_(json.loads(record["body"])["seed"], 1)
            is_("What is a kiln?" in choice["prompt"]["text"], True)
            is_((len(choice["prompt"]["ids"]), len(choice["tokens"])), (choice["prompt"]["tokens"], choice["output"]))
            said = s.send("POST", "/detokenize", {"tokens": choice["tokens"]}).json["content"]
            is_(all(x["text"].strip() in said for x in choice["states"]), True)


def read_all(s, body):
    data = json.dumps(body).encode()
    with s.connect() as c:
        c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
        got = b""
        while piece := c.recv(65536):
            got += piece
    return got.partition(b"\r\n\r\n")[2]


def check_trace_is_rotated(folder):
    path = folder + "/trace"
    with open(path, "w") as f:
        f.write("0\n" * 520000)
    with start("--trace", path, "--trace-size", "1") as s:
        body = ask("word " * 300, max_tokens=1, **{f"unknown_{'x' * 30}_{i}": i for i in range(400)})
        for _ in range(5):
            is_(s.send("POST", CHAT, body).status, 200)
        wait_until(lambda: os.path.exists(path + ".1") and len(read_trace(path)) + len(read_trace(path + ".1")) == 520005)
        is_(os.path.getsize(path + ".1") <= 1 << 20, True)
        os.remove(path + ".1")
        os.mkdir(path + ".1")
        open(path + ".1/in_the_way", "w").close()
        while not any("ends here" in line for line in s.lines):
            is_(s.send("POST", CHAT, dict(body, messages=body["messages"])).status, 200)
        is_(s.send("POST", CHAT, body).status, 200)
    try:
        with start("--trace", folder + "/none/trace"):
            raise AssertionError("it starts")
    except RuntimeError as e:
        is_("none/trace: No such file" in str(e), True)


ALL = [in_a_folder(f) for name, f in list(globals().items()) if name.startswith("check_") and f.__code__.co_varnames[:1] != ("family",)]
sys.exit(Checks("test_watching").run(ALL, sys.argv[3:]))
