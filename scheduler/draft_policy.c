/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/draft_policy.h"

/* Weight of a new sample in the means of times. One slow step counts as twice the mean at most. */
#define NEW_SAMPLE 0.15
#define SLOW       2.0

/* Weight that the drafts before keep when one more is counted: the last 16 or so decide. */
#define KEEPS 0.94
/* Drafts of all sequences that a sequence's own are joined with. */
#define PRIOR 2.0
/* What is assumed before any draft was tried, and the drafts that it counts as. */
#define FIRST_ODDS  0.7
#define FIRST_TRIED 2.0

/* One step in this many has no drafts. */
#define PROBE_STEPS 64
/* A sequence without drafts for so many steps is given one, or any if all are without, */
#define PROBE_SEQUENCE 64
/* if all such drafts take no more than this part of the time. */
#define PROBE_SHARE 0.01
/* Iterations of Dinkelbach's method. It converges faster than Newton's. */
#define ITERATIONS 4

void mx_draft_policy_init(struct mx_draft_policy *p, uint32_t most)
{
	*p = (struct mx_draft_policy){.most = most};
}

static uint32_t bucket_of(uint32_t n)
{
	uint32_t shift = 0;
	while (n >> shift > 15)
		shift++;
	return shift * 8 + (n >> shift);
}

static double odds_of(const struct mx_draft_policy *p, const struct mx_draft_odds *o)
{
	double all = (p->kept + FIRST_TRIED * FIRST_ODDS) / (p->tried + FIRST_TRIED);
	return (o->kept + PRIOR * all) / (o->tried + PRIOR);
}

/* Returns how many drafts of a sequence are each kept with a probability above `least`. *out_gain
 * += the tokens that they add on average. */
static uint32_t length(double odds, double least, uint32_t most, double *out_gain)
{
	double kept = odds;
	uint32_t n = 0;
	for (; n < most && kept > least; n++, kept *= odds)
		*out_gain += kept;
	return n;
}

/* Gives a draft to sequences that had none for long, as far as the time for that goes. `drafts`:
 * those that sequences have already. */
static void probe_sequences(struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                            uint32_t n, double step, double draft, uint32_t drafts, uint32_t *out)
{
	p->without = drafts ? 0 : p->without + 1;
	p->probing_ns += PROBE_SHARE * step;
	if (p->probing_ns > step) /* no more in a row than a step's worth */
		p->probing_ns = step;
	for (uint32_t i = 0; i < n; i++) {
		if (!odds[i] || out[i])
			continue;
		bool due = ++odds[i]->without >= PROBE_SEQUENCE || p->without >= PROBE_SEQUENCE;
		if (!due || draft > p->probing_ns)
			continue;
		out[i] = 1;
		odds[i]->without = 0;
		p->without = 0;
		p->probing_ns -= draft;
	}
}

void mx_draft_policy_lengths(struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                             uint32_t n, uint32_t *out)
{
	uint32_t at = bucket_of(n), drafts = 0;
	double step = p->bucket[at].step_ns, draft = p->bucket[at].drafted ? p->bucket[at].draft_ns : 0;
	bool probe = !(step > 0) || p->bucket[at].since_step >= PROBE_STEPS;
	double tokens = n, rate = step > 0 ? tokens / step : 0;
	for (uint32_t k = 0; k < ITERATIONS; k++) {
		tokens = n;
		drafts = 0;
		for (uint32_t i = 0; i < n; i++) {
			out[i] = 0;
			if (odds[i] && !probe)
				out[i] = length(odds_of(p, odds[i]), rate * draft, p->most, &tokens);
			drafts += out[i];
		}
		if (!(step > 0) || !(draft > 0))
			break;
		rate = tokens / (step + draft * drafts);
	}
	if (!probe)
		probe_sequences(p, odds, n, step, draft, drafts, out);
}

void mx_draft_policy_count(struct mx_draft_policy *p, struct mx_draft_odds *odds, uint32_t n_draft,
                           uint32_t n_accepted)
{
	uint32_t tried = n_accepted < n_draft ? n_accepted + 1 : n_draft;
	for (uint32_t i = 0; i < tried; i++) {
		odds->tried = odds->tried * KEEPS + 1;
		odds->kept = odds->kept * KEEPS + (i < n_accepted);
		p->tried = p->tried * KEEPS + 1;
		p->kept = p->kept * KEEPS + (i < n_accepted);
	}
	odds->without = 0;
}

/* Moves a mean towards a sample. */
static double moved(double mean, double sample)
{
	if (!(mean > 0))
		return sample;
	double most = SLOW * mean;
	return mean + NEW_SAMPLE * ((sample < most ? sample : most) - mean);
}

void mx_draft_policy_observe(struct mx_draft_policy *p, uint32_t n_decode, uint32_t n_draft,
                             uint64_t ns)
{
	uint32_t at = bucket_of(n_decode);
	double step = p->bucket[at].step_ns;
	if (!n_draft) {
		p->bucket[at].step_ns = moved(step, (double)ns);
		p->bucket[at].since_step = 0;
		return;
	}
	p->bucket[at].since_step++;
	if (!(step > 0))
		return;
	double draft = ((double)ns - step) / n_draft, least = step * 1e-3;
	draft = draft > least ? draft : least; /* a draft is never for nothing, */
	draft = draft < step ? draft : step;   /* and one slow step must not end all drafts */
	p->bucket[at].draft_ns = p->bucket[at].drafted ? moved(p->bucket[at].draft_ns, draft) : draft;
	p->bucket[at].drafted = true;
}
