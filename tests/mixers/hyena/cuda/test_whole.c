/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompts whose whole blocks are computed by one transform each (mixers/hyena/cuda/whole.cu): on a
 * device that need not be deterministic, cut anywhere, two at a time, with decoded tokens between
 * and behind, saved and loaded; against a deterministic device, which computes tiles alone.
 *
 *   test_whole [SEED]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/rng.h"
#include "tools/test-mixer/rig.h"

#define SIDE   4096u /* LCG_POINTS */
#define ROUNDS 6

static struct mx_registry *registry;
static const char *gpu;
static uint64_t seed;

static void failed(const char *text)
{
	fail_msg("%s", text);
}

static struct text text_of(uint32_t len, uint32_t width, struct rng *g)
{
	const size_t n = (size_t)len * width;
	struct text t = {.len = len, .x = calloc(n, sizeof *t.x)};
	assert_non_null(t.x);
	for (size_t i = 0; i < n; i++)
		t.x[i] = rng_normal(g);
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		assert_non_null(t.y[l] = calloc(n, sizeof *t.x));
	return t;
}

static void text_free(struct text *t)
{
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		free(t->y[l]);
	free(t->x);
}

/* Tokens of the next piece of a text: one, a few, several blocks, or up to a border of blocks. */
static uint32_t piece(struct rng *g, const struct seq *s)
{
	const uint32_t left = s->text->len - s->computed, to_border = SIDE - s->computed % SIDE;
	const uint32_t drawn[] = {1, 1 + rng_below(g, 100), 1 + rng_below(g, 3 * SIDE), to_border,
	                          to_border + SIDE * rng_below(g, 3)};
	const uint32_t n = drawn[rng_below(g, sizeof drawn / sizeof *drawn)];
	return n < left ? n : left;
}

/* Takes two sequences to their ends. */
static void walk(struct rig *r, struct text *texts, struct rng *g)
{
	struct seq s[2];
	for (int i = 0; i < 2; i++) {
		seq_open(r, &s[i], &texts[i]);
		s[i].record = true;
	}
	while (s[0].computed < texts[0].len || s[1].computed < texts[1].len) {
		struct item items[2];
		uint32_t n = 0, room = r->layer.max_rows;
		for (int i = 0; i < 2; i++) {
			uint32_t tokens = s[i].computed < texts[i].len ? piece(g, &s[i]) : 0;
			tokens = tokens < room ? tokens : room;
			room -= tokens;
			if (tokens)
				items[n++] = tokens == 1 ? item_decode(&s[i]) : item_prefill(&s[i], tokens);
		}
		rig_step(r, items, n);
		const int k = (int)rng_below(g, 8);
		if (k < 2 && s[k].computed >= s[k].save_from && s[k].computed < texts[k].len &&
		    s[k].computed) {
			struct saved v;
			const uint32_t at = s[k].computed;
			seq_save(r, &s[k], &v);
			seq_close(r, &s[k]);
			seq_resume(r, &s[k], &v, &texts[k], at);
			s[k].record = true;
			saved_drop(r, &v);
		}
	}
	for (int i = 0; i < 2; i++)
		seq_close(r, &s[i]);
}

static void compare(const struct text *a, const struct text *b, uint32_t width)
{
	for (uint32_t l = 0; l < RUN_LAYERS; l++) {
		double most = 0;
		for (size_t i = 0; i < (size_t)a->len * width; i++)
			most = fabs(a->y[l][i]) > most ? fabs(a->y[l][i]) : most;
		for (size_t i = 0; i < (size_t)a->len * width; i++)
			if (!(fabs((double)a->y[l][i] - b->y[l][i]) <= EXACT * most))
				fail_msg("layer %u, position %zu, column %zu: %.9g is not %.9g, of up to %.3g", l,
				         i / width, i % width, (double)b->y[l][i], (double)a->y[l][i], most);
	}
}

/* One width and length: both devices compute the same two texts. */
static void run(struct rng *g)
{
	static const struct mixer_weight weights[] = {{"short_filter.weight", 0, 0.4f},
	                                              {"filter_fn.pos_emb.z", 0, 1},
	                                              {"filter_fn.pos_emb.t", 0.5f, 0.25f},
	                                              {"filter_fn.modulation.deltas", 0, 1},
	                                              {NULL, 0, 0}};
	const uint32_t len = SIDE + 600 + rng_below(g, 5 * SIDE), width = 1 + rng_below(g, 20);
	const struct mixer_case c = {
		.label = "whole blocks",
		.width = width,
		.tokens = len,
		.weight_dtype = MX_F32,
		.state_dtype = MX_F32,
		.params = {{.name = "filter_len", .type = MX_PARAM_INT, .i = len, .f = len},
	               {.name = "emb_dim", .type = MX_PARAM_INT, .i = 3, .f = 3},
	               {.name = "filter_order", .type = MX_PARAM_INT, .i = 8, .f = 8}},
		.n_params = 3,
		.weights = weights,
		.tolerance = EXACT,
	};
	struct rig_options o = {
		.registry = registry, .mixer = "hyena", .device = gpu, .seed = 1 + rng_below(g, 1u << 30)};
	static struct rig exact, loose;
	struct text texts[2], again[2];
	print_message("%u tokens of %u channels\n", len, width);
	rig_open(&exact, &c, &o);
	for (int i = 0; i < 2; i++) {
		texts[i] = text_of(i ? 1 + rng_below(g, len) : len, width, g);
		seq_whole(&exact, &texts[i]);
	}
	rig_close(&exact);
	o.loose = true;
	rig_open(&loose, &c, &o);
	for (int i = 0; i < 2; i++) {
		struct rng unused = *g;
		again[i] = text_of(texts[i].len, width, &unused);
		memcpy(again[i].x, texts[i].x, (size_t)texts[i].len * width * sizeof *texts[i].x);
	}
	seq_whole(&loose, &again[0]);
	compare(&texts[0], &again[0], width);
	for (int k = 0; k < 3; k++) {
		walk(&loose, again, g);
		for (int i = 0; i < 2; i++)
			compare(&texts[i], &again[i], width);
	}
	rig_close(&loose);
	for (int i = 0; i < 2; i++) {
		text_free(&texts[i]);
		text_free(&again[i]);
	}
}

static void test_whole(void **state)
{
	struct rng g = {seed};
	(void)state;
	for (int i = 0; i < ROUNDS; i++)
		run(&g);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole)};
	const char *device = getenv("MIXD_TEST_DEVICE"), *dir = getenv("MIXD_MODULE_PATH");
	struct mx_err err = {0};
	seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
	seed = seed ? seed : 1; /* xorshift never leaves 0 */
	printf("seed %llu\n", (unsigned long long)seed);
	test_failed = failed;
	gpu = device ? device : "cuda:0";
	if (!rig_can_open(gpu))
		return 77;
	if (mx_registry_create(&registry) != MX_OK ||
	    mx_registry_load_dir(registry, dir ? dir : "mixers/.libs", &err) != MX_OK ||
	    mx_registry_load_cuda(registry, &err) != MX_OK) {
		fprintf(stderr, "%s: %s\n", err.where, err.text);
		return 1;
	}
	int n = cmocka_run_group_tests(tests, NULL, NULL);
	mx_registry_destroy(registry);
	return n;
}
