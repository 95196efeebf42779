/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk policy, against steps whose time is computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/chunk_policy.h"
#include "tests/scheduler/sched_util.h"

#define BUDGET 512

/* Computes the time of a step on a host that reads the weights once a step, while the arithmetic of
 * each row overlaps partly with the reading. So it is not linear in rows, as on a real CPU. */
static double step_ns(uint32_t n_decode, uint32_t n_prompt)
{
	double read = 5e6, arithmetic = 0.8e6 * (n_decode + n_prompt);
	return (read > arithmetic ? read : arithmetic) + 0.05e6 * n_decode;
}

struct run {
	uint32_t mixed, probes, longest_probes; /* steps of either kind; probes in a row */
	double worst, sum;                      /* stretch of mixed steps */
};

/* Runs `steps` steps with n_decode streams and endless prompts; noise: factor 1 .. 1 + noise. */
static struct run run_policy(struct mx_chunk_policy *p, uint32_t n_decode, int steps, double noise,
                             uint64_t *rng)
{
	struct run r = {0};
	uint32_t row = 0;
	for (int i = 0; i < steps; i++) {
		uint32_t n = mx_chunk_policy_share(p, n_decode);
		n = n < BUDGET - n_decode ? n : BUDGET - n_decode;
		double factor = 1 + noise * (double)(test_random(rng) % 1000) / 1000;
		double ns = step_ns(n_decode, n) * factor;
		mx_chunk_policy_observe(p, n_decode, n, (uint64_t)ns);
		if (!n) {
			r.probes++;
			r.longest_probes = ++row > r.longest_probes ? row : r.longest_probes;
			continue;
		}
		row = 0;
		double stretch = step_ns(n_decode, n) / step_ns(n_decode, 0);
		r.worst = stretch > r.worst ? stretch : r.worst;
		r.sum += stretch;
		r.mixed++;
	}
	return r;
}

static void shares_settle_at_the_stretch(void **state)
{
	(void)state;
	uint64_t rng = test_seed();
	const uint32_t streams[] = {1, 4, 8, 16, 64};
	for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
		struct mx_chunk_policy p;
		mx_chunk_policy_init(&p, 0, 0);
		mx_chunk_policy_observe(&p, 0, BUDGET, (uint64_t)step_ns(0, BUDGET));
		struct run warm = run_policy(&p, streams[i], 50, 0.1, &rng);
		assert_true(warm.worst < 2.5); /* never far off, not even while learning */
		double usual = p.usual;
		struct run r = run_policy(&p, streams[i], 100, 0.1, &rng);
		double floor = step_ns(streams[i], MX_CHUNK_MIN) / step_ns(streams[i], 0);
		assert_true(r.worst < fmax(floor, MX_CHUNK_STRETCH * p.usual * 1.15)); /* noise of 10 % */
		assert_true(r.sum / r.mixed > fmax(floor, MX_CHUNK_STRETCH * usual) * 0.8);
		/* Prompts without end: streams get used to longer steps, within limits. */
		r = run_policy(&p, streams[i], 10000, 0.1, &rng);
		assert_true(p.usual > 1.5 || floor > MX_CHUNK_STRETCH);
		assert_true(r.worst < 3.5 * MX_CHUNK_STRETCH);
		/* And unlearn it. */
		for (int k = 0; k < 1000; k++)
			mx_chunk_policy_observe(&p, streams[i], 0, (uint64_t)step_ns(streams[i], 0));
		assert_true(p.usual == 1);
	}
}

static void pure_steps_are_probed_and_never_twice_in_a_row(void **state)
{
	(void)state;
	uint64_t rng = 1;
	struct mx_chunk_policy p;
	mx_chunk_policy_init(&p, 0, 0);
	assert_int_equal(mx_chunk_policy_share(&p, 8), 0);            /* nothing known: look first */
	assert_int_equal(mx_chunk_policy_share(&p, 8), MX_CHUNK_MIN); /* though it was not shown */
	struct run r = run_policy(&p, 8, 6500, 0, &rng);
	assert_int_equal(r.longest_probes, 1);
	assert_in_range(r.probes, 90, 110);
	/* A number of streams that changes all the time costs no more than its buckets. */
	uint32_t probes = 0;
	for (int i = 0; i < 6500; i++) {
		uint32_t d = 1 + (uint32_t)(test_random(&rng) % 8), n = mx_chunk_policy_share(&p, d);
		probes += n == 0;
		mx_chunk_policy_observe(&p, d, n, (uint64_t)step_ns(d, n));
	}
	assert_true(probes <= 6 * 6500 / 64);
}

