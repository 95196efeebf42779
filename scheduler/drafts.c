/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speculation: drafts of decoding streams. The engine proposes and checks them; here is decided how
 * many there are. Engine thread only.
 *
 * Drafts take only rows that are left over, take pages from nobody, and end where the engine wants
 * to save a state, which it could not do behind that place. They are proposed when the tokens in
 * front of them are known: on an asynchronous device last of all, between two steps.
 */
#include <string.h>

#include "base/clock.h"
#include "scheduler/internal.h"

/* Returns the most drafts that r can use in the next step: the last token is drawn in any case. */
static uint32_t usable(const struct mx_sched *s, const struct mx_req *r)
{
	uint32_t left = r->max_tokens - r->output - 1, most = s->draft_policy.most;
	return r->params.no_speculation ? 0 : left < most ? left : most;
}

/* Leaves the drafts that pay, if the source tells how likely they are. */
static void cut(struct mx_sched *s, struct mx_sched_plan *p)
{
	bool told = false;
	for (uint32_t i = 0; i < p->n_decode; i++) {
		const struct mx_step_item *item = &p->items[i];
		s->told[i] = (struct mx_draft_told){item->odds, item->odds ? item->n_draft : 0};
		told |= item->odds != NULL;
	}
	if (!told || p->n_decode > 1) /* with more it did not gain: bench/NOTES.md */
		return;
	mx_draft_policy_cut(&s->draft_policy, s->told, p->n_decode, s->draft_lengths);
	for (uint32_t i = 0; i < p->n_decode; i++)
		p->items[i].n_draft = s->draft_lengths[i];
}

void mx_sched_add_drafts(struct mx_sched *s, struct mx_sched_plan *p)
{
	uint32_t room = s->config.step_tokens - p->n_decode - p->n_prompt;
	if (!s->draft_policy.most || !p->n_decode || !room)
		return;
	for (uint32_t i = 0; i < p->n_decode; i++)
		s->odds[i] = usable(s, p->requests[i]) ? &p->requests[i]->odds : NULL;
	float least = mx_draft_policy_lengths(&s->draft_policy, s->odds, p->n_decode, s->draft_lengths);
	for (uint32_t i = 0; i < p->n_decode; i++) {
		uint32_t most = usable(s, p->requests[i]), n = s->draft_lengths[i];
		n = n < most ? n : most;
		n = n < room ? n : room;
		p->items[i].least = least;
		p->items[i].n_draft = n ? s->ops->chunk(s->engine, p->items[i].seq, 1 + n) - 1 : 0;
		room -= p->items[i].n_draft;
	}
	uint64_t begin = mx_now_ns();
	s->ops->propose(s->engine, p->items, p->n_decode);
	p->proposing_ns = mx_now_ns() - begin;
	cut(s, p);
	for (uint32_t i = 0; i < p->n_decode; i++) {
		uint32_t n = p->items[i].n_draft;
		if (n && s->ops->reserve(s->engine, p->items[i].seq, p->requests[i]->n_tokens + n) != MX_OK)
			n = p->items[i].n_draft = 0;
		if (n)
			memcpy(p->drafts[i], p->items[i].draft, n * sizeof **p->drafts);
		p->items[i].draft = p->drafts[i];
		if (n && p->items[i].parent) {
			memcpy(p->parents[i], p->items[i].parent, n * sizeof **p->parents);
			p->items[i].parent = p->parents[i];
		}
		p->n_draft += p->items[i].n_draft;
	}
}

/* Returns the positions at which an item's drafts were tried: those where one was kept, and the
 * next if there were drafts for it. All of a chain's count, as if the others had been tried, too.
 */
static uint32_t tried(const struct mx_step_item *item, const struct mx_step_result *res)
{
	uint32_t n = res->n_accepted, last = n ? res->path[n - 1] : MX_NO_DRAFT;
	if (!item->parent)
		return item->n_draft;
	for (uint32_t i = 0; i < item->n_draft; i++)
		if (item->parent[i] == last)
			return n + 1;
	return n;
}

void mx_sched_count_drafts(struct mx_sched *s, const struct mx_sched_plan *p, uint64_t ns)
{
	struct mx_sched_stats *v = &s->stats.v;
	if (!s->draft_policy.most || !p->n_decode)
		return;
	uint32_t n_kept = 0;
	for (uint32_t i = 0; i < p->n_decode; i++)
		n_kept += p->results[i].n_accepted;
	if (!p->n_prompt)
		mx_draft_policy_observe(&s->draft_policy, p->n_decode, p->n_draft, n_kept, ns,
		                        p->proposing_ns);
	pthread_mutex_lock(&s->stats.lock);
	v->draft_length = (double)p->n_draft / p->n_decode;
	for (uint32_t i = 0; i < p->n && p->n_draft; i++) {
		uint32_t n = p->items[i].n_draft, accepted = p->results[i].n_accepted;
		struct mx_req *r = p->requests[i];
		if (!n || p->results[i].status != MX_OK)
			continue;
		mx_draft_policy_count(&s->draft_policy, &r->odds, tried(&p->items[i], &p->results[i]),
		                      accepted);
		r->accepted += accepted;
		r->rejected += n - accepted;
		v->drafts++;
		v->draft_tokens += n;
		v->accepted_drafts += accepted;
		for (uint32_t k = 0; k < accepted && k < MX_SCHED_DRAFT_PLACES; k++)
			v->accepted_at[k]++;
	}
	pthread_mutex_unlock(&s->stats.lock);
}
