#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon on the bundled model: the same answer alone, in a batch, cached, and after other clients
have left."""
import json
import random
import socket
import sys
import time

from harness import SLOW, Mixd, Thread, main, server

TEXTS = ["It was a dark and stormy night; the rain fell in torrents, except at occasional intervals",
         "The sea, the sea!", "Call me", "In the beginning of years, when the world was so new " * 4]


def ask(s, text, **kw):
    fields = dict(dict(prompt=text, max_tokens=12, seed=3, logprobs=3, echo=True), **kw)
    choice = s.complete(**fields)["choices"][0]
    return choice["text"], choice["logprobs"]


@server(Mixd, max_sequences=16, step_tokens=64)
def test_bit_for_bit_in_any_batch(s):
    alone = [ask(s, t, cache_salt=f"alone{i}") for i, t in enumerate(TEXTS)]
    assert all(lp["token_logprobs"][1] < 0 for _, lp in alone)
    # a second time the prefix comes from the cache
    assert [ask(s, t, cache_salt=f"alone{i}") for i, t in enumerate(TEXTS)] == alone

    def one(i):
        rng = random.Random(i)
        for k in range(1 if SLOW > 1 else 3):
            n = rng.randrange(len(TEXTS))
            assert ask(s, TEXTS[n], cache_salt=f"{i}{k}") == alone[n], (i, k, n)
    for t in [Thread(one, i) for i in range(12)]:
        t.join()


@server(Mixd)
def test_streams_and_stops(s):
    base = s.complete(prompt=TEXTS[1], max_tokens=40, temperature=0)["choices"][0]["text"]
    got = "".join(c["text"] for e in s.stream(prompt=TEXTS[1], max_tokens=40, temperature=0)
                  for c in e["choices"])
    assert got == base
    stop = base[9:14]
    c = s.complete(prompt=TEXTS[1], max_tokens=40, temperature=0, stop=stop)["choices"][0]
    assert c["text"] == base[:base.find(stop)] and c["stop_reason"] == stop


@server(Mixd, step_ms=20)
def test_clients_that_leave_free_their_memory(s):
    for stream in (False, True):
        body = json.dumps(dict(prompt=TEXTS[3], max_tokens=1900, ignore_eos=True, n=4,
                               stream=stream)).encode()
        c = socket.create_connection((s.host, s.port))
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
                  % len(body) + body)
        s.wait_metric("vllm:num_requests_running", 4)
        assert s.metric("vllm:kv_cache_usage_perc") > 0
        c.close()
        s.wait_metric("vllm:num_requests_running", 0)
        s.wait_metric("vllm:kv_cache_usage_perc", 0)
    s.wait_metric("mixd_requests_cancelled_total", 8)


@server(Mixd)
def test_health_beside_long_prompts(s):
    threads = [Thread(s.complete, prompt=[random.randrange(300, 4000) for _ in range(1200 // SLOW)],
                      max_tokens=2) for _ in range(4)]
    slowest = 0
    while any(t.is_alive() for t in threads):
        for path in ("/health", "/metrics"):
            start = time.monotonic()
            assert s.get(path)[0] == 200
            slowest = max(slowest, time.monotonic() - start)
    for t in threads:
        t.join()
    assert slowest < 2 * SLOW, slowest


main(sys.modules[__name__])
