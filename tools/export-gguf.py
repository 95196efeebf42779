#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the GGUF files among the golden files, with llama.cpp's own converter.

    pip install torch "transformers<5" "numpy<2" sentencepiece safetensors gguf protobuf
    tools/export-gguf.py LLAMA-CPP models [NAME...]
    tools/export-gguf.py LLAMA-CPP tokenizers [NAME...]
    tools/export-gguf.py LLAMA-CPP sentencepiece TRAINING-TEXT
    tools/export-gguf.py types
    tools/export-gguf.py grids
    tools/export-gguf.py mixed
    tools/export-gguf.py latent

LLAMA-CPP is a source tree of llama.cpp, whose convert_hf_to_gguf.py runs. models: of the checkpoints
MODELS and CHANGED in tests/golden/models, folders gguf-NAME with model.gguf and expected.json.
tokenizers: of TOKENIZERS in tests/golden/tokenizer, NAME.gguf without weights. sentencepiece: there
spm.json and spm.gguf of a SentencePiece model that is trained on TRAINING-TEXT (any English text of
half a megabyte). types: gguf-types.txt, by gguf-py
alone; grids: likewise device/quant_grids.inc; mixed: gguf-mixed, a model of two layers
of whose matrices each has another type, with expected.json by transformers of what gguf-py makes of them; latent: likewise
gguf-latent, Youtu-LLM with both parts of kv_b in Q8_0. Versions are in PROVENANCE-gguf of tests/golden/models.
"""
import json
import os
import shutil
import sys
import tempfile

def kinds(ssm, attention, *others):
    """Spells layer_types and layers_block_type as the published configs do."""
    words = dict(linear_attention=ssm, full_attention=attention, **dict(others))

    def edit(config):
        for key in {"layer_types", "layers_block_type"} & set(config):
            config[key] = [words.get(t, t) for t in config[key]]
    return edit


def same(config):
    """Leaves a config as it is."""


def nemotron_h_dense(config):
    for key in [k for k in config if "expert" in k or k.startswith("moe_")]:
        del config[key]


# Checkpoint -> how its config is spelled for the converter.
MODELS = {"llama-bias": None, "llama-llama3": None, "qwen2": None, "qwen3": None, "qwen3_moe": None, "mamba2": None,
          "falcon_h1": None, "granite": None, "granitemoehybrid": kinds("mamba", "attention"), "lfm2": None,
          "nemotron_h": lambda config: config.update(mamba_d_head=config["mamba_head_dim"]),
          "nemotron_h-dense": nemotron_h_dense,
          **dict.fromkeys(["qwen3_5", "qwen3_5_moe", "qwen3_5-mtp", "qwen3_5_moe-mtp"]),
          **dict.fromkeys(["gemma4-experts", "gemma4-shared", "phi3", "phi3-long", "phi", "glm4", "olmo", "olmo2",
                           "olmo3", "exaone4", "cohere", "ernie4_5", "seed_oss", "stablelm", "arcee", "ministral3",
                           "smollm3", "starcoder2", "glm4_moe", "ernie4_5_moe", "bailing_moe", "exaone_moe", "afmoe",
                           "minimax_m2", "dots1", "olmoe", "mamba", "jamba", "falcon_mamba",
                           "granitemoe", "granitemoeshared", "deepseek_v2-lite", "youtu",
                           "gpt_bigcode", "rwkv7", "kimi_linear", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"], same),
          "exaone": lambda config: config.update(architectures=["ExaoneForCausalLM"], activation_function="silu"),
          "minicpm": lambda config: config.update(
              architectures=["MiniCPMForCausalLM"], scale_emb=config["embedding_multiplier"],
              scale_depth=config["residual_multiplier"] * config["num_hidden_layers"] ** 0.5,
              dim_model_base=config["hidden_size"] / config["logits_scaling"]),
          "internlm2": lambda config: config.update(architectures=["InternLM2ForCausalLM"]),
          "mistral4": lambda config: config.update(architectures=["Mistral3ForConditionalGeneration"]),
          # else the context is the width of the model
          "glm": lambda config: config.update(seq_length=config["max_position_embeddings"]),
          # what the published configs say, and transformers does not
          "deepseek_v3": lambda config: config.update(scoring_func="sigmoid"),
          "gpt2": lambda config: config.update(n_ctx=config["n_positions"]),
          # a type that transformers does not know: it would drop rotary_pct
          "gpt_neox": lambda config: config.update(model_type="gptneox"),
          "hunyuan_v1_dense": lambda config: config.update(max_position_embeddings=32768),
          "hunyuan_v1_moe": lambda config: config.update(
              moe_intermediate_size=[config["intermediate_size"]] * config["num_hidden_layers"],
              num_shared_expert=[1] * config["num_hidden_layers"]),
          # the converter takes the rotated part of hidden_size / heads, not of head_dim
          "nemotron": lambda config: config["rope_parameters"].update(partial_rotary_factor=0.5),
          "cohere2": lambda config: config.update(rotary_pct=1.0)}
# Checkpoint -> keys that its file cannot say, and what they are without: expected.json is computed
# anew, by transformers 5.
CHANGED = {"gemma2": dict(query_pre_attn_scalar=16),
           "gemma3": dict(query_pre_attn_scalar=16, layer_types=["sliding_attention"] * 3, rope_scaling=None),
           "granitemoehybrid-dense": dict(position_embedding_type=None, time_step_limit=[0.0, float("inf")]),
           "lfm2_moe": dict(routed_scaling_factor=1.0),
           "qwen3_next": dict(norm_topk_prob=True, num_hidden_layers=2, mlp_only_layers=[],
                              layer_types=["linear_attention", "full_attention"]),
           "gpt_oss": dict(swiglu_alpha=1.702, swiglu_limit=7.0),
           "mixtral": dict(sliding_window=None), "starcoder2": dict(sliding_window=None),
           "afmoe": dict(layer_types=["sliding_attention"] * 3 + ["full_attention"], global_attn_every_n_layers=4),
           "dots1": dict(layer_types=["full_attention"] * 3, sliding_window=None),
           "deepseek_v2": dict(rope_parameters=dict(
               rope_type="yarn", factor=8.0, original_max_position_embeddings=128, beta_fast=32.0, beta_slow=1.0,
               mscale=0.9, mscale_all_dim=0.9, rope_theta=10000.0)),
           "mistral4": dict(rope_parameters=dict(
               rope_type="yarn", factor=16.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
               mscale=1.0, mscale_all_dim=1.0, rope_theta=10000.0, partial_rotary_factor=0.4,
               llama_4_scaling_beta=0.0)),
           "glm": dict(head_dim=8),
           "hunyuan_v1_moe": dict(moe_topk=[2, 2]),
           "falcon_mamba": dict(mixer_rms_eps=1e-5),
           "mellum": dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"],
                          mlp_layer_types=["sparse"] * 2),
           "minicpm": dict(attention_multiplier=12 ** -0.5, attention_bias=False, mlp_bias=False, rope_scaling=dict(
               rope_type="longrope", original_max_position_embeddings=1024,
               short_factor=[1.0, 1.05, 1.1, 1.2, 1.4, 1.7], long_factor=[1.0, 1.5, 2.2, 3.0, 3.5, 4.0])),
           "smollm3": dict(no_rope_layers=[1, 1, 1, 0]),
           "nemotron": dict(rope_parameters=dict(partial_rotary_factor=0.34, rope_theta=10000.0,
                                                 rope_type="default"))}
# Models without a checkpoint of their own -> the one that they are made of
SOURCES = {"exaone": "llama-llama3", "internlm2": "llama-linear", "minicpm": "granite"}
# Checkpoint -> the first of the layers that are kept, if not 0
FIRST = {"mellum": 1}
# name -> tokenizer.ggml.pre, which the converter knows by a hash of the published tokenizer
TOKENIZERS = {"gpt2": "gpt-2", "llama3": "llama-bpe", "qwen2": "qwen2", "qwen35": "qwen35", "tekken": "tekken",
              "o200k": "gpt-4o", "deepseek-v3": "deepseek-v3", "deepseek": "deepseek-coder",
              "command-r": "command-r", "gemma4": None}
GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")


def converter(tree, pre):
    """Imports the converter. pre: the value of tokenizer.ggml.pre; "none": the file gets no tokenizer."""
    import torch
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "uint16", "uint32", "uint64",
                 "float4_e2m1fn_x2"):
        if not hasattr(torch, name):  # torch of 2022: types that our checkpoints do not have
            setattr(torch, name, type(name, (), {"itemsize": 1})())
    os.chdir(tree)
    sys.path[:0] = [tree, os.path.join(tree, "gguf-py")]
    from conversion import base
    init = base.TextModel.__init__

    def without_tokenizer(self, *args, **named):
        init(self, *args, **named)
        if pre == "none":
            self.set_vocab = lambda: self.gguf_writer.add_tokenizer_model("none")
    base.TextModel.__init__ = without_tokenizer
    base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre


def convert(tree, folder, out, *options):
    """Runs convert_hf_to_gguf.py in this process."""
    script = os.path.join(tree, "convert_hf_to_gguf.py")
    sys.argv = [script, folder, "--outfile", out, "--outtype", "f32", *options]
    with open(script) as f:
        exec(compile(f.read(), script, "exec"), {"__name__": "__main__", "__file__": script})


def in_child(function, *args):
    """The converter keeps state in classes: one process for each file."""
    child = os.fork()
    if not child:
        try:
            function(*args)
        except SystemExit as e:
            os._exit(1 if e.code else 0)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{args}: failed")


def one(tree, pre, folder, out, *options):
    converter(tree, pre)
    convert(tree, folder, out, *options)


def expect(folder, target, source):
    """Writes expected.json of the checkpoint in `folder`, with the prompts of the one in `source`."""
    import pathlib
    import golden_models
    from transformers import AutoModelForCausalLM, Mistral4ForCausalLM
    kind = Mistral4ForCausalLM if os.path.basename(source) == "mistral4" else AutoModelForCausalLM
    model = kind.from_pretrained(folder, attn_implementation="eager").float().eval()
    with open(os.path.join(source, "expected.json")) as f:
        head = json.load(f)
    pairs = [golden_models.case(model, None, c["prompt"], 16, min_margin=golden_models.MIN_MARGIN)
             for c in head.pop("cases")]
    head |= dict(model=os.path.basename(target), margin=round(min(m for _, m in pairs), 4))
    golden_models.write_expected(pathlib.Path(target), head, [c for c, _ in pairs])


def keep_layers(path, first, n):
    """Leaves the tensors of layers first .. first + n - 1, which are 0 .. n - 1 then."""
    import re
    from safetensors.numpy import load_file, save_file
    tensors = load_file(path)
    kept = {}
    for t, v in tensors.items():
        layer = re.match(r"model\.layers\.(\d+)\.", t)
        i = int(layer[1]) - first if layer else 0
        if 0 <= i < n:
            kept[f"model.layers.{i}." + t[layer.end():] if layer else t] = v
    save_file(kept, path)


def drop_biases(path):
    from safetensors.numpy import load_file, save_file
    save_file({t: v for t, v in load_file(path).items() if not t.endswith(".bias")}, path)


def join_qkv(path, config):
    """Names Llama's tensors as InternLM 2: for each head of keys its heads of q, k and v are one run of rows."""
    import numpy as np
    from safetensors.numpy import load_file, save_file
    names = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output", "self_attn.o_proj": "attention.wo",
             "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    keys, tensors, out = config["num_key_value_heads"], load_file(path), {}
    for t, v in tensors.items():
        if ".q_proj." in t:
            parts = [tensors[t.replace("q_proj", p)].reshape(keys, -1, v.shape[1]) for p in ("q_proj", "k_proj", "v_proj")]
            out[t.replace("self_attn.q_proj", "attention.wqkv")] = np.concatenate(parts, 1).reshape(-1, v.shape[1])
        elif ".k_proj." not in t and ".v_proj." not in t:
            for name, own in names.items():
                t = t.replace(name, own)
            out[t] = v
    save_file(out, path)


