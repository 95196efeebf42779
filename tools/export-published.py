#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/published: for a published checkpoint of each family its config.json, as far as
mixd reads it, and the names, shapes and type of its tensors; no weights.

    pip install torch transformers einops
    pip install --no-deps flash-linear-attention fla-core triton
    tools/export-published.py tests/golden/published [NAME...]

Names and shapes are those of transformers' model of that configuration, on the meta device, with the
prefixes and buffers that the published files have. Tensors that differ in the number of a layer alone
stand once, with {} for it, in layers 0 to n - 1 or in those of the list "at"; those of m experts once,
with [] for its number.
"""
import argparse
import json
import pathlib
import re

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.mistral4 import Mistral4ForCausalLM

FACTORS = dict(short_factor=[1.0] * 48, long_factor=[1.5] * 48)
LOCAL = dict(rope_theta=1000000.0, rope_local_base_freq=10000.0, sliding_window_pattern=6)


GEMMA3 = ((r"^model\.language_model\.", "language_model.model."),
          (r"^model\.vision_tower\.", "vision_tower.vision_model."),
          (r"^model\.multi_modal_projector\.", "multi_modal_projector."))
QWEN = ("gate_proj", "up_proj", "down_proj")


CONFIRMED = """
Confirmed by files of the checkpoints themselves, as public repositories hold them (2026-11):
- medgemma-27b-it (its names are gemma-3-4b-it's), Devstral-Small-2507: config.json and the names of
  model.safetensors.index.json are the same as here;
- Mixtral-8x7B-v0.1, Phi-3.5-mini-instruct, pythia-160m: names are those of the index files of
  WizardLM-2-8x22B, of a merge of Phi-3 minis and of a reward model from Pythia 1.4B;
- Qwen3.5-35B-A3B: a pruned 25B has the same names in its index, but the experts one by one and no
  vision or prediction tensors (mixd --check takes it, and all that are named above, with the
  config.json that is published with them);
- Qwen3-Embedding-8B: sizes, the names without "model." and that 398 tensors have no lm_head, as threads
  of vllm-project/vllm-metal (730, 736) quote them; its row here was written by hand, not by transformers;
- GLM-4.5-Air, SmolLM3-3B, NVIDIA-Nemotron-Nano-9B-v2, Falcon-H1-0.5B-Base, LFM2-8B-A1B, Jamba-v0.1:
  the configuration, or its sizes, as other projects' logs and tests quote it.
The others are not confirmed.
"""


class Published:
    def __init__(self, config, dtype="BF16", rename=(), drop=(), extra=None, experts=None,
                 mxfp4=False, reads=None, parts=None):
        self.parts = parts or {}  # end of a name: those of the tensors whose rows it holds,
        # more than once that which has more
        self.config = config  # config.json
        self.experts = experts  # names of an expert's gate, up and down, if each has its own tensors
        self.dtype = dtype
        self.rename = rename  # (pattern, replacement), the first that fits
        self.drop = drop      # patterns of tensors that the files do not have
        self.extra = extra or {}
        self.reads = reads or {}  # keys for transformers
        self.mxfp4 = mxfp4    # experts are in codes and scales


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
        rename=GEMMA3),
    "medgemma-27b-it": Published(dict(
        model_type="gemma3", mm_tokens_per_image=256,
        text_config=dict(attention_bias=False, attn_logit_softcapping=None,
                         final_logit_softcapping=None, head_dim=128,
                         hidden_activation='gelu_pytorch_tanh', hidden_size=5376,
                         intermediate_size=21504, max_position_embeddings=131072,
                         model_type='gemma3_text', num_attention_heads=32, num_hidden_layers=62,
                         num_key_value_heads=16, query_pre_attn_scalar=168, rms_norm_eps=1e-06,
                         rope_local_base_freq=10000,
                         rope_scaling={'factor': 8.0, 'rope_type': 'linear'}, rope_theta=1000000,
                         sliding_window=1024, torch_dtype='bfloat16', vocab_size=262208,
                         layer_types=((["sliding_attention"] * 5 + ["full_attention"]) * 11)[:62]),
        vision_config=dict(hidden_act='gelu_pytorch_tanh', hidden_size=1152, image_size=896,
                           intermediate_size=4304, layer_norm_eps=1e-06,
                           model_type='siglip_vision_model', num_attention_heads=16,
                           num_channels=3, num_hidden_layers=27, patch_size=14,
                           torch_dtype='bfloat16', vision_use_head=False)), rename=GEMMA3),
    "Devstral-Small-2507": Published(dict(
        head_dim=128, hidden_act='silu', hidden_size=5120, intermediate_size=32768,
        max_position_embeddings=131072, model_type='mistral', num_attention_heads=32,
        num_hidden_layers=40, num_key_value_heads=8, rms_norm_eps=1e-05, rope_theta=1000000000.0,
        sliding_window=None, tie_word_embeddings=False, vocab_size=131072)),
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
    "OLMo-7B-hf": Published(dict(
        model_type="olmo", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, vocab_size=50304, hidden_act="silu",
        max_position_embeddings=2048, clip_qkv=None, rope_scaling=None, rope_theta=10000.0,
        tie_word_embeddings=False), dtype="F32"),
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
    "Olmo-Hybrid-7B": Published(dict(
        model_type="olmo_hybrid", hidden_size=3840, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=30, num_key_value_heads=30, vocab_size=100352, hidden_act="silu",
        max_position_embeddings=65536, rms_norm_eps=1e-6, attention_bias=False,
        rope_parameters=dict(rope_theta=None, rope_type="default"),
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 8, linear_num_key_heads=30,
        linear_num_value_heads=30, linear_key_head_dim=96, linear_value_head_dim=192,
        linear_conv_kernel_dim=4, linear_allow_neg_eigval=True, tie_word_embeddings=False),
        parts={"conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight",
                                 "v_conv1d.weight")}),
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
    "starcoderbase-1b": Published(dict(
        model_type="gpt_bigcode", n_embd=2048, n_layer=24, n_head=16, n_inner=8192,
        n_positions=8192, vocab_size=49152, activation_function="gelu_pytorch_tanh",
        layer_norm_epsilon=1e-5, multi_query=True, scale_attn_weights=True), dtype="F32"),
    "phi-2": Published(dict(
        model_type="phi", hidden_size=2560, intermediate_size=10240, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, vocab_size=51200, hidden_act="gelu_new",
        max_position_embeddings=2048, layer_norm_eps=1e-5, partial_rotary_factor=0.4,
        rope_theta=10000.0, rope_scaling=None, qk_layernorm=False, tie_word_embeddings=False),
        dtype="F16"),
    "nanochat-d32": Published(dict(
        model_type="nanochat", hidden_size=2048, intermediate_size=8192, num_hidden_layers=32,
        num_attention_heads=16, num_key_value_heads=16, vocab_size=65536, hidden_act="relu2",
        max_position_embeddings=2048, rms_norm_eps=1e-6, rope_theta=10000.0,
        final_logit_softcapping=15.0, attention_bias=False, tie_word_embeddings=False)),
    "pythia-160m": Published(dict(
        model_type="gpt_neox", hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
        num_attention_heads=12, vocab_size=50304, hidden_act="gelu", layer_norm_eps=1e-5,
        max_position_embeddings=2048, rotary_pct=0.25, rotary_emb_base=10000,
        use_parallel_residual=True, tie_word_embeddings=False), dtype="F16",
        rename=((r"^lm_head\.", "embed_out."),),
        extra={"gpt_neox.layers.{}.attention.masked_bias": [],
               "gpt_neox.layers.{}.attention.rotary_emb.inv_freq": [8]}),
    "Qwen3-Embedding-8B": Published(dict(
        model_type="qwen3", hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151665,
        hidden_act="silu", max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1000000.0,
        rope_scaling=None, use_sliding_window=False, sliding_window=None, max_window_layers=36,
        attention_bias=False, tie_word_embeddings=False),
        rename=((r"^model\.", ""),), drop=(r"^lm_head\.",)),
    "Seed-OSS-36B-Instruct": Published(dict(
        model_type="seed_oss", hidden_size=5120, intermediate_size=27648, num_hidden_layers=64,
        num_attention_heads=80, num_key_value_heads=8, head_dim=128, vocab_size=155136,
        hidden_act="silu", max_position_embeddings=524288, rms_norm_eps=1e-6,
        rope_scaling=dict(rope_type="default"), rope_theta=10000000.0, attention_bias=True,
        attention_out_bias=False, mlp_bias=False, tie_word_embeddings=False)),
    "Mixtral-8x7B-v0.1": Published(dict(
        model_type="mixtral", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=32000, hidden_act="silu",
        max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=1000000.0,
        sliding_window=None, num_local_experts=8, num_experts_per_tok=2,
        tie_word_embeddings=False), experts=("w1", "w3", "w2"),
        rename=((r"\.mlp\.gate\.", ".block_sparse_moe.gate."),
                (r"\.mlp\.experts\.", ".block_sparse_moe.experts."))),
    "Qwen1.5-MoE-A2.7B": Published(dict(
        model_type="qwen2_moe", hidden_size=2048, intermediate_size=5632, num_hidden_layers=24,
        num_attention_heads=16, num_key_value_heads=16, vocab_size=151936, hidden_act="silu",
        max_position_embeddings=8192, rms_norm_eps=1e-6, rope_theta=1000000.0,
        use_sliding_window=False, sliding_window=32768, max_window_layers=21, num_experts=60,
        num_experts_per_tok=4, decoder_sparse_step=1, moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632, norm_topk_prob=False, tie_word_embeddings=False),
        experts=QWEN),
    "Qwen3-30B-A3B": Published(dict(
        model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, head_dim=128, vocab_size=151936,
        hidden_act="silu", max_position_embeddings=40960, rms_norm_eps=1e-6,
        rope_theta=1000000.0, rope_scaling=None, use_sliding_window=False, sliding_window=None,
        max_window_layers=48, num_experts=128, num_experts_per_tok=8, decoder_sparse_step=1,
        mlp_only_layers=[], moe_intermediate_size=768, norm_topk_prob=True, attention_bias=False,
        tie_word_embeddings=False), experts=QWEN),
    "GLM-4.5-Air": Published(dict(
        model_type="glm4_moe", hidden_size=4096, intermediate_size=10944, num_hidden_layers=46,
        num_attention_heads=96, num_key_value_heads=8, head_dim=128, vocab_size=151552,
        hidden_act="silu", max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=1000000, rope_scaling=None, partial_rotary_factor=0.5, use_qk_norm=False,
        attention_bias=True, n_routed_experts=128, num_experts_per_tok=8, n_shared_experts=1,
        moe_intermediate_size=1408, first_k_dense_replace=1, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.0, num_nextn_predict_layers=1,
        tie_word_embeddings=False), experts=QWEN,
        extra={"model.layers.46.eh_proj.weight": [4096, 8192],
               "model.layers.46.enorm.weight": [4096],
               "model.layers.46.mlp.experts.0.up_proj.weight": [1408, 4096]}),
    "DeepSeek-V2-Lite": Published(dict(
        model_type="deepseek_v2", hidden_size=2048, intermediate_size=10944, num_hidden_layers=27,
        num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, vocab_size=102400,
        hidden_act="silu", max_position_embeddings=163840, rms_norm_eps=1e-6, rope_theta=10000,
        rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=0.707,
                          mscale_all_dim=0.707, original_max_position_embeddings=4096),
        n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2, n_group=1, topk_group=1,
        topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, moe_layer_freq=1,
        routed_scaling_factor=1.0, moe_intermediate_size=1408, first_k_dense_replace=1,
        attention_bias=False, tie_word_embeddings=False), experts=QWEN),
    "DeepSeek-V3-bf16": Published(dict(
        model_type="deepseek_v3", hidden_size=7168, intermediate_size=18432, num_hidden_layers=61,
        num_attention_heads=128, num_key_value_heads=128, q_lora_rank=1536, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, vocab_size=129280,
        hidden_act="silu", max_position_embeddings=163840, rms_norm_eps=1e-6, rope_theta=10000,
        rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=1.0,
                          mscale_all_dim=1.0, original_max_position_embeddings=4096),
        n_routed_experts=256, num_experts_per_tok=8, n_shared_experts=1, n_group=8, topk_group=4,
        topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, moe_layer_freq=1,
        routed_scaling_factor=2.5, moe_intermediate_size=2048, first_k_dense_replace=3,
        num_nextn_predict_layers=1, attention_bias=False, tie_word_embeddings=False),
        experts=QWEN, extra={"model.layers.61.eh_proj.weight": [7168, 14336],
                             "model.layers.61.shared_head.norm.weight": [7168],
                             "model.layers.61.mlp.experts.0.up_proj.weight": [2048, 7168]}),
    "GLM-4.7-Flash": Published(dict(
        model_type="glm4_moe_lite", hidden_size=2048, intermediate_size=10240,
        num_hidden_layers=47, num_attention_heads=20, num_key_value_heads=20, q_lora_rank=768,
        kv_lora_rank=512, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256,
        vocab_size=154880, hidden_act="silu", max_position_embeddings=202752, rms_norm_eps=1e-5,
        rope_theta=1000000, rope_scaling=None, partial_rotary_factor=1.0, n_routed_experts=64,
        num_experts_per_tok=4, n_shared_experts=1, n_group=1, topk_group=1, topk_method="noaux_tc",
        norm_topk_prob=True, routed_scaling_factor=1.8, moe_intermediate_size=1536,
        first_k_dense_replace=1, num_nextn_predict_layers=1, attention_bias=False,
        tie_word_embeddings=False), experts=QWEN,
        extra={"model.layers.47.eh_proj.weight": [2048, 4096]}),
    "Kimi-Linear-48B-A3B-Instruct": Published(dict(
        model_type="kimi_linear", hidden_size=2304, intermediate_size=9216, num_hidden_layers=27,
        num_attention_heads=32, num_key_value_heads=32, head_dim=72, q_lora_rank=None,
        kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        vocab_size=163840, hidden_act="silu", model_max_length=1048576, rms_norm_eps=1e-5,
        rope_theta=10000.0, rope_scaling=None, mla_use_nope=True, num_experts=256,
        num_experts_per_token=8, num_shared_experts=1, num_expert_group=1, topk_group=1,
        use_grouped_topk=True, moe_router_activation_func="sigmoid", moe_renormalize=True,
        moe_layer_freq=1, routed_scaling_factor=2.446, moe_intermediate_size=1024,
        first_k_dense_replace=1, num_nextn_predict_layers=0, linear_attn_config=dict(
            full_attn_layers=[4, 8, 12, 16, 20, 24, 27], head_dim=128, num_heads=32,
            kda_layers=[i for i in range(1, 27) if i % 4], short_conv_kernel_size=4),
        tie_word_embeddings=False), experts=("w1", "w3", "w2"),
        rename=((r"\.mlp\.(gate|experts|shared_experts)\.", r".block_sparse_moe.\1."),
                (r"\.forget_gate\.", ".")),
        parts={"conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")}),
    "Ling-mini-2.0": Published(dict(
        model_type="bailing_moe", hidden_size=2048, intermediate_size=5120, num_hidden_layers=20,
        num_attention_heads=16, num_key_value_heads=4, head_dim=128, vocab_size=157184,
        hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-6, rope_theta=600000.0,
        rope_scaling=None, partial_rotary_factor=0.5, use_qk_norm=True, use_qkv_bias=False,
        use_bias=False, num_experts=256, num_experts_per_tok=8, num_shared_experts=1, n_group=8,
        topk_group=4, norm_topk_prob=True, routed_scaling_factor=2.5, score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_intermediate_size=512, first_k_dense_replace=1,
        num_nextn_predict_layers=0, tie_word_embeddings=False), experts=QWEN,
        reads=dict(model_type="glm4_moe", n_routed_experts=256, n_shared_experts=1),
        drop=(r"\.self_attn\.[qkv]_proj\.",),
        rename=((r"\.embed_tokens\.", ".word_embeddings."),
                (r"\.self_attn\.o_proj\.", ".attention.dense."),
                (r"\.self_attn\.q_norm\.", ".attention.query_layernorm."),
                (r"\.self_attn\.k_norm\.", ".attention.key_layernorm."),
                (r"\.e_score_correction_bias$", ".expert_bias")),
        extra={"model.layers.{}.attention.query_key_value.weight": [3072, 2048]}),
    "Ling-3.0-Flash": Published(dict(
        model_type="bailing_hybrid", hidden_size=2560, intermediate_size=6144, num_hidden_layers=42,
        num_attention_heads=32, num_key_value_heads=32, head_dim=128, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, vocab_size=157184,
        hidden_act="silu", max_position_embeddings=262144, rms_norm_eps=1e-6, rope_theta=6000000.0,
        num_experts=512, num_experts_per_tok=8, num_shared_experts=1, n_group=8, topk_group=4,
        norm_topk_prob=True, routed_scaling_factor=2.5, moe_intermediate_size=768,
        first_k_dense_replace=2, num_nextn_predict_layers=1, layer_group_size=6,
        short_conv_kernel_size=4, kda_safe_gate=True, kda_lower_bound=-5.0,
        attention_bias=False, tie_word_embeddings=False), experts=QWEN,
        rename=((r"\.embed_tokens\.", ".word_embeddings."),
                (r"\.self_attn\.forget_gate\.", ".attention."),
                (r"\.self_attn\.o_proj\.", ".attention.dense."), (r"\.self_attn\.", ".attention."),
                (r"\.e_score_correction_bias$", ".expert_bias")),
        parts={"conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")},
        extra={"model.layers.42.eh_proj.weight": [2560, 5120]}),
    "granite-4.0-h-tiny": Published(dict(
        model_type="granitemoehybrid", hidden_size=1536, intermediate_size=512,
        shared_intermediate_size=1024, num_hidden_layers=40, num_attention_heads=12,
        num_key_value_heads=4, vocab_size=100352, hidden_act="silu",
        max_position_embeddings=131072, rms_norm_eps=1e-5, attention_bias=False,
        attention_multiplier=0.0078125, embedding_multiplier=12, logits_scaling=6,
        residual_multiplier=0.22, position_embedding_type="nope", rope_scaling=None,
        rope_theta=10000, num_local_experts=64, num_experts_per_tok=6, mamba_n_heads=48,
        mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2,
        mamba_conv_bias=True, mamba_proj_bias=False, mamba_chunk_size=256,
        layer_types=((["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4),
        tie_word_embeddings=True), rename=(
            (r"\.block_sparse_moe\.(gate|router)\.weight$",
             ".block_sparse_moe.router.layer.weight"),
            (r"\.experts\.gate_up_proj$", ".input_linear.weight"),
            (r"\.experts\.down_proj$", ".output_linear.weight"))),
    "Falcon-H1-0.5B-Base": Published(dict(
        model_type="falcon_h1", hidden_size=1024, intermediate_size=2048, num_hidden_layers=36,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, vocab_size=32784,
        hidden_act="silu", max_position_embeddings=16384, rms_norm_eps=1e-5,
        rope_theta=100000000000.0, rope_scaling=None, attention_bias=False, mlp_bias=False,
        projectors_bias=False, mamba_d_ssm=1536, mamba_n_heads=24, mamba_d_head=64,
        mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2,
        mamba_conv_bias=True, mamba_proj_bias=False, mamba_rms_norm=False,
        mamba_norm_before_gate=False, key_multiplier=0.390625, tie_word_embeddings=False)),
    "Bamba-9B": Published(dict(
        model_type="bamba", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, hidden_act="silu",
        max_position_embeddings=262144, rms_norm_eps=1e-5, attn_layer_indices=[9, 18, 27],
        mamba_n_heads=128, mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1, mamba_d_conv=4,
        mamba_expand=2, mamba_conv_bias=True, mamba_proj_bias=False,
        tie_word_embeddings=False)),
    "NVIDIA-Nemotron-Nano-9B-v2": Published(dict(
        model_type="nemotron_h", hidden_size=4480, intermediate_size=15680,
        num_hidden_layers=56, hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*"
        "-M-MM-M-M-M-M-M-", num_attention_heads=40, num_key_value_heads=8, head_dim=128,
        vocab_size=131072, mlp_hidden_act="relu2", mlp_bias=False, attention_bias=False,
        mamba_num_heads=128, mamba_head_dim=80, ssm_state_size=128, n_groups=8, conv_kernel=4,
        expand=2, use_bias=False, use_conv_bias=True, time_step_limit=[0.0, float("inf")],
        layer_norm_epsilon=1e-5, max_position_embeddings=131072, tie_word_embeddings=False),
        rename=((r"^model\.", "backbone."),)),
    "Qwen3-Next-80B-A3B-Instruct": Published(dict(
        model_type="qwen3_next", hidden_size=2048, intermediate_size=5120, num_hidden_layers=48,
        num_attention_heads=16, num_key_value_heads=2, head_dim=256, vocab_size=151936,
        hidden_act="silu", max_position_embeddings=262144, rms_norm_eps=1e-6,
        rope_theta=10000000, rope_scaling=None, partial_rotary_factor=0.25,
        full_attention_interval=4, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4,
        num_experts=512, num_experts_per_tok=10, decoder_sparse_step=1, mlp_only_layers=[],
        moe_intermediate_size=512, shared_expert_intermediate_size=512, norm_topk_prob=True,
        attention_bias=False, tie_word_embeddings=False), experts=QWEN,
        extra={"mtp.fc.weight": [2048, 4096], "mtp.norm.weight": [2048]}),
    "LFM2-1.2B": Published(dict(
        model_type="lfm2", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=65536, max_position_embeddings=128000, norm_eps=1e-5,
        rope_theta=1000000.0, conv_L_cache=3, conv_bias=False, block_ff_dim=12288,
        block_multiple_of=256, block_ffn_dim_multiplier=1.0, block_auto_adjust_ff_dim=True,
        full_attn_idxs=[2, 5, 8, 10, 12, 14], tie_embedding=True)),
    "LFM2-8B-A1B": Published(dict(
        model_type="lfm2_moe", hidden_size=2048, intermediate_size=7168,
        moe_intermediate_size=1792, num_hidden_layers=24, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=65536, max_position_embeddings=128000, norm_eps=1e-5,
        rope_theta=1000000.0, conv_L_cache=3, conv_bias=False, num_dense_layers=2,
        num_experts=32, num_experts_per_tok=4, norm_topk_prob=True, use_expert_bias=True,
        routed_scaling_factor=1.0, tie_word_embeddings=True, layer_types=[
            "full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)]),
        experts=("w1", "w3", "w2")),
    "Jamba-v0.1": Published(dict(
        model_type="jamba", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=65536, hidden_act="silu",
        max_position_embeddings=262144, rms_norm_eps=1e-6, attn_layer_period=8,
        attn_layer_offset=4, expert_layer_period=2, expert_layer_offset=1, num_experts=16,
        num_experts_per_tok=2, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
        mamba_dt_rank=256, mamba_conv_bias=True, mamba_proj_bias=False, sliding_window=None,
        tie_word_embeddings=False), experts=QWEN),
    "mamba-130m-hf": Published(dict(
        model_type="mamba", hidden_size=768, num_hidden_layers=24, state_size=16, expand=2,
        conv_kernel=4, time_step_rank=48, use_bias=False, use_conv_bias=True, vocab_size=50280,
        layer_norm_epsilon=1e-5, hidden_act="silu"), dtype="F32"),
    "falcon-mamba-7b": Published(dict(
        model_type="falcon_mamba", hidden_size=4096, num_hidden_layers=64, state_size=16,
        expand=2, conv_kernel=4, time_step_rank=256, use_bias=False, use_conv_bias=True,
        vocab_size=65024, layer_norm_epsilon=1e-5, hidden_act="silu",
        tie_word_embeddings=False)),
    "Qwen3.5-35B-A3B": Published(dict(
        model_type="qwen3_5_moe", tie_word_embeddings=False,
        text_config=dict(model_type="qwen3_5_moe_text", hidden_size=2048, num_hidden_layers=40,
                         num_attention_heads=16, num_key_value_heads=2, head_dim=256,
                         vocab_size=248320, num_experts=256, num_experts_per_tok=8,
                         moe_intermediate_size=512, shared_expert_intermediate_size=512,
                         max_position_embeddings=262144, rms_norm_eps=1e-6),
        vision_config=dict(model_type="qwen3_5_moe_vision")),
        extra={"mtp.fc.weight": [2048, 4096], "mtp.norm.weight": [2048]}),
    "LFM3-1.7B": Published(dict(
        model_type="lfm3", hidden_size=2048, intermediate_size=7680, num_hidden_layers=24,
        num_attention_heads=16, num_key_value_heads=4, head_dim=128, vocab_size=128000,
        max_position_embeddings=128000, norm_eps=1e-5, conv_L_cache=7, conv_bias=False,
        sliding_window=256, use_sandwich_norm=True, use_attention_gate=True,
        tie_word_embeddings=True, rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=10000.0),
            full_attention=dict(rope_type="proportional", rope_theta=1000000.0,
                                partial_rotary_factor=0.5))),
        rename=((r"\.self_attn\.g_proj\.", ".self_attn.gate_proj."),)),
    "gpt-oss-20b": Published(dict(
        model_type="gpt_oss", hidden_size=2880, intermediate_size=2880, num_hidden_layers=24,
        num_attention_heads=64, num_key_value_heads=8, head_dim=64, vocab_size=201088,
        hidden_act="silu", max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=150000,
        rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0,
                          original_max_position_embeddings=4096, truncate=False),
        layer_types=["sliding_attention", "full_attention"] * 12, sliding_window=128,
        attention_bias=True, num_local_experts=32, num_experts_per_tok=4, experts_per_token=4,
        initial_context_length=4096, swiglu_limit=7.0, tie_word_embeddings=False,
        eos_token_id=200002, quantization_config=dict(
            quant_method="mxfp4", modules_to_not_convert=[
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                "lm_head"])), mxfp4=True),
    "MiniMax-Text-01": Published(dict(
        model_type="minimax_text_01", hidden_size=6144, intermediate_size=9216,
        num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8, head_dim=128,
        vocab_size=200064, hidden_act="silu", max_position_embeddings=10240000, rms_norm_eps=1e-5,
        rope_theta=10000000, rotary_dim=64, attn_type_list=([0] * 7 + [1]) * 10, postnorm=True,
        layernorm_full_attention_alpha=3.5565588200778455, layernorm_full_attention_beta=1.0,
        layernorm_linear_attention_alpha=3.5565588200778455, layernorm_linear_attention_beta=1.0,
        layernorm_mlp_alpha=3.5565588200778455, layernorm_mlp_beta=1.0, num_experts_per_tok=2,
        num_local_experts=32, shared_intermediate_size=0, shared_moe_mode="sigmoid",
        router_jitter_noise=0.0, tie_word_embeddings=False), experts=("w1", "w3", "w2"),
        reads=dict(model_type="minimax", layer_types=(
            ["linear_attention"] * 7 + ["full_attention"]) * 10),
        rename=((r"\.mlp\.gate\.", ".block_sparse_moe.gate."),
                (r"\.mlp\.experts\.", ".block_sparse_moe.experts.")),
        drop=(r"\.(slope_rate|query_decay|key_decay|diagonal_decay)$",)),
    "Hunyuan-7B-Instruct": Published(dict(
        model_type="hunyuan_v1_dense", hidden_size=4096, intermediate_size=14336,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        attention_head_dim=128, vocab_size=128167, hidden_act="silu",
        max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=dict(
            alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0, mscale_all_dim=1.0,
            type="dynamic"), use_qk_norm=True, use_cla=False, attention_bias=False,
        mlp_bias=False, tie_word_embeddings=True), reads=dict(rope_scaling=None)),
    "Hunyuan-A13B-Instruct": Published(dict(
        model_type="hunyuan_v1_moe", hidden_size=4096, intermediate_size=3072,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        vocab_size=128167, hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-5,
        rope_theta=10000.0, rope_scaling=dict(
            alpha=1000.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0, mscale_all_dim=0.0,
            type="dynamic"), use_qk_norm=True, use_cla=False, num_experts=64,
        moe_topk=[8] * 32, num_shared_expert=[1] * 32, moe_intermediate_size=[3072] * 32,
        moe_layer_num_skipped=0, use_mixed_mlp_moe=True, attention_bias=False, mlp_bias=False,
        tie_word_embeddings=True), experts=QWEN, reads=dict(rope_scaling=None)),
    "Trinity-Mini": Published(dict(
        model_type="afmoe", hidden_size=2048, intermediate_size=6144,
        moe_intermediate_size=1024, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, vocab_size=200192, hidden_act="silu",
        max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=10000, rope_scaling=None,
        num_experts=128, num_experts_per_tok=8, num_shared_experts=1, num_dense_layers=2,
        n_group=1, topk_group=1, route_norm=True, route_scale=2.826, score_func="sigmoid",
        mup_enabled=True, global_attn_every_n_layers=4, sliding_window=2048,
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 8,
        tie_word_embeddings=False), experts=QWEN),
    "HyperCLOVAX-SEED-Think-14B": Published(dict(
        model_type="hyperclovax", hidden_size=6144, intermediate_size=14336,
        num_hidden_layers=38, num_attention_heads=48, num_key_value_heads=8, head_dim=128,
        vocab_size=110592, hidden_act="silu", max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=100000000, attention_bias=False, mlp_bias=False,
        attention_multiplier=0.0078125, embedding_multiplier=10.0, logits_scaling=0.125,
        residual_multiplier=1.0, use_post_norm=True, tie_word_embeddings=False)),
    "stablelm-2-1_6b": Published(dict(
        model_type="stablelm", hidden_size=2048, intermediate_size=5632, num_hidden_layers=24,
        num_attention_heads=32, num_key_value_heads=32, vocab_size=100352, hidden_act="silu",
        max_position_embeddings=4096, layer_norm_eps=1e-5, rope_theta=10000,
        partial_rotary_factor=0.25, use_qkv_bias=True, tie_word_embeddings=False)),
    "helium-1-2b": Published(dict(
        model_type="helium", hidden_size=2048, intermediate_size=8192, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=64000,
        hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-8, rope_theta=20000.0,
        attention_bias=False, mlp_bias=False, tie_word_embeddings=False)),
    "internlm3-8b-instruct": Published(dict(
        model_type="internlm3", hidden_size=4096, intermediate_size=10240, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=2, head_dim=128, vocab_size=128512,
        hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=50000000,
        rope_scaling=dict(factor=6.0, rope_type="dynamic"), bias=False, qkv_bias=False,
        tie_word_embeddings=False)),
    "vaultgemma-1b": Published(dict(
        model_type="vaultgemma", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
        num_attention_heads=4, num_key_value_heads=4, head_dim=256, vocab_size=256000,
        hidden_activation="gelu_pytorch_tanh", max_position_embeddings=1024, rms_norm_eps=1e-6,
        rope_theta=10000.0, query_pre_attn_scalar=256, sliding_window=512)),
    "Youtu-LLM-2B": Published(dict(
        model_type="youtu", hidden_size=2048, intermediate_size=6144, num_hidden_layers=32,
        num_attention_heads=16, num_key_value_heads=16, q_lora_rank=1536, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, vocab_size=128256,
        hidden_act="silu", max_position_embeddings=131072, rms_norm_eps=1e-6,
        rope_theta=1600000, rope_interleave=True, attention_bias=False,
        tie_word_embeddings=True)),
    "Mistral-Small-4-119B-2603-bf16": Published(dict(
        model_type="mistral4", hidden_size=4096, intermediate_size=12288,
        moe_intermediate_size=2048, num_hidden_layers=36, num_attention_heads=32,
        num_key_value_heads=32, n_shared_experts=1, n_routed_experts=128, num_experts_per_tok=4,
        q_lora_rank=1024, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=64,
        v_head_dim=128, vocab_size=131072, hidden_act="silu", max_position_embeddings=1048576,
        rms_norm_eps=1e-6, n_group=1, topk_group=1, first_k_dense_replace=0,
        norm_topk_prob=True, routed_scaling_factor=1.0, rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=128.0, beta_fast=32.0, beta_slow=1.0,
            mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
            original_max_position_embeddings=8192), rope_interleave=True,
        tie_word_embeddings=False)),
    "K-EXAONE-236B-A23B": Published(dict(
        model_type="exaone_moe", hidden_size=6144, intermediate_size=18432,
        moe_intermediate_size=2048, num_hidden_layers=48, num_attention_heads=64,
        num_key_value_heads=8, head_dim=128, vocab_size=153600, hidden_act="silu",
        max_position_embeddings=262144, rms_norm_eps=1e-5, rope_parameters=dict(
            rope_type="default", rope_theta=1000000), num_experts=128, num_experts_per_tok=8,
        num_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, sliding_window=128, sliding_window_pattern="LLLG",
        layer_types=(["sliding_attention"] * 3 + ["full_attention"]) * 12,
        mlp_layer_types=["dense"] + ["sparse"] * 47, tie_word_embeddings=False), experts=QWEN,
        reads=dict(sliding_window_pattern=4),
        rename=((r"\.mlp\.gate\.e_score", ".mlp.e_score"),),
        extra={"mtp.norm.weight": [6144]}),
    "gemma-4-E2B-it": Published(dict(
        model_type="gemma4", tie_word_embeddings=True, text_config=dict(
            model_type="gemma4_text", hidden_size=1536, intermediate_size=6144,
            num_hidden_layers=35, num_attention_heads=8, num_key_value_heads=1, head_dim=256,
            global_head_dim=512, vocab_size=262144, vocab_size_per_layer_input=262144,
            hidden_size_per_layer_input=256, num_kv_shared_layers=20, use_double_wide_mlp=True,
            hidden_activation="gelu_pytorch_tanh", max_position_embeddings=131072,
            rms_norm_eps=1e-6, sliding_window=512, final_logit_softcapping=30.0,
            layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7,
            rope_parameters=dict(
                full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25,
                                    rope_theta=1000000.0),
                sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
        extra={f"model.language_model.layers.{i}.self_attn.{name}": shape for i in range(15, 35)
               for name, shape in (
                   ("k_proj.weight", [512 if i % 5 == 4 else 256, 1536]),
                   ("v_proj.weight", [512 if i % 5 == 4 else 256, 1536]),
                   ("k_norm.weight", [512 if i % 5 == 4 else 256]))}),
    "Zamba2-1.2B": Published(dict(
        model_type="zamba2", hidden_size=2048, intermediate_size=8192, num_hidden_layers=38,
        num_attention_heads=32, num_key_value_heads=32, attention_head_dim=128,
        attention_hidden_size=4096, kv_channels=64, vocab_size=32000, hidden_act="gelu",
        max_position_embeddings=4096, rms_norm_eps=1e-5, add_bias_linear=False,
        adapter_rank=128, ft_lora=False, hybrid_layer_ids=[5, 11, 17, 23, 29, 35],
        layers_block_type=[
            "hybrid" if i % 6 == 5 else "mamba" for i in range(38)], lora_rank=128,
        mamba_d_conv=4, mamba_d_state=128, mamba_expand=2, mamba_headdim=64, mamba_ngroups=1,
        n_mamba_heads=64, num_mem_blocks=1, rope_theta=10000, use_conv_bias=True,
        use_long_context=False, use_mem_rope=True, use_shared_attention_adapter=True,
        use_shared_mlp_adapter=True, time_step_min=0.001, tie_word_embeddings=True)),
    "gemma-2b": Published(dict(
        model_type="gemma", hidden_size=2048, intermediate_size=16384, num_hidden_layers=18,
        num_attention_heads=8, num_key_value_heads=1, head_dim=256, vocab_size=256000,
        hidden_act="gelu", max_position_embeddings=8192, rms_norm_eps=1e-6, rope_theta=10000.0)),
    "GLM-4-9B-0414": Published(dict(
        model_type="glm4", hidden_size=4096, intermediate_size=13696, num_hidden_layers=40,
        num_attention_heads=32, num_key_value_heads=2, head_dim=128, vocab_size=151552,
        hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=10000.0,
        partial_rotary_factor=0.5, attention_bias=True, tie_word_embeddings=False)),
    "ERNIE-4.5-0.3B-PT": Published(dict(
        model_type="ernie4_5", hidden_size=1024, intermediate_size=3072, num_hidden_layers=18,
        num_attention_heads=16, num_key_value_heads=2, head_dim=128, vocab_size=103424,
        hidden_act="silu", max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=500000.0, use_bias=False, tie_word_embeddings=True)),
    "ERNIE-4.5-21B-A3B-PT": Published(dict(
        model_type="ernie4_5_moe", hidden_size=2560, intermediate_size=12288,
        num_hidden_layers=28, num_attention_heads=20, num_key_value_heads=4, vocab_size=103424,
        hidden_act="silu", max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=500000.0, use_bias=False, tie_word_embeddings=True, moe_num_experts=64,
        moe_k=6, moe_intermediate_size=1536, moe_num_shared_experts=2, moe_layer_start_index=1,
        moe_layer_end_index=-1, moe_layer_interval=1), experts=QWEN,
        rename=((r"\.mlp\.gate\.moe_statics\.", ".mlp.moe_statics."),),
        extra={"model.mtp_linear_proj.0.weight": [2560, 5120]}),
    "EXAONE-4.0-1.2B": Published(dict(
        model_type="exaone4", hidden_size=2048, intermediate_size=4096, num_hidden_layers=30,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=102400,
        hidden_act="silu", max_position_embeddings=65536, rms_norm_eps=1e-5, rope_theta=1000000,
        rope_scaling=dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0,
                          high_freq_factor=4.0, original_max_position_embeddings=8192),
        layer_types=["full_attention"] * 30, sliding_window=None, sliding_window_pattern=None,
        tie_word_embeddings=True)),
    "starcoder2-3b": Published(dict(
        model_type="starcoder2", hidden_size=3072, intermediate_size=12288, num_hidden_layers=30,
        num_attention_heads=24, num_key_value_heads=2, vocab_size=49152,
        hidden_act="gelu_pytorch_tanh", max_position_embeddings=16384, norm_epsilon=1e-5,
        rope_theta=999999.4420358813, sliding_window=4096, use_bias=True)),
    "Minitron-4B-Base": Published(dict(
        model_type="nemotron", hidden_size=3072, intermediate_size=9216, num_hidden_layers=32,
        num_attention_heads=24, num_key_value_heads=8, head_dim=128, vocab_size=256000,
        hidden_act="relu2", max_position_embeddings=4096, norm_eps=1e-5, rope_theta=10000,
        partial_rotary_factor=0.5, attention_bias=False, mlp_bias=False,
        tie_word_embeddings=False)),
    "c4ai-command-r-v01": Published(dict(
        model_type="cohere", hidden_size=8192, intermediate_size=22528, num_hidden_layers=40,
        num_attention_heads=64, num_key_value_heads=64, vocab_size=256000, hidden_act="silu",
        layer_norm_eps=1e-5, logit_scale=0.0625, max_position_embeddings=8192,
        rope_theta=8000000.0, attention_bias=False, use_qk_norm=False)),
    "dots.llm1.inst": Published(dict(
        model_type="dots1", hidden_size=4096, intermediate_size=10944, num_hidden_layers=62,
        num_attention_heads=32, num_key_value_heads=32, head_dim=128, vocab_size=152064,
        hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-5,
        rope_theta=10000000, rope_scaling=None, attention_bias=False, sliding_window=None,
        max_window_layers=62, n_routed_experts=128, num_experts_per_tok=6,
        moe_intermediate_size=1408, n_shared_experts=2, first_k_dense_replace=1, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5,
        tie_word_embeddings=False), experts=QWEN),
    "Solar-Open-100B": Published(dict(
        model_type="solar_open", hidden_size=4096, num_hidden_layers=48, num_attention_heads=64,
        num_key_value_heads=8, head_dim=128, vocab_size=196608, hidden_act="silu",
        max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=1000000,
        attention_bias=False, n_routed_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=1280, n_shared_experts=1, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.0, tie_word_embeddings=False),
        experts=QWEN),
    "granite-3.1-1b-a400m-base": Published(dict(
        model_type="granitemoe", hidden_size=1024, intermediate_size=512, num_hidden_layers=24,
        num_attention_heads=16, num_key_value_heads=8, vocab_size=49155, hidden_act="silu",
        max_position_embeddings=131072, rms_norm_eps=1e-6, rope_theta=1500000.0,
        rope_scaling=None, attention_bias=False, attention_multiplier=0.015625,
        embedding_multiplier=12.0, logits_scaling=6.0, residual_multiplier=0.22,
        num_local_experts=32, num_experts_per_tok=8, tie_word_embeddings=True), rename=(
            (r"\.block_sparse_moe\.(gate|router)\.weight$",
             ".block_sparse_moe.router.layer.weight"),
            (r"\.experts\.gate_up_proj$", ".input_linear.weight"),
            (r"\.experts\.down_proj$", ".output_linear.weight"))),
    "OLMoE-1B-7B-0924": Published(dict(
        model_type="olmoe", hidden_size=2048, intermediate_size=1024, num_hidden_layers=16,
        num_attention_heads=16, num_key_value_heads=16, vocab_size=50304, hidden_act="silu",
        max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
        attention_bias=False, clip_qkv=None, num_experts=64, num_experts_per_tok=8,
        norm_topk_prob=False, tie_word_embeddings=False), experts=QWEN),
    "RWKV7-Goose-World3-2.9B-HF": Published(dict(
        model_type="rwkv7", hidden_size=2560, intermediate_size=10240, num_hidden_layers=32,
        head_dim=64, num_heads=40, a_low_rank_dim=96, decay_low_rank_dim=96, v_low_rank_dim=64,
        gate_low_rank_dim=320, hidden_act="sqrelu", hidden_ratio=4.0, norm_bias=True,
        norm_eps=1e-5, norm_first=True, fuse_norm=False, max_position_embeddings=2048,
        value_dim=[2560] * 32, vocab_size=65536, bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=False)),
}


def fla_model(config):
    """flash-linear-attention's model. Its import replaces some of transformers' classes by its own, so
    its checkpoints come last. The initialisation, which sets elements one by one, is left out."""
    import fla_torch  # noqa: F401, before fla
    from fla.layers import rwkv6, rwkv7
    from fla.models.rwkv7 import modeling_rwkv7
    for cls in rwkv6.LoRA, rwkv7.RWKV7Attention, modeling_rwkv7.RWKV7FeedForward:
        cls._initialize_weights = lambda self, module: None
    modeling_rwkv7.RWKV7PreTrainedModel._init_weights = lambda self, module: None
    return modeling_rwkv7.RWKV7ForCausalLM(modeling_rwkv7.RWKV7Config(**config))


def model_of(p):
    if p.config["model_type"] == "rwkv7":
        return fla_model(p.config)
    config = AutoConfig.for_model(**{k: v for k, v in p.config.items()
                                     if k != "quantization_config"} | p.reads)
    if p.config["model_type"] == "mistral4":  # which transformers has as a part of others only
        return Mistral4ForCausalLM(config)
    parts = "text_config" in p.config
    return (AutoModelForImageTextToText if parts else AutoModelForCausalLM).from_config(config)


def tensors_of(p):
    with torch.device("meta"):
        model = model_of(p)
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
        if any(re.search(d, name) for d in p.drop):
            continue
        if p.mxfp4 and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            n, inputs, outputs = t.shape
            shape = [n, outputs, inputs // 32]
            out[name + "_blocks"] = dict(shape=[*shape, 16], dtype="U8")
            out[name + "_scales"] = dict(shape=shape, dtype="U8")
            continue
        part = next((e for e in p.parts if name.endswith(e)), None)
        if part:
            rows, *rest = t.shape
            names = p.parts[part]
            out |= {name[:-len(part)] + n: [rows * names.count(n) // len(names), *rest]
                    for n in names}
            continue
        fused = re.match(r"(.*experts)\.(gate_up_proj|up_proj|down_proj)$", name)
        if fused and p.experts:
            out |= of_experts(fused[1], fused[2], list(t.shape), p.experts)
        else:
            out[name] = list(t.shape)
    return out


def of_experts(prefix, what, shape, names):
    """The tensors of each expert, of which [] is the number, for one that transformers holds of all."""
    gate, up, down = (f"{prefix}.[].{n}.weight" for n in names)
    n, rows, cols = shape
    if what == "down_proj":
        return {down: dict(shape=[rows, cols], m=n)}
    if what == "up_proj":
        return {up: dict(shape=[rows, cols], m=n)}
    return {name: dict(shape=[rows // 2, cols], m=n) for name in (gate, up)}


def folded(tensors):
    """Tensors that layers of a stack have with one shape stand once."""
    groups = {}
    for name, t in tensors.items():
        t = t if isinstance(t, dict) else dict(shape=t)
        m = re.match(r"(.*?(?:^|\.)(?:layers|h|blocks)\.)(\d+)(\..*)", name)
        key = (m[1] + "{}" + m[3] if m else name, json.dumps(t))
        groups.setdefault(key, []).append(int(m[2]) if m else None)
    out = {}
    for (name, t), numbers in groups.items():
        if name in out:  # of another shape in other layers
            out |= {name.replace("{}", str(i)): json.loads(t) for i in numbers}
            continue
        out[name] = json.loads(t)
        if numbers == [None]:
            continue
        if sorted(numbers) == list(range(len(numbers))):
            out[name]["n"] = len(numbers)
        else:
            out[name]["at"] = sorted(numbers)
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
        "those of the model cards.\n" + CONFIRMED)


if __name__ == "__main__":
    main()
