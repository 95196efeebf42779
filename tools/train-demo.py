#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the bundled model: a small Llama with its own byte-level BPE, on public-domain books.

    tools/train-demo.py --train books-train.txt.xz --valid books-valid.txt.xz --out models/demo
    tools/train-demo.py --evaluate models/demo --valid TEXT

Input: text files (.xz or plain), books separated by lines "<|endoftext|>". Output: a folder in
Hugging Face form (config.json, model.safetensors in bf16, tokenizer.json, ...) and training.json
with what was measured. Needs torch (a GPU), tokenizers and safetensors.

How the validation figure is defined, so that other programs can reproduce it (mixd-eval does):
the text is tokenised as a whole without a BOS; the ids are cut into consecutive windows of
context - 1; each window is preceded by <|endoftext|>; every id of a window is predicted from what
precedes it in the window. bits per byte = sum of nats / ln 2 / bytes of text.
"""

import argparse
import json
import lzma
import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

EOT = "<|endoftext|>"
VOCAB = 4096
CONTEXT = 2048
SHAPE = dict(width=320, layers=9, heads=5, kv_heads=1, head_dim=64, ffn=896)
THETA = 10000.0
EPS = 1e-5

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] | trim }}"
    "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n\\n' }}{% endif %}"
)


def read_text(path):
    opener = lzma.open if path.endswith(".xz") else open
    with opener(path, "rb") as f:
        return f.read().decode("utf-8")


def books_of(text):
    return [b.strip("\n") for b in text.split(EOT + "\n") if b.strip()]


def train_tokenizer(books):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(books, trainer)
    tok.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A", pair=f"{EOT} $A {EOT} $B", special_tokens=[(EOT, 0)]
    )
    assert tok.token_to_id(EOT) == 0 and tok.get_vocab_size() == VOCAB
    return tok


def encode_books(tok, books):
    """All books in one stream of ids, each preceded by <|endoftext|>."""
    parts = []
    pieces = []
    for b in books:
        # the tokenizer's splitting never spans a blank line followed by a capital, but cutting there
        # is only for speed: a border every 100 kB changes nothing that matters to training
        pieces.append([b[i : i + 100_000] for i in range(0, len(b), 100_000)])
    flat = [p for ps in pieces for p in ps]
    encoded = iter(tok.encode_batch(flat, add_special_tokens=False))
    for ps in pieces:
        parts.append(np.array([0], dtype=np.uint16))
        for _ in ps:
            parts.append(np.array(next(encoded).ids, dtype=np.uint16))
    return np.concatenate(parts)


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), EPS).to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.h, self.kv, self.d = s["heads"], s["kv_heads"], s["head_dim"]
        self.q_proj = nn.Linear(s["width"], self.h * self.d, bias=False)
        self.k_proj = nn.Linear(s["width"], self.kv * self.d, bias=False)
        self.v_proj = nn.Linear(s["width"], self.kv * self.d, bias=False)
        self.o_proj = nn.Linear(self.h * self.d, s["width"], bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = rotate(self.q_proj(x).view(b, t, self.h, self.d).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, self.kv, self.d).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv, self.d).transpose(1, 2)
        k = k.expand(b, self.h, t, self.d) if self.kv == 1 else k.repeat_interleave(self.h // self.kv, 1)
        v = v.expand(b, self.h, t, self.d) if self.kv == 1 else v.repeat_interleave(self.h // self.kv, 1)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, self.h * self.d))


class MLP(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.gate_proj = nn.Linear(s["width"], s["ffn"], bias=False)
        self.up_proj = nn.Linear(s["width"], s["ffn"], bias=False)
        self.down_proj = nn.Linear(s["ffn"], s["width"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm = RMSNorm(s["width"])
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s["width"])
        self.mlp = MLP(s)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Parameter names are those of the Hugging Face checkpoint below "model."."""

    def __init__(self, s):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, s["width"])
        self.layers = nn.ModuleList(Layer(s) for _ in range(s["layers"]))
        self.norm = RMSNorm(s["width"])
        inv = 1.0 / THETA ** (torch.arange(0, s["head_dim"], 2).float() / s["head_dim"])
        angle = torch.outer(torch.arange(CONTEXT).float(), inv)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                std = 0.02 if "embed" in name else p.shape[1] ** -0.5
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * s["layers"])
                nn.init.normal_(p, std=std)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        t = ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return self.norm(x)

    def loss(self, ids, targets, reduction="mean"):
        x = self(ids)
        logits = F.linear(x, self.embed_tokens.weight.to(x.dtype)).float()
        return F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1), reduction=reduction)


def evaluate(model, ids, n_bytes, device):
    """Nats over all windows, as the head of this file defines them, in float32."""
    n = CONTEXT - 1
    nats, count = 0.0, 0
    with torch.no_grad():
        batch = []
        windows = [ids[i : i + n] for i in range(0, len(ids), n)]
        for k, w in enumerate(windows):
            batch.append(w)
            whole = len(w) == n
            if len(batch) == 16 or k + 1 == len(windows) or (whole and len(windows[k + 1]) != n):
                t = torch.tensor(np.stack(batch).astype(np.int64), device=device)
                x = torch.cat((torch.zeros_like(t[:, :1]), t[:, :-1]), 1)
                nats += model.loss(x, t, reduction="sum").item()
                count += t.numel()
                batch = []
    return dict(tokens=count, bytes=n_bytes, nats_per_token=nats / count,
                perplexity=math.exp(nats / count), bits_per_byte=nats / math.log(2) / n_bytes)


def split_params(model):
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return matrices, others


