/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/scheduler/sched_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/core.h"

/* ---- the engine ---- */

static struct test_engine *of(const struct mx_engine *e)
{
	return (struct test_engine *)e;
}

#define INNER(e)    (of(e)->inner)
#define CALL(e, op) INNER(e)->ops->op

static void t_info(const struct mx_engine *e, struct mx_engine_info *out)
{
	CALL(e, info)(INNER(e), out);
}

static void t_usage(const struct mx_engine *e, struct mx_engine_usage *out)
{
	CALL(e, usage)(INNER(e), out);
}

static mx_status t_open(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                        const struct mx_seq_params *params, struct mx_seq **out)
{
	struct test_engine *t = of(e);
	mx_status st = CALL(e, open)(INNER(e), prompt, n, params, out);
	if (st == MX_OK) {
		assert_true(t->n_open < MAX_OPEN);
		t->open[t->n_open++] = *out;
	}
	return st;
}

static mx_status t_attach(struct mx_engine *e, struct mx_seq *s, uint32_t *out_computed)
{
	struct test_engine *t = of(e);
	if (t->slots && t->n_attached == t->slots)
		return MX_E_NOMEM;
	mx_status st = CALL(e, attach)(INNER(e), s, out_computed);
	t->n_attached += st == MX_OK;
	if (t->n_attached > t->max_attached)
		t->max_attached = t->n_attached;
	return st;
}

static mx_status t_reserve(struct mx_engine *e, struct mx_seq *s, uint32_t n_tokens)
{
	return CALL(e, reserve)(INNER(e), s, n_tokens);
}

static void t_propose(struct mx_engine *e, struct mx_step_item *items, uint32_t n)
{
	struct mx_engine *inner = ((struct test_engine *)e)->inner;
	inner->ops->propose(inner, items, n);
}

static uint32_t t_chunk(const struct mx_engine *e, const struct mx_seq *s, uint32_t n)
{
	const struct mx_engine *inner = ((const struct test_engine *)e)->inner;
	return inner->ops->chunk(inner, s, n);
}

/* Fails the test if the sequence is in the running step: nobody may change it then. */
static void check_not_in_flight(const struct test_engine *t, const struct mx_seq *s)
{
	for (uint32_t i = 0; s && i < t->n_flight; i++)
		if (t->flight[i] == s)
			fail_msg("a sequence is taken from the step that runs");
}

static void t_release(struct mx_engine *e, struct mx_seq *s)
{
	check_not_in_flight(of(e), s);
	of(e)->n_attached -= s->slot != MX_NO_SLOT;
	CALL(e, release)(INNER(e), s);
}

static void t_close(struct mx_engine *e, struct mx_seq *s)
{
	struct test_engine *t = of(e);
	check_not_in_flight(t, s);
	for (uint32_t i = 0; s && i < t->n_open; i++)
		if (t->open[i] == s) {
			t->open[i] = t->open[--t->n_open];
			break;
		}
	t->n_attached -= s && s->slot != MX_NO_SLOT;
	CALL(e, close)(INNER(e), s);
}

void test_engine_check(struct test_engine *t)
{
	const struct mx_page_list *lists[MAX_OPEN];
	for (uint32_t i = 0; i < t->n_open; i++)
		lists[i] = &t->open[i]->pages;
	const struct mx_core *core = (const struct mx_core *)t->inner;
	const char *wrong = mx_pages_check(core->pages, lists, t->n_open);
	if (!wrong && core->snapshots)
		wrong = mx_snapshots_check(core->snapshots);
	if (wrong)
		fail_msg("%s", wrong);
}

/* Checks that a sequence comes only once in a step. */
static void check_items(const struct mx_step_item *items, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < i; k++)
			if (items[i].seq == items[k].seq)
				fail_msg("a sequence comes twice in a step");
}

static void log_step(struct test_engine *t, const struct mx_step_item *items, uint32_t n)
{
	if (t->n_log == LOG_STEPS)
		return;
	struct logged_step *l = &t->log[t->n_log++];
	l->n = n;
	l->tokens = 0;
	for (uint32_t i = 0; i < n; i++) {
		l->tokens += items[i].n;
		if (i < LOG_ITEMS) {
			uint32_t n_tokens, computed;
			const struct mx_seq_tokens *tokens =
				t->inner->ops->tokens(items[i].seq, &n_tokens, &computed);
			l->seq[i] = items[i].seq;
			l->item_n[i] = items[i].n;
			l->first_token[i] = (uint64_t)mx_seq_token(tokens, 0);
		}
	}
}

