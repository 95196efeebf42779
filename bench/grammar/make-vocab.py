#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a vocabulary for bench/grammar/masks: byte-level BPE, trained on texts.

    make-vocab.py [--size N] OUTPUT TEXT...        needs `tokenizers`; TEXT may end in .xz

Writes a line a token, its bytes in hexadecimal; the first line is empty, the token that ends a text. The
same texts and versions give the same vocabulary.
"""
import argparse
import lzma

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

# That of Llama 3.
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_of_character():
    """GPT-2's characters for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, n = {chr(b): b for b in plain}, 0
    for b in range(256):
        if b not in plain:
            table[chr(256 + n)] = b
            n += 1
    return table


def pieces(paths, limit):
    for path in paths:
        opened = lzma.open(path, "rt", encoding="utf-8") if path.endswith(".xz") else \
            open(path, encoding="utf-8", errors="replace")
        with opened as f:
            left = limit
            while left > 0 and (text := f.read(min(left, 1 << 16))):
                left -= len(text)
                yield text


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--size", type=int, default=128000)
    p.add_argument("--characters", type=int, default=24_000_000, help="of each text, at most")
    p.add_argument("output")
    p.add_argument("texts", nargs="+")
    a = p.parse_args()
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trainer = trainers.BpeTrainer(vocab_size=a.size - 1, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(pieces(a.texts, a.characters), trainer)
    table = byte_of_character()
    tokens = sorted(t.get_vocab().items(), key=lambda item: item[1])
    with open(a.output, "w", encoding="ascii") as f:
        f.write("\n")
        for piece, _ in tokens:
            f.write(bytes(table[c] for c in piece).hex() + "\n")
    print(f"{len(tokens) + 1} tokens")


if __name__ == "__main__":
    main()
