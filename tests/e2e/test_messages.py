#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Anthropic's /v1/messages: blocks, events and errors, against the same request to
/v1/chat/completions; the anthropic package where MIXD_TEST_PYTHON has it."""
import json
import os
import subprocess
import sys
import tempfile

from agent_harness import ARGUMENTS, CHAT, Caller, agent_model, events
from harness import PATIENCE, Frontend, Mixd, Skip, main, server

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
USER = {"role": "user", "content": "Hi there"}


def check_error(answer, status, kind, contains=""):
    """An error of Anthropic's shape."""
    got, headers, body = answer
    assert got == status, (got, body)
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error", body
    assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind, body
    assert contains in body["error"]["message"], body
    assert body["request_id"] == headers["request-id"] == headers["X-Request-Id"]
    if status >= 529:
        assert int(headers["Retry-After"]) >= 1, dict(headers)


def text_of(message):
    return "".join(b["text"] for b in message["content"] if b["type"] == "text")


@server()
def test_shape(s):
    status, headers, body = s.post(PATH, {"messages": [USER], "max_tokens": 8, "seed": 1,
                                          "metadata": {"user_id": "u"}})
    assert status == 200 and headers["request-id"] == headers["X-Request-Id"]
    assert body["id"] == "msg_" + headers["request-id"] and body["type"] == "message"
    assert body["role"] == "assistant" and body["model"] == "fake"
    block, = body["content"]
    assert set(block) == {"type", "text"} and block["type"] == "text"
    assert body["stop_reason"] == "max_tokens" and body["stop_sequence"] is None
    assert body["usage"] == {"input_tokens": 6, "cache_creation_input_tokens": 0,
                             "cache_read_input_tokens": 0, "output_tokens": 8}, body
    assert s.complete(COUNT, messages=[USER]) == {"input_tokens": 6}


@server(eos_one_in=20)
def test_stop_reasons(s):
    for seed in range(50):
        body = s.complete(PATH, messages=[USER], max_tokens=500, seed=seed)
        if body["stop_reason"] == "end_turn":
            break
    assert body["stop_reason"] == "end_turn" and body["stop_sequence"] is None
    whole = text_of(body)
    stop = whole[8:11]
    body = s.complete(PATH, messages=[USER], max_tokens=500, seed=seed, stop_sequences=["~~~~", stop])
    assert body["stop_reason"] == "stop_sequence" and body["stop_sequence"] == stop, body
    assert text_of(body) == whole[:whole.index(stop)]
    last = events(s, PATH, messages=[USER], max_tokens=500, seed=seed, stop_sequences=[stop])[-2][1]
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}


@server(context=64)
def test_max_tokens_is_a_bound(s):
    """Clients send it without knowing the context: what fits is generated."""
    body = s.complete(PATH, messages=[USER], max_tokens=32000)
    assert body["stop_reason"] == "model_context_window_exceeded"
    assert body["usage"]["input_tokens"] + body["usage"]["output_tokens"] == 64
    check_error(s.post(PATH, {"messages": [dict(USER, content="Hi " * 200)], "max_tokens": 3}), 400,
                "invalid_request_error", "this model's context is 64 tokens")


@server()
def test_cached_tokens(s):
    ask = dict(messages=[dict(USER, content="Hi there " * 100)], max_tokens=2)
    first, second = s.complete(PATH, **ask)["usage"], s.complete(PATH, **ask)["usage"]
    assert first["cache_read_input_tokens"] == 0 and second["cache_read_input_tokens"] > 0
    assert second["cache_read_input_tokens"] + second["input_tokens"] == first["input_tokens"]


