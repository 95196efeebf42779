/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to Anthropic's /v1/messages and /v1/messages/count_tokens.
 *
 * A request becomes the one for chat completions that means the same
 * (proto/translate.h): `system` is the first message, a tool_use block a call of its
 * message's, a tool_result block a message of the role `tool`, thinking the message's
 * reasoning. Sources, read in November 2026: anthropic-sdk-python 2.12 (types), and
 * the documentation of the Messages API.
 */
#ifndef MX_PROTO_MESSAGES_REQUEST_H
#define MX_PROTO_MESSAGES_REQUEST_H

#include "proto/request.h"

/* Parses a body. `count`: of count_tokens, which needs no max_tokens. On failure *err is filled and
 * *out is not touched. */
mx_status mx_messages_parse(const char *body, size_t len, bool count,
                            struct mx_api_unknown *unknown, struct mx_api_request *out,
                            struct mx_api_error *err);

/* Puts the names of this API into an error of a request's generation. */
void mx_messages_rename_error(struct mx_api_error *err);

/* ---- fields.c ---- */

/* Objects whose members have meanings of their own. */
enum mx_messages_fields {
	MX_MESSAGES_REQUEST = 1,
	MX_MESSAGES_MESSAGE = 2,
	MX_MESSAGES_BLOCK = 4,
	MX_MESSAGES_TOOL = 8,
	MX_MESSAGES_OUTPUT = 16,
	MX_MESSAGES_CHOICE = 32,
	MX_MESSAGES_THINKING = 64,
};
/* Checks the names of such an object's members, as proto/fields.h does. */
mx_status mx_messages_fields(const json_t *o, const char *path, enum mx_messages_fields which,
                             struct mx_api_unknown *unknown, struct mx_api_error *err);

/* ---- content.c ---- */

struct mx_translation;
/* Makes messages of `system` and `messages`. */
mx_status mx_messages_content(struct mx_translation *t, const json_t *body,
                              struct mx_api_unknown *unknown, struct mx_api_error *err);

#endif
