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

#include "daemon/serve/pending.h"
#include "daemon/serve/service.h"
#include "daemon/serve/stops.h"
#include "proto/request.h"
#include "proto/response.h"

/* Most special tokens of a format of calls and one of reasoning. */
#define MX_CHOICE_SHOWN 16

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

	/* How calls and reasoning are told from the rest of a chat's answers; both NULL: they are not.
	 */
	const struct mx_tool_format *calls;
	const struct mx_reasoning_format *reasoning;
	bool reasoning_open;               /* the prompt has begun the reasoning */
	bool reasoning_over;               /* the prompt has ended it, or the client wants none */
	bool drop_reasoning;               /* the client does not want it */
	bool one_call;                     /* an answer ends with its first call */
	const struct mx_tool_types *types; /* of the request's tools, NULL = not known */
	/* [n_shown] special tokens that the parser needs in the text, though others are left out */
	int32_t shown[MX_CHOICE_SHOWN];
	uint32_t n_shown;
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

	struct mx_tool_parser *parser; /* NULL: the text is given on as it is */
	uint32_t n_reasoning;          /* tokens of reasoning so far */
	uint32_t n_calls;              /* calls that are complete */
	uint32_t n_broken;             /* what began as calls and is none */
	bool closed;                   /* the rest of the output is not wanted */
};

/* Makes the parser that the rules ask for. `seed`: of the ids of calls. False if memory ran out. */
bool mx_choice_parse(struct mx_choice *c, uint64_t seed);

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
 * the text ends here: a stop string or the only call is complete, or memory ran out. */
bool mx_choice_token(struct mx_choice *c, int32_t id, bool is_stop, const struct mx_logprob *lp);
/* Ends the text: what was held back becomes ready. cut: the output has the most tokens it may. */
void mx_choice_finish(struct mx_choice *c, bool cut);

#endif