def narrow_heads(path, was, dim):
    """Leaves of each head the first `dim` of `was` elements."""
    from safetensors.numpy import load_file, save_file

    def cut(name, v):
        if ".o_proj." in name:
            return v.reshape(len(v), -1, was)[:, :, :dim].reshape(len(v), -1)
        return v.reshape(-1, was, *v.shape[1:])[:, :dim].reshape(-1, *v.shape[1:])
    save_file({t: cut(t, v).copy() if ".self_attn." in t else v for t, v in load_file(path).items()}, path)


def models(tree, only):
    for name in {**MODELS, **CHANGED}:
        if only and name not in only:
            continue
        source = os.path.join(GOLDEN, "models", SOURCES.get(name, name))
        target = os.path.join(GOLDEN, "models", "gguf-" + name)
        os.makedirs(target, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            for f in os.listdir(source):
                shutil.copy(os.path.join(source, f), folder)

            def write(change):
                with open(os.path.join(source, "config.json")) as f:
                    config = json.load(f)
                config.update(CHANGED.get(name, {}))
                change(config)
                with open(os.path.join(folder, "config.json"), "w") as f:
                    json.dump(config, f)
                return config
            config = write(same)
            if "num_hidden_layers" in CHANGED.get(name, {}):
                keep_layers(os.path.join(folder, "model.safetensors"), FIRST.get(name, 0),
                            config["num_hidden_layers"])
            if name == "minicpm":
                drop_biases(os.path.join(folder, "model.safetensors"))
            if name == "internlm2":
                join_qkv(os.path.join(folder, "model.safetensors"), config)
            if name == "glm":
                narrow_heads(os.path.join(folder, "model.safetensors"), 12, config["head_dim"])
            if name in CHANGED:
                in_child(expect, folder, target, source)
            else:
                for f in {"expected.json", "heads.json"} & set(os.listdir(source)):
                    shutil.copy(os.path.join(source, f), target)
            delta_net = name.startswith(("qwen3_5", "qwen3_next"))
            config = write(MODELS.get(name) or (same if delta_net else kinds("mamba", "attention")))
            vocab = config.get("text_config", config)["vocab_size"]
            with open(os.path.join(folder, "tokenizer.json"), "w") as f:
                json.dump({"model": {"vocab": {str(i): i for i in range(vocab)}}, "added_tokens": []}, f)
            # without a head for multi-token prediction where a checkpoint could have one
            without = ["--no-mtp"] if delta_net and not name.endswith("-mtp") else []
            in_child(one, tree, "none", folder, os.path.join(target, "model.gguf"), *without)


def tiny_config(folder, vocab):
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
                   "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64,
                   "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "vocab_size": vocab}, f)


def byte_level(tree, folder, name, pre):
    source = os.path.join(GOLDEN, "tokenizer", name + ".json")
    with open(source) as f:
        t = json.load(f)
    special = dict(unk_token="<unk>", bos_token="<s>", eos_token="</s>") if name == "gemma4" else {}
    ids = [*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])]
    tiny_config(folder, max(ids) + 1)
    shutil.copy(source, os.path.join(folder, "tokenizer.json"))
    template = next((p for p in (t["post_processor"] or {}).get("processors", [t["post_processor"] or {}])
                     if p.get("type") == "TemplateProcessing"), None)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": template is not None}
    if template:
        config["bos_token"] = next(iter(template["special_tokens"]))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({**config, **special}, f)
    if name == "gemma4":  # its class writes the tokenizer; the rest is of the smallest checkpoint
        with open(os.path.join(GOLDEN, "models", "gemma4", "config.json")) as f:
            model = json.load(f)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump({**model, "vocab_size": max(ids) + 1}, f)
    in_child(one, tree, pre, folder, os.path.join(GOLDEN, "tokenizer", name + ".gguf"), "--vocab-only")


