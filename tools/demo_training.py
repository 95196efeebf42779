# SPDX-License-Identifier: Apache-2.0
"""Code shared by train-demo.py, train-demo-hybrid.py and train-draft.py: text, layers, training loop, measuring.

Text files (.xz or plain) hold books separated by lines "<|endoftext|>"; for training, an
.npy file (or .npy.xz) of token ids in uint16 may be given instead.

Definition of the validation figure, so that other programs can reproduce it (mixd-eval does): the
text is tokenised as a whole without a BOS; the ids are cut into consecutive windows of context - 1;
each window is preceded by <|endoftext|>; every id of a window is predicted from the ids before
it in the window. bits per byte = sum of nats / ln 2 / bytes of text.
"""

import io
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
from tokenizers import Tokenizer

EOT = "<|endoftext|>"  # id 0, begins every sequence
VOCAB = 4096
CONTEXT = 2048
THETA = 10000.0
EPS = 1e-5
PROMPTS = ("The old man looked at the sea and", "Once upon a time", "\"I do not think,\" said the doctor,")


def read_bytes(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rb") as f:
        return f.read()


def read_text(path):
    return read_bytes(path).decode("utf-8")


def books_of(text):
    return [b.strip("\n") for b in text.split(EOT + "\n") if b.strip()]


def encode_books(tok, books):
    """All books in one stream of ids, each preceded by <|endoftext|>."""
    parts = []
    for b in books:
        # the tokenizer's splitting never spans a blank line followed by a capital, but cutting there
        # is only for speed: a border every 100 kB changes nothing that matters to training
        pieces = [b[i : i + 100_000] for i in range(0, len(b), 100_000)]
        parts.append(np.array([0], dtype=np.uint16))
        parts += [np.array(e.ids, dtype=np.uint16)
                  for e in tok.encode_batch(pieces, add_special_tokens=False)]
    return np.concatenate(parts)


def read_streams(paths, tok):
    return np.concatenate([
        np.load(io.BytesIO(read_bytes(p))) if p.endswith((".npy", ".npy.xz"))
        else encode_books(tok, books_of(read_text(p))) for p in paths])


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return rms_norm(x, self.weight)


def wide(x):
    """At least float32."""
    return x.float() if x.dtype == torch.bfloat16 else x


def rms_norm(x, weight):
    return F.rms_norm(wide(x), (x.shape[-1],), wide(weight), EPS).to(x.dtype)


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
        inv = 1.0 / THETA ** (torch.arange(0, self.d, 2).float() / self.d)
        angle = torch.outer(torch.arange(s.get("context", CONTEXT)).float(), inv)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x):
        b, t, _ = x.shape
        cos, sin = self.cos[:t], self.sin[:t]
        q = rotate(self.q_proj(x).view(b, t, self.h, self.d).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, self.kv, self.d).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv, self.d).transpose(1, 2)
        k, v = (u.unsqueeze(2).expand(b, self.kv, self.h // self.kv, t, self.d)
                .reshape(b, self.h, t, self.d) for u in (k, v))
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
    def __init__(self, s, name, mixer):
        super().__init__()
        self.input_layernorm = RMSNorm(s["width"])
        self.mixer_name = name
        self.add_module(name, mixer)
        self.post_attention_layernorm = RMSNorm(s["width"])
        self.mlp = MLP(s)

    def forward(self, x):
        x = x + getattr(self, self.mixer_name)(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class LanguageModel(nn.Module):
    """State of the module has the names of the checkpoint below "model."; a layer's mixer is called
    `name` there."""

    def __init__(self, s, name, mixers):
        super().__init__()
        self.vocab = s.get("vocab", VOCAB)
        self.embed_tokens = nn.Embedding(self.vocab, s["width"])
        self.layers = nn.ModuleList(Layer(s, name, m) for m in mixers)
        self.norm = RMSNorm(s["width"])
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for n, p in self.named_parameters():
            if n.endswith("proj.weight"):
                std = p.shape[1] ** -0.5
                if n.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * len(mixers))
                nn.init.normal_(p, std=std)
            elif n.endswith("proj.bias"):
                nn.init.zeros_(p)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def loss(self, ids, targets, reduction="mean"):
        x = self(ids)
        logits = F.linear(x, self.embed_tokens.weight.to(x.dtype)).float()
        return F.cross_entropy(logits.view(-1, self.vocab), targets.reshape(-1), reduction=reduction)


def yarn(dim, theta, scaling):
    """Frequencies [dim / 2] and the factor of cosines and sines of YaRN (Peng et al. 2023,
    arXiv:2309.00071), as transformers has them, by a config's rope_scaling."""
    factor, old = scaling["factor"], scaling["original_max_position_embeddings"]

    def border(turns):
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(border(scaling["beta_fast"])), 0)
    high = min(math.ceil(border(scaling["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    inv = 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)
    return inv * (1 - ramp) + inv / factor * ramp, 0.1 * math.log(factor) + 1


def attention_model(config):
    """The model of a config.json, of Llama or SmolLM 3: rope as it is or by YaRN, or none in some
    layers."""
    s = dict(width=config["hidden_size"], layers=config["num_hidden_layers"],
             heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
             head_dim=config["head_dim"], ffn=config["intermediate_size"],
             vocab=config["vocab_size"], context=config["max_position_embeddings"])
    mixers = [Attention(s) for _ in range(s["layers"])]
    roped = config.get("no_rope_layers") or [1] * len(mixers)  # 0: a layer without
    for m, rope in zip(mixers, roped):
        if not rope:
            m.cos.fill_(1)
            m.sin.zero_()
        elif config["rope_scaling"]:
            inv, scale = yarn(s["head_dim"], config["rope_theta"], config["rope_scaling"])
            angle = torch.outer(torch.arange(s["context"]).float(), inv)
            m.cos.copy_(angle.cos() * scale)
            m.sin.copy_(angle.sin() * scale)
    return LanguageModel(s, "self_attn", mixers)


def load_weights(model, folder):
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    model.load_state_dict({n.removeprefix("model."): t.float() for n, t in tensors.items()})


def stored_in_f32(name):
    """True for tensors that a checkpoint stores in float32: decays, and what makes a long filter.
    All are small."""
    return ".filter_fn." in name or name.endswith((".A_log", ".D", ".dt_bias"))


def optimizers(parameters, lr):
    """For pairs of name and parameter: Muon for the matrices; AdamW for embeddings, vectors and the
    networks that make filters."""
    matrices, filters, others = [], [], []
    for n, p in parameters:
        if n.endswith("proj.weight") and min(p.shape) >= 64:
            matrices.append(p)
        else:
            (filters if ".filter_fn." in n else others).append(p)
    groups = [dict(params=others, lr=lr)] + [dict(params=filters, lr=lr / 4)] * bool(filters)
    opts = [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.1, momentum=0.95, nesterov=True,
                         adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    for o in opts:
        for g in o.param_groups:
            g["peak"] = g["lr"]
    return opts


def backward_pass(model, compiled, device):
    """Returns backward(x, y), which adds gradients in mixed precision and returns the loss. It is
    compiled, or plain if compiling fails."""
    loss_fn = torch.compile(model.loss) if compiled else model.loss

    def backward(x, y):
        nonlocal loss_fn
        try:
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = loss_fn(x, y)
            loss.backward()
        except Exception as e:  # whatever a compiler may raise
            if loss_fn == model.loss:
                raise
            print(f"not compiled: {type(e).__name__}: {e}"[:2000], flush=True)
            loss_fn = model.loss
            model.zero_grad(set_to_none=True)
            return backward(x, y)
        return loss.detach()

    return backward


def train(model, stream, args, device):
    """Trains for args.seconds, counted from the fifth step. Returns entries of training.json."""
    opts = optimizers(model.named_parameters(), args.lr)
    backward = backward_pass(model, args.compile, device)
    data = torch.from_numpy(stream.astype(np.int32)).to(device)
    offsets = torch.arange(args.length, device=device)
    gen = torch.Generator(device=device).manual_seed(args.seed)
    warmup = 100
    start = None
    step, counted, log = 0, 0, []
    while True:
        # The schedule follows the clock: a fixed budget of seconds, decayed over its last 40 %.
        done = 0.0 if start is None else (time.time() - start) / args.seconds
        if done >= 1.0:
            break
        scale = min(1.0, (step + 1) / warmup) * min(1.0, max(0.0, (1.0 - done) / 0.4))
        for o in opts:
            for g in o.param_groups:
                g["lr"] = g["peak"] * scale
        at = torch.randint(0, len(data) - args.length, (args.batch, 1), device=device, generator=gen)
        y = data[at + offsets].long()
        x = torch.cat((torch.zeros_like(y[:, :1]), y[:, :-1]), 1)
        loss = backward(x, y)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in opts:
            o.step()
            o.zero_grad(set_to_none=True)
        step += 1
        if step == 5:  # compiled and warm
            loss.item()
            start = time.time()
        if step % 100 == 0:
            log.append((step, round(loss.item(), 4)))
            seconds = time.time() - start
            print(f"step {step} loss {log[-1][1]} at {seconds:.0f} s, "
                  f"{1000 * seconds / (step - 5):.1f} ms a step, "
                  f"{(step - 5) * y.numel() / seconds / 1e6:.3f} Mtok/s", flush=True)
            if not math.isfinite(log[-1][1]):
                raise SystemExit("the loss is not finite")
    return dict(steps=step, tokens=step * y.numel(), seconds=round(time.time() - start),
                batch=args.batch, length=args.length, log=log)


def evaluate(model, ids, n_bytes, device):
    """Sum of nats over all windows (defined in the head of this file), in float32."""
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


def evaluate_text(model, tok, text, device):
    ids = np.array(tok.encode(text, add_special_tokens=False).ids, dtype=np.uint16)
    return evaluate(model, ids, len(text.encode()), device)


def first_bytes(text, n):
    return text.encode()[:n].decode(errors="ignore")


def evaluate_folder(model, folder, text):
    """Computes the validation figure of an exported model on the CPU."""
    load_weights(model, folder)
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    print(json.dumps(dict(evaluate_text(model, tok, text, "cpu"),
                          versions=dict(torch=torch.__version__))))


def write_json(folder, name, value, indent=2):
    with open(os.path.join(folder, name), "w") as f:
        json.dump(value, f, indent=indent)
        f.write("\n")


def begin_at_line(path):
    """Lengthens the header of a safetensors file by blanks, so that the first tensor begins at a line
    of the caches, and with it all others if their sizes are multiples of 64 bytes. That makes products
    with weights that are used where the file is mapped faster."""
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        header, data = f.read(n), f.read()
    with open(path, "wb") as f:
        blanks = -(8 + n) % 64
        f.write((n + blanks).to_bytes(8, "little") + header + b" " * blanks + data)


def export(model, config, out):
    """Writes model.safetensors and config.json. Afterwards the model has the rounded weights that
    were written."""
    os.makedirs(out, exist_ok=True)
    tensors = {}
    with torch.no_grad():
        for n, p in model.state_dict().items():
            tensors["model." + n] = p.cpu() if stored_in_f32(n) else p.to(torch.bfloat16).cpu()
            p.copy_(tensors["model." + n])
    path = os.path.join(out, "model.safetensors")
    save_file(tensors, path, metadata={"format": "pt"})
    begin_at_line(path)
    write_json(out, "config.json", dict(dict(
        hidden_act="silu", max_position_embeddings=CONTEXT, rms_norm_eps=EPS, rope_theta=THETA,
        tie_word_embeddings=True, vocab_size=VOCAB, bos_token_id=0, eos_token_id=0,
        torch_dtype="bfloat16"), **config))


def sample(model, tok, prompt, n, device, temperature=0.8, seed=1):
    gen = torch.Generator(device=device).manual_seed(seed)
    ids = torch.tensor([tok.encode(prompt).ids], device=device)
    with torch.no_grad():
        for _ in range(n):
            logits = F.linear(model(ids[:, -CONTEXT:])[:, -1], model.embed_tokens.weight).float()
            p = F.softmax(logits / temperature, -1)
            ids = torch.cat((ids, torch.multinomial(p, 1, generator=gen)), 1)
    return tok.decode(ids[0].tolist())


def add_arguments(ap):
    ap.add_argument("--train", nargs="+", metavar="FILE")
    ap.add_argument("--valid", metavar="FILE")
    ap.add_argument("--out", metavar="DIR")
    ap.add_argument("--evaluate", metavar="DIR", help="only measure an exported model, on the CPU")
    ap.add_argument("--limit", type=int, metavar="BYTES", help="of the text for --evaluate")
    ap.add_argument("--seconds", type=float, default=420, help="training time after compilation")
    ap.add_argument("--trial", action="store_true", help="40 seconds, measured on the first MB")
    ap.add_argument("--batch", type=int, default=64, help="sequences a step")
    ap.add_argument("--length", type=int, default=CONTEXT, help="tokens of a sequence")
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--no-compile", dest="compile", action="store_false")


def train_and_export(model, config, tok, stream, args, before_export=lambda model: None):
    """Trains, writes args.out, measures, prints samples."""
    device = args.device
    torch.set_float32_matmul_precision("high")
    model.to(device)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"{n_params} parameters, {len(stream)} tokens", flush=True)
    if args.trial:
        args.seconds = 40
    result = dict(parameters=n_params, training_tokens=len(stream),
                  training=train(model, stream, args, device),
                  versions=dict(torch=torch.__version__),
                  device=torch.cuda.get_device_name(0) if device == "cuda" else device)
    if device == "cuda":
        print(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most", flush=True)
    # The exported weights are mostly bf16: measure those, in float32 arithmetic.
    before_export(model)
    export(model, config, args.out)
    torch.set_float32_matmul_precision("highest")
    text = read_text(args.valid)
    parts = dict(valid_first_1MB=first_bytes(text, 1_000_000))
    if not args.trial:
        parts["valid"] = text
    for key, part in parts.items():
        result[key] = evaluate_text(model, tok, part, device)
        print(key, result[key], flush=True)
    write_json(args.out, "training.json", result, indent=1)
    for prompt in PROMPTS:
        print("---", sample(model, tok, prompt, 150, device), flush=True)
