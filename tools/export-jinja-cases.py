#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites tests/golden/jinja/cases.json: the texts that Jinja2, set up as in transformers, renders
for the templates in it.

Usage: tools/export-jinja-cases.py [FILE]      (pip install transformers jinja2)

The file holds {"versions", "now", "vars", "cases": [[template, text or null], ...]}; null means that
Python raises. To add a case, write a line [template, null] into the file. A case whose text
contains the address of an object is removed.
"""
import datetime
import json
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils


def render(source, variables):
    try:
        return chat_template_utils._compile_jinja_template(source).render(**variables)
    except Exception:
        return None


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/jinja/cases.json"
    with open(path, encoding="utf-8") as f:
        old = json.load(f)

    class FixedTime(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromtimestamp(old["now"], datetime.timezone.utc).replace(tzinfo=None)

    chat_template_utils.datetime = FixedTime
    cases = [[source, render(source, old["vars"])] for source, _ in old["cases"]]
    cases = [case for case in cases if case[1] is None or " at 0x" not in case[1]]
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__,
                "python": sys.version.split()[0]}
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"versions":%s,"now":%d,\n"vars":%s,\n"cases":[\n' %
                (json.dumps(versions), old["now"], json.dumps(old["vars"])))
        f.write(",\n".join(map(json.dumps, cases)))
        f.write("\n]}\n")
    print(len(cases), "cases,", sum(t is None for _, t in cases), "of them errors")


main()
