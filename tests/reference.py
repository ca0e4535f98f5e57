#!/usr/bin/env python3
"""Compares nova with llama.cpp on the same files, in the same run.

    reference.py [logits] [greedy] [accuracy] [perplexity] [speed]     (default: all)

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

try:
    import numpy
except ImportError:   # slower without
    numpy = None

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.abspath(os.environ.get("NOVA_TEST_DATA", os.path.join(TOP, "..", "shared")))
LAB = shlex.split(os.environ.get("NOVA_LAB", os.path.join(DATA, "lab", "run.sh") + " none"))
WORK = os.path.join(TOP, "build", "reference")
NOVA = os.path.join(TOP, "build", "nova")
MODEL = os.path.join(TOP, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
SPARSE = os.path.join(DATA, "models", "relu2-8m-f16.gguf")
ZOO = "llama llama-tied llama3-rope llama-linear-rope llama-yarn arcee".split()
ALL = "logits greedy perplexity accuracy speed gpu gpu_perplexity gpu_speed".split()
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


def scratch(name):
    """A file for floats of this run alone: two may go at the same time."""
    return os.path.join(WORK, f"{name}.{os.getpid()}.f32")


def lab_on(driver, *command, **kw):
    return run(LAB[:-1] + [driver] + list(command), **kw)


def floats(path):
    a = array.array("f")
    with open(path, "rb") as f:
        a.frombytes(f.read())
    return a


def nmse(ours, theirs):
    """Normalised mean square error: squared error by squared reference, over all rows."""
    if numpy is not None:
        ours, theirs = numpy.asarray(ours, numpy.float64), numpy.asarray(theirs, numpy.float64)
        return float(((ours - theirs) ** 2).sum() / (theirs ** 2).sum())
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
    row = scratch("row")
    run([NOVA, "logits", "-m", model, "--ids", "1", "-o", row])
    return os.path.getsize(row) // 4


def logits():
    """Issue line: zoo entries and the sparse model, seeds 1 to 5, F16: normalised mean square error under 1e-4."""
    models = [(SPARSE, seed) for seed in range(1, 6)]
    for seed in range(1, 6):
        out = os.path.join(WORK, f"zoo{seed}")
        maker = os.path.join(os.path.dirname(LAB[0]), "zoo.py")
        lab("python3", maker, out, "--seed", str(seed), "--only", ",".join(ZOO))
        models += [(os.path.join(out, name + ".gguf"), seed) for name in ZOO]
    for model, seed in models:
        for n in (40, 200):
            ids = ",".join(map(str, ids_for(n, 480 if "zoo" in model else 4096, seed)))
            theirs, ours = scratch("theirs"), scratch("ours")
            lab("ref-logits", model, ids, theirs)
            for flags in ([], ["--one-by-one"]):
                run([NOVA, "logits", "-m", model, "--ids", ids, "-o", ours] + flags)
                e = nmse(floats(ours), floats(theirs))
                name = os.path.relpath(model, TOP)
                check(e < 1e-4, f"logits {name} seed {seed}, {n} ids{' one by one' if flags else ''}: nmse {e:.2e}")


def tops(rows, n_vocab):
    """The likeliest token of each row, and how far it is ahead of the next."""
    out = []
    for at in range(0, len(rows), n_vocab):
        r = rows[at:at + n_vocab]
        best = max(r)
        i = r.index(best)
        r[i] = -math.inf
        out.append((i, best - max(r)))
    return out


def dequantised(model):
    """The same weights as floats: what exact arithmetic gives from them is the truth for all."""
    out = os.path.join(WORK, os.path.basename(model) + ".f32.gguf")
    if not os.path.exists(out):
        lab("llama-quantize", "--allow-requantize", model, out, "F32")
    return out


def greedy():
    """Issue line: along the reference's greedy text nova's top token is its, wherever its two top logits differ by 0.1.

    Both round activations to int8, and a last bit that differs changes which way some of them are rounded: after 30
    layers that is worth more than 0.1. So another order of additions does not give the same tokens, llama.cpp's own not
    either, and the reference is compared in the same way with its other CPU backends, with its evaluation of the text
    as one batch, and with its float arithmetic on the dequantised weights: all are printed. Nova must not differ at
    more than 1.5 times as many tokens as the reference differs from itself at.
    """
    program = os.path.join(WORK, "reference_greedy")
    source = os.path.join(TOP, "tests", "reference_greedy.c")
    lab("gcc", "-O2", "-o", program, source, "-lllama", "-lggml", "-lggml-base")
    with open(os.path.join(DATA, "text", "prompts.txt"), encoding="utf-8") as f:
        prompts = [line.rstrip("\n") for line in f if line.strip()]
    texts = "".join(json.dumps({"text": p}) + "\n" for p in prompts)
    ids = [json.loads(line)["ids"] for line in
           run([NOVA, "tokenize", "-m", MODEL, "--jsonl"], input=texts.encode()).splitlines()]
    rows, ours, n, n_vocab = scratch("greedy"), scratch("ours"), 64, n_vocab_of(MODEL)
    asked = [",".join(map(str, p)) for p in ids]

    def reference(lines, model, *how):
        text = lab(program, model, str(n), rows, *how, input="".join(line + "\n" for line in lines).encode())
        return text.splitlines(), tops(floats(rows), n_vocab)

    told, truth = reference(asked, MODEL)
    clear = [i for i, (_, ahead) in enumerate(truth) if ahead > 0.1]
    along = [p + ";" + t for p, t in zip(asked, told)]

    def differing(name, theirs):
        wrong = [i for i in clear if theirs[i][0] != truth[i][0]]
        print(f"greedy  {name + ':':52} {len(wrong):3} of {len(clear)} differ, where the reference is ahead by up to "
              f"{max((truth[i][1] for i in wrong), default=0):.2f}", flush=True)
        return len(wrong)

    folder = lab("sh", "-c", "dirname $(ls /usr/lib/*/ggml/backends*/libggml-cpu-x64.so)").strip()
    own = [differing(f"llama.cpp, {name} backend", reference(along, MODEL, f"{folder}/libggml-cpu-{name}.so")[1])
           for name in ("haswell", "skylakex", "sse42")]
    own.append(differing("llama.cpp, the text as one batch", reference(along, MODEL, "best", "batch")[1]))
    differing("llama.cpp, the same weights in float", reference(along, dequantised(MODEL))[1])
    nova = []
    for flags in (["--one-by-one"], []):
        rest = []
        for p, line in zip(ids, told):
            text = p + [int(x) for x in line.split(",")]
            run([NOVA, "logits", "-m", MODEL, "--ids", ",".join(map(str, text[:-1])), "-o", ours] + flags)
            rest += tops(floats(ours)[(len(p) - 1) * n_vocab:], n_vocab)
        nova.append(differing("nova" + (", one by one" if flags else ", the text as one batch"), rest))
    check(max(nova) <= 1.5 * max(own), f"greedy: {len(prompts)} prompts, {len(clear)} of {len(truth)} tokens with a "
          f"clear top: nova differs at {max(nova)}, llama.cpp from itself at {max(own)}")


def perplexity():
    """Issue line: within 0.3% of llama-perplexity on the CPU, 20 chunks."""
    text = os.path.join(DATA, "text", "genesis.txt")
    for model in (MODEL, SPARSE):
        shape = ["-m", model, "-f", text, "--chunks", "20", "-t", "2"]
        command = ["llama-perplexity", *shape, "-c", "512", "-dev", "none"]
        r = subprocess.run(LAB + command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=TOP)
        final = re.search(rb"Final estimate: PPL = ([0-9.]+)", r.stdout)
        if r.returncode or not final:
            check(False, f"llama-perplexity {model}: exit {r.returncode}, and at its end: {r.stdout[-1000:]!r}")
            continue
        theirs = float(final.group(1))
        ours = float(run([NOVA, "perplexity", *shape]).split()[-1])
        check(abs(ours / theirs - 1) < 0.003, f"perplexity {os.path.basename(model)}: {ours:.4f}, llama.cpp "
              f"{theirs:.4f}, {100 * (ours / theirs - 1):+.3f}%")


def quantised(model, kind):
    """The model in another format; what it is in already is taken as it is."""
    if kind in os.path.basename(model):
        return model
    out = os.path.join(WORK, f"{os.path.basename(model).split('.')[0]}-{kind}.gguf")
    if not os.path.exists(out):
        lab("llama-quantize", "--allow-requantize", model, out, kind)
    return out


def truth_of(model):
    """The first 400 tokens of a text, the logits behind them in float arithmetic on the dequantised weights, and how far
    llama.cpp's CPU is from those."""
    with open(os.path.join(DATA, "text", "genesis.txt"), encoding="utf-8") as f:
        text = json.dumps({"text": f.read(4000)}) + "\n"
    ids = json.loads(run([NOVA, "tokenize", "-m", model, "--jsonl"], input=text.encode()))["ids"][:400]
    told, truth, theirs = ",".join(map(str, ids)), scratch("truth"), scratch("theirs")
    lab("ref-logits", dequantised(model), told, truth, "F32")
    os.remove(dequantised(model))
    lab("ref-logits", model, told, theirs)
    exact = floats(truth)
    return ids, exact, nmse(floats(theirs), exact)


