#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two keys: one floods the server, the other's requests have their first token soon, counted in the
engine's steps; and who gives way for that gets the same answer in the end."""
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import harness
from harness import BUILD, Mixd, Skip, server

REQUESTS, TOKENS, SEQUENCES = 200, 200, 4
# Steps of the flood: what a request behind it would wait.
FLOOD = REQUESTS * TOKENS // SEQUENCES
# A step and the share are some ten steps; the rest is for the way of a request through a busy host.
BOUND = FLOOD // 20


class Keyed(Mixd):
    """The daemon with two keys, which are the names of their principals."""

    def __init__(self, **options):
        usage = subprocess.run([os.path.join(BUILD, "mixd"), "--help"], capture_output=True, text=True)
        if "--hash-key" not in usage.stdout:
            raise Skip("this mixd has no keys")
        self.keys = tempfile.NamedTemporaryFile("w")  # only its owner can read it
        for name in ("flood", "polite"):
            digest = hashlib.sha256(name.encode()).hexdigest()
            self.keys.write(f"- {{ name: {name}, sha256: {digest}, models: [demo] }}\n")
        self.keys.flush()
        super().__init__(top=f"keys: {self.keys.name}\n", **options)


def send(s, key, **fields):
    """A connection on which the request was sent, and nothing read."""
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps(dict(fields, temperature=0, ignore_eos=True)),
              {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    return c


def flood_request(i):
    return dict(prompt=[1 + i % 7] * (20 + i % 5), max_tokens=TOKENS)


def text(c):
    r = c.getresponse()
    body = json.loads(r.read())
    assert r.status == 200, body
    c.close()
    return body["choices"][0]["text"]


def steps_to_first_token(s, i):
    before = s.metric("mixd_steps_total")
    c = send(s, "polite", prompt=[30 + i] * 40, max_tokens=4, stream=True)
    r = c.getresponse()
    assert r.status == 200, r.read()
    while not r.readline().startswith(b"data: "):
        pass
    steps = s.metric("mixd_steps_total") - before
    assert b"[DONE]" in r.read()
    c.close()
    return steps


# Steps of 10 ms: most of the flood is still to come when the last of it was sent.
@server(Keyed, max_sequences=SEQUENCES, step_ms=10)
def test_a_flood_of_one_key_does_not_delay_another(s):
    flood = [send(s, "flood", **flood_request(0))]
    s.wait_metric("vllm:num_requests_running", 1)
    for i in range(1, REQUESTS):
        flood.append(send(s, "flood", **flood_request(i)))
        if i == SEQUENCES - 1:
            s.wait_metric("vllm:num_requests_running", SEQUENCES)
    s.wait_for(lambda: s.metric("vllm:num_requests_waiting") >= REQUESTS * 3 // 4, "flood")
    steps = sorted(steps_to_first_token(s, i) for i in range(5))
    print(f"    steps to the first token: {steps}; the flood has {FLOOD}")
    assert s.metric("vllm:num_requests_waiting") > REQUESTS // 2, "the flood was over"
    assert steps[2] <= BOUND, steps
    assert s.metric("mixd_share_preemptions_total") >= 1
    s.pace.set(0)
    for c in flood[SEQUENCES:]:
        c.close()
    # Those that ran when the others came: the last of them gave way.
    got = [text(c) for c in flood[:SEQUENCES]]
    for i, answer in enumerate(got):
        assert text(send(s, "flood", **flood_request(i))) == answer, i


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
