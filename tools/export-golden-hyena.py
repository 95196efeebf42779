#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints of Hyena models in tests/golden/models, and the results of their authors'
own code (README-hyena.md there).

    pip install torch torchvision transformers safetensors einops omegaconf hydra-core \\
        pytorch-lightning rich opt_einsum scipy pyyaml
    FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE pip install --no-deps --no-build-isolation flash-attn==2.5.9.post1
    tools/export-golden-hyena.py --hyenadna DIR --hyena-dna DIR --safari DIR --stripedhyena DIR \\
        tests/golden [NAME...]

Each DIR is a checkout of the code: --hyenadna has modeling_hyena.py, configuration_hyena.py and
tokenization_hyena.py, which are in every repository LongSafari/hyenadna-*-hf of the Hugging Face
hub; --hyena-dna and --safari are HazyResearch's repositories of these names, --stripedhyena is
togethercomputer's. Without a GPU, flash-attention's own torch versions replace its kernels.
"""
import argparse
import importlib
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import types
import warnings

import golden_models
import safetensors
import safetensors.torch
import torch
import transformers

LENGTHS = (1, 2, 31, 32, 33, 100, 500, 1000)
FEWER = (1, 2, 31, 33, 64, 200)
GREEDY, FEWER_GREEDY = 200, 70
MIN_MARGIN = 2e-3  # twice the tests' tolerance: there are more than a thousand steps to a seed
MAX_SENSITIVITY = 2e-4  # a fifth of it
CONTEXT = 1250


class Wrapped(torch.nn.Module):
    """Wraps the reference so that its result looks like that of transformers' models."""

    def __init__(self, model, logits):
        super().__init__()
        self.model, self.logits = model, logits

    def forward(self, ids):
        return types.SimpleNamespace(logits=self.logits(self.model(ids)))


# ---- the authors' code ----


class HyenaDNA:
    """The Hugging Face port, as LongSafari publishes it. The authors' code must give the same."""

    def __init__(self, checkouts):
        port = checkouts["hyenadna"]
        sys.path[:0] = [str(port.parent), str(checkouts["hyena-dna"])]
        self.module = importlib.import_module(port.name + ".modeling_hyena")
        self.tokenizer = importlib.import_module(port.name + ".tokenization_hyena").HyenaDNATokenizer
        self.original = importlib.import_module("standalone_hyenadna").HyenaDNAModel

    def model(self, config):
        model = self.module.HyenaDNAForCausalLM(self.module.HyenaConfig(**config))
        if config["tie_word_embeddings"]:  # transformers 5 wants to be told which names are tied
            model.lm_head.weight = model.get_input_embeddings().weight
        return model

    def wrapped(self, model):
        return Wrapped(model, lambda out: out.logits)

    def save(self, model, path, config):
        model.config.architectures = ["HyenaDNAForCausalLM"]
        model.config.save_pretrained(path)
        self.tokenizer(model_max_length=model.config.max_seq_len).save_pretrained(path)
        tensors = model.state_dict()
        if model.config.tie_word_embeddings:
            del tensors["lm_head.weight"]
        return tensors

    @torch.no_grad()
    def check(self, model):
        c = model.config
        layer = dict(l_max=c.max_seq_len, emb_dim=c.emb_dim, filter_order=c.filter_order,
                     w=c.activation_freq, num_inner_mlps=c.num_inner_mlps)
        original = self.original(
            d_model=c.d_model, n_layer=c.n_layer, d_inner=c.d_inner, vocab_size=c.vocab_size,
            pad_vocab_size_multiple=c.pad_vocab_size_multiple, layer=layer).eval()
        original.load_state_dict(model.hyena.state_dict())
        ids = torch.randint(0, c.vocab_size, (1, c.max_seq_len))
        difference = original(ids) @ model.lm_head.weight.T - model(ids).logits
        assert difference.abs().max() < 1e-4


class Safari:
    """SimpleLMHeadModel, and a config.json of its arguments (docs/hyena.md)."""

    def __init__(self, checkouts):
        sys.path.insert(0, str(checkouts["safari"]))
        self.module = importlib.import_module("src.models.sequence.simple_lm")

    def model(self, config):
        return self.module.SimpleLMHeadModel(**json.loads(json.dumps(config)))

    def wrapped(self, model):
        return Wrapped(model, lambda out: out[0].logits)

    def check(self, model):
        pass

    def save(self, model, path, config):
        (path / "config.json").write_text(json.dumps(dict(model_type="safari") | config, indent=4) + "\n")
        tensors = model.state_dict()
        del tensors["lm_head.weight"]  # the embedding
        return tensors


