#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mixd-eval measures on held-out text what the training framework measures, within 0.5 %.

tests/golden/demo/held-out.txt is a piece of a book that was not trained on; expected.json beside it is
what `tools/train-demo.py --evaluate models/demo --valid tests/golden/demo/held-out.txt` printed.
"""
import json
import os
import subprocess
import sys
import unittest

TOP = os.path.abspath(os.environ.get("srcdir", "."))
BUILD = os.path.abspath(os.environ.get("builddir", "."))
EVAL = os.path.join(BUILD, "mixd-eval")
GOLDEN = os.path.join(TOP, "tests/golden/demo")


class Eval(unittest.TestCase):
    def test_perplexity_of_the_bundled_model(self):
        with open(os.path.join(GOLDEN, "expected.json")) as f:
            expected = json.load(f)
        env = dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs"))
        r = subprocess.run([EVAL, "--model", os.path.join(TOP, "models/demo"), "--text",
                            os.path.join(GOLDEN, "held-out.txt")], env=env, capture_output=True, text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        got = dict(line.split() for line in r.stdout.splitlines())
        print(r.stdout)
        self.assertEqual(int(got["tokens"]), expected["tokens"])
        self.assertEqual(int(got["bytes"]), expected["bytes"])
        for name in ("perplexity", "nats_per_token", "bits_per_byte"):
            self.assertAlmostEqual(float(got[name]) / expected[name], 1, delta=0.005, msg=name)

    def test_bad_arguments_are_named(self):
        env = dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs"))
        r = subprocess.run([EVAL, "--model", "/nonexistent", "--text", "/dev/null"], env=env,
                           capture_output=True, text=True)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("/nonexistent", r.stderr)


if __name__ == "__main__":
    if not os.path.exists(EVAL):
        sys.exit(77)
    unittest.main()
