#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes model/tokenizer/unicode.inc: the differences between the Unicode tables of `tokenizers` and
those of PCRE2 and utf8proc, whose oldest supported versions agree with Python 3.11's unicodedata
(14.0).

    pip install tokenizers==0.23.3
    python3.11 tools/export-tokenizer-unicode.py > model/tokenizer/unicode.inc

Asks `tokenizers` about every code point: its regexes know Unicode 16, its normalization Unicode 9,
its punctuation something as old, and its lower case comes from Rust's standard library.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers
from tokenizers import pre_tokenizers as pre

CODES = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


def survivors(normalizer):
    """The code points that a normalizer does not remove."""
    out = set()
    for i in range(0, len(CODES), 4096):
        out |= set(map(ord, normalizer.normalize_str("".join(map(chr, CODES[i:i + 4096])))))
    return out


def ranges(codes):
    out = []
    for c in sorted(codes):
        if out and c == out[-1][1] + 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def table(kind, name, rows, comment):
    print(f"\n/* {comment} */\nstatic const struct {kind} {name}[] = {{")
    line = "\t"
    for row in rows:
        item = "{" + ", ".join(row) + "}, "
        if len(line) + len(item) > 96:
            print(line.rstrip())
            line = "\t"
        line += item
    print(line.rstrip() + "\n};")


def hexes(codes):
    return [[f"0x{a:x}", f"0x{b:x}"] for a, b in ranges(codes)]


def main():
    assert unicodedata.unidata_version == "14.0.0", "needs Python 3.11"
    known = {c: unicodedata.category(chr(c)) for c in CODES}
    newer = {}
    for cat in ("Lu", "Ll", "Lm", "Lo", "Mn", "Mc", "Nd", "No", "Pc", "Pd", "Po", "Sm", "Sc", "Sk", "So"):
        for c in set(CODES) - survivors(normalizers.Replace(Regex(r"\p{%s}" % cat), "")):
            if known[c] == "Cn":
                newer[c] = cat
    marks = set(CODES) - survivors(normalizers.StripAccents())
    punct = {c for c in CODES if not pre.Punctuation("removed").pre_tokenize_str(chr(c))}
    our_marks = {c for c in CODES if known[c][0] == "M"}
    our_punct = {c for c in CODES if known[c][0] == "P" or (c < 128 and chr(c) in "$+<=>^`|~")}
    nfkd = normalizers.NFKD()
    inert = {c for c in CODES if nfkd.normalize_str(chr(c)) != unicodedata.normalize("NFKD", chr(c))}
    lower = normalizers.Lowercase()
    deltas = {}
    for c in CODES:
        low = lower.normalize_str(chr(c))
        if low != chr(c).lower():
            assert len(low) == 1, hex(c)
            deltas[c] = ord(low) - c
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Made by tools/export-tokenizer-unicode.py with tokenizers {tokenizers.__version__}. */")
    rows = []
    for c in sorted(newer):
        if rows and rows[-1][1] + 1 == c and rows[-1][2] == newer[c]:
            rows[-1][1] = c
        else:
            rows.append([c, c, newer[c]])
    table("newer", "newer", [[f"0x{a:x}", f"0x{b:x}", f'"{k}"'] for a, b, k in rows],
          "Characters of Unicode 15 and 16, with their general category.")
    table("range", "not_marks", hexes(our_marks - marks), "Marks that its normalizers do not know.")
    table("range", "also_marks", hexes(marks - our_marks), "What they take for marks and Unicode 14 does not.")
    table("range", "not_decomposed", hexes(inert), "Characters that its normalizers do not decompose.")
    table("range", "not_punct", hexes(our_punct - punct), "Punctuation that its Punctuation does not know.")
    table("range", "also_punct", hexes(punct - our_punct), "What it calls punctuation and Unicode 14 does not.")
    rows = []
    for c in sorted(deltas):
        if rows and rows[-1][1] + 1 == c and rows[-1][2] == deltas[c]:
            rows[-1][1] = c
        else:
            rows.append([c, c, deltas[c]])
    table("shift", "lower", [[f"0x{a:x}", f"0x{b:x}", str(d)] for a, b, d in rows],
          "Lower case that Unicode 14 does not have: first, last, distance.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
