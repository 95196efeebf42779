#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the bundled model: a hybrid of Hyena, Gated DeltaNet, Mamba-2 and attention in turn
(model_type mixd), with the tokenizer of a folder made by train-demo.py.

    tools/train-demo-hybrid.py --tokenizer models/demo-attention --train books-train.txt.xz \\
        --valid books-valid.txt.xz --out DIR
    tools/train-demo-hybrid.py --evaluate DIR --valid TEXT
    tools/train-demo-hybrid.py --check

--check compares the mixers' parallel forms with their recurrences, token by token, in float64.
Plain torch (2.9 or later, a GPU), with tokenizers and safetensors; no other kernels. What each
mixer computes: mixers/{hyena,gla,mamba,attention}/README.md.
"""

import argparse
import math
import os
import shutil

import demo_training as demo
import torch
import torch.nn as nn
import torch.nn.functional as F
from demo_training import CONTEXT, rms_norm, wide
from tokenizers import Tokenizer

SHAPE = dict(width=384, heads=6, kv_heads=2, head_dim=64, ffn=512)
ROUNDS = 2
SEGMENT = 64  # of the parallel forms
DELTA = dict(num_heads=6, head_dim=64)
MAMBA = dict(num_heads=8, head_dim=64, state_size=64)
FILTER = dict(filter_len=CONTEXT, emb_dim=33, filter_order=64)
FILTER_REACH = (16, 2048)  # tokens after which a filter's window has sunk to 1 / e
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")

LAYERS = ROUNDS * [
    dict(mixer="hyena", filter="implicit", short_filter=3, inner_mlps=2, shift=0.0, **FILTER),
    dict(mixer="gla", variant="gated_deltanet", expand_v=1, norm_eps=demo.EPS, **DELTA),
    dict(mixer="mamba", layer_norm_epsilon=demo.EPS, **MAMBA),
    dict(mixer="attention"),
]
CONFIG = dict(
    model_type="mixd", hidden_size=SHAPE["width"], intermediate_size=SHAPE["ffn"],
    num_hidden_layers=len(LAYERS), num_attention_heads=SHAPE["heads"],
    num_key_value_heads=SHAPE["kv_heads"], head_dim=SHAPE["head_dim"], mixd_layers=LAYERS)


def full_precision(x):
    """Context in which autocast does not change products, so that recurrences stay in float32."""
    return torch.autocast(x.device.type, enabled=False)


def like(x):
    """Tells the compiler what an op returns: x's shape, contiguous."""
    return x.new_empty(x.shape)


