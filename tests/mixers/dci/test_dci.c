/* SPDX-License-Identifier: Apache-2.0 */
/* What dci's search finds, on ordinary and on odd keys, and that an index is a function of its
 * keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "mixers/dci/dci.h"
#include "tests/rng.h"

#define PAGE  128
#define DIM   64
#define HEADS 2 /* of one key head */
#define FIRST 64
#define N     4096 /* enough runs for a search to begin with a sample of them */

mx_mixer_module_f mx_mixer_module_v2;

static struct rng rng_of_test(void)
{
	const char *seed = getenv("MIXD_TEST_SEED");
	return (struct rng){seed ? strtoull(seed, NULL, 10) | 1 : 12345};
}

/* One layer with pages for one sequence of N tokens. */
struct rig {
	struct mx_device *device;
	struct mx_mixer *m;
	unsigned char *pages, *scratch;
	size_t page_bytes;
	uint32_t order[N / PAGE];
	float *k, *v; /* [N][DIM] */
};

static void rig_open(struct rig *r, enum mx_dtype dtype, uint32_t top_k, uint32_t visits, bool rest)
{
	const struct mx_param params[] = {
		{.name = "heads", .type = MX_PARAM_INT, .i = HEADS},
		{.name = "kv_heads", .type = MX_PARAM_INT, .i = 1},
		{.name = "head_dim", .type = MX_PARAM_INT, .i = DIM},
		{.name = "top_k", .type = MX_PARAM_INT, .i = top_k},
		{.name = "visits", .type = MX_PARAM_INT, .i = visits},
		{.name = "first", .type = MX_PARAM_INT, .i = FIRST},
		{.name = "recent", .type = MX_PARAM_INT, .i = 1},
		{.name = "rest", .type = MX_PARAM_BOOL, .i = rest},
	};
	const struct mx_layer_desc layer = {.n_layers = 1,
	                                    .width = DIM,
	                                    .max_context = N,
	                                    .max_rows = N,
	                                    .max_spans = 1,
	                                    .state_dtype = dtype,
	                                    .params = {params, sizeof params / sizeof *params}};
	const void *weights[MX_MIXER_MAX_WEIGHTS] = {0};
	const struct mx_mixer_ops *ops = mx_mixer_module_v2();
	struct mx_state_spec spec = {0};
	struct mx_err err = {0};
	*r = (struct rig){0};
	assert_int_equal(mx_cpu_create(1, mx_cpu_isa(), 16, DIM, &r->device, &err), MX_OK);
	assert_int_equal(ops->state(&layer, r->device, &spec), MX_OK);
	r->page_bytes = spec.bytes_per_token * PAGE;
	r->pages = aligned_alloc(64, r->page_bytes * (N / PAGE));
	r->scratch = aligned_alloc(64, spec.scratch_bytes + 64 - spec.scratch_bytes % 64);
	r->k = calloc((size_t)N * DIM, 4);
	r->v = calloc((size_t)N * DIM, 4);
	assert_true(r->pages && r->scratch && r->k && r->v);
	memset(r->pages, 0xff, r->page_bytes * (N / PAGE)); /* dirty: all is NaN */
	for (uint32_t i = 0; i < N / PAGE; i++)
		r->order[i] = N / PAGE - 1 - i;
	const struct mx_mixer_init init = {.layer = &layer,
	                                   .device = r->device,
	                                   .weights = weights,
	                                   .page_base = r->pages,
	                                   .page_stride = r->page_bytes,
	                                   .page_tokens = PAGE};
	assert_int_equal(ops->create(&init, &r->m, &err), MX_OK);
}

static void rig_close(struct rig *r)
{
	r->m->base.ops->destroy(r->m);
	mx_cpu_destroy(r->device);
	free(r->pages);
	free(r->scratch);
	free(r->k);
	free(r->v);
}

/* Appends tokens first .. end - 1; attends with their queries unless q is NULL. */
static void append(const struct rig *r, uint32_t first, uint32_t end, float *q)
{
	const struct mx_span span = {
		.n = end - first, .pos = first, .max_len = N, .pages = r->order, .n_pages = N / PAGE};
	const struct mx_step step = {.spans = &span, .n_spans = 1, .n_rows = span.n};
	const struct attn_rows rows = {.k = r->k + (size_t)first * DIM,
	                               .v = r->v + (size_t)first * DIM};
	dci_append(r->m, &step, &rows);
	if (q)
		dci_attend(r->m, &step, r->scratch, q);
}

static float dot(const float *a, const float *b)
{
	double sum = 0;
	for (uint32_t i = 0; i < DIM; i++)
		sum += (double)a[i] * b[i];
	return (float)sum;
}

/* Returns the share of the top_k keys with the largest products that the last token's queries q
 * [HEADS][DIM] find: with equal probabilities, and values that count those keys. */
