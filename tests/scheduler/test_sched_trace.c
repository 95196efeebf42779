/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A day's traffic in seconds: 100,000 requests from several threads, with
 * shared prefixes, priorities, stop tokens, scoring and cancellations, on a pool
 * so small that requests are preempted all the time: for a model with its state
 * in pages, in a slot (where pages are never short), and in both, for devices
 * that are asynchronous, and with many look-ahead pages, in front of
 * their tokens; and once more from two principals that flood the scheduler, beside
 * others that send one request after another. What is checked:
 *
 *  - every accepted request ends exactly once, and in the way it should;
 *  - its tokens are those of its undisturbed run;
 *  - pages and snapshots never leak, and the books agree with the open sequences;
 *  - within a priority the first admission is in order of arrival, no request is
 *    overtaken by more than a bounded number of later ones of its principal, whatever
 *    their priorities are, and how long anyone waits and runs, in steps, has a bound;
 *  - who does not flood has a first token within a step's work and its share.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/scheduler/sched_util.h"

#define N_REQUESTS    100000
#define N_SUBMITTERS  3
#define N_TEMPLATES   3000
#define N_FAMILIES    24
#define MAX_PREFIX    48
#define MAX_SUFFIX    16
#define MAX_PROMPT    (MAX_PREFIX + MAX_SUFFIX)
#define MAX_OUT       80
#define QUEUE         256
#define EOS           7
#define MAX_SEQUENCES 16

/* Principals 1 .. N_FLOODS send the requests of the trace, if there are tenants; those from
 * N_FLOODS
 * + 1 send one at a time. Else all come from 0. */
#define N_FLOODS     2
#define N_PRINCIPALS 5
#define MAX_LIGHT    20000 /* requests of those who send one at a time */
static const uint32_t weights[N_PRINCIPALS] = {1, 1, 2, 1, 2};

/* Snapshots for a turn or two of each sequence; a prompt takes up to five. */
#define N_SNAPSHOTS 64

static const struct mx_fake_config in_pages = {
	.name = "fake",
	.vocab = 512,
	.max_context = 320,
	.max_sequences = MAX_SEQUENCES,
	.step_tokens = 64,
	.page_tokens = 4,
	.n_pages = 80, /* 16 sequences of mean length need twice that */
	.prefix_cache = true,
	.eos = EOS,
	.eos_one_in = 60,
	.n_snapshots = N_SNAPSHOTS,
	.snapshot_every = 16,
};
static struct mx_fake_config config;

/* A prompt and its output when it runs undisturbed. */
struct template
{
	int32_t prompt[MAX_PROMPT], out[MAX_OUT];
	uint32_t n_prompt;
};

enum { SEEN_NOTHING, SEEN_WRONG_TOKEN, SEEN_AFTER_DONE, SEEN_WRONG_FLAG };

/* What clients may send: the usual, and the ends of the range. */
static const int32_t priorities[] = {-1000000, -1, 0, 1, 1000000};
#define N_LEVELS (sizeof priorities / sizeof *priorities)

struct record {
	/* by the submitter before submit */
	const struct template *t;
	uint32_t max_tokens;
	uint32_t stop_after; /* the sink ends it at this many tokens; 0 = never */
	bool ignore_eos, private;
	uint32_t level; /* index into priorities */
	uint32_t principal;
	uint64_t steps_at_submit;
	/* by submit */
	uint64_t id;
	/* for those who cancel: the id once submit has returned */
	_Atomic uint64_t shown_id;
	_Atomic uint8_t n_cancels;
	/* by the engine thread */
	uint32_t n, n_done, n_prompt_logprobs;
	int fault;
	uint64_t steps_at_first, steps_at_done;
	struct mx_done done;
};

