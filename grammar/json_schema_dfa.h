/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the compiler of JSON schemas calculates with: sets of strings as deterministic automata over
 * code points. They are closed under union, intersection and complement, and emptiness and
 * finiteness are decided, so constraints of strings and numbers can be combined and negated
 * exactly.
 *
 * A `struct js_base` belongs to one compilation. Automata live in its arena and are immutable. A
 * failure (memory, too many states) leaves by longjmp to the entry point (json_schema.c), so no
 * function here returns an error and none may hold memory outside the arenas.
 */
#ifndef MX_GRAMMAR_JSON_SCHEMA_DFA_H
#define MX_GRAMMAR_JSON_SCHEMA_DFA_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"

enum {
	JS_MAX_STATES = 20000, /* of one automaton: a pattern of 60 states with a maxLength of 300 */
	JS_MAX_WORK = 4 << 20, /* states and edges visited by one compilation, about a second */
	JS_DEAD = UINT32_MAX,  /* no state */
	JS_MAX_CODE = 0x10ffff,
};

struct js_base {
	struct mx_arena arena;   /* what lives as long as the compilation */
	struct mx_arena scratch; /* what lives as long as one operation */
	struct mx_err *err;
	/* Writes the JSON pointer of the keyword in work; NULL: not known. */
	void (*place)(const struct js_base *b, char *out, size_t size);
	uint32_t work;
	const struct js_dfa *any, *numbers, *integers, *formats[24]; /* made at their first use */
	jmp_buf fail;
};

/* Fills the error record with the place in work and the message, and leaves the compilation. */
_Noreturn void js_fail(struct js_base *b, mx_status status, const char *fmt, ...) MX_PRINTF(3, 4);
/* Zeroed memory of the arena, or of the scratch arena, for n things of `size` bytes. */
void *js_alloc(struct js_base *b, size_t n, size_t size);
void *js_scratch(struct js_base *b, size_t n, size_t size);
/* Makes room for one more element in an array of the arena that holds n elements. Capacities are
 * powers of two, so the caller keeps none. Returns the array, moved or not. */
void *js_grow(struct js_base *b, void *array, size_t n, size_t size);
/* Counts work; fails when a compilation has done too much. */
void js_work(struct js_base *b, size_t n);

struct js_range {
	uint32_t lo, hi;
};

struct js_edge {
	uint32_t lo, hi, to; /* code points lo..hi, both included */
};

struct js_state {
	struct js_edge *edge; /* sorted, disjoint */
	uint32_t n_edges;
	bool accept;
};

/* Every state leads to an accepting one; state 0 is the start. n == 0: the empty set. */
struct js_dfa {
	struct js_state *state;
	uint32_t n;
};

/* All strings of Unicode scalar values. */
const struct js_dfa *js_dfa_all(struct js_base *b);
/* The strings of min to max code points; max UINT32_MAX: no end. */
const struct js_dfa *js_dfa_length(struct js_base *b, uint32_t min, uint32_t max);

struct js_text {
	const char *s; /* UTF-8 */
	size_t len;
};
/* The set of these n texts. */
const struct js_dfa *js_dfa_texts(struct js_base *b, const struct js_text *text, size_t n);

const struct js_dfa *js_dfa_and(struct js_base *b, const struct js_dfa *x, const struct js_dfa *y);
const struct js_dfa *js_dfa_or(struct js_base *b, const struct js_dfa *x, const struct js_dfa *y);
/* The strings of x that are not in y. */
const struct js_dfa *js_dfa_minus(struct js_base *b, const struct js_dfa *x,
                                  const struct js_dfa *y);

/* Removes states that lead nowhere and merges those that mean the same. The edges of `raw` must be
 * sorted and disjoint; its states may lie in the scratch arena, the result lies in the arena. Frees
 * the scratch arena: every operation ends with it. */
const struct js_dfa *js_dfa_finish(struct js_base *b, const struct js_dfa *raw);

bool js_dfa_accepts(const struct js_dfa *x, const char *s, size_t len);
/* Whether the set is finite. */
bool js_dfa_finite(struct js_base *b, const struct js_dfa *x);
/* If the set has at most `max` members: writes them to out[max] (in the arena) and returns their
 * number. Else returns max + 1. */
size_t js_dfa_members(struct js_base *b, const struct js_dfa *x, size_t max, struct js_text *out);

/* Adds an edge behind the others of s, merging it with the last one if they touch and agree.
 * `arena`: where the edges of s lie. */
void js_edge_add(struct js_base *b, struct mx_arena *arena, struct js_state *s, struct js_edge e);

/* Decodes the UTF-8 sequence at s (n > 0 bytes) and sets *len. The text is valid UTF-8. */
uint32_t js_utf8(const char *s, size_t n, size_t *len);

#endif
