"""Continue's command line: a short task against the shipped model, and a scripted turn with tools. It has the configuration
and the adapters of Continue's editor extensions."""

import os
import sys

from harness import (
    CLIENTS, Client, NODE_22, Nano, OVERFLOW, Recorder, Scripted, UNENDING, checks, documented, is_, long_prompts,
    run_checks, scripted_turn, turn_as_seen,
)

PROGRAM = os.path.join(CLIENTS, "@continuedev/cli/dist/cn.js")
READS = "Read", "filepath", "a.txt", "b.txt"


def client(port, context=131072, output=32000):
    c = Client(CONTINUE_TELEMETRY_ENABLED="0", DO_NOT_TRACK="1")
    c.write("work/a.txt", "apple\n")
    c.write("work/b.txt", "pear\n")
    config = documented("continue.yaml", port)
    config = config.replace("contextLength: 131072", f"contextLength: {context}")
    c.write("work/config.yaml", config.replace("maxTokens: 32000", f"maxTokens: {output}"))
    return c


def command(prompt):
    return NODE_22, PROGRAM, "-p", prompt, "--config", "config.yaml", "--auto"


def run(c, prompt):
    code, out, err = c.run(*command(prompt))
    if code:
        raise AssertionError(f"exit code {code}, {out[-1000:]} {err[-2000:]}")
    return out


def check_a_short_task():
    long_prompts()
    with Nano() as s, Recorder(s, 6) as r, client(r.port, context=32768, output=128) as c:
        run(c, "What is a kiln?")
        is_([q.status for q in r.turns()], [200] * len(r.turns()))


def check_a_turn_with_tools():
    with Scripted(scripted_turn(*READS)) as s, Recorder(s, 2) as r, client(r.port) as c:
        is_(run(c, "Read a.txt and b.txt").strip(), "They say apple and pear.")
        is_([q.status for q in r.turns()], [200, 200])
        said, *results = r.turns()[1].json["messages"][-3:]
        # It leaves the reasoning out, which the server has still.
        is_(("reasoning_content" in said, [call["id"][-1] for call in said["tool_calls"]]), (False, ["1", "2"]))
        is_([m["role"] for m in results], ["tool", "tool"])
        whole = turn_as_seen(*READS, [f"Content of {n}.txt:\n{t}" for n, t in (("a", "apple"), ("b", "pear"))])
        is_(s.history(), whole)


def check_a_prompt_that_is_too_long():
    with Scripted(OVERFLOW) as s, Recorder(s, 1) as r, client(r.port) as c:
        code, _, err = c.run(*command("Read a.txt"))
        is_((code, "Context length exceeded" in err, [q.status for q in r.turns()]), (1, True, [400]))


def check_going_away():
    with Scripted(UNENDING) as s, client(s.port) as c:
        c.leave(s, *command("Read a.txt"))


if __name__ == "__main__":
    sys.exit(run_checks("continue_cli", checks(globals())))
