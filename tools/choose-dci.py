#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chooses top_k (or alpha of auto) and visits of dci for a model, by the model's own text, and writes
the line for `layers` of the configuration.

    tools/choose-dci.py --model DIR --text FILE [--layers all] [--loss 0.4] [--limit BYTES]
                        [--context N] [--eval PATH]

Measures the perplexity of the text under exact attention, then under dci from the cheapest setting
on, until one is at most --loss percent above (0.4: 99.6 % of exact). The text should be long enough
to fill the contexts that the model will have: what lies within the first and the recent tokens is
exact in any case, and more keys are spread over a longer text.
Progress goes to standard error, the line to standard output; exit status 1: no setting is near
enough. --eval names mixd-eval where it is not installed.
"""

import argparse
import subprocess
import sys

# From the cheapest on. With auto, top_k is max(min(alpha n, 50), 30) for n keys.
SETTINGS = (
    {"top_k": "auto", "alpha": 0.01},
    {"top_k": "auto", "alpha": 0.03},
    {"top_k": 64},
    {"top_k": 96},
    {"top_k": 96, "visits": 256},
    {"top_k": 128},
    {"top_k": 128, "visits": 256},
    {"top_k": 192, "visits": 384},
    {"top_k": 256, "visits": 512},
    {"top_k": 512, "visits": 1024},
)


def perplexity(args, setting):
    command = [args.eval, "--model", args.model, "--text", args.text]
    for name in ("limit", "context", "threads"):
        if getattr(args, name):
            command += [f"--{name}", str(getattr(args, name))]
    if setting is not None:
        pairs = [f"{k}={v}" for k, v in setting.items()]
        command += ["--layers", ":".join([args.layers, "dci", *pairs])]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    figures = dict(line.split() for line in run.stdout.splitlines() if len(line.split()) == 2)
    if run.returncode or "perplexity" not in figures:
        raise SystemExit(f"choose-dci: {' '.join(command)} failed")
    return float(figures["perplexity"])


def line_of(args, setting):
    values = dict(layers=f'"{args.layers}"', mixer="dci", **setting)
    values.setdefault("visits", "auto")
    return "- {" + ", ".join(f"{k}: {v}" for k, v in values.items()) + "}"


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--text", required=True)
    ap.add_argument("--layers", default="all", help="as in mixd.yaml: all, \"8-31\"")
    ap.add_argument("--loss", type=float, default=0.4, help="percent of perplexity")
    ap.add_argument("--limit", type=int, help="bytes of the text")
    ap.add_argument("--context", type=int)
    ap.add_argument("--threads", type=int)
    ap.add_argument("--eval", default="mixd-eval")
    args = ap.parse_args()
    exact = perplexity(args, None)
    print(f"exact: perplexity {exact:.4f}", file=sys.stderr)
    for setting in SETTINGS:
        found = perplexity(args, setting)
        loss = (found / exact - 1) * 100
        print(f"{line_of(args, setting)}: {found:.4f}, {loss:+.2f} %", file=sys.stderr, flush=True)
        if loss <= args.loss:
            print(line_of(args, setting))
            return
    raise SystemExit(f"choose-dci: no setting is within {args.loss} % of exact attention")


if __name__ == "__main__":
    main()
