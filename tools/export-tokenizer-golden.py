#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/tokenizer/: small tokenizers with the pipelines of known model families, and
the results of Hugging Face `tokenizers` for hard texts.

    pip install tokenizers==0.23.3 transformers==5.23.0
    tools/export-tokenizer-golden.py TRAINING-TEXT [OUT-FOLDER]

TRAINING-TEXT is any English text of half a megabyte (we took a public-domain book). The vocabularies
are trained here; regexes and pipelines are those of the families named.
"""
import json
import os
import random
import sys
import tempfile

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors, trainers

SEED = 20261120

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# tiktoken's newer spelling: possessive quantifiers, an interval followed by +, $ at a line's end
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
          r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s")


def special(text, **flags):
    return AddedToken(text, special=True, normalized=False, **flags)


def train(text, size, pre_tokenizer, specials=(), alphabet=(), normalizer=None, limit=None):
    """A BPE model (as JSON) trained on text."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer
    if normalizer:
        t.normalizer = normalizer
    more = {"limit_alphabet": limit} if limit else {}
    t.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(specials), initial_alphabet=list(alphabet), show_progress=False, **more))
    return json.loads(t.to_str())["model"]


def build(model, **parts):
    """A Tokenizer of a model's JSON with other fields changed."""
    t = Tokenizer(models.BPE())
    file = json.loads(t.to_str())
    file["model"] = model
    t = Tokenizer.from_str(json.dumps(file))
    for name, part in parts.items():
        if name == "added":
            for token in part:
                (t.add_special_tokens if token.special else t.add_tokens)([token])
        else:
            setattr(t, name, part)
    return t


