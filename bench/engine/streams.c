/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/streams measures many clients at once without the front end: scheduler and engine
 * in one process, on a checkpoint.
 *
 *   streams [-n STREAMS] [-p PROMPT] [-o OUTPUT] [-s SECONDS] [-g STAGGER_MS]
 *           [-l LONG_PROMPT] [-e EVERY_MS] [-x STRETCH] [-t THREADS] [-m MODULES] [-d DEVICE]
 *           [-f VOCABULARY] [-r ROUNDS] DIR
 *
 * Each of STREAMS clients sends a prompt, reads the answer and sends the next prompt. The clients
 * begin STAGGER_MS apart. With -l, another client sends a prompt of LONG_PROMPT tokens every
 * EVERY_MS. Prints tokens a second, the time between two tokens of a stream, and the time to the
 * first token.
 *
 * With -f, all requests of every other one of ROUNDS rounds have a form (bench/engine/form.h) over
 * a vocabulary that bench/grammar/make-vocab.py has written; the last line compares both.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/engine/form.h"
#include "scheduler/scheduler.h"
#include "tools/open_model.h"

#define MAX_SAMPLES (1u << 22)

struct options {
	uint32_t streams, prompt, output, long_prompt, threads, rounds;
	double seconds, stagger_ms, every_ms, stretch;
	const char *modules, *dir, *device, *vocabulary;
};

/* Durations in milliseconds. Only the engine thread writes them. */
struct samples {
	float *ms;
	uint32_t n;
};

static struct {
	struct options o;
	struct mx_sched *sched;
	struct mx_engine_info info;
	struct samples gaps, first, first_long;
	atomic_bool measuring, stop;
	_Atomic uint64_t tokens;
	struct form form;
	bool formed; /* this round's answers have the form */
} bench;

struct client {
	bool is_long;
	uint32_t index, prompt, output;
	uint64_t begin_ns, last_ns;
	pthread_mutex_t lock;
	pthread_cond_t done;
	bool is_done;
};

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "streams: %s%s%s%s%s\n", what, err ? ": " : "", err ? err->where : "",
	        err && err->where[0] ? ": " : "", err ? err->text : "");
	exit(1);
}

static void add_sample(struct samples *s, uint64_t ns)
{
	if (atomic_load(&bench.measuring) && s->n < MAX_SAMPLES)
		s->ms[s->n++] = (float)((double)ns / 1e6);
}

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	(void)token;
	(void)is_stop;
	(void)logprob;
	struct client *c = arg;
	uint64_t now = mx_now_ns();
	if (c->last_ns)
		add_sample(&bench.gaps, now - c->last_ns);
	else
		add_sample(c->is_long ? &bench.first_long : &bench.first, now - c->begin_ns);
	c->last_ns = now;
	if (atomic_load(&bench.measuring))
		atomic_fetch_add_explicit(&bench.tokens, 1, memory_order_relaxed);
	return true;
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct client *c = arg;
	if (done->finish == MX_FINISH_ERROR && done->status != MX_E_SHUTDOWN)
		die(mx_status_str(done->status), NULL);
	pthread_mutex_lock(&c->lock);
	c->is_done = true;
	pthread_cond_signal(&c->done);
	pthread_mutex_unlock(&c->lock);
}

