/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/draft_policy.h"

#include <stddef.h>

/* Weight of a new sample in the means of times, and the most by which it differs from the mean, as
 * part of it: other work on the host makes some steps slower by far, and such a mean is near the
 * time that most steps take. */
#define NEW_SAMPLE 0.15
#define MOST_OFF   0.15
/* A draft takes no longer than so many tokens until its steps were measured. */
#define SLOW 2.0
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

/* Steps with drafts whose odds are told that are measured before they must pay, unless they are far
 * from it: a source learns its odds meanwhile. Then the last so many decide. */
#define ASKED_FIRST 128
#define ASKED_FEW   32
#define FAR         0.7
/* Least gain for which drafts are asked for. */
#define LEAST_ASKED 1.04
#define ASKED_LAST  64
/* Where they do not pay, they are tried again once so much time was saved for it, as parts of a
 * step: PROBE_SHARE of each. */
#define ASK_AGAIN 0.3
/* No draft is taken for cheaper than this part of a step. */
#define LEAST_COST 0.02

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
			if (p->told && b == 1 && at != 1)    /* times without proposing */
				continue;
			if (b >= MX_DRAFT_BUCKETS || !(p->bucket[b].at[0].time > 0))
				continue;
			for (uint32_t k = 1; k <= MX_DRAFT_MOST; k++)
				if (p->bucket[b].at[k].time > 0)
					return &p->bucket[b];
		}
	return &p->bucket[at];
}

/* Returns the next number of drafts after k whose time was measured; 0 = there is none. */
static uint32_t next_measured(const struct mx_draft_costs *c, uint32_t k)
{
	while (++k <= MX_DRAFT_MOST)
		if (c->at[k].time > 0)
			return k;
	return 0;
}

/* Finds the times of a step of bucket `at`, whose time without drafts is known. A number of drafts
 * that was not measured, with larger ones that were, gets little of what these add: it is tried
 * once, lest the best one is never found in front of a jump. */
