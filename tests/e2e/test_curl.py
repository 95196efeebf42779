#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""curl against the daemon on the bundled model."""
import json
import shutil
import subprocess
import sys

from harness import PATIENCE, Mixd, Skip, main, server


def curl(s, path, *args):
    r = subprocess.run(["curl", "-sS", "--max-time", str(PATIENCE), f"http://{s.host}:{s.port}{path}", *args],
                       capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return r.stdout


@server(Mixd)
def test_curl(s):
    if not shutil.which("curl"):
        raise Skip("no curl")
    assert json.loads(curl(s, "/health")) == {"status": "ok"}
    head = curl(s, "/v1/models", "-I")
    assert head.startswith("HTTP/1.1 200")
    ask = json.dumps({"model": "demo", "prompt": "The sea was", "max_tokens": 6, "temperature": 0})
    whole = json.loads(curl(s, "/v1/completions", "--json", ask))["choices"][0]["text"]
    # without a header, as people type it
    assert json.loads(curl(s, "/v1/completions", "-d", ask))["choices"][0]["text"] == whole
    stream = curl(s, "/v1/completions", "-N", "--json", ask[:-1] + ', "stream": true}')
    lines = [l[6:] for l in stream.splitlines() if l.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(l)["choices"][0]["text"] for l in lines[:-1]) == whole
    # a large body makes curl ask before it sends
    big = json.dumps({"model": "demo", "prompt": "word " * 400000})
    r = subprocess.run(["curl", "-sS", "--max-time", str(PATIENCE), "-H", "Expect: 100-continue",
                        f"http://{s.host}:{s.port}/v1/completions", "--json", "@-"],
                       input=big, capture_output=True, text=True)
    assert json.loads(r.stdout)["error"]["code"] == "context_length_exceeded", r


main(sys.modules[__name__])
