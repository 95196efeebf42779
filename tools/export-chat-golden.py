#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the texts that transformers renders for the chat templates in tests/golden/chat.

Usage: tools/export-chat-golden.py [FOLDER]      (pip install transformers jinja2)

Reads FOLDER/*.jinja and writes FOLDER/conversations.json (the variables of each conversation) and
FOLDER/NAME.json per template: {conversation: text}, or {"error": message} if the template raises
by itself or uses an undefined value, or {"error": null} for any other Python error.
"""
import glob
import json
import os
import sys

import jinja2
import transformers

from chat_conversations import CONVERSATIONS, NOW, render


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
