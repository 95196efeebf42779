/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/mask.h"
#include "grammar/step.h"
#include "grammar/vocab.h"

#define COLLECT_FROM   4096 /* frames from which on unused ones are dropped */
#define MAX_REMEMBERED (2 * MX_MATCHER_MAX_ROLLBACK)

/* The kernel behind the last token and those before it, as far as they are remembered, stand one
 * behind the other. After an end token it is empty. */
struct mx_matcher {
	struct mx_grammar *grammar;
	struct mx_grammar_vocab *vocab;
	struct mx_stepper stepper;
	struct mx_configs history;
	uint32_t begin[MAX_REMEMBERED + 1]; /* of each remembered kernel in the history */
	uint32_t n;                         /* of them; the last one is where the text stands */
	uint32_t collect_at;                /* frames at which unused ones are dropped next */
	size_t credit;                      /* elementary steps that are left */
};

/* The present kernel. */
static uint32_t kernel(const struct mx_matcher *m, const struct mx_config **at)
{
	*at = m->history.at + m->begin[m->n - 1];
	return m->history.n - m->begin[m->n - 1];
}

mx_status mx_matcher_new(struct mx_grammar *g, struct mx_grammar_vocab *v, struct mx_matcher **out)
{
	struct mx_matcher *m = mx_calloc(1, sizeof(*m));
	if (!m)
		return MX_E_NOMEM;
	m->grammar = mx_grammar_ref(g);
	m->vocab = mx_grammar_vocab_ref(v);
	m->n = 1;
	m->collect_at = COLLECT_FROM;
	m->credit = MX_MATCHER_CREDIT;
	mx_status st =
		mx_stepper_init(&m->stepper, g, MX_MATCHER_MAX_CONFIGS, MX_MATCHER_MAX_FRAMES, 0);
	if (!st && !mx_configs_add(&m->history, (struct mx_config){0, 0}))
		st = MX_E_NOMEM;
	if (st)
		mx_matcher_free(m);
	else
		*out = m;
	return st;
}

void mx_matcher_free(struct mx_matcher *m)
{
	if (!m)
		return;
	mx_stepper_free(&m->stepper);
	free(m->history.at);
	mx_grammar_unref(m->grammar);
	mx_grammar_vocab_unref(m->vocab);
	free(m);
}

mx_status mx_matcher_copy(const struct mx_matcher *m, struct mx_matcher **out)
{
	struct mx_matcher *c = mx_calloc(1, sizeof(*c));
	if (!c)
		return MX_E_NOMEM;
	*c = *m;
	mx_grammar_ref(c->grammar);
	mx_grammar_vocab_ref(c->vocab);
	c->stepper = (struct mx_stepper){0};
	c->history = (struct mx_configs){0};
	mx_status st = mx_stepper_copy(&m->stepper, &c->stepper);
	for (uint32_t i = 0; i < m->history.n && !st; i++)
		if (!mx_configs_add(&c->history, m->history.at[i]))
			st = MX_E_NOMEM;
	if (st)
		mx_matcher_free(c);
	else
		*out = c;
	return st;
}

/* Forgets the older half of the kernels if there is no room for another one. */
static void forget(struct mx_matcher *m)
{
	if (m->n < MAX_REMEMBERED)
		return;
	uint32_t drop = m->n - MX_MATCHER_MAX_ROLLBACK - 1, first = m->begin[drop];
	m->n -= drop;
	for (uint32_t i = 0; i < m->n; i++)
		m->begin[i] = m->begin[i + drop] - first;
	m->history.n -= first;
	memmove(m->history.at, m->history.at + first, m->history.n * sizeof(*m->history.at));
}

static void collect(struct mx_matcher *m)
{
	if (m->stepper.frames.n < m->collect_at)
		return;
	mx_frames_collect(&m->stepper, m->history.at, m->history.n);
	m->collect_at = 2 * m->stepper.frames.n;
	if (m->collect_at < COLLECT_FROM)
		m->collect_at = COLLECT_FROM;
	if (m->collect_at > MX_MATCHER_MAX_FRAMES / 2)
		m->collect_at = MX_MATCHER_MAX_FRAMES / 2;
}

