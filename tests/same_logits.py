#!/usr/bin/env python3
"""Compares two files that `nova logits` wrote: the same up to rounding (normalised mean square error under 1e-6)?

    same_logits.py A B
"""
import array
import math
import sys


def read(path):
    values = array.array("f")
    with open(path, "rb") as f:
        values.frombytes(f.read())
    return values


def main():
    a, b = (read(path) for path in sys.argv[1:3])
    if len(a) != len(b) or not a or not all(map(math.isfinite, a)) or not all(map(math.isfinite, b)):
        sys.exit(f"same_logits.py: {len(a)} and {len(b)} values, or some that are no numbers")
    scale = sum(y * y for y in b)
    error = sum((x - y) ** 2 for x, y in zip(a, b)) / scale if scale else math.inf
    print(f"{len(a)} logits, normalised mean square error {error:.1e}")
    return error >= 1e-6


if __name__ == "__main__":
    sys.exit(main())
