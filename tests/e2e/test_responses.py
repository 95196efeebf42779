#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/v1/responses: items and events, against the same request to /v1/chat/completions; the openai
package where MIXD_TEST_PYTHON has it."""
import json
import os
import subprocess
import sys
import tempfile

from agent_harness import ARGUMENTS, CHAT, Caller, agent_model
from agent_harness import events as events_of
from harness import PATIENCE, Frontend, Mixd, Skip, check_error, main, server

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
PATH = "/v1/responses"

def events(s, **fields):
    return events_of(s, PATH, **fields)


def text_of(response):
    return "".join(p["text"] for item in response["output"] if item["type"] == "message"
                   for p in item["content"])


@server()
def test_shape(s):
    body = s.complete(PATH, input="Hi there", max_output_tokens=8, seed=1, metadata={"a": "b"},
                      user="u", store=True, instructions="Be kind", temperature=0.5)
    assert body["object"] == "response" and body["id"].startswith("resp_")
    assert body["status"] == "incomplete" and body["error"] is None
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["metadata"] == {"a": "b"} and body["user"] == "u" and body["store"] is False
    assert body["instructions"] == "Be kind" and body["temperature"] == 0.5
    assert body["tools"] == [] and body["tool_choice"] == "auto" and body["previous_response_id"] is None
    assert body["text"] == {"format": {"type": "text"}} and body["truncation"] == "disabled"
    item, = body["output"]
    assert item["type"] == "message" and item["role"] == "assistant" and item["status"] == "incomplete"
    part, = item["content"]
    assert set(part) == {"type", "text", "annotations", "logprobs"} and part["type"] == "output_text"
    usage = body["usage"]
    assert usage["output_tokens"] == 8 and usage["total_tokens"] == 8 + usage["input_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] == 0
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    # the id is that of the request
    _, headers, body = s.post(PATH, {"input": "Hi", "max_output_tokens": 1})
    assert body["id"] == "resp_" + headers["X-Request-Id"]


@server(eos_one_in=20)
def test_completed(s):
    for seed in range(50):
        body = s.complete(PATH, input="Hi there", seed=seed)
        if body["status"] == "completed":
            break
    assert body["status"] == "completed" and body["incomplete_details"] is None
    assert body["output"][0]["status"] == "completed" and body["completed_at"] >= body["created_at"]
    last = events(s, input="Hi there", seed=seed)[-1]
    assert last[0] == "response.completed" and text_of(last[1]["response"]) == text_of(body)


def test_same_bits_as_chat():
    """Text, log-probabilities and counts are those of the chat that the request means."""
    with tempfile.TemporaryDirectory() as folder:
        s = Frontend(tokenizer=agent_model(folder))
        check_same(s)
        s.stop()


def check_same(s):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    tool = {"name": "f", "description": "does", "parameters": {"type": "object", "properties": {}}}
    user, system = {"role": "user", "content": "Hi"}, {"role": "system", "content": "Be kind"}
    cases = [
        ({"input": "Hi"}, [user]),
        ({"input": [user]}, [user]),
        ({"input": [dict(user, type="message")], "instructions": "Be kind"}, [system, user]),
        ({"input": [{"role": "developer", "content": "Be kind"}, user]}, [system, user]),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]}, [user]),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"},
                                                 {"type": "input_text", "text": "you"}]}]},
         [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}]),
        ({"instructions": "Be kind", "input": [{"role": "developer", "content": "and brief"}, user]},
         [{"role": "system", "content": [{"type": "text", "text": "Be kind"},
                                         {"type": "text", "text": "and brief"}]}, user]),
        ({"input": [user, system]}, [user, system]),
        ({"input": [user, {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                           "content": [{"type": "output_text", "text": "Yes?", "annotations": []}]}, user]},
         [user, {"role": "assistant", "content": "Yes?"}, user]),
        # reasoning, text and calls of one turn are one message
        ({"input": [user, {"type": "reasoning", "id": "rs_1", "summary": [],
                           "content": [{"type": "reasoning_text", "text": "Hm"}]},
                    {"role": "assistant", "content": "Wait"},
                    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
                    {"type": "function_call", "call_id": "c2", "name": "f", "arguments": '{"a": 1}'},
                    {"type": "function_call_output", "call_id": "c1", "output": "one"},
                    {"type": "function_call_output", "call_id": "c2",
                     "output": [{"type": "input_text", "text": "two"}]}],
          "tools": [dict(tool, type="function", strict=True)]},
         [user, {"role": "assistant", "reasoning_content": "Hm", "content": "Wait",
                 "tool_calls": [call, dict(call, id="c2")]},
          {"role": "tool", "tool_call_id": "c1", "content": "one"},
          {"role": "tool", "tool_call_id": "c2", "content": "two"}]),
        ({"input": [user, {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}],
          "tools": [dict(tool, type="function")], "tool_choice": "none"},
         [user, {"role": "assistant", "content": None, "tool_calls": [call]}]),
        ({"input": "Hi", "reasoning": {"effort": "high", "summary": "auto"}}, [user]),
    ]
    for fields, messages in cases:
        chat = {"messages": messages}
        if "tools" in fields and fields.get("tool_choice") != "none":
            chat["tools"] = [{"type": "function", "function":
                              {k: v for k, v in fields["tools"][0].items() if k != "type"}}]
        if "reasoning" in fields:
            chat["reasoning_effort"] = fields["reasoning"]["effort"]
        same = dict(seed=3, temperature=0.9, top_p=0.9)
        want = s.complete(CHAT, max_tokens=9, logprobs=True, top_logprobs=2, **same, **chat)
        ask = dict(fields, max_output_tokens=9, include=["message.output_text.logprobs"], top_logprobs=2,
                   **same)
        got = s.complete(PATH, **ask)
        choice = want["choices"][0]
        assert text_of(got) == choice["message"]["content"], (fields, got, want)
        assert got["output"][0]["content"][0]["logprobs"] == choice["logprobs"]["content"], fields
        assert got["usage"]["input_tokens"] == want["usage"]["prompt_tokens"], fields
        streamed = events(s, **ask)
        final = streamed[-1][1]["response"]
        assert final["output"][0]["content"] == got["output"][0]["content"], fields
        pieces = [e for n, e in streamed if n == "response.output_text.delta"]
        assert "".join(e["delta"] for e in pieces) == choice["message"]["content"]
        assert [t for e in pieces for t in e["logprobs"]] == choice["logprobs"]["content"]
        count = s.complete(PATH + "/input_tokens", **{k: v for k, v in fields.items()})
        assert count == {"object": "response.input_tokens", "input_tokens": want["usage"]["prompt_tokens"]}


@server()
def test_order_of_events(s):
    got = events(s, input="Hi there", max_output_tokens=3, seed=1)
    assert [e["sequence_number"] for _, e in got] == list(range(len(got)))
    assert [n.removeprefix("response.") for n, _ in got] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done", "incomplete"]
    created, done = got[0][1]["response"], got[-1][1]["response"]
    assert created["status"] == "in_progress" and created["output"] == [] and created["usage"] is None
    assert done["id"] == created["id"] and done["created_at"] == created["created_at"]
    item = got[2][1]["item"]
    assert item["content"] == [] and item["status"] == "in_progress"
    assert got[9][1]["item"] == done["output"][0] and got[9][1]["item"]["id"] == item["id"]
    for n, e in got[3:9]:
        assert e["item_id"] == item["id"] and e["output_index"] == e["content_index"] == 0, e
    text = "".join(e["delta"] for n, e in got if n.endswith("delta"))
    assert got[7][1]["text"] == got[8][1]["part"]["text"] == text == text_of(done)


@server()
def test_stops(s):
    whole = text_of(s.complete(PATH, input="Hi there", max_output_tokens=12, seed=1))
    stop = whole[8:11]
    body = s.complete(PATH, input="Hi there", max_output_tokens=12, seed=1, stop=stop)
    assert body["status"] == "completed" and text_of(body) == whole[:whole.index(stop)], body


@server(context=128)
def test_refusals(s):
    post = lambda **f: s.post(PATH, f)
    user = {"role": "user", "content": "Hi"}
    check_error(post(), 400, "missing_required_parameter", "input")
    check_error(post(input=[]), 400, "invalid_value", "input")
    check_error(post(input=3), 400, "invalid_type", "input")
    check_error(post(input="Hi", inputs="Hi"), 400, "unknown_parameter", "inputs", "did you mean 'input'?")
    check_error(post(input="Hi", model="nobody"), 404, "model_not_found", "model")
    check_error(post(input="Hi", previous_response_id="resp_1"), 400, "unsupported_parameter",
                "previous_response_id", "whole conversation")
    check_error(post(input="Hi", background=True), 400, "unsupported_parameter", "background")
    check_error(post(input="Hi", conversation="c"), 400, "unsupported_parameter", "conversation")
    check_error(post(input="Hi", truncation="auto"), 400, "unsupported_parameter", "truncation")
    check_error(post(input="Hi", max_tokens=4), 400, "unsupported_parameter", "max_tokens",
                "use 'max_output_tokens'")
    check_error(post(input="Hi", max_output_tokens=-1), 400, "invalid_value", "max_output_tokens",
                "'max_output_tokens' must be")
    check_error(post(input="Hi", max_output_tokens=1000), 400, "context_length_exceeded",
                contains="'max_output_tokens'")
    check_error(post(input="Hi " * 200), 400, "context_length_exceeded")
    check_error(post(input="Hi", temperature=9), 400, "invalid_value", "temperature")
    check_error(post(input="Hi", top_logprobs=3), 400, "invalid_value", "top_logprobs", "include")
    check_error(post(input="Hi", include=["x"]), 400, "invalid_value", "include", "'x'")
    check_error(post(input="Hi", metadata={"a": 1}), 400, "invalid_type", "metadata")
    check_error(post(input="Hi", text={"format": {"type": "xml"}}), 400, param="text.format")
    check_error(post(input="Hi", text={"verbosity": "low"}), 400, "unsupported_parameter", "text.verbosity")
    check_error(post(input="Hi", text={"fromat": {}}), 400, "unknown_parameter", "text.fromat", "'format'")
    check_error(post(input="Hi", reasoning={"effort": "low"}), 400, "unsupported_parameter",
                "reasoning.effort", "never looks at it")
    check_error(post(input=[user, {"role": "boss", "content": "Hi"}]), 400, "invalid_value", "input[1]")
    check_error(post(input=[user, {"role": "user"}]), 400, "missing_required_parameter", "input[1]")
    check_error(post(input=[user, {"type": "item_reference", "id": "x"}]), 400, "unsupported_parameter",
                "input[1]", "nothing is stored")
    check_error(post(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]), 400,
                "unsupported_parameter", "input[0].content[0]", "text only")
    check_error(post(input=[{"type": "function_call", "name": "f", "arguments": "{}"}]), 400,
                "missing_required_parameter", "input[0]", "call_id")
    check_error(post(input="Hi", tools=[{"type": "web_search"}]), 400, "unsupported_parameter", "tools[0]")
    check_error(post(input="Hi", tools=[{"type": "function"}]), 400, "invalid_type", "tools[0]")
    check_error(post(input="Hi", tools=[{"type": "function", "name": "f", "nmae": 1}]), 400,
                "unknown_parameter", "tools[0].nmae", "'name'")
    # places are those of the client's items: instructions and calls make no items of their own
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    check_error(post(instructions="Be kind", input=[user, user, {"type": "reasoning", "summary": []}, call]), 400,
                "unsupported_parameter", "input", "input[3] has 'tool_calls'")
    check_error(post(input="Hi", tools=[{"type": "function", "name": "f g"}]), 400, "invalid_value",
                "tools[0].name", "'tools[0].name' must be")
    check_error(post(input="Hi", tools=[{"type": "function", "name": "f"}]), 400, "unsupported_parameter",
                "tools", "never looks at it")
    check_error(s.request("POST", PATH, "{", {"Content-Type": "application/json"}), 400, "invalid_json")
    check_error(s.get(PATH), 405, "method_not_allowed")
    # a refusal of a stream has its status
    check_error(post(input="Hi", stream=True, model="nobody"), 404, "model_not_found")


@server()
def test_reasoning_that_no_template_shows_is_dropped(s):
    user = {"role": "user", "content": "Hi"}
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]}
    plain = s.complete(PATH, input=[user, {"role": "assistant", "content": "Yes?"}, user], seed=1,
                       max_output_tokens=4)
    with_it = s.complete(PATH, input=[user, item, {"role": "assistant", "content": "Yes?"}, user], seed=1,
                         max_output_tokens=4)
    assert text_of(plain) == text_of(with_it) and plain["usage"]["input_tokens"] == \
        with_it["usage"]["input_tokens"]


@server(answer_memory=400000, context=16384, step_ns=300000)
def test_memory_of_answers_is_bounded(s):
    """What a stream keeps for its last events is charged: an answer that outgrows the budget fails, and
    all is given back. That of 2000 tokens does, long after the stream has begun."""
    ask = dict(input="Hi", include=["message.output_text.logprobs"], top_logprobs=20)
    got = events(s, **ask)
    assert got[-1][0] == "response.failed", got[-1]
    response = got[-1][1]["response"]
    assert response["status"] == "failed" and "http.answer_memory" in response["error"]["message"]
    assert events(s, input="Hi", max_output_tokens=3)[-1][0] == "response.incomplete"


@server(context=16384)
def test_long_answers(s):
    """Answers of many pieces are the same streamed and whole."""
    ask = dict(input="Hi", max_output_tokens=3000, seed=1, include=["message.output_text.logprobs"],
               top_logprobs=5, instructions="Be kind " * 4000)
    whole = s.complete(PATH, **ask)
    final = events(s, **ask)[-1][1]["response"]
    assert final["output"][0]["content"] == whole["output"][0]["content"]
    assert len(whole["output"][0]["content"][0]["logprobs"]) == 3000
    assert final["instructions"] == ask["instructions"] == whole["instructions"]


@server(Mixd)
def test_structured_text(s):
    """text.format constrains as response_format of a chat does."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
              "additionalProperties": False}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    chat = {"type": "json_schema", "json_schema": {k: v for k, v in form.items() if k != "type"}}
    for seed in range(3):
        body = s.complete(PATH, input="Hi", text={"format": form}, seed=seed)
        assert body["status"] == "completed" and body["text"]["format"] == form, body
        assert json.loads(text_of(body)) in ({"a": "x"}, {"a": "y"}), body
        want = s.complete(CHAT, messages=[{"role": "user", "content": "Hi"}], response_format=chat, seed=seed)
        assert text_of(body) == want["choices"][0]["message"]["content"]
        final = events(s, input="Hi", text={"format": form}, seed=seed)[-1][1]["response"]
        assert text_of(final) == text_of(body)
    wrong = dict(form, schema={"type": "nothing"})
    check_error(s.post(PATH, {"input": "Hi", "text": {"format": wrong}}), 400, param="text.format.schema")


