#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Frameworks of agents against the daemon: what they send must be understood, and what they get must be
what they asked for. Most run on the bundled model, whose answers are valid because a grammar makes them so.

A test whose package is missing is skipped, since few machines have them all. docs/clients.md has the versions
that were run. MIXD_TEST_PYTHON names the interpreter; pip finds old versions if one environment is to have all
of them, so that each has its own:

    python3 -m venv v && v/bin/pip install langchain langchain-openai langchain-anthropic langchain-ollama
    cd BUILD && srcdir=.. builddir=$PWD MIXD_TEST_PYTHON=v/bin/python ../tests/e2e/test_frameworks.py
"""
import asyncio
import importlib.metadata
import importlib.util
import json
import math
import os
import sys
import tempfile
from typing import List, Literal

from agent_harness import SAID, Caller, model_with_marks
from harness import ATTENTION, Mixd, Skip, main, server

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_AGENTS_DISABLE_TRACING="1", DO_NOT_TRACK="1")
MANY = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
SAID_CALLS = [("f", {"a": 1, "b": 'x"y\n\u00e9'}), ("g", {})]
TEXTS = ["The old man looked at the sea", "a mountain", "na\u00efve \U0001f600"]
HI = [{"role": "user", "content": "Tell me of a place."}]


def need(*packages):
    """Skips a test unless these are installed; says which version was run."""
    for package in packages:
        try:
            print(f"      {package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError as e:
            raise Skip(f"{sys.executable} has no {package}") from e


class Tools(Mixd):
    """The bundled model with a template that has tools, in Hermes' format."""

    def __init__(self, **options):
        self.files = tempfile.TemporaryDirectory()
        super().__init__(models={"demo": model_with_marks(self.files.name, "<tool_call>")}, **options)


def url(s, path="/v1"):
    return f"http://{s.host}:{s.port}{path}"


def tools(*names, schema=None):
    return [{"type": "function", "function": {"name": n, "description": n, "parameters": schema or MANY}}
            for n in names]


def place(bounds=True):
    """A class of pydantic's whose values are short. bounds=False: for frameworks that leave out of its schema
    what other servers do not know."""
    from pydantic import BaseModel, ConfigDict, Field

    class Place(BaseModel):
        """A place."""
        model_config = ConfigDict(extra="forbid")
        kind: Literal["city", "village"]
        name: str = Field(min_length=1, max_length=10)
        people: int = Field(ge=1, le=9999)
        tags: List[Literal["old", "new", "big"]] = Field(max_length=3)

    class Plain(BaseModel):
        """A place."""
        model_config = ConfigDict(extra="forbid")
        kind: Literal["city", "village"]
        people: Literal[10, 100]
    return Place if bounds else Plain


