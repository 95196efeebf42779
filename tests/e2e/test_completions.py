#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a completion contains: forms of prompts, choices, stops, log-probabilities, usage."""
import json
import os
import shutil
import sys
import tempfile

from harness import DEMO, SRC, Frontend, check_error, main, server


def tokens_of(s, text, **kw):
    return s.post("/tokenize", dict(prompt=text, **kw))[2]["tokens"]


@server()
def test_forms_of_prompts(s):
    text = "The quick brown fox"
    ids = tokens_of(s, text)
    a = s.complete(prompt=text, seed=5, max_tokens=12)
    b = s.complete(prompt=ids, seed=5, max_tokens=12)
    assert a["choices"] == b["choices"]
    assert a["object"] == "text_completion" and a["id"].startswith("cmpl-") and a["model"] == "fake"
    both = s.complete(prompt=[text, "Another"], seed=5, max_tokens=12)
    assert [c["index"] for c in both["choices"]] == [0, 1]
    assert both["choices"][0]["text"] == a["choices"][0]["text"]
    lists = s.complete(prompt=[ids, tokens_of(s, "Another")], seed=5, max_tokens=12)
    assert lists["choices"] == both["choices"]
    assert both["usage"]["prompt_tokens"] == len(ids) + len(tokens_of(s, "Another"))
    assert both["usage"]["completion_tokens"] == 24
    assert s.complete(prompt=text)["usage"]["completion_tokens"] == 16


@server()
def test_seeds_and_choices(s):
    ask = lambda **kw: [c["text"] for c in s.complete(prompt="Once", max_tokens=10, **kw)["choices"]]
    assert ask(seed=7) == ask(seed=7)
    assert ask(seed=7) != ask(seed=8)
    assert ask() != ask()
    assert ask(temperature=0) == ask(temperature=0)
    three = ask(seed=7, n=3)
    assert len(set(three)) == 3
    # choice j of a seed is what seed + j gives alone, whatever else is in the request
    assert three == ask(seed=7) + ask(seed=8) + ask(seed=9)
    many = s.complete(prompt=["Once", "Twice"], n=3, seed=7, max_tokens=10)
    assert [c["text"] for c in many["choices"]][:3] == three
    assert [c["index"] for c in many["choices"]] == list(range(6))
    assert many["usage"]["completion_tokens"] == 60


@server()
def test_stop_strings_across_tokens(s):
    base = s.complete(prompt="stop", seed=3, max_tokens=40, return_token_ids=True)["choices"][0]
    text, ids = base["text"], base["token_ids"]
    assert len(ids) == 40 and base["finish_reason"] == "length" and base["stop_reason"] is None
    pieces = s.post("/detokenize", {"tokens": ids})[2]["text"]
    assert pieces == text
    checked = 0
    for start in range(0, len(text) - 9, 3):
        for length in (1, 2, 5, 9):
            stop = text[start:start + length]
            if "\ufffd" in stop:
                continue
            at = text.find(stop)
            ask = dict(prompt="stop", seed=3, max_tokens=40, stop=[stop, "\0never"])
            c = s.complete(**ask)["choices"][0]
            assert c["text"] == text[:at], (stop, c["text"], text[:at])
            assert c["finish_reason"] == "stop" and c["stop_reason"] == stop, c
            c = s.complete(include_stop_str_in_output=True, **ask)["choices"][0]
            assert c["text"] == text[:at + length], (stop, c["text"])
            checked += 1
    assert checked > 20, checked
    # the earliest end wins, a stop that never comes changes nothing
    first = s.complete(prompt="stop", seed=3, max_tokens=40, stop=[text[20:24], text[3:6]])
    assert first["choices"][0]["text"] == text[:min(text.find(text[20:24]), text.find(text[3:6]))]
    same = s.complete(prompt="stop", seed=3, max_tokens=40, stop=text[-3:] + "zzz")
    assert same["choices"][0]["text"] == text


@server()
def test_generation_ends_at_the_stop(s):
    base = s.complete(prompt="stop", seed=3, max_tokens=200)["choices"][0]["text"]
    used = s.complete(prompt="stop", seed=3, max_tokens=200, stop=base[4:8])["usage"]
    assert used["completion_tokens"] < 20, used


@server()
def test_stop_tokens(s):
    ids = s.complete(prompt="a", seed=1, max_tokens=30, return_token_ids=True)["choices"][0][
        "token_ids"]
    stop = ids[10]
    n = ids.index(stop) + 1
    c = s.complete(prompt="a", seed=1, max_tokens=30, stop_token_ids=[stop], return_token_ids=True)
    choice = c["choices"][0]
    assert choice["token_ids"] == ids[:n] and c["usage"]["completion_tokens"] == n
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    # the stop token's own text is not part of the answer
    assert choice["text"] == s.post("/detokenize", {"tokens": ids[:n - 1]})[2]["text"]
    c = s.complete(prompt="a", seed=1, max_tokens=30, stop_token_ids=[stop], min_tokens=20,
                   return_token_ids=True)["choices"][0]
    assert stop not in c["token_ids"][:20]


