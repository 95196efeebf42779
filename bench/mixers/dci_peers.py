#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What else searches for keys or attends to all, on the keys that bench/mixers/dci wrote: faiss's HNSW
and IVF (recall, time of a query, time to build) and PyTorch's exact attention, on one thread.

    bench/mixers/dci -d -n 16384 -k 128 -w /tmp/keys
    bench/mixers/dci_peers.py /tmp/keys --top-k 128 [--prompts]

Recall is the share of the top_k keys with the largest products, of those that dci searches at the
last row. Needs faiss-cpu, numpy, torch.
"""

import argparse
import time

import faiss
import numpy as np
import torch
import torch.nn.functional as F

DIM, GROUP = 128, 4


def least(run, rounds=5):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def one_by_one(index, queries, k):
    return np.concatenate([index.search(q[None], k)[1] for q in queries])


def report(name, index, build, queries, truth):
    k = truth.shape[1]
    found = one_by_one(index, queries, k)
    recall = np.mean([len(set(a) & set(b)) / k for a, b in zip(found, truth)])
    seconds = least(lambda: one_by_one(index, queries, k)) / len(queries)
    print(f"{name}: recall {recall:.3f}, {seconds * 1e6:.0f} us a query, built in {build:.2f} s", flush=True)


def timed(make):
    start = time.perf_counter()
    index = make()
    return index, time.perf_counter() - start


def hnsw(keys):
    index = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 100
    index.add(keys)
    return index


def ivf(keys):
    lists = int(2 * len(keys) ** 0.5)
    index = faiss.index_factory(DIM, f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(keys)
    index.add(keys)
    return index


def attention(n, dtype, prompts):
    q = torch.randn(1, GROUP, 1, DIM, dtype=dtype)
    k, v = (torch.randn(1, 1, n, DIM, dtype=dtype) for _ in range(2))
    each = [u.expand(1, GROUP, n, DIM) for u in (k, v)]
    name = str(dtype).removeprefix("torch.")
    with torch.no_grad():
        seconds = least(lambda: F.scaled_dot_product_attention(q, *each))
        print(f"torch {torch.__version__} {name}: decode {seconds * 1e3:.3f} ms", flush=True)
        if prompts:
            rows = torch.randn(1, GROUP, n, DIM, dtype=dtype)
            seconds = least(lambda: F.scaled_dot_product_attention(rows, *each, is_causal=True), 2)
            print(f"torch {torch.__version__} {name}: prompt {seconds:.3f} s", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("prefix")
    ap.add_argument("--top-k", type=int, default=128)
    ap.add_argument("--prompts", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    keys, queries = (np.fromfile(f"{args.prefix}-{n}.f32", dtype=np.float32).reshape(-1, DIM)
                     for n in ("keys", "queries"))
    n = len(keys)
    searched = np.ascontiguousarray(keys[64:(n - 256) // 64 * 64])
    truth = np.argsort(-(queries @ searched.T), axis=1)[:, :args.top_k]
    for dtype in (torch.float32, torch.bfloat16):
        attention(n, dtype, args.prompts)
    exact, build = timed(lambda: faiss.IndexFlatIP(DIM))
    exact.add(searched)
    report("faiss flat", exact, build, queries, truth)
    index, build = timed(lambda: ivf(searched))
    for index.nprobe in (4, 16, 64):
        report(f"faiss IVF, {index.nlist} lists, {index.nprobe} probed", index, build, queries, truth)
    index, build = timed(lambda: hnsw(searched))
    for ef in (128, 256, 512):
        index.hnsw.efSearch = ef
        report(f"faiss HNSW 32, ef {ef}", index, build, queries, truth)


if __name__ == "__main__":
    main()
