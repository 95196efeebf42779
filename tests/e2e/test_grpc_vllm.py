#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The engine service of the SGLang model gateway (vllm.grpc.engine.VllmEngine), by our .proto files and,
where the package smg-grpc-proto is installed, by the gateway's own: the same tokens and log-probabilities
as by REST, aborts, and a tokenizer that can be used."""
import sys

from grpc_harness import has, need, run, start
from harness import ATTENTION, DEMO, Skip, main

# Follows a line that imports pb (the engine's messages), common and rpc (the stubs).
CLIENT = r'''
import hashlib, io, os, zipfile
stub = rpc.VllmEngineStub(grpc.insecure_channel(address))
bad = grpc.StatusCode.INVALID_ARGUMENT
NIGHT = "It was a dark and stormy night"
IDS = rest("/tokenize", prompt=NIGHT)["tokens"]
f32 = lambda x: struct.unpack("f", struct.pack("f", x))[0]
near = lambda a, b: [f32(x) for x in a] == [f32(x) for x in b]


def request(stream=True, ids=IDS, id="r", **params):
    params = dict(dict(temperature=0, max_tokens=24), **params)
    return pb.GenerateRequest(request_id=id, tokenized=pb.TokenizedInput(input_ids=ids), stream=stream,
                              sampling_params=pb.SamplingParams(**params))


def collect(call):
    """What a gateway makes of a stream: by choice, the chunks' tokens added up, and the end."""
    tokens, logprobs, inputs, ends = {}, {}, {}, {}
    for m in call:
        what = m.WhichOneof("response")
        if what == "complete":
            assert m.complete.index not in ends
            ends[m.complete.index] = m.complete
            continue
        c = m.chunk
        assert c.completion_tokens == len(c.token_ids) and c.index not in ends, c
        tokens.setdefault(c.index, []).extend(c.token_ids)
        for to, field in (logprobs, "output_logprobs"), (inputs, "input_logprobs"):
            if c.HasField(field):
                whole = to.setdefault(c.index, type(getattr(c, field))())
                whole.MergeFrom(getattr(c, field))
    return tokens, logprobs, inputs, ends


def want(**fields):
    return rest("/v1/completions", prompt=IDS, **dict(dict(temperature=0, max_tokens=24,
                                                           return_token_ids=True), **fields))


def same_tokens():
    for ours, theirs in ((dict(), dict()), (dict(temperature=1, seed=7, top_p=0.9, n=3),) * 2,
                         (dict(temperature=1, seed=7, top_k=5, repetition_penalty=1.3, min_p=0.01,
                               logit_bias={5: 3.5}),
                          dict(temperature=1, seed=7, top_k=5, repetition_penalty=1.3, min_p=0.01,
                               logit_bias={"5": 3.5}, top_p=1))):  # not the model's own
        w = want(**theirs)
        tokens, _, _, ends = collect(stub.Generate(request(**ours)))
        whole = {m.complete.index: m.complete for m in stub.Generate(request(False, **ours))}
        for c in w["choices"]:
            i = c["index"]
            assert tokens[i] == c["token_ids"] == list(whole[i].output_ids), (i, ours)
            assert whole[i].completion_tokens == len(tokens[i])
            for end in ends[i], whole[i]:
                assert end.finish_reason == c["finish_reason"] and end.prompt_tokens == len(IDS), end
            # the last message repeats the last chunk
            n = len(ends[i].output_ids)
            assert n and list(ends[i].output_ids) == tokens[i][-n:] and ends[i].completion_tokens == n
        assert len(ends) == len(whole) == len(w["choices"])
    for ours, theirs in ((dict(regex="[0-9]{4}"), dict(guided_regex="[0-9]{4}")),
                         (dict(choice=pb.ChoiceConstraint(choices=["yes", "no"])),
                          dict(guided_choice=["yes", "no"])),
                         (dict(json_object=True), dict(guided_json_object=True))):
        seeded = dict(temperature=1, seed=7)
        w = want(**dict(seeded, top_p=1, **theirs))["choices"][0]
        tokens, _, _, ends = collect(stub.Generate(request(**dict(seeded, **ours))))
        assert tokens[0] == w["token_ids"] and ends[0].finish_reason == w["finish_reason"], (ours, w)


