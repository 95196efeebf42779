#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoints with heads for multi-token prediction in tests/golden/models: copies of the
checkpoints there, with a head of random weights, and heads.json: what it predicts.

    pip install numpy
    tools/export-golden-mtp.py tests/golden/models [NAME...]

The reference is below: the layers in double precision, one token after the other, after DeepSeek-V3
(arXiv:2412.19437, section 2.2) and the models' code in transformers, vLLM and SGLang. It is itself
checked: with the hidden states that the head gets, it must give the log-probabilities that
transformers gave for these checkpoints (expected.json)."""
import argparse
import json
import pathlib
import struct

import numpy as np

LENGTHS = (1, 2, 16, 17, 65, 130)
STEPS = 4            # tokens of the continuation behind which drafts are recorded
DRAFTS = 3
STRIDE = 8           # the log-probabilities of every eighth token are recorded
MIN_MARGIN = 0.01    # nats between a draft and the second token: ten times the tests' tolerance
MAX_ERROR = 1e-4     # of the model's log-probabilities against transformers (in float32)


def read_tensors(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {name: np.frombuffer(data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]],
                                "<f4").reshape(t["shape"]).copy()
            for name, t in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        size = tensors[name].nbytes
        header[name] = dict(dtype="F32", shape=list(tensors[name].shape), data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(tensors[name].astype("<f4").tobytes() for name in sorted(tensors)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def rms(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


class Model:
    """A model whose layers compute one token at a time."""

    def __init__(self, config, tensors):
        self.c = config.get("text_config", config)
        self.root = "model.language_model." if "text_config" in config else "model."
        self.t = {k: v.astype(np.float64) for k, v in tensors.items()}
        self.eps = self.c["rms_norm_eps"]
        self.deepseek = self.c["model_type"] == "deepseek_v3"
        self.plus = 0 if self.deepseek else 1  # Qwen's norms multiply by 1 + w

    def norm(self, name, x):
        return rms(x, self.eps) * (self.plus + self.t[name])

    def linear(self, name, x):
        return self.t[name + ".weight"] @ x

    def mlp(self, name, x):
        gate, up = self.linear(name + ".gate_proj", x), self.linear(name + ".up_proj", x)
        return self.linear(name + ".down_proj", silu(gate) * up)

    def expert(self, name, e, x):
        if name + ".experts.gate_up_proj" not in self.t:
            return self.mlp(f"{name}.experts.{e}", x)
        gate, up = np.split(self.t[name + ".experts.gate_up_proj"][e] @ x, 2)
        return self.t[name + ".experts.down_proj"][e] @ (silu(gate) * up)

    def feed_forward(self, name, x):
        if name + ".gate.weight" not in self.t:
            return self.mlp(name, x)
        c, k = self.c, self.c["num_experts_per_tok"]
        scores = self.t[name + ".gate.weight"] @ x
        if self.deepseek:
            scores = sigmoid(scores)
            choice = scores + self.t[name + ".gate.e_score_correction_bias"]
            groups = np.split(choice, c["n_group"])
            best = np.argsort([-np.sort(g)[-2:].sum() for g in groups])[:c["topk_group"]]
            masked = [g if i in best else np.full_like(g, -np.inf) for i, g in enumerate(groups)]
            chosen = np.argsort(-np.concatenate(masked))[:k]
            weights = scores[chosen] / (scores[chosen].sum() + 1e-20) * c["routed_scaling_factor"]
            shared = self.mlp(name + ".shared_experts", x)
        else:
            scores = softmax(scores)
            chosen = np.argsort(-scores)[:k]
            weights = scores[chosen] / scores[chosen].sum()
            shared = sigmoid(self.linear(name + ".shared_expert_gate", x)) * \
                self.mlp(name + ".shared_expert", x)
        return sum(w * self.expert(name, e, x) for e, w in zip(chosen, weights)) + shared

    # ---- mixers: each takes the layer's state, a dictionary, and a token's position ----

    def delta_net(self, name, state, x):
        c, t = self.c, self.t
        kh, vh = c["linear_num_key_heads"], c["linear_num_value_heads"]
        kd, vd, each = c["linear_key_head_dim"], c["linear_value_head_dim"], vh // kh
        if name + ".in_proj_qkvz.weight" in t:
            rows = self.linear(name + ".in_proj_qkvz", x).reshape(kh, -1)
            q, k, v, z = np.split(rows, np.cumsum([kd, kd, each * vd]), axis=1)
            b, a = (p.ravel() for p in
                    np.split(self.linear(name + ".in_proj_ba", x).reshape(kh, -1), 2, axis=1))
            qkv, z = np.concatenate([q.ravel(), k.ravel(), v.ravel()]), z.reshape(vh, vd)
        else:
            qkv = self.linear(name + ".in_proj_qkv", x)
            z = self.linear(name + ".in_proj_z", x).reshape(vh, vd)
            b, a = self.linear(name + ".in_proj_b", x), self.linear(name + ".in_proj_a", x)
        taps = t[name + ".conv1d.weight"][:, 0]
        window = state.setdefault("window", np.zeros_like(taps))
        window[:, :-1] = window[:, 1:]
        window[:, -1] = qkv
        q, k, v = np.split(silu((window * taps).sum(1)), [kh * kd, 2 * kh * kd])
        unit = lambda m: m / np.sqrt((m * m).sum(-1, keepdims=True) + 1e-6)
        q = np.repeat(unit(q.reshape(kh, kd)), each, 0) / np.sqrt(kd)
        k = np.repeat(unit(k.reshape(kh, kd)), each, 0)
        decay = np.exp(-np.exp(t[name + ".A_log"]) * np.logaddexp(0, a + t[name + ".dt_bias"]))
        s = state.setdefault("s", np.zeros((vh, kd, vd)))
        s *= decay[:, None, None]
        change = (v.reshape(vh, vd) - np.einsum("hkv,hk->hv", s, k)) * sigmoid(b)[:, None]
        s += np.einsum("hk,hv->hkv", k, change)
        y = rms(np.einsum("hkv,hk->hv", s, q), self.eps) * t[name + ".norm.weight"] * silu(z)
        return self.linear(name + ".out_proj", y.ravel())

    @staticmethod
    def attend(state, q, k, v, scale):
        """q, k, v: [heads, dim] of one token; keys and values of earlier ones are in the state."""
        state.setdefault("k", []).append(k)
        state.setdefault("v", []).append(v)
        keys, values = np.stack(state["k"], 1), np.stack(state["v"], 1)
        p = np.einsum("hd,hnd->hn", q, keys) * scale
        p = np.exp(p - p.max(1, keepdims=True))
        return np.einsum("hn,hnd->hd", p / p.sum(1, keepdims=True), values)

    def attention(self, name, state, pos, x):
        c = self.c
        heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        rope = c["rope_parameters"]
        n = int(dim * rope["partial_rotary_factor"])
        angle = pos / rope["rope_theta"] ** (np.arange(0, n, 2) / n)
        cos, sin = np.cos(angle), np.sin(angle)

        def rotate(m):
            a, b = m[:, :n // 2], m[:, n // 2:n]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin, m[:, n:]], 1)

        q, gate = np.split(self.linear(name + ".q_proj", x).reshape(heads, 2 * dim), 2, axis=1)
        k = self.linear(name + ".k_proj", x).reshape(kv, dim)
        v = self.linear(name + ".v_proj", x).reshape(kv, dim)
        q, k = rotate(self.norm(name + ".q_norm.weight", q)), rotate(
            self.norm(name + ".k_norm.weight", k))
        k, v = np.repeat(k, heads // kv, 0), np.repeat(v, heads // kv, 0)
        y = self.attend(state, q, k, v, dim ** -0.5) * sigmoid(gate)
        return self.linear(name + ".o_proj", y.ravel())

    def yarn(self):
        """Inverse frequencies and the factor of scores, as transformers computes them."""
        c, r = self.c, self.c["rope_parameters"]
        dim, base, original = c["qk_rope_head_dim"], r["rope_theta"], r[
            "original_max_position_embeddings"]
        at = lambda turns: dim * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
        low, high = max(np.floor(at(r["beta_fast"])), 0), min(np.ceil(at(r["beta_slow"])), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        freq = base ** -(np.arange(0, dim, 2) / dim)
        factor = (0.1 * r["mscale_all_dim"] * np.log(r["factor"]) + 1) ** 2
        return freq / r["factor"] * ramp + freq * (1 - ramp), factor

    def mla(self, name, state, pos, x):
        c = self.c
        heads, nope, rope, v = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim",
                                               "qk_rope_head_dim", "v_head_dim"))
        freq, factor = self.yarn()
        cos, sin = np.cos(pos * freq), np.sin(pos * freq)

        def rotate(m):
            a, b = m[..., 0::2], m[..., 1::2]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        norm = lambda part, m: rms(m, 1e-6) * self.t[f"{name}.{part}.weight"]
        q = self.linear(name + ".q_b_proj", norm("q_a_layernorm", self.linear(name + ".q_a_proj", x)))
        q = q.reshape(heads, nope + rope)
        latent, shared = np.split(self.linear(name + ".kv_a_proj_with_mqa", x), [c["kv_lora_rank"]])
        kv = self.linear(name + ".kv_b_proj", norm("kv_a_layernorm", latent)).reshape(heads, nope + v)
        q = np.concatenate([q[:, :nope], rotate(q[:, nope:])], 1)
        k = np.concatenate([kv[:, :nope], np.tile(rotate(shared), (heads, 1))], 1)
        y = self.attend(state, q, k, kv[:, nope:], (nope + rope) ** -0.5 * factor)
        return self.linear(name + ".o_proj", y.ravel())

    # ---- layers ----

    def layer(self, name, state, pos, h):
        x = self.norm(name + ".input_layernorm.weight", h)
        if name + ".linear_attn.A_log" in self.t:
            h = h + self.delta_net(name + ".linear_attn", state, x)
        elif self.deepseek:
            h = h + self.mla(name + ".self_attn", state, pos, x)
        else:
            h = h + self.attention(name + ".self_attn", state, pos, x)
        return h + self.feed_forward(name + ".mlp", self.norm(
            name + ".post_attention_layernorm.weight", h))

    def embed(self, token):
        return self.t[self.root + "embed_tokens.weight"][token]

    def step(self, states, token):
        """The normed hidden state of the next token of a sequence."""
        pos = states.setdefault("n", 0)
        states["n"] += 1
        h = self.embed(token)
        for i in range(self.c["num_hidden_layers"]):
            h = self.layer(f"{self.root}layers.{i}", states.setdefault(i, {}), pos, h)
        return self.norm(self.root + "norm.weight", h)

    def logits(self, h):
        return self.t["lm_head.weight"] @ h

    # ---- the head ----

    def head_names(self):
        if self.deepseek:
            at = f"model.layers.{self.c['num_hidden_layers']}"
            return [at] + [f"{at}.{n}" for n in ("eh_proj", "enorm.weight", "hnorm.weight",
                                                 "shared_head.norm.weight")]
        return ["mtp.layers.0"] + ["mtp." + n for n in (
            "fc", "pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight")]

    def head(self, state, pos, token, h):
        """The head's normed hidden state for a token and the hidden state in front of it."""
        layer, projection, embed_norm, hidden_norm, norm = self.head_names()
        x = np.concatenate([self.norm(embed_norm, self.embed(token)), self.norm(hidden_norm, h)])
        return self.norm(norm, self.layer(layer, state, pos, self.linear(projection, x)))


