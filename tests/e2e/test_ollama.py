#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ollama's API: /api/chat, /api/generate, /api/embed, /api/tags and what goes with them; by plain
requests and by the real Python client."""
import json
import re
import sys

from agent_harness import ARGUMENTS, Caller
from harness import ATTENTION, DEMO, Frontend, Mixd, Skip, main, server

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")
FIGURES = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration",
           "eval_count", "eval_duration")


def refused(answer, status, contains=""):
    got, _, body = answer
    assert got == status, (got, body)
    assert set(body) == {"error"} and contains in body["error"], body


def lines(s, path, **fields):
    """The objects of a stream."""
    connection = s.connect()
    connection.request("POST", path, json.dumps(fields), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.headers["Content-Type"] == "application/x-ndjson"
    out = [json.loads(line) for line in response]
    connection.close()
    for o in out[:-1]:
        assert o["done"] is False and not any(f in o for f in FIGURES), o
    for o in out:
        assert TIME.match(o["created_at"]), o
    assert out[-1]["done"] is True
    return out


def whole(s, path, **fields):
    status, headers, body = s.post(path, dict(fields, stream=False))
    assert status == 200 and headers["Content-Type"] == "application/json", (status, body)
    assert body["done"] is True and all(isinstance(body[f], int) for f in FIGURES), body
    return body


@server(Frontend, alias="other")
def test_chat(s):
    ask = dict(model="fake", messages=[{"role": "system", "content": "Be brief."},
                                       {"role": "user", "content": "Hello"}],
               options={"num_predict": 12, "seed": 5})
    body = whole(s, "/api/chat", **ask)
    assert body["model"] == "fake" and body["message"]["role"] == "assistant", body
    assert body["done_reason"] == "length" and body["eval_count"] == 12, body
    # the text of chat completions
    same = s.complete("/v1/chat/completions", messages=ask["messages"], max_tokens=12, seed=5)
    assert same["choices"][0]["message"]["content"] == body["message"]["content"] != ""
    assert same["usage"]["prompt_tokens"] == body["prompt_eval_count"]
    # streamed unless asked for as a whole
    parts = lines(s, "/api/chat", **ask)
    assert "".join(p["message"]["content"] for p in parts) == body["message"]["content"]
    assert len(parts) > 4 and parts[-1]["message"]["content"] == "", parts
    assert parts[-1]["eval_count"] == 12 and parts[-1]["done_reason"] == "length"
    # clients add a tag
    tagged = whole(s, "/api/chat", **dict(ask, model="fake:latest"))
    assert tagged["model"] == "fake:latest" and tagged["message"] == body["message"]
    assert whole(s, "/api/chat", **dict(ask, model="other:latest"))["message"] == body["message"]


@server(Mixd)
def test_is_running(s):
    """What editors look for; browsers get the page."""
    for accept in ("*/*", "application/json, text/plain, */*"):
        status, headers, body = s.get("/", headers={"Accept": accept})
        assert status == 200 and body == b"Ollama is running", (status, body)
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    assert s.get("/", headers={"Accept": browser})[2].startswith(b"<!doctype html>")
    assert s.get("/")[2].startswith(b"<!doctype html>")


@server(Frontend)
def test_options(s):
    messages = [{"role": "user", "content": "Hello"}]
    ask = lambda **o: whole(s, "/api/chat", model="fake", messages=messages,
                            options=dict({"num_predict": 20, "seed": 7}, **o))
    text = ask()["message"]["content"]
    assert ask()["message"]["content"] == text != ask(seed=8)["message"]["content"]
    stop = text[5:9]
    cut = ask(stop=[stop])
    assert cut["message"]["content"] == text[:text.index(stop)] and cut["done_reason"] == "stop"
    assert ask(stop=stop)["message"]["content"] == cut["message"]["content"]
    assert ask(temperature=0)["message"]["content"] == ask(temperature=0, seed=1)["message"]["content"]
    ask(top_p=0.9, top_k=40, min_p=0.05, repeat_penalty=1.1, presence_penalty=0.5,
        frequency_penalty=0.5, num_ctx=4096, num_gpu=99, num_thread=4, num_keep=5, mirostat=0)
    # without a limit: as much as fits
    for n in -1, 0:
        assert whole(s, "/api/chat", model="fake", messages=messages,
                     options={"num_predict": n})["done_reason"] == "length"
    # a window of penalties matters only where there are some
    assert ask(repeat_last_n=64, repeat_penalty=1.0)["message"]["content"] == text
    assert ask(repeat_last_n=0, repeat_penalty=1.9, frequency_penalty=2)["message"]["content"] == text
    for options, what in (({"top_p": 2}, "options.top_p"), ({"temperature": "hot"}, "options.temperature"),
                          ({"num_predict": 1.5}, "num_predict"), ({"mirostat": 2}, "mirostat"),
                          ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "repeat_last_n"),
                          ({"repeat_last_n": -2}, "repeat_last_n"), ({"tempreature": 1}, "temperature"),
                          ({"seed": "x"}, "options.seed"), ({"stop": 5}, "options.stop")):
        refused(s.post("/api/chat", dict(model="fake", messages=messages, options=options)), 400, what)


@server(Frontend)
def test_generate(s):
    ask = dict(model="fake", prompt="Hello", options={"num_predict": 9, "seed": 3})
    raw = whole(s, "/api/generate", raw=True, **ask)
    same = s.complete(prompt="Hello", max_tokens=9, seed=3)
    assert raw["response"] == same["choices"][0]["text"] and raw["eval_count"] == 9, raw
    assert raw["prompt_eval_count"] == same["usage"]["prompt_tokens"]
    assert "".join(p["response"] for p in lines(s, "/api/generate", raw=True, **ask)) == raw["response"]
    chat = whole(s, "/api/generate", system="Be brief.", **ask)
    same = s.complete("/v1/chat/completions", max_tokens=9, seed=3,
                      messages=[{"role": "system", "content": "Be brief."},
                                {"role": "user", "content": "Hello"}])
    assert chat["response"] == same["choices"][0]["message"]["content"], chat
    refused(s.post("/api/generate", dict(ask, raw=True, system="x")), 400, "system")
    refused(s.post("/api/generate", dict(ask, suffix="x")), 400, "suffix")
    refused(s.post("/api/generate", dict(ask, images=["aGk="])), 400, "images")
    refused(s.post("/api/generate", dict(ask, context=[1, 2])), 400, "context")
    refused(s.post("/api/generate", dict(ask, template="x")), 400, "template")
    refused(s.post("/api/generate", dict(ask, prompt=5)), 400, "prompt")
    # nothing to say: the model is to be loaded, or unloaded
    for extra, reason in ({}, "load"), ({"keep_alive": 0}, "unload"), ({"keep_alive": "5m"}, "load"):
        status, _, body = s.post("/api/generate", dict(model="fake", **extra))
        assert status == 200 and body["done"] and body["done_reason"] == reason, body
        assert body["response"] == ""
        status, _, body = s.post("/api/chat", dict(model="fake", messages=[], **extra))
        assert body["done_reason"] == reason and body["message"]["content"] == "", body


@server(Mixd, models={"demo": DEMO, "base": ATTENTION})
def test_without_template(s):
    """A model without a chat template continues the prompt."""
    import os
    for name, folder in ("demo", DEMO), ("base", ATTENTION):
        has = any("chat_template" in open(os.path.join(folder, f)).read() for f in
                  os.listdir(folder) if f.startswith("tokenizer_config") or f.endswith(".jinja"))
        body = whole(s, "/api/generate", model=name, prompt="The sea",
                     options={"num_predict": 5, "temperature": 0})
        if not has:
            same = s.complete(model=name, prompt="The sea", max_tokens=5, temperature=0)
            assert body["response"] == same["choices"][0]["text"], body
            refused(s.post("/api/chat", {"model": name, "messages": [{"role": "user", "content": "a"}]}),
                    400, "template")


@server(Mixd, models={"demo": DEMO, "base": ATTENTION})
def test_models(s):
    models = s.get("/api/tags")[2]["models"]
    assert [m["name"] for m in models if not m["name"].startswith("gpt-")] == \
        ["demo:latest", "base:latest"], models
    for m in models:
        assert m["model"] == m["name"] and m["size"] > 0 and len(m["digest"]) == 64, m
        assert TIME.match(m["modified_at"]) and m["details"]["format"] == "safetensors", m
    running = s.get("/api/ps")[2]["models"]
    assert [m["name"] for m in running] == ["demo:latest", "base:latest"], running
    assert all(m["context_length"] > 0 and m["expires_at"] for m in running)
    version = s.get("/api/version")[2]
    assert re.match(r"\d+\.\d+\.\d+$", version["version"]) and version["mixd"], version
    for name in "base", "base:latest":
        show = s.post("/api/show", {"model": name})[2]
        family = show["model_info"]["general.architecture"]
        assert show["model_info"][family + ".context_length"] > 0, show
        assert show["model_info"][family + ".embedding_length"] > 0, show
        assert {"completion", "embedding"} <= set(show["capabilities"]), show
    assert s.post("/api/show", {"name": "base"})[2] == s.post("/api/show", {"model": "base"})[2]
    refused(s.post("/api/show", {"model": "nope"}), 404, "not found")
    refused(s.post("/api/show", {}), 400, "model")
    assert s.request("HEAD", "/api/tags")[0] == 200


@server(Mixd, models={"base": ATTENTION})
def test_embed(s):
    texts = ["The sea", "a mountain", "the sea and the sky " * 4]
    expect = [d["embedding"] for d in s.post("/v1/embeddings", {"input": texts})[2]["data"]]
    status, _, body = s.post("/api/embed", {"model": "base:latest", "input": texts})
    assert status == 200 and body["embeddings"] == expect and body["model"] == "base:latest", body
    count = lambda t: len(s.post("/tokenize", {"prompt": t})[2]["tokens"])
    assert body["prompt_eval_count"] == sum(map(count, texts)) and body["total_duration"] > 0
    assert s.post("/api/embed", {"model": "base", "input": texts[0]})[2]["embeddings"] == expect[:1]
    short = s.post("/api/embed", {"model": "base", "input": texts[0], "dimensions": 5})[2]
    assert len(short["embeddings"][0]) == 5
    old = s.post("/api/embeddings", {"model": "base", "prompt": texts[1], "keep_alive": "1m"})[2]
    assert old == {"embedding": expect[1]}
    # a long text is cut to the context, unless the client does not want that
    long = s.post("/api/embed", {"model": "base", "input": "word " * 5000})
    assert long[0] == 200, long
    refused(s.post("/api/embed", {"model": "base", "input": "word " * 5000, "truncate": False}), 400,
            "context")
    for bad in ({"input": ""}, {"input": ["a", ""]}, {"input": [1, 2]}, {"input": []}, {},
                {"input": "a", "dimensions": 0}, {"input": "a", "imput": 1}):
        refused(s.post("/api/embed", dict(model="base", **bad)), 400)


@server(Frontend)
def test_errors(s):
    message = [{"role": "user", "content": "a"}]
    refused(s.post("/api/chat", {"messages": message}), 400, "model")
    refused(s.post("/api/chat", {"model": "nope", "messages": message}), 404, "'nope' not found")
    refused(s.request("POST", "/api/chat", "{"), 400, "malformed JSON")
    for bad, what in ((dict(messages=[5]), "messages[0]"), (dict(messages=[{"content": "a"}]), "role"),
                      (dict(messages=[{"role": "user", "content": 5}]), "messages[0].content"),
                      (dict(messages=[{"role": "user", "content": "a", "images": ["x"]}]), "images"),
                      (dict(messages=[{"role": "assistant", "tool_calls": [{}]}]), "tool_calls[0]"),
                      (dict(messages=message, stream="yes"), "stream"),
                      (dict(messages=message, think=[1]), "think"),
                      (dict(messages=message, format=5), "format"),
                      (dict(messages=message, temperature=1), "options"),
                      (dict(messages=message, mesages=1), "mesages")):
        refused(s.post("/api/chat", dict(model="fake", **bad)), 400, what)
    refused(s.post("/api/chat", {"model": "fake", "messages": message,
                                 "options": {"num_predict": 10 ** 7}}), 400, "num_predict")
    refused(s.get("/api/chat"), 405)
    refused(s.post("/api/pull", {"model": "x"}), 404, "mixd.yaml")
    refused(s.get("/api/nonsense"), 404)


TOOL = {"type": "function", "function": {"name": "f", "description": "does", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}}


@server(Caller)
def test_calls_and_thinking(s):
    """Calls come as wholes, with objects, and thinking beside the text, streamed or not; and a client
    may send them back."""
    ask = dict(model="fake", messages=[{"role": "user", "content": "Hello"}], tools=[TOOL])
    body = whole(s, "/api/chat", **ask)
    message = body["message"]
    assert "Hm, \u00e9" in message["thinking"] and "Let me see." in message["content"], body
    assert [c["function"]["arguments"] for c in message["tool_calls"]] == ARGUMENTS, body
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["f", "g"]
    assert len({c["id"] for c in message["tool_calls"]}) == 2 and body["done_reason"] == "stop"
    parts = lines(s, "/api/chat", **ask)
    join = lambda key: "".join(p["message"].get(key, "") for p in parts)
    assert join("thinking") == message["thinking"] and join("content") == message["content"]
    calls = [c for p in parts for c in p["message"].get("tool_calls", [])]
    assert [c["function"] for c in calls] == [c["function"] for c in message["tool_calls"]], calls
    assert not parts[-1]["message"].get("tool_calls") and parts[-1]["done_reason"] == "stop"
    # the next turn: the message as it came, and results that name tools
    again = ask["messages"] + [message] + [
        {"role": "tool", "tool_name": n, "content": "done"} for n in ("f", "g")]
    assert whole(s, "/api/chat", **dict(ask, messages=again))["message"]["content"]
    # the same prompt as by OpenAI's API
    chat = ask["messages"] + [
        {"role": "assistant", "content": message["content"], "reasoning_content": message["thinking"],
         "tool_calls": [dict(type="function", id=c["id"], function=c["function"])
                        for c in message["tool_calls"]]}]
    ours = whole(s, "/api/chat", **dict(ask, messages=ask["messages"] + [message]))
    same = s.complete("/v1/chat/completions", messages=chat, tools=[TOOL])
    assert ours["prompt_eval_count"] == same["usage"]["prompt_tokens"], (ours, same["usage"])
    generated = whole(s, "/api/generate", model="fake", prompt="Hello")
    assert "Hm" in generated["thinking"], generated
    assert "done" in whole(s, "/api/chat", **dict(ask, think=True))


@server(Mixd, models={"base": ATTENTION})
def test_format(s):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}},
              "required": ["n"], "additionalProperties": False}
    for seed in range(3):
        options = {"num_predict": 400, "seed": seed}
        body = whole(s, "/api/generate", model="base", prompt="A number:", raw=True, format=schema,
                     options=options)
        if body["done_reason"] == "stop":
            assert json.loads(body["response"])["n"] in (3, 4, 5), body
        else:
            assert body["response"].lstrip()[:1] == "{", body
        text = whole(s, "/api/generate", model="base", prompt="A number:", raw=True, format="json",
                     options=options)["response"]
        assert text.lstrip()[:1] == "{", text
    refused(s.post("/api/generate", dict(model="base", prompt="a", raw=True,
                                         format={"type": "nonsense"})), 400, "format")


@server(Mixd, models={"base": ATTENTION})
def test_ollama_client(s):
    try:
        import ollama
    except ImportError as e:
        raise Skip("no ollama package") from e
    client = ollama.Client(host=f"http://{s.host}:{s.port}")
    assert [m.model for m in client.list().models][0] == "base:latest"
    assert client.ps().models[0].name == "base:latest"
    assert "embedding" in client.show("base").capabilities
    options = {"num_predict": 6, "temperature": 0}
    one = client.generate("base", "The sea", options=options, raw=True)
    assert one.done and one.done_reason == "length" and one.eval_count == 6 and one.response
    parts = list(client.generate("base", "The sea", options=options, raw=True, stream=True))
    assert "".join(p.response for p in parts) == one.response and parts[-1].done
    vectors = client.embed("base", ["a", "b"]).embeddings
    assert len(vectors) == 2 and len(vectors[0]) > 8
    assert len(client.embeddings("base", "a").embedding) == len(vectors[0])
    try:
        client.generate("nope", "a")
        raise AssertionError("a model that does not exist answered")
    except ollama.ResponseError as e:
        assert e.status_code == 404 and "nope" in e.error


@server(Frontend)
def test_ollama_client_chats(s):
    try:
        import ollama
    except ImportError as e:
        raise Skip("no ollama package") from e
    client = ollama.Client(host=f"http://{s.host}:{s.port}")
    messages = [{"role": "user", "content": "Hello"}]
    one = client.chat("fake", messages, options={"num_predict": 8, "seed": 1})
    parts = list(client.chat("fake", messages, options={"num_predict": 8, "seed": 1}, stream=True))
    assert "".join(p.message.content for p in parts) == one.message.content != ""


main(sys.modules[__name__])
