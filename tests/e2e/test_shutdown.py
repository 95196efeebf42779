#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGTERM: nothing accepted is lost without an answer."""
import signal
import sys
import threading
import time

from harness import Frontend, check_error, main

STEP = dict(step_ns=10000000)


def test_running_requests_are_finished():
    s = Frontend(drain=20, **STEP)
    stream = s.stream(prompt="a", max_tokens=60, seed=1)
    answers = []
    t = threading.Thread(target=lambda: answers.append(
        s.post("/v1/completions", {"prompt": "a", "max_tokens": 60, "seed": 1})))
    t.start()
    s.wait_metric("running", 2)
    kept = s.connect()
    assert s.get("/readyz", connection=kept)[0] == 200
    s.process.send_signal(signal.SIGTERM)
    # a connection that is there is told, a new one is refused
    end = time.monotonic() + 10
    while True:
        answer = s.get("/readyz", connection=kept)
        if answer[0] == 503 or time.monotonic() > end:
            break
        time.sleep(0.005)
    assert answer[0] == 503 and answer[2] == {"status": "draining"}, answer
    assert answer[1]["Connection"].lower() == "close"
    try:
        s.get("/health")
        refused = False
    except OSError:
        refused = True
    assert refused, "new connections are accepted while draining"
    text = "".join(c["text"] for e in stream for c in e["choices"])
    assert stream.done
    t.join()
    assert answers[0][0] == 200 and answers[0][2]["choices"][0]["text"] == text
    assert answers[0][2]["choices"][0]["finish_reason"] == "length"
    s.stop()


def test_new_requests_are_refused_while_draining():
    s = Frontend(drain=20, **STEP)
    stream = s.stream(prompt="a", max_tokens=80)
    kept = s.connect()
    s.get("/health", connection=kept)
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    check_error(s.post("/v1/completions", {"prompt": "a"}, connection=kept), 503, "shutting_down")
    assert list(stream) and stream.done
    s.stop()


def test_deadline_ends_streams_with_an_error_event():
    s = Frontend(drain=0.2, **STEP)
    stream = s.stream(prompt="a", max_tokens=2000)
    answers = []
    t = threading.Thread(target=lambda: answers.append(
        s.post("/v1/completions", {"prompt": "a", "max_tokens": 2000})))
    t.start()
    s.wait_metric("running", 2)
    s.process.send_signal(signal.SIGTERM)
    events = list(stream)
    assert stream.done
    assert events[-1]["error"]["code"] == "shutting_down", events[-1]
    t.join()
    check_error(answers[0], 503, "shutting_down")
    s.stop()


main(sys.modules[__name__])