@server(eos_one_in=8)
def test_end_of_text(s):
    answers = [s.complete(prompt="a", seed=i, max_tokens=60) for i in range(12)]
    ended = [a for a in answers if a["choices"][0]["finish_reason"] == "stop"]
    assert ended and all(a["choices"][0]["stop_reason"] is None for a in ended)
    assert all(a["usage"]["completion_tokens"] <= 60 for a in answers)
    assert any(a["usage"]["completion_tokens"] < 60 for a in ended)
    a = s.complete(prompt="a", seed=1, max_tokens=60, ignore_eos=True)
    assert a["usage"]["completion_tokens"] == 60
    a = s.complete(prompt="a", seed=1, max_tokens=60, min_tokens=40)
    assert a["usage"]["completion_tokens"] >= 40


@server()
def test_echo_and_legacy_logprobs(s):
    """The arrays as lm-eval reads them."""
    text = "The naïve 😀 fox\n jumps"
    ids = tokens_of(s, text)
    c = s.complete(prompt=text, echo=True, logprobs=2, max_tokens=3, seed=1)["choices"][0]
    lp = c["logprobs"]
    n = len(ids) + 3
    assert all(len(lp[k]) == n for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert c["text"].startswith(text)
    for token, value, top, offset in list(zip(*[lp[k] for k in (
            "tokens", "token_logprobs", "top_logprobs", "text_offset")]))[1:]:
        assert top[token] == value and 1 <= len(top) <= 3, (token, value, top)
        if not token.startswith("bytes:"):
            assert c["text"][offset:offset + len(token)] == token, (token, offset)
    scored = s.complete(prompt=text, echo=True, logprobs=2, max_tokens=0)
    assert scored["choices"][0]["text"] == text
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == lp["token_logprobs"][:len(ids)]
    assert scored["usage"]["completion_tokens"] == 0
    by_ids = s.complete(prompt=ids, echo=True, logprobs=2, max_tokens=0)["choices"]
    assert by_ids == scored["choices"]
    # without echo the arrays are those of the answer, and its offsets begin at 0
    c2 = s.complete(prompt=text, logprobs=0, max_tokens=3, seed=1)["choices"][0]
    assert c2["logprobs"]["token_logprobs"] == lp["token_logprobs"][len(ids):]
    assert c2["logprobs"]["text_offset"][0] == 0
    assert all(len(t) == 1 for t in c2["logprobs"]["top_logprobs"])
    assert s.complete(prompt=text, max_tokens=1)["choices"][0]["logprobs"] is None
    assert s.text(prompt=text, echo=True, max_tokens=1, seed=1).startswith(text)


@server()
def test_cached_tokens_are_reported(s):
    ids = list(range(300, 400))
    first = s.complete(prompt=ids, max_tokens=1)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    again = s.complete(prompt=ids, max_tokens=1)["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == 96, again  # whole pages of 16
    salted = s.complete(prompt=ids, max_tokens=1, cache_salt="x")["usage"]
    assert salted["prompt_tokens_details"]["cached_tokens"] == 0


@server()
def test_harmless_fields_are_ignored(s):
    plain = s.text(prompt="a", seed=1, max_tokens=5)
    assert plain == s.text(prompt="a", seed=1, max_tokens=5, user="u", metadata={"x": [1]}, n=None,
                           stop=None, logprobs=None, best_of=1, suffix=None, use_beam_search=False,
                           cache_prompt=True, prompt_logprobs=None, frob=None)


def test_texts_that_the_tokenizer_refuses():
    """A hostile or broken regex in tokenizer.json is told as what it is, not as a long text."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(DEMO, name), folder)
        path = os.path.join(folder, "tokenizer.json")
        with open(path) as f:
            config = json.load(f)
        split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated",
                 "invert": False}
        config["pre_tokenizer"] = {"type": "Sequence",
                                   "pretokenizers": [split, config["pre_tokenizer"]]}
        with open(path, "w") as f:
            json.dump(config, f)
        s = Frontend(tokenizer=folder)
        text = "a" * 4000 + "!"
        for path, ask in (("/tokenize", {"prompt": text}), ("/v1/completions", {"prompt": text}),
                          ("/v1/chat/completions",
                           {"messages": [{"role": "user", "content": text}]})):
            e = check_error(s.post(path, ask), 400, "invalid_value", contains="refuses this text")
            assert "regex" in e["message"] and "tokens" not in e["message"], e
        assert s.post("/tokenize", {"prompt": "short"})[0] == 200
        s.stop()


def test_other_tokenizers():
    """Byte-level and SentencePiece-style: text, offsets and streams agree, and an answer that
    continues a text keeps its leading space."""
    text = "The naïve 😀 fox\n jumps"
    for name in ("gpt2", "llama2", "llama3", "mistral", "gemma", "qwen2"):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(SRC, f"tests/golden/tokenizer/{name}.json"),
                        os.path.join(folder, "tokenizer.json"))
            s = Frontend(tokenizer=folder)
        for seed in range(4):
            ask = dict(prompt=text, max_tokens=12, seed=seed)
            c = s.complete(echo=True, logprobs=2, **ask)["choices"][0]
            assert c["text"].startswith(text), (name, c["text"])
            lp = c["logprobs"]
            assert lp["text_offset"] == sorted(lp["text_offset"]), (name, lp["text_offset"])
            alone = s.complete(logprobs=0, **ask)["choices"][0]
            assert c["text"] == text + alone["text"], (name, c["text"], alone["text"])
            first = alone["logprobs"]["tokens"][0]
            if first.startswith(" "):
                assert alone["text"].startswith(" "), (name, alone)
            streamed = "".join(d["text"] for e in s.stream(**ask) for d in e["choices"])
            assert streamed == alone["text"], (name, streamed, alone["text"])
        s.stop()


main(sys.modules[__name__])
