"""Claude Code: a short task against the shipped model, and scripted turns with tools."""

import json
import os
import sys

from harness import (
    CLIENTS, Client, Nano, OVERFLOW, Recorder, Scripted, UNENDING, checks, documented, is_, json_lines, long_prompts,
    run_checks, scripted_turn, turn_as_seen, wait_until,
)

PROGRAM = os.path.join(CLIENTS, "@anthropic-ai/claude-code-linux-x64/claude")


def client():
    c = Client()
    c.environment["TMPDIR"] = c.folder
    c.write("work/a.txt", "apple\n")
    c.write("work/b.txt", "pear\n")
    return c


def configure(c, port, **environment):
    """environment: what is other than in docs/clients."""
    settings = json.loads(documented("claude_settings.json", port))
    settings["env"].update(environment)
    c.write("home/.claude/settings.json", settings)


def reads(c):
    return "Read", "file_path", f"{c.work}/a.txt", f"{c.work}/b.txt"


def command(prompt, *options):
    return PROGRAM, "-p", prompt, "--output-format", "stream-json", "--verbose", *options


def run(c, prompt, *options):
    code, out, err = c.run(*command(prompt, *options))
    events = json_lines(out)
    if code or events[-1]["is_error"]:
        raise AssertionError(f"exit code {code}, {events[-1:]}, {err[-2000:]}")
    return events


def statuses(r):
    return [(q.path, q.status) for q in r.requests]


def asked(n):
    return [("/v1/messages?beta=true", 200)] * n


def check_a_short_task():
    """One tool and a short system prompt, of which the shipped model comes to an end. An answer that is cut off at the limit
    is gone on with, three times."""
    long_prompts()
    with client() as c, Nano() as s, Recorder(s, 8) as r:
        configure(c, r.port, CLAUDE_CODE_MAX_CONTEXT_TOKENS="32768", CLAUDE_CODE_MAX_OUTPUT_TOKENS="512")
        code, out, _ = c.run(*command("What is a kiln?", "--tools", "Read", "--system-prompt", "You answer questions."))
        result = json_lines(out)[-1]
        if code:
            is_(result["api_error"], "max_output_tokens")
        is_(statuses(r), asked(len(r.requests)))


def check_a_turn_with_tools():
    with client() as c, Scripted(scripted_turn(*reads(c))) as s, Recorder(s, 2) as r:
        configure(c, r.port)
        events = run(c, "Read a.txt and b.txt")
        is_(events[-1]["result"], "They say apple and pear.")
        is_(list(events[-1]["modelUsage"]), ["qwen3.8-27b"])
        is_(events[-1]["modelUsage"]["qwen3.8-27b"]["contextWindow"], 131072)
        is_(statuses(r), asked(2))
        said, results = r.turns()[1].json["messages"][-2:]
        is_([b["type"] for b in said["content"]], ["thinking", "text", "tool_use", "tool_use"])
        is_((said["content"][0]["thinking"], said["content"][0]["signature"] != ""), ("The user wants two files.", True))
        # In the order in which the files were read.
        is_(sorted((b["type"], b["tool_use_id"][-1]) for b in results["content"]), [("tool_result", "1"), ("tool_result", "2")])
        is_(s.history(), turn_as_seen(*reads(c), ["1\tapple\n2", "1\tpear\n2"]))


def check_a_session_that_goes_on():
    """In another process: the thinking comes back with its signature."""
    more = "== tools\naccepted 3300 3200\nreasoning_end\ntext Yes.\nfinish stop 3300 3200 2 0\n"
    with client() as c, Scripted(scripted_turn(*reads(c)) + more) as s, Recorder(s, 3) as r:
        configure(c, r.port, CLAUDE_CODE_EXTRA_BODY='{"preserve_thinking": true}')
        run(c, "Read a.txt and b.txt")
        is_(run(c, "Sure?", "--continue")[-1]["result"], "Yes.")
        is_(statuses(r), asked(3))
        whole = turn_as_seen(*reads(c), ["1\tapple\n2", "1\tpear\n2"])
        is_(s.history().startswith(whole + "Both are known.\n</think>\n\nThey say apple and pear.<|im_end|>\n"), True)


def call(n, tool, **arguments):
    """The script of a request that is answered by a call."""
    return (
        f"== tools\naccepted 3000 0\nreasoning_end\ncall call_AAAAAAAAAAAAAAAAAAAAAAA{n} {tool}\n"
        f"args {json.dumps(arguments)}\nend\nfinish calls 3000 0 30 0\n"
    )


DONE = "== tools\naccepted 3100 3000\nreasoning_end\ntext Done.\nfinish stop 3100 3000 2 0\n"


def check_a_search_for_tools():
    """What it finds stands in the result, and not before; it can be called."""
    scripts = call(1, "ToolSearch", query="select:CronList") + call(2, "CronList") + DONE
    with client() as c, Scripted(scripts) as s, Recorder(s, 3) as r:
        configure(c, r.port)
        is_(run(c, "What is planned?")[-1]["result"], "Done.")
        is_(statuses(r), asked(3))
        is_(["CronList" in [t["name"] for t in q.json["tools"]] for q in r.turns()], [False, True, True])
        before, after = s.history().split("<tool_response>\n", 1)
        is_(after.startswith('{"type": "function", "function": {"name": "CronList", '), True)
        is_(after.endswith("<tool_response>\nNo scheduled jobs.\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"), True)
        heads = {text.split("<|im_end|>", 1)[0] for text in s.prompts()}
        is_((len(heads), '"name": "CronList"' in heads.pop()), (1, False))


def logged(s):
    return [json.loads(line) for line in s.lines if '"finish"' in line]


def check_an_agent_beside():
    """Its requests are of the background."""
    scripts = call(1, "Agent", description="look", prompt="Say hi", subagent_type="general-purpose") + DONE * 3
    with client() as c, Scripted(scripts) as s, Recorder(s, 4) as r:
        configure(c, r.port)
        is_(run(c, "Look around")[-1]["result"], "Done.")
        is_(statuses(r), asked(4))
        wait_until(lambda: len(logged(s)) == 4)
        is_(sorted(line.get("class", "") for line in logged(s)), ["", "", "", "background"])


SUMMARY = "== tools\naccepted 100 0\nreasoning_end\ntext <summary>Both were read.</summary>\nfinish stop 100 0 9 0\n"


def check_a_summary_in_time():
    """Where the context that it was told of is nearly full."""
    with client() as c:
        nearly = scripted_turn(*reads(c)).replace("3000", "125000", 2)
        with Scripted(nearly.replace("== tools\naccepted 3200", SUMMARY + "== tools\naccepted 3200")) as s, Recorder(s, 5) as r:
            configure(c, r.port)
            events = run(c, "Read a.txt and b.txt")
            is_("compact_boundary" in [e.get("subtype") for e in events], True)
            is_(events[-1]["result"], "They say apple and pear.")
            is_(statuses(r), asked(3))
            is_("Both were read." in s.prompts()[-1], True)


def check_a_prompt_that_is_too_long():
    """It says so, and ends."""
    with client() as c, Scripted(OVERFLOW) as s, Recorder(s, 1) as r:
        configure(c, r.port)
        code, out, _ = c.run(*command("Read a.txt"))
        is_((code, "200000 tokens (limit 131072)" in json_lines(out)[-1]["result"]), (1, True))
        is_([q.status for q in r.turns()], [400])


def check_going_away():
    with client() as c, Scripted(UNENDING) as s:
        configure(c, s.port)
        c.leave(s, *command("Read a.txt"))


if __name__ == "__main__":
    sys.exit(run_checks("claude_code", checks(globals())))