FUNCTIONS = [{"type": "function", "name": n, "parameters": {"type": "object", "properties": {}}} for n in "fg"]


@server(Caller, step_ns=1000000)
def test_calls_and_reasoning(s):
    ask = dict(input="Hi", tools=FUNCTIONS)
    body = s.complete(PATH, **ask)
    assert body["status"] == "completed" and body["tools"] == FUNCTIONS
    reasoning, message, *calls = body["output"]
    assert reasoning["type"] == "reasoning" and reasoning["summary"] == [], reasoning
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm, \u00e9"}], reasoning
    assert message["content"][0]["text"] == "Let me see.", message
    assert [c["type"] for c in calls] == ["function_call"] * 2
    assert [c["name"] for c in calls] == ["f", "g"] and calls[0]["call_id"] != calls[1]["call_id"]
    assert [json.loads(c["arguments"]) for c in calls] == ARGUMENTS, calls
    assert all(i["status"] == "completed" for i in body["output"])
    assert 0 < body["usage"]["output_tokens_details"]["reasoning_tokens"] < body["usage"]["output_tokens"]

    got = events(s, **ask)
    assert [e["sequence_number"] for _, e in got] == list(range(len(got)))
    names = [n.removeprefix("response.") for n, _ in got]
    joined = [n for i, n in enumerate(names) if not (n.endswith(".delta") and names[i - 1] == n)]
    part, text = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
            "output_item.done"]
    assert joined == ["created", "in_progress", *part, "reasoning_text.delta", "reasoning_text.done", *text,
                      *part, "output_text.delta", "output_text.done", *text, *call, *call, "completed"], joined
    final = got[-1][1]["response"]["output"]
    added = [e["item"] for n, e in got if n.endswith("item.added")]
    done = [e["item"] for n, e in got if n.endswith("item.done")]
    assert done == final and [i["id"] for i in added] == [i["id"] for i in final]
    assert added[2]["name"] == "f" and added[2]["arguments"] == "" and added[2]["call_id"]
    joined = s.metric("joined_total") > 0  # this client lagged
    for i, item in enumerate(final):
        whole = item["arguments"] if i > 1 else item["content"][0]["text"]
        pieces = [e["delta"] for n, e in got if n.endswith(".delta") and e["output_index"] == i]
        assert "".join(pieces) == whole and len(pieces) > (i != 3 and not joined), (i, pieces)
        same = body["output"][i]
        assert whole == (same["arguments"] if i > 1 else same["content"][0]["text"])

    # the next turn
    results = [{"type": "function_call_output", "call_id": c["call_id"], "output": "ok"} for c in calls]
    again = s.complete(PATH, **dict(ask, input=[{"role": "user", "content": "Hi"}, *final[:2], *calls, *results]))
    shown = s.complete(CHAT, tools=[{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}}
                                    for t in FUNCTIONS], messages=[
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm, \u00e9", "tool_calls": [
            {"id": c["call_id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls]},
        *[{"role": "tool", "tool_call_id": c["call_id"], "content": "ok"} for c in calls]])
    assert again["usage"]["input_tokens"] == shown["usage"]["prompt_tokens"]

    # one call, none, and a limit within the reasoning
    one = s.complete(PATH, parallel_tool_calls=False, **ask)["output"]
    assert [i["type"] for i in one] == ["reasoning", "message", "function_call"], one
    none = s.complete(PATH, input="Hi")["output"]
    assert [i["type"] for i in none] == ["reasoning", "message"] and "<tool_call>" in text_of({"output": none})
    cut = s.complete(PATH, max_output_tokens=4, **ask)
    assert cut["status"] == "incomplete" and cut["output"][-1]["status"] == "incomplete", cut
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    fewer = s.complete(PATH, tool_choice=allowed, **ask)
    assert fewer["usage"]["input_tokens"] < body["usage"]["input_tokens"] and fewer["tool_choice"] == allowed


OPENAI = r'''
import asyncio, sys
import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
more = {"extra_body": {"seed": 1}}
ask = dict(model="demo", input="Hi there", max_output_tokens=12, instructions="Be kind", **more)
r = client.responses.create(**ask)
assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.output_text
assert r.usage.output_tokens == 12 and r.instructions == "Be kind"
chat = client.chat.completions.create(model="demo", max_tokens=12, seed=1, messages=[
    {"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi there"}])
assert chat.choices[0].message.content == r.output_text

text = ""
for e in client.responses.create(stream=True, **ask):
    if e.type == "response.output_text.delta":
        text += e.delta
assert e.type == "response.incomplete" and text == r.output_text == e.response.output_text

kinds = []
with client.responses.stream(**ask) as stream:
    for e in stream:
        kinds.append(e.type)
        if e.type == "response.output_text.done":
            assert e.text == text
assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                     "response.content_part.added"], kinds

# a second turn with what the first one gave
again = client.responses.create(model="demo", max_output_tokens=4, input=[
    {"role": "user", "content": "Hi there"}, *r.output, {"role": "user", "content": "And?"}], **more)
assert again.output_text
again = client.responses.create(model="demo", max_output_tokens=4, input=[
    {"role": "user", "content": "Hi there"}, *[o.model_dump() for o in r.output],
    {"role": "user", "content": "And?"}], **more)
assert again.output_text

# what frameworks send as defaults
usual = client.responses.create(tools=[], tool_choice="auto", parallel_tool_calls=True, store=False,
    metadata={"a": "b"}, user="u", truncation="disabled", service_tier="auto", text={"format": {"type": "text"}},
    include=["reasoning.encrypted_content"], prompt_cache_key="k",
    safety_identifier="s", top_logprobs=0, background=False, previous_response_id=None, **ask)
assert usual.output_text == r.output_text

for bad, kind, code in ((dict(model="nobody"), openai.NotFoundError, "model_not_found"),
                        (dict(max_output_tokens=100000), openai.BadRequestError, "context_length_exceeded"),
                        (dict(previous_response_id="x"), openai.BadRequestError, "unsupported_parameter")):
    for stream in (False, True):
        try:
            client.responses.create(stream=stream, **dict(ask, **bad))
            raise SystemExit("accepted: %r" % bad)
        except kind as e:
            assert e.code == code, e

counted = client.responses.input_tokens.count(model="demo", input="Hi there", instructions="Be kind")
assert counted.input_tokens == r.usage.input_tokens

async def many():
    c = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    async def one(i):
        return (await c.responses.create(**dict(ask, extra_body={"seed": i}))).output_text
    return await asyncio.gather(*[one(i % 4) for i in range(16)])

texts = asyncio.run(many())
assert texts == texts[:4] * 4 and texts[1] == r.output_text, texts
'''


@server(Mixd)
def test_openai_package(s):
    if subprocess.run([PYTHON, "-c", "import openai"], capture_output=True).returncode:
        raise Skip(f"{PYTHON} has no openai package")
    r = subprocess.run([PYTHON, "-c", OPENAI, f"http://{s.host}:{s.port}/v1"], capture_output=True, text=True,
                       timeout=2 * PATIENCE)
    assert r.returncode == 0, r.stdout + r.stderr


main(sys.modules[__name__])
