/* SPDX-License-Identifier: Apache-2.0 */
/* The work memory of one call: adds splits, frees all. */
#include "model/tokenizer/internal.h"

#include <stdlib.h>

mx_status mx_tok_splits_add(struct mx_tok_splits *s, size_t off, size_t len, int32_t id, bool first)
{
	if (s->n == s->cap) {
		size_t cap = mx_tok_next_cap(s->cap);
		struct mx_tok_split *v = mx_tok_grow(s->room, s->v, s->cap, cap, sizeof *v);
		if (!v)
			return MX_E_NOMEM;
		s->v = v;
		s->cap = cap;
	}
	s->v[s->n++] = (struct mx_tok_split){(uint32_t)off, (uint32_t)len, id, first};
	return MX_OK;
}

void mx_tok_work_free(struct mx_tok_work *w)
{
	mx_buf_free(&w->text);
	mx_buf_free(&w->other);
	mx_buf_free(&w->scratch[0]);
	mx_buf_free(&w->scratch[1]);
	free(w->splits.v);
	free(w->more.v);
	free(w->ranges);
	mx_tok_bpe_work_free(w->bpe);
	pcre2_match_data_free(w->match_data);
	pcre2_match_context_free(w->match_context);
	pcre2_jit_stack_free(w->jit_stack);
}

mx_status mx_tok_buf_failed(const struct mx_tok_work *w, const struct mx_buf *b, const char *why)
{
	return b->over ? mx_fail(w->err, MX_E_LIMIT, "%s", why)
	               : mx_fail(w->err, MX_E_NOMEM, "out of memory");
}
