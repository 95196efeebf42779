/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tries JSON schemas, for scripts: reads a JSON object a line from standard input,
 *
 *     {"schema": S, "texts": [text, ...], "walks": n, "seed": n, "any_whitespace": bool}
 *
 * and writes one a line: {"ms": time to compile, "states": n, "texts": [...], "walks": [...]}, or
 * {"status", "where", "error"}. Of each text it says whether the grammar takes it ("yes"), only its
 * beginning ("begin") or not even that ("no"), by bytes and, if it is taken, token by token under
 * every vocabulary; "split" where these disagree. A walk is a text of tokens that are drawn among
 * those that the masks allow; one that gets too long is left out.
 *
 *     json_schema_try [--tokens N] [FOLDER ...]    folders of models, whose tokenizers are used
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "grammar/json_schema.h"
#include "tests/grammar/vocabs.h"

enum { MAX_VOCABS = 8 };

static struct test_vocab vocabs[MAX_VOCABS];
static int n_vocabs;
static size_t max_tokens = 400;

/* ---- texts --------------------------------------------------------------------------------- */

static const char *by_bytes(struct mx_grammar *g, const char *s, size_t n)
{
	struct mx_matcher *m = NULL;
	if (mx_matcher_new(g, vocabs[0].v, &m) != MX_OK)
		test_die("out of memory");
	const char *result = !mx_matcher_accept_bytes(m, s, n) ? "no"
	                     : mx_matcher_may_end(m)           ? "yes"
	                                                       : "begin";
	if (mx_matcher_status(m) != MX_OK)
		result = "limit";
	mx_matcher_free(m);
	return result;
}

static const char *try_text(struct mx_grammar *g, const char *s, size_t n)
{
	const char *result = by_bytes(g, s, n);
	for (int i = 0; i < n_vocabs && strcmp(result, "yes") == 0; i++)
		if (!test_vocab_takes(&vocabs[i], g, s, n))
			result = "split";
	return result;
}

/* ---- walks --------------------------------------------------------------------------------- */

/* Draws an allowed token. Where the text may end, it mostly does. */
static int32_t draw_token(struct mx_matcher *m, const struct test_vocab *v, uint32_t *bits)
{
	uint32_t n = 0, pick;
	mx_status st = mx_matcher_mask(m, bits);
	if (st != MX_OK)
		return st == MX_E_NOTFOUND ? -2 : -1;
	int32_t end = (int32_t)v->n - 1;
	if (bits[end / 32] >> end % 32 & 1 && test_draw(3))
		return end;
	for (size_t w = 0; w <= v->n / 32; w++)
		n += (uint32_t)__builtin_popcount(bits[w]);
	/* closing brackets and quotes more often, or strings and lists never end */
	for (int k = 0; k < 2 && test_draw(2); k++) {
		uint32_t t = (uint8_t) "\"]},"[test_draw(4)];
		if (!v->tokenizer && bits[t / 32] >> t % 32 & 1)
			return (int32_t)t;
	}
	pick = test_draw(n);
	for (size_t i = 0; i < v->n; i++)
		if (bits[i / 32] >> i % 32 & 1 && !pick--)
			return (int32_t)i;
	return -1;
}

/* Returns the text, or NULL if it got too long. *stuck: no token was allowed. */
static json_t *walk(struct mx_grammar *g, const struct test_vocab *v, bool *stuck)
{
	struct mx_matcher *m = NULL;
	struct mx_buf b = {0};
	uint32_t *bits = mx_calloc(v->n / 32 + 1, sizeof *bits);
	if (!bits || mx_matcher_new(g, v->v, &m) != MX_OK)
		test_die("out of memory");
	json_t *text = NULL;
	for (size_t i = 0; i < max_tokens && !text; i++) {
		int32_t t = draw_token(m, v, bits);
		if (t < 0) {
			*stuck = t == -2;
			break;
		}
		if (!mx_matcher_accept(m, t))
			test_die("a token of the mask is refused");
		mx_buf_append(&b, v->text.data + v->offset[t], v->offset[t + 1] - v->offset[t]);
		if ((size_t)t == v->n - 1 && !(text = json_stringn(mx_buf_str(&b), b.len)))
			test_die("a text that is no UTF-8");
	}
	mx_matcher_free(m);
	mx_buf_free(&b);
	free(bits);
	return text;
}

/* ---- lines --------------------------------------------------------------------------------- */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static json_t *try_line(const json_t *line)
{
	struct mx_rules *r = NULL;
	struct mx_grammar *g = NULL;
	struct mx_err err = {0};
	struct mx_json_options options = {.any_whitespace =
	                                      json_is_true(json_object_get(line, "any_whitespace"))};
	double begin = now();
	if (mx_rules_new(&r) != MX_OK)
		test_die("out of memory");
	uint32_t root = mx_rules_json_schema(r, json_object_get(line, "schema"), &options, &err);
	double rules = now();
	mx_status st = root ? mx_grammar_compile(r, root, NULL, &g, &err) : err.status;
	double end = now();
	mx_rules_free(r);
	if (st != MX_OK)
		return json_pack("{s:s, s:s, s:s, s:f}", "status", mx_status_str(st), "where", err.where,
		                 "error", err.text, "ms", end - begin);
	json_t *texts = json_array(), *walks = json_array(), *v;
	size_t i;
	test_seed((uint64_t)json_integer_value(json_object_get(line, "seed")));
	json_array_foreach(json_object_get(line, "texts"), i, v) json_array_append_new(
		texts, json_string(try_text(g, json_string_value(v), json_string_length(v))));
	bool stuck = false;
	for (long n = (long)json_integer_value(json_object_get(line, "walks")); n > 0; n--) {
		json_t *text = walk(g, &vocabs[n % n_vocabs], &stuck);
		if (text)
			json_array_append_new(walks, text);
	}
	json_t *out = json_pack("{s:f, s:f, s:I, s:o, s:o, s:b}", "rules_ms", rules - begin, "ms",
	                        end - begin, "states", (json_int_t)mx_grammar_states(g), "texts", texts,
	                        "walks", walks, "stuck", stuck);
	mx_grammar_unref(g);
	return out;
}

int main(int argc, char **argv)
{
	test_vocab_made_up(&vocabs[n_vocabs++], 0);
	test_vocab_made_up(&vocabs[n_vocabs++], 800);
	for (int i = 1; i < argc && n_vocabs < MAX_VOCABS; i++) {
		if (strcmp(argv[i], "--tokens") == 0 && i + 1 < argc)
			max_tokens = strtoul(argv[++i], NULL, 10);
		else
			test_vocab_of_model(&vocabs[n_vocabs++], argv[i]);
	}
	char *text = NULL;
	size_t cap = 0;
	for (ssize_t n; (n = getline(&text, &cap, stdin)) > 0;) {
		json_t *line = json_loadb(text, (size_t)n, JSON_ALLOW_NUL, NULL);
		json_t *out = line ? try_line(line) : json_pack("{s:s}", "error", "not JSON");
		json_dumpf(out, stdout, JSON_COMPACT);
		putchar('\n');
		fflush(stdout);
		json_decref(line);
		json_decref(out);
	}
	free(text);
	for (int i = 0; i < n_vocabs; i++)
		test_vocab_free(&vocabs[i]);
	return 0;
}
