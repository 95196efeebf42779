#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests that must be refused, each with its status and OpenAI's shape."""
import json
import socket
import sys

from harness import PATIENCE, Mixd, Thread, check_error, main, server

JSON = {"Content-Type": "application/json"}


@server(models=2)
def test_bodies(s):
    post = lambda body, **kw: s.request("POST", "/v1/completions", body, dict(JSON, **kw))
    check_error(post(b""), 400, "invalid_json", contains="empty")
    check_error(post(b'{"model":\n  nope}'), 400, "invalid_json", contains="line 2, column 6")
    check_error(post(b'{"model":"fake","prompt":"\xff"}'), 400, "invalid_json")
    check_error(post(b'[]'), 400, "invalid_type")
    check_error(post(b'{"prompt":"a"}'), 400, "missing_required_parameter", "model")
    check_error(post(b'{"model":"nobody","prompt":"a"}'), 404, "model_not_found", "model")
    check_error(post(b'{"model":"fake"}'), 400, "missing_required_parameter", "prompt")
    check_error(post(b'{"model":"fake","prompt":"a","temperature":"hot"}'), 400, "invalid_type",
                "temperature")
    check_error(post(b'{"model":"fake","prompt":"a","top_p":2}'), 400, "invalid_value", "top_p")
    check_error(post(b"[" * 100000), 400, "invalid_json")


@server()
def test_types_of_bodies(s):
    body = b' {"prompt":"a","max_tokens":1}'
    form = "application/x-www-form-urlencoded"
    post = lambda type, body=body, **more: s.request(
        "POST", "/v1/completions", body, dict({"Content-Type": type} if type else {}, **more))
    # a missing type, parameters and letter case do no harm; curl -d names a form
    for type in (None, "application/json; charset=utf-8", "Application/JSON", form,
                 form + "; charset=UTF-8"):
        assert post(type)[0] == 200, type
    for type, text in ((form, b"a=b"), (form, b""), ("text/plain", body), ("text/json", body),
                       ("application/jsonl", body), ("multipart/form-data; boundary=x", body)):
        check_error(post(type, text), 415, "unsupported_media_type",
                    contains="Content-Type: application/json")
    # a page of another site can make a browser send these without asking, but not JSON
    for type in (None, form, "text/plain"):
        check_error(post(type, Origin="https://example.org"), 415, "unsupported_media_type")
    assert post("application/json", Origin="https://example.org")[0] == 200


@server()
def test_values_that_need_the_model(s):
    post = lambda **f: s.post("/v1/completions", f)
    check_error(post(prompt=[1, 10 ** 6]), 400, "invalid_value", "prompt")
    check_error(post(prompt="a", logit_bias={"1000000": 1}), 400, "invalid_value", "logit_bias")
    check_error(post(prompt="a", stop_token_ids=[10 ** 6]), 400, "invalid_value", "stop_token_ids")
    # integers beyond 64 bits matter only where they are read
    assert post(prompt="a", max_tokens=1, metadata={"id": 10 ** 25})[0] == 200
    check_error(post(prompt="a", seed=2 ** 63), 400, "invalid_value", "seed", "between")
    check_error(post(prompt="", add_special_tokens=False), 400, "invalid_value", "prompt")
    check_error(post(prompt=["a"] * 100, n=100), 400, "invalid_value", "n")


@server()
def test_fields_that_nobody_knows(s):
    post = lambda **f: s.post("/v1/completions", dict(prompt="a", max_tokens=1, **f))
    check_error(post(temperatur=0.5), 400, "unknown_parameter", "temperatur",
                "did you mean 'temperature'?")
    check_error(post(stream=True, stream_options={"include_usages": True}), 400,
                "unknown_parameter", "stream_options.include_usages", "'include_usage'")
    check_error(post(use_beam_search=True), 400, "unsupported_parameter", "use_beam_search")
    check_error(s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}],
                                                "max_token": 5}),
                400, "unknown_parameter", "max_token", "'max_tokens'")
    check_error(s.post("/tokenize", {"promt": "a"}), 400, "unknown_parameter", "promt", "'prompt'")
    check_error(s.post("/detokenize", {"tokens": [1], "skip": True}), 400, "unknown_parameter",
                "skip")


