/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tekken.json, the only tokenizer of Mistral's newer checkpoints. Its layout is that
 * of mistral-common (mistral_common/tokens/tokenizers/tekken.py):
 *
 *     config.pattern                      regex that cuts the text, as in tiktoken
 *     config.default_vocab_size           ids, special tokens included
 *     config.default_num_special_tokens   special tokens: the first ids
 *     vocab[i].token_bytes                bytes of the token of rank i, in base64
 *     special_tokens[i].token_str         may be absent: 20 known names; others are <SPECIAL_i>
 *
 * A token of rank i has the id i + default_num_special_tokens; the file may have more
 * tokens than are used. There are no merges: of all neighbours the two are joined whose
 * union has the lowest rank (struct mx_tok_bpe, by_rank). This file makes the equivalent
 * tokenizer.json. As with tokenizer.json, and unlike in mistral-common, special tokens
 * that are written in a text are recognised, which chat templates need.
 */
#include "model/tokenizer/internal.h"

#include <stdio.h>
#include <string.h>

#define MAX_BYTES 256 /* of one token; the longest known has 78 */

static const char *const known[] = {
	"<unk>",
	"<s>",
	"</s>",
	"[INST]",
	"[/INST]",
	"[AVAILABLE_TOOLS]",
	"[/AVAILABLE_TOOLS]",
	"[TOOL_RESULTS]",
	"[/TOOL_RESULTS]",
	"[TOOL_CALLS]",
	"[IMG]",
	"<pad>",
	"[IMG_BREAK]",
	"[IMG_END]",
	"[PREFIX]",
	"[MIDDLE]",
	"[SUFFIX]",
	"[SYSTEM_PROMPT]",
	"[/SYSTEM_PROMPT]",
	"[TOOL_CONTENT]",
};

struct tekken {
	const json_t *vocab, *specials;
	size_t n_vocab, n_special; /* tokens that are used */
	const char *pattern;
};

static int digit(char c)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *p = c ? strchr(digits, c) : NULL;
	return p ? (int)(p - digits) : -1;
}

/* Decodes base64, spelling each byte in the byte-level alphabet. False if it is malformed. */
static bool spell(const char *s, size_t n, struct mx_buf *out)
{
	size_t n_pad = n > 0 && s[n - 1] == '=' ? (n > 1 && s[n - 2] == '=' ? 2 : 1) : 0;
	if (!n || n % 4 || n / 4 * 3 - n_pad > MAX_BYTES)
		return false;
	uint32_t bits = 0;
	for (size_t i = 0; i < n; i++) {
		int d = i < n - n_pad ? digit(s[i]) : 0;
		if (d < 0)
			return false;
		bits = bits << 6 | (uint32_t)d;
		if (i % 4 != 3)
			continue;
		for (size_t k = 0; k < (i + 1 == n ? 3 - n_pad : 3); k++)
			mx_tok_put(out, mx_tok_byte_char((unsigned char)(bits >> (16 - 8 * k))));
		bits = 0;
	}
	return true;
}

static mx_status read_count(const json_t *config, const char *key, size_t *out, struct mx_err *err)
{
	json_int_t v = json_integer_value(json_object_get(config, key));
	char at[MX_TOK_PATH];
	mx_tok_path(at, "config", key, 0);
	if (v < 1 || v > MX_TOK_MAX_IDS)
		return mx_fail_at(err, MX_E_FORMAT, at, "must be a number from 1 to %u", MX_TOK_MAX_IDS);
	*out = (size_t)v;
	return MX_OK;
}

static mx_status read_head(const json_t *j, struct tekken *t, struct mx_err *err)
{
	const json_t *config = json_object_get(j, "config");
	size_t n = 0, n_ids = 0;
	t->vocab = json_object_get(j, "vocab");
	t->specials = json_object_get(j, "special_tokens");
	if (json_is_null(t->specials))
		t->specials = NULL;
	if (!json_is_object(config))
		return mx_fail_at(err, MX_E_FORMAT, "config", "must be an object");
	mx_status st = mx_tok_str(config, "config", "pattern", (size_t)16 << 10, &t->pattern, &n, err);
	if (st == MX_OK)
		st = read_count(config, "default_vocab_size", &n_ids, err);
	if (st == MX_OK)
		st = read_count(config, "default_num_special_tokens", &t->n_special, err);
	if (st != MX_OK)
		return st;
	if (n_ids < t->n_special + 256 || json_array_size(t->vocab) < n_ids - t->n_special)
		return mx_fail_at(err, MX_E_FORMAT, "vocab",
		                  "has %zu tokens; config asks for %zu ids, %zu of them special",
		                  json_array_size(t->vocab), n_ids, t->n_special);
	if (t->specials && (!json_is_array(t->specials) || json_array_size(t->specials) > t->n_special))
		return mx_fail_at(err, MX_E_FORMAT, "special_tokens", "must be a list of at most %zu",
		                  t->n_special);
	t->n_vocab = n_ids - t->n_special;
	return MX_OK;
}

static mx_status add_id(json_t *vocab, const char *piece, size_t id, const char *path,
                        struct mx_err *err)
{
	if (json_object_get(vocab, piece))
		return mx_fail_at(err, MX_E_FORMAT, path, "\"%.80s\" is there twice", piece);
	if (json_object_set_new(vocab, piece, json_integer((json_int_t)id)))
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	return MX_OK;
}

