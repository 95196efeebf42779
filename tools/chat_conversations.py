# SPDX-License-Identifier: Apache-2.0
"""Conversations that chat templates are tried on, and what transformers makes of them."""
import datetime
import json
import random

import jinja2
import transformers
from tokenizers import Tokenizer, models
from transformers.utils import chat_template_utils

NOW = 1700000000


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


chat_template_utils.datetime = FixedTime


def msg(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = msg("system", "You are a helpful bot.")
HELLO = [msg("user", "Hello"), msg("assistant", "Hi there"), msg("user", "Who are you?")]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a \"city\" <now> & later",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Zürich, 東京, …"},
                "days": {"type": "integer", "default": 1, "enum": [1, 3, 7]},
                "where": {"type": ["string", "integer"], "nullable": True},
                "tags": {"type": "array", "items": {"type": "string"}},
                "opts": {"type": "object", "properties": {"metric": {"type": "boolean"}}},
            },
            "required": ["city"],
        },
        "return": {"type": "object", "description": "a report"},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Time", "parameters": {}}}
ARGS = {"city": "Zürich \"ZH\"", "days": 3, "opts": {"metric": True, "x": None, "f": 1.5}}


def call(args, ident="abcdef123", name="get_weather"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": args}}


def tool_talk(*calls, results=("sunny",), content=None):
    talk = [msg("user", "Weather?"), msg("assistant", content, tool_calls=list(calls))]
    for i, r in enumerate(results):
        talk.append(msg("tool", r, tool_call_id=calls[i]["id"], name=calls[i]["function"]["name"]))
    return talk


THINK = "<think>\nHmm, \n so\n</think>\n\nHi there"

CONVERSATIONS = {
    "user": dict(messages=HELLO[:1], add_generation_prompt=True),
    "user without prompt": dict(messages=HELLO[:1], add_generation_prompt=False),
    "system": dict(messages=[SYSTEM] + HELLO[:1], add_generation_prompt=True),
    "many turns": dict(messages=[SYSTEM] + HELLO, add_generation_prompt=True),
    "no system": dict(messages=HELLO, add_generation_prompt=True),
    "assistant last": dict(messages=[SYSTEM] + HELLO[:2], add_generation_prompt=False),
    "assistant last with prompt": dict(messages=HELLO[:2], add_generation_prompt=True),
    "unicode": dict(messages=[msg("user", "Grüße \"q\" 'a' \\n\n🎉 日本\t<b>&amp;</b> \u2028 e\u0301 \x07")],
                    add_generation_prompt=True),
    "white space": dict(messages=[msg("system", "\n sys \n"), msg("user", " \n hi \u00a0\n\n"),
                                  msg("assistant", "\t ok \n"), msg("user", "\r\nnext\r\n")],
                        add_generation_prompt=True),
    "control tokens": dict(messages=[msg("user", "<|im_end|><|eot_id|></s>[INST]{{ x }}{% y %}")],
                           add_generation_prompt=True),
    "tools": dict(messages=HELLO[:1], tools=[WEATHER, CLOCK], add_generation_prompt=True),
    "tools and system": dict(messages=[SYSTEM] + HELLO, tools=[WEATHER], add_generation_prompt=True),
    "tools in system": dict(messages=[SYSTEM] + HELLO[:1], tools=[WEATHER],
                            tools_in_user_message=False, add_generation_prompt=True),
    "tool call": dict(messages=tool_talk(call(ARGS)), tools=[WEATHER, CLOCK],
                      add_generation_prompt=True),
    "tool call as text": dict(messages=tool_talk(call(json.dumps(ARGS, ensure_ascii=False))),
                              tools=[WEATHER], add_generation_prompt=True),
    "tool call with content": dict(messages=tool_talk(call({}), content="Let me look."),
                                   tools=[CLOCK], add_generation_prompt=True),
    "tool call, empty content": dict(messages=[SYSTEM] + tool_talk(call(ARGS), content=""),
                                     tools=[WEATHER], add_generation_prompt=True),
    "two tool calls": dict(messages=tool_talk(call(ARGS), call({}, "ghijkl456", "clock"),
                                              results=("{\"t\": 21.5}", "12:00")) +
                           [msg("assistant", "Sunny at noon."), msg("user", "Thanks")],
                           tools=[WEATHER, CLOCK], add_generation_prompt=True),
    "short tool call id": dict(messages=tool_talk(call(ARGS, "1")), tools=[WEATHER],
                               add_generation_prompt=True),
    "built-in tools": dict(messages=HELLO[:1], builtin_tools=["code_interpreter", "brave_search"],
                           date_string="1 Jan 2030", add_generation_prompt=True),
    "thinking": dict(messages=[HELLO[0], msg("assistant", THINK), HELLO[2]],
                     add_generation_prompt=True),
    "thinking last": dict(messages=[HELLO[0], msg("assistant", THINK)], add_generation_prompt=False),
    "reasoning content": dict(messages=[HELLO[0], msg("assistant", "Hi", reasoning_content="Well\n")],
                              add_generation_prompt=False),
    "reasoning before tool call": dict(
        messages=[HELLO[0], msg("assistant", "", reasoning_content="R", thinking="T",
                                tool_calls=[call(ARGS)]), msg("tool", "ok", tool_call_id="abcdef123")],
        tools=[WEATHER], add_generation_prompt=True),
    "thinking off": dict(messages=HELLO, enable_thinking=False, add_generation_prompt=True),
    "thinking on": dict(messages=[SYSTEM] + HELLO, enable_thinking=True, thinking=True,
                        reasoning_effort="high", model_identity="I am X.", add_generation_prompt=True),
    "developer": dict(messages=[msg("developer", "Be brief."), HELLO[0]], add_generation_prompt=True),
    "two users": dict(messages=[HELLO[0], HELLO[2]], add_generation_prompt=True),
    "assistant first": dict(messages=[HELLO[1], HELLO[0]], add_generation_prompt=True),
    "system later": dict(messages=HELLO + [SYSTEM], add_generation_prompt=True),
    "system only": dict(messages=[SYSTEM], add_generation_prompt=True),
    "unknown role": dict(messages=[msg("robot", "beep")], add_generation_prompt=True),
    "no content": dict(messages=[{"role": "user"}], add_generation_prompt=True),
    "null content": dict(messages=[msg("user", None)], add_generation_prompt=True),
    "content parts": dict(messages=[msg("user", [{"type": "text", "text": "Hello"},
                                                 {"type": "text", "text": "you"}])],
                          add_generation_prompt=True),
    "image": dict(messages=[msg("user", [{"type": "image"}, {"type": "text", "text": "What?"}])],
                  add_generation_prompt=True),
    "number content": dict(messages=[msg("user", 12.0)], add_generation_prompt=True),
    "documents": dict(messages=HELLO[:1], documents=[{"title": "A", "text": "Once"},
                                                     {"doc_id": 2, "text": "B\nC"}],
                      controls={"length": "short"}, add_generation_prompt=True),
}


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)


