#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer/tekken-file*.json: small tekken.json files, and what mistral-common
makes of the texts of texts.json with them.

    pip install mistral-common tiktoken tokenizers
    tools/export-tekken-golden.py TRAINING-TEXT [FOLDER]
"""
import base64
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import tempfile

from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import pre_tokenizers as pre

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("compare", os.path.join(HERE, "compare-tokenizers.py"))
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)
export = compare.export


def vocabulary(text, size):
    """Bytes of the tokens in the order of their ranks."""
    m = json.loads(compare.byte_level(text, [compare.TEKKEN]).to_str())["model"]
    letters = sorted(pre.ByteLevel.alphabet())
    byte_of = {}  # GPT-2's alphabet: printable characters stand for themselves, the others follow
    kept = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in kept]
    for b in kept:
        byte_of[chr(b)] = b
    for i, b in enumerate(others):
        byte_of[chr(256 + i)] = b
    assert sorted(byte_of) == letters
    pieces = [bytes(byte_of[c] for c in p) for p in sorted(m["vocab"], key=m["vocab"].get)]
    return [bytes([b]) for b in range(256)] + [p for p in pieces if len(p) > 1][:size - 256]


def tekken(tokens, n_ids, n_special, version, specials=None):
    def shown(b):
        try:
            return b.decode()
        except UnicodeDecodeError:
            return None
    j = {"config": {"pattern": compare.TEKKEN, "num_vocab_tokens": len(tokens), "default_vocab_size": n_ids,
                    "default_num_special_tokens": n_special, "version": version},
         "vocab": [{"rank": i, "token_bytes": base64.b64encode(b).decode(), "token_str": shown(b)}
                   for i, b in enumerate(tokens)]}
    if specials:
        j["special_tokens"] = [{"rank": i, "token_str": s, "is_control": True} for i, s in enumerate(specials)]
    return j


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        book = f.read()[:200000]
    folder = sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "../tests/golden/tokenizer")
    with open(os.path.join(folder, "texts.json"), encoding="utf-8") as f:
        texts = json.load(f)["texts"]
    tokens = vocabulary(book, 700)
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[THINK]", "[/THINK]"]
    for name, j in (("tekken-file-v3", tekken(tokens, 650, 30, "v3")),
                    ("tekken-file-v13", tekken(tokens, 710, 10, "v13", names))):
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, "tekken.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(j, f)
            t = Tekkenizer.from_file(path)
        # mistral-common never looks for special tokens in a text
        special = re.compile("|".join(re.escape(x["token_str"]) for x in t._all_special_tokens))
        cases = []
        for text in texts:
            ids = None if special.search(text) else t.encode(text, bos=True, eos=False)
            cases.append([ids, None if ids is None or t.decode(ids) == text else t.decode(ids)])
        with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as f:
            f.write(export.compact(j) + "\n")
        with open(os.path.join(folder, name + ".cases.json"), "w", encoding="utf-8") as f:
            f.write(export.compact({"mistral-common": importlib.metadata.version("mistral-common"), "size": t.n_words,
                                    "special": [x["token_str"] for x in t._all_special_tokens],
                                    "encode": cases}) + "\n")


if __name__ == "__main__":
    main()
