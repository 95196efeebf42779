#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step touches the experts that its rows are routed to, and no other: one whose weights are NaN, and
whose score is so corrected that nobody chooses it, changes nothing."""
import json
import os
import shutil
import struct
import sys
import tempfile

from harness import Mixd, main
from test_golden_api import with_tokenizer

POISONED = 3  # number of an expert of glm4_moe


def edit(path, change):
    """Applies change(name, float32 values) -> values or None to each tensor of a safetensors file."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    n, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    changed = 0
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n + x for x in t["data_offsets"])
        new = change(name, list(struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])))
        if new is not None:
            data[begin:end] = struct.pack(f"<{len(new)}f", *new)
            changed += 1
    with open(path, "wb") as f:
        f.write(data)
    return changed


def without(name, values):
    """Nobody chooses the expert any more."""
    if name.endswith("e_score_correction_bias"):
        return [*values[:POISONED], -1e6, *values[POISONED + 1:]]


def poisoned(name, values):
    if f".experts.{POISONED}." in name:
        return [float("nan")] * len(values)
    return without(name, values)


def answers(folder, name, change):
    path = with_tokenizer("glm4_moe", folder)
    target = os.path.join(folder, name)
    os.rename(path, target)
    file = os.path.join(target, "model.safetensors")
    source = os.path.realpath(file)
    os.unlink(file)
    shutil.copy(source, file)
    os.chmod(file, 0o644)
    assert edit(file, change) > 0
    s = Mixd({"m": target}, max_sequences=4)
    try:
        out = []
        for n in (1, 40):
            prompt = [(7 * i + 3) % 128 for i in range(n)]
            scored = s.complete(model="m", prompt=prompt, max_tokens=0, echo=True, logprobs=1)
            more = s.complete(model="m", prompt=prompt, max_tokens=8, temperature=0, logprobs=1,
                              return_token_ids=True, ignore_eos=True)["choices"][0]
            out.append((scored["choices"][0]["logprobs"]["token_logprobs"], more["token_ids"],
                        more["logprobs"]["token_logprobs"]))
        s.stop()
        return out
    finally:
        if s.process.poll() is None:
            s.process.kill()


def test_experts_that_nobody_chooses_are_not_touched():
    with tempfile.TemporaryDirectory() as folder:
        assert answers(folder, "poisoned", poisoned) == answers(folder, "plain", without)


if __name__ == "__main__":
    main(sys.modules[__name__])
