#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions: roles, templates, log-probabilities, streams."""
import json
import os
import shutil
import sys
import tempfile

from harness import DEMO, SRC, Frontend, Mixd, check_error, main, server

HI = [{"role": "user", "content": "Hi there"}]
CHAT = "/v1/chat/completions"


def model_with_template(folder, template, **more):
    """The bundled model's tokenizer with another chat template, None for none, and members of its
    tokenizer_config.json."""
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(os.path.join(DEMO, name), folder)
    with open(os.path.join(DEMO, "tokenizer_config.json")) as f:
        config = json.load(f)
    config.pop("chat_template", None)
    if template is not None:
        config["chat_template"] = template
    config.update(more)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f)
    return folder


@server()
def test_shape(s):
    body = s.complete(CHAT, messages=HI, max_tokens=8, seed=1)
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 8
    # without a limit the rest of the context is used
    body = s.complete(CHAT, messages=HI)
    assert body["usage"]["total_tokens"] == 2048
    assert s.complete(CHAT, messages=HI, max_completion_tokens=3)["usage"]["completion_tokens"] == 3


@server()
def test_prompt_is_the_rendered_template(s):
    rendered = "<|endoftext|>Be kind\n\nHi there\n\n"
    messages = [{"role": "system", "content": "Be kind"},
                {"role": "user", "content": [{"type": "text", "text": "Hi there"}]}]
    tokens = s.post("/tokenize", {"messages": messages})[2]["tokens"]
    assert tokens == s.post("/tokenize", {"content": rendered})[2]["tokens"], tokens
    chat = s.complete(CHAT, messages=messages, max_tokens=8, seed=1)
    plain = s.complete(prompt=rendered, add_special_tokens=False, max_tokens=8, seed=1)
    assert chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
    assert chat["usage"]["prompt_tokens"] == len(tokens)
    bare = s.post("/tokenize", {"messages": messages, "add_generation_prompt": False})[2]["tokens"]
    assert len(bare) < len(tokens)


@server()
def test_logprobs(s):
    ask = dict(messages=HI, max_tokens=6, seed=1, logprobs=True, top_logprobs=3)
    choice = s.complete(CHAT, **ask)["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 6
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(entry["top_logprobs"]) == 3
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"] or "\ufffd" in \
            entry["token"]
    whole = b"".join(bytes(e["bytes"]) for e in content).decode(errors="replace")
    assert whole == choice["message"]["content"]
    streamed = []
    for e in s.stream(CHAT, **ask):
        if e["choices"][0]["logprobs"]:
            streamed += e["choices"][0]["logprobs"]["content"]
    assert streamed == content
    assert s.complete(CHAT, messages=HI, max_tokens=1, logprobs=True)["choices"][0]["logprobs"][
        "content"][0]["top_logprobs"] == []


@server(step_ns=1000000)
def test_stream(s):
    ask = dict(messages=HI, max_tokens=20, seed=1, n=2)
    whole = s.complete(CHAT, **ask)
    events = list(s.stream(CHAT, stream_options={"include_usage": True}, **ask))
    assert all(e["object"] == "chat.completion.chunk" for e in events)
    for i in range(2):
        deltas = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == i]
        assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
        assert all(list(d["delta"]) == ["content"] and d["finish_reason"] is None
                   for d in deltas[1:-1])
        assert deltas[-1]["delta"] == {} and deltas[-1]["finish_reason"] == "length"
        text = "".join(d["delta"].get("content", "") for d in deltas)
        assert text == whole["choices"][i]["message"]["content"]
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 40


@server()
def test_bad_messages(s):
    post = lambda **f: s.post(CHAT, f)
    check_error(post(), 400, "missing_required_parameter", "messages")
    check_error(post(messages=[{"role": "user", "content": [{"type": "image_url"}]}]), 400,
                "unsupported_parameter", "messages")
    for message in ({"role": "user"}, {"role": "user", "content": None}):
        check_error(post(messages=HI + [message]), 400, "missing_required_parameter", "messages",
                    "messages[1] has no 'content'")
    check_error(post(messages=[{"role": "user", "contnt": "Hi"}]), 400, "missing_required_parameter",
                "messages", "did you mean it by 'contnt'?")
    check_error(s.request("POST", CHAT, '{"messages": [], "seed": 1, "seed": 2}'), 400, "invalid_json",
                contains='"seed"')
    check_error(post(messages=HI, tool_choice="required"), 400, "invalid_value", "tool_choice",
                "there are no 'tools'")
    check_error(post(messages=HI, response_format={"type": "xml"}), 400,
                "unsupported_parameter", "response_format")
    check_error(post(messages=[{"role": "user", "content": "word " * 3000}]), 400,
                "context_length_exceeded")


def test_template_sees_tools_and_arguments():
    template = ("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
                "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}"
                "{{ extra }}{{ add_generation_prompt }}")
    with tempfile.TemporaryDirectory() as folder:
        s = Frontend(tokenizer=model_with_template(folder, template))
        tools = [{"type": "function", "function": {"name": "weather"}}]
        ask = dict(messages=HI, tools=tools, chat_template_kwargs={"extra": "plus", "messages": 1})
        tokens = s.post("/tokenize", ask)[2]["tokens"]
        text = s.post("/detokenize", {"tokens": tokens})[2]["text"]
        assert text == "user:Hi there;weather,plusTrue", text
        s.stop()


