#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speculation on the bundled hybrid: with and without it the same answers, log-probabilities and hits,
for random requests in company; its figures; and what is refused."""
import concurrent.futures
import random
import re
import sys

from harness import ATTENTION, DEMO, DEMO_DRAFT, Mixd, main
from test_check import changed, edit, run

NGRAM = ", speculation: { source: ngram, tokens: 4 }"
TREE = ", speculation: { source: ngram, tokens: 8, tree: true }"
DRAFT = f", speculation: {{ source: draft, model: {DEMO_DRAFT}, tokens: 4 }}"
REQUESTS = 40
TEXT = ("The old man went down to the sea, and the old man went down to the shore; and when the old man "
        "went down, the sea was still. ")


def requests(seed):
    """Random requests, many of which make text that repeats, so that there are drafts."""
    r = random.Random(seed)
    for i in range(REQUESTS):
        body = {"model": "demo", "prompt": TEXT * r.randint(1, 3) + TEXT[:r.randint(0, 60)], "seed": i,
                "max_tokens": r.randint(1, 40), "temperature": r.choice([0, 0, 0.3, 1])}
        for name, values in (("logprobs", [3]), ("n", [2]), ("repetition_penalty", [1.1]), ("top_p", [0.9]),
                             ("presence_penalty", [0.2]), ("frequency_penalty", [0.1]), ("top_k", [20]),
                             ("logit_bias", [{"100": 4, "200": -3}]), ("min_tokens", [1]), ("stop", [["sea"], [" the", "man"]]),
                             ("echo", [True]), ("regex", ["[a-z ,;.]*"]), ("ignore_eos", [True]),
                             ("stop_token_ids", [[300, 400]]), ("return_token_ids", [True])):
            if r.random() < 0.2:
                body[name] = r.choice(values)
        yield body


def without(answer):
    """An answer without what may differ."""
    answer.pop("id"), answer.pop("created")
    details = answer["usage"].pop("completion_tokens_details", {})
    answer["usage"].pop("prompt_tokens_details")  # hits depend on who came first
    return answer, details


def answers(server, bodies):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return [without(a) for a in pool.map(lambda b: server.complete("/v1/completions", **b), bodies)]


def test_the_same_answers():
    the_same_answers(NGRAM)


def test_the_same_answers_with_a_draft_model():
    the_same_answers(DRAFT)


def test_the_same_answers_with_trees():
    the_same_answers(TREE, ATTENTION, 8)


def the_same_answers(keys, model=DEMO, most=4):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    bodies = list(requests(seed))
    s = Mixd({"demo": model}, keys=keys, max_sequences=6)
    drafted = answers(s, bodies)
    for _ in range(20):  # on a busy host steps take any time, and drafts seem not to pay
        if s.metric("vllm:spec_decode_num_accepted_tokens_total"):
            break
        drafted = answers(s, bodies)
    kept = s.metric("vllm:spec_decode_num_accepted_tokens_total")
    tried = s.metric("vllm:spec_decode_num_draft_tokens_total")
    assert 0 < kept <= tried, (kept, tried)
    assert 0 < s.metric("vllm:spec_decode_num_drafts_total") <= tried
    by_place = [int(v) for v in re.findall(r"^vllm:spec_decode_num_accepted_tokens_per_pos_total\{.*position="
                                           r"\"\d\"\} (\d+)", s.get("/metrics")[2].decode(), re.M)]
    assert len(by_place) == most and sum(by_place) == kept and by_place == sorted(by_place)[::-1], by_place
    assert 0 < sum(d["accepted_prediction_tokens"] for _, d in drafted) <= kept
    assert sum(d["accepted_prediction_tokens"] + d["rejected_prediction_tokens"] for _, d in drafted) <= tried
    plain = answers(s, [dict(b, speculation=False) for b in bodies])
    assert s.metric("vllm:spec_decode_num_draft_tokens_total") == tried  # none were drafted
    for body, (a, _), (b, details) in zip(bodies, drafted, plain):
        assert a == b, (seed, body, a, b)
        assert not details
    # the next turn of a chat goes on where the answer ended; without snapshots at the last full page
    prompt = TEXT * 3
    for on in (True, False) if model == DEMO else ():
        first = s.complete("/v1/completions", model="demo", prompt=prompt, max_tokens=24, temperature=0,
                           cache_salt=str(on), speculation=on, ignore_eos=True, return_token_ids=True)
        choice = first["choices"][0]
        ids = choice["prompt_token_ids"] + choice["token_ids"]
        second = s.complete("/v1/completions", model="demo", prompt=ids + [5], max_tokens=1, cache_salt=str(on))
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids) - 1, (on, second, len(ids))
    s.stop()


def test_predictions():
    s = Mixd({"demo": DEMO}, keys=NGRAM)
    ask = {"model": "demo", "prompt": "It was a", "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    plain = s.complete("/v1/completions", **ask, speculation=False)["choices"][0]["text"]
    kept = []
    for content in (plain, [{"type": "text", "text": plain[:20]}, {"type": "text", "text": plain[20:]}], "other"):
        kept.append(0)
        for _ in range(20):  # as above
            body = s.complete("/v1/completions", **ask, prediction={"type": "content", "content": content})
            assert body["choices"][0]["text"] == plain
            kept[-1] += body["usage"]["completion_tokens_details"]["accepted_prediction_tokens"]
            if kept[-1] > 4 or content == "other":
                break
    assert kept[0] > 4 and kept[1] > 4, kept
    for wrong in ({"type": "text", "content": "x"}, {"type": "content"}, {"type": "content", "content": "x", "more": 1},
                  {"type": "content", "content": [{"type": "image_url"}]}, "x"):
        status, _, body = s.request("POST", "/v1/completions", dict(ask, prediction=wrong))
        assert status == 400 and "prediction" in str(body), body
    s.stop()


def test_what_cannot_be():
    rc, text = run(DEMO, keys=", speculation: { source: ngram, tokens: 9 }")
    assert rc == 1 and "speculation.tokens" in text, text
    rc, text = run(DEMO, keys=", speculation: { source: magic }")
    assert rc == 1 and "speculation.source" in text and "ngram" in text, text
    rc, text = run(DEMO, keys=NGRAM)
    assert rc == 0 and "draft model" not in text, text
    rc, text = run(DEMO, keys=DRAFT)
    assert rc == 0 and re.search(r"draft model +[0-9.]+ MiB", text), text
    rc, text = run(DEMO, keys=", memory: 60MiB")
    assert rc == 0, text
    rc, text = run(DEMO, keys=DRAFT + ", memory: 60MiB")  # both have to fit
    assert rc == 1 and "speculation.model: memory: one sequence" in text, text
    rc, text = run(DEMO, keys=", speculation: { source: draft }")
    assert rc == 1 and "needs the folder of a draft model" in text, text
    rc, text = run(DEMO, keys=f", speculation: {{ source: ngram, model: {ATTENTION} }}")
    assert rc == 1 and "source is not draft" in text, text
    rc, text = run(DEMO, keys=DRAFT.replace("}", ", tree: true }"))
    assert rc == 1 and "speculation" in text and "source: ngram only" in text, text

    def swap(tokenizer):
        vocab = tokenizer["model"]["vocab"]
        vocab["the"], vocab["and"] = vocab["and"], vocab["the"]
    with changed(lambda path: edit(path, "tokenizer.json", swap), DEMO_DRAFT) as other:
        rc, text = run(DEMO, keys=f", speculation: {{ source: draft, model: {other} }}")
        assert rc == 1 and "speculation.model" in text and re.search('token [0-9]+ is "(the|and)" here and', text), text


if __name__ == "__main__":
    main(sys.modules[__name__])
