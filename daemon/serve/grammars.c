/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/grammars.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "daemon/serve/tool_grammar.h"

/* Steps of a compilation that any worker may make: about a twentieth of a second. */
#define SMALL_WORK 10000000

static const double bounds[] = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02,
                                0.05,   0.1,    0.2,    0.5,   1,     2,     5};

void mx_grammars_init(struct mx_grammars *g)
{
	*g = (struct mx_grammars){0};
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->large, NULL);
	TAILQ_INIT(&g->list);
	mx_hist_init(&g->compile, bounds, sizeof(bounds) / sizeof(*bounds));
}

/* Under the lock. */
static void drop(struct mx_grammars *g, struct mx_grammar_held *h)
{
	TAILQ_REMOVE(&g->list, h, link);
	g->bytes -= h->bytes;
	mx_grammar_unref(h->grammar);
	free(h);
}

void mx_grammars_destroy(struct mx_grammars *g)
{
	struct mx_grammar_held *h;
	while ((h = TAILQ_FIRST(&g->list)) != NULL)
		drop(g, h);
	pthread_mutex_destroy(&g->lock);
	pthread_mutex_destroy(&g->large);
}

/* Returns the grammar of that key, held, or NULL. Under the lock. */
static struct mx_grammar_held *find(struct mx_grammars *g, const uint8_t *key)
{
	struct mx_grammar_held *h;
	TAILQ_FOREACH(h, &g->list, link)
	if (!memcmp(h->key, key, sizeof(h->key)))
		break;
	if (!h)
		return NULL;
	TAILQ_REMOVE(&g->list, h, link);
	TAILQ_INSERT_HEAD(&g->list, h, link);
	h->holds++;
	return h;
}

/* Makes room for n bytes by dropping what nobody uses, the longest unused first. False if that is
 * not enough. Under the lock. */
static bool make_room(struct mx_grammars *g, size_t n)
{
	struct mx_grammar_held *h = TAILQ_LAST(&g->list, mx_grammar_list), *before;
	for (; h && g->bytes + n > MX_GRAMMARS_BYTES; h = before) {
		before = TAILQ_PREV(h, mx_grammar_list, link);
		if (h->holds)
			continue;
		drop(g, h);
		g->evictions++;
	}
	return g->bytes + n <= MX_GRAMMARS_BYTES;
}

static mx_status no_memory(struct mx_api_error *err)
{
	return mx_api_fail(err, MX_FAULT_EXHAUSTED, "out_of_memory", NULL, "out of memory");
}

/* Tells a client why its grammar was not compiled. */
static mx_status refuse(const struct mx_grammar_source *s, mx_status st, const struct mx_err *e,
                        struct mx_api_error *err)
{
	char place[sizeof(e->where) + 8] = "";
	if (st == MX_E_NOMEM)
		return no_memory(err);
	if (e->where[0]) /* a JSON pointer; other places are in the message */
		snprintf(place, sizeof(place), " at '%s'", e->where);
	return mx_api_fail(err, MX_FAULT_INVALID,
	                   st == MX_E_UNSUPPORTED ? "unsupported_parameter" : "invalid_value", s->field,
	                   "'%s'%s: %s", s->field, place, e->text[0] ? e->text : mx_status_str(st));
}

static mx_status compile_within(const struct mx_rules *rules, uint32_t root, size_t work,
                                struct mx_grammar **out, struct mx_err *e)
{
	struct mx_grammar_limits limits = MX_GRAMMAR_LIMITS;
	limits.work = work < limits.work ? work : limits.work;
	return mx_grammar_compile(rules, root, &limits, out, e);
}

/* Compiles a source. */
static mx_status compile(struct mx_grammars *g, const struct mx_grammar_source *s,
                         struct mx_grammar **out, struct mx_api_error *err)
{
	struct mx_rules *rules = NULL;
	struct mx_err e = {0};
	uint32_t root = 0;
	mx_status st = mx_rules_new(&rules);
	if (st != MX_OK)
		return no_memory(err);
	root = s->build(s->arg, rules, &e);
	if (root && s->reasoning)
		root = mx_tool_grammar_after_reasoning(rules, s->reasoning, s->reasoning_open, root);
	if (!root && (st = e.status) == MX_OK)
		st = mx_rules_error(rules, &e);
	if (root)
		st = compile_within(rules, root, SMALL_WORK, out, &e);
	if (root && st == MX_E_LIMIT) {
		if (pthread_mutex_trylock(&g->large)) {
			mx_rules_free(rules);
			return mx_api_fail(err, MX_FAULT_EXHAUSTED, "server_overloaded", s->field,
			                   "'%s' is large, and another large grammar is being compiled: try "
			                   "again in a moment",
			                   s->field);
		}
		e = (struct mx_err){0};
		st = compile_within(rules, root, SIZE_MAX, out, &e);
		pthread_mutex_unlock(&g->large);
	}
	mx_rules_free(rules);
	return st == MX_OK ? MX_OK : refuse(s, st, &e, err);
}