static mx_status t_begin(struct mx_engine *e, const struct mx_step_item *items, uint32_t n)
{
	struct test_engine *t = of(e);
	check_items(items, n);
	assert_int_equal(t->n_flight, 0);
	pthread_mutex_lock(&t->lock);
	uint64_t number = ++t->begun;
	if (t->check_every && number % t->check_every == 0)
		test_engine_check(t);
	log_step(t, items, n);
	pthread_mutex_unlock(&t->lock);
	mx_status st = number == t->fail_begin_at ? MX_E_DEVICE : CALL(e, begin)(INNER(e), items, n);
	for (uint32_t i = 0; i < n && st == MX_OK; i++)
		t->flight[t->n_flight++] = items[i].seq;
	return st;
}

static mx_status t_finish(struct mx_engine *e, struct mx_step_result *results,
                          struct mx_step_times *out_times)
{
	struct test_engine *t = of(e);
	pthread_mutex_lock(&t->lock);
	uint64_t number = ++t->entered;
	pthread_cond_broadcast(&t->changed);
	while (t->gated && !t->permits)
		pthread_cond_wait(&t->changed, &t->lock);
	if (t->gated)
		t->permits--;
	bool fail = number == t->fail_at, fail_item = number == t->fail_item_at;
	pthread_mutex_unlock(&t->lock);
	t->n_flight = 0;
	mx_status st = fail ? MX_E_DEVICE : CALL(e, finish)(INNER(e), results, out_times);
	if (fail_item)
		results[0].status = MX_E_INTERNAL;
	pthread_mutex_lock(&t->lock);
	t->left++;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return st;
}

static void t_save_snapshots(struct mx_engine *e)
{
	assert_int_equal(of(e)->n_flight, 0);
	CALL(e, save_snapshots)(INNER(e));
}

static void t_drop_cache(struct mx_engine *e)
{
	CALL(e, drop_cache)(INNER(e));
}

struct test_engine *test_engine_create(const struct mx_fake_config *config)
{
	static struct mx_engine_ops ops;
	struct test_engine *t = calloc(1, sizeof *t);
	assert_non_null(t);
	assert_int_equal(mx_fake_engine_create(config, &t->inner), MX_OK);
	ops = (struct mx_engine_ops){
		.info = t_info,
		.usage = t_usage,
		.open = t_open,
		.attach = t_attach,
		.reserve = t_reserve,
		.chunk = t_chunk,
		.propose = t_propose,
		.release = t_release,
		.close = t_close,
		.begin = t_begin,
		.finish = t_finish,
		.save_snapshots = t_save_snapshots,
		.tokens = t->inner->ops->tokens,
		.drop_cache = t_drop_cache,
	};
	t->base.ops = &ops;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->changed, NULL);
	return t;
}

void test_engine_destroy(struct test_engine *t)
{
	t->inner->ops->destroy(t->inner);
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->changed);
	free(t);
}

void test_engine_gate(struct test_engine *t)
{
	pthread_mutex_lock(&t->lock);
	t->gated = true;
	pthread_mutex_unlock(&t->lock);
}

