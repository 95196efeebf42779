/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/spec measures speculation on a checkpoint: what checking drafts costs, what
 * proposing them costs, and what they gain at an imposed acceptance (imposed.h).
 *
 *   spec [-b SEQUENCES] [-k MOST_DRAFTS] [-n TOKENS] [-p PROMPT] [-t THREADS] [-r ROUNDS]
 *        [-d DRAFT_DIR | -m | -e | -T] [-a PERCENT] [-s] [-D DEVICE [-f]] DIR
 *
 * The sequences' answers are computed once without drafts. Then they are computed again with drafts
 * that are right with a given probability each: of a source that costs nothing, or with -d of a
 * draft model that runs at its full cost, with -m of the model's head for multi-token prediction
 * likewise, whose part of a step without drafts counts as the model's. -a: at one acceptance only.
 * -D: on another device than the CPU, deterministic unless -f.
 *
 * Without -s the lengths are fixed. For each it prints the times of a step and of proposing beside
 * a step without drafts, and for each acceptance the gain in tokens a second, and in brackets what
 * the times foretell: (1 - a^(k+1)) / (1 - a) tokens a step. -T: the drafts are a tree of two
 * branches; what its steps cost is all that is printed then.
 *
 * With -s the scheduler chooses the lengths. For each acceptance it prints tokens a second without
 * and with speculation, medians of ROUNDS, and the mean length; the first round warms up. A round
 * runs without, with, and without again. The gain is over the mean of the two; `again` is what the
 * second was of the first: gains say no more than that is far from 1. -e: drafts are those of
 * prompt lookup alone, and each request brings its answer as a prediction, as in an edit that
 * changes nothing.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench/engine/imposed.h"
#include "scheduler/scheduler.h"
#include "tools/open_model.h"

enum { MAX_ACCEPTANCES = 7, MAX_BATCH = 256, MAX_ROUNDS = 32 };
static double acceptances[MAX_ACCEPTANCES] = {0, .6, .7, .75, .8, .9, 1};
static int n_acceptances = MAX_ACCEPTANCES;

static struct {
	uint32_t batch, most, tokens, prompt, threads, rounds;
	bool scheduled, head, fast, edit, tree;
	const char *draft_dir, *device;
	struct opened_model model, draft;
	struct mx_engine_info info;
	struct imposed source;
	int32_t *prompts; /* [batch, prompt], each with its number in the first two tokens */
	int32_t *answers; /* [batch, tokens]; after the first run what it drew */
	uint64_t random;
} bench = {.batch = 1, .most = MX_MAX_DRAFT, .tokens = 256, .prompt = 128, .rounds = 5};

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "spec: %s%s%s%s%s\n", what, err ? ": " : "", err ? err->where : "",
	        err && err->where[0] ? ": " : "", err ? err->text : "");
	exit(1);
}

static void must(mx_status st, const char *what)
{
	if (st != MX_OK)
		die(what, NULL);
}

static int32_t *prompt_of(uint32_t i)
{
	return bench.prompts + (size_t)i * bench.prompt;
}

static int32_t *answer_of(uint32_t i)
{
	return bench.answers + (size_t)i * bench.tokens;
}

static void make_prompts(void)
{
	uint32_t vocab = bench.info.vocab;
	for (uint32_t i = 0; i < bench.batch * bench.prompt; i++) {
		bench.random = bench.random * 6364136223846793005u + 1442695040888963407u;
		bench.prompts[i] = (int32_t)((bench.random >> 33) % vocab);
	}
	for (uint32_t i = 0; i < bench.batch; i++) {
		prompt_of(i)[0] = (int32_t)(i % vocab);
		prompt_of(i)[1] = (int32_t)(i / vocab);
	}
}

static const int32_t *answer_to(const struct mx_seq *s, uint32_t *out_n)
{
	uint32_t i = (uint32_t)s->tokens.prompt[0] + (uint32_t)s->tokens.prompt[1] * bench.info.vocab;
	*out_n = bench.tokens;
	return answer_of(i);
}

static const struct mx_seq_params params = {.sampling = {.top_p = 1, .repetition_penalty = 1},
                                            .logprobs = -1,
                                            .prompt_logprobs = -1,
                                            .no_prefix_cache = true};

/* ---- fixed lengths ---- */

