/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/constraint.h"

#include <stdlib.h>

#include "base/mem.h"
#include "device/sampling.h"

struct constraint {
	struct mx_constraint base;
	struct mx_matcher *matcher;
	struct mx_constraint_ends ends;
	uint32_t vocab;
	bool ended; /* an end was accepted */
};

static bool is_end(const struct constraint *c, int32_t token)
{
	for (size_t i = 0; i < c->ends.n; i++)
		if (c->ends.ids[i] == token)
			return true;
	return false;
}

static const char *cause_of(mx_status st)
{
	switch (st) {
	case MX_E_LIMIT: return "the grammar is too ambiguous for this text, or nests too deep";
	case MX_E_NOMEM: return "out of memory for the grammar's state";
	case MX_E_NOTFOUND: return "no token of the model can go on as the grammar asks here";
	default: return "a token came that the grammar does not allow";
	}
}

static mx_status accept(struct mx_constraint *base, int32_t token, const char **cause)
{
	struct constraint *c = (struct constraint *)base;
	if (is_end(c, token)) {
		c->ended = true;
		return MX_OK;
	}
	if (mx_matcher_accept(c->matcher, token))
		return MX_OK;
	mx_status st = mx_matcher_status(c->matcher);
	st = st == MX_OK ? MX_E_INTERNAL : st;
	*cause = cause_of(st);
	return st;
}

static mx_status mask(struct mx_constraint *base, uint32_t *allowed, const char **cause)
{
	struct constraint *c = (struct constraint *)base;
	if (c->ended) {
		for (size_t i = 0; i < mx_mask_words(c->vocab); i++)
			allowed[i] = 0;
		return MX_OK;
	}
	mx_status st = mx_matcher_mask(c->matcher, allowed);
	bool others = st == MX_OK;
	if ((st == MX_OK || st == MX_E_NOTFOUND) && mx_matcher_may_end(c->matcher)) {
		for (size_t i = 0; i < c->ends.n && !(others && c->ends.late); i++)
			if ((uint32_t)c->ends.ids[i] < c->vocab)
				allowed[c->ends.ids[i] / 32] |= 1u << c->ends.ids[i] % 32;
		return MX_OK;
	}
	if (st != MX_OK)
		*cause = cause_of(st);
	return st;
}

static const struct mx_constraint_ops ops = {accept, mask};

mx_status mx_constraint_new(struct mx_grammar *g, struct mx_grammar_vocab *v,
                            const struct mx_constraint_ends *ends, struct mx_constraint **out)
{
	struct constraint *c = mx_calloc(1, sizeof(*c));
	if (!c)
		return MX_E_NOMEM;
	*c = (struct constraint){
		.base = {&ops}, .ends = *ends, .vocab = (uint32_t)mx_grammar_vocab_size(v)};
	mx_status st = mx_matcher_new(g, v, &c->matcher);
	if (st != MX_OK) {
		free(c);
		return st;
	}
	*out = &c->base;
	return MX_OK;
}

void mx_constraint_free(struct mx_constraint *base)
{
	struct constraint *c = (struct constraint *)base;
	if (!c)
		return;
	mx_matcher_free(c->matcher);
	free(c);
}
