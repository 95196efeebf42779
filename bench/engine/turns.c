/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/turns measures a chat of several turns on a model with recurrent layers, through
 * scheduler and engine: the time to the first token of each turn, with the prefix cache and
 * without. Both send the same prompts in one process, one after the other, and must get the same
 * tokens. A request "without" neither looks prefixes up nor saves any.
 *
 *   turns [--shape gdn|mamba|attention] [--turns N] [--system N] [--question N]
 *         [--answer N] [--threads N]
 *
 * Shapes are 768 wide, 12 layers, 2048 feed-forward, 32,000 tokens tied, random
 * bf16 weights. Every fourth layer is attention of 12 heads; the others have
 *   gdn        Gated DeltaNet, 6 heads of 128 x 256
 *   mamba      Mamba-2, 24 heads of 64 x 128
 *   attention  attention too
 * Lengths are in tokens: --system of the text before the first question.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench/engine/random_model.h"
#include "scheduler/scheduler.h"
#include "tests/engine/random_checkpoint.h"
#include "tools/open_model.h"

enum { LAYERS = 12, CONTEXT = 16384, STEP_TOKENS = 512, VOCAB = 32000 };

#define ATTENTION "{\"mixer\":\"attention\",\"num_attention_heads\":12}"

static const struct shape {
	const char *name, *layer;
} shapes[] = {
	{"gdn", "{\"mixer\":\"gla\",\"variant\":\"gated_deltanet\",\"num_heads\":6,\"head_dim\":128}"},
	{"mamba", "{\"mixer\":\"mamba\",\"num_heads\":24,\"head_dim\":64,\"state_size\":128}"},
	{"attention", ATTENTION},
};

struct options {
	const struct shape *shape;
	uint32_t turns, system, question, answer, threads;
};

/* One request. The engine thread writes it until is_done. */
struct request {
	int32_t *tokens; /* its answer */
	uint32_t n;
	uint64_t begin_ns, first_ns, last_ns;
	struct mx_done done;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_done;
};

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "turns: %s%s%s %s\n", what, err ? ": " : "", err ? err->where : "",
	        err ? err->text : "");
	exit(1);
}

/* ---- requests ---- */

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	(void)is_stop, (void)logprob;
	struct request *q = arg;
	q->last_ns = mx_now_ns();
	if (!q->n)
		q->first_ns = q->last_ns;
	q->tokens[q->n++] = token;
	return true;
}

static void on_done(void *arg, const struct mx_done *done)
{
	struct request *q = arg;
	pthread_mutex_lock(&q->lock);
	q->done = *done;
	q->is_done = true;
	pthread_cond_signal(&q->changed);
	pthread_mutex_unlock(&q->lock);
}

static void ask(struct mx_sched *sched, const int32_t *prompt, uint32_t n, uint32_t answer,
                bool cache, struct request *q)
{
	struct mx_err err = {0};
	uint64_t id;
	q->n = 0;
	q->is_done = false;
	const struct mx_request r = {
		.prompt = prompt,
		.n_prompt = n,
		.max_tokens = answer,
		.params = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	               .logprobs = -1,
	               .prompt_logprobs = -1,
	               .no_prefix_cache = !cache},
		.sink = {.arg = q, .token = on_token, .done = on_done},
	};
	q->begin_ns = mx_now_ns();
	if (mx_sched_submit(sched, &r, &id, &err) != MX_OK)
		die("submit", &err);
	pthread_mutex_lock(&q->lock);
	while (!q->is_done)
		pthread_cond_wait(&q->changed, &q->lock);
	pthread_mutex_unlock(&q->lock);
	if (q->done.status != MX_OK)
		die(mx_status_str(q->done.status), NULL);
}

/* ---- what saving takes ---- */

static struct mx_engine_ops timed;
static void (*inner_save_snapshots)(struct mx_engine *e);
static uint64_t save_ns[4096]; /* [n_saves] */
static size_t n_saves;