def byte_level_model(text, size, pattern, specials=()):
    split = pre.ByteLevel(add_prefix_space=False) if pattern is None else pre.Sequence(
        [pre.Split(Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    return train(text, size, split, specials, sorted(pre.ByteLevel.alphabet()))


def sentencepiece_model(text, size, extra=(), byte_fallback=True, limit=70):
    """A model as converted from SentencePiece's BPE: control tokens, bytes, merges over U+2581."""
    m = train(text, size, pre.Metaspace(), limit=limit)
    pieces = ["<unk>", "<s>", "</s>"]
    if byte_fallback:
        pieces += [f"<0x{i:02X}>" for i in range(256)]
    merges = [["▁", "▁"], ["▁▁", "▁▁"]] + m["merges"] + list(extra)
    vocab = {p: i for i, p in enumerate(pieces)}
    for p in sorted(m["vocab"], key=m["vocab"].get) + [p for a, b in merges for p in (a, b, a + b)]:
        vocab.setdefault(p, len(vocab))
    m["vocab"] = vocab
    m["merges"] = merges
    m.update(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback)
    return m


def template(before, *pairs):
    return processors.TemplateProcessing(single=before + " $A", pair=before + " $A " + before + ":1 $B:1",
                                         special_tokens=list(pairs))


LLAMA_DECODER = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])


def make_tokenizers(text):
    out = {}
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=False)

    m = byte_level_model(text, 700, None, ["<|endoftext|>"])
    out["gpt2"] = build(m, pre_tokenizer=pre.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel(),
                        post_processor=processors.ByteLevel(trim_offsets=False),
                        added=[AddedToken("<|endoftext|>", special=True, normalized=True)])

    m = byte_level_model(text, 700, LLAMA3)
    for word in ("Ġwhatsoever", "ĠZarathustra", "ðŁĺĢ"):  # whole words that no merges reach
        m["vocab"][word] = len(m["vocab"])
    m["ignore_merges"] = True
    n = len(m["vocab"])
    out["llama3"] = build(
        m, pre_tokenizer=pre.Sequence([pre.Split(Regex(LLAMA3), "isolated"), byte_level]),
        decoder=decoders.ByteLevel(),
        added=[special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<|eot_id|>"),
               special("<|start_header_id|>"), special("<|end_header_id|>"),
               special("<|reserved_special_token_0|>"), special("<|reserved_special_token_1|>")],
        post_processor=processors.Sequence([processors.ByteLevel(trim_offsets=True),
                                            template("<|begin_of_text|>", ("<|begin_of_text|>", n))]))

    m = byte_level_model(text, 700, QWEN2)
    out["qwen2"] = build(
        m, normalizer=normalizers.NFC(),
        pre_tokenizer=pre.Sequence([pre.Split(Regex(QWEN2), "isolated"), byte_level]),
        decoder=decoders.ByteLevel(), post_processor=processors.ByteLevel(trim_offsets=False),
        added=[special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>"),
               AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False),
               AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])

    m = byte_level_model(text, 500, O200K)
    out["o200k"] = build(m, pre_tokenizer=pre.Sequence([pre.Split(Regex(O200K), "removed", invert=True), byte_level]),
                         decoder=decoders.ByteLevel(), added=[special("<s>"), special("</s>")],
                         post_processor=template("<s>", ("<s>", len(m["vocab"]))))
    out["cl100k"] = build(m, pre_tokenizer=pre.Sequence([pre.Split(Regex(CL100K), "isolated"), byte_level]),
                          decoder=decoders.ByteLevel())

    out["deepseek"] = build(
        m, normalizer=normalizers.Sequence([]),
        pre_tokenizer=pre.Sequence([
            pre.Split(Regex(r"[\r\n]"), "isolated"), pre.Split(Regex(r"\s?\p{L}+"), "isolated"),
            pre.Split(Regex(r"\s?\p{P}+"), "isolated"), pre.Split(Regex("[一-龥ࠀ-一가-퟿]+"), "isolated"),
            pre.Digits(individual_digits=True), byte_level]),
        decoder=decoders.ByteLevel(), added=[special("<｜begin▁of▁sentence｜>")])

    m = byte_level_model(text, 500, None)
    out["neox"] = build(
        m, normalizer=normalizers.NFC(), pre_tokenizer=pre.ByteLevel(add_prefix_space=True),
        decoder=decoders.ByteLevel(add_prefix_space=True),
        added=[special("<|endoftext|>"), special("<mask>", lstrip=True)] +
              [AddedToken(" " * k, normalized=True) for k in (24, 8, 4, 3, 2)])

    sp = sentencepiece_model(text, 450)
    named = [special("<unk>"), special("<s>"), special("</s>")]
    out["llama2"] = build(
        sp, normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=LLAMA_DECODER, post_processor=template("<s>", ("<s>", 1)), added=named)
    out["mistral"] = build(sp, pre_tokenizer=pre.Metaspace(prepend_scheme="first", split=False),
                           decoder=LLAMA_DECODER, post_processor=template("<s>", ("<s>", 1)),
                           added=named + [special("[INST]"), special("[/INST]")])
    gemma = sentencepiece_model(text, 400, [["\n", "\n"], ["\n\n", "\n\n"]])
    out["gemma"] = build(gemma, normalizer=normalizers.Replace(" ", "▁"),
                         pre_tokenizer=pre.Split(" ", "merged_with_previous"),
                         decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                                    decoders.Fuse()]),
                         post_processor=template("<s>", ("<s>", 1)),
                         added=named + [AddedToken("\n\n\n", normalized=False), special("<start_of_turn>"),
                                        AddedToken("▁▁▁", normalized=False)])
    unk = sentencepiece_model(text, 350, byte_fallback=False)
    unk["fuse_unk"] = False
    out["metaspace"] = build(unk, pre_tokenizer=pre.Metaspace(prepend_scheme="always", split=True),
                             decoder=decoders.Metaspace(prepend_scheme="always", split=True), added=named)
    fused = dict(unk, fuse_unk=True)
    out["normalizers"] = build(
        fused, normalizer=normalizers.Sequence([
            normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
            normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(r"\s{2,}|(?<=x)y"), "▁")]),
        pre_tokenizer=pre.Sequence([pre.WhitespaceSplit(), pre.Punctuation("merged_with_next"),
                                    pre.Digits(individual_digits=False),
                                    pre.Split("th", "merged_with_previous"), pre.Split("e", "contiguous")]),
        added=named + [AddedToken("MixedCase", normalized=True)])

    m = byte_level_model(text, 400, None)
    out["added"] = build(
        m, pre_tokenizer=pre.ByteLevel(add_prefix_space=False), decoder=decoders.ByteLevel(),
        added=[special("<l>", lstrip=True), special("<r>", rstrip=True), special("<lr>", lstrip=True, rstrip=True),
               special("<w>", single_word=True), special("<wl>", single_word=True, lstrip=True),
               AddedToken("word", single_word=True, normalized=False), AddedToken("wordy", normalized=False),
               AddedToken("<l", normalized=False), AddedToken("<l><r>", normalized=False),
               AddedToken("naïve", normalized=True), AddedToken("\n", normalized=False),
               AddedToken(" the", rstrip=True, normalized=True)])

    t = train(text, 350, pre.Whitespace(), limit=60)
    clip = Tokenizer(models.BPE())
    clip.pre_tokenizer = pre.Whitespace()
    clip.train_from_iterator([text[:100000]], trainers.BpeTrainer(
        vocab_size=400, limit_alphabet=60, end_of_word_suffix="</w>", continuing_subword_prefix="##",
        special_tokens=["<unk>"], show_progress=False))
    t = json.loads(clip.to_str())["model"]
    t["unk_token"] = "<unk>"
    out["affixes"] = build(t, normalizer=normalizers.Lowercase(), pre_tokenizer=pre.Whitespace(), added=[special("<unk>")])
    return out


