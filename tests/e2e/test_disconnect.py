#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that leave: what they held is free by the next step, and nobody else notices."""
import json
import random
import socket
import sys
import threading
import time

from harness import PATIENCE, main, server

STEP = 0.02
LONG = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}


def send(s, fields, path="/v1/completions"):
    c = socket.create_connection((s.host, s.port))
    body = json.dumps(fields).encode()
    c.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
    return c


def leave(c, how):
    if how == "reset":
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    c.close()


def wait_idle(s, start):
    """Free within some steps; generous, since machines under test are busy."""
    s.wait_metric("running", 0)
    s.wait_metric("waiting", 0)
    assert time.monotonic() - start < PATIENCE / 4, "a client that left was served on"


@server(step_ns=int(STEP * 1e9))
def test_leaving_while_waiting_for_a_whole_answer(s):
    for how in ("close", "reset"):
        c = send(s, LONG)
        s.wait_metric("running", 1)
        start = time.monotonic()
        leave(c, how)
        wait_idle(s, start)
    assert s.metric("cancelled_total") == 2


@server(step_ns=int(STEP * 1e9))
def test_leaving_a_stream(s):
    for how in ("close", "reset"):
        for read in (0, 300):
            c = send(s, dict(LONG, stream=True, n=3))
            s.wait_metric("running", 3)
            if read:
                c.recv(read)
            start = time.monotonic()
            leave(c, how)
            wait_idle(s, start)


@server(step_ns=int(STEP * 1e9), sequences=1)
def test_leaving_the_queue(s):
    first = send(s, LONG)
    s.wait_metric("running", 1)
    others = [send(s, dict(LONG, stream=bool(i % 2))) for i in range(6)]
    s.wait_metric("waiting", 6)
    start = time.monotonic()
    for c in others:
        leave(c, "close")
    s.wait_metric("waiting", 0)
    assert time.monotonic() - start < PATIENCE / 4
    assert s.metric("running") == 1
    leave(first, "close")
    wait_idle(s, start)


@server(step_ns=1000000)
def test_leaving_at_random_moments(s):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    expected = s.text(prompt="steady", seed=1, max_tokens=50)
    wrong = []

    def steady():
        for _ in range(15):
            if s.text(prompt="steady", seed=1, max_tokens=50) != expected:
                wrong.append(1)
    t = threading.Thread(target=steady)
    t.start()
    for _ in range(150):
        size = rng.choice([10, 10, 10000, 40000])
        c = send(s, {"prompt": "x " * rng.randrange(1, size // 2), "max_tokens": 60,
                     "stream": rng.random() < 0.6, "n": rng.choice([1, 1, 4])})
        time.sleep(rng.choice([0, 0, 0.001, 0.005, 0.02]))
        if rng.random() < 0.3:
            c.settimeout(0.01)
            try:
                c.recv(rng.randrange(1, 2000))
            except OSError:
                pass
        leave(c, rng.choice(["close", "reset"]))
    # half a request, and half a header
    for cut in (b"POST /v1/completions HTTP/1.1\r\nContent-Le", b"GET /health HTTP/1.1\r\n",
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"pro"):
        c = socket.create_connection((s.host, s.port))
        c.sendall(cut)
        leave(c, "close")
    t.join()
    assert not wrong
    wait_idle(s, time.monotonic())
    assert s.get("/health")[0] == 200


@server(step_ns=int(PATIENCE * 1e8))
def test_health_never_waits(s):
    """Neither for steps nor for prompts being tokenised."""
    body = json.dumps({"prompt": "word, and a word; " * 55000, "max_tokens": 1})
    held = [send(s, dict(LONG, stream=True)) for _ in range(3)]
    threads = [threading.Thread(target=s.request, args=("POST", "/tokenize", body))
               for _ in range(4)]
    for t in threads:
        t.start()
    slowest = 0
    while any(t.is_alive() for t in threads):
        for path in ("/health", "/metrics", "/v1/models", "/livez"):
            start = time.monotonic()
            assert s.get(path)[0] == 200
            slowest = max(slowest, time.monotonic() - start)
    for t in threads:
        t.join()
    assert slowest < PATIENCE / 20, slowest
    for c in held:
        c.close()


@server(max_connections=8, idle_timeout=1)
def test_idle_connections_make_room(s):
    idle = [socket.create_connection((s.host, s.port)) for _ in range(12)]
    start = time.monotonic()
    assert s.get("/health")[0] == 200
    assert 0.3 < time.monotonic() - start < 10
    for c in idle:
        c.close()


@server(idle_timeout=1)
def test_dripping_requests_are_cut(s):
    """A byte now and then keeps no connection: neither in the header nor in the body."""
    for begin, drip in ((b"GET /health HTTP/1.1\r\n", b"X: y\r\n"),
                        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                         b"Content-Length: 1000\r\n\r\n", b" ")):
        c = socket.create_connection((s.host, s.port))
        c.sendall(begin)
        c.setblocking(False)
        start = time.monotonic()
        while time.monotonic() - start < PATIENCE:
            try:
                c.sendall(drip)
                if c.recv(1000) == b"":
                    break
            except BlockingIOError:
                pass
            except OSError:
                break
            time.sleep(0.1)
        assert 0.9 < time.monotonic() - start < PATIENCE / 2
        c.close()


@server(idle_timeout=1, step_ns=50000000)
def test_long_answers_are_not_cut(s):
    """The time is that of the request alone, and begins anew with the next one."""
    c = s.connect()
    for stream in (False, True):
        for _ in range(2):
            body = json.dumps({"prompt": "a", "max_tokens": 40, "ignore_eos": True,
                               "stream": stream})
            start = time.monotonic()
            c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            sock = c.sock
            assert (b"[DONE]" if stream else b"usage") in c.getresponse().read()
            assert time.monotonic() - start > 1.5
            assert c.sock is sock


@server(max_connections=4, idle_timeout=60)
def test_idle_keep_alive_makes_room(s):
    kept = [s.connect() for _ in range(4)]
    for c in kept:
        assert s.get("/health", connection=c)[0] == 200
        time.sleep(0.05)
    start = time.monotonic()
    assert s.get("/health")[0] == 200
    assert time.monotonic() - start < 10
    # the one that was idle for longest went, the others did not
    assert kept[0].sock.recv(1) == b""
    for c in kept[2:]:
        sock = c.sock
        assert s.get("/health", connection=c)[0] == 200 and c.sock is sock
        c.close()


main(sys.modules[__name__])
