"""The npm package @anthropic-ai/sdk: plain, streamed, thinking and errors against the shipped model, tools and the tool
runner against a script."""

import json
import os
import sys

from harness import (
    NODE_22, Client, Nano, ROOT, Recorder, Scripted, TURN, checks, is_, models_of_documented_sdk, run_checks, scripted_turn,
    turn_as_seen,
)

PROGRAM = os.path.join(ROOT, "tests/server/clients/anthropic_client.mjs")
KILN = "A kiln is a furnace for firing or burning or drying such things as porcelain or bricks."
READS = "read", "path", "a.txt", "b.txt"


def run(s, check):
    with Client() as c:
        c.work = ROOT
        code, out, err = c.run(NODE_22, PROGRAM, f"http://127.0.0.1:{s.port}", check)
        if code:
            raise AssertionError(err[-2000:])
        return json.loads(out)


def types(message):
    return [block["type"] for block in message["content"]]


def check_what_the_document_says():
    with Scripted(TURN) as s:
        environment = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{s.port}", "ANTHROPIC_API_KEY": "none"}
        packages = os.path.join(ROOT, "build/clients")
        is_(models_of_documented_sdk("Anthropic's SDKs", packages, s.port, environment), ["nano\n"] * 2)


def check_the_shipped_model():
    with Nano() as s:
        is_(run(s, "models"), ["nano"])
        plain = run(s, "plain")
        is_((types(plain), plain["content"][0]["text"], plain["stop_reason"]), (["text"], KILN, "end_turn"))
        is_(plain["usage"]["input_tokens"] > 0, True)
        events = run(s, "streamed")
        is_("".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta"), KILN)
        is_((events[0]["type"], events[-1]["type"]), ("message_start", "message_stop"))
        helper = run(s, "helper")
        is_(types(helper["message"]), ["thinking", "text"])
        is_("".join(helper["deltas"]), helper["message"]["content"][1]["text"])
        thinking = run(s, "thinking")
        is_(types(thinking), ["thinking", "text"])
        is_(thinking["content"][0]["thinking"] != "", True)
        # The same request by another count: thinking is on by default.
        counted = run(s, "count")["input_tokens"]
        usage = helper["message"]["usage"]
        is_(usage["input_tokens"] + usage["cache_read_input_tokens"], counted)
        with_tool = run(s, "shipped model with a tool")
        is_(with_tool["asked"], ["Oslo"] * 2)
        is_([m["content"][-1]["text"] for m in with_tool["last"]], ["It is 12:30 in Oslo."] * 2)
        error = run(s, "error")
        is_((error["name"], error["status"], error["type"]), ("BadRequestError", 400, "invalid_request_error"))
        is_(error["id"].startswith("req_"), True)
        long = run(s, "too long")
        is_((long["status"], long["message"][:18], long["message"][-15:]), (400, "prompt is too long", "> 32768 maximum"))
        is_(run(s, "abort")["stop_reason"], "max_tokens")


def check_turns_with_tools():
    with Scripted(scripted_turn(*READS)) as s, Recorder(s, 2) as r:
        turns = run(r, "turns")
        is_((types(turns["first"]), turns["first"]["stop_reason"]), (["thinking", "text", "tool_use", "tool_use"], "tool_use"))
        is_([b["input"] for b in turns["first"]["content"][2:]], [{"path": "a.txt"}, {"path": "b.txt"}])
        is_(turns["second"]["content"][-1]["text"], "They say apple and pear.")
        is_(s.history(), turn_as_seen(*READS, ["apple", "pear"]))


def check_tool_runner():
    """It asks for a thread first, and sends full histories once that is refused."""
    for name in "runner", "streamed runner":
        with Scripted(scripted_turn(*READS)) as s, Recorder(s, 3) as r:
            done = run(r, name)
            is_(done["last"]["content"][-1]["text"], "They say apple and pear.")
            is_(sorted(done["seen"]), ["a.txt", "b.txt"])
            is_([q.status for q in r.turns()], [400, 200, 200])
            is_((r.turns()[0].json["thread"], "thread" in r.turns()[1].json), ({"type": "create"}, False))
            said, results = r.turns()[2].json["messages"][1:]
            is_([b["type"] for b in said["content"]], ["thinking", "text", "tool_use", "tool_use"])
            is_(said["content"][0]["thinking"], "The user wants two files.")
            is_([b["tool_use_id"][-1] for b in results["content"]], ["1", "2"])
            is_(s.history(), turn_as_seen(*READS, ["apple", "pear"]))


if __name__ == "__main__":
    sys.exit(run_checks("anthropic_sdk", checks(globals())))
