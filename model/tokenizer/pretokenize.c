/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizers, compiled to four primitive steps over a list of splits:
 * put a space in front, cut at the matches of a pattern, spell bytes in the
 * byte-level alphabet, replace spaces by a visible character (Metaspace).
 */
#include "model/tokenizer/internal.h"

#include <string.h>

enum pre_kind { PRE_SPACE, PRE_CUT, PRE_BYTES, PRE_METASPACE };

/* What a PRE_CUT does with its matches. */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

enum prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS };

struct mx_tok_pre {
	enum pre_kind kind;
	struct mx_tok_pattern *pat; /* PRE_CUT */
	enum behavior behavior;
	bool invert;
	enum prepend prepend; /* PRE_METASPACE */
	char mark[8];         /* its replacement character, UTF-8 */
	size_t n_mark;
};

/* The split of OpenAI's GPT-2, https://github.com/openai/gpt-2/blob/master/src/encoder.py */
static const char gpt2_regex[] =
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* --- reading ----------------------------------------------------------------------------- */

static mx_status add(struct mx_tokenizer *t, const char *path, struct mx_tok_pre step,
                     struct mx_err *err)
{
	if (t->pres.n == MX_TOK_MAX_STEPS)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "too many pre-tokenizers");
	t->pres.v[t->pres.n++] = step;
	return MX_OK;
}

static mx_status add_class(struct mx_tokenizer *t, const char *path, enum mx_tok_pattern_kind kind,
                           bool (*in_class)(uint32_t), enum behavior behavior, bool invert,
                           struct mx_err *err)
{
	struct mx_tok_pre step = {.kind = PRE_CUT, .behavior = behavior, .invert = invert};
	if (mx_tok_pattern_class(t, kind, in_class, &step.pat) != MX_OK)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	return add(t, path, step, err);
}

static mx_status parse_behavior(const json_t *json, const char *path, enum behavior *out,
                                struct mx_err *err)
{
	static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
	                                    "MergedWithNext", "Contiguous"};
	const char *s;
	size_t n;
	mx_status st = mx_tok_str(json, path, "behavior", 32, &s, &n, err);
	if (st != MX_OK)
		return st;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(names[i], s)) {
			*out = (enum behavior)i;
			return MX_OK;
		}
	return mx_fail_at(err, MX_E_UNSUPPORTED, path, "behavior \"%s\" is not supported", s);
}

static mx_status parse_byte_level(struct mx_tokenizer *t, const json_t *json, const char *path,
                                  struct mx_err *err)
{
	static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
	                                   NULL};
	bool prefix = true, trim = true, regex = true;
	mx_status st = mx_tok_keys(json, path, keys, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "add_prefix_space", &prefix, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "trim_offsets", &trim, err); /* offsets are not used */
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "use_regex", &regex, err);
	if (st == MX_OK && prefix)
		st = add(t, path, (struct mx_tok_pre){.kind = PRE_SPACE}, err);
	if (st == MX_OK && regex) {
		struct mx_tok_pre step = {.kind = PRE_CUT, .behavior = ISOLATED};
		st = mx_tok_regex(t, gpt2_regex, sizeof gpt2_regex - 1, path, &step.pat, err);
		if (st == MX_OK)
			st = add(t, path, step, err);
	}
	if (st == MX_OK)
		st = add(t, path, (struct mx_tok_pre){.kind = PRE_BYTES}, err);
	return st;
}

static mx_status parse_split(struct mx_tokenizer *t, const json_t *json, const char *path,
                             struct mx_err *err)
{
	static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
	struct mx_tok_pre step = {.kind = PRE_CUT};
	char at[MX_TOK_PATH];
	mx_tok_path(at, path, "pattern", 0);
	mx_status st = mx_tok_keys(json, path, keys, err);
	if (st == MX_OK)
		st = mx_tok_pattern_parse(t, json_object_get(json, "pattern"), at, &step.pat, err);
	if (st == MX_OK)
		st = parse_behavior(json, path, &step.behavior, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "invert", &step.invert, err);
	return st == MX_OK ? add(t, path, step, err) : st;
}

