/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/engine/form.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/grammar/vocabulary.h"
#include "grammar/json_schema.h"

/* What agents ask for: names, numbers, choices, dates, lists, text of a greatest length. */
static const char schema[] =
	"{\"type\":\"array\",\"minItems\":1000,\"items\":{\"type\":\"object\",\"properties\":{"
	"\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":20},"
	"\"kind\":{\"enum\":[\"person\",\"place\",\"thing\",\"event\"]},"
	"\"count\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":9999},"
	"\"share\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1},"
	"\"since\":{\"type\":\"string\",\"format\":\"date\"},"
	"\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":12},\"maxItems\":4},"
	"\"note\":{\"type\":\"string\",\"maxLength\":60}},"
	"\"required\":[\"name\",\"kind\",\"count\",\"share\",\"since\",\"tags\",\"note\"],"
	"\"additionalProperties\":false}}";

static _Noreturn void die(const char *what, const struct mx_err *err)
{
	fprintf(stderr, "%s: %s\n", what, err->text);
	exit(1);
}

struct form form_open(const char *path, size_t n_tokens)
{
	struct form f = {0};
	struct mx_rules *rules = NULL;
	struct mx_err err = {.text = "out of memory"};
	json_t *parsed = json_loads(schema, 0, NULL);
	if (!parsed || mx_rules_new(&rules) != MX_OK)
		die("schema", &err);
	uint32_t root = mx_rules_json_schema(rules, parsed, NULL, &err);
	if (!root || mx_grammar_compile(rules, root, NULL, &f.grammar, &err) != MX_OK)
		die("schema", &err);
	mx_rules_free(rules);
	json_decref(parsed);
	struct bench_vocabulary v = bench_vocabulary_read(path);
	for (; v.n < n_tokens; v.n++) /* the others have no text */
		v.offsets[v.n + 1] = v.offsets[v.n];
	if (mx_grammar_vocab_new(v.text, v.offsets, n_tokens, NULL, 0, 64u << 20, &f.vocabulary, &err))
		die(path, &err);
	free(v.text);
	free(v.offsets);
	return f;
}

struct mx_constraint *form_constraint(const struct form *f)
{
	const struct mx_constraint_ends none = {0};
	struct mx_constraint *c = NULL;
	struct mx_err err = {.text = "out of memory"};
	if (mx_constraint_new(f->grammar, f->vocabulary, &none, &c) != MX_OK)
		die("constraint", &err);
	return c;
}

void form_close(struct form *f)
{
	mx_grammar_unref(f->grammar);
	mx_grammar_vocab_unref(f->vocabulary);
}
