#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our interpreter of chat templates with transformers on the templates of folders.

Usage: tools/compare-chat-templates.py [options] FOLDER...      (pip install transformers jinja2)

  --program FILE   our interpreter (build/tests/model/render_template, made by make check TESTS=)
  --random N       random conversations beside the fixed ones (default 50)
  --seed N         of the random conversations (default 1)
  --table FILE     writes the results as a table; without it differences are printed alone

Each template *.jinja in the folders (a collection of public ones, say) is rendered with
apply_chat_template of transformers and with ours. The texts must be the same bytes; where the
template raises, the messages must be the same, and where Python fails otherwise, ours must fail too.
Exits with 1 after a difference, with 77 if there are no templates.
"""
import argparse
import glob
import hashlib
import json
import os
import random
import subprocess
import sys

import jinja2
import transformers

import chat_conversations as chat


def agrees(want, got):
    status, text = got
    if isinstance(want, str):
        return status == 0 and text == want
    return status != 0 and (want["error"] is None or want["error"] == text)


def show(x):
    return repr(x) if len(repr(x)) < 6000 else repr(x)[:6000] + "..."


def first_difference(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def complain(name, key, want, got):
    print(f"{name}, {key}:")
    if isinstance(want, str) and got[0] == 0:
        n = first_difference(want, got[1])
        print("  transformers", repr(want[max(0, n - 60):n + 100]))
        print("  ours        ", repr(got[1][max(0, n - 60):n + 100]))
    else:
        print("  transformers", show(want)[:600])
        print("  ours        ", show(got)[:600])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folders", nargs="*")
    p.add_argument("--program", default="build/tests/model/render_template")
    p.add_argument("--random", type=int, default=50)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--table")
    a = p.parse_args()
    paths = sorted({os.path.basename(f): f for d in a.folders for f in glob.glob(os.path.join(d, "*.jinja"))}.items())
    if not paths:
        print("no templates")
        return 77
    # an empty conversation is refused before a template is looked at, by transformers and by the daemon
    cases = {k: v for k, v in chat.CONVERSATIONS.items() if v["messages"]}
    r = random.Random(a.seed)
    cases.update({f"random {i}": chat.random_variables(r) for i in range(a.random)})
    ours = subprocess.Popen([a.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rows, bad = [], 0
    for name, path in paths:
        with open(path, "rb") as f:
            data = f.read()
        source = data.decode()
        ours.stdin.write(json.dumps({"template": source, "cases": [{**chat.SPECIAL, **v} for v in cases.values()]}) + "\n")
        ours.stdin.flush()
        # json.loads makes two halves of a pair, as they come from ensure_ascii, one character again
        answers = json.loads(ours.stdout.readline())
        same = errors = 0
        for (key, variables), got in zip(cases.items(), answers):
            want = chat.render(source, variables)
            errors += not isinstance(want, str)
            if agrees(want, got):
                same += 1
            else:
                complain(name, key, want, got)
        bad += len(cases) - same
        rows.append((name[:-6], hashlib.sha256(data).hexdigest()[:16], len(cases), errors, len(cases) - same))
    ours.stdin.close()
    ours.wait()
    print(f"{len(rows)} templates, {len(cases)} conversations each, {bad} differences")
    if a.table:
        with open(a.table, "w", encoding="utf-8") as f:
            f.write(f"Made by tools/compare-chat-templates.py --random {a.random} --seed {a.seed} with transformers\n"
                    f"{transformers.__version__}, jinja2 {jinja2.__version__}, Python {sys.version.split()[0]}. "
                    "The templates themselves are not here.\n\n"
                    "| template | sha256 (first 64 bits) | conversations | of them refused by both | differences |\n"
                    "| --- | --- | --- | --- | --- |\n")
            for row in rows:
                f.write("| %s | %s | %d | %d | %d |\n" % row)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
