"""Renders templates with jinja2 set up as transformers' apply_chat_template does, and writes what came
out for test_oracle_jinja.c, one JSON object a line:

    {"name": str, "source": str}                  the template of the lines that follow
    {"vars": {...}, "out": str}                   what it renders
    {"vars": {...}, "error": str}                 that it fails
    {"source_error": str}                         that it does not compile

usage: oracle_jinja.py WHAT N OUT [TEMPLATE ...]
    conversations  N conversations for every TEMPLATE
    files          every TEMPLATE once for each of the contexts below
    expressions    every line of every TEMPLATE (a text file) as {{ line }}
    random         N random expressions
    layout         N random arrangements of text, tags and white space
    programs       N random templates of statements
    unicode        every assigned character through the methods that depend on its class
Deterministic: the same arguments give the same file."""
import collections.abc
import copy
import functools
import json
import random
import re
import sys
import unicodedata
import warnings

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_call")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _call(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


class Skip(Exception):
    """An object's address would be printed."""


def soft_str(s):
    if isinstance(s, collections.abc.Iterator):
        raise Skip
    return s if isinstance(s, str) else str(s)


def environment(optimized):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, optimized=optimized,
        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def no_constant(*_):
    raise jinja2.nodes.Impossible()


# Folding of constants gives other results where a slice of a number is concerned.
FOLD = sys.argv[1] not in ("random", "expressions")
if not FOLD:
    jinja2.compiler.CodeGenerator._output_child_to_const = no_constant
ENV = environment(FOLD)
jinja2.filters.soft_str = soft_str


def checked(f):
    """A filter that would print a generator's address skips the case instead."""
    @functools.wraps(f)
    def g(*args, **kwargs):
        for a in args:
            soft_str(a) if isinstance(a, collections.abc.Iterator) else None
        return f(*args, **kwargs)
    return g


for name in ["string", "replace", "safe", "e", "escape", "forceescape"]:
    ENV.filters[name] = checked(ENV.filters[name])
jinja2.runtime.str_join = lambda seq: "".join(soft_str(x) for x in seq)


class Writer:
    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8", newline="\n")

    def line(self, value):
        text = json.dumps(value, ensure_ascii=False)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            return
        self.file.write(text + "\n")

    def template(self, name, source):
        self.line({"name": name, "source": source})
        try:
            return ENV.from_string(source)
        except Exception as e:
            self.line({"source_error": f"{type(e).__name__}: {e}"})
            return None

    def render(self, template, variables):
        try:
            # A copy: `people | indent` appends to the list before it fails.
            result = {"out": template.render(**copy.deepcopy(variables))}
            if re.search("at 0x|'a', 't', ' ', '0', 'x'", result["out"], re.I):
                return
        except Skip:
            return
        except Exception as e:
            result = {"error": f"{type(e).__name__}: {e}"[:200]}
        self.line({"vars": variables, **result})


# ---- Conversations ----------------------------------------------------------------------------

TEXTS = ["", "Hi", "Hello there.", "  blanks around  ", "\n\nnewlines\n\n", "two\nlines", "Grüße, 世界 🎉",
         "tab\there", "<|im_end|>", "</think>", "<think>inner</think>", "a </think> b </think> c",
         "<tool_response>\nwrapped\n</tool_response>", "  <tool_response>x</tool_response>\n",
         "<tool_response>open", "\u00a0nbsp\u00a0", "\u3000wide\u3000", "\x1cfs\x1f", "quote ' and \" and \\",
         "{{ not_a_tag }}", "{% raw %}", "e\u0301 combining", "\x7f\x01", "line\u2028sep"]
SCALARS = [None, True, False, 0, 1, -5, 5.0, 1.5, -0.0, 1e5, 1e16, 1e-05, 3.1, 123456789012345678901234567890,
           9007199254740993, "", "plain", "two\nlines", "日本", "<b>&'\"</b>", "true", " 1 "]
WORDS = ["xhigh", "medium", "low", "high", "", None, 3]


def text(r):
    return r.choice(TEXTS) if r.random() < 0.7 else r.choice(TEXTS) + r.choice(TEXTS)


