#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/models: tiny random checkpoints of every supported family and variant, and
transformers' results for them (tests/golden/models/README.md describes the layout).

    pip install torch transformers safetensors
    tools/export-golden.py tests/golden/models [NAME...]

Weights and prompts come from seeds that are written beside the results. A seed is used only if
in every step of every greedy continuation the best token wins by a margin, so that rounding cannot
change the choice.
"""
import argparse
import json
import os
import pathlib

import golden_models
import safetensors
import safetensors.torch
import torch
import transformers
from transformers.models.gemma4 import Gemma4TextConfig
from transformers import (ArceeConfig, AutoModelForCausalLM, Cohere2Config, CohereConfig, CwmConfig,
                          Ernie4_5Config, Exaone4Config, Gemma2Config, Gemma3TextConfig, GemmaConfig,
                          HeliumConfig, HunYuanDenseV1Config, HyperCLOVAXConfig,
                          InternLM3Config, StableLmConfig,
                          VaultGemmaConfig, Glm4Config, GlmConfig, GraniteSWAConfig, NemotronConfig,
                          Starcoder2Config,
                          GPT2Config, GPTBigCodeConfig, GPTNeoXConfig, GraniteConfig,
                          LlamaConfig, Ministral3Config,
                          MinistralConfig, MistralConfig, NanoChatConfig, Olmo2Config, Olmo3Config, OlmoConfig, Phi3Config,
                          PhiConfig,
                          Qwen2Config, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLConfig,
                          Qwen2VLForConditionalGeneration, Qwen3Config, Qwen3VLConfig,
                          Qwen3VLForConditionalGeneration, Qwen3VLMoeConfig,
                          Qwen3VLMoeForConditionalGeneration, SeedOssConfig, SmolLM3Config)

LENGTHS = (1, 7, 64, 65, 200, 513)
GREEDY = 32


def small(**kw):
    return dict(golden_models.NO_SPECIAL_TOKENS, hidden_size=32, intermediate_size=64,
                num_hidden_layers=2, vocab_size=256, num_attention_heads=2, num_key_value_heads=1,
                max_position_embeddings=1024, rms_norm_eps=1e-5, tie_word_embeddings=False) | kw


def medium(**kw):
    return small(hidden_size=48, num_attention_heads=3, num_key_value_heads=3) | kw


def rope(kind, theta=10000.0, **kw):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **kw))


def old_spelling(config):
    """A config as transformers 4 wrote it: rope_theta and rope_scaling, torch_dtype."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
    config["torch_dtype"] = config.pop("dtype")


def without_layer_types(config):
    """A config as Qwen2 wrote it: max_window_layers alone tells which layers have a window."""
    config.pop("layer_types")


def as_mixd(config):
    """Our own format, with one attention mixer a layer."""
    types = config.pop("layer_types")
    config["model_type"] = "mixd"
    config["mixd_layers"] = [
        dict(mixer="attention", qk_norm=True)
        | (dict(sliding_window=config["sliding_window"]) if t == "sliding_attention" else {})
        for t in types]
    for key in ("architectures", "sliding_window", "use_sliding_window", "max_window_layers"):
        config.pop(key)


def as_part(kind):
    """A config of several parts: `kind` with this one as its text_config."""
    def edit(config):
        text = dict(config)
        config.clear()
        config.update(model_type=kind, text_config=text, vision_config=dict(hidden_size=8),
                      eos_token_id=text.get("eos_token_id"))
    return edit


def gemma3_spelling(config):
    """A config as transformers 4 wrote it for Gemma 3."""
    parameters = config.pop("rope_parameters")
    full = dict(parameters["full_attention"])
    config["rope_theta"] = full.pop("rope_theta")
    config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = full
    config["hidden_act"] = "silu"  # without effect
    config["sliding_window_pattern"] = 3
    config.pop("layer_types")
    config.pop("_sliding_window_pattern", None)


def gpt_neox_spelling(config):
    parameters = config.pop("rope_parameters")
    config["rotary_pct"] = parameters["partial_rotary_factor"]
    config["rotary_emb_base"] = parameters["rope_theta"]


def vision(hidden=8):
    """Tensors of the other parts."""
    return {"vision_tower.vision_model.embeddings.patch_embedding.weight": torch.ones(hidden, 3, 2, 2),
            "multi_modal_projector.mm_input_projection_weight": torch.ones(hidden, 32)}