static mx_status parse_metaspace(struct mx_tokenizer *t, const json_t *json, const char *path,
                                 struct mx_err *err)
{
	static const char *const keys[] = {
		"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep", NULL};
	struct mx_tok_pre step = {.kind = PRE_METASPACE, .prepend = PREPEND_ALWAYS};
	bool split = true, prefix = true;
	const char *s, *scheme = NULL;
	size_t n, n_scheme;
	mx_status st = mx_tok_keys(json, path, keys, err);
	if (st == MX_OK)
		st = mx_tok_str(json, path, "replacement", 4, &s, &n, err);
	if (st == MX_OK && json_object_get(json, "prepend_scheme"))
		st = mx_tok_str(json, path, "prepend_scheme", 16, &scheme, &n_scheme, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "add_prefix_space", &prefix, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "split", &split, err);
	if (st != MX_OK)
		return st;
	size_t one = 0;
	if (n)
		(void)mx_tok_next(s, &one);
	if (!n || one != n)
		return mx_fail_at(err, MX_E_FORMAT, path, "replacement must be one character");
	memcpy(step.mark, s, n);
	step.n_mark = n;
	if (scheme && !strcmp(scheme, "first"))
		step.prepend = PREPEND_FIRST;
	else if (scheme && !strcmp(scheme, "never"))
		step.prepend = PREPEND_NEVER;
	else if (scheme && strcmp(scheme, "always") != 0)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "prepend_scheme \"%s\" is not supported",
		                  scheme);
	if (!prefix && step.prepend != PREPEND_NEVER)
		return mx_fail_at(err, MX_E_FORMAT, path, "add_prefix_space does not match prepend_scheme");
	st = add(t, path, step, err);
	if (st == MX_OK && split) {
		struct mx_tok_pre cut = {.kind = PRE_CUT, .behavior = MERGED_WITH_NEXT};
		if (mx_tok_pattern_literal(t, s, n, &cut.pat) != MX_OK)
			return mx_fail(err, MX_E_NOMEM, "out of memory");
		st = add(t, path, cut, err);
	}
	return st;
}

static mx_status parse_one(struct mx_tokenizer *t, const json_t *json, const char *path,
                           const char *type, struct mx_err *err)
{
	static const char *const no_keys[] = {"type", NULL};
	static const char *const digit_keys[] = {"type", "individual_digits", NULL};
	static const char *const punct_keys[] = {"type", "behavior", NULL};
	mx_status st;
	if (!strcmp(type, "ByteLevel"))
		return parse_byte_level(t, json, path, err);
	if (!strcmp(type, "Split"))
		return parse_split(t, json, path, err);
	if (!strcmp(type, "Metaspace"))
		return parse_metaspace(t, json, path, err);
	if (!strcmp(type, "Digits")) {
		bool each = false;
		st = mx_tok_keys(json, path, digit_keys, err);
		if (st == MX_OK)
			st = mx_tok_bool(json, path, "individual_digits", &each, err);
		if (st != MX_OK)
			return st;
		return add_class(t, path, MX_TOK_CLASS, mx_tok_is_numeric, each ? ISOLATED : CONTIGUOUS,
		                 false, err);
	}
	if (!strcmp(type, "Punctuation")) {
		enum behavior behavior = ISOLATED;
		st = mx_tok_keys(json, path, punct_keys, err);
		if (st == MX_OK && json_object_get(json, "behavior"))
			st = parse_behavior(json, path, &behavior, err);
		if (st != MX_OK)
			return st;
		return add_class(t, path, MX_TOK_CLASS, mx_tok_is_punct, behavior, false, err);
	}
	if (!strcmp(type, "Whitespace") || !strcmp(type, "WhitespaceSplit")) {
		bool words = !strcmp(type, "Whitespace");
		st = mx_tok_keys(json, path, no_keys, err);
		if (st != MX_OK)
			return st;
		return add_class(t, path, words ? MX_TOK_WORDS : MX_TOK_CLASS, mx_tok_is_space, REMOVED,
		                 words, err);
	}
	return mx_fail_at(err, MX_E_UNSUPPORTED, path, "pre-tokenizer \"%s\" is not supported", type);
}

