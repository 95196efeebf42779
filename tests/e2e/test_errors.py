#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests that must be refused, each with its status and OpenAI's shape."""
import json
import socket
import sys

from harness import PATIENCE, Thread, check_error, main, server

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
    check_error(s.request("POST", "/v1/completions", b"a=b",
                          {"Content-Type": "application/x-www-form-urlencoded"}),
                415, "unsupported_media_type")
    # a missing content type, parameters and letter case do no harm
    body = b'{"model":"fake","prompt":"a","max_tokens":1}'
    for type in (None, "application/json; charset=utf-8", "Application/JSON"):
        headers = {"Content-Type": type} if type else {}
        assert s.request("POST", "/v1/completions", body, headers)[0] == 200


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
