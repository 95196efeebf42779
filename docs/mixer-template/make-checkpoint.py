#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of random weights with gated_conv and attention layers: what a training script of
your own would leave behind, in the format of docs/model-format.md (model_type mixd).

    make-checkpoint.py DIR      writes DIR and, beside it, mixd.yaml to serve it

Needs nothing but Python. A trained model has the same files: model.safetensors with the tensors named
as here, config.json and tokenizer.json.
"""
import json
import math
import os
import random
import struct
import sys

WIDTH, MLP, VOCAB, HEADS, CONTEXT, TAPS = 32, 64, 256, 4, 512, 4
LAYERS = [{"mixer": "gated_conv", "taps": TAPS},
          {"mixer": "attention", "num_attention_heads": HEADS},
          {"mixer": "gated_conv", "taps": TAPS}]


def make_tensors():
    """Returns name -> (shape, list of floats)."""
    rnd = random.Random(1)
    tensors = {}

    def normal(name, *shape, mean=0.0, std):
        tensors[name] = list(shape), [rnd.gauss(mean, std) for _ in range(math.prod(shape))]

    def matrix(name, rows, cols):
        normal(name, rows, cols, std=1.5 / math.sqrt(cols))

    def norm(name):
        normal(name, WIDTH, mean=1.0, std=0.1)

    matrix("model.embed_tokens.weight", VOCAB, WIDTH)
    matrix("lm_head.weight", VOCAB, WIDTH)
    norm("model.norm.weight")
    for i, layer in enumerate(LAYERS):
        p = "model.layers.%d." % i
        norm(p + "input_layernorm.weight")
        norm(p + "post_attention_layernorm.weight")
        matrix(p + "mlp.gate_proj.weight", MLP, WIDTH)
        matrix(p + "mlp.up_proj.weight", MLP, WIDTH)
        matrix(p + "mlp.down_proj.weight", WIDTH, MLP)
        # the tensors that a mixer asks for are under "mixer."
        if layer["mixer"] == "gated_conv":
            matrix(p + "mixer.in_proj.weight", 3 * WIDTH, WIDTH)
            normal(p + "mixer.conv.weight", WIDTH, 1, TAPS, std=0.5)
            matrix(p + "mixer.out_proj.weight", WIDTH, WIDTH)
        else:
            for w in "qkvo":
                matrix(p + "mixer.%s_proj.weight" % w, WIDTH, WIDTH)
    return tensors


def write_safetensors(path, tensors):
    """Stores the tensors as F32."""
    header, data, at = {}, [], 0
    for name, (shape, values) in tensors.items():
        raw = struct.pack("<%df" % len(values), *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def write_config(path):
    with open(path, "w") as f:
        json.dump({"model_type": "mixd", "hidden_size": WIDTH, "intermediate_size": MLP,
                   "vocab_size": VOCAB, "num_hidden_layers": len(LAYERS),
                   "num_attention_heads": HEADS, "max_position_embeddings": CONTEXT,
                   "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
                   "torch_dtype": "float32", "eos_token_id": 0, "mixd_layers": LAYERS}, f, indent=1)


def byte_symbols():
    """Returns the printable character that stands for each byte in byte-level BPE."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(extra)) for b in range(256)]


def write_tokenizer(path):
    """A token for every byte."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    vocab = {c: i for i, c in enumerate(byte_symbols())}
    with open(path, "w") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                   "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
                   "decoder": byte_level,
                   "model": {"type": "BPE", "dropout": None, "unk_token": None,
                             "continuing_subword_prefix": None, "end_of_word_suffix": None,
                             "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                             "merges": []}}, f)


def write_mixd_yaml(path, model):
    """`modules` names the folder of the module: every *.so in it is loaded."""
    with open(path, "w") as f:
        f.write("http: { listen: '127.0.0.1:8080' }\n"
                "modules: ['%s']\n"
                "models:\n"
                "  - { name: template, path: '%s' }\n"
                % (os.path.dirname(model), model))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    model = os.path.abspath(sys.argv[1])
    os.makedirs(model, exist_ok=True)
    write_safetensors(os.path.join(model, "model.safetensors"), make_tensors())
    write_config(os.path.join(model, "config.json"))
    write_tokenizer(os.path.join(model, "tokenizer.json"))
    write_mixd_yaml(os.path.join(os.path.dirname(model), "mixd.yaml"), model)


if __name__ == "__main__":
    main()
