#!/usr/bin/env python3
"""Compares the chat template interpreter with Python's jinja2, set up as Hugging Face's transformers do.

    check_chat.py RENDER [--templates FOLDER] [--gguf FILE ...] [--only WORD] [--stop]

RENDER is the program built from tests/chat_render.c. Templates are read from NOVA_TEST_DATA (default ../shared):
templates/*.jinja and the tokenizer.chat_template of tokenizers/*.gguf; --gguf adds more. All of them are rendered over
all conversations below, with and without tools, and the small expressions at the end are rendered too. Equal means: the
same text, or both raise; where the template itself raises, the same words.
Prints N passed, M failed, K skipped.
"""
import argparse
import copy
import datetime
import glob
import json
import os
import random
import re
import struct
import subprocess
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.environ.get("NOVA_TEST_DATA", os.path.join(HERE, "..", "..", "shared"))
NOW = 1764547200  # some day in December 2025

passed = failed = skipped = 0


def environment():
    import jinja2
    import jinja2.ext
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        @jinja2.pass_eval_context
        def _body(self, context, caller):
            return caller()

    class Raised(jinja2.exceptions.TemplateError):
        pass

    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW).strftime(f)
    env.Raised = Raised
    return env


def gguf_template(data):
    """The chat template of a GGUF file, or None."""
    at = 24
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def number(fmt, size):
        nonlocal at
        at += size
        return struct.unpack_from(fmt, data, at - size)[0]

    def text():
        nonlocal at
        n = number("<Q", 8)
        at += n
        return data[at - n:at]

    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        key, kind = text(), number("<I", 4)
        if kind == 8:
            value = text()
            if key == b"tokenizer.chat_template":
                return value.decode()
        elif kind == 9:
            inner, n = number("<I", 4), number("<Q", 8)
            for _ in range(n if inner == 8 else 0):
                text()
            at += 0 if inner == 8 else n * sizes[inner]
        else:
            at += sizes[kind]
    return None


def templates(args):
    found = {}
    for path in sorted(glob.glob(os.path.join(args.templates or os.path.join(DATA, "templates"), "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            found[os.path.basename(path)] = f.read()
    for path in sorted(glob.glob(os.path.join(DATA, "tokenizers", "*.gguf"))) + args.gguf:
        with open(path, "rb") as f:
            t = gguf_template(f.read())
        if t:
            found[os.path.basename(path)] = t
    return {k: v for k, v in found.items() if not args.only or args.only in k}


# ---- Conversations ----

def tool(name, description, properties, required=None, **more):
    p = {"type": "object", "properties": properties}
    if required is not None:
        p["required"] = required
    return {"type": "function", "function": {"name": name, "description": description, "parameters": p, **more}}


TOOLS = [
    tool("get_weather", "The weather at a place", {
        "location": {"type": "string", "description": "City, e.g. \"Paris\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "description": "Unit", "default": "celsius"},
        "days": {"type": "integer", "description": "How many", "minimum": 1, "maximum": 14, "default": 3}},
        ["location"]),
    tool("search", "Sucht überall\nin <allen> & \"jeden\" 'Texten' \u2028 \U0001F50D", {
        "query": {"type": ["string", "null"], "description": "what"},
        "filters": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"},
                    "v": {"type": "number"}}, "required": ["k"]}, "description": "list of filters"},
        "options": {"type": "object", "properties": {"deep": {"type": "boolean", "default": False},
                    "more": {"type": "object", "properties": {"x": {"type": "array"}}}}},
        "any": {"oneOf": [{"type": "string"}, {"type": "object"}], "nullable": True},
        "ratio": {"type": "number", "default": 0.5, "description": "a float"},
        "big": {"type": "integer", "maximum": 18446744073709551615},
        "none": {"default": None, "description": "no type"}}, ["query", "filters"],
        **{"return": {"type": "string", "description": "the result"}}),
]
EMPTY_TOOLS = [tool("noop", "Does nothing", {}), tool("flat", "", {"a": {"type": "string"}})]
BARE_TOOLS = [{"name": "bare", "description": "without the wrapper", "parameters": {"type": "object", "properties": {
    "x": {"type": "integer", "description": "x"}}}}]


def m(role, content=None, calls=None, /, **extra):
    return {"role": role, "content": content, "calls": calls, "extra": extra}


def call(name, arguments, id=None, kind="function"):
    c = {"type": kind, "function": {"name": name, "arguments": arguments}}
    if id is not None:
        c["id"] = id
    return c


LONG = "Ein langer Absatz mit vielen Wörtern. " * 400
S, U, A, T = "system", "user", "assistant", "tool"
WEATHER = {"location": "Paris", "unit": "celsius", "days": 2}

CONVERSATIONS = {
    "hello": [m(U, "Hello")],
    "system": [m(S, "You are helpful."), m(U, "Hi")],
    "empty system": [m(S, ""), m(U, "Hi")],
    "turns": [m(U, "1"), m(A, "2"), m(U, "3"), m(A, "4"), m(U, "5")],
    "system turns": [m(S, "Be brief."), m(U, "1"), m(A, "2"), m(U, "3")],
    "assistant last": [m(U, "Go"), m(A, "I am going")],
    "system assistant last": [m(S, "S"), m(U, "Go"), m(A, "Gone")],
    "unicode": [m(S, "Ω≈ç√ 你好"), m(U, "Привет, ЁЖИК! \U0001F600\u200d\U0001F680 é\u0301 ı İ ß"), m(A, "こんにちは"), m(U,
        "؟")],
    "quotes": [m(U, "\"double\" 'single' \\back\\ {{ braces }} {% tag %} {# c #} </s> <|im_end|> [INST]")],
    "newlines": [m(S, "\n\nS\n"), m(U, "  a\n\n b\t\r\n c  \n"), m(A, "\n\nanswer\n"), m(U, "\n")],
    "blanks": [m(U, "   "), m(A, "\t\n "), m(U, "\u00a0x\u2003")],
    "empty": [m(U, ""), m(A, ""), m(U, "")],
    "long": [m(U, LONG), m(A, LONG[:5000]), m(U, LONG[:2000])],
    "two systems": [m(S, "one"), m(S, "two"), m(U, "Hi")],
    "late system": [m(U, "Hi"), m(S, "late"), m(U, "again")],
    "only system": [m(S, "alone")],
    "two users": [m(U, "a"), m(U, "b")],
    "two assistants": [m(U, "a"), m(A, "b"), m(A, "c"), m(U, "d")],
    "assistant first": [m(A, "I start"), m(U, "ok")],
    "unknown role": [m(U, "a"), m("narrator", "meanwhile"), m(U, "b")],
    "developer": [m("developer", "obey"), m(U, "a")],
    "none": [],
    "think": [m(U, "q"), m(A, "<think>\nhmm\n</think>\n\nanswer"), m(U, "q2"), m(A, "<think></think>a2"), m(U, "q3")],
    "think last": [m(U, "q"), m(A, "<think>reason</think>\n\nfinal")],
    "half think": [m(U, "q"), m(A, "no start</think> rest"), m(U, "q2"), m(A, "<think>never ends"), m(U, "q3")],
    "reasoning": [m(U, "q"), m(A, "answer", reasoning_content="because"), m(U, "q2"),
                  m(A, "answer2", reasoning_content=""), m(U, "q3")],
    "reasoning last": [m(U, "q"), m(A, "answer", reasoning_content="because\n", thinking="T", reasoning="R")],
    "thought field": [m(U, "q"), m(A, "x", thought="deep", thinking="deeper"), m(U, "y")],
    "calls": [m(U, "weather?"), m(A, None, [call("get_weather", WEATHER, "call00001")]),
              m(T, "{\"t\": 21.5}", tool_call_id="call00001", name="get_weather"), m(A, "21.5 degrees"), m(U,
                  "thanks")],
    "calls text": [m(U, "weather?"), m(A, "Let me see.", [call("get_weather", json.dumps(WEATHER), "call00001")]),
                   m(T, "sunny", tool_call_id="call00001", name="get_weather")],
    "two calls": [m(S, "s"), m(U, "both?"),
                  m(A, "", [call("get_weather", WEATHER, "abcdefgh1"), call("search", {"query": "x", "filters": [
                      {"k": "a", "v": 1.5}, {"k": "b", "v": None}], "options": {"deep": True}}, "abcdefgh2")]),
                  m(T, "r1", tool_call_id="abcdefgh1", name="get_weather"),
                  m(T, "r2", tool_call_id="abcdefgh2", name="search"), m(U, "and?")],
    "calls in a row": [m(U, "go"), m(A, None, [call("a", {}, "000000001")]), m(T, "1", tool_call_id="000000001"),
                       m(A, None, [call("b", {"x": []}, "000000002")]), m(T, "2", tool_call_id="000000002"),
                       m(A, "done")],
    "call last": [m(U, "go"), m(A, None, [call("get_weather", WEATHER, "functions.get_weather:0")])],
    "call reasoning": [m(U, "go"), m(A, None, [call("f", {"a": "ü\n\"q\"", "b": [1, 2.0, 1e100, True, None]}, "x")],
                       reasoning_content="think about f"), m(T, "ok", tool_call_id="x", name="f"), m(U, "next")],
    "call strings": [m(U, "go"), m(A, None, [call("f", "{\"a\": 1}", "x"), call("g", "", "y")]),
                     m(T, "ok", tool_call_id="x"), m(T, "ok2", tool_call_id="y")],
    "bare calls": [m(U, "go"), m(A, None, [{"name": "f", "arguments": {"a": 1}}]), m(T, "r", name="f")],
    "odd call": [m(U, "go"), m(A, None, [call("f", {}, "1", kind="other")]), m(T, "r")],
    "empty calls": [m(U, "go"), m(A, "x", []), m(U, "y")],
    "tool alone": [m(T, "result"), m(U, "?")],
    "tool json": [m(U, "go"), m(A, None, [call("f", {}, "id1")]), m(T, None, content={"temperature": 3, "ok": True},
                                                                    name="f"),
                  m(U, "so?")],
    "parts": [m(U, None, content=[{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}]),
              m(A, "ok"), m(U, "next")],
    "parts all": [m(S, None, content=[{"type": "text", "text": "sys"}]), m(U, None, content=[{"type": "text",
        "text": "u"}]),
                  m(A, None, content=[{"type": "text", "text": "a"}]), m(U, None, content=[])],
    "image": [m(U, None, content=[{"type": "image"}, {"type": "text", "text": "what is it?"}]), m(A, "a cat"), m(U,
        "sure?")],
    "assistant parts": [m(U, "q"), m(A, None, content=[{"type": "thinking", "thinking": "hm"}, {"type": "text",
        "text": "a"}]),
                        m(U, "r")],
    "no content": [m(U), m(A), m(U, "x")],
    "names": [m(U, "hi", name="Ann"), m(A, "ho", name="Bot"), m(U, "bye", name="Bob")],
    "tool parts": [m(U, "go"), m(A, None, [call("f", {"x": {"y": [{"z": "ß"}]}}, "i1")]),
                   m(T, None, content=[{"type": "text", "text": "part"}], tool_call_id="i1"), m(U, "end")],
    "numbers in text": [m(S, "1e5"), m(U, "0x1F 1_000 -0.0"), m(A, "3.14159"), m(U, "∞")],
    "no_think": [m(S, "sys /no_think"), m(U, "question /no_think"), m(A, "a"), m(U, "b /think")],
}

VARIANTS = {
    "plain": {},
    "no prompt": {"no_generation_prompt": True},
    "tools": {"tools": TOOLS},
    "tools no prompt": {"tools": TOOLS, "no_generation_prompt": True, "variables": {"enable_thinking": True}},
    "empty tools": {"tools": EMPTY_TOOLS, "variables": {"enable_thinking": False, "thinking": True}},
    "bare tools": {"tools": BARE_TOOLS, "variables": {"reasoning_effort": "high", "documents": [
        {"title": "Doc ü", "text": "Text\n1", "doc_id": 1}, {"title": "D2", "text": "T2", "doc_id": "x"}]}},
    "no tools": {"tools": [], "variables": {"reasoning_effort": "low", "date_string": "26 Jul 2024",
                                            "tools_in_user_message": False, "builtin_tools": ["wolfram_alpha",
                                                "code_interpreter"],
                                            "xml_tools": ["a"], "clear_thinking": False, "preserve_thinking": True}},
}


def python_message(c):
    d = {"role": c["role"]}
    if c["content"] is not None:
        d["content"] = c["content"]
    elif c["calls"] is not None:
        d["content"] = None
    if c["calls"] is not None:
        d["tool_calls"] = c["calls"]
    d.update(c["extra"])
    return d


def request_message(c):
    d = {"role": c["role"]}
    if c["content"] is not None:
        d["content"] = c["content"]
    if c["calls"] is not None:
        d["tool_calls_json"] = json.dumps(c["calls"], ensure_ascii=False)
    if c["extra"]:
        d["extra_json"] = json.dumps(c["extra"])
    return d


# ---- Comparing ----

class Peer:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline().decode("utf-8", "replace"))


