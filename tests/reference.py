#!/usr/bin/env python3
"""Compares nova with llama.cpp on the same files, in the same run.

    reference.py [logits] [greedy] [perplexity] [speed]     (default: all)

Needs a place where llama.cpp's programs run: NOVA_LAB is the command that runs others there (a lab's run.sh with its
driver; default: ../shared/lab/run.sh none), with ref-logits, llama-perplexity, llama-bench, llama-quantize, gcc with
libllama, and the model maker zoo.py beside run.sh. Without it everything is skipped, with a word why.
Closes with `N passed, N failed, N skipped`.
"""
import argparse
import array
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.abspath(os.environ.get("NOVA_TEST_DATA", os.path.join(TOP, "..", "shared")))
LAB = shlex.split(os.environ.get("NOVA_LAB", os.path.join(DATA, "lab", "run.sh") + " none"))
WORK = os.path.join(TOP, "build", "reference")
NOVA = os.path.join(TOP, "build", "nova")
MODEL = os.path.join(TOP, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
SPARSE = os.path.join(DATA, "models", "relu2-8m-f16.gguf")
ZOO = "llama llama-tied llama3-rope llama-linear-rope llama-yarn arcee".split()
counts = {"passed": 0, "failed": 0, "skipped": 0}


def check(good, text):
    counts["passed" if good else "failed"] += 1
    print(("ok      " if good else "FAILED  ") + text, flush=True)


def run(command, **kw):
    r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=TOP, **kw)
    if r.returncode:
        sys.exit(f"{' '.join(command)}: exit {r.returncode}\n{r.stderr.decode(errors='replace')}")
    return r.stdout.decode()


def lab(*command, **kw):
    return run(LAB + list(command), **kw)


def floats(path):
    a = array.array("f")
    with open(path, "rb") as f:
        a.frombytes(f.read())
    return a


def nmse(ours, theirs):
    """Normalised mean square error: squared error by squared reference, over all rows."""
    err = sum((a - b) * (a - b) for a, b in zip(ours, theirs))
    return err / sum(b * b for b in theirs)


def ids_for(n, n_vocab, seed):
    state, out = seed * 7919 + 17, [1]
    for _ in range(n - 1):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 33) % n_vocab)
    return out


def n_vocab_of(model):
    """From the size of one row of logits."""
    row = os.path.join(WORK, "row.f32")
    run([NOVA, "logits", "-m", model, "--ids", "1", "-o", row])
    return os.path.getsize(row) // 4


def logits():
    """Issue line: zoo entries and the sparse model, seeds 1 to 5, F16: normalised mean square error under 1e-4."""
    models = [(SPARSE, seed) for seed in range(1, 6)]
    for seed in range(1, 6):
        out = os.path.join(WORK, f"zoo{seed}")
        lab("python3", os.path.join(os.path.dirname(LAB[0]), "zoo.py"), out, "--seed", str(seed), "--only", ",".join(ZOO))
        models += [(os.path.join(out, name + ".gguf"), seed) for name in ZOO]
    for model, seed in models:
        for n in (40, 200):
            ids = ",".join(map(str, ids_for(n, 480 if "zoo" in model else 4096, seed)))
            theirs, ours = os.path.join(WORK, "theirs.f32"), os.path.join(WORK, "ours.f32")
            lab("ref-logits", model, ids, theirs)
            for flags in ([], ["--one-by-one"]):
                run([NOVA, "logits", "-m", model, "--ids", ids, "-o", ours] + flags)
                e = nmse(floats(ours), floats(theirs))
                name = os.path.relpath(model, TOP)
                check(e < 1e-4, f"logits {name} seed {seed}, {n} ids{' one by one' if flags else ''}: nmse {e:.2e}")


