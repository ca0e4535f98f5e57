#!/usr/bin/env python3
"""The command line from outside: bad use, hostile files, and one whole turn of each command on the small model.

    test_cli.py NOVA MODEL       RUN_LONG=1: also what takes long

Whatever is asked of it, nova ends by itself with status 0, 1 (failed) or 2 (bad usage); where it is not 0, standard error
holds one clear line.
"""
import json
import math
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

NOVA, MODEL = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
LONG = os.environ.get("RUN_LONG", "0") != "0"
DATA = os.environ.get("NOVA_TEST_DATA", "../shared")
PROMPT = "The capital of France is"
# What the small model knows for sure, so that rounding does not turn the answer.
QUESTION, ANSWER = "What is photosynthesis?", b"plants"
passed = failed = skipped = 0


def check(condition, what):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        caller = sys._getframe(1)
        print(f"test_cli.py:{caller.f_lineno}: FAILED: {what}"[:2000], flush=True)
    return condition


def skip(why):
    global skipped
    skipped += 1
    print(f"skipped: {why}", flush=True)


class Run:
    """One call of nova: its status, and what it wrote."""

    def __init__(self, *args, stdin=b"", timeout=120, **more):
        self.args = " ".join(a if len(a) < 60 else a[:60] + "..." for a in args)
        p = subprocess.run([NOVA, *args], input=stdin, timeout=timeout, check=False,
                           **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more})
        self.status = p.returncode
        self.out = p.stdout or b""
        self.err = (p.stderr or b"").decode("utf-8", "replace")

    def __str__(self):
        return f"nova {self.args}: status {self.status}, stdout {self.out[:200]!r}, stderr {self.err[:600]!r}"


def good(*args, **more):
    r = Run(*args, **more)
    check(r.status == 0, f"ends well: {r}")
    return r


def bad(*args, status=(1, 2), mentions="", **more):
    """Fails with one clear line, and without having written a result."""
    r = Run(*args, **more)
    check(r.status in (status if isinstance(status, tuple) else (status,)), f"fails with {status}: {r}")
    lines = r.err.splitlines()
    check(len(lines) == 1 and len(lines[0]) > 8, f"one line on stderr: {r}")
    check(r.out == b"", f"nothing on stdout: {r}")
    check(mentions in r.err, f"mentions {mentions!r}: {r}")
    return r


def tokens(text):
    r = good("tokenize", "-m", MODEL, "--jsonl", stdin=json.dumps({"text": text}).encode() + b"\n")
    return json.loads(r.out)["ids"]


def test_usage():
    for args in (["help"], ["--help"], ["-h"]):
        r = good(*args)
        check(b"run" in r.out and b"-m" in r.out, f"prints the usage: {r}")
    check(b"0." in good("--version").out, "prints its version")
    r = Run()
    check(r.status == 2 and "run" in r.err and r.out == b"", f"the usage without a command: {r}")
    for args in (["dance"], ["run"], ["run", "-p", "x"], ["run", "-m"], ["run", "-m", MODEL, "-p"], ["run", "--no-such-option"],
                 ["tokenize", "-m", MODEL, "stray"], ["bench"], ["logits", "-m", MODEL], ["perplexity", "-m", MODEL], [""]):
        bad(*args, status=2)
    run = ["run", "-m", MODEL, "-p", "x"]
    for more in (["-t", "0"], ["-t", "-1"], ["-t", "many"], ["-t", "99999999999999999999"], ["-c", "0x"], ["-c", "-5"],
                 ["-n", "-2"], ["-n", ""], ["--temp", "hot"], ["--temp", "nan"], ["--temp", "-1"], ["--seed", "x"],
                 ["--device", "toaster"], ["--cache-k", "q9_9"], ["--cache-v", ""], ["--limit", "none"], ["--sinks", "-1"],
                 ["--vram", "lots"]):
        bad(*run, *more)


