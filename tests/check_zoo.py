#!/usr/bin/env python3
"""Architectures: tiny random models of every kind, whose logits are compared with llama.cpp's.

    check_zoo.py NOVA                 compares with tests/zoo.json
    check_zoo.py --record REF FOLDER  makes tests/zoo.json: REF is a command that llama.cpp's logits come from (REF MODEL IDS OUT)

The models are made by lab/zoo.py of NOVA_TEST_DATA (default ../shared). Kept are a hash of each file and every 251st of its logits;
where zoo.py makes another file here, that model is skipped. Then files with numbers that no model has: one clear error each.
Prints N passed, M failed, K skipped.
"""
import hashlib
import json
import os
import random
import shlex
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.environ.get("NOVA_TEST_DATA", os.path.join(HERE, "..", "..", "shared"))
ZOO = os.path.join(DATA, "lab", "zoo.py")
KEPT = os.path.join(HERE, "zoo.json")
STEP, N_IDS = 251, 40

passed = failed = skipped = 0


def check(good, what):
    global passed, failed
    if good:
        passed += 1
    else:
        failed += 1
        print("FAILED:", what)


def ids_of(name):
    draw = random.Random(name)
    return ",".join(str(draw.randrange(3, 480)) for _ in range(N_IDS))


def floats(path):
    with open(path, "rb") as f:
        data = f.read()
    return struct.unpack(f"<{len(data) // 4}f", data)


def hash_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:16]


def make(folder):
    subprocess.run([sys.executable, ZOO, folder, "--seed", "1"], check=True, stdout=subprocess.DEVNULL)
    return sorted(n[:-5] for n in os.listdir(folder) if n.endswith(".gguf"))


def record(ref, folder):
    kept = {}
    for name in make(folder):
        model, out = os.path.join(folder, name + ".gguf"), os.path.join(folder, "out")
        subprocess.run(shlex.split(ref) + [model, ids_of(name), out], check=True, stderr=subprocess.DEVNULL)
        kept[name] = {"hash": hash_of(model), "logits": [float(f"{x:.6g}") for x in floats(out)[::STEP]]}
    with open(KEPT, "w") as f:
        f.write("{\n" + ",\n".join(f'"{n}": {json.dumps(k)}' for n, k in kept.items()) + "\n}\n")


def nmse(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b)


def compare(nova, name, kept, folder):
    global skipped
    model, out = os.path.join(folder, name + ".gguf"), os.path.join(folder, "out")
    if hash_of(model) != kept["hash"]:
        skipped += 1
        print(f"skipped: {name}: zoo.py makes another file here")
        return
    for flags in [], ["--one-by-one"], ["-t", "1"], ["--device", "auto"]:
        p = subprocess.run([nova, "logits", "-m", model, "--ids", ids_of(name), "-o", out, "--device", "cpu"] + flags,
                           capture_output=True, text=True)
        if p.returncode:
            check(False, f"{name} {flags}: {p.stderr.strip()}")
            continue
        got = floats(out)[::STEP]
        e = nmse(got, kept["logits"]) if len(got) == len(kept["logits"]) else 1
        check(e < 1e-4, f"{name} {flags}: nmse {e:.2e}")


