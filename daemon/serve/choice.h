/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One choice of an answer: turns the tokens of one sequence into text, finds
 * stop strings across token borders, and holds the output that was not yet
 * written to the client.
 *
 * Not thread safe: the generation that owns the choice locks.
 */
#ifndef MX_DAEMON_SERVE_CHOICE_H
#define MX_DAEMON_SERVE_CHOICE_H

#include "daemon/serve/service.h"
#include "daemon/serve/stops.h"
#include "proto/request.h"
#include "proto/response.h"

/* A place between two tokens of the output: how much of a pending output is before it. */
struct mx_cut {
	size_t text; /* bytes */
	size_t n_tokens, n_ids;
	uint32_t n_output; /* tokens of the choice's output */
};

/* Most events that a stream's backlog makes: tokens beyond that are joined in the last one. A
 * client that reads at least every 32nd token gets one event a token. */
#define MX_MAX_CUTS 32

/* Output that is ready to be written. */
struct mx_pending {
	struct mx_buf text;
	struct mx_api_token *tokens; /* [n_tokens], if log-probabilities are wanted */
	struct mx_top_token *top;    /* [cap_tokens * alternatives of a token]; likeliest first */
	size_t n_tokens, cap_tokens;
	int32_t *ids; /* [n_ids], if token ids are wanted */
	size_t n_ids, cap_ids;
	struct mx_cut *cuts; /* [n_cuts] the end of each event, if the output is streamed */
	uint32_t n_cuts;
};

/* Data that the choices of one request share. The generation owns the strings. */
struct mx_choice_rules {
	const struct mx_tokenizer *tokenizer;
	struct mx_api_text *stops; /* [n_stops] */
	uint32_t n_stops;
	struct mx_stops automaton; /* of `stops` */
	uint32_t min_tokens;       /* stop strings count only after so many tokens */
	bool include_stop;         /* a stop string found is part of the text */
	bool want_ids;
	bool echo;
	bool want_cuts;   /* the output is streamed: an event for each token */
	int32_t logprobs; /* number of alternatives; -1 = no log-probabilities */
	bool skip_special;
};

struct mx_choice {
	const struct mx_choice_rules *rules;
	struct mx_decoder decoder;
	struct mx_buf held;           /* text held back: it may be the beginning of a stop string */
	struct mx_stop_cursor cursor; /* state of the text up to the end of `held` */
	struct mx_buf piece;          /* scratch */
	struct mx_pending ready;
	uint32_t text_chars; /* code points decoded so far, echoed prompt included */
	uint32_t n_output;   /* tokens so far */
	size_t most_tokens;  /* log-probabilities that can come at most, 0 = not known */
	size_t most_ids;     /* the same of token ids */
	uint32_t max_output; /* a token that is this many ends the output; 0 = unknown */
	bool ended;          /* the last token has come; what it adds goes with the end of the text */
	int32_t stop;        /* index of the stop string that was found, -1 = none */
	bool failed;         /* out of memory: the text is incomplete */
};

/* Starts a choice behind a prompt. The prompt's last tokens prime the decoder, so that the first
 * output token is decoded as the continuation it is, with its leading space. */
void mx_choice_init(struct mx_choice *c, const struct mx_choice_rules *rules, const int32_t *prompt,
                    size_t n_prompt);
void mx_choice_free(struct mx_choice *c); /* takes zeroed ones */

/* Returns the offset in code points at which a token begins in the text. `before`: code points of
 * the text so far. *piece: the text that the decoder gave out when it got the token; it may begin
 * with text of earlier tokens that was held back. A token whose own text is still held back begins
 * at the end of the text. */
uint32_t mx_choice_offset(const struct mx_tokenizer *t, int32_t id, const struct mx_buf *piece,
                          uint32_t before);

/* For echo: adds text in front of the first token. */
void mx_choice_echo(struct mx_choice *c, const char *text, size_t len);
/* For echo: adds a prompt token's log-probability, NULL for the first token. */
void mx_choice_prompt_token(struct mx_choice *c, int32_t id, uint32_t text_offset,
                            const struct mx_logprob *lp);
/* Adds an output token. is_stop: the token ends the text and adds nothing to it. Returns false if
 * the text ends here: a stop string is complete, or memory ran out. */
bool mx_choice_token(struct mx_choice *c, int32_t id, bool is_stop, const struct mx_logprob *lp);
/* Ends the text: what was held back becomes ready. */
void mx_choice_finish(struct mx_choice *c);

/* True if there is something to write. */
bool mx_pending_any(const struct mx_pending *p);
/* Returns the bytes of heap that it has. `logprobs`: as in the rules. */
size_t mx_pending_bytes(const struct mx_pending *p, int32_t logprobs);
void mx_pending_clear(struct mx_pending *p);
void mx_pending_free(struct mx_pending *p);

#endif
