#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints of hybrids and of mixtures of experts in tests/golden/models, and the results
of transformers for them (README-hybrid.md there).

    pip install torch transformers safetensors
    tools/export-golden-hybrid.py tests/golden/models [NAME...]
"""
import argparse
import json
import math
import pathlib
import sys
import warnings

import golden_models
import safetensors
import safetensors.torch
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.gemma4 import Gemma4TextConfig
from transformers.models.mistral4 import Mistral4Config, Mistral4ForCausalLM

LENGTHS = (1, 7, 15, 16, 17, 65, 200, 500)
FEWER = (1, 7, 16, 17, 65, 300)
GREEDY = 24
MAX_SENSITIVITY = 1e-4  # a tenth of the tests' tolerance
MIN_MARGIN = 0.01       # nats between the best and the second token: ten times that tolerance
VOCAB = 128


def config(name, **kw):
    cls = Mistral4Config if name == "Mistral4" else getattr(transformers, name + "Config")
    return cls(**dict(golden_models.NO_SPECIAL_TOKENS, vocab_size=VOCAB, hidden_size=32,
                      num_hidden_layers=2, max_position_embeddings=1024) | kw)


def attention(name, **kw):
    return config(name, **dict(num_attention_heads=4, num_key_value_heads=2,
                               intermediate_size=40) | kw)


def hub_names(before, after):
    """Renames tensors from transformers' names to those of published checkpoints."""
    def edit(path):
        tensors = safetensors.torch.load_file(path / "model.safetensors")
        tensors = {after + k[len(before):] if k.startswith(before) else k: t
                   for k, t in tensors.items()}
        safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    return edit


