#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tool calls on the bundled model, which a grammar makes write them: tool_choice, parallel calls,
streamed and whole, formats of families, an agent that calls tools for several turns; with the real
openai client. MIXD_TEST_PYTHON names an interpreter that has it; without one that test is skipped."""
import json
import os
import re
import subprocess
import sys
import tempfile

from agent_harness import model_with_marks
from harness import DEMO, PATIENCE, Mixd, Skip, Stream, check_error, main

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "What is the weather?"}]
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks at the weather.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                     "days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "days"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}


def add_think_tokens(folder, special=True):
    """<think> and </think> become tokens of their own, in place of the last two that merges make. Returns
    their ids."""
    with open(os.path.join(DEMO, "tokenizer.json")) as f:
        t = json.load(f)
    by_id = {i: text for text, i in t["model"]["vocab"].items()}
    ids = (len(by_id) - 2, len(by_id) - 1)
    del t["model"]["merges"][-2:]
    for i, text in zip(ids, ("<think>", "</think>")):
        del t["model"]["vocab"][by_id[i]]
        t["added_tokens"].append(dict(t["added_tokens"][0], id=i, content=text, special=special))
    os.unlink(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(t, f)
    return ids


def check_call(call, names=("look", "clock")):
    assert re.fullmatch(r"call_[0-9A-Za-z]{24}|[0-9A-Za-z]{9}|functions\.\w+:\d+|0", call["id"]), call
    function = call["function"]
    assert call["type"] == "function" and function["name"] in names, call
    arguments = json.loads(function["arguments"])
    if function["name"] == "clock":
        assert arguments == {}, call
    else:
        assert set(arguments) == {"city", "days"} and 0 <= arguments["days"] <= 99, call
        assert isinstance(arguments["city"], str), call


def join(events):
    """What a stream says, as the message of a whole answer."""
    message, finish = {"content": "", "reasoning": "", "tool_calls": []}, None
    for e in events:
        for choice in e["choices"]:
            delta, finish = choice["delta"], choice["finish_reason"] or finish
            assert delta or choice["finish_reason"] or choice.get("token_ids"), e  # each event says something
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            for part in delta.get("tool_calls", []):
                if "id" in part:
                    assert part["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({"id": part["id"], "type": part["type"],
                                                  "function": dict(part["function"])})
                else:
                    message["tool_calls"][part["index"]]["function"]["arguments"] += \
                        part["function"]["arguments"]
    return message, finish


def same(stream, finish, whole):
    """A stream says what the whole answer does, where it was cut off too."""
    message = whole["message"]
    assert finish == whole["finish_reason"], (whole, stream)
    assert stream["content"] == (message["content"] or ""), (whole, stream)
    assert [c["function"] for c in stream["tool_calls"]] == \
        [c["function"] for c in message.get("tool_calls", [])], (whole, stream)


def test_every_family():
    """In each kind of format the model calls what it is asked for, streamed as whole."""
    for marks in ("<tool_call>", "[TOOL_CALLS]", "[TOOL_CALLS] [ARGS]", "<function= <parameter=", "<arg_key>",
                  "<|tool_call_argument_begin|>", "[func_name1(", "<|tool_call>", "<|python_tag|>",
                  "<|channel|> <|message|>"):
        with tempfile.TemporaryDirectory() as folder:
            s = Mixd(models={"demo": model_with_marks(folder, marks)})
            for choice, names in (("required", ("look", "clock")),
                                  ({"type": "function", "function": {"name": "look"}}, ("look",))):
                ask = dict(messages=HI, tools=[LOOK, CLOCK], tool_choice=choice, max_tokens=400,
                           parallel_tool_calls=False, temperature=0.8)
                done = 0
                for seed in range(2):
                    whole = s.complete(CHAT, seed=seed, **ask)["choices"][0]
                    stream, finish = join(Stream(s, CHAT, dict(ask, seed=seed)))
                    same(stream, finish, whole)
                    short, finish = join(Stream(s, CHAT, dict(ask, seed=seed, max_tokens=25)))
                    same(short, finish, s.complete(CHAT, seed=seed, **dict(ask, max_tokens=25))["choices"][0])
                    if whole["finish_reason"] == "length":
                        continue
                    done += 1
                    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None, \
                        (marks, whole)
                    calls = whole["message"]["tool_calls"]
                    assert len(calls) == 1, calls
                    check_call(calls[0], names)
                assert done, marks
            s.stop()


def test_choices():
    with tempfile.TemporaryDirectory() as folder:
        s = Mixd(models={"demo": model_with_marks(folder, "<tool_call>")})
        ask = dict(messages=HI, tools=[LOOK, CLOCK], max_tokens=400, seed=1)
        plain = s.complete(CHAT, **dict(ask, max_tokens=20))["choices"][0]
        assert plain["message"]["content"] and "tool_calls" not in plain["message"]
        assert plain["finish_reason"] == "length"
        for choice in (None, "auto"):
            assert s.complete(CHAT, tool_choice=choice, **dict(ask, max_tokens=20))["choices"][0] == plain
        none = s.complete(CHAT, tool_choice="none", **ask)["usage"]["prompt_tokens"]
        assert none < s.complete(CHAT, **ask)["usage"]["prompt_tokens"]
        several = s.complete(CHAT, tool_choice="required", n=8, **ask)
        for choice in several["choices"]:
            for call in choice["message"].get("tool_calls", []):
                check_call(call)
        assert any(c["message"].get("tool_calls") for c in several["choices"])
        one = s.complete(CHAT, tool_choice="required", parallel_tool_calls=False, logprobs=True, **ask)["choices"][0]
        told = "".join(t["token"] for t in one["logprobs"]["content"])  # calls and their marks too
        assert told.startswith("<tool_call>"), one
        for call in one["message"].get("tool_calls", []):
            assert call["function"]["arguments"] in told, (told, call)
        post = lambda **f: s.post(CHAT, dict(ask, **f))
        bad = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "blob"}}}}}
        check_error(post(tools=[CLOCK, bad], tool_choice="required"), 400, None, "tools",
                    "/1/function/parameters/properties/a")
        # a strict tool is kept to its schema without being asked for, too
        bad["function"]["strict"] = True
        check_error(post(tools=[CLOCK, bad]), 400, None, "tools", "/1/function/parameters/properties/a")
        strict = {"type": "function", "function": dict(CLOCK["function"], strict=True)}
        free = post(tools=[LOOK, strict], max_tokens=20)[2]["choices"][0]["message"]
        assert free["content"] or free.get("tool_calls"), free
        # a form of the text leaves calls possible: the answer is one of both
        kinds = set()
        for choice in s.complete(CHAT, **dict(ask, n=8, response_format={"type": "json_schema", "json_schema": {
                "name": "n", "schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}},
                                        "required": ["n"], "additionalProperties": False}}}))["choices"]:
            m = choice["message"]
            kinds.add("call" if m.get("tool_calls") else "text")
            for call in m.get("tool_calls", []):
                check_call(call)
            if choice["finish_reason"] == "stop" and not m.get("tool_calls"):
                assert json.loads(m["content"]) in ({"n": 1}, {"n": 2}), m
        print("      beside a form:", *kinds)
        check_error(post(response_format={"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"type": "blob"}}}), 400, None, "response_format.json_schema.schema")
        check_error(post(tool_choice={"type": "function", "function": {"name": "g"}}), 400, "invalid_value",
                    "tool_choice", "not among")
        # a form is that of the text, and where a call is demanded there is none: agents send both
        both = s.complete(CHAT, tool_choice="required", parallel_tool_calls=False, **dict(
            ask, response_format={"type": "json_object"}))["choices"][0]
        alone = s.complete(CHAT, tool_choice="required", parallel_tool_calls=False, **ask)["choices"][0]
        assert both["message"]["tool_calls"][0]["function"] == alone["message"]["tool_calls"][0]["function"], both
        s.stop()


def test_reasoning():
    """The prompt opens <think>: all text up to its end is reasoning."""
    with tempfile.TemporaryDirectory() as folder:
        s = Mixd(models={"demo": model_with_marks(folder, "</think>", end="<think>")})
        ask = dict(messages=HI, max_tokens=12, seed=1)
        inline = s.complete(CHAT, separate_reasoning=False, **ask)["choices"][0]["message"]
        assert inline["content"] and "reasoning" not in inline
        body = s.complete(CHAT, **ask)
        message = body["choices"][0]["message"]
        assert message["content"] == "" and message["reasoning"] == message["reasoning_content"]
        assert message["reasoning"] == inline["content"].lstrip()
        assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 12}
        events = list(Stream(s, CHAT, ask))
        deltas = [c["delta"] for e in events for c in e["choices"]]
        assert "".join(d.get("reasoning", "") for d in deltas) == message["reasoning"]
        assert not any(d.get("content") for d in deltas)
        told = [t["token"] for t in s.complete(CHAT, logprobs=True, **ask)["choices"][0]["logprobs"]["content"]]
        assert len(told) == 12 and "".join(told).lstrip() == message["reasoning"], told
        streamed = [t["token"] for e in Stream(s, CHAT, dict(ask, logprobs=True)) for c in e["choices"]
                    for t in (c["logprobs"] or {"content": []})["content"]]
        assert streamed == told, (streamed, told)
        hidden = s.complete(CHAT, include_reasoning=False, **ask)["choices"][0]["message"]
        assert hidden == {"role": "assistant", "content": ""}
        s.stop()


FORM = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999},
                                         "b": {"type": "string", "maxLength": 9}},
        "required": ["a", "b"], "additionalProperties": False}


def test_form_after_reasoning():
    """response_format is the form of the answer behind the reasoning, which the prompt may have begun,
    or ended: then all is the answer."""
    for marks, end, thinks, special in (("</think>", "<think>\n", True, True), ("</think>", "", None, False),
                                        ("</think>", "<think>\n\n</think>\n\n", False, True),
                                        ("<|channel|> <|message|>", "", None, True)):
        with tempfile.TemporaryDirectory() as folder:
            begin, over = add_think_tokens(model_with_marks(folder, marks, end), special)
            s = Mixd(models={"demo": folder})
            ask = dict(messages=HI, max_tokens=120, logit_bias={str(begin): 6, str(over): 10},
                       response_format={"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}})
            finished = reasoned = 0
            for seed in range(6):
                body = s.complete(CHAT, seed=seed, **ask)
                whole = body["choices"][0]
                stream, finish = join(Stream(s, CHAT, dict(ask, seed=seed)))
                message, content = whole["message"], whole["message"]["content"] or ""
                assert finish == whole["finish_reason"], (end, whole, stream)
                assert (stream["content"], stream["reasoning"]) == (content, message.get("reasoning") or "")
                if finish == "length":
                    continue
                finished += 1
                reasoned += bool(message.get("reasoning_content"))
                value = json.loads(content)
                assert "think>" not in content, content  # though these tokens are likely in its string, too
                assert list(value) == ["a", "b"] and 0 <= value["a"] <= 999 and len(value["b"]) <= 9, whole
                told = body["usage"]["completion_tokens_details"]["reasoning_tokens"]
                assert (told > 0) == bool(message.get("reasoning_content")), body
            assert finished, (marks, end)
            if thinks is not None:
                assert bool(reasoned) == thinks, (end, finished, reasoned)
            s.stop()


def test_thinking_budget():
    """Reasoning ends after as many tokens as it may have, whether the mark is a token or several; what
    comes before it is what would come without a bound."""
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}}}
    for marks, end, token in (("</think>", "<think>\n", True), ("</think>", "", True), ("</think>", "<think>\n", False)):
        with tempfile.TemporaryDirectory() as folder:
            model_with_marks(folder, marks, end)
            bias = {}
            if token:
                begin, over = add_think_tokens(folder)
                bias = {str(begin): 0 if end else 30, str(over): -100}
            s = Mixd(models={"demo": folder})
            ask = dict(messages=HI, max_tokens=60, seed=2, logprobs=True, logit_bias=bias)
            endless = s.complete(CHAT, **ask)["choices"][0]
            assert endless["finish_reason"] == "length" and not endless["message"]["content"], endless
            for budget in (0, 7, 300) if token else (7,):
                body = s.complete(CHAT, thinking_token_budget=budget, **ask)
                choice, told = body["choices"][0], body["usage"]["completion_tokens_details"]["reasoning_tokens"]
                thought, free = choice["message"].get("reasoning_content") or "", min(budget, 60)
                assert endless["message"]["reasoning_content"].startswith(thought), (endless, choice)
                shift = 0 if end else 1  # the mark that begins it
                assert choice["logprobs"]["content"][:free + shift] == endless["logprobs"]["content"][:free + shift]
                if budget < 60:
                    assert choice["message"]["content"] and (told == budget if token else told >= budget), (budget, body)
                else:
                    assert choice == endless, (choice, endless)
                stream, finish = join(Stream(s, CHAT, dict(ask, thinking_token_budget=budget)))
                assert (stream["content"], stream["reasoning"]) == (choice["message"]["content"] or "", thought)
            body = s.complete(CHAT, thinking_token_budget=5, **dict(ask, max_tokens=200, n=2, **form))
            for choice in body["choices"]:
                assert choice["finish_reason"] == "length" or json.loads(choice["message"]["content"]), body
                assert len(choice["message"]["reasoning_content"]) < 200 and choice["message"]["content"], body
            check_error(s.post(CHAT, dict(ask, thinking_token_budget=-2)), 400, "invalid_value", "thinking_token_budget")
            s.stop()


def test_reasoning_that_is_off():
    """Where the prompt has ended the reasoning, or the client has switched it off, a call or form that
    is asked for has none in front of it."""
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}}}
    named = {"tool_choice": {"type": "function", "function": {"name": "clock"}}, "tools": [CLOCK]}
    for end, fields in (("<think>\n\n</think>\n\n", {}), ("", off)):
        with tempfile.TemporaryDirectory() as folder:
            begin, _ = add_think_tokens(model_with_marks(folder, "</think> <tool_call>", end))
            s = Mixd(models={"demo": folder})
            for asked in ({"tool_choice": "required", "tools": [LOOK]}, named, form):
                ask = dict(asked, messages=HI, max_tokens=200, seed=1, logit_bias={str(begin): 50})
                body = s.complete(CHAT, **dict(ask, **fields))
                message = body["choices"][0]["message"]
                assert not message.get("reasoning_content"), (end, message)
                assert bool(message.get("tool_calls")) == ("tools" in asked) or \
                    body["choices"][0]["finish_reason"] == "length", (end, body)
                if fields:  # the same request thinks if it may
                    assert s.complete(CHAT, **ask)["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
            s.stop()


AGENT = '''
import json, sys
import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="x")
tools = json.loads(sys.argv[2])
results = {"look": lambda city, days: "sunny for %d days" % days, "clock": lambda: "12:00"}
messages = [{"role": "user", "content": "What is the weather?"}]
calls = 0
for turn in range(5):
    ask = dict(model="demo", messages=messages, tools=tools, max_tokens=400, seed=turn, parallel_tool_calls=False,
               tool_choice="required" if turn < 4 else "none")
    if turn % 2:
        with client.chat.completions.stream(**ask) as stream:
            for event in stream:
                pass
            try:
                choice = stream.get_final_completion().choices[0]
            except openai.LengthFinishReasonError:
                continue
    else:
        choice = client.chat.completions.create(**ask).choices[0]
    message = choice.message
    if choice.finish_reason == "length" and turn < 4:
        continue
    if turn == 4:
        assert not message.tool_calls and message.content, message
        break
    assert choice.finish_reason == "tool_calls" and message.tool_calls, choice
    messages.append({"role": "assistant", "content": message.content,
                     "tool_calls": [c.model_dump(include={"id", "type", "function"}) for c in message.tool_calls]})
    for c in message.tool_calls:
        calls += 1
        messages.append({"role": "tool", "tool_call_id": c.id, "content":
                         results[c.function.name](**json.loads(c.function.arguments))})
assert calls, "no call"
'''


def test_agent():
    if subprocess.run([PYTHON, "-c", "import openai"], capture_output=True).returncode:
        raise Skip(f"{PYTHON} has no openai package")
    with tempfile.TemporaryDirectory() as folder:
        s = Mixd(models={"demo": model_with_marks(folder, "<tool_call>")})
        r = subprocess.run([PYTHON, "-c", AGENT, f"http://{s.host}:{s.port}/v1", json.dumps([LOOK, CLOCK])],
                           capture_output=True, text=True, timeout=4 * PATIENCE)
        assert r.returncode == 0, r.stdout + r.stderr
        s.stop()


if __name__ == "__main__":
    main(sys.modules[__name__])
