/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/fill.h"

#include "proto/json_out.h"

mx_status mx_fill_invalid(struct mx_api_error *err, const char *field, const char *why)
{
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", field, "'%s': %s", field, why);
}

mx_status mx_fill_too_many(struct mx_api_error *err, const char *field, size_t n, size_t most)
{
	return mx_api_fail(err, MX_FAULT_INVALID, "invalid_value", field,
	                   "'%s' must have at most %zu, but it has %zu", field, most, n);
}

mx_status mx_fill_no_memory(struct mx_api_error *err)
{
	return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
}

static bool is_utf8(const uint8_t *s, size_t n)
{
	for (size_t i = 0; i < n;) {
		size_t len = s[i] < 0x80 ? 1 : mx_utf8_sequence(s + i, n - i);
		if (!len)
			return false;
		i += len;
	}
	return true;
}

mx_status mx_fill_text(const ProtobufCBinaryData *text, const char *field, struct mx_api_text *out,
                       struct mx_api_error *err)
{
	if (!is_utf8(text->data, text->len))
		return mx_fill_invalid(err, field, "the text is not UTF-8");
	if (text->len)
		*out = (struct mx_api_text){(const char *)text->data, text->len};
	return MX_OK;
}

mx_status mx_fill_ids(const uint32_t *ids, size_t n, const char *field, const int32_t **out,
                      struct mx_api_error *err)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] > INT32_MAX)
			return mx_fill_invalid(err, field, "a token id is above 2147483647");
	*out = (const int32_t *)(const void *)ids;
	return MX_OK;
}

mx_status mx_fill_stops(struct mx_api_request *r, const ProtobufCBinaryData *stops, size_t n,
                        const char *field, struct mx_api_error *err)
{
	if (!n)
		return MX_OK;
	if (n > MX_API_MAX_STOPS)
		return mx_fill_too_many(err, field, n, MX_API_MAX_STOPS);
	struct mx_api_text *list = mx_arena_alloc(&r->arena, n * sizeof(*list));
	if (!list)
		return mx_fill_no_memory(err);
	r->stops = list;
	r->n_stops = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		if (!stops[i].len)
			return mx_fill_invalid(err, field, "a stop string is empty");
		if (stops[i].len > MX_API_MAX_STOP_LEN)
			return mx_fill_invalid(err, field, "a stop string has more than 1024 bytes");
		mx_status st = mx_fill_text(&stops[i], field, &list[i], err);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

mx_status mx_fill_form(struct mx_api_request *r, enum mx_constraint_kind kind,
                       const ProtobufCBinaryData *text, const char *field, struct mx_api_error *err)
{
	struct mx_api_constraint c = {.kind = kind, .field = field};
	mx_status st = mx_fill_text(text, field, &c.text, err);
	if (st == MX_OK && !c.text.s)
		st = mx_fill_invalid(err, field, "it is empty");
	if (st == MX_OK)
		r->constraint = c;
	return st;
}

mx_status mx_fill_choice(struct mx_api_request *r, const ProtobufCBinaryData *texts, size_t n,
                         const char *field, struct mx_api_error *err)
{
	if (!n)
		return mx_fill_invalid(err, field, "it is empty");
	if (n > MX_API_MAX_ALTERNATIVES)
		return mx_fill_too_many(err, field, n, MX_API_MAX_ALTERNATIVES);
	struct mx_api_text *list = mx_arena_alloc(&r->arena, n * sizeof(*list));
	if (!list)
		return mx_fill_no_memory(err);
	for (size_t i = 0; i < n; i++) {
		list[i] = (struct mx_api_text){.s = ""}; /* an empty text is one too */
		mx_status st = mx_fill_text(&texts[i], field, &list[i], err);
		if (st != MX_OK)
			return st;
	}
	r->constraint = (struct mx_api_constraint){
		.kind = MX_CONSTRAINT_CHOICE, .field = field, .choices = list, .n_choices = (uint32_t)n};
	return MX_OK;
}