def sentence_piece(tree, folder, text):
    import sentencepiece
    from transformers import LlamaTokenizerFast
    sentencepiece.SentencePieceTrainer.train(
        input=text, model_prefix=os.path.join(folder, "tokenizer"), model_type="bpe", vocab_size=700,
        byte_fallback=True, character_coverage=0.999, normalization_rule_name="identity", split_digits=True,
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, minloglevel=2, num_threads=1)
    fast = LlamaTokenizerFast(vocab_file=os.path.join(folder, "tokenizer.model"), legacy=True,
                              add_prefix_space=True)
    fast.backend_tokenizer.save(os.path.join(GOLDEN, "tokenizer", "spm.json"), pretty=False)
    tiny_config(folder, 700)
    in_child(one, tree, None, folder, os.path.join(GOLDEN, "tokenizer", "spm.gguf"), "--vocab-only")


# Offsets of the halves in a block, which must be finite.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2],
              "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "Q2_K": [80, 82], "Q3_K": [108],
              "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0], "IQ1_M": [],
              "TQ1_0": [52], "TQ2_0": [64]}


def random_blocks(rng, name, elements, d):
    """Random blocks of a type for so many elements; d(n) draws the n halves of one place."""
    import gguf
    import numpy as np
    of, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (elements // of, size), dtype=np.uint8)
    for h in HALVES[name]:
        blocks[:, h:h + 2] = d((len(blocks), 1)).astype("<f2").view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(100, 150, len(blocks))
    if name == "IQ1_M":  # a half in the high bits of four words
        words = blocks[:, 48:56].copy().view("<u2") & 0xfff
        halves = d(len(blocks)).astype("<f2").view("<u2")
        blocks[:, 48:56] = (words | np.stack([(halves >> 4 * i & 15) << 12 for i in range(4)], 1)).view(np.uint8)
    return blocks


def types(out):
    """Random blocks of each type and what gguf-py makes of them: lines of name, bytes and floats in hexadecimal."""
    import gguf
    import numpy as np
    rng = np.random.default_rng(20261123)
    with open(out, "w") as f:
        for name in HALVES:
            blocks = random_blocks(rng, name, 512, rng.standard_normal)
            values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).astype("<f4")
            f.write(f"{name} {blocks.tobytes().hex()} {values.tobytes().hex()}\n")


