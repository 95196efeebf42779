/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws tokens from logits. One task per row; a row's result depends on its
 * logits and parameters alone.
 *
 * Order of operations, as in vLLM's V1 sampler (vllm/v1/sample/sampler.py):
 *   logit_bias, banned tokens; repetition, frequency, presence penalties;
 *   tokens that are not allowed; temperature 0: the first of the largest logits. Otherwise
 *   e = exp((logit - largest) / temperature), min_p, top_k, top_p, draw.
 * min_p keeps e >= min_p (the largest e is 1). top_k keeps the k largest and all
 * that equal the k-th. top_p keeps the shortest run of tokens, largest first and
 * ties by lower id, that holds at least that share of what top_k left.
 *
 * The draw inverts the cumulative sum of e, in order of token ids, at the
 * Philox number u of (seed, position).
 *
 * A guess (struct mx_guess) is the token that probably is drawn from a distribution
 * like this one at the same u. Where the cumulative sum of this one is f, a share of
 * the total, that of the other one is taken for normal around f, with the variance
 * f (1 - f) / (agreement + 1) that it has if the other one is Dirichlet distributed
 * around this one. So a token whose sums are f and g is drawn with the probability
 * that the other sum there is at most u at f, less that at g; the guess is the token
 * for which that is largest. With much agreement it is the draw, with little the
 * likeliest token.
 *
 * No filter sorts the vocabulary: the cut is found by a radix search on the bits
 * of e, which for non-negative floats are in the order of their values.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "device/cpu/impl.h"
#include "device/cpu/philox.h"

#define MAX_BLOCKS (MX_MAX_VOCAB / MX_SUM_BLOCK)
/* Most tokens that are moved to a separate list after a filter. */
#define MAX_LIST 4096
/* Radix of the search: bits of e are at most 0x3f800000, 30 bits, taken ten at a time. */
#define RADIX_BITS 10
#define RADIX      (1u << RADIX_BITS)
/* See guess. */
#define LIGHT (1.0f / 64)

/* A worker's workspace. */
struct workspace {
	double sums[MAX_BLOCKS];
	double mass[RADIX];
	uint32_t count[RADIX];
	float list_e[MAX_LIST];
	int32_t list_ids[MAX_LIST];
};

size_t mx_cpu_sample_scratch(void)
{
	return sizeof(struct workspace);
}

/* The tokens that the filters left: weight e[i] of token ids[i], or of token i if ids is NULL. */
struct view {
	float *e;
	int32_t *ids;
	size_t n;
};

/* Threshold of a filter: tokens with a weight above `e` remain, and equal ones up to index `last`.
 */
struct cut {
	float e;
	size_t last;
};

static uint32_t bits_of(float e)
{
	uint32_t u;
	memcpy(&u, &e, sizeof u);
	return u;
}

static float float_of(uint32_t u)
{
	float e;
	memcpy(&e, &u, sizeof e);
	return e;
}

/* Counts and weighs the elements whose bits begin with `prefix`, by their next RADIX_BITS. */
static void histogram(const struct view *v, uint32_t prefix, unsigned shift, struct workspace *w)
{
	memset(w->mass, 0, sizeof w->mass);
	memset(w->count, 0, sizeof w->count);
	for (size_t i = 0; i < v->n; i++) {
		uint32_t u = bits_of(v->e[i]);
		if ((uint64_t)u >> (shift + RADIX_BITS) != prefix)
			continue;
		u = u >> shift & (RADIX - 1);
		w->count[u]++;
		w->mass[u] += (double)v->e[i];
	}
}

/* Goes down from the largest weight until the number of tokens reaches k (k > 0) or their mass
 * reaches `share`, and returns that weight. *out_mass_above: mass of all larger weights. */
