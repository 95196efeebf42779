/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.json: text to token ids and back, exactly as Hugging Face
 * `tokenizers` does it, for byte-level and SentencePiece-style BPE. Also tekken.json of
 * Mistral's newer checkpoints, and HyenaDNA's character tokenizer and RWKV's, which
 * have no such file.
 *
 * A tokenizer is immutable after load and may be used by any thread; the work
 * memory of encoding belongs to the call.
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
void mx_tokens_free(struct mx_tokens *t); /* frees ids and zeroes *t; takes NULL */
/* Frees the memory behind the last id. */
mx_status mx_tokens_shrink(struct mx_tokens *t);

/* Reads DIR/tokenizer.json, else DIR/tekken.json, and, if it exists, tokenizer_config.json
 * (bos/eos/... token strings). Without the first two, there must be RWKV's
 * rwkv_vocab_v20230424.txt, or tokenizer_config.json must describe a character tokenizer;
 * otherwise MX_E_NOTFOUND, or MX_E_UNSUPPORTED with what to do if the folder has a tokenizer in
 * another form. */
mx_status mx_tokenizer_load(const char *dir, struct mx_tokenizer **out, struct mx_err *err);
/* As mx_tokenizer_load, from texts in memory: that of tokenizer.json or tekken.json, and that of
 * tokenizer_config.json. Either may be NULL. */
mx_status mx_tokenizer_parse(const char *json, size_t len, const char *config, size_t config_len,
                             struct mx_tokenizer **out, struct mx_err *err);
/* As mx_tokenizer_load, from the text of RWKV's vocabulary file; config may be NULL. */
mx_status mx_tokenizer_parse_world(const char *vocab, size_t len, const char *config,
                                   size_t config_len, struct mx_tokenizer **out,
                                   struct mx_err *err);
void mx_tokenizer_destroy(struct mx_tokenizer *t); /* takes NULL */

/* Appends the ids of text[0..len) to *out. add_special: run the post-processor, which adds BOS and
 * the like. Special tokens written in the text are recognised, as in `tokenizers`. Invalid UTF-8 is
 * first replaced by U+FFFD. MX_E_RANGE if there are more than `limit` ids (0 = no limit),
 * MX_E_LIMIT with the reason if the tokenizer refuses the text. */
mx_status mx_tokenizer_encode(const struct mx_tokenizer *t, const char *text, size_t len,
                              bool add_special, size_t limit, struct mx_tokens *out,
                              struct mx_err *err);
/* Returns the most bytes of memory that encoding a text of n bytes takes, ids included. A text that
 * needs more, because it falls into very many parts, is refused with MX_E_UNSUPPORTED. */
size_t mx_tokenizer_encode_memory(size_t n);

/* Appends the text of the ids to *out, as `tokenizers` decode(skip_special_tokens). Unknown ids
 * are skipped. */
mx_status mx_tokenizer_decode(const struct mx_tokenizer *t, const int32_t *ids, size_t n,
                              bool skip_special, struct mx_buf *out);

/* Streaming decoder. Push ids one at a time; text comes out as soon as later ids cannot change it,
 * and only in whole UTF-8 characters. Text that a later id may still change (a run of byte tokens,
 * say) is held back, so all pieces together equal mx_tokenizer_decode of all ids. Fields after
 * skip_special are private. End with mx_decoder_finish or, if the rest is not wanted,
 * mx_decoder_free. */
#define MX_DECODER_STAGES 8
struct mx_decoder {
	const struct mx_tokenizer *tokenizer;
	bool skip_special;
	struct mx_decoder_stage {
		struct mx_buf held; /* text held back, or scratch */
		size_t state;       /* a counter of the stage */
		bool broken;        /* the held run of byte tokens can no longer be UTF-8 */
	} stage[MX_DECODER_STAGES];
};
void mx_decoder_init(struct mx_decoder *d, const struct mx_tokenizer *t, bool skip_special);
/* Pushes one id and appends the text that became certain to *out. */
mx_status mx_decoder_push(struct mx_decoder *d, int32_t id, struct mx_buf *out);
/* Ends the text: appends the held-back bytes (incomplete UTF-8 as U+FFFD) and frees the decoder. */
mx_status mx_decoder_finish(struct mx_decoder *d, struct mx_buf *out);
void mx_decoder_free(struct mx_decoder *d); /* takes NULL and a zeroed decoder */

/* Appends the bytes that one token contributes to a text, for logprobs' "bytes". */
mx_status mx_tokenizer_token_bytes(const struct mx_tokenizer *t, int32_t id, struct mx_buf *out);

/* Returns the number of ids (largest id + 1). */
size_t mx_tokenizer_size(const struct mx_tokenizer *t);
/* Returns the approximate bytes of memory that the tokenizer uses. */
size_t mx_tokenizer_bytes(const struct mx_tokenizer *t);
/* Returns the vocabulary's spelling of an id ("Ġthe", "<s>"), or NULL for an unused id. */
const char *mx_tokenizer_piece(const struct mx_tokenizer *t, int32_t id);
/* Returns the id of exactly this vocabulary entry or added token, or -1. */
int32_t mx_tokenizer_id(const struct mx_tokenizer *t, const char *piece);
bool mx_tokenizer_is_special(const struct mx_tokenizer *t, int32_t id);

/* Returns the string of a token named in tokenizer_config.json, or NULL. name: one of "bos_token",
 * "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token". */
const char *mx_tokenizer_special(const struct mx_tokenizer *t, const char *name);
/* Returns tokenizer_class of tokenizer_config.json; "PreTrainedTokenizerFast" if it names none. */
const char *mx_tokenizer_class(const struct mx_tokenizer *t);

#endif