static mx_status parse(struct mx_tokenizer *t, const json_t *json, const char *path, int depth,
                       struct mx_err *err)
{
	static const char *const keys[] = {"type", "pretokenizers", NULL};
	const char *type;
	mx_status st = mx_tok_type(json, path, &type, err);
	if (st != MX_OK)
		return st;
	if (strcmp(type, "Sequence") != 0)
		return parse_one(t, json, path, type, err);
	const json_t *list = json_object_get(json, "pretokenizers");
	char at[MX_TOK_PATH];
	mx_tok_path(at, path, "pretokenizers", 0);
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

mx_status mx_tok_pretokenizer_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                                    struct mx_err *err)
{
	if (!json || json_is_null(json))
		return MX_OK;
	t->pres.v = mx_arena_alloc(&t->arena, MX_TOK_MAX_STEPS * sizeof *t->pres.v);
	if (!t->pres.v)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	return parse(t, json, path, 0, err);
}

/* --- cutting ----------------------------------------------------------------------------- */

static mx_status range_add(struct mx_tok_work *w, size_t start, size_t end, bool match)
{
	if (w->n_ranges == w->cap_ranges) {
		size_t cap = mx_tok_next_cap(w->cap_ranges);
		struct mx_tok_range *r = mx_tok_grow(&w->room, w->ranges, w->cap_ranges, cap, sizeof *r);
		if (!r)
			return MX_E_NOMEM;
		w->ranges = r;
		w->cap_ranges = cap;
	}
	w->ranges[w->n_ranges++] = (struct mx_tok_range){(uint32_t)start, (uint32_t)end, match};
	return MX_OK;
}

/* Fills w->ranges with the matches and the parts between them, in order; together they cover s. */
static mx_status find_ranges(const struct mx_tok_pre *step, struct mx_tok_work *w, const char *s,
                             size_t n)
{
	struct mx_tok_find f = {.p = step->pat, .s = s, .n = n};
	size_t done = 0;
	w->n_ranges = 0;
	for (;;) {
		bool found;
		size_t start, end;
		mx_status st = mx_tok_find_next(&f, w, &found, &start, &end);
		if (st != MX_OK)
			return st;
		if (!found)
			break;
		if (done != start && range_add(w, done, start, step->invert) != MX_OK)
			return MX_E_NOMEM;
		if (range_add(w, start, end, !step->invert) != MX_OK)
			return MX_E_NOMEM;
		done = end;
	}
	return done != n ? range_add(w, done, n, step->invert) : MX_OK;
}

/* The folds below are those of NormalizedString::split in `tokenizers`. */
static void merge_forward(struct mx_tok_work *w, bool contiguous)
{
	size_t n = 0;
	bool previous = false;
	for (size_t i = 0; i < w->n_ranges; i++) {
		struct mx_tok_range r = w->ranges[i];
		if (n && (contiguous ? r.match == previous : r.match && !previous))
			w->ranges[n - 1].end = r.end;
		else
			w->ranges[n++] = r;
		previous = r.match;
	}
	w->n_ranges = n;
}

static void merge_backward(struct mx_tok_work *w)
{
	size_t n = w->n_ranges; /* ranges[n..) is the result */
	bool previous = false;
	for (size_t i = w->n_ranges; i-- > 0;) {
		struct mx_tok_range r = w->ranges[i];
		if (n < w->n_ranges && r.match && !previous)
			w->ranges[n].start = r.start;
		else
			w->ranges[--n] = r;
		previous = r.match;
	}
	memmove(w->ranges, w->ranges + n, (w->n_ranges - n) * sizeof *w->ranges);
	w->n_ranges -= n;
}

