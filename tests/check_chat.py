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
import datetime
import glob
import json
import os
import random
import struct
import subprocess
import sys

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
        "days": {"type": "integer", "description": "How many", "minimum": 1, "maximum": 14, "default": 3}}, ["location"]),
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
    "unicode": [m(S, "Ω≈ç√ 你好"), m(U, "Привет, ЁЖИК! \U0001F600\u200d\U0001F680 é\u0301 ı İ ß"), m(A, "こんにちは"), m(U, "؟")],
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
              m(T, "{\"t\": 21.5}", tool_call_id="call00001", name="get_weather"), m(A, "21.5 degrees"), m(U, "thanks")],
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
    "tool json": [m(U, "go"), m(A, None, [call("f", {}, "id1")]), m(T, None, content={"temperature": 3, "ok": True}, name="f"),
                  m(U, "so?")],
    "parts": [m(U, None, content=[{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}]),
              m(A, "ok"), m(U, "next")],
    "parts all": [m(S, None, content=[{"type": "text", "text": "sys"}]), m(U, None, content=[{"type": "text", "text": "u"}]),
                  m(A, None, content=[{"type": "text", "text": "a"}]), m(U, None, content=[])],
    "image": [m(U, None, content=[{"type": "image"}, {"type": "text", "text": "what is it?"}]), m(A, "a cat"), m(U, "sure?")],
    "assistant parts": [m(U, "q"), m(A, None, content=[{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]),
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
                                            "tools_in_user_message": False, "builtin_tools": ["wolfram_alpha", "code_interpreter"],
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


def compare(env, peer, name, template, variables, request):
    global passed, failed
    expected = raised = reason = None
    try:
        expected = compile_once(env, template).render(**variables)
    except env.Raised as e:
        raised = reason = str(e)
    except Exception as e:
        reason = f"{type(e).__name__}: {e}"
    got = peer.ask({"template": template, "now": NOW, **request})
    if agrees(expected, raised, got):
        passed += 1
        return True
    failed += 1
    if failed <= 40:
        print(f"FAILED: {name}")
        if expected is not None and "text" in got:
            at = next((i for i, (a, b) in enumerate(zip(expected, got["text"])) if a != b), min(len(expected), len(got["text"])))
            print(f"  at {at} expected {expected[max(0, at - 60):at + 60]!r}\n       got      {got['text'][max(0, at - 60):at + 60]!r}")
        else:
            print(f"  expected {expected if expected is None else expected[:200]!r} ({reason})\n  got      {str(got)[:300]}")
    return False


def check_templates(env, peer, args):
    for tname, template in templates(args).items():
        for cname, conversation in CONVERSATIONS.items():
            for vname, v in VARIANTS.items():
                extra = v.get("variables", {})
                variables = {"messages": [python_message(c) for c in conversation], "tools": v.get("tools"), "documents": None,
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


def main():
    global skipped
    p = argparse.ArgumentParser()
    p.add_argument("render")
    p.add_argument("--templates")
    p.add_argument("--gguf", action="append", default=[])
    p.add_argument("--only", default="")
    p.add_argument("--stop", action="store_true")
    args = p.parse_args()
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
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
