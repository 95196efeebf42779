/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HyenaDNA's character tokenizer (Nguyen et al. 2023, arXiv:2306.15794). It is a
 * Python class: its folders have no tokenizer.json, and tokenizer_config.json
 * describes it in one of two spellings,
 *
 *     "tokenizer_class": "HyenaDNATokenizer"    A, C, G, T and N
 *     "char_ords": [65, 67, 71, 84, 78]         characters by code point
 *
 * Ids 0 to 6 are special tokens, the characters follow. This file makes the
 * equivalent tokenizer.json: BPE without merges.
 *
 * If asked for special tokens, the class appends [SEP], which ends a sequence. Here
 * texts are prompts to be continued, so it is never appended.
 */
#include "model/tokenizer/internal.h"

#include <string.h>

#define CLASS     "HyenaDNATokenizer"
#define FIRST_ID  7
#define MAX_CHARS 65536

bool mx_tok_is_chars(const json_t *config)
{
	const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
	return json_object_get(config, "char_ords") || (class && !strcmp(class, CLASS));
}

static mx_status add_character(json_t *vocab, uint32_t cp, json_int_t id, const char *path,
                               struct mx_err *err)
{
	struct mx_buf s = {0};
	mx_tok_put(&s, cp);
	mx_status st = MX_OK;
	if (s.failed)
		st = mx_fail(err, MX_E_NOMEM, "out of memory");
	else if (json_object_get(vocab, mx_buf_str(&s)))
		st = mx_fail_at(err, MX_E_FORMAT, path, "is there twice");
	else if (json_object_set_new(vocab, mx_buf_str(&s), json_integer(id)))
		st = mx_fail(err, MX_E_NOMEM, "out of memory");
	mx_buf_free(&s);
	return st;
}

static mx_status add_characters(json_t *vocab, const json_t *config, struct mx_err *err)
{
	static const char bases[] = "ACGTN", key[] = "char_ords";
	const json_t *list = json_object_get(config, key);
	size_t n = list ? json_array_size(list) : sizeof bases - 1;
	mx_status st = MX_OK;
	if (list && (!json_is_array(list) || n > MAX_CHARS))
		return mx_fail_at(err, MX_E_FORMAT, key, "must be a list of at most %d characters",
		                  MAX_CHARS);
	for (size_t i = 0; i < n && st == MX_OK; i++) {
		const json_t *v = json_array_get(list, i);
		json_int_t cp = list ? json_integer_value(v) : bases[i];
		char at[MX_TOK_PATH];
		mx_tok_path(at, key, NULL, i);
		if (cp < 1 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
			st = mx_fail_at(err, MX_E_FORMAT, at, "must be the code point of a character");
		else
			st = add_character(vocab, (uint32_t)cp, (json_int_t)i + FIRST_ID, at, err);
	}
	return st;
}

mx_status mx_tok_chars(json_t *config, json_t **out, struct mx_err *err)
{
	/* [RESERVED] has an id but is not a special token: in a text it is ten characters. */
	static const char tokenizer[] =
		"{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"[UNK]\","
		"\"merges\":[],\"vocab\":{\"[CLS]\":0,\"[SEP]\":1,\"[BOS]\":2,\"[MASK]\":3,\"[PAD]\":4,"
		"\"[RESERVED]\":5,\"[UNK]\":6}}}";
	static const char names[] =
		"{\"bos_token\":\"[BOS]\",\"eos_token\":\"[SEP]\",\"sep_token\":\"[SEP]\","
		"\"cls_token\":\"[CLS]\",\"pad_token\":\"[PAD]\",\"mask_token\":\"[MASK]\","
		"\"unk_token\":\"[UNK]\"}";
	json_t *t = json_loads(tokenizer, 0, NULL), *n = json_loads(names, 0, NULL);
	json_t *vocab = json_object_get(json_object_get(t, "model"), "vocab");
	mx_status st = MX_OK;
	if (!vocab || !n || json_object_update_missing(config, n))
		st = mx_fail(err, MX_E_NOMEM, "out of memory");
	json_decref(n);
	if (st == MX_OK)
		st = add_characters(vocab, config, err);
	if (st != MX_OK) {
		json_decref(t);
		return st;
	}
	*out = t;
	return MX_OK;
}