def pattern(path):
    """Spells a Nemotron-H's layers as its published configs do."""
    hub_names("model.", "backbone.")(path)
    config = json.loads((path / "config.json").read_text())
    kinds = dict(linear_attention="M", full_attention="*", mlp="-", moe="E")
    words = config.pop("layers_block_type", None) or config.pop("layer_types")
    config["hybrid_override_pattern"] = "".join(kinds[w] for w in words)
    config["num_hidden_layers"] = len(words)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def multimodal(model_type):
    """Makes a checkpoint of several parts of a text: as published, with experts in two tensors, and
    with tensors of vision and of multi-token prediction that the text does not use."""
    def edit(path):
        hub_names("model.", "model.language_model.")(path)
        tensors = safetensors.torch.load_file(path / "model.safetensors")
        layers = {k.split(".experts.")[0] for k in tensors if ".experts.0." in k}
        for layer in sorted(layers):
            expert = lambda e, w: tensors.pop(f"{layer}.experts.{e}.{w}_proj.weight")
            n = sum(k.startswith(layer + ".experts.") and ".gate_proj." in k for k in tensors)
            up = torch.stack([torch.cat([expert(e, "gate"), expert(e, "up")]) for e in range(n)])
            tensors[layer + ".experts.gate_up_proj"] = up
            tensors[layer + ".experts.down_proj"] = torch.stack(
                [expert(e, "down") for e in range(n)])
        for name in ("model.visual.patch_embed.proj.bias", "mtp.norm.weight"):
            tensors[name] = torch.ones(8)
        safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        text = json.loads((path / "config.json").read_text())
        whole = dict(architectures=["ForConditionalGeneration"], model_type=model_type,
                     tie_word_embeddings=text.pop("tie_word_embeddings"), text_config=text,
                     vision_config=dict(depth=1))
        (path / "config.json").write_text(json.dumps(whole, indent=2) + "\n")

    return edit


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mxfp4(w):
    """Blocks, scales and values of w [n, inputs, outputs], as gpt-oss stores its experts."""
    w = w.transpose(1, 2).unflatten(-1, (-1, 32))
    exponent = w.abs().amax(-1).log2().floor() - 2
    x = w / exponent.exp2().unsqueeze(-1)
    code = (x.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    values = E2M1[code] * torch.where(x < 0, -1, 1) * exponent.exp2().unsqueeze(-1)
    code = (code + 8 * (x < 0)).to(torch.uint8)
    return (code[..., 0::2] | code[..., 1::2] << 4, (exponent + 127).to(torch.uint8),
            values.flatten(-2).transpose(1, 2).contiguous())


def rounded_mxfp4(name, w):
    return mxfp4(w)[2] if name.endswith(("experts.gate_up_proj", "experts.down_proj")) else w


def as_mxfp4(path):
    """Stores experts as published: codes and scales; and rope in the old spelling."""
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for k in [k for k in tensors if k.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        w = tensors.pop(k)
        tensors[k + "_blocks"], tensors[k + "_scales"], values = mxfp4(w)
        assert torch.equal(w, values)
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["rope_scaling"] = config.pop("rope_parameters")
    config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=[
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def as_minimax_m1(path):
    """Spells a config as those of MiniMax-M1 are published."""
    config = json.loads((path / "config.json").read_text())
    config["model_type"] = "minimax_m1"
    config["attn_type_list"] = [int(t == "full_attention") for t in config.pop("layer_types")]
    for kind, name in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"),
                       ("mlp", "mlp")):
        for factor in "alpha", "beta":
            config[f"layernorm_{name}_{factor}"] = config.pop(f"{kind}_{factor}_factor")
    config |= dict(postnorm=True, shared_intermediate_size=0, rotary_dim=config["head_dim"])
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


class Variant:
    def __init__(self, config, lengths=FEWER, finish=lambda path: None,
                 rounded=lambda name, w: w):
        self.config = config
        self.rounded = rounded  # changes a random tensor
        self.lengths = lengths
        self.finish = finish  # what the reference would not read


VARIANTS = {
    "mixtral": Variant(attention("Mixtral", num_local_experts=5, num_experts_per_tok=2,
                                 sliding_window=40), LENGTHS),
    "qwen2_moe": Variant(attention("Qwen2Moe", num_hidden_layers=3, num_experts=6,
                                   num_experts_per_tok=3, moe_intermediate_size=24,
                                   shared_expert_intermediate_size=40, mlp_only_layers=[1]),
                         LENGTHS),
    "qwen3_moe": Variant(attention("Qwen3Moe", head_dim=12, num_experts=6, num_experts_per_tok=2,
                                   moe_intermediate_size=24, norm_topk_prob=True,
                                   tie_word_embeddings=True), LENGTHS),
    "qwen3_moe-dense": Variant(attention("Qwen3Moe", num_hidden_layers=4, head_dim=8, num_experts=6,
                                         num_experts_per_tok=2, moe_intermediate_size=24,
                                         attention_bias=True, decoder_sparse_step=2,
                                         mlp_only_layers=[3], use_sliding_window=True,
                                         sliding_window=30)),
}


MAMBA = dict(mamba_n_heads=4, mamba_d_state=24, mamba_n_groups=1)
MULTIPLIERS = dict(embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.6,
                   attention_multiplier=0.3)
HYBRIDS = {
    "granitemoehybrid": Variant(attention(
        "GraniteMoeHybrid", num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"],
        shared_intermediate_size=48, num_local_experts=5, num_experts_per_tok=2, **MAMBA,
        **MULTIPLIERS), LENGTHS),
    "granitemoehybrid-dense": Variant(attention(
        "GraniteMoeHybrid", layer_types=["attention", "mamba"], shared_intermediate_size=48,
        num_local_experts=0, position_embedding_type="rope", attention_bias=True,
        mamba_proj_bias=True, mamba_conv_bias=False, mamba_n_heads=8, mamba_d_state=16,
        mamba_n_groups=2, mamba_d_conv=3, time_step_limit=(0.01, 0.1), tie_word_embeddings=True,
        attention_multiplier=0.25)),
    "bamba": Variant(attention("Bamba", num_hidden_layers=3, attn_layer_indices=[1], **MAMBA),
                     LENGTHS),
    "bamba-bias": Variant(attention(
        "Bamba", attn_layer_indices=[0], attention_bias=True, mlp_bias=True, mamba_proj_bias=True,
        mamba_n_heads=8, mamba_n_groups=2, mamba_d_state=16)),
    "falcon_h1": Variant(attention("FalconH1", mamba_d_ssm=48, mamba_n_heads=3, mamba_d_state=24,
                                   head_dim=12, **dict(
        lm_head_multiplier=0.6, embedding_multiplier=2.5, mlp_multipliers=[0.7, 1.3],
        key_multiplier=0.8, attention_out_multiplier=1.2, attention_in_multiplier=0.9,
        ssm_multipliers=[0.5, 1.5, 0.8, 1.25, 0.7], ssm_in_multiplier=1.1,
        ssm_out_multiplier=0.75)), LENGTHS),
    "falcon_h1-norm": Variant(attention(
        "FalconH1", mamba_d_ssm=None, mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=16,
        mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_proj_bias=True,
        projectors_bias=False, attention_bias=True, mlp_bias=True, ssm_multipliers=[
            1.2, 0.8, 1.0, 1.0, 1.4], tie_word_embeddings=True)),
    "falcon_h1-before": Variant(attention(
        "FalconH1", mamba_d_ssm=64, mamba_n_heads=2, mamba_n_groups=2, mamba_d_state=16,
        mamba_rms_norm=True, mamba_conv_bias=False, projectors_bias=True)),
    "nemotron_h": Variant(attention(
        "NemotronH", num_hidden_layers=None, layers_block_type=[
            "linear_attention", "mlp", "full_attention", "moe"], head_dim=12, mamba_num_heads=6,
        mamba_head_dim=8, ssm_state_size=24, n_groups=2, time_step_min=1e-9, n_routed_experts=8,
        num_experts_per_tok=3, moe_intermediate_size=24, moe_shared_expert_intermediate_size=40,
        n_group=4, topk_group=2, routed_scaling_factor=2.5), LENGTHS,
        hub_names("model.", "backbone.")),
    "nemotron_h-latent": Variant(attention(
        "NemotronH", num_hidden_layers=None, layers_block_type=[
            "moe", "linear_attention", "full_attention"],
        head_dim=8, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=16, n_groups=4,
        use_bias=True, use_conv_bias=False, conv_kernel=3, time_step_min=1e-9, n_routed_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=40, moe_shared_expert_intermediate_size=24,
        moe_latent_size=16, norm_topk_prob=False, routed_scaling_factor=1.5)),
    "nemotron_h-dense": Variant(attention(
        "NemotronH", num_hidden_layers=None, layers_block_type=[
            "linear_attention", "mlp", "full_attention", "mlp"], mlp_bias=True, head_dim=16,
        mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=16, n_groups=1, time_step_min=1e-9,
        intermediate_size=56), FEWER, pattern),
}
GATED = dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4,
             linear_key_head_dim=12, linear_value_head_dim=16, head_dim=16,
             layer_types=["linear_attention", "full_attention", "linear_attention",
                          "linear_attention"])
QWEN_EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                    shared_expert_intermediate_size=40)