def published_vl(config):
    """A config as Qwen published it: the text's keys beside vision_config."""
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text.update(rope_theta=rope["rope_theta"],
                rope_scaling=dict(type="mrope", mrope_section=rope["mrope_section"]))
    config.update({k: v for k, v in text.items() if k not in ("model_type", "layer_types")})


def turned_experts(name, t):
    """As Qwen 3 VL is published: products with the experts' matrices on the right."""
    return t.transpose(1, 2) if ".experts." in name else t


def unused_keys():
    """Tensors of layers that read the keys of others, and of another part."""
    layers = {f"model.language_model.layers.{i}.self_attn.{k}": torch.ones(8)
              for i in (3, 4, 5) for k in ("k_proj.weight", "v_proj.weight", "k_norm.weight")}
    return layers | {"model.embed_vision.embedding_projection.weight": torch.ones(4, 4)}


GEMMA4_ROPE = dict(
    full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25, rope_theta=1e6),
    sliding_attention=dict(rope_type="default", rope_theta=1e4))


class Variant:
    def __init__(self, config, dtype=torch.float32, edit=None, shard=None, rename=None,
                 by_token=False, extra=None, kind=AutoModelForCausalLM, store=None):
        self.config = config      # of transformers
        self.dtype = dtype        # of the file
        self.edit = edit          # change to config.json after transformers wrote it
        self.shard = shard        # max_shard_size
        self.rename = rename      # (from, to) in tensor names
        self.by_token = by_token  # feed one token a call
        self.extra = extra        # tensors that the file has besides
        self.store = store        # change to a tensor of the file: its name and value
        self.kind = kind          # class of the model


