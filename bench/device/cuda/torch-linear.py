#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.linear at the shapes of a run of bench/device/cuda/linear, timed as it times: chains
of products as one graph over copies of W that no cache holds, and one product alone. Prints the
ratios (above 1: ours is faster).

  bench/device/cuda/linear >own.txt; bench/device/cuda/torch-linear.py own.txt
"""
import statistics
import sys

import torch

CHAIN_S = 5e-3
COPIES_BYTES = 1 << 30


def seconds(times, f):
    out = []
    for _ in range(times):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        f()
        b.record()
        b.synchronize()
        out.append(a.elapsed_time(b) * 1e-3)
    return statistics.median(out)


def measure(weights, n):
    rows, cols = weights[0].shape
    x = torch.rand(n, cols, device="cuda").mul_(2).sub_(1).bfloat16()
    about = max(rows * cols * 2 / 4.2e12, 2 * rows * cols * n / 7e14)
    chain = int(max(4, min(500, CHAIN_S / about)))
    at = 0

    def product():
        nonlocal at
        torch.nn.functional.linear(x, weights[at % len(weights)])
        at += 1

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        product()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(chain):
                product()
        graph.replay()
        many = seconds(5, graph.replay) / chain
        one = seconds(21, product)
    return many, one


def main():
    ours = {}
    for line in open(sys.argv[1], encoding="utf-8"):
        w = line.split()
        if w and w[0] == "linear":
            key = tuple(int(v) for v in w[2:5])
            ours.setdefault(key, {})[w[1]] = (float(w[5]), float(w[w.index("alone") + 1]))
    print(f"# PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for rows, cols in dict.fromkeys(k[:2] for k in ours):
        copies = max(2, COPIES_BYTES // (rows * cols * 2))
        weights = [torch.empty(rows, cols, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)
                   for _ in range(copies)]
        for n in [k[2] for k in ours if k[:2] == (rows, cols)]:
            many, one = measure(weights, n)
            size = 2 * (rows * cols + n * (rows + cols))
            flop = 2 * rows * cols * n
            line = (f"torch {rows} {cols} {n}  {many * 1e6:.2f} us  {size / many * 1e-12:.3f} TB/s"
                    f"  {flop / many * 1e-12:.1f} TFLOP/s  alone {one * 1e6:.2f} us")
            for kind, (us, alone) in ours[rows, cols, n].items():
                line += f"  {kind}: {many * 1e6 / us:.2f}x, alone {one * 1e6 / alone:.2f}x"
            print(line, flush=True)
        del weights


if __name__ == "__main__":
    main()