static void timed_save_snapshots(struct mx_engine *e)
{
	struct mx_engine_usage before, after;
	e->ops->usage(e, &before);
	uint64_t begin = mx_now_ns();
	inner_save_snapshots(e);
	uint64_t ns = mx_now_ns() - begin;
	e->ops->usage(e, &after);
	if (after.snapshot_saves == before.snapshot_saves + 1 && n_saves < 4096)
		save_ns[n_saves++] = ns;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static void report_saving(const struct mx_engine *e)
{
	struct mx_engine_info info;
	struct mx_engine_usage u;
	e->ops->info(e, &info);
	e->ops->usage(e, &u);
	if (!n_saves)
		return;
	qsort(save_ns, n_saves, sizeof *save_ns, by_value);
	double ns = (double)save_ns[n_saves / 2];
	printf("a snapshot is %.2f MiB; %llu were saved, %llu evicted; after a step it took %.2f ms "
	       "(median), %.1f GB/s\n",
	       (double)info.snapshot_bytes / (1 << 20), (unsigned long long)u.snapshot_saves,
	       (unsigned long long)u.snapshot_evictions, ns * 1e-6, (double)info.snapshot_bytes / ns);
}

static void time_settle(struct mx_engine *e)
{
	timed = *e->ops;
	inner_save_snapshots = timed.save_snapshots;
	timed.save_snapshots = timed_save_snapshots;
	e->ops = &timed;
}

/* ---- the chat ---- */

static double ms(uint64_t ns)
{
	return (double)ns * 1e-6;
}

/* Returns the mean time between two tokens. */
static double gap(const struct request *q)
{
	return q->n > 1 ? ms(q->last_ns - q->first_ns) / (q->n - 1) : 0;
}

static void say(int32_t *text, uint32_t *n, uint32_t words, uint64_t *rng)
{
	for (uint32_t i = 0; i < words; i++) {
		*rng = *rng * 6364136223846793005u + 1442695040888963407u;
		text[(*n)++] = (int32_t)((*rng >> 33) % VOCAB);
	}
}

static void chat(const struct options *o, struct mx_sched *sched)
{
	int32_t *text = calloc(CONTEXT, sizeof *text), *answers = calloc(2 * CONTEXT, sizeof *answers);
	if (!text || !answers)
		die("out of memory", NULL);
	struct request q[2] = {{.tokens = answers}, {.tokens = answers + CONTEXT}};
	uint32_t n = 0;
	uint64_t rng = 1;
	for (int i = 0; i < 2; i++) {
		pthread_mutex_init(&q[i].lock, NULL);
		pthread_cond_init(&q[i].changed, NULL);
	}
	say(text, &n, 64, &rng);
	ask(sched, text, n, 4, false, &q[0]); /* wakes threads, warms caches */
	n = 0;
	say(text, &n, o->system, &rng);
	puts("        prompt   cached   first token (ms)              between tokens (ms)\n"
	     "  turn  tokens   tokens   without     with    ratio   without     with");
	for (uint32_t turn = 1; turn <= o->turns; turn++) {
		say(text, &n, o->question, &rng);
		ask(sched, text, n, o->answer, false, &q[0]);
		ask(sched, text, n, o->answer, true, &q[1]);
		if (memcmp(q[0].tokens, q[1].tokens, o->answer * sizeof *text))
			die("the answers differ", NULL);
		double without = ms(q[0].first_ns - q[0].begin_ns),
			   with = ms(q[1].first_ns - q[1].begin_ns);
		printf("%6u %7u %8u %9.1f %8.1f %8.1f %9.2f %8.2f\n", turn, n, q[1].done.cached_tokens,
		       without, with, without / with, gap(&q[0]), gap(&q[1]));
		fflush(stdout);
		memcpy(text + n, q[1].tokens, o->answer * sizeof *text);
		n += o->answer;
	}
	free(text);
	free(answers);
}

/* ---- set-up ---- */

static void write_model(const struct options *o, char *dir, size_t cap)
{
	char config[8192];
	struct mx_err err = {0};
	struct mx_registry *mixers = NULL;
	const char *tmp = getenv("TMPDIR"), *modules = getenv("MIXD_MODULE_PATH");
	snprintf(dir, cap, "%s/mixd-bench-XXXXXX", tmp ? tmp : "/tmp");
	int at = snprintf(config, sizeof config,
	                  "{\"model_type\":\"mixd\",\"hidden_size\":768,\"vocab_size\":%d,"
	                  "\"intermediate_size\":2048,\"num_attention_heads\":12,"
	                  "\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-5,"
	                  "\"tie_word_embeddings\":true,\"mixd_layers\":[",
	                  VOCAB, CONTEXT);
	for (int i = 0; i < LAYERS; i++)
		at += snprintf(config + at, sizeof config - (size_t)at, "%s%s", i ? "," : "",
		               i % 4 == 3 ? ATTENTION : o->shape->layer);
	snprintf(config + at, sizeof config - (size_t)at, "]}");
	if (mx_registry_create(&mixers) ||
	    mx_registry_load_dir(mixers, modules ? modules : MIXD_MODULE_DIR, &err))
		die("modules", &err);
	if (!mkdtemp(dir) || random_checkpoint_write(dir, config, mixers, MX_BF16, 1, &err))
		die(dir, &err);
	mx_registry_destroy(mixers);
}

static void run(const struct options *o, const char *dir)
{
	struct mx_err err = {0};
	struct opened_model m = {0};
	struct mx_sched *sched;
	const struct mx_engine_config config = {
		.name = o->shape->name,
		.threads = o->threads,
		.max_sequences = 16,
		.step_tokens = STEP_TOKENS,
		.kv_dtype = -1,
		.memory = (size_t)2 << 30,
		.prefix_cache = true,
		.snapshot_memory = MX_SNAPSHOT_MEMORY_AUTO,
		.snapshot_every = MX_SNAPSHOT_EVERY_AUTO,
	};
	const struct mx_sched_config sc = {
		.max_sequences = 1, .step_tokens = STEP_TOKENS, .queue = 4, .max_step_stretch = 1e6};
	if (opened_model_open(dir, &m, &err) != MX_OK || opened_model_load(&m, &config, &err) != MX_OK)
		die(dir, &err);
	mx_engine_wait_resident(m.engine);
	time_settle(m.engine);
	if (mx_sched_create(m.engine, &sc, &sched) != MX_OK)
		die("the scheduler does not start", NULL);
	chat(o, sched);
	report_saving(m.engine);
	mx_sched_destroy(sched);
	opened_model_close(&m);
}

static _Noreturn void usage(void)
{
	fputs("see the head of bench/engine/turns.c for the options\n", stderr);
	exit(2);
}

static struct options parse(int argc, char **argv)
{
	static const struct option longs[] = {{"shape", 1, NULL, 's'},  {"turns", 1, NULL, 't'},
	                                      {"system", 1, NULL, 'y'}, {"question", 1, NULL, 'q'},
	                                      {"answer", 1, NULL, 'a'}, {"threads", 1, NULL, 'j'},
	                                      {NULL, 0, NULL, 0}};
	struct options o = {&shapes[0], 10, 300, 60, 120, 0};
	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		uint32_t v = (uint32_t)strtoul(optarg ? optarg : "", NULL, 10);
		switch (c) {
		case 's':
			o.shape = NULL;
			for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
				if (!strcmp(optarg, shapes[i].name))
					o.shape = &shapes[i];
			break;
		case 't': o.turns = v; break;
		case 'y': o.system = v; break;
		case 'q': o.question = v; break;
		case 'a': o.answer = v; break;
		case 'j': o.threads = v; break;
		default: usage();
		}
	}
	uint64_t longest = o.system + (uint64_t)o.turns * (o.question + o.answer);
	if (optind != argc || !o.shape || !o.question || !o.answer || longest > CONTEXT)
		usage();
	return o;
}

int main(int argc, char **argv)
{
	struct options o = parse(argc, argv);
	char dir[256];
	mx_log_set_level(MX_LOG_INFO);
	write_model(&o, dir, sizeof dir);
	run(&o, dir);
	mx_random_model_remove(dir);
	return 0;
}
