/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a generation, shared by the files generate*.c. */
#ifndef MX_DAEMON_SERVE_GENERATE_IMPL_H
#define MX_DAEMON_SERVE_GENERATE_IMPL_H

#include <pthread.h>

#include "daemon/serve/choice.h"
#include "daemon/serve/generate.h"
#include "daemon/serve/live.h"
#include "daemon/serve/think_limit.h"

/* A prompt, as long as the answer may need it. */
struct mx_gen_prompt {
	struct mx_tokens tokens;
	uint32_t *offsets; /* [tokens.n] code points before each token; only for echo with logprobs */
	size_t echo_bytes; /* of its text; only for echo */
};

/* A choice of the answer and its request in the scheduler. */
struct mx_gen_choice {
	struct mx_generation *g;
	const struct mx_gen_prompt *prompt;
	struct mx_choice text; /* under the lock */
	/* The engine's until the request has ended; NULL = none: what a grammar allows, and a bound on
	 * the reasoning, which is around it. */
	struct mx_constraint *constraint, *think_limit;
	uint64_t id;          /* the scheduler's id of the request, 0 = not submitted; under the lock */
	bool done;            /* the request has ended; under the lock */
	struct mx_done end;   /* valid if done */
	size_t ready_bytes;   /* memory of text.ready as it was accounted; under the lock */
	size_t writing_bytes; /* the same of `writing`; under the lock */
	size_t parser_bytes;  /* the same of text.parser; under the lock */
	float *vector;        /* [n_vector] of the generation; under the lock, until done */
	bool pooled;          /* it has come */

	/* The reader's alone. */
	struct mx_pending writing; /* taken from `text`, to be read next */
	uint32_t n_output;         /* tokens of the output up to `writing`; of a stream, read */
	uint32_t n_reasoning;      /* of them, tokens of reasoning; all of `writing` counts as read */
	bool ended;                /* of a stream: its last event was read; else it was taken */
	/* Of a stream: */
	struct mx_cut at;    /* how much of `writing` was read */
	uint32_t next_cut;   /* index in writing.cuts of the next event's end */
	uint32_t end_output; /* tokens of the output up to the end of `writing` */
	bool last;           /* `writing` holds the end of the output */
	bool began;          /* its first event was read */
};

struct mx_generation {
	pthread_mutex_t lock;
	_Atomic unsigned refs; /* one of the reader, one of each submitted choice */
	struct mx_wake wake;   /* under the lock; fn NULL once detached */
	bool signalled;        /* wake.fn was called since the last read; under the lock */
	_Atomic bool aborted;  /* written under the lock */
	_Atomic bool no_room;  /* the budget had no more for the output; written under the lock */

	struct mx_live *live;           /* the service's */
	char id[MX_REQUEST_ID_LEN + 1]; /* "" = not listed there; under its lock, as the next two */
	uint64_t named_ns;              /* by mx_now_ns */
	TAILQ_ENTRY(mx_generation) live_link;
	_Atomic bool cancelled; /* by an operator */

	struct mx_hold hold;   /* its part of the budget of answers; under the lock */
	uint64_t own_bytes;    /* memory besides the output; constant once requests run */
	uint64_t output_bytes; /* memory of the output of all choices; under the lock */

	/* The reader's alone. */
	uint32_t reading; /* of a stream: index of the choice whose turn it is */
	bool taken;       /* its output was taken in this turn; not of a stream: that of all was */
	uint32_t n_ended; /* choices whose last event was read */
	struct mx_api_call part;   /* of a stream: the call of the event */
	struct mx_api_call *calls; /* of a whole answer: those of the choice that is read */

	struct mx_principal *who; /* pays; NULL = nobody in particular */
	struct mx_served *model;  /* held; read, but for the counters of streams */
	bool chat, stream, return_ids;
	bool speculation;            /* drafts may be proposed */
	struct mx_tokens prediction; /* what the output probably resembles; empty = not known */

	/* Embeddings and scores. */
	enum mx_api_kind kind;
	enum mx_pooling pooling;
	float *vectors;      /* of all choices */
	uint32_t n_vector;   /* elements of a choice's vector */
	uint32_t dimensions; /* elements that are wanted */
	uint32_t n_queries;  /* of the choices that are compared, which come first; 0 = rerankers */
	struct mx_choice_rules rules;
	uint64_t call_seed;              /* of the ids of tool calls */
	struct mx_grammars *grammars;    /* the service's */
	struct mx_grammar_held *grammar; /* of its choices' constraints; NULL = none */
	struct mx_think_rules think;     /* of its choices' limits */
	const char *constrained_by;      /* the field that asked for them */
	const int32_t *stop_ids;         /* [n_stop_ids] stop tokens of the request, without EOS */
	uint32_t n_stop_ids;
	struct mx_gen_prompt *prompts; /* [n_prompts] */
	uint32_t n_prompts;
	struct mx_gen_choice *choices; /* [n_choices] those of the first prompt first */
	uint32_t n_choices;
	uint64_t first_token_ns; /* by mx_now_ns; 0 = no token has come; under the lock */
	uint32_t n_done;         /* choices whose request has ended; under the lock */