def random_text(rng):
    pools = [
        lambda: chr(rng.randrange(0x20, 0x7f)), lambda: " ", lambda: rng.choice("\n\r\t \u00a0\u2003\u3000\u0085\u1680\u180e\u200b\ufeff"),
        lambda: rng.choice(["'s", "'S", "'LL", "n't", "'ſ", " the", "ing", "  ", "\r\n", "<s>", "</s>", "▁", "Ġ", "<0x41>", "word", "<lr>"]),
        lambda: str(rng.randrange(10 ** rng.randrange(1, 12))), lambda: chr(rng.randrange(0xa0, 0x250)),
        lambda: chr(rng.randrange(0x300, 0x370)), lambda: chr(rng.randrange(0x370, 0x700)),
        lambda: chr(rng.randrange(0x900, 0x1200)), lambda: chr(rng.randrange(0x3040, 0x3100)),
        lambda: chr(rng.randrange(0x4e00, 0x9fa0)), lambda: chr(rng.randrange(0xac00, 0xd7a4)),
        lambda: chr(rng.randrange(0x1f300, 0x1f650)), lambda: chr(rng.choice([rng.randrange(0xd800), rng.randrange(0xe000, 0x110000)])),
        lambda: chr(rng.randrange(0, 0x20)), lambda: chr(rng.randrange(0xfb00, 0xfb50)), lambda: chr(rng.randrange(0x1e00, 0x2000)),
    ]
    some = rng.sample(pools, rng.randrange(1, 5))
    return "".join(rng.choice(some)() for _ in range(rng.randrange(1, 30)))


