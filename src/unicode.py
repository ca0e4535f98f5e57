#!/usr/bin/env python3
"""Rewrites the tables of src/unicode.c, between its two marks, from the Unicode Character Database.

    unicode.py [--ucd /usr/share/unicode] [--check] [--vectors FILE]

The folder is Debian's package unicode-data (15.0.0 there), or the unpacked UCD. --check compares instead of writing.
--vectors writes a sample of the database's own NormalizationTest, for tests/test_tokenizer.c.
"""
import argparse
import bz2
import os
import random
import re
import sys

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unicode.c")
START, END = "/* ---- Tables, written by src/unicode.py ---- */\n", "/* ---- End of the tables ---- */\n"
BLOCK = 64        # code points in a row of the class table
DIRECT = 0x20000  # from here on a short list of ranges says it
HANGUL = range(0xAC00, 0xD7A4)
MOST = 0x110000

# What tokenizers tell apart. Letters are upper case where normalisation has to look at the character.
CLASS = dict(Lu="u", Lt="u", Ll="l", Lm="o", Lo="o", Mn="m", Mc="m", Me="m", Nd="n", Nl="n", No="n",
             Pc="p", Pd="p", Ps="p", Pe="p", Pi="p", Pf="p", Po="p", Sm="s", Sc="s", Sk="s", So="s")


def lines(path):
    with open(path, encoding="utf-8") as f:
        for line in f:
            line = line.split("#")[0].strip()
            if line:
                yield [x.strip() for x in line.split(";")]


def span(text):
    a = text.split("..")
    return range(int(a[0], 16), int(a[-1], 16) + 1)


class Ucd:
    def __init__(self, folder):
        with open(os.path.join(folder, "ReadMe.txt"), encoding="utf-8") as f:
            self.version = re.search(r"Version (\d+\.\d+\.\d+)", f.read()).group(1)
        category, self.ccc, self.pairs = ["Cn"] * MOST, [0] * MOST, {}
        first = None
        for f in lines(os.path.join(folder, "UnicodeData.txt")):
            cp = int(f[0], 16)
            if f[1].endswith(", First>"):
                first = cp
                continue
            for c in range(first if f[1].endswith(", Last>") else cp, cp + 1):
                category[c] = f[2]
            self.ccc[cp] = int(f[3])
            if f[5] and not f[5].startswith("<"):
                self.pairs[cp] = [int(x, 16) for x in f[5].split()]
        white, look, self.excluded = set(), set(), set()
        for f in lines(os.path.join(folder, "PropList.txt")):
            if f[1] == "White_Space":
                white.update(span(f[0]))
        for f in lines(os.path.join(folder, "DerivedNormalizationProps.txt")):
            if f[1] == "NFC_QC":
                look.update(span(f[0]))
            if f[1] == "Full_Composition_Exclusion":
                self.excluded.update(span(f[0]))
        self.letters = []
        for c in range(MOST):
            letter = "w" if c in white else CLASS.get(category[c], "x")
            self.letters.append(letter.upper() if c in look or self.ccc[c] else letter)
        # What unicode.c relies on.
        assert all(len(p) == 1 or p[1] not in self.pairs for p in self.pairs.values())
        assert not any(self.ccc[c] or c in self.pairs for c in HANGUL)
        assert max(map(self.steps, self.pairs)) <= 4

    def steps(self, cp):
        """Code points that one decomposes into."""
        pair = self.pairs.get(cp)
        return 1 if not pair else self.steps(pair[0]) + len(pair) - 1


def runs(values, start, end):
    """Spans of equal values: (first, length, value)."""
    first = start
    for c in range(start + 1, end + 1):
        if c == end or values[c] != values[first]:
            yield first, c - first, values[first]
            first = c


def table(items):
    """Items joined by commas into lines of at most 120 columns."""
    out, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 120:
            out.append(line)
            line = "   "
        line += " " + item + ","
    return "\n".join(out + [line])


