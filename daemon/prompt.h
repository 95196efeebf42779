/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a request's text or messages to token ids, with the limits that keep a
 * hopeless prompt from being tokenised. Pure functions on a model; they may
 * take long (a second for a megabyte), so not for a thread that serves others.
 */
#ifndef MX_DAEMON_PROMPT_H
#define MX_DAEMON_PROMPT_H

#include "daemon/service.h"
#include "proto/request.h"

/* The model a request names and, if `ready` is true, that it can take requests now: else 404, 503
 * while it loads or drains. A request that names none means the only one there is. */
mx_status mx_prompt_model(struct mx_service *s, const struct mx_api_text *name, bool ready,
                          struct mx_served **out, struct mx_api_error *err);

/* Appends the ids of a text. `bounded`: 400 context_length_exceeded if they are far more than fit
 * the model's context; the exact check is the caller's. */
mx_status mx_prompt_text(const struct mx_served *m, const struct mx_api_text *text,
                         bool add_special, bool bounded, struct mx_tokens *out,
                         struct mx_api_error *err);

struct mx_prompt_chat {
	json_t *messages, *tools, *documents, *template_vars; /* all but messages may be NULL */
	bool add_generation_prompt;
	bool add_special;
};
/* Renders the chat template and tokenises the result. */
mx_status mx_prompt_chat(const struct mx_served *m, const struct mx_prompt_chat *chat,
                         struct mx_tokens *out, struct mx_api_error *err);

/* Refuses ids that the model does not have. */
mx_status mx_prompt_check_ids(const struct mx_served *m, const int32_t *ids, size_t n,
                              const char *param, struct mx_api_error *err);

/* Refuses a text with a token that the tokenizer knows and the model does not, by its name. */
mx_status mx_prompt_check_text(const struct mx_served *m, const int32_t *ids, size_t n,
                               const char *param, struct mx_api_error *err);

/* 400 context_length_exceeded with both lengths; `exact` is false if the prompt has at least
 * n_prompt tokens. max_tokens < 0 leaves the completion out of the message. */
mx_status mx_prompt_too_long(const struct mx_served *m, uint64_t n_prompt, bool exact,
                             int64_t max_tokens, struct mx_api_error *err);

#endif
