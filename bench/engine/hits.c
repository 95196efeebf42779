/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/hits measures what cache hits do to a running stream on a model with long
 * convolutions, which rebuild their sums after a hit: the times between the stream's tokens before
 * and after several requests with one long prompt come at once, and the times to their first
 * tokens.
 *
 *   hits [--prompt N] [--hits N] [--passes N] [--threads N]
 *
 * With one thread it also prints these times in the engine thread's own CPU time, which other work
 * on the machine does not lengthen.
 *
 * The model is 256 wide, 8 layers of Hyena of 16,384 lags, 1024 feed-forward, random f32 weights.
 */
#include <getopt.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench/engine/random_model.h"
#include "scheduler/scheduler.h"
#include "tests/engine/random_checkpoint.h"
#include "tools/open_model.h"

enum { LAYERS = 8, CONTEXT = 16384, VOCAB = 1000, MAX_HITS = 64, WARM = 200, OUTPUT = 8 };

struct options {
	uint32_t prompt, hits, passes, threads;
};

/* Written by the engine thread. */
struct request {
	uint64_t begin_ns, at_ns[CONTEXT]; /* [n] when each token came */
	uint64_t cpu_ns[CONTEXT];          /* the same by the engine thread's CPU time */
	_Atomic uint32_t n;
	atomic_bool done;
	uint32_t cached;
};

static struct request stream, hits[MAX_HITS];

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "hits: %s%s%s %s\n", what, err ? ": " : "", err ? err->where : "",
	        err ? err->text : "");
	exit(1);
}

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	struct request *q = arg;
	(void)token, (void)is_stop, (void)logprob;
	uint32_t n = atomic_load(&q->n);
	struct timespec cpu;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
	q->at_ns[n] = mx_now_ns();
	q->cpu_ns[n] = (uint64_t)cpu.tv_sec * MX_NS_PER_S + (uint64_t)cpu.tv_nsec;
	atomic_store(&q->n, n + 1);
	return true;
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct request *q = arg;
	if (done->finish == MX_FINISH_ERROR)
		die(mx_status_str(done->status), NULL);
	q->cached = done->cached_tokens;
	atomic_store(&q->done, true);
}

static uint64_t submit(struct mx_sched *s, const int32_t *prompt, uint32_t n, uint32_t output,
                       struct request *q)
{
	const struct mx_request r = {
		.prompt = prompt,
		.n_prompt = n,
		.max_tokens = output,
		.params = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	               .logprobs = -1,
	               .prompt_logprobs = -1},
		.sink = {.arg = q, .token = on_token, .done = on_done},
	};
	struct mx_err err = {0};
	uint64_t id;
	atomic_store(&q->n, 0);
	atomic_store(&q->done, false);
	q->begin_ns = mx_now_ns();
	if (mx_sched_submit(s, &r, &id, &err) != MX_OK)
		die("submit", &err);
	return id;
}

