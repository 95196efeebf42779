#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Routes that answer at once, methods, headers, and the states of a server."""
import json
import os
import signal
import sys

from harness import DEMO, Mixd, check_error, main, server


@server(alias="other", models=2)
def test_quick_routes(s):
    for path in ("/health", "/livez", "/readyz"):
        status, headers, body = s.get(path)
        assert (status, body) == (200, {"status": "ok"}), (path, body)
        assert headers["Content-Type"] == "application/json"
    assert s.get("/version")[2] == {"version": "0"}
    assert b"running 0" in s.get("/metrics")[2]


@server(alias="other", models=2)
def test_models(s):
    status, _, body = s.get("/v1/models")
    assert status == 200 and body["object"] == "list"
    assert [m["id"] for m in body["data"]] == ["fake", "fake2", "other"]
    for m in body["data"]:
        assert m["object"] == "model" and m["max_model_len"] == 2048, m
        assert isinstance(m["created"], int) and isinstance(m["owned_by"], str)
    status, _, body = s.get("/v1/models/other")
    assert status == 200 and body["id"] == "other" and body["root"] == "fake", body
    check_error(s.get("/v1/models/nobody"), 404, "model_not_found", "model", "nobody")
    # aliases name the same model
    a = s.complete(model="fake", prompt="x", seed=1, max_tokens=4)
    b = s.complete(model="other", prompt="x", seed=1, max_tokens=4)
    assert a["choices"] == b["choices"] and b["model"] == "fake"


@server()
def test_head_is_get_without_body(s):
    for path in ("/health", "/version", "/v1/models"):
        status, headers, body = s.request("HEAD", path)
        assert status == 200 and body == b"", (status, body)
        assert int(headers["Content-Length"]) == int(s.get(path)[1]["Content-Length"])


@server()
def test_unknown_routes_and_methods(s):
    for path in ("/", "/v1", "/v1/completion", "/v1/completions/", "/v1/models/", "/healthz",
                 "/" + "x" * 3000, "/%01%ff"):
        check_error(s.get(path), 404, "not_found", contains="'/")
    for method, path, allow in (("GET", "/v1/completions", "POST"),
                                ("PUT", "/v1/chat/completions", "POST"),
                                ("DELETE", "/tokenize", "POST"),
                                ("POST", "/health", "GET, HEAD"),
                                ("POST", "/v1/models", "GET, HEAD")):
        answer = s.request(method, path, "{}", {"Content-Type": "application/json"})
        check_error(answer, 405, "method_not_allowed",
                    contains=f"{path} does not take {method}: send {allow}")
        assert answer[1]["Allow"] == allow, answer[1]


@server()
def test_paths_without_a_route_say_what_to_use(s):
    # misspelt: the closest route with its method
    for path, closest in (("/v1/completion", "POST /v1/completions"), ("/healthz", "GET /health"),
                          ("/v1/completions/", "POST /v1/completions"),
                          ("/v1/chat/completion", "POST /v1/chat/completions"),
                          ("/v1/v1/chat/completions", "POST /v1/chat/completions"),
                          ("/v1/model", "GET /v1/models"), ("/tokenise", "POST /tokenize"),
                          ("/metric", "GET /metrics"), ("/ready", "GET /readyz")):
        for method in ("GET", "POST"):
            check_error(s.request(method, path, "{}" if method == "POST" else None), 404,
                        "not_found", contains=f"'{path}'; did you mean {closest}?")
    # far from all of them
    check_error(s.get("/favicon.ico"), 404, "not_found", contains="main ones are POST")
    # of other servers and protocols
    for path, instead in (("/v1/responses/resp_1", "stores no answers"),
                          ("/v1/responses/resp_1/cancel", "stores no answers"),
                          ("/pooling", "/v1/embeddings"), ("/v1/reranking", "/v1/rerank"),
                          ("/v1/classify", "no classes"),
                          ("/v1/audio/transcriptions", "text only"),
                          ("/v1/images/generations", "text only"),
                          ("/completion", "/v1/completions"), ("/infill", "/v1/completions"),
                          ("/props", "/v1/models"), ("/slots/0", "/metrics"),
                          ("/generate", "/v1/completions"),
                          ("/chat/completions", "/v1/chat/completions"), ("/ping", "/health"),
                          ("/v1/chat/completions/chatcmpl-1", "stores no answers"),
                          ("/v1/batches", "one by one"), ("/v1/", "/v1/models")):
        for method in ("GET", "POST"):
            check_error(s.request(method, path, "{}" if method == "POST" else None), 404,
                        "not_found", contains=f"'{path}' is not served: ")
            check_error(s.get(path), 404, contains=instead)


@server()
def test_request_ids(s):
    assert s.get("/health", headers={"X-Request-Id": "abc-1"})[1]["X-Request-Id"] == "abc-1"
    ids = {s.get("/health")[1]["X-Request-Id"] for _ in range(20)}
    assert len(ids) == 20
    for bad in ("a b", "x" * 200):
        assert s.get("/health", headers={"X-Request-Id": bad})[1]["X-Request-Id"] != bad
    _, headers, body = s.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert body["id"] == "cmpl-" + headers["X-Request-Id"]


