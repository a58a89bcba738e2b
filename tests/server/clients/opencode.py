"""opencode: a short task against the shipped model, and a scripted turn with tools."""

import os

from harness import CLIENTS, Client, Nano, Recorder, Scripted, checks, is_, json_lines, run_checks

PROGRAM = os.path.join(CLIENTS, "opencode-linux-x64/bin/opencode")

# Thinking, two calls and, in the next request, an answer. `plain`: the title.
SCRIPTS = """\
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
call call_AAAAAAAAAAAAAAAAAAAAAAA1 read
args {"filePath": "WORK/
step
args a.txt"}
end
call call_AAAAAAAAAAAAAAAAAAAAAAA2 read
args {"filePath": "WORK/b.txt"}
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


def configure(c, port, npm, context=131072, output=32000):
    model = {
        "name": "nano", "reasoning": True, "tool_call": True, "limit": {"context": context, "output": output},
        "interleaved": {"field": "reasoning_content"},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "provider": {
            "local": {
                "npm": npm, "name": "local", "models": {"nano": model},
                "options": {"baseURL": f"http://127.0.0.1:{port}/v1", "apiKey": "none"},
            }
        },
        "model": "local/nano",
        "small_model": "local/nano",
    }
    c.write("work/opencode.json", config)


def client():
    off = ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE"]
    c = Client(**{f"OPENCODE_DISABLE_{name}": "1" for name in off})
    c.write("work/a.txt", "apple\n")
    c.write("work/b.txt", "pear\n")
    return c


def run(c, prompt):
    code, out, err = c.run(PROGRAM, "run", "--format", "json", prompt)
    events = json_lines(out)
    bad = [e for e in events if e["type"] == "error"]
    if code or bad:
        raise AssertionError(f"exit code {code}, {bad}, {err[-2000:]}")
    return events


def check_a_short_task():
    with client() as c, Nano() as s, Recorder(s, 4) as r:
        configure(c, r.port, "@ai-sdk/openai-compatible", context=32768, output=64)
        events = run(c, "What is a kiln?")
        is_([q.status for q in r.turns()], [200] * len(r.turns()))
        is_(events[-1]["type"], "step_finish")


def check_a_turn_with_tools():
    with client() as c, Scripted(SCRIPTS.replace("WORK", c.work)) as s, Recorder(s, 3) as r:
        configure(c, r.port, "@ai-sdk/openai-compatible")
        events = run(c, "Read a.txt and b.txt")
        is_([e["part"]["text"] for e in events if e["type"] == "text"], ["I read both.", "They say apple and pear."])
        is_([q.status for q in r.turns()], [200] * 3)
        is_(len(r.with_tools()), 2)
        said, *results = r.with_tools()[1].json["messages"][-3:]
        is_(said["reasoning_content"], "The user wants two files.")
        is_([call["id"][-1] for call in said["tool_calls"]], ["1", "2"])
        is_([m["role"] for m in results], ["tool", "tool"])
        is_(s.prompts()[-1].split("<|im_start|>assistant\n", 1)[1], turn(c))


def file_as_read(c, name, text):
    return (
        f"<tool_response>\n<path>{c.work}/{name}</path>\n<type>file</type>\n<content>\n1: {text}\n\n"
        "(End of file - total 1 lines)\n</content>\n</tool_response>"
    )


def turn(c):
    """What the model sees of the first answer, and of what came of its calls."""
    calls = "\n".join(
        f"<tool_call>\n<function=read>\n<parameter=filePath>\n{c.work}/{name}\n</parameter>\n</function>\n</tool_call>"
        for name in ("a.txt", "b.txt")
    )
    results = file_as_read(c, "a.txt", "apple") + "\n" + file_as_read(c, "b.txt", "pear")
    return (
        "<think>\nThe user wants two files.\n</think>\n\nI read both.\n\n" + calls
        + "<|im_end|>\n<|im_start|>user\n" + results + "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


if __name__ == "__main__":
    raise SystemExit(run_checks("opencode", checks(globals())))
