/* SPDX-License-Identifier: Apache-2.0 */
/* The syntax of regular expressions: pattern -> tree. */
#ifndef MX_GRAMMAR_JSON_SCHEMA_SYNTAX_H
#define MX_GRAMMAR_JSON_SCHEMA_SYNTAX_H

#include "grammar/json_schema_dfa.h"

enum js_tree_kind { JS_CLASS, JS_SEQ, JS_ALT, JS_REPEAT, JS_ASSERT };
enum js_assert { JS_BEGIN, JS_END, JS_WORD, JS_NO_WORD };

/* Code points: sorted, disjoint, without surrogates. */
struct js_ranges {
	struct js_range *r;
	size_t n;
};

struct js_tree {
	enum js_tree_kind kind;
	struct js_tree **kid;
	size_t n_kids;
	struct js_ranges class;
	uint32_t min, max; /* repeat */
	enum js_assert assert;
};

/* A part of a pattern: begin up to end. */
struct js_pattern {
	const char *whole; /* the pattern, for positions */
	const char *begin, *end;
};

/* Returns the tree, in the arena; *words: whether \b or \B is there. Fails with the position. */
struct js_tree *js_regex_parse(struct js_base *b, const struct js_pattern *p, bool *words);
struct js_tree *js_tree_new(struct js_base *b, enum js_tree_kind kind);
void js_tree_add(struct js_base *b, struct js_tree *n, struct js_tree *kid);
/* All code points that are not in c, whose ranges may be in any order. */
struct js_ranges js_ranges_not(struct js_base *b, struct js_ranges c);
/* The word characters of \b. */
struct js_ranges js_ranges_word(struct js_base *b);

#endif
