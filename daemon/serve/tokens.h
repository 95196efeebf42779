/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokenises and detokenises for clients. The result is charged to the service's budget
 * of answers until it is freed. A megabyte takes a second, so no thread that serves
 * others may call these for large texts.
 */
#ifndef MX_DAEMON_SERVE_TOKENS_H
#define MX_DAEMON_SERVE_TOKENS_H

#include "daemon/serve/service.h"
#include "proto/request.h"

struct mx_token_answer {
	struct mx_served *model; /* held */
	struct mx_tokens ids;    /* of mx_serve_tokenize */
	struct mx_buf text;      /* of mx_serve_detokenize */
	struct mx_budget *budget;
	uint64_t taken; /* bytes of the budget */
};

/* Tokenises for `who` (NULL = nobody in particular) a text, or a chat that the model's template
 * renders. On failure *err is filled and *out need not be freed. */
mx_status mx_serve_tokenize(struct mx_service *s, struct mx_principal *who,
                            const struct mx_api_tokenize *r, struct mx_token_answer *out,
                            struct mx_api_error *err);
/* Makes the text of token ids; the same on failure. */
mx_status mx_serve_detokenize(struct mx_service *s, struct mx_principal *who,
                              const struct mx_api_detokenize *r, struct mx_token_answer *out,
                              struct mx_api_error *err);
void mx_token_answer_free(struct mx_token_answer *a); /* takes zeroed ones */

#endif