def value(r, depth=0):
    kind = r.random()
    if depth < 3 and kind < 0.15:
        return [value(r, depth + 1) for _ in range(r.randrange(4))]
    if depth < 3 and kind < 0.3:
        return {r.choice(["a", "b", "items", "名", "x y", "0", "", "q\"t"]): value(r, depth + 1)
                for _ in range(r.randrange(4))}
    return r.choice(SCALARS)


def part(r):
    return r.choice([
        {"type": "text", "text": text(r)}, {"type": "text", "text": text(r)}, {"text": text(r)},
        {"type": "image"}, {"type": "image_url", "image_url": {"url": "data:"}}, {"image": "x"},
        {"type": "video"}, {"video": "v"}, {"type": "video_url"}, {"type": "audio"}, {}, {"type": "text"},
        {"type": "image", "text": "both"}])


def content(r):
    kind = r.random()
    if kind < 0.7:
        return text(r)
    if kind < 0.9:
        return [part(r) if r.random() < 0.3 else {"type": "text", "text": text(r)}
                for _ in range(r.randrange(4))]
    return r.choice([None, None, 5, {"text": "x"}, True, 2.5, []])


def arguments(r):
    kind = r.random()
    if kind < 0.85:
        return {r.choice(["city", "n", "x", "deep", "flag", "名前", "a b"]): value(r)
                for _ in range(r.randrange(4))}
    return r.choice(["", "{}", "   ", '{"a": 1}', None, [], 5])


def call(r):
    f = {"name": r.choice(["f", "lookup", "名", "x.y"])}
    if r.random() < 0.95:
        f["arguments"] = arguments(r)
    if r.random() < 0.04:
        del f["name"]
    if r.random() < 0.15:
        return f
    return {"id": "c1", "type": "function", "function": f}


def message(r, role):
    m = {"role": role}
    if r.random() < 0.95:
        m["content"] = content(r)
    if role == "assistant":
        if r.random() < 0.4:
            m["reasoning_content"] = r.choice([text(r), text(r), None, 7])
        if r.random() < 0.4:
            m["tool_calls"] = [call(r) for _ in range(r.randrange(3))]
        elif r.random() < 0.05:
            m["tool_calls"] = r.choice([None, {}, "x", 3])
    if role == "tool":
        m["tool_call_id"] = "c1"
    return m


def tool(r):
    return r.choice([
        {"type": "function", "function": {"name": "f", "description": text(r), "parameters": {
            "type": "object", "properties": {"z": {"type": "number", "default": 1.0}, "a": value(r)},
            "required": ["z"]}}},
        {"name": "bare"}, {"type": "function", "function": value(r)}])


def conversation(r):
    messages = []
    if r.random() < 0.5:
        messages.append(message(r, "system" if r.random() < 0.8 else "developer"))
    for _ in range(r.randrange(5)):
        messages.append(message(r, r.choices(
            ["user", "assistant", "tool", "system", "developer", "other"], [8, 8, 5, 0.5, 0.3, 0.2])[0]))
    if r.random() < 0.8:
        messages.append(message(r, "user"))
    if r.random() < 0.3:
        messages += [message(r, "assistant"), message(r, "tool")]
        if r.random() < 0.5:
            messages.append(message(r, "tool"))
    variables = {"messages": messages, "tools": None, "documents": None,
                 "add_generation_prompt": r.random() < 0.8}
    if r.random() < 0.4:
        variables["tools"] = [tool(r) for _ in range(r.randrange(1, 4))] if r.random() < 0.9 else \
            r.choice([[], {}, {"a": 1}, "tools"])
    for name in ["enable_thinking", "preserve_thinking", "add_vision_id"]:
        if r.random() < 0.5:
            variables[name] = r.choice([True, False, True, False, True, False, None, "yes", 1, 0])
    if r.random() < 0.5:
        variables["reasoning_effort"] = r.choice(WORDS)
    return variables


# ---- Contexts ---------------------------------------------------------------------------------