def accuracy():
    """Against float arithmetic on the dequantised weights no path is farther than 1.5 times llama.cpp."""
    ours = scratch("ours")
    for source in (MODEL, SPARSE):
        for kind in ("Q4_1", "Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"):
            model = quantised(source, kind)
            ids, exact, llama = truth_of(model)
            errors = [llama]
            for flags in (["--one-by-one"], []):
                run([NOVA, "logits", "-m", model, "--ids", ",".join(map(str, ids)), "-o", ours] + flags)
                errors.append(nmse(floats(ours), exact))
            check(max(errors[1:]) <= 1.5 * errors[0], f"accuracy {os.path.basename(source).split('.')[0]} {kind}: nmse "
                  f"{errors[1]:.2e} one by one, {errors[2]:.2e} as a batch, llama.cpp {errors[0]:.2e}")


# Paths of matmul and attention by the ability that is forced, with what they may differ from float arithmetic: None is 1.5
# times what llama.cpp's CPU does, for those over int8 activations.
GPU_PATHS = {"": 1e-4, "--gpu-force=subgroup": 1e-4, "--gpu-force=f16": 1e-3, "--gpu-force=matrix-f16": 1e-3,
             "--gpu-force=dot": None, "--gpu-force=matrix-s8": None, "--gpu-without=subgroup,mapped": 1e-4}
