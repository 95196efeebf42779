/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/spec measures speculation on a checkpoint: what checking drafts costs, and what they
 * gain at an imposed acceptance.
 *
 *   spec [-b SEQUENCES] [-k MOST_DRAFTS] [-n TOKENS] [-p PROMPT] [-t THREADS] DIR
 *
 * The sequences' answers are computed once without drafts. Then they are computed again with drafts
 * that are right with a given probability each, as a source of that acceptance would have proposed
 * them at no cost of its own. For each length it prints the time of a step beside that without
 * drafts, and for each acceptance tokens a second, and in brackets what the times foretell:
 * (1 - a^(k+1)) / (1 - a) tokens a step.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/open_model.h"

static const double acceptances[] = {0, .6, .7, .75, .8, .9, 1};
enum { N_ACCEPTANCES = sizeof acceptances / sizeof *acceptances, MAX_BATCH = 256 };

static struct {
	uint32_t batch, most, tokens, prompt, threads;
	struct opened_model model;
	struct mx_engine_info info;
	int32_t *prompts; /* [batch, prompt] */
	int32_t *answers; /* [batch, tokens]; after the first run what it drew */
	uint64_t random;
} bench = {.batch = 1, .most = MX_MAX_DRAFT, .tokens = 256, .prompt = 128};

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "spec: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
	exit(1);
}

static void must(mx_status st, const char *what)
{
	if (st != MX_OK)
		die(what, NULL);
}

static uint32_t draw(uint32_t n)
{
	bench.random = bench.random * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((bench.random >> 33) % n);
}

/* Opens sequence i and computes its prompt and the first token. */
static struct mx_seq *open_sequence(uint32_t i)
{
	struct mx_engine *e = bench.model.engine;
	struct mx_seq_params p = {.sampling = {.top_p = 1, .repetition_penalty = 1},
	                          .max_len = bench.prompt + bench.tokens,
	                          .logprobs = -1,
	                          .prompt_logprobs = -1,
	                          .no_prefix_cache = true};
	struct mx_step_result r;
	struct mx_step_times times;
	struct mx_seq *s;
	uint32_t computed;
	must(e->ops->open(e, bench.prompts + (size_t)i * bench.prompt, bench.prompt, &p, &s), "open");
	must(e->ops->attach(e, s, &computed), "attach");
	must(e->ops->reserve(e, s, p.max_len), "reserve");
	const struct mx_step_item item = {.seq = s, .n = bench.prompt, .sample = true};
	must(e->ops->step(e, &item, 1, &r, &times), "step");
	return s;
}

/* Writes k drafts of sequence i, which has n tokens of output, to draft. */
static void guess(uint32_t i, uint32_t n, uint32_t k, double acceptance, int32_t *draft)
{
	const int32_t *answer = bench.answers + (size_t)i * bench.tokens;
	for (uint32_t j = 0; j < k; j++) {
		int32_t right = n + j < bench.tokens ? answer[n + j] : 0;
		bool hit = draw(1u << 20) < acceptance * (1 << 20);
		draft[j] = hit ? right : (int32_t)(((uint32_t)right + 1) % bench.info.vocab);
	}
}

/* Decodes all sequences with k drafts a step. Returns tokens a second; *out_step: seconds of a
 * step. */
static double run(uint32_t k, double acceptance, bool first, double *out_step)
{
	struct mx_engine *e = bench.model.engine;
	static struct mx_seq *seqs[MAX_BATCH];
	static struct mx_step_item items[MAX_BATCH];
	static struct mx_step_result results[MAX_BATCH];
	static int32_t drafts[MAX_BATCH][MX_MAX_DRAFT];
	struct mx_step_times times;
	uint64_t tokens = 0, steps = 0, ns = 0;
	bench.random = 1;
	for (uint32_t i = 0; i < bench.batch; i++)
		seqs[i] = open_sequence(i);
	for (bool done = false; !done; steps++) {
		for (uint32_t i = 0; i < bench.batch; i++) {
			uint32_t n, computed;
			e->ops->tokens(seqs[i], &n, &computed);
			guess(i, n - bench.prompt, k, acceptance, drafts[i]);
			items[i] = (struct mx_step_item){
				.seq = seqs[i], .n = 1, .sample = true, .draft = drafts[i], .n_draft = k};
		}
		uint64_t begin = mx_now_ns();
		must(e->ops->step(e, items, bench.batch, results, &times), "step");
		ns += mx_now_ns() - begin;
		for (uint32_t i = 0; i < bench.batch; i++) {
			uint32_t n, computed;
			tokens += results[i].n_accepted + 1;
			e->ops->tokens(seqs[i], &n, &computed);
			done |= n + k + 1 >= bench.prompt + bench.tokens;
		}
	}
	for (uint32_t i = 0; i < bench.batch; i++) {
		uint32_t n, computed;
		const struct mx_seq_tokens *t = e->ops->tokens(seqs[i], &n, &computed);
		int32_t *answer = bench.answers + (size_t)i * bench.tokens;
		if (first)
			mx_seq_tokens_copy(t, bench.prompt, n, answer);
		else if (memcmp(answer, t->output, (n - bench.prompt) * sizeof *answer))
			die("an answer differs", NULL);
		e->ops->close(e, seqs[i]);
	}
	*out_step = (double)ns / 1e9 / (double)steps;
	return (double)tokens / ((double)ns / 1e9);
}