def patched(path, key, value, folder):
    """A copy with another 32-bit value behind the key."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    at = data.index(key.encode()) + len(key) + 4
    data[at:at + 4] = struct.pack("<f" if isinstance(value, float) else "<I", value)
    out = os.path.join(folder, "patched.gguf")
    with open(out, "wb") as f:
        f.write(data)
    return out


def split(model, folder, each):
    """The model in several files; gives the first."""
    import gguf
    reader = gguf.GGUFReader(model)
    name = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(os.path.join(folder, "parts.gguf"), name, split_max_tensors=each)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], item)
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.startswith("parts-"))


def run_logits(nova, model, out, *flags):
    return subprocess.run([nova, "logits", "-m", model, "--ids", ids_of("parts"), "-o", out, "--device", "cpu", *flags],
                          capture_output=True, text=True)


def test_parts(nova, model, folder):
    whole, out = os.path.join(folder, "whole"), os.path.join(folder, "out")
    parts = split(model, folder, 9)
    check(len(parts) > 2, f"{len(parts)} parts")
    run_logits(nova, model, whole)
    p = run_logits(nova, parts[0], out)
    check(p.returncode == 0 and floats(out) == floats(whole), f"parts give other logits than the whole: {p.stderr.strip()}")

    def fails(word, what):
        p = run_logits(nova, parts[0], out)
        check(p.returncode == 1 and word in p.stderr and p.stderr.count("\n") == 1, f"{what}: {p.returncode}, '{p.stderr.strip()}'")
    p = run_logits(nova, parts[1], out)
    check(p.returncode == 1 and "open the first" in p.stderr, f"the second part: {p.stderr.strip()}")
    away = parts[1] + ".away"
    os.rename(parts[1], away)
    fails(os.path.basename(parts[1]), "a part is missing")
    with open(parts[2], "rb") as f:
        data = f.read()
    for content, word in (data, "it says that it is file 3"), (data[:1000], "file 2 of"), (b"text", "file 2 of"), (b"", "file 2 of"):
        with open(parts[1], "wb") as f:
            f.write(content)
        fails(word, f"a part of {len(content)} bytes that is another")
    os.rename(away, parts[1])
    odd = os.path.join(folder, "odd.gguf")
    os.rename(parts[0], odd)
    p = run_logits(nova, odd, out)
    check(p.returncode == 1 and "does not end in" in p.stderr, f"another name: {p.stderr.strip()}")


BAD = [("qwen3moe", "qwen3moe.expert_used_count", 0, "experts"), ("qwen3moe", "qwen3moe.expert_used_count", 99, "experts"),
       ("qwen3moe", "qwen3moe.expert_count", 3, "ffn_gate_inp"), ("qwen3moe", "qwen3moe.expert_count", 1 << 31, "experts"),
       ("qwen3moe", "qwen3moe.expert_feed_forward_length", 0, "experts"),
       ("qwen3moe", "qwen3moe.expert_feed_forward_length", 100, "exps"),
       ("smallthinker", "smallthinker.expert_gating_func", 77, "expert_gating_func"),
       ("gemma2", "gemma2.attn_logit_softcapping", float("nan"), "attn_logit_softcapping"),
       ("gemma2", "gemma2.final_logit_softcapping", -1.0, "final_logit_softcapping"),
       ("granite", "granite.residual_scale", float("inf"), "residual_scale"),
       ("deepseek2-lite", "deepseek2.attention.head_count_kv", 2, "KV heads"),
       ("granite", "granite.attention.scale", float("nan"), "attention.scale"),
       ("llama-yarn", "llama.rope.scaling.factor", float("inf"), "rope.scaling.factor"),
       ("gemma", "gemma.attention.layer_norm_rms_epsilon", float("inf"), "epsilon"),
       ("phi3", "phi3.attention.head_count_kv", 3, "attn_qkv"), ("phi2", "phi2.rope.dimension_count", 7, "RoPE"),
       ("qwen2moe", "qwen2moe.expert_shared_feed_forward_length", 32, "shexp"), ("gpt2", "gpt2.embedding_length", 96, "token_embd")]


def main():
    global skipped
    if sys.argv[1] == "--record":
        record(sys.argv[2], sys.argv[3])
        return
    if not os.path.exists(ZOO):
        skipped += 1
        print("skipped: no", ZOO)
        return
    with open(KEPT) as f:
        kept = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        names = make(folder)
        for name in names:
            if name in kept:
                compare(sys.argv[1], name, kept[name], folder)
        test_parts(sys.argv[1], os.path.join(folder, "qwen2.gguf"), folder)
        for name, key, value, word in BAD:
            path = patched(os.path.join(folder, name + ".gguf"), key, value, folder)
            p = subprocess.run([sys.argv[1], "logits", "-m", path, "--ids", "5", "-o", os.devnull], capture_output=True, text=True)
            line = p.stderr.strip()
            check(p.returncode == 1 and "\n" not in line and word in line, f"{key} {value}: {p.returncode}, '{line}'")
        p = subprocess.run([sys.argv[1], "logits", "-m", os.path.join(folder, "gpt2.gguf"), "--ids", "5", "-o", os.devnull, "-c", "600"],
                           capture_output=True, text=True)
        check(p.returncode == 1 and "positions" in p.stderr, f"learned positions: {p.stderr.strip()}")


if __name__ == "__main__":
    main()
    if sys.argv[1] != "--record":
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        sys.exit(failed != 0)
