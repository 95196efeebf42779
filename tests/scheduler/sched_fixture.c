/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/scheduler/sched_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

const struct mx_fake_config roomy = {
	.name = "fake",
	.vocab = VOCAB,
	.max_context = 2048,
	.max_sequences = 8,
	.step_tokens = 128,
	.page_tokens = 16,
	.n_pages = 1024,
	.prefix_cache = true,
	.eos = -1,
};

bool steps_overlap;

void start_with(struct fixture *f, const struct mx_fake_config *config, uint32_t queue,
                double stretch)
{
	f->config = *config;
	f->config.overlaps |= steps_overlap;
	f->engine = test_engine_create(&f->config);
	struct mx_sched_config sc = {.max_sequences = config->max_sequences,
	                             .step_tokens = config->step_tokens,
	                             .queue = queue,
	                             .max_step_stretch = stretch};
	assert_int_equal(mx_sched_create(&f->engine->base, &sc, &f->sched), MX_OK);
	for (size_t i = 0; i < 16; i++) {
		client_init(&f->c[i]);
		f->c[i].engine = f->engine->inner;
	}
}

void start(struct fixture *f, const struct mx_fake_config *config)
{
	start_with(f, config, 64, 1e6);
}

void finish(struct fixture *f)
{
	mx_sched_destroy(f->sched);
	struct mx_engine_usage u;
	test_engine_check(f->engine);
	f->engine->inner->ops->usage(f->engine->inner, &u);
	assert_int_equal(u.pages_used, 0);
	assert_int_equal(u.pages_free + u.pages_cached, f->config.n_pages);
	for (size_t i = 0; i < 16; i++) {
		assert_true(f->c[i].n_done <= 1);
		assert_int_equal(f->c[i].n_after_done, 0);
		client_free(&f->c[i]);
	}
	test_engine_destroy(f->engine);
}

void fill_prompt(int32_t *prompt, uint32_t n, int32_t salt)
{
	for (uint32_t i = 0; i < n; i++)
		prompt[i] = (int32_t)((i * 7u + (uint32_t)salt * 13u) % VOCAB);
	prompt[0] = salt;
}

void submit_priority(struct fixture *f, int i, uint32_t n, uint32_t max_tokens, int32_t priority)
{
	int32_t prompt[2048];
	fill_prompt(prompt, n, i);
	struct mx_request r = test_request(prompt, n, max_tokens, &f->c[i]);
	r.priority = priority;
	assert_int_equal(mx_sched_submit(f->sched, &r, &f->c[i].id, NULL), MX_OK);
	assert_true(f->c[i].id != 0);
}

void submit(struct fixture *f, int i, uint32_t n, uint32_t max_tokens)
{
	submit_priority(f, i, n, max_tokens, 0);
}

void assert_reference(struct fixture *f, int i, uint32_t n, uint32_t max_tokens)
{
	int32_t prompt[2048], want[2048];
	fill_prompt(prompt, n, i);
	struct mx_request r = test_request(prompt, n, max_tokens, &f->c[i]);
	uint32_t n_want = reference_run(&f->config, &r, want);
	assert_int_equal(f->c[i].n, n_want);
	assert_memory_equal(f->c[i].tokens, want, n_want * sizeof *want);
}

struct mx_sched_stats stats(const struct fixture *f)
{
	struct mx_sched_stats v;
	mx_sched_stats(f->sched, &v);
	return v;
}