static void parse(int argc, char **argv)
{
	for (int c; (c = getopt(argc, argv, "b:k:n:p:t:")) != -1;) {
		uint32_t v = (uint32_t)strtoul(optarg ? optarg : "", NULL, 10);
		switch (c) {
		case 'b': bench.batch = v; break;
		case 'k': bench.most = v; break;
		case 'n': bench.tokens = v; break;
		case 'p': bench.prompt = v; break;
		case 't': bench.threads = v; break;
		default: die("see the head of bench/engine/spec.c for the options", NULL);
		}
	}
	if (optind != argc - 1 || !bench.batch || bench.batch > MAX_BATCH || !bench.most ||
	    bench.most > MX_MAX_DRAFT || bench.tokens < 32 || !bench.prompt)
		die("see the head of bench/engine/spec.c for the options", NULL);
}

int main(int argc, char **argv)
{
	struct mx_err err = {0};
	parse(argc, argv);
	struct mx_engine_config config = {
		.name = "bench",
		.threads = bench.threads,
		.max_context = bench.prompt + bench.tokens,
		.max_sequences = bench.batch,
		.step_tokens = bench.batch * (1 + bench.most) < 512 ? 512 : bench.batch * (1 + bench.most),
		.kv_dtype = -1,
		.speculation = MX_SPECULATION_NGRAM,
		.draft_tokens = bench.most,
	};
	if (opened_model_open(argv[optind], &bench.model, &err) != MX_OK ||
	    opened_model_load(&bench.model, &config, &err) != MX_OK)
		die(argv[optind], &err);
	bench.model.engine->ops->info(bench.model.engine, &bench.info);
	bench.prompts = calloc((size_t)bench.batch * bench.prompt, sizeof *bench.prompts);
	bench.answers = calloc((size_t)bench.batch * bench.tokens, sizeof *bench.answers);
	if (!bench.prompts || !bench.answers)
		die("out of memory", NULL);
	for (uint32_t i = 0; i < bench.batch * bench.prompt; i++)
		bench.prompts[i] = (int32_t)draw(bench.info.vocab);
	double base, step;
	run(0, 0, true, &base);
	double plain = run(0, 0, false, &base);
	printf("batch %u: %.1f tokens/s without drafts, %.3f ms a step\n", bench.batch, plain,
	       base * 1e3);
	printf("drafts   step");
	for (int a = 0; a < N_ACCEPTANCES; a++)
		printf("      at %.2f     ", acceptances[a]);
	printf("\n");
	for (uint32_t k = 1; k <= bench.most; k++) {
		double rate[N_ACCEPTANCES], sum = 0;
		for (int a = 0; a < N_ACCEPTANCES; a++, sum += step)
			rate[a] = run(k, acceptances[a], false, &step);
		double cost = sum / N_ACCEPTANCES / base;
		printf("%6u  %4.2fx", k, cost);
		for (int a = 0; a < N_ACCEPTANCES; a++) {
			double p = acceptances[a], n = p < 1 ? (1 - pow(p, k + 1.0)) / (1 - p) : k + 1.0;
			printf("  %7.1f (%4.2fx)", rate[a], n / cost);
		}
		printf("\n");
	}
	free(bench.prompts);
	free(bench.answers);
	opened_model_close(&bench.model);
	return 0;
}
