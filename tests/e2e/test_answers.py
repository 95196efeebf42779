#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large bodies and large answers: what may be held of them, that they arrive whole, and that nobody
else waits for them."""
import json
import os
import random
import socket
import sys
import tempfile
import time

from harness import DEMO, SLOW, PATIENCE, Frontend, Thread, check_error, main, server

MIB = 1 << 20


def words(n, seed=1):
    """n bytes of ASCII words."""
    rnd = random.Random(seed)
    known = ["".join(rnd.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rnd.randint(1, 7)))
             for _ in range(3000)]
    text = []
    while n > 0:
        text.append(rnd.choice(known))
        n -= len(text[-1]) + 1
    return " ".join(text)


def echo(prompts, tokens, logprobs, **fields):
    rnd = random.Random(2)
    return dict(prompt=[[rnd.randint(10, 3000) for _ in range(tokens)] for _ in range(prompts)],
                echo=True, logprobs=logprobs, max_tokens=0, **fields)


class Unread:
    """A client that sends a request, but for the last `later` bytes, and does not go on until told to."""

    def __init__(self, s, path, body, buffer=4096, later=0):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((s.host, s.port))
        data = json.dumps(body).encode()
        data = (f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data
        self.socket.sendall(data[:len(data) - later])
        self.later = data[len(data) - later:]

    def read(self):
        """Sends the rest, and reads to the end; (status, number of bytes)."""
        self.socket.sendall(self.later)
        head, n = b"", 0
        while data := self.socket.recv(MIB):
            head = head or data[:15]
            n += len(data)
        self.socket.close()
        return int(head.split()[1]), n

    def close(self):
        self.socket.close()


@server()
def test_what_can_never_be_held_is_refused(s):
    """A completion whose answer would be 200 MB, and a body whose values would take 300 MB."""
    answer = s.post("/v1/completions", echo(256, 2000, 20))
    e = check_error(answer, 400, "answer_too_large", contains="http.answer_memory")
    assert "64.0 MiB" in e["message"], e
    body = b'{"prompt":[' + b"1," * 4000000 + b"1]}"
    for path in ("/v1/completions", "/tokenize", "/detokenize"):
        check_error(s.request("POST", path, body, {"Content-Type": "application/json"}), 413,
                    "request_too_large", contains="http.max_body_bytes")
    # each character a part of its own
    check_error(s.post("/tokenize", dict(prompt="1 + - " * 1300000)), 400, contains="in parts")
    assert s.metric("answers") == 0


# An answer of 4 MB of ids, 14 MB of JSON: more than sockets hold.
LARGE = dict(prompt="a b c d e f g " * 150000, with_pieces=True)


def large_answer(s):
    """Number of ids of the large answer, and room for one such at a time."""
    n = s.complete("/tokenize", **LARGE)["count"]
    assert 3 * MIB < n * 4 < 6 * MIB, n
    s.wait_metric("answers", 0)
    return n


@server(answer_memory=6 * MIB)
def test_unread_answers_are_bounded(s):
    body, n = LARGE, large_answer(s)
    first = Unread(s, "/tokenize", body)
    s.wait_metric("answers", n * 4)
    check_error(s.post("/tokenize", body), 503, "server_overloaded", contains="http.answer_memory")
    # what is small still fits, and what is read is free again
    assert s.text(prompt="x", max_tokens=2, ignore_eos=True)
    assert first.read()[0] == 200
    s.wait_metric("answers", 0)
    # a client that leaves
    second = Unread(s, "/tokenize", body)
    s.wait_metric("answers", n * 4)
    second.close()
    s.wait_metric("answers", 0)


@server(answer_memory=6 * MIB, idle_timeout=3 * SLOW)
def test_an_answer_that_nobody_reads_is_cut(s):
    """After the idle timeout, not before."""
    n = large_answer(s)
    began = time.monotonic()
    c = Unread(s, "/tokenize", LARGE)
    s.wait_metric("answers", n * 4)
    s.wait_metric("answers", 0)
    assert time.monotonic() - began > 3 * SLOW
    assert s.complete("/tokenize", **LARGE)["count"] == n
    c.close()


@server()
def test_large_answers_are_whole(s):
    text = words(400000)
    status, headers, body = s.post("/tokenize", dict(prompt=text, with_pieces=True,
                                                     add_special_tokens=False))
    assert status == 200 and headers["Transfer-Encoding"] == "chunked", dict(headers)
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"]) > 100000
    back = s.complete("/detokenize", tokens=body["tokens"])
    assert back["prompt"] == back["text"] == back["content"] == text
    # what is short says how long it is
    status, headers, _ = s.post("/tokenize", dict(prompt="The sea"))
    assert status == 200 and int(headers["Content-Length"]) > 0, dict(headers)

    whole = s.complete(**echo(8, 2000, 5, seed=1))
    assert len(whole["choices"]) == 8 and whole["usage"]["prompt_tokens"] == 16000
    for c in whole["choices"]:
        lengths = {len(v) for v in c["logprobs"].values()}
        assert lengths == {2000}, lengths
    # as a stream, in other pieces
    parts = [dict(text="", tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
             for _ in range(8)]
    for event in s.stream(**echo(8, 2000, 5, seed=1)):
        for c in event["choices"]:
            part = parts[c["index"]]
            part["text"] += c["text"]
            for k, v in (c["logprobs"] or {}).items():
                part[k] += v
    for c, part in zip(whole["choices"], parts):
        assert part.pop("text") == c["text"]
        assert part == c["logprobs"]


@server(models=2)
def test_nobody_waits_while_a_large_answer_is_sent(s):
    """/health beside answers of 27 MB, which took a second each to render at once. The bound is
    generous: this machine may do much else. tests/daemon/serve/test_generate.c has the size of the
    pieces."""
    readers = [Thread(lambda: Unread(s, "/v1/completions", echo(32, 2000, 20, model="fake"),
                                     MIB).read()) for _ in range(3)]
    worst, connection = 0, s.connect()
    while any(t.is_alive() for t in readers):
        began = time.monotonic()
        assert s.get("/health", connection=connection)[0] == 200
        worst = max(worst, time.monotonic() - began)
    for status, n in [t.join() for t in readers]:
        assert status == 200 and n > 20e6, (status, n)
    print(f"worst /health {worst * 1e3:.1f} ms")
    assert worst < 1.5 * SLOW, worst


@server()
def test_short_requests_pass_long_ones(s):
    """Five completions of some KiB come after six /tokenize of 4 MB and are done before them."""
    body = dict(prompt=words(4000000))
    clients = [Unread(s, "/tokenize", body, MIB, later=1) for _ in range(6)]
    s.wait_for(lambda: s.metric("mixd_http_received_bytes_total") >= 6 * 4000000, "bodies")
    long_ones = [Thread(c.read) for c in clients]
    finished = [Thread(s.text, prompt="The sea " * 800, max_tokens=1, ignore_eos=True)
                for _ in range(5)]
    for t in finished:
        t.join()
    left = sum(t.is_alive() for t in long_ones)
    for status, _ in [t.join() for t in long_ones]:
        assert status in (200, 503), status
    assert left >= 2, left


def test_no_template_runs_on_an_http_thread():
    """With one HTTP thread /health is answered while a template of some million steps is rendered."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            os.symlink(os.path.join(DEMO, name), os.path.join(folder, name))
        with open(os.path.join(folder, "chat_template.jinja"), "w") as f:
            f.write("{% for i in range(500) %}{% for j in range(500) %}"
                    "{% if (j * j + i * 3 - j * i) % 11 + j * 2 - i * 5 == 0.5 %}x{% endif %}"
                    "{% endfor %}{% endfor %}{{ messages[0].content }}")
        s = Frontend(tokenizer=folder, threads=1)
        try:
            chat = Thread(s.complete, "/v1/chat/completions", max_tokens=1, ignore_eos=True,
                          messages=[dict(role="user", content="hello")])
            time.sleep(0.02)
            n = 0
            while chat.is_alive():
                assert s.get("/health")[0] == 200
                n += 1
            chat.join()
            print(f"{n} times /health")
            assert n > 3, n
            s.stop()
        finally:
            if s.process.poll() is None:
                s.process.kill()


main(sys.modules[__name__])
