#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our tokenizers with Hugging Face `tokenizers` on random texts.

Usage: tools/compare-tokenizers.py TRAINING-TEXT [options] [FAMILY...]      (pip install tokenizers)

  --program FILE   ours (build/tests/model/tokenizer/encode_texts, made by make check TESTS=)
  --texts N        random texts a family (default 2000)
  --seed N         of the texts (default 1)
  --golden FOLDER  writes FAMILY.json and FAMILY.cases.json beside the texts.json of tests/golden/tokenizer
  --size N         tokens of a vocabulary (default 1000)

Makes a small tokenizer with the pipeline of each family, and tries what makes_texts and random_text
of export-tokenizer-golden.py give. Ids and both decoded texts must be the same.
"""
import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, processors
from tokenizers import pre_tokenizers as pre

spec = importlib.util.spec_from_file_location(
    "export", os.path.join(os.path.dirname(os.path.abspath(__file__)), "export-tokenizer-golden.py"))
export = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export)
LLAMA3, QWEN2, O200K, CL100K = export.LLAMA3, export.QWEN2, export.O200K, export.CL100K

UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
HAN = r"[\p{Han}]+"
KIMI = (HAN + rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{ENDING}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{ENDING}"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SIGNS = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
DEEPSEEK3 = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
             SIGNS + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
DEEPSEEK_LLM = [r"[\r\n]", r"\s?\p{L}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+"]
YOUTU = ["[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+", O200K.replace(r"\p{N}{1,3}", r"\p{N}")]
SEED = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
BAILING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)"
           r"|\s+")
EXAONE = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")
JAIS2 = LLAMA3[:LLAMA3.index(r"|\s+(?!\S)")] + "".join(rf"|\s{{{1 << k}}}(?!\S)" for k in range(9, 1, -1)) + \
    r"|\s{1,2}(?!\S)|\s{1}"
ASIAN = "[一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿ\ua9e0-\ua9ff가-\ud7afᄀ-ᇿ]+"
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"


SIZE = [1000]  # tokens of a vocabulary


def byte_level(text, patterns, **parts):
    split = [p if isinstance(p, pre.PreTokenizer) else pre.Split(Regex(p), "isolated") for p in patterns]
    last = [] if any(isinstance(p, pre.ByteLevel) for p in split) else \
        [pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    sequence = pre.Sequence(split + last)
    m = export.train(text, SIZE[0], sequence, (), sorted(pre.ByteLevel.alphabet()))
    m.update(parts.pop("model", {}))
    n = len(m["vocab"])
    parts.setdefault("decoder", decoders.ByteLevel())
    parts.setdefault("added", [export.special("<s>"), export.special("</s>"), export.special("<|im_end|>"),
                               AddedToken("<think>", normalized=False), AddedToken("word", single_word=True)])
    if parts.pop("bos", False):
        parts["post_processor"] = export.template("<s>", ("<s>", n))
    return export.build(m, pre_tokenizer=sequence, **parts)


def families(text):
    gpt2 = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre.Digits(individual_digits=True)
    one_by_one = {"model": {"ignore_merges": True}}
    out = {
        "gpt2": lambda: byte_level(text, [gpt2]),
        "llama3": lambda: byte_level(text, [LLAMA3], bos=True, **one_by_one),
        "qwen2": lambda: byte_level(text, [QWEN2], normalizer=normalizers.NFC()),
        "qwen35": lambda: byte_level(text, [QWEN35], normalizer=normalizers.NFC()),
        "o200k": lambda: byte_level(text, [O200K], **one_by_one),
        "cl100k": lambda: byte_level(text, [CL100K]),
        "tekken": lambda: byte_level(text, [TEKKEN], bos=True, **one_by_one),
        "kimi": lambda: byte_level(text, [KIMI]),
        "deepseek-v3": lambda: byte_level(text, DEEPSEEK3, normalizer=normalizers.Sequence([])),
        "deepseek-llm": lambda: byte_level(text, DEEPSEEK_LLM + [digits]),
        "falcon": lambda: byte_level(text, [pre.Punctuation("contiguous"), gpt2, pre.Digits(False),
                                            pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")]),
        "command-r": lambda: byte_level(text, [digits, gpt2], normalizer=normalizers.NFC(), bos=True),
        "smollm": lambda: byte_level(text, [digits, gpt2]),
        "olmo": lambda: byte_level(text, [gpt2], normalizer=normalizers.NFC(),
                                   added=[export.special("|||IP_ADDRESS|||")] +
                                         [AddedToken(" " * k) for k in range(2, 20)]),
        "seed": lambda: byte_level(text, [SEED], normalizer=normalizers.NFC()),
        "bailing": lambda: byte_level(text, [BAILING]),
        "exaone": lambda: byte_level(text, [EXAONE], normalizer=normalizers.NFC()),
        "jais2": lambda: byte_level(text, [JAIS2]),
        "youtu": lambda: byte_level(text, YOUTU),
        "afmoe": lambda: byte_level(text, [r"\d{1,3}(?=(?:\d{3})*\b)", ASIAN, DEEPSEEK3[2]]),
        "superbpe": lambda: byte_level(text, [r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
        "bloom": lambda: byte_level(text, [BLOOM]),
        "viking": lambda: byte_level(text, [BLOOM, r"\p{N}"]),
        "chameleon": lambda: byte_level(text, ["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                                               "([\\t\\n]|    |  )", digits, pre.Punctuation("isolated"), gpt2]),
        "minicpm5": lambda: byte_level(text, [r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")]),
        "laguna": lambda: byte_level(text, [r"[^\n]+|[\n]+", QWEN2]),
    }

    def sentencepiece(**parts):
        extra = parts.pop("extra", ())
        named = [export.special("<unk>"), export.special("<s>"), export.special("</s>")]
        return export.build(export.sentencepiece_model(text, 900, extra), added=named + parts.pop("more", []),
                            post_processor=export.template("<s>", ("<s>", 1)), **parts)

    plain = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    lines = [["\n", "\n"], ["\n\n", "\n\n"]]
    for scheme in ("always", "first", "never"):
        out["llama-" + scheme] = lambda scheme=scheme: sentencepiece(
            pre_tokenizer=pre.Metaspace(prepend_scheme=scheme, split=False),
            decoder=plain if scheme == "never" else export.LLAMA_DECODER,
            more=[export.special("[INST]"), AddedToken("<tool>", lstrip=True, rstrip=True)])
    out["llama-legacy"] = lambda: sentencepiece(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=export.LLAMA_DECODER, more=[export.special("<|end|>", rstrip=True), export.special("<|user|>", rstrip=True)])
    out["gemma"] = lambda: sentencepiece(
        extra=lines, normalizer=normalizers.Replace(" ", "▁"), pre_tokenizer=pre.Split(" ", "merged_with_previous"),
        decoder=plain, more=[export.special("<start_of_turn>"), AddedToken("\n\n\n", normalized=False),
                             AddedToken("▁▁▁", normalized=False)])
    out["gemma4"] = lambda: sentencepiece(
        extra=lines, normalizer=normalizers.Replace(" ", "▁"), pre_tokenizer=pre.Split(Regex(r"[^\n]+|[\n]+"), "isolated"),
        decoder=plain, more=[export.special("<|turn>"), export.special("<|\"|>")])
    out["cohere-byte"] = lambda: byte_level(text, [digits, gpt2], decoder=decoders.ByteLevel(), added=[
        export.special("<BOS_TOKEN>"), export.special("<|START_OF_TURN_TOKEN|>"), export.special("<MASK_TOKEN>", lstrip=True)])
    return out


def compare(name, t, texts, program):
    """Number of texts that differ. Prints the first few."""
    with tempfile.TemporaryDirectory() as folder:
        t.save(os.path.join(folder, "tokenizer.json"))
        t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        lines = "".join(json.dumps(x) + "\n" for x in texts)
        r = subprocess.run([program, folder], input=lines, capture_output=True, text=True)
    if r.returncode:
        print(f"{name}: {r.stderr.strip()}")
        return len(texts)
    bad = 0
    for text, line, e in zip(texts, r.stdout.splitlines(), t.encode_batch(texts)):
        want = [e.ids, t.decode(e.ids, skip_special_tokens=False), t.decode(e.ids)]
        got = json.loads(line)
        if got != want:
            bad += 1
            if bad <= 3:
                print(f"{name}: {text!r}\n  theirs {[t.id_to_token(i) for i in e.ids]} {want[1]!r}\n"
                      f"  ours   {[t.id_to_token(i) for i in got[0]] if isinstance(got[0], list) else got} {got[1:2]!r}")
    return bad


def write_golden(folder, name, t):
    """Writes the files of one more family, for the texts that are there."""
    with open(os.path.join(folder, "texts.json"), encoding="utf-8") as f:
        texts = json.load(f)
    t = Tokenizer.from_str(t.to_str())
    for end, data in ((".json", json.loads(t.to_str())), (".cases.json", export.cases(t, texts["texts"] + texts["lossy"]))):
        with open(os.path.join(folder, name + end), "w", encoding="utf-8") as f:
            f.write(export.compact(data) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("book")
    p.add_argument("family", nargs="*")
    p.add_argument("--program", default="build/tests/model/tokenizer/encode_texts")
    p.add_argument("--texts", type=int, default=2000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--golden")
    p.add_argument("--size", type=int, default=1000)
    a = p.parse_args()
    with open(a.book, encoding="utf-8") as f:
        book = f.read()[:500000]
    rng = random.Random(a.seed)
    fixed = export.make_texts(book)
    texts = fixed + [export.random_text(rng) for _ in range(a.texts)]
    SIZE[0] = a.size
    total = 0
    for name, make in families(book[:200000]).items():
        if a.family and name not in a.family:
            continue
        t = make()
        if a.golden:
            write_golden(a.golden, name, t)
        bad = compare(name, t, texts, a.program)
        total += bad
        print(f"{name}: {len(texts)} texts, {bad} differ", flush=True)
    return total > 0


if __name__ == "__main__":
    sys.exit(main())
