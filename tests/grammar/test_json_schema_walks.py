#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random schemas, and random texts that their grammars allow: each must be a value that Python's jsonschema
finds valid. Texts are drawn token by token from the masks (json_schema_try), as a model draws them.

    test_json_schema_walks.py [COUNT [SEED]]

Prints the seed. Runs in the Python of MIXD_TEST_PYTHON if this one has no jsonschema; skips (77) without.
"""
import json
import os
import random
import re
import subprocess
import sys
from decimal import Decimal, getcontext

try:
    import jsonschema
    from jsonschema import _keywords
except ImportError:
    other = os.environ.get("MIXD_TEST_PYTHON")
    if other and os.path.realpath(other) != os.path.realpath(sys.executable) and "MIXD_TRIED" not in os.environ:
        os.environ["MIXD_TRIED"] = "1"
        os.execv(other, [other, *sys.argv])
    print("no jsonschema: skipped")
    sys.exit(77)

FORMATS = ["date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
           "json-pointer"]
PATTERNS = ["^[a-z]{2,5}$", "^\\d{3}-\\d{2}$", "foo", "^(a|bc)*$", "[0-9]+$", "^[^x\"]{1,4}$", "^\\w+@\\w+$",
            "^(?=.*\\d)[a-z0-9]{2,6}$", "\\bkey\\b", "^$|^.{3}$", "^\"\\\\"]
WORDS = ["a", "b", "kind", "name", "value", "the list", "naïve", "q\"uote", "tab\t", "x/y~z", "😀"]


class Schemas:
    """Makes random schemas. The deeper, the more often scalars."""

    def __init__(self, rng):
        self.rng = rng
        self.defs = 0

    def number(self):
        return self.rng.choice([0, 1, -1, 5, 10, 100, -20, 0.5, 1.25, -2.75, 12.5, 1000, 0.01])

    def value(self, depth=0):
        kind = self.rng.randrange(9 if depth < 2 else 6)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(3))]
        if kind == 7:
            return {self.rng.choice(WORDS): self.value(depth + 1) for _ in range(self.rng.randrange(3))}
        return self.rng.choice([None, True, False, self.number(), self.rng.choice(WORDS), "", 7])

    def some(self, keywords, least=0):
        """A random part of a dict of functions, called."""
        names = [k for k in keywords if self.rng.random() < 0.35]
        while len(names) < least:
            names.append(self.rng.choice(list(keywords)))
        return {k: keywords[k]() for k in names}

    def string(self):
        low = self.rng.randrange(4)
        s = self.some({"minLength": lambda: low, "maxLength": lambda: low + self.rng.randrange(1, 8)})
        if self.rng.random() < 0.3:
            s["pattern"] = self.rng.choice(PATTERNS)
        elif self.rng.random() < 0.2:
            s["format"] = self.rng.choice(FORMATS)
            s.pop("maxLength", None)
        return {"type": "string", **s}

    def numeric(self):
        low = self.number()
        s = self.some({
            "minimum": lambda: low, "maximum": lambda: low + self.rng.choice([0, 1, 7.5, 100]),
            "exclusiveMinimum": lambda: low - self.rng.choice([1, 0.5]),
            "exclusiveMaximum": lambda: low + self.rng.choice([1.5, 20]),
            "multipleOf": lambda: self.rng.choice([1, 2, 5, 7, 0.5, 0.25, 0.01, 12])})
        return {"type": self.rng.choice(["integer", "number"]), **s}

    def array(self, depth):
        low = self.rng.randrange(3)
        s = self.some({
            "items": lambda: self.schema(depth + 1),
            "prefixItems": lambda: [self.schema(depth + 1) for _ in range(self.rng.randrange(1, 4))],
            "minItems": lambda: low, "maxItems": lambda: low + self.rng.randrange(3),
            "contains": lambda: self.schema(depth + 2)})
        if "contains" in s:
            s.update(self.some({"minContains": lambda: self.rng.randrange(3), "maxContains": lambda: 2}))
        if self.rng.random() < 0.1:
            s = {"items": {"enum": ["a", "b", 1, None]}, "uniqueItems": True, "minItems": low}
        return {"type": "array", **s}

    def object(self, depth):
        names = self.rng.sample(WORDS, self.rng.randrange(1, 5))
        s = self.some({
            "required": lambda: [n for n in names if self.rng.random() < 0.5] or names[:1],
            "additionalProperties": lambda: self.rng.choice([False, True, self.schema(depth + 1)]),
            "patternProperties": lambda: {self.rng.choice(["^x", "e", "^[a-c]$", "\\d"]): self.schema(depth + 1)},
            "propertyNames": lambda: self.rng.choice([{"maxLength": 4}, {"pattern": "^[a-z]"}, {"minLength": 1}]),
            "minProperties": lambda: self.rng.randrange(3),
            "maxProperties": lambda: self.rng.randrange(1, 5),
            "dependentRequired": lambda: {names[0]: [names[-1]]}})
        s["properties"] = {n: self.schema(depth + 1) for n in names}
        return {"type": "object", **s}

    def combined(self, depth):
        kind = self.rng.choice(["anyOf", "oneOf", "allOf", "not", "if", "type", "tagged", "rest"])
        if kind == "not":
            return {"allOf": [self.schema(depth + 1)], "not": self.schema(depth + 2)}
        if kind == "if":
            name = self.rng.choice(WORDS)
            return {"type": "object", "properties": {name: {"enum": [1, "a", True]}, "then": self.schema(depth + 2)},
                    "required": [name], "if": {"properties": {name: {"const": 1}}},
                    self.rng.choice(["then", "else"]): {"required": ["then"]}, "additionalProperties": False}
        if kind == "rest":
            return self.rest(depth)
        if kind == "type":
            return {"type": self.rng.sample(["null", "boolean", "integer", "string", "number"], 2)}
        if kind == "tagged":
            return {self.rng.choice(["oneOf", "anyOf"]): [
                {"type": "object", "properties": {"kind": {"const": k}, "v": self.schema(depth + 1)},
                 "required": ["kind"]} for k in "abc"]}
        return {kind: [self.schema(depth + 1) for _ in range(self.rng.randrange(1, 4))]}

    def rest(self, depth):
        """Properties or items that schemas side by side evaluate, and what the others are."""
        rest = self.rng.choice([False, self.schema(depth + 2)])
        if self.rng.random() < 0.3:
            parts = [self.array(depth + 1) for _ in range(2)]
            more = {"type": "array", "maxItems": 4, "unevaluatedItems": rest}
        else:
            parts = [self.object(depth + 1) for _ in range(2)]
            for p in parts:
                if self.rng.random() < 0.8:
                    p.pop("additionalProperties", None)
            more = {"type": "object", "unevaluatedProperties": rest,
                    "properties": {self.rng.choice(WORDS): self.schema(depth + 2)}}
            if self.rng.random() < 0.3:
                more["dependentSchemas"] = {self.rng.choice(WORDS): parts.pop()}
        kind = self.rng.choice(["anyOf", "allOf", "oneOf", "if", "not"])
        if kind == "if":
            return {**more, "if": parts[0], "then": parts[-1]}
        if kind == "not":
            return {**more, "allOf": [parts[0]], "not": {"not": parts[-1]}}
        return {**more, kind: parts}

    def schema(self, depth=0):
        kind = self.rng.randrange(12)
        if depth > 3:
            kind = kind % 6
        if kind < 2:
            return self.string()
        if kind < 4:
            return self.numeric()
        if kind == 4:
            return self.rng.choice([{"enum": [self.value() for _ in range(self.rng.randrange(1, 5))]},
                                    {"const": self.value()}])
        if kind == 5:
            return self.rng.choice([True, {"type": "boolean"}, {"type": "null"}, {"$ref": "#/$defs/leaf"},
                                    {"type": "boolean"}])
        if kind < 8:
            return self.object(depth)
        if kind < 10:
            return self.array(depth)
        if kind == 10 and depth:
            return {"$ref": "#/$defs/tree"}
        return self.combined(depth)

    def document(self):
        s = self.schema()
        if not isinstance(s, dict):
            s = {"allOf": [s]}
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **s,
                "$defs": {"leaf": self.rng.choice([self.string(), self.numeric()]),
                          "tree": {"type": "object",
                                   "properties": {"v": {"type": "integer"},
                                                  "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                                   "required": ["v"], "additionalProperties": False}}}


class EcmaRegex:
    """Patterns as ECMA-262 has them: \\d and \\w are ASCII, and $ is not in front of a last newline."""

    @staticmethod
    def search(pattern, text):
        return re.search(pattern.replace("$", "\\Z"), text, re.ASCII)


def number(text):
    """A number as a decimal, so that multipleOf is decided without rounding; 1.0 is an integer."""
    value = Decimal(text)
    return int(value) if value == value.to_integral_value() else value


def exact(value):
    return json.loads(json.dumps(value), parse_float=number)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(os.environ.get("MIXD_TEST_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    models = os.path.join(os.environ.get("srcdir", "."), "models")
    program = os.path.join(os.environ.get("builddir", "."), "tests/grammar/json_schema_try")
    child = subprocess.Popen([program, "--tokens", "600", os.path.join(models, "demo")], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
    rng = random.Random(seed)
    _keywords.re = EcmaRegex
    getcontext().prec = 2000  # integers of hundreds of digits are drawn
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    accepted = refused = texts = wrong = 0
    for i in range(count):
        document = Schemas(rng).document()
        space = rng.random() < 0.2
        child.stdin.write(json.dumps({"schema": document, "walks": 12, "seed": seed + i,
                                      "any_whitespace": space}) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            print("json_schema_try ended, at", json.dumps(document))
            return 1
        result = json.loads(line)
        if "error" in result:
            refused += 1
            if result["status"] not in ("invalid", "not supported", "unsupported", "limit reached"):
                print("WRONG", result, json.dumps(document))
                wrong += 1
            if result["status"] == "invalid" and "no value obeys" not in result["error"]:
                print("WRONG", result, json.dumps(document))
                wrong += 1
            if os.environ.get("VERBOSE"):
                print(result["where"], result["error"])
            continue
        accepted += 1
        if result["stuck"]:
            print("WRONG: no token is allowed:", json.dumps(document))
            wrong += 1
        validator = jsonschema.Draft202012Validator(exact(document), format_checker=checker)
        for text in result["walks"]:
            texts += 1
            value = json.loads(text, parse_float=number)
            for error in validator.iter_errors(value):
                print("WRONG", text, error.message, json.dumps(document))
                wrong += 1
    child.stdin.close()
    child.wait()
    print(f"{accepted} schemas with {texts} texts, {refused} refused, {wrong} wrong")
    return 1 if wrong or child.returncode or accepted < count / 3 else 0


if __name__ == "__main__":
    sys.exit(main())
