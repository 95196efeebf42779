#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what the module computed with the equation of a gated short convolution, in plain Python.

    mixd-test-mixer --dump LABEL FILE ./gated_conv.so CASES.json
    reference.py FILE

FILE has the inputs x, the outputs y and the tensors of one case. Replace `outputs` by your own mixer's
equation; a framework (torch, numpy) does as well as plain Python.
"""
import json
import struct
import sys

# Rounding of a few hundred additions in f32, relative to the largest output.
TOLERANCE = 2e-5


def read_safetensors(path):
    """Returns name -> (shape, list of floats). All tensors are F32 in a file of mixd-test-mixer."""
    with open(path, "rb") as f:
        length, = struct.unpack("<Q", f.read(8))
        header, data = json.loads(f.read(length)), f.read()
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        tensors[name] = entry["shape"], struct.unpack("<%df" % ((end - first) // 4), data[first:end])
    return tensors


def product(matrix, x):
    shape, w = matrix
    rows, cols = shape
    return [sum(a * b for a, b in zip(w[r * cols:(r + 1) * cols], x)) for r in range(rows)]


def outputs(tensors):
    """Yields y_t for each token."""
    (n, width), x = tensors["x"]
    (_, _, taps), conv = tensors["conv.weight"]
    v = []
    for t in range(n):
        bcu = product(tensors["in_proj.weight"], x[t * width:(t + 1) * width])
        gate_in, gate_out, u = bcu[:width], bcu[width:2 * width], bcu[2 * width:]
        v.append([b * a for b, a in zip(gate_in, u)])
        s = [sum(conv[c * taps + taps - 1 - back] * v[t - back][c] for back in range(min(taps, t + 1)))
             for c in range(width)]
        yield product(tensors["out_proj.weight"], [c * a for c, a in zip(gate_out, s)])


def main():
    tensors = read_safetensors(sys.argv[1])
    (n, width), y = tensors["y"]
    worst = largest = 0
    for t, row in enumerate(outputs(tensors)):
        worst = max([worst] + [abs(a - b) for a, b in zip(row, y[t * width:(t + 1) * width])])
        largest = max([largest] + [abs(a) for a in row])
    print("%d tokens of %d channels: largest error %.2g of %.2g" % (n, width, worst, largest))
    if not worst <= TOLERANCE * largest:
        sys.exit("FAILED: more than %g of the largest output" % TOLERANCE)


if __name__ == "__main__":
    main()