def latent(name, **kw):
    return attention(name, **dict(
        num_hidden_layers=3, num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=24,
        qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8,
        num_experts_per_tok=3, moe_intermediate_size=24, first_k_dense_replace=1) | kw)


def yarn(**kw):
    return dict(rope_type="yarn", rope_theta=1e4, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                original_max_position_embeddings=128) | kw


def with_layer_of_prediction(path):
    """Adds tensors of multi-token prediction, as published."""
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    tensors["model.layers.3.eh_proj.weight"] = torch.ones(32, 64)
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def kimi(published):
    """Makes a Kimi Linear as its authors publish it: the dense layer's names, and the config's."""
    def edit(path):
        tensors = safetensors.torch.load_file(path / "model.safetensors")
        dense = {k for k in tensors if k.split(".")[-2] in ("gate_proj", "up_proj", "down_proj")
                 and ".shared_experts." not in k}
        tensors = {k.replace(".block_sparse_moe.", ".mlp.") if k in dense else k: t
                   for k, t in tensors.items()}
        safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        if not published:
            return
        c = json.loads((path / "config.json").read_text())
        types = c.pop("layer_types")
        where = lambda t: [i + 1 for i, x in enumerate(types) if x == t]
        c["linear_attn_config"] = dict(
            head_dim=c.pop("linear_head_dim"), num_heads=c.pop("linear_num_heads"),
            short_conv_kernel_size=c.pop("linear_conv_kernel_dim"),
            full_attn_layers=where("full_attention"), kda_layers=where("linear_attention"))
        c["first_k_dense_replace"] = c.pop("mlp_layer_types").count("dense")
        for usual, own in (("max_position_embeddings", "model_max_length"),
                           ("norm_topk_prob", "moe_renormalize"), ("n_group", "num_expert_group"),
                           ("num_local_experts", "num_experts"),
                           ("num_experts_per_tok", "num_experts_per_token"),
                           ("n_shared_experts", "num_shared_experts")):
            if usual in c:
                c[own] = c.pop(usual)
        c |= dict(mla_use_nope=True, moe_router_activation_func="sigmoid", rope_theta=10000.0)
        (path / "config.json").write_text(json.dumps(c, indent=2) + "\n")

    return edit


