#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves the mixer template's checkpoint and checks what comes out.

   serve.py MIXD DIR     DIR holds the module, and the checkpoint in DIR/model; work files go to DIR
"""
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

VOCAB = 256
SLOW = 5 if os.environ.get("MIXD_TEST_SLOW") else 1


class Server:
    """mixd with that many tokens a step, on a free port."""

    def __init__(self, mixd, folder, step_tokens):
        config = os.path.join(folder, "mixd-%d.yaml" % step_tokens)
        with open(config, "w") as f:
            f.write("http: { listen: '127.0.0.1:0' }\n"
                    "modules: [%s]\n"
                    "scheduler: { max_sequences: 8, step_tokens: %d }\n"
                    "models:\n"
                    "  - { name: mix, path: %s/model, threads: 2 }\n"
                    % (folder, step_tokens, folder))
        self.process = subprocess.Popen([mixd, "--config", config], stderr=subprocess.PIPE,
                                        text=True)
        self.lines, self.port = [], None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        end = time.monotonic() + 60 * SLOW
        while not self.ready():
            if time.monotonic() > end or self.process.poll() is not None:
                self.process.kill()
                sys.exit("mixd did not come up:\n" + "".join(self.lines))
            time.sleep(0.05)

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found and not self.port:
                self.port = int(found.group(1))

    def ready(self):
        if not self.port:
            return False
        try:
            return urllib.request.urlopen(self.url("/readyz"), timeout=5 * SLOW).status == 200
        except OSError:
            return False

    def url(self, path):
        return "http://127.0.0.1:%d%s" % (self.port, path)

    def complete(self, prompt):
        return self.answer(prompt, logprobs=2, echo=True)["choices"][0]

    def answer(self, prompt, **more):
        body = {"model": "mix", "prompt": prompt, "max_tokens": 24, "temperature": 0, **more}
        request = urllib.request.Request(self.url("/v1/completions"), json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60 * SLOW) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            sys.exit("status %d: %s\n%s" % (e.code, e.read(), "".join(self.lines)))

    def stop(self):
        self.process.terminate()
        if self.process.wait(30 * SLOW):
            sys.exit("mixd ended with %d:\n%s" % (self.process.returncode, "".join(self.lines)))


def check_second_turn(server, prompt):
    """What was computed of a sequence is not computed again when it goes on."""
    first = server.answer(prompt, return_token_ids=True, ignore_eos=True)
    again = server.answer(prompt + first["choices"][0]["token_ids"] + [1, 2, 3])
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == len(prompt) + 24 - 1, again["usage"]


def main():
    mixd, folder = sys.argv[1:]
    rnd = random.Random(2)
    prompts = [[rnd.randrange(1, VOCAB) for _ in range(n)] for n in (1, 7, 100, 300)]

    def together(server):
        """All prompts at the same time, so that they share steps."""
        answers = [None] * len(prompts)

        def one(i):
            answers[i] = server.complete(prompts[i])
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return answers

    results = []
    for step_tokens in (512, 16, 16):
        server = Server(mixd, folder, step_tokens)
        alone = [server.complete(p) for p in prompts]
        results += [alone, together(server)]
        check_second_turn(server, prompts[2])
        server.stop()
    for i, prompt in enumerate(prompts):
        first = results[0][i]
        logprobs = first["logprobs"]["token_logprobs"]
        if first["finish_reason"] == "length":
            assert len(logprobs) == len(prompt) + 24, len(logprobs)
        assert logprobs[0] is None and all(-100 < p <= 0 for p in logprobs[1:]), logprobs
        assert len(set(logprobs[1:])) > 1 or len(logprobs) < 3
        for other in results[1:]:
            assert other[i] == first, "prompt %d: results differ between ways of computing" % i
    print("served: %d prompts, %d ways, equal" % (len(prompts), len(results)))


if __name__ == "__main__":
    main()
