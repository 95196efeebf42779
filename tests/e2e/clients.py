#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""By hand: frameworks of agents against a server. Not part of the suite: they are heavy.

    python3 -m venv VENV && VENV/bin/pip install litellm langchain-openai langchain-anthropic openai-agents
    MIXD_CLIENTS=VENV/bin/python srcdir=. builddir=build tests/e2e/clients.py [NAME...]

Run in November 2026 with litellm 1.106.2, langchain-openai 1.7.3, langchain-anthropic 1.7.7,
langchain-core 1.7.2, openai-agents 0.20.0, openai 2.54.0 and anthropic 2.12.0. Each is a program of its
own, on a server whose model says what agents.SAID has: reasoning, text and two calls.
"""
import os
import subprocess
import sys

from agents import Caller, SAID
from harness import PATIENCE, Skip, main, server

PYTHON = os.environ.get("MIXD_CLIENTS", sys.executable)
COMMON = r'''
import json, sys
base = sys.argv[1]
schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
wanted = [("f", {"a": 1, "b": 'x"y\né'}), ("g", {})]
'''


def run(s, package, program):
    if subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True).returncode:
        raise Skip(f"{PYTHON} has no {package}")
    r = subprocess.run([PYTHON, "-c", COMMON + program, f"http://{s.host}:{s.port}"], capture_output=True, text=True,
                       timeout=4 * PATIENCE, env=dict(os.environ, LITELLM_LOCAL_MODEL_COST_MAP="True",
                                                      OPENAI_AGENTS_DISABLE_TRACING="1"))
    assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-6000:]


@server(Caller, step_ns=1000000)
def test_litellm(s):
    run(s, "litellm", r'''
import litellm
tools = [{"type": "function", "function": {"name": n, "parameters": schema}} for n in "fg"]
messages = [{"role": "user", "content": "Hi"}]
for model, url in (("openai/fake", base + "/v1"), ("anthropic/fake", base)):
    more = dict(model=model, api_base=url, api_key="none", messages=messages, tools=tools, max_tokens=500)
    m = litellm.completion(**more).choices[0].message
    assert m.content == "Let me see.", m
    assert [(c.function.name, json.loads(c.function.arguments)) for c in m.tool_calls] == wanted, m
    chunks = list(litellm.completion(stream=True, **more))
    whole = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
    assert [(c.function.name, json.loads(c.function.arguments)) for c in whole.tool_calls] == wanted, whole
r = litellm.responses(model="openai/fake", api_base=base + "/v1", api_key="none", input="Hi",
                      tools=[dict(t["function"], type="function") for t in tools])
assert [(i.name, json.loads(i.arguments)) for i in r.output if i.type == "function_call"] == wanted, r
''')


@server(Caller, step_ns=1000000)
def test_langchain_openai(s):
    run(s, "langchain_openai", r'''
from langchain_openai import ChatOpenAI
from langchain_core.messages import HumanMessage, ToolMessage
tools = [{"type": "function", "function": {"name": n, "description": n, "parameters": schema}} for n in "fg"]
for responses in (False, True):
    model = ChatOpenAI(model="fake", base_url=base + "/v1", api_key="none", use_responses_api=responses,
                       max_retries=0).bind_tools(tools)
    m = model.invoke("Hi")
    assert [(c["name"], c["args"]) for c in m.tool_calls] == wanted, m
    whole = None
    for chunk in model.stream("Hi"):
        whole = chunk if whole is None else whole + chunk
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == wanted, whole
    turn = [HumanMessage("Hi"), m, *[ToolMessage("ok", tool_call_id=c["id"]) for c in m.tool_calls]]
    assert model.invoke(turn).tool_calls
''')


@server(Caller, step_ns=1000000)
def test_langchain_anthropic(s):
    run(s, "langchain_anthropic", r'''
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
tools = [{"name": n, "description": n, "input_schema": schema} for n in "fg"]
model = ChatAnthropic(model="fake", base_url=base, api_key="none", max_retries=0, max_tokens=500).bind_tools(tools)
m = model.invoke("Hi")
assert [(c["name"], c["args"]) for c in m.tool_calls] == wanted, m
whole = None
for chunk in model.stream("Hi"):
    whole = chunk if whole is None else whole + chunk
assert [(c["name"], c["args"]) for c in whole.tool_calls] == wanted, whole
turn = [HumanMessage("Hi"), m, *[ToolMessage("ok", tool_call_id=c["id"]) for c in m.tool_calls]]
assert model.invoke(turn).tool_calls
assert model.get_num_tokens_from_messages([HumanMessage("Hi")]) > 0
''')


@server(Caller, said=SAID[:SAID.index("<tool_call>")], step_ns=1000000)
def test_openai_agents(s):
    run(s, "agents", r'''
from agents import Agent, AsyncOpenAI, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
import asyncio
set_tracing_disabled(True)
@function_tool
def f(a: int) -> str:
    "Does."
    return "ok"
model = OpenAIResponsesModel(model="fake", openai_client=AsyncOpenAI(base_url=base + "/v1", api_key="none"))
agent = Agent(name="a", instructions="Be kind", model=model, tools=[f])
r = asyncio.run(Runner.run(agent, "Hi"))
assert r.final_output.strip() == "Let me see.", r
async def streamed():
    r = Runner.run_streamed(agent, "Hi")
    async for event in r.stream_events():
        pass
    return r.final_output
assert asyncio.run(streamed()).strip() == "Let me see."
''')


@server(Caller, said='{"a": 1, "b": "x"}', step_ns=1000000)
def test_structured(s):
    """with_structured_output of both, and parse() of responses."""
    run(s, "langchain_openai", r'''
import openai
from pydantic import BaseModel
from langchain_openai import ChatOpenAI
class Pair(BaseModel):
    a: int
    b: str
for responses in (False, True):
    model = ChatOpenAI(model="fake", base_url=base + "/v1", api_key="none", use_responses_api=responses, max_retries=0)
    assert model.with_structured_output(Pair, method="json_schema").invoke("Hi") == Pair(a=1, b="x")
client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
assert client.responses.parse(model="fake", input="Hi", text_format=Pair).output_parsed == Pair(a=1, b="x")
''')


main(sys.modules[__name__])
