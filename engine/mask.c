/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/mask.h"

#include "engine/core.h"

static bool is_empty(const uint32_t *set, size_t words)
{
	for (size_t i = 0; i < words; i++)
		if (set[i])
			return false;
	return true;
}

/* Takes the tokens that are banned before min_tokens out of the set. True if any was in it. */
static bool ban(const struct mx_seq_params *p, uint32_t *set)
{
	uint32_t any = 0;
	for (size_t i = 0; i < p->n_stop; i++) {
		uint32_t token = (uint32_t)p->stop[i], bit = 1u << token % 32;
		any |= set[token / 32] & bit;
		set[token / 32] &= ~bit;
	}
	return any;
}

static mx_status make(struct mx_seq *s, uint32_t vocab)
{
	struct mx_constraint *c = s->params.constraint;
	struct mx_mask *m = &s->mask;
	size_t words = mx_mask_words(vocab);
	uint32_t n = s->n - s->n_prompt;
	mx_status st = MX_OK;
	for (; m->accepted < n && st == MX_OK; m->accepted++)
		st = c->ops->accept(c, s->tokens.output[m->accepted], &m->cause);
	if (st == MX_OK)
		st = c->ops->mask(c, m->allowed, &m->cause);
	if (st != MX_OK)
		return st;
	m->complete = is_empty(m->allowed, words);
	if (n < s->params.min_tokens && ban(&s->params, m->allowed) && is_empty(m->allowed, words))
		st = c->ops->mask(c, m->allowed, &m->cause);
	return st;
}

void mx_mask_make(struct mx_seq *s, uint32_t vocab)
{
	struct mx_mask *m = &s->mask;
	if (m->status != MX_OK || m->position == s->n)
		return;
	m->status = make(s, vocab);
	m->position = s->n;
}
