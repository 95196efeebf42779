/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary in a GGUF file's metadata. Private to model/gguf/. */
#ifndef MX_MODEL_GGUF_TOKENS_H
#define MX_MODEL_GGUF_TOKENS_H

#include "base/buf.h"
#include "base/mem.h"
#include "model/gguf/gguf.h"

#define MX_GGUF_MAX_TOKENS (1u << 24)
#define MX_GGUF_MAX_ENDS   16

/* The format's numbers (tokenizer.ggml.token_type). */
enum mx_gguf_token_type {
	MX_GGUF_TOKEN_NORMAL = 1,
	MX_GGUF_TOKEN_UNKNOWN = 2,
	MX_GGUF_TOKEN_CONTROL = 3,
	MX_GGUF_TOKEN_USER = 4,
	MX_GGUF_TOKEN_UNUSED = 5,
	MX_GGUF_TOKEN_BYTE = 6,
};

struct mx_gguf_token {
	struct mx_gguf_string text;
	enum mx_gguf_token_type type;
	float score;
};

/* Reads tokens, types and scores into *out [*n], which the caller frees with free(). All texts are
 * valid UTF-8. MX_E_NOTFOUND if the file has no tokenizer. */
mx_status mx_gguf_tokens(const struct mx_gguf *g, struct mx_gguf_token **out, uint32_t *n,
                         struct mx_err *err);
/* Fills ids [MX_GGUF_MAX_ENDS] with the tokens that end a text or a turn; *bos is -1 if there is
 * none. A file without a tokenizer has none. */
mx_status mx_gguf_ends(const struct mx_gguf *g, int32_t *ids, size_t *n, int32_t *bos,
                       struct mx_err *err);

/* Appends a JSON string; the text is valid UTF-8. */
void mx_gguf_put(struct mx_buf *b, const char *s, size_t n);
/* True for valid UTF-8 without U+0000. */
bool mx_gguf_valid(struct mx_gguf_string s);

/* Appends the list of merges, as JSON, by which SentencePiece's rule of the highest score is
 * followed. merges.c */
mx_status mx_gguf_put_merges(struct mx_buf *b, const struct mx_gguf_token *tokens, uint32_t n,
                             struct mx_err *err);

/* How texts are cut before they are merged: one of tokenizer.ggml.pre. pre.c */
struct mx_gguf_pre {
	const char *names;         /* separated by blanks */
	const char *normalizer;    /* JSON; NULL = none */
	const char *pre_tokenizer; /* JSON */
	bool ignore_merges, add_bos;
};
/* NULL for a name that is not known. */
const struct mx_gguf_pre *mx_gguf_pre_named(struct mx_gguf_string name);

#endif
