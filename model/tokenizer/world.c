/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RWKV's "World" tokenizer (Peng): a Python class that reads rwkv_vocab_v20230424.txt and encodes
 * the longest token first, byte by byte. Its folders have no tokenizer.json. A line of the file is
 *
 *     261 '\n\n' 2        id, token as a Python literal, '...' or b'...', bytes
 *
 * Id 0 ends a text; it is not in the file, and tokenizer_config.json has its name. This file makes
 * a tokenizer.json with the tokens spelled in the byte-level alphabet, so that everything but the
 * encoding itself is done by the steps that are there, and a trie of these spellings.
 */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

#define END_OF_TEXT "<|rwkv_tokenizer_end_of_text|>"
#define MAX_BYTES   1024 /* of one token; the longest has 128 */

/* ---- lines ---- */

/* A place in the file. */
struct reader {
	const char *p, *end;
	uint32_t line;
	struct mx_err *err;
};

static mx_status wrong(const struct reader *r, const char *what)
{
	mx_fail_at(r->err, MX_E_FORMAT, MX_TOK_WORLD_FILE, "%s", what);
	if (r->err)
		r->err->line = r->line;
	return MX_E_FORMAT;
}

/* Reads a decimal number of at most eight digits. */
static bool read_number(struct reader *r, uint32_t *out)
{
	const char *from = r->p;
	*out = 0;
	for (; r->p < r->end && *r->p >= '0' && *r->p <= '9' && r->p - from < 8; r->p++)
		*out = *out * 10 + (uint32_t)(*r->p - '0');
	return r->p > from;
}

static bool skip(struct reader *r, char c)
{
	if (r->p == r->end || *r->p != c)
		return false;
	r->p++;
	return true;
}

/* Reads n hexadecimal digits. */
static bool read_hex(struct reader *r, int n, uint32_t *out)
{
	*out = 0;
	for (int i = 0; i < n; i++, r->p++) {
		if (r->p == r->end)
			return false;
		const char c = *r->p;
		const int digit = c >= '0' && c <= '9'   ? c - '0'
		                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
		                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                                         : -1;
		if (digit < 0)
			return false;
		*out = *out * 16 + (uint32_t)digit;
	}
	return true;
}

/* Reads what follows a backslash: those escapes that Python's repr writes, and \". */
static bool read_escape(struct reader *r, bool bytes, struct mx_buf *out)
{
	static const char plain[] = "\\'\"nrt", meant[] = "\\'\"\n\r\t";
	uint32_t cp;
	const char c = r->p < r->end ? *r->p++ : 0;
	const char *at = c ? strchr(plain, c) : NULL;
	if (at) {
		mx_buf_putc(out, meant[at - plain]);
		return true;
	}
	if (c != 'x' && (bytes || (c != 'u' && c != 'U')))
		return false;
	if (!read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, &cp))
		return false;
	if (bytes)
		mx_buf_putc(out, (char)cp);
	else if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
		return false;
	else
		mx_tok_put(out, cp);
	return true;
}

/* Reads a literal and appends the token's bytes. */
static bool read_literal(struct reader *r, struct mx_buf *out)
{
	const bool bytes = skip(r, 'b');
	const char quote = r->p < r->end ? *r->p : 0;
	if (quote != '\'' && quote != '"')
		return false;
	r->p++;
	while (r->p < r->end && *r->p != quote && *r->p != '\n' && out->len <= MAX_BYTES) {
		const char c = *r->p++;
		if (c != '\\')
			mx_buf_putc(out, c);
		else if (!read_escape(r, bytes, out))
			return false;
	}
	return skip(r, quote);
}

/* Reads a line: the id, and the token's bytes to *token. */
static mx_status read_line(struct reader *r, uint32_t *id, struct mx_buf *token)
{
	uint32_t n = 0;
	mx_buf_clear(token);
	if (!read_number(r, id) || !skip(r, ' '))
		return wrong(r, "a line must begin with an id and a space");
	if (!read_literal(r, token) || !skip(r, ' '))
		return wrong(r, "the id must be followed by a Python literal and a space");
	if (token->failed)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	if (!read_number(r, &n) || n != token->len || !n || n > MAX_BYTES)
		return wrong(r, "the length is not that of the token");
	(void)skip(r, '\r');
	if (!skip(r, '\n') && r->p < r->end)
		return wrong(r, "more than an id, a token and a length");
	if (!*id || *id >= MX_TOK_MAX_IDS)
		return wrong(r, "the id is out of range");
	r->line++;
	return MX_OK;
}

