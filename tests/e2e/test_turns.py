#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A chat on a model with recurrent layers: each turn computes what is new, and says the same as
without a prefix cache."""
import contextlib
import json
import os
import re
import sys
import tempfile

from harness import Mixd, main
from test_check import run
from test_golden_api import with_tokenizer

TURNS, ANSWER = 6, 11
TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")
# Gated linear attention with one layer of attention; recurrent layers alone.
MODELS = ["gla-attn", "gla-conv"]


def with_template(name, folder):
    path = with_tokenizer(name, folder)
    with open(os.path.join(path, "tokenizer_config.json"), "w") as f:
        json.dump({"chat_template": TEMPLATE}, f)
    return path


@contextlib.contextmanager
def served(models, **options):
    server = Mixd(models, **options)
    try:
        yield server
        server.stop()
    finally:
        if server.process.poll() is None:
            server.process.kill()


def chat(server, model):
    """[(answer, prompt tokens, tokens of it not computed)] of each turn."""
    messages, out = [{"role": "system", "content": "Answer in one word, with its reason."}], []
    only_letters = {str(t): -100 for t in range(128) if not chr(t).isalpha()}
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"What is {turn}?"})
        body = server.complete("/v1/chat/completions", model=model, messages=messages,
                               max_completion_tokens=ANSWER, temperature=0, ignore_eos=True,
                               logit_bias=only_letters)
        answer, usage = body["choices"][0]["message"]["content"], body["usage"]
        assert usage["completion_tokens"] == ANSWER == len(answer), body
        messages.append({"role": "assistant", "content": answer})
        out.append((answer, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    return out


def outcomes(server, model):
    _, _, text = server.get("/metrics")
    found = re.findall(r'mixd_prefix_cache_lookups_total\{model_name="%s",engine="0",outcome="(\w+)"\}'
                       r' (\d+)' % model, text.decode())
    return {k: int(v) for k, v in found if v != "0"}


def test_a_turn_computes_what_is_new():
    with tempfile.TemporaryDirectory() as folder:
        models = {name: with_template(name, folder) for name in MODELS}
        with served(models, max_sequences=4) as s:
            with_cache = {name: chat(s, name) for name in MODELS}
            for name in MODELS:
                said = with_cache[name]
                assert said[0][2] == 0, said
                for before, now in zip(said, said[1:]):
                    # the last token of an answer is drawn and not computed
                    assert now[2] == before[1] + ANSWER - 1, (name, said)
                assert outcomes(s, name) == {"miss": 1, "hit": TURNS - 1}, outcomes(s, name)
            assert s.metric("vllm:prefix_cache_hits_total") == \
                sum(cached for said in with_cache.values() for _, _, cached in said)
            # the last ones are saved behind the end of the answer
            s.wait_metric("mixd_snapshot_saves_total", len(MODELS) * 2 * TURNS)
            assert s.metric("mixd_snapshots") == len(MODELS) * 2 * 4
        for keys in (", prefix_cache: false", ", snapshot_memory: 0"):
            with served(models, keys=keys, max_sequences=4) as s:
                for name in MODELS:
                    said = chat(s, name)
                    assert [answer for answer, _, _ in said] == [a for a, _, _ in with_cache[name]]
                    assert all(cached == 0 for _, _, cached in said), said
                    assert outcomes(s, name) == {}


def test_the_plan_counts_snapshots():
    with tempfile.TemporaryDirectory() as folder:
        path = with_template("gla-attn", folder)
        rc, text = run(path)
        assert rc == 0 and re.search(r"snapshots .* MiB  128, \d+ bytes each, also every \d+ tokens",
                                     text), text
        rc, text = run(path, keys=", snapshot_memory: 1MiB, snapshot_every: 0")
        assert rc == 0 and re.search(r"snapshots +1\.0 MiB  \d+, \d+ bytes each\n", text), text
        rc, text = run(path, keys=", snapshot_memory: 0")
        assert rc == 0 and "snapshots" not in text, text
        rc, text = run(path, keys=", snapshot_memory: 1kB")
        assert rc == 1 and "snapshot_memory: a saved state of this model takes" in text, text
        rc, text = run(path, keys=", snapshot_every: 1, page_tokens: 33")
        assert rc == 0 and "warning: snapshot_every is so short" in text, text
        assert "page_tokens 33 is rounded up to what the mixers can do: 64" in text, text


def test_a_model_without_pages_has_none():
    with tempfile.TemporaryDirectory() as folder:
        with served({"gla-conv": with_template("gla-conv", folder)}, max_sequences=4) as s:
            chat(s, "gla-conv")
            for name in ("pages", "pages_used", "pages_cached", "pages_free", "page_tokens"):
                assert s.metric(f"mixd_{name}") == 0, name
            assert s.metric("mixd_slots") == 4
            assert s.metric("vllm:kv_cache_usage_perc") == 0
            assert "MiB of weights, no pages, 4 slots in" in s.errors()


if __name__ == "__main__":
    main(sys.modules[__name__])
