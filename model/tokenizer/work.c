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