struct trace {
	struct test_engine *engine;
	struct mx_sched *sched;
	struct template *templates;
	bool tenants;
	struct record *records; /* [n_records] the first N_REQUESTS are the submitters' */
	uint32_t n_records;
	struct record *light[N_PRINCIPALS]; /* the one that each sent last; NULL = none */
	uint64_t seed;
	_Atomic uint32_t next;  /* the next record to submit */
	_Atomic uint64_t steps; /* a copy of the engine's for the submitters */
	_Atomic uint32_t n_accepted, n_busy;
	atomic_bool over;
};

static struct trace trace;

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	struct record *r = arg;
	if (r->n_done)
		r->fault = SEEN_AFTER_DONE;
	if (r->n >= r->max_tokens || token != r->t->out[r->n])
		r->fault = SEEN_WRONG_TOKEN;
	if (is_stop != (token == EOS && !r->ignore_eos) || logprob)
		r->fault = SEEN_WRONG_FLAG;
	if (!r->n)
		r->steps_at_first = atomic_load_explicit(&trace.steps, memory_order_relaxed);
	r->n++;
	return !r->stop_after || r->n < r->stop_after;
}

static void on_prompt(void *arg, uint32_t first, uint32_t n, const struct mx_logprob *logprobs)
{
	struct record *r = arg;
	if (first != r->n_prompt_logprobs + 1 || !logprobs)
		r->fault = SEEN_WRONG_FLAG;
	r->n_prompt_logprobs += n;
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct record *r = arg;
	r->n_done++;
	r->done = *done;
	r->steps_at_done = atomic_load_explicit(&trace.steps, memory_order_relaxed);
}

static mx_status (*inner_begin)(struct mx_engine *e, const struct mx_step_item *items, uint32_t n);

static void submit_light(void);

static mx_status counting_begin(struct mx_engine *e, const struct mx_step_item *items, uint32_t n)
{
	atomic_fetch_add_explicit(&trace.steps, 1, memory_order_relaxed);
	if (trace.tenants)
		submit_light();
	return inner_begin(e, items, n);
}

/* ---- the traffic ---- */

static void make_templates(struct template *t, uint64_t *rng)
{
	static int32_t prefix[N_FAMILIES][MAX_PREFIX];
	for (int i = 0; i < N_FAMILIES; i++)
		for (int k = 0; k < MAX_PREFIX; k++)
			prefix[i][k] = (int32_t)(test_random(rng) % config.vocab);
	for (int i = 0; i < N_TEMPLATES; i++) {
		uint64_t x = test_random(rng);
		uint32_t shared = x % 3 == 0 ? 0 : (uint32_t)(x >> 8) % (MAX_PREFIX + 1);
		uint32_t own = 1 + (uint32_t)(x >> 20) % MAX_SUFFIX;
		memcpy(t[i].prompt, prefix[(x >> 32) % N_FAMILIES], shared * sizeof(int32_t));
		for (uint32_t k = 0; k < own; k++)
			t[i].prompt[shared + k] = (int32_t)(test_random(rng) % config.vocab);
		t[i].n_prompt = shared + own;
		struct mx_request r = test_request(t[i].prompt, t[i].n_prompt, MAX_OUT, NULL);
		assert_int_equal(reference_run(&config, &r, t[i].out), MAX_OUT);
	}
}

static void make_records(struct record *r, const struct template *t, uint64_t *rng)
{
	for (int i = 0; i < N_REQUESTS + MAX_LIGHT; i++) {
		uint64_t x = test_random(rng);
		r[i].t = &t[x % N_TEMPLATES];
		/* mostly short, some long, some only scored */
		uint32_t kind = (uint32_t)(x >> 16) % 16, most = kind < 8 ? 12 : kind < 12 ? 40 : MAX_OUT;
		r[i].max_tokens = kind == 0 ? 0 : (uint32_t)(x >> 24) % most + 1;
		r[i].stop_after = (x >> 32) % 20 == 0 ? 1 + (uint32_t)(x >> 40) % 8 : 0;
		r[i].ignore_eos = (x >> 48) % 4 == 0;
		r[i].private = (x >> 56) % 8 == 0;
		uint32_t level = (uint32_t)(x >> 52) % 16;
		r[i].level = level < N_LEVELS ? level : 2;
	}
}

