#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small model for the retrieval of lines, on data that this script makes, and measures how
many it retrieves under a running mixd.

    tools/train-retrieval.py --out DIR [--from DIR] [--seconds 120] [--lines 16,32,...,2040]
    tools/train-retrieval.py --ask URL --model NAME [--contexts 4096,8192,16384] [--questions 100]

The task is LongEval's (Li, Shao et al. 2023): a text of many lines "line torrential-kid:
REGISTER_CONTENT is <241069>", then the beginning of one of them up to "<", which the model has to
continue with that line's number. Every adjective-noun pair occurs once in a text.

The model is of the family of SmolLM 3: layers of attention with rope, the last without, so that what
it learns holds at any length. Its training asks for lines of a text in another order and counts the
numbers alone; texts grow by the stages of --lines, the next once 97 % of the numbers of a stage are
right. --from continues with the weights of another run, from the first stage of --lines on. Output: a
folder in Hugging Face form and training.json. Training needs torch (2.9 or later, a GPU), tokenizers
and safetensors; --ask needs Python alone.
"""

import argparse
import json
import os
import random
import time
import urllib.request

FIRST = (
    "able ample angry bald basic blue bold brave brief bright broad calm cheap chief civil clean "
    "clear close cold cool coral crisp cruel curly damp dark dear deep dense dim dry dull eager "
    "early easy empty equal exact faint fair false fast fat few final fine firm flat fond frail "
    "frank free fresh full funny giant glad gold good grand grave gray great green grim half handy "
    "happy hard harsh heavy hollow holy huge humble icy idle inner joint jolly just keen kind lame "
    "large late lazy lean level light little lone long loose loud lucky mild minor moral").split()
SECOND = (
    "acorn actor angel anvil apple apron arch arrow aunt badge baker barn basin basket beach bean "
    "bear bell bench berry bird boat bone book boot bottle bowl box branch bread brick bridge broom "
    "brush bucket cabin cake camel candle canoe card carpet cart castle cat cave chain chair cheese "
    "chest child church circle cliff cloak clock cloud coach coat coin comb copper cord corn cow "
    "crab crane cream crow crown cup curtain daisy dance dawn deer desk dish dog door dove dragon "
    "drum duck eagle ear earth egg elbow engine eye face fan farm feast").split()
BETWEEN = ": REGISTER_CONTENT is <"
END = "<|endoftext|>"
LINE = 8  # tokens of a line: "line ", word, "-", word, BETWEEN, three digits, three digits, ">\n"
NUMBERS = (5, 6)  # which of them are the number
PIECES = r"line |[a-z]+|-|: REGISTER_CONTENT is <|\d{3}|>\n"
SHAPE = dict(width=256, heads=4, kv_heads=2, head_dim=64, ffn=512, context=32768)


def drawn(rng, n):
    """n lines as (adjective, noun, number) with different pairs."""
    pairs = rng.sample(range(len(FIRST) * len(SECOND)), n)
    return [(FIRST[p // len(SECOND)], SECOND[p % len(SECOND)], f"{rng.randrange(10**6):06}")
            for p in pairs]


def beginning(line):
    return f"line {line[0]}-{line[1]}{BETWEEN}"


def whole(line):
    return f"{beginning(line)}{line[2]}>\n"


# ---- training ----


def make_tokenizer():
    """Every piece of a text is one token: byte-level BPE whose merges build them."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers import processors, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    every = FIRST + SECOND + [f"{i:03}" for i in range(1000)] + ["line ", BETWEEN, ">\n"]
    tok.train_from_iterator(every * 2, trainers.BpeTrainer(
        vocab_size=1 << 16, special_tokens=[AddedToken(END)], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A {END} $B", special_tokens=[(END, 0)])
    sample = whole((FIRST[0], SECOND[0], "012345"))
    assert len(tok.encode(sample, add_special_tokens=False).ids) == LINE
    return tok


class Texts:
    """Draws training texts as ids."""

    def __init__(self, tok, seed, device):
        def ids(words):
            encoded = [tok.encode(w, add_special_tokens=False).ids for w in words]
            assert all(len(e) == 1 for e in encoded)
            return torch.tensor([e[0] for e in encoded], device=device)

        self.device = device
        self.gen = torch.Generator(device=device).manual_seed(seed)
        self.first, self.second = ids(FIRST), ids(SECOND)
        self.three = ids([f"{i:03}" for i in range(1000)])
        self.fixed = ids(["line ", "-", BETWEEN, ">\n"])

    def drawn(self, rows, n, most):
        """The first n of a random order of `most` things, for each row."""
        order = torch.rand(rows, most, generator=self.gen, device=self.device)
        return order.topk(n, dim=1).indices

    def batch(self, rows, n, asked):
        """ids [rows, 1 + (n + asked) LINE - 1]: n lines, then `asked` of them in another order."""
        pairs = self.drawn(rows, n, len(self.first) * len(self.second))
        lines = torch.empty((rows, n, LINE), dtype=torch.int64, device=self.device)
        lines[..., [0, 2, 4, 7]] = self.fixed
        lines[..., 1] = self.first[pairs // len(self.second)]
        lines[..., 3] = self.second[pairs % len(self.second)]
        lines[..., NUMBERS] = self.three[torch.randint(
            1000, (rows, n, len(NUMBERS)), generator=self.gen, device=self.device)]
        again = lines.gather(1, self.drawn(rows, asked, n)[..., None].expand(-1, -1, LINE))
        return torch.cat((torch.zeros_like(lines[:, 0, :1]), lines.flatten(1),
                          again.flatten(1)[:, :-1]), 1)


def places(n, asked, device):
    """The places from which the numbers of the `asked` lines behind n lines are predicted."""
    at = 1 + LINE * (n + torch.arange(asked)[:, None]) + torch.tensor(NUMBERS) - 1
    return at.ravel().to(device)


def loss_of(model, x, at):
    """Mean loss of the numbers that are predicted at `at`, and the share of those that are right."""
    h = model(x)
    logits = F.linear(h[:, at], model.embed_tokens.weight.to(h.dtype)).float()
    y = x[:, at + 1]
    right = (logits.detach().argmax(-1) == y).view(len(x), -1, len(NUMBERS)).all(-1)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten()), right.float().mean()


def config_of(vocab, layers):
    s = SHAPE
    return dict(
        architectures=["SmolLM3ForCausalLM"], model_type="smollm3", hidden_size=s["width"],
        intermediate_size=s["ffn"], num_hidden_layers=layers, num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"], head_dim=s["head_dim"],
        no_rope_layers=[1] * (layers - 1) + [0], rope_scaling=None, attention_bias=False,
        mlp_bias=False, max_position_embeddings=s["context"], vocab_size=vocab)


def look_back(model):
    """Has head h of the first layer begin by attending to the token h + 1 before: lines are then told
    apart by what the tokens in front of a number are, and the later layers need to learn no more than
    to match these. One element of the embeddings is a constant for it; all stays free to be learnt."""
    mixer = model.layers[0].self_attn
    d = mixer.d
    inv = 1.0 / demo.THETA ** (torch.arange(0, d, 2).float() / d)
    with torch.no_grad():
        model.embed_tokens.weight[:, 0] = 0.04  # twice the others' deviation
        size, n = 4.0, 6  # n frequencies: slower ones tell no neighbours apart
        for w in (mixer.q_proj.weight, mixer.k_proj.weight):
            w *= 0.02
            w[:, 0] = 0
        for head in range(mixer.kv):
            mixer.k_proj.weight[head * d : head * d + n, 0] = size
        for head in range(mixer.h):
            back = inv[:n] * (head + 1)
            rows = mixer.q_proj.weight[head * d : (head + 1) * d]
            rows[:n, 0], rows[d // 2 : d // 2 + n, 0] = size * back.cos(), -size * back.sin()


def accuracy(model, texts, stages, device):
    """Share of right numbers by tokens of text."""
    found = {}
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        for n in stages:
            asked = min(n, 64)
            x = texts.batch(8, n, asked)
            found[n * LINE] = round(loss_of(model, x, places(n, asked, device))[1].item(), 4)
    return found


def train(args):
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.threads:
        torch.set_num_threads(args.threads)
    tok = make_tokenizer()
    model = demo.attention_model(config_of(tok.get_vocab_size(), args.layers)).to(device)
    if args.origin:
        demo.load_weights(model, args.origin)
    else:
        look_back(model)
    texts = Texts(tok, args.seed, device)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01,
                            fused=device == "cuda")
    stages = [int(n) for n in args.lines.split(",")]
    start, told, step, stage, known, log = time.time(), 0.0, 0, 0, 0.0, []
    while time.time() - start < args.seconds and step != args.steps:
        n = stages[stage]
        done = (time.time() - start) / args.seconds
        for g in opt.param_groups:  # decayed over the last 30 % of the time
            g["lr"] = args.lr * min(1, (step + 1) / 100) * min(1, (1 - done) / 0.3)
        asked = min(n, 512)
        rows = max(1, args.tokens // ((n + asked) * LINE))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss, right = loss_of(model, texts.batch(rows, n, asked), places(n, asked, device))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        step += 1
        if step % 10:
            continue
        known = 0.5 * known + 0.5 * right.item()
        if time.time() - start - told >= 10:
            told = time.time() - start
            log.append((step, n, round(loss.item(), 4), round(known, 4)))
            print(f"step {step}, {n} lines: loss {loss.item():.4f}, right {known:.4f}, {told:.0f} s, "
                  f"by tokens {accuracy(model, texts, stages, device)}", flush=True)
        if known > 0.97 and stage + 1 < len(stages):  # longer texts once these are known
            print(f"step {step}, {n} lines: known, {time.time() - start:.0f} s", flush=True)
            stage, known = stage + 1, 0.0
    write(args, model, tok, dict(
        steps=step, seconds=round(time.time() - start), lines=stages[stage], right=known,
        accuracy=accuracy(model, texts, stages, device), seed=args.seed,
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        torch=torch.__version__, log=log))


def write(args, model, tok, training):
    demo.export(model, config_of(tok.get_vocab_size(), args.layers), args.out)
    tok.save(os.path.join(args.out, "tokenizer.json"))
    demo.write_json(args.out, "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=END, eos_token=END,
        model_max_length=SHAPE["context"]))
    demo.write_json(args.out, "training.json", training)


# ---- measuring ----


def answer(url, key):
    request = urllib.request.Request(url, json.dumps(key).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as r:
        return json.load(r)["choices"][0]["text"]


def ask(args):
    """Prints the share of numbers that are right, by tokens of context. Questions on one text share
    its beginning, which the server keeps."""
    rng = random.Random(args.seed)
    for context in (int(c) for c in args.contexts.split(",")):
        n, right = (context - 32) // LINE, 0
        for q in range(args.questions):
            if q % 20 == 0:
                lines = drawn(rng, n)
                text = "".join(whole(line) for line in lines)
            line = rng.choice(lines)
            got = answer(args.ask + "/v1/completions", dict(
                model=args.model, prompt=text + beginning(line), max_tokens=2, temperature=0))
            right += got == line[2]
        print(f"{context} tokens: {right} of {args.questions} right", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--out")
    ap.add_argument("--from", dest="origin", metavar="DIR", help="continue with the weights of an earlier run")
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--seconds", type=float, default=120)
    ap.add_argument("--steps", type=int, default=-1, help="of training, at most")
    ap.add_argument("--lines", default="16,32,64,128,256,512,1020,2040",
                    help="of texts, one stage after the other")
    ap.add_argument("--tokens", type=int, default=32768, help="of a batch")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--seed", type=int, default=2)
    ap.add_argument("--ask", metavar="URL")
    ap.add_argument("--model", default="retrieval")
    ap.add_argument("--contexts", default="4096,8192,16384")
    ap.add_argument("--questions", type=int, default=100)
    args = ap.parse_args()
    if args.ask:
        ask(args)
        return
    if not args.out:
        ap.error("--out or --ask is needed")
    global F, demo, torch
    import torch
    import torch.nn.functional as F

    import demo_training as demo
    train(args)


if __name__ == "__main__":
    main()
