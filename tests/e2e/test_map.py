#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The map of a model agrees with the plan of --check and with the checkpoint; the list of requests tells
each principal of its own."""
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile

from harness import BUILD, DEMO, Mixd, check_error, main, server
from test_golden_api import with_tokenizer
from test_keys import Keys, key

MODULES = os.path.join(BUILD, "mixers/.libs")


def map_of(s, name="demo"):
    status, _, body = s.get(f"/v1/models/{name}/map")
    assert status == 200, body
    return body


def matrices(folder):
    """Bytes of the matrices of a checkpoint."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
    return sum(t["data_offsets"][1] - t["data_offsets"][0] for k, t in header.items()
               if k != "__metadata__" and len(t["shape"]) > 1 and min(t["shape"]) > 1)


@server(Mixd)
def test_layers(s):
    m = map_of(s)
    assert (m["object"], m["id"], m["root"], m["state"], m["family"]) == ("model.map", "demo", "demo", "ready", "mixd")
    assert m["device"] == "cpu" and m["deterministic"] and m["chat"] and m["chat_error"] is None
    assert m["loaded_bytes"] == m["load_bytes"] > 0
    with open(os.path.join(DEMO, "config.json")) as f:
        config = json.load(f)
    mixers = [[p["mixer"] for p in layer if "mixer" in p] for layer in m["layers"]]
    assert mixers == [[x["mixer"]] for x in config["mixd_layers"]], mixers
    for layer in m["layers"]:
        mixer, forward = layer
        assert forward["feed_forward"] == "dense" and forward["width"] == config["intermediate_size"]
        assert mixer["kernels"].startswith(mixer["mixer"]) and mixer["weight_bytes"] > 0
    # the totals by mixer are the sums over layers
    for x in m["mixers"]:
        own = [p for layer in m["layers"] for p in layer if p.get("mixer") == x["mixer"]]
        assert x["layers"] == len(own)
        assert abs(x["bytes_per_sequence"] - sum(p["bytes_per_sequence"] for p in own)) <= 64 * len(own), x
        assert abs(x["bytes_per_token"] - sum(p["bytes_per_token"] for p in own)) <= 2 * len(own), x
    # every matrix is in one place; long filters are theirs, though no products
    told = m["embedding_bytes"] + m["head_bytes"] + sum(p["weight_bytes"] for layer in m["layers"] for p in layer)
    assert 0.9 * matrices(DEMO) < told <= matrices(DEMO), (told, matrices(DEMO))
    assert map_of(s, "gpt-demo") == dict(m, id="gpt-demo")
    for path in "/v1/models/nobody/map", "/v1/models/demo/maps", "/v1/models//map", "/v1/models/demo/map/":
        check_error(s.get(path), 404)
    check_error(s.post("/v1/models/demo/map", {}), 405)


def test_memory_is_that_of_check():
    s = Mixd()
    m = map_of(s)
    out = subprocess.run([os.path.join(BUILD, "mixd"), "--check", "--config", s.config], capture_output=True,
                         text=True, env=dict(os.environ, MIXD_MODULE_PATH=MODULES)).stdout
    told = {p["part"]: p["bytes"] for p in m["memory"]}
    for name, line in (("weights", "weights, mapped"), ("pages", "pages"), ("slots", "slots"),
                       ("snapshots", "snapshots"), ("mixers' own", "mixers' own"),
                       ("converted weights", "weights, converted")):
        mib = float(re.search(rf"^  {re.escape(line)} +([\d.]+) MiB", out, re.M)[1])
        assert abs(told[name] / 2**20 - mib) < 0.06, (name, told[name], mib)
    for x in m["mixers"]:
        assert re.search(rf"mixer {x['mixer']} +{x['layers']} layers, {x['bytes_per_token']} bytes a token, "
                         rf"{x['bytes_per_sequence']} bytes a sequence", out), (x, out)
    s.stop()


