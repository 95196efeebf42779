/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/embed/request.h"

#include <stdio.h>
#include <string.h>

#include "proto/check.h"
#include "proto/parse.h"

/* ---- embeddings ---- */

static mx_status parse_embeddings(struct mx_embed_request *e, struct mx_api_error *err)
{
	struct mx_api_request *r = &e->api;
	struct mx_api_text format = {0};
	r->prompt_name = "input";
	mx_status s = mx_parse_prompts(r, "input", err);
	for (uint32_t i = 0; i < r->n_prompts && s == MX_OK; i++)
		if (!r->prompts[i].ids && !r->prompts[i].text.len)
			s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "input",
			                "'input' holds an empty text at element %u", i);
	if (s == MX_OK)
		s = mx_parse_text(r->root, "encoding_format", &format, err);
	if (s == MX_OK && format.s) {
		e->base64 = !strcmp(format.s, "base64");
		if (!e->base64 && strcmp(format.s, "float"))
			s = mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", "encoding_format",
			                "'encoding_format' must be 'float' or 'base64', but it is '%.40s'",
			                format.s);
	}
	if (s == MX_OK)
		s = mx_parse_int(r->root, "dimensions", 1, INT32_MAX, &r->dimensions, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "add_special_tokens", &r->add_special, err);
	return s;
}

/* ---- pairs of texts ---- */

/* Reads a text, or an object with one. `i`: its number in a list, SIZE_MAX = it is no element. */
static mx_status parse_one(const char *name, size_t i, const json_t *v, struct mx_api_text *out,
                           struct mx_api_error *err)
{
	char path[64];
	if (i == SIZE_MAX)
		snprintf(path, sizeof(path), "%s", name);
	else
		snprintf(path, sizeof(path), "%s[%zu]", name, i);
	if (json_is_object(v))
		v = json_object_get(v, "text");
	if (!json_is_string(v))
		return v ? mx_parse_wrong_type(err, path, "a string or an object with a 'text'", v)
		         : mx_api_fail(err, MX_FAULT_INVALID, "invalid_type", path,
		                       "'%s' is an object without a 'text'", path);
	*out = (struct mx_api_text){json_string_value(v), json_string_length(v)};
	if (!out->len)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", path, "'%s' is empty", path);
	return MX_OK;
}

/* The texts of a member, one or a list. */
struct texts {
	const char *name; /* of the member, as the client wrote it */
	const json_t *v;
	size_t n;
};

/* Finds a member under one of two names. */
static mx_status find_texts(const json_t *root, const char *name, const char *other, bool list,
                            struct texts *out, struct mx_api_error *err)
{
	out->name = name;
	out->v = mx_parse_get(root, name);
	if (!out->v && other) {
		out->v = mx_parse_get(root, other);
		out->name = out->v ? other : name;
	}
	if (!out->v)
		return mx_api_fail(err, MX_FAULT_INVALID, "missing_required_parameter", name,
		                   "'%s' is required", name);
	if (list && !json_is_array(out->v))
		return mx_parse_wrong_type(err, out->name, "a list of texts", out->v);
	out->n = json_is_array(out->v) ? json_array_size(out->v) : 1;
	if (!out->n)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", out->name,
		                   "'%s' is an empty list", out->name);
	return mx_check_count(out->name, "texts", out->n, MX_API_MAX_PROMPTS, err);
}

static mx_status read_texts(const struct texts *t, struct mx_api_prompt *out,
                            struct mx_api_error *err)
{
	bool list = json_is_array(t->v);
	mx_status s = MX_OK;
	for (size_t i = 0; i < t->n && s == MX_OK; i++)
		s = parse_one(t->name, list ? i : SIZE_MAX, list ? json_array_get(t->v, i) : t->v,
		              &out[i].text, err);
	return s;
}

