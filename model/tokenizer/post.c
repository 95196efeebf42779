/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Post-processors, as far as they change ids: TemplateProcessing for a single
 * text becomes the ids before and after it. ByteLevel only trims offsets.
 */
#include "model/tokenizer/internal.h"

#include <string.h>

#define MAX_PIECES 64

struct ids {
	int32_t v[MAX_PIECES];
	size_t n;
};

/* Appends the ids of one SpecialToken. */
static mx_status special(const json_t *specials, const char *name, const char *path,
                         struct ids *out, struct mx_err *err)
{
	const json_t *list = json_object_get(json_object_get(specials, name), "ids");
	if (!json_is_array(list))
		return mx_fail_at(err, MX_E_FORMAT, path, "special token \"%s\" has no ids", name);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *v = json_array_get(list, i);
		json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
		if (id < 0 || id >= MX_TOK_MAX_IDS || out->n == MAX_PIECES)
			return mx_fail_at(err, MX_E_FORMAT, path, "bad ids of special token \"%s\"", name);
		out->v[out->n++] = (int32_t)id;
	}
	return MX_OK;
}

static mx_status keep(struct mx_tokenizer *t, const struct ids *ids, const int32_t **out,
                      size_t *n_out, struct mx_err *err)
{
	int32_t *copy = mx_arena_alloc(&t->arena, ids->n * sizeof *copy);
	if (!copy)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	memcpy(copy, ids->v, ids->n * sizeof *copy);
	*out = copy;
	*n_out = ids->n;
	return MX_OK;
}

static mx_status template(struct mx_tokenizer *t, const json_t *json, const char *path,
                          struct mx_err *err)
{
	static const char *const keys[] = {"type", "single", "pair", "special_tokens", NULL};
	char at[MX_TOK_PATH];
	struct ids part[2] = {0}; /* [0] before the text, [1] after it */
	int texts = 0;
	mx_status st = mx_tok_keys(json, path, keys, err);
	mx_tok_path(at, path, "single", 0);
	const json_t *single = json_object_get(json, "single");
	if (st == MX_OK && !json_is_array(single))
		return mx_fail_at(err, MX_E_FORMAT, at, "must be an array");
	for (size_t i = 0; st == MX_OK && i < json_array_size(single); i++) {
		const json_t *piece = json_array_get(single, i);
		const json_t *seq = json_object_get(piece, "Sequence");
		const char *name =
			json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
		const char *which = json_string_value(json_object_get(seq, "id"));
		if (name)
			st =
				special(json_object_get(json, "special_tokens"), name, path, &part[texts > 0], err);
		else if (which && !strcmp(which, "A") && ++texts == 1)
			continue;
		else
			st = mx_fail_at(err, MX_E_UNSUPPORTED, at, "must be special tokens around one text");
	}
	if (st == MX_OK && texts != 1)
		st = mx_fail_at(err, MX_E_UNSUPPORTED, at, "must be special tokens around one text");
	if (st == MX_OK && (t->post.before || t->post.after))
		st = mx_fail_at(err, MX_E_UNSUPPORTED, path, "second TemplateProcessing");
	if (st == MX_OK)
		st = keep(t, &part[0], &t->post.before, &t->post.n_before, err);
	if (st == MX_OK)
		st = keep(t, &part[1], &t->post.after, &t->post.n_after, err);
	return st;
}

static mx_status parse(struct mx_tokenizer *t, const json_t *json, const char *path, int depth,
                       struct mx_err *err)
{
	static const char *const byte_keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
	                                        NULL};
	static const char *const keys[] = {"type", "processors", NULL};
	const char *type;
	mx_status st = mx_tok_type(json, path, &type, err);
	if (st != MX_OK)
		return st;
	if (!strcmp(type, "TemplateProcessing"))
		return template(t, json, path, err);
	if (!strcmp(type, "ByteLevel"))
		return mx_tok_keys(json, path, byte_keys, err);
	if (strcmp(type, "Sequence") != 0)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "post-processor \"%s\" is not supported",
		                  type);
	char at[MX_TOK_PATH];
	mx_tok_path(at, path, "processors", 0);
	const json_t *list = json_object_get(json, "processors");
	st = mx_tok_keys(json, path, keys, err);
	if (st == MX_OK && (!json_is_array(list) || depth == MX_TOK_MAX_DEPTH))
		st = mx_fail_at(err, MX_E_FORMAT, at, "must be an array, not nested too deep");
	for (size_t i = 0; st == MX_OK && i < json_array_size(list); i++) {
		char item[MX_TOK_PATH];
		mx_tok_path(item, at, NULL, i);
		st = parse(t, json_array_get(list, i), item, depth + 1, err);
	}
	return st;
}

mx_status mx_tok_post_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                            struct mx_err *err)
{
	return json && !json_is_null(json) ? parse(t, json, path, 0, err) : MX_OK;
}
