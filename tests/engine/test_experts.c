/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests which weights of experts a step reads: products are counted between the engine and its
 * device. A step of one token reads only the experts that it is routed to; a prompt reads an expert
 * once, for all rows that chose it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/model_engine.h"
#include "tests/engine/engine_util.h"

enum { MAX_COUNTED = 256, PROMPT = 100 };

/* The use of one matrix of an expert since reset(). */
struct counted {
	const struct mx_weight *w;
	uint32_t layer, expert;
	size_t products, rows, bytes;
};

static struct {
	const struct mx_ops *ops; /* of the device itself */
	struct counted list[MAX_COUNTED];
	size_t n;
	size_t calls; /* operators with a product of an expert since reset() */
} count;

static struct counted *find(const struct mx_weight *w)
{
	for (size_t i = 0; i < count.n; i++)
		if (count.list[i].w->data == w->data)
			return &count.list[i];
	return NULL;
}

/* Counts a product of n rows if the matrix is an expert's; returns whether it is. */
static bool count_product(const struct mx_weight *w, size_t n)
{
	struct counted *c = find(w);
	if (!c)
		return false;
	c->products++;
	c->rows += n;
	c->bytes += w->quant ? mx_quant_bytes(w->quant, w->rows)
	                     : (size_t)w->rows * w->cols * mx_dtype_size(w->dtype);
	return true;
}

static mx_status counting_linear(struct mx_device *d, const void *x, size_t ldx, size_t n,
                                 const struct mx_linear_out *out, size_t n_out)
{
	bool expert = false;
	for (size_t i = 0; i < n_out; i++)
		expert |= count_product(out[i].w, n);
	count.calls += expert;
	return count.ops->linear(d, x, ldx, n, out, n_out);
}

static mx_status counting_each(struct mx_device *d, size_t n, const struct mx_linear_each *each,
                               size_t n_each)
{
	for (size_t i = 0; i < n_each; i++)
		count_product(each[i].w, n);
	count.calls++;
	return count.ops->linear_each(d, n, each, n_each);
}

static void add(const struct mx_weight *w, uint32_t layer, uint32_t expert)
{
	assert_true(count.n < MAX_COUNTED);
	count.list[count.n++] = (struct counted){.w = w, .layer = layer, .expert = expert};
}

/* Puts the counter between the engine and its device, and lists the matrices of all experts. */
static void watch(struct mx_engine *engine)
{
	static struct mx_ops ops;
	struct mx_model_engine *e = (struct mx_model_engine *)engine;
	count.n = 0;
	count.ops = e->device->ops;
	ops = *count.ops;
	ops.linear = counting_linear;
	ops.linear_each = counting_each;
	e->device->ops = &ops;
	for (uint32_t b = 0; b < e->model.n_blocks; b++)
		for (uint32_t i = 0; i < e->model.blocks[b].experts.n; i++) {
			const struct mx_model_mlp *x = &e->model.blocks[b].experts.experts[i];
			if (x->gated)
				add(&x->gate, b, i);
			add(&x->up, b, i);
			add(&x->down, b, i);
		}
	assert_true(count.n > 0);
}

static void reset(void)
{
	count.calls = 0;
	for (size_t i = 0; i < count.n; i++)
		count.list[i].products = count.list[i].rows = count.list[i].bytes = 0;
}

static void run(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t total)
{
	struct job job = make_job(prompt, n, total);
	struct outcome out;
	job.no_prefix_cache = true;
	reset();
	run_jobs(e, &job, 1, 512, &out);
	outcome_free(&out);
}

/* Models whose experts are stored in each of the forms, the bytes of one expert's matrices, and the
 * operators that a layer's experts take for one row: two, or two an expert if these have biases. */
static const struct {
	const char *name;
	uint32_t layers, experts, chosen; /* layers with experts */
	size_t bytes, calls;
} models[] = {
	{"mixtral", 2, 5, 2, (size_t)3 * 40 * 32 * 4, 2},
	{"qwen3_5_moe", 4, 6, 2, (size_t)3 * 24 * 32 * 4, 2},
	{"gpt_oss", 3, 6, 3, (size_t)3 * 24 * 32 * 4, 6},
	{"gpt_oss-mxfp4", 2, 5, 2, (size_t)3 * 2 * 2304, 4}, /* panels of 256 columns */
	{"nemotron_h", 1, 8, 3, (size_t)2 * 24 * 32 * 4, 2},
};

static void start(const char *name, struct loaded *l)
{
	char dir[4096];
	const char *src = getenv("srcdir");
	snprintf(dir, sizeof dir, "%s/tests/golden/models/%s", src ? src : ".", name);
	loaded_start(dir, NULL, l);
	watch(l->engine);
}

static void stop(struct loaded *l)
{
	((struct mx_model_engine *)l->engine)->device->ops = count.ops;
	loaded_close(l);
}

/* One row a step: its experts are read once a layer, and no byte of the others. */
static void one_token_reads_its_experts_only(void **state)
{
	enum { STEPS = 5 };
	(void)state;
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		const int32_t prompt[] = {7};
		size_t bytes = 0, read = 0;
		struct loaded l;
		start(models[m].name, &l);
		run(l.engine, prompt, 1, 2);
		for (size_t i = 0; i < count.n; i++) {
			read += count.list[i].products > 0;
			assert_true(count.list[i].products == count.list[i].rows &&
			            count.list[i].products <= 1);
			bytes += count.list[i].bytes;
		}
		assert_int_equal(bytes, models[m].layers * models[m].chosen * models[m].bytes);
		assert_true(read < count.n);
		assert_int_equal(count.calls, models[m].layers * models[m].calls);
		/* generated tokens are steps of one row too */
		bytes = 0;
		run(l.engine, prompt, 1, 1 + STEPS);
		for (size_t i = 0; i < count.n; i++)
			bytes += count.list[i].bytes;
		assert_int_equal(bytes, STEPS * models[m].layers * models[m].chosen * models[m].bytes);
		stop(&l);
	}
}

/* All rows of a prompt that chose an expert are in one product with each of its matrices. */
static void a_prompt_reads_an_expert_once(void **state)
{
	(void)state;
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		int32_t prompt[PROMPT];
		size_t rows = 0, bytes = 0, matrices = 0;
		struct loaded l;
		start(models[m].name, &l);
		make_tokens(prompt, PROMPT, 128, 3);
		run(l.engine, prompt, PROMPT, PROMPT + 1);
		for (size_t i = 0; i < count.n; i++) {
			assert_true(count.list[i].products <= 1);
			assert_int_equal(count.list[i].products > 0, count.list[i].rows > 0);
			rows += count.list[i].rows;
			bytes += count.list[i].bytes;
		}
		matrices = count.n / (models[m].layers * models[m].experts);
		assert_int_equal(rows, (size_t)PROMPT * models[m].layers * models[m].chosen * matrices);
		assert_true(bytes <= models[m].layers * models[m].experts * models[m].bytes);
		stop(&l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_token_reads_its_experts_only),
		cmocka_unit_test(a_prompt_reads_an_expert_once),
	};
	mx_log_set_level(MX_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