static double recall(struct rig *r, const float *q, uint32_t top_k)
{
	float y[HEADS * DIM], s[N];
	const uint32_t end = (N - 1) / DCI_RUN * DCI_RUN, exact = FIRST + N - end;
	memset(r->v, 0, (size_t)N * DIM * 4);
	for (uint32_t h = 0; h < HEADS; h++) {
		for (uint32_t j = FIRST; j < end; j++)
			s[j] = dot(q + h * DIM, r->k + (size_t)j * DIM);
		for (uint32_t j = FIRST; j < end; j++) {
			uint32_t above = 0;
			for (uint32_t i = FIRST; i < end && above < top_k; i++)
				above += s[i] > s[j];
			r->v[(size_t)j * DIM + h] = above < top_k;
		}
	}
	append(r, 0, N - 1, NULL);
	r->m->params.heads.scale = 1e-30f;
	memcpy(y, q, sizeof y);
	append(r, N - 1, N, y);
	double found = 0;
	for (uint32_t h = 0; h < HEADS; h++)
		found += (double)y[h * DIM + h] * (exact + top_k) / top_k;
	return found / HEADS;
}

static void draw(struct rng *g, float *x, size_t n)
{
	for (size_t i = 0; i < n; i++)
		x[i] = rng_normal(g);
}

/* Keys with an offset, a decaying spectrum and a drift along the text, as trained models have. */
static void draw_structured(struct rng *g, struct rig *r)
{
	float offset[DIM], drift[DIM] = {0};
	draw(g, offset, DIM);
	for (uint32_t j = 0; j < N; j++)
		for (uint32_t i = 0; i < DIM; i++) {
			float spread = 3 / sqrtf(1 + (float)i / 4);
			drift[i] = 0.99f * drift[i] + 0.14f * spread * rng_normal(g);
			r->k[(size_t)j * DIM + i] = 2 * offset[i] + drift[i] + spread * rng_normal(g);
		}
}

static void most_of_the_largest_products_are_found(void **state)
{
	(void)state;
	struct rng g = rng_of_test();
	for (int structured = 0; structured < 2; structured++) {
		struct rig r;
		double sum = 0;
		rig_open(&r, MX_F32, 32, 256, false);
		for (int i = 0; i < 4; i++) {
			float q[HEADS * DIM];
			draw(&g, r.k, (size_t)N * DIM);
			if (structured)
				draw_structured(&g, &r);
			draw(&g, q, HEADS * DIM);
			sum += recall(&r, q, 32) / 4;
		}
		print_message("recall %.3f\n", sum);
		/* a sixteenth of the keys is visited; less is a fault in codes, factors or centres */
		assert_true(sum > 0.85 && sum < 1.0001);
		rig_close(&r);
	}
}

static void odd_keys_do_not_hide_others(void **state)
{
	(void)state;
	struct rng g = rng_of_test();
	enum { EQUAL_NORMS, ONE_HUGE, ZEROS, DUPLICATES, NOT_A_NUMBER, KINDS };
	for (int kind = 0; kind < KINDS; kind++) {
		struct rig r;
		float q[HEADS * DIM];
		rig_open(&r, MX_BF16, 16, 256, false);
		draw(&g, r.k, (size_t)N * DIM);
		draw(&g, q, HEADS * DIM);
		for (uint32_t j = 0; j < N; j++) {
			float *k = r.k + (size_t)j * DIM;
			float length = sqrtf(dot(k, k));
			for (uint32_t i = 0; i < DIM; i++) {
				if (kind == EQUAL_NORMS)
					k[i] *= 8 / length;
				if (kind == ZEROS && j % 3)
					k[i] = 0;
				if (kind == DUPLICATES && j % 7)
					k[i] = r.k[(size_t)(j - j % 7) * DIM + i];
			}
		}
		/* one in each run: against the queries, so that nobody should find it */
		for (uint32_t j = 5; j < N && (kind == ONE_HUGE || kind == NOT_A_NUMBER); j += DCI_RUN)
			for (uint32_t i = 0; i < DIM; i++)
				r.k[(size_t)j * DIM + i] = kind == ONE_HUGE ? -1e4f * (q[i] + q[DIM + i]) : NAN;
		if (kind == NOT_A_NUMBER) {
			/* a row that sees it has no number, as with attention; the index stays sound */
			append(&r, 0, N, NULL);
			for (uint32_t j = 0; j < N; j += DCI_RUN) {
				const unsigned char *index = dci_index(r.m, r.order, 0, j);
				const float *f = (const float *)(const void *)(index + r.m->layout.factors);
				for (uint32_t i = 0; i < DCI_RUN; i++)
					assert_true(isfinite(f[i]) && (f[i] > 0) == (i != 5));
			}
		} else if (kind == DUPLICATES) { /* ties: which of them is found differs, their sum not */
			assert_true(recall(&r, q, 16) > 0.2);
		} else {
			double found = recall(&r, q, 16);
			print_message("kind %d: recall %.3f\n", kind, found);
			assert_true(found > 0.8);
		}
		rig_close(&r);
	}
}

