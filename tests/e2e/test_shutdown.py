#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: nothing accepted is lost without an answer."""
import signal
import sys
import time

from harness import PATIENCE, Frontend, Thread, check_error, main

# Streams of 500 tokens take five seconds: time enough to look at a server that drains.
STEP = dict(step_ns=10000000)


def terminate(s, idle):
    """Sends SIGTERM and returns when a connection that was there is told to close: by an answer that
    says that the server is not ready any more."""
    s.process.send_signal(signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while True:
        status, headers, body = s.get("/readyz", connection=idle)
        told = headers.get("Connection", "").lower() == "close"
        if status == 503:
            assert body == {"status": "draining"}, body
        else:
            assert status == 200 and not told, "told to close by a server that is ready"
        if told:
            return
        assert time.monotonic() < end, "the connection is not told to close"
        time.sleep(0.005)


def refused(s):
    try:
        s.get("/health")
    except ConnectionRefusedError:
        return True
    return False


def test_running_requests_are_finished():
    s = Frontend(drain=PATIENCE, **STEP)
    ask = dict(prompt="a", max_tokens=500, seed=1)
    stream = s.stream(**ask)
    whole = Thread(s.complete, **ask)
    s.wait_metric("running", 2)
    idle = s.connect()
    assert s.get("/readyz", connection=idle)[0] == 200
    terminate(s, idle)
    assert refused(s), "new connections are accepted while draining"
    text = "".join(c["text"] for e in stream for c in e["choices"])
    assert stream.done
    choice = whole.join()["choices"][0]
    assert choice["text"] == text and choice["finish_reason"] == "length"
    s.stop()


def test_new_requests_are_refused_while_draining():
    s = Frontend(drain=PATIENCE, **STEP)
    stream = s.stream(prompt="a", max_tokens=500)
    idle = [s.connect(), s.connect()]
    for c in idle:
        assert s.get("/health", connection=c)[0] == 200
    terminate(s, idle[0])
    check_error(s.post("/v1/completions", {"prompt": "a"}, connection=idle[1]), 503,
                "shutting_down")
    assert list(stream) and stream.done
    s.stop()


def test_deadline_ends_streams_with_an_error_event():
    s = Frontend(drain=0.2, **STEP)
    ask = dict(prompt="a", max_tokens=2000)
    stream = s.stream(**ask)
    whole = Thread(s.post, "/v1/completions", ask)
    s.wait_metric("running", 2)
    s.process.send_signal(signal.SIGTERM)
    events = list(stream)
    assert stream.done
    assert events[-1]["error"]["code"] == "shutting_down", events[-1]
    check_error(whole.join(), 503, "shutting_down")
    s.stop()


main(sys.modules[__name__])
