#!/usr/bin/env python3
"""How good is nova on this machine's GPU? Runs every GPU test and the benches; needs no network.

    gpu_report.py [--device gpu|gpu:N] [--skip-tests] MODEL.gguf ...        (make gpu-report MODELS="a.gguf b.gguf")

Writes build/gpu-report.md, for people, with a chart of each model's kernels beside it (build/gpu-report-N.svg), and
build/gpu-report.json with everything. The device's own limits come first, how fast it copies memory and how fast it
multiplies matrices, and each model's speeds as shares of those. Numbers are told, never judged: the exit status is 1
where a test or a bench failed or nothing could be run, else 0.

Environment: CC (compiler), LLAMA_BENCH (llama.cpp's llama-bench; by default the one on the PATH), N_PROMPT and
N_GENERATE (tokens of the benches; by default what takes some seconds here, 512 and 128 at most).
"""
import argparse
import concurrent.futures
import glob
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join("build", "gpu")
NOVA = os.path.join(BUILD, "nova")
BENCH = os.path.join(BUILD, "bench_gpu")
REPORT = os.path.join("build", "gpu-report")
TEST_LIMIT = 1800     # seconds of a test
BENCH_LIMIT = 600     # of a bench
BENCH_SECONDS = 3     # that a run of a bench is planned to take, each of prompt and generation
RUNS = 3              # of which the median counts: the first of them may compile
LATE = "not done after"
ABILITIES = ["matrix-f16", "matrix-s8", "dot", "f16", "subgroup", "mapped"]


# ---- Running ----

def say(text):
    print(text, flush=True)


class Result:
    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def why(self):
        """The last thing that it said."""
        lines = [line for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        said = [line for line in self.err.splitlines() if line.strip()] or lines
        return said[-1].strip()[:200] if said else f"exit status {self.status}"


def run(command, limit, env=None):
    """Never raises: what cannot be started or lasts too long has a status of its own."""
    began = time.monotonic()
    whole = dict(os.environ, **(env or {}))
    try:
        r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit, env=whole,
                           stdin=subprocess.DEVNULL)
        status, out, err = r.returncode, r.stdout, r.stderr
    except subprocess.TimeoutExpired as e:
        status, out, err = 124, e.stdout or b"", f"{LATE} {limit} s".encode()
    except OSError as e:
        status, out, err = 127, b"", str(e).encode()
    return Result(status, out.decode(errors="replace"), err.decode(errors="replace"), time.monotonic() - began)


def run_json(command, limit, env=None):
    """(object, None), or (None, why there is none)."""
    r = run(command, limit, env)
    if r.status:
        return None, r.why()
    starts = [i for i in (r.out.find("{"), r.out.find("[")) if i >= 0]
    try:
        return json.loads(r.out[min(starts):]), None
    except ValueError:
        return None, "no JSON came"


# ---- Building ----

def compiler():
    given = os.environ.get("CC")
    for command in ([shlex.split(given)] if given else []) + [["gcc"], ["cc"]]:
        if shutil.which(command[0]):
            return command
    sys.exit("gpu-report: no C compiler (gcc or cc): set CC")


def stale_folder(cc):
    """Programs of another compiler or system do not count as built."""
    os.makedirs(BUILD, exist_ok=True)
    stamp = os.path.join(BUILD, "made-by.txt")
    me = " ".join(cc) + "\n" + run(cc + ["--version"], 60).out + " ".join(platform.libc_ver())
    try:
        with open(stamp) as f:
            if f.read() == me:
                return False
    except OSError:
        pass
    with open(stamp, "w") as f:
        f.write(me)
    return True


def build_one(cc, source):
    """Tests and benches include nova.c; the command line is linked with it."""
    how = ["nova.c"] if source == "examples/nova.c" else ["-DNOVA_API=static"]
    r = run(cc + ["-std=c11", "-O2", "-w", "-I.", source] + how + ["-o", program_of(source), "-lm", "-lpthread", "-ldl"], 1800)
    errors = re.findall(r"^.*\berror: .*$|^.*undefined reference.*$", r.err, re.M)
    return None if not r.status else errors[0].strip() if errors else r.why()


