#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Published checkpoints (tests/golden/published: config, names, shapes and type of tensors), as sparse
files of their size: mixd --check takes each, asks for every tensor that it does not skip, and names one
that is missing or too much."""
import json
import os
import struct
import sys
import tempfile

from harness import SRC, main
from test_check import run
from test_golden_api import byte_pieces

PUBLISHED = os.path.join(SRC, "tests/golden/published")
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}


def tensors_of(model):
    """{name: (shape, type)}; a name with {} stands for the same in layers, one with [] for that of
    experts."""
    out = {}
    for name, t in model["tensors"].items():
        for i in t.get("at", range(t.get("n", 1))):
            for e in range(t.get("m", 1)):
                each = name.replace("{}", str(i)).replace("[]", str(e))
                out[each] = t["shape"], t.get("dtype", model["dtype"])
    return out


def write(folder, model, tensors):
    """A checkpoint without weights: a header, and a hole for the data."""
    header, at = {}, 0
    for name, (shape, dtype) in tensors.items():
        n = BYTES[dtype]
        for d in shape:
            n *= d
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + n])
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(model["config"], f)
    level = dict(type="ByteLevel", add_prefix_space=False, use_regex=True, trim_offsets=True)
    bpe = dict(type="BPE", vocab={p: i for i, p in enumerate(byte_pieces())}, merges=[])
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(dict(version="1.0", added_tokens=[], normalizer=None, pre_tokenizer=level,
                       post_processor=None, decoder=level, model=bpe), f)
    return at


def check(model, tensors):
    with tempfile.TemporaryDirectory() as folder:
        size = write(folder, model, tensors)
        rc, text = run(folder, keys=", max_context: 512, memory: 2GiB")
        return rc, text, size


def fits(rc, text):
    """The checkpoint is taken; or this host has too little memory for it, which is found out last."""
    return rc == 0 and "total" in text or "beside the mapped weights, and this host" in text


# A file of more than a terabyte has not always room in what the thread sanitizer leaves of the address
# space.
TOO_LARGE = {"DeepSeek-V3-bf16"} if os.environ.get("TSAN_OPTIONS") else set()


def each():
    for name in sorted(os.listdir(PUBLISHED)):
        if name.endswith(".json") and name[:-5] not in TOO_LARGE:
            with open(os.path.join(PUBLISHED, name)) as f:
                yield name[:-5], json.load(f)


def test_published_checkpoints_are_taken():
    for name, model in each():
        tensors = tensors_of(model)
        rc, text, size = check(model, tensors)
        assert fits(rc, text), (name, text)
        print(f"{name}: {len(tensors)} tensors, {size / 1e9:.1f} GB")


def test_what_does_not_belong_is_named():
    for name, model in each():
        tensors = tensors_of(model)
        used = next(t for t in sorted(tensors) if ".1." in t and t.endswith("proj.weight")
                    or ".1.attn.c_attn.weight" in t or ".1.attention.dense.weight" in t)
        rc, text, _ = check(model, {k: v for k, v in tensors.items() if k != used})
        skipped = used.startswith(("vision_tower", "model.vision_tower"))
        assert rc == (0 if skipped else 1) and (skipped or used in text), (name, used, text)
        more = used.replace(".1.", ".0.").replace("weight", "lora")
        rc, text, _ = check(model, tensors | {more: ([8, 8], "BF16")})
        assert rc == (0 if skipped else 1) and (skipped or more in text), (name, more, text)


if __name__ == "__main__":
    main(sys.modules[__name__])
