#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/tokenizer/world.{txt,cases.json}: a small vocabulary in the format of RWKV's
"World" tokenizer, and the ids that its author's class gives to the texts of texts.json beside it.

    pip install --no-deps rwkv==0.8.32
    tools/export-tokenizer-world.py tests/golden/tokenizer
"""
import importlib.metadata
import importlib.util
import json
import pathlib
import random
import sys

SEED = 20261122
END = "<|rwkv_tokenizer_end_of_text|>"


def author():
    """The class without the package, which wants torch."""
    path = importlib.metadata.distribution("rwkv").locate_file("rwkv/rwkv_tokenizer.py")
    spec = importlib.util.spec_from_file_location("rwkv_tokenizer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TRIE_TOKENIZER


def vocabulary(texts, rng):
    """All bytes, pieces of the texts, and pieces that begin or end within a character."""
    tokens = {b"\n\n", b" " * 128, b"\\'", b"'\"", b"\\x41"}
    for n in range(600):
        text = rng.choice(texts)
        data = text.encode() if n % 6 == 0 else text
        at = rng.randrange(len(data))
        piece = data[at:at + rng.randrange(2, 12)]
        tokens.add(piece if isinstance(piece, bytes) else piece.encode())
    return [bytes([b]) for b in range(256)] + sorted((t for t in tokens if len(t) > 1),
                                                     key=lambda t: (len(t), t))


def literal(token):
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)


def main():
    folder = pathlib.Path(sys.argv[1])
    rng = random.Random(SEED)
    texts = [t for t in json.loads((folder / "texts.json").read_text())["texts"] if END not in t]
    tokens = vocabulary([t for t in texts if t], rng)
    # ids have gaps, as those of a vocabulary from which tokens were taken out
    lines = [f"{i + 1 + i // 100} {literal(t)} {len(t)}\n" for i, t in enumerate(tokens)]
    (folder / "world.txt").write_text("".join(lines))
    t = author()(folder / "world.txt")
    cases = [dict(text=text, ids=t.encode(text)) for text in texts]
    (folder / "world.cases.json").write_text(
        '{"made-by":"tools/export-tokenizer-world.py","rwkv":'
        f'"{importlib.metadata.version("rwkv")}","seed":{SEED},"cases":[\n'
        + ",\n".join(json.dumps(c, separators=(",", ":"), ensure_ascii=False) for c in cases)
        + "]}\n")


if __name__ == "__main__":
    main()