VARIANTS = {
    "llama": Variant(LlamaConfig(**medium(), **rope("default")), edit=old_spelling),
    "llama-llama3": Variant(LlamaConfig(**small(), **rope(
        "llama3", theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=128))),
    "llama-linear": Variant(LlamaConfig(**small(max_position_embeddings=256),
                                        **rope("linear", factor=4.0)), edit=old_spelling),
    "llama-dynamic": Variant(LlamaConfig(**small(max_position_embeddings=80),
                                         **rope("dynamic", factor=8.0)), by_token=True),
    "llama-yarn": Variant(LlamaConfig(**small(), **rope(
        "yarn", factor=8.0, original_max_position_embeddings=128)), edit=old_spelling),
    "llama-tied": Variant(LlamaConfig(**medium(num_key_value_heads=1, tie_word_embeddings=True),
                                      **rope("default"))),
    "llama-bias": Variant(LlamaConfig(**small(attention_bias=True, mlp_bias=True),
                                      **rope("default"))),
    "llama-bf16": Variant(LlamaConfig(**medium(num_key_value_heads=1), **rope("default")),
                          dtype=torch.bfloat16),
    "llama-f16": Variant(LlamaConfig(**medium(num_key_value_heads=1), **rope("default")),
                         dtype=torch.float16),
    "llama-sharded": Variant(LlamaConfig(**small(), **rope("default")), shard="60KB"),
    "mistral": Variant(MistralConfig(**medium(num_attention_heads=4, num_key_value_heads=2,
                                              vocab_size=253, sliding_window=48),
                                     **rope("default"))),
    "qwen2": Variant(Qwen2Config(**small(hidden_size=64, num_attention_heads=4,
                                         num_key_value_heads=2, tie_word_embeddings=True),
                                 **rope("default", theta=1000000.0)), edit=old_spelling),
    "qwen2-window": Variant(Qwen2Config(**small(num_hidden_layers=3, use_sliding_window=True,
                                                sliding_window=40, max_window_layers=1),
                                        **rope("default", theta=1000000.0)),
                            edit=without_layer_types),
    "qwen3": Variant(Qwen3Config(**medium(num_attention_heads=4, num_key_value_heads=2,
                                          head_dim=16), **rope("default", theta=1000000.0))),
    "qwen2_vl": Variant(Qwen2VLConfig(
        text_config=small(num_attention_heads=2, num_key_value_heads=1, use_sliding_window=True,
                          sliding_window=40, max_window_layers=1,
                          **rope("default", theta=1e6, mrope_section=[2, 3, 3])),
        vision_config=dict(depth=1, embed_dim=8, hidden_size=32, num_heads=2), tie_word_embeddings=False),
        kind=Qwen2VLForConditionalGeneration),
    "qwen2_5_vl": Variant(Qwen2_5_VLConfig(
        text_config=small(num_attention_heads=4, tie_word_embeddings=True,
                          **rope("default", theta=1e6, mrope_section=[1, 1, 2])),
        vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, out_hidden_size=32, num_heads=2),
        tie_word_embeddings=True), edit=published_vl, kind=Qwen2_5_VLForConditionalGeneration),
    "qwen3_vl": Variant(Qwen3VLConfig(
        text_config=small(num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                          **rope("default", theta=5e6, mrope_interleaved=True, mrope_section=[4, 2, 2])),
        vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, out_hidden_size=32, num_heads=2,
                           num_position_embeddings=16, deepstack_visual_indexes=[0])),
        kind=Qwen3VLForConditionalGeneration),
    "qwen3_vl_moe": Variant(Qwen3VLMoeConfig(
        text_config=small(num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=128,
                          num_local_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                          **rope("default", theta=5e6, mrope_interleaved=True, mrope_section=[4, 2, 2])),
        vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, out_hidden_size=32, num_heads=2,
                           num_position_embeddings=16, deepstack_visual_indexes=[])),
        kind=Qwen3VLMoeForConditionalGeneration, store=turned_experts),
    "gemma2": Variant(Gemma2Config(**small(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=True, sliding_window=40, query_pre_attn_scalar=24,
        attn_logit_softcapping=3.0, final_logit_softcapping=9.0), **rope("default"))),
    "gemma3": Variant(Gemma3TextConfig(**small(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=True, sliding_window=40, query_pre_attn_scalar=24,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=4.0, rope_theta=1e6),
                             sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    "gemma3-part": Variant(Gemma3TextConfig(**small(
        num_hidden_layers=3, head_dim=16, tie_word_embeddings=True, sliding_window=40,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                             sliding_attention=dict(rope_type="default", rope_theta=1e4))),
        edit=lambda c: (gemma3_spelling(c), as_part("gemma3")(c)),
        rename=("model.", "language_model.model."), extra=vision),
    "gemma4": Variant(Gemma4TextConfig(**small(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True,
        hidden_size_per_layer_input=0, tie_word_embeddings=True, sliding_window=40,
        final_logit_softcapping=9.0,
        layer_types=["sliding_attention", "full_attention", "full_attention"]),
        rope_parameters=GEMMA4_ROPE)),
    "gemma4-shared": Variant(Gemma4TextConfig(**small(
        num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        global_head_dim=24, hidden_size_per_layer_input=12, vocab_size_per_layer_input=256,
        num_kv_shared_layers=3, use_double_wide_mlp=True, tie_word_embeddings=True,
        sliding_window=40, final_logit_softcapping=9.0,
        layer_types=["sliding_attention", "full_attention"] * 3), rope_parameters=GEMMA4_ROPE),
        edit=as_part("gemma4"), rename=("model.", "model.language_model."), extra=unused_keys),
    "gemma4-inputs": Variant(Gemma4TextConfig(**small(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=16,
        global_head_dim=8, hidden_size_per_layer_input=8, vocab_size_per_layer_input=260,
        sliding_window=24, layer_types=["full_attention", "sliding_attention", "full_attention"]),
        rope_parameters=GEMMA4_ROPE)),
    "phi3": Variant(Phi3Config(**small(num_attention_heads=4, num_key_value_heads=2,
                                       sliding_window=48), **rope("default"))),
    "phi3-long": Variant(Phi3Config(**small(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2,
        original_max_position_embeddings=256, tie_word_embeddings=True),
        **rope("longrope", partial_rotary_factor=0.75,
               short_factor=[1.0, 1.05, 1.1, 1.2, 1.4, 1.7],
               long_factor=[1.0, 1.5, 2.2, 3.0, 3.5, 4.0]))),
    "olmo2": Variant(Olmo2Config(**medium(num_attention_heads=4, num_key_value_heads=2),
                                 **rope("default", theta=500000.0)), edit=old_spelling),
    "olmo2-bias": Variant(Olmo2Config(**small(attention_bias=True), **rope("default"))),
    "olmo3": Variant(Olmo3Config(**small(
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, sliding_window=40),
        rope_parameters=dict(
            full_attention=dict(rope_type="yarn", factor=8.0, rope_theta=5e5,
                                original_max_position_embeddings=128),
            sliding_attention=dict(rope_type="default", rope_theta=5e5)))),
    "smollm3": Variant(SmolLM3Config(**small(
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=True, no_rope_layers=[1, 0, 1, 0]),
        **rope("default", theta=2000000.0)), edit=old_spelling),
    "smollm3-window": Variant(SmolLM3Config(**small(
        num_hidden_layers=4, attention_bias=True, mlp_bias=True, use_sliding_window=True,
        sliding_window=40), **rope("default"))),
    "granite": Variant(GraniteConfig(**medium(
        num_attention_heads=4, num_key_value_heads=2, attention_bias=True, mlp_bias=True,
        embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.4,
        logits_scaling=1.3, tie_word_embeddings=True), **rope("default")), edit=old_spelling),
    "ministral": Variant(MinistralConfig(**small(
        head_dim=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, sliding_window=40,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        **rope("default", theta=100000.0))),
    "ministral3": Variant(Ministral3Config(**small(num_attention_heads=4, num_key_value_heads=2,
                                                   head_dim=16), **rope(
        "yarn", theta=1000000.0, factor=16.0, original_max_position_embeddings=64, mscale=1.0,
        mscale_all_dim=1.0, llama_4_scaling_beta=0.3))),
    "mistral3-part": Variant(MistralConfig(**small(head_dim=16, sliding_window=None),
                                           **rope("default", theta=1e9)),
                             edit=as_part("mistral3"),
                             rename=("", "language_model."), extra=vision),
    "cohere2": Variant(Cohere2Config(**small(
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, sliding_window=40,
        tie_word_embeddings=True, logit_scale=0.7), **rope("default"))),
    "cohere2-bias": Variant(Cohere2Config(**small(
        num_hidden_layers=3, attention_bias=True, sliding_window=40, logit_scale=1.5,
        layer_types=["full_attention", "sliding_attention", "full_attention"]),
        **rope("default", theta=50000.0))),
    "gpt2": Variant(GPT2Config(**golden_models.NO_SPECIAL_TOKENS, n_embd=32, n_layer=2, n_head=4,
                               n_positions=600, vocab_size=256)),
    "gpt2-scaled": Variant(GPT2Config(**golden_models.NO_SPECIAL_TOKENS, n_embd=48, n_layer=3,
                                      n_head=4, n_inner=80, n_positions=600, vocab_size=256,
                                      scale_attn_by_inverse_layer_idx=True,
                                      activation_function="gelu"),
                           rename=("transformer.", "")),
    "gpt_bigcode": Variant(GPTBigCodeConfig(
        **golden_models.NO_SPECIAL_TOKENS, n_embd=32, n_layer=2, n_head=4, n_positions=600,
        vocab_size=128)),
    "gpt_bigcode-heads": Variant(GPTBigCodeConfig(
        **golden_models.NO_SPECIAL_TOKENS, n_embd=32, n_layer=2, n_head=2, n_inner=48,
        n_positions=600, vocab_size=128, multi_query=False, activation_function="gelu",
        tie_word_embeddings=False)),
    "olmo": Variant(OlmoConfig(**small(
        num_attention_heads=4, num_key_value_heads=2, vocab_size=128), **rope("default"))),
    "olmo-bias": Variant(OlmoConfig(**small(
        vocab_size=128, attention_bias=True, tie_word_embeddings=True),
        **rope("linear", factor=4.0))),
    "nanochat": Variant(NanoChatConfig(**small(
        num_attention_heads=4, num_key_value_heads=2, vocab_size=128,
        final_logit_softcapping=6.0), **rope("default"))),
    "nanochat-bias": Variant(NanoChatConfig(**small(
        vocab_size=128, attention_bias=True, final_logit_softcapping=None),
        **rope("default", theta=500.0))),
    "phi": Variant(PhiConfig(**small(
        num_attention_heads=2, num_key_value_heads=2, vocab_size=128),
        **rope("default", partial_rotary_factor=0.5))),
    "phi-heads": Variant(PhiConfig(**small(
        num_attention_heads=4, num_key_value_heads=2, vocab_size=128, hidden_act="gelu"),
        **rope("linear", factor=4.0, partial_rotary_factor=0.75))),
    "gpt_neox": Variant(GPTNeoXConfig(**small(num_attention_heads=4, hidden_size=64), **rope(
        "default", partial_rotary_factor=0.25)), edit=gpt_neox_spelling),
    "gpt_neox-sequential": Variant(GPTNeoXConfig(**small(
        num_attention_heads=2, use_parallel_residual=False, attention_bias=False,
        hidden_act="gelu_new"), **rope("default", partial_rotary_factor=0.5))),
    "granite_swa": Variant(GraniteSWAConfig(**small(
        num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, sliding_window=40,
        layer_rope_theta=[0, 10000.0, 10000.0, 500.0, 0], embedding_multiplier=3.0,
        residual_multiplier=0.6, attention_multiplier=0.4, logits_scaling=1.3,
        tie_word_embeddings=True), **rope("default"))),
    "arcee": Variant(ArceeConfig(**small(num_attention_heads=4, num_key_value_heads=2,
                                         mlp_bias=True), **rope("default"))),
    "seed_oss": Variant(SeedOssConfig(**small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, attention_out_bias=True,
        attention_dropout=0.0, residual_dropout=0.0), **rope("default", theta=1e7))),
    "cwm": Variant(CwmConfig(**small(
        num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        sliding_window=40, bos_token_id=1, eos_token_id=2), **rope("llama3", theta=1e6, factor=16.0, low_freq_factor=1.0,
                                   high_freq_factor=4.0, original_max_position_embeddings=128)),
        edit=lambda c: [c.pop(k) for k in ("layer_types", "bos_token_id", "eos_token_id")]),
    "cohere": Variant(CohereConfig(**small(
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, logit_scale=0.7,
        attention_bias=True), **rope("default"))),
    "gemma": Variant(GemmaConfig(**small(
        num_attention_heads=4, num_key_value_heads=1, head_dim=12, tie_word_embeddings=True),
        **rope("default")), edit=lambda c: c.update(hidden_act="gelu", hidden_activation=None)),
    "glm": Variant(GlmConfig(**small(num_attention_heads=4, num_key_value_heads=2, head_dim=12),
                             **rope("default", partial_rotary_factor=0.5)),
                   edit=lambda c: c.pop("eos_token_id")),
    "glm4": Variant(Glm4Config(**small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, attention_bias=False),
        **rope("default", partial_rotary_factor=0.5)), edit=lambda c: c.pop("eos_token_id")),
    "ernie4_5": Variant(Ernie4_5Config(**small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=12, use_bias=True,
        tie_word_embeddings=True), **rope("default", theta=500000.0))),
    "exaone4": Variant(Exaone4Config(**small(
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=12,
        sliding_window=40, sliding_window_pattern=4), **rope("default")),
        edit=lambda c: c.update(sliding_window_pattern="LLLG")),
    "exaone4-full": Variant(Exaone4Config(**small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=12, sliding_window=None,
        tie_word_embeddings=True, layer_types=["full_attention"] * 2), **rope("default"))),
    "starcoder2": Variant(Starcoder2Config(**small(
        num_attention_heads=4, num_key_value_heads=2, sliding_window=40,
        tie_word_embeddings=True), **rope("default"))),
    "nemotron": Variant(NemotronConfig(**small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=12, mlp_bias=True),
        **rope("default", partial_rotary_factor=0.5))),
    "hunyuan_v1_dense": Variant(HunYuanDenseV1Config(**small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=12, attention_bias=True),
        **rope("dynamic", alpha=50.0, factor=1.0))),
    "stablelm": Variant(StableLmConfig(**small(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, use_qkv_bias=True),
        **rope("default", partial_rotary_factor=0.25))),
    "helium": Variant(HeliumConfig(**small(
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, mlp_bias=True),
        **rope("default"))),
    "internlm3": Variant(InternLM3Config(**small(
        num_attention_heads=4, num_key_value_heads=2, head_dim=12, attention_bias=True,
        mlp_bias=True), **rope("linear", factor=4.0))),
    "hyperclovax": Variant(HyperCLOVAXConfig(**medium(
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, embedding_multiplier=3.0,
        residual_multiplier=0.6, attention_multiplier=0.4, logits_scaling=0.8),
        **rope("default"))),
    "vaultgemma": Variant(VaultGemmaConfig(**small(
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        tie_word_embeddings=True, sliding_window=40, query_pre_attn_scalar=24,
        attn_logit_softcapping=3.0, final_logit_softcapping=9.0), **rope("default"))),
    "mixd-attention": Variant(Qwen3Config(**small(
        head_dim=16, use_sliding_window=True, sliding_window=40, max_window_layers=1),
        **rope("default")), edit=as_mixd, rename=(".self_attn.", ".mixer.")),
}