def looking():
    """The tools of an agent, and the list of their calls."""
    calls = []

    def look(city: Literal["Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
        """Looks at the weather of a city."""
        assert city in ("Rome", "Oslo") and days in (1, 2, 3)
        calls.append(("look", city, days))
        return f"sunny for {days} days"

    def clock() -> str:
        """Tells the time."""
        calls.append(("clock",))
        return "12:00"
    return look, clock, calls


def arguments():
    """Classes of the arguments of look and clock that allow no others, for frameworks that make schemas which
    allow any."""
    from pydantic import BaseModel, ConfigDict

    class Look(BaseModel):
        """Looks at the weather of a city."""
        model_config = ConfigDict(extra="forbid")
        city: Literal["Rome", "Oslo"]
        days: Literal[1, 2, 3]

    class Clock(BaseModel):
        """Tells the time."""
        model_config = ConfigDict(extra="forbid")
    return Look, Clock


# ---- LangChain ----

def langchain_tools():
    from langchain_core.tools import StructuredTool
    *both, calls = looking()
    return [StructuredTool.from_function(f, args_schema=a) for f, a in zip(both, arguments())], calls


def langchain_models(s):
    """The bundled model by each API that LangChain has a class for."""
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI
    for responses in (False, True):
        yield ChatOpenAI(model="demo", base_url=url(s), api_key="none", use_responses_api=responses, max_retries=0,
                         max_tokens=400)
    yield ChatAnthropic(model="demo", base_url=url(s, ""), api_key="none", max_retries=0, max_tokens=400)


@server(Tools)
def test_langchain_structured(s):
    need("langchain-openai", "langchain-anthropic", "langchain-ollama")
    from langchain_ollama import ChatOllama
    for model in [*langchain_models(s), ChatOllama(model="demo", base_url=url(s, ""), num_predict=400)]:
        for method in ("json_schema", "function_calling")[:1 if isinstance(model, ChatOllama) else 2]:
            kind = place(bounds="Anthropic" not in type(model).__name__)
            got = model.with_structured_output(kind, method=method, include_raw=True).invoke("Tell me of a place.")
            assert isinstance(got["parsed"], kind), (type(model), method, got)


@server(Tools)
def test_langchain_tools(s):
    """bind_tools with each choice, whole and streamed, and the turn after it."""
    need("langchain-openai", "langchain-anthropic")
    from langchain_core.messages import HumanMessage, ToolMessage
    both, _ = langchain_tools()
    for model in langchain_models(s):
        for choice, names in (("any", ("look", "clock")), ("look", ("look",))):
            bound = model.bind_tools(both, tool_choice=choice, parallel_tool_calls=False)
            whole = None
            for chunk in bound.stream("What is the weather?"):
                whole = chunk if whole is None else whole + chunk
            for m in (bound.invoke("What is the weather?"), whole):
                assert len(m.tool_calls) == 1 and m.tool_calls[0]["name"] in names, m
            turn = [HumanMessage("What is the weather?"), m,
                    *[ToolMessage("sunny", tool_call_id=c["id"]) for c in m.tool_calls]]
            assert bound.invoke(turn).tool_calls


@server(Tools)
def test_langchain_agent(s):
    """An agent that calls tools until it calls the one that is its answer."""
    need("langchain", "langchain-openai")
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ToolStrategy
    from langchain_openai import ChatOpenAI
    Place = place()
    for responses in (False, True):
        model = ChatOpenAI(model="demo", base_url=url(s), api_key="none", use_responses_api=responses, max_retries=0,
                           max_tokens=400, model_kwargs={"parallel_tool_calls": False})
        both, calls = langchain_tools()
        agent = create_agent(model, both, response_format=ToolStrategy(Place))
        for _ in range(20):  # it may answer at once
            out = agent.invoke({"messages": HI}, {"recursion_limit": 40})
            assert isinstance(out["structured_response"], Place), out
            if calls:
                break
        assert calls
        print("     ", "responses" if responses else "chat", len(out["messages"]), "messages,", len(calls), "calls")


@server(Mixd, models={"base": ATTENTION})
def test_langchain_embeddings(s):
    need("langchain-openai", "langchain-ollama")
    from langchain_ollama import OllamaEmbeddings, OllamaLLM
    from langchain_openai import OpenAIEmbeddings
    # else it sends the token ids of OpenAI's own models
    for e in (OpenAIEmbeddings(base_url=url(s), api_key="none", model="base", check_embedding_ctx_length=False),
              OllamaEmbeddings(base_url=url(s, ""), model="base")):
        check_vectors(s, e.embed_query(TEXTS[0]), e.embed_documents(TEXTS))
    llm = OllamaLLM(base_url=url(s, ""), model="base", num_predict=8, temperature=0)
    whole = llm.invoke("The sea")
    assert whole and "".join(llm.stream("The sea")) == whole


def check_vectors(s, one, many):
    """The vectors are those of /v1/embeddings."""
    expect = [d["embedding"] for d in s.post("/v1/embeddings", {"input": TEXTS})[2]["data"]]
    assert len(many) == len(TEXTS)
    for got, want in zip([one] + many, expect[:1] + expect):
        assert len(got) == len(want) and math.dist(got, want) < 1e-5


@server(Caller, step_ns=1000000)
def test_langchain_said(s):
    """What the model says of itself: reasoning, text and two calls."""
    need("langchain-openai", "langchain-anthropic")
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI
    for model in (ChatOpenAI(model="fake", base_url=url(s), api_key="none", max_retries=0),
                  ChatOpenAI(model="fake", base_url=url(s), api_key="none", max_retries=0, use_responses_api=True),
                  ChatAnthropic(model="fake", base_url=url(s, ""), api_key="none", max_retries=0, max_tokens=500)):
        bound = model.bind_tools(tools("f", "g"))
        m, whole = bound.invoke("Hi"), None
        for chunk in bound.stream("Hi"):
            whole = chunk if whole is None else whole + chunk
        for got in (m, whole):
            assert [(c["name"], c["args"]) for c in got.tool_calls] == SAID_CALLS, got
        turn = [HumanMessage("Hi"), m, *[ToolMessage("ok", tool_call_id=c["id"]) for c in m.tool_calls]]
        assert bound.invoke(turn).tool_calls
    assert model.get_num_tokens_from_messages([HumanMessage("Hi")]) > 0


# ---- instructor ----

@server(Tools)
def test_instructor(s):
    need("instructor")
    import instructor
    import openai
    Place = place()
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"):
        if not hasattr(instructor.Mode, mode):
            continue
        client = instructor.from_openai(openai.OpenAI(base_url=url(s), api_key="none", max_retries=0),
                                        mode=getattr(instructor.Mode, mode))
        ask = dict(model="demo", messages=HI, response_model=Place, max_retries=0, seed=1)
        ask.update({"max_tokens": 400} if mode != "RESPONSES_TOOLS" else {"max_output_tokens": 400})
        if mode == "RESPONSES_TOOLS":
            del ask["seed"]
        got = client.chat.completions.create(**ask)
        assert isinstance(got, Place), (mode, got)
        print("     ", mode, got)
    client = instructor.from_openai(openai.OpenAI(base_url=url(s), api_key="none", max_retries=0))
    parts = list(client.chat.completions.create_partial(model="demo", messages=HI, response_model=Place,
                                                        max_tokens=400, seed=1))
    assert len(parts) > 2 and Place(**parts[-1].model_dump()), parts


@server(Tools)
def test_instructor_anthropic(s):
    need("instructor", "anthropic")
    import anthropic
    import instructor
    Place = place()
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=url(s, ""), api_key="none", max_retries=0),
                                       mode=instructor.Mode.ANTHROPIC_TOOLS)
    got = client.messages.create(model="demo", messages=HI, response_model=Place, max_tokens=400, max_retries=0)
    assert isinstance(got, Place), got


