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

# Floors from the ground up: a module includes only what stands above it here.
MODULES = """
base platform pool
quant gguf
cpu_input cpu_narrow cpu_wide cpu_vector cpu_attend
unicode pretokenize vocab tokenizer
letters jinja_value jinja_print json jinja_text jinja_format jinja_member jinja_operate jinja_test jinja_filter
jinja_global jinja_lex jinja_parse jinja_scope jinja_run chat
model text
program kv
cpu
sample engine session
""".split()

HEAD = """/* nova: an embedded runtime for GGUF language models. The interface and the manual are in nova.h.
 * MIT license, see LICENSE.
 *
 * This file is generated from src/ by src/join.py: change it there.
 * SPIR-V modules: 0, 0 bytes.
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


def read(name):
    path = os.path.join(HERE, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    if "\r" in text:
        sys.exit(f"join.py: {name} has CR line ends")
    return text


def includes(text):
    return re.findall(r'^#include "(\w+)\.h"', text or "", re.M)


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
    parts = [HEAD, '#include "nova.h"\n']
    for m in modules:
        for name in (m + ".h", m + ".c"):
            text = read(name)
            if text is None:
                continue
            check_floors(m, text)
            body = re.sub(r'^#include "\w+\.h"\n', "", text, flags=re.M)
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
