#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes quant-* of tests/golden/models: tiny random checkpoints that the libraries of the formats
themselves quantised and wrote, and transformers' results for the numbers that the same libraries
make of them again.

    pip install torch transformers safetensors compressed-tensors gptqmodel
    pip install --no-deps autoawq
    tools/export-quantised.py tests/golden/models [NAME...]

Beside what tools/golden_models.py writes, expected.json has "matrices": rows, columns and the SHA-256
of each dequantised matrix, in f32, row by row, little-endian. Scales are rounded to nearest, without
calibration: how good the codes are does not matter here. AutoAWQ's package does not import beside
transformers 5: its modules for the layout are loaded on their own.
"""
import argparse
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import types

import golden_models
import safetensors.torch
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

LENGTHS = (1, 7, 33, 64, 65, 130)
GREEDY = 8
# 160: whole groups of 32, and blocks of 128 that are cut short
CONFIG = dict(hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, vocab_size=128, max_position_embeddings=1024, rms_norm_eps=1e-5,
              tie_word_embeddings=False, **golden_models.NO_SPECIAL_TOKENS)


def matrices(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"}


# ---- compressed-tensors ----

def group_extremes(w, args):
    """Least and largest number of each part that has a scale, in the shape of weight_scale."""
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        parts = w.reshape(1, -1)
    elif strategy == "channel":
        parts = w
    elif strategy == "group":
        parts = w.reshape(w.shape[0], -1, args.group_size)
    else:
        rows, cols = args.block_structure
        return tuple(torch.stack([torch.stack([f(b) for b in r.split(cols, 1)]) for r in w.split(rows)])
                     for f in (torch.min, torch.max))
    low, high = parts.min(-1).values, parts.max(-1).values
    return (low.unsqueeze(1), high.unsqueeze(1)) if strategy == "channel" else (low, high)


def compressed(weights, activations=None):
    def quantise(model, path):
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
        from compressed_tensors.quantization.utils import calculate_qparams
        scheme = dict(targets=["Linear"], weights=weights, input_activations=activations)
        config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"])
        apply_quantization_config(model, config)
        for m in matrices(model).values():
            args = m.quantization_scheme.weights
            scale, zero = calculate_qparams(*group_extremes(m.weight, args), args)
            m.weight_scale.data.copy_(scale)
            if not args.symmetric:
                m.weight_zero_point.data.copy_(zero)
            if hasattr(m, "input_scale"):
                m.input_scale.data.fill_(0.01)
        compressor = ModelCompressor.from_pretrained_model(model)
        compressor.compress_model(model)
        tensors = {n: t.detach().contiguous().clone() for n, t in model.state_dict().items()}
        model.config.save_pretrained(path)
        compressor.update_config(path)
        compressor.decompress_model(model)
        return tensors, {n: m.weight.detach().float() for n, m in matrices(model).items()}
    return quantise


# ---- AutoAWQ, GPTQModel ----

def affine(w, group, bits):
    """Scales and zeros [groups, rows] of the least and largest number of each group."""
    x = w.reshape(w.shape[0], -1, group)
    low, high = x.min(-1).values.clamp(max=0), x.max(-1).values.clamp(min=0)
    scale = ((high - low) / (2 ** bits - 1)).half().float()
    return scale.T.contiguous(), (-low / scale).round().clamp(1, 2 ** bits - 1).T.contiguous()


def written(model, path, config, each):
    """each(linear): the tensors that stand for it, and its numbers."""
    model.config.quantization_config = config
    model.config.save_pretrained(path)
    tensors = {n: t.detach().clone() for n, t in model.state_dict().items()}
    exact = {}
    for name, m in matrices(model).items():
        del tensors[name + ".weight"]
        parts, exact[name] = each(m)
        tensors |= {f"{name}.{k}": t.contiguous() for k, t in parts.items()}
    return tensors, exact


def awq_module(name):
    if "awq" not in sys.modules:
        folders = list(importlib.util.find_spec("awq").submodule_search_locations)
        sys.modules["awq"] = types.ModuleType("awq")
        sys.modules["awq"].__path__ = folders
    for parent in "awq.utils", "awq.modules", "awq.modules.linear":
        if parent not in sys.modules:
            sys.modules[parent] = types.ModuleType(parent)
            sys.modules[parent].__path__ = [sys.modules["awq"].__path__[0] + parent[3:].replace(".", "/")]
    return importlib.import_module(name)


def awq(model, path):
    gemm, packing = awq_module("awq.modules.linear.gemm"), awq_module("awq.utils.packing_utils")

    def each(m):
        scale, zero = affine(m.weight, 32, 4)
        q = gemm.WQLinear_GEMM.from_linear(m, 4, 32, scales=scale, zeros=zero)
        parts = dict(qweight=q.qweight, qzeros=q.qzeros, scales=q.scales)
        return parts, packing.dequantize_gemm(q.qweight, q.qzeros, q.scales.float(), 4, 32).T
    return written(model, path, dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm"),
                   each)


def gptq(bits, checkpoint_format):
    def quantise(model, path):
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        from gptqmodel.quantization import QuantizeConfig
        from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

        def each(m):
            if bits == 8:  # symmetric
                scale = (m.weight.reshape(m.weight.shape[0], -1, 32).abs().amax(-1) / 127).half().float().T
                zero = torch.full_like(scale, 128)
            else:
                scale, zero = affine(m.weight, 32, bits)
            q = TorchLinear(bits=bits, group_size=32, sym=bits == 8, desc_act=False,
                            in_features=m.in_features, out_features=m.out_features, bias=False,
                            pack_dtype=torch.int32, register_buffers=True)
            q.pack_original(m, scale.T.contiguous(), zero.T.contiguous())
            q.post_init()
            kept, q.scales = q.scales, q.scales.float()
            exact = q.dequantize_weight().T.float()
            q.scales = kept
            if checkpoint_format == "gptq":
                convert_gptq_v2_to_v1_format_module(
                    q, QuantizeConfig(bits=bits, group_size=32, sym=bits == 8, desc_act=False))
            return dict(qweight=q.qweight, qzeros=q.qzeros, scales=q.scales, g_idx=q.g_idx), exact
        return written(model, path, dict(quant_method="gptq", bits=bits, group_size=32, desc_act=False,
                                         sym=bits == 8, checkpoint_format=checkpoint_format), each)
    return quantise


def ct_int(bits, group, symmetric=True):
    return dict(num_bits=bits, type="int", strategy="group", group_size=group, symmetric=symmetric)


def ct_fp8(strategy, **more):
    return dict(num_bits=8, type="float", strategy=strategy, symmetric=True, **more)


DYNAMIC = dict(num_bits=8, strategy="token", dynamic=True, symmetric=True)
VARIANTS = {
    "quant-ct-int4": compressed(ct_int(4, 32)),
    "quant-ct-int4-zeros": compressed(ct_int(4, 32, False)),
    "quant-ct-int4-narrow": compressed(ct_int(4, 8)),
    "quant-ct-int8": compressed(dict(num_bits=8, type="int", strategy="channel", symmetric=True),
                                dict(DYNAMIC, type="int")),
    "quant-ct-int8-groups": compressed(ct_int(8, 32)),
    "quant-ct-fp8": compressed(ct_fp8("channel"), dict(DYNAMIC, type="float")),
    "quant-ct-fp8-tensor": compressed(ct_fp8("tensor"), ct_fp8("tensor", dynamic=False)),
    "quant-ct-fp8-block": compressed(ct_fp8("block", block_structure=[128, 128]),
                                     dict(num_bits=8, type="float", strategy="group", group_size=128,
                                          dynamic=True, symmetric=True)),
    "quant-awq": awq,
    "quant-gptq": gptq(4, "gptq"),
    "quant-gptq-v2": gptq(4, "gptq_v2"),
    "quant-gptq8": gptq(8, "gptq"),
}


@torch.no_grad()
def randomize(model, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        gain = 1.5 if "q_proj" in name or "k_proj" in name else 2.5 if "lm_head" in name else 1.0
        p.copy_(1 + 0.1 * r if p.dim() == 1 else r if "embed" in name else gain * r / p.shape[1] ** 0.5)


def make(name, quantise, root):
    made = {}

    def write(path, seed):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), attn_implementation="eager").float()
        randomize(model, seed)
        with torch.no_grad():
            tensors, made["exact"] = quantise(model, path)
        safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        (path / "generation_config.json").unlink(missing_ok=True)
        twin = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), attn_implementation="eager").float()
        randomize(twin, seed)
        with torch.no_grad():
            for n, m in matrices(twin).items():
                m.weight.copy_(made["exact"][n])
        made["twin"] = twin.eval()

    golden_models.make(root / name, LENGTHS, CONFIG["vocab_size"], "whole prompt", write,
                       lambda path, prompt: golden_models.case(made["twin"], None, prompt, GREEDY),
                       lambda path: None)
    sums = {n + ".weight": [*w.shape, hashlib.sha256(w.contiguous().numpy().astype("<f4").tobytes()).hexdigest()]
            for n, w in made["exact"].items()}
    path = root / name / "expected.json"
    text = path.read_text()
    lines = ",\n".join(f"{json.dumps(n)}:{json.dumps(v, separators=(',', ':'))}" for n, v in sums.items())
    path.write_text(text.replace(',\n"cases":', ',\n"matrices":{\n' + lines + '},\n"cases":', 1))


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = ap.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name, quantise in VARIANTS.items():
        if not args.names or name in args.names:
            make(name, quantise, args.folder)
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in (
        "torch", "transformers", "compressed-tensors", "autoawq", "gptqmodel", "safetensors"))
    (args.folder / "PROVENANCE-quant").write_text(
        f"quant-* made by tools/export-quantised.py tests/golden/models\n{versions}; on a CPU\n"
        "Seeds are in each expected.json.\n")


main()
