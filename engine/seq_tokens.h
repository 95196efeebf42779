/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokens of a sequence: the prompt, which is the caller's and may be shared by many sequences,
 * and behind it the sequence's own output.
 */
#ifndef MX_ENGINE_SEQ_TOKENS_H
#define MX_ENGINE_SEQ_TOKENS_H

#include <stdint.h>
#include <string.h>

struct mx_seq_tokens {
	const int32_t *prompt; /* [n_prompt] */
	uint32_t n_prompt;
	int32_t *output; /* the token at position n_prompt + i is output[i] */
};

/* Returns the token at a position. */
static inline int32_t mx_seq_token(const struct mx_seq_tokens *t, uint32_t at)
{
	return at < t->n_prompt ? t->prompt[at] : t->output[at - t->n_prompt];
}

/* Returns the tokens at positions at .. at + *out_n - 1, which lie one behind the other: all up to
 * `end`, or up to the end of the prompt if that comes first. at < end. */
static inline const int32_t *mx_seq_tokens_run(const struct mx_seq_tokens *t, uint32_t at,
                                               uint32_t end, uint32_t *out_n)
{
	if (at >= t->n_prompt) {
		*out_n = end - at;
		return t->output + (at - t->n_prompt);
	}
	*out_n = (end < t->n_prompt ? end : t->n_prompt) - at;
	return t->prompt + at;
}

/* Copies the tokens at positions at .. end - 1 to `to`. */
static inline void mx_seq_tokens_copy(const struct mx_seq_tokens *t, uint32_t at, uint32_t end,
                                      int32_t *to)
{
	for (uint32_t n; at < end; at += n, to += n) {
		const int32_t *run = mx_seq_tokens_run(t, at, end, &n);
		memcpy(to, run, n * sizeof *to);
	}
}

#endif
