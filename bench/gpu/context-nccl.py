#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times what bench/gpu/ranks calls partials with NCCL: the exchange of tree attention (Shyam et al.
2024, arXiv:2408.04093), three all-reduces (maximum, sum, weighted values) and the products between
them, of 16 heads of 128 in f32, recorded in a CUDA graph. One process a GPU.

    NCCL_NVLS_ENABLE=0 bench/gpu/context-nccl.py [RANKS]    2 by default
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

REPEATS, TIMES, HEADS, DIM = 50, 9, 16, 128


def merge(m, l, o):
    """Replaces a rank's partials by those of all ranks' keys."""
    top = m.clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    scale = torch.exp2(m - top)
    den = l * scale
    num = o * scale[..., None]
    dist.all_reduce(den)
    dist.all_reduce(num)
    return num / den[..., None]


def bench(rank, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    for rows in (1, 4, 16, 32, 64):
        m = torch.randn(rows, HEADS, device="cuda")
        l = torch.rand(rows, HEADS, device="cuda") + 1
        o = torch.randn(rows, HEADS, DIM, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                merge(m, l, o)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPEATS):
                merge(m, l, o)
        best = 1e9
        for t in range(-2, TIMES):
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - begin) * 1e6 / REPEATS) if t >= 0 else best
        if rank == 0:
            print(f"NCCL, three all-reduces, rows {rows:4} {best:9.2f} us", flush=True)
        del graph
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    print("PyTorch", torch.__version__, "NCCL", torch.cuda.nccl.version())
    mp.spawn(bench, args=(ranks,), nprocs=ranks)