@torch.no_grad()
def randomize(model, seed):
    """Every unit's input has a standard deviation near 1, logits one near 2.5."""
    g = torch.Generator().manual_seed(seed)
    plus_one = model.config.model_type in ("gemma", "gemma2", "gemma3_text", "nemotron",
                                               "vaultgemma")
    embeddings = ("embed_tokens", "embed_in", "wte", "wpe")
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if name.endswith(".bias"):
            p.copy_(0.2 * r)
        elif name.endswith(".sinks"):
            p.copy_(r)
        elif p.dim() == 1:
            p.copy_((0.0 if plus_one else 1.0) + 0.1 * r)
        elif any(e in name for e in embeddings) and not model.config.tie_word_embeddings:
            p.copy_(r)
        elif any(e in name for e in embeddings + ("lm_head", "embed_out")):
            p.copy_(2.5 * r / p.shape[1] ** 0.5)
        elif model.config.model_type == "gpt2":  # [inputs, outputs]
            p.copy_(r / p.shape[0] ** 0.5)
        else:
            gain = 1.5 if "q_proj" in name or "k_proj" in name else 1.0
            p.copy_(gain * r / p.shape[-1 if ".experts." in name else 1] ** 0.5)
    for name, p in model.named_buffers():
        if name.endswith("layer_scalar"):
            p.copy_(1 + 0.2 * torch.randn(p.shape, generator=g))
    model.tie_weights()