# ---- pydantic-ai ----

@server(Tools)
def test_pydantic_ai(s):
    need("pydantic-ai-slim")
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    openai = OpenAIProvider(base_url=url(s), api_key="none")
    models = [OpenAIChatModel("demo", provider=openai), OpenAIResponsesModel("demo", provider=openai)]
    if importlib.util.find_spec("anthropic"):
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
        models.append(AnthropicModel("demo", provider=AnthropicProvider(
            anthropic_client=AsyncAnthropic(base_url=url(s, ""), api_key="none", max_retries=0))))

    async def run(model, kind, out):
        *both, calls = looking()
        agent = Agent(model, output_type=kind(out), tools=both if kind is ToolOutput else [], retries=3,
                      model_settings={"max_tokens": 400})
        r = await agent.run("Tell me of a place.")
        assert isinstance(r.output, out), r
        print("     ", type(model).__name__, kind.__name__, len(r.all_messages()), "messages,", len(calls), "calls")
        async with agent.run_stream("Tell me of a place.") as stream:
            assert isinstance(await stream.get_output(), out)

    async def run_all():
        for model in models:
            await run(model, ToolOutput, place())
            if model.profile.get("supports_json_schema_output") if isinstance(model.profile, dict) \
                    else model.profile.supports_json_schema_output:
                await run(model, NativeOutput, place())
    asyncio.run(run_all())


