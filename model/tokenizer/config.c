/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer_config.json: named tokens, and added tokens that tokenizer.json
 * lacks, entered as transformers 5 does (TokenizersBackend.__init__).
 *
 * As in transformers, add_bos_token and add_eos_token have no effect if there is a
 * tokenizer.json: its post-processor decides.
 */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[MX_TOK_N_SPECIAL] = {
	"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"};

/* Reads a token: a string, or an object with "content". *there is false if v is absent or null. */
static mx_status read_token(const json_t *v, const char *path, bool special,
                            struct mx_tok_added *out, bool *there, struct mx_err *err)
{
	*there = false;
	if (!v || json_is_null(v))
		return MX_OK;
	struct mx_tok_added a = {.special = special};
	if (json_is_string(v)) {
		a.content = (struct mx_tok_piece){json_string_value(v), (uint32_t)json_string_length(v)};
	} else if (json_is_object(v)) {
		a.special = false;
		a.normalized = true;
		mx_status st = mx_tok_added_flags(v, path, &a, err);
		if (st != MX_OK)
			return st;
		a.special |= special;
	} else {
		return mx_fail_at(err, MX_E_FORMAT, path, "must be a string or an object");
	}
	*out = a;
	*there = true;
	return MX_OK;
}

static bool same(const struct mx_tok_added *a, const struct mx_tok_added *b)
{
	return a->single_word == b->single_word && a->lstrip == b->lstrip && a->rstrip == b->rstrip &&
	       a->normalized == b->normalized && a->special == b->special;
}

/* True if p is the content of a named token. */
static bool is_named(const json_t *config, const struct mx_tok_piece *p)
{
	for (size_t i = 0; i < MX_TOK_N_SPECIAL; i++) {
		const json_t *v = json_object_get(config, names[i]);
		if (json_is_object(v))
			v = json_object_get(v, "content");
		if (json_is_string(v) && json_string_length(v) == p->n &&
		    !memcmp(json_string_value(v), p->s, p->n))
			return true;
	}
	return false;
}

struct numbered {
	long id;
	struct mx_tok_added token;
};

static int by_id(const void *a, const void *b)
{
	long x = ((const struct numbered *)a)->id, y = ((const struct numbered *)b)->id;
	return (x > y) - (x < y);
}

/* Adds the tokens of added_tokens_decoder, {"0": {"content": ..., flags}, ...}, in the order of
 * their ids. */
static mx_status add_decoder_tokens(struct mx_tokenizer *t, const json_t *config, int32_t *next_id,
                                    struct mx_err *err)
{
	static const char path[] = "added_tokens_decoder";
	const json_t *list = json_object_get(config, path);
	if (!list || json_is_null(list))
		return MX_OK;
	if (!json_is_object(list))
		return mx_fail_at(err, MX_E_FORMAT, path, "must be an object");
	struct numbered *v = mx_calloc(json_object_size(list), sizeof *v);
	if (!v)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	const char *key;
	json_t *value;
	size_t n = 0;
	mx_status st = MX_OK;
	json_object_foreach((json_t *)list, key, value)
	{
		char at[MX_TOK_PATH], *end;
		bool there;
		mx_tok_path(at, path, key, 0);
		v[n].id = strtol(key, &end, 10);
		if (!*key || *end || !json_is_object(value))
			st = mx_fail_at(err, MX_E_FORMAT, at, "must be an object named by an id");
		else
			st = read_token(value, at, false, &v[n].token, &there, err);
		if (st != MX_OK)
			break;
		n++;
	}
	if (st == MX_OK)
		qsort(v, n, sizeof *v, by_id);
	for (size_t i = 0; i < n && st == MX_OK; i++) {
		struct mx_tok_added *a = &v[i].token;
		const struct mx_tok_added *old = mx_tok_added_find(t, a->content.s, a->content.n);
		if (old && same(old, a))
			continue;
		a->special |= is_named(config, &a->content);
		st = mx_tok_added_add(t, a, next_id, err);
	}
	free(v);
	return st;
}

/* Adds a special token unless some token has its content. */
static mx_status add_missing(struct mx_tokenizer *t, const json_t *v, const char *path,
                             int32_t *next_id, struct mx_err *err)
{
	struct mx_tok_added a;
	bool there;
	mx_status st = read_token(v, path, true, &a, &there, err);
	if (st != MX_OK || !there || mx_tok_added_find(t, a.content.s, a.content.n))
		return st;
	return mx_tok_added_add(t, &a, next_id, err);
}

mx_status mx_tok_config_parse(struct mx_tokenizer *t, const json_t *config, struct mx_err *err)
{
	if (!json_is_object(config))
		return mx_fail_at(err, MX_E_FORMAT, "tokenizer_config.json", "must be an object");
	int32_t next_id = mx_tok_added_next_id(t);
	mx_status st = add_decoder_tokens(t, config, &next_id, err);
	for (size_t i = 0; i < MX_TOK_N_SPECIAL && st == MX_OK; i++) {
		const json_t *v = json_object_get(config, names[i]);
		st = add_missing(t, v, names[i], &next_id, err);
		if (json_is_object(v))
			v = json_object_get(v, "content");
		if (st != MX_OK || !json_is_string(v))
			continue;
		t->special[i] = mx_arena_strndup(&t->arena, json_string_value(v), json_string_length(v));
		if (!t->special[i])
			st = mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	const json_t *class_name = json_object_get(config, "tokenizer_class");
	if (st == MX_OK && json_is_string(class_name)) {
		t->class_name = mx_arena_strndup(&t->arena, json_string_value(class_name),
		                                 json_string_length(class_name));
		if (!t->class_name)
			st = mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	const char *extra = "extra_special_tokens";
	const json_t *list = json_object_get(config, extra);
	if (!list)
		list = json_object_get(config, extra = "additional_special_tokens");
	for (size_t i = 0; i < json_array_size(list) && st == MX_OK; i++) {
		char at[MX_TOK_PATH];
		mx_tok_path(at, extra, NULL, i);
		st = add_missing(t, json_array_get(list, i), at, &next_id, err);
	}
	return st;
}

const char *mx_tokenizer_class(const struct mx_tokenizer *t)
{
	return t->class_name ? t->class_name : "PreTrainedTokenizerFast";
}

const char *mx_tokenizer_special(const struct mx_tokenizer *t, const char *name)
{
	for (size_t i = 0; i < MX_TOK_N_SPECIAL; i++)
		if (!strcmp(names[i], name))
			return t->special[i];
	return NULL;
}