/* Returns the relative error of the last token's outputs beside attention to all keys. */
static double output_error(const struct rig *r, const float *q)
{
	float y[HEADS * DIM];
	double error = 0, size = 0;
	memcpy(y, q, sizeof y);
	append(r, 0, N - 1, NULL);
	append(r, N - 1, N, y);
	for (uint32_t h = 0; h < HEADS; h++) {
		double o[DIM] = {0}, sum = 0;
		for (uint32_t j = 0; j < N; j++) {
			double p = exp((double)dot(q + h * DIM, r->k + (size_t)j * DIM) / sqrt(DIM));
			sum += p;
			for (uint32_t i = 0; i < DIM; i++)
				o[i] += p * (double)r->v[(size_t)j * DIM + i];
		}
		for (uint32_t i = 0; i < DIM; i++) {
			error += pow((double)y[h * DIM + i] - o[i] / sum, 2);
			size += pow(o[i] / sum, 2);
		}
	}
	return sqrt(error / size);
}

/* Queries that spread over all keys, values that change slowly along the text: what is not found
 * counts with its run's means. */
static void the_rest_counts_with_its_means(void **state)
{
	(void)state;
	double error[2];
	for (int rest = 0; rest < 2; rest++) {
		struct rng g = rng_of_test();
		struct rig r;
		float q[HEADS * DIM];
		rig_open(&r, MX_BF16, 16, 64, rest);
		draw_structured(&g, &r);
		draw(&g, q, HEADS * DIM);
		for (uint32_t i = 0; i < HEADS * DIM; i++)
			q[i] *= 0.5f;
		for (size_t i = 0; i < (size_t)N * DIM; i++)
			r.v[i] = (i < DIM ? 0 : 0.99f * r.v[i - DIM]) + 0.1f * rng_normal(&g);
		error[rest] = output_error(&r, q);
		rig_close(&r);
	}
	print_message("error %.3f without the rest, %.3f with it\n", error[0], error[1]);
	assert_true(error[1] < 0.2 && error[1] < 0.2 * error[0]);
}

/* All large products are with the runs that the search takes its sample of: the bound that this
 * gives is above most of what a query wants. */
static void a_sample_that_misleads_hides_nothing(void **state)
{
	(void)state;
	struct rng g = rng_of_test();
	struct rig r;
	float q[HEADS * DIM];
	uint32_t first = FIRST / DCI_RUN, runs = (N - 1) / DCI_RUN - first;
	rig_open(&r, MX_F32, 200, 256, false);
	draw(&g, r.k, (size_t)N * DIM);
	draw(&g, q, HEADS * DIM);
	memcpy(q + DIM, q, sizeof q / 2);
	for (uint32_t k = 0; k < 8; k++)
		for (uint32_t j = 0; j < DCI_RUN; j++)
			for (uint32_t i = 0; i < DIM; i++)
				r.k[((first + (2 * k + 1) * runs / 16) * DCI_RUN + j) * DIM + i] += q[i];
	double found = recall(&r, q, 200);
	print_message("recall %.3f\n", found);
	assert_true(found > 0.8);
	rig_close(&r);
}

static void an_index_is_a_function_of_its_keys(void **state)
{
	(void)state;
	struct rng g = rng_of_test();
	struct rig a, b;
	rig_open(&a, MX_BF16, 16, 64, true);
	rig_open(&b, MX_BF16, 16, 64, true);
	draw(&g, a.k, (size_t)N * DIM);
	draw(&g, a.v, (size_t)N * DIM);
	append(&a, 0, N, NULL);
	for (uint32_t pos = 0; pos < N;) {
		uint32_t left = N - pos, n = 1 + rng_below(&g, 200);
		n = n < left ? n : left;
		/* a draft of other tokens, of which none or some stay */
		uint32_t stay = rng_below(&g, n + 1);
		draw(&g, b.k + (size_t)pos * DIM, (size_t)n * DIM);
		draw(&g, b.v + (size_t)pos * DIM, (size_t)n * DIM);
		memcpy(b.k + (size_t)pos * DIM, a.k + (size_t)pos * DIM, (size_t)stay * DIM * 4);
		memcpy(b.v + (size_t)pos * DIM, a.v + (size_t)pos * DIM, (size_t)stay * DIM * 4);
		append(&b, pos, pos + n, NULL);
		pos += stay;
	}
	assert_memory_equal(a.pages, b.pages, a.page_bytes * (N / PAGE));
	rig_close(&a);
	rig_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(most_of_the_largest_products_are_found),
		cmocka_unit_test(odd_keys_do_not_hide_others),
		cmocka_unit_test(the_rest_counts_with_its_means),
		cmocka_unit_test(a_sample_that_misleads_hides_nothing),
		cmocka_unit_test(an_index_is_a_function_of_its_keys),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