# ---- LlamaIndex ----

def llama(s, **more):
    from llama_index.llms.openai_like import OpenAILike
    return OpenAILike(model="demo", api_base=url(s), api_key="none", is_chat_model=True, context_window=2048,
                      is_function_calling_model=True, max_tokens=400, max_retries=0, **more)


@server(Tools)
def test_llama_index(s):
    need("llama-index-core", "llama-index-llms-openai-like")
    from llama_index.core.llms import ChatMessage
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool
    Place = place()
    llm = llama(s)
    hi = [ChatMessage(role="user", content="Tell me of a place.")]
    assert llm.chat(hi, max_tokens=12).message.content
    assert "".join(c.delta or "" for c in llm.stream_chat(hi, max_tokens=12))
    assert isinstance(llm.structured_predict(Place, PromptTemplate("Tell me of a place.")), Place)
    assert isinstance(llm.as_structured_llm(Place).chat(hi).raw, Place)
    *both, calls = looking()
    both = [FunctionTool.from_defaults(fn=f, fn_schema=a) for f, a in zip(both, arguments())]
    for required in (True, False):
        r = llm.chat_with_tools(both, user_msg="What is the weather?", tool_required=required,
                                allow_parallel_tool_calls=False)
        found = llm.get_tool_calls_from_response(r, error_on_no_tool_call=required)
        assert not required or (len(found) == 1 and found[0].tool_name in ("look", "clock")), r
    plain = llama(s, should_use_structured_outputs=True)
    assert isinstance(plain.as_structured_llm(Place).chat(hi).raw, Place)


@server(Tools)
def test_llama_index_agent(s):
    need("llama-index-core", "llama-index-llms-openai-like")
    from llama_index.core.agent.workflow import FunctionAgent
    look, clock, calls = looking()

    async def run():
        agent = FunctionAgent(tools=[look, clock], llm=llama(s),
                              system_prompt="Be kind.", initial_tool_choice="look", streaming=True)
        return await agent.run(user_msg="What is the weather?", max_iterations=6)
    r = asyncio.run(run())
    assert calls and calls[0][0] == "look" and r.response.content is not None, (calls, r)


@server(Mixd, models={"base": ATTENTION})
def test_llama_index_embeddings(s):
    need("llama-index-embeddings-openai-like")
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    e = OpenAILikeEmbedding(model_name="base", api_base=url(s), api_key="none")
    check_vectors(s, e.get_text_embedding(TEXTS[0]), e.get_text_embedding_batch(TEXTS))


@server(Mixd, models={"base": ATTENTION})
def test_llama_index_ollama(s):
    need("llama-index-embeddings-ollama", "llama-index-llms-ollama")
    from llama_index.embeddings.ollama import OllamaEmbedding
    from llama_index.llms.ollama import Ollama
    e = OllamaEmbedding(model_name="base", base_url=url(s, ""))
    check_vectors(s, e.get_text_embedding(TEXTS[0]), e.get_text_embedding_batch(TEXTS))
    llm = Ollama(model="base", base_url=url(s, ""), request_timeout=60, context_window=1024,
                 additional_kwargs={"num_predict": 8})
    assert llm.complete("The sea").text


# ---- LiteLLM ----

