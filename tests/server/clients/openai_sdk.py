"""The npm package openai: turns with tools against a script. What the shipped model can show is in openai_client.mjs."""

import json
import os
import sys

from harness import (
    NODE_22, Client, ROOT, Recorder, Scripted, TURN, checks, is_, models_of_documented_sdk, run_checks, scripted_turn,
    turn_as_seen,
)

PROGRAM = os.path.join(ROOT, "tests/server/clients/openai_tools.mjs")
READS = "read", "path", "a.txt", "b.txt"
FILES = [{"path": "a.txt"}, {"path": "b.txt"}]


def check_what_the_document_says():
    with Scripted(TURN) as s:
        environment = {"OPENAI_BASE_URL": f"http://127.0.0.1:{s.port}/v1", "OPENAI_API_KEY": "none"}
        is_(models_of_documented_sdk("OpenAI's SDKs", os.path.join(ROOT, "build/npm"), s.port, environment), ["nano\n"] * 2)


def program(check):
    """What it says it got, the second request, and what the model saw."""
    with Scripted(scripted_turn(*READS)) as s, Recorder(s, 2) as r, Client() as c:
        c.work = ROOT
        code, out, err = c.run(NODE_22, PROGRAM, f"http://127.0.0.1:{r.port}/v1", check)
        if code:
            raise AssertionError(err[-2000:])
        is_([q.status for q in r.turns()], [200, 200])
        return json.loads(out), r.turns()[1].json, s.history()


def run(check):
    """The assistant's message as it went back, and what the model saw."""
    done, second, seen = program(check)
    is_(done["last"]["content"], "They say apple and pear.")
    if "first" in done:
        is_(done["first"]["content"], "I read both.")
        is_([json.loads(call["function"]["arguments"]) for call in done["first"]["tool_calls"]], FILES)
    messages = second["messages"]
    is_([(m["role"], m["content"]) for m in messages[2:]], [("tool", "apple"), ("tool", "pear")])
    return messages[1], seen


WHOLE = turn_as_seen(*READS, ["apple", "pear"])


def check_turns():
    for name in "turns", "streamed turns":
        said, seen = run(name)
        is_(said["reasoning_content"], "The user wants two files.")
        is_(seen, WHOLE)


def check_tool_runner():
    """It drops the reasoning, which the server then has still."""
    for name in "runner", "streamed runner":
        said, seen = run(name)
        is_("reasoning_content" in said, False)
        is_(seen, WHOLE)


def check_turns_of_the_helper():
    """Of a field that it does not know it keeps the last piece only."""
    said, seen = run("turns of the helper")
    is_(said["reasoning_content"], " two files.")
    is_(seen.split("</think>", 1)[1], WHOLE.split("</think>", 1)[1])


def check_turns_of_responses():
    """Items that go back, and a response that is named."""
    for name in "responses", "streamed responses", "chained responses", "streamed chained responses":
        done, second, seen = program(name)
        first, last = done["first"]["output"], done["last"]["output"]
        is_([i["type"] for i in first], ["reasoning", "message", "function_call", "function_call"])
        is_(first[0]["content"][0]["text"], "The user wants two files.")
        is_(first[1]["content"][0]["text"], "I read both.")
        is_([json.loads(i["arguments"]) for i in first[2:]], FILES)
        is_([i["type"] for i in last], ["reasoning", "message"])
        is_((done["last"]["output_text"], last[1]["content"][0]["text"]), 2 * ("They say apple and pear.",))
        is_([i["output"] for i in second["input"][-2:]], ["apple", "pear"])
        is_((name, len(second["input"])), (name, 2 if "chained" in name else 7))
        is_((name, seen), (name, WHOLE))


if __name__ == "__main__":
    sys.exit(run_checks("openai_sdk", checks(globals())))
