/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/draft_policy.h"

#include <stddef.h>

/* Weight of a new sample in the means of times. One slow step counts as twice the mean at most. */
#define NEW_SAMPLE 0.15
#define SLOW       2.0
/* Of so many first samples the least is the time: other work makes steps slower, none faster, and a
 * number of drafts that seems not to pay is seldom measured again. */
#define FIRST_SAMPLES 4

/* Odds of drafts that were all kept. More could not be told apart after some drafts (CLASSES). */
#define MOST_ODDS 0.99
/* Weight that the drafts before keep when one more is counted: the last 32 or so decide. */
#define KEEPS 0.97
/* Drafts of all sequences that a sequence's own are joined with. */
#define PRIOR 2.0
/* What is assumed before any draft was tried, and the drafts that it counts as. */
#define FIRST_ODDS  0.7
#define FIRST_TRIED 2.0

/* One step in this many has no drafts. */
#define PROBE_STEPS 64
/* Of a time that was measured so many steps ago only half of what drafts added is believed. */
#define STALE 2048
/* Part of what drafts add that is assumed of fewer of them that were never measured. */
#define UNTRIED 0.25
/* What a draft of each sequence is assumed to add to a step before any was measured. */
#define FIRST_COST 0.25
/* A sequence without drafts for so many steps is given one, or any if all are without, */
#define PROBE_SEQUENCE 64
/* if all such drafts take no more than this part of the time. */
#define PROBE_SHARE 0.01
/* Least gain for which a step has drafts at all: times are not known better than that. */
#define LEAST_GAIN 1.02

/* Fewer drafts for each sequence say nothing of their cost: a step's time varies by more. */
#define LEAST_DRAFTS 0.25
/* Classes of drafts with about the same probability. */
#define CLASSES 256

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
	double odds = (o->kept + PRIOR * all) / (o->tried + PRIOR);
	return odds < MOST_ODDS ? odds : MOST_ODDS;
}

/* ---- the expected time of a step ---- */

/* The time of a step by the drafts a sequence: lines from point to point, the last one going on. */
struct expected {
	double drafts[MX_DRAFT_MOST + 1], ns[MX_DRAFT_MOST + 1]; /* [n] ascending; the first: none */
	uint32_t n;
};

/* Returns the costs whose ratios are used for bucket `at`: its own, or if no drafts were measured
 * there those of the nearest bucket where they were, or else its own. */
static const struct mx_draft_costs *measured(const struct mx_draft_policy *p, uint32_t at)
{
	for (uint32_t d = 0; d < MX_DRAFT_BUCKETS; d++)
		for (int side = 0; side < (d ? 2 : 1); side++) {
			uint32_t b = side ? at + d : at - d; /* wraps below 0 */
			if (b >= MX_DRAFT_BUCKETS || !(p->bucket[b].at[0].ns > 0))
				continue;
			for (uint32_t k = 1; k <= MX_DRAFT_MOST; k++)
				if (p->bucket[b].at[k].ns > 0)
					return &p->bucket[b];
		}
	return &p->bucket[at];
}

/* Returns the next number of drafts after k whose time was measured; 0 = there is none. */
static uint32_t next_measured(const struct mx_draft_costs *c, uint32_t k)
{
	while (++k <= MX_DRAFT_MOST)
		if (c->at[k].ns > 0)
			return k;
	return 0;
}

/* Finds the times of a step of bucket `at`, whose time without drafts is known. A number of drafts
 * that was not measured, with larger ones that were, gets little of what these add: it is tried
 * once, lest the best one is never found in front of a jump. */
static void expect(const struct mx_draft_policy *p, uint32_t at, struct expected *out)
{
	const struct mx_draft_costs *c = measured(p, at);
	double step = (double)p->bucket[at].at[0].ns, scale = step / (double)c->at[0].ns;
	*out = (struct expected){.ns = {step}, .n = 1};
	for (uint32_t k = 1, next; (next = next_measured(c, k - 1)) != 0; k++) {
		double before = out->ns[out->n - 1], from = out->drafts[out->n - 1];
		double ns = scale * (double)c->at[next].ns, drafts = (double)c->at[next].drafts;
		if (c->steps - c->at[next].seen >= STALE)
			ns = (step + ns) / 2;
		ns = ns > before ? ns : before; /* less is noise */
		if (next > k) {
			ns = before + UNTRIED * (ns - before) * (k - from) / (drafts - from);
			drafts = k;
		}
		out->drafts[out->n] = drafts;
		out->ns[out->n++] = ns;
	}
}

/* Returns the time of a step with that many drafts a sequence. */
static double time_of(const struct expected *e, double drafts)
{
	uint32_t k = 1;
	if (e->n == 1)
		return e->ns[0] * (1 + FIRST_COST * drafts);
	while (k + 1 < e->n && e->drafts[k] < drafts)
		k++;
	double slope = (e->ns[k] - e->ns[k - 1]) / (e->drafts[k] - e->drafts[k - 1]);
	return e->ns[k - 1] + slope * (drafts - e->drafts[k - 1]);
}

/* ---- lengths ---- */

static uint32_t class_of(double probability)
{
	return probability < 1 ? (uint32_t)(probability * CLASSES) : CLASSES - 1;
}

