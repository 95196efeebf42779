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
import warnings

import golden_models
import safetensors
import torch
import transformers
from transformers import AutoModelForCausalLM

LENGTHS = (1, 7, 15, 16, 17, 65, 200, 500)
FEWER = (1, 7, 16, 17, 65, 300)
GREEDY = 24
MAX_SENSITIVITY = 1e-4  # a tenth of the tests' tolerance
VOCAB = 128


def config(name, **kw):
    cls = getattr(transformers, name + "Config")
    return cls(**dict(golden_models.NO_SPECIAL_TOKENS, vocab_size=VOCAB, hidden_size=32,
                      num_hidden_layers=2, max_position_embeddings=1024) | kw)


def attention(name, **kw):
    return config(name, **dict(num_attention_heads=4, num_key_value_heads=2,
                               intermediate_size=40) | kw)


class Variant:
    def __init__(self, config, lengths=FEWER, finish=lambda path: None):
        self.config = config
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


def spread(n, low, high, r):
    """n values in geometric steps, from weak to strong, varied a little by r [n]."""
    return torch.logspace(math.log10(low), math.log10(high), n) * torch.exp(0.1 * r)


def inverse_softplus(x):
    return x + torch.log(-torch.expm1(-x))


def randomized(name, shape, r, config):
    """Every unit's input has a standard deviation near 1, logits one near 2.5; the decays of the
    heads or channels of a layer run from one that forgets in a few tokens to one that does not in
    hundreds."""
    last = name.split(".")[-1]
    if last == "A_log":
        return spread(r.numel(), 1, 16, r.flatten()).log().view(shape)
    if last == "dt_bias" or name.endswith("dt_proj.bias"):
        return inverse_softplus(spread(len(r), 0.001, 0.2, r).flip(0))
    if last in ("e_score_correction_bias", "expert_bias"):
        return 0.2 * r
    if name.endswith(".bias"):
        return 0.2 * r
    if len(shape) == 1:
        return (0.1 if getattr(config, "zero_centred", False) and "linear_attn" not in name
                else 1) + 0.1 * r
    if "conv" in name and len(shape) == 3 and shape[1] == 1:
        return r / shape[-1] ** 0.5
    if "embed" in name and not config.tie_word_embeddings:
        return r
    if "embed" in name or "lm_head" in name:
        return 2.5 * r / shape[1] ** 0.5
    return r / shape[-1] ** 0.5


@torch.no_grad()
def write(v, path, seed):
    v.config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(v.config, attn_implementation="eager")
    g = torch.Generator().manual_seed(seed)
    tensors = dict(model.named_parameters())
    tensors |= {k: b for k, b in model.named_buffers() if "bias" in k}
    for name, p in sorted(tensors.items()):
        p.copy_(randomized(name, p.shape, torch.randn(p.shape, generator=g), v.config))
    model.tie_weights()
    model.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)


def load(v, path):
    return AutoModelForCausalLM.from_pretrained(
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
    c, margin = golden_models.case(model, None, prompt, GREEDY,
                                   min_margin=golden_models.MIN_MARGIN)
    if margin > golden_models.MIN_MARGIN and sensitivity(model, prompt + c["greedy"]) > MAX_SENSITIVITY:
        margin = 0.0
    return c, margin


def make(name, v, root):
    golden_models.make(root / name, v.lengths, VOCAB, "whole prompt",
                       lambda path, seed: write(v, path, seed),
                       lambda path, prompt: expect(v, path, prompt), v.finish)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = ap.parse_args()
    warnings.filterwarnings("ignore")
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
