/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the memory of the model engine on small random checkpoints: it is what was planned; pages,
 * slots and what mixers allocate themselves have their shares; too little is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/engine/engine_util.h"
#include "tests/engine/small_models.h"

/* Sanitizers take memory that no plan knows. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEMORY_TELLS = false };
#else
enum { MEMORY_TELLS = true };
#endif

static size_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long size, rss;
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu %lu", &size, &rss), 2);
	fclose(f);
	return rss * (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns the growth since `before`, once it is about what was planned and no longer changes: pages
 * are touched in the background. */
static size_t wait_for_memory(size_t before, size_t planned)
{
	size_t last = 0, now = 0;
	for (int still = 0, i = 0; (still < 5 || now - before < planned / 20 * 19) && i < 300; i++) {
		usleep(100000);
		now = resident();
		still = now == last ? still + 1 : 0;
		last = now;
	}
	return now - before;
}

static void test_memory_is_as_planned(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_info info;
	struct mx_engine_config c = loaded_config();
	c.memory = (size_t)300 << 20;
	loaded_open(small_dirs[BF16], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_int_equal(p.total, p.weights_mapped + p.weights_private + p.pages + p.slots + p.scratch +
	                              p.other);
	assert_true(p.total - p.weights_mapped <= c.memory);
	assert_true(p.total - p.weights_mapped > c.memory - p.page_bytes - 4096);
	assert_int_equal(p.pages, p.n_pages * p.page_bytes);
	assert_int_equal(mx_memory_sequences(&p, CONTEXT), 16);
	size_t before = resident();
	assert_int_equal(
		mx_engine_load(l.plan, l.checkpoint, l.mixers, &c, NULL, NULL, &l.engine, &err), MX_OK);
	l.engine->ops->info(l.engine, &info);
	assert_int_equal(info.n_pages, p.n_pages);
	assert_int_equal(info.page_bytes, p.page_bytes);
	assert_int_equal(info.page_tokens, p.page_tokens);
	if (MEMORY_TELLS) {
		size_t grown = wait_for_memory(before, p.total);
		print_message("planned %zu, grown %zu\n", p.total, grown);
		assert_true(fabs((double)grown - (double)p.total) < 0.05 * (double)p.total);
		/* a request adds next to nothing */
		static int32_t prompt[400];
		make_tokens(prompt, 400, VOCAB, 9);
		struct job job = make_job(prompt, 400, 500);
		struct outcome out;
		run_jobs(l.engine, &job, 1, 512, &out);
		outcome_free(&out);
		assert_true(resident() - before < grown + (1 << 20));
	}
	loaded_close(&l);
}

/* Returns the number of pages that a sequence holds after n tokens of a prompt, and closes it. */
static uint32_t pages_after(struct mx_engine *e, uint32_t n, uint32_t max_len, bool private)
{
	static int32_t prompt[CONTEXT];
	const struct mx_seq_params p = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                                .max_len = max_len,
	                                .logprobs = -1,
	                                .prompt_logprobs = -1,
	                                .no_prefix_cache = private};
	struct mx_seq *s;
	struct mx_step_result r;
	struct mx_step_times t;
	struct mx_engine_usage u;
	uint32_t computed;
	make_tokens(prompt, n, VOCAB, n);
	assert_int_equal(e->ops->open(e, prompt, n, &p, &s), MX_OK);
	assert_int_equal(e->ops->attach(e, s, &computed), MX_OK);
	assert_int_equal(computed, 0);
	struct mx_step_item item = {.seq = s, .n = n, .sample = false};
	assert_int_equal(e->ops->reserve(e, s, n), MX_OK);
	assert_int_equal(e->ops->step(e, &item, 1, &r, &t), MX_OK);
	e->ops->usage(e, &u);
	e->ops->close(e, s);
	return u.pages_used;
}

