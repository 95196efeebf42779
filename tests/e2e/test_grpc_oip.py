#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over gRPC, by its messages and, where it is installed, by Triton's own
client (tritonclient): texts as by REST, streams, errors that name the tensor."""
import sys

from grpc_harness import has, need, run, start
from harness import Skip, main

CLIENT = r'''
from kserve import grpc_predict_v2_pb2 as pb, grpc_predict_v2_pb2_grpc
stub = grpc_predict_v2_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(address))
bad = grpc.StatusCode.INVALID_ARGUMENT
NIGHT = "It was a dark and stormy night"
GREEDY = '{"temperature": 0, "max_tokens": 24}'


def texts(*values):
    return b"".join(struct.pack("<I", len(v)) + v for v in (x.encode() for x in values))


def unpack(raw):
    out = []
    while raw:
        n, = struct.unpack_from("<I", raw)
        out.append(raw[4:4 + n].decode())
        raw = raw[4 + n:]
    return out


def request(raw=True, sampling=GREEDY, model="demo", **tensors):
    """Inputs are texts, booleans and numbers, or (datatype, shape, bytes)."""
    m = pb.ModelInferRequest(model_name=model, id="r-1")
    tensors.setdefault("text_input", NIGHT)
    if sampling:
        tensors["sampling_parameters"] = sampling
    for name, value in tensors.items():
        t = m.inputs.add(name=name, shape=[1])
        if isinstance(value, tuple):
            t.datatype, shape, data = value
            del t.shape[:]
            t.shape.extend(shape)
            m.raw_input_contents.append(data)
        elif isinstance(value, bool):
            t.datatype = "BOOL"
            m.raw_input_contents.append(bytes([value])) if raw else t.contents.bool_contents.append(value)
        elif isinstance(value, int):
            t.datatype = "INT32"
            m.raw_input_contents.append(struct.pack("<i", value)) if raw else t.contents.int_contents.append(value)
        elif isinstance(value, float):
            t.datatype = "FP32"
            m.raw_input_contents.append(struct.pack("<f", value)) if raw else t.contents.fp32_contents.append(value)
        else:
            t.datatype = "BYTES"
            m.raw_input_contents.append(texts(value)) if raw else t.contents.bytes_contents.append(value.encode())
    return m


def answer(m):
    outputs = [o.name for o in m.outputs]
    assert len(m.raw_output_contents) == len(outputs), m
    for o, raw in zip(m.outputs, m.raw_output_contents):
        assert o.datatype == "BYTES" and list(o.shape) == [len(unpack(raw))], o
    return dict(zip(outputs, map(unpack, m.raw_output_contents)))


def want(prompt=NIGHT, **fields):
    fields = dict(dict(temperature=0, max_tokens=24), **fields)
    return [c["text"] for c in rest("/v1/completions", prompt=prompt, **fields)["choices"]]


def server_and_models():
    assert stub.ServerLive(pb.ServerLiveRequest()).live and stub.ServerReady(pb.ServerReadyRequest()).ready
    assert stub.ModelReady(pb.ModelReadyRequest(name="gpt-demo")).ready
    fails(grpc.StatusCode.NOT_FOUND, lambda: stub.ModelReady(pb.ModelReadyRequest(name="nope")), "nope")
    fails(grpc.StatusCode.NOT_FOUND, lambda: stub.ModelReady(pb.ModelReadyRequest(name="demo", version="2")))
    assert stub.ServerMetadata(pb.ServerMetadataRequest()).name == "mixd"
    m = stub.ModelMetadata(pb.ModelMetadataRequest(name="demo"))
    assert m.name == "demo" and list(m.versions) == ["1"]
    assert (m.inputs[0].name, m.inputs[0].datatype) == ("text_input", "BYTES")
    assert [o.name for o in m.outputs] == ["text_output", "finish_reason"]


def infer():
    text = want()[0]
    for raw in True, False:
        m = stub.ModelInfer(request(raw, exclude_input_in_output=True))
        assert answer(m) == {"text_output": [text]}, (m, text)
        assert (m.model_name, m.id) == ("demo", "r-1") and not m.parameters
        # fields as tensors of their own
        m = stub.ModelInfer(request(raw, sampling=None, temperature=0.0, max_tokens=24, return_finish_reason=True,
                                    exclude_input_in_output=True))
        assert answer(m) == {"text_output": [text], "finish_reason": ["length"]}, m
    # as Triton's backend for vLLM: the prompt stands in front, and numbers may be texts
    m = stub.ModelInfer(request(sampling='{"temperature": "0", "max_tokens": "24"}'))
    assert answer(m)["text_output"] == [NIGHT + text], m
    # several prompts and choices; parameters of the request
    m = request(sampling=None, exclude_input_in_output=True,
                text_input=("BYTES", [2, 1], texts(NIGHT, "Call me")))
    m.parameters["temperature"].int64_param = 1
    m.parameters["seed"].uint64_param = 7
    m.parameters["n"].int64_param = 2
    m.parameters["max_tokens"].int64_param = 9
    m.outputs.add(name="text_output")
    got = answer(stub.ModelInfer(m))["text_output"]
    assert got == want([NIGHT, "Call me"], temperature=1, seed=7, n=2, max_tokens=9), got
    words = ("BYTES", [1, 2], texts(text[5:8], "zzz"))
    m = stub.ModelInfer(request(stop_words=words, exclude_input_in_output=True))
    assert answer(m)["text_output"] == want(stop=[text[5:8], "zzz"]), m


def stream():
    def one(*requests):
        return list(stub.ModelStreamInfer(iter(requests)))
    pace(20)
    got = one(request(stream=True, return_finish_reason=True))
    pace(0)
    parts = [answer(m.infer_response) for m in got]
    final = [m.infer_response.parameters["triton_final_response"].bool_param for m in got]
    assert "".join(p["text_output"][0] for p in parts) == want()[0], parts
    assert final == [False] * (len(got) - 1) + [True] and len(got) > 1, final
    assert parts[-1]["finish_reason"] == ["length"] and parts[0]["finish_reason"] == [""]
    # one stream, several requests: an error is a message, what follows is served
    got = one(request(), request(temperature=("FP16", [1], b"00")), request(stream=True, n=3, seed=5,
              sampling='{"max_tokens": 7, "temperature": 1}'), request(exclude_input_in_output=True))
    assert answer(got[0].infer_response)["text_output"] == [NIGHT + want()[0]], got[0]
    assert "temperature" in got[1].error_message and not got[1].HasField("infer_response"), got[1]
    three = [""] * 3
    for m in got[2:-1]:
        three = [a + b for a, b in zip(three, answer(m.infer_response)["text_output"])]
    assert three == want(n=3, seed=5, max_tokens=7, temperature=1), three
    assert answer(got[-1].infer_response)["text_output"] == want(), got[-1]
    assert got[-1].infer_response.parameters["triton_final_response"].bool_param


def errors():
    infer = lambda m: (lambda: stub.ModelInfer(m))
    fails(grpc.StatusCode.NOT_FOUND, infer(request(model="nope")), "nope")
    fails(bad, infer(request(stream=True)), "stream", "ModelStreamInfer")
    fails(bad, infer(request(text_input=3)), "text_input", "BYTES")
    fails(bad, infer(request(image=("UINT8", [2, 2049], b"0" * 4098))), "'image'", "shape")
    fails(bad, infer(request(image=("FP16", [1], b"00"))), "'image'", "text only")
    fails(bad, infer(request(image=3)), "image")
    fails(bad, infer(request(max_tokens=("INT32", [2], b"\0\0\0\0"))), "max_tokens")
    fails(bad, infer(request(text_input=("BYTES", [1], b"\5\0\0\0no"))), "text_input")
    fails(bad, infer(request(text_input=("BYTES", [1], b"\2\0\0\0\xff\xfe"))), "text_input", "UTF-8")
    fails(bad, infer(request(text_input=("BYTES", [1], texts("two", "texts")))), "text_input")
    fails(bad, infer(request(text_input=("BYTES", [], b""))), "text_input")
    fails(bad, infer(request(top_p=("FP32", [1], struct.pack("<f", float("nan"))))), "top_p", "finite")
    fails(bad, infer(request(sampling='{"top_p": 2}')), "top_p")
    fails(bad, infer(request(sampling='{"prompt": "no"}')), "prompt")
    fails(bad, infer(request(sampling='{"temperature": 1}', temperature=1.0)), "temperature", "twice")
    fails(bad, infer(request(sampling='[1]')), "sampling_parameters")
    fails(bad, infer(request(logprobs=1)), "logprobs")
    fails(bad, infer(pb.ModelInferRequest(model_name="demo")), "text_input")
    m = request()
    m.raw_input_contents.append(b"")
    fails(bad, infer(m), "raw_input_contents")
    m = request()
    m.outputs.add(name="logits")
    fails(bad, infer(m), "outputs")
    # contents and raw contents do not mix
    m = request(raw=False)
    m.raw_input_contents.append(texts(NIGHT))
    fails(bad, infer(m), "raw_input_contents")


def leaves():
    """A client that leaves its stream, and one whose whole answer is still computed."""
    pace(50)
    long = request(stream=True, sampling='{"max_tokens": 1900, "ignore_eos": true, "n": 4}')
    call = stub.ModelStreamInfer(iter([long]))
    next(call)
    call.cancel()
    is_idle()
    whole = request(sampling='{"max_tokens": 1900, "ignore_eos": true, "n": 4}')
    fails(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: stub.ModelInfer(whole, timeout=0.3))
    is_idle()


for f in (server_and_models, infer, stream, errors, leaves):
    f()
    print("passed", f.__name__, flush=True)
'''

TRITON = r'''
import queue
import numpy
from tritonclient import grpc as triton
client = triton.InferenceServerClient(address)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("demo")
assert client.get_server_metadata().name == "mixd"
NIGHT = "It was a dark and stormy night"
want = rest("/v1/completions", prompt=NIGHT, temperature=0, max_tokens=24)["choices"][0]["text"]


def inputs(**values):
    out = []
    for name, value in values.items():
        a = numpy.array([value], bool if isinstance(value, bool) else object)
        t = triton.InferInput(name, [1], "BOOL" if isinstance(value, bool) else "BYTES")
        t.set_data_from_numpy(a)
        out.append(t)
    return out


params = '{"temperature": "0", "max_tokens": "24"}'
ask = dict(text_input=NIGHT.encode(), sampling_parameters=params.encode())
r = client.infer("demo", inputs(**ask, exclude_input_in_output=True), request_id="7",
                 outputs=[triton.InferRequestedOutput("text_output")])
assert r.as_numpy("text_output")[0].decode() == want and r.get_response().id == "7", r.get_response()
got = queue.Queue()
client.start_stream(lambda result, error: got.put((result, error)))
for i in range(2):
    client.async_stream_infer("demo", inputs(**ask, stream=True), request_id=str(i),
                              enable_empty_final_response=True)
for i in range(2):
    text = ""
    while True:
        result, error = got.get(timeout=60)
        assert error is None, error
        m = result.get_response()
        assert m.id == str(i), m
        text += result.as_numpy("text_output")[0].decode()
        if m.parameters["triton_final_response"].bool_param:
            break
    assert text == want, text
client.async_stream_infer("demo", inputs(text_input=b"A", nothing=b"B"))
result, error = got.get(timeout=60)
assert "nothing" in error.message(), error
client.stop_stream()
try:
    client.infer("nope", inputs(**ask))
    raise AssertionError("no error")
except triton.InferenceServerException as e:
    assert e.status() == "StatusCode.NOT_FOUND", e
print("passed Triton's client")
'''


def client(code):
    need()
    s, address = start()
    run(code, f"http://127.0.0.1:{s.port}", address, protos=["kserve/grpc_predict_v2.proto"])
    s.stop()


def test_messages():
    client(CLIENT)


def test_tritons_client():
    if not has("tritonclient.grpc"):
        raise Skip("no tritonclient")
    client(TRITON)


if __name__ == "__main__":
    main(sys.modules[__name__])