def greedy():
    """Issue line: along the reference's greedy text nova's top token is its, wherever its two top logits differ by 0.1."""
    program = os.path.join(WORK, "reference_greedy")
    lab("gcc", "-O2", "-o", program, os.path.join(TOP, "tests", "reference_greedy.c"), "-lllama", "-lggml", "-lggml-base")
    with open(os.path.join(DATA, "text", "prompts.txt"), encoding="utf-8") as f:
        prompts = [line.rstrip("\n") for line in f if line.strip()]
    texts = "".join(json.dumps({"text": p}) + "\n" for p in prompts)
    ids = [json.loads(line)["ids"] for line in
           run([NOVA, "tokenize", "-m", MODEL, "--jsonl"], input=texts.encode()).splitlines()]
    theirs, ours = os.path.join(WORK, "greedy.f32"), os.path.join(WORK, "ours.f32")
    n = 64
    text = lab(program, MODEL, str(n), theirs, input="".join(",".join(map(str, p)) + "\n" for p in ids).encode())
    ref, n_vocab = floats(theirs), n_vocab_of(MODEL)
    wrong = clear = 0
    for p, (prompt, line) in enumerate(zip(ids, text.splitlines())):
        told = [int(x) for x in line.split(",")]
        run([NOVA, "logits", "-m", MODEL, "--ids", ",".join(map(str, prompt + told[:-1])), "-o", ours, "--one-by-one"])
        mine = floats(ours)
        for i in range(n):
            r = ref[(p * n + i) * n_vocab:(p * n + i + 1) * n_vocab]
            at = len(prompt) - 1 + i
            m = mine[at * n_vocab:(at + 1) * n_vocab]
            if r[told[i]] - max(max(r[:told[i]], default=-1e30), max(r[told[i] + 1:], default=-1e30)) <= 0.1:
                continue
            clear += 1
            best = m.index(max(m))
            if best != told[i]:
                wrong += 1
                print(f"        prompt {p}, token {i}: {best} instead of {told[i]}: ahead by {m[best] - m[told[i]]:.3f}, "
                      f"in the reference behind by {r[told[i]] - r[best]:.3f}", flush=True)
    check(wrong == 0, f"greedy: {len(prompts)} prompts, {clear} of {len(prompts) * n} tokens with a clear top, {wrong} differ")


def perplexity():
    """Issue line: within 0.3% of llama-perplexity on the CPU, 20 chunks."""
    text = os.path.join(DATA, "text", "genesis.txt")
    for model in (MODEL, SPARSE):
        out = subprocess.run(LAB + ["llama-perplexity", "-m", model, "-f", text, "-c", "512", "--chunks", "20", "-t", "2",
                                    "-dev", "none"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=TOP).stdout.decode()
        theirs = float(re.search(r"Final estimate: PPL = ([0-9.]+)", out).group(1))
        ours = float(run([NOVA, "perplexity", "-m", model, "-f", text, "--chunks", "20", "-t", "2"]).split()[-1])
        check(abs(ours / theirs - 1) < 0.003, f"perplexity {os.path.basename(model)}: {ours:.4f}, llama.cpp {theirs:.4f}, "
              f"{100 * (ours / theirs - 1):+.3f}%")


def speed():
    """Issue line: at least llama-bench's speed for Q4_0, Q4_K_M, Q8_0 with 2 threads. Reported, never asserted."""
    for kind in ("Q4_0", "Q4_K_M", "Q8_0"):
        model = os.path.join(WORK, f"smol-{kind}.gguf")
        if not os.path.exists(model):
            lab("llama-quantize", "--allow-requantize", MODEL, model, kind)
        bench = json.loads(lab("llama-bench", "-m", model, "-t", "2", "-p", "512", "-n", "128", "-r", "5", "-dev", "none",
                               "-o", "json"))
        median = [statistics.median(b["samples_ts"]) for b in bench]
        ours = json.loads(run([NOVA, "bench", "-m", model, "-t", "2", "-p", "512", "-n", "128", "-r", "5", "--json"]))
        print(f"speed   {kind:7} prompt {ours['pp_tps']:8.1f} against {median[0]:8.1f} = {ours['pp_tps'] / median[0]:.2f}   "
              f"generation {ours['tg_tps']:7.1f} against {median[1]:7.1f} = {ours['tg_tps'] / median[1]:.2f}", flush=True)


def main():
    p = argparse.ArgumentParser(description="Compares nova with llama.cpp on the same files.")
    p.add_argument("what", nargs="*", choices=[[], "logits", "greedy", "perplexity", "speed"])
    what = p.parse_args().what or ["logits", "greedy", "perplexity", "speed"]
    os.makedirs(WORK, exist_ok=True)
    there = os.path.exists(LAB[0]) and subprocess.run(LAB + ["ref-logits"], capture_output=True).returncode == 2
    if not there or not os.path.exists(NOVA) or not os.path.exists(MODEL):
        print("skipped: needs llama.cpp's programs (NOVA_LAB), build/nova and the small model")
        counts["skipped"] += len(what)
    else:
        for name in what:
            globals()[name]()
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return counts["failed"] != 0


if __name__ == "__main__":
    sys.exit(main())
