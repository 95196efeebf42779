#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models with and without dci: seconds of a prompt and milliseconds of a token after it, by length.

    bench/mixers/dci_model.py --model DIR --text FILE [--lengths 4096,8192,16384]
                              [--layers 'top_k: 128'] [--threads N] [--tokens 64]

Starts mixd of the build folder (the current one) with the model twice, as it is and with dci in all
layers, and asks both in turn. A prompt is --lengths tokens of the text; it is sent for one token, and
again for --tokens more, when the prefix cache has it: the difference is what decoding takes.
Python alone.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

CONFIG = """http: {{listen: ["127.0.0.1:{port}"]}}
models:
  - {{name: exact, path: {model}, max_context: {context}, threads: {threads}}}
  - name: dci
    path: {model}
    max_context: {context}
    threads: {threads}
    layers: [{{layers: all, mixer: dci, {layers}}}]
"""


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as r:
        return json.load(r)


def started(url, server):
    for _ in range(600):
        try:
            with urllib.request.urlopen(url + "/health") as r:
                return r.status == 200
        except OSError:
            if server.poll() is not None:
                raise SystemExit("dci_model: mixd ended")
            time.sleep(0.1)
    raise SystemExit("dci_model: mixd does not answer")


def seconds(url, model, prompt, tokens):
    start = time.monotonic()
    post(url + "/v1/completions", dict(model=model, prompt=prompt, max_tokens=tokens, temperature=0,
                                       ignore_eos=True))
    return time.monotonic() - start


def measure(args, url):
    with open(args.text) as f:
        text = f.read()
    ids = post(url + "/tokenize", dict(model="exact", prompt=text))["tokens"]
    print(f"{'tokens':>7}  prompt s: exact      dci  ratio  decode ms: exact      dci  ratio")
    for n in args.lengths:
        if len(ids) < n:
            raise SystemExit(f"dci_model: {args.text} has {len(ids)} tokens only")
        prompt, decode = {}, {}
        for model in ("exact", "dci"):
            prompt[model] = seconds(url, model, ids[:n], 1)
            one = min(seconds(url, model, ids[:n], 1) for _ in range(3))
            all_of = min(seconds(url, model, ids[:n], args.tokens + 1) for _ in range(3))
            decode[model] = (all_of - one) / args.tokens * 1e3
        print(f"{n:7}  {prompt['exact']:15.3f} {prompt['dci']:8.3f} "
              f"{prompt['exact'] / prompt['dci']:6.2f}  {decode['exact']:16.3f} {decode['dci']:8.3f} "
              f"{decode['exact'] / decode['dci']:6.2f}", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--text", required=True)
    ap.add_argument("--lengths", type=lambda s: [int(n) for n in s.split(",")],
                    default=[4096, 8192, 16384])
    ap.add_argument("--layers", default="top_k: 128", help="parameters of dci")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--tokens", type=int, default=64)
    args = ap.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write(CONFIG.format(port=port, model=args.model, threads=args.threads,
                                   context=max(args.lengths) + args.tokens + 64, layers=args.layers))
        config.flush()
        server = subprocess.Popen(["./mixd", "--config", config.name], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL,
                                  env=dict(dict(MIXD_FRONT_PATH=os.path.abspath("daemon/.libs"),
                                                MIXD_MODULE_PATH=os.path.abspath("mixers/.libs")),
                                           **os.environ))
        try:
            started(f"http://127.0.0.1:{port}", server)
            measure(args, f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    sys.exit(main())
