/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the scheduler: an engine that wraps another one, logs its steps,
 * stops them at a gate and fails on demand; a client that records the tokens and
 * the end of its request; and the undisturbed run of a request to compare with.
 */
#ifndef MX_TESTS_SCHED_UTIL_H
#define MX_TESTS_SCHED_UTIL_H

#include <pthread.h>

#include "engine/fake_engine.h"
#include "scheduler/scheduler.h"

#define LOG_STEPS 4096
#define LOG_ITEMS 16
#define MAX_OPEN  4096

struct logged_step {
	uint32_t n, tokens;
	uint32_t item_n[LOG_ITEMS];
	const struct mx_seq *seq[LOG_ITEMS];
	uint64_t first_token[LOG_ITEMS]; /* of the prompt: tells requests apart */
};

struct test_engine {
	struct mx_engine base;
	struct mx_engine *inner;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool gated;
	uint32_t permits; /* steps that may pass the gate */
	uint64_t begun, entered, left;
	uint64_t fail_at;       /* the step with this number (from 1) fails as a whole; 0 = none */
	uint64_t fail_begin_at; /* as fail_at, but already `begin` fails */
	uint64_t fail_item_at;  /* in this step the first item fails; 0 = none */
	uint32_t slots; /* sequences that attach lets in at a time; 0 = as many as the engine's */
	uint32_t n_attached, max_attached;
	uint64_t check_every; /* the pool's invariant is checked before every such step; 0 = never */
	const struct mx_seq *flight[MAX_OPEN]; /* [n_flight] the sequences of the step that runs */
	uint32_t n_flight;
	const struct mx_seq *open[MAX_OPEN];
	uint32_t n_open;
	struct logged_step log[LOG_STEPS];
	uint32_t n_log;
};

/* An engine around the fake one. Destroy with test_engine_destroy. */
struct test_engine *test_engine_create(const struct mx_fake_config *config);
void test_engine_destroy(struct test_engine *t);
/* Fails the test unless open sequences and cache account for every page. No step may run
 * meanwhile. */
void test_engine_check(struct test_engine *t);
/* Steps wait from now on until test_engine_pass lets them through. */
void test_engine_gate(struct test_engine *t);
/* Lets n steps through and waits until they are over and the next one stands at the gate. */
void test_engine_pass(struct test_engine *t, uint32_t n);
/* Waits until a step stands at the gate. */
void test_engine_wait_entered(struct test_engine *t);
/* Opens the gate for good. */
void test_engine_open(struct test_engine *t);

#define CLIENT_TOKENS 4096

struct client {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int32_t tokens[CLIENT_TOKENS];
	uint32_t n, n_stop, n_done, n_logprobs, n_after_done;
	uint32_t prompt_next, n_prompt_logprobs; /* positions seen in order */
	bool prompt_in_order;
	float vector[MX_FAKE_WIDTH]; /* the last that came */
	uint32_t n_vectors;
	uint32_t stop_after;          /* the sink returns false at this many tokens; 0 = never */
	uint32_t cancel_after;        /* the sink cancels its request at that many; 0 = never */
	struct mx_sched *cancel_from; /* for cancel_after */
	uint64_t id;
	uint64_t done_order, token_order; /* numbers from one global counter */
	struct mx_done done;
	/* To read the engine's usage at the time of done(). */
	const struct mx_engine *engine;
	struct mx_engine_usage usage_at_done;
};

void client_init(struct client *c);
void client_free(struct client *c);
struct mx_sink client_sink(struct client *c);
void client_wait_done(struct client *c);
void client_wait_tokens(struct client *c, uint32_t n);

/* A greedy request with usual parameters; the prompt is not copied. */
struct mx_request test_request(const int32_t *prompt, uint32_t n, uint32_t max_tokens,
                               struct client *c);

/* What the request yields alone on a fresh engine of that kind, computed in one chunk; ends at a
 * stop token or max_tokens. Returns the number of tokens. */
uint32_t reference_run(const struct mx_fake_config *config, const struct mx_request *r,
                       int32_t *out);

/* Seed of a random test: MIXD_TEST_SEED or from the clock; printed. */
uint64_t test_seed(void);
uint64_t test_random(uint64_t *state);

#endif
