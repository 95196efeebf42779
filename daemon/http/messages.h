/* SPDX-License-Identifier: Apache-2.0 */
/* Anthropic's /v1/messages: requests, what writes their answers (proto/messages), and errors. */
#ifndef MX_DAEMON_HTTP_MESSAGES_H
#define MX_DAEMON_HTTP_MESSAGES_H

#include "daemon/http/writer.h"

struct mx_exchange;

/* Their errors, with Anthropic's types, statuses (529 for a full queue) and header request-id. */
extern const struct mx_dialect mx_messages_dialect;

void mx_api_post_messages(struct mx_exchange *x);
/* /v1/messages/count_tokens: counts the prompt's tokens. */
void mx_api_post_count_tokens(struct mx_exchange *x);

#endif