def mixed(target):
    """A Qwen 3 of two layers whose matrices have the types of fewer bits than 4 by turns."""
    import gguf
    import numpy as np
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    rng = np.random.default_rng(20261128)
    kinds = ["Q3_K", "IQ2_S", "IQ3_S", "Q2_K", "IQ3_XXS", "IQ2_XS", "TQ2_0", "IQ1_S", "IQ2_XXS", "Q3_K", "IQ1_M",
             "TQ1_0", "Q2_K", "IQ2_S"]
    model = Qwen3ForCausalLM(Qwen3Config(
        vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=1024, rms_norm_eps=1e-5,
        attn_implementation="eager")).float().eval()
    writer = gguf.GGUFWriter(os.path.join(target, "model.gguf"), "qwen3")
    writer.add_block_count(2)
    writer.add_context_length(1024)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(1)
    writer.add_key_length(64)
    writer.add_value_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    for name, p in model.named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight",))
        if p.ndim == 1 or "layers" not in name:
            values = rng.standard_normal(p.shape).astype("<f4") * (0.04 if "head" in name else 0.1) + (p.ndim == 1)
            values = values.astype("<f2").astype("<f4")
            writer.add_tensor(stored, values.astype("<f2") if p.ndim == 2 else values)
        else:
            kind = kinds.pop(0)
            of = gguf.GGMLQuantizationType[kind]
            ones = gguf.quants.dequantize(random_blocks(rng, kind, p.numel(), np.ones), of)
            blocks = random_blocks(rng, kind, p.numel(), lambda n: np.full(n, 0.06 / ones.std()))
            blocks = blocks.reshape(p.shape[0], -1)
            values = gguf.quants.dequantize(blocks, of)
            writer.add_tensor(stored, blocks, raw_dtype=of)
        with torch.no_grad():
            p.copy_(torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)))
    finish(writer, model, target, rng, matrices={})