/* Adds a compiled grammar, held, and takes it over. If another thread was faster, that one's is
 * taken. NULL: there is no room; the grammar is gone. */
static struct mx_grammar_held *add(struct mx_grammars *g, struct mx_grammar_held *h)
{
	struct mx_grammar_held *found;
	pthread_mutex_lock(&g->lock);
	found = find(g, h->key);
	bool room = !found && make_room(g, h->bytes);
	if (room) {
		g->bytes += h->bytes;
		TAILQ_INSERT_HEAD(&g->list, h, link);
	}
	pthread_mutex_unlock(&g->lock);
	if (room)
		return h;
	mx_grammar_unref(h->grammar);
	free(h);
	return found;
}

static void key_of(const struct mx_grammar_source *s, uint8_t key[MX_SHA256_BYTES])
{
	struct mx_sha256 sha;
	const char *reasoning = s->reasoning ? mx_reasoning_format_name(s->reasoning) : "";
	mx_sha256_begin(&sha);
	mx_sha256_add(&sha, reasoning, strlen(reasoning) + 1);
	mx_sha256_add(&sha, s->reasoning_open ? "1" : "0", 1);
	mx_sha256_add(&sha, s->kind, strlen(s->kind) + 1);
	mx_sha256_add(&sha, s->text, s->len);
	mx_sha256_end(&sha, key);
}

static void count(struct mx_grammars *g, bool compiled, uint64_t ns)
{
	pthread_mutex_lock(&g->lock);
	g->failures += !compiled;
	mx_hist_add(&g->compile, (double)ns / (double)MX_NS_PER_S);
	pthread_mutex_unlock(&g->lock);
}

mx_status mx_grammars_take(struct mx_grammars *g, const struct mx_grammar_source *s,
                           struct mx_grammar_held **out, struct mx_api_error *err)
{
	struct mx_grammar_held *h = mx_calloc(1, sizeof(*h));
	if (!h)
		return no_memory(err);
	key_of(s, h->key);
	pthread_mutex_lock(&g->lock);
	struct mx_grammar_held *found = find(g, h->key);
	g->hits += found != NULL;
	g->misses += !found;
	pthread_mutex_unlock(&g->lock);
	if (found) {
		free(h);
		*out = found;
		return MX_OK;
	}
	uint64_t begin = mx_now_ns();
	mx_status st = compile(g, s, &h->grammar, err);
	count(g, st == MX_OK, mx_now_ns() - begin);
	if (st != MX_OK) {
		free(h);
		return st;
	}
	h->bytes = sizeof(*h) + mx_grammar_bytes(h->grammar);
	h->holds = 1;
	*out = add(g, h);
	return *out ? MX_OK
	            : mx_api_fail(err, MX_FAULT_EXHAUSTED, "server_overloaded", s->field,
	                          "no memory is free for the grammar of '%s': requests that run use "
	                          "the %zu MiB that grammars may take; try again in a moment",
	                          s->field, MX_GRAMMARS_BYTES >> 20);
}

void mx_grammars_release(struct mx_grammars *g, struct mx_grammar_held *h)
{
	if (!h)
		return;
	pthread_mutex_lock(&g->lock);
	h->holds--;
	pthread_mutex_unlock(&g->lock);
}

void mx_grammars_write_metrics(struct mx_grammars *g, struct mx_metrics_writer *w)
{
	pthread_mutex_lock(&g->lock);
	const double hits = (double)g->hits, misses = (double)g->misses, bytes = (double)g->bytes;
	const double failures = (double)g->failures, evictions = (double)g->evictions;
	const struct mx_hist compile = g->compile;
	pthread_mutex_unlock(&g->lock);
	mx_metrics_family(w, "mixd_grammar_lookups", MX_METRIC_COUNTER,
	                  "Grammars that requests asked for, by whether they were compiled already.");
	mx_metrics_sample(w, "outcome=\"hit\"", hits);
	mx_metrics_sample(w, "outcome=\"miss\"", misses);
	mx_metrics_family(w, "mixd_grammar_failures", MX_METRIC_COUNTER,
	                  "Grammars that could not be compiled.");
	mx_metrics_sample(w, "", failures);
	mx_metrics_family(w, "mixd_grammar_evictions", MX_METRIC_COUNTER,
	                  "Compiled grammars that were dropped to make room.");
	mx_metrics_sample(w, "", evictions);
	mx_metrics_family(w, "mixd_grammar_bytes", MX_METRIC_GAUGE,
	                  "Memory of the compiled grammars that are in use or kept.");
	mx_metrics_sample(w, "", bytes);
	mx_metrics_family(w, "mixd_grammar_compile_seconds", MX_METRIC_HISTOGRAM,
	                  "Time of compiling a grammar.");
	mx_metrics_histogram(w, "", compile.bounds, compile.n_bounds, compile.count, compile.sum);
}
