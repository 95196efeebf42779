#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon on a device of its own memory (tests/fake: a GPU that computes on the CPU): serving, what
--check says, speculation, and a device that is lost or is not there."""
import os
import re
import subprocess
import sys
import tempfile

from harness import ATTENTION, BUILD, PATIENCE, Mixd, Thread, main
from test_golden_api import with_tokenizer

FAKE = os.path.join(BUILD, "tests/fake/.libs")
MODELS = {"demo": ATTENTION}
KEYS = ", device: cuda, memory: 128MiB, max_context: 512"


class Modules:
    """Environment of a daemon that takes the fake for its GPU."""

    def __init__(self, **more):
        self.folder = tempfile.TemporaryDirectory()
        for mixer in "attention", "gla":
            for folder, name in (os.path.join(BUILD, "mixers/.libs"), f"{mixer}-cpu.so"), (FAKE, f"{mixer}-cuda.so"):
                os.symlink(os.path.join(folder, name), os.path.join(self.folder.name, name))
        self.env = dict(builddir=BUILD, MIXD_DEVICE_PATH=FAKE, MIXD_MODULE_PATH=self.folder.name, **more)


def check(keys, env):
    """What --check says: exit status, output, errors."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(f"models: [{{ name: demo, path: {ATTENTION}{keys} }}]\n")
        f.flush()
        p = subprocess.run([os.path.join(BUILD, "mixd"), "--config", f.name, "--check"], text=True,
                           capture_output=True, timeout=PATIENCE, env=dict(os.environ, **env))
        return p.returncode, p.stdout, p.stderr


def test_serves():
    modules = Modules()
    s = Mixd(MODELS, keys=KEYS, env=modules.env, max_sequences=8)
    ask = dict(model="demo", prompt="Once upon a time", max_tokens=40, temperature=0)
    first = s.text(**ask)
    answers = [Thread(s.text, **dict(ask, prompt=ask["prompt"] + " there" * (i % 3))) for i in range(8)]
    texts = [t.join() for t in answers]
    assert all(t == first for t in texts[::3]), texts
    told = s.complete(**dict(ask, logprobs=2))["choices"][0]
    assert told["text"] == first and len(told["logprobs"]["tokens"]) == 40
    log = s.errors()
    assert re.search(r"cuda:0 \(fake\), f32, deterministic; [\d.]+ of its [\d.]+ MiB are in use", log), log
    assert "steps of 4 sizes are recorded" in log, log
    s.stop()


def test_speculates():
    """Drafts that are added between two steps change no answer, in company and with constraints."""
    modules = Modules()
    s = Mixd(MODELS, keys=KEYS + ", speculation: { source: ngram, tokens: 6 }", env=modules.env, max_sequences=8)
    text = "Once upon a time there was a little dog. The little dog was very happy. "
    asks = [dict(model="demo", prompt=text * 2 + text[:i], max_tokens=40, temperature=0.0 if i % 3 else 0.8, seed=i,
                 frequency_penalty=0.5 if i % 4 == 1 else 0, logprobs=1 if i % 4 == 2 else None) for i in range(6)]
    plain = [s.complete(**a, speculation=False)["choices"][0] for a in asks]
    for a, choice in zip(asks, plain):
        a["prediction"] = dict(type="content", content=choice["text"])
    answers = [t.join() for t in [Thread(s.complete, **a) for a in asks]]
    assert [a["choices"][0] for a in answers] == plain
    kept = sum(a["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] for a in answers)
    assert kept > 0, kept # how many are tried depends on time
    s.stop()


def test_speculates_by_the_model_s_head():
    """The head for multi-token prediction of a hybrid: the same answers and hits with and without."""
    modules = Modules()
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer("qwen3_5-mtp", folder)
        s = Mixd({"m": path}, keys=KEYS + ", speculation: { source: mtp, tokens: 3 }", env=modules.env, max_sequences=8)
        asks = [dict(model="m", prompt=[(5 * i + k) % 128 for k in range(40 + i)], max_tokens=30, seed=i,
                     temperature=0 if i % 2 else 0.7, logprobs=1 if i % 3 == 2 else None, ignore_eos=True,
                     return_token_ids=True) for i in range(6)]
        plain = [s.complete(**a, speculation=False)["choices"][0] for a in asks]
        for _ in range(6):  # how many are tried depends on time, and this head is never right
            answers = [t.join() for t in [Thread(s.complete, **a) for a in asks]]
            assert [a["choices"][0] for a in answers] == plain
            if s.metric("vllm:spec_decode_num_draft_tokens_total") > 20:
                break
        assert s.metric("vllm:spec_decode_num_draft_tokens_total") > 0
        whole = asks[0]["prompt"] + plain[0]["token_ids"]
        second = s.complete(model="m", prompt=whole + [5], max_tokens=1)
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == len(whole) - 1, second
        assert "a head for multi-token prediction" in s.errors()
        s.stop()


def test_check_tells_the_device_from_the_host():
    modules = Modules()
    rc, out, err = check(KEYS, modules.env)
    assert rc == 0, err
    total = float(re.search(r"^  total on cuda:0 +([\d.]+) MiB  of ", out, re.M)[1])
    parts = re.findall(r"^  (?:weights(?:, converted)?|pages|scratch) +([\d.]+) MiB", out, re.M)
    assert len(parts) == 4 and abs(sum(map(float, parts)) - total) < 0.3, out
    assert total <= 128 and float(re.search(r"^  total on the host +([\d.]+) MiB", out, re.M)[1]) < total, out


def test_a_lost_device_ends_the_process():
    modules = Modules(MIXD_FAKE_STEPS="20")
    s = Mixd(MODELS, keys=KEYS, env=modules.env)
    ask = dict(model="demo", prompt="Once upon a time", max_tokens=200, temperature=0)
    status, _, body = s.post("/v1/completions", ask)
    assert status == 500 and "device" in body["error"]["message"], (status, body)
    assert s.process.wait(PATIENCE) == 1
    log = s.errors()
    assert "failed: device lost" in log and "an engine is lost: exiting to be restarted" in log, log


def test_a_device_that_is_not_there_is_named():
    modules = Modules()
    rc, _, err = check(KEYS.replace("cuda", "cuda:7"), modules.env)
    assert rc == 1 and "demo: device: cuda:7: the fakes are cuda:0 to cuda:3" in err, err
    rc, _, err = check(KEYS, dict(modules.env, MIXD_DEVICE_PATH="/nowhere"))
    assert rc == 1 and "demo: device: CUDA devices need device-cuda.so" in err, err


if __name__ == "__main__":
    main(sys.modules[__name__])
