#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The golden checkpoints, many in one process, through the API: prompts scored with echo and logprobs,
and greedy continuations, against the reference (tests/golden/models/README.md)."""
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from harness import SRC, Mixd, check_error, main

GOLDEN = os.path.join(SRC, "tests/golden/models")
# Log-probabilities; with 16-bit weights keys and values are kept in bf16, and a product with bf16
# weights may round its input to bf16 (ARCHITECTURE.md). These tiny models amplify it.
BAR, BAR_16 = 1e-3, 1e-1


def byte_pieces():
    """GPT-2's printable stand-ins for the bytes: a vocabulary for checkpoints that have none."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = (chr(256 + i) for i in range(256))
    return [chr(b) if b in keep else next(other) for b in range(256)]


def with_tokenizer(name, folder):
    """A folder with the checkpoint's files and, if it has no tokenizer, a byte-level one."""
    source, target = os.path.join(GOLDEN, name), os.path.join(folder, name)
    os.mkdir(target)
    for f in os.listdir(source):
        os.symlink(os.path.join(source, f), os.path.join(target, f))
    if os.path.exists(os.path.join(source, "tokenizer_config.json")):
        return target
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
        vocab = config.get("text_config", config)["vocab_size"]
    model = dict(type="BPE", vocab={p: i for i, p in enumerate(byte_pieces()[:vocab])}, merges=[])
    level = dict(type="ByteLevel", add_prefix_space=False, use_regex=True, trim_offsets=True)
    with open(os.path.join(target, "tokenizer.json"), "w") as f:
        json.dump(dict(version="1.0", added_tokens=[], normalizer=None, pre_tokenizer=level,
                       post_processor=None, decoder=level, model=model), f)
    return target


def check_case(s, name, case, bar):
    prompt = case["prompt"]
    scored = s.complete(model=name, prompt=prompt, max_tokens=0, echo=True, logprobs=1)
    got = scored["choices"][0]["logprobs"]["token_logprobs"]
    assert len(got) == len(prompt) and got[0] is None, (name, len(prompt), got[:3])
    worst = max((abs(a - b) for a, b in zip(got[1:], case["logprobs"])), default=0)
    # room for these tokens must be left by the model's context
    more = s.complete(model=name, prompt=prompt, max_tokens=len(case["greedy"]), temperature=0,
                      logprobs=1, return_token_ids=True, ignore_eos=True)["choices"][0]
    if bar == BAR:
        assert more["token_ids"] == case["greedy"], (name, len(prompt), more["token_ids"])
        worst = max(worst, max(abs(a - b) for a, b in
                               zip(more["logprobs"]["token_logprobs"], case["greedy_logprobs"])))
    assert worst < bar, (name, len(prompt), worst)
    return worst


def check_dna(s):
    """HyenaDNA's characters are its tokens; no [SEP] stands after a prompt. Special tokens, and ids
    that only padding has made, are no text."""
    pieces = {5: "[RESERVED]"} | {7 + i: c for i, c in enumerate("ACGTN")}
    ask = lambda prompt, **more: s.complete(
        model="hyenadna", prompt=prompt, max_tokens=30, temperature=0, return_token_ids=True,
        ignore_eos=True, **more)["choices"][0]
    from_text, from_ids = ask("GATTACA", echo=True), ask([9, 7, 10, 10, 7, 8, 7])
    ids = from_ids["token_ids"]
    assert from_text["token_ids"] == ids, (from_text, from_ids)
    text = "".join(pieces.get(i, "") for i in ids)
    assert text and from_text["text"] == "GATTACA" + text, (from_text, text)


def check_all_stops(s):
    """Stop tokens are banned before min_tokens. If they are the whole of HyenaDNA's small vocabulary,
    nothing is left to draw: that is the client's fault."""
    ask = lambda n: s.post("/v1/completions", dict(model="hyenadna", prompt=[9, 7], max_tokens=5,
                                                   min_tokens=3, stop_token_ids=list(range(n))))
    assert ask(15)[0] == 200
    check_error(ask(16), 400, "invalid_value", "stop_token_ids", "cannot be reached")


SERVED = 32  # models of one process; a configuration has at most 64


def check_models(names, folder, pool):
    s = Mixd({n: with_tokenizer(n, folder) for n in names}, max_sequences=4)
    try:
        for name in names:
            with open(os.path.join(GOLDEN, name, "expected.json")) as f:
                cases = json.load(f)["cases"]
            bar = BAR_16 if name.endswith("f16") else BAR
            check = lambda c: check_case(s, name, c, bar)
            worst = max([*map(check, cases), *pool.map(check, cases)])  # alone, then in a batch
            print(f"{name:16} worst error {worst:.1e}")
        if "hyenadna" in names:
            check_dna(s)
            check_all_stops(s)
        s.stop()
    finally:
        if s.process.poll() is None:
            s.process.kill()


def test_every_family():
    # those that round activations to 8 bits have a bar of their own (tests/engine/test_golden)
    names = sorted(n for n in os.listdir(GOLDEN) if not n.startswith("quant-") and "mxfp4" not in n and
                   all(os.path.exists(os.path.join(GOLDEN, n, f)) for f in ("config.json", "expected.json")))
    assert len(names) >= 80
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        for first in range(0, len(names), SERVED):
            check_models(names[first:first + SERVED], folder, pool)


if __name__ == "__main__":
    main(sys.modules[__name__])