def ling2(path):
    """Makes a Ling 2 of a GLM 4.5: the same arithmetic, other names of keys and tensors."""
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for name in [k for k in tensors if ".q_proj." in k]:
        parts = [tensors.pop(name.replace("q_proj", x)) for x in ("q_proj", "k_proj", "v_proj")]
        tensors[name.replace("q_proj", "query_key_value")] = torch.cat(parts)
    for old, new in ((".self_attn.", ".attention."), (".o_proj.", ".dense."),
                     (".q_norm.", ".query_layernorm."), (".k_norm.", ".key_layernorm."),
                     (".embed_tokens.", ".word_embeddings."),
                     (".e_score_correction_bias", ".expert_bias")):
        tensors = {k.replace(old, new): t for k, t in tensors.items()}
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= dict(model_type="bailing_moe", architectures=["BailingMoeV2ForCausalLM"],
                   num_experts=config.pop("n_routed_experts"), score_function="sigmoid",
                   num_shared_experts=config.pop("n_shared_experts"), rope_scaling=None,
                   rope_theta=rope["rope_theta"], use_qkv_bias=config.pop("attention_bias"),
                   partial_rotary_factor=rope["partial_rotary_factor"], use_bias=False,
                   moe_router_enable_expert_bias=True)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def ling(path):
    """Spells a Ling's keys as its authors."""
    config = json.loads((path / "config.json").read_text())
    for key in "layer_types", "linear_num_heads", "linear_conv_kernel_dim", "mlp_layer_types":
        del config[key]
    config |= dict(layer_group_size=2, head_dim=config.pop("linear_head_dim"),
                   max_position_embeddings=config.pop("model_max_length"),
                   norm_topk_prob=config.pop("moe_renormalize"), score_function="sigmoid",
                   n_group=config.pop("num_expert_group"), partial_rotary_factor=0.5,
                   num_experts_per_tok=config.pop("num_experts_per_token"))
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


LATENT = {
    "deepseek_v2": Variant(latent(
        "DeepseekV2", topk_method="group_limited_greedy", n_group=4, topk_group=2,
        routed_scaling_factor=2.5, attention_bias=True, n_shared_experts=2,
        rope_parameters=yarn(mscale=0.7, mscale_all_dim=0.9)), LENGTHS),
    "deepseek_v2-lite": Variant(latent(
        "DeepseekV2", num_hidden_layers=2, q_lora_rank=None, topk_method="greedy", n_group=1,
        topk_group=1, first_k_dense_replace=0, n_shared_experts=1, tie_word_embeddings=True)),
    "deepseek_v3": Variant(latent(
        "DeepseekV3", n_group=4, topk_group=2, routed_scaling_factor=2.5,
        rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0)), LENGTHS, with_layer_of_prediction),
    "deepseek_v3-plain": Variant(latent(
        "DeepseekV3", num_hidden_layers=2, q_lora_rank=None, n_group=1, topk_group=1,
        norm_topk_prob=False, rope_interleave=False, attention_bias=True, n_shared_experts=2,
        routed_scaling_factor=1.0, first_k_dense_replace=0, tie_word_embeddings=True)),
    "glm4_moe_lite": Variant(latent(
        "Glm4MoeLite", num_hidden_layers=2, mlp_layer_types=["sparse", "dense"], v_head_dim=24)),
    "bailing_hybrid": Variant(latent(
        "BailingHybrid", q_lora_rank=None, head_dim=8, n_routed_experts=None,
        moe_intermediate_size=8, kda_lower_bound=-2.0, num_local_experts=8, n_group=4, topk_group=2,
        num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]), LENGTHS, ling),
    "bailing_hybrid-plain": Variant(latent(
        "BailingHybrid", num_hidden_layers=2, q_lora_rank=None, head_dim=8, n_routed_experts=None,
        moe_intermediate_size=8, kda_safe_gate=False, short_conv_kernel_size=3, num_local_experts=6, n_group=1, topk_group=1,
        norm_topk_prob=False, attention_bias=True, n_shared_experts=2, routed_scaling_factor=1.3,
        first_k_dense_replace=0, layer_group_size=2,
        rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0))),
    "kimi_linear": Variant(latent(
        "KimiLinear", num_hidden_layers=4, q_lora_rank=None, linear_head_dim=16, linear_num_heads=3,
        num_local_experts=8, layer_types=["linear_attention", "linear_attention", "full_attention",
                                          "linear_attention"]), LENGTHS, kimi(True)),
    "kimi_linear-plain": Variant(latent(
        "KimiLinear", num_hidden_layers=2, linear_head_dim=8, linear_num_heads=4, n_group=4,
        num_local_experts=8, topk_group=2, norm_topk_prob=False, linear_conv_kernel_dim=3,
        layer_types=["full_attention", "linear_attention"],
        mlp_layer_types=["sparse", "dense"]), FEWER, kimi(False)),
}
def zamba(**kw):
    # time_step_min: transformers cuts the steps of prompts there, and those of decoding not
    return attention("Zamba2", **dict(num_key_value_heads=4, mamba_d_state=16,
                                      time_step_min=1e-9, chunk_size=16) | kw)


