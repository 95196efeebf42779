/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/guesses counts which tokens of a model a draft model proposes, by each way to
 * propose one: its likeliest token, its own draw at the model's random number, and guesses (struct
 * mx_guess) of several agreements. Nothing is timed, and the same command counts the same.
 *
 *   guesses [-n PROMPTS] [-t TEMPERATURE] [-p TOP_P] MODEL_DIR DRAFT_DIR TEXT
 *
 * The model draws 150 tokens behind each of PROMPTS pieces of 60 tokens of the text. The draft
 * model proposes one at each of their positions, behind the model's own tokens: what a chain of
 * drafts proposes as long as it is right.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "device/cpu/impl.h"
#include "engine/model_engine.h"
#include "model/tokenizer/tokenizer.h"
#include "tools/open_model.h"

enum { PROMPT = 60, ANSWER = 150, ALL = PROMPT + ANSWER };

static const float agreements[] = {1, 3, 6, 10, 20, 40, 100, MX_GUESS_SAME};
#define WAYS (sizeof agreements / sizeof *agreements)

/* The draft model's rows of logits: its table of operators has a `logprobs` that copies them. */
static struct {
	struct mx_ops ops;
	const struct mx_ops *own;
	float *rows; /* [ALL, vocab] */
	size_t n;
} kept;

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "guesses: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
	exit(1);
}

static mx_status keep_rows(struct mx_device *d, const float *logits, size_t ld, size_t n,
                           uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
                           struct mx_logprob *out)
{
	for (size_t i = 0; i < n && kept.n < ALL; i++)
		memcpy(kept.rows + kept.n++ * vocab, logits + i * ld, vocab * sizeof *logits);
	return kept.own->logprobs(d, logits, ld, n, vocab, tokens, n_top, out);
}

/* Computes a sequence of `tokens`, and draws those that are missing up to ALL. */
static void run(struct mx_engine *e, const struct mx_sampling *sampling, int32_t *tokens,
                uint32_t n, bool report)
{
	const struct mx_seq_params p = {.sampling = *sampling,
	                                .max_len = ALL,
	                                .logprobs = -1,
	                                .prompt_logprobs = report ? 0 : -1,
	                                .no_prefix_cache = true};
	struct mx_step_result r;
	struct mx_step_times times;
	struct mx_seq *s;
	uint32_t computed;
	if (e->ops->open(e, tokens, n, &p, &s) != MX_OK || e->ops->attach(e, s, &computed) != MX_OK ||
	    e->ops->reserve(e, s, ALL) != MX_OK)
		die("a sequence cannot be opened", NULL);
	for (uint32_t at = n, first = n; at < ALL || first; at++, first = 0) {
		const struct mx_step_item item = {.seq = s, .n = first ? first : 1, .sample = n < ALL};
		if (e->ops->step(e, &item, 1, &r, &times) != MX_OK || r.status != MX_OK)
			die("a step fails", NULL);
		if (n < ALL)
			tokens[at] = r.token;
	}
	e->ops->close(e, s);
}

/* Returns what the draft model proposes by a row of its logits. */
static int32_t propose(struct mx_device *d, const float *row, uint32_t vocab,
                       const struct mx_sample_row *how)
{
	static float copy[MX_MAX_VOCAB];
	int32_t token;
	memcpy(copy, row, vocab * sizeof *row);
	if (d->ops->sample(d, copy, vocab, 1, vocab, how, &token) != MX_OK)
		die("a row cannot be sampled", NULL);
	return token;
}

static struct mx_engine *load(const char *dir, struct opened_model *m)
{
	const struct mx_engine_config c = {.name = "bench",
	                                   .threads = 1,
	                                   .max_context = ALL,
	                                   .max_sequences = 1,
	                                   .step_tokens = 512,
	                                   .kv_dtype = -1};
	struct mx_err err = {0};
	if (opened_model_open(dir, m, &err) != MX_OK || opened_model_load(m, &c, &err) != MX_OK)
		die(dir, &err);
	return m->engine;
}

int main(int argc, char **argv)
{
	struct mx_sampling sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
	struct opened_model models[2] = {{0}};
	struct mx_err err = {0};
	struct mx_tokenizer *tokenizer;
	struct mx_tokens ids = {0};
	uint32_t prompts = 30, right[WAYS] = {0}, likeliest = 0;
	double said[WAYS] = {0};
	for (int c; (c = getopt(argc, argv, "n:t:p:")) != -1;) {
		if (c == 'n')
			prompts = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 't')
			sampling.temperature = strtof(optarg, NULL);
		else if (c == 'p')
			sampling.top_p = strtof(optarg, NULL);
		else
			die("see the head of bench/engine/guesses.c for the options", NULL);
	}
	if (optind != argc - 3 || !prompts)
		die("see the head of bench/engine/guesses.c for the options", NULL);
	mx_log_set_level(MX_LOG_WARNING);
	struct mx_engine *target = load(argv[optind], &models[0]);
	struct mx_engine *drafter = load(argv[optind + 1], &models[1]);
	struct mx_device *d = ((struct mx_model_engine *)drafter)->device;
	uint32_t vocab = models[1].plan->vocab;
	kept.own = d->ops;
	kept.ops = *d->ops;
	kept.ops.logprobs = keep_rows;
	d->ops = &kept.ops;
	kept.rows = calloc((size_t)ALL * vocab, sizeof *kept.rows);
	char *text = malloc(1 << 20);
	FILE *f = fopen(argv[optind + 2], "r");
	size_t n = f && text ? fread(text, 1, 1 << 20, f) : 0;
	if (!kept.rows || !n || mx_tokenizer_load(argv[optind], &tokenizer, &err) != MX_OK ||
	    mx_tokenizer_encode(tokenizer, text, n, false, SIZE_MAX, &ids, &err) != MX_OK ||
	    ids.n < PROMPT)
		die(argv[optind + 2], &err);
	for (uint32_t i = 0; i < prompts; i++) {
		int32_t tokens[ALL];
		memcpy(tokens, ids.ids + i * (ids.n - PROMPT) / prompts, PROMPT * sizeof *tokens);
		sampling.seed = i;
		run(target, &sampling, tokens, PROMPT, false);
		kept.n = 0;
		run(drafter, &sampling, tokens, ALL, true); /* row k is what follows token k */
		for (uint32_t at = PROMPT; at < ALL; at++) {
			const float *row = kept.rows + (size_t)(at - 1) * vocab;
			struct mx_sampling greedy = sampling;
			greedy.temperature = 0;
			struct mx_sample_row how = {.sampling = &greedy, .position = at};
			likeliest += propose(d, row, vocab, &how) == tokens[at];
			how.sampling = &sampling;
			for (size_t k = 0; k < WAYS; k++) {
				struct mx_guess guess = {.agreement = agreements[k]};
				how.guess = &guess;
				right[k] += propose(d, row, vocab, &how) == tokens[at];
				said[k] += (double)guess.probability;
			}
		}
	}
	double all = (double)prompts * ANSWER;
	printf("%.0f tokens; right (said)\nlikeliest token  %.3f\n", all, likeliest / all);
	for (size_t k = 0; k + 1 < WAYS; k++)
		printf("guess, %8.0f  %.3f (%.3f)\n", (double)agreements[k], right[k] / all, said[k] / all);
	printf("own draw         %.3f\n", right[WAYS - 1] / all);
	free(kept.rows);
	free(text);
	mx_tokens_free(&ids);
	mx_tokenizer_destroy(tokenizer);
	opened_model_close(&models[0]);
	opened_model_close(&models[1]);
	return 0;
}