static void expect(const struct mx_draft_policy *p, uint32_t at, struct expected *out)
{
	const struct mx_draft_costs *c = measured(p, at);
	double step = (double)p->bucket[at].at[0].time;
	*out = (struct expected){.ns = {step}, .n = 1};
	for (uint32_t k = 1, next; (next = next_measured(c, k - 1)) != 0; k++) {
		double before = out->ns[out->n - 1], from = out->drafts[out->n - 1];
		double ns = step * (double)c->at[next].time, drafts = (double)c->at[next].drafts;
		if (c->steps - c->at[next].seen >= STALE || p->probing)
			ns = (step + ns) / 2;
		/* The source says which drafts are sure: these are tried a few times at least. */
		double most = step * (1 + FIRST_COST * drafts);
		if (p->told && c->at[next].samples < FIRST_SAMPLES && ns > most)
			ns = most;
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

/* The drafts that the n sequences can have: by the odds of each, or as the source tells. */
struct candidates {
	const struct mx_draft_policy *p;
	struct mx_draft_odds *const *odds; /* [n]; NULL if they are told */
	const struct mx_draft_told *told;  /* [n] */
	uint32_t n;
};

/* Writes the probabilities that the drafts of sequence i are kept to kept[MX_DRAFT_MOST], which do
 * not rise, and returns their number. */
static uint32_t kept_of(const struct candidates *c, uint32_t i, double *kept)
{
	uint32_t most = c->p->most;
	if (!c->odds)
		most = c->told[i].n < most ? c->told[i].n : most;
	else if (!c->odds[i])
		return 0;
	double a = c->odds ? odds_of(c->p, c->odds[i]) : 0, all = 1;
	for (uint32_t k = 0; k < most; k++)
		kept[k] = all *= c->odds ? a : (double)c->told[i].odds[k];
	return most;
}

/* Gives each sequence the drafts whose class is at least `least`; returns their number. */
static uint32_t give(const struct candidates *c, uint32_t least, uint32_t *out)
{
	double kept[MX_DRAFT_MOST];
	uint32_t drafts = 0;
	for (uint32_t i = 0; i < c->n; i++) {
		uint32_t most = kept_of(c, i, kept);
		out[i] = 0;
		while (out[i] < most && class_of(kept[out[i]]) >= least)
			out[i]++;
		drafts += out[i];
	}
	return drafts;
}

/* Returns the class from which on drafts pay; CLASSES = none does. */
static uint32_t choose(const struct candidates *from, const struct expected *expected)
{
	uint32_t n = from->n;
	double kept[MX_DRAFT_MOST];
	uint32_t count[CLASSES] = {0}, drafts = 0, least = CLASSES;
	double gain[CLASSES] = {0}, tokens = n, best = LEAST_GAIN * n / expected->ns[0];
	double most = 2 * expected->drafts[expected->n - 1];
	most = most > 1 ? most : 1;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t drafts_of = kept_of(from, i, kept);
		for (uint32_t k = 0; k < drafts_of; k++) {
			count[class_of(kept[k])]++;
			gain[class_of(kept[k])] += kept[k];
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

/* ---- drafts whose odds are told ---- */

/* True if a step of the bucket should have drafts of a source that tells their odds. */
static bool asks(struct mx_draft_policy *p, struct mx_draft_costs *c)
{
	double tokens = (double)c->asked.tokens, cost = (double)c->asked.cost;
	if (c->asked.samples < ASKED_FEW || tokens > LEAST_ASKED * cost ||
	    (c->asked.samples < ASKED_FIRST && tokens > FAR * cost))
		return true;
	c->asked.saved += (float)PROBE_SHARE;
	c->asked.probing = c->asked.saved > (c->asked.probing ? 0 : ASK_AGAIN);
	p->probing = c->asked.probing;
	return p->probing;
}

/* Returns the least that a draft adds to a step for each sequence, as part of the step: no draft
 * that is kept with less probability pays. */
static float least_cost(const struct expected *e)
{
	double least = e->n == 1 ? FIRST_COST : 1;
	for (uint32_t k = 1; k < e->n; k++) {
		double cost = (e->ns[k] - e->ns[0]) / (e->drafts[k] * e->ns[0]);
		least = cost < least ? cost : least;
	}
	return (float)(least > LEAST_COST ? least : LEAST_COST);
}

void mx_draft_policy_cut(struct mx_draft_policy *p, const struct mx_draft_told *told, uint32_t n,
                         uint32_t *out)
{
	const struct candidates from = {p, NULL, told, n};
	uint32_t at = bucket_of(n);
	struct expected expected;
	p->told = true;
	if (!(p->bucket[at].at[0].time > 0)) {
		give(&from, CLASSES, out);
		return;
	}
	expect(p, at, &expected);
	give(&from, choose(&from, &expected), out);
}

float mx_draft_policy_lengths(struct mx_draft_policy *p, struct mx_draft_odds *const *odds,
                              uint32_t n, uint32_t *out)
{
	const struct candidates from = {p, odds, NULL, n};
	uint32_t at = bucket_of(n);
	struct mx_draft_costs *c = &p->bucket[at];
	struct expected expected;
	p->expected_ns = 0;
	p->asking = p->probing = false;
	if (!(c->at[0].time > 0) || c->steps - c->at[0].seen >= PROBE_STEPS) {
		give(&from, CLASSES, out);
		return 1;
	}
	expect(p, at, &expected);
	if (p->told && n == 1) {
		p->asking = give(&from, 0, out) && asks(p, c);
		if (!p->asking)
			give(&from, CLASSES, out);
	} else {
		uint32_t drafts = give(&from, choose(&from, &expected), out);
		probe_sequences(p, odds, n, &expected, drafts, out);
	}
	return least_cost(&expected);
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

/* The same of times. */
static void move_time(float *mean, double ns, bool first)
{
	double least = (1 - MOST_OFF) * (double)*mean, most = (1 + MOST_OFF) * (double)*mean;
	move(mean, first ? ns : ns < least ? least : ns > most ? most : ns, first);
}

/* Counts a step for which drafts were asked, with that many tokens and drafts a sequence. Its time
 * is the one expected of such steps: a single one says little. */
static void observe_asked(struct mx_draft_policy *p, uint32_t at, double tokens, double drafts,
                          uint64_t proposing_ns)
{
	struct mx_draft_costs *c = &p->bucket[at];
	struct expected expected;
	bool early = c->asked.samples < FIRST_SAMPLES;
	double step = (double)c->at[0].time, proposing = (double)proposing_ns / step;
	if (!(step > 0))
		return;
	c->asked.samples += c->asked.samples < ASKED_FIRST;
	if (!(c->asked.proposing > 0) || !early || proposing < (double)c->asked.proposing)
		move_time(&c->asked.proposing, proposing, !(c->asked.proposing > 0) || early);
	bool probing = p->probing;
	p->probing = false; /* its time without what probing forgives */
	expect(p, at, &expected);
	double cost = time_of(&expected, drafts) / step + (double)c->asked.proposing;
	if (probing) /* lost, as parts of a step: one slow proposal is no reason to wait for long */
		c->asked.saved -= (float)(cost > tokens ? cost - tokens : 0);
	uint32_t weight = c->asked.samples < ASKED_LAST ? c->asked.samples : ASKED_LAST;
	c->asked.tokens += ((float)tokens - c->asked.tokens) / (float)weight;
	c->asked.cost += ((float)cost - c->asked.cost) / (float)weight;
}

void mx_draft_policy_observe(struct mx_draft_policy *p, uint32_t n_decode, uint32_t n_draft,
                             uint32_t n_kept, uint64_t ns, uint64_t proposing_ns)
{
	uint32_t at = bucket_of(n_decode);
	struct mx_draft_costs *c = &p->bucket[at];
	/* Where odds are told, a step's drafts are chosen when they have been proposed. */
	bool counts = n_draft && !(p->told && n_decode == 1);
	double all = (double)ns + (counts ? (double)proposing_ns : 0), step = (double)c->at[0].time;
	double drafts = (double)n_draft / n_decode;
	uint32_t k = (n_draft + n_decode - 1) / n_decode;
	/* What a draft model had to catch up for a sequence that seldom gets drafts counts too. */
	if (p->expected_ns > 0 && (double)(ns + proposing_ns) > p->expected_ns)
		p->probing_ns -= (double)(ns + proposing_ns) - p->expected_ns;
	c->steps++;
	if (p->asking)
		observe_asked(p, at, 1 + (double)n_kept / n_decode, drafts, proposing_ns);
	if (k > MX_DRAFT_MOST || (n_draft && (!(step > 0) || drafts < LEAST_DRAFTS)))
		return;
	all /= k ? step : 1;
	uint32_t before = c->at[k].samples;
	bool early = before < FIRST_SAMPLES;
	c->at[k].seen = c->steps;
	c->at[k].samples += early;
	if (before && early && all >= (double)c->at[k].time)
		return;
	/* One slow step must not end all drafts: at first a draft takes no more than two tokens. */
	double most = !before && k ? 1 + SLOW * drafts : all;
	move_time(&c->at[k].time, all < most ? all : most, early);
	move(&c->at[k].drafts, drafts, early);
}
