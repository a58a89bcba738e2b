"""Codex: a short task against the shipped model, and a scripted turn with tools. The configuration is
docs/server.md's, the model's catalogue the one of docs/clients."""

import json
import os
import re

from harness import (
    CLIENTS, Client, Nano, Recorder, Scripted, UNENDING, checks, documented, is_, json_lines, long_prompts, printed, run_checks,
    scripted_turn, turn_as_seen,
)

PROGRAM = os.path.join(CLIENTS, "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex")

# Beside the document's configuration.
OPTIONS = (
    "check_for_update_on_startup=false", 'approval_policy="never"', "analytics.enabled=false",
    "model_providers.lathe.request_max_retries=1", "model_providers.lathe.stream_max_retries=1",
)


def client(port, sandbox="danger-full-access", **more):
    """more: members of the model's entry in the catalogue."""
    c = Client(LATHE_API_KEY="none")
    c.environment["CODEX_HOME"] = os.path.join(c.folder, "codex")
    catalogue = json.loads(documented("codex_models.json", port))
    catalogue["models"][0].update(more)
    c.write("codex/models.json", catalogue)
    config = printed("Codex", port)[0].replace("/path/to/lathe/docs/clients/codex_models.json", c.folder + "/codex/models.json")
    c.write("codex/config.toml", f'sandbox_mode = "{sandbox}"\n{config}')
    c.write("work/a.txt", "apple\n")
    c.write("work/b.txt", "pear\n")
    return c


def command(prompt):
    return PROGRAM, "exec", "--skip-git-repo-check", "--json", *(word for o in OPTIONS for word in ("-c", o)), prompt


def run(c, prompt, tolerated=()):
    code, out, err = c.run(*command(prompt))
    events = json_lines(out)
    bad = [e for e in events if e["type"] in ("error", "turn.failed") and e["type"] not in tolerated]
    if code or bad:
        raise AssertionError(f"exit code {code}, {bad}, {err[-2000:]}")
    return events