static float search(const struct view *v, size_t k, double share, struct workspace *w,
                    double *out_mass_above)
{
	uint32_t prefix = 0;
	size_t count = 0;
	double mass = 0;
	for (int shift = 2 * RADIX_BITS; shift >= 0; shift -= RADIX_BITS) {
		histogram(v, prefix, (unsigned)shift, w);
		uint32_t low = 0; /* the lowest bucket that holds anything */
		while (!w->count[low])
			low++;
		uint32_t b = RADIX - 1;
		for (; b > low; b--) {
			if (k ? count + w->count[b] >= k : w->count[b] && mass + w->mass[b] >= share)
				break;
			count += w->count[b];
			mass += w->mass[b];
		}
		prefix = prefix << RADIX_BITS | b;
	}
	*out_mass_above = mass;
	return float_of(prefix);
}

static struct cut cut_top_k(const struct view *v, size_t k, struct workspace *w)
{
	double above;
	return (struct cut){.e = search(v, k, 0, w, &above), .last = SIZE_MAX};
}

static struct cut cut_top_p(const struct view *v, double p, struct workspace *w)
{
	double total = 0, mass;
	for (size_t i = 0; i < v->n; i++)
		total += (double)v->e[i];
	struct cut c = {.e = search(v, 0, p * total, w, &mass)};
	for (size_t i = 0; i < v->n; i++) {
		if (v->e[i] != c.e)
			continue;
		c.last = i;
		mass += (double)c.e;
		if (mass >= p * total)
			break;
	}
	return c;
}

/* Removes the tokens below the threshold. If few remain, they become a list; if many, they remain
 * in place and the others get weight 0. */
static void keep(struct view *v, struct cut c, struct workspace *w)
{
	size_t n = 0;
	for (size_t i = 0; i < v->n; i++)
		n += v->e[i] >= c.e;
	if (n > MAX_LIST) {
		for (size_t i = 0; i < v->n; i++)
			if (v->e[i] < c.e || (v->e[i] == c.e && i > c.last))
				v->e[i] = 0;
		return;
	}
	size_t at = 0;
	for (size_t i = 0; i < v->n; i++) {
		if (v->e[i] < c.e || (v->e[i] == c.e && i > c.last))
			continue;
		w->list_ids[at] = v->ids ? v->ids[i] : (int32_t)i;
		w->list_e[at++] = v->e[i];
	}
	*v = (struct view){.e = w->list_e, .ids = w->list_ids, .n = at};
}

/* Returns the index of the token at which the running sum of the weights exceeds u times their
 * total. sums[b] is the weight of block b. */
static size_t draw(const struct view *v, const double *sums, double u)
{
	size_t blocks = (v->n + MX_SUM_BLOCK - 1) / MX_SUM_BLOCK, b = 0, found = 0;
	double total = 0;
	for (size_t i = 0; i < blocks; i++)
		total += sums[i];
	double target = u * total, sum = 0;
	/* rounding must not move the target beyond the last block that has any weight */
	size_t last = blocks - 1;
	while (last > 0 && !(sums[last] > 0))
		last--;
	for (; b < last && sum + sums[b] <= target; b++)
		sum += sums[b];
	size_t end = (b + 1) * MX_SUM_BLOCK < v->n ? (b + 1) * MX_SUM_BLOCK : v->n;
	for (size_t i = b * MX_SUM_BLOCK; i < end; i++) {
		if (!(v->e[i] > 0))
			continue;
		found = i;
		sum += (double)v->e[i];
		if (sum > target)
			break;
	}
	return found;
}

/* Returns the probability that the other model's cumulative sum is at most u where this one's is f,
 * both as shares of the total. The logistic function stands for the normal one. */
static double at_most(double u, double f, double agreement)
{
	if (!(f > 0) || !(f < 1))
		return f > 0 ? 0 : 1;
	return 1 / (1 + exp(1.702 * (f - u) / sqrt(f * (1 - f) / (agreement + 1))));
}

/* Returns the index of the guess, whose probability it writes. `drawn` is the index of the draw.
 * Other tokens with less than LIGHT of the largest weight, which is 1, are no guess. */
