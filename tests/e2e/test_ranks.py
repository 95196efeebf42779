#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One model on several ranks (device: [cpu, cpu]): the same answers alone and in company, nearly those
of one device; the same on devices of tests/fake, which pass for GPUs; what --check says of each rank; and
devices that a model cannot be split over."""
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile

import test_gguf as gguf
from harness import ATTENTION, BUILD, DEMO, PATIENCE, Mixd, Thread, main
from test_device import Modules
from test_golden_api import with_tokenizer

MODEL = "qwen2"  # 4 heads, 2 key heads


def check_metrics(s, keys):
    """Of several ranks each has its memory and its time in exchanges; of one there is neither."""
    text = s.get("/metrics")[2].decode()
    devices = re.findall(r"cpu|cuda:\d", re.search(r"device: \[(.*?)\]", keys)[1]) if "[" in keys else []
    for name in "mixd_rank_memory_bytes", "mixd_rank_exchange_seconds_total":
        found = re.findall(rf'^{name}{{.*,rank="(\d+)",device="(.*?)"}} (.*)$', text, re.M)
        assert [(r, d) for r, d, _ in found] == [(str(i), d) for i, d in enumerate(devices)], text
        if "cuda" not in keys or "memory" in name:  # what passes for a GPU keeps no time
            assert all(float(v) > 0 for _, _, v in found), found


def answers(path, keys, env=None):
    """Log-probabilities of a prompt, and an answer alone and beside seven others."""
    s = Mixd({"m": path}, keys=keys, max_sequences=8, env=env)
    try:
        prompt = [(7 * i + 3) % 128 for i in range(60)]
        scored = s.complete(model="m", prompt=prompt, max_tokens=0, echo=True, logprobs=1)
        ask = dict(model="m", max_tokens=12, temperature=1, seed=5, logprobs=1, ignore_eos=True,
                   return_token_ids=True)
        alone = s.complete(prompt=prompt, **ask)["choices"][0]
        several = [Thread(s.complete, prompt=prompt[i:], **ask) for i in range(8)]
        beside = [t.join()["choices"][0] for t in several][0]
        assert beside["token_ids"] == alone["token_ids"]
        assert beside["logprobs"]["token_logprobs"] == alone["logprobs"]["token_logprobs"]
        check_metrics(s, keys)
        log = s.errors()
        s.stop()
        return scored["choices"][0]["logprobs"]["token_logprobs"][1:], alone["token_ids"], log
    finally:
        if s.process.poll() is None:
            s.process.kill()


def check(path, keys, env=None):
    """What --check says: exit status, output, errors."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(f"models: [{{ name: demo, path: {path}{keys} }}]\n")
        f.flush()
        p = subprocess.run([os.path.join(BUILD, "mixd"), "--config", f.name, "--check"], text=True,
                           env=dict(os.environ, **(env or {"MIXD_MODULE_PATH": os.path.join(BUILD, "mixers/.libs")})),
                           capture_output=True, timeout=PATIENCE)
        return p.returncode, p.stdout, p.stderr


def test_answers():
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer(MODEL, folder)
        one, tokens, _ = answers(path, "")
        for keys in (", device: [cpu, cpu]", ", device: [cpu, cpu, cpu]", ", device: [cpu, cpu, cpu, cpu], parallel: { tensor: 4 }",
                     ", device: [cpu, cpu], parallel: { context: 2 }",
                     ", device: [cpu, cpu, cpu, cpu], parallel: { context: 2 }"):
            several, same, log = answers(path, keys)
            assert same == tokens
            assert max(abs(a - b) for a, b in zip(one, several)) < 1e-4
            assert f"{keys.count('cpu')} ranks" in log, log


def test_uneven():
    """The bundled models on numbers of ranks that do not divide their heads (5; 6, 8 and 2 key heads) or the width
    of their feed-forwards. Their weights are bf16, to which products round."""
    for path, ranks in (ATTENTION, 2), (DEMO, 3):
        one, _, _ = answers(path, "")
        several, _, _ = answers(path, f", device: [{', '.join(['cpu'] * ranks)}]")
        assert max(abs(a - b) for a, b in zip(one, several)) < 0.2, list(zip(one, several))
    rc, out, err = check(ATTENTION, ", device: [cpu, cpu]")
    assert rc == 0, err
    assert re.search(r"^  2 ranks, at most with +[\d.]+ MiB of weights", out, re.M), out
    mixers = [float(x) for x in re.findall(r"^    rank \d +mixers ([\d.]+) MiB", out, re.M)]
    assert len(mixers) == 2 and mixers[0] > mixers[1], out
    assert re.search(r"^    tensor 1, context 2 +not possible: .*5 heads cannot be split over 2 ranks", out, re.M), out