/* Opens sequence i and computes its prompt and the first token. */
static struct mx_seq *open_sequence(uint32_t i)
{
	struct mx_engine *e = bench.model.engine;
	struct mx_seq_params p = params;
	struct mx_step_result r;
	struct mx_step_times times;
	struct mx_seq *s;
	uint32_t computed;
	p.max_len = bench.prompt + bench.tokens;
	must(e->ops->open(e, prompt_of(i), bench.prompt, &p, &s), "open");
	must(e->ops->attach(e, s, &computed), "attach");
	must(e->ops->reserve(e, s, p.max_len), "reserve");
	const struct mx_step_item item = {.seq = s, .n = bench.prompt, .sample = true};
	must(e->ops->step(e, &item, 1, &r, &times), "step");
	return s;
}

/* Parents of a tree whose drafts belong to its two branches in turn. */
static const uint32_t branches[MX_MAX_DRAFT] = {MX_NO_DRAFT, MX_NO_DRAFT, 0, 1, 2, 3, 4, 5};

/* Asks for k drafts of each sequence until all have them: a draft model computes prompts first. */
static void propose(struct mx_step_item *items, struct mx_seq **seqs, uint32_t k)
{
	struct mx_engine *e = bench.model.engine;
	for (bool all = false; !all;) {
		all = true;
		for (uint32_t i = 0; i < bench.batch; i++)
			items[i] = (struct mx_step_item){.seq = seqs[i], .n = 1, .sample = true, .n_draft = k};
		e->ops->propose(e, items, bench.batch);
		for (uint32_t i = 0; i < bench.batch; i++)
			all &= items[i].n_draft == k;
		for (uint32_t i = 0; i < bench.batch && bench.tree; i++)
			items[i].parent = branches;
	}
}

/* Seconds of a step, and of proposing its drafts. */
struct cost {
	double step, propose;
};

/* Decodes all sequences with k drafts a step. Returns tokens a second. */
static double run(uint32_t k, double acceptance, bool first, struct cost *out)
{
	struct mx_engine *e = bench.model.engine;
	static struct mx_seq *seqs[MAX_BATCH];
	static struct mx_step_item items[MAX_BATCH];
	static struct mx_step_result results[MAX_BATCH];
	struct mx_step_times times;
	uint64_t tokens = 0, steps = 0, stepping = 0, proposing = 0;
	uint32_t n, computed;
	bench.source.acceptance = acceptance;
	for (uint32_t i = 0; i < bench.batch; i++)
		seqs[i] = open_sequence(i);
	propose(items, seqs, k); /* for the prompts; nothing is kept of it */
	for (bool done = false; !done; steps++) {
		uint64_t begin = mx_now_ns();
		propose(items, seqs, k);
		uint64_t proposed = mx_now_ns();
		must(e->ops->step(e, items, bench.batch, results, &times), "step");
		stepping += mx_now_ns() - proposed;
		proposing += proposed - begin;
		for (uint32_t i = 0; i < bench.batch; i++) {
			tokens += results[i].n_accepted + 1;
			e->ops->tokens(seqs[i], &n, &computed);
			done |= n + k + 1 >= bench.prompt + bench.tokens;
		}
	}
	for (uint32_t i = 0; i < bench.batch; i++) {
		const struct mx_seq_tokens *t = e->ops->tokens(seqs[i], &n, &computed);
		if (first)
			mx_seq_tokens_copy(t, bench.prompt, n, answer_of(i));
		else if (memcmp(answer_of(i), t->output, (n - bench.prompt) * sizeof(int32_t)))
			die("an answer differs", NULL);
		e->ops->close(e, seqs[i]);
	}
	*out = (struct cost){(double)stepping / 1e9 / (double)steps,
	                     (double)proposing / 1e9 / (double)steps};
	return (double)tokens / ((double)(stepping + proposing) / 1e9);
}

static void print_lengths(void)
{
	struct cost base, c;
	double plain = run(0, 0, false, &base);
	printf("batch %u: %.1f tokens/s without drafts, %.3f ms a step\n", bench.batch, plain,
	       base.step * 1e3);
	printf("drafts   step  propose");
	for (int a = 0; a < n_acceptances && !bench.tree; a++)
		printf("     at %.2f    ", acceptances[a]);
	printf("\n");
	for (uint32_t k = 1; k <= bench.most; k++) {
		double rate[MAX_ACCEPTANCES];
		struct cost sum = {0};
		for (int a = 0; a < n_acceptances; a++) {
			rate[a] = run(k, acceptances[a], false, &c);
			sum.step += c.step / n_acceptances / base.step;
			sum.propose += c.propose / n_acceptances / base.step;
		}
		printf("%6u  %4.2fx    %4.2fx", k, sum.step, sum.propose);
		for (int a = 0; a < n_acceptances && !bench.tree; a++) {
			double p = acceptances[a], n = p < 1 ? (1 - pow(p, k + 1.0)) / (1 - p) : k + 1.0;
			printf("  %5.2fx (%4.2fx)", rate[a] / plain, n / (sum.step + sum.propose));
		}
		printf("\n");
		fflush(stdout);
	}
}

