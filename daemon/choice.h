/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One choice of an answer: turns the tokens of one sequence into text, finds
 * stop strings across token borders, and keeps what a client has not been
 * given yet.
 *
 * Not thread safe: the generation that holds the choice locks.
 */
#ifndef MX_DAEMON_CHOICE_H
#define MX_DAEMON_CHOICE_H

#include "daemon/service.h"
#include "proto/request.h"
#include "proto/response.h"

/* What is ready to be written and has not been taken yet. */
struct mx_pending {
	struct mx_buf text;
	struct mx_api_token *tokens; /* [n_tokens], if log-probabilities were asked for */
	struct mx_top_token *top;    /* [cap_tokens * stride] */
	size_t n_tokens, cap_tokens;
	int32_t *ids; /* [n_ids], if token ids were asked for */
	size_t n_ids, cap_ids;
};

/* What the choices of one request share. Strings are owned by it. */
struct mx_choice_rules {
	const struct mx_tokenizer *tokenizer;
	struct mx_api_text *stops; /* [n_stops] */
	uint32_t n_stops;
	size_t longest_stop;
	uint32_t min_tokens; /* stop strings are not looked for before */
	bool include_stop;
	bool want_ids;
	int32_t logprobs; /* -1 = none, else alternatives */
	bool skip_special;
};

struct mx_choice {
	const struct mx_choice_rules *rules;
	struct mx_decoder decoder;
	struct mx_buf held;  /* text that may be the beginning of a stop string */
	struct mx_buf piece; /* scratch */
	struct mx_pending ready;
	uint32_t text_chars; /* code points decoded so far, echoed prompt included */
	uint32_t n_output;   /* tokens so far */
	int32_t stop;        /* index of the stop string that was found, -1 = none */
	bool failed;         /* out of memory: the text is not whole */
};

/* Starts a choice after the prompt ids, whose last tokens prime the decoder: a first token that
 * continues a word keeps its space. */
void mx_choice_init(struct mx_choice *c, const struct mx_choice_rules *rules, const int32_t *prompt,
                    size_t n_prompt);
void mx_choice_free(struct mx_choice *c); /* takes zeroed ones */

/* Where a token begins in the text, in code points: `before` are those of the text up to now,
 * *piece is what the decoder made certain when it got the token. That may begin with what earlier
 * tokens held back; a token whose own text is not certain yet begins where the text ends. */
uint32_t mx_choice_offset(const struct mx_tokenizer *t, int32_t id, const struct mx_buf *piece,
                          uint32_t before);

/* Echo: text that comes before the first token. */
void mx_choice_echo(struct mx_choice *c, const char *text, size_t len);
/* Echo: a prompt token's log-probability; NULL for the first token. */
void mx_choice_prompt_token(struct mx_choice *c, int32_t id, uint32_t text_offset,
                            const struct mx_logprob *lp);
/* An output token. is_stop: it ends the text and adds nothing to it. False: a stop string is
 * complete (or memory ran out), so the text ends here. */
bool mx_choice_token(struct mx_choice *c, int32_t id, bool is_stop, const struct mx_logprob *lp);
/* The end: held-back text comes out. */
void mx_choice_finish(struct mx_choice *c);

/* Something to write. */
bool mx_pending_any(const struct mx_pending *p);
/* Points the tokens at their alternatives; before they are written. */
void mx_pending_link(struct mx_pending *p, int32_t logprobs);
void mx_pending_clear(struct mx_pending *p);
void mx_pending_free(struct mx_pending *p);

#endif