CONTEXT = {
    "s": "Hello World", "e": "", "u": "Grüße 世界 ß ǆ ΑΣ", "blank": " \t x y \n", "lines": "a\nb\r\nc\n\nd",
    "csv": "a,b,,c", "num": "42", "html": "<a href=\"x\">&'</a>", "quote": "it's \"q\" \\ \n\t\x01",
    "i": 7, "z": 0, "neg": -3, "f": 2.5, "fz": 0.0, "big": 123456789012345678901234567890, "t": True,
    "no": False, "nil": None, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "le": [], "mixed": [1, "a", None, 2.5, True],
    "nest": [[1, 2], [3], []], "d": {"b": 1, "a": 2, "items": 3, "C": None}, "de": {},
    "people": [{"name": "Ann", "age": 31, "tags": ["x", "y"], "home": {"city": "Oslo"}},
               {"name": "bob", "age": 25, "tags": [], "home": {"city": "Rome"}},
               {"name": "Cyd", "age": 31, "tags": ["z"], "home": {"city": "oslo"}},
               {"name": "dan", "home": {}}],
    "deep": {"x": {"y": {"z": [10, {"k": "v"}]}}},
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                 {"role": "assistant", "content": "A", "tool_calls": [
                     {"function": {"name": "f", "arguments": {"q": "v", "n": 5}}}]}],
}

# ---- Random expressions -----------------------------------------------------------------------

FILTERS = {  # name: kinds of arguments, each list one way to call it
    "trim": [[], ["str"]], "length": [[]], "count": [[]], "string": [[]], "safe": [[]], "upper": [[]], "lower": [[]],
    "title": [[]], "capitalize": [[]], "first": [[]], "last": [[]], "list": [[]], "reverse": [[]], "sort": [[], ["bool"], ["bool", "bool"]],
    "unique": [[], ["bool"]], "int": [[], ["int"], ["int", "small"]], "float": [[], ["any"]], "abs": [[]], "round": [[], ["small"], ["small", "method"]],
    "join": [[], ["str"], ["any"]], "default": [["any"], ["any", "bool"]], "d": [["any"]], "replace": [["str", "str"], ["str", "str", "small"]],
    "items": [[]], "dictsort": [[], ["bool"]], "tojson": [[], ["bool"]], "e": [[]], "escape": [[]], "forceescape": [[]], "indent": [[], ["small"], ["small", "bool"], ["str", "bool", "bool"]],
    "map": [["filter"]], "select": [[], ["test"]], "reject": [[], ["test"]], "min": [[]], "max": [[]], "sum": [[]],
    "batch": [["pos"], ["pos", "any"]], "slice": [["pos"], ["pos", "any"]], "wordcount": [[]], "truncate": [["pos"], ["pos", "bool"], ["pos", "bool", "str"]], "center": [[], ["small"]],
    "format": [["any"], ["any", "any"]], "attr": [["key"]], "groupby": [["key"]], "selectattr": [["key"], ["key", "test"]],
    "rejectattr": [["key"], ["key", "test"]],
}
TESTS = {"defined": 0, "undefined": 0, "none": 0, "string": 0, "mapping": 0, "sequence": 0, "iterable": 0, "number": 0,
         "integer": 0, "float": 0, "boolean": 0, "true": 0, "false": 0, "callable": 0, "odd": 0, "even": 0, "lower": 0, "upper": 0,
         "escaped": 0, "divisibleby": 1, "eq": 1, "ne": 1, "lt": 1, "le": 1, "gt": 1, "ge": 1, "in": 1, "equalto": 1,
         "greaterthan": 1, "lessthan": 1, "filter": 0, "test": 0}
