/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A generation: one request of the API, from its parsed form to the answer. It
 * owns the scheduler requests of its prompts and choices, and their output.
 *
 * Threads: the engine thread delivers tokens into it and never waits for a
 * client. One front-end thread at a time reads from it. When the client leaves,
 * the front end detaches: the scheduler requests are cancelled, and the memory is
 * freed when the last of them has ended.
 */
#ifndef MX_DAEMON_SERVE_GENERATE_H
#define MX_DAEMON_SERVE_GENERATE_H

#include "daemon/serve/service.h"
#include "proto/request.h"
#include "proto/response.h"

struct mx_generation;

/* Called when there is something new to read, on the engine thread and under a lock: it must not
 * wait and must not call the generation. After a call the next one comes only after a read. */
struct mx_wake {
	void (*fn)(void *arg);
	void *arg;
};

/* For `who` (NULL = nobody in particular): tokenises the prompts, takes memory for the answer from
 * the service's budget, and submits every choice; takes as long as tokenising takes. The request is
 * not needed afterwards. On failure *err is filled and nothing runs. */
mx_status mx_generate(struct mx_service *s, struct mx_principal *who,
                      const struct mx_api_request *r, struct mx_wake wake,
                      struct mx_generation **out, struct mx_api_error *err);

/* Returns the name of the model, valid as long as the generation. */
const char *mx_generation_model(const struct mx_generation *g);

/* True if every choice has ended, or the generation was aborted. */
bool mx_generation_finished(struct mx_generation *g);

/* New output of one choice. */
struct mx_gen_event {
	/* What is new of the choice. finish_reason is set in its last event. Pointers are valid until
	 * the next call of mx_generation_next. Of a stream that is text, reasoning, or a part of one
	 * call: its beginning with id and name, a piece of its arguments, or its end. */
	struct mx_api_choice choice;
	bool opens; /* the choice of a chat begins: there is no output yet */
	/* Instead of these: an embedding, as the request wants it, or else (NULL) the score of a pair.
	 * choice.index is the number of the input, or of the document. */
	const float *vector; /* [n_vector] */
	uint32_t n_vector;
	float score;
};

enum mx_gen_next {
	MX_GEN_EVENT, /* *e is filled */
	MX_GEN_WAIT,  /* there is nothing new: a wake call will follow */
	MX_GEN_END,   /* the last event of the last choice was read */
	MX_GEN_ERROR, /* the generation has ended with *err */
};
/* Returns the next event. If the request is to be streamed: output as it comes, in parts of bounded
 * size; all choices have turns. Else all output of a choice is one event, and the first comes when
 * all choices have ended. */
enum mx_gen_next mx_generation_next(struct mx_generation *g, struct mx_gen_event *e,
                                    struct mx_api_error *err);
/* Counts the tokens up to the last event; for the reader. */
struct mx_api_usage mx_generation_usage(const struct mx_generation *g);

/* What the log of requests says of a generation. */
struct mx_generation_figures {
	const char *model; /* name of the model, valid as long as the generation */
	/* A prompt counts once for all its choices. Cached tokens are known of choices that have ended.
	 */
	uint64_t prompt_tokens, cached_tokens, output_tokens;
	bool scheduled;          /* queue_ns is known */
	uint64_t queue_ns;       /* the shortest wait of a choice for its first step */
	uint64_t first_token_ns; /* by mx_now_ns; 0 = none came */
	char finish[40];         /* the choices' reasons, each once: stop, length, cancelled, error */
};
/* Sums up a generation, at any time. Fails with the error that
 * ended it. */
mx_status mx_generation_figures(struct mx_generation *g, struct mx_generation_figures *out,
                                struct mx_api_error *err);

/* Ends the generation with an error, which is what a reader gets next. */
void mx_generation_abort(struct mx_generation *g);

/* Gives up the reader's reference. There are no wake calls after this returns; running requests are
 * cancelled. Takes NULL. */
void mx_generation_detach(struct mx_generation *g);

#endif
