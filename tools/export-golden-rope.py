#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/rope/inv_freq.json: the frequencies that transformers computes from configs
with every kind of rope scaling, in both spellings.

    pip install torch transformers
    tools/export-golden-rope.py tests/golden/rope/inv_freq.json
"""
import json
import sys

import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding


def llama(**kw):
    return dict(model_type="llama", hidden_size=256, num_attention_heads=4, num_key_value_heads=4,
                intermediate_size=64, num_hidden_layers=1, vocab_size=64,
                max_position_embeddings=4096) | kw


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
CONFIGS = {
    "default, nothing said": llama(),
    "default, theta beside": llama(rope_theta=500000.0, rope_scaling=None),
    "default, theta inside": llama(rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "default, head_dim 128": llama(head_dim=128, rope_theta=1000000),
    "linear, old key": llama(rope_scaling=dict(type="linear", factor=2.5)),
    "linear": llama(rope_parameters=dict(rope_type="linear", factor=4, rope_theta=10000.0)),
    "dynamic": llama(rope_scaling=dict(rope_type="dynamic", factor=2.0)),
    "llama3": llama(max_position_embeddings=131072, rope_theta=500000.0, head_dim=128,
                    rope_scaling=dict(rope_type="llama3", **LLAMA3)),
    "llama3, 32 times": llama(max_position_embeddings=131072, rope_parameters=dict(
        LLAMA3, rope_type="llama3", rope_theta=500000.0, factor=32.0)),
    "yarn": llama(max_position_embeddings=131072, rope_theta=1000000.0, head_dim=128,
                  rope_scaling=dict(rope_type="yarn", factor=4.0,
                                    original_max_position_embeddings=32768)),
    "yarn, no original": llama(rope_scaling=dict(type="yarn", factor=16.0)),
    "yarn, all keys": llama(max_position_embeddings=163840, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=4096,
        beta_fast=24, beta_slow=2, mscale=0.707, mscale_all_dim=1.0, truncate=False)),
    "yarn, attention_factor": llama(rope_parameters=dict(
        rope_type="yarn", rope_theta=150000.0, factor=32.0, original_max_position_embeddings=4096,
        attention_factor=1.25)),
    "yarn, factor null": llama(max_position_embeddings=32768, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=None, original_max_position_embeddings=4096)),
    "yarn, equal borders": llama(rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=8, beta_slow=8,
        truncate=False)),
}


def main():
    transformers.logging.set_verbosity_error()
    cases = []
    for name, config in CONFIGS.items():
        parsed = LlamaConfig.from_dict(json.loads(json.dumps(config)))
        # Its check of the factor does not allow null, which its formula takes.
        rope = LlamaRotaryEmbedding(parsed)
        cases.append(dict(name=name, config=config,
                          attention_factor=float(rope.attention_scaling),
                          inv_freq=[float(f"{x:.9g}") for x in rope.inv_freq.tolist()]))
    head = dict(made_by="tools/export-golden-rope.py", torch=torch.__version__,
                transformers=transformers.__version__)
    with open(sys.argv[1], "w") as f:
        f.write(json.dumps(head)[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
