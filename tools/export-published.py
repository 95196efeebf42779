#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/published: for a published checkpoint of each family its config.json, as far as
mixd reads it, and the names, shapes and type of its tensors; no weights.

    pip install torch transformers
    tools/export-published.py tests/golden/published [NAME...]

Names and shapes are those of transformers' model of that configuration, on the meta device, with the
prefixes and buffers that the published files have. Tensors that differ in the number of a layer alone
stand once, with {} for it.
"""
import argparse
import json
import pathlib
import re

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

FACTORS = dict(short_factor=[1.0] * 48, long_factor=[1.5] * 48)
LOCAL = dict(rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window_pattern=6)


class Published:
    def __init__(self, config, dtype="BF16", rename=(), drop=(), extra=None):
        self.config = config  # config.json
        self.dtype = dtype
        self.rename = rename  # (pattern, replacement), the first that fits
        self.drop = drop      # patterns of tensors that the files do not have
        self.extra = extra or {}


PUBLISHED = {
    "gemma-2-2b": Published(dict(
        model_type="gemma2", hidden_size=2304, intermediate_size=9216, num_hidden_layers=26,
        num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=256000,
        query_pre_attn_scalar=256, sliding_window=4096, attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0, hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh", max_position_embeddings=8192, rope_theta=10000.0,
        rms_norm_eps=1e-6)),
    "gemma-3-1b-it": Published(dict(
        model_type="gemma3_text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
        num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=262144,
        query_pre_attn_scalar=256, sliding_window=512, hidden_activation="gelu_pytorch_tanh",
        max_position_embeddings=32768, rope_scaling=None, rms_norm_eps=1e-6, **LOCAL)),
    "gemma-3-4b-it": Published(dict(
        model_type="gemma3", mm_tokens_per_image=256,
        text_config=dict(model_type="gemma3_text", hidden_size=2560, intermediate_size=10240,
                         num_hidden_layers=34, num_attention_heads=8, num_key_value_heads=4,
                         head_dim=256, vocab_size=262208, sliding_window=1024,
                         rope_scaling=dict(factor=8.0, rope_type="linear")),
        vision_config=dict(model_type="siglip_vision_model", hidden_size=1152, image_size=896,
                           intermediate_size=4304, num_attention_heads=16, num_hidden_layers=27,
                           patch_size=14, vision_use_head=False)),
        rename=((r"^model\.language_model\.", "language_model.model."),
                (r"^model\.(vision_tower|multi_modal_projector)\.", r"\1."))),
    "Phi-3.5-mini-instruct": Published(dict(
        model_type="phi3", hidden_size=3072, intermediate_size=8192, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, vocab_size=32064, hidden_act="silu",
        max_position_embeddings=131072, original_max_position_embeddings=4096, rms_norm_eps=1e-5,
        rope_theta=10000.0, sliding_window=262144, tie_word_embeddings=False,
        rope_scaling=dict(type="longrope", **FACTORS))),
    "Phi-4-mini-instruct": Published(dict(
        model_type="phi3", hidden_size=3072, intermediate_size=8192, num_hidden_layers=32,
        num_attention_heads=24, num_key_value_heads=8, vocab_size=200064, hidden_act="silu",
        max_position_embeddings=131072, original_max_position_embeddings=4096, rms_norm_eps=1e-5,
        partial_rotary_factor=0.75, rope_theta=10000.0, sliding_window=262144,
        tie_word_embeddings=True, rope_scaling=dict(type="longrope", **FACTORS))),
    "OLMo-2-1124-7B": Published(dict(
        model_type="olmo2", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, vocab_size=100352, hidden_act="silu",
        max_position_embeddings=4096, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=500000,
        tie_word_embeddings=False), dtype="F32"),
    "Olmo-3-1025-7B": Published(dict(
        model_type="olmo3", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, vocab_size=100278, hidden_act="silu",
        max_position_embeddings=65536, rms_norm_eps=1e-6, rope_theta=500000, sliding_window=4096,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
        rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=8192,
                          attention_factor=1.2079441541679836, beta_fast=32.0, beta_slow=1.0),
        tie_word_embeddings=False)),
    "SmolLM3-3B": Published(dict(
        model_type="smollm3", hidden_size=2048, intermediate_size=11008, num_hidden_layers=36,
        num_attention_heads=16, num_key_value_heads=4, vocab_size=128256, hidden_act="silu",
        max_position_embeddings=65536, rms_norm_eps=1e-6, rope_theta=5000000.0, rope_scaling=None,
        no_rope_layers=[1, 1, 1, 0] * 9, no_rope_layer_interval=4, use_sliding_window=False,
        sliding_window=None, layer_types=["full_attention"] * 36)),
    "granite-3.3-2b-instruct": Published(dict(
        model_type="granite", hidden_size=2048, intermediate_size=8192, num_hidden_layers=40,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=49159, hidden_act="silu",
        max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=10000000.0,
        rope_scaling=None, attention_multiplier=0.015625, embedding_multiplier=12.0,
        logits_scaling=8.0, residual_multiplier=0.22, attention_bias=False, mlp_bias=False,
        tie_word_embeddings=True)),
    "Mistral-Small-3.1-24B-Instruct-2503": Published(dict(
        model_type="mistral3", spatial_merge_size=2, vision_feature_layer=-1,
        multimodal_projector_bias=False, projector_hidden_act="gelu",
        text_config=dict(model_type="mistral", hidden_size=5120, intermediate_size=32768,
                         num_hidden_layers=40, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=128, vocab_size=131072, rope_theta=1000000000.0,
                         max_position_embeddings=131072, rms_norm_eps=1e-5, hidden_act="silu",
                         sliding_window=None),
        vision_config=dict(model_type="pixtral", hidden_size=1024, intermediate_size=4096,
                           num_hidden_layers=24, num_attention_heads=16, patch_size=14,
                           image_size=1540, head_dim=64)),
        rename=((r"^model\.language_model\.", "language_model.model."),
                (r"^model\.(vision_tower|multi_modal_projector)\.", r"\1."),
                (r"^lm_head\.", "language_model.lm_head.")),
        extra={"language_model.lm_head.weight": [131072, 5120]}),
    "c4ai-command-r7b-12-2024": Published(dict(
        model_type="cohere2", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=256000,
        hidden_act="silu", layer_norm_eps=1e-5, logit_scale=0.25, max_position_embeddings=132096,
        rope_theta=50000, rope_scaling=None, sliding_window=4096, sliding_window_pattern=4,
        attention_bias=False, rotary_pct=1.0, position_embedding_type="rope_gptj",
        order_of_interleaved_layers="local_attn_first", use_embedding_sharing=True)),
    "gpt2": Published(dict(
        model_type="gpt2", n_embd=768, n_layer=12, n_head=12, n_positions=1024, n_ctx=1024,
        vocab_size=50257, activation_function="gelu_new", layer_norm_epsilon=1e-5,
        resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1), dtype="F32",
        rename=((r"^transformer\.", ""),), extra={"h.{}.attn.bias": [1, 1, 1024, 1024]}),
    "pythia-160m": Published(dict(
        model_type="gpt_neox", hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
        num_attention_heads=12, vocab_size=50304, hidden_act="gelu", layer_norm_eps=1e-5,
        max_position_embeddings=2048, rotary_pct=0.25, rotary_emb_base=10000,
        use_parallel_residual=True, tie_word_embeddings=False), dtype="F16",
        rename=((r"^lm_head\.", "embed_out."),),
        extra={"gpt_neox.layers.{}.attention.masked_bias": [],
               "gpt_neox.layers.{}.attention.rotary_emb.inv_freq": [8]}),
    "Seed-OSS-36B-Instruct": Published(dict(
        model_type="seed_oss", hidden_size=5120, intermediate_size=27648, num_hidden_layers=64,
        num_attention_heads=80, num_key_value_heads=8, head_dim=128, vocab_size=155136,
        hidden_act="silu", max_position_embeddings=524288, rms_norm_eps=1e-6,
        rope_scaling=dict(rope_type="default"), rope_theta=10000000.0, attention_bias=True,
        attention_out_bias=False, mlp_bias=False, tie_word_embeddings=False)),
}


def tensors_of(p):
    config = AutoConfig.for_model(**p.config)
    parts = "text_config" in p.config
    with torch.device("meta"):
        model = (AutoModelForImageTextToText if parts else AutoModelForCausalLM).from_config(config)
    model.tie_weights()
    tied = set(model.all_tied_weights_keys) if hasattr(model, "all_tied_weights_keys") else set()
    out = {}
    for name, t in model.state_dict().items():
        if name in tied:
            continue
        for pattern, new in p.rename:
            if re.search(pattern, name):
                name = re.sub(pattern, new, name)
                break
        out[name] = list(t.shape)
    return out


def folded(tensors):
    """Tensors that every layer of a stack has with one shape stand once."""
    groups = {}
    for name, shape in tensors.items():
        m = re.match(r"(.*?(?:^|\.)(?:layers|h)\.)(\d+)(\..*)", name)
        key = (m[1] + "{}" + m[3], tuple(shape)) if m else (name, tuple(shape))
        groups.setdefault(key, []).append(int(m[2]) if m else None)
    out = {}
    for (name, shape), numbers in groups.items():
        assert name not in out, name
        if numbers != [None]:
            assert sorted(numbers) == list(range(len(numbers))), (name, numbers)
        out[name] = dict(shape=list(shape)) | ({} if numbers == [None] else dict(n=len(numbers)))
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("names", nargs="*", metavar="NAME", help="only these checkpoints")
    args = ap.parse_args()
    transformers.logging.set_verbosity_error()
    for name, p in PUBLISHED.items():
        if args.names and name not in args.names:
            continue
        tensors = folded(tensors_of(p))
        layers = max(t.get("n", 0) for t in tensors.values())
        for extra, shape in p.extra.items():
            tensors[extra] = dict(shape=shape) | (dict(n=layers) if "{}" in extra else {})
        lines = ",\n".join(f'  {json.dumps(k)}: {json.dumps(v)}' for k, v in sorted(tensors.items()))
        (args.folder / f"{name}.json").write_text(
            '{"config": ' + json.dumps(p.config) + f',\n "dtype": "{p.dtype}",\n "tensors": {{\n'
            + lines + "}}\n")
        print(name, len(tensors))
    (args.folder / "PROVENANCE").write_text(
        "Made by tools/export-published.py tests/golden/published with transformers "
        f"{transformers.__version__}:\nnames and shapes are its models'; the configurations are "
        "those of the model cards.\n")


if __name__ == "__main__":
    main()
