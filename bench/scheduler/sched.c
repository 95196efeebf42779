/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the cost of scheduling: steps of an engine that computes nothing.
 *
 *   sched [SECONDS]     per line, default 1
 *
 * A thread keeps the queue full while the engine thread serves it. Prints the host
 * time of a step (planning, and delivery into a sink that does nothing), the part
 * of it that the device waits for, the time of the fake engine itself, and tokens
 * and requests a second. "ahead": on an asynchronous device. "principals": who send
 * the requests in turn.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/fake_engine.h"
#include "scheduler/scheduler.h"

#define MAX_PROMPT 512u

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	(void)arg;
	(void)token;
	(void)is_stop;
	(void)logprob;
	return true;
}

static void on_done(void *arg, const struct mx_done *done)
{
	(void)arg;
	(void)done;
}

static void die(const char *what)
{
	fprintf(stderr, "sched: %s\n", what);
	exit(1);
}

struct load {
	const char *name;
	uint32_t sequences, prompt, output;
	uint32_t principals; /* that send them in turn */
};

struct feeder {
	const struct load *load;
	struct mx_sched *sched;
	atomic_bool stop;
};

/* Keeps the queue full with requests that share nothing. */
static void *feed(void *arg)
{
	struct feeder *f = arg;
	int32_t prompt[MAX_PROMPT] = {0};
	struct mx_request r = {
		.prompt = prompt,
		.n_prompt = f->load->prompt,
		.max_tokens = f->load->output,
		.params = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	               .logprobs = -1,
	               .prompt_logprobs = -1},
		.sink = {.token = on_token, .done = on_done},
	};
	for (int32_t i = 0; !atomic_load(&f->stop); i = (i + 1) % 32000) {
		uint64_t id;
		prompt[0] = i;
		r.principal = (uint32_t)i % f->load->principals;
		mx_status st;
		while ((st = mx_sched_submit(f->sched, &r, &id, NULL)) == MX_E_BUSY &&
		       !atomic_load(&f->stop))
			usleep(500);
		if (st != MX_OK && st != MX_E_BUSY)
			die("a request was refused");
	}
	return NULL;
}

static void measure(const struct load *l, bool ahead, double seconds)
{
	uint32_t context = l->prompt + l->output;
	struct mx_fake_config fc = {
		.name = "fake",
		.vocab = 32000,
		.max_context = context,
		.max_sequences = l->sequences,
		.step_tokens = 512 + l->sequences,
		.page_tokens = 16,
		.n_pages = l->sequences * (context / 16 + 2),
		.prefix_cache = true,
		.overlaps = ahead,
		.eos = -1,
	};
	struct mx_sched_config sc = {
		.max_sequences = l->sequences, .step_tokens = fc.step_tokens, .queue = 1024};
	struct mx_engine *e;
	struct feeder f = {.load = l};
	if (mx_fake_engine_create(&fc, &e) != MX_OK || mx_sched_create(e, &sc, &f.sched) != MX_OK)
		die("out of memory");
	pthread_t thread;
	if (pthread_create(&thread, NULL, feed, &f))
		die("no thread");
	struct mx_sched_stats a, b;
	usleep(100000); /* until all sequences run */
	mx_sched_stats(f.sched, &a);
	uint64_t begin = mx_now_ns();
	usleep((useconds_t)(seconds * 1e6));
	mx_sched_stats(f.sched, &b);
	double took = (double)(mx_now_ns() - begin) / MX_NS_PER_S;
	atomic_store(&f.stop, true);
	pthread_join(thread, NULL);
	double steps = (double)(b.steps - a.steps);
	double host = (b.step_host.sum - a.step_host.sum) / steps;
	double idle = (b.step_idle.sum - a.step_idle.sum) / steps;
	double engine = (b.step_forward.sum - a.step_forward.sum) / steps;
	printf("%-16s %9u %10u %6s %12.2f %12.2f %12.2f %12.0f %12.0f\n", l->name, l->sequences,
	       l->principals, ahead ? "yes" : "no", host * 1e6, idle * 1e6, engine * 1e6,
	       (double)(b.output_tokens - a.output_tokens) / took,
	       (double)(b.finished[MX_FINISH_LENGTH] - a.finished[MX_FINISH_LENGTH]) / took);
	mx_sched_destroy(f.sched);
	e->ops->destroy(e);
}

int main(int argc, char **argv)
{
	static const struct load loads[] = {
		{"decode", 1, 16, 4000, 1},      {"decode", 64, 16, 4000, 1},
		{"decode", 256, 16, 4000, 1},    {"decode", 256, 16, 4000, 64},
		{"chat", 64, 512, 128, 1},       {"chat", 64, 512, 128, 64},
		{"short requests", 64, 8, 8, 1}, {"short requests", 64, 8, 8, 64},
	};
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	if (!(seconds > 0 && seconds <= 600))
		die("usage: sched [SECONDS]");
	printf("%-16s %9s %10s %6s %12s %12s %12s %12s %12s\n", "load", "sequences", "principals",
	       "ahead", "host us/step", "idle us/step", "fake us/step", "tokens/s", "requests/s");
	for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
		for (int ahead = 0; ahead < 2; ahead++)
			measure(&loads[i], ahead, seconds);
	return 0;
}