def zamba_names(path):
    """Spells the layers as published."""
    config = json.loads((path / "config.json").read_text())
    words = config.pop("layer_types", None) or config.pop("layers_block_type")
    config["layers_block_type"] = [{"linear_attention": "mamba"}.get(w, w) for w in words]
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def olmo_names(path):
    """Stores an OLMo Hybrid as published; transformers writes convolutions of another height."""
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for prefix in {k[:-len("q_conv1d.weight")] for k in tensors if "q_conv1d" in k}:
        conv = torch.cat([tensors[f"{prefix}{x}_conv1d.weight"] for x in "qkv"])
        rows = [len(tensors[f"{prefix}{x}_proj.weight"]) for x in "qkv"]
        for x, part in zip("qkv", conv.split(rows)):
            tensors[f"{prefix}{x}_conv1d.weight"] = part.contiguous()
    tensors = {k.replace("attention_layer_norm", "input_layernorm").replace(
        "feedforward_layer_norm", "post_attention_layernorm"): t for k, t in tensors.items()}
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


VARIANTS |= HYBRIDS | {
    "olmo_hybrid": Variant(attention(
        "OlmoHybrid", num_hidden_layers=3, layer_types=[
            "linear_attention", "full_attention", "linear_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=12, rope_parameters=dict(rope_type="default", rope_theta=None)),
        LENGTHS, olmo_names),
    "olmo_hybrid-rope": Variant(attention(
        "OlmoHybrid", layer_types=["full_attention", "linear_attention"], linear_key_head_dim=12,
        linear_value_head_dim=12, linear_conv_kernel_dim=3, linear_allow_neg_eigval=False,
        attention_bias=True, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=5e4))),
    "qwen3_next": Variant(attention("Qwen3Next", mlp_only_layers=[2], **GATED, **QWEN_EXPERTS),
                          LENGTHS),
    "qwen3_next-gva": Variant(attention(
        "Qwen3Next", num_hidden_layers=2, linear_num_key_heads=1, linear_num_value_heads=3,
        linear_key_head_dim=16, linear_value_head_dim=8, linear_conv_kernel_dim=3, head_dim=24,
        layer_types=["linear_attention", "full_attention"], attention_bias=True,
        norm_topk_prob=False, tie_word_embeddings=True, rope_parameters=dict(
            rope_type="default", rope_theta=5e4, partial_rotary_factor=0.5), **QWEN_EXPERTS)),
    "qwen3_5": Variant(attention("Qwen3_5Text", **GATED), LENGTHS),
    "qwen3_5-parts": Variant(attention(
        "Qwen3_5Text", tie_word_embeddings=True, **(GATED | dict(num_hidden_layers=2, layer_types=[
            "full_attention", "linear_attention"]))), FEWER, multimodal("qwen3_5")),
    "qwen3_5_moe": Variant(attention("Qwen3_5MoeText", **GATED, **QWEN_EXPERTS), FEWER,
                           multimodal("qwen3_5_moe")),
    "glm4_moe": Variant(attention(
        "Glm4Moe", num_hidden_layers=3, head_dim=12, n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=24, n_shared_experts=2, n_group=2, topk_group=1,
        routed_scaling_factor=1.8, use_qk_norm=True, attention_bias=True), LENGTHS),
    # Ling 2, whose arithmetic is GLM 4.5's (modeling_bailing_moe_v2.py of its authors)
    "bailing_moe": Variant(attention(
        "Glm4Moe", head_dim=16, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=8,
        n_shared_experts=1, n_group=4, topk_group=2, routed_scaling_factor=2.5, use_qk_norm=True,
        rope_parameters=dict(rope_type="default", rope_theta=6e5, partial_rotary_factor=0.5)),
        LENGTHS, ling2),
    "bailing_moe-bias": Variant(attention(
        "Glm4Moe", n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=8,
        n_shared_experts=2, first_k_dense_replace=0, attention_bias=True,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0)),
        FEWER, ling2),
    "glm4_moe-plain": Variant(attention(
        "Glm4Moe", n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=24,
        first_k_dense_replace=0, norm_topk_prob=False, tie_word_embeddings=True)),
    **LATENT,
    "lfm2": Variant(attention("Lfm2", num_hidden_layers=3, block_multiple_of=8, layer_types=[
        "conv", "full_attention", "conv"]), LENGTHS),
    "lfm2-bias": Variant(attention(
        "Lfm2", conv_bias=True, conv_L_cache=4, block_auto_adjust_ff_dim=False,
        tie_word_embeddings=False, layer_types=["full_attention", "conv"])),
    "lfm2_moe": Variant(attention(
        "Lfm2Moe", num_hidden_layers=4, num_dense_layers=1, num_experts=6, num_experts_per_tok=3,
        moe_intermediate_size=24, routed_scaling_factor=1.7,
        layer_types=["conv", "conv", "full_attention", "conv"]), LENGTHS),
    "lfm2_moe-plain": Variant(attention(
        "Lfm2Moe", num_dense_layers=0, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=24, use_expert_bias=False, norm_topk_prob=False,
        layer_types=["conv", "full_attention"])),
    "lfm3": Variant(attention(
        "Lfm3", num_hidden_layers=4, head_dim=16, sliding_window=30, layer_types=[
            "conv", "sliding_attention", "full_attention", "conv"]), LENGTHS),
    "lfm3-plain": Variant(attention(
        "Lfm3", head_dim=12, use_sandwich_norm=False, use_attention_gate=False, conv_bias=True,
        conv_L_cache=5, tie_word_embeddings=False, sliding_window=20,
        layer_types=["sliding_attention", "conv"], rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=500.0),
            full_attention=dict(rope_type="default", rope_theta=1e4)))),
    "minimax_m2": Variant(attention(
        "MiniMaxM2", head_dim=12, num_local_experts=6, num_experts_per_tok=2, intermediate_size=24,
        rotary_dim=8), LENGTHS),
    "olmoe": Variant(attention("Olmoe", num_experts=6, num_experts_per_tok=3,
                               intermediate_size=24)),
    "gpt_oss": Variant(attention(
        "GptOss", num_hidden_layers=3, head_dim=12, num_local_experts=6, num_experts_per_tok=3,
        intermediate_size=24, sliding_window=30, swiglu_alpha=1.3, swiglu_limit=1.1,
        rope_parameters=dict(rope_type="yarn", rope_theta=1500.0, factor=8.0, beta_fast=32.0,
                             beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=128)), LENGTHS),
    "gpt_oss-mxfp4": Variant(attention(
        "GptOss", head_dim=16, num_local_experts=5, num_experts_per_tok=2, intermediate_size=32,
        sliding_window=20, attention_bias=False, tie_word_embeddings=True, layer_types=[
            "full_attention", "sliding_attention"],
        rope_parameters=dict(rope_type="yarn", rope_theta=1500.0, factor=8.0, beta_fast=32.0,
                             beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=128)), FEWER, as_mxfp4,
        rounded_mxfp4),
    "minimax": Variant(attention(
        "MiniMax", num_hidden_layers=4, head_dim=12, block_size=16, num_local_experts=5, num_experts_per_tok=2,
        intermediate_size=24, layer_types=["linear_attention", "full_attention",
                                           "linear_attention", "linear_attention"],
        full_attn_alpha_factor=1.7, full_attn_beta_factor=0.8, linear_attn_alpha_factor=1.4,
        linear_attn_beta_factor=1.3, mlp_alpha_factor=2.2, mlp_beta_factor=0.9), LENGTHS),
    "minimax-published": Variant(attention(
        "MiniMax", head_dim=8, num_attention_heads=6, block_size=8, num_local_experts=4, num_experts_per_tok=2,
        intermediate_size=24, layer_types=["full_attention", "linear_attention"],
        sliding_window=30, full_attn_alpha_factor=3.5, linear_attn_alpha_factor=3.5,
        mlp_alpha_factor=3.5), FEWER, as_minimax_m1),
    "gemma4-experts": Variant(Gemma4TextConfig(**dict(
        golden_models.NO_SPECIAL_TOKENS, vocab_size=VOCAB, hidden_size=32, num_hidden_layers=3,
        max_position_embeddings=1024, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=40, global_head_dim=24, num_global_key_value_heads=1,
        attention_k_eq_v=True, hidden_size_per_layer_input=0, sliding_window=40,
        final_logit_softcapping=9.0, layer_types=["sliding_attention", "full_attention",
                                                  "full_attention"],
        enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=24,
        rope_parameters=dict(
            full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25,
                                rope_theta=1e6),
            sliding_attention=dict(rope_type="default", rope_theta=1e4)))), FEWER),
    "ernie4_5_moe": Variant(attention(
        "Ernie4_5_Moe", num_hidden_layers=3, moe_num_experts=6, moe_k=3, moe_intermediate_size=24,
        moe_num_shared_experts=2, moe_layer_start_index=1), LENGTHS),
    "dots1": Variant(attention(
        "Dots1", num_hidden_layers=3, head_dim=12, n_routed_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=24, n_shared_experts=2, n_group=4, topk_group=2,
        first_k_dense_replace=1, routed_scaling_factor=1.6, norm_topk_prob=True,
        sliding_window=30, max_window_layers=2, attention_bias=True), LENGTHS),
    "solar_open": Variant(attention(
        "SolarOpen", head_dim=12, n_routed_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=24, n_shared_experts=1, routed_scaling_factor=1.3,
        attention_bias=True)),
    "mellum": Variant(attention(
        "Mellum", num_hidden_layers=3, head_dim=12, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=24, sliding_window=30, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"], rope_parameters=dict(
            full_attention=dict(rope_type="yarn", factor=8.0, rope_theta=5e5,
                                original_max_position_embeddings=128),
            sliding_attention=dict(rope_type="default", rope_theta=500.0)))),
    "granitemoe": Variant(attention(
        "GraniteMoe", num_local_experts=5, num_experts_per_tok=2, intermediate_size=24,
        attention_bias=True, **MULTIPLIERS)),
    "granitemoeshared": Variant(attention(
        "GraniteMoeShared", num_local_experts=6, num_experts_per_tok=3, intermediate_size=24,
        shared_intermediate_size=40, **MULTIPLIERS)),
    "mamba": Variant(config("Mamba", state_size=12, time_step_rank=5), LENGTHS),
    "mamba-bias": Variant(config("Mamba", use_bias=True, use_conv_bias=False, conv_kernel=3,
                                 expand=3, tie_word_embeddings=False)),
    "falcon_mamba": Variant(config("FalconMamba", state_size=12, mixer_rms_eps=1e-4)),
    "jamba": Variant(attention(
        "Jamba", num_hidden_layers=4, num_experts=5, num_experts_per_tok=2, attn_layer_period=4,
        attn_layer_offset=2, mamba_d_state=12, mamba_dt_rank=5), LENGTHS),
    "hunyuan_v1_moe": Variant(attention(
        "HunYuanMoEV1", head_dim=12, num_experts=6, moe_topk=[2, 3], intermediate_size=24)),
    "afmoe": Variant(attention(
        "Afmoe", num_hidden_layers=4, head_dim=12, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=24, num_shared_experts=2, num_dense_layers=1, route_scale=1.8,
        global_attn_every_n_layers=3, sliding_window=30, mup_enabled=True), LENGTHS),
    "youtu": Variant(attention(
        "Youtu", num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=24, qk_nope_head_dim=12,
        qk_rope_head_dim=8, v_head_dim=16)),
    "mistral4": Variant(latent(
        "Mistral4", n_group=4, topk_group=2, routed_scaling_factor=1.7, n_shared_experts=2,
        rope_parameters=yarn(original_max_position_embeddings=64, factor=16.0, mscale=1.0,
                             mscale_all_dim=1.0, llama_4_scaling_beta=0.3)), LENGTHS),
    "exaone_moe": Variant(attention(
        "ExaoneMoe", num_hidden_layers=4, head_dim=12, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=24, num_shared_experts=2, n_group=4, topk_group=2,
        sliding_window=30)),
    "zamba2": Variant(zamba(
        num_hidden_layers=6, num_mem_blocks=2, use_shared_attention_adapter=True, adapter_rank=6,
        use_mem_rope=True, mamba_ngroups=2, n_mamba_heads=8, layers_block_type=[
            "linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid", "hybrid"]),
        LENGTHS, zamba_names),
    "zamba2-plain": Variant(zamba(
        num_hidden_layers=3, adapter_rank=5, num_attention_heads=2, num_key_value_heads=1,
        n_mamba_heads=4, mamba_d_conv=3, mamba_expand=3, add_bias_linear=True, mamba_d_state=24,
        intermediate_size=None,
        layers_block_type=["hybrid", "linear_attention", "hybrid"])),
    "jamba-bias": Variant(attention(
        "Jamba", num_experts=1, attn_layer_period=2, attn_layer_offset=0, mamba_proj_bias=True,
        mamba_conv_bias=False, mamba_expand=1, tie_word_embeddings=True)),
}


