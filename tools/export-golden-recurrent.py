#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints of recurrent mixers in tests/golden/models, and the results of transformers
(Mamba-2) and flash-linear-attention (the others) for them (README-recurrent.md there).

    pip install torch transformers safetensors einops
    pip install --no-deps flash-linear-attention fla-core triton
    tools/export-golden-recurrent.py tests/golden/models [NAME...]

flash-linear-attention's models run with torch in place of their Triton kernels (fla_torch.py); at
the end each is compared with the kernels themselves, interpreted, on a few tokens.
"""
import argparse
import json
import math
import pathlib
import warnings

import fla_torch  # before everything that imports triton
import einops
import fla
import golden_models
import safetensors
import safetensors.torch
import torch
import transformers
import triton
from fla.models import (DeltaNetConfig, GatedDeltaNetConfig, GLAConfig, HGRN2Config, HGRNConfig,
                        KDAConfig, LinearAttentionConfig, RetNetConfig, RWKV7Config)
from fla.models.utils import Cache
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, Mamba2Config, Mamba2ForCausalLM

LENGTHS = (1, 7, 15, 16, 17, 64, 65, 200, 500, 1000)
FEWER = (1, 7, 16, 17, 65, 300)
RWKV = (1, 15, 16, 17, 65, 500)
GREEDY = 16
MAX_SENSITIVITY = 1e-4  # a tenth of the tests' tolerance
VOCAB = 128
RAW_VOCAB = 122  # of a checkpoint that pads its vocabulary to a multiple of 16


def mamba2(**kw):
    return Mamba2Config(**dict(golden_models.NO_SPECIAL_TOKENS, vocab_size=VOCAB, hidden_size=32,
                               num_hidden_layers=2, num_heads=4, head_dim=16, state_size=24,
                               n_groups=1, chunk_size=32, tie_word_embeddings=True) | kw)


def fla_mamba2(**kw):
    """One group: in its torch path fla 0.6 gives head h the group h modulo their number."""
    return fla.models.Mamba2Config(**dict(
        golden_models.NO_SPECIAL_TOKENS, vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2,
        head_dim=16, state_size=24, chunk_size=32, tie_word_embeddings=True) | kw)


def small(cls, **kw):
    return cls(**dict(golden_models.NO_SPECIAL_TOKENS, vocab_size=VOCAB, hidden_size=32,
                      intermediate_size=40, num_hidden_layers=2,
                      tie_word_embeddings=True) | kw)


def state_spaces(ssm_cfg):
    """Mamba-2 as the state-spaces organisation publishes it: with its own config.json and two other
    tensor names. `ssm_cfg` has what differs from mamba_ssm's defaults."""
    def edit(path):
        config = json.loads((path / "config.json").read_text())
        raw = dict(d_model=config["hidden_size"], d_intermediate=0,
                   n_layer=config["num_hidden_layers"], vocab_size=RAW_VOCAB,
                   ssm_cfg=dict(layer="Mamba2") | ssm_cfg, attn_layer_idx=[], attn_cfg={},
                   rms_norm=True, residual_in_fp32=True, fused_add_norm=True,
                   pad_vocab_size_multiple=16, tie_embeddings=True)
        (path / "config.json").write_text(json.dumps(raw, indent=4) + "\n")
        tensors = safetensors.torch.load_file(path / "model.safetensors")
        tensors = {k.replace("embeddings.", "embedding."): t for k, t in tensors.items()}
        safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    return edit


def rwkv7(**kw):
    return small(RWKV7Config, **dict(num_hidden_layers=3, head_dim=16, decay_low_rank_dim=8,
                                     gate_low_rank_dim=12, a_low_rank_dim=8, v_low_rank_dim=4) | kw)


def one_shift(path):
    """The first version of fla's RWKV-7: the six vectors of a layer's token shift are one tensor."""
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    for i in range(json.loads((path / "config.json").read_text())["num_hidden_layers"]):
        at = f"model.layers.{i}.attn."
        tensors[at + "x_x"] = torch.cat([tensors.pop(at + "x_" + x)[0] for x in "rwkvag"])
    safetensors.torch.save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