static mx_status submit(struct record *r)
{
	static const int32_t eos = EOS;
	struct mx_request q = test_request(r->t->prompt, r->t->n_prompt, r->max_tokens, NULL);
	q.priority = priorities[r->level];
	q.principal = r->principal;
	q.weight = weights[r->principal];
	q.params.no_prefix_cache = r->private;
	q.sink = (struct mx_sink){.arg = r, .token = on_token, .prompt = on_prompt, .done = on_done};
	if (!r->max_tokens)
		q.params.prompt_logprobs = 0;
	if (!r->ignore_eos) {
		q.stop_tokens = &eos;
		q.n_stop_tokens = 1;
	}
	r->steps_at_submit = atomic_load_explicit(&trace.steps, memory_order_relaxed);
	return mx_sched_submit(trace.sched, &q, &r->id, NULL);
}

/* Sends the next request of every principal whose last one has ended. It is called on the engine
 * thread, at the beginning of a step: so the steps that a request waits are counted exactly. Only
 * while the submitters are at work. */
static void submit_light(void)
{
	for (uint32_t p = N_FLOODS + 1; p < N_PRINCIPALS; p++) {
		const struct record *last = trace.light[p];
		if ((last && !last->n_done) || trace.n_records == N_REQUESTS + MAX_LIGHT ||
		    atomic_load(&trace.next) >= N_REQUESTS)
			continue;
		struct record *r = &trace.records[trace.n_records];
		r->principal = p;
		if (submit(r) != MX_OK) /* it would show: every other one is accepted */
			continue;
		trace.n_records++;
		trace.light[p] = r;
		atomic_fetch_add(&trace.n_accepted, 1);
	}
}

static void cancel(struct record *r, enum mx_cancel why)
{
	uint64_t id = atomic_load(&r->shown_id);
	if (!id)
		return;
	atomic_fetch_add(&r->n_cancels, 1);
	mx_sched_cancel(trace.sched, id, why);
}

/* Submits records until none are left; now and then pauses, so that the queue empties too, and
 * cancels what it has just submitted. */
static void *submitter(void *arg)
{
	uint64_t rng = trace.seed + 17 * (uint64_t)(uintptr_t)arg;
	uint32_t i;
	while ((i = atomic_fetch_add(&trace.next, 1)) < N_REQUESTS) {
		struct record *r = &trace.records[i];
		r->principal = trace.tenants ? 1 + (uint32_t)(uintptr_t)arg % N_FLOODS : 0;
		mx_status st;
		while ((st = submit(r)) == MX_E_BUSY) {
			atomic_fetch_add(&trace.n_busy, 1);
			usleep(500);
		}
		if (st != MX_OK)
			return NULL; /* shows as a record without an end */
		atomic_store(&r->shown_id, r->id);
		atomic_fetch_add(&trace.n_accepted, 1);
		uint64_t x = test_random(&rng);
		if (x % 64 == 0)
			cancel(r, MX_CANCEL_CLIENT);
		if (x >> 32 < 1u << 21) /* one in 2048 */
			usleep((useconds_t)(x % 4096));
	}
	return NULL;
}

/* Cancels requests of others that may wait, run, be over or not be there yet. */
static void *canceller(void *arg)
{
	(void)arg;
	uint64_t rng = trace.seed ^ 0xc0ffee;
	while (!atomic_load(&trace.over)) {
		uint64_t x = test_random(&rng);
		uint32_t next = atomic_load(&trace.next), back = (uint32_t)(x % (2 * QUEUE)) + 1;
		if (next > back && next - back < N_REQUESTS)
			cancel(&trace.records[next - back], MX_CANCEL_API);
		struct mx_sched_stats v;
		mx_sched_stats(trace.sched, &v);
		uint32_t most = (QUEUE + config.max_sequences) * (trace.tenants ? 2 : 1);
		if (v.waiting > most || v.running > config.max_sequences)
			abort();
		usleep(1000);
	}
	return NULL;
}