def items(events, kind):
    return [e["item"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == kind]


def check_a_short_task():
    long_prompts()
    # What the shipped model may want to run is not written down anywhere.
    with Nano() as s, Recorder(s, 4) as r, client(r.port, sandbox="read-only") as c:
        events = run(c, "What is a kiln?")
        is_([q.status for q in r.turns()], [200] * len(r.turns()))
        is_(events[-1]["type"], "turn.completed")


def without_volatile(text):
    return re.sub(r"(Chunk ID: |Wall time: |token count: )\S+", r"\1X", text)


def result(output):
    return f"Chunk ID: X\nWall time: X seconds\nProcess exited with code 0\nOriginal token count: X\nOutput:\n{output}"


def check_a_turn_with_tools():
    what = "exec_command", "cmd", "cat a.txt", "cat b.txt"
    with Scripted(scripted_turn(*what)) as s, Recorder(s, 2) as r, client(r.port) as c:
        events = run(c, "Read a.txt and b.txt")
        is_([i["text"] for i in items(events, "reasoning")], ["The user wants two files.", "Both are known."])
        is_([i["text"] for i in items(events, "agent_message")], ["I read both.", "They say apple and pear."])
        is_([(q.path, q.status) for q in r.turns()], [("/v1/responses", 200)] * 2)
        thought, said, *calls = r.turns()[1].json["input"][-6:]
        is_(thought["summary"], [{"type": "summary_text", "text": "The user wants two files."}])
        is_(said["content"][0]["text"], "I read both.")
        is_([(i["type"], i["call_id"][-1]) for i in calls],
            [("function_call", "1"), ("function_call", "2"), ("function_call_output", "1"), ("function_call_output", "2")])
        is_(without_volatile(s.history()), turn_as_seen(*what, [result("apple"), result("pear")]))


PATCH = r"""== tools
accepted 3000 0
reasoning_end
call call_AAAAAAAAAAAAAAAAAAAAAAA1 apply_patch
args {"input": "*** Begin Patch\\n*** Add File: c.txt\\n
step
args +plum \\"ripe\\"\\n*** End Patch"}
end
finish calls 3000 0 30 0
== tools
accepted 3100 3000
reasoning_end
text Done.
finish stop 3100 3000 2 0
"""


def check_a_custom_tool():
    """apply_patch: a text, and not JSON."""
    with Scripted(PATCH) as s, Recorder(s, 2) as r, client(r.port) as c:
        run(c, "Write c.txt")
        with open(os.path.join(c.work, "c.txt")) as f:
            is_(f.read(), 'plum "ripe"\n')
        call, output = r.turns()[1].json["input"][-2:]
        is_((call["type"], output["type"]), ("custom_tool_call", "custom_tool_call_output"))
        patch = '*** Begin Patch\n*** Add File: c.txt\n+plum "ripe"\n*** End Patch'
        is_(call["input"], patch)
        is_(s.history().startswith(
            f"<think>\n\n</think>\n\n<tool_call>\n<function=apply_patch>\n<parameter=input>\n{patch}\n</parameter>\n"
            "</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nExit code: 0\n"), True)


NAMESPACE = """== tools
accepted 3000 0
reasoning_end
call call_AAAAAAAAAAAAAAAAAAAAAAA1 multi_agent_v1__close_agent
args {"target": "nobody"}
end
finish calls 3000 0 30 0
== tools
accepted 3100 3000
reasoning_end
text Done.
finish stop 3100 3000 2 0
"""


def check_a_tool_of_a_namespace():
    """Its call comes back with the namespace and the bare name, so that the client finds the tool."""
    with Scripted(NAMESPACE) as s, Recorder(s, 2) as r, client(r.port) as c:
        run(c, "Close the agent")
        call, output = r.turns()[1].json["input"][-2:]
        is_((call["namespace"], call["name"]), ("multi_agent_v1", "close_agent"))
        is_("unsupported call" in output["output"], False)
        is_("<function=multi_agent_v1__close_agent>\n<parameter=target>\nnobody\n" in s.history(), True)


SEARCH = """== tools
accepted 3000 0
reasoning_end
call call_AAAAAAAAAAAAAAAAAAAAAAA1 tool_search
args {"query": "close agent", "limit": 
step
args 2}
end
finish calls 3000 0 30 0
"""


def check_a_search_for_tools():
    """What it finds stands in the result, and can be called."""
    with Scripted(SEARCH + NAMESPACE) as s, Recorder(s, 3) as r, client(r.port, supports_search_tool=True) as c:
        run(c, "Close the agent")
        call, found = r.turns()[1].json["input"][-2:]
        is_((call["type"], call["arguments"], found["type"]), ("tool_search_call", {"query": "close agent", "limit": 2}, "tool_search_output"))
        is_("multi_agent_v1" in [t.get("name") for t in r.turns()[1].json["tools"]], False)
        is_('{"type": "function", "function": {"name": "multi_agent_v1__close_agent"' in s.prompts()[1].split("<tool_response>")[1], True)
        call, output = r.turns()[2].json["input"][-2:]
        is_((call["namespace"], call["name"]), ("multi_agent_v1", "close_agent"))
        is_("unsupported call" in output["output"], False)


def check_an_error_in_the_stream():
    """It is tried again, and the second time works."""
    lost = "== tools\naccepted 3000 0\nreasoning_end\ntext Lost\nstep\nerror 12 the device is lost\n"
    with Scripted(lost + NAMESPACE.split("finish calls 3000 0 30 0\n")[1]) as s, Recorder(s, 2) as r, client(r.port) as c:
        events = run(c, "hi", ["error"])
        is_(items(events, "agent_message")[-1]["text"], "Done.")
        is_(len(r.turns()), 2)


def check_a_prompt_that_is_too_long():
    """It says so, and does not try again."""
    refused = "== tools\nrefuse 7 the prompt has 200000 tokens, the context holds 131072\n"
    with Scripted(refused) as s, Recorder(s, 1) as r, client(r.port) as c:
        code, out, _ = c.run(*command("hi"))
        is_(code != 0, True)
        is_([q.status for q in r.turns()], [400])
        is_(["ran out of room" in e["error"]["message"] for e in json_lines(out) if e["type"] == "turn.failed"], [True])


def check_going_away():
    with Scripted(UNENDING) as s, client(s.port) as c:
        c.leave(s, *command("hi"))


if __name__ == "__main__":
    raise SystemExit(run_checks("codex", checks(globals())))