def clean(text):
    """A message as nova shows it: one line."""
    return "".join("?" if ord(c) < 32 or ord(c) == 127 else c for c in text)


def agrees(expected, raised, got):
    if expected is not None:
        return got.get("text") == expected
    if "error" not in got:
        return False
    if raised is None:
        return True
    said = got["error"].split(": ", 1)[-1].rstrip("\ufffd")
    return said == clean(raised) or (len(got["error"]) > 280 and clean(raised).startswith(said))


compiled = {}


def compile_once(env, template):
    """The template, or the exception that compiling it raised."""
    if template not in compiled:
        try:
            compiled[template] = env.from_string(template)
        except Exception as e:
            compiled[template] = e
    if isinstance(compiled[template], Exception):
        raise compiled[template]
    return compiled[template]


def compare(env, peer, name, template, variables, request, free=False):
    """`free`: the template may show what cannot be the same: addresses, large integers, failures of Jinja's own."""
    global passed, failed
    expected = raised = reason = None
    try:
        expected = compile_once(env, template).render(**copy.deepcopy(variables))  # l|indent changes l
    except env.Raised as e:
        raised = reason = str(e)
    except Exception as e:
        reason = f"{type(e).__name__}: {e}"
    got = peer.ask({"template": template, "now": NOW, **request})
    own = re.search(r"<\w+ object|\bat 0x", expected or "", re.I) or re.search("NameError|unhashable", reason or "")
    if free and (own or "64 bits" in got.get("error", "")):
        return True
    if agrees(expected, raised, got):
        passed += 1
        return True
    failed += 1
    if failed <= 40:
        print(f"FAILED: {name}")
        if expected is not None and "text" in got:
            at = next((i for i, (a, b) in enumerate(zip(expected, got["text"])) if a != b), min(len(expected),
                len(got["text"])))
            start = max(0, at - 60)
            print(f"  at {at} expected {expected[start:at + 60]!r}\n  at {at} got      {got['text'][start:at + 60]!r}")
        else:
            print(f"  expected {(expected or '')[:200]!r} ({reason})\n  got      {str(got)[:300]}")
    return False


def check_templates(env, peer, args):
    for tname, template in templates(args).items():
        for cname, conversation in CONVERSATIONS.items():
            for vname, v in VARIANTS.items():
                extra = v.get("variables", {})
                variables = {"messages": [python_message(c) for c in conversation], "tools": v.get("tools"),
                             "documents": None,
                             "add_generation_prompt": not v.get("no_generation_prompt", False),
                             "bos_token": "<s>", "eos_token": "</s>", **extra}
                request = {"messages": [request_message(c) for c in conversation], "bos": "<s>", "eos": "</s>",
                           "no_generation_prompt": v.get("no_generation_prompt", False)}
                if "tools" in v:
                    request["tools_json"] = json.dumps(v["tools"])
                if extra:
                    request["variables_json"] = json.dumps(extra)
                ok = compare(env, peer, f"{tname}, {cname}, {vname}", template, variables, request)
                if not ok and args.stop:
                    return


# ---- Small templates ----

VARIABLES = {
    "i": 7, "n": -3, "z": 0, "f": 2.5, "g": -0.1, "t": True, "no": False, "nil": None, "s": "Hello World", "e": "",
    "u": "Ünï çödé ß ǆ ΑΣ Σ", "w": "  x y\tz\n ", "q": "it's \"q\" \\ \n\t\u0007\u00a0\u200b\U0001F600", "l": [3, 1,
        2], "ls": ["b", "A", "c", "a"],
    "lm": [1, "a", None, 2.5, [1], {"k": 1}, True], "el": [], "d": {"a": 1, "b": {"c": [1, 2, {"x": "y"}]}, "items": 5},
    "ed": {}, "ld": [{"n": "x", "v": 3, "g": "B"}, {"n": "Y", "v": 1, "g": "a"}, {"n": "z", "v": 2, "g": "b"},
                     {"n": "w"}],
    "h": "<a href='x'>&\"</a>", "big": 9007199254740993, "lines": "a\nb\r\n\nc\u2028d\x0be", "num": " 42 ",
    "fl": "3.99", "path": "a.b.c",
    "nested": [[1, [2, [3]]], {"a": {"b": ["c"]}}], "tr": [True, False, None, 0, "", "x"], "en": "{0} {} {x}",
}

