/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of the OpenAI API as plain structs.
 *
 * Parsing checks everything that can be checked without the model: types,
 * ranges, combinations, and that every field is known (fields.c). Fields that
 * would change the answer in a way that this server does not support are refused.
 * A request owns its memory, into which its strings and arrays point;
 * mx_api_request_free frees it.
 */
#ifndef MX_PROTO_REQUEST_H
#define MX_PROTO_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "device/sampling.h" /* struct mx_logit_bias */
#include "proto/constraint.h"
#include "proto/error.h"
#include "proto/text.h"

#define MX_API_MAX_CHOICES  128  /* n */
#define MX_API_MAX_PROMPTS  2048 /* prompts of one request */
#define MX_API_MAX_STOPS    64   /* stop strings, and stop token ids */
#define MX_API_MAX_STOP_LEN 1024 /* bytes of a stop string */
#define MX_API_MAX_BIAS     1024 /* entries of logit_bias */
#define MX_API_MAX_SALT     1024 /* bytes of cache_salt */
#define MX_API_UNSET        INT32_MIN

/* What a parser does with fields that have no meaning on its route. NULL in its place: refuses
 * them. */
struct mx_api_unknown {
	bool allow;     /* take the request nevertheless */
	char text[200]; /* out: the fault of the first such field; empty if there is none */
};

enum mx_api_kind {
	MX_API_COMPLETION = 1,
	MX_API_CHAT = 2,
	/* These give no text, but what their prompts end in: */
	MX_API_EMBEDDING = 3, /* a vector of each prompt */
	MX_API_SCORE = 4,     /* a number for each pair of texts */
};

static inline bool mx_api_is_pooled(enum mx_api_kind kind)
{
	return kind == MX_API_EMBEDDING || kind == MX_API_SCORE;
}

/* One prompt: token ids if `ids` is not NULL, else text. */
struct mx_api_prompt {
	struct mx_api_text text;
	const int32_t *ids; /* [n_ids], each >= 0 */
	uint32_t n_ids;
};

/* What becomes of the reasoning in an answer. */
enum mx_api_reasoning {
	MX_REASONING_APART, /* it is told from the content */
	MX_REASONING_HIDDEN,
	MX_REASONING_INLINE, /* it stays in the text, with its marks */
};

struct mx_api_request {
	enum mx_api_kind kind;
	struct mx_api_text model;

	/* Completions, embeddings and scores. */
	const struct mx_api_prompt *prompts; /* [n_prompts], at least 1 */
	uint32_t n_prompts;
	bool echo;

	/* Embeddings. */
	int64_t dimensions; /* -1 = all */
	bool truncate;      /* a prompt may be cut to the model's context */

	/* Scores: the first n_queries prompts are queries, the others documents. There is one query for
	 * all documents, or one for each. All are texts. */
	uint32_t n_queries;
	struct mx_api_text instruction; /* s is NULL if absent */
	uint64_t kept_bytes; /* of the request that its writer holds until the answer is sent */

	/* Chat; borrowed from `root`. */
	json_t *messages;      /* content is a string, absent, null, or a list of text parts */
	json_t *places;        /* where the client has each message, for errors; NULL = "messages[i]" */
	json_t *tools;         /* NULL = none */
	json_t *documents;     /* NULL = none */
	json_t *template_vars; /* chat_template_kwargs, NULL = none */
	struct mx_api_text reasoning_effort; /* for the template; s is NULL if absent */
	bool add_generation_prompt;
	bool must_call;        /* the answer has to call a tool: */
	const char *call_name; /* this one, NULL = any */
	bool parse_calls;      /* calls in the answer are told from its text */
	bool parallel_calls;   /* the answer may have several */
	enum mx_api_reasoning reasoning;
	int64_t thinking_budget; /* most tokens of reasoning; -1 = as many as the model likes */
	/* Members reasoning_content of messages go where the template reads them and are dropped
	 * elsewhere: clients of agents' APIs send back all that they got. Else they are refused there.
	 */
	bool may_drop_reasoning;

	/* Not in the request: NaN for these floats, MX_API_UNSET for top_k. */
	float temperature, top_p, min_p, repetition_penalty;
	float presence_penalty, frequency_penalty; /* 0 if not in the request */
	int64_t top_k;                             /* 0 or -1 = off */
	const struct mx_logit_bias *bias;          /* [n_bias] */
	uint32_t n_bias;
	bool has_seed;
	uint64_t seed;

