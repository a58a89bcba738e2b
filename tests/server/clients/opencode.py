"""opencode: a short task against the shipped model, and a scripted turn with tools."""

import json
import os

from harness import (
    CLIENTS, Client, Nano, OVERFLOW, Recorder, Scripted, UNENDING, checks, documented, is_, json_lines, long_prompts,
    run_checks, scripted_turn, turn_as_seen,
)

PROGRAM = os.path.join(CLIENTS, "opencode-linux-x64/bin/opencode")
CHAT, RESPONSES, MESSAGES = "opencode.json", "opencode_responses.json", "opencode_messages.json"


def configure(c, port, name, limit=None):
    config = json.loads(documented(name, port))
    if limit:
        config["provider"]["lathe"]["models"]["qwen3.8-27b"]["limit"] = limit
    c.write("work/opencode.json", config)


def client():
    off = ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE"]
    c = Client(**{f"OPENCODE_DISABLE_{name}": "1" for name in off})
    c.write("work/a.txt", "apple\n")
    c.write("work/b.txt", "pear\n")
    return c


def reads(c):
    return "read", "filePath", f"{c.work}/a.txt", f"{c.work}/b.txt"


def command(prompt):
    return PROGRAM, "run", "--format", "json", prompt


def run(c, prompt):
    code, out, err = c.run(*command(prompt))
    events = json_lines(out)
    bad = [e for e in events if e["type"] == "error"]
    if code or bad:
        raise AssertionError(f"exit code {code}, {bad}, {err[-2000:]}")
    return events


def check_a_short_task():
    long_prompts()
    with client() as c, Nano() as s, Recorder(s, 4) as r:
        configure(c, r.port, CHAT, {"context": 32768, "output": 64})
        events = run(c, "What is a kiln?")
        is_([q.status for q in r.turns()], [200] * len(r.turns()))
        is_(events[-1]["type"], "step_finish")


def turn(name):
    """The third request's messages or items, which carry the first answer and its calls' results."""
    with client() as c, Scripted(scripted_turn(*reads(c))) as s, Recorder(s, 3) as r:
        configure(c, r.port, name)
        events = run(c, "Read a.txt and b.txt")
        is_([e["part"]["text"] for e in events if e["type"] == "text"], ["I read both.", "They say apple and pear."])
        is_([q.status for q in r.turns()], [200] * 3)
        is_(len(r.with_tools()), 2)
        is_(s.history(), turn_as_seen(*reads(c), results_of_read(c)))
        body = r.with_tools()[1].json
        return body.get("messages") or body["input"]


def check_a_turn_in_chat():
    said, *results = turn(CHAT)[-3:]
    is_(said["reasoning_content"], "The user wants two files.")
    is_([call["id"][-1] for call in said["tool_calls"]], ["1", "2"])
    is_([m["role"] for m in results], ["tool", "tool"])


def check_a_turn_in_responses():
    items = [i for i in turn(RESPONSES) if i.get("role") not in ("system", "developer", "user")]
    is_([i.get("type", "message") for i in items],
        ["reasoning", "message", "function_call", "function_call", "function_call_output", "function_call_output"])
    is_([p["text"] for p in items[0]["summary"]], ["The user wants two files."])
    is_(items[0]["encrypted_content"].startswith("l1."), True)


def check_a_turn_in_messages():
    said, results = turn(MESSAGES)[-2:]
    is_([b["type"] for b in said["content"]], ["thinking", "text", "tool_use", "tool_use"])
    is_((said["content"][0]["thinking"], said["content"][0]["signature"] != ""), ("The user wants two files.", True))
    is_([(b["type"], b["tool_use_id"][-1]) for b in results["content"]], [("tool_result", "1"), ("tool_result", "2")])


def check_a_prompt_that_is_too_long():
    """It makes a summary and goes on with that."""
    for name in CHAT, RESPONSES, MESSAGES:
        with client() as c, Scripted(OVERFLOW) as s, Recorder(s, 4) as r:
            configure(c, r.port, name)
            _, out, _ = c.run(*command("Read a.txt"))
            events = json_lines(out)
            is_([e["error"]["name"] for e in events if e["type"] == "error"], ["ContextOverflowError"])
            is_([e["part"]["text"] for e in events if e["type"] == "text"][-1], "It is done.")
            is_([(q.status, "tools" in q.json) for q in r.turns()], [(200, False), (400, True), (200, False), (200, True)])


def check_going_away():
    for name in CHAT, RESPONSES, MESSAGES:
        with client() as c, Scripted(UNENDING) as s:
            configure(c, s.port, name)
            c.leave(s, *command("Read a.txt"))


def results_of_read(c):
    return [
        f"<path>{c.work}/{name}</path>\n<type>file</type>\n<content>\n1: {text}\n\n"
        "(End of file - total 1 lines)\n</content>"
        for name, text in (("a.txt", "apple"), ("b.txt", "pear"))
    ]


if __name__ == "__main__":
    raise SystemExit(run_checks("opencode", checks(globals())))