def make_texts(book):
    texts = [
        "", " ", "  ", "a", "\n", "\0", "a\0b\0", "Hello, world!", " Hello", "Hello ", "  Hello  world  ",
        "It's I'VE we'LL they'D can't 'tis o'clock 'S'T'RE", "ſ'ſ K'ſs", "The quick brown fox jumps over the lazy dog.",
        "1 12 123 1234 12345 1234567890123456789012345678901234567890", "３４５ ٣٤٥ ⅣⅫ ½ ²³ ①②", "x=3.14159e-10;",
        "a\r\nb\r\n\r\nc\n\n\nd\r\r\re", "\r\n\r\n  \r\n", "\t\ttabs\t and \v\f mixed \x1c\x1d\x1e\x1f", "trailing newlines\n\n\n",
        "\u00a0nbsp\u00a0 \u2003em\u2003 \u3000ideographic\u3000 \u0085nel \u1680ogham \u2028ls\u2029ps \u180emvs \u200bzwsp \ufeffbom",
        "café naïve Ångström ﬁ ﬃ ŒUVRE ß ẞ İstanbul ıI ΑΣΟΦΟΣ ǅ ǆ", "cafe\u0301 nai\u0308ve A\u030angstro\u0308m e\u0301\u0327 e\u0327\u0301",
        "q\u0307\u0323 s\u0323\u0307 \u1e69 \u0344 \u0958 \u212b \u2126 \uf900", "\u1100\u1161\u11a8 각 \uac00\u11a8 \u1112\u1161\u11ab\u1100\u1173\u11af", "a" + "\u0301" * 40 + "\u0323" * 40,
        "😀", "🙂🙃", "👨‍👩‍👧‍👦 family", "🏳️‍🌈 🏴‍☠️ 👍🏽 ❤️ ☺️ 1️⃣", "🇩🇪🇯🇵🇺🇸", "text😀text", "日本語のテキスト、です。", "中文字符测试。「引号」",
        "한국어 텍스트", "العربية مع أرقام ١٢٣ وتشكيل مُحَمَّد", "עִבְרִית עם נִקּוּד", "हिन्दी क्षत्रिय ज़", "ไทยไม่มีช่องว่าง", "မြန်မာ ខ្មែរ ལྷ་ས", "русский текст, Ёж",
        "Ελληνικά ΐ ΰ", "𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛 𐍈𐌰", "＜ｆｕｌｌｗｉｄｔｈ＞", "a\u200db\u200cc", "\u202eRTL\u202c override", "\ue000\uf8ff\U000f0000 private", "\ufffd replacement \uffff",
        "x" * 300, "ab" * 200, "the" * 100, " " * 100, " " * 33 + "x", "\n" * 50, "\t" * 20 + "x", ("word " * 40).strip(), "é" * 100, "日" * 100, "😀" * 50, "-" * 80 + "=" * 80, "!?" * 60,
        "a" + " " * 50 + "b" + "\n" * 10 + " " * 7 + "c", "▁", "▁▁▁ a▁b", "Ġthe Ċ", "<0x41><0xE2><0x96>", "<unk> <s> </s>", "<s>", " <s> ", "<s></s>", "a<s>b", "<|endoftext|>", "hi<|endoftext|>there <|endoftext|> again",
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>", "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
        "<tool_call>\n{\"name\": \"f\"}\n</tool_call><think>\n\n</think>", "[INST] Hi [/INST] Hello</s>[INST]again[/INST]", "<start_of_turn>user\n\n\n\nhi", "<|reserved_special_token_0|><|reserved_special_token_<|reserved_special_token_1|>",
        "<|eot_id", "<|eot_id|", "<|endoftext|", "<mask>", "a <mask> b", "a   <mask>   b", "<｜begin▁of▁sentence｜>hi",
        "a  <l>  b", "a  <r>  b", "a  <lr>  b", "<l><r>", "<l> <r> <lr> <w>", "a<w>b <w> a <w>b (<w>) _<w> é<w>é <w>", "  <l>  <r>  <lr>  <l>  ", "<r>  \n  <l>\n\n<lr>\n \n", "x <wl> y  <wl>z",
        "word wordy sword words word. (word) word's wörd word\u0301 1word word_ word", "naïve nai\u0308ve", "the  the   them the", "  the<r>  the  ", "MixedCase mixedcase MIXEDCASE aMixedCaseb", "xy xxy x y  xy",
        "def f(x):\n    if x > 0:\n        return x ** 2\n    else:\n\treturn -x\n", "{\"key\": [1, 2.5, null], \"s\": \"\\u00e9\\n\"}", "<html><body class=\"a\">&nbsp;</body></html>", "https://example.com/a/b?c=d&e=%20f#g",
        "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';", "$\\frac{a}{b} \\le \\sum_{i=0}^{n} x_i^2$", "C:\\Users\\name\\file.txt", "/* comment */ // another\n#include <stdio.h>\n", "a.b,c;d:e!f?g(h)i[j]k{l}m<n>o/p|q~r`s@t#u$v%w^x&y*z",
        "whatsoever Zarathustra 😀 whatsoeverr", "HELLO World hElLo WORLDs iPhone McDonald's", "don’t “smart quotes” — dash… •", "a\u0300\u0301\u0302 \u0300 \u0300a", "line one\nline two\n\nline four", "ends with space ", "ends with two  ", " .", " ,a", "\u3000\u3000日本",
        # characters that only some of the libraries know: Unicode 10 to 16
        "\U00031350\U0002ebf0 a\U0001e4d0\U0001e4f1 \ua7cb\ua7daB \U00011f50\U0001f6dc \u0897\u0cf3 \U00011935\U00011938 \u32ff \u1ac8\u0301\u0334\u1ac8",
    ]
    rng = random.Random(SEED)
    for _ in range(8):
        at = rng.randrange(len(book) - 400)
        texts.append(book[at:at + rng.randrange(50, 400)])
    texts += [random_text(rng) for _ in range(160)]
    return texts