def log_probabilities():
    w = want(logprobs=3)["choices"][0]["logprobs"]
    scored = want(logprobs=2, echo=True, max_tokens=0)["choices"][0]["logprobs"]
    ask = dict(logprobs=3, prompt_logprobs=2)
    tokens, logprobs, inputs, ends = collect(stub.Generate(request(**ask)))
    whole = next(stub.Generate(request(False, **ask))).complete
    for tops, out, inp in ((3, logprobs[0], inputs[0]), (3, whole.output_logprobs, whole.input_logprobs)):
        assert near(out.token_logprobs, w["token_logprobs"]) and list(out.token_ids) == tokens[0]
        assert all(len(t.values) == len(t.token_ids) == 3 for t in out.top_logprobs), out
        assert list(inp.token_ids) == IDS and not inp.token_logprobs[0].HasField("value")
        assert near([t.value for t in inp.token_logprobs[1:]], scored["token_logprobs"][1:])
        assert [len(t.values) for t in inp.top_logprobs] == [0] + [2] * (len(IDS) - 1)
    assert not ends[0].HasField("input_logprobs") and ends[0].HasField("output_logprobs")
    # of the prompt or of the output only; none at all
    whole = next(stub.Generate(request(False, prompt_logprobs=0, max_tokens=3))).complete
    assert len(whole.input_logprobs.token_ids) == len(IDS) and not whole.HasField("output_logprobs")
    assert not whole.input_logprobs.top_logprobs and len(whole.output_ids) == 3
    whole = next(stub.Generate(request(False, logprobs=0, max_tokens=3))).complete
    assert len(whole.output_logprobs.token_ids) == 3 and not whole.HasField("input_logprobs")
    # everything in one part: the prompt's are not the output's
    tokens, logprobs, inputs, ends = collect(stub.Generate(request(max_tokens=1, **ask)))
    assert len(ends[0].output_logprobs.token_ids) == len(logprobs[0].token_ids) == 1


def stops():
    ids = want()["choices"][0]["token_ids"]
    end = next(stub.Generate(request(False, stop_token_ids=[ids[5]]))).complete
    at = ids.index(ids[5])
    assert (end.finish_reason, end.matched_token_id, list(end.output_ids)) == ("stop", ids[5], ids[:at + 1]), end
    text = want()["choices"][0]["text"]
    end = next(stub.Generate(request(False, stop=[text[8:12]]))).complete
    assert (end.finish_reason, end.matched_stop_str) == ("stop", text[8:12]), end
    end = next(stub.Generate(request(False, max_tokens=4))).complete
    assert end.finish_reason == "length" and not end.WhichOneof("matched_stop"), end
    m = request(False)
    m.text = NIGHT
    assert list(next(stub.Generate(m)).complete.output_ids) == ids


def aborts():
    long = dict(max_tokens=1900, ignore_eos=True, n=2)
    for stream in True, False:
        pace(20)
        call = stub.Generate(request(stream, id="victim", **long))
        other = stub.Generate(request(id="other"))
        if stream:
            next(call)
        else:
            end = time.monotonic() + 60
            while running() < 2 and time.monotonic() < end:
                time.sleep(0.01)
        stub.Abort(pb.AbortRequest(request_ids=["victim", "nobody"]))
        left = list(call)
        pace(0)
        ends = [m.complete for m in left if m.WhichOneof("response") == "complete"]
        assert sorted((e.index, e.finish_reason) for e in ends) == [(0, "abort"), (1, "abort")], ends
        assert collect(other)[3][0].finish_reason == "length"
        is_idle()
    fails(bad, lambda: stub.Abort(pb.AbortRequest(request_ids=["x" * 30] * 1025)), "request_ids")


def errors():
    one = lambda m: stub.Generate(m)
    fails(bad, one(pb.GenerateRequest()), "tokenized")
    fails(bad, one(request(ids=[])), "input_ids")
    fails(bad, one(request(ids=[1 << 20])), "prompt")
    fails(bad, one(request(top_p=2)), "top_p")
    fails(bad, one(request(logprobs=-1)), "logprobs")
    fails(bad, one(request(logprobs=21)), "logprobs")
    fails(bad, one(request(json_schema="{")), "sampling_params.json_schema")
    fails(bad, one(request(regex="a(b")), "sampling_params.regex")
    fails(bad, one(request(structural_tag="x")), "structural_tag")
    fails(bad, one(request(truncate_prompt_tokens=3)), "truncate_prompt_tokens")
    fails(bad, one(request(max_tokens=1 << 20)), "context")
    m = request()
    m.data_parallel_rank = 1
    fails(bad, one(m), "data_parallel_rank")
    m = request()
    m.kv_transfer_params_json = "{}"
    fails(bad, one(m), "kv_transfer_params_json")
    m = request()
    m.mm_inputs.im_token_id = 1
    fails(bad, one(m), "mm_inputs")
    raw = grpc.insecure_channel(address).unary_stream("/vllm.grpc.engine.VllmEngine/Generate")
    fails(bad, raw(request().SerializeToString() + b"\xf8\x07\x01"), "field 127")


