#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients of all services that leave at any moment, by cancelling, by their deadline, by closing their
connection or by an abort, while others stay: who stays gets the answer as alone, and nothing is left
behind. Under sanitizers, too."""
import sys

from grpc_harness import need, run, start
from harness import SLOW, main

CLIENT = r'''
import random
from mixd.v1 import inference_pb2 as pb, inference_pb2_grpc
from kserve import grpc_predict_v2_pb2 as oip, grpc_predict_v2_pb2_grpc
from vllm import common_pb2 as common, vllm_engine_pb2 as engine, vllm_engine_pb2_grpc
seed, seconds, most = int(sys.argv[4]), float(sys.argv[5]), 16
end = time.monotonic() + seconds
print("seed", seed, flush=True)


class Client:
    """One connection with its stubs."""

    def __init__(self):
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.ours = inference_pb2_grpc.InferenceStub(self.channel)
        self.oip = grpc_predict_v2_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.engine = vllm_engine_pb2_grpc.VllmEngineStub(self.channel)

    def call(self, rng, deadline):
        kind, n = rng.randrange(7), rng.choice((1, 1, 2, 5))
        text, tokens = "Call me " + str(rng.randrange(9)), rng.choice((1, 9, 400))
        stopping = pb.Stopping(max_tokens=tokens, ignore_eos=True)
        output = pb.Output(n=n, whole=rng.random() < 0.3)
        if kind < 2:
            return self.ours.Complete(pb.CompleteRequest(model="demo", prompts=[pb.Prompt(text=text)], output=output,
                                                         stopping=stopping), timeout=deadline)
        if kind == 2:
            return self.ours.Chat(pb.ChatRequest(model="demo", messages=[pb.Message(role="user", content=text)],
                                                 output=output, stopping=stopping), timeout=deadline)
        if kind == 3:
            return self.ours.Score.future(pb.ScoreRequest(model="demo", prompt=pb.Prompt(text=text * 30)),
                                          timeout=deadline)
        if kind == 4:
            return self.engine.SubscribeKvEvents(common.SubscribeKvEventsRequest(), timeout=min(deadline or 1, 1))
        if kind == 5:
            self.last = "r%d" % rng.randrange(20)
            return self.engine.Generate(engine.GenerateRequest(
                request_id=self.last, text=text, stream=rng.random() < 0.5,
                sampling_params=engine.SamplingParams(max_tokens=tokens, ignore_eos=True, n=n)), timeout=deadline)
        return self.oip.ModelStreamInfer(iter([self.infer(text, tokens, n) for _ in range(2)]), timeout=deadline)

    @staticmethod
    def infer(text, tokens, n):
        m = oip.ModelInferRequest(model_name="demo")
        for name, kind, data in (("text_input", "BYTES", struct.pack("<I", len(text)) + text.encode()),
                                 ("stream", "BOOL", b"\1")):
            m.inputs.add(name=name, datatype=kind, shape=[1])
            m.raw_input_contents.append(data)
        for name, value in dict(max_tokens=tokens, ignore_eos=1, n=n).items():
            if name == "ignore_eos":
                m.parameters[name].bool_param = True
            else:
                m.parameters[name].int64_param = value
        return m


alone = Client()
ASK = pb.CompleteRequest(model="demo", prompts=[pb.Prompt(text="It was a dark night")],
                         sampling=pb.Sampling(temperature=0), stopping=pb.Stopping(max_tokens=12))
ask = lambda client: "".join(c.text for m in client.ours.Complete(ASK, timeout=300) for c in m.choices)
TEXT = ask(alone)
counts, faults = {}, []
fine = {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OK,
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED}


def leave(client, rng):
    """One call, and one way to leave it."""
    how = rng.choice(("stay", "cancel", "cancel", "deadline", "close", "abort"))
    call = client.call(rng, rng.uniform(0.001, 0.5) if how == "deadline" else 10 if how == "stay" else None)
    if hasattr(call, "__next__"):
        took, most = 0, rng.choice((0, 0, 1, 3, 50))
        while took < most or how in ("stay", "deadline"):
            if next(call, None) is None:
                break
            took += 1
    elif how in ("stay", "deadline"):
        call.result()
    if how == "abort":
        client.engine.Abort(engine.AbortRequest(request_ids=["r%d" % i for i in range(20)]), timeout=60)
    if how == "close":
        client.channel.close()
        client.__init__()
    else:
        call.cancel()
    counts[how] = counts.get(how, 0) + 1


def work(i):
    rng, client = random.Random(seed * 1000 + i), Client()
    while time.monotonic() < end:
        try:
            leave(client, rng)
        except grpc.RpcError as e:
            code = e.code()
            counts[str(code)] = counts.get(str(code), 0) + 1
            if code not in fine:
                faults.append((code, e.details()))
        except ValueError:  # the channel is closed
            pass
    client.channel.close()


def stay(i):
    client = Client()
    while time.monotonic() < end:
        text = ask(client)
        counts["stayed"] = counts.get("stayed", 0) + 1
        if text != TEXT:
            faults.append(text)
    client.channel.close()


threads = [threading.Thread(target=work, args=(i,)) for i in range(most)]
threads += [threading.Thread(target=stay, args=(i,)) for i in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not faults, faults[:5]
assert counts["stayed"] > 1 and sum(counts.values()) > 30, counts
is_idle()
assert ask(alone) == TEXT
print(sum(counts.values()), "calls:", counts)
alone.channel.close()
'''


def test_clients_that_leave():
    need()
    s, address = start()
    run(CLIENT, f"http://127.0.0.1:{s.port}", address, "7", str(6 * min(SLOW, 2)),
        protos=("mixd/v1/inference.proto", "kserve/grpc_predict_v2.proto", "vllm/common.proto",
                "vllm/vllm_engine.proto"))
    # every call ends, with a code: none is lost, none is counted twice
    started = s.metric("grpc_server_started_total")
    s.wait_metric("grpc_server_handled_total", started)
    assert s.metric("grpc_server_started_total") == started > 30
    s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
