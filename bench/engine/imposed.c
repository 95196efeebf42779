/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/engine/imposed.h"

static struct imposed *of(struct mx_draft_source *d)
{
	return (struct imposed *)d;
}

static mx_status open_one(struct mx_draft_source *d, const struct mx_seq *s,
                          const struct mx_seq_params *params, void **out)
{
	struct mx_draft_source *inner = of(d)->inner;
	*out = NULL;
	return inner ? inner->ops->open(inner, s, params, out) : MX_OK;
}

static void close_one(struct mx_draft_source *d, void *state)
{
	if (of(d)->inner)
		of(d)->inner->ops->close(of(d)->inner, state);
}

static void release(struct mx_draft_source *d, void *state)
{
	if (of(d)->inner)
		of(d)->inner->ops->release(of(d)->inner, state);
}

static bool hits(struct imposed *x)
{
	x->random = x->random * 6364136223846793005u + 1442695040888963407u;
	return (double)(x->random >> 40) < x->acceptance * (1 << 24);
}

static void propose(struct mx_draft_source *d, struct mx_step_item *items, uint32_t n)
{
	struct imposed *x = of(d);
	if (x->inner)
		x->inner->ops->propose(x->inner, items, n);
	for (uint32_t i = 0; i < n; i++) {
		struct mx_seq *s = items[i].seq;
		uint32_t known = 0, at = s->n - s->n_prompt;
		const int32_t *answer = items[i].n_draft ? x->answer(s, &known) : NULL;
		for (uint32_t k = 0; k < items[i].n_draft; k++) {
			int32_t right = at + k < known ? answer[at + k] : 0;
			s->draft.tokens[k] = hits(x) ? right : (int32_t)(((uint32_t)right + 1) % x->vocab);
		}
	}
}

static void destroy(struct mx_draft_source *d)
{
	mx_draft_source_destroy(of(d)->inner);
}

void impose(struct imposed *x, struct mx_engine *e, bool keep_inner)
{
	static const struct mx_draft_source_ops ops = {open_one, close_one, release,
	                                               propose,  destroy,   mx_draft_drop_nothing};
	struct mx_core *core = (struct mx_core *)e;
	x->base.ops = &ops;
	x->inner = keep_inner ? core->drafts : NULL;
	if (!keep_inner)
		mx_draft_source_destroy(core->drafts);
	core->drafts = &x->base;
}
