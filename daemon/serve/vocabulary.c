/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/vocabulary.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/tool_arguments.h"

#define MAX_MARKS 32

/* Adds a mark's id to ids[n] if it is a token, which families need not call special. Returns how
 * many there are then. */
static size_t add_mark(const struct mx_tokenizer *t, const char *mark, int32_t *ids, size_t n)
{
	int32_t id = mx_tokenizer_id(t, mark);
	if (id >= 0 && n < MAX_MARKS)
		ids[n++] = id;
	return n;
}

/* Lists the tokens that delimit tool calls and reasoning. */
static size_t list_marks(const struct mx_served *m, int32_t *ids)
{
	size_t n = 0;
	const char *mark;
	for (size_t i = 0; m->calls && (mark = mx_tool_format_mark(m->calls, i)); i++)
		n = add_mark(m->tokenizer, mark, ids, n);
	for (size_t i = 0; m->reasoning && (mark = mx_reasoning_format_mark(m->reasoning, i)); i++)
		n = add_mark(m->tokenizer, mark, ids, n);
	return n;
}

static bool holds(const int32_t *ids, size_t n, int32_t id)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] == id)
			return true;
	return false;
}

/* Appends the bytes of a token. The byte in front of marks is no other token's: one that has it,
 * which no UTF-8 text needs, gets none. */
static mx_status append(const struct mx_tokenizer *t, int32_t id, bool mark, struct mx_buf *text)
{
	size_t before = text->len;
	if (mark)
		mx_buf_puts(text, MX_TOOL_MARK);
	mx_status st = mx_tokenizer_token_bytes(t, id, text);
	if (!mark && text->len > before &&
	    memchr(mx_buf_str(text) + before, *MX_TOOL_MARK, text->len - before))
		text->data[text->len = before] = 0;
	return st;
}

/* Fills text and offsets[n + 1] with the bytes of all tokens; of special ones, only of those marks
 * [n_marks]. */
static bool collect(const struct mx_tokenizer *t, size_t n, const int32_t *marks, size_t n_marks,
                    struct mx_buf *text, size_t *offsets)
{
	size_t known = mx_tokenizer_size(t);
	for (size_t i = 0; i < n; i++) {
		int32_t id = (int32_t)i;
		offsets[i] = text->len;
		bool mark = holds(marks, n_marks, id);
		if (i < known && (!mx_tokenizer_is_special(t, id) || mark) &&
		    append(t, id, mark, text) == MX_E_NOMEM)
			return false;
	}
	offsets[n] = text->len;
	return !text->failed;
}

static mx_status make(const struct mx_served *m, const int32_t *marks, size_t n_marks,
                      struct mx_grammar_vocab **out, struct mx_err *e)
{
	size_t n = m->info.vocab, *offsets = mx_calloc(n + 1, sizeof(*offsets));
	struct mx_buf text = {0};
	mx_status st =
		offsets && collect(m->tokenizer, n, marks, n_marks, &text, offsets) ? MX_OK : MX_E_NOMEM;
	if (st == MX_OK)
		st = mx_grammar_vocab_new((const uint8_t *)mx_buf_str(&text), offsets, n, NULL, 0,
		                          MX_VOCABULARY_MASKS, out, e);
	mx_buf_free(&text);
	free(offsets);
	return st;
}

mx_status mx_served_vocabulary(struct mx_served *m, bool marks, struct mx_grammar_vocab **out,
                               struct mx_api_error *err)
{
	struct mx_err e = {0};
	mx_status st = MX_OK;
	int32_t ids[MAX_MARKS];
	size_t n = marks ? list_marks(m, ids) : 0;
	struct mx_grammar_vocab **v = n ? &m->marked_vocabulary : &m->vocabulary;
	pthread_mutex_lock(&m->vocabulary_lock);
	if (!*v)
		st = make(m, ids, n, v, &e);
	*out = *v;
	pthread_mutex_unlock(&m->vocabulary_lock);
	if (st == MX_OK)
		return MX_OK;
	if (st == MX_E_NOMEM)
		return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
	return mx_api_fail(err, MX_FAULT_INTERNAL, "internal_error", NULL,
	                   "the model's tokens cannot be constrained: %s", e.text);
}
