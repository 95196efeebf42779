#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that read their answers slowly: a trickle does not hold an answer's memory for ever, and who reads
well, or waits for a slow model, is not cut."""
import json
import socket
import sys
import threading
import time

from harness import PATIENCE, main, server

MIB = 1 << 20
IDLE = 8
LARGE = dict(prompt="a b c d e f g " * 150000, with_pieces=True)  # 4 MB of ids, 14 MB of JSON


class Reader:
    """Sends a request and takes n bytes of the answer each `pause` seconds, until it ends or stop() is called.
    Its sockets hold little."""

    def __init__(self, s, path, body, n, pause):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 500)  # the server's buffer grows with it
        self.socket.settimeout(PATIENCE)
        self.socket.connect((s.host, s.port))
        data = json.dumps(body).encode()
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
                            .encode() + data)
        self.n, self.pause, self.ended, self.taken = n, pause, threading.Event(), 0
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.ended.wait(self.pause) and (data := self.socket.recv(self.n)):
                self.taken += len(data)
        except OSError:
            pass
        self.ended.set()
        self.socket.close()

    def stop(self):
        self.ended.set()
        self.thread.join()


@server(answer_memory=6 * MIB, idle_timeout=IDLE)
def test_a_trickle_is_cut(s):
    """9 KB/s: more than a socket's buffer waits for within the idle timeout, and less than the least rate."""
    n = s.complete("/tokenize", **LARGE)["count"]
    s.wait_metric("answers", 0)
    r = Reader(s, "/tokenize", LARGE, 2250, 0.25)
    s.wait_metric("answers", n * 4)
    began = time.monotonic()
    while s.metric("answers") and time.monotonic() < began + 4 * IDLE:
        time.sleep(0.1)
    assert s.metric("answers") == 0, f"held for {time.monotonic() - began:.0f} s, {r.taken} bytes were taken"
    assert time.monotonic() - began > IDLE
    r.stop()
    assert s.complete("/tokenize", **LARGE)["count"] == n


@server(answer_memory=6 * MIB, idle_timeout=3)
def test_who_reads_well_is_not_cut(s):
    """80 KB/s, for longer than the idle timeout."""
    r = Reader(s, "/tokenize", LARGE, 20000, 0.25)
    s.wait_for(lambda: r.taken, "answer")
    assert not r.ended.wait(8), f"cut after {r.taken} bytes"
    assert s.metric("answers") > 0
    r.stop()


@server(step_ns=300000000, idle_timeout=1)
def test_a_slow_model_is_not_a_slow_reader(s):
    """Some 800 bytes a second, all that there is to read."""
    text = [e["choices"][0]["text"] for e in s.stream(prompt="x", max_tokens=12, ignore_eos=True) if e["choices"]]
    assert len(text) == 12, text


main(sys.modules[__name__])
