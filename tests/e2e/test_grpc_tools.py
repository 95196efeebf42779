#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tool calls and reasoning by gRPC's Chat: the calls, the choice of tools, the reasoning and the form
behind it are those that REST gives for the same request."""
import sys
import tempfile

from grpc_harness import need, run, start
from harness import main
from test_tools import add_think_tokens, model_with_marks

CLIENT = r'''
from mixd.v1 import inference_pb2 as pb, inference_pb2_grpc

stub = inference_pb2_grpc.InferenceStub(grpc.insecure_channel(address))
LOOK = json.dumps({"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                                    "days": {"type": "integer", "minimum": 0, "maximum": 99}},
                   "required": ["city", "days"], "additionalProperties": False})
FORM = json.dumps({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}},
                   "required": ["a"], "additionalProperties": False})
HI = "What is the weather?"


def grpc_tools():
    return [pb.Tool(name="look", description="Looks.", parameters=LOOK), pb.Tool(name="clock")]


def rest_tools():
    return [{"type": "function", "function": {"name": "look", "description": "Looks.",
                                              "parameters": json.loads(LOOK)}},
            {"type": "function", "function": {"name": "clock"}}]


def chat(seed, whole=False, **fields):
    """Text, reasoning, [(name, arguments)], why it ended and usage."""
    text, reasoning, calls, finish, usage = "", "", [], 0, None
    for m in stub.Chat(pb.ChatRequest(model="demo", messages=[pb.Message(role="user", content=HI)],
                                      sampling=pb.Sampling(temperature=1, seed=seed, **BIAS),
                                      stopping=pb.Stopping(max_tokens=200), output=pb.Output(whole=whole),
                                      **fields)):
        for c in m.choices:  # a part of a call has the id and the name once, at its beginning
            text += c.text
            reasoning += c.reasoning
            finish = c.finish_reason or finish
            for part in c.tool_calls:
                if part.index == len(calls):
                    assert part.id and part.name, part
                    calls.append([part.id, part.name, "", False])
                call = calls[part.index]
                assert not call[3], "more of a call that was complete"
                call[2] += part.arguments
                call[3] = part.complete
        usage = m.usage if m.HasField("usage") else usage
    assert len({c[0] for c in calls}) == len(calls)
    return text, reasoning, [(c[1], c[2]) for c in calls], finish, usage


def same(seed, fields, grpc_fields):
    """Asks both, and checks that they say the same; returns REST's choice."""
    body = rest("/v1/chat/completions", messages=[{"role": "user", "content": HI}], temperature=1, seed=seed,
                max_tokens=200, **REST_BIAS, **fields)
    want = body["choices"][0]
    message = want["message"]
    for whole in (False, True):
        text, reasoning, calls, finish, usage = chat(seed, whole, **grpc_fields)
        assert text == (message["content"] or ""), (text, want)
        assert reasoning == (message.get("reasoning_content") or ""), (reasoning, want)
        assert calls == [(c["function"]["name"], c["function"]["arguments"])
                         for c in message.get("tool_calls", [])], (calls, want)
        assert finish == {"stop": 1, "length": 2, "tool_calls": 3}[want["finish_reason"]], (finish, want)
        told = body["usage"].get("completion_tokens_details") or {}
        assert usage.reasoning_tokens == told.get("reasoning_tokens", 0), (usage, body)
    return want


def calls():
    ended = 0
    for grpc_choice, choice in (("required", "required"), ("auto", "auto"), ("", "auto"), ("none", "none"),
                                ("look", {"type": "function", "function": {"name": "look"}}),
                                ("clock", {"type": "function", "function": {"name": "clock"}})):
        for one in (True, False) if grpc_choice in ("required", "look") else (True,):
            want = same(1, dict(tools=rest_tools(), tool_choice=choice, parallel_tool_calls=not one),
                        dict(tools=grpc_tools(), tool_choice=grpc_choice, one_tool_call=one))
            got = want["message"].get("tool_calls", [])
            ended += want["finish_reason"] == "tool_calls"
            assert not got or grpc_choice not in ("none", "auto", ""), want
            assert all(c["function"]["name"] == grpc_choice for c in got) or grpc_choice == "required", want
    assert ended >= 2, ended
    bad = grpc.StatusCode.INVALID_ARGUMENT
    ask = lambda **f: stub.Chat(pb.ChatRequest(model="demo", messages=[pb.Message(role="user", content=HI)], **f))
    fails(bad, ask(tools=grpc_tools(), tool_choice="nobody"), "tool_choice")


def reasoning():
    ended = reasoned = 0
    for seed in range(4):
        same(seed, {}, {})
        want = same(seed, {"response_format": {"type": "json_schema", "json_schema": {
            "name": "f", "schema": json.loads(FORM)}}}, {"constraint": pb.Constraint(json_schema=FORM)})
        reasoned += bool(want["message"].get("reasoning_content"))
        if want["finish_reason"] == "stop":
            ended += 1
            assert set(json.loads(want["message"]["content"])) == {"a"}, want
    assert ended and reasoned, (ended, reasoned)


what, bias = sys.argv[4:6]
bias = json.loads(bias)
BIAS = {"logit_bias": {int(k): v for k, v in bias.items()}} if bias else {}
REST_BIAS = {"logit_bias": bias} if bias else {}
{"calls": calls, "reasoning": reasoning}[what]()
'''


def ask(folder, what, bias="{}"):
    s, address = start(models={"demo": folder})
    run(CLIENT, f"http://127.0.0.1:{s.port}", address, what, bias, protos=("mixd/v1/inference.proto",))
    s.stop()


def test_calls():
    need()
    with tempfile.TemporaryDirectory() as folder:
        ask(model_with_marks(folder, "<tool_call>"), "calls")


def test_reasoning():
    need()
    with tempfile.TemporaryDirectory() as folder:
        _, over = add_think_tokens(model_with_marks(folder, "</think>", end="<think>\n"))
        ask(folder, "reasoning", '{"%d": 10}' % over)


if __name__ == "__main__":
    main(sys.modules[__name__])
