/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a tokenizer and encodes texts; internal.h describes the parts. Thread safe
 * once loaded.
 */
#include "model/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf/texts.h"
#include "model/tokenizer/internal.h"

/* Limit of the bytes of tokenizer.json; the largest in use (Gemma 3) has 33 MB. */
#define MAX_FILE ((size_t)256 << 20)
/* Limit of the bytes of one text: offsets are 32 bits, and rewriting may make it longer. */
#define MAX_TEXT ((size_t)128 << 20)

void mx_tokens_free(struct mx_tokens *t)
{
	if (!t)
		return;
	free(t->ids);
	*t = (struct mx_tokens){0};
}

/* --- load -------------------------------------------------------------------------------- */

static mx_status parse_json(const char *text, size_t len, size_t flags, const char *file,
                            json_t **out, struct mx_err *err)
{
	json_error_t e;
	json_t *j = json_loadb(text, len, flags, &e);
	if (!j) {
		if (!e.text[0] || json_error_code(&e) == json_error_out_of_memory)
			return mx_fail_at(err, MX_E_NOMEM, file, "out of memory");
		mx_fail_at(err, MX_E_FORMAT, file, "%s", e.text);
		if (err && e.line > 0) {
			err->line = (uint32_t)e.line;
			err->column = e.column > 0 ? (uint32_t)e.column : 0;
			err->offset = e.position > 0 ? (uint64_t)e.position : 0;
		}
		return MX_E_FORMAT;
	}
	*out = j;
	return MX_OK;
}

/* Puts the file's name before the key path of an error. */
static mx_status in_file(mx_status st, const char *file, struct mx_err *err)
{
	char key[sizeof err->where];
	if (st == MX_OK || !err || !strncmp(err->where, file, strlen(file)))
		return st;
	memcpy(key, err->where, sizeof key);
	snprintf(err->where, sizeof err->where, "%s%s%.160s", file, *key ? ": " : "", key);
	return st;
}

struct text {
	const char *s;
	size_t n;
};

static mx_status parse_tokenizer(struct mx_tokenizer *t, const json_t *j, bool world,
                                 struct mx_err *err)
{
	/* truncation and padding are defaults for callers of `tokenizers`; they are ignored */
	static const char *const keys[] = {
		"version",       "truncation", "padding",        "added_tokens", "normalizer",
		"pre_tokenizer", "model",      "post_processor", "decoder",      NULL};
	mx_status st = mx_tok_keys(j, "", keys, err);
	const char *version = json_string_value(json_object_get(j, "version"));
	if (st == MX_OK && version && strcmp(version, "1.0") != 0)
		st = mx_fail_at(err, MX_E_UNSUPPORTED, "version", "\"%s\" is not supported", version);
	if (st == MX_OK)
		st = mx_tok_normalizer_parse(t, json_object_get(j, "normalizer"), "normalizer", err);
	if (st == MX_OK)
		st =
			mx_tok_pretokenizer_parse(t, json_object_get(j, "pre_tokenizer"), "pre_tokenizer", err);
	if (st == MX_OK)
		st = mx_tok_bpe_parse(t, json_object_get(j, "model"), "model", err);
	if (st == MX_OK && world)
		st = mx_tok_world_index(t, err);
	if (st == MX_OK)
		st = mx_tok_added_parse(t, json_object_get(j, "added_tokens"), "added_tokens", err);
	if (st == MX_OK)
		st = mx_tok_post_parse(t, json_object_get(j, "post_processor"), "post_processor", err);
	if (st == MX_OK)
		st = mx_tok_decoder_parse(t, json_object_get(j, "decoder"), "decoder", err);
	return st;
}

/* Parses tokenizer.json, or tekken.json: only there may strings hold U+0000. */
static mx_status parse_file(const char *text, size_t len, json_t **out, struct mx_err *err)
{
	static const char key[] = "\"token_bytes\"";
	if (memmem(text, len, key, sizeof key - 1)) {
		mx_status st = parse_json(text, len, JSON_ALLOW_NUL, "tekken.json", out, err);
		if (st != MX_OK || mx_tok_is_tekken(*out))
			return st;
		json_decref(*out); /* an ordinary token has that name */
		*out = NULL;
	}
	return parse_json(text, len, 0, "tokenizer.json", out, err);
}

/* Replaces *j, a tekken.json, by the equivalent tokenizer.json. *c may be NULL before. */
static mx_status open_tekken(struct mx_tokenizer *t, json_t **j, json_t **c, struct mx_err *err)
{
	json_t *made = NULL;
	if (!*c && !(*c = json_object()))
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	mx_status st = mx_tok_tekken(*j, *c, &made, &t->bpe.first_rank, err);
	if (st != MX_OK)
		return st;
	t->bpe.by_rank = true;
	json_decref(*j);
	*j = made;
	return MX_OK;
}

