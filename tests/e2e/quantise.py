# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints whose matrices are quantised as other programs do it, each with the numbers
that they stand for: for tests of the reading. The layouts are written from their definitions
(AutoAWQ's and GPTQ's packing along columns and rows, compressed-tensors' offset codes, e4m3 with
scales for the tensor, the rows or blocks), apart from what mixd does to read them."""
import json
import os
import struct

import numpy as np

FORMATS = ["awq", "gptq", "gptq-v2", "gptq8", "ct-int4", "ct-int4-zeros", "ct-int8", "fp8-block",
           "fp8-rows", "fp8-tensor"]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def read_safetensors(path):
    """Tensors of a file as f32, those of bf16 too."""
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        lo, hi = (8 + n + at for at in t["data_offsets"])
        if t["dtype"] == "BF16":
            v = (np.frombuffer(data[lo:hi], "<u2").astype("<u4") << 16).view("<f4")
        else:
            v = np.frombuffer(data[lo:hi], {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
        out[name] = v.astype("<f4").reshape(t["shape"])
    return out


def bf16(a):
    """The nearest bf16, as an array of its bits."""
    u = np.ascontiguousarray(a, "<f4").view("<u4").astype("<u8")
    return ((u + 0x7fff + (u >> 16 & 1)) >> 16).astype("<u2")


def from_bf16(h):
    return (h.astype("<u4") << 16).view("<f4")


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array)."""
    header, blobs, at = {}, [], 0
    for name, (dtype, a) in tensors.items():
        blob = np.ascontiguousarray(a).tobytes()
        header[name] = {"dtype": dtype, "shape": list(a.shape),
                        "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def e4m3_values():
    """The finite numbers of e4m3, by code."""
    v = np.full(256, np.nan, "<f4")
    for b in range(256):
        e, m = b >> 3 & 15, b & 7
        if b & 127 != 127:
            f = (1 + m / 8) * 2.0 ** (e - 7) if e else m * 2.0 ** -9
            v[b] = -f if b & 128 else f
    return v


def to_e4m3(x):
    v = e4m3_values()
    order = np.argsort(np.where(np.isnan(v), np.inf, v), kind="stable")[:254]
    order = order[np.concatenate([[True], np.diff(v[order]) > 0])]
    at = np.clip(np.searchsorted(v[order], x), 1, len(order) - 1)
    lower = np.abs(x - v[order[at - 1]]) <= np.abs(v[order[at]] - x)
    return np.where(lower, order[at - 1], order[at]).astype("u1")


def words(nibbles):
    """Eight nibbles a word along the last axis, the first in the lowest bits."""
    n = nibbles.astype("<u4").reshape(*nibbles.shape[:-1], -1, 8)
    return (n << (4 * np.arange(8, dtype="<u4"))).sum(-1, dtype="<u4").astype("<i4")


def groups_of(w, g):
    return w.reshape(w.shape[0], -1, g)


def round_asymmetric(w, g, half):
    """Codes 0..15, zeros and scales [rows, groups]; the scales are numbers of f16 or bf16."""
    x = groups_of(w, g)
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    scale = np.maximum((high - low) / 15, 1e-4).astype("<f4")
    scale = scale.astype("<f2").astype("<f4") if half else from_bf16(bf16(scale))
    zero = np.clip(np.rint(-low / scale), 0, 15)
    q = np.clip(np.rint(x / scale[..., None]) + zero[..., None], 0, 15)
    return q.astype("u1").reshape(w.shape), zero.astype("u1"), scale


def round_symmetric(w, g, bits, half):
    """Signed codes and scales."""
    x = groups_of(w, g)
    most = 2 ** (bits - 1) - 1
    scale = np.maximum(np.abs(x).max(-1) / most, 1e-4).astype("<f4")
    scale = scale.astype("<f2").astype("<f4") if half else from_bf16(bf16(scale))
    q = np.clip(np.rint(x / scale[..., None]), -most - 1, most)
    return q.astype("i1").reshape(w.shape), scale


def spread(per_group, g):
    return np.repeat(per_group, g, axis=1).astype("<f4")


def awq(stem, w):
    q, zero, scale = round_asymmetric(w, 64, True)
    order = lambda a: words(a.T.reshape(a.shape[1], -1, 8)[..., AWQ_ORDER].reshape(a.shape[1], -1))
    return {stem + "qweight": ("I32", order(q)), stem + "qzeros": ("I32", order(zero)),
            stem + "scales": ("F16", scale.T.astype("<f2"))}, \
        (q.astype("<f4") - spread(zero, 64)) * spread(scale, 64)


def gptq(stem, w, less, bits=4):
    g, cols = 32, w.shape[1]
    if bits == 8:
        signed, scale = round_symmetric(w, g, 8, True)
        q, zero = (signed.astype("i2") + 128).astype("u1"), np.full(scale.shape, 128, "u1")
        pack = lambda a: np.ascontiguousarray(a).view("<i4")
    else:
        q, zero, scale = round_asymmetric(w, g, True)
        zero = np.maximum(zero, 1)
        pack = words
    stored = (zero - less).astype("u1")
    return {stem + "qweight": ("I32", pack(q).T), stem + "qzeros": ("I32", pack(stored.T)),
            stem + "scales": ("F16", scale.T.astype("<f2")),
            stem + "g_idx": ("I32", (np.arange(cols) // g).astype("<i4"))}, \
        (q.astype("<f4") - spread(zero, g)) * spread(scale, g)


def compressed(stem, w, kind):
    shape = {stem + "weight_shape": ("I64", np.array(w.shape, "<i8"))}
    if kind == "ct-int8":
        q, scale = round_symmetric(w, w.shape[1], 8, False)
        return {stem + "weight": ("I8", q), stem + "weight_scale": ("BF16", bf16(scale))}, \
            q.astype("<f4") * scale
    if kind == "ct-int4":
        q, scale = round_symmetric(w, 32, 4, False)
        return shape | {stem + "weight_packed": ("I32", words(q + 8)),
                        stem + "weight_scale": ("BF16", bf16(scale))}, \
            q.astype("<f4") * spread(scale, 32)
    q, zero, scale = round_asymmetric(w, 64, False)
    return shape | {stem + "weight_packed": ("I32", words(q)),
                    stem + "weight_scale": ("BF16", bf16(scale)),
                    stem + "weight_zero_point": ("I32", words(zero.T).T)}, \
        (q.astype("<f4") - spread(zero, 64)) * spread(scale, 64)


def fp8(stem, w, kind):
    rows, cols = w.shape
    if kind == "fp8-block":
        scale = np.zeros((-(-rows // 128), -(-cols // 128)), "<f4")
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                part = w[128 * i:128 * i + 128, 128 * j:128 * j + 128]
                scale[i, j] = np.abs(part).max() / 448
        name, each = "weight_scale_inv", np.repeat(np.repeat(scale, 128, 0), 128, 1)[:rows, :cols]
    elif kind == "fp8-rows":
        scale = np.abs(w).max(1, keepdims=True) / 448
        name, each = "weight_scale", scale
    else:
        scale = np.array([np.abs(w).max() / 448], "<f4")
        name, each = "weight_scale", scale
    scale, each = scale.astype("<f4"), each.astype("<f4")
    q = to_e4m3(w / each)
    extra = {} if kind != "fp8-tensor" else {stem + "input_scale": ("F32", np.ones(1, "<f4"))}
    return extra | {stem + "weight": ("F8_E4M3", q), stem + name: ("F32", scale)}, \
        e4m3_values()[q] * each


def config_of(kind):
    linear = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}
    if kind == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True,
                "version": "gemm"}
    if kind.startswith("gptq"):
        return {"quant_method": "gptq", "bits": 8 if kind == "gptq8" else 4, "group_size": 32,
                "desc_act": False, "sym": kind == "gptq8",
                "checkpoint_format": "gptq_v2" if kind == "gptq-v2" else "gptq"}
    if kind == "ct-int8":
        linear["weights"]["num_bits"] = 8
    if kind.startswith("ct"):
        return {"quant_method": "compressed-tensors", "config_groups": {"group_0": linear},
                "format": "int-quantized" if kind == "ct-int8" else "pack-quantized"}
    block = {"weight_block_size": [128, 128]} if kind == "fp8-block" else {}
    return {"quant_method": "fp8", "activation_scheme": "dynamic"} | block


def quantise(kind, stem, w):
    if kind == "awq":
        return awq(stem, w)
    if kind.startswith("gptq"):
        return gptq(stem, w, kind != "gptq-v2", 8 if kind == "gptq8" else 4)
    return compressed(stem, w, kind) if kind.startswith("ct") else fp8(stem, w, kind)


def copy_model(source, dest, tensors, extra):
    os.makedirs(dest, exist_ok=True)
    for name in os.listdir(source):
        if name.endswith(".json") and name != "config.json":
            with open(os.path.join(source, name), "rb") as f, \
                    open(os.path.join(dest, name), "wb") as to:
                to.write(f.read())
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    with open(os.path.join(dest, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config | extra, f)
    write_safetensors(os.path.join(dest, "model.safetensors"), tensors)


def write(source, kind, quantised, exact):
    """Writes folder `quantised`, the model of folder `source` in a format of FORMATS, and `exact`,
    the same numbers in f32."""
    tensors, twin = {}, {}
    for name, w in read_safetensors(os.path.join(source, "model.safetensors")).items():
        if w.ndim == 2 and name.endswith("proj.weight"):
            parts, numbers = quantise(kind, name[:-len("weight")], w)
            tensors |= parts
            twin[name] = ("F32", numbers.astype("<f4"))
        else:
            tensors[name] = ("BF16", bf16(w))
            twin[name] = ("F32", w)
    copy_model(source, quantised, tensors, {"quantization_config": config_of(kind)})
    copy_model(source, exact, twin, {})
