"""Responses of the shipped model: an answer that comes back, in the ways that clients have, is prompted with the tokens it
was sampled as, so that all of it is still in the cache."""

import sys

from serving import Checks, Server, is_

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
RESPONSES = "/v1/responses"
QUESTION = {"role": "user", "content": "What time is it in Oslo?"}
TIME = {
    "type": "function", "name": "get_time", "description": "The time in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CARRIED = {"store": False, "include": ["reasoning.encrypted_content"]}


def post(s, body):
    a = s.send("POST", RESPONSES, dict({"temperature": 0, "tools": [TIME]}, **body))
    if a.status != 200:
        raise AssertionError(a.body.decode())
    return a.json


def used(a):
    return a["usage"]["input_tokens"] + a["usage"]["output_tokens"]


def result(a):
    return {"type": "function_call_output", "call_id": a["output"][-1]["call_id"], "output": "12:30"}


def is_cached(first, second):
    """All that the first request had and made, but for a token."""
    got, want = second["usage"]["input_tokens_details"]["cached_tokens"], used(first) - 1
    if got < want:
        raise AssertionError(f"{got} tokens are cached, expected {want}")
    is_([item["type"] for item in second["output"]][-1], "message")
    is_(second["output"][-1]["content"][0]["text"], "It is 12:30 in Oslo.")


def begin(s, **body):
    is_(s.send("POST", "/reset_prefix_cache", {}).status, 200)
    a = post(s, dict(body, input=[QUESTION]))
    is_([item["type"] for item in a["output"]], ["reasoning", "function_call"])
    return a


def check_the_items_as_they_were(s):
    """Codex."""
    for summary in None, "auto":
        a = begin(s, reasoning={"summary": summary}, **CARRIED)
        is_cached(a, post(s, dict(CARRIED, reasoning={"summary": summary}, input=[QUESTION, *a["output"], result(a)])))


def check_carried_reasoning_alone(s):
    """opencode: no ids; and with nothing that is shown."""
    a = begin(s, reasoning={"summary": "auto"}, **CARRIED)
    thought, call = a["output"]
    for summary in thought["summary"], []:
        stripped = {"type": "reasoning", "summary": summary, "encrypted_content": thought["encrypted_content"]}
        is_cached(a, post(s, dict(CARRIED, input=[QUESTION, stripped, call, result(a)])))
        a = begin(s, reasoning={"summary": "auto"}, **CARRIED)
        thought, call = a["output"]


def check_carriers_outlive_the_server(s):
    a = begin(s, **CARRIED)
    thought, call = a["output"]
    text = thought["content"][0]["text"]
    body = {"dialect": "responses", "tools": [TIME], "input": [QUESTION, {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}, call]}
    with Server(PROGRAM, MODEL) as other:
        is_(f"<think>\n{text}\n</think>" in other.send("POST", "/apply-template", body).json["prompt"], True)
        body["input"][1]["encrypted_content"] = None
        is_(text in other.send("POST", "/apply-template", body).json["prompt"], False)


def check_the_id_of_the_response(s):
    a = begin(s)
    is_cached(a, post(s, {"previous_response_id": a["id"], "input": [result(a)]}))


def check_reasoning_left_out(s):
    """It is put back where its call was made here."""
    a = begin(s, store=False)
    is_cached(a, post(s, {"store": False, "input": [QUESTION, a["output"][1], result(a)]}))


def check_arguments_spelled_anew(s):
    a = begin(s, **CARRIED)
    thought, call = a["output"]
    call = dict(call, arguments='{ "city":"Oslo" }')
    is_cached(a, post(s, dict(CARRIED, input=[QUESTION, thought, call, result(a)])))


def check_damaged_carriers(s):
    """The visible text counts; without one there is no reasoning."""
    a = begin(s, **CARRIED)
    thought, call = a["output"]
    plain = dict(thought, encrypted_content=None)
    want = s.send("POST", "/apply-template", {"dialect": "responses", "input": [QUESTION, plain], "tools": [TIME]}).json
    for damaged in "l1.", "l1.AAAA.AAAA", thought["encrypted_content"][:-1] + "!", "gAAAA":
        item = dict(thought, encrypted_content=damaged)
        body = {"dialect": "responses", "input": [QUESTION, item], "tools": [TIME]}
        is_(s.send("POST", "/apply-template", body).json, want)


def check_calls_that_were_cut_off(s):
    """The next request shows what there was of one."""
    for most in range(8, 60):
        a = begin_any(s, most)
        last = a["output"][-1]
        if last["type"] == "function_call" and last["status"] == "incomplete" and "Oslo" in last["arguments"]:
            break
    is_(a["status"], "incomplete")
    body = {"store": False, "input": [QUESTION, *a["output"], {"role": "user", "content": "Go on."}]}
    text = s.send("POST", "/apply-template", dict(body, dialect="responses", tools=[TIME])).json["prompt"]
    is_("<function=get_time>\n<parameter=city>\nOslo" in text, True)
    post(s, body)


def begin_any(s, most):
    return post(s, {"store": False, "max_output_tokens": most, "input": [QUESTION]})


def main():
    with Server(PROGRAM, MODEL) as s:
        checks = [f for name, f in globals().items() if name.startswith("check_")]
        return Checks("test_responses_http").run(checks, sys.argv[3:], s)


if __name__ == "__main__":
    raise SystemExit(main())