/* Makes a tokenizer of one of two files (s NULL: it is not there) and the config. */
static mx_status parse(struct text json, struct text world, struct text config,
                       struct mx_tokenizer **out, struct mx_err *err)
{
	const char *file = "tokenizer.json";
	json_t *j = NULL, *c = NULL;
	struct mx_tokenizer *t = mx_calloc(1, sizeof *t);
	mx_status st = t ? MX_OK : mx_fail(err, MX_E_NOMEM, "out of memory");
	if (st == MX_OK && json.s)
		st = parse_file(json.s, json.n, &j, err);
	if (st == MX_OK && config.s)
		st = parse_json(config.s, config.n, 0, "tokenizer_config.json", &c, err);
	if (st == MX_OK && mx_tok_is_tekken(j)) {
		file = "tekken.json";
		st = in_file(open_tekken(t, &j, &c, err), file, err);
	} else if (st == MX_OK && world.s) {
		file = MX_TOK_WORLD_FILE;
		st = mx_tok_world(world.s, world.n, c, &j, err);
	} else if (st == MX_OK && !json.s && mx_tok_is_chars(c)) {
		st = in_file(mx_tok_chars(c, &j, err), "tokenizer_config.json", err);
	} else if (st == MX_OK && !json.s) {
		st = mx_fail_at(err, MX_E_NOTFOUND, file, "is missing");
	}
	if (st == MX_OK)
		st = in_file(parse_tokenizer(t, j, world.s != NULL, err), file, err);
	if (st == MX_OK && c)
		st = in_file(mx_tok_config_parse(t, c, err), "tokenizer_config.json", err);
	if (st == MX_OK)
		st = in_file(mx_tok_added_finish(t, err), file, err);
	json_decref(j);
	json_decref(c);
	if (st != MX_OK) {
		mx_tokenizer_destroy(t);
		return st;
	}
	*out = t;
	return MX_OK;
}

mx_status mx_tokenizer_parse(const char *json, size_t len, const char *config, size_t config_len,
                             struct mx_tokenizer **out, struct mx_err *err)
{
	return parse((struct text){json, len}, (struct text){0}, (struct text){config, config_len}, out,
	             err);
}

mx_status mx_tokenizer_parse_world(const char *vocab, size_t len, const char *config,
                                   size_t config_len, struct mx_tokenizer **out, struct mx_err *err)
{
	return parse((struct text){0}, (struct text){vocab, len}, (struct text){config, config_len},
	             out, err);
}

/* Reads the whole file; MX_E_NOTFOUND if it does not exist. */
static mx_status read_file(const char *dir, const char *name, struct mx_buf *out,
                           struct mx_err *err)
{
	char path[4096];
	if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, name) >= sizeof path)
		return mx_fail_at(err, MX_E_INVALID, name, "path is too long");
	FILE *f = fopen(path, "rbe");
	if (!f)
		return mx_fail_at(err, MX_E_NOTFOUND, path, "cannot be opened: %m");
	out->limit = MAX_FILE;
	mx_status st = MX_OK;
	for (;;) {
		size_t step = out->len < 65536 ? 65536 : out->len;
		if (step > MAX_FILE - out->len)
			step = MAX_FILE - out->len;
		if (!step || !mx_buf_reserve(out, step)) {
			st = mx_fail_at(err, MX_E_LIMIT, path, "is too large");
			break;
		}
		size_t got = fread(out->data + out->len, 1, step, f);
		out->len += got;
		out->data[out->len] = 0;
		if (got < step) {
			if (ferror(f))
				st = mx_fail_at(err, MX_E_IO, path, "cannot be read: %m");
			break;
		}
	}
	fclose(f);
	return st;
}

/* Reads a file that may be absent. *there tells whether it exists; absence is no error. */
static mx_status read_optional(const char *dir, const char *name, struct mx_buf *out, bool *there,
                               struct mx_err *err)
{
	mx_status st = read_file(dir, name, out, err);
	*there = st == MX_OK;
	if (st != MX_E_NOTFOUND)
		return st;
	if (err)
		*err = (struct mx_err){0};
	return MX_OK;
}

