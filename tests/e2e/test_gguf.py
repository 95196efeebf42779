#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bundled attention model as a GGUF file in bf16: the same answers, to the bit, as from its safetensors; and
what is refused."""
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

from harness import ATTENTION, BUILD, PATIENCE, Mixd, check_sanitizers, main

TYPES = {"int": (4, "<I"), "float": (6, "<f"), "bool": (7, "<?")}
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if isinstance(v, list):
        body = b"".join(text(s) for s in v) if isinstance(v[0], str) else struct.pack(f"<{len(v)}i", *v)
        return struct.pack("<IIQ", 9, 8 if isinstance(v[0], str) else 5, len(v)) + body
    kind, form = TYPES[type(v).__name__]
    return struct.pack("<I", kind) + struct.pack(form, v)


def write(path, pairs, tensors, align=32):
    """tensors: (name, shape as in PyTorch, type, bytes)."""
    head, data = bytearray(), bytearray()
    for key, v in pairs.items():
        head += text(key) + value(v)
    for name, shape, kind, raw in tensors:
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % align)
    head[:0] = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % align) + data)


def permuted(raw, shape, heads):
    """Rows of q or k as the converter orders them: row i of a head's first half beside that of its second."""
    rows, size = shape[0], len(raw) // shape[0]
    dim = rows // heads
    order = (h * dim + a * dim // 2 + i for h in range(heads) for i in range(dim // 2) for a in range(2))
    return b"".join(raw[r * size:(r + 1) * size] for r in order)


def tensors(folder, config):
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        entries = json.loads(f.read(size))
        data = f.read()
    for name, e in sorted(entries.items()):
        if name == "__metadata__":
            continue
        raw = data[slice(*e["data_offsets"])]
        kind = 30
        if len(e["shape"]) == 1:  # F32, as the converter writes vectors
            raw, kind = b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)), 0
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads:
            raw = permuted(raw, e["shape"], config[heads])
        name = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm")
        if name.startswith("model.layers."):
            _, _, layer, rest = name.split(".", 3)
            name = f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"
        yield name, e["shape"], kind, raw


def convert(folder, path, instead=None, align=32, **changed):
    """Writes a checkpoint of the attention model's kind: with its own tensors, or `instead`."""
    def read(name):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            return json.load(f)
    config, tokenizer, names = read("config.json"), read("tokenizer.json"), read("tokenizer_config.json")
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    added = {a["content"] for a in tokenizer["added_tokens"]}
    pairs = {
        "general.architecture": "llama", "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"], "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config["rope_theta"]), "llama.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in added else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(m) for m in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": names["chat_template"],
        "general.sampling.temp": 0.8, "general.sampling.top_p": 0.95, **changed}
    write(path, pairs, instead or list(tensors(folder, config)), align)


def answers(running, model):
    asked = {"model": model, "prompt": "The old man looked at the sea", "max_tokens": 24, "temperature": 0,
             "logprobs": 3, "echo": True, "seed": 1}
    chat = {"model": model, "messages": [{"role": "user", "content": "Once upon a time"}], "max_tokens": 12, "seed": 5}
    got = [running.complete(**asked), running.complete("/v1/chat/completions", **chat)]
    return [(body["choices"], body["usage"]) for body in got]


def test_the_same_bits_as_from_safetensors():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twin.gguf")
        convert(ATTENTION, path)
        running = Mixd(models={"a": ATTENTION, "b": path})
        try:
            assert answers(running, "a") == answers(running, "b")
            assert check_sanitizers(running.errors()) is None
        finally:
            running.stop()


def checked(*args):
    """Returns the exit status of mixd --check and what it said."""
    r = subprocess.run([os.path.join(BUILD, "mixd"), *args, "--check"], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=PATIENCE,
                       env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs")))
    return r.returncode, r.stdout


def test_vectors_are_as_the_file_says():
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for name, kind in {"none": None, "mean": 1, "first": 2, "last": 3}.items():
            models[name] = os.path.join(folder, name + ".gguf")
            convert(ATTENTION, models[name], **({"llama.pooling_type": kind} if kind else {}))
        running = Mixd(models=models)
        try:
            said = {m: running.post("/v1/embeddings", {"model": m, "input": "The old man looked"}) for m in models}
        finally:
            running.stop()
        got = {m: body["data"][0]["embedding"] for m, (status, _, body) in said.items() if status == 200}
        assert got.keys() == {"none", "mean", "last"}, said
        assert got["none"] == got["last"] != got["mean"]
        assert abs(sum(x * x for x in got["mean"]) - 1) < 1e-3
        assert "llama.pooling_type 2 is neither the mean" in said["first"][2]["error"]["message"], said["first"]


def test_rows_in_another_order_take_no_memory():
    """Rows that a file has in another order are copied before they are rounded; the copy is given back."""
    converted = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "twin.gguf")
        convert(ATTENTION, path)
        for model in ATTENTION, path:
            config = os.path.join(folder, "mixd.yaml")
            with open(config, "w", encoding="utf-8") as f:
                f.write(f"models: [{{ name: m, path: {model}, weights: int8 }}]\n")
            rc, said = checked("--config", config)
            assert rc == 0, said
            converted.append(float(re.search(r"weights, converted +([0-9.]+) MiB", said)[1]))
    assert converted[0] == converted[1] > 0, converted