@server(Tools)
def test_litellm(s):
    need("litellm")
    import litellm
    Place = place()
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
              "additionalProperties": False}
    for model, base in (("openai/demo", url(s)), ("hosted_vllm/demo", url(s)), ("anthropic/demo", url(s, "")),
                        ("ollama_chat/demo", url(s, ""))):
        ask = dict(model=model, api_base=base, api_key="none", messages=HI, max_tokens=400)
        if "ollama" not in model:
            for choice in ("required", {"type": "function", "function": {"name": "look"}}):
                both = dict(ask, tools=tools("look", "see", schema=schema), tool_choice=choice, parallel_tool_calls=False)
                m = litellm.completion(**both).choices[0].message
                chunks = list(litellm.completion(stream=True, **both))
                for got in (m, litellm.stream_chunk_builder(chunks, messages=HI).choices[0].message):
                    call, = got.tool_calls
                    assert call.function.name in ("look", "see")[:1 if choice != "required" else 2], got
                    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"), got
                again = [*HI, m.model_dump(), {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "sunny"}]
                assert litellm.completion(**dict(both, messages=again)).choices[0].message.tool_calls
        m = litellm.completion(response_format=Place, **ask).choices[0].message
        assert Place.model_validate_json(m.content), (model, m)
    r = litellm.responses(model="openai/demo", api_base=url(s), api_key="none", input="Hi", max_output_tokens=400,
                          tools=[dict(t["function"], type="function") for t in tools("look", schema=schema)],
                          tool_choice="required", parallel_tool_calls=False)
    assert [i.name for i in r.output if i.type == "function_call"] == ["look"], r
    d = litellm.embedding(model="openai/demo", api_base=url(s), api_key="none", input=TEXTS).data
    assert len(d) == 3 and len(d[0]["embedding"]) == len(d[1]["embedding"])
    ranks = litellm.rerank(model="hosted_vllm/demo", api_base=url(s, ""), api_key="none", query=TEXTS[0],
                           documents=TEXTS, top_n=2).results
    assert ranks[0]["index"] == 0 and len(ranks) == 2, ranks


@server(Caller, step_ns=1000000)
def test_litellm_said(s):
    need("litellm")
    import litellm
    for model, base in (("openai/fake", url(s)), ("anthropic/fake", url(s, ""))):
        more = dict(model=model, api_base=base, api_key="none", messages=HI, tools=tools("f", "g"), max_tokens=500)
        m = litellm.completion(**more).choices[0].message
        assert m.content == "Let me see.", m
        whole = litellm.stream_chunk_builder(list(litellm.completion(stream=True, **more)), messages=HI)
        for got in (m, whole.choices[0].message):
            assert [(c.function.name, json.loads(c.function.arguments)) for c in got.tool_calls] == SAID_CALLS, got
    r = litellm.responses(model="openai/fake", api_base=url(s), api_key="none", input="Hi",
                          tools=[dict(t["function"], type="function") for t in tools("f", "g")])
    assert [(i.name, json.loads(i.arguments)) for i in r.output if i.type == "function_call"] == SAID_CALLS, r


# ---- OpenAI's agents ----

@server(Tools)
def test_openai_agents(s):
    """Turns with tools that are asked for, and an answer of a form."""
    need("openai-agents")
    import agents
    look, clock, calls = looking()
    Place = place()
    client = agents.AsyncOpenAI(base_url=url(s), api_key="none", max_retries=0)
    both = [agents.function_tool(look), agents.function_tool(clock)]

    async def run(kind):
        agent = agents.Agent(name="a", instructions="Be kind", model=kind(model="demo", openai_client=client),
                             tools=both, output_type=Place, model_settings=agents.ModelSettings(
                                 tool_choice="required", max_tokens=400, parallel_tool_calls=False))
        r = await agents.Runner.run(agent, "What is the weather?", max_turns=12)
        assert isinstance(r.final_output, Place) and calls, r
        calls.clear()
        r = agents.Runner.run_streamed(agent, "What is the weather?", max_turns=12)
        async for _ in r.stream_events():
            pass
        assert isinstance(r.final_output, Place) and calls, r

    async def run_all():
        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            await run(kind)
    asyncio.run(run_all())


main(sys.modules[__name__])
