#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times flash-linear-attention's own kernels on the shapes of bench/gpu/recurrent: the peer.

Needs torch, triton and fla (pip install flash-linear-attention). Prompts without their projections,
convolutions, norms and gates: only the recurrence, which is less than what bench/gpu/recurrent times.
"""
import argparse
import sys

import torch
import triton
from triton.testing import do_bench

parser = argparse.ArgumentParser()
parser.add_argument("case", nargs="*", help="names of cases; all by default")
args = parser.parse_args()
torch.manual_seed(1)
D, H = 128, 32
SHAPES = [(1, 8192), (8, 1024), (1, 32768)]


def x(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def unit(*shape):
    return torch.nn.functional.normalize(x(*shape).float(), dim=-1).bfloat16()


def log_decay(*shape):
    return torch.nn.functional.logsigmoid(torch.randn(*shape, device="cuda")) / 16


def gdn(b, t):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    a = unit(b, t, H // 2, D), unit(b, t, H // 2, D), x(b, t, H, D)
    g, beta = log_decay(b, t, H), torch.rand(b, t, H, device="cuda").bfloat16()
    try:
        chunk_gated_delta_rule(*a, g, beta, output_final_state=True)
    except Exception:  # no shared key heads in this version
        a = unit(b, t, H, D), unit(b, t, H, D), a[2]
    return lambda: chunk_gated_delta_rule(*a, g, beta, output_final_state=True)


def simple_gla(b, t):
    from fla.ops.simple_gla import chunk_simple_gla
    a, g = (x(b, t, H, D), x(b, t, H, D), x(b, t, H, D)), log_decay(b, t, H)
    return lambda: chunk_simple_gla(*a, g=g, output_final_state=True)


def retnet(b, t):
    from fla.ops.retention import chunk_retention
    a = x(b, t, H, D), x(b, t, H, D), x(b, t, H, D)
    return lambda: chunk_retention(*a, output_final_state=True)


def gla(b, t):
    from fla.ops.gla import chunk_gla
    a, g = (x(b, t, H, D), x(b, t, H, D), x(b, t, H, D)), log_decay(b, t, H, D)
    return lambda: chunk_gla(*a, g, output_final_state=True)


def kda(b, t):
    from fla.ops.kda import chunk_kda
    a, g = (unit(b, t, H, D), unit(b, t, H, D), x(b, t, H, D)), log_decay(b, t, H, D)
    beta = torch.rand(b, t, H, device="cuda").bfloat16()
    return lambda: chunk_kda(*a, g, beta, output_final_state=True)


def delta_net(b, t):
    from fla.ops.delta_rule import chunk_delta_rule
    a = unit(b, t, H, D), unit(b, t, H, D), x(b, t, H, D)
    beta = torch.rand(b, t, H, device="cuda").bfloat16()
    return lambda: chunk_delta_rule(*a, beta, output_final_state=True)


def linear_attn(b, t):
    from fla.ops.linear_attn import chunk_linear_attn
    a = x(b, t, H, D), x(b, t, H, D), x(b, t, H, D)
    return lambda: chunk_linear_attn(*a, normalize=False, output_final_state=True)


def hgrn(b, t):
    from fla.ops.hgrn import chunk_hgrn
    v, g = x(b, t, 4096), log_decay(b, t, 4096)
    return lambda: chunk_hgrn(v, g, output_final_state=True)


CASES = {f.__name__: f for f in (gdn, simple_gla, retnet, gla, kda, delta_net, linear_attn, hgrn)}
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
for name in args.case or CASES:
    for b, t in SHAPES:
        try:
            with torch.no_grad():
                f = CASES[name](b, t)
                f()
                ms = do_bench(f, warmup=20, rep=60, return_mode="median")
            print(f"fla     {name:<12} {b} x {t:<6} {ms * 1e3:9.1f} us", flush=True)
        except Exception as e:
            print(f"fla     {name:<12} {b} x {t:<6} {type(e).__name__}: {str(e)[:80]}", flush=True)
            break
sys.stdout.flush()