/* ---- what must hold afterwards ---- */

static void check_record(const struct record *r)
{
	assert_int_equal(r->n_done, 1);
	assert_int_equal(r->fault, SEEN_NOTHING);
	assert_int_equal(r->done.output_tokens, r->n);
	assert_int_equal(r->done.prompt_tokens, r->t->n_prompt);
	assert_true(r->done.cached_tokens < r->t->n_prompt);
	assert_true(!r->private || !r->done.cached_tokens);
	if (r->done.finish == MX_FINISH_ABORT) {
		assert_true(r->n_cancels > 0);
		assert_int_equal(r->done.status, MX_E_CANCELLED);
		return;
	}
	assert_int_equal(r->done.status, MX_OK);
	/* The number of tokens until its end, and which end that is. */
	uint32_t want = 0;
	enum mx_finish finish = MX_FINISH_LENGTH;
	int32_t stop = -1;
	while (want < r->max_tokens && finish == MX_FINISH_LENGTH) {
		int32_t token = r->t->out[want++];
		if (token == EOS && !r->ignore_eos) {
			finish = MX_FINISH_STOP;
			stop = EOS;
		} else if (want == r->stop_after) {
			finish = MX_FINISH_STOP;
		}
	}
	assert_int_equal(r->n, want);
	assert_int_equal(r->done.finish, finish);
	assert_int_equal(r->done.stop_token, stop);
	assert_int_equal(r->n_prompt_logprobs, r->max_tokens ? 0 : r->t->n_prompt - 1);
}

static int by_id(const void *a, const void *b)
{
	uint64_t x = (*(struct record *const *)a)->id, y = (*(struct record *const *)b)->id;
	return (x > y) - (x < y);
}

/* As scheduler/README.md says: 4 * (queue + max_sequences). */
#define MAX_OVERTAKERS (4 * (QUEUE + MAX_SEQUENCES))

/* Within a priority, requests of a principal are scheduled in the order of arrival. */
static void check_order(struct record *records, uint32_t principal)
{
	static struct record *order[N_REQUESTS + MAX_LIGHT];
	int n = 0;
	for (uint32_t i = 0; i < trace.n_records; i++)
		if (records[i].principal == principal)
			order[n++] = &records[i];
	qsort(order, (size_t)n, sizeof *order, by_id);
	uint64_t last[N_LEVELS] = {0};
	for (int i = 0; i < n; i++) {
		const struct record *r = order[i];
		assert_true(!i || order[i - 1]->id < r->id);
		if (!r->done.first_scheduled_ns) /* cancelled before */
			continue;
		assert_true(r->done.first_scheduled_ns >= last[r->level]);
		last[r->level] = r->done.first_scheduled_ns;
	}
	/* No request is scheduled before one that arrived MAX_OVERTAKERS earlier. */
	uint64_t earliest = UINT64_MAX; /* of the requests from i + MAX_OVERTAKERS on */
	for (int i = n - 1 - MAX_OVERTAKERS; i >= 0; i--) {
		uint64_t far = order[i + MAX_OVERTAKERS]->done.first_scheduled_ns;
		earliest = far && far < earliest ? far : earliest;
		assert_true(order[i]->done.first_scheduled_ns <= earliest);
	}
}

/* With one principal, the request that is first in the order of service gets at least a token
 * computed in every other step, so it takes at most 2 * (prompt + output) steps once it is first; a
 * request has at most the queue, what runs, and those that may overtake it in front. With more
 * principals it is in front of as many of theirs, in proportion to the weights. */