/* Sends one request and waits for its end. */
static void ask(struct client *c, uint64_t *rng)
{
	int32_t *prompt = malloc(c->prompt * sizeof *prompt);
	struct mx_err err = {0};
	uint64_t id;
	if (!prompt)
		die("out of memory", NULL);
	for (uint32_t i = 0; i < c->prompt; i++) {
		*rng = *rng * 6364136223846793005u + 1442695040888963407u;
		prompt[i] = (int32_t)((*rng >> 33) % bench.info.vocab);
	}
	struct mx_request r = {
		.prompt = prompt,
		.n_prompt = c->prompt,
		.max_tokens = c->output,
		.params = {.sampling = {.temperature = bench.o.vocabulary ? 1 : 0,
	                            .top_p = 1,
	                            .repetition_penalty = 1,
	                            .seed = *rng},
	               .logprobs = -1,
	               .prompt_logprobs = -1,
	               .constraint = bench.formed ? form_constraint(&bench.form) : NULL},
		.sink = {.arg = c, .token = on_token, .done = on_done},
	};
	c->is_done = false;
	c->last_ns = 0;
	c->begin_ns = mx_now_ns();
	if (mx_sched_submit(bench.sched, &r, &id, &err) != MX_OK)
		die("submit", &err);
	free(prompt);
	pthread_mutex_lock(&c->lock);
	while (!c->is_done)
		pthread_cond_wait(&c->done, &c->lock);
	pthread_mutex_unlock(&c->lock);
	mx_constraint_free(r.params.constraint);
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	uint64_t rng = c->index + 1;
	usleep((useconds_t)((c->is_long ? bench.o.every_ms : c->index * bench.o.stagger_ms) * 1e3));
	while (!atomic_load(&bench.stop)) {
		ask(c, &rng);
		double rest = bench.o.every_ms - (double)(mx_now_ns() - c->begin_ns) / 1e6;
		if (c->is_long && rest > 0)
			usleep((useconds_t)(rest * 1e3));
	}
	return NULL;
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

static void report(const char *name, struct samples *s)
{
	if (!s->n)
		return;
	qsort(s->ms, s->n, sizeof *s->ms, compare);
	double p50 = s->ms[s->n / 2], p99 = s->ms[(size_t)(0.99 * s->n)];
	printf("%-24s p50 %8.2f ms  p90 %8.2f  p99 %8.2f  max %8.2f  p99/p50 %5.2f  (%u)\n", name, p50,
	       s->ms[(size_t)(0.9 * s->n)], p99, s->ms[s->n - 1], p99 / p50, s->n);
}

/* Runs a round; returns tokens a second. */
static double run(void)
{
	atomic_store(&bench.stop, false);
	atomic_store(&bench.tokens, 0);
	bench.gaps.n = bench.first.n = bench.first_long.n = 0;
	uint32_t n = bench.o.streams + (bench.o.long_prompt ? 1 : 0);
	struct client *clients = calloc(n, sizeof *clients);
	pthread_t *threads = calloc(n, sizeof *threads);
	if (!clients || !threads)
		die("out of memory", NULL);
	for (uint32_t i = 0; i < n; i++) {
		struct client *c = &clients[i];
		c->index = i;
		c->is_long = i >= bench.o.streams;
		c->prompt = c->is_long ? bench.o.long_prompt : bench.o.prompt;
		c->output = c->is_long ? 16 : bench.o.output;
		pthread_mutex_init(&c->lock, NULL);
		pthread_cond_init(&c->done, NULL);
		if (pthread_create(&threads[i], NULL, client_main, c))
			die("no thread", NULL);
	}
	double warm = n * bench.o.stagger_ms * 1e-3 + 1;
	usleep((useconds_t)(warm * 1e6));
	struct mx_sched_stats a, b;
	mx_sched_stats(bench.sched, &a);
	atomic_store(&bench.measuring, true);
	uint64_t begin = mx_now_ns();
	usleep((useconds_t)(bench.o.seconds * 1e6));
	atomic_store(&bench.measuring, false);
	double took = (double)(mx_now_ns() - begin) / 1e9;
	mx_sched_stats(bench.sched, &b);
	atomic_store(&bench.stop, true);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	double steps = (double)(b.steps - a.steps);
	printf("%s%u streams, %u in, %u out", bench.formed ? "in a form: " : "", bench.o.streams,
	       bench.o.prompt, bench.o.output);
	if (bench.o.long_prompt)
		printf(", and a prompt of %u every %.0f ms", bench.o.long_prompt, bench.o.every_ms);
	printf(": %.1f tokens/s out, %.1f in; %.1f tokens a step, host %.1f us a step\n",
	       (double)bench.tokens / took, (double)(b.prompt_tokens - a.prompt_tokens) / took,
	       (b.step_tokens.sum - a.step_tokens.sum) / steps,
	       (b.step_host.sum - a.step_host.sum) / steps * 1e6);
	report("between tokens", &bench.gaps);
	report("to the first token", &bench.first);
	report("... of a long prompt", &bench.first_long);
	free(clients);
	free(threads);
	return (double)bench.tokens / took;
}

/* Rounds without and with the form, by turns. */
static void run_rounds(void)
{
	double sum[2] = {0};
	for (uint32_t i = 0; i < bench.o.rounds; i++) {
		bench.formed = bench.o.vocabulary && i % 2;
		sum[bench.formed] += run();
	}
	if (bench.o.rounds > 1 && bench.o.vocabulary)
		printf("tokens/s in a form: %.2f %% of those without\n",
		       100 * sum[1] / (bench.o.rounds / 2) / (sum[0] / ((bench.o.rounds + 1) / 2)));
}

static void parse(int argc, char **argv, struct options *o)
{
	*o = (struct options){.streams = 8,
	                      .prompt = 128,
	                      .output = 128,
	                      .seconds = 10,
	                      .stagger_ms = 100,
	                      .every_ms = 1000,
	                      .rounds = 1};
	for (int c; (c = getopt(argc, argv, "n:p:o:s:g:l:e:x:t:m:d:f:r:")) != -1;) {
		double v = strchr("mdf", c) ? 0 : atof(optarg ? optarg : "");
		switch (c) {
		case 'n': o->streams = (uint32_t)v; break;
		case 'p': o->prompt = (uint32_t)v; break;
		case 'o': o->output = (uint32_t)v; break;
		case 's': o->seconds = v; break;
		case 'g': o->stagger_ms = v; break;
		case 'l': o->long_prompt = (uint32_t)v; break;
		case 'e': o->every_ms = v; break;
		case 'x': o->stretch = v; break;
		case 't': o->threads = (uint32_t)v; break;
		case 'm': o->modules = optarg; break;
		case 'd': o->device = optarg; break;
		case 'f': o->vocabulary = optarg; break;
		case 'r': o->rounds = (uint32_t)v; break;
		default: die("see the head of bench/engine/streams.c for the options", NULL);
		}
	}
	if (optind != argc - 1 || !o->streams || !o->prompt || o->output < 2 || o->seconds <= 0)
		die("see the head of bench/engine/streams.c for the options", NULL);
	o->dir = argv[optind];
}

int main(int argc, char **argv)
{
	parse(argc, argv, &bench.o);
	struct mx_err err = {0};
	struct opened_model model;
	struct mx_engine_config ec = {
		.name = "bench",
		.device = bench.o.device,
		.threads = bench.o.threads,
		.max_context = bench.o.prompt + bench.o.output,
		.max_sequences = bench.o.streams + 1,
		.step_tokens = 512,
		.kv_dtype = -1,
		.prefix_cache = true,
	};
	if (bench.o.long_prompt + 16 > ec.max_context)
		ec.max_context = bench.o.long_prompt + 16;
	if (bench.o.modules)
		setenv("MIXD_MODULE_PATH", bench.o.modules, 1);
	if (opened_model_open(bench.o.dir, &model, &err) || opened_model_load(&model, &ec, &err))
		die(bench.o.dir, &err);
	mx_engine_wait_resident(model.engine);
	model.engine->ops->info(model.engine, &bench.info);
	struct mx_sched_config sc = {.max_sequences = ec.max_sequences,
	                             .step_tokens = ec.step_tokens,
	                             .queue = 1024,
	                             .max_step_stretch = bench.o.stretch};
	if (mx_sched_create(model.engine, &sc, &bench.sched))
		die("the scheduler does not start", NULL);
	struct samples *all[] = {&bench.gaps, &bench.first, &bench.first_long};
	for (size_t i = 0; i < 3; i++)
		if (!(all[i]->ms = malloc(MAX_SAMPLES * sizeof(float))))
			die("out of memory", NULL);
	if (bench.o.vocabulary)
		bench.form = form_open(bench.o.vocabulary, bench.info.vocab);
	run_rounds();
	mx_sched_destroy(bench.sched);
	form_close(&bench.form);
	for (size_t i = 0; i < 3; i++)
		free(all[i]->ms);
	opened_model_close(&model);
	return 0;
}
