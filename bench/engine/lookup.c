/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/engine/lookup measures how often prompt lookup guesses right, as chains and as trees, on
 * texts: no model is needed, since the tokens that a model would draw are those of the text.
 *
 *   lookup [-p PERCENT] MODEL_DIR TEXT...     each text's first PERCENT (50) are its prompt
 *   lookup -e MODEL_DIR OLD NEW...            pairs: the prompt is OLD, the answer is NEW
 *
 * The folder's tokenizer makes the tokens. For 1 .. 8 drafts a step it prints the tokens of a step
 * and the microseconds of a proposal, for chains and for trees, and how many proposals were trees.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/core.h"
#include "model/tokenizer/tokenizer.h"

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "lookup: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
	exit(1);
}

struct ids {
	int32_t *p;
	uint32_t n;
};

static struct ids read_tokens(const struct mx_tokenizer *t, const char *path)
{
	struct mx_tokens out = {0};
	struct mx_err err = {0};
	FILE *f = fopen(path, "rb");
	if (!f)
		die(path, NULL);
	char *text = malloc(8 << 20);
	size_t n = text ? fread(text, 1, 8 << 20, f) : 0;
	fclose(f);
	if (!n || mx_tokenizer_encode(t, text, n, false, SIZE_MAX, &out, &err) != MX_OK)
		die(path, &err);
	free(text);
	return (struct ids){out.ids, (uint32_t)out.n};
}

struct counts {
	uint64_t tokens, steps, trees, ns;
};

/* Goes through the answer, with `most` drafts a step. */
static void follow(const struct ids *prompt, const struct ids *answer, uint32_t most, bool trees,
                   struct counts *c)
{
	struct mx_draft_source *source;
	struct mx_seq s = {.tokens = {prompt->p, prompt->n, answer->p},
	                   .n_prompt = prompt->n,
	                   .n = prompt->n,
	                   .params.max_len = prompt->n + answer->n};
	const struct mx_seq_params p = {0};
	if (mx_draft_ngram_create(trees, &source) != MX_OK ||
	    mx_draft_open(source, &s, &p, &s.draft) != MX_OK)
		die("out of memory", NULL);
	while (s.n < s.params.max_len) {
		struct mx_step_item item = {.seq = &s, .n_draft = most};
		uint32_t last = MX_NO_DRAFT;
		uint64_t begin = mx_now_ns();
		mx_draft_propose(source, &item, 1);
		c->ns += mx_now_ns() - begin;
		c->trees += item.parent != NULL;
		do { /* the token behind what is kept is always drawn */
			last = mx_core_accepts(&item, last, answer->p[s.n++ - s.n_prompt]);
			c->tokens++;
		} while (last != MX_NO_DRAFT && s.n < s.params.max_len);
		c->steps++;
	}
	mx_draft_close(&s.draft);
	mx_draft_source_destroy(source);
}

int main(int argc, char **argv)
{
	uint32_t percent = 50;
	bool edit = false;
	for (int c; (c = getopt(argc, argv, "ep:")) != -1;) {
		if (c == 'p')
			percent = (uint32_t)strtoul(optarg, NULL, 10);
		else if (c == 'e')
			edit = true;
		else
			die("see the head of bench/engine/lookup.c for the options", NULL);
	}
	int n = argc - optind - 1, each = edit ? 2 : 1;
	struct mx_tokenizer *t;
	struct mx_err err = {0};
	if (n < 1 || n % each || percent > 99)
		die("see the head of bench/engine/lookup.c for the options", NULL);
	if (mx_tokenizer_load(argv[optind], &t, &err) != MX_OK)
		die(argv[optind], &err);
	struct ids *texts = calloc((size_t)n, sizeof *texts);
	if (!texts)
		die("out of memory", NULL);
	for (int i = 0; i < n; i++)
		texts[i] = read_tokens(t, argv[optind + 1 + i]);
	printf("drafts   chain   us   tree   us   gain  proposals that are trees\n");
	for (uint32_t most = 1; most <= MX_MAX_DRAFT; most++) {
		struct counts c[2] = {{0}};
		for (int i = 0; i < n; i += each)
			for (int tree = 0; tree < 2; tree++) {
				struct ids prompt = texts[i], answer = texts[i + each - 1];
				if (!edit) {
					prompt.n = (uint32_t)((uint64_t)prompt.n * percent / 100);
					answer = (struct ids){texts[i].p + prompt.n, texts[i].n - prompt.n};
				}
				follow(&prompt, &answer, most, tree, &c[tree]);
			}
		double chain = (double)c[0].tokens / (double)c[0].steps;
		double tree = (double)c[1].tokens / (double)c[1].steps;
		printf("%6u  %6.3f %4.1f %6.3f %4.1f  %5.3f  %.2f\n", most, chain,
		       (double)c[0].ns / 1e3 / (double)c[0].steps, tree,
		       (double)c[1].ns / 1e3 / (double)c[1].steps, tree / chain,
		       (double)c[1].trees / (double)c[1].steps);
	}
	for (int i = 0; i < n; i++)
		free(texts[i].p);
	free(texts);
	mx_tokenizer_destroy(t);
	return 0;
}
