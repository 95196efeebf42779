#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention beside bench/mixers/cuda/attention, on the same GPU in one call:
decode of 32 query heads over 8 key heads of 128 with contiguous keys, and causal prefill.

    bench/mixers/cuda/torch-attention.py [path of bench/mixers/cuda/attention [its options]]
"""
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F

DECODES = [(1, 2048), (1, 32768), (1, 131072), (1, 524288), (16, 2048), (64, 2048), (256, 2048)]
PREFILLS = [1024, 2048, 4096, 8192, 16384, 32768]


def seconds(call, copies, rounds=20):
    """Median time of a call; calls go round so many copies of the inputs, to miss the cache."""
    for i in range(3):
        call(i % copies)
    times = []
    for i in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for k in range(4):
            call((4 * i + k) % copies)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 4e3)
    return statistics.median(times)


def tensor(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def decode(n, tokens):
    size = 2 * n * 8 * tokens * 128 * 2
    copies = max(1, min(8, int(4e8 // size)))
    q = tensor(n, 32, 1, 128)
    kv = [(tensor(n, 8, tokens, 128), tensor(n, 8, tokens, 128)) for _ in range(copies)]
    s = seconds(lambda i: F.scaled_dot_product_attention(q, *kv[i], enable_gqa=True), copies)
    return size / s / 1e9, s


def prefill(tokens):
    q, k, v = tensor(1, 32, tokens, 128), tensor(1, 8, tokens, 128), tensor(1, 8, tokens, 128)
    s = seconds(lambda i: F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                         enable_gqa=True), 1)
    return 4 * 128 * 32 * tokens * (tokens + 1) / 2 / s / 1e12, s


def ours():
    """Figures of bench/mixers/cuda/attention by (what, sequences, tokens)."""
    found = {}
    if len(sys.argv) > 1:
        out = subprocess.run(sys.argv[1:], check=True, capture_output=True, text=True).stdout
        print(out)
        for line in out.splitlines():
            w = line.split()
            if w and w[0] in ("decode", "prefill"):
                unit = "GB/s" if w[0] == "decode" else "TFLOP/s"
                found[w[0], int(w[1]), int(w[3])] = float(w[w.index(unit) - 1])
    return found


def main():
    found = ours()
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for what, cases, unit in (("decode", DECODES, "GB/s"),
                              ("prefill", [(1, n) for n in PREFILLS], "TFLOP/s")):
        for n, tokens in cases:
            rate, s = decode(n, tokens) if what == "decode" else prefill(tokens)
            mine = found.get((what, n, tokens))
            ratio = f"  ours {mine:.0f}, {mine / rate:.2f} times" if mine else ""
            print(f"{what:8}{n:4} x {tokens:7}  {s * 1e6:9.1f} us  {rate:6.0f} {unit}{ratio}")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
