#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mixd-eval measures on held-out text what the training framework measures, within 0.5 %; tools/choose-dci.py
chooses by it.

tests/golden/demo/held-out.txt is a piece of a book that was not trained on; expected.json beside it has
what the scripts that trained the bundled models printed of it:

    tools/train-demo-hybrid.py --evaluate models/demo --valid tests/golden/demo/held-out.txt
    tools/train-demo.py --evaluate models/demo-attention --valid tests/golden/demo/held-out.txt
    tools/train-draft.py --teacher models/demo --evaluate models/demo-draft --valid tests/golden/demo/held-out.txt
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

TOP = os.path.abspath(os.environ.get("srcdir", "."))
BUILD = os.path.abspath(os.environ.get("builddir", "."))
EVAL = os.path.join(BUILD, "mixd-eval")
GOLDEN = os.path.join(TOP, "tests/golden/demo")


def evaluate(model, text, *options):
    """What mixd-eval prints of a bundled model and a file, by name."""
    env = dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs"))
    r = subprocess.run([EVAL, "--model", os.path.join(TOP, "models", model), "--text", text,
                        *options], env=env,
                       capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    print(r.stdout)
    return {name: float(value) for name, value in (line.split() for line in r.stdout.splitlines())}


class Eval(unittest.TestCase):
    def setUp(self):
        with open(os.path.join(GOLDEN, "expected.json")) as f:
            self.expected = json.load(f)

    @unittest.skipIf(os.environ.get("MIXD_TEST_SLOW"), "takes minutes with a sanitizer")
    def test_perplexity_of_the_bundled_models(self):
        for model, expected in self.expected.items():
            got = evaluate(model, os.path.join(GOLDEN, "held-out.txt"))
            self.assertEqual(got["tokens"], expected["tokens"], model)
            self.assertEqual(got["bytes"], expected["bytes"], model)
            for name in ("perplexity", "nats_per_token", "bits_per_byte"):
                self.assertAlmostEqual(got[name] / expected[name], 1, delta=0.005, msg=f"{model}: {name}")

    def test_a_piece_of_the_text_is_much_like_all_of_it(self):
        with tempfile.NamedTemporaryFile() as piece:
            with open(os.path.join(GOLDEN, "held-out.txt"), "rb") as f:
                piece.write(f.read(3000))
            piece.flush()
            got = evaluate("demo", piece.name)
            parted = evaluate("demo", piece.name, "--positions", "--context", "1100")
        self.assertEqual(got["bytes"], 3000)
        whole = self.expected["demo"]["bits_per_byte"]
        self.assertAlmostEqual(got["bits_per_byte"] / whole, 1, delta=0.1)
        # all of it lies before position 1024
        self.assertLess(got["tokens"], 1024)
        self.assertAlmostEqual(parted["nats_from_0"], got["nats_per_token"], delta=1e-5)
        self.assertNotIn("nats_from_1024", parted)

    def choose(self, *args):
        return subprocess.run([os.path.join(TOP, "tools/choose-dci.py"), *args], capture_output=True,
                              env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs")), text=True)

    def test_the_cheapest_setting_of_dci_that_is_near_enough_is_chosen(self):
        with tempfile.TemporaryDirectory() as folder:
            fake = os.path.join(folder, "eval")
            with open(fake, "w") as f:  # 1 % above with 96 keys, 0.3 % with 128, 0.1 % with 256
                f.write('#!/bin/sh\necho "tokens 9"\ncase "$*" in *top_k=256*) echo perplexity 20.02;;\n'
                        '*2-3:dci:top_k=128*) echo perplexity 20.06;; *dci*) echo perplexity 20.2;;\n'
                        '*) echo perplexity 20;; esac\n')
            os.chmod(fake, 0o755)
            args = ("--model", "m", "--text", "t", "--eval", fake, "--layers", "2-3")
            r = self.choose(*args)
            self.assertEqual(r.stdout, '- {layers: "2-3", mixer: dci, top_k: 128, visits: auto}\n', r.stderr)
            r = self.choose(*args, "--loss", "0.2")
            self.assertIn("top_k: 256", r.stdout)
            r = self.choose(*args, "--loss", "0.05")
            self.assertEqual((r.returncode, r.stdout), (1, ""))
            self.assertIn("no setting is within 0.05 %", r.stderr)
        model = os.path.join(TOP, "models/demo-attention")
        r = self.choose("--model", model, "--text", os.path.join(GOLDEN, "held-out.txt"), "--limit", "2000",
                        "--eval", EVAL, "--loss", "50")
        self.assertEqual(r.returncode, 0, r.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(f"models:\n  - name: m\n    path: {model}\n    layers:\n      {r.stdout}")
            config.flush()
            check = subprocess.run([os.path.join(BUILD, "mixd"), "--check", "--config", config.name], text=True,
                                   capture_output=True,
                                   env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs")))
        self.assertEqual(check.returncode, 0, check.stderr)
        self.assertIn("dci", check.stdout)

    def test_the_manual_page_has_every_option(self):
        usage = subprocess.run([EVAL, "--help"], capture_output=True, text=True, check=True).stdout
        with open(os.path.join(TOP, "conf/mixd-eval.1")) as f:
            page = f.read()
        described = page.split(".Sh DESCRIPTION")[1].split(".Sh OUTPUT")[0]
        items = " ".join(line for line in described.splitlines() if line.startswith(".It Fl"))
        options = set(re.findall(r"--([a-z0-9-]+)", usage)) | {"help"}
        self.assertGreater(len(options), 8)
        for option in options:
            self.assertRegex(items, rf" -{option}( |$)")

    def test_bad_arguments_are_named(self):
        env = dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers", ".libs"))
        r = subprocess.run([EVAL, "--model", "/nonexistent", "--text", "/dev/null"], env=env,
                           capture_output=True, text=True)
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("/nonexistent", r.stderr)


if __name__ == "__main__":
    if not os.path.exists(EVAL):
        sys.exit(77)
    unittest.main(verbosity=2)
