/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a Hugging Face folder, made of a GGUF file's metadata. */
#ifndef MX_MODEL_GGUF_TEXTS_H
#define MX_MODEL_GGUF_TEXTS_H

#include "base/buf.h"
#include "model/gguf/gguf.h"

/* Makes the text of a file: "config.json", "generation_config.json", "tokenizer.json",
 * "tokenizer_config.json", or for RWKV "rwkv_vocab_v20230424.txt". *out is NUL-terminated; free it
 * with free(). MX_E_NOTFOUND for other names, MX_E_UNSUPPORTED for what is not supported here. */
mx_status mx_gguf_file(const char *path, const char *name, char **out, size_t *out_len,
                       struct mx_err *err);
/* The same of an open file. */
mx_status mx_gguf_make(const struct mx_gguf *g, const char *name, char **out, size_t *out_len,
                       struct mx_err *err);
/* True if the file's norms hold 1 + w where config.json's model_type has w. */
bool mx_gguf_norms_hold_one(const struct mx_gguf *g);
/* Appends the values of general.architecture that files made of this model_type have, separated by
 * commas; nothing if there is none. arch.c */
void mx_gguf_names_of_family(const char *model_type, struct mx_buf *out);

#endif