SNIPPETS = r"""
{{ i + n }} {{ i - n }} {{ i * n }} {{ i / n }} {{ i // n }} {{ i % n }} {{ i ** 2 }} {{ 2 ** -1 }} {{ -i // 2 }} {{ -7 % 3 }} {{ 7 % -3 }}
{{ f + i }} {{ f * g }} {{ f // g }} {{ f % g }} {{ -f % 2 }} {{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 1e3 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-5 }} {{ 0.0001 }}
{{ 1/3 }} {{ 2/3 }} {{ 10/4 }} {{ 1e22 }} {{ 123456789012345678.0 }} {{ 0.1 + 0.2 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 100.0 }} {{ -0.0 }}
{{ 9007199254740993 }} {{ big + 1 }} {{ big / 1 }} {{ big * 1.0 }} {{ 2**62 }} {{ -(2**62) * 2 }}
{{ 1e400 }} {{ -1e400 }} {{ 1e400 - 1e400 }} {{ (1e400|int) if false }}
{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ (-2) ** 2 }} {{ not 1 == 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 == true }} {{ 3 > 2 >= 2 != 1 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1.5 % 0 }}
{{ 0 ** -1 }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 'a' * 3 }} {{ 3 * 'ab' }} {{ 'a' * -1 }} {{ [1, 2] * 2 }} {{ (1,) * 2 }} {{ [] * 5 }} {{ [1] + [2] }} {{ (1,) + (2, 3) }} {{ true + true }} {{ -true }} {{ +true }}
{{ [1] + (2,) }}
{{ 'a' - 'b' }}
{{ nil + 1 }}
{{ -'a' }}
{{ 'a' ~ 1 ~ nil ~ true ~ [1, 'x'] ~ 2.0 ~ missing ~ {'a': none} }}
{{ a.b }}
{{ missing }}|{{ missing is defined }}|{{ missing == missing2 }}|{{ missing == none }}|{{ not missing }}|{{ missing ~ 'x' }}
{{ missing.x }}
{{ missing['x'] }}
{{ missing[0] }}
{{ missing + 1 }}
{{ missing() }}
{{ missing < 1 }}
{{ missing|length }} {{ missing|list }} {{ missing|join(',') }} {{ missing|upper }} {{ missing|default('d') }} {{ missing|first }} {{ missing|tojson if false }}
{{ missing|int }}
{{ missing|tojson }}
{{ 'x' in missing }} {% for x in missing %}x{% else %}none{% endfor %}
{{ d.a }} {{ d['a'] }} {{ d.items is callable }} {{ d['items'] }} {{ d.b.c[2].x }} {{ d.zz }} {{ d['zz'] }} {{ d.zz is defined }} {{ ed.items() }}
{{ d.zz.y }}
{{ d.get('a') }} {{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {{ d.keys() }} {{ d.items() }} {{ d.values() }}
{{ d.pop('a') }}
{{ d.update({}) }}
{{ l.append(1) }}
{{ l.append }}|{{ l.append is defined }}|{{ d.update is defined }}
{{ l[0] }} {{ l[-1] }} {{ l[5] }} {{ l[5] is defined }} {{ l['x'] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-2:5] }} {{ l[none:2] }} {{ l.0 }}
{{ s[0] }} {{ s[-1] }} {{ s[2:5] }} {{ s[::-1] }} {{ s[100:] }} {{ s[-3:] }} {{ u[1:4] }} {{ u[::-1] }} {{ u[::3] }} {{ u[::-2] }} {{ e[0] is defined }} {{ s[-100:3] }}
{{ l[::0] }}
{{ i[0] }} {{ nil.x }} {{ nil['x'] is defined }} {{ i.x is defined }}
{{ nil[1:] }}
{{ (1, 2, 3) }} {{ (1,) }} {{ () }} {{ [] }} {{ {} }} {{ {'a': 1, 'b': [1, 2], 3: none} }} {{ [1, 2,] }} {{ {'a': 1,} }} {{ (1, 2,)[1] }}
{{ {[1]: 2} }}
{{ {(1, 2): 3}[(1, 2)] }} {{ {1: 'a', 1.0: 'b', true: 'c'} }} {{ {'a': 1, 'a': 2} }} {{ {none: 1}[none] }} {{ {1: 2}['1'] is defined }}
{{ lm }} {{ nested }} {{ d }} {{ q }} {{ [q] }} {{ [u] }} {{ ['\x7f', '\u200b', '\u0600', "'", '"', "'\""] }} {{ ['a\\b'] }}
{{ tr }} {{ tr|tojson }} {{ lm|tojson }} {{ d|tojson }} {{ q|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ d|tojson(indent=2) }} {{ [[], {}, [[]]]|tojson(indent=1) }}
{{ d|tojson(indent='--') }} {{ d|tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ {1: 2, 1.5: 3, true: 4, none: 5}|tojson }} {{ (1, 2)|tojson }}
{{ {(1, 2): 3}|tojson }}
{{ range(3)|tojson }}
{{ '\u2028\x7f\x00/'|tojson }} {{ [1e400, -1e400, 1e-7, 1.0, 100000000000000000000.0]|tojson }} {{ '<&>'|tojson }} {{ [0, 1]|tojson(indent=0) }}
{{ range(5)|list }} {{ range(2, 8, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(0) }} {{ range(3)[1] }} {{ range(10)[2:5]|list }} {{ range(3)|length }} {{ 2 in range(3) }} {{ range(1, 3) }}
{{ range(100001)|length }}
{{ range() }}
{{ range('a') }}
{{ s|upper }} {{ s|lower }} {{ s|title }} {{ s|capitalize }} {{ u|upper }} {{ u|lower }} {{ u|title }} {{ u|capitalize }} {{ 'ﬁx ǳ ŉ ΐ'|upper }} {{ 'ΑΣ ΣΑ Σ'|lower }} {{ "foo-bar (baz) [q] {w} <t>"|title }}
{{ s.upper() }} {{ s.lower() }} {{ u.title() }} {{ u.capitalize() }} {{ s.swapcase() }} {{ "they're bill's"|title }} {{ "they're bill's".title() }} {{ 'ǆ ǅ ß'.title() }} {{ 'İI'.lower() }}
{{ w|trim }}| {{ w.strip() }}| {{ w.lstrip() }}| {{ w.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ 'xyaxy'.lstrip('yx') }} {{ 'abc'.rstrip('c') }} {{ 'xax'|trim('x') }} {{ 'ééaé'.strip('é') }} {{ 5|trim }}
{{ s.split() }} {{ s.split('o') }} {{ s.split('o', 1) }} {{ w.split() }} {{ 'a,b,,c'.split(',') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a b c'.split(none, 1) }} {{ 'a  b  c '.split(' ') }} {{ 'abc'.split('abc') }}
{{ s.split('') }}
{{ s.rsplit('o', 1) }} {{ 'a b c'.rsplit(none, 1) }} {{ ' a  b c '.rsplit(maxsplit=1) }} {{ 'a.b.c'.rsplit('.', 1)[0] }} {{ 'a b'.rsplit() }} {{ 'aXbXc'.rsplit('X') }} {{ 'a.b'.split(sep='.') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a\n'.splitlines() }} {{ ''.splitlines() }} {{ '\n\n'.splitlines() }}
{{ 'a.b'.partition('.') }} {{ 'ab'.partition('.') }} {{ 'a.b.c'.rpartition('.') }} {{ 'ab'.rpartition('.') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'x'.removesuffix('') }}
{{ s.replace('o', '0') }} {{ s.replace('o', '0', 1) }} {{ s|replace('o', '') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ ''.replace('', 'x') }} {{ 'aé'.replace('', '-') }} {{ 'aaaa'.replace('aa', 'b') }} {{ 5|replace(5, 6) }} {{ 'abc'.replace('', '-', 2) }}
{{ s.startswith('Hell') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('ld') }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith('') }} {{ s.startswith('lo', 3) }} {{ s.endswith('lo', 0, 5) }} {{ ''.startswith('a') }} {{ s.startswith(()) }}
{{ s.startswith(1) }}
{{ s.startswith(['H']) }}
{{ s.find('o') }} {{ s.find('o', 5) }} {{ s.find('zz') }} {{ s.rfind('o') }} {{ s.index('W') }} {{ u.find('ç') }} {{ s.find('') }} {{ s.find('', 100) }} {{ s.find('o', -4) }} {{ s.count('l') }} {{ s.count('') }} {{ u.rfind('d') }} {{ s.count('l', 0, 4) }} {{ s.find('o', 0, 4) }} {{ s.rindex('o') }}
{{ s.index('zz') }}
{{ '-'.join(['a', 'b']) }} {{ ''.join('abc') }} {{ ','.join({'a': 1, 'b': 2}) }} {{ ', '.join(ls) }}
{{ '-'.join([1]) }}
{{ 'abc'.center(10) }}| {{ 'abc'.center(10, '*') }} {{ 'abcd'.center(7, '*') }} {{ 'abc'.ljust(6) }}| {{ 'abc'.rjust(6, '.') }} {{ '42'.zfill(5) }} {{ '-42'.zfill(5) }} {{ '+4'.zfill(1) }} {{ 'abc'|center(9) }}| {{ 'é'.center(4, 'ü') }} {{ 'a\tb'.expandtabs() }} {{ 'a\tb\tc'.expandtabs(4) }}
{{ 'abc'.isalpha() }} {{ 'ab1'.isalpha() }} {{ 'ab1'.isalnum() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ ' \t'.isspace() }} {{ 'ABC'.isupper() }} {{ 'aBC'.isupper() }} {{ 'abc1'.islower() }} {{ '1'.islower() }} {{ 'é'.isalpha() }} {{ 'é1'.isalnum() }} {{ '中'.isalpha() }} {{ 'a b'.isalpha() }} {{ '½'.isnumeric() }} {{ 'abc'.isascii() }} {{ 'é'.isascii() }} {{ 'a\n'.isprintable() }}
{{ 'a' in s }} {{ 'Hello' in s }} {{ '' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 1.0 in l }} {{ 'a' in d }} {{ 'z' not in d }} {{ [1] in lm }} {{ none in lm }} {{ true in [1] }} {{ 'a' in d.keys() }} {{ 1 in d.values() }} {{ ('a', 1) in d.items() }}
{{ 1 in s }}
{{ 1 in 5 }}
{{ [1] in d }}
{{ 'a' < 'b' }} {{ 'a' < 'B' }} {{ [1, 2] < [1, 3] }} {{ [1] < [1, 0] }} {{ (1, 2) > (1,) }} {{ 1 < 2.5 }} {{ true < 2 }} {{ 'é' > 'z' }} {{ '' < 'a' }} {{ 9007199254740993 > 9007199254740992.0 }} {{ 9007199254740993 == 9007199254740992.0 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ [1] < ['a'] }}
{{ {} < {} }}
{{ [1, 2] == [1, 2] }} {{ [1] == (1,) }} {{ {'a': 1} == {'a': 1.0} }} {{ {'a': [1]} != {'a': [2]} }} {{ none == false }} {{ 0 == false }} {{ '1' == 1 }} {{ [] == [] }} {{ range(3) == range(0, 3) }} {{ 'a' == "a" }}
{{ 1 and 2 }} {{ 0 and 2 }} {{ 1 or 2 }} {{ 0 or '' or [] }} {{ none or 'x' }} {{ not '' }} {{ not [0] }} {{ 1 and '' or 'z' }} {{ true and false }} {{ nil and nil.x.y }}
{{ 'a' if true }} {{ 'a' if false }} {{ 'a' if false else 'b' }} {{ 1 if 0 else 2 if 0 else 3 }} {{ ('x' if false) is defined }} {{ (1 if 2) + 3 }}
{{ ('a' if false) + 'x' }}
{{ i is odd }} {{ i is even }} {{ i is divisibleby 7 }} {{ i is divisibleby(2) }} {{ i is not odd }} {{ n is odd }} {{ f is odd }} {{ z is even }} {{ 6 is divisibleby 4 }}
{{ nil is none }} {{ i is none }} {{ i is number }} {{ t is number }} {{ f is number }} {{ i is integer }} {{ t is integer }} {{ f is float }} {{ t is boolean }} {{ t is true }} {{ 1 is true }} {{ no is false }} {{ 0 is false }} {{ s is string }} {{ d is mapping }} {{ l is mapping }}
{{ s is sequence }} {{ l is sequence }} {{ d is sequence }} {{ i is sequence }} {{ missing is sequence }} {{ range(2) is sequence }} {{ d.keys() is sequence }} {{ s is iterable }} {{ i is iterable }} {{ l is iterable }} {{ missing is iterable }} {{ nil is iterable }} {{ d.items() is iterable }} {{ l|map('upper') is iterable }}
{{ 'a' is lower }} {{ 'A' is upper }} {{ 'aB' is lower }} {{ 1 is eq 1 }} {{ 1 is equalto 2 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is le 1 }} {{ 2 is gt 1 }} {{ 2 is ge 3 }} {{ 1 is lessthan 2 }} {{ 1 is greaterthan 2 }} {{ 1 is in [1, 2] }} {{ 'a' is in 'abc' }} {{ 3 is not in [1] }} {{ 1 is sameas 1 }} {{ none is sameas none }} {{ true is sameas 1 }}
{{ range is callable }} {{ i is callable }} {{ s.upper is callable }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ 'nope' is test }} {{ h is escaped }} {{ h|e is escaped }} {{ h|safe is escaped }} {{ missing is undefined }} {{ namespace is defined }}
{{ 'a' is odd }}
{{ i is nope }}
{{ i|nope }}
{% if false %}{{ i|nope }}{% endif %}ok
{% if true %}{{ i|nope }}{% endif %}
{{ (i|nope) if false else 'ok' }}
{% if false %}{% for x in l %}{{ x|nope }}{% endfor %}{% endif %}
{% if false %}{{ i is nope }}{% endif %}ok
{% macro m() %}{{ 1|nope }}{% endmacro %}
{{ l|length }} {{ s|length }} {{ u|length }} {{ d|length }} {{ l|count }} {{ e|length }} {{ q|length }}
{{ i|length }}
{{ l|first }} {{ l|last }} {{ s|first }} {{ s|last }} {{ el|first }} {{ el|last }} {{ d|first }} {{ d|last }} {{ range(3)|last }} {{ u|last }} {{ d.keys()|first }}
{{ (l|map('string'))|last }}
{{ l|sum }} {{ el|sum }} {{ [1.5, 2]|sum }} {{ ld|selectattr('v')|sum(attribute='v') }} {{ [[1], [2]]|sum(start=[]) }} {{ l|sum(start=10) }}
{{ ['a']|sum }}
{{ l|min }} {{ l|max }} {{ ls|min }} {{ ls|max }} {{ ls|min(case_sensitive=true) }} {{ el|min }} {{ ld[:3]|max(attribute='v') }} {{ [1, 2.5, true]|max }}
{{ lm|max }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ ls|sort }} {{ ls|sort(case_sensitive=true) }} {{ ls|sort(true) }} {{ ld[:3]|sort(attribute='v')|map(attribute='n')|list }} {{ ld[:3]|sort(attribute='g,n')|map(attribute='n')|list }} {{ 'bca'|sort }} {{ d|sort }} {{ [[2], [1, 5], [1]]|sort }} {{ [3, 1.5, true]|sort }}
{{ lm|sort }}
{{ ld|sort(attribute='v') }}
{{ l|reverse|list }} {{ s|reverse }} {{ d|reverse|list }} {{ range(3)|reverse|list }} {{ (l|map('string'))|reverse }} {{ el|reverse|list }} {{ u|reverse }} {{ d.items()|reverse|list }}
{{ i|reverse }}
{{ ls|unique|list }} {{ ['a', 'A', 'b', 'a']|unique|list }} {{ ['a', 'A']|unique(true)|list }} {{ ld|unique(attribute='g')|map(attribute='n')|list }} {{ [1, 1.0, true, 2]|unique|list }}
{{ [[1], [1]]|unique|list }}
{{ d|dictsort }} {{ {'b': 1, 'A': 2, 'c': 0}|dictsort }} {{ {'b': 1, 'A': 2, 'c': 0}|dictsort(true) }} {{ {'b': 1, 'A': 2, 'c': 0}|dictsort(false, 'value') }} {{ {'b': 1, 'A': 2}|dictsort(reverse=true) }} {{ ed|dictsort }}
{{ l|dictsort }}
{{ {'a': 1, 2: 3}|dictsort }}
{{ d|dictsort(by='x') }}
{{ d|items|list }} {{ missing|items|list }}{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}
{{ l|items|list }}
{{ l|batch(2)|list }} {{ l|batch(2, 'x')|list }} {{ el|batch(2)|list }} {{ l|slice(2)|list }} {{ l|slice(2, 'x')|list }} {{ range(7)|slice(3)|list }} {{ range(7)|slice(3, 0)|list }}
{% for g in ld[:3]|groupby('g') %}{{ g.grouper }}:{{ g.list|map(attribute='n')|join(',') }};{% endfor %}{% for k, v in ld[:3]|groupby('g', case_sensitive=true) %}{{ k }}{{ v|length }}{% endfor %}{% for k, v in ld|groupby('v', default=0) %}{{ k }}{{ v|length }}{% endfor %}{{ [1, 2, 1]|groupby(0) if false }}
{{ ld|map(attribute='n')|list }} {{ ld|map(attribute='v', default=9)|list }} {{ ls|map('upper')|list }} {{ l|map('string')|join('-') }} {{ ls|map('replace', 'a', 'x')|list }} {{ [[3, 1], [2]]|map('sort')|list }} {{ [d]|map(attribute='b.c.0')|list }} {{ [d]|map(attribute='b.zz')|list }} {{ nested|map(attribute=0)|list }} {{ ['a']|map('default', 'x')|list }}
{{ ld|map('nope')|list }}
{{ ld|map()|list }}
{{ ld|map(foo='x')|list }}
{{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ tr|select|list }} {{ tr|reject|list }} {{ l|select('gt', 1)|list }} {{ l|select('in', [1, 2])|list }} {{ ls|select('equalto', 'a')|list }} {{ ld|selectattr('v')|map(attribute='n')|list }} {{ ld|selectattr('v', 'gt', 1)|map(attribute='n')|list }} {{ ld|rejectattr('v')|map(attribute='n')|list }} {{ ld|selectattr('v', 'defined')|list|length }} {{ ld|selectattr('g', 'equalto', 'a')|list }} {{ ld|rejectattr('g', 'undefined')|list|length }}
{{ (l|select('odd')) is string }} {{ (el|select('odd')) and 1 }} {{ l|select('odd')|length }}
{{ l|select('nope')|list }}
{{ l|selectattr|list }}
{{ ld|selectattr('v', 'gt', 'x')|list }}
{{ l|join }} {{ l|join(', ') }} {{ lm|join('|') }} {{ ld|join(',', attribute='n') }} {{ s|join('.') }} {{ el|join('x') }} {{ d|join(',') }} {{ l|join(1) }} {{ [none, true]|join('-') }}
{{ i|join }}
{{ s|list }} {{ d|list }} {{ (1, 2)|list }} {{ range(2)|list }} {{ u[:3]|list }}
{{ i|list }}
{{ '42'|int }} {{ num|int }} {{ fl|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ '0x1F'|int(base=16) }} {{ '0x1F'|int(0, 16) }} {{ '101'|int(base=2) }} {{ 3.99|int }} {{ -3.99|int }} {{ nil|int }} {{ true|int }} {{ l|int }} {{ '1_000'|int }} {{ '-5'|int }} {{ '+5'|int }} {{ '1e3'|int }} {{ ' 7.9 '|int }} {{ ''|int }} {{ '0b11'|int }} {{ 'z'|int(base=36) }} {{ 'inf'|int(3) }} {{ '5_'|int }} {{ '0x'|int(base=16) }} {{ '١'|int if false }}
{{ '1e400'|float|int }}
{{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ nil|float }} {{ ' 1e-3 '|float }} {{ '.5'|float }} {{ '5.'|float }} {{ 'inf'|float }} {{ '-nan'|float }} {{ '1_0.5'|float }} {{ 'infinity'|float }} {{ '1e5'|float }} {{ '1__0'|float }} {{ true|float }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 42.55|round(1, 'floor') }} {{ 42.51|round(1, 'ceil') }} {{ 42|round }} {{ -2.5|round }} {{ 1234|round(-2) }} {{ 1250|round(-2) }} {{ 1350|round(-2) }} {{ 1.005|round(2) }} {{ 0.5|round }} {{ 1.5|round }} {{ 1e20|round(3) }} {{ 123.456|round(-1) }} {{ 5|round(2, 'ceil') }} {{ true|round }} {{ -7|round(-1) }} {{ 15|round(-1) }} {{ 25|round(-1) }}
{{ 1|round(0, 'x') }}
{{ 'a'|round }}
{{ -5|abs }} {{ 5.5|abs }} {{ (-5)|abs }} {{ -2.5|abs }} {{ true|abs }}
{{ 'a'|abs }}
{{ h|e }} {{ h|escape|e }} {{ h|forceescape }} {{ h|e|forceescape }} {{ h|safe }} {{ h|safe|e }} {{ (h|safe) + '<' }} {{ '<' + (h|safe) }} {{ (h|e) ~ '<' }} {{ ('<'|safe) * 2 }} {{ ('<%s>'|safe) % '<' }} {{ ('<{}>'|safe).format('<') }} {{ ('<'|safe).join(['<', '>'|safe]) }} {{ [h|safe] }} {{ (h|safe)|upper }} {{ ('<'|safe)|replace('<', '&') }} {{ ('<b>'|safe).replace('b', '<') }} {{ (h|safe)[0] + '<' }} {{ ('a<'|safe).split('<')[0] + '<' }} {{ 5|e }} {{ none|e }} {{ ('<'|safe) == '<' }} {{ ('<'|safe)|string + '>' }} {{ ('<'|safe)|tojson }} {{ ('<'|e)|length }} {{ '<' in ('<'|safe) }} {{ ('<'|safe)|trim + '<' }} {{ {'<'|safe: 1}['<'] }}
{{ 'a\nb\n\nc'|indent }} {{ 'a\nb'|indent(2, true) }} {{ 'a\n\nb'|indent(2, blank=true) }} {{ 'a\nb'|indent('> ') }} {{ ''|indent }}| {{ 'a\n'|indent(1) }}| {{ 'a\r\nb'|indent(1) }} {{ 'x'|indent(first=true) }} {{ 'a\nb'|indent(0) }} {{ 'a\nb'|indent(width=3) }}
{{ 5|indent }}
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ 'foo bar'|truncate(3, true, '', 0) }} {{ 'foobarbaz'|truncate(5, false, '..', 0) }}
{{ 'foo bar'|truncate(1) }}
{{ 'a b  c_d e-f 1'|wordcount }} {{ ''|wordcount }} {{ u|wordcount }} {{ 'it\'s'|wordcount }}
{{ '%s %d %5.2f|%-5s|%05d|%x|%X|%o|%e|%g|%c|%%|%r|%+d|% d|%#x' % ('a', 5, 3.14159, 'b', 42, 255, 255, 8, 12345.678, 0.0001, 'z', 'q', 3, 4, 255) }}
{{ '%s' % 5 }} {{ '%s' % 'x' }} {{ '%s' % [1] }} {{ '%(a)s %(b)s' % {'a': 1, 'b': none} }} {{ '%5s|' % 'é' }} {{ '%.2s' % 'abc' }} {{ '%*d' % (5, 42) }} {{ 'abc' % {} }} {{ '%s' % none }} {{ '%d' % 3.99 }} {{ '%s' % (true,) }} {{ '%i' % true }} {{ '%.3d' % 5 }} {{ '%+.1f' % -2.55 }} {{ '%g' % 1e10 }} {{ '%g' % 100000.0 }} {{ '%.0f' % 2.5 }} {{ '%10.3e|' % 1234.5 }} {{ '%F' % 1.5 }} {{ '%G' % 1e-10 }} {{ '%c' % 65 }} {{ '%s' % missing }} {{ '%-8.3f|' % 2.0 }} {{ '%05.1f' % -2.25 }} {{ '%ld' % 5 }}
{{ '%s %s' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ 'a' % 'b' }}
{{ '%d' % 'a' }}
{{ '%z' % 1 }}
{{ '%' % 1 }}
{{ "%s-%s"|format('a', 1) }} {{ "%(x)s"|format(x=5) }} {{ "%s"|format([1]) }}
{{ '{} {}'.format(1, 'a') }} {{ '{0} {1} {0}'.format('a', 'b') }} {{ '{x} {y}'.format(x=1, y='z') }} {{ '{0[a]} {0[b]}'.format({'a': 1, 'b': 2}) }} {{ '{0[1]}'.format([5, 6]) }} {{ '{{}} {}'.format(1) }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }} {{ '{!r} {!s}'.format('a', 'b') }} {{ '{:5}|{:05d}|{:+d}|{:,}|{:_}'.format(42, 42, 42, 1234567, 1234567) }} {{ '{:.2f} {:.3} {:e} {:g} {:%} {:.1%}'.format(3.14159, 3.14159, 12345.678, 0.00001, 0.5, 0.256) }} {{ '{:x} {:X} {:o} {:b} {:#x} {:#b} {:c}'.format(255, 255, 8, 5, 255, 5, 65) }}
{{ '{:10.3f}|{:<10.2e}|{:010.2f}|{:,.2f}'.format(3.14159, 31415.9, -3.14159, 1234567.891) }} {{ '{:.2}'.format('abc') }} {{ '{:{}}|'.format('x', 5) }} {{ '{:>{w}}'.format('x', w=4) }} {{ '{}'.format(none) }} {{ '{}'.format([1, 'a']) }} {{ '{:5}|'.format(true) }} {{ '{:d}'.format(true) }} {{ '{}'.format(1.0) }} {{ '{:g}'.format(100000.0) }} {{ '{:n}'.format(5) }} {{ '{0.x}'.format({'x': 1}) }} {{ '{:06}'.format(-42) }} {{ '{:=+6}'.format(42) }} {{ '{:é>4}'.format('a') }} {{ '{:.0f}'.format(0.5) }} {{ '{:3}|'.format('abcd') }} {{ '{:05}'.format('ab') }} {{ '{:#.0f} {:#g}'.format(1.0, 1.0) }} {{ '{:,}'.format(123456.789) }} {{ '{:.3}'.format(1e10) }} {{ '{:.10}'.format(1.0) }} {{ '{:}'.format('x') }} {{ ''.format() }}
{{ '{}'.format() }}
{{ '{} {0}'.format(1) }}
{{ '{'.format(1) }}
{{ '}'.format(1) }}
{{ '{x}'.format(1) }}
{{ '{:d}'.format('a') }}
{{ '{:d}'.format(1.5) }}
{{ '{:s}'.format(1) }}
{{ '{:5}'.format(none) }}
{{ '{:5}'.format([1]) }}
{{ '{!x}'.format(1) }}
{{ '{a}'.format_map({'a': 5}) }}
{{ 'a' 'b' "c" }} {{ 'a\tb' }} {{ '\x41\u00e9\U0001F600\101\0' }} {{ '\q' }} {{ '\\' }} {{ "\"" }} {{ '\é' }} {{ '\€x' }} {{ '\'' }} {{ "\a\b\f\v"|tojson }}
{{ '\x4' }}
{{ '\u12' }}
{{ '\N{DASH}' if false }}x
{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.5_0 }} {{ 0 }} {{ 00 }} {{ 1.5e3 }} {{ 1e+2 }} {{ 1E-2 }} {{ 0xFF_FF }}
{{ 012 }}
{{ 1__0 }}
{{ 1.e5 }}
{{ l.1 }} {{ nested.0.1.0 }} {{ nested[0][1][1][0] }} {{ 1.5.x is defined }}
{{ 'a'.b is defined }} {{ 5.real if false }} {{ d|attr('keys') is defined }} {{ d|attr('a') is defined }} {{ d|attr('b') }}|{{ s|attr('upper')() }}
{% set x = 1 %}{{ x }}{% set y, z = 2, 3 %}{{ y }}{{ z }}{% set (a, b), c = [1, 2], 3 %}{{ a }}{{ b }}{{ c }}{% set k = 1, 2 %}{{ k }}
{% set a, b = [1] %}
{% set a, b = [1, 2, 3] %}
{% set a, b = 5 %}
{% set a, b = 'xy' %}{{ a }}{{ b }}{% set a, b = {'k': 1, 'l': 2} %}{{ a }}{{ b }}
{% set 'a' = 1 %}
{% set true = 1 %}
{% set a.b = 1 %}
{% set d.x = 1 %}
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}{{ ns.b is defined }}{% set ns.b, ns.c = 2, 3 %}{{ ns.b }}{{ ns.c }}{{ ns['a'] }}{{ ns }}
{% set ns = namespace({'x': 1}, y=2) %}{{ ns.x }}{{ ns.y }}{% for i in range(3) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns is mapping }}{{ ns is iterable }}
{% set ns = namespace([('a', 1)]) %}{{ ns.a }}{{ dict(a=1, b=2) }}{{ dict({'x': 1}, y=2) }}{{ dict([('k', 'v')]) }}{{ dict() }}
{% set ns = namespace(1) %}
{% set x %}block {{ i }}{% endset %}[{{ x }}]{% set y | upper %}up{% endset %}{{ y }}{% set z | replace('a', 'b') | upper %}aaa{% endset %}{{ z }}
{% for x in l %}{% set y = x %}{{ y }}{% endfor %}{{ y is defined }}
{% set y = 0 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }}{% endfor %}{{ y }}
{% if true %}{% set y = 1 %}{% endif %}{{ y }}{% if false %}{% set zz = 1 %}{% endif %}{{ zz is defined }}{% if false %}{% set i = 100 %}{% endif %}{{ i }}
{% for x in [1] %}{{ i }}{% endfor %}{% set i = 5 %}{{ i }}
{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% set i = 5 %}{{ f() }}
{% macro f() %}{{ i }}{% endmacro %}{{ i }}{{ f() }}{% set i = 5 %}{{ f() }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.last }};{% else %}none{% endfor %}{% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}
{% for x in l %}{% for y in ls %}{{ loop.index }}{{ x }}{{ y }}{% endfor %}{{ loop.index }};{% endfor %}
{% for a, b in [[1, 2], (3, 4), 'xy'] %}{{ a }}{{ b }};{% endfor %}{% for k, v in d.items() %}{{ k }};{% endfor %}{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [[1]] %}{% endfor %}
{% for x in i %}{% endfor %}
{% for x in nil %}{% endfor %}
{% for x in s %}{{ x }}.{% endfor %}{% for x in d %}{{ x }}{% endfor %}{% for x in u %}{{ x }}|{% endfor %}{% for x in range(3) %}{{ x }}{% endfor %}{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% continue %}{% else %}else{% endfor %}{% for x in l %}{% break %}{% else %}else{% endfor %}{% for x in [] %}{% else %}else{% endfor %}
{% break %}
{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% for x in l %}{% set y %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endset %}{{ y }}{% endfor %}
{% for x in nested recursive %}{{ loop.depth }}{% if x is iterable and x is not mapping %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% for loop in l %}{% endfor %}
{% for x in l %}{% set loop = 1 %}{% endfor %}
{{ loop }}{{ loop is defined }}{% for x in l %}{% endfor %}{{ loop is defined }}{{ x is defined }}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}
{% for x in l|map('string') %}{{ loop.last }}{{ loop.length }}{{ x }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}{% for x in l|select('odd') %}{{ x }}{% else %}none{% endfor %}
{% set ns = namespace(go=true) %}{% for x in [1, 2, 3] if ns.go %}{{ x }}{% set ns.go = x < 2 %}{% endfor %}
{% set ns = namespace(go=true) %}{% for x in [1, 2, 3] if ns.go %}{{ x }}{{ loop.last }}{% set ns.go = x < 2 %}{% endfor %}
{% set g = l|map('string') %}{{ g|list }}{{ g|list }}{% set h2 = l|select %}{{ h2|first }}{{ h2|list }}
{% macro m(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=5) }}{{ m(b=1, a=2) }}{{ m() }}{{ m.name }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}{{ m() }}{% macro m2(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m2(1, 2, 3) }}
{% macro m(a, b) %}{{ a }}{{ b is defined }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(1, 2) %}body{% endcall %}
{% macro m() %}<{{ caller('x', 2) }}>{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}{% call(a, b=5, c=7) m() %}{{ a }}{{ b }}{{ c }}{% endcall %}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(5) }}
{% macro a() %}{% set i = 99 %}{{ i }}{% endmacro %}{{ a() }}{{ i }}{% macro b(x) %}{% macro c() %}{{ x }}{% endmacro %}{{ c() }}{% endmacro %}{{ b(4) }}
{% if true %}{% macro m() %}in if{% endmacro %}{% endif %}{{ m() }}{% for x in [1] %}{% macro k() %}{{ x }}{% endmacro %}{{ k() }}{% endfor %}{{ k is defined }}
{{ m() }}{% macro m() %}later{% endmacro %}
{% macro m(x=missing) %}{{ x is defined }}{% endmacro %}{{ m() }}{{ m(missing) }}{{ m(none) }}{% macro n2(x=[]) %}{{ x }}{% endmacro %}{{ n2() }}
{% macro m(a=1, b) %}{% endmacro %}
{% call 5 %}{% endcall %}
{% macro t() %}  {% if true %} a {% endif %}  {% endmacro %}[{{ t() }}]{{ m is defined }}{{ t }}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a is defined }}{% with %}{% set q2 = 1 %}{% endwith %}{{ q2 is defined }}{% with i = i + 1 %}{{ i }}{% endwith %}{{ i }}
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b')|upper %}banana{% endfilter %}{% filter trim %}  x  {% endfilter %}|
{% generation %}gen {{ i }}{% set gg = 1 %}{{ gg }}{% endgeneration %}{{ gg is defined }}
{% raw %}{{ x }}{% if %}{% endraw %}after{% raw -%}  a {%- endraw %} b{%- raw %} c {% endraw %}
{% print 1, 'a' %}{% if i %}{% elif z %}{% else %}{% endif %}{% if z %}1{% elif n %}2{% else %}3{% endif %}{% if z: %}a{% else: %}b{% endif %}
{% if %}{% endif %}
{% if true %}
{% endif %}
{% for x in l %}{% endif %}
{% nope %}
{% do l.append(1) %}
{% include 'x' %}
{% extends 'x' %}
{{ }}
{{ 1 2 }}
{{ 1 + }}
{{ (1 }}
{{ 1) }}
{{ [1, }}
{{ 'abc }}
{{ a b }}
{{ $ }}
{{ 1 | }}
{{ 1 is }}
{{ f(a=1, 2) }}
{{ dict(**{'a': 1}) }}{{ range(*[1, 3])|list }}{{ dict(a=1, **{'b': 2}) }}{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'b': 1, 'a': 2}) }}{{ m(1, *[5]) }}
{{ i is divisibleby }}
{{ raise_exception('own ' ~ 'words\n2') }}
{{ raise_exception() }}
{% if false %}{{ raise_exception('x') }}{% endif %}fine{{ raise_exception(5) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %j %U %W %V %G %a %A %b %B %p %I %y %e %d %u %w %% %D %F %T %R %C %-d %_d %-m %h') }} {{ strftime_now('') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%c|%x|%X') }} {{ strftime_now('%Z%z') }} {{ strftime_now('%f') }} {{ strftime_now('ü %B') }}
{% set c = cycler('a', 'b', 'c') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.current }}{% set jn = joiner('; ') %}{{ jn() }}a{{ jn() }}b{{ jn() }}{% set j2 = joiner() %}{{ j2() }}{{ j2() }}
{{ cycler() }}
{{ i() }}
{{ 'x'() }}
{{ d.a() }}
{{ s.nope() }}
{{ s.upper(1) }}
{{ s.replace('a') }}
{{ s|replace('a') }}
{{ s|upper(1) }}
{{ l|join(a=1) }}
{{ s|default(1, 2, 3) }}
{{ 'a'|default }} {{ missing|default }}| {{ ''|default('x', true) }} {{ none|default('x') }} {{ none|d('x', boolean=true) }} {{ missing|default(missing2)|default(3) }} {{ d.zz|default('q') }} {{ 0|default(1, true) }} {{ false|default('f') }}
{{ 1.0 }} {{ 1.10 }} {{ 1e2 }} {{ 1.0|string }} {{ 1|string + 'a' }} {{ none|string }} {{ true|string|lower }} {{ l|string }} {{ 123456789.123456789 }} {{ 0.1 }} {{ 1e-4 }} {{ 1e-5 }} {{ 123e-7 }} {{ 99999999999999999.0 }} {{ 1e23 }} {{ 4.35 }} {{ 2.0**0.5 }} {{ 1.1*1.1 }} {{ 3.0*1.0 }}
{{ {'a': {'b': 1}}.a.b }} {{ [[1, 2]][0][1] }} {{ 'abc'[1] }} {{ ('a', 'b')[1] }} {{ {'x': 1}['x'] }} {{ [1, 2, 3][1:][0] }} {{ 'a b'.split()[1] }} {{ s.split('o')[0].upper().lower() }} {{ (i, n)|sum }} {{ (l + [5])|length }} {{ (s ~ s)|length }}
{{ l is defined and l|length > 2 and l[0] == 3 }}{{ not l is defined }}{{ (l is string) or (d is mapping) }}{{ l is not string and not d is string }}
{{ 'a' if i == 7 and s is string else 'b' }} {{ 'x' if not missing else 'y' }} {{ i if i is defined else 0 }} {{ [x for x in l] if false }}
{{ d.b.c|map('string')|join('|') }} {{ d.b.c|tojson|length }} {{ (d.b.c|first) + 1 }} {{ l|sort|first }} {{ ls|map('lower')|unique|sort|join(',') }} {{ ld|map(attribute='n')|map('upper')|join }} {{ ld|selectattr('v', 'defined')|sort(attribute='v')|map(attribute='v')|list|tojson }}
{% set ns = namespace(s='x' * 2000) %}{% for i in range(50) %}{% set ns.s = ns.s ~ i ~ '-' %}{% set t = ns.s ~ 'junk' %}{{ (ns.s ~ 'y')|length }}{{ t[-9:] }}{% endfor %}{{ ns.s|length }}{{ ns.s[-20:] }}
{% set ns = namespace(s='x' * 2000, t='y' * 3000) %}{% macro add(x) %}{% set ns.s = ns.s ~ x %}{{ ns.s[-5:] }}{% endmacro %}{% for i in range(30) %}{% set old = ns.s %}{{ add(i) }}{% set ns.t = ns.t + ns.s[-3:] %}{% set a = old ~ 'A' %}{% set b = old ~ 'B' %}{{ a[-3:] }}{{ b[-3:] }}{{ add('z') }}{% endfor %}{{ ns.s|length }}{{ ns.t[-50:] }}
{% for k in range(3) %}{% set ns = namespace(s='q' * 1500) %}{% for i in range(20) %}{% set ns.s = ns.s ~ 'ab' %}{% set ns.s = ns.s ~ ns.s[:1] %}{% endfor %}{{ ns.s[1490:] }}{% endfor %}
{% set ns = namespace(s='') %}{% for w in s.split() %}{% set ns.s = ns.s + w * 700 %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}{{ ns.s[-10:] }}{{ ns.s[5000:5010] }}
{{ urlencode }}{{ 'a b/ü?'|urlencode }}{{ 5|urlencode }}
{{ range|string|length > 0 }}
{{ 'ab' in ['ab', 'c'] and 'd' not in ['e'] }}{{ 'a' == 'a' and not 'b' == 'a' }}{{ 1 if 'x' in 'xyz' else 2 }}{{ 'x' not in 'abc' }}{{ not 'x' in 'abc' }}
{{ -1 ** 2 }}{{ - 1 }}{{ +1 }}{{ --1 }}{{ not not 1 }}{{ -i|abs }}{{ -(i|abs) }}{{ 2 - -1 }}{{ 2-1 }}{{ i-1 }}{{ 2 *3+ 4 ~ 5 }}{{ 1 ~ 2 + 3 }}{{ 1 + 2 ~ 3 * 4 }}
"""


