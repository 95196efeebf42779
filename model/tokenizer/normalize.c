/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normalizers: a list of rewriting steps over one piece of text.
 *
 * Unicode normalization decomposes with utf8proc's tables, orders marks with a
 * stable sort (utf8proc's own is quadratic in a run of marks) and composes with
 * utf8proc. ASCII characters do not change and do not compose with the character
 * before them, so a text is normalized in parts that begin at ASCII characters.
 */
#include "model/tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum norm_kind {
	NORM_UNICODE,
	NORM_LOWERCASE,
	NORM_REPLACE,
	NORM_PREPEND,
	NORM_STRIP,
	NORM_STRIP_ACCENTS,
	NORM_BYTE_LEVEL
};

struct mx_tok_norm {
	enum norm_kind kind;
	bool compose, compat;             /* NORM_UNICODE */
	bool left, right;                 /* NORM_STRIP */
	const struct mx_tok_pattern *pat; /* NORM_REPLACE */
	const char *content;              /* NORM_REPLACE, NORM_PREPEND */
	size_t n_content;
};

#define MAX_CONTENT ((size_t)4096)

/* --- reading ----------------------------------------------------------------------------- */

static mx_status read_content(struct mx_tokenizer *t, const json_t *json, const char *path,
                              const char *key, struct mx_tok_norm *s, struct mx_err *err)
{
	const char *str;
	mx_status st = mx_tok_str(json, path, key, MAX_CONTENT, &str, &s->n_content, err);
	if (st != MX_OK)
		return st;
	s->content = mx_arena_strndup(&t->arena, str, s->n_content);
	return s->content ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
}

static mx_status parse_one(struct mx_tokenizer *t, const json_t *json, const char *path,
                           const char *type, struct mx_tok_norm *s, struct mx_err *err)
{
	static const char *const no_keys[] = {"type", NULL};
	static const char *const replace_keys[] = {"type", "pattern", "content", NULL};
	static const char *const prepend_keys[] = {"type", "prepend", NULL};
	static const char *const strip_keys[] = {"type", "strip_left", "strip_right", NULL};
	mx_status st;

	if (!strcmp(type, "Replace")) {
		char at[MX_TOK_PATH];
		struct mx_tok_pattern *pat = NULL;
		s->kind = NORM_REPLACE;
		mx_tok_path(at, path, "pattern", 0);
		st = mx_tok_keys(json, path, replace_keys, err);
		if (st == MX_OK)
			st = mx_tok_pattern_parse(t, json_object_get(json, "pattern"), at, &pat, err);
		s->pat = pat;
		return st == MX_OK ? read_content(t, json, path, "content", s, err) : st;
	}
	if (!strcmp(type, "Prepend")) {
		s->kind = NORM_PREPEND;
		st = mx_tok_keys(json, path, prepend_keys, err);
		return st == MX_OK ? read_content(t, json, path, "prepend", s, err) : st;
	}
	if (!strcmp(type, "Strip")) {
		s->kind = NORM_STRIP;
		st = mx_tok_keys(json, path, strip_keys, err);
		if (st == MX_OK)
			st = mx_tok_bool(json, path, "strip_left", &s->left, err);
		return st == MX_OK ? mx_tok_bool(json, path, "strip_right", &s->right, err) : st;
	}
	if (!strcmp(type, "Lowercase")) {
		s->kind = NORM_LOWERCASE;
	} else if (!strcmp(type, "StripAccents")) {
		s->kind = NORM_STRIP_ACCENTS;
	} else if (!strcmp(type, "ByteLevel")) {
		s->kind = NORM_BYTE_LEVEL;
	} else if (!strcmp(type, "NFC") || !strcmp(type, "NFD") || !strcmp(type, "NFKC") ||
	           !strcmp(type, "NFKD")) {
		s->kind = NORM_UNICODE;
		s->compat = type[2] == 'K';
		s->compose = type[strlen(type) - 1] == 'C';
	} else {
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "normalizer \"%s\" is not supported", type);
	}
	return mx_tok_keys(json, path, no_keys, err);
}

