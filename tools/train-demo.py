#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the bundled attention-only model: a small Llama with its own byte-level BPE, on
public-domain books.

    tools/train-demo.py --train books-train.txt.xz --valid books-valid.txt.xz --out DIR
    tools/train-demo.py --evaluate DIR --valid TEXT

Output: a folder in Hugging Face form (config.json, model.safetensors in bf16, tokenizer.json, ...)
and training.json with the measurements. Needs torch (2.9 or later, a GPU), tokenizers and
safetensors. Data, validation figure and training loop: demo_training.py.
"""

import argparse
import os
import time

import demo_training as demo
import torch
from demo_training import CONTEXT, EOT, VOCAB
from tokenizers import decoders, models, pre_tokenizers, processors, trainers, Tokenizer

SHAPE = dict(width=320, layers=9, heads=5, kv_heads=1, head_dim=64, ffn=896)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] | trim }}"
    "{% if not loop.last %}{{ '\\n\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n\\n' }}{% endif %}"
)

CONFIG = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=SHAPE["width"],
    intermediate_size=SHAPE["ffn"], num_hidden_layers=SHAPE["layers"],
    num_attention_heads=SHAPE["heads"], num_key_value_heads=SHAPE["kv_heads"],
    head_dim=SHAPE["head_dim"], rope_scaling=None, attention_bias=False, mlp_bias=False)


def train_tokenizer(books):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(books, trainer)
    tok.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A", pair=f"{EOT} $A {EOT} $B", special_tokens=[(EOT, 0)]
    )
    assert tok.token_to_id(EOT) == 0 and tok.get_vocab_size() == VOCAB
    return tok


def write_tokenizer(tok, out):
    os.makedirs(out, exist_ok=True)
    tok.save(os.path.join(out, "tokenizer.json"))
    demo.write_json(out, "generation_config.json",
                    dict(bos_token_id=0, eos_token_id=0, temperature=0.8, top_p=0.95))
    demo.write_json(out, "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=EOT, eos_token=EOT,
        model_max_length=CONTEXT, clean_up_tokenization_spaces=False, chat_template=CHAT_TEMPLATE))


def llama():
    mixers = [demo.Attention(SHAPE) for _ in range(SHAPE["layers"])]
    return demo.LanguageModel(SHAPE, "self_attn", mixers)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    demo.add_arguments(ap)
    args = ap.parse_args()
    if args.evaluate and args.valid:
        text = demo.first_bytes(demo.read_text(args.valid), args.limit)
        demo.evaluate_folder(llama(), args.evaluate, text)
        return
    if not (args.train and args.valid and args.out):
        ap.error("--train, --valid and --out are needed")
    torch.manual_seed(args.seed)
    start = time.time()
    books = [b for path in args.train for b in demo.books_of(demo.read_text(path))]
    tok = train_tokenizer(books)
    write_tokenizer(tok, args.out)
    stream = demo.encode_books(tok, books)
    print(f"{len(books)} books, {time.time() - start:.0f} s", flush=True)
    demo.train_and_export(llama(), CONFIG, tok, stream, args)


if __name__ == "__main__":
    main()