class StripedHyena:
    """Together's implementation, in float32; tensors are called as in the Hugging Face port."""

    def __init__(self, checkouts):
        sys.path.insert(0, str(checkouts["stripedhyena"]))
        sys.modules["flash_attn_2_cuda"] = types.ModuleType("flash_attn_2_cuda")
        from flash_attn.layers import rotary
        norm = types.ModuleType("flash_attn.ops.rms_norm")
        norm.rms_norm = lambda x, weight, eps: x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
        sys.modules[norm.__name__] = norm

        def apply_rotary(x, cos, sin, seqlen_offsets=0, interleaved=False, inplace=False, **_):
            assert seqlen_offsets == 0
            n = x.shape[1]
            y = rotary.apply_rotary_emb_torch(x, cos[:n], sin[:n], interleaved)
            return x.copy_(y) if inplace else y

        rotary.apply_rotary = apply_rotary
        self.module = importlib.import_module("stripedhyena.model")
        self.dotdict = importlib.import_module("stripedhyena.utils").dotdict

    def model(self, config):
        types = dict.fromkeys(("params_dtype", "attn_block_dtype", "mlp_dtype", "hyena_block_dtype"),
                              torch.float32)
        return self.module.StripedHyena(self.dotdict(config | types | dict(use_flash_attn=False)))

    def wrapped(self, model):
        return Wrapped(model, lambda out: out[0])

    def check(self, model):
        pass

    def save(self, model, path, config):
        config = dict(architectures=["StripedHyenaModelForCausalLM"], model_type="stripedhyena") | config
        (path / "config.json").write_text(json.dumps(config, indent=4) + "\n")
        tensors = {"backbone." + k: t for k, t in model.state_dict().items()}
        if config["tie_embeddings"]:
            del tensors["backbone.unembed.weight"]
        return tensors


# ---- the checkpoints ----


class Variant:
    def __init__(self, reference, config, vocab, embedding=None, lengths=FEWER, greedy=FEWER_GREEDY):
        self.reference, self.config, self.lengths, self.greedy = reference, config, lengths, greedy
        self.vocab = vocab  # prompts are drawn from its first so many tokens
        self.embedding = embedding  # its standard deviation; None = it is the head as well
        self.frequency = config.get("activation_freq") or config.get("layer", {}).get("w")


def hyenadna(**kw):
    return dict(d_model=32, d_inner=64, n_layer=2, vocab_size=12, pad_vocab_size_multiple=8,
                max_seq_len=CONTEXT, emb_dim=5, filter_order=16, activation_freq=10,
                embed_dropout=0.0, tie_word_embeddings=False) | kw


def safari(layer, **kw):
    return dict(d_model=32, d_inner=48, n_layer=2, vocab_size=61, pad_vocab_size_multiple=8,
                embed_dropout=0.0,
                layer=dict(_name_="hyena", l_max=CONTEXT, emb_dim=5, filter_order=16,
                           w=14) | layer) | kw


def stripedhyena(**kw):
    """The keys of together's config.json, with the values of StripedHyena-7B except for sizes."""
    return dict(vocab_size=64, hidden_size=32, num_filters=32, inner_mlp_size=40, num_layers=3,
                attn_layer_idxs=[1], hyena_layer_idxs=[0, 2], num_attention_heads=4, proj_groups=2,
                short_filter_length=3, short_filter_bias=True, state_size=2, eps=1e-5,
                rotary_emb_base=500000, hyena_filter_groups=1, column_split_hyena=True,
                column_split=False, model_parallel_size=1, pipe_parallel_size=1, split_k0=True,
                tie_embeddings=False, mha_out_proj_bias=False, qkv_proj_bias=False,
                max_seqlen=2048, final_norm=True, use_flash_attention_2=True,
                use_flash_rmsnorm=True, use_flash_depthwise=False, use_flashfft=False,
                inference_mode=False, prefill_style="fft", smeared_gqa=False,
                make_vocab_size_divisible_by=8, use_cache=False, torch_dtype="float32") | kw