static void check_waits(const struct record *records)
{
	uint64_t per_request = 2 * (MAX_PROMPT + MAX_OUT);
	uint64_t longest[N_LEVELS] = {0};
	uint64_t bound = (QUEUE + config.max_sequences + MAX_OVERTAKERS) * per_request;
	bound *= trace.tenants ? 6 : 1;
	for (uint32_t i = 0; i < trace.n_records; i++) {
		const struct record *r = &records[i];
		uint64_t steps = r->steps_at_done - r->steps_at_submit;
		if (steps > longest[r->level])
			longest[r->level] = steps;
	}
	for (uint32_t level = 0; level < N_LEVELS; level++) {
		print_message("priority %d: at most %llu steps from submission to the end\n",
		              priorities[level], (unsigned long long)longest[level]);
		assert_true(longest[level] <= bound);
	}
}

/* A principal that sends one request at a time is ahead of the others by at most its last request
 * when it sends the next one. While they use as many tokens for their weights, and as many as its
 * prompt has, it may have to wait. They use at least one for every sequence in a step, and half of
 * the sequences run at least. Beside that there are a step's work, for each of them, and two steps
 * until it is planned for. */
static void check_light_waits(void)
{
	for (uint32_t p = N_FLOODS + 1; p < N_PRINCIPALS; p++) {
		uint64_t longest = 0, sum = 0, n = 0, others = 0;
		for (uint32_t i = 1; i < N_PRINCIPALS; i++)
			others += i == p ? 0 : weights[i];
		uint64_t tokens = (MAX_PROMPT + MAX_OUT + MAX_PROMPT) * others / weights[p];
		uint64_t bound = tokens / (MAX_SEQUENCES / 2) + N_PRINCIPALS - 2 + 2;
		for (uint32_t i = N_REQUESTS; i < trace.n_records; i++) {
			const struct record *r = &trace.records[i];
			if (r->principal != p || !r->n)
				continue;
			uint64_t steps = r->steps_at_first - r->steps_at_submit;
			longest = steps > longest ? steps : longest;
			sum += steps;
			n++;
		}
		print_message("principal %u: %llu requests, first token after %.1f steps, at most %llu, "
		              "bound %llu\n",
		              p, (unsigned long long)n, (double)sum / (double)n,
		              (unsigned long long)longest, (unsigned long long)bound);
		assert_true(n > 100 && longest <= bound);
	}
}

/* A request counts once as looked up: when it is first scheduled, however often it was tried or
 * preempted. */
static void check_lookups(const struct record *records, const struct mx_engine_usage *u)
{
	uint64_t queries = 0, hits = 0, lookups = 0, counted = 0;
	for (uint32_t i = 0; i < trace.n_records; i++) {
		const struct record *r = &records[i];
		if (!r->done.first_scheduled_ns || r->private || !r->max_tokens || r->t->n_prompt < 2)
			continue; /* nothing was looked up */
		queries += r->t->n_prompt;
		hits += r->done.cached_tokens;
		lookups++;
	}
	for (int i = 0; i < MX_LOOKUP_N; i++)
		counted += u->prefix_lookups[i];
	assert_int_equal(u->prefix_queries, queries);
	assert_int_equal(u->prefix_hits, hits);
	assert_int_equal(counted, lookups);
}

static void start_trace(bool tenants)
{
	static struct mx_engine_ops counting;
	memset(&trace, 0, sizeof trace);
	trace.tenants = tenants;
	trace.n_records = N_REQUESTS;
	trace.seed = test_seed();
	uint64_t rng = trace.seed;
	trace.templates = calloc(N_TEMPLATES, sizeof *trace.templates);
	trace.records = calloc(N_REQUESTS + MAX_LIGHT, sizeof *trace.records);
	assert_true(trace.templates && trace.records);
	make_templates(trace.templates, &rng);
	make_records(trace.records, trace.templates, &rng);
	trace.engine = test_engine_create(&config);
	trace.engine->check_every = 997;
	counting = *trace.engine->base.ops;
	inner_begin = counting.begin;
	counting.begin = counting_begin;
	trace.engine->base.ops = &counting;
	struct mx_sched_config sc = {.max_sequences = config.max_sequences,
	                             .step_tokens = config.step_tokens,
	                             .queue = QUEUE,
	                             .max_step_stretch =
	                                 tenants ? 1e6 : 0}; /* so that waits can be counted in steps */
	assert_int_equal(mx_sched_create(&trace.engine->base, &sc, &trace.sched), MX_OK);
}