static void one_interrupted_step_changes_little(void **state)
{
	(void)state;
	uint64_t rng = 1;
	struct mx_chunk_policy p;
	mx_chunk_policy_init(&p, 0, 1);
	run_policy(&p, 8, 500, 0, &rng);
	uint32_t before = mx_chunk_policy_share(&p, 8);
	mx_chunk_policy_observe(&p, 8, before, 400000000); /* mixed, 50 times as long */
	uint32_t after = mx_chunk_policy_share(&p, 8);
	assert_true(after >= before / 2);
	run_policy(&p, 8, 60, 0, &rng);
	mx_chunk_policy_observe(&p, 8, 0, 400000000); /* a pure one: must not license long steps */
	struct run r = run_policy(&p, 8, 20, 0, &rng);
	assert_true(r.worst < 1.5 * MX_CHUNK_STRETCH * p.usual);
	run_policy(&p, 8, 200, 0, &rng);
	r = run_policy(&p, 8, 100, 0, &rng);
	assert_true(r.worst < 1.15 * MX_CHUNK_STRETCH * p.usual);
	/* Nor does it matter if it is the first one seen, as in a cold process. */
	mx_chunk_policy_init(&p, 0, 1);
	mx_chunk_policy_observe(&p, 0, BUDGET, (uint64_t)step_ns(0, BUDGET));
	mx_chunk_policy_observe(&p, 8, 0, 80000000);
	run_policy(&p, 8, 60, 0, &rng);
	r = run_policy(&p, 8, 100, 0, &rng);
	assert_true(r.worst < 1.15 * MX_CHUNK_STRETCH * p.usual);
}

/* On a busy host steps take up to seven times as long, at random and for a while. Prompts must not
 * look expensive because of that. */
static void a_noisy_host_does_not_starve_prompts(void **state)
{
	(void)state;
	uint64_t rng = test_seed();
	struct mx_chunk_policy p;
	double mean[2];
	for (int noisy = 0; noisy < 2; noisy++) {
		mx_chunk_policy_init(&p, 0, 1);
		mx_chunk_policy_observe(&p, 0, BUDGET, (uint64_t)step_ns(0, BUDGET));
		double tokens = 0, slow = 1;
		for (int i = 0; i < 3000; i++) {
			uint64_t x = test_random(&rng);
			if (x % 50 == 0)
				slow = x & 64 ? 1 : 2.3;
			double factor = x >> 32 & 1 ? slow : slow * (1 + (double)(x >> 40 & 1023) / 512);
			bool prompt = i % 2; /* as many steps without prompts, so that `usual` stays */
			uint32_t n = prompt ? mx_chunk_policy_share(&p, 2) : 0;
			tokens += n;
			mx_chunk_policy_observe(&p, 2, n, (uint64_t)(step_ns(2, n) * (noisy ? factor : 1)));
		}
		mean[noisy] = tokens / 1500;
	}
	print_message("%.1f tokens a chunk, %.1f on a noisy host\n", mean[0], mean[1]);
	assert_true(mean[1] > 0.5 * mean[0] && mean[1] < 3 * mean[0]);
}

static void prompts_always_advance(void **state)
{
	(void)state;
	uint64_t rng = 1;
	struct mx_chunk_policy p;
	mx_chunk_policy_init(&p, 1.01, 4);
	struct run r = run_policy(&p, 32, 1000, 0, &rng);
	assert_true(r.mixed > 950);
	for (uint64_t ns = 0; ns < 3; ns++) { /* a clock that does not advance */
		mx_chunk_policy_observe(&p, 32, 0, ns);
		mx_chunk_policy_observe(&p, 32, 1, 0);
		mx_chunk_policy_observe(&p, 0, 1, 0);
	}
	uint32_t share = mx_chunk_policy_share(&p, 32);
	assert_true(share >= 4 || mx_chunk_policy_share(&p, 32) >= 4);
	mx_chunk_policy_init(&p, 1e6, 0);
	assert_int_equal(mx_chunk_policy_share(&p, 32), UINT32_MAX); /* no limit, no probes */
}