def latent(target):
    """Latent attention of which both parts of kv_b are in Q8_0."""
    import gguf
    import numpy as np
    import torch
    from transformers import YoutuConfig, YoutuForCausalLM
    rng = np.random.default_rng(20261129)
    heads, nope, v, rank = 2, 32, 64, 64
    model = YoutuForCausalLM(YoutuConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=heads, qk_nope_head_dim=nope, qk_rope_head_dim=8, v_head_dim=v, kv_lora_rank=rank,
        q_lora_rank=24, max_position_embeddings=1024, rms_norm_eps=1e-6, tie_word_embeddings=False,
        attn_implementation="eager")).float().eval()
    writer = gguf.GGUFWriter(os.path.join(target, "model.gguf"), "deepseek2")
    writer.add_block_count(2)
    writer.add_context_length(1024)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(rank + 8)
    writer.add_value_length(rank)
    writer.add_key_length_mla(nope + 8)
    writer.add_value_length_mla(v)
    writer.add_kv_lora_rank(rank)
    writer.add_q_lora_rank(24)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, 2)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def put_rounded(name, values):
        blocks = gguf.quants.quantize(np.ascontiguousarray(values), q8)
        writer.add_tensor(name, blocks, raw_dtype=q8)
        return gguf.quants.dequantize(blocks, q8)
    for name, p in model.named_parameters():
        values = rng.standard_normal(p.shape).astype("<f4") * (0.1 if p.ndim == 1 else 0.2) + (p.ndim == 1)
        if "kv_b_proj" in name:
            block = name.split(".")[2]
            k, of_v = np.split(values.reshape(heads, nope + v, rank), [nope], axis=1)
            k = put_rounded(f"blk.{block}.attn_k_b.weight", k.swapaxes(1, 2)).swapaxes(1, 2)
            values = np.concatenate([k, put_rounded(f"blk.{block}.attn_v_b.weight", of_v)], 1).reshape(p.shape)
        else:
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), values)
        with torch.no_grad():
            p.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    finish(writer, model, target, rng)


