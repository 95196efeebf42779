/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers that the request parsers share. On failure each fills *err and returns its status. */
#ifndef MX_PROTO_PARSE_H
#define MX_PROTO_PARSE_H

#include <jansson.h>

#include "proto/request.h"

/* Parses a body, which must be one JSON object. The message of a syntax error has line, column and
 * position. */
mx_status mx_parse_object(const char *body, size_t len, json_t **out, struct mx_api_error *err);

/* Objects whose members have meanings of their own. */
enum mx_fields {
	MX_FIELDS_COMPLETIONS = 1,
	MX_FIELDS_CHAT = 2,
	MX_FIELDS_TOKENIZE = 4,
	MX_FIELDS_DETOKENIZE = 8,
	MX_FIELDS_STREAM_OPTIONS = 16,
	MX_FIELDS_MESSAGE = 32,
	MX_FIELDS_FORMAT = 64,       /* response_format */
	MX_FIELDS_JSON_SCHEMA = 128, /* its json_schema */
	MX_FIELDS_STRUCTURED = 256,  /* structured_outputs */
};
/* Checks the names of an object's members. Fails with a 400 that says what to do instead for a
 * known field that this server does not support, and with one that has the closest name for an
 * unknown field, unless `unknown` allows these. `path` stands before the names in messages. */
mx_status mx_parse_fields(const json_t *o, const char *path, enum mx_fields route,
                          struct mx_api_unknown *unknown, struct mx_api_error *err);

/* Returns the member, or NULL if it is absent or null. */
json_t *mx_parse_get(const json_t *o, const char *name);
/* Fails with a 400 that names the expected type and the one found. */
mx_status mx_parse_wrong_type(struct mx_api_error *err, const char *name, const char *expected,
                              const json_t *found);
/* Fails with a 400 for a well-formed field that this server does not support. */
mx_status mx_parse_unsupported(struct mx_api_error *err, const char *name, const char *why);

/* These leave *out unchanged if the member is absent or null. */
mx_status mx_parse_bool(const json_t *o, const char *name, bool *out, struct mx_api_error *err);
mx_status mx_parse_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *out,
                       struct mx_api_error *err);
mx_status mx_parse_text(const json_t *o, const char *name, struct mx_api_text *out,
                        struct mx_api_error *err);
/* The member must be of the container type `type`: object or array. */
mx_status mx_parse_container(const json_t *o, const char *name, json_type type, json_t **out,
                             struct mx_api_error *err);

/* Converts a JSON array of token ids to an array in the arena. */
mx_status mx_parse_ids(const json_t *array, const char *name, struct mx_arena *arena,
                       const int32_t **out, uint32_t *out_n, struct mx_api_error *err);

/* Checks `messages` and brings it into the form that templates expect (see request.h). */
mx_status mx_parse_messages(json_t *root, json_t **out, struct mx_api_error *err);
/* Parses reasoning_effort, which chat_template_kwargs must not hold as well. */
mx_status mx_parse_reasoning_effort(const json_t *root, const json_t *template_vars,
                                    struct mx_api_text *out, struct mx_api_error *err);
/* Parses tools, documents, chat_template_kwargs, add_generation_prompt and the fields that go with
 * them. */
mx_status mx_parse_chat(struct mx_api_request *r, struct mx_api_error *err);
/* Parses the member of that name: a prompt in one of four forms, or a list of them. */
mx_status mx_parse_prompts(struct mx_api_request *r, const char *name, struct mx_api_error *err);
/* Parses prompt and echo. */
mx_status mx_parse_completion(struct mx_api_request *r, struct mx_api_error *err);
/* Parses response_format, structured_outputs, grammar and the other fields that constrain the
 * output, of which there may be one. */
mx_status mx_parse_constraint(struct mx_api_request *r, struct mx_api_unknown *unknown,
                              struct mx_api_error *err);
/* Parses prediction. */
mx_status mx_parse_prediction(struct mx_api_request *r, struct mx_api_error *err);
/* Parses stop, stop_token_ids and logit_bias. */
mx_status mx_parse_lists(struct mx_api_request *r, struct mx_api_error *err);

#endif