class ShortConv(nn.Module):
    """A causal depthwise convolution of x [b, t, channels], as sums of shifted rows: those fuse."""

    def __init__(self, channels, taps, bias):
        super().__init__()
        bound = taps**-0.5
        self.weight = nn.Parameter(torch.empty(channels, 1, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x):
        t, taps = x.shape[1], self.weight.shape[2]
        x = F.pad(x, (0, 0, taps - 1, 0))
        y = sum(x[:, i : i + t] * self.weight[:, 0, i] for i in range(taps))
        return y if self.bias is None else y + self.bias


# Hyena (Poli et al. 2023)


def spectra(n, *signals):
    return [torch.fft.rfft(s, n) for s in signals]


@torch.library.custom_op("demo::long_conv", mutates_args=())
def long_conv(z: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """sum over s <= t of h[c, t - s] z[b, c, s]. A custom op, since the compiler has no complex numbers.
    """
    t = z.shape[-1]
    n = 1 << (2 * t - 1).bit_length()
    zf, hf = spectra(n, z, h)
    return torch.fft.irfft(zf * hf, n)[..., :t].contiguous()


@torch.library.custom_op("demo::long_conv_backward", mutates_args=())
def long_conv_backward(dy: torch.Tensor, z: torch.Tensor,
                       h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    t = z.shape[-1]
    n = 1 << (2 * t - 1).bit_length()
    dyf, zf, hf = spectra(n, dy, z, h)
    dz = torch.fft.irfft(dyf * hf.conj(), n)[..., :t].contiguous()
    dh = torch.fft.irfft((dyf * zf.conj()).sum(0), n)[..., :t].contiguous()
    return dz, dh


long_conv.register_fake(lambda z, h: like(z))
long_conv_backward.register_fake(lambda dy, z, h: (like(z), like(h)))
long_conv.register_autograd(
    lambda ctx, dy: long_conv_backward(dy.contiguous(), *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))


class Sine(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.freq = nn.Parameter(torch.full((1, n), 10.0))

    def forward(self, x):
        return torch.sin(self.freq * x)


class Buffer(nn.Module):
    """Tensors of the checkpoint that are not trained."""

    def __init__(self, **tensors):
        super().__init__()
        for name, value in tensors.items():
            self.register_buffer(name, value)


class Filter(nn.Module):
    """h [width, t] as a function of the position: a network of sines over Fourier features, times a
    window that decays with a rate per channel. The rates are a geometric series over FILTER_REACH."""

    def __init__(self, width, filter_len, emb_dim, filter_order):
        super().__init__()
        bands = (emb_dim - 1) // 2
        at = torch.arange(filter_len, dtype=torch.float64)[:, None]
        angle = 2 * math.pi / filter_len * at * torch.linspace(1e-4, bands - 1, bands)
        z = torch.cat((at / (filter_len - 1), angle.cos(), -angle.sin()), 1)
        self.pos_emb = Buffer(z=z[None].float())
        low, high = (filter_len / r for r in reversed(FILTER_REACH))
        deltas = low * (high / low) ** torch.linspace(0, 1, width)
        self.modulation = Buffer(deltas=deltas[None, None])
        self.bias = nn.Parameter(torch.randn(width))
        self.implicit_filter = nn.ModuleDict({
            "0": nn.Linear(emb_dim, filter_order), "1": Sine(filter_order),
            "2": nn.Linear(filter_order, filter_order), "4": nn.Linear(filter_order, filter_order),
            "6": nn.Linear(filter_order, width, bias=False)})
        # In training, rows of the last matrix have the same scale for long and for short windows.
        self.register_buffer("gain", (2 * deltas / filter_len).sqrt()[:, None], persistent=False)

    def fold(self):
        """Multiplies the gain into the matrix, as a checkpoint has it."""
        with torch.no_grad():
            self.implicit_filter["6"].weight.mul_(self.gain)
            self.gain.fill_(1)

    def forward(self, t):
        net = self.implicit_filter
        x = self.pos_emb.z[0, :t]
        for i in ("0", "2", "4"):
            x = net["1"](net[i](x))
        at = self.pos_emb.z[0, :t, :1]  # 0 to 1 over the whole filter
        window = torch.exp(-at * self.modulation.deltas[0].abs())
        return (net["6"](x) * window).T * self.gain


class Hyena(nn.Module):
    def __init__(self, width, taps=3):
        super().__init__()
        self.in_proj = nn.Linear(width, 3 * width)
        self.short_filter = ShortConv(3 * width, taps, bias=True)
        self.filter_fn = Filter(width, **FILTER)
        self.out_proj = nn.Linear(width, width)

    def forward(self, u):
        x0, x1, v = self.short_filter(self.in_proj(u)).chunk(3, -1)
        z = wide(x1 * v)
        with full_precision(u):
            h = self.filter_fn(u.shape[1])
        y = long_conv(z.transpose(1, 2).contiguous(), h.contiguous()).transpose(1, 2)
        return self.out_proj(x0 * (y + self.filter_fn.bias * z))


# Shared by the segment forms


def in_segments(x):
    """[..., t, d] as [..., segments, SEGMENT, d]."""
    return x.unflatten(-2, (-1, SEGMENT))


def padded(x):
    """x [b, t, ...] padded with zeros at the end to whole segments; earlier outputs do not change."""
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, -x.shape[1] % SEGMENT))


def decay_between(g):
    """exp of the sum of g [..., n] over (j, i], for i >= j, else 0; and that sum from the start."""
    total = g.cumsum(-1)
    n = g.shape[-1]
    later = torch.ones(n, n, dtype=torch.bool, device=g.device).triu(1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(later, -math.inf).exp(), total


# Gated DeltaNet (Yang et al. 2025), in the form of Yang et al. 2024 (arXiv:2406.06484)


@torch.library.custom_op("demo::unit_inverse", mutates_args=())
def unit_inverse(a: torch.Tensor) -> torch.Tensor:
    """(I + a)^-1 for strictly lower triangular a. If t inverts the diagonal blocks of one size and b
    are the blocks that join two of them, t - t b t inverts the diagonal blocks of twice the size."""
    n = a.shape[-1]
    i = torch.arange(n, device=a.device)
    t = torch.eye(n, dtype=a.dtype, device=a.device).expand_as(a).contiguous()
    size = 1
    while size < n:
        block = i // size
        joins = (block[:, None] == block + 1) & (block[:, None] % 2 == 1)
        b = a * joins
        t = t - (b if size == 1 else t @ b @ t)
        size *= 2
    return t


unit_inverse.register_fake(like)
unit_inverse.register_autograd(
    lambda ctx, dt: -(ctx.saved_tensors[0].mT @ dt @ ctx.saved_tensors[0].mT),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output))


@torch.library.custom_op("demo::scan", mutates_args=())
def scan(m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """s[n + 1] = m[n] s[n] + b[n] from s[0] = 0, over the third dimension from the end."""
    s = b.new_zeros(b.shape)
    for n in range(b.shape[-3] - 1):
        s[..., n + 1, :, :] = m[..., n, :, :] @ s[..., n, :, :] + b[..., n, :, :]
    return s


@torch.library.custom_op("demo::scan_backward", mutates_args=())
def scan_backward(ds: torch.Tensor, m: torch.Tensor,
                  s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    db = s.new_zeros(s.shape)
    for n in range(s.shape[-3] - 2, -1, -1):
        later = m[..., n + 1, :, :].mT @ db[..., n + 1, :, :]
        db[..., n, :, :] = ds[..., n + 1, :, :] + later
    return db @ s.mT, db


scan.register_fake(lambda m, b: like(b))
scan_backward.register_fake(lambda ds, m, s: (like(m), like(s)))
scan.register_autograd(
    lambda ctx, ds: scan_backward(ds, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output))


def gated_delta_rule(q, k, v, g, beta):
    """q, k, v [b, h, t, d], g (log of the decay) and beta [b, h, t], t in whole segments."""
    q, k, v = in_segments(q) * q.shape[-1] ** -0.5, in_segments(k), in_segments(v)
    g, beta = g.unflatten(-1, (-1, SEGMENT)), beta.unflatten(-1, (-1, SEGMENT))[..., None]
    decay, total = decay_between(g)
    since, last = total.exp()[..., None], total[..., -1:]
    inverse = unit_inverse((k @ k.mT * decay * beta).tril(-1))
    u, w = inverse @ (beta * v), inverse @ (beta * since * k)
    k_end = k * (last - total).exp()[..., None]
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    s = scan(last.exp()[..., None] * eye - k_end.mT @ w, k_end.mT @ u)
    o = (q * since) @ s + (q @ k.mT * decay) @ (u - w @ s)
    return o.flatten(-3, -2)


def gated_delta_rule_by_token(q, k, v, g, beta):
    s = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    out = []
    for t in range(q.shape[2]):
        s = s * g[:, :, t, None, None].exp()
        u = beta[:, :, t, None] * (v[:, :, t] - (s.mT @ k[:, :, t, :, None])[..., 0])
        s = s + k[:, :, t, :, None] * u[..., None, :]
        out.append((s.mT @ q[:, :, t, :, None])[..., 0] * q.shape[-1] ** -0.5)
    return torch.stack(out, 2)


def decay_parameters(heads):
    """A_log and dt_bias, initialised as in Mamba-2: rates of 1 to 16, steps of 0.001 to 0.1."""
    dt = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
    return (nn.Parameter(torch.empty(heads).uniform_(1, 16).log()),
            nn.Parameter(dt + torch.log(-torch.expm1(-dt))))


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


class GatedDeltaNet(nn.Module):
    def __init__(self, width, num_heads, head_dim, taps=4):
        super().__init__()
        self.h, n = num_heads, num_heads * head_dim
        for name in ("q", "k", "v", "g"):
            self.add_module(name + "_proj", nn.Linear(width, n, bias=False))
        for name in ("q", "k", "v"):
            self.add_module(name + "_conv1d", ShortConv(n, taps, bias=False))
        self.a_proj = nn.Linear(width, num_heads, bias=False)
        self.b_proj = nn.Linear(width, num_heads, bias=False)
        self.A_log, self.dt_bias = decay_parameters(num_heads)
        self.o_norm = demo.RMSNorm(head_dim)
        self.o_proj = nn.Linear(n, width, bias=False)

    def forward(self, x):
        def stream(name):
            y = F.silu(getattr(self, name + "_conv1d")(getattr(self, name + "_proj")(x)))
            return wide(padded(y)).unflatten(-1, (self.h, -1)).transpose(1, 2)

        t = x.shape[1]
        q, k, v = stream("q"), stream("k"), stream("v")
        g = -self.A_log.exp() * F.softplus(wide(self.a_proj(x)) + self.dt_bias)
        beta = wide(self.b_proj(x)).sigmoid()
        g, beta = padded(g).transpose(1, 2), padded(beta).transpose(1, 2)
        with full_precision(x):
            o = gated_delta_rule(unit(q), unit(k), v, g, beta).transpose(1, 2)[:, :t]
        gate = F.silu(self.g_proj(x)).unflatten(-1, (self.h, -1))
        return self.o_proj((self.o_norm(o) * gate).flatten(-2))


# Mamba-2 (Dao and Gu 2024)


def ssd(x, g, b, c):
    """x [b, h, t, p] times its step, g [b, h, t] the log of the decay, b and c [b, 1, t, n]."""
    x, b, c = in_segments(x), in_segments(b), in_segments(c)
    decay, total = decay_between(g.unflatten(-1, (-1, SEGMENT)))
    since, last = total.exp()[..., None], total[..., -1:]
    within = (c @ b.mT * decay) @ x
    added = (b * (last - total).exp()[..., None]).mT @ x
    # s at a segment's beginning: what all earlier segments added, decayed over those between
    between, _ = decay_between(last[..., 0])
    before = F.pad(between, (0, 0, 1, -1))
    s = (before @ added.flatten(-2)).unflatten(-1, added.shape[-2:])
    return (within + since * (c @ s)).flatten(-3, -2)


def ssd_by_token(x, g, b, c):
    s = x.new_zeros(*x.shape[:2], b.shape[-1], x.shape[-1])
    out = []
    for t in range(x.shape[2]):
        s = s * g[:, :, t, None, None].exp() + b[:, :, t, :, None] * x[:, :, t, None]
        out.append((c[:, :, t, None] @ s)[..., 0, :])
    return torch.stack(out, 2)


class Mamba2(nn.Module):
    def __init__(self, width, num_heads, head_dim, state_size, taps=4):
        super().__init__()
        self.h, n = num_heads, num_heads * head_dim
        self.parts = (n, n + 2 * state_size, num_heads)
        self.sizes = (n, state_size, state_size)
        self.in_proj = nn.Linear(width, sum(self.parts), bias=False)
        self.conv1d = ShortConv(self.parts[1], taps, bias=True)
        self.A_log, self.dt_bias = decay_parameters(num_heads)
        self.D = nn.Parameter(torch.ones(num_heads))
        self.norm = demo.RMSNorm(n)
        self.out_proj = nn.Linear(n, width, bias=False)

    def forward(self, u):
        t = u.shape[1]
        z, xbc, dt = self.in_proj(u).split(self.parts, -1)
        x, b, c = padded(F.silu(self.conv1d(xbc))).split(self.sizes, -1)
        dt = padded(F.softplus(wide(dt) + self.dt_bias)).transpose(1, 2)
        x = x.unflatten(-1, (self.h, -1)).transpose(1, 2)
        y = ssd(x * dt[..., None], -self.A_log.exp()[:, None] * dt, b[:, None], c[:, None])
        y = (y + self.D[:, None, None] * x).transpose(1, 2)[:, :t].flatten(-2)
        return self.out_proj(rms_norm(y * F.silu(wide(z)), self.norm.weight))


def hybrid():
    make = dict(hyena=lambda w: Hyena(w), gla=lambda w: GatedDeltaNet(w, **DELTA),
                mamba=lambda w: Mamba2(w, **MAMBA), attention=lambda w: demo.Attention(SHAPE))
    mixers = [make[layer["mixer"]](SHAPE["width"]) for layer in LAYERS]
    return demo.LanguageModel(SHAPE, "mixer", mixers)


def fold_filters(model):
    for m in model.modules():
        if isinstance(m, Filter):
            m.fold()


def check():
    """Checks the parallel forms and their gradients against the recurrences, and the causality of the
    whole model."""
    torch.manual_seed(1)
    f64 = torch.float64

    def rows(*shape):
        return torch.randn(*shape, dtype=f64, requires_grad=True)

    def compare(name, fast, slow, *args):
        fast, slow = fast(*args), slow(*args)
        weight = torch.randn_like(slow)
        pairs = [(fast, slow)] + list(zip(torch.autograd.grad((fast * weight).sum(), args),
                                          torch.autograd.grad((slow * weight).sum(), args)))
        errors = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
        print(name, *(f"{e:.1e}" for e in errors))
        assert max(errors) < 1e-9

    b, h, t = 2, 3, 3 * SEGMENT
    g = (-3 * torch.rand(b, h, t, dtype=f64) ** 4).requires_grad_()
    beta = torch.rand(b, h, t, dtype=f64, requires_grad=True)
    compare("gated delta rule", lambda q, k, *rest: gated_delta_rule(q, unit(k), *rest),
            lambda q, k, *rest: gated_delta_rule_by_token(q, unit(k), *rest),
            rows(b, h, t, 8), rows(b, h, t, 8), rows(b, h, t, 16), g, beta)
    compare("ssd", ssd, ssd_by_token, rows(b, h, t, 8), g, rows(b, 1, t, 16), rows(b, 1, t, 16))
    compare("long convolution", long_conv, lambda z, w: torch.stack(
        [(w[:, : i + 1].flip(-1) * z[..., : i + 1]).sum(-1) for i in range(z.shape[-1])], -1),
        rows(2, 5, 100), rows(5, 100))

    model = hybrid().double()
    ids = torch.randint(0, demo.VOCAB, (1, 150))
    with torch.no_grad():
        whole, part = model(ids)[:, :70], model(ids[:, :70])
    error = (whole - part).abs().max().item()
    print(f"a prefix alone {error:.1e}, {sum(p.numel() for p in model.parameters())} parameters")
    assert error < 1e-9


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    demo.add_arguments(ap)
    ap.add_argument("--tokenizer", metavar="DIR")
    ap.add_argument("--check", action="store_true")
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    if args.check:
        check()
        return
    if args.evaluate and args.valid:
        model = hybrid()
        fold_filters(model)
        text = demo.first_bytes(demo.read_text(args.valid), args.limit)
        demo.evaluate_folder(model, args.evaluate, text)
        return
    if not (args.train and args.valid and args.out and args.tokenizer):
        ap.error("--train, --valid, --out and --tokenizer are needed")
    tok = Tokenizer.from_file(os.path.join(args.tokenizer, "tokenizer.json"))
    stream = demo.read_streams(args.train, tok)
    model = hybrid()
    os.makedirs(args.out, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copyfile(os.path.join(args.tokenizer, name), os.path.join(args.out, name))
    demo.train_and_export(model, CONFIG, tok, stream, args, before_export=fold_filters)


if __name__ == "__main__":
    main()