def train(model, stream, args, device):
    matrices, others = split_params(model)
    opts = [
        torch.optim.Muon(matrices, lr=args.lr, weight_decay=0.1, momentum=0.95, nesterov=True,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    loss_fn = torch.compile(lambda x, y: model.loss(x, y))
    data = torch.from_numpy(stream.astype(np.int32)).to(device)
    offsets = torch.arange(CONTEXT - 1, device=device)
    gen = torch.Generator(device=device).manual_seed(args.seed)
    warmup = 100
    start = None
    step, tokens, log = 0, 0, []
    while True:
        # The schedule follows the clock: a fixed budget of seconds, decayed over its last 40 %.
        done = 0.0 if start is None else (time.time() - start) / args.seconds
        if done >= 1.0:
            break
        scale = min(1.0, (step + 1) / warmup) * min(1.0, max(0.0, (1.0 - done) / 0.4))
        for o in opts:
            for g in o.param_groups:
                g["lr"] = args.lr * scale
        at = torch.randint(0, len(data) - CONTEXT, (args.batch, 1), device=device, generator=gen)
        y = data[at + offsets].long()
        x = torch.cat((torch.zeros_like(y[:, :1]), y[:, :-1]), 1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_fn(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        step += 1
        tokens += y.numel()
        if step == 5:  # compiled and warm
            torch.cuda.synchronize()
            start = time.time()
        if step % 200 == 0:
            log.append((step, round(loss.item(), 4)))
            print(f"step {step} loss {loss.item():.4f} {tokens / 1e6:.0f}M tokens "
                  f"{0 if start is None else tokens / (time.time() - start) / 1e6:.2f} Mtok/s", flush=True)
    return dict(steps=step, tokens=tokens, seconds=round(time.time() - start), batch=args.batch, log=log)


def export(model, tok, out):
    s = SHAPE
    os.makedirs(out, exist_ok=True)
    tensors = {"model." + n: p.detach().to(torch.bfloat16).cpu().contiguous()
               for n, p in model.named_parameters()}
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    tok.save(os.path.join(out, "tokenizer.json"))
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=s["width"],
        intermediate_size=s["ffn"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"], head_dim=s["head_dim"], hidden_act="silu",
        max_position_embeddings=CONTEXT, rms_norm_eps=EPS, rope_theta=THETA, rope_scaling=None,
        attention_bias=False, mlp_bias=False, tie_word_embeddings=True, vocab_size=VOCAB,
        bos_token_id=0, eos_token_id=0, torch_dtype="bfloat16")
    files = {
        "config.json": config,
        "generation_config.json": dict(bos_token_id=0, eos_token_id=0, temperature=0.8, top_p=0.95),
        "tokenizer_config.json": dict(
            tokenizer_class="PreTrainedTokenizerFast", bos_token=EOT, eos_token=EOT,
            model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
            chat_template=CHAT_TEMPLATE),
    }
    for name, value in files.items():
        with open(os.path.join(out, name), "w") as f:
            json.dump(value, f, indent=2)
            f.write("\n")


def evaluate_folder(folder, path):
    """The validation figure of a model that was exported earlier, on the CPU."""
    model = Llama(SHAPE)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    model.load_state_dict({n.removeprefix("model."): t.float() for n, t in tensors.items()})
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    text = read_text(path)
    ids = np.array(tok.encode(text, add_special_tokens=False).ids, dtype=np.uint16)
    result = evaluate(model, ids, len(text.encode()), "cpu")
    print(json.dumps(dict(result, versions=dict(torch=torch.__version__))))


def sample(model, tok, prompt, n, device, temperature=0.8, seed=1):
    gen = torch.Generator(device=device).manual_seed(seed)
    ids = torch.tensor([tok.encode(prompt).ids], device=device)
    with torch.no_grad():
        for _ in range(n):
            logits = F.linear(model(ids[:, -CONTEXT:])[:, -1], model.embed_tokens.weight).float()
            p = F.softmax(logits / temperature, -1)
            ids = torch.cat((ids, torch.multinomial(p, 1, generator=gen)), 1)
    return tok.decode(ids[0].tolist())


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--train")
    ap.add_argument("--valid", required=True)
    ap.add_argument("--out")
    ap.add_argument("--evaluate", metavar="DIR", help="only measure an exported model, on the CPU")
    ap.add_argument("--seconds", type=float, default=420, help="training time after compilation")
    ap.add_argument("--batch", type=int, default=64, help="sequences a step")
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    if args.evaluate:
        evaluate_folder(args.evaluate, args.valid)
        return
    if not args.train or not args.out:
        ap.error("--train and --out are needed")
    device = "cuda"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")

    t0 = time.time()
    books = books_of(read_text(args.train))
    tok = train_tokenizer(books)
    stream = encode_books(tok, books)
    print(f"{len(books)} books, {len(stream)} tokens, {time.time() - t0:.0f} s", flush=True)

    model = Llama(SHAPE).to(device)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params} parameters", flush=True)
    run = train(model, stream, args, device)

    # What is shipped is bf16: measure that, in float32 arithmetic.
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(torch.bfloat16).float())
    export(model, tok, args.out)
    torch.set_float32_matmul_precision("highest")
    text = read_text(args.valid)
    result = dict(parameters=n_params, training=run, versions=dict(torch=torch.__version__),
                  device=torch.cuda.get_device_name(0))
    for key, part in (("valid_first_1MB", text.encode()[:1_000_000].decode(errors="ignore")),
                      ("valid", text)):
        ids = np.array(tok.encode(part, add_special_tokens=False).ids, dtype=np.uint16)
        result[key] = evaluate(model, ids, len(part.encode()), device)
        print(key, result[key], flush=True)
    with open(os.path.join(args.out, "training.json"), "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    for prompt in ("The old man looked at the sea and", "Once upon a time", "\"I do not think,\" said the doctor,"):
        print("---", sample(model, tok, prompt, 150, device), flush=True)


if __name__ == "__main__":
    main()