def spread(n, low, high, r):
    """n values in geometric steps, from weak to strong, varied a little by r [n]."""
    return torch.logspace(math.log10(low), math.log10(high), n) * torch.exp(0.1 * r)


def inverse_softplus(x):
    return x + torch.log(-torch.expm1(-x))


def randomized(name, shape, r, config):
    """Every unit's input has a standard deviation near 1, logits one near 4; the decays of the
    heads or channels of a layer run from one that forgets in a few tokens to one that does not in
    hundreds."""
    last = name.split(".")[-1]
    if last == "A_log":
        if len(shape) == 2:  # Mamba-1: the states of a channel
            return spread(shape[1], 1, 16, r).log()
        # a bounded decay is a sigmoid of the product, which is not to become subnormal
        most = 4 if getattr(config, "kda_safe_gate", False) else 16
        return spread(r.numel(), most / 16, most, r.flatten()).log().view(shape)
    if last == "dt_bias" or name.endswith("dt_proj.bias"):
        return inverse_softplus(spread(len(r), 0.001, 0.2, r).flip(0))
    if last in ("e_score_correction_bias", "expert_bias"):
        return 0.2 * r
    if name.endswith((".bias", "_proj_bias")):
        return 0.2 * r
    if last == "sinks":
        return r
    if config.model_type == "gpt_oss" and len(shape) == 3:  # [n, inputs, outputs]
        return r / shape[1] ** 0.5
    if len(shape) == 1:
        plus_one = config.model_type.startswith(("qwen3_next", "qwen3_5"))
        return (0 if plus_one and "linear_attn" not in name else 1) + 0.1 * r
    if "_adapter_list" in name or (config.model_type == "zamba2" and "_proj" in name and
                                   ".self_attn." in name):
        return 0.5 * r / shape[-1] ** 0.5  # sums of two products
    if "conv" in name and len(shape) == 3 and shape[1] == 1:
        return r / shape[-1] ** 0.5
    if "embed" in name and not config.tie_word_embeddings:
        return r
    if "embed" in name or "lm_head" in name:
        multiplier = getattr(config, "lm_head_multiplier", 1) / getattr(config, "logits_scaling", 1)
        return 4 / multiplier * r / shape[1] ** 0.5
    return r / shape[-1] ** 0.5


