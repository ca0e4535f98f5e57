#!/usr/bin/env python3
"""Joins the modules of src/ into one file, nova.c.

    join.py [-o nova.c] [--only MODULE,...]

--only joins the named modules and what they include, for work on a part. The result depends on the sources alone:
order from MODULES, LF line ends, no dates.
"""
import argparse
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHADERS = os.path.join(HERE, "..", "shaders")

# Floors from the ground up: a module includes only what stands above it here.
MODULES = """
base platform pool
quant gguf
cpu_input cpu_narrow cpu_wide cpu_vector cpu_page cpu_attend
unicode pretokenize vocab tokenizer
letters jinja_value jinja_print json jinja_text jinja_format jinja_member jinja_operate jinja_test jinja_filter
jinja_global jinja_lex jinja_parse jinja_scope jinja_run chat
model text
program kv
cpu
vk_api vk_device vk_spirv vk_kernel vk_weight vk_matvec vk_matmul vk_small vk_attend vk_choose vk_machine gpu
sample engine session state
""".split()

HEAD = """/* nova: an embedded runtime for GGUF language models. The interface and the manual are in nova.h.
 * MIT license, see LICENSE.
 *
 * This file is generated from src/ by src/join.py: change it there.
 * SPIR-V modules: {n_modules}, {n_bytes} bytes.
 */

/* What the system's headers need to be told before the first of them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64
#endif
#if defined(__MINGW32__) && !defined(__USE_MINGW_ANSI_STDIO)
#define __USE_MINGW_ANSI_STDIO 1
#endif

/* Results do not depend on -ffast-math and its parts, nor on whether a product and a sum may become one operation: what
 * this file computes is what it says (comparisons with NaN: see f32_is_finite). Taken back at its end. Clang's -ffast-math
 * alone makes one operation of them all the same in functions with FMA instructions: last bits differ from those of other
 * builds, and every promise about one build's results holds. */
#if defined(__clang__)
#if defined(__x86_64__) || defined(__FAST_MATH__) || __FINITE_MATH_ONLY__   /* elsewhere some versions do not know it */
#pragma float_control(precise, on, push)
#endif
#pragma clang fp contract(off) reassociate(off)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma push_macro("__FAST_MATH__")
#pragma GCC optimize("no-fast-math", "fp-contract=off")
#undef __FAST_MATH__   /* or g++ takes the C library's vector functions, which are less exact */
#elif defined(_MSC_VER)
#pragma float_control(precise, on, push)
#ifndef __clang_major__
#pragma fp_contract(off)
#endif
#endif

"""

TAIL = """
#ifndef NOVA_TEST_STAYS   /* a test that wants its own code compiled by the same rules */
#if defined(__clang__)
#if defined(__x86_64__) || defined(__FAST_MATH__) || __FINITE_MATH_ONLY__
#pragma float_control(pop)
#endif
#elif defined(_MSC_VER)
#pragma float_control(pop)
#elif defined(__GNUC__)
#pragma pop_macro("__FAST_MATH__")
#pragma GCC pop_options
#endif
#endif
"""


def spirv():
    """(name, bytes, source hash) of every shader in shaders/list.txt, and the compiler's version."""
    with open(os.path.join(SHADERS, "spirv", "manifest.txt"), encoding="utf-8") as f:
        lines = [line.split() for line in f]
    out = []
    for name, source_hash, size in lines[1:]:
        with open(os.path.join(SHADERS, "spirv", name + ".spv"), "rb") as f:
            out.append((name, f.read(), source_hash))
        if len(out[-1][1]) != int(size):
            sys.exit(f"join.py: {name}.spv is not of the manifest")
    return out, lines[0][1]


def spirv_module():
    """The text of the module vk_spirv, which is no file of src/."""
    modules, compiler = spirv()
    names = [name for name, _, _ in modules]
    text = [f"/* {len(modules)} shaders, compiled by glslang {compiler} (shaders/build.py). Each names its source's hash. */\n"
            "#ifndef NOVA_NO_VULKAN\n\ntypedef enum vk_kernel {\n"]
    text += [f"    KERNEL_{name.upper()},\n" for name in names]
    text.append("    KERNEL_COUNT\n} vk_kernel;\n\n")
    for name, data, source_hash in modules:
        words = [f"0x{int.from_bytes(data[i:i + 4], 'little'):x}" for i in range(0, len(data), 4)]
        text.append(f"/* {name}: {source_hash} */\nstatic const uint32_t spirv_{name}[] = {{\n")
        line = ""
        for w in words:
            if len(line) + len(w) > 118:
                text.append(line + "\n")
                line = ""
            line += w + ","
        text.append(line + "\n};\n")
    text.append("\nstatic const struct { const char *name; const uint32_t *words; uint32_t bytes; } vk_kernels[KERNEL_COUNT] = {\n")
    text += [f'    {{"{name}", spirv_{name}, {len(data)}}},\n' for name, data, _ in modules]
    text.append("};\n\n#endif\n")
    return "".join(text)


def read(name):
    if name == "vk_spirv.h":
        return '#include "vk_device.h"\n' + spirv_module()
    path = os.path.join(HERE, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    if "\r" in text:
        sys.exit(f"join.py: {name} has CR line ends")
    return text


def includes(text):
    return re.findall(r'^#include "(\w+)\.h"', (text or "")[:20000], re.M)   # the first lines of a module


def closure(wanted):
    """The modules that `wanted` need, headers and sources alike."""
    todo, seen = list(wanted), set()
    while todo:
        m = todo.pop()
        if m in seen or m == "nova":
            continue
        if m not in MODULES:
            sys.exit(f"join.py: no module {m} in MODULES")
        seen.add(m)
        todo += includes(read(m + ".h")) + includes(read(m + ".c"))
    return [m for m in MODULES if m in seen]


def check_floors(module, text):
    for m in includes(text):
        if m != "nova" and MODULES.index(m) > MODULES.index(module):
            sys.exit(f"join.py: {module} includes {m}, which stands below it")


def join(modules):
    shaders = spirv()[0] if "vk_spirv" in modules else []
    head = HEAD.replace("{n_modules}", str(len(shaders))).replace("{n_bytes}", str(sum(len(d) for _, d, _ in shaders)))
    parts = [head, '#include "nova.h"\n']
    for m in modules:
        for name in (m + ".h", m + ".c"):
            text = read(name)
            if text is None:
                continue
            check_floors(m, text)
            body = re.sub(r'^#include "\w+\.h".*\n', "", text, flags=re.M)
            parts.append(f"\n/* ==== src/{name} {'=' * (100 - len(name))} */\n\n{body}")
    return "".join(parts) + TAIL


def main():
    p = argparse.ArgumentParser(description="Joins src/ into nova.c.")
    p.add_argument("-o", default=os.path.join(HERE, "..", "nova.c"))
    p.add_argument("--only", default="")
    a = p.parse_args()
    modules = closure(a.only.split(",")) if a.only else [m for m in MODULES if read(m + ".h") or read(m + ".c")]
    text = join(modules).encode()
    if os.path.exists(a.o) and not os.path.isfile(a.o):   # a pipe, a device
        with open(a.o, "wb") as f:
            f.write(text)
        return
    # The old file stands until the new one is whole.
    fresh = f"{a.o}.{os.getpid()}.tmp"
    try:
        with open(fresh, "wb") as f:
            f.write(text)
        os.replace(fresh, a.o)
    except OSError as e:
        if os.path.exists(fresh):
            os.remove(fresh)
        sys.exit(f"join.py: {a.o}: {e.strerror}")


if __name__ == "__main__":
    main()
