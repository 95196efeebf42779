#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Events of the prefix cache as routers read them: ZeroMQ, msgspec's structs as vLLM declares them."""
import json
import os
import re
import subprocess
import sys
import tempfile

from harness import ATTENTION, BUILD, DEMO, PATIENCE, Mixd, Skip, main

FRONTS = os.path.join(BUILD, "daemon/.libs")
PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
PAGE = 32

# A subscriber, as routers are: it prints what it knows for each line on its stdin.
SUBSCRIBER = r'''
import json, sys, time
import msgspec, zmq
from typing import Any, Union

arrays = sys.argv[1] == "arrays"
endpoint, replay_endpoint, topic = sys.argv[2:5]

# The declarations of vllm/distributed/kv_events.py, 0.26 (and 0.19, whose events are arrays).
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None

class KVCacheEvent(msgspec.Struct, array_like=arrays, omit_defaults=True, gc=False, tag=True,
                   forbid_unknown_fields=True):
    pass

class BlockStored(KVCacheEvent):
    block_hashes: list[Union[bytes, int]]
    parent_block_hash: Union[bytes, int, None]
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None

class BlockRemoved(KVCacheEvent):
    block_hashes: list[Union[bytes, int]]
    medium: str | None
    group_idx: int | None = None

class AllBlocksCleared(KVCacheEvent):
    pass

class KVEventBatch(EventBatch):
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]

decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
context = zmq.Context()
sub = context.socket(zmq.SUB)
sub.setsockopt_string(zmq.SUBSCRIBE, topic)
connected = sub.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
sub.connect(endpoint)
assert connected.poll(60000), "no publisher" # what is published before is not for this subscriber
sub.disable_monitor()

blocks = {}      # hash -> (parent, tokens, extra)
cleared = batches = 0
expected = None  # sequence number

def apply(payload):
    global cleared, batches
    batch = decoder.decode(payload)
    assert abs(batch.ts - time.time()) < 3600 and batch.data_parallel_rank == 0, batch
    batches += 1
    for e in batch.events:
        if isinstance(e, AllBlocksCleared):
            blocks.clear()
            cleared += 1
        elif isinstance(e, BlockRemoved):
            assert e.medium == "GPU"
            for h in e.block_hashes:
                blocks.pop(h, None)
        else:
            assert e.medium == "GPU" and len(e.token_ids) == len(e.block_hashes) * e.block_size, e
            assert e.parent_block_hash is None or e.parent_block_hash in blocks, "a block without parent"
            parent = e.parent_block_hash
            for i, h in enumerate(e.block_hashes):
                extra = e.extra_keys[i] if e.extra_keys else None
                blocks[h] = (parent, e.token_ids[i * e.block_size:(i + 1) * e.block_size], extra)
                parent = h

def replay(first):
    """The numbers that were replayed."""
    req = context.socket(zmq.DEALER)
    req.connect(replay_endpoint)
    req.send_multipart([b"", first.to_bytes(8, "big")])
    numbers = []
    while True:
        assert req.poll(60000), "no answer to a request for a replay"
        _, number, payload = req.recv_multipart()
        if int.from_bytes(number, "big", signed=True) == -1:
            req.close()
            return numbers
        numbers.append(int.from_bytes(number, "big"))
        apply(payload)

def chains():
    """The tokens of every block, with all before it; the hash of a salt instead if it has one."""
    def tokens(h):
        parent, own, extra = blocks[h]
        return (tokens(parent) if parent else list(extra or ())) + own
    return [tokens(h) for h in blocks]

for line in sys.stdin:
    command = line.split()
    if command[0] == "replay":
        numbers = replay(int(command[1]))
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        expected = numbers[-1] + 1 if numbers else expected
        print(json.dumps(numbers), flush=True)
    elif command[0] == "read":
        while sub.poll(int(command[1])):
            got, number, payload = sub.recv_multipart()
            assert got.decode() == topic, got
            number = int.from_bytes(number, "big")
            if expected is not None and number < expected:
                continue # it was replayed
            assert expected is None or number == expected, (number, expected)
            expected = number + 1
            apply(payload)
        print(json.dumps({"chains": chains(), "cleared": cleared, "batches": batches}), flush=True)
'''