@torch.no_grad()
def write(v, path, seed):
    v.config._experts_implementation = "eager"
    make = AutoModelForCausalLM.from_config
    if v.config.model_type == "mistral4":  # which transformers has as a part of others only
        make = Mistral4ForCausalLM._from_config
    model = make(v.config, attn_implementation="eager")
    g = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters())
    tensors |= {k: b for k, b in model.named_buffers() if "bias" in k or "layer_scalar" in k}
    for name, p in sorted(tensors.items()):
        r = torch.randn(p.shape, generator=g)
        p.copy_(v.rounded(name, randomized(name, p.shape, r, v.config)))
    model.tie_weights()
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)


def load(v, path):
    cls = Mistral4ForCausalLM if v.config.model_type == "mistral4" else AutoModelForCausalLM
    return cls.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager").eval()


@torch.no_grad()
def sensitivity(model, prompt):
    """How far the prompt's log-probabilities move when each weight is rounded differently. A router
    that is about to choose another expert shows here."""
    before = golden_models.run(model, prompt, None)
    g = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.mul_(1 + 2 ** -23 * torch.randn(p.shape, generator=g))
    return float((golden_models.run(model, prompt, None) - before).abs().max())


def expect(v, path, prompt):
    model = load(v, path)
    golden_models.refuse_subnormals(model)
    c, margin = golden_models.case(model, None, prompt, GREEDY, min_margin=MIN_MARGIN)
    if margin > MIN_MARGIN and sensitivity(model, prompt + c["greedy"]) > MAX_SENSITIVITY:
        margin = 0.0
    return c, margin


def make(name, v, root):
    golden_models.make(root / name, v.lengths, VOCAB, "whole prompt",
                       lambda path, seed: write(v, path, seed),
                       lambda path, prompt: expect(v, path, prompt), v.finish, MIN_MARGIN)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = ap.parse_args()
    warnings.filterwarnings("ignore")
    sys.modules["fla"] = None  # its kernels need a GPU: transformers' own code instead
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name, v in VARIANTS.items():
        if not args.names or name in args.names:
            make(name, v, args.folder)
    (args.folder / "PROVENANCE-hybrid").write_text(
        "Made by tools/export-golden-hybrid.py tests/golden/models\n"
        f"torch {torch.__version__}, transformers {transformers.__version__}, safetensors "
        f"{safetensors.__version__}; on a CPU, float32\nSeeds are in each expected.json.\n")


if __name__ == "__main__":
    main()