def finish(writer, model, target, rng, **more):
    """Writes the file, and expected.json of the model."""
    import pathlib
    import golden_models
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    pairs = [golden_models.case(model, None, rng.integers(0, 64, n).tolist(), 16, min_margin=golden_models.MIN_MARGIN)
             for n in (1, 7, 64, 65, 200, 513)]
    head = dict(model=os.path.basename(target), margin=round(min(m for _, m in pairs), 4), **more)
    golden_models.write_expected(pathlib.Path(target), head, [c for c, _ in pairs])


def grids(out):
    """The points of the formats with grids: the numbers of the coordinates of each, the first in the lowest bits."""
    import gguf
    import numpy as np
    with open(out, "w") as f:
        f.write("/* SPDX-License-Identifier: Apache-2.0 */\n"
                "/* The points of GGUF's grids, made by tools/export-gguf.py: see quant_iq.c, also for whose they are. */\n")
        for name, bits in [("IQ2_XXS", 2), ("IQ2_XS", 2), ("IQ2_S", 2), ("IQ3_XXS", 3), ("IQ3_S", 3), ("IQ1_S", 2)]:
            kind = getattr(gguf.quants, name)
            kind.init_grid()
            numbers = np.searchsorted(np.array(kind.grid_map), kind.grid[0, 0]).astype(int)
            points = (numbers << bits * np.arange(numbers.shape[1])).sum(1)
            name = "iq1" if name == "IQ1_S" else name.lower()
            f.write(f"static const uint16_t {name}[{len(points)}] = {{\n")
            for i in range(0, len(points), 16):
                f.write("\t" + " ".join(f"{p}," for p in points[i:i + 16]) + "\n")
            f.write("};\n")


def main():
    if sys.argv[1] == "latent":
        latent(os.path.join(GOLDEN, "models", "gguf-latent"))
        return
    if sys.argv[1] == "mixed":
        mixed(os.path.join(GOLDEN, "models", "gguf-mixed"))
        return
    if sys.argv[1] == "grids":
        grids(os.path.join(GOLDEN, "..", "..", "device", "quant_grids.inc"))
        return
    if sys.argv[1] == "types":
        types(os.path.join(GOLDEN, "gguf-types.txt"))
        return
    tree, what = os.path.abspath(sys.argv[1]), sys.argv[2]
    if what == "models":
        models(tree, sys.argv[3:])
        return
    if what == "tokenizers":
        for name, pre in TOKENIZERS.items():
            if sys.argv[3:] and name not in sys.argv[3:]:
                continue
            with tempfile.TemporaryDirectory() as folder:
                byte_level(tree, folder, name, pre)
        return
    text = os.path.abspath(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        sentence_piece(tree, folder, text)


main()