class Subscriber:
    def __init__(self, encoding, endpoint, replay, topic):
        self.process = subprocess.Popen([PYTHON, "-c", SUBSCRIBER, encoding, endpoint, replay, topic],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the subscriber has failed"
        return json.loads(line)

    def wait(self, condition, what):
        """Reads until the condition holds."""
        for _ in range(10 * PATIENCE):
            state = self.ask("read 100")
            if condition(state):
                return state
        raise AssertionError(f"{what}: {state}")

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0


def need():
    if not os.path.exists(os.path.join(FRONTS, "events-zmq.so")):
        raise Skip("built without ZeroMQ")
    if subprocess.run([PYTHON, "-c", "import zmq, msgspec"], stderr=subprocess.DEVNULL).returncode:
        raise Skip("no pyzmq and msgspec in " + PYTHON)


def start(models, encoding="maps", keys="", **more):
    extra = "".join(f", {k}: {v}" for k, v in more.items())
    s = Mixd(models, keys=keys, env={"MIXD_FRONT_PATH": FRONTS},
             top=f"kv_events: {{ endpoint: 'tcp://127.0.0.1:*', replay_endpoint: 'tcp://127.0.0.1:*', "
                 f"topic: 'kv@a@{{model}}', encoding: {encoding}{extra} }}\n")
    ports = re.findall(r"kv_events: \w+: listening on (\S+)", s.errors())
    assert len(ports) == 2, s.errors()
    return s, Subscriber(encoding, *ports, f"kv@a@{next(iter(models))}")


def prompt_of(s, n, seed=0):
    """A prompt of n tokens."""
    return [2 + (i * 7 + seed * 13) % 200 for i in range(n)]


def longest(state, tokens):
    """How many of the tokens the subscriber takes for cached."""
    return max((len(c) for c in state["chains"] if c == tokens[:len(c)]), default=0)


def cached(s, prompt, **fields):
    """The number of tokens of the prompt that were found in the cache."""
    usage = s.complete(prompt=prompt, max_tokens=1, temperature=0, **fields)["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def follow_attention(encoding):
    need()
    s, r = start({"attn": ATTENTION}, encoding, keys=f", page_tokens: {PAGE}, memory: 34MiB, max_context: 512")
    assert r.ask("replay 0"), "the first batch clears"
    state = r.wait(lambda v: v["cleared"] >= 1, "the content at the start")
    assert state["chains"] == []
    prompt = prompt_of(s, 5 * PAGE + 3)
    s.complete(prompt=prompt, max_tokens=1)
    state = r.wait(lambda v: longest(v, prompt) == 5 * PAGE, "a prompt's blocks")
    assert cached(s, prompt) == 5 * PAGE
    # another that parts from it: the shared blocks are not told again
    other = prompt[:2 * PAGE] + prompt_of(s, 4 * PAGE, 5)
    s.complete(prompt=other, max_tokens=1)
    state = r.wait(lambda v: longest(v, other) >= 5 * PAGE, "a second prompt's blocks")
    assert sum(c == prompt[:PAGE] for c in state["chains"]) == 1
    # a salt keeps them apart, and its blocks are marked
    s.complete(prompt=prompt, max_tokens=1, cache_salt="x")
    before = len(state["chains"])
    state = r.wait(lambda v: len(v["chains"]) >= before + 5, "a salted prompt's blocks")
    salted = [c for c in state["chains"] if isinstance(c[0], str)]
    assert len(salted) == 5 and {len(c) for c in salted} == {1 + PAGE * i for i in range(1, 6)}
    # so many prompts that the first are evicted
    for i in range(1000):
        last = prompt_of(s, 200, 100 + i)
        s.complete(prompt=last, max_tokens=1)
        if s.metric("mixd_prefix_cache_evictions_total") >= 30: # more than came before
            break
    r.wait(lambda v: longest(v, prompt) < PAGE and longest(v, last) >= 6 * PAGE, "evictions")
    assert cached(s, prompt) == 0
    r.close()
    s.stop()


def test_events_as_maps():
    follow_attention("maps")


def test_events_as_arrays():
    follow_attention("arrays")


def test_hybrid():
    """Only what a later request resumes from is told."""
    need()
    s, r = start({"demo": DEMO})
    r.ask("replay 0")
    # the pages of this model, as it says
    prompt = prompt_of(s, 150)
    answer = s.complete(prompt=prompt, max_tokens=1)
    state = r.wait(lambda v: longest(v, prompt) > 0, "a prompt's blocks")
    told = longest(state, prompt)
    found = cached(s, prompt + [5])
    assert told <= found <= 151, (told, found)
    assert found >= 150, found # a state at the end of the prompt
    r.close()
    s.stop()


def test_late_and_missing():
    """Who comes late asks for a replay; what is kept no more is sent anew."""
    need()
    s, first = start({"attn": ATTENTION}, keys=f", page_tokens: {PAGE}, memory: 34MiB, max_context: 512",
                     buffer_steps=3)
    first.ask("replay 0")
    prompts = [prompt_of(s, 100, i) for i in range(8)]
    for p in prompts:
        s.complete(prompt=p, max_tokens=1)
        first.wait(lambda v: longest(v, p) == 3 * PAGE, "blocks")
    late = Subscriber("maps", *re.findall(r"kv_events: \w+: listening on (\S+)", s.errors()), "kv@a@attn")
    late.wait(lambda v: True, "nothing")
    numbers = late.ask(f"replay {1 << 60}")
    assert numbers == [], numbers # nothing is newer
    # from the beginning, which is kept no more. What comes of the last three has parents that it does
    # not know; a router skips those, this one is strict, so it asks and leaves the answer aside.
    ask = subprocess.run([PYTHON, "-c", ASK, re.findall(r"listening on (tcp\S+)", s.errors())[1]],
                         stdout=subprocess.PIPE, text=True, check=True)
    numbers = json.loads(ask.stdout)
    assert len(numbers) == 3 and numbers[0] > 0, numbers
    state = late.wait(lambda v: v["cleared"] == 1 and all(longest(v, p) == 3 * PAGE for p in prompts),
                      "the whole content")
    state_first = first.wait(lambda v: v["cleared"] == 2 and len(v["chains"]) >= len(state["chains"]),
                             "the whole content, for the one that knew it")
    assert sorted(state["chains"]) == sorted(state_first["chains"])
    late.close()
    first.close()
    s.stop()


ASK = r'''
import json, sys, zmq
s = zmq.Context().socket(zmq.DEALER)
s.connect(sys.argv[1])
# what is not a request is ignored
s.send_multipart([b"", b"short"])
s.send_multipart([b"x" * 200, b"", b"y", b"z"])
s.send_multipart([b"", (0).to_bytes(8, "big")])
numbers = []
while True:
    assert s.poll(60000)
    _, number, _ = s.recv_multipart()
    if number == b"\xff" * 8:
        break
    numbers.append(int.from_bytes(number, "big"))
print(json.dumps(numbers))
'''


def test_refusals():
    """An endpoint that is none ends the start, with its place; no file gets a port by chance."""
    need()
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "mixd.yaml")
        with open(config, "w") as f:
            f.write("http: { listen: 127.0.0.1:0 }\nkv_events: { endpoint: 'nonsense*' }\n"
                    f"models: [{{ name: attn, path: {ATTENTION} }}]\n")
        env = dict(os.environ, MIXD_FRONT_PATH=FRONTS, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs"))
        p = subprocess.run([os.path.join(BUILD, "mixd"), "--config", config], env=env, timeout=PATIENCE,
                           stderr=subprocess.PIPE, text=True)
        assert p.returncode == 1 and "nonsense*" in p.stderr, p.stderr


main(sys.modules[__name__])
