#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the official JSON Schema Test Suite against grammar/json_schema and prints a table.

    tools/json-schema-suite.py SUITE [BUILD]

SUITE is a checkout of https://github.com/json-schema-org/JSON-Schema-Test-Suite (or MIXD_JSON_SCHEMA_SUITE),
BUILD the folder of a build in which tests/grammar/json_schema_try was made.

For each schema that is supported, every valid instance must be taken token by token under several
vocabularies, and every invalid one stopped. An instance is written in every order of its properties, since
the grammar has them in the order of the schema: a valid one must be taken in one of them. The exit status is
0 if nothing differs but what EXPECTED explains.
"""
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal

# Where we are stricter than the suite, and why; never the reverse.
EXPECTED = {
    "format.json": "formats are enforced, while the suite's default is to ignore them",
    "vocabulary.json": "$schema is not read: all keywords of 2020-12 count",
    "optional/format/date-time.json": "no leap seconds",
    "optional/format/time.json": "no leap seconds",
    "optional/format/hostname.json": "no punycode",
}
FORMS = 200  # orders of one instance that are tried


def number(value):
    value = Decimal(value)
    return format(value.normalize(), "f") if value else "0"


def string(value):
    escapes = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
    return '"' + "".join(escapes.get(ord(c)) or (f"\\u{ord(c):04x}" if ord(c) < 32 else c) for c in value) + '"'


def joined(parts):
    """Every way to choose one text of each part."""
    rows = [[]]
    for texts in parts:
        rows = [row + [text] for row in rows for text in texts][:FORMS]
    return [",".join(row) for row in rows]


def forms(value):
    """The texts of a value: its properties in every order."""
    if value is None or isinstance(value, bool):
        return [json.dumps(value)]
    if isinstance(value, (int, Decimal)):
        return [number(value)]
    if isinstance(value, str):
        return [string(value)]
    if isinstance(value, list):
        return ["[" + text + "]" for text in joined([forms(v) for v in value])]
    texts = []
    for order in itertools.permutations(value.items()):
        texts += ["{" + t + "}" for t in joined([[string(k) + ":" + f for f in forms(v)] for k, v in order])]
        if len(texts) >= FORMS:
            break
    return texts[:FORMS]


def plain(value):
    """Decimals as numbers of JSON again."""
    return int(value) if value == int(value) else float(value)


class Checker:
    def __init__(self, build):
        top = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self.child = subprocess.Popen(
            [os.path.join(build, "tests/grammar/json_schema_try"), os.path.join(top, "models/demo")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, schema, texts):
        self.child.stdin.write(json.dumps({"schema": schema, "texts": texts}, default=plain) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())


def run_group(checker, group, counts, faults, reasons):
    cases = [(test, forms(test["data"])) for test in group["tests"]]
    answer = checker.ask(group["schema"], [text for _, texts in cases for text in texts])
    if "error" in answer:
        # a schema without values is refused; so must be all its instances
        if "no value obeys" in answer["error"] and not any(t["valid"] for t in group["tests"]):
            counts["empty"] += 1
        else:
            counts["refused"] += 1
            reasons[answer.get("where", "").split("/")[-1] + ": " + answer["error"][:70]] += 1
        return
    counts["supported"] += 1
    at = 0
    for test, texts in cases:
        verdicts = answer["texts"][at:at + len(texts)]
        at += len(texts)
        if "split" in verdicts or "limit" in verdicts:
            faults.append((False, group["description"], test["description"], "vocabularies disagree"))
        elif ("yes" in verdicts) == test["valid"]:
            counts["valid" if test["valid"] else "invalid"] += 1
        else:
            counts["stricter" if test["valid"] else "looser"] += 1
            faults.append((test["valid"], group["description"], test["description"], texts[0][:60]))


def main():
    suite = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MIXD_JSON_SCHEMA_SUITE")
    if not suite:
        print(__doc__)
        return 77
    checker = Checker(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("builddir", "."))
    root = os.path.join(suite, "tests/draft2020-12")
    names = sorted(os.path.relpath(os.path.join(folder, name), root)
                   for folder, _, files in os.walk(root) for name in files if name.endswith(".json"))
    columns = ["supported", "empty", "refused", "valid", "invalid", "stricter", "looser"]
    print("| file | " + " | ".join(columns) + " |\n|" + " --- |" * (len(columns) + 1))
    total, reasons, unexplained = Counter(), Counter(), 0
    for name in names:
        counts, faults = Counter(), []
        with open(os.path.join(root, name), encoding="utf-8") as f:
            for group in json.load(f, parse_float=Decimal):
                run_group(checker, group, counts, faults, reasons)
        print(f"| {name[:-5]} | " + " | ".join(str(counts[c] or "") for c in columns) + " |")
        total += counts
        for stricter, *what in faults:
            if not (stricter and name in EXPECTED):
                unexplained += 1
                print("DIFFERS", name, *what)
    print("| all | " + " | ".join(str(total[c]) for c in columns) + " |\n")
    for reason, n in reasons.most_common():
        print(f"- {n}: {reason}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