static void wait_for(const struct request *q, uint32_t tokens)
{
	while (!atomic_load(&q->done) && atomic_load(&q->n) < tokens)
		usleep(200);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Sorts the stream's gaps that end at tokens first .. end - 1 into ms; returns their number. */
static uint32_t gaps(const uint64_t *at, uint32_t first, uint32_t end, double *ms)
{
	uint32_t n = 0;
	for (uint32_t i = first; i < end; i++)
		ms[n++] = (double)(at[i] - at[i - 1]) * 1e-6;
	qsort(ms, n, sizeof *ms, by_value);
	return n;
}

static void pass(const struct options *o, struct mx_sched *s, const int32_t *prompt)
{
	static const int32_t one[1] = {7};
	static double ms[CONTEXT];
	uint64_t id = submit(s, one, 1, CONTEXT - 1, &stream);
	wait_for(&stream, WARM);
	for (uint32_t i = 0; i < o->hits; i++)
		(void)submit(s, prompt, o->prompt, OUTPUT, &hits[i]);
	uint32_t from = atomic_load(&stream.n);
	for (uint32_t i = 0; i < o->hits; i++)
		wait_for(&hits[i], UINT32_MAX);
	uint32_t to = atomic_load(&stream.n);
	mx_sched_cancel(s, id, MX_CANCEL_API);
	wait_for(&stream, UINT32_MAX);
	double first = 0, last = 0;
	for (uint32_t i = 0; i < o->hits; i++) {
		double t = (double)(hits[i].at_ns[0] - hits[i].begin_ns) * 1e-6;
		if (hits[i].cached + 1 < o->prompt)
			die("a request was no hit", NULL);
		first += t / o->hits;
		last = t > last ? t : last;
	}
	for (int cpu = 0; cpu <= (o->threads == 1); cpu++) {
		const uint64_t *at = cpu ? stream.cpu_ns : stream.at_ns;
		uint32_t n = gaps(at, WARM / 2, from, ms);
		double median = ms[n / 2];
		n = gaps(at, from, to, ms);
		printf("| %s | %.2f | %u | %.2f | %.2f | %.2f | %.1f | %.0f | %.0f |\n",
		       cpu ? "CPU" : "wall", median, n, ms[n / 2], ms[(uint32_t)(0.99 * (n - 1))],
		       ms[n - 1], ms[n - 1] / median, first, last);
	}
	fflush(stdout);
}

static void write_model(char *dir, size_t cap)
{
	char config[4096];
	struct mx_err err = {0};
	struct mx_registry *mixers = NULL;
	const char *tmp = getenv("TMPDIR"), *modules = getenv("MIXD_MODULE_PATH");
	snprintf(dir, cap, "%s/mixd-bench-XXXXXX", tmp ? tmp : "/tmp");
	int at = snprintf(config, sizeof config,
	                  "{\"model_type\":\"mixd\",\"hidden_size\":256,\"vocab_size\":%d,"
	                  "\"intermediate_size\":1024,\"num_attention_heads\":4,"
	                  "\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-5,\"mixd_layers\":[",
	                  VOCAB, CONTEXT);
	for (int i = 0; i < LAYERS; i++)
		at += snprintf(config + at, sizeof config - (size_t)at,
		               "%s{\"mixer\":\"hyena\",\"filter_len\":%d,\"emb_dim\":5,"
		               "\"filter_order\":16}",
		               i ? "," : "", CONTEXT);
	snprintf(config + at, sizeof config - (size_t)at, "]}");
	if (mx_registry_create(&mixers) ||
	    mx_registry_load_dir(mixers, modules ? modules : MIXD_MODULE_DIR, &err))
		die("modules", &err);
	if (!mkdtemp(dir) || random_checkpoint_write(dir, config, mixers, MX_F32, 1, &err))
		die(dir, &err);
	mx_registry_destroy(mixers);
}

static void run(const struct options *o, const char *dir)
{
	static int32_t prompt[CONTEXT];
	struct mx_err err = {0};
	struct opened_model m = {0};
	struct mx_sched *s;
	const struct mx_engine_config config = {
		.name = "hits",
		.threads = o->threads,
		.max_sequences = o->hits + 1,
		.step_tokens = 512,
		.kv_dtype = -1,
		.memory = (size_t)8 << 30,
		.prefix_cache = true,
		.snapshot_memory = MX_SNAPSHOT_MEMORY_AUTO,
		.snapshot_every = 0,
	};
	const struct mx_sched_config sc = {
		.max_sequences = o->hits + 1, .step_tokens = 512, .queue = 2 * MAX_HITS};
	if (opened_model_open(dir, &m, &err) != MX_OK || opened_model_load(&m, &config, &err) != MX_OK)
		die(dir, &err);
	mx_engine_wait_resident(m.engine);
	if (mx_sched_create(m.engine, &sc, &s) != MX_OK)
		die("the scheduler does not start", NULL);
	for (uint32_t i = 0; i < o->prompt; i++)
		prompt[i] = (int32_t)((i * 2654435761u >> 12) % VOCAB);
	(void)submit(s, prompt, o->prompt, 1, &hits[0]);
	wait_for(&hits[0], UINT32_MAX);
	printf("A stream, then %u hits of %u tokens at once. ms between tokens of the stream:\n\n"
	       "| clock | median before | tokens then | median then | p99 then | max then | max / "
	       "median before | "
	       "hits' first "
	       "token, mean | last |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
	       o->hits, o->prompt);
	for (uint32_t i = 0; i < o->passes; i++)
		pass(o, s, prompt);
	mx_sched_destroy(s);
	opened_model_close(&m);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {{"prompt", 1, NULL, 'p'},
	                                      {"hits", 1, NULL, 'n'},
	                                      {"passes", 1, NULL, 'c'},
	                                      {"threads", 1, NULL, 't'},
	                                      {NULL, 0, NULL, 0}};
	struct options o = {7900, 16, 5, 0};
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		uint32_t v = (uint32_t)strtoul(optarg ? optarg : "", NULL, 10);
		switch (c) {
		case 'p': o.prompt = v; break;
		case 'n': o.hits = v; break;
		case 'c': o.passes = v; break;
		case 't': o.threads = v; break;
		default: return 2;
		}
	}
	if (optind != argc || o.prompt < 64 || o.prompt + OUTPUT > CONTEXT || !o.hits ||
	    o.hits > MAX_HITS)
		return 2;
	char dir[256];
	mx_log_set_level(MX_LOG_WARNING);
	write_model(dir, sizeof dir);
	run(&o, dir);
	mx_random_model_remove(dir);
	return 0;
}
