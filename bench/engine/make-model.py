#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint with random bf16 weights, and the same weights as GGUF for the peer.

    bench/engine/make-model.py 110m|1b|1.1b|8b|8b8|mamba2-130m|mamba2-2.7b|qwen3.5-0.8b|hyena-64k DIR [--gguf FILE] [--fp8]

Shapes: 110m = 12 layers of 768, 12 heads of 64, feed-forward 2048, 32,000 tokens, tied (109.5 M
parameters); 1.1b = 22 layers of 2048, 32 query and 4 KV heads of 64, feed-forward 5632, 32,000
tokens, untied (TinyLlama's); 1b = 16 layers of 2048, 32 query and 8 KV heads of 64, feed-forward 8192, 128,256
tokens, tied (Llama 3.2's); 8b = 32 layers of 4096, 32 query and 8 KV heads of 128, feed-forward 14336, 128,256
tokens, untied (Llama 3's), context 131,072; 8b8 = eight of its layers, 32,000 tokens; mamba2-130m = Mamba-2's smallest, 24 layers of 768, 24 heads of 64, state of
128, 50,288 tokens, tied; mamba2-2.7b = its largest, 64 layers of 2560, 80 heads of 64; qwen3.5-0.8b = a hybrid of that class, 24 layers of
1024, each fourth of attention with 8 query and 2 KV heads of 256, the others gated delta nets of 16 heads of 128,
feed-forward 3584, 248,320 tokens, tied, with a head for multi-token prediction (no GGUF); hyena-64k = Hyena as trained on
the Pile, 18 layers of 864, feed-forward 1728, 50,288 tokens, tied, but with filters of 65,536 (no GGUF). --fp8: the matrices
of layers are in e4m3 with a scale a row, as compressed-tensors has them; not of mamba2, qwen and hyena. Every weight has a magnitude between 2^-7 and 2^-5 and a random sign, so
that no activation is subnormal: subnormal or zero data would run at another speed than real data.
Standard library only.
"""
import argparse
import json
import math
import os
import random
import struct

SHAPES = {
    "110m": dict(width=768, layers=12, heads=12, kv_heads=12, head_dim=64, ffn=2048, vocab=32000, tied=True),
    "1.1b": dict(width=2048, layers=22, heads=32, kv_heads=4, head_dim=64, ffn=5632, vocab=32000, tied=False),
    "1b": dict(width=2048, layers=16, heads=32, kv_heads=8, head_dim=64, ffn=8192, vocab=128256, tied=True,
               context=131072, theta=500000.0),
    "8b": dict(width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, tied=False,
               context=131072, theta=500000.0),
    "8b8": dict(width=4096, layers=8, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000, tied=False,
                context=131072, theta=500000.0),
    "mamba2-130m": dict(width=768, layers=24, heads=24, head_dim=64, state=128, groups=1, conv=4, vocab=50288,
                        tied=True),
    "mamba2-2.7b": dict(width=2560, layers=64, heads=80, head_dim=64, state=128, groups=1, conv=4, vocab=50288,
                        tied=True),
    "qwen3.5-0.8b": dict(width=1024, layers=24, heads=8, kv_heads=2, head_dim=256, linear_heads=16, linear_dim=128,
                         conv=4, ffn=3584, vocab=248320, tied=True),
    "hyena-64k": dict(width=864, layers=18, filter_len=65536, emb_dim=33, order=64, ffn=1728, vocab=50288, tied=True),
}
NO_GGUF = ("linear_heads", "filter_len")
CONTEXT = 32768
EPS = 1e-5
THETA = 10000.0
# little-endian bf16: the odd bytes hold sign and the upper exponent bits
HIGH = bytes(0x3C | (b & 0x80) for b in range(256))
E4M3 = bytes(0x38 | (b & 0x87) for b in range(256))  # of a magnitude between 1 and 2
E4M3_SCALE = 1 / 64


class Weights:
    """Random bf16 values. One block of them is drawn, and every tensor begins somewhere in it: drawing
    16 GB would take minutes. Its length is odd, so that no two rows of a matrix are equal."""

    N = (1 << 24) + 1

    def __init__(self, seed):
        self.rng = random.Random(seed)
        data = bytearray(self.rng.randbytes(2 * self.N))
        data[1::2] = data[1::2].translate(HIGH)
        self.data = memoryview(data)
        self.codes = memoryview(random.Random(seed + 1).randbytes(self.N).translate(E4M3))

    def write(self, f, n, fp8=False):
        data, size = (self.codes, 1) if fp8 else (self.data, 2)
        at = self.rng.randrange(self.N)
        while n:
            part = min(n, self.N - at)
            f.write(data[size * at:size * (at + part)])
            at, n = 0, n - part


def bf16(x):
    """A number that bf16 holds exactly, as bytes."""
    return struct.pack("<f", x)[2:]


def tensors(s):
    """(Hugging Face name, GGUF name, shape, value of all elements or None = random) in the order of the
    file; with random values a matrix, which GGUF has as bf16, else f32."""
    return (mamba2_tensors if "state" in s else qwen_tensors if "linear_heads" in s else
            hyena_tensors if "filter_len" in s else llama_tensors)(s)


def llama_tensors(s):
    d, q, kv = s["width"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
    yield "model.embed_tokens.weight", "token_embd.weight", (s["vocab"], d), None
    for i in range(s["layers"]):
        hf, gg = f"model.layers.{i}.", f"blk.{i}."
        yield hf + "input_layernorm.weight", gg + "attn_norm.weight", (d,), 1
        yield hf + "self_attn.q_proj.weight", gg + "attn_q.weight", (q, d), None
        yield hf + "self_attn.k_proj.weight", gg + "attn_k.weight", (kv, d), None
        yield hf + "self_attn.v_proj.weight", gg + "attn_v.weight", (kv, d), None
        yield hf + "self_attn.o_proj.weight", gg + "attn_output.weight", (d, q), None
        yield hf + "post_attention_layernorm.weight", gg + "ffn_norm.weight", (d,), 1
        yield hf + "mlp.gate_proj.weight", gg + "ffn_gate.weight", (s["ffn"], d), None
        yield hf + "mlp.up_proj.weight", gg + "ffn_up.weight", (s["ffn"], d), None
        yield hf + "mlp.down_proj.weight", gg + "ffn_down.weight", (d, s["ffn"]), None
    yield "model.norm.weight", "output_norm.weight", (d,), 1
    if not s["tied"]:
        yield "lm_head.weight", "output.weight", (s["vocab"], d), None


def mamba2_tensors(s):
    d, h, g = s["width"], s["heads"], s["groups"]
    inner = h * s["head_dim"]
    conv = inner + 2 * g * s["state"]
    yield "backbone.embeddings.weight", "token_embd.weight", (s["vocab"], d), None
    for i in range(s["layers"]):
        hf, gg = f"backbone.layers.{i}.", f"blk.{i}."
        yield hf + "norm.weight", gg + "attn_norm.weight", (d,), 1
        yield hf + "mixer.in_proj.weight", gg + "ssm_in.weight", (inner + conv + h, d), None
        yield hf + "mixer.conv1d.weight", gg + "ssm_conv1d.weight", (conv, 1, s["conv"]), 0.25
        yield hf + "mixer.conv1d.bias", gg + "ssm_conv1d.bias", (conv,), 0.125
        yield hf + "mixer.dt_bias", gg + "ssm_dt.bias", (h,), -4
        yield hf + "mixer.A_log", gg + "ssm_a", (h,), 0  # GGUF has A = -exp(A_log)
        yield hf + "mixer.D", gg + "ssm_d", (h,), 1
        yield hf + "mixer.norm.weight", gg + "ssm_norm.weight", (inner,), 1
        yield hf + "mixer.out_proj.weight", gg + "ssm_out.weight", (d, inner), None
    yield "backbone.norm_f.weight", "output_norm.weight", (d,), 1


def qwen_tensors(s):
    d, inner, h = s["width"], s["linear_heads"] * s["linear_dim"], s["linear_heads"]
    q, kv = s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]

    def feed_forward(hf):
        yield hf + "post_attention_layernorm.weight", None, (d,), 0
        yield hf + "mlp.gate_proj.weight", None, (s["ffn"], d), None
        yield hf + "mlp.up_proj.weight", None, (s["ffn"], d), None
        yield hf + "mlp.down_proj.weight", None, (d, s["ffn"]), None

    def attention(hf):
        yield hf + "input_layernorm.weight", None, (d,), 0
        yield hf + "self_attn.q_proj.weight", None, (2 * q, d), None
        yield hf + "self_attn.k_proj.weight", None, (kv, d), None
        yield hf + "self_attn.v_proj.weight", None, (kv, d), None
        yield hf + "self_attn.o_proj.weight", None, (d, q), None
        yield hf + "self_attn.q_norm.weight", None, (s["head_dim"],), 0
        yield hf + "self_attn.k_norm.weight", None, (s["head_dim"],), 0
        yield from feed_forward(hf)

    yield "model.embed_tokens.weight", None, (s["vocab"], d), None
    for i in range(s["layers"]):
        hf = f"model.layers.{i}."
        if i % 4 == 3:
            yield from attention(hf)
            continue
        yield hf + "input_layernorm.weight", None, (d,), 0
        yield hf + "linear_attn.in_proj_qkv.weight", None, (3 * inner, d), None
        yield hf + "linear_attn.in_proj_z.weight", None, (inner, d), None
        yield hf + "linear_attn.in_proj_b.weight", None, (h, d), None
        yield hf + "linear_attn.in_proj_a.weight", None, (h, d), None
        yield hf + "linear_attn.conv1d.weight", None, (3 * inner, 1, s["conv"]), 0.25
        yield hf + "linear_attn.dt_bias", None, (h,), -4
        yield hf + "linear_attn.A_log", None, (h,), 0
        yield hf + "linear_attn.norm.weight", None, (s["linear_dim"],), 1
        yield hf + "linear_attn.out_proj.weight", None, (d, inner), None
        yield from feed_forward(hf)
    yield "model.norm.weight", None, (d,), 0
    yield "mtp.fc.weight", None, (d, 2 * d), None
    yield from attention("mtp.layers.0.")
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield f"mtp.{name}.weight", None, (d,), 0


def hyena_tensors(s):
    """Names of safari."""
    d, order = s["width"], s["order"]

    def linear(name, rows, cols):
        yield name + ".weight", None, (rows, cols), None
        yield name + ".bias", None, (rows,), 0

    yield "backbone.embeddings.word_embeddings.weight", None, (s["vocab"], d), None
    for i in range(s["layers"]):
        hf = f"backbone.layers.{i}."
        filter_fn = hf + "mixer.filter_fn."
        yield filter_fn + "bias", None, (d,), 1
        yield filter_fn + "pos_emb.z", None, (1, s["filter_len"], s["emb_dim"]), None
        yield filter_fn + "pos_emb.t", None, (1, s["filter_len"], 1), None
        yield filter_fn + "implicit_filter.1.freq", None, (1, order), 4
        yield from linear(filter_fn + "implicit_filter.0", order, s["emb_dim"])
        yield from linear(filter_fn + "implicit_filter.2", order, order)
        yield from linear(filter_fn + "implicit_filter.4", order, order)
        yield filter_fn + "implicit_filter.6.weight", None, (d, order), None
        yield from linear(hf + "mixer.in_proj", 3 * d, d)
        yield from linear(hf + "mixer.out_proj", d, d)
        yield hf + "mixer.short_filter.weight", None, (3 * d, 1, 3), 0.25
        yield hf + "mixer.short_filter.bias", None, (3 * d,), 0.125
        yield from linear(hf + "mlp.fc1", s["ffn"], d)
        yield from linear(hf + "mlp.fc2", d, s["ffn"])
        for norm in ("norm1", "norm2"):
            yield hf + norm + ".weight", None, (d,), 1
            yield hf + norm + ".bias", None, (d,), 0
    yield "backbone.ln_f.weight", None, (d,), 1
    yield "backbone.ln_f.bias", None, (d,), 0


def gguf_shape(s, name, shape):
    """As the peer wants it, slowest dimension first."""
    if name.endswith("ssm_conv1d.weight"):
        return shape[0], shape[2]
    if name.endswith(("ssm_a", "ssm_d")):
        return shape[0], 1
    if name.endswith("ssm_norm.weight"):
        return s["groups"], shape[0] // s["groups"]
    return shape


def count(shape):
    n = 1
    for k in shape:
        n *= k
    return n


def byte_pieces():
    """GPT-2's printable stand-ins for the 256 bytes."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in keep:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return [table[b] for b in range(256)]


def vocabulary(n):
    pieces = ["<|endoftext|>"] + byte_pieces()
    return pieces + [f"t{i}" for i in range(len(pieces), n)]


def stored(s, fp8):
    """(name, dtype, shape, value of all elements or None = random) in the order of model.safetensors."""
    for name, _, shape, value in tensors(s):
        if fp8 and value is None and name.startswith("model.layers."):
            yield name, "F8_E4M3", shape, None
            yield name + "_scale", "BF16", (shape[0], 1), E4M3_SCALE
        else:
            yield name, "BF16", shape, value


def write_hf(s, seed, out, fp8):
    os.makedirs(out, exist_ok=True)
    header, at = {}, 0
    for name, dtype, shape, _ in stored(s, fp8):
        size = (2 if dtype == "BF16" else 1) * count(shape)
        header[name] = dict(dtype=dtype, shape=list(shape), data_offsets=[at, at + size])
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    weights = Weights(seed)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, dtype, shape, value in stored(s, fp8):
            if value is None:
                weights.write(f, count(shape), dtype != "BF16")
            else:
                f.write(bf16(value) * count(shape))
    common = dict(hidden_size=s["width"], num_hidden_layers=s["layers"], hidden_act="silu",
                  tie_word_embeddings=s["tied"], vocab_size=s["vocab"], bos_token_id=0, eos_token_id=0,
                  torch_dtype="bfloat16")
    if "state" in s:
        config = dict(architectures=["Mamba2ForCausalLM"], model_type="mamba2", num_heads=s["heads"],
                      head_dim=s["head_dim"], state_size=s["state"], n_groups=s["groups"], conv_kernel=s["conv"],
                      expand=s["heads"] * s["head_dim"] // s["width"], layer_norm_epsilon=EPS, **common)
    elif "linear_heads" in s:
        config = dict(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", intermediate_size=s["ffn"],
                      num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"], head_dim=s["head_dim"],
                      max_position_embeddings=CONTEXT, full_attention_interval=4, mtp_num_hidden_layers=1,
                      linear_num_key_heads=s["linear_heads"], linear_num_value_heads=s["linear_heads"],
                      linear_key_head_dim=s["linear_dim"], linear_value_head_dim=s["linear_dim"],
                      linear_conv_kernel_dim=s["conv"], **common)
    elif "filter_len" in s:
        config = dict(model_type="safari", d_model=s["width"], d_inner=s["ffn"], n_layer=s["layers"],
                      vocab_size=s["vocab"], bos_token_id=0, eos_token_id=0, torch_dtype="bfloat16",
                      layer=dict(_name_="hyena", emb_dim=s["emb_dim"], filter_order=s["order"],
                                 l_max=s["filter_len"], modulate=False))
    else:
        config = dict(architectures=["LlamaForCausalLM"], model_type="llama", intermediate_size=s["ffn"],
                      num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"], head_dim=s["head_dim"],
                      max_position_embeddings=s.get("context", CONTEXT), rms_norm_eps=EPS,
                      rope_theta=s.get("theta", THETA), **common)
    if fp8:
        weights = dict(num_bits=8, type="float", strategy="channel", symmetric=True, dynamic=False)
        config["quantization_config"] = dict(
            quant_method="compressed-tensors", format="float-quantized", ignore=["lm_head"],
            config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)))
    vocab = vocabulary(s["vocab"])
    tokenizer = dict(
        version="1.0", truncation=None, padding=None,
        added_tokens=[dict(id=0, content=vocab[0], single_word=False, lstrip=False, rstrip=False,
                           normalized=False, special=True)],
        normalizer=None,
        pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True),
        post_processor=None,
        decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                   end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False,
                   vocab={p: i for i, p in enumerate(vocab)}, merges=[]))
    for name, value in (("config.json", config), ("tokenizer.json", tokenizer)):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False)


# GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9
TYPE_F32, TYPE_BF16 = 0, 30
ALIGN = 32


def gstr(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def kv(key, kind, value):
    head = gstr(key) + struct.pack("<I", kind)
    if kind == STRING:
        return head + gstr(value)
    if kind == ARRAY:
        item, values = value
        body = b"".join(gstr(v) for v in values) if item == STRING else struct.pack(f"<{len(values)}i", *values)
        return head + struct.pack("<IQ", item, len(values)) + body
    return head + struct.pack({U32: "<I", I32: "<i", F32: "<f"}[kind], value)


def gguf_shape_keys(s):
    if "state" in s:
        return [
            kv("general.architecture", STRING, "mamba2"),
            kv("mamba2.context_length", U32, 1 << 20), kv("mamba2.embedding_length", U32, s["width"]),
            kv("mamba2.block_count", U32, s["layers"]), kv("mamba2.feed_forward_length", U32, 0),
            kv("mamba2.attention.head_count", U32, 0), kv("mamba2.vocab_size", U32, s["vocab"]),
            kv("mamba2.attention.layer_norm_rms_epsilon", F32, EPS),
            kv("mamba2.ssm.conv_kernel", U32, s["conv"]), kv("mamba2.ssm.state_size", U32, s["state"]),
            kv("mamba2.ssm.inner_size", U32, s["heads"] * s["head_dim"]),
            kv("mamba2.ssm.time_step_rank", U32, s["heads"]), kv("mamba2.ssm.group_count", U32, s["groups"]),
        ]
    return [
        kv("general.architecture", STRING, "llama"),
        kv("llama.context_length", U32, s.get("context", CONTEXT)), kv("llama.embedding_length", U32, s["width"]),
        kv("llama.block_count", U32, s["layers"]), kv("llama.feed_forward_length", U32, s["ffn"]),
        kv("llama.attention.head_count", U32, s["heads"]),
        kv("llama.attention.head_count_kv", U32, s["kv_heads"]),
        kv("llama.attention.layer_norm_rms_epsilon", F32, EPS),
        kv("llama.rope.dimension_count", U32, s["head_dim"]), kv("llama.rope.freq_base", F32, s.get("theta", THETA)),
        kv("llama.vocab_size", U32, s["vocab"]),
    ]


def write_gguf(s, seed, path):
    vocab = vocabulary(s["vocab"])
    meta = gguf_shape_keys(s) + [
        kv("general.name", STRING, "random"),
        kv("general.file_type", U32, 32), kv("general.alignment", U32, ALIGN),
        kv("tokenizer.ggml.model", STRING, "gpt2"), kv("tokenizer.ggml.pre", STRING, "gpt-2"),
        kv("tokenizer.ggml.tokens", ARRAY, (STRING, vocab)),
        kv("tokenizer.ggml.token_type", ARRAY, (I32, [3] + [1] * (len(vocab) - 1))),
        kv("tokenizer.ggml.merges", ARRAY, (STRING, ["t h"])),
        kv("tokenizer.ggml.bos_token_id", U32, 0), kv("tokenizer.ggml.eos_token_id", U32, 0),
    ]
    infos, at = [], 0
    for _, name, shape, value in tensors(s):
        kind = TYPE_BF16 if value is None else TYPE_F32
        dims = gguf_shape(s, name, shape)[::-1]
        infos.append(gstr(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", kind, at))
        at += count(shape) * (2 if kind == TYPE_BF16 else 4)
        at += -at % ALIGN
    weights = Weights(seed)
    with open(path, "wb") as f:
        f.write(struct.pack("<IIQQ", 0x46554747, 3, len(infos), len(meta)) + b"".join(meta) + b"".join(infos))
        f.write(b"\0" * (-f.tell() % ALIGN))
        for _, name, shape, value in tensors(s):
            if name.endswith("ssm_a"):
                value = -math.exp(value)
            if value is None:
                weights.write(f, count(shape))
            else:
                f.write(struct.pack("<f", value) * count(shape))
            f.write(b"\0" * (-f.tell() % ALIGN))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("shape", choices=SHAPES)
    ap.add_argument("dir")
    ap.add_argument("--gguf")
    ap.add_argument("--fp8", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    if args.gguf and any(key in SHAPES[args.shape] for key in NO_GGUF):
        ap.error(f"{args.shape}: no GGUF is written of this shape")
    if args.fp8 and (args.gguf or any(k in SHAPES[args.shape] for k in ("state", *NO_GGUF))):
        ap.error("--fp8: of llama's shapes only, and no GGUF")
    write_hf(SHAPES[args.shape], args.seed, args.dir, args.fp8)
    if args.gguf:
        write_gguf(SHAPES[args.shape], args.seed, args.gguf)


if __name__ == "__main__":
    main()