static size_t guess(const struct view *v, const double *sums, double u, size_t drawn,
                    struct mx_guess *g)
{
	size_t blocks = (v->n + MX_SUM_BLOCK - 1) / MX_SUM_BLOCK, best = drawn;
	double total = 0, before = 0, most = -1;
	if (g->agreement >= MX_GUESS_SAME) {
		g->probability = 1;
		return drawn;
	}
	for (size_t b = 0; b < blocks; b++)
		total += sums[b];
	for (size_t b = 0; b < blocks; before += sums[b++]) {
		size_t end = (b + 1) * MX_SUM_BLOCK < v->n ? (b + 1) * MX_SUM_BLOCK : v->n;
		size_t heavy = drawn / MX_SUM_BLOCK == b;
		for (size_t i = b * MX_SUM_BLOCK; i < end; i++)
			heavy += v->e[i] >= LIGHT;
		double sum = before;
		for (size_t i = b * MX_SUM_BLOCK; i < end && heavy; i++) {
			double from = sum / total;
			sum += (double)v->e[i];
			if (!(v->e[i] >= LIGHT) && i != drawn)
				continue;
			double p = at_most(u, from, (double)g->agreement) -
			           at_most(u, sum / total, (double)g->agreement);
			if (p > most) {
				most = p;
				best = i;
			}
		}
	}
	g->probability = (float)most;
	return best;
}

static void block_sums(const struct view *v, double *sums)
{
	for (size_t i = 0; i < v->n; i++) {
		if (i % MX_SUM_BLOCK == 0)
			sums[i / MX_SUM_BLOCK] = 0;
		sums[i / MX_SUM_BLOCK] += (double)v->e[i];
	}
}

static void apply_penalties(float *logits, uint32_t vocab, const struct mx_sample_row *row)
{
	const struct mx_sampling *s = row->sampling;
	for (size_t i = 0; i < s->n_bias; i++)
		if ((uint32_t)s->bias[i].token < vocab)
			logits[s->bias[i].token] += s->bias[i].bias;
	for (size_t i = 0; i < row->n_banned; i++)
		if ((uint32_t)row->banned[i] < vocab)
			logits[row->banned[i]] = -INFINITY;
	for (size_t i = 0; i < row->n_counts; i++) {
		const struct mx_token_count *c = &row->counts[i];
		if ((uint32_t)c->token >= vocab)
			continue;
		float *l = &logits[c->token];
		if (s->repetition_penalty != 1)
			*l = *l > 0 ? *l / s->repetition_penalty : *l * s->repetition_penalty;
		*l -= s->frequency_penalty * (float)c->output;
		*l -= c->output ? s->presence_penalty : 0.0f;
	}
}

/* Takes away the tokens that are not in a set. */
static void apply_mask(float *logits, uint32_t vocab, const uint32_t *allowed)
{
	uint32_t whole = vocab / 32 * 32;
	for (uint32_t i = 0; i < whole; i += 32) {
		uint32_t word = allowed[i / 32];
		for (uint32_t k = 0; k < 32; k++)
			logits[i + k] = word & 1u << k ? logits[i + k] : -INFINITY;
	}
	for (uint32_t i = whole; i < vocab; i++)
		if (!(allowed[i / 32] >> i % 32 & 1))
			logits[i] = -INFINITY;
}

/* Returns the probability of the likeliest token, whose logit is max, at temperature 1. */
static float own_probability(const struct mx_kernels *k, const float *logits, uint32_t vocab,
                             float max, struct workspace *w)
{
	double sum = 0;
	k->exp_sums(logits, vocab, max, 1, NULL, w->sums);
	for (uint32_t b = 0; b < (vocab + MX_SUM_BLOCK - 1) / MX_SUM_BLOCK; b++)
		sum += w->sums[b];
	return (float)(1 / sum);
}

