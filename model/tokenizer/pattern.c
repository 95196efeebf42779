/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns of normalizers, pre-tokenizers and decoders: literals, regexes
 * (PCRE2 with JIT) and character classes, and the search for their matches.
 *
 * All threads share a compiled regex; match data, limits and the JIT stack belong
 * to one call. So that no regex of a file can hang a request, each match has a
 * backtracking limit, and all matches of a call share a time budget.
 */
#include "model/tokenizer/internal.h"

#include <string.h>

#include "base/clock.h"
#include "model/tokenizer/regex.h"

#define MAX_REGEX       ((size_t)16 << 10) /* bytes; real ones have under 500 */
#define HEAP_LIMIT_KIB  (64u << 10)
#define JIT_STACK_START ((size_t)32 << 10)
#define JIT_STACK_MAX   ((size_t)8 << 20)
/* Limit of the backtracks of one match. A sound regex needs a number linear in the text: it
 * backtracks once over a run of spaces that no line end follows. */
#define MATCH_LIMIT(len) (2000000u + 4 * (uint32_t)(len))
/* Time limit for all matches of a call; a sound regex needs some 50 ms for a MB. */
#define REGEX_BUDGET_NS(len) (2 * MX_NS_PER_S + 10000 * (uint64_t)(len))

static struct mx_tok_pattern *pattern_new(struct mx_tokenizer *t, enum mx_tok_pattern_kind kind)
{
	struct mx_tok_pattern *p = mx_arena_alloc(&t->arena, sizeof *p);
	if (p)
		p->kind = kind;
	return p;
}

static mx_status compile(const char *regex, size_t n, bool newer, const char *path,
                         pcre2_code **out, struct mx_err *err)
{
	struct mx_buf text = {.limit = 64 * MAX_REGEX};
	pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
	mx_status st = cc ? mx_tok_regex_translate(regex, n, newer, path, &text, err)
	                  : mx_fail(err, MX_E_NOMEM, "out of memory");
	if (st != MX_OK)
		goto end;
	pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
	int code;
	PCRE2_SIZE at;
	*out = pcre2_compile((PCRE2_SPTR)mx_buf_str(&text), text.len,
	                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
	                     &at, cc);
	if (!*out) {
		char why[128] = "";
		pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
		st = mx_fail_at(err, MX_E_UNSUPPORTED, path, "regex: %s", why);
		goto end;
	}
	(void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without JIT, matching is only slower */
end:
	pcre2_compile_context_free(cc);
	mx_buf_free(&text);
	return st;
}

mx_status mx_tok_regex(struct mx_tokenizer *t, const char *regex, size_t n, const char *path,
                       struct mx_tok_pattern **out, struct mx_err *err)
{
	if (n > MAX_REGEX)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "regex is longer than %zu bytes", MAX_REGEX);
	struct mx_tok_pattern *p = pattern_new(t, MX_TOK_REGEX);
	if (!p)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	p->next = t->patterns;
	t->patterns = p;
	mx_status st = compile(regex, n, false, path, &p->code, err);
	if (st == MX_OK)
		st = compile(regex, n, true, path, &p->code_newer, err);
	if (st == MX_OK)
		*out = p;
	return st;
}

mx_status mx_tok_pattern_literal(struct mx_tokenizer *t, const char *s, size_t n,
                                 struct mx_tok_pattern **out)
{
	struct mx_tok_pattern *p = pattern_new(t, MX_TOK_LITERAL);
	char *copy = mx_arena_strndup(&t->arena, s, n);
	if (!p || !copy)
		return MX_E_NOMEM;
	p->literal = copy;
	p->n = n;
	*out = p;
	return MX_OK;
}

mx_status mx_tok_pattern_class(struct mx_tokenizer *t, enum mx_tok_pattern_kind kind,
                               bool (*in_class)(uint32_t cp), struct mx_tok_pattern **out)
{
	struct mx_tok_pattern *p = pattern_new(t, kind);
	if (!p)
		return MX_E_NOMEM;
	p->in_class = in_class;
	*out = p;
	return MX_OK;
}

mx_status mx_tok_pattern_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                               struct mx_tok_pattern **out, struct mx_err *err)
{
	static const char *const keys[] = {"String", "Regex", NULL};
	mx_status st = mx_tok_keys(json, path, keys, err);
	if (st != MX_OK)
		return st;
	if (json_object_size(json) != 1)
		return mx_fail_at(err, MX_E_FORMAT, path, "must have one of \"String\" and \"Regex\"");
	const char *s;
	size_t n;
	bool regex = json_object_get(json, "Regex");
	st = mx_tok_str(json, path, regex ? "Regex" : "String", MAX_REGEX, &s, &n, err);
	if (st != MX_OK)
		return st;
	if (regex || !n) /* the empty string matches as an empty regex does */
		return mx_tok_regex(t, s, n, path, out, err);
	st = mx_tok_pattern_literal(t, s, n, out);
	return st == MX_OK ? st : mx_fail(err, st, "out of memory");
}