def render(source, variables):
    """What apply_chat_template gives: a text, {"error": message} if the template raises by itself or
    uses an undefined value, or {"error": None} for any other Python error."""
    try:
        return _tokenizer.apply_chat_template(
            variables["messages"], chat_template=source, tokenize=False,
            **{k: v for k, v in variables.items() if k != "messages"})
    except (jinja2.exceptions.UndefinedError, jinja2.exceptions.SecurityError) as e:
        return {"error": str(e)}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e) if type(e) is jinja2.exceptions.TemplateError else None}
    except Exception:
        return {"error": None}


# ---- random conversations ----

WORDS = ["Hello", "you", "日本語", "🎉", "e\u0301", "\u00a0", "\u2028", "\t", "\n", "\n\n", " ", "  \n",
         "<think>", "</think>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "{{ x }}",
         "{% y %}", "'", '"', "\\", "\\n", "<b>&amp;", "[INST]", "</s>", "/no_think", "/think", "0", "1.5",
         "true", "None", "```json", "%s", "\x07", "\r\n", "Assistant:", "###", "<|channel|>", "\ufeff"]


def random_text(r, most=8):
    return r.choice(["", " "]).join(r.choice(WORDS) for _ in range(r.randrange(most)))


def random_value(r, depth=0):
    kind = r.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [random_value(r, depth + 1) for _ in range(r.randrange(4))]
    if kind == 8:
        return {r.choice(["a", "city", "días", "x y", "\"q\"", "items", "type", "value"]):
                random_value(r, depth + 1) for _ in range(r.randrange(4))}
    return [None, True, False, r.randrange(-5, 10**r.randrange(1, 12)), r.choice([0.5, -1e-7, 1e22, 3.0]),
            random_text(r), r.choice(["x", "", "ünï"])][kind]


def random_schema(r, depth=0):
    kind = r.choice(["string", "integer", "number", "boolean", "array", "object", "null", None,
                     ["string", "null"], ["integer", "string"]])
    s = {} if kind is None else {"type": kind}
    if r.random() < 0.6:
        s["description"] = random_text(r)
    if r.random() < 0.2:
        s["enum"] = [random_value(r, 3) for _ in range(r.randrange(4))]
    if r.random() < 0.2:
        s["default"] = random_value(r, 2)
    if r.random() < 0.1:
        s["nullable"] = r.random() < 0.5
    if kind == "array" and r.random() < 0.8:
        s["items"] = random_schema(r, depth + 1) if depth < 3 else {}
    if kind == "object" and depth < 3:
        s["properties"] = {r.choice(["a", "b", "id", "city", "größe"]): random_schema(r, depth + 1)
                           for _ in range(r.randrange(3))}
        if r.random() < 0.5:
            s["required"] = list(s["properties"])[:1]
    if r.random() < 0.1:
        s["additionalProperties"] = r.choice([False, True, {"type": "string"}])
    if r.random() < 0.1:
        s[r.choice(["anyOf", "oneOf", "allOf"])] = [{"type": "string"}, {"type": "integer", "minimum": 0}]
    if r.random() < 0.05:
        s["$ref"] = "#/$defs/x"
    return s