def latent(path, bad=(), **changed):
    """A layer of latent attention, whose ffn_gate has 2 bytes more than a multiple of 4. bad: tensors of which
    element 7 is no number."""
    width, heads, nope, rope, v, rank, inner, vocab = 32, 2, 8, 4, 8, 16, 33, 4096
    shapes = {"token_embd": (vocab, width), "output": (vocab, width), "output_norm": (width,)}
    shapes |= {"blk.0." + k: shape for k, shape in {
        "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (heads * (nope + rope), width),
        "attn_kv_a_mqa": (rank + rope, width), "attn_kv_a_norm": (rank,), "attn_k_b": (heads, rank, nope),
        "attn_output": (width, heads * v), "ffn_up": (inner, width), "ffn_down": (width, inner),
        "ffn_gate": (inner, width), "attn_v_b": (heads, v, rank)}.items()}
    listed = []
    for name, shape in shapes.items():
        values = [0.01 * (i % 13 - 6) for i in range(math.prod(shape))]
        if name in bad:
            values[7] = math.nan
        raw = struct.pack(f"<{len(values)}f", *values)
        kind = 0
        if name.endswith("ffn_gate"):
            kind, raw = 8, bytes(inner * 34)  # Q8_0
        listed.append((name + ".weight", shape, kind, raw))
    keys = {"block_count": 1, "context_length": 64, "embedding_length": width, "feed_forward_length": inner,
            "attention.head_count": heads, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.kv_lora_rank": rank, "attention.key_length_mla": nope + rope, "attention.value_length_mla": v,
            "attention.key_length": rank + rope, "attention.value_length": rank, "rope.dimension_count": rope,
            "rope.freq_base": 1e4}
    convert(ATTENTION, path, listed, **{"general.architecture": "deepseek2"},
            **{"deepseek2." + k: v for k, v in keys.items()}, **changed)


def test_both_parts_of_a_matrix_are_read():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        latent(path)
        rc, said = checked(path, "--deep")
        assert rc == 0 and "tensors are finite" in said, said
        latent(path, bad=["blk.0.attn_v_b", "blk.0.attn_k_b"])
        rc, said = checked(path, "--deep")
        for words in ("tensor blk.0.attn_v_b.weight: 1 of 256 values not finite, the first at element 7",
                      "tensor model.layers.0.self_attn.kv_b_proj.weight: 1 of 256 values", "2 tensors hold"):
            assert rc == 1 and words in said, (words, said)
        said = []
        for pad in range(4):  # where the data begins at a multiple of 4, attn_v_b alone does not
            latent(path, align=2, **{"general.alignment": 2, "general.name": pad * "x"})
            said.append(checked(path)[1])
        assert any("tensor 'blk.0.attn_v_b.weight' is not aligned to its 4-byte elements" in s for s in said), said


def test_quantised_experts_that_lie_transposed_are_refused():
    """Names outside of blocks are a file's own: experts as some checkpoints store them, in blocks of Q4_0."""
    width, dim, inner, n, vocab = 64, 32, 32, 2, 4096
    shapes = {"token_embd": (vocab, width), "output_norm": (width,)}
    shapes |= {"blk.0." + k: shape for k, shape in {
        "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (2 * dim, width), "attn_k": (dim, width),
        "attn_v": (dim, width), "attn_output": (width, 2 * dim), "attn_q_norm": (dim,), "attn_k_norm": (dim,),
        "ffn_gate_inp": (n, width)}.items()}
    listed = [(name + ".weight", shape, 0, bytes(4 * math.prod(shape))) for name, shape in shapes.items()]
    experts = "model.layers.0.mlp.experts."
    listed += [(experts + name, shape, 2, bytes(math.prod(shape) // 32 * 18))
               for name, shape in {"gate_up_proj": (n, width, 2 * inner), "down_proj": (n, inner, width)}.items()]
    keys = {"block_count": 1, "context_length": 64, "embedding_length": width, "feed_forward_length": inner,
            "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": dim,
            "attention.value_length": dim, "attention.layer_norm_rms_epsilon": 1e-5, "expert_count": n,
            "expert_used_count": 1, "expert_feed_forward_length": inner, "rope.freq_base": 1e4}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        convert(ATTENTION, path, listed, **{"general.architecture": "qwen3moe"},
                **{"qwen3moe." + k: v for k, v in keys.items()})
        rc, said = checked(path)
        assert rc and "experts.gate_up_proj: quantised, and stored transposed, which is not supported" in said, said


def test_what_is_not_supported_is_named():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        convert(ATTENTION, path)
        rc, said = checked(path)
        assert rc == 0 and "name: \"m\"" in said, said
        with open(path, "r+b") as f:
            f.truncate(os.path.getsize(path) - 5000)
        rc, said = checked(path)
        assert rc and "the file is not whole; download it again" in said, said
        write(path, {"general.architecture": "bert"}, [])
        rc, said = checked(path)
        assert rc and "general.architecture 'bert' is not supported" in said, said
        convert(ATTENTION, path, **{"tokenizer.ggml.pre": "xyz"})
        rc, said = checked(path)
        assert rc and 'tokenizer.ggml.pre "xyz" is unknown' in said, said


if __name__ == "__main__":
    main(sys.modules[__name__])