def test_the_head_is_split():
    """Speculation by a head for multi-token prediction changes no bit of what two ranks answer."""
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer("qwen3_5-mtp", folder)
        plain = answers(path, ", device: [cpu, cpu]")
        with_head = answers(path, ", device: [cpu, cpu], speculation: { source: mtp, tokens: 3 }")
        assert with_head[:2] == plain[:2]
        assert "a head for multi-token prediction" in with_head[2], with_head[2]
        rc, out, err = check(path, ", device: [cpu, cpu], speculation: { source: mtp }")
        assert rc == 0 and "a head for multi-token prediction, one more layer" in out, out + err


def test_gpus():
    """Two devices that pass for GPUs answer as two ranks on CPUs do, bit for bit."""
    modules = Modules()
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer(MODEL, folder)
        keys = ", max_context: 256, memory: 64MiB, device: "
        cpus, same, _ = answers(path, keys + "[cpu, cpu]")
        gpus, tokens, log = answers(path, keys + "['cuda:0', 'cuda:1']", modules.env)
        assert tokens == same and gpus == cpus, list(zip(cpus, gpus))
        assert "2 ranks, each with" in log and re.search(r"steps of \d sizes are recorded", log), log
        rc, out, err = check(path, keys + "['cuda:0', 'cuda:1']", modules.env)
        assert rc == 0, err
        assert float(re.search(r"^  total on each GPU +([\d.]+) MiB  of ", out, re.M)[1]) <= 32, out
        for rank in 0, 1:
            assert re.search(rf"^    rank {rank} .* of the vocabulary [\d.]+ MiB, copies [\d.]+ MiB, on cuda:{rank}$",
                             out, re.M), out