def build(sources):
    """{source: why it was not built, or None}. Each contains all of nova.c, so it takes its time. Apart from what make
    builds: this machine's compiler may be another one (a lab's)."""
    cc = compiler()
    all_stale = stale_folder(cc)
    inputs = ["nova.c", "nova.h"] + glob.glob("tests/*.h") + glob.glob("examples/*.h")
    newest = max(os.path.getmtime(p) for p in inputs)
    jobs, out = [], {}
    for s in sources:
        program = program_of(s)
        fresh = not all_stale and os.path.exists(program) and os.path.getmtime(program) > max(newest, os.path.getmtime(s))
        out[s] = None
        if not fresh:
            jobs.append(s)
    if jobs:
        say(f"building {len(jobs)} programs in {BUILD}")
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        out.update(zip(jobs, pool.map(lambda s: build_one(cc, s), jobs)))
    return out


def program_of(source):
    return os.path.join(BUILD, os.path.splitext(os.path.basename(source))[0])


# ---- The parts ----

def run_tests(sources, built, device):
    tests = []
    for s in sources:
        name = os.path.splitext(os.path.basename(s))[0]
        t = {"name": name, "passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0, "good": False, "output": ""}
        tests.append(t)
        if built[s]:
            t["output"] = "it does not compile: " + built[s]
        else:
            r = run([program_of(s)], TEST_LIMIT, {"NOVA_GPU": device})
            counts = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped\s*$", r.out, re.M)
            t["seconds"] = r.seconds
            if counts:
                t["passed"], t["failed"], t["skipped"] = map(int, counts[-1])
            t["good"] = bool(counts) and r.status == 0 and t["failed"] == 0
            t["skips"] = re.findall(r"skipped: (.*)", r.out)[:5]
            if not t["good"]:
                t["output"] = "\n".join((r.out + r.err).splitlines()[-15:]) + f"\nexit status {r.status}"
        say(f"{'passed' if t['good'] else 'FAILED':7} {name}: {t['passed']} passed, {t['failed']} failed, "
            f"{t['skipped']} skipped, {t['seconds']:.1f} s")
    return tests


def bench(model, device, n_prompt, n_gen, more=(), limit=BENCH_LIMIT):
    return run_json([NOVA, "bench", "-m", model, "--device", device, "-p", str(n_prompt), "-n", str(n_gen), "-r", str(RUNS),
                     "--json"] + list(more), limit)


def power_below(x):
    return 1 << max(0, int(x).bit_length() - 1)


def sizes(model, device):
    """(tokens of the prompt, of the generation, None), after a look at how fast it goes; or (0, 0, why not)."""
    prompt, gen = os.environ.get("N_PROMPT"), os.environ.get("N_GENERATE")
    if prompt and gen:
        return int(prompt), int(gen), None
    first, why = bench(model, device, 16, 2)
    if not first:
        return 0, 0, why
    return (int(prompt or min(512, max(16, power_below(first["pp_tps"] * BENCH_SECONDS)))),
            int(gen or min(128, max(4, power_below(first["tg_tps"] * BENCH_SECONDS)))), None)


def llama(model, index, n_prompt, n_gen):
    program = os.environ.get("LLAMA_BENCH") or shutil.which("llama-bench")
    if not program:
        return None, "llama-bench is not on the PATH (LLAMA_BENCH=... names another place)"
    env = {} if "GGML_VK_VISIBLE_DEVICES" in os.environ or index < 0 else {"GGML_VK_VISIBLE_DEVICES": str(index)}
    rows, why = run_json(shlex.split(program) + ["-m", model, "-p", str(n_prompt), "-n", str(n_gen), "-r", str(RUNS),
                                                 "-o", "json"], 2 * BENCH_LIMIT, env)
    if not rows:
        return None, why
    out = {k: rows[0].get(k) for k in ("build_commit", "build_number", "backends", "gpu_info", "cpu_info")}
    for r in rows:
        out["tg_tps" if r["n_gen"] else "pp_tps"] = statistics.median(r.get("samples_ts") or [r["avg_ts"]])
    return out, None


def variants(abilities):
    """[(label, options)]: one ability forced at a time, then taken away one after the other."""
    have = [a for a in ABILITIES if a in abilities]
    out = [("as chosen", [])]
    out += [(f"kernels of {a} forced", ["--gpu-force", a]) for a in have if a != "mapped"]
    units = [a for a in have if a != "mapped"]
    out += [("without " + ", ".join(units[:i + 1]), ["--gpu-without", ",".join(units[:i + 1])]) for i in range(len(units))]
    if "mapped" in have:
        out.append(("without mapped", ["--gpu-without", "mapped"]))
    return out


def measure_model(model, device, limits, problems):
    name = os.path.basename(model)
    m = {"file": model, "name": name, "bytes": os.path.getsize(model)}
    say(f"model {name}")
    n_prompt, n_gen, why = sizes(model, device)
    if why:
        m["error"] = why
        problems.append(f"{name}: {why}")
        return m
    m.update(n_prompt=n_prompt, n_gen=n_gen)
    began = time.monotonic()
    m["bench"], why = bench(model, device, n_prompt, n_gen)
    patience = int(60 + 10 * (time.monotonic() - began))   # a forced path may be far slower, which is no fault
    if why:
        m["error"] = why
        problems.append(f"{name}: {why}")
        return m
    say(f"  prompt of {n_prompt}: {m['bench']['pp_tps']:.1f} tokens/s, generation of {n_gen}: {m['bench']['tg_tps']:.1f} tokens/s")
    m["profile"], why = run_json([BENCH, "model", device, model, str(min(n_prompt, m["bench"]["n_batch"]))], BENCH_LIMIT)
    if why:
        problems.append(f"{name}, its kernels: {why}")
        m["profile_error"] = why
    m["llama"], m["llama_why"] = llama(model, limits["device"]["index"], n_prompt, n_gen)
    if m["llama"]:
        say(f"  llama.cpp: {m['llama'].get('pp_tps', 0):.1f} and {m['llama'].get('tg_tps', 0):.1f}")
    m["variants"] = []
    for label, options in variants(limits["device"]["abilities"]):
        v = {"label": label, "options": options}
        r, v["why"] = (m["bench"], None) if not options else bench(model, device, n_prompt, n_gen, options, patience)
        if r:
            v.update(pp_tps=r["pp_tps"], tg_tps=r["tg_tps"])
        elif not v["why"].startswith(LATE):
            problems.append(f"{name}, {label}: {v['why']}")
        m["variants"].append(v)
        say(f"  {label}: " + (f"{r['pp_tps']:.1f} and {r['tg_tps']:.1f}" if r else v["why"]))
    shares(m, limits)
    return m


def total(kernels, key):
    return sum(k.get(key) or 0 for k in kernels)


def shares(m, limits):
    """What the speeds are of what the device could do at most."""
    p = m.get("profile")
    if not p:
        return
    prompt, token = p["prompt"], p["token"]
    m["weight_bytes_per_token"] = total(token["kernels"], "weight_bytes")
    m["multiply_adds_per_prompt_token"] = total(prompt["kernels"], "multiply_adds") / prompt["columns"]
    if limits["bytes_per_s"]:
        m["generation_share"] = m["bench"]["tg_tps"] * m["weight_bytes_per_token"] / limits["bytes_per_s"]
    if limits["multiply_adds_per_s"]:
        m["prompt_share"] = m["bench"]["pp_tps"] * m["multiply_adds_per_prompt_token"] / limits["multiply_adds_per_s"]


# ---- Telling ----

def percent(x):
    return "" if x is None else f"{100 * x:.1f} %" if x < 0.995 else f"{100 * x:.0f} %"


def size(n):
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"
        n /= 1024
    return ""


def per_second(x, unit):
    """1.23 G..., 4.5 T..."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if x >= scale:
            return f"{x / scale:.3g} {prefix}{unit}/s"
    return f"{x:.3g} {unit}/s"


def duration(ns):
    return f"{ns * 1e-6:.2f} ms" if ns >= 1e6 else f"{ns * 1e-3:.1f} µs"


def table(head, rows, right=()):
    """Markdown; `right`: columns of numbers."""
    out = ["| " + " | ".join(head) + " |", "|" + "|".join("---:" if i in right else "---" for i in range(len(head))) + "|"]
    out += ["| " + " | ".join(str(c).replace("|", "/") for c in r) + " |" for r in rows]
    return out + [""]


def md_summary(report):
    limits, rows = report["limits"], []
    for m in report["models"]:
        if "bench" not in m or not m["bench"]:
            rows.append([m["name"], "not measured: " + m["error"], "", "", "", ""])
            continue
        l = m["llama"] or {}
        rows.append([m["name"], f"{m['bench']['pp_tps']:.1f}", percent(m.get("prompt_share")),
                     f"{m['bench']['tg_tps']:.1f}", percent(m.get("generation_share")),
                     " / ".join(f"{m['bench'][k] / l[k]:.2f} x" for k in ("pp_tps", "tg_tps") if l.get(k)) or "-"])
    d, tests = limits["device"], report["tests"]
    failed = [t for t in tests if not t["good"]]
    out = [f"# nova on {d['name']}", "",
           f"{report['when']}, nova {report['version']}, {d['driver'] or 'driver'} {d['driver_info']}, Vulkan {d['vulkan']}, "
           f"{d['kind']}; {report['system']}", ""]
    if not limits["executes"]:
        out += ["**What is copied on this device does not arrive: it runs nothing (a stand-in?), and no number here means anything.**", ""]
    out += [f"- It copies memory at **{per_second(limits['bytes_per_s'], 'B')}** (read and written bytes) and multiplies matrices at "
            f"**{per_second(limits['multiply_adds_per_s'], ' multiply-adds')}** (nova's fastest kernel, {limits['best']}).",
            f"- Tests: **{'not run' if not tests else 'all passed' if not failed else str(len(failed)) + ' FAILED'}**"
            + (f", {sum(t['passed'] for t in tests)} checks in {sum(t['seconds'] for t in tests):.0f} s" if tests else "") + "."]
    out += [f"- Problem: {p}" for p in report["problems"]] + [""]
    out += table(["model", "prompt, tokens/s", "of the matrix rate", "generation, tokens/s", "of the copy bandwidth",
                  "llama.cpp: prompt / generation"], rows, (1, 2, 3, 4, 5))
    return out + ["A share tells how good the device is used: of the matrix rate by the multiply-adds of a prompt's tokens, of "
                  "the copy bandwidth by the bytes of weights that a token reads.", ""]


def kernel_rows(part, limits):
    """Sorted as they came: the longest first."""
    whole = total(part["kernels"], "ns")
    rows = []
    for k in part["kernels"]:
        ns = k.get("ns")
        reads = k["weight_bytes"] / ns * 1e9 if ns and k["weight_bytes"] else 0
        rate = k["multiply_adds"] / ns * 1e9 if ns and k["multiply_adds"] else 0
        rows.append([percent(ns / whole) if ns else "", duration(ns) if ns else "", k["dispatches"], k["role"], k["kernel"], k["weights"],
                     f"{per_second(reads, 'B')} ({percent(reads / limits['bytes_per_s'])})" if reads else "",
                     f"{per_second(rate, '')} ({percent(rate / limits['multiply_adds_per_s'])})" if rate else ""])
    return rows


def md_model(m, limits, chart):
    out = [f"## {m['name']}", ""]
    b = m.get("bench")
    if not b:
        return out + ["Not measured: " + m["error"], ""]
    l, p = m["llama"] or {}, m.get("profile")
    rows = []
    for key, what, n, share in (("pp_tps", "prompt", m["n_prompt"], "prompt_share"), ("tg_tps", "generation", m["n_gen"], "generation_share")):
        rows.append([f"{what}, {n} tokens", f"{b[key]:.2f}", percent(m.get(share)), f"{l[key]:.2f}" if l.get(key) else "-",
                     f"{b[key] / l[key]:.2f} x" if l.get(key) else "-"])
    out += table(["", "tokens/s", "of the limit", "llama.cpp", "nova is"], rows, (1, 2, 3, 4))
    out += [f"llama.cpp: {l.get('backends')}, {l.get('gpu_info')}, build {l.get('build_number')}." if l else
            f"llama.cpp: {m['llama_why']}.", ""]
    rows = [["weights, file", f"{b['model']['type']}, {size(m['bytes'])}, {b['model']['n_params'] * 1e-6:.1f} M"],
            ["GPU memory", size(b["vram_bytes"])]]
    if p:
        rows += [["layers on the GPU", f"{p['gpu_layers']} of {p['n_layers']}, the output being one"],
                 ["a token reads", size(m["weight_bytes_per_token"]) + " of weights"],
                 ["a token multiplies", f"{m['multiply_adds_per_prompt_token'] * 1e-6:.1f} M multiply-adds in a prompt"]]
    rows += [["runs", f"the median of {RUNS}"], ["load", f"{b['load_ms']:.0f} ms"], ["first token", f"{b['first_token_ms']:.1f} ms behind {m['n_prompt']} tokens"],
             ["batch", f"{b['n_batch']} tokens"],
             ["a token is", f"{b['submits_per_token']:.1f} submits, {b['dispatches_per_token']:.0f} dispatches, "
                            f"{b['host_us_per_token']:.1f} µs of the host"]]
    out += table(["", ""], rows)
    if p:
        out += md_profile(p, limits, chart)
    else:
        out += ["Kernels: " + m["profile_error"], ""]
    best = m["variants"][0]
    rows = [[v["label"]] + ([f"{v['pp_tps']:.1f}", percent(v["pp_tps"] / best["pp_tps"]), f"{v['tg_tps']:.1f}",
                             percent(v["tg_tps"] / best["tg_tps"])] if "pp_tps" in v else [v["why"], "", "", ""]) for v in m["variants"]]
    return out + ["### Paths, forced in turn", ""] + table(["", "prompt, tokens/s", "of the chosen", "generation, tokens/s", "of the chosen"],
                                                          rows, (1, 2, 3, 4))


def md_profile(p, limits, chart):
    out = [f"![kernels]({os.path.basename(chart)})", ""] if p["timestamps"] else []
    head = ["share", "time", "dispatches", "for", "kernel", "weights", "reads weights", "multiply-adds/s"]
    for key, what in (("token", f"a token behind {p['token']['position']} others"), ("prompt", f"a prompt of {p['prompt']['columns']} tokens")):
        part = p[key]
        said = f"{duration(part['ns'])} in {part['submits']} submits of {part['dispatches']} dispatches"
        if not p["timestamps"]:
            out += [f"### Kernels of {what}: {said}", "", f"This device has no timestamps ({p['timestamps_why']}): no kernel's own time is known.", ""]
        else:
            out += [f"### Kernels of {what}: {said}", "", f"With a timestamp behind every dispatch {duration(part['ns_stamped'])}:", ""]
        out += table(head, kernel_rows(part, limits), (0, 1, 2, 6, 7))
    return out


def md_device(limits):
    d = limits["device"]
    rows = [["abilities", ", ".join(d["can"])], ["matrices", ", ".join(dict.fromkeys(d["matrices"])) or "none"],
            ["dot products are fast", "yes" if d["dot_fast"] else "no"],
            ["subgroup", f"{d['subgroup']} ({d['subgroup_min']} to {d['subgroup_max']})"],
            ["workgroup, shared memory", f"{d['max_workgroup']}, {size(d['max_shared_bytes'])}"],
            ["a binding, an allocation", f"{size(d['max_binding_bytes'])}, {size(d['max_allocation_bytes'])}"],
            ["memory, free", f"{size(d['memory_bytes'])}, {size(d['free_bytes'])}{', the host sees all of it' if d['unified'] else ''}"],
            ["timestamps", f"{limits['timestamp_ns']:.4g} ns" if limits["timestamps"] else "none: " + limits["timestamps_why"]]]
    out = ["## The device", ""] + table(["", ""], rows)
    best = limits["multiply_adds_per_s"] or 1
    rows = [[r["path"], r["weights"], r["n"], duration(r["ns"]), per_second(r["multiply_adds_per_s"], ""), percent(r["multiply_adds_per_s"] / best)]
            for r in limits["matmul"]]
    out += ["### Square multiplications: the matrix rate", ""]
    out += table(["path", "weights", "n", "time", "multiply-adds/s", "of the best"], rows, (2, 3, 4, 5))
    rows = [[r["kernel"], r["weights"], size(r["bytes"]), per_second(r["bytes_per_s"], "B"), percent(r["bytes_per_s"] / (limits["bytes_per_s"] or 1))]
            for r in limits["matvec"]]
    out += [f"### One column by a large weight: reading (copies: {size(limits['copy']['bytes'])} at once)", ""]
    return out + table(["kernel", "weights", "size", "reads", "of the copy bandwidth"], rows, (2, 3, 4))


def md_tests(tests):
    rows = [[t["name"], t["passed"], t["failed"], t["skipped"], f"{t['seconds']:.1f} s", "" if t["good"] else "FAILED"] for t in tests]
    out = ["## Tests", ""] + (table(["test", "passed", "failed", "skipped", "time", ""], rows, (1, 2, 3, 4)) if rows else ["Not run.", ""])
    for t in tests:
        out += [f"- {t['name']} skips: {s}" for s in t.get("skips", [])]
    for t in tests:
        if not t["good"]:
            out += ["", f"{t['name']}:", "", "```", t["output"], "```", ""]
    return out


# ---- The chart ----

def escape(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def svg(m):
    """Bars of the kernels' shares, those of a token above those of a prompt."""
    p, width, left, bar, line = m["profile"], 760, 250, 420, 22
    out, y = [], 10
    for key, colour, what in (("token", "#2a6fb0", "a token"), ("prompt", "#c2641d", f"a prompt of {p['prompt']['columns']} tokens")):
        kernels = p[key]["kernels"]
        whole = total(kernels, "ns") or 1
        y += 24
        out.append(f'<text x="10" y="{y}" font-weight="bold">{escape(m["name"])}: {escape(what)}, {duration(whole)}</text>')
        y += 10
        shown = [k for k in kernels if (k.get("ns") or 0) >= 0.005 * whole]
        rest = whole - total(shown, "ns")
        rows = [(f"{k['role']} ({k['kernel']}{' ' + k['weights'] if k['weights'] else ''})", k["ns"]) for k in shown]
        for label, ns in rows + ([(f"{len(kernels) - len(shown)} others", rest)] if len(kernels) > len(shown) else []):
            length = max(1.0, bar * ns / whole)
            out.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>')
            out.append(f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="{line - 6}" fill="{colour}"/>')
            out.append(f'<text x="{left + length + 6:.1f}" y="{y + 15}">{100 * ns / whole:.1f} %</text>')
            y += line
    y += 14
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y}" viewBox="0 0 {width} {y}" '
                      'font-family="sans-serif" font-size="12">', f'<rect width="{width}" height="{y}" fill="#ffffff"/>'] + out + ["</svg>", ""])


