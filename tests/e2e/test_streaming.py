#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: their order, their sum, and what keeps a silent stream alive."""
import json
import socket
import sys

from harness import PATIENCE, check_error, main, server


def join(events, index=0):
    """Text and last finish reason of a choice."""
    text, reason = "", None
    for e in events:
        for c in e["choices"]:
            if c["index"] == index:
                assert reason is None, "a choice goes on after its end"
                text += c["text"]
                reason = c["finish_reason"]
    return text, reason


@server(step_ns=1000000)
def test_stream_equals_whole_answer(s):
    for fields in ({}, {"n": 3}, {"stop": [" the", "e"]}, {"echo": True, "logprobs": 1},
                   {"logprobs": 3}, {"return_token_ids": True}, {"prompt": ["a", "b"], "n": 2}):
        ask = dict({"prompt": "Stream", "seed": 11, "max_tokens": 30}, **fields)
        whole = s.complete(**ask)
        stream = s.stream(**ask)
        events = list(stream)
        assert stream.done
        assert stream.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["Cache-Control"] == "no-cache"
        assert stream.headers["X-Accel-Buffering"] == "no"
        assert len({e["id"] for e in events}) == 1
        assert all(e["object"] == "text_completion" and "usage" not in e for e in events)
        for c in whole["choices"]:
            got, reason = join(events, c["index"])
            assert got == c["text"] and reason == c["finish_reason"], (fields, got, c)
            parts = [d for e in events for d in e["choices"] if d["index"] == c["index"]]
            if c["logprobs"]:
                for key in c["logprobs"]:
                    assert sum((p["logprobs"][key] for p in parts), []) == c["logprobs"][key], key
            if "token_ids" in c:
                assert sum((p.get("token_ids", []) for p in parts), []) == c["token_ids"]
                assert parts[0]["prompt_token_ids"] == c["prompt_token_ids"]


@server(step_ns=50000000)
def test_tokens_come_one_by_one(s):
    """Within three seconds: a client that sleeps through one of them finds its tokens in one event."""
    events = iter(s.stream(prompt="a", seed=1, max_tokens=60))
    next(events)
    assert s.metric("running") == 1, "the first token came with the last"
    n = 1 + sum(1 for _ in events)
    assert n > 35, n


@server()
def test_usage_event(s):
    ask = dict(prompt="abc", max_tokens=7, seed=1)
    events = list(s.stream(stream_options={"include_usage": True}, **ask))
    assert all(e["usage"] is None and len(e["choices"]) == 1 for e in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == dict(s.complete(**ask)["usage"],
                                       prompt_tokens_details={"cached_tokens": 0})
    events = list(s.stream(stream_options={"include_usage": True, "continuous_usage_stats": True},
                           **ask))
    counts = [e["usage"]["completion_tokens"] for e in events]
    assert counts == sorted(counts) and counts[-1] == 7, counts


@server(step_ns=20000000)
def test_choices_are_interleaved(s):
    order = [e["choices"][0]["index"] for e in s.stream(prompt="a", n=4, max_tokens=100, seed=2)]
    assert set(order) == {0, 1, 2, 3}
    assert order != sorted(order)


@server(step_ns=300000000, step_tokens=16, sequences=4, keep_alive=0.15)
def test_keep_alive_while_the_prompt_is_computed(s):
    """The prompt takes ten steps."""
    stream = s.stream(prompt=list(range(300, 460)), max_tokens=2)
    events = list(stream)
    assert stream.done and len(events) >= 1
    assert stream.comments >= 3, stream.comments


@server(sequences=1, queue=1, step_ns=20000000)
def test_refusals_have_a_real_status(s):
    check_error(s.post("/v1/completions", {"prompt": "a", "stream": True, "top_k": -5}), 400,
                "invalid_value", "top_k")
    running = s.stream(prompt="a", max_tokens=2000)
    waiting = s.stream(prompt="a", max_tokens=30)
    for _ in range(2):
        refused = s.stream(prompt="a", max_tokens=30)
        assert refused.status == 503
        assert json.loads(refused.response.read())["error"]["code"] == "server_overloaded"
        assert refused.headers["Content-Type"] == "application/json"
    assert running.status == waiting.status == 200
    running.abort()
    assert join(list(waiting))[1] == "length"


@server(step_ns=100000)
def test_slow_reader_gets_all(s):
    """A client that does not read holds up nobody, and nothing is lost."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((s.host, s.port))
    body = json.dumps({"prompt": "a", "max_tokens": 1500, "seed": 1, "stream": True,
                       "logprobs": 5, "ignore_eos": True}).encode()
    slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(body) + body)
    s.complete(prompt="b", max_tokens=20)
    s.wait_metric("finished_total", 2)
    s.complete(prompt="b", max_tokens=20)
    data = b""
    slow.settimeout(PATIENCE)
    while True:
        more = slow.recv(65536)
        if not more:
            break
        data += more
    slow.close()
    assert b"data: [DONE]" in data[-100:], data[-200:]
    assert data.count(b'"finish_reason":"length"') == 1


@server()
def test_http_1_0(s):
    raw = socket.create_connection((s.host, s.port))
    body = b'{"prompt":"a","max_tokens":5,"stream":true}'
    raw.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    data = b""
    raw.settimeout(PATIENCE)
    while True:
        more = raw.recv(65536)
        if not more:
            break
        data += more
    assert data.endswith(b"data: [DONE]\n\n"), data
    raw.close()


main(sys.modules[__name__])
