#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mixd --list-models prints docs/models.md, which has every family that a golden checkpoint is of."""
import json
import os
import subprocess
import sys

from harness import BUILD, PATIENCE, SRC, main


def listed():
    return subprocess.run([os.path.join(BUILD, "mixd"), "--list-models"], check=True,
                          stdout=subprocess.PIPE, text=True, timeout=PATIENCE).stdout


def test_the_document_is_the_output():
    with open(os.path.join(SRC, "docs/models.md"), encoding="utf-8") as f:
        assert f.read() == listed(), "make it anew: mixd --list-models > docs/models.md"


def test_every_golden_checkpoint_has_its_row():
    rows = {line.split("|")[1].strip() for line in listed().splitlines() if line[:1] == "|"}
    root = os.path.join(SRC, "tests/golden/models")
    for name in sorted(os.listdir(root)):
        config = os.path.join(root, name, "config.json")
        if os.path.exists(config):
            with open(config, encoding="utf-8") as f:
                assert json.load(f).get("model_type", "mamba2") in rows, name


def test_every_golden_gguf_file_has_its_architecture_in_its_row():
    rows = {cells[1].strip(): cells[5].strip().split(", ") for cells in
            (line.split("|") for line in listed().splitlines() if line[:1] == "|")}
    root = os.path.join(SRC, "tests/golden/models")
    names = [name for name in sorted(os.listdir(root)) if name.startswith("gguf-")]
    assert len(names) > 40
    made_of = {"gguf-latent": "youtu", "gguf-mixed": "qwen3", "gguf-exaone": "llama-llama3",
               "gguf-internlm2": "llama-linear", "gguf-minicpm": "granite"}  # others have the name of a checkpoint
    for name in names:
        with open(os.path.join(root, made_of.get(name, name[5:]), "config.json"), encoding="utf-8") as f:
            family = json.load(f).get("model_type")
        with open(os.path.join(root, name, "model.gguf"), "rb") as f:
            head = f.read(1 << 16)
        key = b"general.architecture"
        at = head.index(key) + len(key) + 4  # behind the key: its kind, then length and text
        arch = head[at + 8:at + 8 + int.from_bytes(head[at:at + 8], "little")].decode()
        assert arch in rows[family], (name, family, arch)


if __name__ == "__main__":
    main(sys.modules[__name__])