@server(Mixd, http=", unknown_fields: warn")
def test_unknown_fields_may_be_let_through(s):
    ask = dict(prompt="a", max_tokens=3, seed=1)
    plain = s.complete(**ask)["choices"]
    for i in range(20):
        assert s.complete(temperatur=0.5, **ask)["choices"] == plain
    # what changes the meaning is refused nevertheless
    check_error(s.post("/v1/completions", dict(ask, use_beam_search=True)), 400,
                "unsupported_parameter", "use_beam_search")
    s.wait_for(lambda: "temperatur" in s.errors(), "a warning")
    lines = [l for l in s.errors().splitlines() if "unknown field 'temperatur'" in l]
    # one in ten seconds, and the twenty requests take less than a hundred
    assert 1 <= len(lines) <= 10 and "did you mean 'temperature'?" in lines[0], lines


@server(Mixd)
def test_extreme_values(s):
    """At the ends of its range and beyond them no parameter gives 500 or a log-probability that is
    not a number."""
    tiny, huge = (0.0, -0.0, 1e-320, 1e-45, 1e-38, 1e-9), (1e38, 1e300, 2 ** 70)
    names = ("temperature", "top_p", "min_p", "top_k", "presence_penalty", "frequency_penalty",
             "repetition_penalty", "repeat_penalty", "logit_bias", "seed", "priority", "n",
             "min_tokens", "logprobs")
    middle = (0.01, 0.5, 1, 2, 20, 100, 2 ** 31 - 1, 2 ** 63 - 1)
    taken = {name: [] for name in names}
    for name in names:
        for x in tiny + middle + huge:
            for value in (x, -x):
                field = {name: {"5": value, "300": -value} if name == "logit_bias" else value}
                ask = dict(prompt="a b a b", max_tokens=4, ignore_eos=True, seed=1, logprobs=2,
                           temperature=0.7)
                status, _, body = s.post("/v1/completions", dict(ask, **field))
                assert status in (200, 400), (field, body)
                if status == 200:
                    taken[name].append(value)
                    assert "null" not in json.dumps(body["choices"][0]["logprobs"]), (field, body)
                else:
                    check_error((status, None, body), 400, param=name)
    assert all(taken.values()), taken
    assert min(taken["repetition_penalty"]) == 0.01, taken["repetition_penalty"]
    # numbers that no type holds, in a field that is read and in one that is not
    body = '{"prompt":"a","max_tokens":1,"%s":%s}'
    for number in ("9" * 400, "-" + "9" * 400, "1e999", "-1E+999"):
        for name in names:
            value = '{"5":%s}' % number if name == "logit_bias" else number
            answer = s.request("POST", "/v1/completions", body % (name, value), JSON)
            check_error(answer, 400, "invalid_value", name)
        assert s.request("POST", "/v1/completions", body % ("user", number), JSON)[0] == 200
    chat = '{"messages":[{"role":"user","content":"a","x":%s}],"max_tokens":1}' % ("9" * 400)
    check_error(s.request("POST", "/v1/chat/completions", chat, JSON), 400, "invalid_value",
                "messages", "'x'")


@server()
def test_cache_salt(s):
    post = lambda salt: s.post("/v1/completions", dict(prompt="a", max_tokens=1, cache_salt=salt))
    assert post("x" * 1024)[0] == 200
    for bad in ("x" * 1025, "x" * 100000, "", "a\0b", "\0"):
        check_error(post(bad), 400, "invalid_value", "cache_salt")