def tables(ucd):
    rows, index = {}, []
    for i in range(0, DIRECT, BLOCK):
        index.append(rows.setdefault("".join(ucd.letters[i:i + BLOCK]), len(rows)))
    far = [r for r in runs(ucd.letters, DIRECT, MOST) if r[2] != "x"]
    ccc = [r for r in runs(ucd.ccc, 0, MOST) if r[2]]
    pairs = sorted(ucd.pairs.items())
    composed = sorted((p[0], p[1], i) for i, (c, p) in enumerate(pairs) if len(p) == 2 and c not in ucd.excluded)

    def pair(c, p):
        return "{0x%X, 0x%X, %s}" % (c, p[0], "0x%X" % p[1] if len(p) > 1 else "0")

    return "\n".join([
        f"/* Unicode Character Database {ucd.version}. */",
        "",
        f"/* A letter a code point: see unicode.h. Rows of {BLOCK}, found through unicode_index below U+{DIRECT:X}. */",
        f"static const char unicode_rows[{len(rows)}][{BLOCK + 1}] = {{",
        ",\n".join(f'    "{row}"' for row in rows), "};", "",
        f"static const uint16_t unicode_index[{len(index)}] = {{", table(map(str, index)), "};", "",
        "/* From there on; what is not listed is 'x'. */",
        f"static const unicode_range unicode_far[{len(far)}] = {{",
        table(f"{{0x{a:X}, {n}, '{v}'}}" for a, n, v in far), "};", "",
        "/* Canonical combining classes that are not 0. */",
        f"static const unicode_range unicode_combining[{len(ccc)}] = {{",
        table(f"{{0x{a:X}, {n}, {v}}}" for a, n, v in ccc), "};", "",
        "/* Canonical decompositions, one step each: a code point, and the one or two (else 0) that it stands for. */",
        f"static const uint32_t unicode_pairs[{len(pairs)}][3] = {{", table(pair(c, p) for c, p in pairs), "};", "",
        "/* The rows of unicode_pairs that may be composed, in the order of their two parts. */",
        f"static const uint16_t unicode_composed[{len(composed)}] = {{",
        table(str(i) for _, _, i in composed), "};", ""])


def rewrite(text, ucd):
    head, rest = text.split(START)
    return head + START + "\n" + tables(ucd) + "\n" + END + rest.split(END)[1]


def write_vectors(ucd, folder, path):
    """A line a vector: the source and its NFC in hexadecimal code points, parted by a semicolon."""
    with bz2.open(os.path.join(folder, "NormalizationTest.txt.bz2"), "rt", encoding="utf-8") as f:
        tests = [line.split(";")[:3] for line in f if line[0] not in "#@"]
    # Columns of the file: source; NFC; NFD. Both the source and the NFD have that NFC.
    every = sorted({(a, t[1]) for t in tests for a in (t[0], t[2])} - {(t[1], t[1]) for t in tests})
    hangul = [v for v in every if int(v[1].split()[0], 16) in HANGUL]
    other = [v for v in every if v not in set(hangul)]
    pick = random.Random(15)
    chosen = sorted(pick.sample(hangul, 60) + pick.sample(other, 640))
    with open(path, "w", encoding="utf-8", newline="\n") as f:
        f.write(f"# Sampled by src/unicode.py from NormalizationTest of Unicode {ucd.version}: source;NFC\n")
        f.writelines(f"{a};{b}\n" for a, b in chosen)


def main():
    p = argparse.ArgumentParser(description="Rewrites the tables of src/unicode.c.")
    p.add_argument("--ucd", default="/usr/share/unicode")
    p.add_argument("--check", action="store_true")
    p.add_argument("--vectors", default="")
    a = p.parse_args()
    ucd = Ucd(a.ucd)
    with open(SOURCE, encoding="utf-8", newline="") as f:
        old = f.read()
    new = rewrite(old, ucd)
    if a.check:
        sys.exit(0 if old == new else "src/unicode.c is not what src/unicode.py writes")
    with open(SOURCE, "w", encoding="utf-8", newline="\n") as f:
        f.write(new)
    if a.vectors:
        write_vectors(ucd, a.ucd, a.vectors)


if __name__ == "__main__":
    main()
