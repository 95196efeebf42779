#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/grammar/masks with xgrammar and llguidance.

    peers.py VOCABULARY CASES [xgrammar|llguidance]...        needs `xgrammar`, `llguidance`, `numpy`

Microseconds of CPU time of this thread a mask, calls from Python included (about one microsecond).
"""
import json
import sys
import time

import numpy as np


def read_vocab(path):
    with open(path, encoding="ascii") as f:
        return [bytes.fromhex(line.strip()) for line in f]


class Cutter:
    """Cuts texts into tokens, the longest first."""

    def __init__(self, vocab):
        self.ids = {}
        for i, t in enumerate(vocab):
            if t:
                self.ids.setdefault(t, i)
        self.longest = max(map(len, vocab))

    def __call__(self, s):
        at, tokens = 0, []
        while at < len(s):
            n = next(k for k in range(min(self.longest, len(s) - at), 0, -1) if s[at:at + k] in self.ids)
            tokens.append(self.ids[s[at:at + n]])
            at += n
        return tokens


class XGrammar:
    def __init__(self, vocab):
        import xgrammar
        self.x = xgrammar
        info = xgrammar.TokenizerInfo(vocab, vocab_size=len(vocab), stop_token_ids=[0])
        self.info = info
        self.mask = xgrammar.allocate_token_bitmask(1, len(vocab))
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, case):
        kind, text = case["kind"], case["grammar"]
        if kind == "schema":
            self.g = self.compiler.compile_json_schema(text, any_whitespace=False)
        elif kind == "json":
            self.g = self.compiler.compile_builtin_json_grammar()
        elif kind == "regex":
            self.g = self.compiler.compile_regex(text)
        else:
            self.g = self.compiler.compile_grammar(text)

    def begin(self):
        self.m = self.x.GrammarMatcher(self.g)

    def fill(self):
        self.m.fill_next_token_bitmask(self.mask)

    def accept(self, token):
        return bool(self.mask[0, token // 32] >> (token % 32) & 1) and self.m.accept_token(token)


class LLGuidance:
    def __init__(self, vocab):
        import llguidance
        import llguidance.numpy
        from llguidance.gbnf_to_lark import any_to_lark
        self.l, self.lark = llguidance, any_to_lark
        vocab, cutter = [b"\xff<end>"] + vocab[1:], Cutter(vocab)

        class Tokens:
            bos_token_id, eos_token_id = None, 0
            tokens, special_token_ids = vocab, [0]

            def __call__(self, text):
                return cutter(text if isinstance(text, bytes) else text.encode())
        self.t = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))
        self.mask = llguidance.numpy.allocate_token_bitmask(1, len(vocab))

    def compile(self, case):
        kind, text = case["kind"], case["grammar"]
        if kind == "schema":
            g = self.l.LLMatcher.grammar_from_json_schema(text)
        elif kind == "json":
            g = self.l.LLMatcher.grammar_from_json_schema('{"type": "object"}')
        elif kind == "regex":
            g = self.l.LLMatcher.grammar_from_regex(text)
        else:
            g = self.l.LLMatcher.grammar_from_lark(self.lark(text))
        self.g = g
        self.begin()

    def begin(self):
        self.m = self.l.LLMatcher(self.t, self.g)
        if self.m.get_error():
            raise ValueError(self.m.get_error())

    def fill(self):
        self.l.numpy.fill_next_token_bitmask(self.m, self.mask, 0)

    def accept(self, token):
        return bool(self.mask[0, token // 32] >> (token % 32) & 1) and self.m.consume_token(token)


def times_of(peer, texts):
    times = []
    for tokens in texts:
        peer.begin()
        for token in tokens:
            begin = time.thread_time_ns()
            peer.fill()
            times.append((time.thread_time_ns() - begin) / 1000)
            if not peer.accept(token):
                raise ValueError(f"token {token} is refused")
    return times


def show(times):
    p50, p99, most = np.quantile(times, [0.5, 0.99, 1])
    return f"{p50:8.1f} {p99:9.1f} {most:9.1f}"


def main():
    vocab = read_vocab(sys.argv[1])
    cutter = Cutter(vocab)
    with open(sys.argv[2], encoding="utf-8") as f:
        cases = json.load(f)
    for name in sys.argv[3:] or ["xgrammar", "llguidance"]:
        begin = time.thread_time()
        peer = {"xgrammar": XGrammar, "llguidance": LLGuidance}[name](vocab)
        print(f"{name}: tokenizer in {1000 * (time.thread_time() - begin):.0f} ms; compile ms | "
              "cold p50, p99, max | warm p50, p99, max", flush=True)
        for case in cases:
            texts = [cutter(text.encode()) for text in case["texts"]]
            try:
                begin = time.process_time()
                peer.compile(case)
                compiled = 1000 * (time.process_time() - begin)
                cold = times_of(peer, texts)
                warm = times_of(peer, texts)
                print(f"{case['name']:11} {compiled:9.2f} | {show(cold)} | {show(warm)}", flush=True)
            except Exception as e:  # a peer may refuse a case
                print(f"{case['name']:11} refused: {str(e)[:120]}", flush=True)


if __name__ == "__main__":
    main()