GPU_PLACES = {"all": [], "half": ["--gpu-layers=HALF"], "one": ["--gpu-layers=1"]}


def gpu():
    """Every path on drivers that execute, against float arithmetic on the dequantised weights; all, half and one of the layers."""
    drivers = os.environ.get("NOVA_GPU_DRIVERS", "lavapipe swiftshader").split()
    ours = scratch("ours")
    for source in (SPARSE, MODEL):
        for kind in os.environ.get("NOVA_GPU_KINDS", "F16 Q4_0 Q4_K_M Q6_K Q8_0").split():
            model = quantised(source, kind)
            info = json.loads(run([NOVA, "info", "-m", model, "--json"]))
            every, exact, llama = truth_of(model)
            for driver in drivers:
                devices = json.loads(run(LAB[:-1] + [driver, NOVA, "info", "--devices", "--json"]))["gpus"]
                for path, most in GPU_PATHS.items():
                    ability = path.partition("force=")[2]
                    if ability and ability not in devices[0]["abilities"]:
                        continue   # no such path on this device
                    for place, layers in GPU_PLACES.items():
                        if place != "all" and path:
                            continue
                        for step in ([], ["--one-by-one"]):
                            if step and path.startswith("--gpu-without"):
                                continue
                            flags = [f.replace("HALF", str(info["n_layer"] // 2)) for f in layers] + [path] * bool(path) + step
                            # Int8 activations make few tokens far worse than most: only many tokens tell the average.
                            count = 400 if most is None or place != "all" else 40
                            ids = ",".join(map(str, every[:count]))
                            run(LAB[:-1] + [driver, NOVA, "logits", "-m", model, "--ids", ids, "-o", ours, "--device", "gpu"] + flags)
                            got = floats(ours)
                            e = nmse(got, exact[:len(got)])
                            # Layers that stay on the CPU read int8 activations.
                            bound = 1.5 * llama if most is None or place != "all" else most
                            check(e <= max(bound, 1e-7), f"gpu {driver} {os.path.basename(source).split('.')[0]} {kind} {place} "
                                  f"{' '.join(flags)}: nmse {e:.2e}, at most {bound:.1e} (llama.cpp's CPU {llama:.2e})")


def gpu_perplexity():
    """10 chunks on lavapipe within 0.5% of the CPU's."""
    text = os.path.join(DATA, "text", "genesis.txt")
    for model in (SPARSE, MODEL):
        args = ["perplexity", "-m", model, "-f", text, "--chunks", "10"]
        cpu = float(run([NOVA] + args + ["--device", "cpu"]).split()[-1])
        ours = float(run(LAB[:-1] + ["lavapipe", NOVA] + args + ["--device", "gpu"]).split()[-1])
        check(abs(ours / cpu - 1) < 0.005, f"perplexity {os.path.basename(model)} on lavapipe: {ours:.4f}, CPU {cpu:.4f}, "
              f"{100 * (ours / cpu - 1):+.3f}%")


def gpu_speed():
    """On the lab's lavapipe beside llama.cpp's Vulkan, the same file; host cost on stand-in drivers. Reported."""
    model = quantised(MODEL, "Q4_0")
    # Without the variable llama.cpp passes over a device that is a CPU.
    bench = json.loads(lab_on("lavapipe", "env", "GGML_VK_VISIBLE_DEVICES=0", "llama-bench", "-m", model, "-p", "128", "-n", "16", "-r", "3", "-ngl", "99", "-o", "json"))
    median = [statistics.median(b["samples_ts"]) for b in bench]
    ours = json.loads(lab_on("lavapipe", NOVA, "bench", "-m", model, "-p", "128", "-n", "16", "-r", "3", "--json", "--device", "gpu"))
    print(f"speed   lavapipe Q4_0 prompt {ours['pp_tps']:.1f} against {median[0]:.1f} = {ours['pp_tps'] / median[0]:.2f}   "
          f"generation {ours['tg_tps']:.1f} against {median[1]:.1f} = {ours['tg_tps'] / median[1]:.2f}", flush=True)
    for driver in ("navi31", "tu102"):
        ours = json.loads(lab_on(driver, NOVA, "bench", "-m", model, "-p", "1", "-n", "4000", "-r", "5", "-c", "4096", "--json", "--device", "gpu"))
        print(f"host    {driver}: {1e6 / ours['tg_tps']:.1f} us a token in all, {ours['host_us_per_token']:.1f} less waiting, "
              f"{ours['submits_per_token']:.2f} submits, {ours['dispatches_per_token']:.0f} dispatches", flush=True)
        try:
            bench = json.loads(lab_on(driver, "llama-bench", "-m", model, "-p", "0", "-n", "128", "-r", "3", "-ngl", "99", "-o", "json"))
            print(f"        llama.cpp: {1e6 / statistics.median(bench[0]['samples_ts']):.0f} us a token", flush=True)
        except SystemExit as e:
            print(f"        llama.cpp: {str(e)[:200]}", flush=True)


def speed():
    """Issue line: at least llama-bench's speed for Q4_0, Q4_K_M, Q8_0 with 2 threads. Reported, never asserted."""
    for kind in ("Q4_0", "Q4_K_M", "Q8_0"):
        model = quantised(MODEL, kind)
        shape = ["-m", model, "-t", "2", "-p", "512", "-n", "128", "-r", "5"]
        bench = json.loads(lab("llama-bench", *shape, "-dev", "none", "-o", "json"))
        median = [statistics.median(b["samples_ts"]) for b in bench]
        ours = json.loads(run([NOVA, "bench", *shape, "--json"]))
        pp, tg = ours["pp_tps"], ours["tg_tps"]
        print(f"speed   {kind:7} prompt {pp:8.1f} against {median[0]:8.1f} = {pp / median[0]:.2f}   "
              f"generation {tg:7.1f} against {median[1]:7.1f} = {tg / median[1]:.2f}   load {ours['load_ms']:.1f} ms   "
              f"memory {(ours['peak_rss_bytes'] - os.path.getsize(model)) / 2**20:.1f} MiB over the file", flush=True)


def main():
    p = argparse.ArgumentParser(description="Compares nova with llama.cpp on the same files.")
    p.add_argument("what", nargs="*", choices=[[]] + ALL)
    what = p.parse_args().what or ALL
    os.makedirs(WORK, exist_ok=True)
    there = os.path.exists(LAB[0]) and subprocess.run(LAB + ["ref-logits"], capture_output=True).returncode == 2
    if not there or not os.path.exists(NOVA) or not os.path.exists(MODEL):
        print("skipped: needs llama.cpp's programs (NOVA_LAB), build/nova and the small model")
        counts["skipped"] += len(what)
    else:
        for name in what:
            globals()[name]()
        for name in os.listdir(WORK):
            if name.endswith(f".{os.getpid()}.f32"):
                os.remove(os.path.join(WORK, name))
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return counts["failed"] != 0


if __name__ == "__main__":
    sys.exit(main())