@server()
def test_connections_are_kept(s):
    c = s.connect()
    for _ in range(3):
        assert s.get("/health", connection=c)[0] == 200
        sock = c.sock
        assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 2}, connection=c)[0] == 200
        assert c.sock is sock
        check_error(s.post("/v1/completions", {}, connection=c), 400)
        assert c.sock is sock


@server()
def test_tokenize_and_detokenize(s):
    text = "Hello there, naïve 😀 world\n\n  twice"
    _, _, body = s.post("/tokenize", {"prompt": text, "return_token_strs": True})
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    assert body["max_model_len"] == 2048
    _, _, plain = s.post("/tokenize", {"content": text})
    assert "token_strs" not in plain and plain["tokens"] == body["tokens"][1:]
    _, _, back = s.post("/detokenize", {"tokens": plain["tokens"]})
    assert back["prompt"] == back["text"] == back["content"] == text
    check_error(s.post("/detokenize", {"tokens": [99999999]}), 400, "invalid_value", "tokens")
    check_error(s.post("/tokenize", {"model": "nobody", "prompt": "a"}), 404, "model_not_found")


@server(models=2)
def test_tokenizer_info(s):
    with open(os.path.join(DEMO, "tokenizer_config.json")) as f:
        config = json.load(f)
    status, _, info = s.get("/tokenizer_info?model=fake2")
    assert status == 200
    for key in ("tokenizer_class", "bos_token", "eos_token", "chat_template"):
        assert info[key] == config[key], (key, info)
    assert info["pad_token"] is None and info["model_max_length"] == 2048
    # as lm-eval finds the id of EOS
    assert len(s.post("/tokenize", {"model": "fake", "prompt": info["eos_token"],
                                    "add_special_tokens": False})[2]["tokens"]) == 1
    check_error(s.get("/tokenizer_info"), 400, "missing_required_parameter", "model")
    check_error(s.get("/tokenizer_info?model=nobody"), 404, "model_not_found")
    check_error(s.post("/tokenizer_info", {}), 405, "method_not_allowed")


@server(hold=1, wait=False)
def test_loading(s):
    check_error(s.get("/tokenizer_info"), 503, "model_loading")
    check_error(s.post("/v1/completions", {"prompt": "a"}), 503, "model_loading")
    check_error(s.post("/tokenize", {"prompt": "a"}), 503, "model_loading")
    status, headers, body = s.get("/readyz")
    assert status == 503 and "loading" in body["status"] and headers["Retry-After"]
    assert s.get("/health", headers={"X-Request-Id": "probe"})[0] == 503
    assert s.get("/livez")[0] == 200
    # who asks whether it is loaded and hears that it is not needs no warning; other requests do
    s.wait_for(lambda: "id=probe" in s.errors(), "line")
    levels = {line.split()[1] for line in s.errors().splitlines() if "route=/health" in line or "/readyz" in line}
    assert levels == {"info"}, s.errors()
    assert " warning http: request " in s.errors(), s.errors()
    assert s.get("/v1/models")[2]["data"][0]["max_model_len"] is None
    s.process.send_signal(signal.SIGHUP)
    s.wait_ready()
    assert s.get("/health")[0] == 200
    s.complete(prompt="a", max_tokens=1)


PAGE, OTHER = "https://chat.example", "https://evil.example"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}


@server(Mixd, http=f", cors: {{origins: [{PAGE}]}}")
def test_web_pages_of_listed_origins(s):
    for origin, good in ((PAGE, True), (OTHER, False), ("null", False), (PAGE + "x", False)):
        status, headers, body = s.request("OPTIONS", "/v1/completions", headers=dict(ASKS, Origin=origin))
        assert status == (204 if good else 405), (origin, status)
        assert not good or headers["Access-Control-Allow-Methods"] == "POST" and not body, dict(headers)
        for answer in (s.get("/v1/models", headers={"Origin": origin}), s.get("/nowhere", headers={"Origin": origin}),
                       s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, {"Origin": origin}),
                       s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "stream": True},
                                 {"Origin": origin})):
            assert answer[1]["Access-Control-Allow-Origin"] == (origin if good else None), dict(answer[1])
            assert answer[1]["Vary"] == "Origin" and answer[1]["X-Content-Type-Options"] == "nosniff"
    assert s.get("/version")[1]["Access-Control-Allow-Origin"] is None
    # what a library sends of its own is allowed; what is no list of names is not given back
    for asked, good in (("authorization, x-stainless-lang", True), ('a"b', False), ("x" * 3000, False)):
        headers = dict(ASKS, Origin=PAGE)
        headers["Access-Control-Request-Headers"] = asked
        allowed = s.request("OPTIONS", "/v1/completions", headers=headers)[1]["Access-Control-Allow-Headers"]
        assert (allowed == asked) == good and "uthorization" in allowed, (asked, allowed)
    assert " method=OPTIONS " in s.errors() and " method=OTHER " not in s.errors()


@server()
def test_web_pages_have_no_access_unless_it_is_given(s):
    headers = dict(ASKS, Origin=PAGE)
    check_error(s.request("OPTIONS", "/v1/completions", headers=headers), 405, "method_not_allowed")
    assert s.get("/version", headers=headers)[1]["Access-Control-Allow-Origin"] is None


main(sys.modules[__name__])
