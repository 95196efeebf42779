#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a prompt of one layer of long convolutions in PyTorch: the peer of bench/gpu/hyena -p.

    bench/gpu/hyena-fft.py [LENGTH [CHANNELS]]

The convolution by one transform of twice the length, in f32, with the filter's transform at hand;
and the same with the short filter and the gates before and behind it, which bench/gpu/hyena has too.
"""
import sys

import torch

length = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
channels = int(sys.argv[2]) if len(sys.argv) > 2 else 864
torch.manual_seed(1)
x = torch.randn(1, 3 * channels, length, device="cuda")
z = torch.randn(1, channels, length, device="cuda")
taps = torch.randn(3 * channels, 1, 3, device="cuda")
bias = torch.randn(3 * channels, device="cuda")
spectrum = torch.fft.rfft(torch.randn(channels, length, device="cuda"), n=2 * length)


def convolve(z):
    return torch.fft.irfft(torch.fft.rfft(z, n=2 * length) * spectrum, n=2 * length)[..., :length]


def layer():
    u = torch.nn.functional.conv1d(x, taps, bias, padding=2, groups=3 * channels)[..., :length]
    x0, x1, v = u.split(channels, dim=1)
    return (x0 * convolve(x1 * v)).bfloat16()


def time(f, n=10):
    for _ in range(3):
        f()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(n):
        f()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / n


print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}: a prompt of {length}, {channels} channels: "
      f"convolution {time(lambda: convolve(z)):.3f} ms, with short filter and gates {time(layer):.3f} ms")