VARIANTS = {
    "hyenadna": Variant("hyenadna", hyenadna(), 12, 1, LENGTHS, GREEDY),
    "hyenadna-tied": Variant("hyenadna", hyenadna(
        d_model=24, d_inner=None, n_layer=1, max_seq_len=321, emb_dim=3, filter_order=12,
        num_inner_mlps=3, tie_word_embeddings=True), 12),
    "safari": Variant("safari", safari(dict(local_order=3, modulate=False)), 61, None,
                      LENGTHS, GREEDY),
    "safari-modulate": Variant("safari", safari(
        dict(l_max=300, emb_dim=3, num_inner_mlps=1, short_filter_order=4, shift=0.02, w=1),
        d_model=40, n_layer=1, pad_vocab_size_multiple=1), 61),
    "stripedhyena": Variant("stripedhyena", stripedhyena(vocab_size=16), 16, 0.03, LENGTHS, GREEDY),
    "stripedhyena-evo": Variant("stripedhyena", stripedhyena(
        num_layers=2, hyena_layer_idxs=[0], hidden_size=48, num_filters=48, inner_mlp_size=None,
        inner_size_multiple_of=16, proj_groups=1, state_size=8, eps=1e-6, rotary_emb_base=10000,
        column_split_hyena=False, tie_embeddings=True, mha_out_proj_bias=True, qkv_proj_bias=True,
        use_interpolated_rotary_pos_emb=True, rotary_emb_scaling_factor=16), 64),
}


