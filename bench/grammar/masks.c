/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Masks of a large vocabulary: what they cost a token, the first time and later.
 *
 *     bench/grammar/masks VOCABULARY CASES [NAME]
 *
 * VOCABULARY is what make-vocab.py writes, CASES what make-cases.py does. Every text of a case is
 * cut into tokens, the longest first, and gone through token by token: mask, accept. "cold" begins
 * without kept masks, "warm" is the same once more. Microseconds of CPU time of this thread. "used"
 * is the most of the credit of a matcher (grammar/matcher.h) that was spent at a time.
 * peers.py does the same with other libraries.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/grammar/vocabulary.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"

#define CACHE_BYTES (64u << 20)

static void die(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* A table of the tokens by their bytes, for cutting texts. */
struct index {
	uint32_t *slots;
	size_t size, longest;
};

static uint64_t hash(const uint8_t *s, size_t n)
{
	uint64_t h = 1469598103934665603u; /* FNV-1a */
	for (size_t i = 0; i < n; i++)
		h = (h ^ s[i]) * 1099511628211u;
	return h ^ h >> 29;
}

static struct index index_of(const struct bench_vocabulary *v)
{
	struct index x = {calloc(1u << 22, sizeof(*x.slots)), 1u << 22, 0};
	for (size_t i = 1; i < v->n; i++) {
		size_t n = v->offsets[i + 1] - v->offsets[i];
		size_t h = hash(v->text + v->offsets[i], n) & (x.size - 1);
		while (x.slots[h])
			h = (h + 1) & (x.size - 1);
		x.slots[h] = (uint32_t)i;
		x.longest = n > x.longest ? n : x.longest;
	}
	return x;
}

static int32_t longest(const struct bench_vocabulary *v, const struct index *x, const uint8_t *s,
                       size_t n)
{
	for (size_t k = n < x->longest ? n : x->longest; k; k--)
		for (size_t h = hash(s, k) & (x->size - 1); x->slots[h]; h = (h + 1) & (x->size - 1)) {
			size_t i = x->slots[h];
			if (v->offsets[i + 1] - v->offsets[i] == k && !memcmp(v->text + v->offsets[i], s, k))
				return (int32_t)i;
		}
	die("text", "no token begins like it");
	return 0;
}

static uint32_t rules_of(struct mx_rules *r, const char *kind, const char *text, struct mx_err *err)
{
	if (!strcmp(kind, "schema")) {
		json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
		uint32_t node = mx_rules_json_schema(r, schema, NULL, err);
		json_decref(schema);
		return node;
	}
	if (!strcmp(kind, "regex"))
		return mx_rules_regex(r, text, strlen(text), err);
	if (!strcmp(kind, "gbnf"))
		return mx_rules_gbnf(r, text, strlen(text), err);
	return mx_rules_json_object(r, NULL);
}

static struct mx_grammar *compile(const char *kind, const char *text)
{
	struct mx_rules *r = NULL;
	struct mx_grammar *g = NULL;
	struct mx_err err = {0};
	if (mx_rules_new(&r))
		die(kind, "out of memory");
	uint32_t node = rules_of(r, kind, text, &err);
	if (!node || mx_grammar_compile(r, node, NULL, &g, &err))
		die(kind, err.text);
	mx_rules_free(r);
	return g;
}

struct times {
	double *at;
	size_t n, cap;
};

static void add(struct times *t, double x)
{
	if (t->n == t->cap) {
		t->cap = t->cap ? t->cap * 2 : 1024;
		t->at = realloc(t->at, t->cap * sizeof(*t->at));
		if (!t->at)
			die("times", "out of memory");
	}
	t->at[t->n++] = x;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double quantile(const struct times *t, double q)
{
	return t->n ? t->at[(size_t)(q * (double)(t->n - 1))] : 0;
}

static void print(const char *what, struct times *t)
{
	qsort(t->at, t->n, sizeof(*t->at), ascending);
	printf("  %s %6.1f %7.1f %7.1f", what, quantile(t, 0.5), quantile(t, 0.99), quantile(t, 1));
	free(t->at);
	*t = (struct times){0};
}

/* Goes through the texts; times of masks go to *masks, of accepts to *accepts. Returns the credit
 * that was spent. */
static size_t run(struct mx_grammar *g, struct mx_grammar_vocab *gv,
                  const struct bench_vocabulary *v, const struct index *x, const json_t *texts,
                  struct times *masks, struct times *accepts)
{
	size_t least = MX_MATCHER_CREDIT;
	uint32_t *bits = calloc((v->n + 31) / 32, sizeof(*bits));
	size_t i;
	json_t *text;
	json_array_foreach(texts, i, text)
	{
		const uint8_t *s = (const uint8_t *)json_string_value(text);
		struct mx_matcher *m = NULL;
		if (!bits || mx_matcher_new(g, gv, &m))
			die("matcher", "out of memory");
		for (size_t at = 0, n = strlen((const char *)s); at < n;) {
			int32_t token = longest(v, x, s + at, n - at);
			double begin = now();
			if (mx_matcher_mask(m, bits))
				die("mask", (const char *)s + at);
			if (mx_matcher_credit(m) < least)
				least = mx_matcher_credit(m);
			double middle = now();
			if (!mx_matcher_accept(m, token) || !(bits[token / 32] >> token % 32 & 1))
				die("refused", (const char *)s + at);
			add(masks, middle - begin);
			add(accepts, now() - middle);
			at += v->offsets[token + 1] - v->offsets[token];
		}
		if (!mx_matcher_may_end(m))
			die("not whole", (const char *)s);
		mx_matcher_free(m);
	}
	free(bits);
	return MX_MATCHER_CREDIT - least;
}

static void bench_case(const struct bench_vocabulary *v, const struct index *x, const json_t *c)
{
	const char *kind = json_string_value(json_object_get(c, "kind"));
	const char *text = json_string_value(json_object_get(c, "grammar"));
	const json_t *texts = json_object_get(c, "texts");
	struct times compiles = {0}, masks = {0}, accepts = {0};
	struct mx_grammar *g = NULL;
	for (int i = 0; i < 9; i++) {
		mx_grammar_unref(g);
		double begin = now();
		g = compile(kind, text);
		add(&compiles, (now() - begin) / 1000);
	}
	struct mx_grammar_vocab *gv = NULL;
	int32_t end = 0;
	if (mx_grammar_vocab_new(v->text, v->offsets, v->n, &end, 1, CACHE_BYTES, &gv, NULL))
		die("vocabulary", "out of memory");
	qsort(compiles.at, compiles.n, sizeof(*compiles.at), ascending);
	printf("%-11s %7.2f %7zu", json_string_value(json_object_get(c, "name")),
	       quantile(&compiles, 0.5), mx_grammar_states(g));
	size_t used = run(g, gv, v, x, texts, &masks, &accepts);
	printf(" %6zu", masks.n);
	print("|", &masks);
	accepts.n = 0;
	struct mx_grammar_vocab_stats stats;
	mx_grammar_vocab_stats(gv, &stats);
	for (int i = 0; i < 3; i++)
		run(g, gv, v, x, texts, &masks, &accepts);
	print("|", &masks);
	qsort(accepts.at, accepts.n, sizeof(*accepts.at), ascending);
	printf("  | %5.1f  | %5" PRIu64 " %6.1f %6.1f  | %5.2f\n", quantile(&accepts, 0.5),
	       stats.misses, (double)stats.cache_bytes / 1024, (double)mx_grammar_bytes(g) / 1024,
	       100.0 * (double)used / MX_MATCHER_CREDIT);
	free(accepts.at);
	free(compiles.at);
	mx_grammar_unref(g);
	mx_grammar_vocab_unref(gv);
}

int main(int argc, char **argv)
{
	if (argc < 3)
		die("usage", "masks VOCABULARY CASES [NAME]");
	struct bench_vocabulary v = bench_vocabulary_read(argv[1]);
	struct index x = index_of(&v);
	json_t *cases = json_load_file(argv[2], 0, NULL), *c;
	if (!cases)
		die(argv[2], "cannot be read");
	struct mx_grammar_vocab *gv = NULL;
	struct mx_grammar_vocab_stats stats;
	int32_t end = 0;
	double begin = now();
	if (mx_grammar_vocab_new(v.text, v.offsets, v.n, &end, 1, CACHE_BYTES, &gv, NULL))
		die("vocabulary", "out of memory");
	mx_grammar_vocab_stats(gv, &stats);
	printf("%zu tokens, trie made in %.0f ms, %.1f MiB\n", v.n, (now() - begin) / 1000,
	       (double)stats.bytes / (1 << 20));
	mx_grammar_vocab_unref(gv);
	printf("%-11s %7s %7s %6s  | cold: p50     p99     max  | warm: p50     p99     max  | %5s  | "
	       "%5s %6s %6s  | %5s\n",
	       "case", "compile", "states", "masks", "accept", "kept", "KiB", "KiB", "used%");
	printf("%-11s %7s\n", "", "ms");
	size_t i;
	json_array_foreach(cases, i,
	                   c) if (argc < 4 ||
	                          !strcmp(argv[3], json_string_value(json_object_get(c, "name"))))
		bench_case(&v, &x, c);
	json_decref(cases);
	free(v.text);
	free(v.offsets);
	free(x.slots);
	return 0;
}