/* The mixer of tests/mixers/modules/reaching.c needs look-ahead pages up to 3 * 2^k tokens, and
 * none behind its position. */
static void test_pages_as_mixers_want_them(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_engine_info info;
	struct mx_engine_usage u;
	loaded_start(small_dirs[BF16], NULL, &l);
	l.engine->ops->info(l.engine, &info);
	/* the choice for a model of attention alone */
	assert_int_equal(info.page_tokens, getenv("MIXD_TEST_DEVICE") ? 32 : 64);
	loaded_close(&l);
	loaded_start(small_dirs[REACHING], NULL, &l);
	struct mx_engine *e = l.engine;
	e->ops->info(e, &info);
	assert_int_equal(info.page_tokens, 32);
	assert_true(info.prefix_cache);
	assert_int_equal(pages_after(e, 100, CONTEXT, false), 6); /* up to 192 */
	e->ops->usage(e, &u);
	assert_int_equal(u.pages_used, 0);
	assert_int_equal(u.pages_cached, 3); /* no look-ahead page */
	assert_int_equal(pages_after(e, 129, CONTEXT, false), 12);
	assert_int_equal(pages_after(e, 130, 180, false), 6); /* max_len bounds the look-ahead */
	assert_int_equal(pages_after(e, 131, CONTEXT, true), 12 - 4);
	assert_int_equal(pages_after(e, 400, CONTEXT, true), 16 - 12);
	e->ops->drop_cache(e);
	e->ops->usage(e, &u);
	assert_int_equal(u.pages_free, info.n_pages);
	loaded_close(&l);

	struct mx_engine_config c = loaded_config();
	c.prefix_cache = false;
	loaded_start(small_dirs[REACHING], &c, &l);
	assert_int_equal(pages_after(l.engine, 400, CONTEXT, false), 16 - 12);
	loaded_close(&l);

	/* Attention needs all pages up to its position, and none ahead. */
	c.page_tokens = 32;
	loaded_start(small_dirs[F32], &c, &l);
	assert_int_equal(pages_after(l.engine, 400, CONTEXT, false), 13);
	loaded_close(&l);
}