METHODS = {
    "startswith": [["str"], ["str", "small"], ["str", "small", "small"]], "endswith": [["str"], ["str", "small"]],
    "split": [[], ["str"], ["str", "small"], ["none", "small"]], "rsplit": [[], ["str"], ["str", "small"], ["none", "small"]], "splitlines": [[], ["bool"]],
    "strip": [[], ["str"]], "lstrip": [[], ["str"]], "rstrip": [[], ["str"]], "upper": [[]], "lower": [[]], "title": [[]],
    "capitalize": [[]], "swapcase": [[]], "replace": [["str", "str"], ["str", "str", "small"]], "find": [["str"], ["str", "small"], ["str", "small", "small"]],
    "rfind": [["str"], ["str", "small"]], "index": [["str"], ["any"], ["any", "small"]], "count": [["str"], ["any"]], "join": [["list"]], "isdigit": [[]], "isalpha": [[]], "isalnum": [[]],
    "isspace": [[]], "isupper": [[]], "islower": [[]], "istitle": [[]], "isnumeric": [[]], "isdecimal": [[]], "isascii": [[]],
    "isprintable": [[]], "removeprefix": [["str"]], "removesuffix": [["str"]], "partition": [["str"]], "rpartition": [["str"]],
    "zfill": [["small"]], "ljust": [["small"], ["small", "str"]], "rjust": [["small"], ["small", "str"]], "center": [["small"]],
    "format": [["any"], ["any", "any"]], "items": [[]], "keys": [[]], "values": [[]], "get": [["key"], ["key", "any"]],
    "append": [["any"]], "update": [["any"]], "copy": [[]], "nothing": [[]],
}
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
LITERALS = {
    "str": ["''", "'a'", "'l'", "'o W'", "','", "' '", "'\\n'", "'ab'", "'é'", "'世'", "'%s'", "'%d'", "'%5.2f|%-4s'", "'{}'",
            "'{0} {1}'", "'{:>5}'", "'{!r}'", "'<'", "'A'", "'1'", "'ss'"],
    "int": ["0", "1", "2", "-1", "7", "10"], "small": ["0", "1", "2", "-1", "3", "5", "-2", "12"], "pos": ["1", "2", "3", "5", "12"],
    "bool": ["true", "false"], "none": ["none"], "key": ["'name'", "'age'", "'a'", "'b'", "0", "'home.city'", "'zz'", "'items'", "1"],
    "method": ["'floor'", "'ceil'", "'common'", "'x'"], "list": ["ls", "l", "[]", "['x','y']", "s", "mixed", "d"],
}


def literal(r, kind):
    if kind == "any":
        return atom(r)
    if kind == "filter":
        return repr(r.choice(["upper", "length", "string", "int", "trim", "first", "tojson", "list"]))
    if kind == "test":
        return repr(r.choice(["string", "odd", "none", "defined", "mapping", "number"]))
    return r.choice(LITERALS[kind])


def atom(r):
    kind = r.random()
    if kind < 0.6:
        return r.choice([k for k in CONTEXT if k not in ("messages", "big")] + ["missing"])
    if kind < 0.7:
        return literal(r, "str")
    if kind < 0.8:
        return literal(r, "int")
    return r.choice(["true", "false", "none", "1.5", "0.1", "[]", "{}", "()", "(1,)", "[1, 'a']", "{'k': 1}", "range(3)",
                     "range(5, 0, -2)", "s[1:3]", "s[::-1]", "l[::-1]", "d.a", "d['b']", "people[0].name", "deep.x.y.z[1].k",
                     "people | map(attribute='name')", "l | reverse"])


def expression(r, depth):
    if depth == 0:
        return atom(r)
    kind = r.random()
    sub = lambda: expression(r, depth - 1)
    if kind < 0.3:
        name = r.choice(list(FILTERS))
        args = [literal(r, k) for k in r.choice(FILTERS[name])]
        return f"({sub()}) | {name}" + (f"({', '.join(args)})" if args else "")
    if kind < 0.4:
        name = r.choice(list(TESTS))
        arg = f"({atom(r)})" if TESTS[name] else ""
        return f"({sub()}) is {r.choice(['', '', 'not '])}{name}{arg}"
    if kind < 0.6:
        name = r.choice(list(METHODS))
        args = [literal(r, k) for k in r.choice(METHODS[name])]
        return f"({sub()}).{name}({', '.join(args)})"
    if kind < 0.8:
        return f"({sub()}) {r.choice(OPERATORS)} ({sub()})"
    if kind < 0.84:
        return f"({sub()}) if ({sub()}) else ({sub()})"
    if kind < 0.86:
        return f"({sub()}) if ({sub()})"
    if kind < 0.9:
        index = r.choice(["0", "-1", "1", "'a'", "i", "1:", ":2", "::-1", "1:3", "-2:", ":-1", "::2", "3:0:-1", "none:2", "5", "true"])
        return f"({sub()})[{index}]"
    if kind < 0.92:
        return f"not ({sub()})"
    if kind < 0.94:
        return f"-({sub()})"
    if kind < 0.97:
        return f"[{sub()}, {sub()}]"
    return f"({sub()}) {r.choice(['<', '==', '>='])} ({sub()}) {r.choice(['<', '!=', 'in'])} ({sub()})"


