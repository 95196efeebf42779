#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""By hand: embeddings, and Ollama's API, as frameworks use them, against the bundled models.

    python3 -m venv v && v/bin/pip install langchain-openai langchain-ollama \\
        llama-index-embeddings-openai-like llama-index-embeddings-ollama llama-index-llms-ollama
    cd BUILD && srcdir=.. builddir=$PWD v/bin/python ../tests/e2e/clients_embed.py

What each framework needs to be told stands beside its call. Last run in November 2026 with langchain-openai
1.7.3, langchain-ollama 1.1.0, llama-index-embeddings-openai-like 0.4.0 and -ollama 0.10.0, ollama 0.6.3.
"""
import importlib.metadata
import math
import sys

from harness import ATTENTION, Mixd, Skip, main, server


def version(package):
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError as e:
        raise Skip(f"no {package}") from e


def check(s, one, many, texts):
    """The vectors are those of /v1/embeddings."""
    expect = [d["embedding"] for d in s.post("/v1/embeddings", {"input": texts})[2]["data"]]
    assert len(many) == len(texts)
    for got, want in zip([one] + many, expect[:1] + expect):
        assert len(got) == len(want) and math.dist(got, want) < 1e-5


TEXTS = ["The old man looked at the sea", "a mountain", "naïve 😀"]


@server(Mixd, models={"base": ATTENTION})
def test_langchain_openai(s):
    print(" ", version("langchain-openai"))
    from langchain_openai import OpenAIEmbeddings
    # else it sends the token ids of OpenAI's own models
    e = OpenAIEmbeddings(base_url=f"http://{s.host}:{s.port}/v1", api_key="none", model="base",
                         check_embedding_ctx_length=False)
    check(s, e.embed_query(TEXTS[0]), e.embed_documents(TEXTS), TEXTS)


@server(Mixd, models={"base": ATTENTION})
def test_langchain_ollama(s):
    print(" ", version("langchain-ollama"))
    from langchain_ollama import OllamaEmbeddings, OllamaLLM
    url = f"http://{s.host}:{s.port}"
    e = OllamaEmbeddings(base_url=url, model="base")
    check(s, e.embed_query(TEXTS[0]), e.embed_documents(TEXTS), TEXTS)
    llm = OllamaLLM(base_url=url, model="base", num_predict=8, temperature=0)
    whole = llm.invoke("The sea")
    assert whole and "".join(llm.stream("The sea")) == whole


@server(Mixd, models={"base": ATTENTION})
def test_llama_index(s):
    print(" ", version("llama-index-embeddings-openai-like"))
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    e = OpenAILikeEmbedding(model_name="base", api_base=f"http://{s.host}:{s.port}/v1",
                            api_key="none")
    check(s, e.get_text_embedding(TEXTS[0]), e.get_text_embedding_batch(TEXTS), TEXTS)


@server(Mixd, models={"base": ATTENTION})
def test_llama_index_ollama(s):
    print(" ", version("llama-index-embeddings-ollama"))
    from llama_index.embeddings.ollama import OllamaEmbedding
    from llama_index.llms.ollama import Ollama
    url = f"http://{s.host}:{s.port}"
    e = OllamaEmbedding(model_name="base", base_url=url)
    check(s, e.get_text_embedding(TEXTS[0]), e.get_text_embedding_batch(TEXTS), TEXTS)
    llm = Ollama(model="base", base_url=url, request_timeout=60, context_window=1024,
                 additional_kwargs={"num_predict": 8})
    assert llm.complete("The sea").text


main(sys.modules[__name__])