/* Memory that mixers allocate in create is part of the plan. */
static void test_instances_are_planned_for(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(small_dirs[REACHING], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	size_t kept = p.instances - 4096; /* what `reaching` needs while a layer is created, once */
	assert_true(kept > 64 * sizeof(float) && kept < 1024);
	assert_string_equal(p.mixers[0].name, "reaching");
	assert_int_equal(p.mixers[0].instance_bytes, kept);
	assert_int_equal(p.mixers[1].instance_bytes, 0);
	assert_int_equal(p.total, p.weights_mapped + p.weights_private + p.instances + p.pages +
	                              p.slots + p.snapshots + p.scratch + p.other);
	assert_true(p.total - p.weights_mapped <= c.memory);
	loaded_close(&l);
}

static void test_shared_tensors_are_kept_once(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(small_dirs[HGRN2], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	/* three norms a layer, the last one, and the lower bounds of all layers */
	assert_int_equal(p.weights_private, (3 * 3 * 64 + 64 + 3 * 64) * sizeof(float));
	loaded_close(&l);
}

static void test_too_little_memory_is_refused(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	loaded_open(small_dirs[F32], &l);
	c.memory = 1 << 20;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_non_null(strstr(err.text, "512 tokens"));
	c = loaded_config();
	c.max_context = CONTEXT + 1;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_E_RANGE);
	assert_string_equal(err.where, "max_context");
	assert_string_equal(err.text, "513 is more than the model's 512");
	c = loaded_config();
	c.memory = 0; /* just enough for 16 sequences of 512 */
	c.page_tokens = 100;
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_true(p.page_tokens >= 100);
	assert_int_equal(p.n_pages, 16 * ((CONTEXT + p.page_tokens - 1) / p.page_tokens));
	loaded_close(&l);
}

/* If the memory has no slots for all sequences, slots get half of the room, and the engine admits
 * no more sequences than there are slots. */
static void test_slots_share_the_memory(void **state)
{
	(void)state;
	struct loaded l;
	struct mx_err err = {0};
	struct mx_memory_plan p;
	struct mx_engine_config c = loaded_config();
	c.max_sequences = 1 << 18;
	loaded_open(small_dirs[HYBRID], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_true(p.n_slots > 16 && p.n_slots < c.max_sequences);
	assert_int_equal(p.slots, p.n_slots * p.slot_bytes);
	size_t room = p.slots + p.pages;
	assert_true(p.slots > room * 0.45 && p.slots < room * 0.55);
	assert_true(p.total - p.weights_mapped <= c.memory);
	assert_int_equal(p.n_mixers, 2);
	assert_string_equal(p.mixers[0].name, "attention");
	assert_string_equal(p.mixers[1].name, "ema");
	assert_int_equal(p.mixers[0].page_bytes, p.page_bytes);
	assert_int_equal(p.mixers[1].slot_bytes, p.slot_bytes);
	uint32_t pages = (CONTEXT - 1) / p.page_tokens + 1;
	assert_int_equal(mx_memory_sequences(&p, CONTEXT), p.n_pages / pages);
	assert_true(mx_memory_sequences(&p, 1) <= p.n_slots);
	loaded_close(&l);

	/* A model without pages has one page of no bytes a sequence, and slots get all the memory. */
	loaded_open(small_dirs[RECURRENT], &l);
	assert_int_equal(mx_engine_plan(l.plan, l.checkpoint, l.mixers, &c, &p, &err), MX_OK);
	assert_int_equal(p.page_bytes, 0);
	assert_int_equal(p.pages, 0);
	assert_int_equal(p.n_pages, p.n_slots);
	assert_int_equal(mx_memory_sequences(&p, CONTEXT), p.n_slots);
	assert_int_equal(mx_memory_sequences(&p, 1), p.n_slots);
	size_t left = c.memory - (p.total - p.weights_mapped);
	assert_true(left < p.slot_bytes + p.n_slots * (size_t)256); /* tables */
	loaded_close(&l);

	struct mx_engine_info info;
	struct mx_engine_usage u;
	c.max_sequences = 3;
	loaded_start(small_dirs[HYBRID], &c, &l);
	struct mx_engine *e = l.engine;
	e->ops->info(e, &info);
	assert_int_equal(info.max_sequences, 3);
	const struct mx_seq_params q = {.sampling = {.repetition_penalty = 1, .top_p = 1},
	                                .max_len = 10,
	                                .logprobs = -1,
	                                .prompt_logprobs = -1};
	struct mx_seq *s[4];
	int32_t prompt[1] = {1};
	uint32_t computed;
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(e->ops->open(e, prompt, 1, &q, &s[i]), MX_OK);
		assert_int_equal(e->ops->attach(e, s[i], &computed), i < 3 ? MX_OK : MX_E_NOMEM);
		e->ops->usage(e, &u);
		assert_int_equal(u.slots_used, i < 3 ? i + 1 : 3);
	}
	e->ops->release(e, s[1]);
	assert_int_equal(e->ops->attach(e, s[3], &computed), MX_OK);
	for (uint32_t i = 0; i < 4; i++)
		e->ops->close(e, s[i]);
	e->ops->usage(e, &u);
	assert_int_equal(u.slots_used, 0);
	loaded_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_is_as_planned),
		cmocka_unit_test(test_shared_tensors_are_kept_once),
		cmocka_unit_test(test_pages_as_mixers_want_them),
		cmocka_unit_test(test_instances_are_planned_for),
		cmocka_unit_test(test_too_little_memory_is_refused),
		cmocka_unit_test(test_slots_share_the_memory),
	};
	return cmocka_run_group_tests(tests, small_models_make, small_models_remove);
}