def test_context():
    bad("run", "-m", MODEL, "-p", "x", "-c", "1")
    bad("run", "-m", MODEL, "-p", "word " * 500, "-c", "64", "-n", "4", mentions="64")
    r = good("run", "-m", MODEL, "-p", "x", "-c", "8200", "-n", "1", "--temp", "0")
    check("8192" in r.err, f"warns that it was trained for 8192 tokens: {r}")
    r = good("run", "-m", MODEL, "--raw", "-p", PROMPT, "-c", "16", "-n", "40", "--limit", "slide", "--temp", "0", "--ignore-eos")
    check(len(r.out) > 60, f"slides on behind the context's end: {r}")
    r = Run("run", "-m", MODEL, "--raw", "-p", PROMPT, "-c", "16", "-n", "40", "--temp", "0", "--ignore-eos")
    check(r.status in (0, 1) and "16" in r.err, f"says that the context is full: {r}")


def test_prompt():
    r = Run("run", "-m", MODEL, "-p", "", "-n", "4", "--temp", "0")
    check(r.status == 0 or (r.status in (1, 2) and len(r.err.splitlines()) == 1), f"an empty prompt: {r}")
    bad("run", "-m", MODEL, "--raw", "-p", "", "-n", "4")
    r = good("run", "-m", MODEL, "--raw", "-p", PROMPT, "-n", "0")
    check(r.out.strip() in (b"", PROMPT.encode()), f"no tokens wanted: {r}")
    good("run", "-m", MODEL, "--raw", "-p", b"\xff\xfe\x80 not UTF-8".decode("utf-8", "surrogateescape"), "-n", "2")


def test_files(folder):
    bad("info", "-m", os.path.join(folder, "missing.gguf"), status=1, mentions="missing.gguf")
    bad("info", "-m", folder, status=1)
    bad("info", "-m", "", status=(1, 2))
    text = os.path.join(folder, "text.gguf")
    for content in (b"", b"G", b"GGUF", b"Once upon a time there was a file.\n" * 40, bytes(4096),
                    b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60), b"GGUF" + struct.pack("<IQQ", 99, 0, 0) + bytes(64),
                    b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64)):
        with open(text, "wb") as f:
            f.write(content)
        for command in (["info"], ["run", "-p", "x"], ["tokenize", "--jsonl"]):
            bad(*command, "-m", text, status=1, mentions="text.gguf: ")
    if os.geteuid() != 0:
        os.chmod(text, 0)
        bad("info", "-m", text, status=1, mentions="text.gguf")
        os.chmod(text, 0o600)
    bad("logits", "-m", MODEL, "--ids", "1,2", "-o", os.path.join(folder, "no", "such", "folder"), status=1)
    bad("perplexity", "-m", MODEL, "-f", os.path.join(folder, "missing.txt"), status=1, mentions="missing.txt")