static void run_trace_of(bool tenants)
{
	start_trace(tenants);
	uint64_t begin = mx_now_ns();
	pthread_t threads[N_SUBMITTERS + 1];
	for (uintptr_t i = 0; i < N_SUBMITTERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, submitter, (void *)i), 0);
	assert_int_equal(pthread_create(&threads[N_SUBMITTERS], NULL, canceller, NULL), 0);
	for (int i = 0; i < N_SUBMITTERS; i++)
		pthread_join(threads[i], NULL);
	mx_sched_drain(trace.sched);
	while (!mx_sched_idle(trace.sched))
		usleep(1000);
	atomic_store(&trace.over, true);
	pthread_join(threads[N_SUBMITTERS], NULL);
	double took = (double)(mx_now_ns() - begin) / MX_NS_PER_S;

	struct mx_sched_stats v;
	struct mx_engine_usage u;
	mx_sched_stats(trace.sched, &v);
	trace.engine->inner->ops->usage(trace.engine->inner, &u);
	assert_int_equal(u.pages_used, 0);
	assert_int_equal(u.pages_free + u.pages_cached, config.n_pages);
	assert_int_equal(u.slots_used, 0);
	mx_sched_destroy(trace.sched);
	assert_int_equal(trace.engine->n_open, 0);
	test_engine_check(trace.engine);
	test_engine_destroy(trace.engine);

	assert_int_equal(trace.n_accepted, trace.n_records);
	uint64_t output = 0, aborted = 0, preempted = 0;
	for (uint32_t i = 0; i < trace.n_records; i++) {
		const struct record *r = &trace.records[i];
		check_record(r);
		output += r->n;
		aborted += r->done.finish == MX_FINISH_ABORT;
		preempted += r->done.preemptions;
	}
	for (uint32_t p = tenants; p < (tenants ? N_PRINCIPALS : 1); p++)
		check_order(trace.records, p);
	if (tenants)
		check_light_waits();
	check_waits(trace.records);
	check_lookups(trace.records, &u);
	assert_int_equal(v.output_tokens, output);
	assert_int_equal(v.finished[MX_FINISH_ABORT], aborted);
	assert_int_equal(v.finished[MX_FINISH_ERROR], 0);
	assert_int_equal(v.preemptions, preempted);
	print_message("%.1f s, %llu steps, %llu tokens out, %llu computed, %llu preemptions, %llu "
	              "cancelled, %llu of %llu prompt tokens cached, queue full %u times\n",
	              took, (unsigned long long)v.steps, (unsigned long long)output,
	              (unsigned long long)v.step_tokens.sum, (unsigned long long)preempted,
	              (unsigned long long)aborted, (unsigned long long)v.cached_prompt_tokens,
	              (unsigned long long)v.prompt_tokens, (unsigned)trace.n_busy);
	/* Else the trace did not test what it is for. */
	assert_true(aborted > 1000 && v.cached_prompt_tokens > 0);
	assert_true(preempted > 1000 || config.state == MX_FAKE_SLOT);
	assert_true(tenants == (v.share_preemptions > 0));
	assert_true(u.snapshot_evictions > 1000 || config.state == MX_FAKE_PAGES);
	for (int i = 0; i < MX_LOOKUP_UNSUPPORTED; i++) {
		bool possible = i < MX_LOOKUP_NO_SNAPSHOT || config.state != MX_FAKE_PAGES;
		assert_true((u.prefix_lookups[i] > 0) == possible);
	}
	assert_true(v.cancelled[MX_CANCEL_CLIENT][0] + v.cancelled[MX_CANCEL_API][0] > 0);
	assert_true(v.cancelled[MX_CANCEL_CLIENT][1] + v.cancelled[MX_CANCEL_API][1] > 0);
	free(trace.records);
	free(trace.templates);
}

