#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What mixd holds resident is what --check said, within 5 %: at start, after requests, and after
requests much larger than any that is served; with states in pages and with states in slots. Under
bodies and answers as large as clients can make them it is never more than the total."""
import array
import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
import tempfile
import time

from harness import ATTENTION, BUILD, DEMO, PATIENCE, Mixd, Skip, Thread, main, server


def skip_where_memory_differs():
    if os.environ.get("MIXD_TEST_SLOW"):
        raise Skip("a sanitizer has memory of its own")
    if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) < (5, 14):
        raise Skip("no MADV_POPULATE_WRITE: pages become resident as they are used")


def check(s):
    """What --check says."""
    r = subprocess.run([os.path.join(BUILD, "mixd"), "--check", "--config", s.config], text=True,
                       env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs")),
                       stdout=subprocess.PIPE, timeout=PATIENCE, check=True)
    return r.stdout


def planned(s):
    """MiB that --check says are resident at start."""
    return float(re.search(r"resident at start +([0-9.]+) MiB", check(s))[1])


def expect(s, total, when):
    """The plan is resident, once that has come to rest: pages are touched, and given back, in the background."""
    now = last = still = 0
    end = time.monotonic() + PATIENCE
    # 4 MiB: the heap of the front ends, which is no part of the plan of models
    planned = lambda: 0.95 * total < now < 1.05 * total + 4
    while (still < 5 or not planned()) and time.monotonic() < end:
        time.sleep(0.1)
        with open(f"/proc/{s.process.pid}/status") as f:
            now = int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) / 1024
        still = still + 1 if now == last else 0
        last = now
    print(f"{when}: planned {total:.1f} MiB, resident {now:.1f} MiB")
    assert planned(), (when, total, now)


def ask(s):
    """50 requests, 5 at a time."""
    def some(i):
        for k in range(10):
            s.complete(prompt="The sea " * (20 * (k % 5) + 1), max_tokens=8, n=1 + i % 2, logprobs=2)
    for t in [Thread(some, i) for i in range(5)]:
        t.join()


@server(Mixd, keys=", memory: 256MiB")
def test_resident_memory_is_as_planned(s):
    skip_where_memory_differs()
    total = planned(s)
    expect(s, total, "at start")
    ask(s)
    expect(s, total, "after 50 requests")
    for prompt in ("The sea " * 800000, [5] * 1000000):
        assert s.post("/v1/completions", dict(prompt=prompt, max_tokens=2))[0] == 400
    expect(s, total, "after large bodies")


@server(Mixd, models={"demo": ATTENTION}, keys=", memory: 40MiB")
def test_a_small_plan_is_kept_too(s):
    skip_where_memory_differs()
    total = planned(s)
    expect(s, total, "at start")
    ask(s)
    expect(s, total, "after 50 requests")


class Unread:
    """A client that sends a request and reads its answer only when told to."""

    def __init__(self, s, path, body):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((s.host, s.port))
        head = (f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n").encode()
        self.sender = Thread(self.socket.sendall, head + body)

    def status(self):
        """Of the answer, whose beginning is read."""
        self.sender.join()
        data = b""
        while b"\r\n\r\n" not in data:
            more = self.socket.recv(1000)
            assert more, data
            data += more
        return int(data.split()[1])

    def drain(self):
        while self.socket.recv(1 << 20):
            pass


def peak(s):
    """MiB that were resident at most."""
    with open(f"/proc/{s.process.pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) / 1024


@server(Mixd, keys=", memory: 64MiB")
def test_requests_stay_within_the_total(s):
    """Clients send an 8 MB /tokenize and do not read; then come the echo of 256 prompts and of
    4, and bodies that are large once they are parsed."""
    skip_where_memory_differs()
    total = float(re.search(r"\n  total +([0-9.]+) MiB  models and requests", check(s))[1])
    start = planned(s)
    expect(s, start, "at start")
    rnd = random.Random(3)
    words = ["".join(rnd.choice("abcdefgh") for _ in range(rnd.randint(1, 7))) for _ in range(999)]
    text = " ".join(rnd.choice(words) for _ in range(1600000))[:8000000]
    prompts = [[rnd.randint(10, 400) for _ in range(2000)] for _ in range(256)]

    def echo(n):
        return json.dumps(dict(prompt=prompts[:n], echo=True, max_tokens=0, logprobs=20)).encode()
    floods = {
        "tokenize": ("/tokenize", json.dumps(dict(prompt=text)).encode(), 8, {200, 503}),
        "letters": ("/tokenize", json.dumps(dict(prompt="a+1-" * 2000000)).encode(), 6, {400, 503}),
        "echo": ("/v1/completions", echo(256), 4, {400, 503}),
        "small echo": ("/v1/completions", echo(4), 4, {200, 503}),
        "numbers": ("/v1/completions", b'{"prompt":[' + b"1," * 4000000 + b"1]}", 12, {413, 503}),
        "ids": ("/v1/completions", json.dumps(dict(prompt=[12345] * 1100000)).encode(), 6, {400, 503}),
    }
    for name, (path, body, n, expected) in floods.items():
        clients, found = [], []
        for _ in range(n):
            clients.append(Unread(s, path, body))
            if name == "tokenize":  # one after the other, so that bodies are not in each other's way
                found.append(clients[-1].status())
        found = found or [c.status() for c in clients]
        counts = {v: found.count(v) for v in sorted(set(found))}
        print(f"{name}: {counts}, {peak(s):.1f} MiB at most, planned {total:.1f}")
        assert set(found) <= expected, (name, counts)
        assert counts.keys() - {503}, (name, counts)
        assert peak(s) < 1.05 * total, (name, peak(s), total)
        for i, c in enumerate(clients):
            if i % 2:
                c.drain()
            c.socket.close()
    expect(s, start, "after them")


def write_retnet(folder):
    """Small weights, large states: a RetNet of random weights, more than a MiB of state a layer."""
    width, state, layers, vocab = 64, 512, 4, 4096
    tensors = {"model.embeddings.weight": (vocab, width), "model.norm.weight": (width,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        tensors.update({p + f"attn.{w}_proj.weight": (state, width) for w in "qkvg"})
        tensors.update({p + f"mlp.{w}_proj.weight": (width, width) for w in ("gate", "up", "down")})
        tensors.update({p + n: (width,) for n in ("attn_norm.weight", "mlp_norm.weight")})
        tensors[p + "attn.o_proj.weight"] = (width, state)
        tensors[p + "attn.g_norm_swish_gate.weight"] = (state,)
    rnd, header, data = random.Random(1), {}, b""
    for name, shape in tensors.items():
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        scale = (3 / shape[-1]) ** 0.5
        raw = array.array("f", (scale * (2 * rnd.random() - 1) if len(shape) > 1 else 1
                                for _ in range(n))).tobytes()
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(model_type="retnet", hidden_size=width, intermediate_size=width,
                       num_hidden_layers=layers, num_heads=1, expand_k=state // width,
                       expand_v=state // width, vocab_size=vocab, max_position_embeddings=1 << 20,
                       tie_word_embeddings=True), f)
    os.symlink(os.path.join(DEMO, "tokenizer.json"), os.path.join(folder, "tokenizer.json"))


def test_slots_are_as_many_as_fit():
    skip_where_memory_differs()
    with tempfile.TemporaryDirectory() as folder:
        write_retnet(folder)
        s = Mixd({"retnet": folder}, keys=", memory: 120MiB")
        try:
            text, total = check(s), planned(s)
            slots = int(re.search(r"room for (\d+) sequences of 1048576 tokens", text)[1])
            assert 8 < slots < 30, text
            assert "layers 0-3 gla" in text, text
            expect(s, total, "at start")
            ask(s)
            # more at a time than there are slots, long enough to meet
            threads = [Thread(s.complete, prompt=[7] * (50 + i), max_tokens=30, temperature=0,
                              ignore_eos=True) for i in range(60)]
            answers = [t.join() for t in threads]
            assert all(a["usage"]["completion_tokens"] == 30 for a in answers)
            metrics = s.get("/metrics")[2].decode()
            assert re.search(rf"^mixd_slots{{.*}} {slots}$", metrics, re.M), metrics
            expect(s, total, "after 110 requests")
            s.stop()
        finally:
            if s.process.poll() is None:
                s.process.kill()


main(sys.modules[__name__])