@server(context=128)
def test_context(s):
    ids = list(range(300, 400))
    post = lambda **f: s.post("/v1/completions", f)
    e = check_error(post(prompt=ids, max_tokens=29), 400, "context_length_exceeded")
    assert (e["n_prompt_tokens"], e["n_ctx"]) == (100, 128), e
    assert "128" in e["message"] and "129" in e["message"]
    assert post(prompt=ids, max_tokens=28)[0] == 200
    e = check_error(post(prompt=ids + ids), 400, "context_length_exceeded")
    assert (e["n_prompt_tokens"], e["n_ctx"]) == (200, 128), e
    e = check_error(post(prompt="word " * 1000), 400, "context_length_exceeded")
    assert e["n_prompt_tokens"] > 128
    # the API's default of 16 tokens is cut to what fits; a full context leaves room for none
    body = s.complete(prompt=ids + ids[:20])
    assert body["usage"]["completion_tokens"] == 8
    assert s.complete(prompt=ids + ids[:20], max_tokens=None)["usage"]["completion_tokens"] == 8
    check_error(post(prompt=ids + ids[:28]), 400, "context_length_exceeded")
    assert post(prompt=ids + ids[:28], max_tokens=0, echo=True)[0] == 200
    # absurd prompts are refused without being tokenised
    check_error(post(prompt="x" * 4000000), 400, "context_length_exceeded")


@server(max_body=100000)
def test_large_bodies(s):
    fits = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 99000})
    assert s.request("POST", "/v1/completions", fits, JSON)[0] == 200
    # announced, and sent before anything is read
    check_error(s.request("POST", "/v1/completions", b"x" * 100001, JSON), 413,
                "request_too_large")
    check_error(s.request("POST", "/v1/completions", b"x" * 5000000, JSON), 413)
    # chunked, without a length
    c = s.connect()
    chunks = (b"y" * 10000 for _ in range(30))
    c.request("POST", "/v1/completions", chunks, JSON, encode_chunked=True)
    assert c.getresponse().status == 413
    c.close()
    # a client that asks first is told before it sends
    raw = socket.create_connection((s.host, s.port))
    raw.settimeout(PATIENCE)
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n"
                b"Expect: 100-continue\r\n\r\n")
    assert raw.recv(1000).startswith(b"HTTP/1.1 413")
    raw.close()


@server(sequences=1, queue=2, step_ns=20000000)
def test_full_queue(s):
    """Of eight while one runs, two find a place and six are refused at once."""
    held = s.stream(prompt="a", max_tokens=2000, ignore_eos=True)
    s.wait_metric("running", 1)
    threads = [Thread(s.post, "/v1/completions", {"prompt": "a", "max_tokens": 20})
               for _ in range(8)]
    s.wait_for(lambda: sum(t.is_alive() for t in threads) == 2, "six answers")
    s.wait_metric("waiting", 2)
    held.abort()
    answers = [t.join() for t in threads]
    assert sorted(a[0] for a in answers) == [200] * 2 + [503] * 6
    for a in answers:
        if a[0] != 200:
            check_error(a, 503, "server_overloaded")
    assert s.metric("cancelled_total") == 1
    # a list of prompts is taken whole or not at all, and one that never fits is no matter of time
    check_error(s.post("/v1/completions", {"prompt": ["a"] * 10, "max_tokens": 20}), 400,
                "invalid_value", "prompt", "more than the 3 that fit")
    check_error(s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}],
                                                "n": 4}), 400, "invalid_value", "n")
    assert s.post("/v1/completions", {"prompt": ["a"] * 3, "max_tokens": 2})[0] == 200
    held = s.stream(prompt="a", max_tokens=2000, ignore_eos=True)
    check_error(s.post("/v1/completions", {"prompt": ["a"] * 3, "max_tokens": 2}), 503,
                "server_overloaded")
    assert s.metric("cancelled_total") == 1
    held.abort()
    s.wait_metric("running", 0)
    s.wait_metric("waiting", 0)


@server(sequences=16, queue=8, step_ns=20000000)
def test_idle_sequences_are_places_too(s):
    threads = [Thread(s.post, "/v1/completions", {"prompt": "a", "max_tokens": 20})
               for _ in range(24)]
    answers = [t.join()[0] for t in threads]
    assert answers == [200] * 24, answers


main(sys.modules[__name__])
