#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: their order, their sum, and what keeps a silent stream alive."""
import json
import socket
import sys

from harness import Mixd, PATIENCE, check_error, main, server


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


def one_token_each(events, n):
    """Every one of the first n - 1 events carries one token, and the last one, or two in a chat, the rest."""
    assert events.pop()["usage"]["completion_tokens"] == n
    counts = [e["usage"]["completion_tokens"] for e in events]
    chat = "delta" in events[0]["choices"][0]
    want = list(range(1, n + 1))
    assert counts == ([0] + want + [n] if chat else want), counts
    assert all(len(e["choices"]) == 1 for e in events)
    for e in events[1:-1]:
        c = e["choices"][0]
        assert len(c["token_ids"]) == 1 and c["finish_reason"] is None, c
        assert len(c["logprobs"]["content" if chat else "tokens"]) == 1, c


def ask_one_token_each(s, n, **fields):
    ask = dict(seed=1, max_tokens=n, ignore_eos=True, return_token_ids=True,
               stream_options={"include_usage": True, "continuous_usage_stats": True})
    completion = list(s.stream(prompt="a", logprobs=2, **ask, **fields))
    one_token_each(completion, n)
    chat = list(s.stream("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], logprobs=True,
                         top_logprobs=1, **ask, **fields))
    one_token_each(chat, n)


@server(step_ns=0)
def test_an_event_for_each_token(s):
    """However fast they come: a backlog of less than 32 tokens is not joined."""
    for _ in range(10):
        ask_one_token_each(s, 30)
    assert s.metric("events_total") == 20 * 30, s.metric("events_total")
    assert s.metric("joined_total") == 0


@server(step_ns=0)
def test_a_token_whose_text_is_held_back_has_an_event(s):
    ask = dict(prompt="a", seed=1, max_tokens=30, ignore_eos=True)
    text = s.text(**ask)
    events = [e["choices"][0] for e in s.stream(stop=[text + "#"], **ask)]
    assert [c["text"] for c in events] == 29 * [""] + [text], events
    # the whole text is a stop string, which the last token with text of its own completes
    events = [e["choices"][0] for e in s.stream(stop=[text], **ask)]
    assert not any(c["text"] for c in events) and events[-1]["finish_reason"] == "stop", events
    assert 25 < len(events) <= 30, len(events)


@server(Mixd)
def test_an_event_for_each_token_of_a_model(s):
    ask_one_token_each(s, 32)
    assert s.metric("mixd_stream_events_total") == 64
    assert s.metric("mixd_stream_joined_events_total") == 0


@server(step_ns=50000000)
def test_tokens_come_one_by_one(s):
    """Within three seconds, to a client that keeps up: a pause of 1.6 s is 32 tokens."""
    events = iter(s.stream(prompt="a", seed=1, max_tokens=60, return_token_ids=True))
    n = [len(next(events)["choices"][0]["token_ids"])]
    assert s.metric("running") == 1, "the first token came with the last"
    n += [len(e["choices"][0]["token_ids"]) for e in events]
    assert sum(n) == 60, n
    assert len(n) == 60 or max(n) > 1 and len(n) > 32, n
    assert s.metric("events_total") == len(n) and (s.metric("joined_total") > 0) == (max(n) > 1)


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
