/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/access.h"

#include <stdatomic.h>

static _Atomic int access_log = MX_ACCESS_OFF;

void mx_access_set(enum mx_access which)
{
	atomic_store(&access_log, (int)which);
}

enum mx_access mx_access_get(void)
{
	return (enum mx_access)atomic_load_explicit(&access_log, memory_order_relaxed);
}

static void add(struct mx_access_line *l, struct mx_log_field field)
{
	if (l->n < MX_ACCESS_MAX_FIELDS)
		l->fields[l->n++] = field;
}

void mx_access_add_string(struct mx_access_line *l, const char *name, const char *value)
{
	add(l, (struct mx_log_field){name, MX_LOG_STRING, value, 0});
}

void mx_access_add_count(struct mx_access_line *l, const char *name, uint64_t n)
{
	add(l, (struct mx_log_field){name, MX_LOG_COUNT, NULL, n});
}

static void add_ms(struct mx_access_line *l, const char *name, uint64_t ns)
{
	add(l, (struct mx_log_field){name, MX_LOG_MS, NULL, ns});
}

void mx_access_add_work(struct mx_access_line *l, const struct mx_generation_figures *g,
                        uint64_t start_ns, uint64_t ns)
{
	if (g) {
		mx_access_add_string(l, "model", g->model);
		mx_access_add_count(l, "prompt_tokens", g->prompt_tokens);
		mx_access_add_count(l, "cached_tokens", g->cached_tokens);
		mx_access_add_count(l, "output_tokens", g->output_tokens);
		if (g->scheduled)
			add_ms(l, "queue_ms", g->queue_ns);
		if (g->first_token_ns)
			add_ms(l, "first_token_ms", g->first_token_ns - start_ns);
	}
	add_ms(l, "total_ms", ns);
	if (g)
		mx_access_add_string(l, "finish", g->finish);
}