class Variant:
    def __init__(self, config, lengths=FEWER, vocab=VOCAB, finish=lambda path: None, greedy=GREEDY):
        self.config = config
        self.lengths = lengths
        self.vocab = vocab    # prompts are drawn from its first so many tokens
        self.finish = finish  # what the reference would not read
        self.greedy = greedy  # tokens of a continuation


VARIANTS = {
    "mamba2": Variant(mamba2(), LENGTHS, RAW_VOCAB),
    "mamba2-raw": Variant(mamba2(), LENGTHS, RAW_VOCAB,
                          state_spaces(dict(d_state=24, headdim=16, chunk_size=32))),
    "mamba2-raw-default": Variant(mamba2(hidden_size=64, num_hidden_layers=1, num_heads=2,
                                         head_dim=64, state_size=128), FEWER, RAW_VOCAB,
                                  state_spaces({})),
    "mamba2-groups": Variant(mamba2(hidden_size=48, num_heads=6, n_groups=3, state_size=16,
                                    use_conv_bias=False, tie_word_embeddings=False)),
    "mamba2-limit": Variant(mamba2(head_dim=8, num_heads=8, n_groups=2, state_size=40,
                                   conv_kernel=3, use_bias=True, time_step_limit=(0.01, 0.1))),
    "mamba2-fla": Variant(fla_mamba2(norm_before_gate=True)),
    "mamba2-fla-nonorm": Variant(fla_mamba2(rmsnorm=False, dt_limit=(0.0, 0.1))),
    "gla": Variant(small(GLAConfig, num_heads=2, tie_word_embeddings=False), LENGTHS),
    "gla-conv": Variant(small(GLAConfig, num_heads=2, expand_k=1.5, expand_v=2.5,
                              feature_map="relu", use_short_conv=True, clamp_min=-0.05,
                              use_output_gate=False)),
    "gla-mqa": Variant(small(GLAConfig, num_heads=4, num_kv_heads=2, expand_k=1.0, expand_v=2.0,
                             fuse_norm=False)),
    "gla-attn": Variant(small(GLAConfig, num_hidden_layers=3, num_heads=2, attn=dict(
        layers=[1], num_heads=4, num_kv_heads=2, qkv_bias=True, window_size=48,
        rope_theta=10000.0))),
    "gated_deltanet": Variant(small(GatedDeltaNetConfig, num_heads=2, head_dim=8,
                                    tie_word_embeddings=False), LENGTHS),
    "gated_deltanet-gva": Variant(small(GatedDeltaNetConfig, num_heads=2, num_v_heads=4,
                                        head_dim=16, expand_v=1.0, allow_neg_eigval=True)),
    "gated_deltanet-plain": Variant(small(GatedDeltaNetConfig, num_heads=1, num_v_heads=1,
                                          head_dim=24, expand_v=5 / 3, use_gate=False,
                                          use_short_conv=False)),
    "gated_deltanet-sigmoid": Variant(small(GatedDeltaNetConfig, num_heads=2, head_dim=16,
                                            expand_v=1.5, conv_size=3,
                                            output_gate_activation="sigmoid")),
    "gated_deltanet-attn": Variant(small(GatedDeltaNetConfig, num_hidden_layers=3, num_heads=2,
                                         head_dim=16, attn=[
        dict(layers=[0], num_heads=2, window_size=17), dict(layers=[2], num_heads=4)])),
    "retnet": Variant(small(RetNetConfig, num_heads=2, tie_word_embeddings=False), LENGTHS),
    "retnet-mqa": Variant(small(RetNetConfig, num_heads=4, num_kv_heads=2, expand_k=3.0,
                                expand_v=5.0, feature_map="relu", use_output_gate=False)),
    "delta_net": Variant(small(DeltaNetConfig, num_heads=4, tie_word_embeddings=False), LENGTHS),
    "delta_net-gate": Variant(small(DeltaNetConfig, num_heads=2, expand_k=1.5, expand_v=2.5,
                                    use_gate=True, allow_neg_eigval=True)),
    "delta_net-sum": Variant(small(DeltaNetConfig, num_heads=2, qk_norm="sum",
                                   qk_activation="elu", use_beta=False)),
    "delta_net-plain": Variant(small(DeltaNetConfig, num_heads=2, qk_norm="sum",
                                     qk_activation="identity", use_short_conv=False)),
    "hgrn": Variant(small(HGRNConfig, num_hidden_layers=3, tie_word_embeddings=False), LENGTHS),
    "hgrn-conv": Variant(small(HGRNConfig, expand_ratio=2, use_short_conv=True,
                               use_lower_bound=False)),
    "hgrn2": Variant(small(HGRN2Config, num_hidden_layers=3, expand_ratio=8,
                           tie_word_embeddings=False), LENGTHS),
    "hgrn2-conv": Variant(small(HGRN2Config, hidden_size=48, expand_ratio=24, use_short_conv=True,
                                use_lower_bound=False)),
    "linear_attn": Variant(small(LinearAttentionConfig, num_heads=2, tie_word_embeddings=False),
                           LENGTHS),
    "linear_attn-hedgehog": Variant(small(LinearAttentionConfig, num_heads=4, expand_v=2.0,
                                          feature_map="hedgehog", tie_feature_map_qk=True)),
    "linear_attn-elu": Variant(small(LinearAttentionConfig, num_heads=4, num_kv_heads=2,
                                     expand_k=2.0, feature_map="elu", norm_feature_map=True)),
    "linear_attn-relu": Variant(small(LinearAttentionConfig, num_heads=2, expand_k=1.5,
                                      expand_v=2.5, feature_map="relu", norm_q=True, norm_k=True)),
    "linear_attn-identity": Variant(small(LinearAttentionConfig, num_heads=2,
                                          feature_map="identity", elementwise_affine=False)),
    "linear_attn-t2r": Variant(small(LinearAttentionConfig, num_heads=2, feature_map="t2r")),
    "linear_attn-dpfp": Variant(small(LinearAttentionConfig, num_heads=4, feature_map="dpfp")),
    "kda": Variant(small(KDAConfig, num_heads=2, head_dim=16, tie_word_embeddings=False), LENGTHS),
    "kda-bound": Variant(small(KDAConfig, num_heads=2, num_v_heads=4, head_dim=8, expand_v=2.0,
                               safe_gate=True, lower_bound=-5.0, allow_neg_eigval=True)),
    "kda-plain": Variant(small(KDAConfig, num_heads=1, head_dim=24, expand_v=5 / 3,
                               use_short_conv=False)),
    "rwkv7": Variant(rwkv7(tie_word_embeddings=False), RWKV, greedy=24),
    "rwkv7-plain": Variant(rwkv7(fuse_norm=False, norm_bias=False, norm_eps=1e-3, head_dim=8,
                                 intermediate_size=None, hidden_ratio=2.6), RWKV, finish=one_shift,
                           greedy=24),
    "rwkv7-one-head": Variant(rwkv7(norm_first=False, head_dim=32, intermediate_size=72,
                                    num_hidden_layers=2), RWKV, greedy=24),
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
        if getattr(config, "lower_bound", None) is not None:
            return 0.3 * r
        return spread(len(r), 1, 16, r).log()
    if last == "dt_bias":
        if getattr(config, "lower_bound", None) is not None:
            return torch.linspace(-7, 1, len(r)) + 0.3 * r
        return inverse_softplus(spread(len(r), 0.001, 0.2, r).flip(0))
    if "gk_proj.1.bias" in name:
        return 4 * r
    if last in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g"):
        return torch.sigmoid(r)
    if last in ("k_k", "r_k"):
        return (0.7 if last == "k_k" else 0) + 0.3 * r
    if "w_lora.lora.2.bias" in name:
        return torch.linspace(-9, 2, len(r)) + 0.3 * r
    if name.endswith("lower_bounds"):
        return r
    if name.endswith(".bias"):
        return 0.2 * r
    if len(shape) == 1:
        return 1 + 0.1 * r
    if "conv1d" in name:
        return r / shape[-1] ** 0.5
    if "embeddings" in name and not config.tie_word_embeddings:
        return r
    if "embeddings" in name or "lm_head" in name:
        return 2.5 * r / shape[1] ** 0.5
    return r / shape[1] ** 0.5


def model_class(config):
    """Loads without AutoModel, where fla has replaced transformers' Mamba-2 by its own."""
    if isinstance(config, Mamba2Config):
        return Mamba2ForCausalLM
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


@torch.no_grad()
def write(v, path, seed):
    model = model_class(v.config)._from_config(v.config)
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        p.copy_(randomized(name, p.shape, torch.randn(p.shape, generator=g), v.config))
    model.tie_weights()
    # Feature maps that fla has tied become two copies: transformers refuses to save a tensor twice.
    model.save_pretrained(path, state_dict={
        k: t.clone() if "feature_map" in k else t for k, t in model.state_dict().items()})
    (path / "generation_config.json").unlink(missing_ok=True)


def load(v, path):
    return model_class(v.config).from_pretrained(path, dtype=torch.float32).eval()


def new_cache(v):
    """None for Mamba-2: with a cache, transformers ignores time_step_limit for single tokens, and
    fla's takes only single tokens."""
    return None if v.config.model_type == "mamba2" else Cache()


@torch.no_grad()
def sensitivity(model, prompt):
    """How far the prompt's log-probabilities move when each weight is rounded differently."""
    before = golden_models.run(model, prompt, None)
    g = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.mul_(1 + 2 ** -23 * torch.randn(p.shape, generator=g))
    return float((golden_models.run(model, prompt, None) - before).abs().max())


def expect(v, path, prompt):
    model = load(v, path)
    golden_models.refuse_subnormals(model)
    with fla_torch.torch_ops():
        c, margin = golden_models.case(model, new_cache(v), prompt, v.greedy)
        if margin > golden_models.MIN_MARGIN and sensitivity(model, prompt) > MAX_SENSITIVITY:
            margin = 0.0  # a head's output near zero, say, that its norm makes large
    return c, margin


@torch.no_grad()
def kernels_agree(v, path):
    """Largest difference of a log-probability between kernels and torch, over a prompt and single
    tokens after it."""
    def rows():
        cache = new_cache(v)
        parts = [ids] if cache is None else [ids[:21], ids[21:22], ids[22:23], ids[23:]]
        return torch.cat([golden_models.run(model, part, cache) for part in parts])

    model = load(v, path)
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (24,), generator=g).tolist()
    with fla_torch.torch_ops():
        expected = rows()
    return float((rows() - expected).abs().max())


def make(name, v, root):
    def finish(path):
        if not isinstance(v.config, Mamba2Config):
            error = kernels_agree(v, path)
            print(f"    the kernels differ by {error:.1e}", flush=True)
            assert error < 1e-4
        v.finish(path)

    golden_models.make(root / name, v.lengths, v.vocab, "whole prompt",
                       lambda path, seed: write(v, path, seed),
                       lambda path, prompt: expect(v, path, prompt), finish)


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
    (args.folder / "PROVENANCE-recurrent").write_text(
        "Made by tools/export-golden-recurrent.py tests/golden/models\n"
        f"torch {torch.__version__}, transformers {transformers.__version__}, flash-linear-attention "
        f"{fla.__version__},\ntriton {triton.__version__}, einops {einops.__version__}, safetensors "
        f"{safetensors.__version__}; on a CPU, float32\nSeeds are in each expected.json.\n")


if __name__ == "__main__":
    main()