def test_truncated(folder):
    """The model cut off at every 64 KiB, from its end to its start."""
    path = os.path.join(folder, "cut.gguf")
    shutil.copyfile(MODEL, path)
    size, step, wrong = os.path.getsize(path), 65536, 0
    cuts = list(range((size - 1) // step * step, 0, -step)) + [1000, 100, 24, 23, 8, 4, 1]
    with open(path, "r+b") as f:
        for cut in cuts:
            f.truncate(cut)
            r = Run("run", "-m", path, "-p", "x", "-n", "1")
            if not (r.status == 1 and len(r.err.splitlines()) == 1 and r.out == b""):
                wrong += 1
                print(f"cut at {cut}: {r}")
    check(wrong == 0, f"{wrong} of {len(cuts)} truncated files do not give one clear line and status 1")
    os.remove(path)


def test_ids(folder):
    out = os.path.join(folder, "logits")
    for ids in ("49152", "-1", "1,2,99999999", "4294967296", "18446744073709551617", "1,,2", "x", "", "1;2", "1.5"):
        bad("logits", "-m", MODEL, "--ids", ids, "-o", out)
        check(not os.path.exists(out) or os.path.getsize(out) == 0, f"no logits for ids {ids!r}")
    for line in ('{"ids":[49152]}', '{"ids":[-1]}', '{"ids":[1e99]}', '{"ids":["a"]}', '{"ids":1}', '{"text":1}', "{", "nonsense", "[]",
                 '{"other":1}', "[" * 100000, '{"text":"\\ud800"', '{"text":"a"} x'):
        r = Run("tokenize", "-m", MODEL, "--jsonl", stdin=line.encode() + b"\n")
        check(r.status == 1 and len(r.err.splitlines()) == 1, f"bad JSON {line[:40]!r}: {r}")


def test_tokenize():
    texts = ["", "Hello, world!", " spaces   and\ttabs\n\n", "naïve café — 日本語 🙂🏽", "<|im_start|>user", "a" * 5000,
             "def f(x):\n    return x ** 2\n", "1234567890", "\u0000", "e\u0301"]
    r = good("tokenize", "-m", MODEL, "--jsonl", stdin="".join(json.dumps({"text": t}) + "\n" for t in texts).encode())
    rows = r.out.decode().splitlines()
    check(len(rows) == len(texts), f"a line for each line: {len(rows)} of {len(texts)}")
    ids = [json.loads(row)["ids"] for row in rows]
    check(ids[1] == [19556, 28, 905, 17], f"'Hello, world!' is {ids[1]}")
    check(len(ids[4]) > 3, "special tokens in a text are plain text")
    r = good("tokenize", "-m", MODEL, "--jsonl", stdin="".join(json.dumps({"ids": i}) + "\n" for i in ids).encode())
    back = [json.loads(row)["text"] for row in r.out.decode().splitlines()]
    for text, other in zip(texts, back):
        check(text == other, f"there and back: {text[:50]!r}, {other[:50]!r}")


def test_run():
    greedy = ["run", "-m", MODEL, "--raw", "-p", PROMPT, "-n", "12", "--temp", "0"]
    first = good(*greedy)
    check(b"Paris" in first.out, f"knows the capital of France: {first}")
    check(first.err.strip() != "", "tells speed and memory on stderr")
    for more in (["-t", "1"], ["-t", "2"], ["--seed", "5"], ["-c", "300"]):
        r = good(*greedy, *more)
        check(r.out == first.out, f"the same text: {r}")
    chat = good("run", "-m", MODEL, "-p", QUESTION, "-n", "90", "--temp", "0")
    check(ANSWER in chat.out and b"<|im" not in chat.out, f"answers by the chat template: {chat}")
    warm = [good("run", "-m", MODEL, "--raw", "-p", "Once upon a time", "-n", "24", "--temp", "0.9", "--seed", s).out
            for s in ("1", "1", "2")]
    check(warm[0] == warm[1], f"a seed repeats: {warm[0]!r}, {warm[1]!r}")
    check(warm[0] != warm[2], "another seed gives another text")
    r = good(*greedy, "--json")
    try:
        answer = json.loads(r.out)
        check("Paris" in json.dumps(answer), f"the text is in the object: {r}")
    except ValueError as e:
        check(False, f"stdout is one JSON object: {e}: {r}")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            r = Run(*greedy, stdout=full)
        check(r.status == 1 and r.err.strip() != "", f"a full disk is a failure: {r}")


def test_info():
    r = good("info", "-m", MODEL)
    for word in ("llama", "Q4_1", "49152", "8192"):
        check(word.encode() in r.out, f"info tells {word}: {r}")
    info = json.loads(good("info", "-m", MODEL, "--json").out)
    check(isinstance(info, dict) and "llama" in json.dumps(info), "info as JSON")
    good("info", "--devices")


def test_logits(folder):
    ids = tokens(PROMPT)
    paris = tokens(" Paris")
    out = [os.path.join(folder, f"logits{i}") for i in range(2)]
    for threads, path in zip(("1", "2"), out):
        good("logits", "-m", MODEL, "--ids", ",".join(map(str, ids)), "-o", path, "-t", threads)
    with open(out[0], "rb") as a, open(out[1], "rb") as b:
        one, two = a.read(), b.read()
    if not check(len(one) == len(ids) * 49152 * 4, f"{len(one)} bytes of logits"):
        return
    check(one == two, "bit for bit the same by one thread and by two")
    values = struct.unpack(f"<{len(one) // 4}f", one)
    check(all(math.isfinite(v) for v in values), "all are numbers")
    last = values[-49152:]
    check(last.index(max(last)) == paris[0] and len(paris) == 1, "the likeliest word is Paris")


def test_perplexity(folder):
    text = os.path.join(DATA, "text", "genesis.txt")
    if not os.path.exists(text):
        skip(f"perplexity: no {text}")
        return
    r = good("perplexity", "-m", MODEL, "-f", text, "--chunks", "1")
    last = r.out.decode().splitlines()[-1] if r.out else ""
    found = re.fullmatch(r"perplexity: (\d+\.\d{4})", last)
    check(found is not None, f"the last line tells it: {r}")
    obj = json.loads(good("perplexity", "-m", MODEL, "-f", text, "--chunks", "1", "--json").out)
    check(found and abs(obj["perplexity"] - float(found[1])) < 1e-3 * obj["perplexity"], f"the same as JSON: {obj}")
    check(obj["n_tokens"] > 200 and 1 < obj["perplexity"] < 50, f"in reason: {obj}")
    short = os.path.join(folder, "short.txt")
    with open(short, "w", encoding="utf-8") as f:
        f.write("too short for a window")
    bad("perplexity", "-m", MODEL, "-f", short, status=1)


def test_bench():
    r = good("bench", "-m", MODEL, "-p", "32", "-n", "8", "-r", "1", "--json")
    obj = json.loads(r.out)
    for key in ("pp_tps", "tg_tps", "load_ms", "first_token_ms", "peak_rss_bytes"):
        check(isinstance(obj.get(key), (int, float)) and obj[key] > 0, f"{key} is a number above 0: {obj}")
    for key in ("vram_bytes", "submits_per_token", "dispatches_per_token", "host_us_per_token"):
        check(isinstance(obj.get(key), (int, float)) and obj[key] >= 0, f"{key} is a number: {obj}")
    check(obj["peak_rss_bytes"] < 2**30, f"memory: {obj}")
    for more in (["-p", "-1"], ["-r", "0"], ["-p", "x"], ["-p", "999999999"]):
        bad("bench", "-m", MODEL, *more)


def test_chat():
    r = good("chat", "-m", MODEL, "--temp", "0", "-c", "512", stdin=QUESTION.encode() + b"\n")
    check(ANSWER in r.out, f"a conversation from a pipe: {r}")
    good("chat", "-m", MODEL, stdin=b"")

    # On a terminal: Ctrl-C stops the answer, the next question is answered, Ctrl-D ends.
    leader, follower = pty.openpty()
    p = subprocess.Popen([NOVA, "chat", "-m", MODEL, "--temp", "0", "--ignore-eos"], stdin=follower, stdout=follower, stderr=follower,
                         preexec_fn=os.setsid)
    os.close(follower)
    seen = b""

    def wait_for(found, seconds):
        nonlocal seen
        end = time.time() + seconds
        while time.time() < end and not found(seen):
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    seen += os.read(leader, 4096)
                except OSError:
                    break
        return found(seen)

    try:
        wait_for(lambda s: s.rstrip().endswith(b">"), 20)
        seen = b""
        os.write(leader, b"Count from 1 to 1000.\n")
        check(wait_for(lambda s: len(s) > 60, 30), f"answers on a terminal: {seen[-200:]!r}")
        p.send_signal(signal.SIGINT)
        seen = b""
        check(wait_for(lambda s: s.rstrip().endswith(b">"), 10), f"Ctrl-C stops the answer and asks again: {seen[-200:]!r}")
        check(p.poll() is None, "Ctrl-C does not end the program")
        seen = b""
        os.write(leader, b"Hello!\n")
        check(wait_for(lambda s: len(s) > 30, 30), f"answers again: {seen[-200:]!r}")
        p.send_signal(signal.SIGINT)
        wait_for(lambda s: s.rstrip().endswith(b">"), 10)
        os.write(leader, b"\x04")
        wait_for(lambda s: p.poll() is not None, 10)
        try:
            p.wait(10)
        except subprocess.TimeoutExpired:
            pass
        check(p.poll() == 0, f"Ctrl-D ends it with status 0: {p.poll()}")
    finally:
        if p.poll() is None:
            p.kill()
        p.wait()
        os.close(leader)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                start = time.time()
                try:
                    test(folder) if test.__code__.co_argcount else test()
                except (subprocess.TimeoutExpired, ValueError, KeyError, IndexError, OSError) as e:
                    check(False, f"{name} ended early: {type(e).__name__}: {e}")
                print(f"{name}: {time.time() - start:.1f} s", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