def randomized(name, p, g, v):
    """Every unit's input has a standard deviation near 1, logits one near 2.5."""
    shape = p.shape
    r = torch.randn(shape, generator=g)
    if name.endswith("freq"):
        return p * (1 + 0.1 * r)
    if "implicit_filter" in name:  # of sines of a few radians, whatever their frequency
        r *= 3 / v.frequency
    if name.endswith("pos_emb.z"):  # they may be trained, and are to be read, not computed
        return p + 0.02 * r
    if name.endswith("pos_emb.t"):
        return p * 0.9
    if name.endswith("deltas"):
        return p * torch.linspace(0.2, 1, p.numel())
    if name.endswith("poles"):  # from a few tokens to a hundred, turning slowly
        order = torch.randperm(p.numel() // 2, generator=g)
        decay = torch.logspace(0.5, 2, p.numel() // 2)[order]
        z = torch.polar(torch.exp(-1 / decay), 0.3 * torch.rand(decay.shape, generator=g))
        return torch.view_as_real(z).reshape(shape)
    if name.endswith(("residues", ".D", "filter_fn.bias")):
        return r
    if name.endswith("bias"):
        return 0.2 * r
    if len(shape) == 1:
        return 1 + 0.1 * r
    if len(shape) == 3:
        return r / shape[-1] ** 0.5
    if "embedding" in name and v.embedding:
        return v.embedding * r
    if "embed" in name or "lm_head" in name:
        return 2.5 * r / shape[1] ** 0.5
    return r / shape[1] ** 0.5


@torch.no_grad()
def even_filters(model):
    """Scales each channel's long filter to a sum of squares of 1."""
    for m in model.modules():
        if hasattr(m, "implicit_filter"):
            m.implicit_filter[-1].weight.div_(m.filter(m.seq_len)[0].norm(dim=0)[:, None])
        elif hasattr(m, "residues"):
            m.residues.div_(m.compute_filter(CONTEXT, "cpu")[0][0].norm(dim=1)[:, None, None, None])


@torch.no_grad()
def write(v, reference, path, seed):
    """Makes the reference with random weights, and saves it."""
    model = reference.model(v.config)
    g = torch.Generator().manual_seed(seed)
    done = set()
    for name, t in model.state_dict().items():
        if t.data_ptr() not in done and "inv_freq" not in name:
            t.copy_(randomized(name, t, g, v))
        done.add(t.data_ptr())
    even_filters(model)
    names = {}
    for name, t in reference.save(model, path, v.config).items():
        names.setdefault(t.data_ptr(), (name, t.contiguous()))  # one name for what modules share
    safetensors.torch.save_file(dict(names.values()), path / "model.safetensors",
                                metadata={"format": "pt"})
    return reference.wrapped(model).eval()


@torch.no_grad()
def sensitivity(model, prompt):
    """How far the prompt's log-probabilities move when each weight is rounded differently."""
    saved = {k: t.clone() for k, t in model.state_dict().items()}
    before = golden_models.run(model, prompt, None)
    g = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.mul_(1 + 2 ** -23 * torch.randn(p.shape, generator=g))
    moved = float((golden_models.run(model, prompt, None) - before).abs().max())
    model.load_state_dict(saved)
    return moved


def make(name, v, reference, root):
    model = None

    def written(path, seed):
        nonlocal model
        model = write(v, reference, path, seed)
        golden_models.refuse_subnormals(model)

    def expect(path, prompt):
        c, margin = golden_models.case(model, None, prompt, v.greedy, min_margin=MIN_MARGIN)
        if margin >= MIN_MARGIN and sensitivity(model, prompt + c["greedy"]) > MAX_SENSITIVITY:
            margin = 0.0
        return c, margin

    golden_models.make(root / name, v.lengths, v.vocab, "whole prompt", written, expect,
                       lambda path: reference.check(model.model), MIN_MARGIN)


TEXTS = ("", "A", "ACGTN", "acgtn", "ACGTNRYKM", "AC GT\n\tA", "GATTACA[SEP]ACGT", "[CLS]A[BOS]C[PAD]G",
         "A [MASK] C[UNK]T", "[RESERVED]A", "[SEP", "SEP]", "[[SEP]]", "[sep]", "A\u00e9G\u65e5\U0001f9ecT",
         "ACGT" * 20)


def tokenizer_cases(tokenizer, folder):
    """Results of the tokenizer, which is a Python class: ids of texts (without the [SEP] that it
    appends if asked for special tokens), and texts of ids."""
    t = tokenizer(model_max_length=CONTEXT)
    cases = []
    for text in TEXTS:
        ids = t(text, add_special_tokens=False)["input_ids"]
        assert t(text)["input_ids"] == ids + [t.sep_token_id]
        cases.append(dict(text=text, ids=ids, kept=t.decode(ids),
                          skipped=t.decode(ids, skip_special_tokens=True)))
    special = {k: getattr(t, k) for k in ("bos_token", "eos_token", "pad_token", "unk_token")}
    pieces = t.convert_ids_to_tokens(list(range(t.vocab_size)))
    line = lambda x: json.dumps(x, separators=(",", ":"))
    (folder / "hyenadna.cases.json").write_text(
        line(dict(special=special, pieces=pieces))[:-1] + ',\n"cases":[\n' +
        ",\n".join(map(line, cases)) + "]}\n")
    t.save_pretrained(folder)
    (folder / "tokenizer_config.json").rename(folder / "hyenadna.config.json")


def describe(checkout):
    """The commit of a checkout, and its path in the repository."""
    git = lambda *a: subprocess.run(["git", "-C", checkout, *a], check=True, text=True,
                                    capture_output=True).stdout.strip()
    return " ".join(filter(None, (git("rev-parse", "HEAD"), git("rev-parse", "--show-prefix"))))


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in CHECKOUTS:
        ap.add_argument("--" + name, type=pathlib.Path, required=True, metavar="DIR")
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    args = ap.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    checkouts = {name: getattr(args, name.replace("-", "_")).resolve() for name in CHECKOUTS}
    references = {name: kind(checkouts) for name, kind in REFERENCES.items()}
    tokenizer_cases(references["hyenadna"].tokenizer, args.folder / "tokenizer")
    for name, v in VARIANTS.items():
        if not args.names or name in args.names:
            make(name, v, references[v.reference], args.folder / "models")
    lines = [f"{name}: {describe(path)}\n" for name, path in checkouts.items()]
    (args.folder / "models/PROVENANCE-hyena").write_text(
        "Made by tools/export-golden-hyena.py ... tests/golden, with checkouts of\n" +
        "".join(lines) +
        f"and torch {torch.__version__}, transformers {transformers.__version__}, flash-attn "
        f"{importlib.metadata.version('flash-attn')},\nsafetensors {safetensors.__version__}; on a "
        "CPU, float32. Seeds are in each expected.json.\n")


CHECKOUTS = ("hyenadna", "hyena-dna", "safari", "stripedhyena")
REFERENCES = {"hyenadna": HyenaDNA, "safari": Safari, "stripedhyena": StripedHyena}

if __name__ == "__main__":
    main()