static mx_status take_pairs(struct mx_api_request *r, const struct texts *queries,
                            const struct texts *documents, struct mx_api_error *err)
{
	size_t n = queries->n + documents->n;
	r->prompt_name = documents->name;
	if (queries->n != 1 && queries->n != documents->n)
		return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", queries->name,
		                   "'%s' holds %zu texts and '%s' %zu: there must be one, or as many",
		                   queries->name, queries->n, documents->name, documents->n);
	mx_status s =
		mx_check_count(documents->name, "texts with those to compare", n, MX_API_MAX_PROMPTS, err);
	if (s != MX_OK)
		return s;
	struct mx_api_prompt *prompts = mx_arena_alloc(&r->arena, n * sizeof(*prompts));
	if (!prompts)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	s = read_texts(queries, prompts, err);
	if (s == MX_OK)
		s = read_texts(documents, prompts + queries->n, err);
	r->prompts = prompts;
	r->n_prompts = (uint32_t)n;
	r->n_queries = (uint32_t)queries->n;
	return s;
}

static mx_status parse_pairs(struct mx_embed_request *e, bool rank, struct mx_api_error *err)
{
	struct mx_api_request *r = &e->api;
	struct texts queries, documents;
	mx_status s = find_texts(r->root, rank ? "query" : "text_1", rank ? NULL : "queries", false,
	                         &queries, err);
	if (s == MX_OK)
		s = find_texts(r->root, rank ? "documents" : "text_2", rank ? NULL : "documents", rank,
		               &documents, err);
	if (s == MX_OK && rank && json_is_array(queries.v))
		s = mx_parse_wrong_type(err, "query", "a string", queries.v);
	if (s == MX_OK)
		s = take_pairs(r, &queries, &documents, err);
	if (s == MX_OK)
		s = mx_parse_text(r->root, "instruction", &r->instruction, err);
	if (s != MX_OK || !rank)
		return s;
	s = mx_parse_int(r->root, "top_n", 1, INT32_MAX, &e->top_n, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "return_text", &e->return_documents, err);
	if (s == MX_OK)
		s = mx_parse_bool(r->root, "return_documents", &e->return_documents, err);
	return s;
}

/* ---- all ---- */

static mx_status parse(unsigned route, struct mx_embed_request *e, struct mx_api_unknown *unknown,
                       struct mx_api_error *err)
{
	struct mx_api_request *r = &e->api;
	mx_status s = mx_fields_check(&mx_embed_fields, route, r->root, "", NULL, unknown, err);
	if (s == MX_OK)
		s = mx_parse_text(r->root, "model", &r->model, err);
	if (s == MX_OK)
		s = route == MX_EMBED_EMBEDDINGS ? parse_embeddings(e, err)
		                                 : parse_pairs(e, route == MX_EMBED_RERANK, err);
	if (s == MX_OK)
		s = mx_parse_int(r->root, "priority", -1000000, 1000000, &r->priority, err);
	if (s == MX_OK)
		s = mx_parse_text(r->root, "cache_salt", &r->cache_salt, err);
	return s == MX_OK ? mx_api_check(r, err) : s;
}

mx_status mx_embed_parse(unsigned route, const char *body, size_t len,
                         struct mx_api_unknown *unknown, struct mx_embed_request *out,
                         struct mx_api_error *err)
{
	struct mx_embed_request e = {.top_n = -1};
	mx_api_request_init(&e.api, route == MX_EMBED_EMBEDDINGS ? MX_API_EMBEDDING : MX_API_SCORE);
	e.api.unknown = unknown;
	mx_status s = mx_parse_object(body, len, &e.api.root, err);
	if (s == MX_OK)
		s = parse(route, &e, unknown, err);
	if (s != MX_OK) {
		mx_embed_request_free(&e);
		return s;
	}
	*out = e;
	return MX_OK;
}

void mx_embed_request_free(struct mx_embed_request *r)
{
	if (!r)
		return;
	mx_api_request_free(&r->api);
	*r = (struct mx_embed_request){0};
}
