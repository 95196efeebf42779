#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gRPC front end with the real Python client (grpcio, with its packages for health and reflection).
The same prompts by REST must give the same bits."""
import os
import re
import shutil
import signal
import sys
import tempfile

from grpc_harness import FRONTS, need, python, run, start
from harness import PATIENCE, Mixd, main, make_pair

CLIENT = r'''
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from google.protobuf.descriptor_pool import DescriptorPool
from mixd.v1 import inference_pb2 as pb, inference_pb2_grpc
from google.rpc import status_pb2 as rpc_status

channel = grpc.insecure_channel(address)
stub = inference_pb2_grpc.InferenceStub(channel)
f32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
NIGHT = "It was a dark and stormy night"


def collect(call):
    """The choices of a stream, each as one message, and the usage; and the number of messages."""
    choices, usage, n = {}, None, 0
    for m in call:
        n += 1
        for c in m.choices:
            choices.setdefault(c.index, pb.Choice()).MergeFrom(pb.Choice(**{"index": c.index}))
            whole = choices[c.index]
            text = whole.text + c.text
            whole.MergeFrom(c)
            whole.text = text
        if m.HasField("usage"):
            usage = m.usage
    return choices, usage, n


def complete(text=NIGHT, **more):
    fields = dict(model="demo", prompts=[pb.Prompt(text=text)], sampling=pb.Sampling(temperature=0),
                  stopping=pb.Stopping(max_tokens=24))
    return pb.CompleteRequest(**dict(fields, **more))


def same_bits():
    """Greedy and sampled, one and several choices: token ids, texts and log-probabilities as by REST."""
    for sampling, fields, n in ((pb.Sampling(temperature=0), dict(temperature=0), 1),
                                (pb.Sampling(temperature=1, seed=7, top_p=0.9),
                                 dict(temperature=1, seed=7, top_p=0.9), 3)):
        choices, usage, _ = collect(stub.Complete(complete(
            sampling=sampling, output=pb.Output(n=n, logprobs=3, token_ids=True))))
        want = rest("/v1/completions", prompt=NIGHT, max_tokens=24, logprobs=3, n=n, return_token_ids=True,
                    **fields)
        assert len(choices) == n and usage.completion_tokens == want["usage"]["completion_tokens"]
        for c in want["choices"]:
            got, lp = choices[c["index"]], c["logprobs"]
            assert got.text == c["text"] and list(got.token_ids) == c["token_ids"], (got, c)
            assert list(got.logprobs.values) == [f32(x) for x in lp["token_logprobs"]]
            assert list(got.logprobs.counts) == [3] * len(got.logprobs.ids)
            assert got.finish_reason == {"stop": 1, "length": 2}[c["finish_reason"]]


def same_constrained():
    """What the output must look like, in each form."""
    schema = '{"type":"object","properties":{"a":{"type":"integer","minimum":0,"maximum":999}},' \
             '"required":["a"],"additionalProperties":false}'
    for form, fields in ((pb.Constraint(regex="[0-9]{2}:[a-z]{3}"), dict(guided_regex="[0-9]{2}:[a-z]{3}")),
                         (pb.Constraint(choice=pb.Texts(texts=["yes", "no"])),
                          dict(guided_choice=["yes", "no"])),
                         (pb.Constraint(grammar='root ::= "x" [a-c]+ "."'),
                          dict(grammar='root ::= "x" [a-c]+ "."')),
                         (pb.Constraint(json_schema=schema), dict(guided_json=schema)),
                         (pb.Constraint(json_object=True), dict(guided_json_object=True))):
        sampling = pb.Sampling(temperature=1, seed=7, top_p=1)
        choices, usage, _ = collect(stub.Complete(complete(sampling=sampling, constraint=form,
                                                           output=pb.Output(n=2, token_ids=True))))
        want = rest("/v1/completions", prompt=NIGHT, max_tokens=24, n=2, return_token_ids=True,
                    temperature=1, seed=7, top_p=1, **fields)
        for c in want["choices"]:
            got = choices[c["index"]]
            assert got.text == c["text"] and list(got.token_ids) == c["token_ids"], (got, c)
    fails(grpc.StatusCode.INVALID_ARGUMENT, stub.Complete(complete(constraint=pb.Constraint(regex="a(b"))), "constraint.regex")
    fails(grpc.StatusCode.INVALID_ARGUMENT, stub.Complete(complete(constraint=pb.Constraint(choice=pb.Texts()))), "constraint.choice")


def one_message_a_step():
    pace(20)
    choices, usage, n = collect(stub.Complete(complete()))
    pace(0)
    assert usage.completion_tokens == 24 and 2 <= n <= 26, n  # a loaded host joins steps
    _, _, whole = collect(stub.Complete(complete(output=pb.Output(whole=True))))
    assert whole == 1, whole


def prompts_and_echo():
    request = complete(prompts=[pb.Prompt(text="A"), pb.Prompt(tokens=pb.TokenIds(ids=[12, 5, 9]))],
                       echo=True, output=pb.Output(token_ids=True))
    choices, usage, _ = collect(stub.Complete(request))
    assert set(choices) == {0, 1} and choices[0].text.startswith("A")
    assert list(choices[1].prompt_token_ids) == [12, 5, 9], choices[1]
    assert usage.completion_tokens == 48


def chat():
    messages = [pb.Message(role="user", content="Tell me of the sea.")]
    sampling = pb.Sampling(temperature=0)
    choices, _, _ = collect(stub.Chat(pb.ChatRequest(model="demo", messages=messages, sampling=sampling,
                                                     stopping=pb.Stopping(max_tokens=12))))
    want = rest("/v1/chat/completions", messages=[dict(role="user", content="Tell me of the sea.")],
                temperature=0, max_tokens=12)
    assert choices[0].text == want["choices"][0]["message"]["content"]
    ids = stub.Tokenize(pb.TokenizeRequest(model="demo", chat=pb.ChatRequest(messages=messages))).ids
    want = rest("/tokenize", messages=[dict(role="user", content="Tell me of the sea.")])
    assert list(ids) == want["tokens"], (ids, want)


def score_and_tokens():
    ids = list(stub.Tokenize(pb.TokenizeRequest(model="demo", text=NIGHT)).ids)
    assert ids == rest("/tokenize", prompt=NIGHT)["tokens"]
    assert stub.Detokenize(pb.DetokenizeRequest(model="demo", ids=ids)).text == NIGHT
    zero = "a\0b"  # a NUL byte is a character as others
    zeros = stub.Tokenize(pb.TokenizeRequest(model="demo", text=zero)).ids
    assert stub.Detokenize(pb.DetokenizeRequest(model="demo", ids=zeros)).text == zero
    s = stub.Score(pb.ScoreRequest(model="demo", prompt=pb.Prompt(text=NIGHT), alternatives=2)).logprobs
    want = rest("/v1/completions", prompt=NIGHT, max_tokens=0, echo=True, logprobs=2)["choices"][0]["logprobs"]
    assert list(s.ids) == ids and s.values[0] != s.values[0]
    assert list(s.values[1:]) == [f32(x) for x in want["token_logprobs"][1:]]
    assert list(s.counts) == [0] + [2] * (len(ids) - 1) and len(s.top_ids) == sum(s.counts)


def errors():
    bad = grpc.StatusCode.INVALID_ARGUMENT
    e = fails(bad, stub.Complete(complete(sampling=pb.Sampling(top_p=2))), "top_p")
    status = rpc_status.Status.FromString(dict(e.trailing_metadata())["grpc-status-details-bin"])
    kinds = [d.type_url.rsplit(".", 1)[1] for d in status.details]
    assert kinds == ["ErrorInfo", "BadRequest"], kinds
    violation = rpc_status.BadRequest.FromString(status.details[1].value).field_violations[0]
    assert violation.field == "top_p", violation
    fails(grpc.StatusCode.NOT_FOUND, stub.Complete(complete(model="nope")), "nope")
    fails(bad, stub.Complete(complete(prompts=[])), "prompt")
    fails(bad, stub.Complete(complete(stopping=pb.Stopping(max_tokens=1 << 20))), "context")
    fails(bad, stub.Complete(complete(stopping=pb.Stopping(stop=[""]))), "stop")
    fails(bad, stub.Chat(pb.ChatRequest(model="demo")), "messages")
    e = fails(bad, lambda: stub.Detokenize(pb.DetokenizeRequest(model="demo", ids=[1, 1 << 30])), "'ids'")
    status = rpc_status.Status.FromString(dict(e.trailing_metadata())["grpc-status-details-bin"])
    assert rpc_status.BadRequest.FromString(status.details[1].value).field_violations[0].field == "ids"
    raw = channel.unary_stream("/mixd.v1.Inference/Complete")
    fails(bad, raw(b"\xff\xff\xff"), "well-formed")
    # prompts of nothing, two bytes each: read, they take many times the message
    fails(grpc.StatusCode.RESOURCE_EXHAUSTED, raw(b"\x12\0" * 4000), "12 times")
    fails(bad, raw(b"\x0a\x02\xff\xfe"), "UTF-8")
    fails(grpc.StatusCode.UNIMPLEMENTED, channel.unary_stream("/mixd.v1.Inference/Nothing")(b""), "Nothing")
    fails(grpc.StatusCode.RESOURCE_EXHAUSTED, raw(b"\0" * (9 << 20)))


def cancels():
    pace(50)
    long = complete(stopping=pb.Stopping(max_tokens=1900, ignore_eos=True), output=pb.Output(n=4))
    call = stub.Complete(long)
    next(call)
    call.cancel()
    is_idle()
    fails(grpc.StatusCode.DEADLINE_EXCEEDED, stub.Complete(long, timeout=0.3))
    is_idle()
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as other:
        next(inference_pb2_grpc.InferenceStub(other).Complete(long))
    is_idle()
    pace(0)


def many():
    """Streams at once, some of which leave: each of the others is as alone."""
    alone, _, _ = collect(stub.Complete(complete()))
    faults = []

    def one(i):
        call = stub.Complete(complete())
        if i % 3 == 0:
            next(call)
            call.cancel()
            return
        got, _, _ = collect(call)
        if got[0].text != alone[0].text:
            faults.append(i)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(48)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not faults, faults
    is_idle()


def health_and_reflection():
    stub = health_pb2_grpc.HealthStub(channel)
    check = lambda name: stub.Check(health_pb2.HealthCheckRequest(service=name)).status
    assert check("") == check("demo") == check("gpt-demo") == check("mixd.v1.Inference") == 1
    fails(grpc.StatusCode.NOT_FOUND, lambda: check("nope"), "nope")
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="nope"))
    assert next(watch).status == 3  # SERVICE_UNKNOWN
    watch.cancel()
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {"mixd.v1.Inference", "grpc.health.v1.Health"} <= set(database.get_services())
    pool = DescriptorPool(database)
    assert "Complete" in pool.FindServiceByName("mixd.v1.Inference").methods_by_name
    assert "prompts" in pool.FindMessageTypeByName("mixd.v1.CompleteRequest").fields_by_name


def figures():
    text = urllib.request.urlopen(http + "/metrics").read().decode()
    line = next(l for l in text.splitlines() if l.startswith("grpc_server_handled_total")
                and 'grpc_method="Tokenize"' in l and 'grpc_code="OK"' in l)
    assert float(line.rsplit(" ", 1)[1]) >= 3, line
    _, metadata = stub.ListModels.with_call(pb.ListModelsRequest())
    call = stub.Complete(complete(), metadata=[("x-request-id", "mine-1")])
    assert dict(call.initial_metadata())["x-request-id"] == "mine-1"
    list(call)


for f in (same_bits, same_constrained, one_message_a_step, prompts_and_echo, chat, score_and_tokens, errors,
          cancels, many, health_and_reflection, figures):
    f()
    print("passed", f.__name__, flush=True)
'''

DRAIN = r'''
import sys
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
watch = health_pb2_grpc.HealthStub(grpc.insecure_channel(sys.argv[1])).Watch(
    health_pb2.HealthCheckRequest(service="demo"), timeout=60)
try:
    for m in watch:
        print(m.status, flush=True)
        if m.status == 2:
            break
except grpc.RpcError as e:
    print(e.code())
'''


TLS = r'''
import sys
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
address, ca, key, cert, name = sys.argv[1:6]
read = lambda f: open(f, "rb").read() if f else None
creds = grpc.ssl_channel_credentials(read(ca), read(key), read(cert))
channel = grpc.secure_channel(address, creds, [("grpc.ssl_target_name_override", name)])
try:
    print(health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20).status)
except grpc.RpcError as e:
    print(e.code())
'''


def test_client():
    need()
    s, address = start()
    run(CLIENT, f"http://127.0.0.1:{s.port}", address,
        protos=("mixd/v1/inference.proto", "google/rpc/status.proto"))
    s.stop()


def test_drain_turns_health():
    need()
    s, address = start()
    p = python(DRAIN, address)
    assert p.stdout.readline().strip() == "1"
    s.stop()
    out, _ = p.communicate(timeout=PATIENCE)
    assert out.split()[0] == "2" or "UNAVAILABLE" in out, out
    assert p.returncode == 0


def test_tls():
    """Server and client certificates; new files at SIGHUP, of which a faulty one changes nothing."""
    need()
    with tempfile.TemporaryDirectory() as d:
        for name, host in ("one", "one.test"), ("two", "two.test"), ("client", "client.test"):
            make_pair(d, name, host)
        at = lambda f: os.path.join(d, f)

        def use(name):
            for suffix in "pem", "key":
                os.replace(shutil.copy(at(f"{name}.{suffix}"), at("new")), at("server." + suffix))

        def ask(ca, host, *pair):
            p = python(TLS, address, at(ca), *([at(f) for f in pair] or ["", ""]), host)
            return p.communicate(timeout=PATIENCE)[0].strip()
        use("one")
        tls = f"{{ cert: {at('server.pem')}, key: {at('server.key')}, client_ca: {at('client.pem')} }}"
        s = Mixd(top=f"grpc: {{ listen: 127.0.0.1:0, tls: {tls} }}\n", env={"MIXD_FRONT_PATH": FRONTS})
        address = re.search(r"grpc: listening on (\S+)", s.errors())[1]
        pair = "client.key", "client.pem"
        assert ask("one.pem", "one.test", *pair) == "1"
        assert "UNAVAILABLE" in ask("one.pem", "one.test")  # no certificate of the client
        assert "UNAVAILABLE" in ask("two.pem", "two.test", *pair)
        use("two")
        s.process.send_signal(signal.SIGHUP)
        s.wait_for(lambda: "read the files of TLS again" in s.errors(), "new files")
        assert ask("two.pem", "two.test", *pair) == "1"
        with open(at("server.key"), "w") as f:
            f.write("no key")
        s.process.send_signal(signal.SIGHUP)
        s.wait_for(lambda: "configuration not reloaded" in s.errors(), "refused files")
        assert "server.key" in s.errors()
        assert ask("two.pem", "two.test", *pair) == "1"
        shutil.copy(at("one.key"), at("server.key"))  # a key of another certificate
        s.process.send_signal(signal.SIGHUP)
        s.wait_for(lambda: s.errors().count("configuration not reloaded") == 2, "refused pair")
        assert ask("two.pem", "two.test", *pair) == "1"
        s.process.terminate()  # stop() would not have errors in the log
        rc = s.process.wait(PATIENCE)
        assert rc == 0, (rc, s.errors())


def test_tls_without_client_certificates():
    """A certificate and a key are enough: clients that trust it get in, also after a reload, and others do
    not."""
    need()
    with tempfile.TemporaryDirectory() as d:
        at = lambda f: os.path.join(d, f)
        for name in "server", "other":
            make_pair(d, name, "one.test")
        s, address = start(f", tls: {{ cert: {at('server.pem')}, key: {at('server.key')} }}")

        def ask(ca):
            p = python(TLS, address, at(ca), "", "", "one.test")
            return p.communicate(timeout=PATIENCE)[0].strip()
        assert ask("server.pem") == "1"
        assert "UNAVAILABLE" in ask("other.pem")
        for suffix in ".pem", ".key":
            os.replace(at("other" + suffix), at("server" + suffix))
        s.process.send_signal(signal.SIGHUP)
        s.wait_for(lambda: "read the files of TLS again" in s.errors(), "new files")
        assert ask("server.pem") == "1"
        s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