def make_bytes():
    """Texts that are not UTF-8. `tokenizers` gets them with every ill-formed part replaced."""
    return [b"\xff", b"a\x80b", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82x", b"\xe2\x28\xa1", b"\xf0\x9f\x98", b"\xf0\x9f\x98\xf0\x9f\x98\x80",
            b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe\xff", b"ok \xe6\x97 \xe6\x97\xa5 \xa5",
            b"0123456\xff89abcdef\xe2", b"\xf0\x80\x80\xaf\xf1\x80\x80"]


def random_ids(rng, t):
    """Lists of ids that no text encodes to: broken UTF-8, runs of byte tokens, unknown ids."""
    size = t.get_vocab_size()
    byte = [t.token_to_id(f"<0x{i:02X}>") for i in range(256)]
    out = []
    for _ in range(rng.randrange(1, 14)):
        if byte[0] is not None and rng.random() < .6:
            run = rng.choice([b"\xe6\x97\xa5", b"\xf0\x9f\x98\x80", b"\xff", b"\xe6\x97", b"ab", b"\xc3\xa9", b"\x80"])
            out += [byte[b] for b in run]
        else:
            out.append(rng.randrange(size + 2) if rng.random() < .9 else rng.randrange(min(6, size)))
    return out


def fnv1a(ids):
    h = 0xcbf29ce484222325
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def cases(t, texts):
    rng = random.Random(SEED)
    before_after = t.encode("a", add_special_tokens=True).ids
    plain = t.encode("a", add_special_tokens=False).ids
    at = next(i for i in range(len(before_after)) if before_after[i:i + len(plain)] == plain)
    before, after = before_after[:at], before_after[at + len(plain):]
    encode, decode = [], []
    for text in texts:
        ids = t.encode(text, add_special_tokens=False).ids
        assert t.encode(text).ids == before + ids + after, text
        encode.append(ids)
        decode.append([t.decode(ids, skip_special_tokens=False), t.decode(ids)])
    # 0: the text itself, 1: as with special tokens
    short = [[0 if a == text else a, 1 if a == b else b] for text, (a, b) in zip(texts, decode)]
    odd = []
    for _ in range(60):
        ids = random_ids(rng, t)
        a, b = t.decode(ids, skip_special_tokens=False), t.decode(ids)
        odd.append([ids, a, 1 if a == b else b])
    joined = " ".join(texts + texts[::-1])
    long = t.encode(joined, add_special_tokens=False).ids
    pieces = [[i, t.id_to_token(i)] for i in rng.sample(range(t.get_vocab_size()), 20)]
    return {"before": before, "after": after, "size": t.get_vocab_size(), "pieces": pieces,
            "joined": [len(long), fnv1a(long)], "encode": encode, "decode": short,
            "ids": odd}