static void any_number_of_streams_has_a_bucket(void **state)
{
	(void)state;
	struct mx_chunk_policy p;
	mx_chunk_policy_init(&p, 0, 0);
	for (uint32_t n = 1; n; n = n < 300 ? n + 1 : n > UINT32_MAX / 2 ? 0 : n * 2 - 1) {
		mx_chunk_policy_observe(&p, n, 0, 1000000 + n);
		mx_chunk_policy_observe(&p, n, 10, 1500000 + n);
		assert_true(mx_chunk_policy_share(&p, n) >= MX_CHUNK_MIN);
	}
}

/* ---- traffic ---- */

/* A server in virtual time: STREAMS clients, each with a prompt of its own and an answer, over and
 * over; and a long prompt now and then. One step after another, prompts in order of arrival. */

#define MAX_CLIENTS 32
#define MAX_GAPS    200000

struct traffic {
	const char *name;
	double read_ms, row_ms; /* a step reads weights, and computes rows behind it */
	uint32_t tile;          /* rows are computed in multiples of this */
	uint32_t streams, prompt, output, long_prompt;
	double long_every_ms;
	double ratio_most, speed_least; /* what must come out */
};

struct sim_client {
	uint32_t prompt, output; /* still to be computed */
	double since, last;      /* arrival; last token */
	bool is_long;
};

struct sim {
	const struct traffic *t;
	struct mx_chunk_policy policy;
	struct sim_client c[MAX_CLIENTS];
	double now;
	double *gaps;
	uint32_t n_gaps;
	uint64_t tokens, rng;
};

static double sim_step_ms(struct sim *s, uint32_t n_decode, uint32_t n_prompt)
{
	uint32_t rows = (n_decode + n_prompt + s->t->tile - 1) / s->t->tile * s->t->tile;
	double compute = rows * s->t->row_ms, read = s->t->read_ms;
	double noise = 1 + 0.05 * (double)(test_random(&s->rng) % 1000) / 1000;
	if (test_random(&s->rng) % 500 == 0)
		noise *= 2; /* the host had something else to do */
	return (fmax(compute, read) + 0.3 * fmin(compute, read) + 0.05 * n_decode) * noise;
}

/* Takes up to `share` prompt tokens from the clients in order of arrival. Those whose prompt ends
 * get their first token at the end of the step. Returns the number taken. */
static uint32_t sim_prompts(struct sim *s, uint32_t share, bool first[MAX_CLIENTS])
{
	uint32_t taken = 0;
	while (share) {
		struct sim_client *next = NULL;
		for (uint32_t i = 0; i < MAX_CLIENTS; i++)
			if (s->c[i].prompt && s->c[i].since <= s->now && (!next || s->c[i].since < next->since))
				next = &s->c[i];
		if (!next)
			break;
		uint32_t n = next->prompt < share ? next->prompt : share;
		next->prompt -= n;
		share -= n;
		taken += n;
		if (next->prompt)
			break;
		first[next - s->c] = true;
	}
	return taken;
}