LAYOUTS = [
    "{# comment #}a{#- comment -#} b {#+ c +#} c {# multi\nline #}\nd\n  {# indented #}\ne",
    "{# unclosed",
    "{% if true %}\n  a\n{% endif %}\nb\n  {% if true %}  c  {% endif %}\n  {%+ if true %}d{% endif +%}\ne"
    " {%- if true -%}  f  {%- endif -%}  g\n{{- ' h ' -}}  i\n   {{ 1 }}\n{{ 2 }}\n\t{% if 1 %}x{% endif %}\t\n",
    "a\r\nb\rc\n{{ 'x\r\ny' }}\r\n",
    "a\n", "a\n\n", "\n", "", " ", "{{ 1 }}\n", "{% if true %}\n\n\nx{% endif %}\n\n",
    "{%- for x in l -%}\n  {{ x }}\n{%- endfor -%}\n",
    "  {%- if true %} a\n  {%- endif %} b", "x  {%+ if true +%}\n  y{% endif %}",
    "\u00a0{%- if true -%}\u2003x{% endif %}",
    "{% raw %}\n a {% endraw %}\n b", "  {% raw -%}\n a {%- endraw -%}\n b", "{%- raw %} {{ a }}\n  {% endraw +%}\n c",
    "{% raw %}x{% endraw", "{%raw%}{%endraw%}", "{{'a\\\nb'}}", "{{ 'a\nb' }}", "{{\n1\n+\n2\n}}",
    "{%\nif\ntrue\n%}x{%\nendif\n%}",
    "{{-1}}", "{{- -1 -}}", "{{ {} }}", "{{ {'a':{'b':1}} }}", "{{ {'a': {}}}}", "{%if true%}{{'}}'}}{%endif%}",
    "{{ '%}' }}{% if '%}' %}x{% endif %}",
    "{ { a } }", "{", "{{", "{%", "{#", "}}", "%}", "#}", "{{}}", "{#}#}", "{#-#}", "{#--#}x", "a{# #}\nb",
    "{{ 1 }}{# #}\n\nb",
    "{% set x = 'a' -%}\n\n  b", "{% set x = 'a' +%}\n  b", "\ufeffx", "x{{ 1 -}}\n\n y", "x \n\n{{- 1 }}",
    "\t {% if true %}\t\n x {% endif %}\n y", "a {% if true %}\nb{% endif %}\nc",
    "line\u2028 {% if true %}x{% endif %}", "line\x0b {% if true %}x{% endif %}",
    "line\x0c{%- if true -%}\x1cx{% endif %}",
]


