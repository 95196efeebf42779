/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/engine/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/engine/random_checkpoint.h"

void must(mx_status st, const char *what)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, mx_status_str(st));
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double median(double *v, size_t n)
{
	qsort(v, n, sizeof *v, by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

void random_tokens(int32_t *out, uint32_t n, uint32_t vocab, uint32_t seed)
{
	uint32_t x = seed * 2654435761u + 1;
	for (uint32_t i = 0; i < n; i++) {
		x = x * 1664525u + 1013904223u;
		out[i] = (int32_t)((x >> 8) % vocab);
	}
}

mx_status run_write_model(const char *dir, const struct shape *shape,
                          const struct mx_random_model *m, struct mx_err *err)
{
	struct mx_registry *mixers = NULL;
	const char *modules = getenv("MIXD_MODULE_PATH");
	if (!shape->config)
		return mx_random_model_write(dir, m, err);
	mx_status st = mx_registry_create(&mixers);
	if (st == MX_OK)
		st = mx_registry_load_dir(mixers, modules ? modules : MIXD_MODULE_DIR, err);
	if (st == MX_OK)
		st = random_checkpoint_write(dir, shape->config, mixers, m->dtype, m->seed, err);
	mx_registry_destroy(mixers);
	return st;
}

struct mx_seq *run_try_open(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t more,
                            bool prefix_cache)
{
	const struct mx_seq_params params = {
		.sampling = {.top_p = 1, .repetition_penalty = 1},
		.max_len = n + more,
		.logprobs = -1,
		.prompt_logprobs = -1,
		.no_prefix_cache = !prefix_cache,
	};
	struct mx_seq *s;
	uint32_t computed;
	must(e->ops->open(e, prompt, n, &params, &s), "open");
	must(e->ops->attach(e, s, &computed), "attach");
	mx_status st = e->ops->reserve(e, s, n + more);
	if (st == MX_E_NOMEM) {
		e->ops->close(e, s);
		return NULL;
	}
	must(st, "reserve");
	return s;
}

struct mx_seq *run_open(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t more,
                        bool prefix_cache)
{
	struct mx_seq *s = run_try_open(e, prompt, n, more, prefix_cache);
	must(s ? MX_OK : MX_E_NOMEM, "reserve");
	return s;
}

uint64_t run_step(struct mx_engine *e, const struct mx_step_item *items, uint32_t n,
                  struct mx_step_times *sum)
{
	static struct mx_step_result results[RUN_MAX_BATCH];
	struct mx_step_times t;
	uint64_t begin = mx_now_ns();
	must(e->ops->step(e, items, n, results, &t), "step");
	uint64_t ns = mx_now_ns() - begin;
	for (uint32_t i = 0; i < n; i++)
		must(results[i].status, "sequence");
	sum->forward += t.forward;
	sum->sample += t.sample;
	sum->commit += t.commit;
	sum->host += t.host;
	return ns;
}

uint64_t run_prefill(struct mx_engine *e, struct mx_seq *s, uint32_t chunk,
                     struct mx_step_times *sum)
{
	uint32_t n, computed;
	uint64_t ns = 0;
	e->ops->tokens(s, &n, &computed);
	while (computed < n) {
		uint32_t k = n - computed < chunk ? n - computed : chunk;
		const struct mx_step_item item = {.seq = s, .n = k, .sample = computed + k == n};
		ns += run_step(e, &item, 1, sum);
		computed += k;
	}
	return ns;
}

double run_layer_params(const struct opened_model *m, double *out_all)
{
	const char *prefix = m->plan->layer_prefix;
	double layers = 0, all = 0;
	for (size_t i = 0; i < mx_checkpoint_count(m->checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(m->checkpoint, i);
		double n = 1;
		for (uint32_t d = 0; d < t->ndim; d++)
			n *= (double)t->shape[d];
		all += n;
		if (t->ndim >= 2 && !strncmp(t->name, prefix, strlen(prefix)))
			layers += n;
	}
	*out_all = all;
	return layers;
}

bool run_is_quantised(const struct opened_model *m)
{
	for (size_t i = 0; i < mx_checkpoint_count(m->checkpoint); i++)
		if (mx_checkpoint_at(m->checkpoint, i)->dtype == MX_QUANT)
			return true;
	return false;
}
