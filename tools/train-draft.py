#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the draft model of the bundled hybrid (model_type mixd): a model of a million parameters
that learns the next-token distributions of models/demo, on the books that one was trained on.

    tools/train-draft.py --teacher models/demo --train books-train.txt.xz \\
        --valid books-valid.txt.xz --out DIR
    tools/train-draft.py --teacher models/demo --evaluate DIR --valid TEXT

The loss is the cross-entropy against the teacher's distribution at each token of the text, at the
temperatures of TEMPERATURES: the lower one is for the likeliest tokens, which greedy answers need.
What is measured besides the held-out figure of demo_training.py, at each token of the held-out text:
`agreement`, how often the likeliest tokens of both are the same, which greedy answers accept;
`drawn`, how often tokens are the same that both draw by one random number, at temperature 1;
`overlap`, the sum of the smaller probabilities of both, the most that any way to draw could accept.
Plain torch (2.9 or later, a GPU), with tokenizers and safetensors.
"""

import argparse
import importlib
import json
import os

import demo_training as demo
import torch
import torch.nn as nn
import torch.nn.functional as F
from tokenizers import Tokenizer

hybrid = importlib.import_module("train-demo-hybrid")

SHAPE = dict(width=128, heads=2, kv_heads=1, head_dim=64, ffn=448)
TAPS = 4
TEMPERATURES = (1.0, 0.5)
LAYERS = [dict(mixer="shortconv", conv_L_cache=TAPS), dict(mixer="attention")]
CONFIG = dict(
    model_type="mixd", hidden_size=SHAPE["width"], intermediate_size=SHAPE["ffn"],
    num_hidden_layers=len(LAYERS), num_attention_heads=SHAPE["heads"],
    num_key_value_heads=SHAPE["kv_heads"], head_dim=SHAPE["head_dim"], mixd_layers=LAYERS)


class GatedConv(nn.Module):
    """LFM2's short convolution, see mixers/shortconv/README.md."""

    def __init__(self, width):
        super().__init__()
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.conv = hybrid.ShortConv(width, TAPS, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)

    def forward(self, u):
        b, c, x = self.in_proj(u).chunk(3, -1)
        return self.out_proj(c * self.conv(b * x))


class Draft(demo.LanguageModel):
    """`teacher` is no part of the model's state."""

    def __init__(self, teacher):
        make = dict(shortconv=lambda: GatedConv(SHAPE["width"]),
                    attention=lambda: demo.Attention(SHAPE))
        super().__init__(SHAPE, "mixer", [make[layer["mixer"]]() for layer in LAYERS])
        self.teachers = [teacher]
        # The directions in which the teacher's embeddings vary most.
        e = teacher.embed_tokens.weight.float()
        directions = torch.linalg.svd(e - e.mean(0), full_matrices=False)[2][: SHAPE["width"]]
        start = (e - e.mean(0)) @ directions.T
        with torch.no_grad():
            self.embed_tokens.weight.copy_(start * (0.02 / start.std()))

    def loss(self, ids, targets, reduction="mean"):
        if reduction != "mean":  # measured, not trained
            return super().loss(ids, targets, reduction)
        with torch.no_grad():
            want = logits_of(self.teachers[0], ids)
        got = logits_of(self, ids)
        losses = [-((want / t).softmax(-1) * (got / t).log_softmax(-1)).sum(-1).mean()
                  for t in TEMPERATURES]
        return sum(losses) / len(losses)


def logits_of(model, ids):
    x = model(ids)
    return F.linear(x, model.embed_tokens.weight.to(x.dtype)).float()


def load_teacher(folder, device):
    teacher = hybrid.hybrid()
    hybrid.fold_filters(teacher)
    demo.load_weights(teacher, folder)
    return teacher.requires_grad_(False).eval().to(device)


def compare(model, teacher, ids, device):
    """Means over the windows of demo_training.evaluate, without the last."""
    n = demo.CONTEXT - 1
    same = drawn = overlap = count = 0
    with torch.no_grad():
        for i in range(0, len(ids) - n, n):
            y = torch.tensor(ids[i : i + n].astype("int64"), device=device)[None]
            x = torch.cat((torch.zeros_like(y[:, :1]), y[:, :-1]), 1)
            p, q = logits_of(teacher, x).softmax(-1), logits_of(model, x).softmax(-1)
            same += (p.argmax(-1) == q.argmax(-1)).sum().item()
            # both take the token at which the cumulative probability exceeds the same number
            end_p, end_q = p.double().cumsum(-1), q.double().cumsum(-1)
            both = torch.minimum(end_p, end_q) - torch.maximum(end_p - p, end_q - q)
            drawn += both.clamp(min=0).sum().item()
            overlap += torch.minimum(p, q).sum().item()
            count += n
    return dict(tokens=count, agreement=same / count, drawn=drawn / count, overlap=overlap / count)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    demo.add_arguments(ap)
    ap.add_argument("--teacher", metavar="DIR", required=True)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    device = "cpu" if args.evaluate else args.device
    teacher = load_teacher(args.teacher, "cpu")
    model = Draft(teacher)
    tok = Tokenizer.from_file(os.path.join(args.teacher, "tokenizer.json"))
    if args.evaluate and args.valid:
        demo.load_weights(model, args.evaluate)
        text = demo.first_bytes(demo.read_text(args.valid), args.limit)
    elif args.train and args.valid and args.out:
        stream = demo.read_streams(args.train, tok)
        teacher.to(device)
        demo.train_and_export(model, CONFIG, tok, stream, args)
        text = demo.first_bytes(demo.read_text(args.valid), 1_000_000)
    else:
        ap.error("--train, --valid and --out are needed, or --evaluate and --valid")
    ids = demo.np.array(tok.encode(text, add_special_tokens=False).ids, dtype=demo.np.uint16)
    result = compare(model, teacher, ids, device)
    if args.evaluate:
        result |= demo.evaluate(model, ids, len(text.encode()), device)
        print(json.dumps(result))
        return
    print("against the teacher", result, flush=True)
    path = os.path.join(args.out, "training.json")
    with open(path) as f:
        written = json.load(f)
    demo.write_json(args.out, "training.json", dict(written, against_teacher=result), indent=1)


if __name__ == "__main__":
    main()