def check_snippets(env, peer, args):
    for text in SNIPPETS.strip("\n").split("\n") + LAYOUTS:
        variables = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": True,
                     "bos_token": "<s>",
                     "eos_token": "</s>", **VARIABLES}
        request = {"messages": [], "bos": "<s>", "eos": "</s>", "variables_json": json.dumps(VARIABLES)}
        if not compare(env, peer, repr(text[:100]), text, variables, request) and args.stop:
            return

def check_letters(env, peer):
    """All assigned characters: cases, classes, repr."""
    import unicodedata
    text = ("{{ s|upper }}|{{ s|lower }}|{{ s.swapcase() }}|{% for c in s %}{{ c.title() }}{{ (c ~ 'A').capitalize() }}"
            "{{ c.isalpha()|int }}{{ c.isspace()|int }}{{ [c] }}{% endfor %}")
    parts = [*range(1, 0x3400), *range(0xF900, 0x17000), *range(0x1B000, 0x20000)]  # without long runs of the same
    points = [chr(c) for c in parts if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    for i in range(0, len(points), 1000):
        s = "".join(points[i:i + 1000])
        compare(env, peer, f"characters from U+{ord(points[i]):04X}", text, {"s": s},
                {"variables_json": json.dumps({"s": s})})


# ---- Random templates ----

class Writer:
    """Writes random templates of which a good part means something."""

    FILTERS = ("upper lower title capitalize trim length first last list string int float abs round sort reverse "
               "unique join tojson items dictsort e safe indent sum min max default d count batch(2) slice(2) "
               "join(', ') sort(reverse=true) default('x') default('y',true) round(1) int(5) replace('a','b') "
               "replace('l','') map('upper') map('string') map(attribute='n') map(attribute='v',default=0) select "
               "select('odd') reject select('string') selectattr('v') rejectattr('v') selectattr('v','gt',1) "
               "groupby('n') truncate(5) center(9) tojson(indent=2) tojson(ensure_ascii=true) dictsort(reverse=true) "
               "trim('x') attr('upper') round(0,'floor') format(1) forceescape min(attribute='v') sum(attribute='v') "
               "batch(3,'-')").split()
    TESTS = ("defined undefined none string number integer float boolean true false mapping sequence iterable odd "
             "even callable lower upper escaped in(l) eq(1) ne('a') lt(3) gt(2) divisibleby(2) sameas(none) "
             "in('abc')").split()
    METHODS = ("upper() lower() strip() lstrip() rstrip() split() split('l') split(',',1) rsplit('o',1) splitlines() "
               "title() capitalize() replace('a','b') replace('l','L',1) startswith('H') endswith('d') find('o') "
               "rfind('l') count('l') index('l') join(ls) items() keys() values() get('a') get('zz',1) get(1) "
               "format(1,2) isdigit() isalpha() isupper() partition('l') rpartition('o') zfill(5) center(8) ljust(7) "
               "swapcase() strip('H') removeprefix('H') removesuffix('d') append(1) pop() count(1) index(1) "
               "isspace() isalnum() expandtabs() copy() update({})").split()
    NAMES = "i n z f g t no nil s e u w q l ls lm el d ed ld h lines num fl path nested tr missing x y en".split()
    LITERALS = ["1", "0", "2", "-1", "3.5", "0.1", "10", "'a'", "'Hello'", "''", "'l'", "\"x'y\"", "'a,b'", "[]",
                "{}", "[1, 2, 3]",
                "['a', 'b']", "{'a': 1, 'b': 2}", "true", "false", "none", "(1, 2)", "range(3)", "'%s'", "'{}'",
                "'ß'", "' '"]

    def __init__(self, seed):
        self.r = random.Random(seed)

    def expression(self, depth):
        r = self.r
        if depth <= 0 or r.random() < 0.15:
            return r.choice(self.NAMES) if r.random() < 0.6 else r.choice(self.LITERALS)
        e = lambda: self.expression(depth - 1)
        k = r.randrange(24)
        if k < 5:
            return f"{e()}|{r.choice(self.FILTERS)}"
        if k < 8:
            return f"({e()}).{r.choice(self.METHODS)}"
        if k < 10:
            return f"{e()} {r.choice('+ - * / // % ~'.split())} {e()}"
        if k < 12:
            return f"{e()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()}"
        if k == 12:
            return f"({e()} is {r.choice(['', 'not '])}{r.choice(self.TESTS)})"
        if k == 13:
            return f"({e()} {r.choice(['and', 'or'])} {e()})"
        if k == 14:
            return f"(not {e()})"
        if k == 15:
            return f"({e()} if {e()} else {e()})" if r.random() < 0.8 else f"({e()} if {e()})"
        if k == 16:
            return f"({e()})[{e()}]"
        if k == 17:
            part = lambda: r.choice(["", "", "0", "1", "-1", "2", "-2", "5"])
            step = r.choice(["", "", ":", ":2", ":-1"])
            # of a name: what is constant Jinja folds, by other rules
            return f"{r.choice(self.NAMES)}[{part()}:{part()}{step}]"
        if k == 18:
            return f"({e()}).{r.choice('a b n v items zz keys x'.split())}"
        if k == 19:
            return "[" + ", ".join(e() for _ in range(r.randrange(4))) + "]"
        if k == 20:
            pairs = [f"{r.choice(['1', repr('a'), repr('n'), e()])}: {e()}" for _ in range(r.randrange(3))]
            return "{" + ", ".join(pairs) + "}"
        if k == 21:
            return f"-{e()}"
        if k == 22:
            return f"({e()} {r.choice(['<', '==', '>='])} {e()} {r.choice(['<', '!=', 'in'])} {e()})"
        return f"({e()})"

    def tag(self, text):
        r = self.r
        return "{%" + r.choice(["", "", "", "-", "+"]) + " " + text + " " + r.choice(["", "", "", "-", "+"]) + "%}"

    def statements(self, depth):
        r, out = self.r, []
        for _ in range(r.randrange(1, 4)):
            out.append(r.choice(["", "\n", "  ", "\n  ", "t", "\n\n", " w ", "\t"]))
            k = r.randrange(14)
            e = self.expression(r.randrange(4))
            if depth <= 0 or k < 5:
                out.append("{{" + r.choice(["", "-"]) + " " + e + " " + r.choice(["", "-"]) + "}}")
            elif k < 7:
                out += [self.tag("if " + e), self.statements(depth - 1)]
                if r.random() < 0.3:
                    out += [self.tag("elif " + self.expression(2)), self.statements(depth - 1)]
                if r.random() < 0.5:
                    out += [self.tag("else"), self.statements(depth - 1)]
                out.append(self.tag("endif"))
            elif k < 9:
                target = r.choice(["x", "x", "y", "i", "x, y"])
                test = f" if {self.expression(2)}" if r.random() < 0.25 else ""
                out += [self.tag(f"for {target} in {e}{test}"), self.statements(depth - 1)]
                if r.random() < 0.3:
                    member = r.choice("index index0 first last length revindex previtem nextitem".split())
                    out.append("{{ loop.%s }}" % member)
                if r.random() < 0.1:
                    out.append(self.tag("if " + self.expression(1)) + self.tag(r.choice(["break",
                        "continue"])) + self.tag("endif"))
                if r.random() < 0.2:
                    out += [self.tag("else"), self.statements(depth - 1)]
                out.append(self.tag("endfor"))
            elif k == 9:
                out.append(self.tag(f"set {r.choice(['x', 'y', 'i', 's', 'x, y'])} = {e}"))
            elif k == 10:
                out += [self.tag("set " + r.choice("xyl")), self.statements(depth - 1), self.tag("endset")]
            elif k == 11:
                n = r.choice("mk")
                out += [self.tag(f"macro {n}({r.choice(['', 'x', 'x, y=2', 'i=x'])})"), self.statements(depth - 1),
                        self.tag("endmacro"),
                        "{{ %s(%s) }}" % (n, r.choice(["", "1", "s", "1, 2", "x=l"]))]
            elif k == 12:
                out += [self.tag("set ns = namespace(a=1)"), self.tag(f"set ns.{r.choice('ab')} = {e}"),
                        "{{ ns.a }}{{ ns.b }}"]
            else:
                out += [self.tag(f"with x = {e}"), self.statements(depth - 1), self.tag("endwith")]
        return "".join(out)


def check_random(env, peer, args):
    seed = int(os.environ.get("NOVA_SEED", "1"), 0)
    print(f"seed {seed}")
    w = Writer(seed)
    variables = json.dumps(VARIABLES)
    for _ in range(args.random):
        text = w.statements(2) if w.r.random() < 0.5 else "{{ " + w.expression(4) + " }}"
        compiled.clear()
        if not compare(env, peer, repr(text), text, {"tools": None, "messages": [], "documents": None, **VARIABLES},
                       {"messages": [], "variables_json": variables}, free=True) and args.stop:
            return


def main():
    global skipped
    p = argparse.ArgumentParser()
    p.add_argument("render")
    p.add_argument("--templates")
    p.add_argument("--gguf", action="append", default=[])
    p.add_argument("--only", default="")
    p.add_argument("--stop", action="store_true")
    p.add_argument("--random", type=int, default=1000, help="how many random templates")
    args = p.parse_args()
    warnings.simplefilter("ignore")
    try:
        env = environment()
    except ImportError as e:
        print(f"skipped: {e}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    peer = Peer(args.render)
    if not templates(args):
        skipped += 1
        print(f"skipped: no templates in {DATA}")
    check_templates(env, peer, args)
    if not args.only:
        check_snippets(env, peer, args)
        check_letters(env, peer)
        check_random(env, peer, args)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
