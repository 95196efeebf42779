#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The openai package against the daemon on the bundled model. MIXD_TEST_PYTHON names an interpreter
that has it; without one the test is skipped."""
import os
import subprocess
import sys

from harness import PATIENCE, Mixd, Skip, main, server

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)

OPENAI = r'''
import asyncio, sys
import openai

url = sys.argv[1]
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
ask = dict(model="demo", prompt="It was a dark and stormy night", max_tokens=12, seed=1)

a = client.completions.create(**ask)
assert a.object == "text_completion" and a.usage.completion_tokens == 12, a
assert a.usage.prompt_tokens_details.cached_tokens >= 0
text = ""
for chunk in client.completions.create(stream=True, stream_options={"include_usage": True}, **ask):
    if chunk.choices:
        text += chunk.choices[0].text
    else:
        usage = chunk.usage
assert text == a.choices[0].text and usage.completion_tokens == 12

scored = client.completions.create(model="demo", prompt=ask["prompt"], max_tokens=0, echo=True,
                                   logprobs=2)
lp = scored.choices[0].logprobs
assert lp.token_logprobs[0] is None and all(x < 0 for x in lp.token_logprobs[1:])
assert scored.choices[0].text == ask["prompt"]
assert all(t[tok] == v for tok, v, t in
           list(zip(lp.tokens, lp.token_logprobs, lp.top_logprobs))[1:])

messages = [{"role": "user", "content": "Tell me of the sea."}]
chat = client.chat.completions.create(model="gpt-demo", messages=messages, max_tokens=10, seed=2,
                                      logprobs=True, top_logprobs=2, n=2)
assert len(chat.choices) == 2 and chat.choices[0].message.role == "assistant"
assert len(chat.choices[0].logprobs.content) == chat.usage.completion_tokens // 2
parts = ["", ""]
for chunk in client.chat.completions.create(model="demo", messages=messages, max_tokens=10, seed=2,
                                            n=2, stream=True):
    for c in chunk.choices:
        parts[c.index] += c.delta.content or ""
assert parts == [c.message.content for c in chat.choices], parts

# what applications send along with it, and what the package has no arguments for
usual = client.chat.completions.create(
    model="demo", messages=messages, max_tokens=10, seed=2, logprobs=True, top_logprobs=2, n=2,
    user="u", metadata={"a": "b"}, store=False, service_tier="auto", safety_identifier="s",
    prompt_cache_key="k", modalities=["text"], response_format={"type": "text"}, tool_choice="auto",
    parallel_tool_calls=True, functions=[], tools=[], verbosity="medium", stop=None,
    extra_body={"top_k": 0, "repetition_penalty": 1.0, "use_beam_search": False, "best_of": 2})
assert [c.message.content for c in usual.choices] == [c.message.content for c in chat.choices]

assert [m.id for m in client.models.list()] == ["demo", "gpt-demo"]
assert client.models.retrieve("demo").id == "demo"

for bad, kind, code in ((dict(model="nobody"), openai.NotFoundError, "model_not_found"),
                        (dict(max_tokens=100000), openai.BadRequestError,
                         "context_length_exceeded"),
                        (dict(temperature=9), openai.BadRequestError, "invalid_value"),
                        (dict(suffix="x"), openai.BadRequestError, "unsupported_parameter"),
                        (dict(extra_body={"max_token": 1}), openai.BadRequestError,
                         "unknown_parameter")):
    try:
        client.completions.create(**dict(ask, **bad))
        raise SystemExit("accepted: %r" % bad)
    except kind as e:
        assert e.code == code, e
    # the same inside a stream is a real status, too
    try:
        client.completions.create(stream=True, **dict(ask, **bad))
        raise SystemExit("accepted: %r" % bad)
    except kind as e:
        assert e.code == code, e

async def many():
    c = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    async def one(i):
        r = await c.completions.create(**dict(ask, seed=i))
        return r.choices[0].text
    return await asyncio.gather(*[one(i % 4) for i in range(16)])

texts = asyncio.run(many())
assert texts == texts[:4] * 4, texts
assert texts[1] == a.choices[0].text
'''


@server(Mixd)
def test_openai_package(s):
    if subprocess.run([PYTHON, "-c", "import openai"], capture_output=True).returncode:
        raise Skip(f"{PYTHON} has no openai package")
    url = f"http://{s.host}:{s.port}/v1"
    r = subprocess.run([PYTHON, "-c", OPENAI, url], capture_output=True, text=True,
                       timeout=2 * PATIENCE)
    assert r.returncode == 0, r.stdout + r.stderr


main(sys.modules[__name__])