def token(content, **flags):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True, **flags}


# tokenizer_config.json beside a tokenizer: named tokens, tokens that tokenizer.json lacks
CONFIGS = [
    ("llama2", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None,
                "add_bos_token": False, "add_eos_token": True}),
    ("llama2", {"bos_token": {"__type": "AddedToken", **token("<s>")}, "eos_token": "</s>", "pad_token": "[PAD]",
                "added_tokens_decoder": {"2": token("</s>", lstrip=True), "0": token("<unk>"), "1": token("<s>", rstrip=True)}}),
    ("qwen2", {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
               "additional_special_tokens": ["<think>", "<extra>", "<|im_start|>"],
               "added_tokens_decoder": {"9999": token("<later>", special=False), "703": token("<tool_call>", special=False),
                                        "10": token("<sooner>", special=False, normalized=True)}}),
    ("gpt2", {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>", "mask_token": "<mask>", "sep_token": "the",
              "add_bos_token": True}),
    ("neox", {"pad_token": "<|padding|>", "eos_token": "</s>"}),
]
CONFIG_TEXT = "<s> Hi </s> x [PAD] <think> <extra>the other<later> <sooner> <mask> <|im_end|> <|endoftext|><|padding|> "


def config_cases(folder):
    from transformers import PreTrainedTokenizerFast
    out = []
    for name, config in CONFIGS:
        with tempfile.TemporaryDirectory() as work:
            with open(os.path.join(folder, name + ".json"), encoding="utf-8") as f:
                file = f.read()
            with open(os.path.join(work, "tokenizer.json"), "w", encoding="utf-8") as f:
                f.write(file)
            with open(os.path.join(work, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                json.dump({"tokenizer_class": "PreTrainedTokenizerFast", **config}, f)
            t = PreTrainedTokenizerFast.from_pretrained(work)
            ids = t(CONFIG_TEXT).input_ids
            out.append({"family": name, "config": config, "text": CONFIG_TEXT, "ids": ids,
                        "kept": t.decode(ids, clean_up_tokenization_spaces=False),
                        "skipped": t.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
                        "special": {k: getattr(t, k) for k in ("bos_token", "eos_token", "pad_token", "unk_token")}})
    return out


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        book = f.read()[:500000]
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(__file__), "../tests/golden/tokenizer")
    texts = make_texts(book)
    binary = make_bytes()
    lossy = [b.decode("utf-8", "replace") for b in binary]
    with open(os.path.join(out, "texts.json"), "w", encoding="utf-8") as f:
        f.write(compact({"made-by": "tools/export-tokenizer-golden.py", "tokenizers": tokenizers.__version__, "seed": SEED,
                         "texts": texts, "bytes": [b.hex() for b in binary], "lossy": lossy}) + "\n")
    for k, (name, t) in enumerate(make_tokenizers(book).items()):
        file = json.loads(t.to_str())
        if k % 2:  # the older spelling of merges
            if not any(" " in p for m in file["model"]["merges"] for p in m):
                file["model"]["merges"] = [" ".join(m) for m in file["model"]["merges"]]
        t = Tokenizer.from_str(json.dumps(file))
        with open(os.path.join(out, name + ".json"), "w", encoding="utf-8") as f:
            f.write(compact(file) + "\n")
        with open(os.path.join(out, name + ".cases.json"), "w", encoding="utf-8") as f:
            f.write(compact(cases(t, texts + lossy)) + "\n")
    with open(os.path.join(out, "config.cases.json"), "w", encoding="utf-8") as f:
        f.write(compact(config_cases(out)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
