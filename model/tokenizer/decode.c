/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoders: a chain of stages that the strings of tokens pass through.
 *
 * Decoding a whole text runs the streaming decoder over all ids, so the two agree
 * by construction. A stage gets whole tokens or, after a stage that joins tokens
 * (ByteLevel, Fuse), fragments of one long token. It passes on the text that later
 * input cannot change. A stage that cannot tell holds everything until the end.
 *
 * The stages are those of tokenizers/src/decoders/ of
 * https://github.com/huggingface/tokenizers.
 */
#include "model/tokenizer/internal.h"

#include <string.h>

enum dec_kind {
	DEC_SPACED, /* no decoder in the file: tokens joined by spaces */
	DEC_BYTE_LEVEL,
	DEC_BYTE_FALLBACK,
	DEC_FUSE,
	DEC_REPLACE,
	DEC_STRIP,
	DEC_METASPACE
};

struct mx_tok_dec {
	enum dec_kind kind;
	bool fused;                 /* input: fragments of one token instead of tokens */
	bool hold;                  /* must hold everything until the end */
	struct mx_tok_pattern *pat; /* REPLACE */
	const char *content;
	size_t n_content;
	uint32_t mark;      /* STRIP, METASPACE: a character */
	size_t start, stop; /* STRIP: how many to cut off at most, at each end */
	bool first_mark;    /* METASPACE: drop the marks of the first token */
};

/* Limits of the bytes that a stage may make of one token, and of a text that it must hold. */
#define MAX_TOKEN ((size_t)1 << 20)
#define MAX_HELD  ((size_t)256 << 20)

/* --- reading ----------------------------------------------------------------------------- */

static mx_status one_char(const char *s, size_t n, const char *path, uint32_t *out,
                          struct mx_err *err)
{
	size_t i = 0;
	uint32_t cp = n ? mx_tok_next(s, &i) : 0;
	if (!n || i != n)
		return mx_fail_at(err, MX_E_FORMAT, path, "must be one character");
	*out = cp;
	return MX_OK;
}

static mx_status parse_replace(struct mx_tokenizer *t, const json_t *json, const char *path,
                               struct mx_tok_dec *d, struct mx_err *err)
{
	static const char *const keys[] = {"type", "pattern", "content", NULL};
	char at[MX_TOK_PATH];
	const char *s;
	mx_tok_path(at, path, "pattern", 0);
	d->kind = DEC_REPLACE;
	mx_status st = mx_tok_keys(json, path, keys, err);
	if (st == MX_OK)
		st = mx_tok_pattern_parse(t, json_object_get(json, "pattern"), at, &d->pat, err);
	if (st == MX_OK)
		st = mx_tok_str(json, path, "content", 256, &s, &d->n_content, err);
	if (st != MX_OK)
		return st;
	d->content = mx_arena_strndup(&t->arena, s, d->n_content);
	if (!d->content)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	size_t i = 0;
	if (d->pat->kind == MX_TOK_LITERAL)
		(void)mx_tok_next(d->pat->literal, &i);
	d->hold = d->fused && i != d->pat->n; /* a match may span fragments */
	return MX_OK;
}

static mx_status parse_strip(const json_t *json, const char *path, struct mx_tok_dec *d,
                             struct mx_err *err)
{
	static const char *const keys[] = {"type", "content", "start", "stop", NULL};
	const char *s;
	size_t n;
	d->kind = DEC_STRIP;
	mx_status st = mx_tok_keys(json, path, keys, err);
	if (st == MX_OK)
		st = mx_tok_str(json, path, "content", 4, &s, &n, err);
	if (st == MX_OK)
		st = one_char(s, n, path, &d->mark, err);
	if (st == MX_OK)
		st = mx_tok_size(json, path, "start", &d->start, err);
	return st == MX_OK ? mx_tok_size(json, path, "stop", &d->stop, err) : st;
}