static mx_status cut(const struct mx_tok_pre *step, struct mx_tok_work *w,
                     const struct mx_tok_split *from)
{
	mx_status st = find_ranges(step, w, w->text.data + from->off, from->len);
	if (st != MX_OK)
		return st;
	if (step->behavior == MERGED_WITH_PREVIOUS || step->behavior == CONTIGUOUS)
		merge_forward(w, step->behavior == CONTIGUOUS);
	else if (step->behavior == MERGED_WITH_NEXT)
		merge_backward(w);
	for (size_t i = 0; i < w->n_ranges; i++) {
		const struct mx_tok_range *r = &w->ranges[i];
		if (r->start == r->end || (step->behavior == REMOVED && r->match))
			continue;
		st = mx_tok_splits_add(&w->more, from->off + r->start, r->end - r->start, -1,
		                       from->first && r->start == 0);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* --- rewriting --------------------------------------------------------------------------- */

static void metaspace(const struct mx_tok_pre *step, const char *s, size_t n, bool first,
                      struct mx_buf *out)
{
	bool marked = n && (s[0] == ' ' || (n >= step->n_mark && !memcmp(s, step->mark, step->n_mark)));
	if (!marked && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && first)))
		mx_buf_append(out, step->mark, step->n_mark);
	while (n) {
		const char *space = memchr(s, ' ', n);
		size_t plain = space ? (size_t)(space - s) : n;
		mx_buf_append(out, s, plain);
		if (!space)
			break;
		mx_buf_append(out, step->mark, step->n_mark);
		s += plain + 1;
		n -= plain + 1;
	}
}

static void spell_bytes(const char *s, size_t n, struct mx_buf *out)
{
	if (!mx_buf_reserve(out, 2 * n))
		return;
	char *to = out->data + out->len;
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		if (c > 0x20 && c < 0x7f) {
			*to++ = s[i];
			continue;
		}
		uint32_t cp = mx_tok_byte_char(c); /* always two bytes: U+0080 to U+07FF */
		*to++ = (char)(0xc0 | cp >> 6);
		*to++ = (char)(0x80 | (cp & 0x3f));
	}
	out->len = (size_t)(to - out->data);
	*to = 0;
}

/* Rewrites one split into w->other. */
static mx_status rewrite(const struct mx_tok_pre *step, struct mx_tok_work *w,
                         const struct mx_tok_split *from)
{
	const char *s = w->text.data + from->off;
	size_t off = w->other.len;
	switch (step->kind) {
	case PRE_SPACE:
		if (s[0] != ' ')
			mx_buf_putc(&w->other, ' ');
		mx_buf_append(&w->other, s, from->len);
		break;
	case PRE_METASPACE: metaspace(step, s, from->len, from->first, &w->other); break;
	case PRE_BYTES: spell_bytes(s, from->len, &w->other); break;
	case PRE_CUT: return MX_E_INTERNAL;
	}
	if (w->other.failed)
		return mx_tok_buf_failed(w, &w->other, "pre-tokenizing makes the text too long");
	return mx_tok_splits_add(&w->more, off, w->other.len - off, -1, from->first);
}

mx_status mx_tok_pretokenize(const struct mx_tokenizer *t, struct mx_tok_work *w)
{
	for (size_t k = 0; k < t->pres.n; k++) {
		const struct mx_tok_pre *step = &t->pres.v[k];
		w->more.n = 0;
		mx_buf_clear(&w->other);
		w->other.limit = w->text_limit;
		for (size_t i = 0; i < w->splits.n; i++) {
			const struct mx_tok_split *from = &w->splits.v[i];
			mx_status st;
			if (from->id >= 0)
				st = mx_tok_splits_add(&w->more, from->off, from->len, from->id, false);
			else if (step->kind == PRE_CUT)
				st = cut(step, w, from);
			else
				st = rewrite(step, w, from);
			if (st != MX_OK)
				return st == MX_E_NOMEM ? mx_fail(w->err, st, "out of memory") : st;
		}
		struct mx_tok_splits s = w->splits;
		w->splits = w->more;
		w->more = s;
		if (step->kind != PRE_CUT) {
			struct mx_buf b = w->text;
			w->text = w->other;
			w->other = b;
		}
	}
	return MX_OK;
}