def test_messages_about_calls_that_the_template_drops_are_refused():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    function_call = {"role": "assistant", "content": None, "function_call": call["function"]}
    tool = {"role": "tool", "content": "4", "tool_call_id": "c"}
    function = {"role": "function", "content": "4", "name": "f"}
    plain = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
    for template, good in (
            (plain, ()), (plain + "{{ messages[0]['tool_calls'] }}", (calls, tool)),
            (plain + "{% if 'function_call' in messages[0] %}{% endif %}", (function_call,)),
            (plain + "{% if messages[0].role == 'tool' %}{% endif %}", (tool,)),
            (plain + "{% if messages[0].role == 'function' %}{% endif %}", (function,))):
        with tempfile.TemporaryDirectory() as folder:
            s = Frontend(tokenizer=model_with_template(folder, template))
            for message in (calls, function_call, tool, function):
                answer = s.post(CHAT, dict(messages=HI + [message], max_tokens=1))
                if message in good:
                    assert answer[0] == 200, (template, answer)
                else:
                    check_error(answer, 400, "unsupported_parameter", "messages", "messages[1] has ")
                    assert "never looks at it" in answer[2]["error"]["message"], answer
            # what says nothing about calls is no concern of theirs
            for message in (dict(HI[0], tool_calls=[]), dict(HI[0], tool_calls=None, function_call=None)):
                assert s.post(CHAT, dict(messages=HI + [message], max_tokens=1))[0] == 200
            s.stop()


def test_what_the_template_drops_is_refused():
    tools = [{"type": "function", "function": {"name": "weather"}}]
    documents = [{"title": "t", "text": "x"}]
    reads_none = "{% for m in messages %}{{ m.content }}{{ m.tools }}{% endfor %}"
    reads_tools = reads_none + "{% if tools %}{{ tools | length }}{% endif %}"
    reads_documents = reads_none + "{{ documents }}"
    for template, good, bad in ((reads_none, (), ("tools", "documents")),
                                (reads_tools, ("tools",), ("documents",)),
                                (reads_documents, ("documents",), ("tools",))):
        with tempfile.TemporaryDirectory() as folder:
            s = Frontend(tokenizer=model_with_template(folder, template))
            fields = {"tools": tools, "documents": documents}
            post = lambda **f: s.post(CHAT, dict(messages=HI, max_tokens=1, **f))
            for name in good:
                assert post(**{name: fields[name]})[0] == 200
            for name in bad:
                check_error(post(**{name: fields[name]}), 400, "unsupported_parameter", name,
                            "never looks at")
                assert post(**{name: []})[0] == 200 and post(**{name: None})[0] == 200
            if "tools" in bad:
                check_error(s.post("/tokenize", {"messages": HI, "tools": tools}), 400,
                            "unsupported_parameter", "tools")
                # none hides the tools: nothing is dropped
                assert post(tools=tools, tool_choice="none")[0] == 200
            if "tools" in good: # nothing in these templates says how calls are written
                check_error(post(tools=tools, tool_choice="required"), 400, "unsupported_parameter",
                            "tool_choice", "is not known")
            s.stop()


def test_members_of_messages_that_nobody_reads_are_refused():
    plain = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
    reads = plain + "{{ messages[0].thinking }}{% if 'my_own' in messages[0] %}{% endif %}"
    for template, good in ((plain, ()), (reads, ("thinking", "my_own"))):
        with tempfile.TemporaryDirectory() as folder:
            s = Frontend(tokenizer=model_with_template(folder, template))
            # what the openai client sends back of an answer, and what names a speaker
            for more in ({"name": "n"}, {"refusal": None, "annotations": [], "audio": None},
                         {"cache_control": {"type": "ephemeral"}}):
                assert s.post(CHAT, dict(messages=[dict(HI[0], **more)], max_tokens=1))[0] == 200, more
            for name, code, word in (("thinking", "unsupported_parameter", "never looks at it"),
                                     ("my_own", "unknown_parameter", "unknown field"),
                                     ("nmae", "unknown_parameter", "did you mean 'name'?")):
                for path in (CHAT, "/tokenize"):
                    messages = HI + [dict(HI[0], **{name: "x"})]
                    answer = s.post(path, dict(messages=messages, **({} if path != CHAT else {"max_tokens": 1})))
                    if name in good:
                        assert answer[0] == 200, answer
                    else:
                        check_error(answer, 400, code, "messages[1]." + name, word)
            s.stop()


@server(Mixd, http=", unknown_fields: warn")
def test_unknown_members_of_messages_may_be_let_through(s):
    ask = dict(max_tokens=3, seed=1)
    plain = s.complete(CHAT, messages=HI, **ask)["choices"]
    assert s.complete(CHAT, messages=[dict(HI[0], nmae="x")], **ask)["choices"] == plain
    s.wait_for(lambda: "'messages[0].nmae'" in s.errors(), "a warning")