static mx_status parse_metaspace(const json_t *json, const char *path, struct mx_tok_dec *d,
                                 struct mx_err *err)
{
	static const char *const keys[] = {
		"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep", NULL};
	const char *s, *scheme;
	size_t n;
	bool prefix = true;
	d->kind = DEC_METASPACE;
	d->first_mark = true;
	mx_status st = mx_tok_keys(json, path, keys, err);
	if (st == MX_OK)
		st = mx_tok_str(json, path, "replacement", 4, &s, &n, err);
	if (st == MX_OK)
		st = one_char(s, n, path, &d->mark, err);
	if (st == MX_OK)
		st = mx_tok_bool(json, path, "add_prefix_space", &prefix, err);
	if (st == MX_OK && json_object_get(json, "prepend_scheme")) {
		st = mx_tok_str(json, path, "prepend_scheme", 16, &scheme, &n, err);
		if (st == MX_OK && !strcmp(scheme, "never"))
			d->first_mark = false;
		else if (st == MX_OK && strcmp(scheme, "always") != 0 && strcmp(scheme, "first") != 0)
			st = mx_fail_at(err, MX_E_UNSUPPORTED, path, "prepend_scheme \"%s\" is not supported",
			                scheme);
	}
	if (st == MX_OK && !prefix && d->first_mark)
		st = mx_fail_at(err, MX_E_FORMAT, path, "add_prefix_space does not match prepend_scheme");
	return st;
}

static mx_status parse_one(struct mx_tokenizer *t, const json_t *json, const char *path,
                           const char *type, struct mx_err *err)
{
	static const char *const no_keys[] = {"type", NULL};
	static const char *const byte_keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
	                                        NULL};
	struct mx_tok_dec d = {0};
	mx_status st;
	if (t->decs.n == MX_DECODER_STAGES)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path, "too many decoders");
	for (size_t i = 0; i < t->decs.n; i++)
		d.fused |= t->decs.v[i].kind == DEC_FUSE || t->decs.v[i].kind == DEC_BYTE_LEVEL;
	if (!strcmp(type, "ByteLevel")) {
		d.kind = DEC_BYTE_LEVEL;
		d.hold = d.fused; /* one character outside the alphabet leaves the whole token unchanged */
		st = mx_tok_keys(json, path, byte_keys, err);
	} else if (!strcmp(type, "ByteFallback")) {
		d.kind = DEC_BYTE_FALLBACK;
		d.hold = d.fused; /* only the whole token tells whether it is "<0xNN>" */
		st = mx_tok_keys(json, path, no_keys, err);
	} else if (!strcmp(type, "Fuse")) {
		d.kind = DEC_FUSE;
		st = mx_tok_keys(json, path, no_keys, err);
	} else if (!strcmp(type, "Replace")) {
		st = parse_replace(t, json, path, &d, err);
	} else if (!strcmp(type, "Strip")) {
		st = parse_strip(json, path, &d, err);
	} else if (!strcmp(type, "Metaspace")) {
		st = parse_metaspace(json, path, &d, err);
	} else {
		st = mx_fail_at(err, MX_E_UNSUPPORTED, path, "decoder \"%s\" is not supported", type);
	}
	if (st == MX_OK)
		t->decs.v[t->decs.n++] = d;
	return st;
}

