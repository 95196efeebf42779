/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns a request's text or messages into token ids. Limits prevent that a prompt
 * which is much too long is tokenised. Pure functions on a model. They may take
 * long (a second for a megabyte), so no thread that serves others may call them
 * for large texts.
 */
#ifndef MX_DAEMON_SERVE_PROMPT_H
#define MX_DAEMON_SERVE_PROMPT_H

#include "daemon/serve/service.h"
#include "proto/request.h"

/* Finds the model that a request of `who` names; a request without a name means the only model
 * there is. The caller ends its hold with mx_served_release. Fails with 404 if there is none, with
 * 403 if `who` may not use it, and, if `ready` is true, with 503 while the model loads or drains.
 */
mx_status mx_prompt_take_model(struct mx_service *s, struct mx_principal *who,
                               const struct mx_api_text *name, bool ready, struct mx_served **out,
                               struct mx_api_error *err);

/* Appends the token ids of a text. `bounded`: fails with 400 context_length_exceeded if the text
 * has many more tokens than the model's context; the caller does the exact check. */
mx_status mx_prompt_text(const struct mx_served *m, const struct mx_api_text *text,
                         bool add_special, bool bounded, struct mx_tokens *out,
                         struct mx_api_error *err);

struct mx_prompt_chat {
	json_t *messages;                          /* not NULL */
	const json_t *places;                      /* as in struct mx_api_request */
	json_t *tools, *documents, *template_vars; /* may be NULL */
	struct mx_api_text reasoning_effort;       /* s may be NULL */
	bool add_generation_prompt;
	bool add_special;
	bool may_drop_reasoning;        /* as in struct mx_api_request */
	struct mx_api_unknown *unknown; /* as in struct mx_api_request */
	/* *reasoning_open: true if the prompt ends with the mark that begins reasoning of this format;
	 * *reasoning_over: with the one that ends it, or if the client has switched reasoning off and
	 * the prompt does not begin it nevertheless. All may be NULL. */
	const struct mx_reasoning_format *reasoning;
	bool *reasoning_open, *reasoning_over;
};
/* Renders the chat template and tokenises the result. Fails with 400 for what the template would
 * drop. */
mx_status mx_prompt_chat(const struct mx_served *m, const struct mx_prompt_chat *chat,
                         struct mx_tokens *out, struct mx_api_error *err);

/* Fails with 400 if an id is outside the model's vocabulary. */
mx_status mx_prompt_check_ids(const struct mx_served *m, const int32_t *ids, size_t n,
                              const char *param, struct mx_api_error *err);

/* Fails with 400 if a text has a token that the tokenizer knows and the model does not; the message
 * names the token. */
mx_status mx_prompt_check_text(const struct mx_served *m, const int32_t *ids, size_t n,
                               const char *param, struct mx_api_error *err);

/* Fails with 400 if no token is left before min_tokens: `stops` [n], which are banned until then,
 * are the whole vocabulary. */
mx_status mx_prompt_check_stops(const struct mx_served *m, const int32_t *stops, size_t n,
                                int32_t min_tokens, struct mx_api_error *err);

/* Fails with 400 context_length_exceeded and a message with both lengths. `exact` is false if the
 * prompt has n_prompt tokens or more. max_tokens < 0 leaves the completion out of the message. */
mx_status mx_prompt_too_long(const struct mx_served *m, uint64_t n_prompt, bool exact,
                             int64_t max_tokens, struct mx_api_error *err);

#endif
