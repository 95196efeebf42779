#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A bundled model in each format of quantised checkpoints says what the same numbers in f32 say: with
activations in 8 bits the log-probabilities move by a part of a per cent. Rounded at load, within the
bars of each width. What a device or a configuration cannot have is refused by name."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness  # goes on in the interpreter of MIXD_TEST_PYTHON

try:
    import quantise
except ImportError:
    print("numpy is missing")
    sys.exit(77)

TOP = os.path.abspath(os.environ.get("srcdir", "."))
BUILD = os.path.abspath(os.environ.get("builddir", "."))
MODEL = os.path.join(TOP, "models/demo-attention")
TEXT = os.path.join(TOP, "tests/golden/demo/held-out.txt")
SLOW = bool(os.environ.get("MIXD_TEST_SLOW"))
# MIXD_TEST_FORMATS=all: by hand, those that differ little from these, too
SHORT = ["awq", "ct-int4-zeros", "fp8-block"] if SLOW else ["awq", "gptq", "ct-int4-zeros", "ct-int8", "fp8-block"]
FORMATS = quantise.FORMATS if os.environ.get("MIXD_TEST_FORMATS") == "all" else SHORT
FAKE = os.path.join(BUILD, "tests/fake/.libs") # a GPU that computes on the CPU
BYTES = "600" if SLOW else "1500"


def run_eval(model, *args, modules=os.path.join(BUILD, "mixers", ".libs")):
    env = dict(os.environ, MIXD_DEVICE_PATH=FAKE)
    env["MIXD_MODULE_PATH"] = modules
    return subprocess.run([os.path.join(BUILD, "mixd-eval"), "--model", model, "--text", TEXT, "--limit", BYTES, *args],
                          env=env, capture_output=True, text=True)


def nats(model, *args, **more):
    r = run_eval(model, *args, **more)
    assert r.returncode == 0, r.stderr
    return float(dict(line.split() for line in r.stdout.splitlines())["nats_per_token"])


class Quantised(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def written(self, kind):
        """Folders of the model in this format, and of its numbers in f32."""
        paths = os.path.join(self.dir, kind), os.path.join(self.dir, kind + "-f32")
        quantise.write(MODEL, kind, *paths)
        return paths

    def test_each_format_is_its_numbers(self):
        for kind in FORMATS:
            quantised, exact = self.written(kind)
            self.assertAlmostEqual(nats(quantised), nats(exact), delta=0.01, msg=kind)
            shutil.rmtree(exact)

    def test_rounded_at_load(self):
        plain = nats(MODEL)
        self.assertAlmostEqual(nats(MODEL, "--weights", "8"), plain, delta=0.02)
        self.assertAlmostEqual(nats(MODEL, "--weights", "4"), plain, delta=0.25)

    def test_on_a_device_of_its_own_memory(self):
        modules = os.path.join(self.dir, "modules")
        os.mkdir(modules)
        for path in os.path.join(BUILD, "mixers/.libs/attention-cpu.so"), os.path.join(FAKE, "attention-cuda.so"):
            os.symlink(path, os.path.join(modules, os.path.basename(path)))

        def on_device(model, *args): # whose keys are bf16, so a little off
            return nats(model, "--device", "cuda", "--context", "512", *args, modules=modules)

        for kind in SHORT[:2] if SLOW else ["awq", "ct-int8", "fp8-rows", "fp8-block"]:
            quantised, exact = self.written(kind)
            self.assertAlmostEqual(on_device(quantised), nats(exact, "--context", "512"), delta=0.003, msg=kind)
        self.assertAlmostEqual(on_device(MODEL, "--weights", "4"), nats(MODEL, "--weights", "4"), delta=0.02)

    def test_a_missing_or_misshapen_part_is_named(self):
        quantised, _ = self.written("fp8-rows")
        path = os.path.join(quantised, "model.safetensors")
        with open(path, "rb") as f:
            data = f.read()
        name = b"model.layers.3.mlp.up_proj.weight_scale"
        with open(path, "wb") as f: # the same length, so that all offsets stay
            f.write(data.replace(name, name[:-5] + b"other"))
        error = run_eval(quantised).stderr
        self.assertIn("model.layers.3.mlp.up_proj.weight' is F8_E4M3 but has neither weight_scale", error)
        with open(path, "wb") as f:
            f.write(data)
        config = os.path.join(quantised, "config.json")
        with open(config, encoding="utf-8") as f:
            was = json.load(f)
        for key, value, want in [("quant_method", "bitsandbytes", 'quant_method: "bitsandbytes" is not supported'),
                                 ("scale_fmt", "ue8m0", "ue8m0 is not supported")]:
            with open(config, "w", encoding="utf-8") as f:
                json.dump(was | {"quantization_config": was["quantization_config"] | {key: value}}, f)
            self.assertIn(want, run_eval(quantised).stderr)


if __name__ == "__main__":
    unittest.main()
