#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Structured output on the bundled model: every spelling, the same bits in company, ends, errors;
with the real openai client, and random schemas against the jsonschema package. MIXD_TEST_PYTHON names
an interpreter that has these; without one those tests are skipped."""
import json
import os
import re
import subprocess
import sys
import threading

from harness import PATIENCE, Mixd, Skip, check_error, main, server

PYTHON = os.environ.get("MIXD_TEST_PYTHON", sys.executable)
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": False}
HI = [{"role": "user", "content": "Tell me of somebody."}]
CHAT = "/v1/chat/completions"


def run(script, s):
    if subprocess.run([PYTHON, "-c", "import openai, jsonschema, pydantic"],
                      capture_output=True).returncode:
        raise Skip(f"{PYTHON} has no openai, jsonschema and pydantic packages")
    r = subprocess.run([PYTHON, "-c", script, f"http://{s.host}:{s.port}/v1"], capture_output=True,
                       text=True, timeout=4 * PATIENCE)
    assert r.returncode == 0, r.stdout + r.stderr


def ask(s, **fields):
    body = s.complete(**dict(dict(prompt="It was", max_tokens=200, seed=3), **fields))
    return body["choices"][0]


@server(Mixd)
def test_every_spelling(s):
    number = r"[0-9]{3}-[a-z]{4}"
    for field in ({"structured_outputs": {"regex": number}}, {"guided_regex": number},
                  {"regex": number}):
        got = ask(s, **field)
        assert re.fullmatch(number, got["text"]) and got["finish_reason"] == "stop", got
    for field in ({"structured_outputs": {"choice": ["yes", "no", "not yet"]}},
                  {"guided_choice": ["yes", "no", "not yet"]}):
        assert ask(s, **field)["text"] in ("yes", "no", "not yet")
    gbnf = 'root ::= verdict ", " [a-z]+ "."\nverdict ::= "good" | "bad"'
    for field in ({"grammar": gbnf}, {"guided_grammar": gbnf},
                  {"structured_outputs": {"grammar": gbnf}}):
        assert re.fullmatch(r"(good|bad), [a-z]+\.", ask(s, **field)["text"])
    schema = {"json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    texts = set()
    for field in ({"response_format": dict(type="json_schema", **schema)},
                  {"response_format": {"type": "json_object", "schema": PERSON}},
                  {"structured_outputs": {"json": PERSON}}, {"guided_json": json.dumps(PERSON)},
                  {"json_schema": PERSON}):
        got = ask(s, **field)
        texts.add(got["text"])
        value = json.loads(got["text"])
        assert list(value) == ["name", "age"] and 0 <= value["age"] <= 120, value
    assert len(texts) == 1, texts  # one grammar, one seed
    for field in ({"response_format": {"type": "json_object"}}, {"guided_json_object": True}):
        got = ask(s, **field)
        assert got["text"].startswith("{")
        if got["finish_reason"] == "stop":
            assert isinstance(json.loads(got["text"]), dict)
    _, _, metrics = s.get("/metrics")
    hits = re.search(r'mixd_grammar_lookups_total\{outcome="hit"\} (\d+)', metrics.decode())
    assert int(hits[1]) > 5, hits
    assert s.metric("mixd_grammar_failures_total") == 0


@server(Mixd, max_sequences=8)
def test_same_bits_in_company(s):
    """Alone, beside others, with another answer of the same request, streamed, from the prefix
    cache: one text, and the log-probabilities are the model's own."""
    fields = dict(prompt="The old man looked at the sea and said: ", max_tokens=80, seed=11, logprobs=2,
                  response_format={"type": "json_schema",
                                   "json_schema": {"name": "p", "schema": PERSON}})
    alone = s.complete(**fields)["choices"][0]
    assert alone["finish_reason"] == "stop", alone
    results = {}

    def one(i):
        if i % 3 == 0:
            results[i] = s.complete(**fields)["choices"][0]
        elif i % 3 == 1:
            s.complete(**dict(fields, seed=i, prompt="x " * 50))
        else:
            s.complete(prompt="Once upon a time", max_tokens=60, seed=i)
    threads = [threading.Thread(target=one, args=(i,)) for i in range(18)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 6
    for got in results.values():
        assert got["text"] == alone["text"] and got["logprobs"] == alone["logprobs"]
    many = s.complete(**dict(fields, n=3))["choices"]
    assert many[0]["text"] == alone["text"] and len({c["text"] for c in many}) == 3
    for choice in many:
        assert set(json.loads(choice["text"])) == {"name", "age"}
    streamed = "".join(c["text"] for e in s.stream(**fields) for c in e["choices"])
    assert streamed == alone["text"]
    # what the model itself thinks of that text
    whole = s.complete(prompt=fields["prompt"] + alone["text"], max_tokens=0, echo=True, logprobs=2)
    lp, told = whole["choices"][0]["logprobs"], alone["logprobs"]
    at = len(lp["tokens"]) - (len(told["tokens"]) - 1)
    if lp["tokens"][at:] == told["tokens"][:-1]:  # the same cuts into tokens
        assert lp["token_logprobs"][at:] == told["token_logprobs"][:-1]


@server(Mixd)
def test_ends(s):
    # the end comes where the text can only end, whatever else was asked for
    for more in ({}, {"ignore_eos": True}, {"min_tokens": 30}, {"logit_bias": {"0": -100}}):
        got = ask(s, regex="[ab]{4}", **more)
        assert re.fullmatch("[ab]{4}", got["text"]) and got["finish_reason"] == "stop", (more, got)
    # where it may go on, ends wait as usual
    got = ask(s, regex="[a-z]*", max_tokens=12, min_tokens=12)
    assert got["finish_reason"] == "length" and re.fullmatch("[a-z]+", got["text"])
    got = ask(s, regex="[a-z]*", max_tokens=12, ignore_eos=True)
    assert got["finish_reason"] == "length"
    assert ask(s, regex="[a-z]{40}", max_tokens=3)["finish_reason"] == "length"
    # stop strings end the text before the grammar does
    got = ask(s, regex="[ab]{20}stop[ab]{20}", stop=["stop"], max_tokens=60)
    assert re.fullmatch("[ab]{20}", got["text"]) and got["stop_reason"] == "stop", got
    # penalties and bias act on what is allowed
    got = ask(s, regex="(a|b)", temperature=0, logit_bias={str(b): 100 for b in range(1, 400)})
    assert got["text"] in ("a", "b")
    got = ask(s, prompt="Yes?", echo=True, guided_choice=["x"])
    assert got["text"] == "Yes?x"
    chat = s.complete(CHAT, messages=HI, max_tokens=60, seed=1, guided_json=PERSON)
    assert set(json.loads(chat["choices"][0]["message"]["content"])) == {"name", "age"}


@server(Mixd)
def test_errors_name_field_and_place(s):
    def refused(code, param, part, **fields):
        check_error(s.post("/v1/completions", dict(fields, prompt="a")), 400, code, param, part)

    refused("invalid_value", "regex", "character 2", regex="a(b")
    refused("invalid_value", "grammar", "line 2", grammar="root ::= x\nx ::= (")
    refused("invalid_value", "guided_regex", "'grammar'", grammar='root ::= "a"', guided_regex="b")
    bad = dict(PERSON, properties={"a": {"$ref": "#/nowhere"}})
    for field, value in (("response_format", {"type": "json_schema",
                                              "json_schema": {"name": "n", "schema": bad}}),
                         ("guided_json", bad), ("guided_json", json.dumps(bad))):
        param = "response_format.json_schema.schema" if field == "response_format" else field
        refused(None, param, "/properties/a", **{field: value})
    refused("invalid_value", "guided_json", "'guided_json' at '#': no value obeys", guided_json={"enum": []})
    for field in "regex", "guided_grammar", "guided_json", "json_schema":
        refused("invalid_value", field, f"'{field}' must not be empty", **{field: ""})
    refused("invalid_value", "guided_json", "no JSON", guided_json='{"type":')
    refused("invalid_value", "grammar", "no output", grammar='root ::= "a"', max_tokens=0, echo=True)
    check_error(s.post(CHAT, dict(messages=HI, response_format={"type": "json_schema"})), 400,
                "missing_required_parameter", "response_format.json_schema.schema")
    # hostile ones are refused within bounds, and the others go on
    for grammar in ("root ::= root \"a\"", "root ::= " + "(" * 5000, 'root ::= "' + "a" * 6000000 + '"',
                    "root ::= " + " ".join(f"r{i}" for i in range(50000))):
        check_error(s.post("/v1/completions", dict(prompt="a", grammar=grammar)), 400, None, "grammar")
    for regex in ("(" * 3000, "((a{1,1000}){1,1000}){1,1000}", "(a|b)*a(a|b){300}"):
        status, _, body = s.post("/v1/completions", dict(prompt="a", regex=regex, max_tokens=4))
        assert status in (200, 400), body
    nested = "{}"
    for _ in range(400):
        nested = '{"type":"array","items":%s}' % nested
    status, _, body = s.post("/v1/completions", dict(prompt="a", guided_json=nested, max_tokens=4))
    assert status in (200, 400), body
    assert ask(s, guided_choice=["fine"])["text"] == "fine"


CLIENT = r'''
import json, sys
from typing import List, Literal, Optional
import openai, pydantic

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
messages = [{"role": "user", "content": "Tell me of a place."}]

class Point(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    x: int = pydantic.Field(ge=-99, le=99)
    y: int = pydantic.Field(ge=-99, le=99)

class Place(pydantic.BaseModel):
    kind: Literal["city", "village"]
    name: str = pydantic.Field(max_length=10)
    at: Point
    tags: List[Literal["old", "new", "big"]] = pydantic.Field(max_length=3)
    note: Optional[str] = pydantic.Field(max_length=8)

for seed in range(4):
    got = client.chat.completions.parse(model="demo", messages=messages, response_format=Place,
                                        max_tokens=400, seed=seed)
    assert isinstance(got.choices[0].message.parsed, Place), got
    assert got.choices[0].finish_reason == "stop"

with client.chat.completions.stream(model="demo", messages=messages, response_format=Place,
                                    max_tokens=400, seed=1) as stream:
    for event in stream:
        pass
    final = stream.get_final_completion()
again = client.chat.completions.parse(model="demo", messages=messages, response_format=Place,
                                      max_tokens=400, seed=1)
assert final.choices[0].message.parsed == again.choices[0].message.parsed

two = client.chat.completions.create(model="demo", messages=messages, n=2, max_tokens=200, seed=1,
                                     logprobs=True, top_logprobs=1,
                                     extra_body={"structured_outputs": {"json": Point.model_json_schema()}})
for c in two.choices:
    Point.model_validate_json(c.message.content)
    assert len(c.logprobs.content) > 3
got = client.completions.create(model="demo", prompt="a", max_tokens=20,
                                extra_body={"guided_choice": ["left", "right"]})
assert got.choices[0].text in ("left", "right")
got = client.completions.create(model="demo", prompt="a", max_tokens=20,
                                extra_body={"grammar": 'root ::= "u" "p"+ '})
assert got.choices[0].text.startswith("up")
try:
    client.chat.completions.create(model="demo", messages=messages, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}})
    raise SystemExit("accepted")
except openai.BadRequestError as e:
    assert e.param == "response_format.json_schema.schema", e
'''

SCHEMAS = r'''
import json, os, random, sys
import jsonschema, openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
seed = int(os.environ.get("MIXD_TEST_SEED", "0")) or random.randrange(1 << 30)
print("MIXD_TEST_SEED=%d" % seed)
rng = random.Random(seed)

def schema(depth):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "pattern", "format"]
    if depth:
        kinds += ["object", "array", "anyOf", "prefix"] * 2
    kind = rng.choice(kinds)
    if kind == "string":
        low = rng.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(12)}
    if kind == "integer":
        low = rng.randrange(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randrange(2000)}
    if kind == "number":
        return {"type": "number", "minimum": rng.randrange(-9, 5), "maximum": rng.randrange(6, 99)}
    if kind == "enum":
        return {"enum": rng.sample(["a", "b\"c", 1, 2.5, None, True, [1, 2], {"k": "v"}, "\u00e9\n"], 3)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-z]{1,6}$", "^(x|yz){2,4}$", "^\\d+-\\w$"]),
                "maxLength": 20}
    if kind == "format":
        return {"type": "string", "format": rng.choice(["date", "uuid", "ipv4"])}
    if kind == "array":
        low = rng.randrange(2)
        return {"type": "array", "items": schema(depth - 1), "minItems": low, "maxItems": low + 2}
    if kind == "prefix":
        return {"type": "array", "prefixItems": [schema(depth - 1), schema(0)], "items": False,
                "minItems": 1}
    if kind == "anyOf":
        return {"anyOf": [schema(depth - 1), schema(0)]}
    if kind == "object":
        names = rng.sample(["a", "b", "name", "x y", "\u00fc"], rng.randrange(1, 4))
        return {"type": "object", "properties": {n: schema(depth - 1) for n in names},
                "required": rng.sample(names, rng.randrange(len(names) + 1)),
                "additionalProperties": False}
    return {"type": kind}

done = 0
n = 12 if os.environ.get("MIXD_TEST_SLOW") else 60
for i in range(n):
    s = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema(3)}
    try:
        got = client.completions.create(model="demo", prompt="Here is one:", max_tokens=500, seed=i,
                                        extra_body={"guided_json": s}).choices[0]
    except openai.BadRequestError as e:
        raise SystemExit("%s: %s" % (json.dumps(s), e))
    if got.finish_reason == "length":
        continue
    done += 1
    try:
        jsonschema.Draft202012Validator(s, format_checker=jsonschema.FormatChecker()).validate(
            json.loads(got.text))
    except Exception as e:
        raise SystemExit("%s\n%s\n%s" % (json.dumps(s), got.text, e))
assert done > n / 2, done
'''


@server(Mixd)
def test_openai_client(s):
    run(CLIENT, s)


@server(Mixd)
def test_random_schemas(s):
    run(SCHEMAS, s)


main(sys.modules[__name__])
