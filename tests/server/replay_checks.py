"""Answers of the shipped model, sent back as clients do: the next prompt begins with what was sampled."""

import json
import sys

from serving import Checks, Server, is_

PROGRAM, MODEL = sys.argv[1], sys.argv[2]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"name": "get_weather", "description": "Current weather of a city"}
QUESTIONS = [("What is a kiln?", False), ("Name a city.", False), ("What is the weather in Oslo for 3 days?", True)]
SEEDS = 2


def post(s, path, body):
    a = s.send("POST", path, body)
    if a.status != 200:
        raise AssertionError(a.body.decode())
    return a.json


def is_whole(text):
    """What comes back as it was said: white space at an end, broken characters and calls without tools do not."""
    return text == text.strip() and "\ufffd" not in text and "<tool_call>" not in text


class Chat:
    path = CHAT

    @staticmethod
    def ask(s, question, has_tool, seed, **more):
        body = {"messages": [{"role": "user", "content": question}], "preserve_thinking": True, "enable_thinking": True}
        if has_tool:
            body["tools"] = [{"type": "function", "function": dict(WEATHER, parameters=PARAMETERS)}]
        body.update(seed=seed, temperature=0 if has_tool else 1.2, max_tokens=60, **more)
        a = post(s, CHAT, body)
        choice, u = a["choices"][0], a["usage"]
        m = choice["message"]
        whole = choice["finish_reason"] != "length" and is_whole(m["content"] or "") and is_whole(m.get("reasoning_content", ""))
        return body, m, (u["prompt_tokens"] + u["completion_tokens"], whole, bool(m.get("tool_calls")))

    @staticmethod
    def next(body, turn):
        more = [{"role": "tool", "tool_call_id": c["id"], "content": "sunny"} for c in turn.get("tool_calls", [])]
        more = more or [{"role": "user", "content": "Why?"}]
        return dict(body, messages=body["messages"] + [turn] + more, max_tokens=1)

    @staticmethod
    def cached(a):
        return a["usage"]["prompt_tokens_details"]["cached_tokens"]


def reserialised(m):
    """As JavaScript does: no blanks."""
    calls = m.get("tool_calls") or []
    for c in calls:
        c["function"]["arguments"] = json.dumps(json.loads(c["function"]["arguments"]), separators=(",", ":"))
    return m


def opencode_chat(m):
    return dict(reserialised(m), reasoning_content=m.get("reasoning_content", ""))


def qwen_code(m):
    reasoning = m.get("reasoning_content", "")
    return dict(reserialised(m), reasoning_content=reasoning, reasoning=reasoning)


def run_tools(m):
    return {k: v for k, v in m.items() if k != "reasoning_content"}


def reversed_keys(m):
    for c in m.get("tool_calls") or []:
        c["function"]["arguments"] = json.dumps(dict(reversed(json.loads(c["function"]["arguments"]).items())))
    return m


class Messages:
    path = MESSAGES

    @staticmethod
    def ask(s, question, has_tool, seed, **more):
        body = {"messages": [{"role": "user", "content": question}], "preserve_thinking": True, "thinking": {"type": "enabled"}}
        if has_tool:
            body["tools"] = [dict(WEATHER, input_schema=PARAMETERS)]
        body.update(seed=seed, temperature=0 if has_tool else 1.2, max_tokens=60)
        body.update(more)
        a = post(s, MESSAGES, body)
        u = a["usage"]
        texts = [b.get("text", b.get("thinking", "")) for b in a["content"]]
        whole = a["stop_reason"] != "max_tokens" and all(map(is_whole, texts))
        total = u["input_tokens"] + u["cache_read_input_tokens"] + u["output_tokens"]
        return body, a["content"], (total, whole, any(b["type"] == "tool_use" for b in a["content"]))

    @staticmethod
    def next(body, turn):
        results = [{"type": "tool_result", "tool_use_id": b["id"], "content": "sunny"} for b in turn if b["type"] == "tool_use"]
        messages = [{"role": "assistant", "content": turn}, {"role": "user", "content": results or "Why?"}]
        return dict(body, messages=body["messages"] + messages, max_tokens=1)

    @staticmethod
    def cached(a):
        return a["usage"]["cache_read_input_tokens"]


def unchanged(turn):
    return turn


def opencode_messages(turn):
    """A thinking block without a signature would be dropped."""
    return [b for b in turn if b["type"] != "thinking" or b["signature"]]


class Responses:
    path = RESPONSES

    @staticmethod
    def ask(s, question, has_tool, seed, **more):
        body = {"input": [{"role": "user", "content": question}], "preserve_thinking": True, "enable_thinking": True}
        if has_tool:
            body["tools"] = [dict(WEATHER, type="function", parameters=PARAMETERS)]
        body.update(seed=seed, temperature=0 if has_tool else 1.2, max_output_tokens=60, store=False)
        body.update(include=["reasoning.encrypted_content"], reasoning={"summary": "auto"}, **more)
        a = post(s, RESPONSES, body)
        u = a["usage"]
        texts = [p["text"] for i in a["output"] for p in i.get("summary", []) + i.get("content", [])]
        whole = a["status"] == "completed" and all(map(is_whole, texts))
        return body, a["output"], (u["input_tokens"] + u["output_tokens"], whole, any(i["type"] == "function_call" for i in a["output"]))

    @staticmethod
    def next(body, turn):
        results = [{"type": "function_call_output", "call_id": i["call_id"], "output": "sunny"} for i in turn if i["type"] == "function_call"]
        return dict(body, input=body["input"] + turn + (results or [{"role": "user", "content": "Why?"}]), max_output_tokens=1)

    @staticmethod
    def cached(a):
        return a["usage"]["input_tokens_details"]["cached_tokens"]