def test_gpus_are_not_shared():
    """Two models on several GPUs could wait for each other: none is loaded beside another on a GPU of its."""
    modules = Modules()
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer(MODEL, folder)
        two = f"path: {path}, max_context: 256, memory: 64MiB, device: ['cuda:0', 'cuda:1']"

        def change(s, models, expect):
            with open(s.config, encoding="utf-8") as f:
                top = f.read().split("models:")[0]
            with open(s.config, "w", encoding="utf-8") as f:
                f.write(top + "models: [" + ", ".join(f"{{ {m} }}" for m in models) + "]\n")
            before = s.errors().count(expect)
            s.process.send_signal(signal.SIGHUP)
            s.wait_for(lambda: s.errors().count(expect) > before, f"line with {expect!r}")

        s = Mixd({"m": path}, keys=two.replace(f"path: {path}", ""), max_sequences=8, env=modules.env)
        try:
            ask = dict(prompt=[1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True)
            change(s, [f"name: m, {two}", f"name: n, {two}"], "models m and n are both on several GPUs")
            change(s, [f"name: m, {two}, page_tokens: 32"], "it shares GPUs with the loaded m, and both have several")
            assert s.complete(model="m", **ask)["usage"]["completion_tokens"] == 4
            change(s, [f"name: c, path: {path}"], " reloaded ")
            s.wait_for(lambda: "m: the old one has finished its requests and is gone" in s.errors(), "end of m")
            change(s, [f"name: m, {two}, page_tokens: 32"], " reloaded ")
            assert s.complete(model="m", **ask)["usage"]["completion_tokens"] == 4
            s.process.send_signal(signal.SIGTERM)  # s.stop() takes no log with errors
            assert s.process.wait(PATIENCE) == 0, s.errors()
        finally:
            if s.process.poll() is None:
                s.process.kill()


BLOCKS = {"Q8_0": (8, 32, 34, (0,)), "Q4_K": (12, 256, 144, (0, 2))}  # type, elements, bytes, where f16 are


def quantised(path, kind):
    """A GGUF file of random matrices of that type, of 4 heads of 64."""
    number, elements, size, halves = BLOCKS[kind]
    draw = random.Random(3)
    with open(os.path.join(ATTENTION, "config.json"), encoding="utf-8") as f:
        vocab = json.load(f)["vocab_size"]

    def matrix(name, rows, cols):
        raw = bytearray(draw.randbytes(rows * cols // elements * size))
        for at in range(0, len(raw), size):
            for h in halves:
                raw[at + h:at + h + 2] = struct.pack("<e", 5e-4)
        return f"{name}.weight", [rows, cols], number, bytes(raw)

    def ones(name):
        return f"{name}.weight", [256], 0, struct.pack("<256f", *[1.0] * 256)

    tensors = [matrix("token_embd", vocab, 256), ones("output_norm")]
    for i in range(2):
        b = f"blk.{i}."
        tensors += [ones(b + "attn_norm"), matrix(b + "attn_q", 256, 256), matrix(b + "attn_k", 128, 256),
                    matrix(b + "attn_v", 128, 256), matrix(b + "attn_output", 256, 256), ones(b + "ffn_norm"),
                    matrix(b + "ffn_gate", 512, 256), matrix(b + "ffn_up", 512, 256), matrix(b + "ffn_down", 256, 512)]
    gguf.convert(ATTENTION, path, instead=tensors, **{
        "llama.block_count": 2, "llama.embedding_length": 256, "llama.feed_forward_length": 512,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.rope.dimension_count": 64})


def test_quantised():
    """Columns of quantised matrices are split between blocks, or the model is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.gguf")
        quantised(path, "Q8_0")
        one, _, _ = answers(path, ", max_context: 256")
        two, _, _ = answers(path, ", max_context: 256, device: [cpu, cpu]")
        assert max(abs(a - b) for a, b in zip(one, two)) < 0.05, list(zip(one, two))
        three, _, _ = answers(path, ", max_context: 256, device: [cpu, cpu, cpu]")
        assert max(abs(a - b) for a, b in zip(one, three)) < 0.05, list(zip(one, three))
        quantised(path, "Q4_K")
        rc, _, err = check(path, ", device: [cpu, cpu]")
        assert rc != 0 and "its 256 columns cannot be split into blocks of 256" in err, err


def test_check():
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer(MODEL, folder)
        rc, out, err = check(path, ", device: [cpu, cpu], threads: 3, max_context: 64")
        assert rc == 0, err
        assert re.search(r"^  2 ranks, each with +[\d.]+ MiB of weights, and [\d.]+ MiB for copies of them$", out, re.M), out
        page = int(re.search(r"^  pages .* tokens, (\d+) bytes each$", out, re.M)[1])
        each = re.search(r"^    \d+ pages of (\d+) bytes, scratch [\d.]+ MiB, 2 threads$", out, re.M)
        assert int(each[1]) * 2 == page, out
        for rank, tokens, threads in (0, "0 to 127", "2 threads"), (1, "128 to 255", "1 thread"):
            assert re.search(rf"^    rank {rank} +mixers [\d.]+ MiB, feed-forwards [\d.]+ MiB, tokens {tokens} of the "
                             rf"vocabulary [\d.]+ MiB, copies [\d.]+ MiB, {threads}$", out, re.M), out
        rc, out, err = check(path, ", device: [cpu, cpu, cpu, cpu], parallel: { context: 2 }, max_context: 256")
        assert rc == 0, err
        assert "    2 ranks share each page: every one stores 32 of its 64 tokens\n" in out, out
        layouts = re.findall(r"^    tensor (\d), context (\d) +[\d.]+ MiB of matrices, [\d.]+ MiB of states(.*)$", out, re.M)
        assert [x[:2] for x in layouts] == [("4", "1"), ("2", "2"), ("1", "4")], out
        assert [x[2].endswith(" (configured)") for x in layouts] == [False, True, False], out
        assert sum(": the least" in x[2] for x in layouts) == 1, out
        rc, out, err = check(with_tokenizer("qwen2_moe", folder), ", device: [cpu, cpu]")
        assert rc == 0, err
        experts = re.findall(r"^    rank \d .* (\d+) experts from (\d+) on [\d.]+ MiB, ", out, re.M)
        assert len(experts) == 2 and experts[0][0] == experts[1][1], out


def test_refused():
    with tempfile.TemporaryDirectory() as folder:
        path = with_tokenizer(MODEL, folder)
        for keys, says in (
                (", device: [cpu, cpu, cpu, cpu, cpu]", "cannot be split over 5 ranks"),
                (", device: ['cuda:0', cuda]", "device: cuda is named twice: that is for tests of ranks"),
                (", device: [cpu, cpu, cpu], parallel: { context: 3 }", "cannot be split over 3 ranks"),
                (", device: [cpu, cpu, cpu], parallel: { context: 2 }",
                 "tensor 1 times context 2 is not the number of devices, 3"),
                (", device: [cpu, cpu], parallel: { tensor: 3 }", "tensor 3 times context 1 is not the number of devices, 2")):
            rc, _, err = check(path, keys)
            assert rc != 0 and says in err, (keys, err)


if __name__ == "__main__":
    main(sys.modules[__name__])
