#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes keys and queries of a trained model's layers, for bench/mixers/dci_recall.

    bench/mixers/dci_keys.py --model DIR --text FILE --tokens 16384 --out DIR

The first tokens of the text go through the model (one that tools/train-demo.py, train-long.py or
train-retrieval.py wrote) in float32. For each layer L and key head H: OUT/L-H-keys.f32 [tokens,
head_dim] and OUT/L-H-queries.f32 [64, head_dim], of the query heads that share it, in the last rows.
Needs torch, safetensors and tokenizers.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools"))
import demo_training as demo
import torch
from tokenizers import Tokenizer

QUERIES = 64


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--text", required=True)
    ap.add_argument("--tokens", type=int, default=16384)
    ap.add_argument("--out", required=True)
    args = ap.parse_args()
    with open(os.path.join(args.model, "config.json")) as f:
        model = demo.attention_model(json.load(f))
    demo.load_weights(model, args.model)
    tok = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    ids = tok.encode(demo.read_text(args.text)).ids[: args.tokens]
    if len(ids) < args.tokens:
        raise SystemExit(f"dci_keys: {args.text} has {len(ids)} tokens only")
    os.makedirs(args.out, exist_ok=True)
    attend, layer = demo.F.scaled_dot_product_attention, 0

    def record(q, k, v, **options):
        nonlocal layer
        mixer = model.layers[layer].self_attn
        group = mixer.h // mixer.kv
        for head in range(mixer.kv):
            of_head = q[0, head * group : (head + 1) * group].transpose(0, 1).flatten(0, 1)
            for name, x in (("keys", k[0, head * group]), ("queries", of_head[-QUERIES:])):
                with open(f"{args.out}/{layer}-{head}-{name}.f32", "wb") as f:
                    f.write(x.float().contiguous().numpy().tobytes())
        layer += 1
        return attend(q, k, v, **options)

    demo.F.scaled_dot_product_attention = record
    with torch.no_grad():
        model(torch.tensor([ids]))


if __name__ == "__main__":
    main()