/* Says what to do about a folder whose tokenizer is in a form that is not read. */
static mx_status explain_missing(const char *dir, struct mx_err *err)
{
	static const char *const others[] = {"tokenizer.model", "tiktoken.model", "qwen.tiktoken",
	                                     "vocab.json", "spiece.model"};
	char path[4096];
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, others[i]) < sizeof path &&
		    access(path, F_OK) == 0)
			return mx_fail_at(err, MX_E_UNSUPPORTED, path,
			                  "is the only form of the tokenizer in this folder, and is not read: "
			                  "make a tokenizer.json of it: python3 -c 'from transformers import "
			                  "AutoTokenizer as T; T.from_pretrained(\"%.100s\", "
			                  "trust_remote_code=True).save_pretrained(\"%.100s\")'",
			                  dir, dir);
	return mx_fail_at(err, MX_E_NOTFOUND, "tokenizer.json", "is missing");
}

/* Loads the tokenizer of a GGUF file, from the files that are made of it. */
static mx_status load_gguf(const char *path, struct mx_tokenizer **out, struct mx_err *err)
{
	struct mx_gguf *g = NULL;
	char *json = NULL, *world = NULL, *config = NULL;
	size_t json_len = 0, world_len = 0, config_len = 0;
	mx_status st = mx_gguf_open(path, &g, err);
	if (st != MX_OK)
		return st;
	st = mx_gguf_make(g, MX_TOK_WORLD_FILE, &world, &world_len, err);
	if (st == MX_E_NOTFOUND && err)
		*err = (struct mx_err){0};
	if (st == MX_E_NOTFOUND)
		st = mx_gguf_make(g, "tokenizer.json", &json, &json_len, err);
	if (st == MX_OK)
		st = mx_gguf_make(g, "tokenizer_config.json", &config, &config_len, err);
	if (st == MX_OK)
		st = parse((struct text){json, json_len}, (struct text){world, world_len},
		           (struct text){config, config_len}, out, err);
	mx_gguf_close(g);
	free(json);
	free(world);
	free(config);
	return st;
}

mx_status mx_tokenizer_load(const char *dir, struct mx_tokenizer **out, struct mx_err *err)
{
	if (mx_gguf_is(dir))
		return load_gguf(dir, out, err);
	struct mx_buf json = {0}, world = {0}, config = {0};
	bool has_json = false, has_world = false, has_config = false;
	mx_status st = read_optional(dir, "tokenizer.json", &json, &has_json, err);
	if (st == MX_OK && !has_json)
		st = read_optional(dir, "tekken.json", &json, &has_json, err);
	if (st == MX_OK)
		st = read_optional(dir, "tokenizer_config.json", &config, &has_config, err);
	if (st == MX_OK && !has_json)
		st = read_optional(dir, MX_TOK_WORLD_FILE, &world, &has_world, err);
	if (st == MX_OK)
		st = parse((struct text){has_json ? mx_buf_str(&json) : NULL, json.len},
		           (struct text){has_world ? mx_buf_str(&world) : NULL, world.len},
		           (struct text){has_config ? mx_buf_str(&config) : NULL, config.len}, out, err);
	if (st == MX_E_NOTFOUND && !has_json && !has_world)
		st = explain_missing(dir, err);
	mx_buf_free(&json);
	mx_buf_free(&world);
	mx_buf_free(&config);
	return st;
}

void mx_tokenizer_destroy(struct mx_tokenizer *t)
{
	if (!t)
		return;
	for (struct mx_tok_pattern *p = t->patterns; p; p = p->next) {
		pcre2_code_free(p->code);
		pcre2_code_free(p->code_newer);
	}
	mx_arena_free(&t->arena);
	free(t);
}

/* --- encode ------------------------------------------------------------------------------ */

/* Fills w->text and w->splits with the added tokens and the normalized text between them. */
static mx_status split_and_normalize(const struct mx_tokenizer *t, struct mx_tok_work *w,
                                     const char *text, size_t len)
{
	mx_status st = mx_tok_added_split(t, &t->added.raw, text, 0, len, true, &w->more);
	for (size_t i = 0; i < w->more.n && st == MX_OK; i++) {
		const struct mx_tok_split *s = &w->more.v[i];
		if (s->id >= 0) {
			st = mx_tok_splits_add(&w->splits, 0, 0, s->id, false);
			continue;
		}
		size_t off = w->text.len;
		if (t->norms.n)
			st = mx_tok_normalize(t, w, text + s->off, s->len, &w->text);
		else
			mx_buf_append(&w->text, text + s->off, s->len);
		if (st == MX_OK && w->text.failed)
			st = mx_tok_buf_failed(w, &w->text, "the text is too long");
		if (st == MX_OK)
			st = mx_tok_added_split(t, &t->added.normalized, w->text.data, off, w->text.len - off,
			                        s->first, &w->splits);
	}
	return st;
}

