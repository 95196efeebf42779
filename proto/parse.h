/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers shared by the request parsers. Every one fills *err and returns a status. */
#ifndef MX_PROTO_PARSE_H
#define MX_PROTO_PARSE_H

#include <jansson.h>

#include "proto/request.h"

/* Parses a body that must be one JSON object; syntax errors say line, column and position. */
mx_status mx_parse_object(const char *body, size_t len, json_t **out, struct mx_api_error *err);

/* The member, or NULL if it is absent or null. */
json_t *mx_parse_get(const json_t *o, const char *name);
/* 400 naming what was expected and what was found. */
mx_status mx_parse_wrong_type(struct mx_api_error *err, const char *name, const char *expected,
                              const json_t *found);
/* 400 for something well formed that this server does not do. */
mx_status mx_parse_unsupported(struct mx_api_error *err, const char *name, const char *why);

/* Each leaves *out alone if the member is absent or null. */
mx_status mx_parse_bool(const json_t *o, const char *name, bool *out, struct mx_api_error *err);
mx_status mx_parse_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t *out,
                       struct mx_api_error *err);
mx_status mx_parse_text(const json_t *o, const char *name, struct mx_api_text *out,
                        struct mx_api_error *err);
/* A member of the given container type ("object" or "array"). */
mx_status mx_parse_container(const json_t *o, const char *name, json_type type, json_t **out,
                             struct mx_api_error *err);

/* A JSON array of token ids as an array in the arena. */
mx_status mx_parse_ids(const json_t *array, const char *name, struct mx_arena *arena,
                       const int32_t **out, uint32_t *out_n, struct mx_api_error *err);

/* Checks `messages` and brings it into the form templates expect (see request.h). */
mx_status mx_parse_messages(json_t *root, json_t **out, struct mx_api_error *err);
/* tools, documents, chat_template_kwargs, add_generation_prompt and what goes with them. */
mx_status mx_parse_chat(struct mx_api_request *r, struct mx_api_error *err);
/* prompt, echo, suffix, best_of */
mx_status mx_parse_completion(struct mx_api_request *r, struct mx_api_error *err);
/* stop, stop_token_ids, logit_bias */
mx_status mx_parse_lists(struct mx_api_request *r, struct mx_api_error *err);

#endif