def test_experts_and_blocks_aside():
    with tempfile.TemporaryDirectory() as folder:
        s = Mixd(models={"moe": with_tokenizer("glm4_moe", folder), "aside": with_tokenizer("zamba2", folder)})
        with open(os.path.join(folder, "glm4_moe/config.json")) as f:
            config = json.load(f)
        parts = [p for layer in map_of(s, "moe")["layers"] for p in layer if p.get("feed_forward") == "experts"]
        assert parts
        for p in parts:
            assert p["experts"] == config["n_routed_experts"] and p["chosen"] == config["num_experts_per_tok"]
            one = 3 * config["hidden_size"] * config["moe_intermediate_size"] * 4
            assert p["width"] == config["moe_intermediate_size"] and p["weight_bytes"] >= p["experts"] * one
        m = map_of(s, "aside")
        kinds = [[p.get("mixer", p.get("feed_forward")) for p in layer] for layer in m["layers"]]
        assert ["attention", "dense", "mamba"] in kinds, kinds
        assert all(p["weight_bytes"] > 0 for layer in m["layers"] for p in layer)
        s.stop()


@server(hold=1, wait=False)
def test_while_it_loads(s):
    m = map_of(s, "fake")
    assert m == {"object": "model.map", "id": "fake", "root": "fake", "state": "loading", "loaded_bytes": 0,
                 "load_bytes": 0}, m
    s.process.send_signal(signal.SIGHUP)
    s.wait_ready()
    m = map_of(s, "fake")
    assert m["state"] == "ready" and m["family"] is None and "layers" not in m, m # a fake engine has none


def test_a_model_may_be_called_so():
    s = Mixd(models={"a/map": DEMO, "a": DEMO})
    assert s.get("/v1/models/a/map")[2]["object"] == "model"
    assert map_of(s, "a/map")["root"] == "a/map"
    s.stop()


@server(Mixd, step_ms=50)
def test_requests(s):
    assert s.get("/v1/requests")[2] == {"all": 0, "requests": []}
    streams = [s.stream(prompt="a b c", max_tokens=1500, ignore_eos=True, model="gpt-demo") for _ in range(2)]
    for x in streams:
        next(iter(x))
    body = s.get("/v1/requests")[2]
    assert body["all"] == 2 and len(body["requests"]) == 2, body
    for r in body["requests"]:
        assert set(r) == {"id", "model", "age_s", "first_token_s", "stream", "prompt_tokens", "output_tokens"}
        assert r["model"] == "demo" and r["stream"] is True and r["prompt_tokens"] > 0 < r["output_tokens"]
        assert 0 < r["first_token_s"] <= r["age_s"] < 60, r
    assert {r["id"] for r in body["requests"]} == {x.headers["X-Request-Id"] for x in streams}
    for x in streams:
        x.abort()
    s.wait_for(lambda: s.get("/v1/requests")[2]["all"] == 0, "end")


def test_requests_are_told_to_their_principal():
    k = Keys(ann="", bob="models: [other]", gateway="router: true", step_ms=50)
    s = k.server
    for path in "/v1/requests", "/v1/models/demo/map":
        check_error(s.get(path), 401)
        check_error(s.get(path, headers={"Authorization": "Bearer wrong"}), 401)
    assert s.get("/")[0] == 200 and s.get("/page/state.json")[2]["keys"] is True
    check_error(k.ask("bob", "/v1/models/demo/map", method="GET"), 403, "model_not_allowed")
    check_error(k.ask("bob", "/v1/models/gpt-demo/map", method="GET"), 403, "model_not_allowed")
    assert k.ask("bob", "/v1/models/other/map", method="GET")[0] == 200
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps({"model": "demo", "prompt": "a", "max_tokens": 1900,
              "ignore_eos": True, "stream": True}),
              {"Content-Type": "application/json", "Authorization": "Bearer " + key("ann")})
    r = c.getresponse()
    r.readline()
    seen = {who: k.ask(who, "/v1/requests", method="GET")[2]["all"] for who in ("ann", "bob", "gateway")}
    r.close()
    c.close()
    assert seen == {"ann": 1, "bob": 0, "gateway": 1}, seen
    s.stop()


def test_operators_keep_the_requests():
    s = Mixd(top="admin: { listen: 127.0.0.1:0 }\n")
    check_error(s.get("/v1/requests"), 403, "for_operators", contains="mixctl")
    assert map_of(s)["state"] == "ready"
    s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
