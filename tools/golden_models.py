# SPDX-License-Identifier: Apache-2.0
"""Code shared by the scripts that make tests/golden/models: the search for a seed, the contents of a
case, the writing of results (tests/golden/models/README.md describes the layout)."""
import json
import shutil

import torch

MIN_MARGIN = 0.02  # nats between the best and the second token: 20 times the tests' tolerance
NO_SPECIAL_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def refuse_subnormals(model):
    """Checks that no value between modules is subnormal, which would be slow and inexact."""
    tiny = torch.finfo(torch.float32).tiny

    def hook(module, args, output):
        for x in output if isinstance(output, tuple) else (output,):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                assert not ((x != 0) & (x.abs() < tiny)).any(), type(module).__name__

    for module in model.modules():
        module.register_forward_hook(hook)


@torch.no_grad()
def run(model, ids, cache, by_token=False):
    """Log-probabilities after every position, computed in one call or in one call per token."""
    options = {} if cache is None else dict(past_key_values=cache, use_cache=True)
    parts = [[i] for i in ids] if by_token else [ids]
    out = [model(torch.tensor([p]), **options).logits[0] for p in parts]
    return torch.cat(out).double().log_softmax(-1)


def case(model, cache, prompt, steps, by_token=False, min_margin=0.0):
    """What expected.json has of a prompt, and its margin; cut short where that falls below
    min_margin. Without a cache the continuation computes the whole text again at each step; with one
    the two ways must agree."""
    rows = run(model, prompt, cache, by_token)
    greedy, logprobs, margin = [], [], float("inf")
    last = rows[-1]
    for step in range(steps):
        top = last.topk(2).values
        margin = min(margin, float(top[0] - top[1]))
        if margin < min_margin:
            break
        greedy.append(int(last.argmax()))
        logprobs.append(float(last.max()))
        if step < steps - 1:
            new = prompt + greedy if cache is None else greedy[-1:]
            last = run(model, new, cache, by_token)[-1]
    if cache is not None and not by_token:  # the cache must not change the result
        whole = run(model, prompt + greedy, None)
        again = [float(whole[len(prompt) - 1 + i, t]) for i, t in enumerate(greedy)]
        assert max(abs(a - b) for a, b in zip(again, logprobs)) < 1e-4
    return dict(prompt=prompt,
                logprobs=[round(float(rows[i, prompt[i + 1]]), 6) for i in range(len(prompt) - 1)],
                greedy=greedy, greedy_logprobs=[round(x, 6) for x in logprobs]), margin


def write_expected(path, head, cases):
    """JSON with one line per list: small, and readable in a diff."""
    line = lambda x: json.dumps(x, separators=(",", ":"))
    body = ",\n".join("{" + ",\n".join(f'"{k}":{line(x)}' for k, x in c.items()) + "}"
                      for c in cases)
    (path / "expected.json").write_text(line(head)[:-1] + ',\n"cases":[\n' + body + "]}\n")


def make(path, lengths, vocab, fed, write, expect, finish, min_margin=MIN_MARGIN):
    """Fills the folder `path`. write(path, seed) makes a checkpoint that the reference can read,
    expect(path, prompt) returns a case and its margin, finish(path) makes what the reference cannot
    read. The first seed is taken whose every greedy step has a margin."""
    for seed in range(1, 1000):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        write(path, seed)
        g = torch.Generator().manual_seed(1000 + seed)
        cases, margin = [], float("inf")
        for n in lengths:
            c, m = expect(path, torch.randint(0, vocab, (n,), generator=g).tolist())
            cases.append(c)
            margin = min(margin, m)
            if margin < min_margin:
                break
        if margin >= min_margin:
            break
    else:
        raise SystemExit(f"{path.name}: no seed gives a margin of {min_margin}")
    finish(path)
    write_expected(path, dict(model=path.name, weight_seed=seed, prompt_seed=1000 + seed, fed=fed,
                              margin=round(margin, 4)), cases)
    for f in path.iterdir():
        f.chmod(0o644)
    spread = [x for c in cases for x in c["logprobs"]]
    size = sum(f.stat().st_size for f in path.iterdir())
    print(f"{path.name}: weight seed {seed}, prompt seed {1000 + seed}, margin {margin:.3f}, "
          f"logprobs {min(spread):.2f} to {max(spread):.2f}, {size} bytes", flush=True)