static mx_status parse(struct mx_tokenizer *t, const json_t *json, const char *path, int depth,
                       struct mx_err *err)
{
	static const char *const keys[] = {"type", "decoders", NULL};
	const char *type;
	mx_status st = mx_tok_type(json, path, &type, err);
	if (st != MX_OK)
		return st;
	if (strcmp(type, "Sequence") != 0)
		return parse_one(t, json, path, type, err);
	char at[MX_TOK_PATH];
	mx_tok_path(at, path, "decoders", 0);
	const json_t *list = json_object_get(json, "decoders");
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

mx_status mx_tok_decoder_parse(struct mx_tokenizer *t, const json_t *json, const char *path,
                               struct mx_err *err)
{
	t->decs.v = mx_arena_alloc(&t->arena, MX_DECODER_STAGES * sizeof *t->decs.v);
	if (!t->decs.v)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	if (!json || json_is_null(json)) {
		t->decs.v[t->decs.n++] = (struct mx_tok_dec){.kind = DEC_SPACED};
		return MX_OK;
	}
	return parse(t, json, path, 0, err);
}

/* --- flowing ----------------------------------------------------------------------------- */

static mx_status flow(struct mx_decoder *d, size_t k, const char *s, size_t n, struct mx_buf *out);

/* Returns the byte of "<0xNN>", read as `tokenizers` does, or -1. */
static int byte_token(const char *s, size_t n)
{
	if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
		return -1;
	int value = 0;
	for (int i = 3; i < 5; i++) {
		char c = s[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
		            : c >= 'a' && c <= 'f' ? c - 'a' + 10
		            : c >= 'A' && c <= 'F' ? c - 'A' + 10
		                                   : -1;
		if (digit < 0)
			return s[3] == '+' && i == 3 ? 0 : -1;
		value = value * 16 + digit;
	}
	return value;
}

/* Appends the bytes of a token: decoded, if all its characters are in the byte-level alphabet; else
 * unchanged. */
static void byte_level(const char *s, size_t n, struct mx_buf *out)
{
	size_t from = out->len;
	for (size_t i = 0; i < n;) {
		int byte = mx_tok_char_byte(mx_tok_next(s, &i));
		if (byte < 0) {
			if (!out->failed)
				out->len = from;
			mx_buf_append(out, s, n);
			return;
		}
		mx_buf_putc(out, (char)byte);
	}
}

/* Passes on the whole characters of the held bytes; at the end, all bytes. */
static mx_status byte_level_out(struct mx_decoder *d, size_t k, bool end, struct mx_buf *out)
{
	struct mx_buf *held = &d->stage[k].held;
	size_t done = 0;
	mx_status st = MX_OK;
	while (done < held->len && st == MX_OK) {
		size_t bad;
		bool cut;
		const char *s = held->data + done;
		size_t good = mx_tok_valid(s, held->len - done, &bad, &cut);
		if (good)
			st = flow(d, k + 1, s, good, out);
		done += good;
		if (cut && !end)
			break;
		if (st == MX_OK && bad)
			st = flow(d, k + 1, "\xef\xbf\xbd", 3, out);
		done += bad;
	}
	mx_buf_consume(held, done);
	return st;
}

/* Adds a token of one byte to the run of bytes before it. run_end ends the run at the next other
 * token. A run decodes as a whole: to its text if that is UTF-8, else to one U+FFFD per byte. */
static mx_status run_byte(struct mx_decoder *d, size_t k, int byte, struct mx_buf *out)
{
	struct mx_decoder_stage *s = &d->stage[k];
	if (s->broken)
		return flow(d, k + 1, "\xef\xbf\xbd", 3, out);
	mx_buf_putc(&s->held, (char)byte);
	if (s->held.failed)
		return MX_E_NOMEM;
	size_t bad;
	bool cut;
	s->state += mx_tok_valid(s->held.data + s->state, s->held.len - s->state, &bad, &cut);
	if (!bad || cut)
		return MX_OK;
	s->broken = true;
	mx_status st = MX_OK;
	for (size_t i = 0; i < s->held.len && st == MX_OK; i++)
		st = flow(d, k + 1, "\xef\xbf\xbd", 3, out);
	mx_buf_clear(&s->held);
	return st;
}

static mx_status run_end(struct mx_decoder *d, size_t k, struct mx_buf *out)
{
	struct mx_decoder_stage *s = &d->stage[k];
	mx_status st = MX_OK;
	if (s->held.len && s->state == s->held.len)
		st = flow(d, k + 1, s->held.data, s->held.len, out);
	else
		for (size_t i = 0; i < s->held.len && st == MX_OK; i++)
			st = flow(d, k + 1, "\xef\xbf\xbd", 3, out);
	mx_buf_clear(&s->held);
	s->state = 0;
	s->broken = false;
	return st;
}

static mx_status replace(struct mx_decoder *d, size_t k, const char *s, size_t n,
                         struct mx_buf *out)
{
	const struct mx_tok_dec *c = &d->tokenizer->decs.v[k];
	struct mx_buf *to = &d->stage[k].held; /* scratch, unless c->hold */
	struct mx_tok_work w = {0};
	mx_buf_clear(to);
	to->limit = MAX_TOKEN + 16 * n;
	mx_status st = mx_tok_replace(c->pat, c->content, c->n_content, &w, s, n, to);
	if (st == MX_OK && to->failed)
		st = MX_E_LIMIT;
	mx_tok_work_free(&w);
	return st == MX_OK ? flow(d, k + 1, mx_buf_str(to), to->len, out) : st;
}

/* Strips a whole token. */
static mx_status strip(struct mx_decoder *d, size_t k, const char *s, size_t n, struct mx_buf *out)
{
	const struct mx_tok_dec *c = &d->tokenizer->decs.v[k];
	size_t from = 0, to = n;
	for (size_t i = 0; i < c->start && from < to; i++) {
		size_t next = from;
		if (mx_tok_next(s, &next) != c->mark)
			break;
		from = next;
	}
	for (size_t i = 0; i < c->stop && to > from; i++) {
		size_t prev = mx_tok_prev(s, to), at = prev;
		if (mx_tok_next(s, &at) != c->mark)
			break;
		to = prev;
	}
	return flow(d, k + 1, s + from, to - from, out);
}

/* Strips a token that comes in fragments. `state` counts the marks cut off in front, SIZE_MAX once
 * other text has come; `held` is the run of marks that may be the end of the token. */
static mx_status strip_fragment(struct mx_decoder *d, size_t k, const char *s, size_t n,
                                struct mx_buf *out)
{
	const struct mx_tok_dec *c = &d->tokenizer->decs.v[k];
	struct mx_decoder_stage *g = &d->stage[k];
	size_t i = 0;
	while (g->state < c->start && i < n) {
		size_t next = i;
		if (mx_tok_next(s, &next) != c->mark) {
			g->state = SIZE_MAX;
			break;
		}
		g->state++;
		i = next;
	}
	if (i == n)
		return MX_OK;
	if (!c->stop)
		return flow(d, k + 1, s + i, n - i, out);
	mx_buf_append(&g->held, s + i, n - i);
	if (g->held.failed)
		return MX_E_NOMEM;
	size_t keep = g->held.len;
	for (size_t m = 0; m < c->stop && keep > 0; m++) {
		size_t prev = mx_tok_prev(g->held.data, keep), at = prev;
		if (mx_tok_next(g->held.data, &at) != c->mark)
			break;
		keep = prev;
	}
	mx_status st = keep ? flow(d, k + 1, g->held.data, keep, out) : MX_OK;
	mx_buf_consume(&g->held, keep);
	return st;
}

static mx_status metaspace(struct mx_decoder *d, size_t k, const char *s, size_t n,
                           struct mx_buf *out)
{
	const struct mx_tok_dec *c = &d->tokenizer->decs.v[k];
	struct mx_decoder_stage *g = &d->stage[k];
	bool first = c->fused || g->state == 0;
	g->state = 1;
	mx_buf_clear(&g->held);
	for (size_t i = 0; i < n;) {
		size_t from = i;
		if (mx_tok_next(s, &i) != c->mark)
			mx_buf_append(&g->held, s + from, i - from);
		else if (!first || !c->first_mark)
			mx_buf_putc(&g->held, ' ');
	}
	if (g->held.failed)
		return MX_E_NOMEM;
	return flow(d, k + 1, mx_buf_str(&g->held), g->held.len, out);
}

/* Passes a whole token, or a fragment, to stage k. */
static mx_status flow(struct mx_decoder *d, size_t k, const char *s, size_t n, struct mx_buf *out)
{
	if (k == d->tokenizer->decs.n) {
		mx_buf_append(out, s, n);
		return out->failed ? MX_E_LIMIT : MX_OK;
	}
	const struct mx_tok_dec *c = &d->tokenizer->decs.v[k];
	struct mx_decoder_stage *g = &d->stage[k];
	mx_status st;
	if (c->hold) {
		g->held.limit = MAX_HELD;
		mx_buf_append(&g->held, s, n);
		return g->held.failed ? MX_E_LIMIT : MX_OK;
	}
	switch (c->kind) {
	case DEC_SPACED:
		st = g->state ? flow(d, k + 1, " ", 1, out) : MX_OK;
		g->state = 1;
		return st == MX_OK ? flow(d, k + 1, s, n, out) : st;
	case DEC_BYTE_LEVEL:
		byte_level(s, n, &g->held);
		return g->held.failed ? MX_E_NOMEM : byte_level_out(d, k, false, out);
	case DEC_BYTE_FALLBACK: {
		int byte = byte_token(s, n);
		if (byte >= 0)
			return run_byte(d, k, byte, out);
		st = run_end(d, k, out);
		return st == MX_OK ? flow(d, k + 1, s, n, out) : st;
	}
	case DEC_FUSE: return flow(d, k + 1, s, n, out);
	case DEC_REPLACE: return replace(d, k, s, n, out);
	case DEC_STRIP: return c->fused ? strip_fragment(d, k, s, n, out) : strip(d, k, s, n, out);
	case DEC_METASPACE: return metaspace(d, k, s, n, out);
	}
	return MX_E_INTERNAL;
}

/* Ends the input of stage k. */
static mx_status drain(struct mx_decoder *d, size_t k, struct mx_buf *out)
{
	const struct mx_tok_dec *c = &d->tokenizer->decs.v[k];
	struct mx_decoder_stage *g = &d->stage[k];
	if (c->hold) {
		struct mx_buf all = g->held; /* the stage may need its buffer as scratch */
		g->held = (struct mx_buf){0};
		const char *s = mx_buf_str(&all);
		mx_status st;
		if (c->kind == DEC_REPLACE) {
			st = replace(d, k, s, all.len, out);
		} else if (c->kind == DEC_BYTE_LEVEL) {
			byte_level(s, all.len, &g->held);
			st = g->held.failed ? MX_E_NOMEM : byte_level_out(d, k, true, out);
		} else {
			int byte = byte_token(s, all.len);
			st = byte >= 0 ? run_byte(d, k, byte, out) : flow(d, k + 1, s, all.len, out);
			if (st == MX_OK)
				st = run_end(d, k, out);
		}
		mx_buf_free(&all);
		return st;
	}
	if (c->kind == DEC_BYTE_LEVEL)
		return byte_level_out(d, k, true, out);
	if (c->kind == DEC_BYTE_FALLBACK)
		return run_end(d, k, out);
	return MX_OK; /* Strip: the held marks are cut off */
}

/* --- public ------------------------------------------------------------------------------ */

void mx_decoder_init(struct mx_decoder *d, const struct mx_tokenizer *t, bool skip_special)
{
	*d = (struct mx_decoder){.tokenizer = t, .skip_special = skip_special};
}

mx_status mx_decoder_push(struct mx_decoder *d, int32_t id, struct mx_buf *out)
{
	const struct mx_tok_piece *p = mx_tok_decode_piece(d->tokenizer, id);
	if (!p || (d->skip_special && mx_tokenizer_is_special(d->tokenizer, id)))
		return MX_OK;
	return flow(d, 0, p->s, p->n, out);
}

mx_status mx_decoder_finish(struct mx_decoder *d, struct mx_buf *out)
{
	mx_status st = MX_OK;
	for (size_t k = 0; d->tokenizer && k < d->tokenizer->decs.n && st == MX_OK; k++)
		st = drain(d, k, out);
	mx_decoder_free(d);
	return st;
}

void mx_decoder_free(struct mx_decoder *d)
{
	if (!d)
		return;
	for (size_t k = 0; k < MX_DECODER_STAGES; k++) {
		mx_buf_free(&d->stage[k].held);
		d->stage[k] = (struct mx_decoder_stage){0};
	}
}

mx_status mx_tokenizer_decode(const struct mx_tokenizer *t, const int32_t *ids, size_t n,
                              bool skip_special, struct mx_buf *out)
{
	struct mx_decoder d;
	mx_status st = MX_OK;
	mx_decoder_init(&d, t, skip_special);
	for (size_t i = 0; i < n && st == MX_OK; i++)
		st = mx_decoder_push(&d, ids[i], out);
	if (st == MX_OK)
		st = mx_decoder_finish(&d, out);
	mx_decoder_free(&d);
	return st;
}

/* Applies the decoders to one token as if inside a text: nothing is stripped, bytes remain bytes.
 */
mx_status mx_tokenizer_token_bytes(const struct mx_tokenizer *t, int32_t id, struct mx_buf *out)
{
	const struct mx_tok_piece *p = mx_tok_decode_piece(t, id);
	if (!p)
		return MX_E_NOTFOUND;
	struct mx_buf text[2] = {{.limit = MAX_TOKEN}, {.limit = MAX_TOKEN}};
	struct mx_tok_work w = {0};
	struct mx_buf *from = &text[0], *to = &text[1];
	mx_status st = MX_OK;
	bool bytes = false; /* a stage has made bytes, which may not be UTF-8: end */
	mx_buf_append(from, p->s, p->n);
	for (size_t k = 0; k < t->decs.n && st == MX_OK && !bytes && !t->decs.v[k].fused; k++) {
		const struct mx_tok_dec *c = &t->decs.v[k];
		const char *s = mx_buf_str(from);
		int byte;
		mx_buf_clear(to);
		switch (c->kind) {
		case DEC_BYTE_LEVEL:
			byte_level(s, from->len, to);
			bytes = true;
			break;
		case DEC_BYTE_FALLBACK:
			byte = byte_token(s, from->len);
			if (byte < 0)
				continue;
			mx_buf_putc(to, (char)byte);
			bytes = true;
			break;
		case DEC_REPLACE:
			st = mx_tok_replace(c->pat, c->content, c->n_content, &w, s, from->len, to);
			break;
		case DEC_METASPACE:
			for (size_t i = 0; i < from->len;) {
				uint32_t cp = mx_tok_next(s, &i);
				mx_tok_put(to, cp == c->mark ? ' ' : cp);
			}
			break;
		default: continue;
		}
		struct mx_buf *swap = from;
		from = to;
		to = swap;
	}
	if (st == MX_OK && (text[0].failed || text[1].failed))
		st = MX_E_LIMIT;
	if (st == MX_OK)
		mx_buf_append(out, mx_buf_str(from), from->len);
	mx_buf_free(&text[0]);
	mx_buf_free(&text[1]);
	mx_tok_work_free(&w);
	return st == MX_OK && out->failed ? MX_E_LIMIT : st;
}
