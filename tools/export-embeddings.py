#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/embeddings.json: the vectors that transformers makes of token ids on the golden
checkpoints, in fp32: last_hidden_state of the last token, and the mean over all tokens, each of length 1.

    python3 -m venv v && v/bin/pip install transformers==4.49.0 flax==0.12.8 jax==0.10.2 safetensors
    v/bin/python tools/export-embeddings.py tests/golden

Flax's models of transformers 4 are used, since they need no PyTorch.
"""
import json
import os
import random
import sys

import flax
import jax
import numpy
import transformers

KINDS = {"llama": "FlaxLlamaModel", "llama-tied": "FlaxLlamaModel", "mistral": "FlaxMistralModel",
         "gpt2": "FlaxGPT2Model"}
LENGTHS = (1, 2, 17, 45)


def unit(v):
    v = v.astype(numpy.float64)
    return [float(f"{x:.9g}") for x in v / numpy.linalg.norm(v)]


def cases(folder, kind, seed):
    model = getattr(transformers, kind).from_pretrained(folder, from_pt=True)
    rng = random.Random(seed)
    for n in LENGTHS:
        ids = [rng.randrange(model.config.vocab_size) for _ in range(n)]
        with jax.default_matmul_precision("highest"):
            states = numpy.asarray(model(numpy.array([ids])).last_hidden_state[0])
        yield dict(ids=ids, last=unit(states[-1]),
                   mean=unit(states.astype(numpy.float64).mean(axis=0)))


def main(golden):
    models = {name: list(cases(os.path.join(golden, "models", name), kind, seed))
              for seed, (name, kind) in enumerate(KINDS.items())}
    made = f"tools/export-embeddings.py, transformers {transformers.__version__}, " \
           f"flax {flax.__version__}, jax {jax.__version__}, fp32"
    with open(os.path.join(golden, "embeddings.json"), "w") as f:
        f.write('{"made": ' + json.dumps(made) + ', "models": {\n')
        f.write(",\n".join(f' "{name}": [\n' + ",\n".join("  " + json.dumps(c) for c in list_) + "]"
                           for name, list_ in models.items()))
        f.write("}}\n")


main(*sys.argv[1:])