def information():
    h = stub.HealthCheck(pb.HealthCheckRequest())
    assert h.healthy, h
    m = stub.GetModelInfo(pb.GetModelInfoRequest())
    info = json.loads(urllib.request.urlopen(http + "/v1/models").read())["data"][0]
    assert m.served_model_name == "demo" and m.is_generation and m.model_path == folder, m
    assert m.max_context_length == m.max_req_input_len == info["max_model_len"] and m.vocab_size, m
    assert json.loads(m.default_sampling_params_json)["top_p"] > 0 and m.eos_token_ids and m.model_type, m
    s = stub.GetServerInfo(pb.GetServerInfoRequest())
    assert s.server_type == "vllm-grpc" and s.data_parallel_size == 1 and not s.is_paused and s.max_num_seqs, s
    assert s.uptime_seconds > 0 and s.active_requests == 0, s
    loads = stub.GetLoads(pb.GetLoadsRequest())
    assert loads.dp_rank_count == len(loads.loads) == 1 and loads.loads[0].num_running_reqs == 0, loads
    assert loads.loads[0].max_running_requests == s.max_num_seqs, loads
    pace(20)
    call = stub.Generate(request(max_tokens=1900, ignore_eos=True))
    next(call)
    busy = stub.GetLoads(pb.GetLoadsRequest()).loads[0]
    assert busy.num_running_reqs == busy.num_total_reqs == 1 and 0 < busy.token_usage <= 1, busy
    call.cancel()
    is_idle()
    pace(0)


def tokenizer():
    chunks = list(stub.GetTokenizer(common.GetTokenizerRequest()))
    data = b"".join(c.data for c in chunks)
    assert [bool(c.sha256) for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    assert max(len(c.data) for c in chunks) <= 64 << 10
    z = zipfile.ZipFile(io.BytesIO(data))
    assert z.testzip() is None and {"config.json", "tokenizer.json"} <= set(z.namelist()), z.namelist()
    for name in z.namelist():
        assert z.read(name) == open(os.path.join(folder, name), "rb").read(), name
    again = b"".join(c.data for c in stub.GetTokenizer(common.GetTokenizerRequest()))
    assert again == data


def events():
    """What is cached, from an empty cache's word on: blocks of a prompt, each behind the one before it."""
    prompt = [(7 * i) % 3000 + 300 for i in range(200)]
    stored, blocks = {}, []

    def follow():
        call = stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(), timeout=60)
        batches, ids = [], []
        for batch in call:
            batches.append(batch.sequence_number)
            for e in batch.events:
                ids.append(e.event_id)
                if len(ids) == 1:
                    assert e.WhichOneof("data") == "cleared", e
                if e.WhichOneof("data") == "removed":
                    [stored.pop(h) for h in e.removed.block_hashes]
                for b in e.stored.blocks:
                    assert len(b.token_ids) == b.block_size > 0 and e.stored.cache_salt == ""
                    parent = e.stored.parent_block_hash if e.stored.HasField("parent_block_hash") else None
                    assert parent is None or parent in stored, e
                    stored[b.block_hash] = stored.get(parent, []) + list(b.token_ids)
            assert batches == list(range(1, len(batches) + 1)) and ids == list(range(1, len(ids) + 1))
            whole = [t for t in stored.values() if len(t) >= 200 - 64 and t == prompt[:len(t)]]
            if whole:
                blocks.append(max(map(len, whole)))
                return call.cancel()
    for _ in range(2):  # from the first change on, and from what is there
        reader = threading.Thread(target=follow)
        reader.start()
        list(stub.Generate(request(ids=prompt, max_tokens=4)))
        reader.join()
        assert len(blocks) and stored, (blocks, len(stored))
        stored.clear()
    assert len(blocks) == 2, blocks
    fails(grpc.StatusCode.OUT_OF_RANGE, stub.SubscribeKvEvents(
        common.SubscribeKvEventsRequest(start_sequence_number=5)), "start_sequence_number")


folder = sys.argv[4]
for f in (same_tokens, log_probabilities, stops, aborts, errors, information, tokenizer, events):
    f()
    print("passed", f.__name__, flush=True)
'''

OURS = r'''
from vllm import common_pb2 as common, vllm_engine_pb2 as pb, vllm_engine_pb2_grpc as rpc
'''
GATEWAYS = r'''
from smg_grpc_proto import vllm_engine_pb2 as pb, vllm_engine_pb2_grpc as rpc
from smg_grpc_proto.generated import common_pb2 as common
'''


def client(stubs, protos):
    for path in DEMO, ATTENTION:
        s, address = start(models={"demo": path})
        run(stubs + CLIENT, f"http://127.0.0.1:{s.port}", address, path, protos=protos)
        s.stop()


def test_our_messages():
    need()
    client(OURS, ["vllm/common.proto", "vllm/vllm_engine.proto"])


def test_the_gateways_messages():
    need()
    if not has("smg_grpc_proto"):
        raise Skip("no smg-grpc-proto")
    client(GATEWAYS, [])


if __name__ == "__main__":
    main(sys.modules[__name__])