def random_head(model, rng):
    """Tensors of a head: its layer has the shapes of one of the model's."""
    c, t = model.c, model.t
    layer, projection, *norms = model.head_names()
    like = [k.split(".self_attn")[0] for k in t if ".self_attn." in k]
    like = sorted(set(like))[-1]
    shapes = {layer + k[len(like):]: v.shape for k, v in t.items() if k.startswith(like + ".")}
    shapes |= {projection + ".weight": (c["hidden_size"], 2 * c["hidden_size"])}
    shapes |= {name: (c["hidden_size"],) for name in norms}
    if model.deepseek:  # copies, as published
        copies = {layer + ".embed_tokens.weight": t["model.embed_tokens.weight"],
                  layer + ".shared_head.head.weight": t["lm_head.weight"]}
    else:
        copies = {}
    out = {}
    for name, shape in sorted(shapes.items()):
        x = rng.standard_normal(shape)
        if name.endswith("e_score_correction_bias"):
            x *= 0.1
        elif len(shape) == 1:
            x = x * 0.1 + (1 - model.plus)
        else:
            x *= shape[-1] ** -0.5
        out[name] = x.astype(np.float32)
    return out | {k: v.astype(np.float32) for k, v in copies.items()}


def too_close(logits):
    return np.diff(np.sort(logits)[-2:])[0] < MIN_MARGIN