@server()
def test_order_of_events(s):
    ask = dict(messages=[USER], max_tokens=3, seed=1)
    whole = s.complete(PATH, **ask)
    got = events(s, PATH, **ask)
    assert [n for n, _ in got] == ["message_start", "content_block_start", "content_block_delta",
                                   "content_block_delta", "content_block_delta", "content_block_stop",
                                   "message_delta", "message_stop"], got
    start = got[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["role"] == "assistant"
    assert start["usage"]["input_tokens"] == 6 and start["usage"]["output_tokens"] == 0
    assert got[1][1] == {"type": "content_block_start", "index": 0,
                         "content_block": {"type": "text", "text": ""}}
    assert all(e["delta"]["type"] == "text_delta" and e["index"] == 0 for n, e in got[2:5])
    assert "".join(e["delta"]["text"] for n, e in got[2:5]) == text_of(whole)
    assert got[6][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert got[6][1]["usage"]["output_tokens"] == 3


@server(step_ns=50000000, keep_alive=0.2, sequences=4, step_tokens=16)
def test_pings(s):
    c = s.connect()
    c.request("POST", PATH, json.dumps({"messages": [dict(USER, content="Hi " * 500)], "max_tokens": 1,
                                        "stream": True}), {"Content-Type": "application/json"})
    text = c.getresponse().read().decode()
    assert 'event: ping\ndata: {"type":"ping"}\n\n' in text and ": keep-alive" not in text, text
    assert text.index("message_start") < text.index("ping")


def test_same_bits_as_chat():
    """Text and counts are those of the chat that the request means."""
    with tempfile.TemporaryDirectory() as folder:
        s = Frontend(tokenizer=agent_model(folder))
        check_same(s)
        s.stop()


def check_same(s):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"name": "f", "description": "does", "input_schema": schema, "cache_control": {"type": "ephemeral"}}
    chat_tool = {"type": "function", "function": {"name": "f", "description": "does", "parameters": schema}}
    text = lambda t: {"type": "text", "text": t}
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    system = {"role": "system", "content": "Be kind"}
    cases = [
        ({"messages": [USER]}, [USER]),
        ({"messages": [{"role": "user", "content": [text("Hi there")]}]}, [USER]),
        ({"messages": [{"role": "user", "content": [text("Hi"), text("you")]}]},
         [{"role": "user", "content": [text("Hi"), text("you")]}]),
        ({"system": "Be kind", "messages": [USER]}, [system, USER]),
        ({"system": [dict(text("Be kind"), cache_control={"type": "ephemeral"})], "messages": [USER]},
         [system, USER]),
        ({"system": [text("Be kind"), text("and brief")], "messages": [USER]},
         [{"role": "system", "content": [text("Be kind"), text("and brief")]}, USER]),
        ({"messages": [USER, {"role": "assistant", "content": "Yes?"}, USER]},
         [USER, {"role": "assistant", "content": "Yes?"}, USER]),
        ({"messages": [USER, {"role": "system", "content": "Be kind"}]}, [USER, system]),
        # a turn with tools: results are messages of their own, in their order
        ({"tools": [tool], "messages": [
            USER, {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "x"}, text("Wait"),
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [text("two")], "is_error": False},
                text("Go on")]}]},
         [USER, {"role": "assistant", "content": "Wait", "reasoning_content": "Hm",
                 "tool_calls": [call, dict(call, id="t2")]},
          {"role": "tool", "tool_call_id": "t1", "content": "one"},
          {"role": "tool", "tool_call_id": "t2", "content": "two"}, {"role": "user", "content": "Go on"}]),
        ({"tools": [tool], "tool_choice": {"type": "none"}, "messages": [
            USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f",
                                                     "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]}]},
         [USER, {"role": "assistant", "content": None, "tool_calls": [call]},
          {"role": "tool", "tool_call_id": "t1", "content": ""}]),
        ({"messages": [USER], "output_config": {"effort": "high"}}, [USER]),
        ({"messages": [USER], "thinking": {"type": "adaptive"}}, [USER]),
    ]
    for fields, messages in cases:
        chat = {"messages": messages}
        if "tools" in fields and "tool_choice" not in fields:
            chat["tools"] = [chat_tool]
        if "output_config" in fields:
            chat["reasoning_effort"] = "high"
        if "thinking" in fields:
            chat["chat_template_kwargs"] = {"enable_thinking": True}
        ask = dict(seed=3, max_tokens=9, temperature=0.9, top_p=0.9, top_k=50)
        want = s.complete(CHAT, **ask, **chat)
        got = s.complete(PATH, **ask, **fields)
        wanted = want["choices"][0]["message"]["content"]
        assert text_of(got) == wanted, (fields, got, want)
        assert got["usage"]["input_tokens"] + got["usage"]["cache_read_input_tokens"] == \
            want["usage"]["prompt_tokens"], fields
        streamed = [e["delta"]["text"] for n, e in events(s, PATH, **ask, **fields)
                    if n == "content_block_delta"]
        assert "".join(streamed) == wanted, fields
        assert s.complete(COUNT, **fields)["input_tokens"] == want["usage"]["prompt_tokens"], fields


@server()
def test_refusals(s):
    bad = "invalid_request_error"
    post = lambda path=PATH, **f: s.post(path, dict({"messages": [USER], "max_tokens": 4}, **f))
    check_error(s.post(PATH, {"messages": [USER]}), 400, bad, "'max_tokens' is required")
    check_error(s.post(PATH, {"max_tokens": 4}), 400, bad, "'messages' is required")
    check_error(post(messages=[]), 400, bad, "'messages' is empty")
    check_error(post(model="nobody"), 404, "not_found_error", "nobody")
    check_error(post(max_tokns=4), 400, bad, "unknown field 'max_tokns'; did you mean 'max_tokens'?")
    check_error(post(stop=["x"]), 400, bad, "use 'stop_sequences'")
    check_error(post(stop_sequences=3), 400, bad, "'stop_sequences' must be")
    check_error(post(temperature=1.5), 400, bad, "'temperature' must be between 0 and 1, but it is 1.5")
    check_error(post(temperature=-1), 400, bad, "'temperature' must be")
    enabled = lambda **budget: post(thinking=dict(budget, type="enabled"), max_tokens=2000)
    check_error(enabled(), 400, bad, "'thinking.budget_tokens' is required")
    check_error(enabled(budget_tokens="9"), 400, bad, "'thinking.budget_tokens' must be an integer")
    check_error(enabled(budget_tokens=1023), 400, bad, "must be greater than or equal to 1024, but it is 1023")
    check_error(enabled(budget_tokens=2000), 400, bad, "'max_tokens' must be greater than 'thinking.budget_tokens'")
    assert post(thinking={"type": "disabled", "budget_tokens": 5})[0] == 200
    check_error(post(max_tokens=-1), 400, bad, "'max_tokens' must be")
    check_error(post(messages=[{"role": "boss", "content": "Hi"}]), 400, bad, "'messages[0].role'")
    check_error(post(messages=[{"role": "user"}]), 400, bad, "'messages[0]' has no 'content'")
    check_error(post(messages=[{"role": "user", "content": []}]), 400, bad, "'messages[0].content' is empty")
    check_error(post(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}]), 400, bad,
                "'messages[0].content[0]' has the type 'image', which is not supported: this server takes")
    check_error(post(messages=[{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}]}]), 400, bad,
        "'messages[0].content[0].content[0]' has the type 'image'")
    check_error(post(messages=[{"role": "user", "content": [{"type": "text", "txt": "Hi"}]}]), 400, bad,
                "unknown field 'messages[0].content[0].txt'; did you mean 'text'?")
    check_error(post(messages=[USER, {"role": "assistant", "content": "Once"}]), 400, bad, "begins an answer anew")
    check_error(post(tools=[{"type": "web_search_20250305", "name": "web_search"}]), 400, bad,
                "'tools[0]' has the type 'web_search_20250305'")
    check_error(post(tools=[{"name": "f"}]), 400, bad, "'input_schema'")
    check_error(post(tools=[{"name": "f", "input_schema": {"type": "object"}}]), 400, bad, "'tools'")
    check_error(post(tool_choice={"type": "must"}), 400, bad, "'tool_choice.type'")
    check_error(post(tool_choice={"type": "tool"}), 400, bad, "'name'")
    check_error(post(thinking={"type": "on"}), 400, bad, "'thinking.type'")
    check_error(post(mcp_servers=[{"url": "x"}]), 400, bad, "'mcp_servers' is not supported")
    check_error(post(context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}), 400, bad,
                "clear_tool_uses_20250919")
    check_error(s.request("POST", PATH, "{", {"Content-Type": "application/json"}), 400, bad, "malformed JSON")
    check_error(s.get(PATH), 405, bad, "send POST")
    check_error(s.get(PATH + "/batches"), 404, "not_found_error", "one by one")
    check_error(s.post(PATH + "/nothing", {}), 404, "not_found_error", "is not served")
    check_error(post(COUNT, model="nobody"), 404, "not_found_error")
    # what Claude Code sends beside is taken
    assert post(context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                thinking={"type": "adaptive"}, service_tier="auto")[0] == 200
    # a refusal of a stream has its status
    check_error(post(stream=True, model="nobody"), 404, "not_found_error")