def opencode_responses(turn):
    """No ids of items, and of reasoning what is carried and the summary."""
    out = []
    for i in turn:
        if i["type"] == "reasoning":
            out.append({k: i[k] for k in ("type", "summary", "encrypted_content")})
        else:
            out.append({k: v for k, v in i.items() if k not in ("id", "status")})
    return out


def encrypted_alone(turn):
    return [dict(i, summary=[]) if i["type"] == "reasoning" else i for i in turn]


ROWS = [
    (Chat, opencode_chat, True),
    (Chat, qwen_code, True),
    (Chat, run_tools, False),  # reasoning is put back where there are calls
    (Chat, reversed_keys, True),
    (Messages, opencode_messages, True),
    (Messages, unchanged, True),
    (Responses, opencode_responses, True),
    (Responses, unchanged, True),
    (Responses, encrypted_alone, True),
]


def check_next_turns(s):
    """cached_tokens of turn 2 are all of turn 1 but its last token, which a model need not have read."""
    for dialect, client, restores_all in ROWS:
        n_calls = n_answers = 0
        for question, has_tool in QUESTIONS:
            if not has_tool and not restores_all:
                continue
            for seed in range(1 if has_tool else SEEDS):
                body, turn, (total, whole, has_call) = dialect.ask(s, question, has_tool, seed)
                if not whole:
                    continue
                a = post(s, dialect.path, dialect.next(body, client(json.loads(json.dumps(turn)))))
                if dialect.cached(a) < total - 1:
                    raise AssertionError(f"{dialect.__name__} {client.__name__}: {dialect.cached(a)} of {total} for {turn}")
                n_calls += has_call
                n_answers += not has_call
        is_((client.__name__, n_calls > 0, n_answers > 0 or not restores_all), (client.__name__, True, True))


def check_ids(s):
    """The ids themselves, of chat, and of what a client would be told beforehand."""
    n = 0
    for question, has_tool in QUESTIONS:
        for seed in range(1 if has_tool else SEEDS):
            body, m, (_, whole, _) = Chat.ask(s, question, has_tool, seed)
            if not whole:
                continue
            a = post(s, CHAT, dict(body, return_token_ids=True))
            is_(a["choices"][0]["message"]["content"], m["content"])
            sampled = a["prompt_token_ids"] + a["choices"][0]["token_ids"]
            following = Chat.next(body, a["choices"][0]["message"])
            asked = {k: following[k] for k in ("messages", "tools", "preserve_thinking", "enable_thinking") if k in following}
            told = post(s, "/tokenize", asked)["tokens"]
            used = post(s, CHAT, dict(following, return_token_ids=True))["prompt_token_ids"]
            is_(used, told)
            is_(used[: len(sampled)], sampled)
            n += 1
    is_(n > 1, True)


def check_hidden_thinking(s):
    """Messages that do not ask for thinking get no block, and their reasoning is in the next prompt all the same."""
    n = 0
    for question, has_tool in QUESTIONS:
        for seed in range(1 if has_tool else SEEDS):
            body, turn, (total, whole, _) = Messages.ask(s, question, has_tool, seed)
            del body["thinking"]
            first = post(s, MESSAGES, body)
            is_("thinking" in [b["type"] for b in first["content"]], False)
            if not whole or first["usage"]["output_tokens_details"]["thinking_tokens"] < 4:
                continue
            a = post(s, MESSAGES, Messages.next(body, first["content"]))
            if Messages.cached(a) < total - 1:
                raise AssertionError(f"{Messages.cached(a)} of {total} for {turn}")
            n += 1
    is_(n > 0, True)


def tokens(s, dialect, body):
    return post(s, "/tokenize", dict(body, dialect=dialect))["tokens"]


def check_carriers_past_a_restart(s):
    """A server that has never seen the conversation has the reasoning, and its tokens, from the carrier."""
    n = 0
    with Server(PROGRAM, MODEL) as other:
        for seed in range(4 * SEEDS):
            body, turn, (_, whole, _) = Messages.ask(s, "Name a city.", False, seed, thinking={"type": "enabled", "display": "omitted"})
            if not whole or turn[0]["type"] != "thinking" or len(turn) != 2:
                continue
            is_(turn[0]["thinking"], "")
            history = Messages.next(body, turn)
            del history["max_tokens"], history["seed"], history["temperature"]
            known, carried = tokens(s, "messages", history), tokens(other, "messages", history)
            same = next((i for i, (x, y) in enumerate(zip(known, carried)) if x != y), len(known))
            is_("</think>" in post(s, "/detokenize", {"tokens": known[:same]})["content"], True)
            n += 1
    is_(n > 1, True)


ALL = [f for name, f in list(globals().items()) if name.startswith("check_")]
with Server(PROGRAM, MODEL) as server:
    sys.exit(Checks("test_replay_http").run(ALL, sys.argv[3:], server))