/* Returns the token drawn from a row; -1 if the largest logit is not finite. */
static int32_t sample_row(const struct mx_kernels *k, float *logits, uint32_t vocab,
                          const struct mx_sample_row *row, struct workspace *w)
{
	const struct mx_sampling *s = row->sampling;
	apply_penalties(logits, vocab, row);
	if (row->allowed)
		apply_mask(logits, vocab, row->allowed);
	float max = k->max(logits, vocab);
	if (!isfinite(max))
		return -1;
	if (!(s->temperature >= MX_MIN_TEMPERATURE)) {
		uint32_t i = 0;
		while (logits[i] != max)
			i++;
		if (row->guess)
			row->guess->probability = own_probability(k, logits, vocab, max, w);
		return (int32_t)i;
	}
	struct view v = {.e = logits, .n = vocab};
	k->exp_sums(logits, vocab, max, 1 / s->temperature, logits, w->sums);
	bool top_k = s->top_k > 0 && (uint32_t)s->top_k < vocab;
	bool top_p = s->top_p < 1;
	if (s->min_p > 0)
		keep(&v, (struct cut){.e = s->min_p, .last = SIZE_MAX}, w);
	if (top_k && (size_t)s->top_k < v.n)
		keep(&v, cut_top_k(&v, (size_t)s->top_k, w), w);
	if (top_p)
		keep(&v, cut_top_p(&v, (double)s->top_p, w), w);
	if (s->min_p > 0 || top_k || top_p)
		block_sums(&v, w->sums);
	double u = mx_uniform(s->seed, row->position);
	size_t i = draw(&v, w->sums, u);
	if (row->guess)
		i = guess(&v, w->sums, u, i, row->guess);
	return v.ids ? v.ids[i] : (int32_t)i;
}

struct sample_call {
	struct mx_cpu *c;
	float *logits;
	size_t ld;
	uint32_t vocab;
	const struct mx_sample_row *rows;
	int32_t *out;
};

static void sample_task(void *arg, size_t task, unsigned worker)
{
	struct sample_call *s = arg;
	void *w = s->c->scratch + worker * s->c->scratch_stride;
	s->out[task] = sample_row(&s->c->k, s->logits + task * s->ld, s->vocab, &s->rows[task], w);
}

mx_status mx_cpu_sample(struct mx_device *d, float *logits, size_t ld, size_t n, uint32_t vocab,
                        const struct mx_sample_row *rows, int32_t *out_tokens)
{
	if (!vocab || vocab > MX_MAX_VOCAB)
		return MX_E_RANGE;
	struct sample_call s = {mx_cpu_of(d), logits, ld, vocab, rows, out_tokens};
	mx_cpu_run(s.c, n, sample_task, &s);
	for (size_t i = 0; i < n; i++)
		if (out_tokens[i] < 0)
			return MX_E_INTERNAL;
	return MX_OK;
}

mx_status mx_cpu_sample_prepare(struct mx_device *d, const struct mx_sample_row *rows, size_t n)
{
	struct mx_cpu *c = mx_cpu_of(d);
	if (n > c->max_rows)
		return MX_E_RANGE;
	c->rows = rows;
	c->n_rows = n;
	return MX_OK;
}

mx_status mx_cpu_sample_draw(struct mx_device *d, float *logits, size_t ld, size_t n,
                             uint32_t vocab)
{
	struct mx_cpu *c = mx_cpu_of(d);
	if (n > c->n_rows)
		return MX_E_INVALID;
	c->drawn = mx_cpu_sample(d, logits, ld, n, vocab, c->rows, c->tokens);
	return c->drawn == MX_E_INTERNAL ? MX_OK : c->drawn;
}

mx_status mx_cpu_sample_drawn(struct mx_device *d, size_t n, int32_t *out_tokens)
{
	struct mx_cpu *c = mx_cpu_of(d);
	if (n > c->n_rows)
		return MX_E_INVALID;
	if (n)
		memcpy(out_tokens, c->tokens, n * sizeof *out_tokens);
	return c->drawn;
}
