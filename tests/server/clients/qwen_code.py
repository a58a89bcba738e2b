"""Qwen Code: a short task against the shipped model, and a scripted turn with tools."""

import json
import os

from harness import (
    CLIENTS, Client, NODE_22, Nano, OVERFLOW, Recorder, Scripted, UNENDING, checks, documented, is_, json_lines,
    long_prompts, printed, run_checks, scripted_turn, turn_as_seen,
)

PROGRAM = os.path.join(CLIENTS, "@qwen-code/qwen-code/cli.js")


def client():
    c = Client(NO_UPDATE_NOTIFIER="1")
    c.write("work/a.txt", "apple\n")
    c.write("work/b.txt", "pear\n")
    return c


def configure(c, port, max_tokens=None):
    settings = json.loads(documented("qwen_settings.json", port))
    if max_tokens:
        settings["model"]["generationConfig"] = {"samplingParams": {"max_tokens": max_tokens, "temperature": 0}}
    c.write("home/.qwen/settings.json", settings)
    for block in printed("Qwen Code", port):
        exported = block.splitlines()[0].removeprefix("export ")
        c.environment.update(pair.split("=", 1) for pair in exported.split())


def reads(c):
    return "read_file", "file_path", f"{c.work}/a.txt", f"{c.work}/b.txt"


def command(kind, prompt, *options):
    """Without -y it would ask before it runs a tool."""
    return NODE_22, PROGRAM, "--auth-type", kind, "-y", "-o", "stream-json", *options, prompt


def run(c, kind, prompt, *options):
    code, out, err = c.run(*command(kind, prompt, *options))
    events = json_lines(out)
    if code or events[-1].get("is_error"):
        raise AssertionError(f"exit code {code}, {events[-1:]}, {err[-2000:]}")
    return events


def check_a_short_task():
    long_prompts()
    with client() as c, Nano() as s, Recorder(s, 6) as r:
        configure(c, r.port, max_tokens=128)
        events = run(c, "openai", "What is a kiln?", "--system-prompt", "You answer questions.")
        is_([q.status for q in r.turns()], [200] * len(r.turns()))
        is_((events[-1]["type"], events[-1]["subtype"]), ("result", "success"))


def turn(kind):
    """The second request's messages, which carry the first answer and its calls' results."""
    with client() as c, Scripted(scripted_turn(*reads(c))) as s, Recorder(s, 2) as r:
        configure(c, r.port)
        is_(run(c, kind, "Read a.txt and b.txt")[-1]["result"], "They say apple and pear.")
        is_([q.status for q in r.turns()], [200, 200])
        is_(s.history(), turn_as_seen(*reads(c), ["apple", "pear"]))
        return r.turns()[1].json["messages"]


def check_a_turn_in_chat():
    said, *results = turn("openai")[-3:]
    # Both names have the same text, which counts once.
    is_((said["reasoning_content"], said["reasoning"]), ("The user wants two files.",) * 2)
    is_([call["id"][-1] for call in said["tool_calls"]], ["1", "2"])
    is_([m["content"] for m in results], [[{"type": "text", "text": t}] for t in ("apple\n", "pear\n")])


def check_a_turn_in_messages():
    said, results = turn("anthropic")[-2:]
    is_([b["type"] for b in said["content"]], ["thinking", "text", "tool_use", "tool_use"])
    is_((said["content"][0]["thinking"], said["content"][0]["signature"] != ""), ("The user wants two files.", True))
    is_([(b["type"], b["content"]) for b in results["content"]], [("tool_result", "apple\n"), ("tool_result", "pear\n")])


def check_a_prompt_that_is_too_long():
    """It says so, and ends."""
    for kind, words in ("openai", "maximum context length is 131072 tokens"), ("anthropic", "prompt is too long"):
        with client() as c, Scripted(OVERFLOW) as s, Recorder(s, 1) as r:
            configure(c, r.port)
            _, out, _ = c.run(*command(kind, "Read a.txt"))
            is_((words in json_lines(out)[-1]["error"]["message"], [q.status for q in r.turns()]), (True, [400]))


def check_going_away():
    for kind in "openai", "anthropic":
        with client() as c, Scripted(UNENDING) as s:
            configure(c, s.port)
            c.leave(s, *command(kind, "Read a.txt"))


if __name__ == "__main__":
    raise SystemExit(run_checks("qwen_code", checks(globals())))
