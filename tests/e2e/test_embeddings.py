#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeddings, scores and ranks: /v1/embeddings, /v1/score, /v1/rerank."""
import base64
import json
import math
import os
import struct
import sys
import tempfile

from harness import ATTENTION, DEMO, SRC, Mixd, Frontend, Skip, Thread, check_error, main, server

GOLDEN = os.path.join(SRC, "tests/golden/models")
TEXTS = ["The old man looked at the sea and", "a", "naïve 😀 fox\n jumps over it, " * 9]


def embed(s, **fields):
    fields.setdefault("model", s.model)
    status, _, body = s.post("/v1/embeddings", fields)
    assert status == 200, (status, body)
    return body


def vectors(s, texts, **fields):
    body = embed(s, input=texts, **fields)
    assert [d["index"] for d in body["data"]] == list(range(len(body["data"]))), body
    return [floats(d["embedding"]) for d in body["data"]]


def floats(numbers):
    """Rounds what was written with nine digits to the float that it stands for."""
    return list(struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers)))


def length(v):
    return math.sqrt(sum(x * x for x in v))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / length(a) / length(b)


def close(a, b, most):
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) <= most


@server(Mixd)
def test_forms(s):
    body = embed(s, input=TEXTS[0])
    assert body["object"] == "list" and body["model"] == "demo", body
    assert body["id"].startswith("embd-") and body["data"][0]["object"] == "embedding", body
    ids = [s.post("/tokenize", {"prompt": t})[2]["tokens"] for t in TEXTS]
    usage = body["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == len(ids[0]), usage
    many = embed(s, input=TEXTS)
    assert many["usage"]["prompt_tokens"] == sum(map(len, ids)), many["usage"]
    a = [floats(d["embedding"]) for d in many["data"]]
    assert a[0] == floats(body["data"][0]["embedding"])
    assert vectors(s, ids) == a and vectors(s, ids[0]) == [a[0]]
    for v in a:
        assert abs(length(v) - 1) < 1e-5, length(v)
    # base64 holds the same floats
    for d, v in zip(embed(s, input=TEXTS, encoding_format="base64")["data"], a):
        assert list(struct.unpack(f"<{len(v)}f", base64.b64decode(d["embedding"]))) == v
    # fewer dimensions are the first ones, of length 1 again
    for v, whole in zip(vectors(s, TEXTS, dimensions=17), a):
        assert close(v, [x / length(whole[:17]) for x in whole[:17]], 1e-6), v
    assert vectors(s, TEXTS, dimensions=len(a[0])) == a
    assert s.post("/embeddings", {"input": TEXTS[0]})[2]["data"] == body["data"]


@server(Mixd, step_tokens=64, keys=", pooling: mean")
def test_mean_same_bits(s):
    same_bits(s)


@server(Mixd, step_tokens=64)
def test_last_same_bits(s):
    same_bits(s)


def same_bits(s):
    """The same bits alone, in one request with others, beside streams, and from the cache."""
    texts = TEXTS + [f"{i} {TEXTS[0]} " * (i + 1) for i in range(12)]
    alone = [vectors(s, t)[0] for t in texts]
    assert vectors(s, texts) == alone
    streams = [Thread(lambda i: list(s.stream(prompt=f"{i}", max_tokens=60)), i) for i in range(6)]
    several = [Thread(vectors, s, texts) for _ in range(4)]
    for t in several:
        assert t.join() == alone
    for t in streams:
        t.join()


def read_tensor(folder, name):
    """A matrix of a checkpoint in one file of f32."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        t = json.loads(f.read(n))[name]
        f.seek(8 + n + t["data_offsets"][0])
        raw = f.read(t["data_offsets"][1] - t["data_offsets"][0])
    rows, cols = t["shape"]
    values = struct.unpack(f"<{rows * cols}f", raw)
    return [values[i * cols:(i + 1) * cols] for i in range(rows)]


def with_files(name, folder, pooling, normalize):
    """A golden checkpoint with a tokenizer and the files of sentence-transformers."""
    from test_golden_api import with_tokenizer
    path = with_tokenizer(name, folder)
    steps = [("", "sentence_transformers.models.Transformer"),
             ("1_Pooling", "sentence_transformers.models.Pooling")]
    if normalize:
        steps.append(("2_Normalize", "sentence_transformers.models.Normalize"))
    with open(os.path.join(path, "modules.json"), "w") as f:
        json.dump([dict(idx=i, name=str(i), path=p, type=t) for i, (p, t) in enumerate(steps)], f)
    os.mkdir(os.path.join(path, "1_Pooling"))
    with open(os.path.join(path, "1_Pooling/config.json"), "w") as f:
        json.dump(dict({"word_embedding_dimension": 48, "include_prompt": True,
                        "pooling_mode_cls_token": False}, **pooling), f)
    return path


LAST = {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}
MEAN = {"pooling_mode_lasttoken": False, "pooling_mode_mean_tokens": True}


def test_last_state_against_the_reference():
    """lm_head times the vector of a prompt's beginning has the log-probabilities that transformers
    gives the next token: the vector is the hidden state after the final norm."""
    heads = {"llama": "lm_head.weight", "qwen3": "lm_head.weight", "mistral": "lm_head.weight",
             "llama-tied": "model.embed_tokens.weight", "phi3": "lm_head.weight"}
    with tempfile.TemporaryDirectory() as folder:
        s = Mixd({n: with_files(n, folder, LAST, False) for n in heads})
        for name, head in heads.items():
            w = read_tensor(os.path.join(GOLDEN, name), head)
            with open(os.path.join(GOLDEN, name, "expected.json")) as f:
                cases = json.load(f)["cases"]
            worst = 0
            for case in cases[:4]:
                prompt, expect = case["prompt"], case["logprobs"]
                at = sorted({1, len(prompt) // 2, len(prompt) - 1} & set(range(1, len(prompt))))
                if not at:
                    continue
                got = vectors(s, [prompt[:n] for n in at], model=name)
                for n, v in zip(at, got):
                    logits = [sum(a * b for a, b in zip(row, v)) for row in w]
                    top = max(logits)
                    total = top + math.log(sum(math.exp(x - top) for x in logits))
                    worst = max(worst, abs(logits[prompt[n]] - total - expect[n - 1]))
            print(f"  {name}: worst error of a log-probability {worst:.1e}")
            assert 0 < worst < 1e-3, (name, worst)
        s.stop()


def test_mean_of_all_tokens():
    """The mean is that of the last states of all prefixes."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "mean"))
        s = Mixd({"last": with_files("llama", folder, LAST, False),
                  "mean": with_files("llama", os.path.join(folder, "mean"), MEAN, False)})
        ids = [(7 * i * i + i) % 256 for i in range(40)]
        each = vectors(s, [ids[:n + 1] for n in range(len(ids))], model="last")
        mean = vectors(s, ids, model="mean")[0]
        expect = [sum(v[k] for v in each) / len(each) for k in range(len(mean))]
        assert close(mean, expect, 1e-6)
        assert max(map(abs, mean)) > 0.01
        s.stop()


def test_golden():
    """Vectors of transformers (tools/export-embeddings.py)."""
    file = os.path.join(SRC, "tests/golden/embeddings.json")
    with open(file) as f:
        golden = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        models = {}
        for name in golden["models"]:
            for kind, files in ("last", LAST), ("mean", MEAN):
                os.mkdir(os.path.join(folder, f"{name}-{kind}"))
                models[f"{name}-{kind}"] = with_files(name, os.path.join(folder, f"{name}-{kind}"),
                                                      files, True)
        s = Mixd(models)
        worst = 0
        for name, cases in golden["models"].items():
            for case in cases:
                for kind in "last", "mean":
                    got = vectors(s, case["ids"], model=f"{name}-{kind}")[0]
                    worst = max(worst, max(abs(a - b) for a, b in zip(got, case[kind])))
                    assert len(got) == len(case[kind])
        print(f"  worst error of an element {worst:.1e}")
        assert worst < 2e-5, worst
        s.stop()


@server(Mixd)
def test_errors(s):
    ask = lambda path="/v1/embeddings", **f: s.post(path, f)
    check_error(ask(), 400, "missing_required_parameter", "input")
    check_error(ask(input=""), 400, None, "input", "empty")
    check_error(ask(input=[]), 400, None, "input")
    check_error(ask(input=["a", ""]), 400, None, "input")
    check_error(ask(input=[[1], []]), 400, None, "input")
    check_error(ask(input=[1, -1]), 400, None, "input")
    check_error(ask(input=[10 ** 7]), 400, None, "input", "vocabulary")
    check_error(ask(input={"a": 1}), 400, "invalid_type", "input")
    check_error(ask(input="a", dimensions=0), 400, None, "dimensions")
    check_error(ask(input="a", dimensions=10 ** 6), 400, None, "dimensions", "width")
    check_error(ask(input="a", encoding_format="int8"), 400, None, "encoding_format", "int8")
    check_error(ask(input="a", temperature=1), 400, "unknown_parameter", "temperature")
    check_error(ask(input="a", dimension=4), 400, "unknown_parameter", "dimension", "dimensions")
    check_error(ask(input="a", truncate_prompt_tokens=4), 400, "unsupported_parameter")
    check_error(ask(input="a", model="x"), 404, "model_not_found", "model")
    check_error(ask(input="word " * 40000), 400, "context_length_exceeded")
    check_error(ask(input=["a"] * 2049), 400, None, "input", "2048")
    check_error(ask(input="a", user=5, instruction="x"), 400, "unknown_parameter", "instruction")
    check_error(ask("/v1/score", text_1="a"), 400, "missing_required_parameter", "text_2")
    check_error(ask("/v1/score", text_1=["a", "b"], text_2=["c"]), 400, None, "text_1", "as many")
    check_error(ask("/v1/score", text_1="a", text_2=[1]), 400, None, "text_2[0]")
    check_error(ask("/v1/score", text_1="a", text_2=[""]), 400, None, "text_2[0]", "empty")
    check_error(ask("/v1/rerank", query="a", documents="b"), 400, "invalid_type", "documents")
    check_error(ask("/v1/rerank", query=["a"], documents=["b"]), 400, "invalid_type", "query")
    check_error(ask("/v1/rerank", query="a", documents=[]), 400, None, "documents")
    check_error(ask("/v1/rerank", query="a", documents=[{"x": 1}]), 400, None, "documents[0]")
    check_error(ask("/v1/rerank", query="a", documents=["b"], top_n=0), 400, None, "top_n")
    check_error(ask("/v1/rerank", query="a", documents=["b"], instruction="i"), 400,
                "unsupported_parameter", "instruction", "reranker")
    assert s.get("/v1/embeddings")[0] == 405
    assert vectors(s, "a", user="u", input_type="query", normalize=True)


@server(Mixd, keys=", pooling: none")
def test_models_without_vectors(s):
    check_error(s.post("/v1/embeddings", {"input": "a"}), 400, "unsupported_model", "model", "none")
    check_error(s.post("/v1/score", {"text_1": "a", "text_2": "b"}), 400, "unsupported_model")


def test_files_that_ask_for_more():
    for pooling, extra, what in (({"pooling_mode_cls_token": True}, [], "cls_token"),
                                 ({"pooling_mode_mean_tokens": True}, ["Dense"], "Dense")):
        with tempfile.TemporaryDirectory() as folder:
            path = with_files("llama", folder, pooling, False)
            with open(os.path.join(path, "modules.json")) as f:
                modules = json.load(f)
            modules += [dict(path="3", type="sentence_transformers.models." + m) for m in extra]
            with open(os.path.join(path, "modules.json"), "w") as f:
                json.dump(modules, f)
            s = Mixd({"m": path})
            check_error(s.post("/v1/embeddings", {"input": "a"}), 400, "unsupported_model", "model",
                        what)
            assert s.complete(prompt="a", max_tokens=2)["choices"]
            s.stop()


def test_checkpoint_of_vectors_alone():
    """A checkpoint without "model." and lm_head, as Qwen3-Embedding has it, has the vectors of the
    whole one, and no text."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "flat"))
        whole = with_files("qwen3", folder, LAST, True)
        flat = with_files("qwen3", os.path.join(folder, "flat"), LAST, True)
        file = os.path.join(flat, "model.safetensors")
        with open(file, "rb") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            header, data = json.loads(f.read(n)), f.read()
        # the file keeps lm_head's bytes under no name; a header may not leave a hole
        last = header.pop("lm_head.weight")["data_offsets"]
        data = data[:last[0]] + data[last[1]:]
        gone = last[1] - last[0]
        for name in [k for k in header if k != "__metadata__"]:
            t = header.pop(name)
            if t["data_offsets"][0] >= last[1]:
                t["data_offsets"] = [x - gone for x in t["data_offsets"]]
            header[name.removeprefix("model.")] = t
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        os.unlink(file)
        with open(file, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data)
        s = Mixd({"whole": whole, "flat": flat})
        ids = [[5, 9, 200], list(range(60))]
        assert vectors(s, ids, model="flat") == vectors(s, ids, model="whole")
        assert s.post("/v1/score", {"model": "flat", "text_1": "a", "text_2": "b"})[0] == 200
        check_error(s.post("/v1/completions", {"model": "flat", "prompt": "a"}), 400,
                    "unsupported_model", "model", "lm_head")
        assert s.complete(model="whole", prompt="a", max_tokens=2)["choices"]
        s.stop()


@server(Mixd)
def test_scores_and_ranks_of_vectors(s):
    query, documents = "The sea", ["an ocean", "The sea", "taxes and laws", "the sea"]
    q, *d = vectors(s, [query] + documents)
    expect = [cosine(q, v) for v in d]
    status, _, body = s.post("/v1/score", {"text_1": query, "text_2": documents})
    assert status == 200 and body["object"] == "list" and body["model"] == "demo", body
    got = [e["score"] for e in body["data"]]
    assert close(got, expect, 1e-6) and abs(got[1] - 1) < 1e-6, (got, expect)
    assert all(e["object"] == "score" and e["index"] == i for i, e in enumerate(body["data"]))
    count = lambda t: len(s.post("/tokenize", {"prompt": t})[2]["tokens"])
    assert body["usage"]["prompt_tokens"] == sum(map(count, [query] + documents)), body["usage"]
    pairs = s.post("/score", {"queries": documents, "documents": documents})[2]
    assert all(abs(e["score"] - 1) < 1e-6 for e in pairs["data"]), pairs
    order = sorted(range(4), key=lambda i: (-got[i], i))
    for path in "/v1/rerank", "/rerank", "/v2/rerank":
        status, _, body = s.post(path, {"query": query, "documents": documents})
        assert status == 200, body
        assert [r["index"] for r in body["results"]] == order, (body, got)
        assert [r["relevance_score"] for r in body["results"]] == [got[i] for i in order]
        assert "document" not in body["results"][0]
    body = s.post("/v1/rerank", {"query": query, "top_n": 2, "return_documents": True,
                                 "documents": [documents[0], {"text": documents[1]}, *documents[2:]]})[2]
    assert [r["document"]["text"] for r in body["results"]] == [documents[i] for i in order[:2]], body


def test_reranker():
    """Scores are the probabilities that the tokens have after the prompt."""
    prompt = "{instruction}|{query}|{document}: is it?"
    s = Mixd(keys=f', reranker: "{prompt}", reranker_tokens: [a, e]')
    asked = lambda q, d, i="Given a web search query, retrieve relevant passages that answer the query": \
        prompt.format(instruction=i, query=q, document=d)

    def expect(text):
        ids = s.post("/tokenize", {"prompt": text, "add_special_tokens": False})[2]["tokens"]
        p = []
        for token in ("a", "e"):
            one = s.post("/tokenize", {"prompt": token, "add_special_tokens": False})[2]["tokens"]
            assert len(one) == 1
            c = s.complete(prompt=ids + one, echo=True, logprobs=0, max_tokens=0)["choices"][0]
            p.append(math.exp(c["logprobs"]["token_logprobs"][-1]))
        return p[0] / (p[0] + p[1])

    documents = ["an ocean", "taxes", "the sea " * 30]
    body = s.post("/v1/score", {"text_1": "sea", "text_2": documents})[2]
    got = [e["score"] for e in body["data"]]
    assert close(got, [expect(asked("sea", d)) for d in documents], 1e-6), got
    assert len(set(got)) == 3 and all(0 < x < 1 for x in got), got
    body = s.post("/v1/rerank", {"query": "sea", "documents": documents, "instruction": "Why"})[2]
    for r in body["results"]:
        assert abs(r["relevance_score"] - expect(asked("sea", documents[r["index"]], "Why"))) < 1e-6
    scores = [r["relevance_score"] for r in body["results"]]
    assert scores == sorted(scores, reverse=True)
    # the same bits one by one
    assert [s.post("/v1/score", {"text_1": "sea", "text_2": d})[2]["data"][0]["score"]
            for d in documents] == got
    assert len(vectors(s, "embeddings are still given")[0]) > 8
    s.stop()


@server(Frontend, queue=3, sequences=2)
def test_limits(s):
    """More inputs than ever fit are refused; a client that leaves costs nothing."""
    check_error(s.post("/v1/embeddings", {"input": ["a"] * 9}), 400, None, "input", "queue")
    assert len(vectors(s, ["a", "b"])) == 2


@server(Mixd, http=", answer_memory: 1MiB")
def test_answers_are_bounded(s):
    width = len(vectors(s, "a")[0])
    n = (1 << 20) // (width * 4) + 1
    check_error(s.post("/v1/embeddings", {"input": ["a"] * n}), 400, "answer_too_large")
    assert len(vectors(s, ["a"] * 20)) == 20


@server(Mixd)
def test_openai_client(s):
    try:
        import openai
    except ImportError as e:
        raise Skip("no openai package") from e
    client = openai.OpenAI(base_url=f"http://{s.host}:{s.port}/v1", api_key="none", max_retries=0)
    plain = client.embeddings.create(model="demo", input=TEXTS, encoding_format="float")
    packed = client.embeddings.create(model="demo", input=TEXTS)  # asks for base64, and unpacks it
    for a, b in zip(plain.data, packed.data):
        assert a.index == b.index and floats(a.embedding) == list(b.embedding)
    assert packed.usage.total_tokens == packed.usage.prompt_tokens > 0
    short = client.embeddings.create(model="gpt-demo", input=TEXTS[0], dimensions=8, user="me")
    assert len(short.data[0].embedding) == 8
    try:
        client.embeddings.create(model="demo", input="")
        raise AssertionError("an empty input passed")
    except openai.BadRequestError as e:
        assert e.param == "input"


main(sys.modules[__name__])