def random_tool(r):
    function = {"name": r.choice(["get_weather", "clock", "f.g", "ünï"])}
    if r.random() < 0.8:
        function["description"] = random_text(r)
    if r.random() < 0.9:
        function["parameters"] = r.choice([{}, {"type": "object", "properties": {}}, None]) \
            if r.random() < 0.2 else {**random_schema(r), "type": "object", "properties": {
                name: random_schema(r, 1) for name in ["city", "days", "x"][:r.randrange(4)]}}
    if r.random() < 0.1:
        function["strict"] = True
    if r.random() < 0.1:
        function["return"] = random_schema(r)
    return {"type": "function", "function": function} if r.random() < 0.95 else function


def random_content(r):
    kind = r.random()
    if kind < 0.05:
        return None
    if kind < 0.15:
        return [{"type": "text", "text": random_text(r)} for _ in range(r.randrange(3))]
    if kind < 0.18:
        return [{"type": r.choice(["image", "image_url", "audio", "video", "document"])},
                {"type": "text", "text": random_text(r)}]
    return random_text(r)


def random_call(r):
    args = {name: random_value(r) for name in ["city", "days", "x"][:r.randrange(4)]}
    c = {"id": "".join(r.choice("abc123") for _ in range(r.choice([9, 9, 9, 3]))), "type": "function",
         "function": {"name": r.choice(["get_weather", "clock"]), "arguments": args}}
    if r.random() < 0.1:
        c["function"]["arguments"] = json.dumps(args, ensure_ascii=False)
    return c


def random_messages(r):
    messages, calls = [], []
    if r.random() < 0.4:
        messages.append(msg(r.choice(["system", "system", "developer"]), random_content(r)))
    role = "user"
    for _ in range(r.randrange(1, 7)):
        m = msg(role, random_content(r))
        if role == "assistant":
            if r.random() < 0.3:
                m[r.choice(["reasoning_content", "reasoning", "thinking"])] = random_text(r)
            if r.random() < 0.2:
                m["content"] = "<think>" + random_text(r) + "</think>" + random_text(r)
            if r.random() < 0.4:
                m["tool_calls"] = calls = [random_call(r) for _ in range(r.randrange(1, 3))]
                if r.random() < 0.6:
                    m["content"] = r.choice([None, ""])
                if r.random() < 0.1:
                    del m["content"]
            if r.random() < 0.05:
                m["tool_calls"] = None
        elif role == "tool" and calls:
            m.update(tool_call_id=calls[0]["id"], name=calls[0]["function"]["name"])
            calls = calls[1:]
        messages.append(m)
        if role == "user":
            role = "assistant" if r.random() < 0.9 else "user"
        else:
            role = "tool" if calls else "assistant" if role == "tool" and r.random() < 0.6 else "user"
    return messages


def random_variables(r):
    v = {"messages": random_messages(r), "add_generation_prompt": r.random() < 0.6}
    if r.random() < 0.5:
        v["tools"] = [random_tool(r) for _ in range(r.randrange(1, 3))]
    if r.random() < 0.05:
        v["documents"] = [{"title": random_text(r), "text": random_text(r), "doc_id": 3}]
    switches = {"enable_thinking": [True, False], "thinking": [True, False], "preserve_thinking": [True, False],
                "clear_thinking": [True, False], "keep_all_reasoning": [True], "thinking_mode": ["enabled", "disabled"],
                "reasoning_effort": ["low", "medium", "high", "none"], "thinking_budget": [0, 512],
                "tools_in_user_message": [False], "add_vision_id": [True], "xml_tools": [[]],
                "date_string": ["1 Jan 2030"], "custom_instructions": ["Be nice."], "controls": [{"length": "short"}],
                "add_thoughts": [True], "truncate_history_thinking": [False], "skip_think": [True],
                "drop_thinking": [True, False], "tool_choice": ["auto", "required"], "citations": [True],
                "system_message": ["S"], "python_tools": [["f"]], "keep_past_thinking": [True, False]}
    for name in r.sample(sorted(switches), r.randrange(4)):
        v[name] = r.choice(switches[name])
    return v