/* Gives each sequence the drafts whose class is at least `least`; returns their number. */
static uint32_t give(const struct mx_draft_policy *p, struct mx_draft_odds *const *odds, uint32_t n,
                     uint32_t least, uint32_t *out)
{
	uint32_t drafts = 0;
	for (uint32_t i = 0; i < n; i++) {
		double a = odds[i] ? odds_of(p, odds[i]) : 0, kept = a;
		out[i] = 0;
		for (; out[i] < p->most && odds[i] && class_of(kept) >= least; kept *= a)
			out[i]++;
		drafts += out[i];
	}
	return drafts;
}

/* Returns the class from which on drafts pay; CLASSES = none does. */
static uint32_t choose(const struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                       uint32_t n, const struct expected *expected)
{
	uint32_t count[CLASSES] = {0}, drafts = 0, least = CLASSES;
	double gain[CLASSES] = {0}, tokens = n, best = LEAST_GAIN * n / expected->ns[0];
	double most = 2 * expected->drafts[expected->n - 1];
	most = most > 1 ? most : 1;
	for (uint32_t i = 0; i < n; i++) {
		double a = odds[i] ? odds_of(p, odds[i]) : 0, kept = a;
		for (uint32_t k = 0; k < p->most && odds[i]; k++, kept *= a) {
			count[class_of(kept)]++;
			gain[class_of(kept)] += kept;
		}
	}
	for (uint32_t c = CLASSES; c-- > 0;) {
		if (!count[c])
			continue;
		drafts += count[c];
		tokens += gain[c];
		if (drafts > most * n)
			break;
		double rate = tokens / time_of(expected, (double)drafts / n);
		if (rate > best) {
			best = rate;
			least = c;
		}
	}
	return least;
}

/* Gives a draft to sequences that had none for long, as far as the time for that goes. `drafts`:
 * those that sequences have already. */
static void probe_sequences(struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                            uint32_t n, const struct expected *expected, uint32_t drafts,
                            uint32_t *out)
{
	double step = expected->ns[0], before = time_of(expected, (double)drafts / n);
	double draft = time_of(expected, (drafts + 1.0) / n) - before;
	p->without = drafts ? 0 : p->without + 1;
	p->probing_ns += PROBE_SHARE * step;
	/* no more in a row than a step's worth, or than one draft takes */
	if (p->probing_ns > step && p->probing_ns > draft)
		p->probing_ns = step > draft ? step : draft;
	for (uint32_t i = 0; i < n; i++) {
		if (!odds[i] || out[i])
			continue;
		bool due = ++odds[i]->without >= PROBE_SEQUENCE || p->without >= PROBE_SEQUENCE;
		if (!due || p->probing_ns <= 0 || draft > p->probing_ns)
			continue;
		out[i] = 1;
		odds[i]->without = 0;
		p->without = 0;
		p->probing_ns -= draft;
		p->expected_ns = (p->expected_ns > 0 ? p->expected_ns : before) + draft;
	}
}

void mx_draft_policy_lengths(struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                             uint32_t n, uint32_t *out)
{
	uint32_t at = bucket_of(n);
	const struct mx_draft_costs *c = &p->bucket[at];
	struct expected expected;
	p->expected_ns = 0;
	if (!(c->at[0].ns > 0) || c->steps - c->at[0].seen >= PROBE_STEPS) {
		give(p, odds, n, CLASSES, out);
		return;
	}
	expect(p, at, &expected);
	uint32_t drafts = give(p, odds, n, choose(p, odds, n, &expected), out);
	probe_sequences(p, odds, n, &expected, drafts, out);
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

/* Moves a mean towards a sample; a first one is taken as it is. */
static void move(float *mean, double sample, bool first)
{
	*mean = first ? (float)sample : *mean + (float)NEW_SAMPLE * ((float)sample - *mean);
}

void mx_draft_policy_observe(struct mx_draft_policy *p, uint32_t n_decode, uint32_t n_draft,
                             uint64_t ns, uint64_t proposing_ns)
{
	struct mx_draft_costs *c = &p->bucket[bucket_of(n_decode)];
	double all = (double)ns + (n_draft ? (double)proposing_ns : 0), step = (double)c->at[0].ns;
	double drafts = (double)n_draft / n_decode;
	uint32_t k = (n_draft + n_decode - 1) / n_decode;
	/* What a draft model had to catch up for a sequence that seldom gets drafts counts too. */
	if (p->expected_ns > 0 && (double)(ns + proposing_ns) > p->expected_ns)
		p->probing_ns -= (double)(ns + proposing_ns) - p->expected_ns;
	c->steps++;
	if (k > MX_DRAFT_MOST || (n_draft && (!(step > 0) || drafts < LEAST_DRAFTS)))
		return;
	uint32_t before = c->at[k].samples;
	bool early = before < FIRST_SAMPLES;
	c->at[k].seen = c->steps;
	c->at[k].samples += early;
	if (before && early && all >= (double)c->at[k].ns)
		return;
	/* One slow step must not end all drafts: at first a draft takes no more than two tokens. */
	double most = before ? SLOW * (double)c->at[k].ns : k ? step * (1 + SLOW * drafts) : all;
	move(&c->at[k].ns, all < most ? all : most, early);
	move(&c->at[k].drafts, drafts, early);
}
