#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The file of keys: who gets in, what for and how much, by REST and by gRPC; what the log and the figures
say; a new file at SIGHUP. The parts with the openai and grpcio packages need an interpreter that has them
(MIXD_TEST_PYTHON)."""
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

from harness import BUILD, DEMO, PATIENCE, SRC, Mixd, Skip, check_error, main

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
FRONTS = os.path.join(BUILD, "daemon/.libs")
ASK = {"model": "demo", "prompt": "Once upon", "max_tokens": 4, "seed": 1}


def key(name):
    return f"key-of-{name}-0123456789"


class Keys:
    """A daemon with a file of keys: principals by name, each with what the file says of it."""

    def __init__(self, top="", step_ms=None, **principals):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "keys.yaml")
        self.write(**principals)
        self.server = Mixd(top=f"keys: {self.path}\n" + top, models={"demo": DEMO, "other": DEMO},
                           env={"MIXD_FRONT_PATH": FRONTS}, step_ms=step_ms)

    def write(self, text="", **principals):
        for name, more in principals.items():
            text += (f"- {{ name: {name}, sha256: {hashlib.sha256(key(name).encode()).hexdigest()}"
                     f"{', ' if more else ''}{more} }}\n")
        with open(self.path + ".new", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(text)
        os.replace(self.path + ".new", self.path)

    def reload(self):
        """Has the daemon read its files again; what it says then."""
        before = self.server.errors()
        done = lambda: "reloaded" in self.server.errors()[len(before):]
        self.server.process.send_signal(signal.SIGHUP)
        self.server.wait_for(done, "reload")
        return self.server.errors()[len(before):]

    def ask(self, name, path="/v1/completions", body=None, method="POST", headers=None):
        show = {"Authorization": "Bearer " + key(name)} if name else {}
        return self.server.request(method, path, None if method == "GET" else body or ASK,
                                   headers=dict(show, **(headers or {})))

    def figure(self, name, labels):
        text = self.server.get("/metrics")[2].decode()
        found = re.search(rf"^{name}{{{re.escape(labels)}}} (\S+)$", text, re.M)
        return float(found[1]) if found else None


def test_who_gets_in():
    k = Keys(ann="", bob="models: [other]")
    s = k.server
    for bad in None, "Bearer wrong", "Basic abc", "Bearer " + key("ann")[:-1], key("ann"):
        for method, path, body in (("POST", "/v1/completions", ASK), ("GET", "/v1/models", None),
                                   ("POST", "/tokenize", {"prompt": "a"}), ("GET", "/version", None),
                                   ("GET", "/nowhere", None)):
            status, headers, answer = s.request(method, path, body,
                                                headers={"Authorization": bad} if bad else {})
            check_error((status, headers, answer), 401)
            assert headers["WWW-Authenticate"].startswith("Bearer "), dict(headers)
            assert answer["error"]["code"] in ("missing_api_key", "invalid_api_key"), answer
    # a large body is not kept, and its client gets the answer
    check_error(s.post("/v1/completions", dict(ASK, user="u" * 3000000)), 401)
    for path in "/health", "/livez", "/readyz", "/metrics":
        assert s.get(path)[0] == 200, path
    assert k.ask("ann")[0] == 200
    assert k.ask("ann", "/version", method="GET")[0] == 200
    assert s.metric("mixd_unauthenticated_requests_total") == 26
    s.stop()


def test_models():
    k = Keys(ann="", bob="models: [gpt-other]", carl="models: []")
    names = lambda who: {m["id"] for m in k.ask(who, "/v1/models", method="GET")[2]["data"]}
    assert names("ann") == {"demo", "gpt-demo", "other", "gpt-other"}
    assert names("bob") == {"gpt-other"}
    assert names("carl") == set()
    assert k.ask("bob", body=dict(ASK, model="gpt-other"))[0] == 200
    check_error(k.ask("bob"), 403, "model_not_allowed", "model")
    check_error(k.ask("bob", body=dict(ASK, model="other")), 403)
    check_error(k.ask("bob", "/tokenize", {"model": "demo", "prompt": "a"}), 403)
    check_error(k.ask("bob", "/detokenize", {"model": "demo", "tokens": [1]}), 403)
    check_error(k.ask("bob", "/v1/models/demo", method="GET"), 403)
    check_error(k.ask("bob", "/tokenizer_info?model=demo", method="GET"), 403)
    assert k.ask("bob", "/v1/models/gpt-other", method="GET")[0] == 200
    check_error(k.ask("bob", body=dict(ASK, model="none")), 404)
    k.server.stop()


def test_requests_a_minute():
    k = Keys(ann="requests_per_minute: 3", bob="")
    for left in 2, 1, 0:
        status, headers, _ = k.ask("ann")
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert int(headers["x-ratelimit-remaining-requests"]) >= left
        assert re.fullmatch(r"(\d+m)?\d+s", headers["x-ratelimit-reset-requests"])
    for _ in range(3):  # a slow machine may have got one back
        status, headers, body = k.ask("ann")
        if status != 200:
            break
    e = check_error((status, headers, body), 429, "rate_limit_exceeded", contains="3 requests a minute")
    assert e["type"] == "rate_limit_error"
    assert 1 <= int(headers["Retry-After"]) <= 20
    assert k.figure("mixd_principal_limited_total", 'principal="ann",limit="requests"') >= 1
    assert k.ask("bob")[0] == 200
    assert k.ask("ann", "/v1/models", method="GET")[0] == 200  # nothing that takes work
    k.server.stop()


def test_tokens_a_minute():
    k = Keys(ann="tokens_per_minute: 60", bob="")
    check_error(k.ask("ann", body=dict(ASK, prompt=[5] * 61)), 400, "rate_limit_exceeded")
    status, headers, body = k.ask("ann", body=dict(ASK, prompt=[5] * 30, max_tokens=100, ignore_eos=True))
    assert status == 200, body  # the output leaves a debt
    assert headers["x-ratelimit-limit-tokens"] == "60"
    status, headers, body = k.ask("ann")
    check_error((status, headers, body), 429, contains="60 tokens a minute")
    assert 10 <= int(headers["Retry-After"]) <= 71  # 70 too many, at one a second
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert k.figure("mixd_principal_prompt_tokens_total", 'principal="ann"') == 30
    assert k.figure("mixd_principal_output_tokens_total", 'principal="ann"') == 100
    assert k.figure("mixd_principal_requests_total", 'principal="ann"') == 2
    assert k.figure("mixd_principal_output_tokens_total", 'principal="bob"') == 0
    k.server.stop()


def hold(k):
    """A client of ann that does not read its answer."""
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    c.connect((k.server.host, k.server.port))
    data = json.dumps({"model": "demo", "prompt": "a b c d e f g " * 100000, "with_pieces": True}).encode()
    c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
              b"Authorization: Bearer " + key("ann").encode() +
              b"\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    assert c.recv(1)
    return c


def test_requests_at_a_time():
    """A client that does not read its answer holds its place until it leaves."""
    k = Keys(ann="concurrent: 1", bob="")
    c = hold(k)
    check_error(k.ask("ann"), 429, contains="1 requests at a time")
    assert k.ask("bob")[0] == 200
    assert k.figure("mixd_principal_running_requests", 'principal="ann"') == 1
    c.close()
    k.server.wait_for(lambda: k.figure("mixd_principal_running_requests", 'principal="ann"') == 0, "place")
    assert k.ask("ann")[0] == 200
    k.server.stop()


def test_listener_of_operators():
    """Probes and figures have a listener of their own, without keys; clients find no figures."""
    k = Keys(top="admin: { listen: 127.0.0.1:0 }\n", ann="")
    port = int(re.search(r"probes and metrics on 127.0.0.1:(\d+)", k.server.errors())[1])
    assert k.ask("ann")[0] == 200
    check_error(k.ask("ann", "/metrics", method="GET"), 404)
    clients, k.server.port = k.server.port, port
    for path in "/health", "/livez", "/readyz":
        assert k.server.get(path)[0] == 200, path
    assert k.figure("mixd_principal_requests_total", 'principal="ann"') == 1
    text = k.server.get("/metrics")[2].decode()
    assert text.count("# TYPE http_requests") == 1
    for path in "/v1/models", "/version", "/nowhere":
        check_error(k.ask("ann", path, method="GET"), 404)
    check_error(k.ask("ann"), 404)
    k.server.port = clients
    assert k.server.get("/readyz")[0] == 200
    # while the server drains they still hear of it
    c = hold(k)
    k.server.process.send_signal(signal.SIGTERM)
    k.server.port = port
    k.server.wait_for(lambda: k.server.get("/readyz")[0] == 503, "drain")
    assert "draining" in str(k.server.get("/health")[2])
    c.close()
    k.server.stop()


def test_log_names_the_principal():
    k = Keys(top="log: { format: json, access: all }\n", ann="")
    k.ask("ann")
    k.ask(None)
    k.server.request("POST", "/v1/completions", ASK, headers={"Authorization": "Bearer secret-of-nobody"})
    lines = lambda: [json.loads(l) for l in k.server.errors().splitlines() if '"request"' in l]
    asked = lambda: [l for l in lines() if l["route"] == "/v1/completions"]
    k.server.wait_for(lambda: len(asked()) == 3, "lines")
    assert sorted((l["status"], l.get("principal")) for l in asked()) == [(200, "ann"), (401, None), (401, None)], asked()
    assert key("ann") not in k.server.errors() and "secret-of-nobody" not in k.server.errors()
    k.server.stop()


def test_private_cache():
    """Principals that share find each other's prompts; what one keeps private nobody finds, whatever salt
    a client sends."""
    k = Keys(ann="", bob="", carl="cache: private", dora="cache: private")
    prompt = list(range(5, 405))

    def cached(who, **more):
        status, _, body = k.ask(who, body=dict(ASK, prompt=prompt, max_tokens=1, **more))
        assert status == 200, body
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached("carl") == 0
    assert cached("carl") > 0
    assert cached("ann") == 0
    assert cached("bob") > 0
    assert cached("dora") == 0
    for salt in "carl", "pcarl:", "carl:", "p":
        assert cached("bob", cache_salt=salt) == 0, salt
    assert cached("carl", cache_salt="x") == 0
    assert cached("carl", cache_salt="x") > 0
    assert cached("bob", cache_salt="x") == 0
    k.server.stop()


def test_reload():
    k = Keys(ann="requests_per_minute: 4", bob="")  # one comes back in 15 s
    s = k.server
    assert k.ask("ann")[0] == 200
    kept = s.connect()
    k.write(ann="requests_per_minute: 3", carl="")
    k.reload()
    status, headers, _ = k.ask("ann")
    assert status == 200 and headers["x-ratelimit-limit-requests"] == "3"
    assert int(headers["x-ratelimit-remaining-requests"]) <= 2  # what was used stays used
    assert k.ask("carl")[0] == 200
    check_error(k.ask("bob"), 401)
    for fault, where in (("- { name: x }\n", "keys.yaml:1:3: [0]"), ("- [\n", "not valid YAML")):
        k.write(fault)
        said = k.reload()
        assert where in said and "configuration not reloaded" in said, said
        assert k.ask("carl")[0] == 200
        check_error(k.ask("bob"), 401)
    k.write(ann="")
    os.chmod(k.path, 0o644)
    assert "chmod 640" in k.reload()
    assert k.ask("carl")[0] == 200
    os.chmod(k.path, 0o600)
    k.reload()
    check_error(k.ask("carl"), 401)
    kept.close()
    s.process.terminate()  # stop() would not have errors in the log
    assert s.process.wait(PATIENCE) == 0, s.errors()


def test_start_with_a_faulty_file():
    with tempfile.TemporaryDirectory() as d:
        config = os.path.join(d, "mixd.yaml")
        with open(config, "w") as f:
            f.write(f"http: {{ listen: 127.0.0.1:0 }}\nkeys: keys.yaml\nmodels: [{{ name: demo, path: {DEMO} }}]\n")
        def run(*options, **env):
            r = subprocess.run([os.path.join(BUILD, "mixd"), "--config", config, *options], timeout=PATIENCE,
                               capture_output=True, text=True,
                               env=dict(os.environ, MIXD_MODULE_PATH=os.path.join(BUILD, "mixers/.libs"), **env))
            return r.returncode, r.stderr
        assert run()[0] == 1 and "keys.yaml: cannot be opened" in run("--check")[1]
        keys = os.path.join(d, "keys.yaml")
        with open(keys, "w") as f:
            f.write("- { name: a, sha256: 1 }\n")
        assert "chmod 640" in run()[1]
        os.chmod(keys, 0o600)
        rc, said = run("--check")
        assert rc == 1 and "keys.yaml:1:3: [0]" in said and "--hash-key" in said, said
        with open(keys, "w") as f:
            f.write("[]\n")
        assert run("--check")[0] == 0
        with open(keys, "w") as f:
            f.write(f"- {{ name: a, sha256: {'1' * 64}, models: [demo, dmeo] }}\n")
        rc, said = run("--check")
        assert rc == 0 and "a: models: there is no model 'dmeo'" in said and "'demo'" not in said, said
        with open(config, "a") as f:
            f.write("kv_events: { endpoint: tcp://127.0.0.1:1 }\n")
        rc, said = run("--check", MIXD_FRONT_PATH=d)
        assert rc == 1 and "events-zmq.so" in said, said


def test_hash_key():
    """What mixd prints goes into the file as it is."""
    run = lambda **o: subprocess.run([os.path.join(BUILD, "mixd"), "--hash-key"], capture_output=True, text=True,
                                     timeout=PATIENCE, **o)
    line = run(input=key("ann") + "\n").stdout
    assert line == f"sha256: {hashlib.sha256(key('ann').encode()).hexdigest()}\n", line
    made = run(stdin=subprocess.DEVNULL).stdout
    found = re.fullmatch(r"# the key, .*: (mx-[\w-]{43})\nsha256: ([0-9a-f]{64})\n", made)
    assert found, made
    assert hashlib.sha256(found[1].encode()).hexdigest() == found[2]
    assert run(input="short\n").returncode == 2


OPENAI = r'''
import sys
import openai
url, key = sys.argv[1:3]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
ask = dict(model="demo", prompt="Once", max_tokens=2)
for wrong in openai.OpenAI(base_url=url, api_key="no-such-key-here", max_retries=0),:
    try:
        wrong.completions.create(**ask)
        raise SystemExit("let in")
    except openai.AuthenticationError as e:
        assert e.code == "invalid_api_key", e
assert client.completions.create(**ask).choices
try:
    client.completions.create(**dict(ask, model="other"))
    raise SystemExit("served")
except openai.PermissionDeniedError as e:
    assert e.code == "model_not_allowed", e
try:
    for _ in range(30):  # a slow machine gets some back meanwhile
        raw = client.completions.with_raw_response.create(**ask)
        assert raw.headers["x-ratelimit-limit-requests"] == "3"
    raise SystemExit("not limited")
except openai.RateLimitError as e:
    assert e.code == "rate_limit_exceeded" and int(e.response.headers["retry-after"]) > 0, e
'''


def test_openai():
    if subprocess.run([PYTHON, "-c", "import openai"], stderr=subprocess.DEVNULL).returncode:
        raise Skip("no openai in " + PYTHON)
    k = Keys(ann="requests_per_minute: 3, models: [demo]")
    r = subprocess.run([PYTHON, "-c", OPENAI, f"http://127.0.0.1:{k.server.port}/v1", key("ann")],
                       capture_output=True, text=True, timeout=PATIENCE)
    assert r.returncode == 0, r
    k.server.stop()


GRPC = r'''
import sys
address, folder, key = sys.argv[1:4]
sys.path.insert(0, folder)
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from mixd.v1 import inference_pb2 as pb, inference_pb2_grpc
from google.rpc import status_pb2 as rpc_status

channel = grpc.insecure_channel(address)
stub = inference_pb2_grpc.InferenceStub(channel)
ask = lambda model="demo": pb.CompleteRequest(model=model, prompts=[pb.Prompt(text="Once")], stopping=pb.Stopping(max_tokens=2))
show = lambda key: [("authorization", "Bearer " + key)]
assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status == 1


def fails(code, call):
    try:
        list(call) if hasattr(call, "__iter__") else call()
    except grpc.RpcError as e:
        assert e.code() == code, e
        return e
    raise SystemExit(f"{code} did not come")


for metadata in [], show("no-such-key-here"), [("authorization", key)]:
    fails(grpc.StatusCode.UNAUTHENTICATED, stub.Complete(ask(), metadata=metadata))
    fails(grpc.StatusCode.UNAUTHENTICATED, lambda: stub.ListModels(pb.ListModelsRequest(), metadata=metadata))
names = [m.name for m in stub.ListModels(pb.ListModelsRequest(), metadata=show(key)).models]
assert names == ["demo"], names
assert list(stub.Complete(ask(), metadata=show(key)))
fails(grpc.StatusCode.PERMISSION_DENIED, stub.Complete(ask("other"), metadata=show(key)))
fails(grpc.StatusCode.PERMISSION_DENIED,
      lambda: stub.Tokenize(pb.TokenizeRequest(model="other", text="a"), metadata=show(key)))
def headers(call):
    list(call)
    return dict(call.initial_metadata())
named = headers(stub.Complete(ask(), metadata=show(key) + [("x-request-id", "mine")]))
assert named["x-request-id"] == "mine" and named["x-ratelimit-limit-requests"] == "6", named
assert int(named["x-ratelimit-remaining-requests"]) <= 4, named
_, call = stub.Tokenize.with_call(pb.TokenizeRequest(model="demo", text="a"), metadata=show(key))
assert len(dict(call.initial_metadata())["x-request-id"]) >= 16, call.initial_metadata()
def flood():
    for _ in range(60):  # a slow machine gets some back meanwhile
        list(stub.Complete(ask(), metadata=show(key)))
e = fails(grpc.StatusCode.RESOURCE_EXHAUSTED, flood)
details = dict(e.trailing_metadata())["grpc-status-details-bin"]
assert b"RetryInfo" in details and b"rate_limit_exceeded" in details, details
'''


# What a client may do to others by VllmEngine: reads commands, writes what came.
VLLM = r'''
import os, sys
address, folder, ann, bob, gateway = sys.argv[1:6]
sys.path.insert(0, folder)
import grpc
from vllm import common_pb2 as common, vllm_engine_pb2 as pb, vllm_engine_pb2_grpc
stub = vllm_engine_pb2_grpc.VllmEngineStub(grpc.insecure_channel(address))
show = lambda key: [("authorization", "Bearer " + key)]
PROMPT = [(7 * i) % 3000 + 300 for i in range(200)]


def generate(key, id, n):
    params = pb.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True)
    return stub.Generate(pb.GenerateRequest(
        request_id=id, tokenized=pb.TokenizedInput(input_ids=PROMPT), stream=True, sampling_params=params),
        metadata=show(key))


def follow(key, prompt):
    """Returns the code with which events are refused, or OK once they have told the prompt."""
    call = stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(), metadata=show(key), timeout=60)
    told = []
    try:
        for batch in call:
            for e in batch.events:
                for b in e.stored.blocks:
                    told += b.token_ids
            if set(prompt[:64]) <= set(told):
                return grpc.StatusCode.OK, call
    except grpc.RpcError as e:
        return e.code(), call


def events():
    list(generate(ann, "first", 1))
    assert follow(bob, PROMPT)[0] == grpc.StatusCode.PERMISSION_DENIED
    code, call = follow(gateway, PROMPT)
    assert code == grpc.StatusCode.OK, code
    print("followed", flush=True)
    try:  # until its right is taken away
        for batch in call:
            pass
    except grpc.RpcError as e:
        assert e.code() == grpc.StatusCode.PERMISSION_DENIED, e
        return
    raise SystemExit("the events have ended without an error")


def pace(step_ms):
    with open(os.environ["MIXD_TEST_PACE"], "w") as f:
        f.write(str(step_ms))


def finish(call):
    return [m.complete.finish_reason for m in call if m.WhichOneof("response") == "complete"]


def aborts():
    abort = lambda key: stub.Abort(pb.AbortRequest(request_ids=["same"]), metadata=show(key))
    pace(20)
    other = generate(bob, "same", 1500)
    next(other)
    call = generate(ann, "same", 1500)
    next(call)
    abort(bob)
    assert finish(other) == ["abort"]
    pace(0)
    assert finish(call) == ["length"]
    pace(20)
    for killer in ann, gateway:
        call = generate(ann, "same", 1800)
        next(call)
        abort(killer)
        assert finish(call) == ["abort"], killer


globals()[sys.argv[6]]()
'''


class Engine(Keys):
    """A daemon with keys and gRPC, and clients that use its VllmEngine."""

    def __init__(self, **principals):
        modules = "import grpc, grpc_tools"
        if not os.path.exists(os.path.join(FRONTS, "front-grpc.so")):
            raise Skip("built without gRPC")
        if subprocess.run([PYTHON, "-c", modules], stderr=subprocess.DEVNULL).returncode:
            raise Skip("no grpcio in " + PYTHON)
        super().__init__(top="grpc: { listen: 127.0.0.1:0 }\n", step_ms=0, **principals)
        self.address = re.search(r"grpc: listening on (\S+)", self.server.errors())[1]
        protos = os.path.join(SRC, "proto")
        for proto in "vllm/common.proto", "vllm/vllm_engine.proto":
            subprocess.run([PYTHON, "-m", "grpc_tools.protoc", "-I", protos, "--python_out", self.folder.name,
                            "--grpc_python_out", self.folder.name, os.path.join(protos, proto)], check=True)

    def client(self, part):
        return subprocess.Popen([PYTHON, "-c", VLLM, self.address, self.folder.name, key("ann"), key("bob"),
                                 key("gateway"), part], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=dict(os.environ, MIXD_TEST_PACE=self.server.pace.file))


def test_events_are_for_routers():
    """What everybody asks is told to a router alone, and to it until its right is taken away."""
    k = Engine(ann="cache: private", bob="", gateway="router: true")
    p = k.client("events")
    first = p.stdout.readline().strip()
    assert first == "followed", first + p.communicate(timeout=PATIENCE)[0]
    k.write(ann="cache: private", bob="", gateway="")
    k.reload()
    out = p.communicate(timeout=PATIENCE)[0]
    assert p.returncode == 0, out
    k.server.stop()


def test_aborts_are_of_ones_own():
    """A principal ends its own requests, and a router those of anybody, whatever their ids."""
    k = Engine(ann="", bob="", gateway="router: true")
    p = k.client("aborts")
    out = p.communicate(timeout=PATIENCE)[0]
    assert p.returncode == 0, out
    k.server.stop()


def test_grpc():
    modules = "import grpc, grpc_tools, grpc_health.v1"
    if not os.path.exists(os.path.join(FRONTS, "front-grpc.so")):
        raise Skip("built without gRPC")
    if subprocess.run([PYTHON, "-c", modules], stderr=subprocess.DEVNULL).returncode:
        raise Skip("no grpcio in " + PYTHON)
    k = Keys(top="grpc: { listen: 127.0.0.1:0 }\n", ann="requests_per_minute: 6, models: [demo]")
    address = re.search(r"grpc: listening on (\S+)", k.server.errors())[1]
    with tempfile.TemporaryDirectory() as folder:
        protos = os.path.join(SRC, "proto")
        for proto in "mixd/v1/inference.proto", "google/rpc/status.proto":
            subprocess.run([PYTHON, "-m", "grpc_tools.protoc", "-I", protos, "--python_out", folder,
                            "--grpc_python_out", folder, os.path.join(protos, proto)], check=True)
        r = subprocess.run([PYTHON, "-c", GRPC, address, folder, key("ann")], capture_output=True, text=True,
                           timeout=2 * PATIENCE)
    assert r.returncode == 0, (r.stdout, r.stderr)
    k.server.wait_for(lambda: k.figure("mixd_principal_running_requests", 'principal="ann"') == 0, "end")
    assert " principal=ann " in k.server.errors() and key("ann") not in k.server.errors()
    limited = [l for l in k.server.errors().splitlines() if "code=ResourceExhausted" in l]
    assert limited and all(" info " in l and " principal=ann " in l for l in limited), limited
    k.server.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
