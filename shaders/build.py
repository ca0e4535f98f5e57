#!/usr/bin/env python3
"""Compiles the shaders of list.txt to spirv/NAME.spv, and writes spirv/manifest.txt.

    build.py [--check] [--to DIR] [NAME...]

--check compiles nothing: it compares the manifest's hashes with the sources. Where glslang is at hand (GLSLANG, a command;
default: the lab's, where there is one) --check also compiles again and compares the bytes.
"""
import argparse
import fcntl
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LAB = os.path.join(HERE, "..", "..", "shared", "lab", "run.sh")
GLSLANG = shlex.split(os.environ.get("GLSLANG", f"{os.path.normpath(LAB)} none glslangValidator"))


def shader_list():
    """(name, source, flags) of every module, in order."""
    out = []
    with open(os.path.join(HERE, "list.txt"), encoding="utf-8") as f:
        for line in f:
            words = line.split("#")[0].split()
            if words:
                out.append((words[0], words[1], words[2:]))
    names = [name for name, _, _ in out]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        sys.exit(f"build.py: list.txt names {', '.join(twice)} twice")
    return out


def sources(name, seen):
    """The file and what it includes, each once."""
    if name in seen:
        return
    seen.append(name)
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        for inner in re.findall(r'^\s*#include "([^"]+)"', f.read(), re.M):
            sources(inner, seen)


def source_hash(source, flags):
    seen, h = [], hashlib.sha256(" ".join(flags).encode())
    sources(source, seen)
    for name in seen:
        with open(os.path.join(HERE, name), "rb") as f:
            h.update(name.encode() + b"\0" + f.read())
    return h.hexdigest()[:32]


def version():
    r = subprocess.run(GLSLANG + ["--version"], capture_output=True, text=True, cwd=HERE)
    return r.stdout.splitlines()[0].split(":", 1)[1].strip() if r.returncode == 0 and r.stdout else None


def compile_one(source, flags, to):
    command = GLSLANG + ["--target-env", "vulkan1.1", "-V", "--quiet", "-g0", f"-I{HERE}"] + flags + \
        [os.path.join(HERE, source), "-o", to]
    r = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    if r.returncode:
        print(f"build.py: {source} {' '.join(flags)}:\n{r.stdout}{r.stderr}", file=sys.stderr)
    return r.returncode == 0


def read_manifest(to):
    out, compiler = {}, ""
    path = os.path.join(to, "manifest.txt")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            for line in f:
                words = line.split()
                if words[:1] == ["glslang"]:
                    compiler = words[1]
                elif words:
                    out[words[0]] = words[1]
    return compiler, out


def check(to):
    compiler, hashes = read_manifest(to)
    stale = [n for n, s, f in shader_list() if hashes.get(n) != source_hash(s, f)]
    extra = sorted(set(hashes) - {n for n, _, _ in shader_list()})
    if stale or extra:
        sys.exit(f"build.py: out of date: {' '.join(stale)} {' '.join(extra)}")
    here = version()
    if here != compiler:
        print(f"hashes match; not compiled again: glslang here is {here}, the modules are of {compiler}")
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as tmp:
        for name, source, flags in shader_list():
            if not compile_one(source, flags, os.path.join(tmp, name)):
                sys.exit(1)
            with open(os.path.join(tmp, name), "rb") as a, open(os.path.join(to, name + ".spv"), "rb") as b:
                if a.read() != b.read():
                    sys.exit(f"build.py: {name} compiles to other bytes")
    print(f"{len(hashes)} modules match their sources")


def main():
    p = argparse.ArgumentParser(description="Compiles the shaders.")
    p.add_argument("--check", action="store_true")
    p.add_argument("--to", default=os.path.join(HERE, "spirv"))
    p.add_argument("names", nargs="*", help="only these; default: those that changed")
    a = p.parse_args()
    if a.check:
        return check(a.to)
    here = version()
    if not here:
        sys.exit("build.py: no glslang: set GLSLANG")
    os.makedirs(a.to, exist_ok=True)
    with open(os.path.join(a.to, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(a.to, a.names, here)


def build(to, names, here):
    """All that changed, or the named ones. What does not compile keeps its old bytes, and the call fails."""
    compiler, old = read_manifest(to)
    lines, total, good = [f"glslang {here}"], 0, True
    for name, source, flags in shader_list():
        out = os.path.join(to, name + ".spv")
        there = old.get(name) if os.path.exists(out) else None
        h = there
        if (name in names if names else True) and os.path.exists(os.path.join(HERE, source)):
            h = source_hash(source, flags)
            if (compiler != here or there != h or names) and not compile_one(source, flags, out + ".new"):
                h, good = there, False
            elif os.path.exists(out + ".new"):
                os.replace(out + ".new", out)
        if h:
            total += os.path.getsize(out)
            lines.append(f"{name} {h} {os.path.getsize(out)}")
    keep = {n + ".spv" for n, _, _ in shader_list()}
    for f in os.listdir(to):
        if f.endswith(".spv") and f not in keep:
            os.remove(os.path.join(to, f))
    with open(os.path.join(to, "manifest.new"), "w", encoding="utf-8", newline="\n") as f:
        f.write("\n".join(lines) + "\n")
    os.replace(os.path.join(to, "manifest.new"), os.path.join(to, "manifest.txt"))
    print(f"{len(lines) - 1} modules, {total} bytes")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
