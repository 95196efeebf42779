/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/responses: requests, and what writes their answers (proto/responses). */
#ifndef MX_DAEMON_HTTP_RESPONSES_H
#define MX_DAEMON_HTTP_RESPONSES_H

struct mx_exchange;

void mx_api_post_responses(struct mx_exchange *x);
/* /v1/responses/input_tokens: counts the prompt's tokens. */
void mx_api_post_input_tokens(struct mx_exchange *x);

#endif