# ---- All of it ----

def system():
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as f:
            cpu = re.search(r"^model name\s*:\s*(.*)$", f.read(), re.M).group(1)
    except (OSError, AttributeError):
        pass
    return f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"


def limits_of(device):
    """The device's measured limits, or None and why."""
    limits, why = run_json([BENCH, "device", device], BENCH_LIMIT)
    if why:
        return None, why.replace("bench_gpu: ", "")
    best = max(limits["matmul"], key=lambda r: r["multiply_adds_per_s"])
    limits["bytes_per_s"] = limits["copy"]["bytes_per_s"]
    limits["multiply_adds_per_s"] = best["multiply_adds_per_s"]
    limits["best"] = f"{best['path']} over {best['weights']}, {best['n']} x {best['n']} x {best['n']}"
    return limits, None


def write(report):
    md = md_summary(report)
    for i, m in enumerate(report["models"]):
        chart = f"{REPORT}-{i + 1}.svg"
        if m.get("profile") and m["profile"]["timestamps"]:
            with open(chart, "w", encoding="utf-8") as f:
                f.write(svg(m))
        md += md_model(m, report["limits"], chart)
    md += md_device(report["limits"]) + md_tests(report["tests"])
    with open(REPORT + ".md", "w", encoding="utf-8") as f:
        f.write("\n".join(md).rstrip() + "\n")
    with open(REPORT + ".json", "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1)
    say(f"{REPORT}.md and {REPORT}.json are written")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("models", nargs="*", metavar="MODEL.gguf")
    args.add_argument("--device", default="gpu", help="gpu (the best) or gpu:N")
    args.add_argument("--skip-tests", action="store_true", help="benches alone")
    a = args.parse_args()
    models = [os.path.abspath(m) for m in a.models]
    for m in models:
        if not os.path.exists(m):
            sys.exit(f"gpu-report: no such file: {m}")
    os.chdir(TOP)
    for old in glob.glob(REPORT + "*"):
        os.remove(old)
    sources = ["tests/test_gpu.c"] + sorted(glob.glob("tests/test_vk_*.c"))
    needed = ["tests/bench_gpu.c", "examples/nova.c"]
    built = build(needed + ([] if a.skip_tests else sources))
    for s in needed:
        if built[s]:
            sys.exit(f"gpu-report: {s} does not compile: {built[s]}")
    limits, why = limits_of(a.device)
    if why:
        sys.exit(f"gpu-report: {why}")
    problems = [] if limits["executes"] else ["the device runs nothing: what is copied does not arrive"]
    say(f"{limits['device']['name']}: copies {per_second(limits['bytes_per_s'], 'B')}, multiplies "
        f"{per_second(limits['multiply_adds_per_s'], ' multiply-adds')} ({limits['best']})")
    run_all = limits["executes"] and not a.skip_tests
    measured = [measure_model(m, a.device, limits, problems) for m in models]
    tests = run_tests(sources, built, a.device) if run_all else []
    version = re.search(r'NOVA_VERSION "(.*)"', open("nova.h").read()).group(1)
    commit = run(["git", "log", "-1", "--format=%h"], 10)
    report = {"when": time.strftime("%Y-%m-%d %H:%M"), "system": system(),
              "version": version + (" " + commit.out.strip() if commit.status == 0 else ""),
              "limits": limits, "models": measured, "tests": tests, "problems": problems}
    write(report)
    failed = [t["name"] for t in tests if not t["good"]]
    for p in problems + [f"{t} failed" for t in failed]:
        say("FAILED: " + p)
    return 1 if failed or problems else 0


if __name__ == "__main__":
    sys.exit(main())
