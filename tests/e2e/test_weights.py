#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that are not finite: --check --deep names every tensor; a server's answers and log name the
layer and the tensor."""
import contextlib
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from harness import ATTENTION, BUILD, PATIENCE, Mixd, check_error, check_sanitizers, main


def poke(path, tensor, index, value):
    """Writes a value into the checkpoint of a folder."""
    with open(os.path.join(path, "model.safetensors"), "r+b") as f:
        size, = struct.unpack("<Q", f.read(8))
        entry = json.loads(f.read(size))[tensor]
        data = {"F32": struct.pack("<f", value), "F16": struct.pack("<e", value),
                "BF16": struct.pack("<f", value)[2:]}[entry["dtype"]]
        f.seek(8 + size + entry["data_offsets"][0] + index * len(data))
        f.write(data)


@contextlib.contextmanager
def damaged(*values):
    """A copy of the bundled attention model with some values replaced: (tensor, index, value)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "demo")
        shutil.copytree(ATTENTION, path)
        for value in values:
            poke(path, *value)
        yield path


def check(path, *options):
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "mixd.yaml")
        with open(config, "w") as f:
            f.write(f"http: {{ listen: '127.0.0.1:0' }}\nmodels: [{{ name: demo, path: {path} }}]\n")
        r = subprocess.run([os.path.join(BUILD, "mixd"), "--config", config, *options],
                           env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs")),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    return r.returncode, r.stdout


def test_deep_check_names_every_tensor():
    rc, text = check(ATTENTION, "--check", "--deep")
    assert rc == 0 and "tensors are finite" in text, text
    with damaged(("model.layers.3.mlp.down_proj.weight", 7, math.nan)) as path:
        rc, text = check(path, "--deep")
        assert rc == 1 and ": 1 tensor holds values that are not finite" in text, text
    with damaged(("model.layers.3.mlp.down_proj.weight", 7, math.nan),
                 ("model.layers.5.input_layernorm.weight", 2, -math.inf)) as path:
        rc, text = check(path, "--check")
        assert rc == 0, text
        rc, text = check(path, "--check", "--deep")
        assert rc == 1, text
        for words in (": model.safetensors: tensor model.layers.3.mlp.down_proj.weight: 1 of ",
                      "first at element 7", "tensor model.layers.5.input_layernorm.weight: 1 of ",
                      "first at element 2", "2 tensors hold values that are not finite"):
            assert words in text, (words, text)


class Broken(Mixd):
    """A server whose log has errors in it."""

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        assert self.process.wait(PATIENCE) == 0, self.errors()
        self.process.stdout.close()
        check_sanitizers(self.errors())
        self.log.close()


def test_answers_and_log_name_layer_and_tensor():
    with damaged(("model.layers.3.mlp.down_proj.weight", 7, math.nan)) as path:
        s = Broken({"demo": path})
        words = "layer 3 (feed-forward): model.layers.3.mlp.down_proj.weight in model.safetensors"
        for _ in range(3):
            check_error(s.post("/v1/completions", {"model": "demo", "prompt": "Once", "max_tokens": 4}),
                        500, "engine_error", contains=words)
        last = [e for e in s.stream(model="demo", prompt="Once", max_tokens=4)][-1]
        assert words in last["error"]["message"], last
        assert s.errors().count(f"a result is not finite: {words}") == 1, s.errors()
        s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
