/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the scheduler's behaviours: a scheduler on the fake engine, with sixteen clients. */
#ifndef MX_TESTS_SCHED_FIXTURE_H
#define MX_TESTS_SCHED_FIXTURE_H

#include "tests/scheduler/sched_util.h"

enum { VOCAB = 1000 };

/* 8 sequences, 128 tokens a step, 1024 pages of 16 tokens, and a prefix cache. */
extern const struct mx_fake_config roomy;

/* True: `start` makes an asynchronous engine, whose steps overlap with the host's work. */
extern bool steps_overlap;

struct fixture {
	struct mx_fake_config config;
	struct test_engine *engine;
	struct mx_sched *sched;
	struct client c[16];
};

/* A queue of 64 and no limit on the stretch of a step: chunks are as large as the budget, so steps
 * can be counted. */
void start(struct fixture *f, const struct mx_fake_config *config);
void start_with(struct fixture *f, const struct mx_fake_config *config, uint32_t queue,
                double stretch);
/* Ends the scheduler. Fails the test if a page is held by a request or a client was told of more
 * than one end. */
void finish(struct fixture *f);

/* n tokens that begin with `salt`, which tells requests apart in the log of steps. */
void fill_prompt(int32_t *prompt, uint32_t n, int32_t salt);
/* Submits client i's request, with a prompt of n tokens and salt i. */
void submit(struct fixture *f, int i, uint32_t n, uint32_t max_tokens);
void submit_priority(struct fixture *f, int i, uint32_t n, uint32_t max_tokens, int32_t priority);
/* Fails the test unless client i got the tokens that its request, submitted like that, yields
 * alone. */
void assert_reference(struct fixture *f, int i, uint32_t n, uint32_t max_tokens);
struct mx_sched_stats stats(const struct fixture *f);

#endif