	struct mx_api_vocab vocab;
	struct mx_arena arena;
};

/* Cancels the requests of all choices that have not ended. */
void mx_gen_cancel(struct mx_generation *g, enum mx_cancel why);
/* True if every choice has ended, or no more comes for another reason. Under the lock. */
bool mx_gen_is_over(const struct mx_generation *g);
/* Drops a reference; the last one frees the generation. */
void mx_gen_unref(struct mx_generation *g);

/* ---- generate_constrain.c ---- */

/* Makes the constraints and limits of all choices, if the request asks for some. Takes as long as
 * compiling the grammar takes. */
mx_status mx_gen_constrain(struct mx_generation *g, const struct mx_api_request *r,
                           struct mx_api_error *err);
/* Frees them. */
void mx_gen_constrain_end(struct mx_generation *g);

/* ---- generate_memory.c ---- */

/* Takes what the request makes certain from the budget of answers. Fails with 400 if it can never
 * be had, and with 503 if it is not free now. */
mx_status mx_gen_reserve(struct mx_generation *g, const struct mx_api_request *r,
                         const uint32_t *max_tokens, struct mx_api_error *err);
/* Tells a new choice how much can come at most, so that it grows to no more than was reserved. */
void mx_gen_expect(struct mx_gen_choice *choice, const struct mx_api_request *r,
                   uint32_t max_tokens);
/* Accounts for the memory of a choice's output. False if the budget has no more for it: then the
 * generation has failed. Under the lock. */
bool mx_gen_account(struct mx_gen_choice *choice);
/* Frees the output of a choice that was written. Reader, under the lock. */
void mx_gen_shrink(struct mx_gen_choice *choice);

/* ---- generate_calls.c ---- */

/* Returns true if calls of the answer are constrained: they are asked for, a tool is `strict`, or
 * the rest of the answer is constrained. */
bool mx_gen_constrains_calls(const struct mx_generation *g, const struct mx_api_request *r);
/* Finds or makes the grammar of such an answer. */
mx_status mx_gen_take_calls(struct mx_generation *g, const struct mx_api_request *r,
                            struct mx_api_error *err);

/* Sets how a chat's answers are told apart. MX_E_NOMEM is the only error. */
mx_status mx_gen_parse_rules(struct mx_generation *g, const struct mx_api_request *r,
                             struct mx_api_error *err);

/* ---- generate_pooled.c: embeddings and scores ---- */

/* Returns the number of prompts that a request makes of the model. */
uint32_t mx_gen_count_prompts(const struct mx_served *m, const struct mx_api_request *r);
/* Decides how the vectors are made. Fails with 400 if the model, or the request, does not suit. */
mx_status mx_gen_pooled_plan(struct mx_generation *g, const struct mx_api_request *r,
                             struct mx_api_error *err);
/* Makes room for the vectors, which was reserved. MX_E_NOMEM */
mx_status mx_gen_pooled_alloc(struct mx_generation *g);
/* Appends the text of a reranker's prompt i. */
void mx_gen_rerank_text(const struct mx_served *m, const struct mx_api_request *r, uint32_t i,
                        struct mx_buf *out);
/* Takes a vector [n] from the scheduler. */
void mx_gen_on_vector(void *arg, const float *vector, uint32_t n);

/* ---- generate_vectors.c ---- */

/* mx_generation_next of embeddings and scores. */
enum mx_gen_next mx_gen_next_pooled(struct mx_generation *g, struct mx_gen_event *e,
                                    struct mx_api_error *err);

/* ---- generate_write.c: for the reader ---- */

/* Returns the error that ended the generation; MX_OK if there is none. Under the lock. */
mx_status mx_gen_error(const struct mx_generation *g, struct mx_api_error *err);
/* Takes the output that is ready, so that it can be rendered without the lock. True if the choice
 * has ended. Under the lock. */
bool mx_gen_take(struct mx_gen_choice *choice);
/* Takes the output of all choices of a whole answer once they have ended. */
enum mx_gen_next mx_gen_take_all(struct mx_generation *g, struct mx_api_error *err);
/* Describes the output that was taken; the caller adds the end of the choice. */
struct mx_api_choice mx_gen_describe(const struct mx_generation *g, uint32_t index);
/* Adds the calls of a whole answer, valid until the next use. MX_E_NOMEM is the only error. */
mx_status mx_gen_add_calls(struct mx_generation *g, const struct mx_gen_choice *choice,
                           struct mx_api_choice *c, struct mx_api_error *err);
/* Adds the prompt's token ids, if the request wants them. */
void mx_gen_add_prompt_ids(const struct mx_generation *g, const struct mx_gen_choice *choice,
                           struct mx_api_choice *c);
/* Sets finish_reason and stop_reason of a choice that has ended. */
void mx_gen_set_finish(const struct mx_generation *g, const struct mx_gen_choice *choice,
                       struct mx_api_choice *c);

#endif