void test_engine_wait_entered(struct test_engine *t)
{
	pthread_mutex_lock(&t->lock);
	while (t->entered == t->left)
		pthread_cond_wait(&t->changed, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

void test_engine_pass(struct test_engine *t, uint32_t n)
{
	pthread_mutex_lock(&t->lock);
	uint64_t until = t->left + n;
	t->permits = n;
	pthread_cond_broadcast(&t->changed);
	while (t->left < until || t->entered == t->left)
		pthread_cond_wait(&t->changed, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

void test_engine_open(struct test_engine *t)
{
	pthread_mutex_lock(&t->lock);
	t->gated = false;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

/* ---- the client ---- */

static _Atomic uint64_t order;

void client_init(struct client *c)
{
	*c = (struct client){.prompt_in_order = true, .prompt_next = 1};
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
}

void client_free(struct client *c)
{
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->changed);
}

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	struct client *c = arg;
	pthread_mutex_lock(&c->lock);
	c->n_after_done += c->n_done;
	if (!c->n)
		c->token_order = atomic_fetch_add(&order, 1) + 1;
	if (c->n < CLIENT_TOKENS)
		c->tokens[c->n] = token;
	c->n++;
	c->n_stop += is_stop;
	if (logprob && logprob->token == token)
		c->n_logprobs++;
	bool more = !c->stop_after || c->n < c->stop_after;
	bool cancel = c->cancel_after && c->n == c->cancel_after;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	if (cancel)
		mx_sched_cancel(c->cancel_from, c->id, MX_CANCEL_API);
	return more;
}

static void on_prompt(void *arg, uint32_t first, uint32_t n, const struct mx_logprob *logprobs)
{
	struct client *c = arg;
	pthread_mutex_lock(&c->lock);
	c->prompt_in_order &= first == c->prompt_next && logprobs != NULL;
	c->prompt_next = first + n;
	c->n_prompt_logprobs += n;
	pthread_mutex_unlock(&c->lock);
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct client *c = arg;
	pthread_mutex_lock(&c->lock);
	c->n_done++;
	c->done = *done;
	c->done_order = atomic_fetch_add(&order, 1) + 1;
	if (c->engine)
		c->engine->ops->usage(c->engine, &c->usage_at_done);
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

static void on_vector(void *arg, const float *vector, uint32_t n)
{
	struct client *c = arg;
	pthread_mutex_lock(&c->lock);
	c->n_after_done += c->n_done;
	c->n_vectors++;
	memcpy(c->vector, vector, (n < MX_FAKE_WIDTH ? n : MX_FAKE_WIDTH) * sizeof *vector);
	pthread_mutex_unlock(&c->lock);
}

struct mx_sink client_sink(struct client *c)
{
	return (struct mx_sink){
		.arg = c, .token = on_token, .prompt = on_prompt, .vector = on_vector, .done = on_done};
}

void client_wait_done(struct client *c)
{
	pthread_mutex_lock(&c->lock);
	while (!c->n_done)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

void client_wait_tokens(struct client *c, uint32_t n)
{
	pthread_mutex_lock(&c->lock);
	while (c->n < n && !c->n_done)
		pthread_cond_wait(&c->changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

/* ---- requests ---- */

struct mx_request test_request(const int32_t *prompt, uint32_t n, uint32_t max_tokens,
                               struct client *c)
{
	return (struct mx_request){
		.prompt = prompt,
		.n_prompt = n,
		.max_tokens = max_tokens,
		.params = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	               .logprobs = -1,
	               .prompt_logprobs = -1},
		.sink = client_sink(c),
	};
}

uint32_t reference_run(const struct mx_fake_config *config, const struct mx_request *r,
                       int32_t *out)
{
	struct mx_fake_config big = *config;
	struct mx_engine *e;
	struct mx_seq *seq;
	uint32_t computed, n = 0, max_len = r->n_prompt + r->max_tokens;
	big.max_sequences = 1;
	big.step_tokens = big.max_context = max_len;
	big.n_pages = max_len / big.page_tokens + 1;
	big.ns_per_step = big.ns_per_token = 0;
	big.prefix_cache = false;
	assert_int_equal(mx_fake_engine_create(&big, &e), MX_OK);
	struct mx_seq_params params = r->params;
	params.max_len = max_len;
	assert_int_equal(e->ops->open(e, r->prompt, r->n_prompt, &params, &seq), MX_OK);
	assert_int_equal(e->ops->attach(e, seq, &computed), MX_OK);
	assert_int_equal(e->ops->reserve(e, seq, max_len), MX_OK);
	for (bool stop = false; !stop && n < r->max_tokens; n++) {
		struct mx_step_item item = {.seq = seq, .n = n ? 1 : r->n_prompt, .sample = true};
		struct mx_step_result result;
		struct mx_step_times times;
		assert_int_equal(e->ops->step(e, &item, 1, &result, &times), MX_OK);
		if (result.ended)
			break;
		assert_true(result.sampled);
		out[n] = result.token;
		for (size_t i = 0; i < r->n_stop_tokens; i++)
			stop |= r->stop_tokens[i] == result.token;
	}
	e->ops->close(e, seq);
	e->ops->destroy(e);
	return n;
}

/* ---- randomness ---- */

uint64_t test_seed(void)
{
	const char *s = getenv("MIXD_TEST_SEED");
	uint64_t seed = s ? strtoull(s, NULL, 0) : mx_wall_ns();
	print_message("seed %llu (MIXD_TEST_SEED repeats it)\n", (unsigned long long)seed);
	return seed;
}

/* splitmix64 */
uint64_t test_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}
