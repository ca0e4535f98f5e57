#!/usr/bin/env python3
"""Checks the hashes in test_quant.c against gguf-py, the GGUF project's own Python (pip install gguf).

    check_quant.py          compare, exit 1 on a difference
    check_quant.py --write  put gguf-py's hashes into test_quant.c
"""
import os
import re
import sys

import numpy as np
from gguf import GGMLQuantizationType, quants

TEST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "test_quant.c")
SEED, BLOCKS = 20260, 512
EXTREME = np.array([0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x3C00], "<u2")
# Type: bytes a block, offsets of its halves.
TYPES = {
    "F32": (4, -1, -1), "F16": (2, 0, -1), "BF16": (2, -1, -1),
    "Q4_0": (18, 0, -1), "Q4_1": (20, 0, 2), "Q5_0": (22, 0, -1), "Q5_1": (24, 0, 2), "Q8_0": (34, 0, -1),
    "Q4_K": (144, 0, 2), "Q5_K": (176, 0, 2), "Q6_K": (210, 208, -1),
}


def splitmix(n):
    with np.errstate(over="ignore"):
        z = np.uint64(SEED) + np.arange(1, n + 1, dtype="u8") * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def blocks(size, offsets):
    data = splitmix((BLOCKS * size + 7) // 8).astype("<u8").view("u1")[:BLOCKS * size].reshape(BLOCKS, size).copy()
    for b in range(0, BLOCKS, 4):
        for k, at in enumerate(offsets):
            if at >= 0:
                data[b, at:at + 2] = EXTREME[(b // 4 + 3 * k) % 10:][:1].view("u1")
    return data


def dequantise(name, data):
    if name == "F32":
        return data.view("<f4").ravel()
    if name == "F16":
        return data.view("<f2").ravel().astype("f4")
    with np.errstate(all="ignore"):
        return quants.dequantize(data, GGMLQuantizationType[name]).ravel()


def fnv(values):
    bits = np.ascontiguousarray(values, "<f4").view("<u4").copy()
    bits[(bits & 0x7FFFFFFF) > 0x7F800000] = 0x7FC00000
    h = 0xCBF29CE484222325
    for word in bits.tolist():
        h = ((h ^ word) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def main():
    rows = []
    for name, (size, *offsets) in TYPES.items():
        h = fnv(dequantise(name, blocks(size, offsets)))
        rows.append(f'    {{ "{name}", {{ {offsets[0]}, {offsets[1]} }}, 0x{h:016x}u }},\n')
    with open(TEST, encoding="utf-8") as f:
        text = f.read()
    begin, end = "    /* BEGIN VECTORS */\n", "    /* END VECTORS */\n"
    new = re.sub(re.escape(begin) + ".*" + re.escape(end), lambda _: begin + "".join(rows) + end, text, flags=re.S)
    if "--write" in sys.argv:
        with open(TEST, "w", encoding="utf-8", newline="\n") as f:
            f.write(new)
    elif new != text:
        sys.exit("check_quant.py: test_quant.c and gguf-py differ")
    print(f"{len(rows)} types agree with gguf-py")


if __name__ == "__main__":
    main()