/* Without credit nothing is done any more. */
static bool begin_work(struct mx_matcher *m)
{
	m->stepper.status = m->credit ? MX_OK : MX_E_LIMIT;
	m->stepper.work = m->credit;
	return m->credit > 0;
}

static void end_work(struct mx_matcher *m)
{
	m->credit = m->stepper.work;
}

static void earn(struct mx_matcher *m)
{
	size_t room = MX_MATCHER_CREDIT - m->credit, more = MX_MATCHER_EARNED + m->vocab->n_tokens;
	m->credit += more < room ? more : room;
}

bool mx_matcher_accept_bytes(struct mx_matcher *m, const char *bytes, size_t n)
{
	if (!begin_work(m))
		return false;
	forget(m);
	collect(m);
	uint32_t from = m->begin[m->n - 1], count = m->history.n - from, end = m->history.n;
	for (size_t i = 0; i < n && count; i++) {
		uint32_t before = m->history.n;
		mx_step(&m->stepper, m->history.at + from, count, (uint8_t)bytes[i], &m->history);
		count = m->history.n - before;
		if (from < end) {
			from = before;
			continue;
		}
		/* only the last kernel stays */
		memmove(m->history.at + end, m->history.at + before, count * sizeof(*m->history.at));
		m->history.n = end + count;
	}
	end_work(m);
	if (m->stepper.status || !count) {
		m->history.n = end;
		return false;
	}
	if (!n) { /* the same kernel once more */
		for (uint32_t i = 0; i < count; i++)
			if (!mx_configs_add(&m->history, m->history.at[from + i])) {
				m->history.n = end;
				m->stepper.status = MX_E_NOMEM;
				return false;
			}
	}
	m->begin[m->n++] = end;
	earn(m);
	return true;
}

bool mx_matcher_accept(struct mx_matcher *m, int32_t token)
{
	const struct mx_grammar_vocab *v = m->vocab;
	if (!begin_work(m) || token < 0 || (size_t)token >= v->n_tokens)
		return false;
	if (mx_vocab_is_end(v, token)) {
		if (!mx_matcher_may_end(m))
			return false;
		forget(m);
		m->begin[m->n++] = m->history.n;
		return true;
	}
	size_t n = v->offsets[token + 1] - v->offsets[token];
	return n && mx_matcher_accept_bytes(m, (const char *)v->text + v->offsets[token], n);
}

mx_status mx_matcher_status(const struct mx_matcher *m)
{
	return m->stepper.status;
}

size_t mx_matcher_credit(const struct mx_matcher *m)
{
	return m->credit;
}

bool mx_matcher_may_end(const struct mx_matcher *m)
{
	const struct mx_config *at;
	uint32_t n = kernel(m, &at);
	return !n || mx_may_return(&m->stepper, at, n);
}

mx_status mx_matcher_mask(struct mx_matcher *m, uint32_t *bits)
{
	size_t words = (m->vocab->n_tokens + 31) / 32;
	const struct mx_config *at;
	uint32_t n = kernel(m, &at);
	memset(bits, 0, words * sizeof(*bits));
	mx_status st = begin_work(m) ? MX_OK : MX_E_LIMIT;
	if (n && !st)
		st = mx_mask(&m->stepper, m->vocab, at, n, bits);
	end_work(m);
	if (st) {
		memset(bits, 0, words * sizeof(*bits));
		return st;
	}
	bool ends = mx_matcher_may_end(m);
	uint32_t any = 0;
	for (size_t i = 0; i < words; i++) {
		bits[i] |= ends ? m->vocab->ends[i] : 0;
		any |= bits[i];
	}
	return any ? MX_OK : MX_E_NOTFOUND;
}

bool mx_matcher_rollback(struct mx_matcher *m, size_t n)
{
	if (n >= m->n)
		return false;
	if (n)
		m->history.n = m->begin[m->n - n];
	m->n -= (uint32_t)n;
	return true;
}