def test_reasoning_effort_is_a_variable_of_the_template():
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for template, reads in ((plain, False), (plain + ", {{ reasoning_effort }}", True)):
        with tempfile.TemporaryDirectory() as folder:
            s = Frontend(tokenizer=model_with_template(folder, template))
            ask = dict(messages=HI, reasoning_effort="high")
            if reads:
                tokens = s.post("/tokenize", ask)[2]["tokens"]
                assert s.post("/detokenize", {"tokens": tokens})[2]["text"] == "Hi there, high"
                assert s.complete(CHAT, max_tokens=1, **ask)["usage"]["prompt_tokens"] == len(tokens)
            else:
                for path in (CHAT, "/tokenize"):
                    check_error(s.post(path, ask), 400, "unsupported_parameter", "reasoning_effort",
                                "never looks at it")
                assert s.post(CHAT, dict(ask, reasoning_effort=None, max_tokens=1))[0] == 200
            s.stop()


def test_hidden_tools():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools is none }}"
    with tempfile.TemporaryDirectory() as folder:
        s = Frontend(tokenizer=model_with_template(folder, template))
        ask = dict(messages=HI, max_tokens=1, tools=[{"type": "function", "function": {"name": "f"}}])
        seen = lambda **f: s.complete(CHAT, **dict(ask, **f))["usage"]["prompt_tokens"]
        count = lambda text: s.post("/tokenize", {"content": text})[2]["count"]
        assert seen() == seen(tool_choice="auto") == count("Hi thereFalse")
        assert seen(tool_choice="none") == seen(tools=[]) == count("Hi thereTrue")
        s.stop()


def test_content_in_parts():
    text = lambda *parts: [{"role": "user", "content": [{"type": "text", "text": p} for p in parts]}]
    plain = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    loop = ("{% for m in messages %}<{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for p in m['content'] %}{{ p.text | trim }}{% endfor %}{% endif %}>{% endfor %}")
    macro = ("{% macro show(content) %}{% for p in content %}{{ p['text'] }},{% endfor %}{% endmacro %}"
             "{% for m in messages %}{{ show(m.content) }}{% endfor %}")
    for template, want in ((plain, "<one \ntwo>"), (loop, "<onetwo>"), (macro, "one ,two,")):
        with tempfile.TemporaryDirectory() as folder:
            s = Frontend(tokenizer=model_with_template(folder, template))
            got = s.post("/tokenize", {"messages": text("one ", "two")})[2]
            assert got["tokens"] == s.post("/tokenize", {"content": want})[2]["tokens"], (template, got)
            s.stop()


def test_templates_of_several_names():
    templates = [{"name": "tool_use", "template": "{{ cls_token }}{{ tools[0].function.description }}"},
                 {"name": "default", "template": "{{ cls_token }}{{ messages[0].content }}"}]
    with tempfile.TemporaryDirectory() as folder:
        s = Frontend(tokenizer=model_with_template(folder, templates, cls_token="of the"))
        tools = [{"type": "function", "function": {"name": "f", "description": "a function of many tokens"}}]
        seen = lambda **f: s.complete(CHAT, messages=HI, max_tokens=1, **f)["usage"]["prompt_tokens"]
        count = lambda text: s.post("/tokenize", {"content": text})[2]["count"]
        assert seen() == seen(tools=tools, tool_choice="none") == count("of theHi there")
        assert seen(tools=tools) == count("of thea function of many tokens")
        s.stop()


def test_calls_without_content():
    """Qwen3's template wants a text where there is none; one that looks whether there is any sees what came."""
    call = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
                                                 "function": {"name": "f", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "a", "content": "ok"}
    with open(os.path.join(SRC, "tests/golden/chat/qwen3.jinja")) as f:
        qwen3 = f.read()
    looks = ("{% for m in messages %}{% if m.content is not defined or m.content is none %}nothing at all"
             "{% elif m.tool_calls %}a call{% endif %}{% endfor %}")
    for template, counts in ((qwen3, 1), (looks, 2)):
        with tempfile.TemporaryDirectory() as folder:
            s = Frontend(tokenizer=model_with_template(folder, template))
            seen = [s.complete(CHAT, messages=[*HI, dict(call, **content), result], max_tokens=1)
                    ["usage"]["prompt_tokens"] for content in ({}, {"content": None}, {"content": ""})]
            assert len(set(seen)) == counts, seen
            s.stop()


def test_template_errors_leave_completions_alone():
    cases = ((None, "chat_template_unavailable", ""),
             ("{% import 'x' as y %}", "chat_template_unavailable", ""),
             ("{{ raise_exception('roles must alternate') }}", "chat_template_error",
              "roles must alternate"),
             ("{% for i in range(100000000) %}x{% endfor %}", "chat_template_error", ""))
    for template, code, message in cases:
        with tempfile.TemporaryDirectory() as folder:
            s = Frontend(tokenizer=model_with_template(folder, template))
            check_error(s.post(CHAT, {"messages": HI}), 400, code, "messages", message)
            assert s.complete(prompt="a", max_tokens=2)["usage"]["completion_tokens"] == 2
            s.stop()


main(sys.modules[__name__])