def check(model, case):
    """The model is transformers' within rounding."""
    states, worst = {}, 0
    for i, token in enumerate(case["prompt"][:80]):
        if i:
            worst = max(worst, abs(log_softmax(model.logits(h))[token] - case["logprobs"][i - 1]))
        h = model.step(states, token)
    assert worst < MAX_ERROR, worst
    return worst


def run_case(model, prompt):
    """Drafts behind each of the first tokens of the continuation, and their log-probabilities; None
    if a choice is too close."""
    tokens, states, hidden = [int(t) for t in prompt], {}, []
    while len(hidden) < len(prompt) + STEPS:
        if len(hidden) == len(tokens):
            logits = model.logits(hidden[-1])
            if too_close(logits):
                return None
            tokens.append(int(logits.argmax()))
        hidden.append(model.step(states, tokens[len(hidden)]))
    out = []
    for n in range(len(prompt) + 1, len(tokens) + 1):  # t_(n-1) is not computed yet
        state = {}
        for i in range(1, n):
            g = model.head(state, i - 1, tokens[i], hidden[i - 1])
        drafts = []
        for k in range(DRAFTS):
            logits = model.logits(g)
            if too_close(logits):
                return None
            token = int(logits.argmax())
            drafts.append(dict(token=token, logprobs=[
                round(x, 6) for x in log_softmax(logits)[::STRIDE]]))
            g = model.head(state, n - 1 + k, token, g)
        out.append(drafts)
    return dict(prompt=tokens[:len(prompt)], greedy=tokens[len(prompt):], drafts=out)


def export(root, name):
    source, target = root / name, root / (name + "-mtp")
    config = json.loads((source / "config.json").read_text())
    tensors = {k: v for k, v in read_tensors(source / "model.safetensors").items()
               if not k.startswith("mtp.") and ".eh_proj." not in k and ".visual." not in k}
    rng = np.random.default_rng(list(name.encode()))
    bare = Model(config, tensors)
    expected = json.loads((source / "expected.json").read_text())["cases"]
    worst = max(check(bare, case) for case in expected[:6])
    tensors |= random_head(bare, rng)
    model = Model(config, tensors)
    cases = []
    for length in LENGTHS:
        case = None
        while not case:
            case = run_case(model, rng.integers(0, model.c["vocab_size"], length))
        cases.append(case)
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(target / "model.safetensors", tensors)
    (target / "heads.json").write_text(json.dumps(dict(stride=STRIDE, cases=cases)) + "\n")
    print(f"{name}: the model's error is {worst:.1e}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("root", type=pathlib.Path)
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    for name in a.names or ("deepseek_v3", "qwen3_5", "qwen3_5_moe", "qwen3_next"):
        export(a.root, name)


if __name__ == "__main__":
    main()