# ---- Random layout ----------------------------------------------------------------------------

def layout(r):
    blanks = ["", "", " ", "\n", "  ", "\n\n", " \n ", "\t", "\n  ", "\r\n", "\u00a0", "\u2003\n"]
    word = ["a", "b c", "}}", "%}", "#}", "{", "}", "-", "é"]
    sign = lambda more="": r.choice(["", "", "-", more])
    out = []

    def space():
        out.append(r.choice(blanks))

    def tag(inner):
        out.append("{%" + sign("+") + r.choice(["", " "]) + inner + r.choice(["", " ", "\n"]) + sign("+") + "%}")

    def body(depth):
        for _ in range(r.randrange(1, 4)):
            space()
            kind = r.random()
            if kind < 0.25:
                out.append(r.choice(word))
            elif kind < 0.45:
                out.append("{{" + sign() + " " + r.choice(["x", "'}}'", "{'a': {'b': 1}}", "1 -1", "[1,\n2]"]) + " " + sign() + "}}")
            elif kind < 0.55:
                out.append("{#" + sign("+") + r.choice(["c", " c\n ", "{% if %}", "- "]) + sign("+") + "#}")
            elif kind < 0.65:
                out.append("{%" + sign("+") + " raw " + sign() + "%}" + r.choice(blanks) + "{{ r }}" + r.choice(blanks) +
                           "{%" + sign("+") + " endraw " + sign("+") + "%}")
            elif kind < 0.75:
                tag("set x = 'v'")
            elif depth > 0 and kind < 0.88:
                tag("if " + r.choice(["true", "false"]))
                body(depth - 1)
                if r.random() < 0.4:
                    tag("else")
                    body(depth - 1)
                tag("endif")
            elif depth > 0:
                tag("for x in [1, 2]")
                body(depth - 1)
                tag("endfor")
        space()

    body(3)
    return "".join(out)


# ---- Random programs --------------------------------------------------------------------------

NAMES = ["a", "b", "c", "ns.m", "ns.n"]


def program(r):
    out = ["{% set ns = namespace(m=1) %}"]
    macros = []

    def value(names=()):
        kind = r.random()
        if kind < 0.5:
            return r.choice(NAMES + list(names) + ["l", "s", "i", "d", "people", "missing"])
        if kind < 0.6 and macros:
            return f"{r.choice(macros)}({', '.join(value() for _ in range(r.randrange(3)))})"
        return r.choice(["1", "'t'", "[]", "[a, b]", "loop.index", "loop.last", "loop.previtem", "(a ~ b)", "(a | default('x'))",
                         "(c is defined)", "[1, 2, 3]", "range(3)", "(l | reverse)", "d.items()", "varargs", "kwargs", "caller"])

    def statement(depth, in_loop):
        kind = r.random()
        if kind < 0.3 or depth == 0:
            out.append("{{ " + value() + " }},")
        elif kind < 0.5:
            out.append("{% set " + r.choice(NAMES) + " = " + value() + " %}")
        elif kind < 0.55:
            out.append("{% set " + r.choice(["a", "b", "c"]) + " %}")
            body(depth - 1, in_loop)
            out.append("{% endset %}")
        elif kind < 0.7:
            out.append("{% if " + value() + " %}")
            body(depth - 1, in_loop)
            if r.random() < 0.3:
                out.append("{% elif " + value() + " %}")
                body(depth - 1, in_loop)
            if r.random() < 0.4:
                out.append("{% else %}")
                body(depth - 1, in_loop)
            out.append("{% endif %}")
        elif kind < 0.85:
            target = r.choice(["a", "b", "x", "a, b"])
            test = f" if {value()}" if r.random() < 0.2 else ""
            out.append("{% for " + target + " in " + value() + test + " %}")
            body(depth - 1, True)
            if r.random() < 0.3:
                out.append("{% else %}")
                body(depth - 1, in_loop)
            out.append("{% endfor %}")
        elif kind < 0.88 and in_loop:
            out.append("{% if " + value() + " %}{% " + r.choice(["break", "continue"]) + " %}{% endif %}")
        elif kind < 0.92:
            name = "m" + str(len(macros))
            params = r.choice(["", "a", "a, b=1", "b='d', c=a", "a, caller=none"])
            out.append("{% macro " + name + "(" + params + ") %}")
            body(depth - 1, False)
            out.append("{% endmacro %}")
            macros.append(name)
        elif kind < 0.94 and macros:
            out.append("{% call" + r.choice(["", "(a)"]) + " " + r.choice(macros) + "(" + value() + ") %}")
            body(depth - 1, False)
            out.append("{% endcall %}")
        elif kind < 0.97:
            out.append("{% with a = " + value() + ", c = " + value() + " %}")
            body(depth - 1, in_loop)
            out.append("{% endwith %}")
        elif kind < 0.98:
            out.append("{% filter upper %}")
            body(depth - 1, in_loop)
            out.append("{% endfilter %}")
        else:
            out.append("{% generation %}")
            body(depth - 1, False)
            out.append("{% endgeneration %}")

    def body(depth, in_loop):
        for _ in range(r.randrange(1, 4)):
            statement(depth, in_loop)

    for _ in range(r.randrange(2, 6)):
        statement(3, False)
    return "".join(out)