static void run_trace(void)
{
	run_trace_of(false);
}

static void state_in_pages(void **state)
{
	(void)state;
	config = in_pages;
	run_trace();
}

static void state_in_a_slot(void **state)
{
	(void)state;
	config = in_pages;
	config.state = MX_FAKE_SLOT;
	config.page_tokens = config.max_context;
	config.n_pages = config.max_sequences;
	run_trace();
}

static void state_in_both(void **state)
{
	(void)state;
	config = in_pages;
	config.state = MX_FAKE_HYBRID;
	run_trace();
}

/* Hits are deferred for some steps. */
static void state_in_both_deferred(void **state)
{
	(void)state;
	config = in_pages;
	config.state = MX_FAKE_HYBRID;
	config.lookahead = true;
	config.resume_steps = 3;
	run_trace();
}

/* With drafts, most of which are right: chains, and trees. */
static void state_in_both_drafted_trees(void **state)
{
	(void)state;
	config = in_pages;
	config.state = MX_FAKE_HYBRID;
	config.echo = 9;
	config.max_draft = 8;
	config.trees = true;
	run_trace();
}

static void state_in_both_drafted(void **state)
{
	(void)state;
	config = in_pages;
	config.state = MX_FAKE_HYBRID;
	config.echo = 9;
	config.max_draft = 4;
	run_trace();
}

static void state_in_both_drafted_ahead(void **state)
{
	(void)state;
	config = in_pages;
	config.state = MX_FAKE_HYBRID;
	config.echo = 9;
	config.max_draft = 4;
	config.overlaps = true;
	run_trace();
}

/* The same two on an asynchronous device. */
static void state_in_pages_ahead(void **state)
{
	(void)state;
	config = in_pages;
	config.overlaps = true;
	run_trace();
}

static void state_in_both_ahead(void **state)
{
	(void)state;
	config = in_pages;
	config.state = MX_FAKE_HYBRID;
	config.overlaps = true;
	run_trace();
}

/* Look-ahead pages. */
static void look_ahead_in_pages(void **state)
{
	(void)state;
	config = in_pages;
	config.lookahead = true;
	run_trace();
}

static void look_ahead_in_both(void **state)
{
	(void)state;
	config = in_pages;
	config.lookahead = true;
	config.state = MX_FAKE_HYBRID;
	run_trace();
}

static void look_ahead_in_both_ahead(void **state)
{
	(void)state;
	config = in_pages;
	config.lookahead = true;
	config.state = MX_FAKE_HYBRID;
	config.overlaps = true;
	run_trace();
}

/* Principals beside each other, on a pool of which every request fits into its principal's share.
 */
static void tenants_in_pages(void **state)
{
	(void)state;
	config = in_pages;
	config.n_pages = 200;
	run_trace_of(true);
}

static void tenants_in_both_ahead(void **state)
{
	(void)state;
	config = in_pages;
	config.n_pages = 200;
	config.state = MX_FAKE_HYBRID;
	config.overlaps = true;
	run_trace_of(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(state_in_pages),
		cmocka_unit_test(state_in_a_slot),
		cmocka_unit_test(state_in_both),
		cmocka_unit_test(state_in_pages_ahead),
		cmocka_unit_test(state_in_both_ahead),
		cmocka_unit_test(state_in_both_drafted),
		cmocka_unit_test(state_in_both_drafted_trees),
		cmocka_unit_test(state_in_both_drafted_ahead),
		cmocka_unit_test(look_ahead_in_pages),
		cmocka_unit_test(state_in_both_deferred),
		cmocka_unit_test(look_ahead_in_both),
		cmocka_unit_test(look_ahead_in_both_ahead),
		cmocka_unit_test(tenants_in_pages),
		cmocka_unit_test(tenants_in_both_ahead),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