static void sim_one_step(struct sim *s)
{
	bool decode[MAX_CLIENTS], first[MAX_CLIENTS] = {false}, waiting = false;
	uint32_t n = 0;
	for (uint32_t i = 0; i < MAX_CLIENTS; i++) {
		bool here = s->c[i].since <= s->now;
		decode[i] = here && !s->c[i].prompt && s->c[i].output;
		n += decode[i];
		waiting |= here && s->c[i].prompt;
	}
	if (!n && !waiting) {
		s->now += 1;
		return;
	}
	uint32_t share = BUDGET - n;
	if (n && waiting)
		share = (uint32_t)fmin(share, mx_chunk_policy_share(&s->policy, n));
	uint32_t prompt = sim_prompts(s, waiting ? share : 0, first);
	double ms = sim_step_ms(s, n, prompt);
	mx_chunk_policy_observe(&s->policy, n, prompt, (uint64_t)(ms * 1e6));
	s->now += ms;
	for (uint32_t i = 0; i < MAX_CLIENTS; i++) {
		struct sim_client *c = &s->c[i];
		if (!decode[i] && !first[i])
			continue;
		if (decode[i] && s->n_gaps < MAX_GAPS)
			s->gaps[s->n_gaps++] = s->now - c->last;
		s->tokens++;
		c->last = s->now;
		if (--c->output)
			continue;
		c->prompt = c->is_long ? s->t->long_prompt : s->t->prompt;
		c->output =
			c->is_long ? 16 : s->t->output / 2 + (uint32_t)(test_random(&s->rng) % s->t->output);
		c->since = c->is_long ? fmax(s->now, c->since + s->t->long_every_ms) : s->now;
	}
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Tokens a second in a minute of traffic; *out_ratio: p99 of the gaps over their p50. */
static double simulate(const struct traffic *t, double stretch, double *out_ratio)
{
	struct sim s = {.t = t, .rng = 1};
	mx_chunk_policy_init(&s.policy, stretch, 0);
	s.gaps = malloc(MAX_GAPS * sizeof *s.gaps);
	assert_non_null(s.gaps);
	for (uint32_t i = 0; i < t->streams; i++)
		s.c[i] = (struct sim_client){.prompt = t->prompt, .output = t->output, .since = 100.0 * i};
	if (t->long_prompt)
		s.c[t->streams] = (struct sim_client){
			.prompt = t->long_prompt, .output = 16, .since = 2000, .is_long = true};
	while (s.now < 60000)
		sim_one_step(&s);
	qsort(s.gaps, s.n_gaps, sizeof *s.gaps, compare_doubles);
	*out_ratio = s.gaps[(size_t)(0.99 * s.n_gaps)] / s.gaps[s.n_gaps / 2];
	free(s.gaps);
	return (double)s.tokens / 60;
}

static void gaps_stay_even_under_traffic(void **state)
{
	(void)state;
	/* speed_least: tokens a second as a part of what chunks without limit give. Where prompts are
	 * most of the work, even gaps cost some. */
	static const struct traffic cases[] = {
		{"cpu, 8 streams", 4.6, 0.8, 1, 8, 128, 128, 0, 0, 2, 0.94},
		{"cpu, 16 streams", 4.6, 0.8, 1, 16, 128, 128, 0, 0, 2, 0.94},
		{"cpu, one stream and long prompts", 4.6, 0.8, 1, 1, 16, 512, 2000, 10000, 2.2, 0.94},
		{"cpu, 8 streams and long prompts", 4.6, 0.8, 1, 8, 128, 128, 2000, 15000, 2, 0.9},
		{"cpu, prompts all the time", 4.6, 0.8, 1, 16, 512, 64, 0, 0, 2, 0.8},
		{"tiles of 16, 8 streams", 4.6, 0.15, 16, 8, 128, 128, 0, 0, 2, 0.94},
		{"tiles of 16, 16 streams", 4.6, 0.15, 16, 16, 128, 128, 0, 0, 2, 0.94},
		{"tiles of 16, long prompts", 4.6, 0.15, 16, 8, 128, 128, 2000, 5000, 2, 0.94},
		{"gpu, 16 streams", 10, 0.02, 1, 16, 512, 64, 0, 0, 2, 0.9},
		{"gpu, long prompts", 10, 0.02, 1, 8, 128, 128, 2000, 3000, 2, 0.94},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct traffic *t = &cases[i];
		double ratio, ratio_free;
		double speed = simulate(t, 0, &ratio), speed_free = simulate(t, 1e6, &ratio_free);
		print_message("%-34s %6.0f tokens/s of %6.0f, p99/p50 %.2f instead of %.2f\n", t->name,
		              speed, speed_free, ratio, ratio_free);
		assert_true(ratio < t->ratio_most);
		assert_true(speed > t->speed_least * speed_free);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shares_settle_at_the_stretch),
		cmocka_unit_test(pure_steps_are_probed_and_never_twice_in_a_row),
		cmocka_unit_test(one_interrupted_step_changes_little),
		cmocka_unit_test(a_noisy_host_does_not_starve_prompts),
		cmocka_unit_test(prompts_always_advance),
		cmocka_unit_test(any_number_of_streams_has_a_bucket),
		cmocka_unit_test(gaps_stay_even_under_traffic),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