/* ---- the equivalent tokenizer.json ---- */

/* Enters a token, spelled in the byte-level alphabet. */
static mx_status add(struct reader *r, json_t *vocab, const char *s, size_t n, uint32_t id)
{
	struct mx_buf key = {0};
	mx_status st = MX_OK;
	for (size_t i = 0; i < n; i++)
		mx_tok_put(&key, mx_tok_byte_char((unsigned char)s[i]));
	if (key.failed)
		st = mx_fail(r->err, MX_E_NOMEM, "out of memory");
	else if (json_object_get(vocab, mx_buf_str(&key)))
		st = wrong(r, "the token is there twice");
	else if (json_object_set_new(vocab, mx_buf_str(&key), json_integer(id)))
		st = mx_fail(r->err, MX_E_NOMEM, "out of memory");
	mx_buf_free(&key);
	return st;
}

static mx_status read_vocab(const char *text, size_t len, json_t *vocab, struct mx_err *err)
{
	struct reader r = {text, text + len, 1, err};
	struct mx_buf token = {.limit = 2 * MAX_BYTES};
	bool single[256] = {0};
	mx_status st = MX_OK;
	while (st == MX_OK && r.p < r.end) {
		uint32_t id = 0;
		st = read_line(&r, &id, &token);
		if (st == MX_OK)
			st = add(&r, vocab, token.data, token.len, id);
		if (st == MX_OK && token.len == 1)
			single[(unsigned char)token.data[0]] = true;
	}
	mx_buf_free(&token);
	for (unsigned i = 0; st == MX_OK && i < 256; i++)
		if (!single[i])
			st = mx_fail_at(err, MX_E_FORMAT, MX_TOK_WORLD_FILE, "byte 0x%02x has no token", i);
	return st;
}

/* Returns the name of id 0. */
static const char *end_of_text(const json_t *config)
{
	const json_t *list = json_object_get(config, "added_tokens_decoder");
	const char *name = json_string_value(json_object_get(json_object_get(list, "0"), "content"));
	return name && *name ? name : END_OF_TEXT;
}

mx_status mx_tok_world(const char *text, size_t len, const json_t *config, json_t **out,
                       struct mx_err *err)
{
	const char *end = end_of_text(config);
	struct reader none = {text, text, 0, err};
	if (json_is_true(json_object_get(config, "add_bos_token")))
		return mx_fail_at(err, MX_E_UNSUPPORTED, "tokenizer_config.json: add_bos_token",
		                  "true is not supported for this tokenizer");
	json_t *vocab = json_object();
	json_t *t = json_pack("{s:{s:s,s:b,s:b},s:{s:s},s:{s:s,s:[],s:O},s:[{s:i,s:s,s:b}]}",
	                      "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "use_regex",
	                      0, "decoder", "type", "ByteLevel", "model", "type", "BPE", "merges",
	                      "vocab", vocab, "added_tokens", "id", 0, "content", end, "special", 1);
	mx_status st = vocab && t ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
	if (st == MX_OK)
		st = read_vocab(text, len, vocab, err);
	if (st == MX_OK)
		st = add(&none, vocab, end, strlen(end), 0);
	json_decref(vocab);
	if (st != MX_OK) {
		json_decref(t);
		return st;
	}
	*out = t;
	return MX_OK;
}

/* ---- a tokenizer of it ---- */

mx_status mx_tok_world_index(struct mx_tokenizer *t, struct mx_err *err)
{
	memset(t->world.root, 0xff, sizeof t->world.root);
	for (uint32_t id = 1; id < t->vocab.n_ids; id++)
		if (t->vocab.pieces[id].s &&
		    mx_tok_trie_add(&t->world, &t->vocab.pieces[id], (int32_t)id, &t->arena) != MX_OK)
			return mx_fail(err, MX_E_NOMEM, "out of memory");
	return MX_OK;
}

mx_status mx_tok_world_encode(const struct mx_tokenizer *t, const char *s, size_t n, size_t limit,
                              struct mx_tokens *out)
{
	for (size_t i = 0; i < n;) {
		int32_t id = -1;
		i += mx_tok_trie_longest(&t->world, s + i, n - i, &id);
		if (id < 0) /* every byte has a token */
			return MX_E_INTERNAL;
		if (limit && out->n == limit)
			return MX_E_LIMIT;
		if (mx_tokens_reserve(out, 1) != MX_OK)
			return MX_E_NOMEM;
		out->ids[out->n++] = id;
	}
	return MX_OK;
}
