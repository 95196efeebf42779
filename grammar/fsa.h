/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finite automata of a grammar's rules: an NFA as it is written out from nodes, and the automaton
 * without empty edges that is made of it. Edges are ranges of bytes, or calls of a rule.
 */
#ifndef MX_GRAMMAR_FSA_H
#define MX_GRAMMAR_FSA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MX_NO_CALL UINT32_MAX

/* What a compilation may still use; shared by all its parts. */
struct mx_budget {
	size_t states, work;
};
/* Takes n steps; false if there are not so many left. */
static inline bool mx_budget_work(struct mx_budget *b, size_t n)
{
	bool enough = b->work >= n;
	b->work = enough ? b->work - n : 0;
	return enough;
}

enum mx_nfa_kind { MX_NFA_EMPTY, MX_NFA_BYTES, MX_NFA_CALL };

struct mx_nfa_edge {
	uint32_t next; /* of the same state, 0 ends */
	uint32_t to;
	uint32_t call; /* rule */
	uint8_t kind, lo, hi;
};

struct mx_nfa {
	uint32_t *heads; /* [n_states] the first edge of each, 0 for none */
	size_t n_states, cap_states;
	struct mx_nfa_edge *edges; /* edge 0 is not used */
	size_t n_edges, cap_edges;
	size_t limit; /* states and edges, each */
	uint32_t start, final;
	mx_status status; /* the first failure */
};

/* Begins an automaton of a start and a final state. */
void mx_nfa_init(struct mx_nfa *a, size_t limit);
void mx_nfa_free(struct mx_nfa *a);
uint32_t mx_nfa_state(struct mx_nfa *a);
void mx_nfa_empty(struct mx_nfa *a, uint32_t from, uint32_t to);
void mx_nfa_bytes(struct mx_nfa *a, uint32_t from, uint32_t to, uint8_t lo, uint8_t hi);
void mx_nfa_call(struct mx_nfa *a, uint32_t from, uint32_t to, uint32_t rule);
/* Adds paths for one character of the ranges, in UTF-8. */
void mx_nfa_class(struct mx_nfa *a, uint32_t from, uint32_t to, const uint32_t (*ranges)[2],
                  size_t n);

struct mx_fsa_edge {
	uint32_t to;
	uint32_t call; /* rule, or MX_NO_CALL */
	uint8_t lo, hi;
};

/* State 0 is the start. The edges of state i are [first[i], first[i + 1]): those of bytes in the
 * order of bytes, then calls. Without states it matches nothing. */
struct mx_fsa {
	uint32_t n_states;
	uint32_t *first;
	struct mx_fsa_edge *edges;
	uint8_t *accept;
	bool deterministic; /* no byte and no rule has two edges of one state */
};
void mx_fsa_free(struct mx_fsa *f);

/* What is known of the rules that an automaton calls; NULL entries: there are no calls. */
struct mx_callees {
	const uint8_t *nullable;   /* [rule] it matches the empty text */
	const uint8_t *productive; /* [rule] it matches any text that is not empty */
};

/* Makes the smallest deterministic automaton, or, if that has too many states, one that is not
 * deterministic. keep_empty: else the empty text is taken out of what it matches.
 * MX_E_LIMIT, MX_E_NOMEM. */
mx_status mx_fsa_make(const struct mx_nfa *a, const struct mx_callees *callees, bool keep_empty,
                      struct mx_budget *budget, struct mx_fsa *out);
/* Drops what leads nowhere, in place, and minimises the automaton if it is deterministic. */
mx_status mx_fsa_minimise(struct mx_fsa *f, struct mx_budget *budget);
/* What a and b both match, or, with `minus`, what a matches and b does not. Both are deterministic
 * and without calls. */
mx_status mx_fsa_product(const struct mx_fsa *a, const struct mx_fsa *b, bool minus,
                         struct mx_budget *budget, struct mx_fsa *out);

#endif