/* Adds the special tokens to the vocabulary and to the added tokens. */
static mx_status add_specials(const struct tekken *t, json_t *vocab, json_t *added,
                              struct mx_err *err)
{
	mx_status st = MX_OK;
	for (size_t i = 0; i < t->n_special && st == MX_OK; i++) {
		char at[MX_TOK_PATH], filler[32];
		const json_t *v = json_array_get(t->specials, i);
		const char *name = filler;
		size_t n;
		snprintf(filler, sizeof filler, "<SPECIAL_%zu>", i);
		mx_tok_path(at, "special_tokens", NULL, i);
		if (v)
			st = mx_tok_str(v, at, "token_str", 256, &name, &n, err);
		else if (!t->specials && i < sizeof known / sizeof *known)
			name = known[i];
		const json_t *rank = json_object_get(v, "rank");
		if (st == MX_OK && rank && json_integer_value(rank) != (json_int_t)i)
			st = mx_fail_at(err, MX_E_FORMAT, at, "must have the rank %zu", i);
		if (st == MX_OK)
			st = add_id(vocab, name, i, at, err);
		if (st == MX_OK && json_array_append_new(added, json_pack("{s:s,s:b,s:b}", "content", name,
		                                                          "special", 1, "normalized", 0)))
			st = mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	return st;
}

static mx_status add_vocab(const struct tekken *t, json_t *vocab, struct mx_err *err)
{
	struct mx_buf piece = {0};
	mx_status st = MX_OK;
	for (size_t i = 0; i < t->n_vocab && st == MX_OK; i++) {
		char at[MX_TOK_PATH];
		const json_t *v = json_array_get(t->vocab, i), *rank = json_object_get(v, "rank");
		const char *s;
		size_t n;
		mx_tok_path(at, "vocab", NULL, i);
		mx_buf_clear(&piece);
		st = mx_tok_str(v, at, "token_bytes", 2 * MAX_BYTES, &s, &n, err);
		if (st == MX_OK && (!json_is_integer(rank) || json_integer_value(rank) != (json_int_t)i))
			st = mx_fail_at(err, MX_E_FORMAT, at, "must have the rank %zu", i);
		if (st == MX_OK && !spell(s, n, &piece))
			st = mx_fail_at(err, MX_E_FORMAT, at, "token_bytes must be base64 of 1 to %d bytes",
			                MAX_BYTES);
		if (st == MX_OK && piece.failed)
			st = mx_fail(err, MX_E_NOMEM, "out of memory");
		if (st == MX_OK)
			st = add_id(vocab, mx_buf_str(&piece), i + t->n_special, at, err);
	}
	mx_buf_free(&piece);
	return st;
}

/* Names the tokens that the configuration does not name, and puts <s> before texts. */
static mx_status add_names(json_t *config, json_t *out, const json_t *vocab, struct mx_err *err)
{
	static const char *const names[][2] = {{"bos_token", "<s>"},
	                                       {"eos_token", "</s>"},
	                                       {"unk_token", "<unk>"},
	                                       {"pad_token", "<pad>"}};
	bool failed = false;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (json_object_get(vocab, names[i][1]) && !json_object_get(config, names[i][0]))
			failed |= json_object_set_new(config, names[i][0], json_string(names[i][1])) != 0;
	const json_t *bos = json_object_get(vocab, "<s>");
	if (bos)
		failed |=
			json_object_set_new(
				out, "post_processor",
				json_pack("{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:{s:{s:s,s:[I],s:[s]}}}", "type",
		                  "TemplateProcessing", "single", "SpecialToken", "id", "<s>", "type_id", 0,
		                  "Sequence", "id", "A", "type_id", 0, "special_tokens", "<s>", "id", "<s>",
		                  "ids", json_integer_value(bos), "tokens", "<s>")) != 0;
	return failed ? mx_fail(err, MX_E_NOMEM, "out of memory") : MX_OK;
}

bool mx_tok_is_tekken(const json_t *json)
{
	return json_object_get(json, "config") && json_object_get(json, "vocab") &&
	       !json_object_get(json, "model");
}

mx_status mx_tok_tekken(const json_t *tekken, json_t *config, json_t **out, uint32_t *first,
                        struct mx_err *err)
{
	struct tekken t = {0};
	mx_status st = read_head(tekken, &t, err);
	if (st != MX_OK)
		return st;
	json_t *j = json_pack(
		"{s:{s:s,s:b,s:{},s:[]},s:[],s:{s:s},s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]}}", "model",
		"type", "BPE", "ignore_merges", 1, "vocab", "merges", "added_tokens", "decoder", "type",
		"ByteLevel", "pre_tokenizer", "type", "Sequence", "pretokenizers", "type", "Split",
		"pattern", "Regex", t.pattern, "behavior", "Isolated", "type", "ByteLevel",
		"add_prefix_space", 0, "use_regex", 0);
	json_t *vocab = json_object_get(json_object_get(j, "model"), "vocab");
	st = j ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
	if (st == MX_OK)
		st = add_specials(&t, vocab, json_object_get(j, "added_tokens"), err);
	if (st == MX_OK)
		st = add_vocab(&t, vocab, err);
	if (st == MX_OK)
		st = add_names(config, j, vocab, err);
	if (st != MX_OK) {
		json_decref(j);
		return st;
	}
	*out = j;
	*first = (uint32_t)t.n_special;
	return MX_OK;
}
