/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.json: text to token ids and back, exactly as Hugging Face
 * `tokenizers` does it, for byte-level and SentencePiece-style BPE; and the one
 * character tokenizer that comes without such a file, HyenaDNA's.
 *
 * A tokenizer is immutable after load and safe from any thread; encoding keeps
 * its work memory in the call.
 */
#ifndef MX_MODEL_TOKENIZER_H
#define MX_MODEL_TOKENIZER_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/status.h"

struct mx_tokenizer;

struct mx_tokens {
	int32_t *ids;
	size_t n, cap;
};
void mx_tokens_free(struct mx_tokens *t); /* frees ids, zeroes; takes NULL */

/* Reads DIR/tokenizer.json and, if there, tokenizer_config.json (bos/eos/... token strings,
 * add_bos_token). The first may be absent if the second describes a character tokenizer; otherwise
 * that is MX_E_NOTFOUND. */
mx_status mx_tokenizer_load(const char *dir, struct mx_tokenizer **out, struct mx_err *err);
/* The same from texts in memory; either may be NULL. */
mx_status mx_tokenizer_parse(const char *json, size_t len, const char *config, size_t config_len,
                             struct mx_tokenizer **out, struct mx_err *err);
void mx_tokenizer_destroy(struct mx_tokenizer *t); /* takes NULL */

/* Appends the ids of text[0..len) to *out. add_special: run the post-processor (BOS, ...).
 * Special tokens written in the text are recognised, as in `tokenizers`. Invalid UTF-8 is replaced
 * by U+FFFD first. More than `limit` ids (0 = no limit) gives MX_E_LIMIT. */
mx_status mx_tokenizer_encode(const struct mx_tokenizer *t, const char *text, size_t len,
                              bool add_special, size_t limit, struct mx_tokens *out,
                              struct mx_err *err);

/* Appends the text of the ids to *out, as `tokenizers` decode(skip_special_tokens). Unknown ids
 * are skipped. */
mx_status mx_tokenizer_decode(const struct mx_tokenizer *t, const int32_t *ids, size_t n,
                              bool skip_special, struct mx_buf *out);

/* Streaming decode: feed ids one at a time; text comes out as soon as it is certain, never part of
 * a UTF-8 character. The concatenation equals decode of the whole: what a later token may still
 * change (a run of byte tokens, say) is held back. Zero-initialise; fields after skip_special are
 * private. End with mx_decoder_finish or, when the rest is not wanted, mx_decoder_free. */
#define MX_DECODER_STAGES 8
struct mx_decoder {
	const struct mx_tokenizer *tokenizer;
	bool skip_special;
	struct mx_decoder_stage {
		struct mx_buf held; /* text held back, or scratch */
		size_t state;       /* what the stage counts */
		bool broken;        /* the held run of byte tokens can no longer be UTF-8 */
	} stage[MX_DECODER_STAGES];
};
void mx_decoder_init(struct mx_decoder *d, const struct mx_tokenizer *t, bool skip_special);
/* Appends what became certain to *out. */
mx_status mx_decoder_push(struct mx_decoder *d, int32_t id, struct mx_buf *out);
/* End of text: held-back bytes come out (incomplete UTF-8 as U+FFFD); frees. */
mx_status mx_decoder_finish(struct mx_decoder *d, struct mx_buf *out);
void mx_decoder_free(struct mx_decoder *d); /* takes NULL and zero-initialised ones */

/* Raw bytes of one token as they stand in the text (for logprobs' "bytes"), appended to *out. */
mx_status mx_tokenizer_token_bytes(const struct mx_tokenizer *t, int32_t id, struct mx_buf *out);

/* Number of ids (largest id + 1). */
size_t mx_tokenizer_size(const struct mx_tokenizer *t);
/* Bytes of memory it holds, about. */
size_t mx_tokenizer_bytes(const struct mx_tokenizer *t);
/* The vocabulary's own spelling of an id ("Ġthe", "<s>"), or NULL for an unused id. */
const char *mx_tokenizer_piece(const struct mx_tokenizer *t, int32_t id);
/* Id of exactly this vocabulary entry or added token, or -1. */
int32_t mx_tokenizer_id(const struct mx_tokenizer *t, const char *piece);
bool mx_tokenizer_is_special(const struct mx_tokenizer *t, int32_t id);

/* Token strings from tokenizer_config.json, or NULL: name is "bos_token", "eos_token", "pad_token",
 * "unk_token". */
const char *mx_tokenizer_special(const struct mx_tokenizer *t, const char *name);

#endif