static mx_status append(struct mx_tokens *out, const int32_t *ids, size_t n)
{
	if (mx_tokens_reserve(out, n) != MX_OK)
		return MX_E_NOMEM;
	if (n)
		memcpy(out->ids + out->n, ids, n * sizeof *ids);
	out->n += n;
	return MX_OK;
}

static mx_status encode(const struct mx_tokenizer *t, struct mx_tok_work *w, const char *text,
                        size_t len, bool add_special, size_t limit, struct mx_tokens *out)
{
	mx_status st = split_and_normalize(t, w, text, len);
	if (st == MX_OK)
		st = mx_tok_pretokenize(t, w);
	if (st == MX_OK && add_special)
		st = append(out, t->post.before, t->post.n_before);
	for (size_t i = 0; i < w->splits.n && st == MX_OK; i++) {
		const struct mx_tok_split *s = &w->splits.v[i];
		if (s->id >= 0)
			st = append(out, &s->id, 1);
		else if (t->world.any)
			st = mx_tok_world_encode(t, w->text.data + s->off, s->len, limit, out);
		else
			st = mx_tok_bpe_encode(t, w, w->text.data + s->off, s->len, limit, out);
		if (st == MX_OK && out->cap * sizeof *out->ids > w->room.left) {
			w->room.over = true;
			st = MX_E_LIMIT;
		}
		if (st == MX_OK && limit && out->n > limit)
			st = MX_E_LIMIT;
	}
	if (st == MX_OK && add_special)
		st = append(out, t->post.after, t->post.n_after);
	if (st == MX_OK && limit && out->n > limit)
		st = MX_E_LIMIT;
	return st;
}

/* Bytes for the arrays of a text of n bytes. A part of the text takes 44 (twice its place in the
 * text and a match), a byte that is merged alone 40, and arrays grow by half; so short texts are
 * never refused, nor a megabyte of single letters, nor long texts of words. */
static size_t array_room(size_t n)
{
	size_t any = ((size_t)1 << 20) + 100 * n, large = ((size_t)64 << 20) + 12 * n;
	return any < large ? any : large;
}

/* Bytes of a rewritten text. Normalisation and the spelling of bytes make ordinary texts at most
 * three times as long. */
static size_t text_room(size_t n)
{
	return ((size_t)1 << 20) + 4 * n;
}

size_t mx_tokenizer_encode_memory(size_t n)
{
	return array_room(n) + 2 * text_room(n);
}

mx_status mx_tokenizer_encode(const struct mx_tokenizer *t, const char *text, size_t len,
                              bool add_special, size_t limit, struct mx_tokens *out,
                              struct mx_err *err)
{
	if (len > MAX_TEXT)
		return mx_fail(err, MX_E_LIMIT, "text is longer than %zu bytes", MAX_TEXT);
	struct mx_tok_work w = {
		.text_len = len, .text_limit = text_room(len), .room.left = array_room(len)};
	struct mx_buf clean = {0};
	struct mx_tokens ids = {0};
	struct mx_err mine = {0};
	w.err = &mine;
	w.splits.room = w.more.room = &w.room;
	size_t bad;
	bool cut;
	if (mx_tok_valid(text, len, &bad, &cut) != len) {
		mx_tok_lossy(&clean, text, len);
		text = mx_buf_str(&clean);
		len = clean.len;
	}
	w.text.limit = w.text_limit;
	w.newer = mx_tok_has_newer(text, len);
	mx_status st = clean.failed ? MX_E_NOMEM : encode(t, &w, text, len, add_special, limit, &ids);
	if (st == MX_OK && !out->ids) {
		*out = ids;
		ids = (struct mx_tokens){0};
	} else if (st == MX_OK) {
		st = append(out, ids.ids, ids.n);
	}
	if (w.room.over) {
		st = MX_E_UNSUPPORTED;
		mx_fail(&mine, st, "a text of %zu bytes falls into more parts than %zu MiB of memory hold",
		        len, array_room(len) >> 20);
	}
	if (st != MX_OK && mine.status == st && err)
		*err = mine;
	else if (st == MX_E_LIMIT)
		st = mx_fail(err, MX_E_RANGE, "text has more than %zu tokens", limit);
	else if (st != MX_OK)
		mx_fail(err, st, "%s", mx_status_str(st));
	mx_tokens_free(&ids);
	mx_buf_free(&clean);
	mx_tok_work_free(&w);
	return st;
}