	int64_t n;                   /* choices per prompt */
	int64_t max_tokens;          /* -1 = as many as fit */
	bool max_tokens_default;     /* max_tokens is our default: it may be cut to what fits */
	const char *prompt_name;     /* the client's name for prompts, for errors; NULL = "prompt" */
	const char *max_tokens_name; /* the client's name for it, for errors; NULL = "max_tokens" */
	int64_t min_tokens;
	bool ignore_eos;
	bool speculation; /* drafts may be proposed, where the model has a source of them */
	struct mx_api_text prediction; /* what the answer probably resembles; s NULL = nothing known */
	const struct mx_api_text *stops; /* [n_stops], none empty */
	uint32_t n_stops;
	const int32_t *stop_ids; /* [n_stop_ids] */
	uint32_t n_stop_ids;
	bool include_stop; /* the text includes the stop string */
	struct mx_api_constraint
		constraint; /* of the output's form; its json is borrowed from `root` */

	int64_t logprobs; /* -1 = none, else the number of alternatives */
	bool return_token_ids;
	bool add_special, skip_special;
	bool stream, include_usage, continuous_usage;
	int64_t priority; /* lower is served first */
	struct mx_api_text cache_salt;

	struct mx_api_unknown *unknown; /* as mx_api_parse got it */

	/* The memory of all fields above. */
	struct mx_arena arena;
	json_t *root;
};

/* Makes a request in which nothing is set: the defaults. */
void mx_api_request_init(struct mx_api_request *r, enum mx_api_kind kind);
/* Checks that all values are in their ranges and fit each other, whatever they were read from;
 * mx_api_parse has called it. Fails with the name of the field. Afterwards the integers fit an
 * int32_t. What only the model knows (its context, its vocabulary) is checked by mx_generate. */
mx_status mx_api_check(struct mx_api_request *r, struct mx_api_error *err);

/* Parses the body of /v1/completions or /v1/chat/completions. On failure *err is filled and *out is
 * not touched. The members of messages are not checked: which ones there are depends on the model
 * (mx_api_check_message). */
mx_status mx_api_parse(enum mx_api_kind kind, const char *body, size_t len,
                       struct mx_api_unknown *unknown, struct mx_api_request *out,
                       struct mx_api_error *err);
/* The same for an object that is already parsed, or was made of a request of another API. `root` is
 * taken over, on failure too. */
mx_status mx_api_parse_json(enum mx_api_kind kind, json_t *root, struct mx_api_unknown *unknown,
                            struct mx_api_request *out, struct mx_api_error *err);
/* Checks a list of tools, NULL or not: each is a function with a name of its own, and parameters
 * that are an object or absent. */
mx_status mx_api_check_tools(const json_t *tools, struct mx_api_error *err);
/* Reads tool_choice from r->root, once the tools are read; mx_api_parse has called it. "none" hides
 * the tools. */
mx_status mx_api_choose_tool(struct mx_api_request *r, struct mx_api_error *err);
void mx_api_request_free(struct mx_api_request *r); /* takes NULL and zeroed requests */

/* Says which members of a message the chat template of a model reads. */
struct mx_api_reader {
	bool (*reads)(void *arg, const char *name);
	void *arg;
};
/* Checks the names of a message's members, as the parsers check those of a request: fails with a
 * 400 for one that neither the template reads nor OpenAI's API knows, unless `unknown` allows it.
 * `at`: where the client has the message, for the error. */
mx_status mx_api_check_message(const json_t *message, const char *at,
                               const struct mx_api_reader *reader, struct mx_api_unknown *unknown,
                               struct mx_api_error *err);

/* A request to /tokenize: a text ({"prompt"} or {"content"}) or a chat ({"messages"}). */
struct mx_api_tokenize {
	struct mx_api_text model;
	struct mx_api_text text; /* s is NULL for a chat */
	json_t *messages, *tools, *template_vars;
	struct mx_api_text reasoning_effort;
	bool add_generation_prompt;
	bool may_drop_reasoning; /* as in struct mx_api_request */
	bool add_special;
	bool pieces;                    /* token_strs is wanted */
	struct mx_api_unknown *unknown; /* as mx_api_parse_tokenize got it */
	json_t *root;
};
mx_status mx_api_parse_tokenize(const char *body, size_t len, struct mx_api_unknown *unknown,
                                struct mx_api_tokenize *out, struct mx_api_error *err);
void mx_api_tokenize_free(struct mx_api_tokenize *r);

/* A request to /detokenize. */
struct mx_api_detokenize {
	struct mx_api_text model;
	const int32_t *ids; /* each >= 0 */
	uint32_t n_ids;
	const char *ids_name; /* the client's name for them, for errors; NULL = "tokens" */
	bool skip_special;
	struct mx_arena arena;
	json_t *root;
};
mx_status mx_api_parse_detokenize(const char *body, size_t len, struct mx_api_unknown *unknown,
                                  struct mx_api_detokenize *out, struct mx_api_error *err);
void mx_api_detokenize_free(struct mx_api_detokenize *r);

#endif
