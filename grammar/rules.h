/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context-free grammar over bytes, while it is being built: the form in which every kind of
 * constraint (GBNF, a regular expression, a JSON schema, a list of choices) reaches
 * mx_grammar_compile.
 *
 * A part of the grammar is a node, named by a number that is never 0. A node may be used as often
 * as one likes: what is used more than once and is large becomes a rule of its own. Text is UTF-8:
 * characters are given as code points and become their bytes.
 *
 * Failure is sticky. A function that cannot make its node (out of memory, over a limit, or given
 * node 0) returns 0, and so does every later call; mx_rules_error says what came first. So a
 * builder need check once, at the end. What is built is bounded (MX_RULES_*), whatever the input.
 *
 * One thread at a time.
 */
#ifndef MX_GRAMMAR_RULES_H
#define MX_GRAMMAR_RULES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MX_RULES_NO_END    UINT32_MAX /* mx_rules_repeat: any number of times */
#define MX_RULES_MAX_NODES (1u << 20) /* nodes */
#define MX_RULES_MAX_BYTES (4u << 20) /* bytes of literal text */
#define MX_RULES_MAX_DEPTH 512        /* nesting of nodes; references start anew */
#define MX_RULES_MAX_TEXT  (1u << 20) /* bytes of a regular expression or of GBNF */

struct mx_rules;

mx_status mx_rules_new(struct mx_rules **out);
void mx_rules_free(struct mx_rules *r); /* takes NULL */
/* Returns MX_OK, or the first failure with its message in *err (may be NULL). */
mx_status mx_rules_error(const struct mx_rules *r, struct mx_err *err);
/* Makes the rules fail from here on, unless they failed before, with this message. Returns 0. */
uint32_t mx_rules_fail(struct mx_rules *r, mx_status status, const char *fmt, ...) MX_PRINTF(3, 4);

/* Exactly these bytes; none is the empty text. */
uint32_t mx_rules_bytes(struct mx_rules *r, const char *bytes, size_t n);
/* One character out of ranges of code points, [first, last] each, in any order; negated: one that
 * is in none of them. Surrogates (U+D800 to U+DFFF) are in no class. */
uint32_t mx_rules_class(struct mx_rules *r, const uint32_t (*ranges)[2], size_t n, bool negated);
/* As mx_rules_class, where the character stands inside a JSON string: the quote, the backslash and
 * control characters as their escapes (the short one, and \u00XX), all others as themselves. */
uint32_t mx_rules_json_class(struct mx_rules *r, const uint32_t (*ranges)[2], size_t n,
                             bool negated);
/* One byte of lo .. hi. */
uint32_t mx_rules_byte_range(struct mx_rules *r, uint8_t lo, uint8_t hi);
/* One after the other; none is the empty text. */
uint32_t mx_rules_seq(struct mx_rules *r, const uint32_t *nodes, size_t n);
/* One of them; of none there is no text at all. */
uint32_t mx_rules_alt(struct mx_rules *r, const uint32_t *nodes, size_t n);
/* min to max times. */
uint32_t mx_rules_repeat(struct mx_rules *r, uint32_t node, uint32_t min, uint32_t max);
/* What both match, and what a matches and b does not. Both must be regular: no reference that leads
 * back to itself. Made by automata, when the grammar is compiled. */
uint32_t mx_rules_and(struct mx_rules *r, uint32_t a, uint32_t b);
uint32_t mx_rules_minus(struct mx_rules *r, uint32_t a, uint32_t b);

/* A node that leads from one state to another. */
struct mx_rules_edge {
	uint32_t from, to, node;
};
/* The texts that lead from state 0 to a state i with accept[i]; without states there are none. */
uint32_t mx_rules_automaton(struct mx_rules *r, uint32_t n_states, const bool *accept,
                            const struct mx_rules_edge *edges, size_t n_edges);

/* A reference that can be used at once and is defined later, exactly once. */
uint32_t mx_rules_declare(struct mx_rules *r);
void mx_rules_define(struct mx_rules *r, uint32_t ref, uint32_t node);
/* Gives a reference a name for messages; cut after 60 bytes. */
void mx_rules_name(struct mx_rules *r, uint32_t ref, const char *name, size_t n);

/* The texts that a regular expression matches as a whole: what ECMA-262 (flag u) and PCRE have in
 * common, without back references, look-around, word boundaries and whatever else is not regular.
 * These are refused in *err, with the offset in bytes and the column in characters. The classes \d
 * \w are ASCII and \s is Unicode's, as in ECMA-262; \p{..} takes general categories. */
uint32_t mx_rules_regex(struct mx_rules *r, const char *pattern, size_t len, struct mx_err *err);

/* GBNF as llama.cpp writes it; the result is its rule `root`. Faults name line and column. */
uint32_t mx_rules_gbnf(struct mx_rules *r, const char *text, size_t len, struct mx_err *err);

#endif