static mx_status parse(struct mx_tokenizer *t, const json_t *json, const char *path, int depth,
                       struct mx_err *err)
{
	static const char *const keys[] = {"type", "normalizers", NULL};
	const char *type;
	mx_status st = mx_tok_type(json, path, &type, err);
	if (st != MX_OK)
		return st;
	if (strcmp(type, "Sequence") != 0) {
		if (t->norms.n == MX_TOK_MAX_STEPS)
			return mx_fail_at(err, MX_E_UNSUPPORTED, path, "too many normalizers");
		struct mx_tok_norm s = {0};
		st = parse_one(t, json, path, type, &s, err);
		if (st == MX_OK)
			t->norms.v[t->norms.n++] = s;
		return st;
	}
	const json_t *list = json_object_get(json, "normalizers");
	char at[MX_TOK_PATH];
	mx_tok_path(at, path, "normalizers", 0);
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

mx_status mx_tok_normalizer_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                                  struct mx_err *err)
{
	if (!json || json_is_null(json))
		return MX_OK;
	t->norms.v = mx_arena_alloc(&t->arena, MX_TOK_MAX_STEPS * sizeof *t->norms.v);
	if (!t->norms.v)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	return parse(t, json, path, 0, err);
}

/* --- Unicode normalization --------------------------------------------------------------- */

/* Decomposed code points of one part of the text. */
struct codes {
	utf8proc_int32_t *v;
	size_t n, cap;
};

static mx_status decompose(const struct mx_tok_norm *s, const char *text, size_t n, struct codes *c)
{
	utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
	if (s->compat)
		options |= UTF8PROC_COMPAT;
	c->n = 0;
	for (size_t i = 0; i < n;) {
		/* no character decomposes into more than 18 (U+FDFA) */
		if (c->cap - c->n < 32) {
			size_t cap = c->cap ? c->cap * 2 : 256;
			utf8proc_int32_t *v = mx_realloc(c->v, cap, sizeof *v);
			if (!v)
				return MX_E_NOMEM;
			c->v = v;
			c->cap = cap;
		}
		utf8proc_int32_t cp = (utf8proc_int32_t)mx_tok_next(text, &i);
		if (!mx_tok_decomposes((uint32_t)cp)) {
			c->v[c->n++] = cp;
			continue;
		}
		int boundclass = UTF8PROC_BOUNDCLASS_START;
		utf8proc_ssize_t got = utf8proc_decompose_char(
			cp, c->v + c->n, (utf8proc_ssize_t)(c->cap - c->n), options, &boundclass);
		if (got < 0 || (size_t)got > c->cap - c->n)
			return MX_E_INTERNAL;
		c->n += (size_t)got;
	}
	return MX_OK;
}

/* Canonical ordering (Unicode 3.11): sorts the marks between two starters by combining class,
 * stably. It is a counting sort, which is linear in the length of the run. */
static mx_status order(struct codes *c)
{
	for (size_t i = 0; i < c->n;) {
		if (!mx_tok_combining_class((uint32_t)c->v[i])) {
			i++;
			continue;
		}
		size_t end = i;
		bool sorted = true;
		for (int last = 0; end < c->n; end++) {
			int k = mx_tok_combining_class((uint32_t)c->v[end]);
			if (!k)
				break;
			sorted &= k >= last;
			last = k;
		}
		if (!sorted) {
			size_t start[257] = {0};
			utf8proc_int32_t *copy = mx_calloc(end - i, sizeof *copy);
			if (!copy)
				return MX_E_NOMEM;
			memcpy(copy, c->v + i, (end - i) * sizeof *copy);
			for (size_t j = i; j < end; j++)
				start[(mx_tok_combining_class((uint32_t)c->v[j]) & 255) + 1]++;
			for (int k = 0; k < 256; k++)
				start[k + 1] += start[k];
			for (size_t j = 0; j < end - i; j++)
				c->v[i + start[mx_tok_combining_class((uint32_t)copy[j]) & 255]++] = copy[j];
			free(copy);
		}
		i = end;
	}
	return MX_OK;
}

static size_t ascii_run(const char *s, size_t n)
{
	size_t i = 0;
	while (i < n && (unsigned char)s[i] < 0x80)
		i++;
	return i;
}