def case(v, path, prompt):
    # A fresh model for each prompt: dynamic rope keeps state in the module.
    model = v.kind.from_pretrained(path, dtype=torch.float32,
                                   attn_implementation="eager")
    model.eval()
    golden_models.refuse_subnormals(model)
    cache = transformers.DynamicCache(config=model.config)
    return golden_models.case(model, cache, prompt, GREEDY, v.by_token)


def save(model, v, path):
    model.to(v.dtype).save_pretrained(path, **({"max_shard_size": v.shard} if v.shard else {}))
    (path / "generation_config.json").unlink(missing_ok=True)


def finish(v, path):
    """Writes the parts of the checkpoint that transformers would not write, or not read."""
    config = json.loads((path / "config.json").read_text())
    if v.edit:
        v.edit(config)
        (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if v.rename or v.store:
        tensors = safetensors.torch.load_file(path / "model.safetensors")
        if v.store:
            tensors = {k: v.store(k, t).contiguous() for k, t in tensors.items()}
        if v.rename:
            tensors = {k.replace(*v.rename, 1): t for k, t in tensors.items()}
        tensors |= v.extra() if v.extra else {}
        safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def make(name, v, root):
    # Renamed or foreign checkpoints are computed before they are finished.
    readable = not v.rename and not v.store

    def write(path, seed):
        start = getattr(v.kind, "from_config", None) or v.kind._from_config
        model = start(v.config, attn_implementation="eager")
        randomize(model, seed)
        save(model, v, path)
        if readable:
            finish(v, path)

    golden_models.make(root / name, LENGTHS, v.config.get_text_config().vocab_size,
                       "token by token" if v.by_token else "whole prompt", write,
                       lambda path, prompt: case(v, path, prompt),
                       lambda path: None if readable else finish(v, path))


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = ap.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    for name, v in VARIANTS.items():
        if not args.names or name in args.names:
            make(name, v, args.folder)
    (args.folder / "PROVENANCE").write_text(
        "Made by tools/export-golden.py tests/golden/models\n"
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"safetensors {safetensors.__version__}; on a CPU, float32, eager attention\n"
        "Seeds are in each expected.json.\n")


if __name__ == "__main__":
    main()