/* ---- the scheduler's lengths ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint32_t running;
	uint64_t first_ns, last_ns; /* of all tokens but the first ones */
	uint64_t tokens;
	uint32_t first; /* sequences that have their first token */
} answers = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool on_token(void *arg, int32_t token, bool is_stop, const struct mx_logprob *logprob)
{
	bool *begun = arg;
	(void)token, (void)is_stop, (void)logprob;
	uint64_t now = mx_now_ns();
	if (!*begun && ++answers.first == bench.batch) {
		answers.first_ns = now;
		answers.tokens = 0;
	}
	*begun = true;
	answers.tokens++;
	answers.last_ns = now;
	return true;
}

static void on_done(void *arg, const struct mx_done *done)
{
	(void)arg;
	if (done->finish == MX_FINISH_ERROR)
		die(mx_status_str(done->status), NULL);
	pthread_mutex_lock(&answers.lock);
	answers.running--;
	pthread_cond_signal(&answers.changed);
	pthread_mutex_unlock(&answers.lock);
}

/* Has all sequences answered; returns tokens a second from when all have begun. */
static double answer(struct mx_sched *s, bool speculation)
{
	static bool begun[MAX_BATCH];
	struct mx_err err = {0};
	uint64_t id;
	answers.running = bench.batch;
	answers.first = 0;
	for (uint32_t i = 0; i < bench.batch; i++) {
		struct mx_request r = {.prompt = prompt_of(i),
		                       .n_prompt = bench.prompt,
		                       .max_tokens = bench.tokens,
		                       .params = params,
		                       .sink = {.arg = &begun[i], .token = on_token, .done = on_done}};
		r.params.no_speculation = !speculation;
		if (bench.edit) {
			r.params.prediction = answer_of(i);
			r.params.n_prediction = bench.tokens;
		}
		begun[i] = false;
		if (mx_sched_submit(s, &r, &id, &err) != MX_OK)
			die("submit", &err);
	}
	pthread_mutex_lock(&answers.lock);
	while (answers.running)
		pthread_cond_wait(&answers.changed, &answers.lock);
	pthread_mutex_unlock(&answers.lock);
	return (double)answers.tokens / ((double)(answers.last_ns - answers.first_ns) / 1e9);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *v, uint32_t n)
{
	qsort(v, n, sizeof *v, compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void print_scheduled(void)
{
	const struct mx_sched_config config = {.max_sequences = bench.batch,
	                                       .step_tokens = bench.info.step_tokens,
	                                       .queue = MAX_BATCH,
	                                       .max_step_stretch = 1e6};
	printf(
		"batch %u, tokens/s\naccepted      off        on   gain  again (least, most)  drafts of a "
		"sequence in a step\n",
		bench.batch);
	for (int a = 0; a < n_acceptances; a++) {
		double off[MAX_ROUNDS], on[MAX_ROUNDS], gain[MAX_ROUNDS], again[MAX_ROUNDS];
		struct mx_sched *s;
		struct mx_sched_stats before, after;
		bench.source.acceptance = acceptances[a]; /* of no meaning with -e */
		must(mx_sched_create(bench.model.engine, &config, &s), "scheduler");
		answer(s, true);
		mx_sched_stats(s, &before);
		for (uint32_t r = 0; r < bench.rounds; r++) {
			off[r] = answer(s, false);
			on[r] = answer(s, true);
			double second = answer(s, false);
			gain[r] = 2 * on[r] / (off[r] + second);
			again[r] = second / off[r];
		}
		mx_sched_stats(s, &after);
		uint64_t drafts = after.draft_tokens - before.draft_tokens;
		uint64_t kept = after.accepted_drafts - before.accepted_drafts;
		uint64_t own = (uint64_t)bench.batch * bench.rounds * (bench.tokens - 1) - kept;
		double middle = median(again, bench.rounds); /* sorts */
		printf("%8.2f %8.1f  %8.1f  %4.2fx  %4.2f (%4.2f, %4.2f)   %.2f\n", acceptances[a],
		       median(off, bench.rounds), median(on, bench.rounds), median(gain, bench.rounds),
		       middle, again[0], again[bench.rounds - 1], (double)drafts / (double)own);
		fflush(stdout);
		mx_sched_destroy(s);
	}
}

static void parse(int argc, char **argv)
{
	for (int c; (c = getopt(argc, argv, "a:b:D:efk:n:p:r:t:d:msT")) != -1;) {
		uint32_t v = (uint32_t)strtoul(optarg ? optarg : "", NULL, 10);
		switch (c) {
		case 'a':
			acceptances[0] = v / 100.0;
			n_acceptances = 1;
			break;
		case 'b': bench.batch = v; break;
		case 'D': bench.device = optarg; break;
		case 'f': bench.fast = true; break;
		case 'e':
			bench.edit = bench.scheduled = true;
			n_acceptances = 1;
			break;
		case 'k': bench.most = v; break;
		case 'n': bench.tokens = v; break;
		case 'p': bench.prompt = v; break;
		case 'r': bench.rounds = v; break;
		case 't': bench.threads = v; break;
		case 'd': bench.draft_dir = optarg; break;
		case 'm': bench.head = true; break;
		case 's': bench.scheduled = true; break;
		case 'T': bench.tree = true; break;
		default: die("see the head of bench/engine/spec.c for the options", NULL);
		}
	}
	if (optind != argc - 1 || bench.head + bench.edit + bench.tree + !!bench.draft_dir > 1 ||
	    (bench.tree && bench.scheduled) || !bench.batch || bench.batch > MAX_BATCH || !bench.most ||
	    bench.most > MX_MAX_DRAFT || bench.tokens < 32 || bench.prompt < 2 || !bench.rounds ||
	    bench.rounds > MAX_ROUNDS)
		die("see the head of bench/engine/spec.c for the options", NULL);
}

static void load(const char *dir)
{
	struct mx_err err = {0};
	uint32_t rows = bench.batch * (1 + bench.most);
	struct mx_engine_config config = {
		.name = "bench",
		.device = bench.device,
		.deterministic = !bench.fast,
		.threads = bench.threads,
		.max_context = bench.prompt + bench.tokens,
		.max_sequences = bench.batch,
		.step_tokens = rows < 512 ? 512 : rows,
		.kv_dtype = -1,
		.speculation = bench.head        ? MX_SPECULATION_MTP
	                   : bench.draft_dir ? MX_SPECULATION_DRAFT
	                                     : MX_SPECULATION_NGRAM,
		.draft_tokens = bench.most,
		.draft_tree = bench.tree,
	};
	if (bench.draft_dir && opened_model_open(bench.draft_dir, &bench.draft, &err) != MX_OK)
		die(bench.draft_dir, &err);
	config.draft_plan = bench.draft.plan;
	config.draft_checkpoint = bench.draft.checkpoint;
	if (opened_model_open(dir, &bench.model, &err) != MX_OK ||
	    opened_model_load(&bench.model, &config, &err) != MX_OK)
		die(dir, &err);
	mx_engine_wait_resident(bench.model.engine);
	bench.model.engine->ops->info(bench.model.engine, &bench.info);
	bench.source = (struct imposed){.vocab = bench.info.vocab, .random = 1, .answer = answer_to};
	if (!bench.edit)
		impose(&bench.source, bench.model.engine, bench.head || bench.draft_dir);
}

int main(int argc, char **argv)
{
	struct cost base;
	parse(argc, argv);
	mx_log_set_level(MX_LOG_WARNING);
	load(argv[optind]);
	bench.prompts = calloc((size_t)bench.batch * bench.prompt, sizeof *bench.prompts);
	bench.answers = calloc((size_t)bench.batch * bench.tokens, sizeof *bench.answers);
	if (!bench.prompts || !bench.answers)
		die("out of memory", NULL);
	make_prompts();
	run(0, 0, true, &base);
	if (bench.scheduled)
		print_scheduled();
	else
		print_lengths();
	free(bench.prompts);
	free(bench.answers);
	opened_model_close(&bench.model);
	opened_model_close(&bench.draft);
	return 0;
}