# ---- Characters -------------------------------------------------------------------------------

CLASSES = """{% for c in chars %}{{ c.upper() }},{{ c.lower() }},{{ c.title() }},{{ c.swapcase() }},{{ c.capitalize() }},\
{{ ('a' ~ c ~ '\u03a3').lower() }},{{ ('a\u03a3' ~ c).lower() }},{{ c.strip() == '' }},{{ c.isalpha() }}{{ c.isdigit() }}\
{{ c.isdecimal() }}{{ c.isspace() }}{{ c.isupper() }}{{ c.islower() }}{{ c.istitle() }}{{ c.isprintable() }}{{ c.isalnum() }}\
{{ c.isnumeric() }}{{ ('x' ~ c ~ 'y').splitlines() | length }}{{ [c] }}
{% endfor %}""".replace("\\\n", "")


def characters():
    block = []
    for code in range(0x110000):
        c = chr(code)
        category = unicodedata.category(c)
        # Numeric letters are ideographs that also mean numbers; only isnumeric() tells.
        if category in ("Cn", "Cs", "Co") or (category == "Lo" and c.isnumeric()):
            continue
        block.append(c)
        if len(block) == 2048:
            yield block
            block = []
    yield block


def main():
    warnings.simplefilter("ignore")
    what, n, path, files = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    out = Writer(path)
    r = random.Random(f"{what}/{n}")
    if what == "conversations":
        for name in files:
            template = out.template(name, open(name, encoding="utf-8", newline="").read())
            for _ in range(n):
                out.render(template, conversation(r))
    elif what == "files":
        for name in files:
            template = out.template(name, open(name, encoding="utf-8", newline="").read())
            if template:
                out.render(template, CONTEXT)
                out.render(template, {})
    elif what == "expressions":
        for name in files:
            for number, line in enumerate(open(name, encoding="utf-8"), 1):
                line = line.rstrip("\n")
                if line and not line.startswith("##"):
                    template = out.template(f"{name}:{number}", "{{ " + line + " }}")
                    if template:
                        out.render(template, CONTEXT)
    elif what == "random":
        for i in range(n):
            e = expression(r, r.randrange(1, 4))
            if ") - (" in e and re.search(r"\.(keys|items)\(\)", e):
                continue  # set arithmetic of views
            template = out.template(f"random {i}", "{{ " + e + " }}")
            if template:
                out.render(template, CONTEXT)
    elif what == "layout":
        for i in range(n):
            template = out.template(f"layout {i}", layout(r))
            if template:
                out.render(template, {"x": "X"})
    elif what == "programs":
        for i in range(n):
            template = out.template(f"program {i}", program(r))
            if template:
                out.render(template, CONTEXT)
    elif what == "unicode":
        template = out.template("unicode", CLASSES)
        for chars in characters():
            out.render(template, {"chars": chars})


main()
