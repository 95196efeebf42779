#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the texts that transformers renders for the chat templates in tests/golden/chat.

Usage: tools/export-chat-golden.py [FOLDER]      (pip install transformers jinja2)

Reads FOLDER/*.jinja and writes FOLDER/conversations.json (the variables of each conversation) and
FOLDER/NAME.json per template: {conversation: text}, or {"error": message} if the template raises
by itself or uses an undefined value, or {"error": null} for any other Python error.
"""
import datetime
import glob
import json
import os
import sys

import jinja2
import transformers
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
    "no messages": dict(messages=[], add_generation_prompt=True),
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


def render(source, variables):
    compiled = chat_template_utils._compile_jinja_template(source)
    full = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", **variables}
    try:
        return compiled.render(**full)
    except (jinja2.exceptions.UndefinedError, jinja2.exceptions.SecurityError) as e:
        return {"error": str(e)}
    except jinja2.exceptions.TemplateError as e:
        return {"error": str(e) if type(e) is jinja2.exceptions.TemplateError else None}
    except Exception:
        return {"error": None}


def write(path, data):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/chat"
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__,
                "python": sys.version.split()[0]}
    write(os.path.join(folder, "conversations.json"),
          {"versions": versions, "now": NOW, "conversations": CONVERSATIONS})
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, encoding="utf-8", newline="") as f:
            source = f.read()
        write(path[:-len("jinja")] + "json", {k: render(source, v) for k, v in CONVERSATIONS.items()})


main()