static mx_status prepare(struct mx_tok_work *w, size_t len)
{
	if (w->match_data) {
		pcre2_set_match_limit(w->match_context, MATCH_LIMIT(len));
		return MX_OK;
	}
	w->match_context = pcre2_match_context_create(NULL);
	w->match_data = pcre2_match_data_create(1, NULL); /* room for the whole match only, no groups */
	w->jit_stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
	if (!w->match_context || !w->match_data)
		return mx_fail(w->err, MX_E_NOMEM, "out of memory");
	if (w->jit_stack)
		pcre2_jit_stack_assign(w->match_context, NULL, w->jit_stack);
	pcre2_set_match_limit(w->match_context, MATCH_LIMIT(len));
	pcre2_set_heap_limit(w->match_context, HEAP_LIMIT_KIB);
	w->regex_deadline = mx_now_ns() + REGEX_BUDGET_NS(w->text_len);
	return MX_OK;
}

static mx_status find_regex(struct mx_tok_find *f, struct mx_tok_work *w, bool *found,
                            size_t *start, size_t *end)
{
	mx_status st = prepare(w, f->n);
	if (st != MX_OK)
		return st;
	while (f->pos <= f->n) {
		if ((++w->regex_calls & 63) == 0 && mx_now_ns() > w->regex_deadline)
			return mx_fail(w->err, MX_E_LIMIT, "the tokenizer's regex takes too long on this text");
		int rc = pcre2_match(w->newer ? f->p->code_newer : f->p->code, (PCRE2_SPTR)f->s, f->n,
		                     f->pos, PCRE2_NO_UTF_CHECK, w->match_data, w->match_context);
		if (rc == PCRE2_ERROR_NOMATCH)
			break;
		if (rc < 0)
			return mx_fail(w->err, rc == PCRE2_ERROR_NOMEMORY ? MX_E_NOMEM : MX_E_LIMIT,
			               "the tokenizer's regex fails on this text (PCRE2 error %d)", rc);
		const PCRE2_SIZE *at = pcre2_get_ovector_pointer(w->match_data);
		if (at[0] > at[1] || at[0] < f->pos) /* a look-around may have moved the start (\K) */
			return mx_fail(w->err, MX_E_UNSUPPORTED, "the tokenizer's regex matches backwards");
		if (at[0] == at[1] && f->any && f->last_end == at[1]) {
			/* an empty match right after a match does not count */
			if (f->pos == f->n)
				break;
			(void)mx_tok_next(f->s, &f->pos);
			continue;
		}
		f->pos = f->last_end = at[1];
		f->any = true;
		*start = at[0];
		*end = at[1];
		*found = true;
		return MX_OK;
	}
	*found = false;
	return MX_OK;
}

/* Finds a run of word characters, or of characters that are neither word nor space. */
static bool find_words(struct mx_tok_find *f, size_t *start, size_t *end)
{
	while (f->pos < f->n) {
		size_t i = f->pos;
		uint32_t cp = mx_tok_next(f->s, &i);
		if (mx_tok_is_space(cp)) {
			f->pos = i;
			continue;
		}
		bool word = mx_tok_is_word(cp);
		*start = f->pos;
		while (i < f->n) {
			size_t j = i;
			cp = mx_tok_next(f->s, &j);
			if (word ? !mx_tok_is_word(cp) : mx_tok_is_space(cp) || mx_tok_is_word(cp))
				break;
			i = j;
		}
		*end = f->pos = i;
		return true;
	}
	return false;
}

/* Finds a literal. memmem would read all of s each time under sanitizers. */
static const char *find_literal(const char *s, size_t n, const char *what, size_t n_what)
{
	while (n >= n_what) {
		const char *p = memchr(s, what[0], n - n_what + 1);
		if (!p || !memcmp(p, what, n_what))
			return p;
		n -= (size_t)(p + 1 - s);
		s = p + 1;
	}
	return NULL;
}

mx_status mx_tok_find_next(struct mx_tok_find *f, struct mx_tok_work *w, bool *found, size_t *start,
                           size_t *end)
{
	*found = false;
	switch (f->p->kind) {
	case MX_TOK_REGEX: return find_regex(f, w, found, start, end);
	case MX_TOK_LITERAL: {
		const char *hit = find_literal(f->s + f->pos, f->n - f->pos, f->p->literal, f->p->n);
		if (hit) {
			*start = (size_t)(hit - f->s);
			*end = f->pos = *start + f->p->n;
			*found = true;
		}
		return MX_OK;
	}
	case MX_TOK_CLASS:
		while (f->pos < f->n) {
			*start = f->pos;
			if (f->p->in_class(mx_tok_next(f->s, &f->pos))) {
				*end = f->pos;
				*found = true;
				break;
			}
		}
		return MX_OK;
	case MX_TOK_WORDS: *found = find_words(f, start, end); return MX_OK;
	}
	return MX_E_INTERNAL;
}

mx_status mx_tok_replace(const struct mx_tok_pattern *p, const char *content, size_t n_content,
                         struct mx_tok_work *w, const char *s, size_t n, struct mx_buf *out)
{
	struct mx_tok_find f = {.p = p, .s = s, .n = n};
	size_t done = 0;
	while (n) {
		bool found;
		size_t start, end;
		mx_status st = mx_tok_find_next(&f, w, &found, &start, &end);
		if (st != MX_OK)
			return st;
		if (!found)
			break;
		mx_buf_append(out, s + done, start - done);
		mx_buf_append(out, content, n_content);
		if (out->failed)
			break; /* the caller checks out->failed; going on could take long */
		done = end;
	}
	mx_buf_append(out, s + done, n - done);
	return MX_OK;
}
