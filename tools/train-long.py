#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the bundled attention-only model on to longer contexts.

    tools/train-long.py --model models/demo-attention --train books-train.txt.xz --out DIR
                        [--valid books-valid.txt.xz] [--context 16384] [--seconds 300]

Rope is scaled by YaRN (Peng et al. 2023, arXiv:2309.00071) from the model's context to the new one;
the projections of attention and the norms are trained on windows of the whole new context, the
feed-forward blocks and embeddings stay as they are. Output: a folder in Hugging Face form and
training.json, with the loss on windows of the held-out text by position before and after. Needs torch
(2.9 or later, a GPU), tokenizers and safetensors. Data and layers: demo_training.py.
"""

import argparse
import json
import math
import os
import shutil
import time

import demo_training as demo
import numpy as np
import torch
from tokenizers import Tokenizer

def ids_of(data, at, context):
    """Windows of context ids from `at` on: what is read (with <|endoftext|> first), what follows."""
    y = data[at[:, None] + torch.arange(context, device=data.device)].long()
    return torch.cat((torch.zeros_like(y[:, :1]), y[:, :-1]), 1), y


def by_position(model, data, context, windows, device):
    """Mean nats of a token by position, as mixd-eval --positions has them."""
    edges = [0] + [1024 << i for i in range(20) if 1024 << i <= context]
    total = torch.zeros(context, dtype=torch.float64, device=device)
    windows = min(windows, len(data) // context)
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        for i in range(windows):
            x, y = ids_of(data, torch.tensor([i * context], device=device), context)
            total += model.loss(x, y, reduction="none")
    return {f"{a}-{b}": round((total[a:b].mean() / windows).item(), 4)
            for a, b in zip(edges, edges[1:])}


def train(model, data, held, args, device):
    trained = [n for n, _ in model.named_parameters() if "self_attn" in n or "norm" in n]
    for n, p in model.named_parameters():
        p.requires_grad_(n in trained)
    opts = demo.optimizers([(n, p) for n, p in model.named_parameters() if n in trained], args.lr)
    gen = torch.Generator(device=device).manual_seed(args.seed)
    before = by_position(model, held, args.context, args.windows, device) if held is not None else None
    print("before", before, flush=True)
    start, told, step, log = time.time(), 0.0, 0, []
    while time.time() - start < args.seconds and step != args.steps:
        done = (time.time() - start) / args.seconds
        for g in (g for o in opts for g in o.param_groups):
            g["lr"] = g["peak"] * min(1, (step + 1) / 20) * (1 - done)
        at = torch.randint(len(data) - args.context, (args.batch,), device=device, generator=gen)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model.loss(*ids_of(data, at, args.context))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        step += 1
        if step % 10 == 0 and time.time() - start - told >= 10:
            told = time.time() - start
            log.append((step, round(loss.item(), 4)))
            print(f"step {step} loss {log[-1][1]} at {told:.0f} s", flush=True)
            if not math.isfinite(log[-1][1]):
                raise SystemExit("the loss is not finite")
            if held is not None and len(log) % 3 == 0:
                print("held out", by_position(model, held, args.context, args.windows, device),
                      flush=True)
    return dict(steps=step, tokens=step * args.batch * args.context, batch=args.batch,
                context=args.context, seconds=round(time.time() - start), lr=args.lr,
                seed=args.seed, training_tokens=len(data), before=before, log=log)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--model", required=True, metavar="DIR")
    ap.add_argument("--train", nargs="+", required=True, metavar="FILE")
    ap.add_argument("--valid", metavar="FILE")
    ap.add_argument("--out", required=True, metavar="DIR")
    ap.add_argument("--context", type=int, default=16384)
    ap.add_argument("--seconds", type=float, default=300)
    ap.add_argument("--steps", type=int, default=-1, help="at most")
    ap.add_argument("--batch", type=int, default=4, help="windows a step")
    ap.add_argument("--windows", type=int, default=16, help="of the held-out text")
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--device", default="cuda")
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    with open(os.path.join(args.model, "config.json")) as f:
        config = json.load(f)
    tok = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    old = (config["rope_scaling"] or {}).get("original_max_position_embeddings",
                                             config["max_position_embeddings"])
    config.update(max_position_embeddings=args.context, rope_scaling=dict(
        rope_type="yarn", factor=args.context / old, original_max_position_embeddings=old,
        beta_fast=32, beta_slow=1))
    model = demo.attention_model(config)
    demo.load_weights(model, args.model)
    model.to(args.device)
    data, held = (torch.from_numpy(demo.read_streams(p, tok).astype(np.int32)).to(args.device)
                  if p else None for p in (args.train, [args.valid] if args.valid else None))
    training = train(model, data, held, args, args.device)
    demo.export(model, config, args.out)
    if held is not None:
        training["after"] = by_position(model, held, args.context, args.windows, args.device)
        print("after", training["after"], flush=True)
    training["device"] = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    training["torch"] = torch.__version__
    demo.write_json(args.out, "training.json", training)
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(os.path.join(args.model, name), args.out)
    with open(os.path.join(args.model, "tokenizer_config.json")) as f:
        demo.write_json(args.out, "tokenizer_config.json",
                        dict(json.load(f), model_max_length=args.context))


if __name__ == "__main__":
    main()