static mx_status unicode(const struct mx_tok_norm *s, const char *text, size_t n,
                         struct mx_buf *out)
{
	struct codes c = {0};
	mx_status st = MX_OK;
	for (size_t i = 0; i < n && st == MX_OK;) {
		size_t plain = ascii_run(text + i, n - i);
		size_t from = i + plain;
		if (from == n) {
			mx_buf_append(out, text + i, plain);
			break;
		}
		/* the last ASCII character may compose with the marks that follow */
		if (plain) {
			mx_buf_append(out, text + i, plain - 1);
			from--;
		}
		size_t end = from + (plain ? 1 : 0);
		while (end < n && (unsigned char)text[end] >= 0x80)
			end++;
		st = decompose(s, text + from, end - from, &c);
		if (st == MX_OK)
			st = order(&c);
		if (st == MX_OK && s->compose) {
			utf8proc_ssize_t got = utf8proc_normalize_utf32(c.v, (utf8proc_ssize_t)c.n,
			                                                UTF8PROC_STABLE | UTF8PROC_COMPOSE);
			if (got < 0)
				st = MX_E_INTERNAL;
			else
				c.n = (size_t)got;
		}
		for (size_t k = 0; st == MX_OK && k < c.n; k++)
			mx_tok_put(out, (uint32_t)c.v[k]);
		i = end;
	}
	free(c.v);
	return st;
}

/* --- the other steps --------------------------------------------------------------------- */

static void lowercase(const char *s, size_t n, struct mx_buf *out)
{
	for (size_t i = 0; i < n;) {
		uint32_t cp = mx_tok_next(s, &i);
		if (cp == 0x130) { /* the only character whose full lower case is two */
			mx_tok_put(out, 'i');
			mx_tok_put(out, 0x307);
		} else {
			mx_tok_put(out, mx_tok_lower(cp));
		}
	}
}

static void strip(const struct mx_tok_norm *step, const char *s, size_t n, struct mx_buf *out)
{
	size_t from = 0, to = n;
	while (step->left && from < to) {
		size_t i = from;
		if (!mx_tok_is_space(mx_tok_next(s, &i)))
			break;
		from = i;
	}
	while (step->right && to > from) {
		size_t p = mx_tok_prev(s, to), i = p;
		if (!mx_tok_is_space(mx_tok_next(s, &i)))
			break;
		to = p;
	}
	mx_buf_append(out, s + from, to - from);
}

static mx_status apply(const struct mx_tok_norm *step, struct mx_tok_work *w, const char *s,
                       size_t n, struct mx_buf *out)
{
	switch (step->kind) {
	case NORM_UNICODE: return unicode(step, s, n, out);
	case NORM_LOWERCASE: lowercase(s, n, out); return MX_OK;
	case NORM_REPLACE:
		return mx_tok_replace(step->pat, step->content, step->n_content, w, s, n, out);
	case NORM_PREPEND:
		if (n)
			mx_buf_append(out, step->content, step->n_content);
		mx_buf_append(out, s, n);
		return MX_OK;
	case NORM_STRIP: strip(step, s, n, out); return MX_OK;
	case NORM_STRIP_ACCENTS:
		for (size_t i = 0; i < n;) {
			uint32_t cp = mx_tok_next(s, &i);
			if (!mx_tok_is_mark(cp))
				mx_tok_put(out, cp);
		}
		return MX_OK;
	case NORM_BYTE_LEVEL:
		for (size_t i = 0; i < n; i++)
			mx_tok_put(out, mx_tok_byte_char((unsigned char)s[i]));
		return MX_OK;
	}
	return MX_E_INTERNAL;
}

mx_status mx_tok_normalize(const struct mx_tokenizer *t, struct mx_tok_work *w, const char *s,
                           size_t n, struct mx_buf *out)
{
	for (size_t k = 0; k < t->norms.n; k++) {
		struct mx_buf *to = k + 1 == t->norms.n ? out : &w->scratch[k & 1];
		if (to != out)
			mx_buf_clear(to);
		to->limit = w->text_limit;
		mx_status st = apply(&t->norms.v[k], w, s, n, to);
		if (st == MX_OK && to->failed)
			st = mx_tok_buf_failed(w, to, "normalizing makes the text too long");
		if (st != MX_OK)
			return st == MX_E_NOMEM ? mx_fail(w->err, st, "out of memory") : st;
		if (to != out) {
			s = mx_buf_str(to);
			n = to->len;
		}
	}
	return MX_OK;
}