@server(queue=1, sequences=1, step_ns=20000000)
def test_overload(s):
    """A full queue is Anthropic's 529."""
    streams = [s.stream(PATH, messages=[USER], max_tokens=1900) for _ in range(2)]
    s.wait_metric("waiting", 1)
    check_error(s.post(PATH, {"messages": [USER], "max_tokens": 4}), 529, "overloaded_error", "queue is full")
    for t in streams:
        t.close()


@server(Caller)
def test_all_tokens_count(s):
    """Also the last ones of a stream that is read at once, where they gave nothing to read."""
    for limit in range(1, 30):
        ask = dict(messages=[USER], tools=TOOLS, max_tokens=limit)
        end = events(s, PATH, **ask)[-2][1]
        assert end["delta"]["stop_reason"] == "max_tokens" and end["usage"]["output_tokens"] == limit, end


@server(max_body=2000)
def test_large_body(s):
    check_error(s.post(PATH, {"messages": [dict(USER, content="x" * 3000)], "max_tokens": 1}), 413,
                "request_too_large", "the 2000 bytes that http.max_body_bytes allows")


@server(Mixd)
def test_structured_text(s):
    """output_config.format constrains as response_format of a chat does."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
              "additionalProperties": False}
    ask = dict(messages=[USER], max_tokens=100, output_config={"format": {"type": "json_schema", "schema": schema}})
    for seed in range(3):
        body = s.complete(PATH, seed=seed, **ask)
        assert body["stop_reason"] == "end_turn" and json.loads(text_of(body)) in ({"a": "x"}, {"a": "y"}), body
    wrong = {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}
    check_error(s.post(PATH, dict(ask, output_config=wrong)), 400, "invalid_request_error", "nothing")


TOOLS = [{"name": n, "input_schema": {"type": "object", "properties": {}}} for n in "fg"]


@server(Caller, step_ns=1000000)
def test_calls_and_thinking(s):
    ask = dict(messages=[USER], tools=TOOLS, max_tokens=500)
    body = s.complete(PATH, **ask)
    thinking, text, *calls = body["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm, \u00e9", "signature": ""}, thinking
    assert text == {"type": "text", "text": "Let me see."} and body["stop_reason"] == "tool_use"
    assert [set(c) for c in calls] == [{"type", "id", "name", "input"}] * 2 and calls[0]["type"] == "tool_use"
    assert [c["name"] for c in calls] == ["f", "g"] and [c["input"] for c in calls] == ARGUMENTS
    assert body["usage"]["output_tokens_details"]["thinking_tokens"] > 0

    got = events(s, PATH, **ask)
    names = [(n, e.get("delta", {}).get("type")) for n, e in got]
    joined = [n for i, n in enumerate(names) if i == 0 or names[i - 1] != n]
    block = lambda kind: [("content_block_start", None), ("content_block_delta", kind),
                          ("content_block_stop", None)]
    assert joined == [("message_start", None), *block("thinking_delta"), *block("text_delta"),
                      *block("input_json_delta"), *block("input_json_delta"), ("message_delta", None),
                      ("message_stop", None)], joined
    starts = [e["content_block"] for n, e in got if n == "content_block_start"]
    assert [b["type"] for b in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert starts[2]["name"] == "f" and starts[2]["input"] == {} and starts[2]["id"]
    for i, key in ((0, "thinking"), (1, "text"), (2, "partial_json"), (3, "partial_json")):
        whole = "".join(e["delta"][key] for n, e in got if n == "content_block_delta" and e["index"] == i)
        assert (json.loads(whole) == ARGUMENTS[i - 2]) if i > 1 else whole == body["content"][i][key], (i, whole)
    assert got[-2][1]["delta"]["stop_reason"] == "tool_use"

    # the next turn
    results = [{"type": "tool_result", "tool_use_id": c["id"], "content": "ok"} for c in calls]
    turn = [USER, {"role": "assistant", "content": body["content"]}, {"role": "user", "content": results}]
    again = s.complete(PATH, **dict(ask, messages=turn))
    assert s.complete(COUNT, messages=turn, tools=TOOLS)["input_tokens"] == \
        again["usage"]["input_tokens"] + again["usage"]["cache_read_input_tokens"]

    # one call, none, thinking that is not wanted, and limits
    one = s.complete(PATH, tool_choice={"type": "auto", "disable_parallel_tool_use": True}, **ask)["content"]
    assert [b["type"] for b in one] == ["thinking", "text", "tool_use"], one
    none = s.complete(PATH, messages=[USER], max_tokens=500)
    assert none["stop_reason"] == "end_turn" and "<tool_call>" in text_of(none)
    quiet = s.complete(PATH, thinking={"type": "disabled"}, **ask)["content"]
    assert [b["type"] for b in quiet] == ["text", "tool_use", "tool_use"], quiet
    n = body["usage"]["output_tokens"]
    for limit in range(1, n):
        cut = s.complete(PATH, **dict(ask, max_tokens=limit))
        assert cut["stop_reason"] == "max_tokens"
        assert all(isinstance(b.get("input", {}), dict) for b in cut["content"]), cut
        end = events(s, PATH, **dict(ask, max_tokens=limit))[-2][1]
        assert end["delta"]["stop_reason"] == "max_tokens" and end["usage"]["output_tokens"] == limit, (limit, end)


ANTHROPIC = r'''
import asyncio, sys
import anthropic

url = sys.argv[1]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
more = {"extra_body": {"seed": 1}}
ask = dict(model="demo", system="Be kind", messages=[{"role": "user", "content": "Hi there"}], max_tokens=12,
           **more)
m = client.messages.create(**ask)
assert m.stop_reason == "max_tokens" and m.content[0].type == "text" and m.content[0].text
assert m.usage.output_tokens == 12 and m._request_id
text = m.content[0].text

got = ""
for e in client.messages.create(stream=True, **ask):
    if e.type == "content_block_delta":
        got += e.delta.text
assert e.type == "message_stop" and got == text
with client.messages.stream(**ask) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert final.content[0].text == text and final.stop_reason == "max_tokens"
assert final.usage.output_tokens == 12

counted = client.messages.count_tokens(model="demo", system="Be kind", messages=ask["messages"])
assert counted.input_tokens == m.usage.input_tokens + m.usage.cache_read_input_tokens, (counted, m.usage)

# a second turn with what the first one gave
again = client.messages.create(**dict(ask, messages=[*ask["messages"], {"role": "assistant", "content": m.content},
                                                     {"role": "user", "content": "And?"}]))
assert again.content[0].text

for bad, kind, word in ((dict(model="nobody"), anthropic.NotFoundError, "not_found_error"),
                        (dict(messages=[]), anthropic.BadRequestError, "invalid_request_error"),
                        (dict(messages=[{"role": "user", "content": "Hi " * 5000}]), anthropic.BadRequestError,
                         "invalid_request_error")):
    for stream in (False, True):
        try:
            client.messages.create(stream=stream, **dict(ask, **bad))
            raise SystemExit("accepted: %r" % bad)
        except kind as e:
            assert e.body["error"]["type"] == word and e.request_id, e.body

async def many():
    c = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
    async def one(i):
        return (await c.messages.create(**dict(ask, extra_body={"seed": i}))).content[0].text
    return await asyncio.gather(*[one(i % 4) for i in range(16)])

texts = asyncio.run(many())
assert texts == texts[:4] * 4 and texts[1] == text, texts
'''


@server(Mixd)
def test_anthropic_package(s):
    if subprocess.run([PYTHON, "-c", "import anthropic"], capture_output=True).returncode:
        raise Skip(f"{PYTHON} has no anthropic package")
    r = subprocess.run([PYTHON, "-c", ANTHROPIC, f"http://{s.host}:{s.port}"], capture_output=True, text=True,
                       timeout=2 * PATIENCE)
    assert r.returncode == 0, r.stdout + r.stderr


main(sys.modules[__name__])
