/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to OpenAI's /v1/responses, without state: the client sends the whole
 * conversation each time, and nothing is stored.
 *
 * A request becomes the one for chat completions that means the same
 * (proto/translate.h). Items become messages: a function_call is a call of the
 * assistant's message before it, reasoning is its reasoning_content, and
 * `instructions` and leading messages of `system` or `developer` are the system
 * message. Source: openai-python 3.54, types/responses.
 */
#ifndef MX_PROTO_RESPONSES_REQUEST_H
#define MX_PROTO_RESPONSES_REQUEST_H

#include "base/buf.h"
#include "proto/request.h"

/* Parses a body. *echo gets the members of the answer that repeat the request, as JSON ("..":..,);
 * it is empty before and the caller frees it. On failure *err is filled and *out is not touched. */
mx_status mx_responses_parse(const char *body, size_t len, struct mx_api_unknown *unknown,
                             struct mx_api_request *out, struct mx_buf *echo,
                             struct mx_api_error *err);

/* Puts the names of this API into an error of a request's generation. */
void mx_responses_rename_error(struct mx_api_error *err);

/* ---- fields.c ---- */

/* Objects whose members have meanings of their own. */
enum mx_responses_fields {
	MX_RESPONSES_REQUEST = 1,
	MX_RESPONSES_TEXT = 2,
	MX_RESPONSES_FORMAT = 4,
	MX_RESPONSES_REASONING = 8,
	MX_RESPONSES_STREAM_OPTIONS = 16,
	MX_RESPONSES_TOOL = 32,
};
/* Checks the names of such an object's members, as proto/fields.h does. */
mx_status mx_responses_fields(const json_t *o, const char *path, enum mx_responses_fields which,
                              struct mx_api_unknown *unknown, struct mx_api_error *err);

/* ---- input.c ---- */

struct mx_translation;
/* Makes messages of `instructions` and `input`. */
mx_status mx_responses_input(struct mx_translation *t, const json_t *body,
                             struct mx_api_error *err);

/* ---- tools.c ---- */

/* Translates tools and tool_choice. */
mx_status mx_responses_tools(struct mx_translation *t, const json_t *body,
                             struct mx_api_unknown *unknown, struct mx_api_error *err);

#endif
