/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is inside struct mx_grammar, for the files of this folder.
 */
#ifndef MX_GRAMMAR_AUTOMATON_H
#define MX_GRAMMAR_AUTOMATON_H

#include <stdatomic.h>

#include "grammar/grammar.h"

/* A call of a rule. Where nothing follows it in the calling rule (tail), no frame is needed. */
struct mx_gcall {
	uint32_t rule;
	uint32_t start; /* state of the rule that is called */
	uint32_t back;  /* state behind the call */
	bool tail;
};

struct mx_gedge {
	uint32_t to;
	uint8_t lo, hi; /* bytes */
};

/* Edges and calls of state i are those from its first up to the first of state i + 1. */
struct mx_gstate {
	uint32_t edges, calls;
	uint32_t rule;
	uint32_t row;   /* number of its row in rows[], or MX_NO_ROW */
	uint32_t loop;  /* groups of bytes that lead on, in a way that the next `budget` bytes of them
	                   are taken, whichever they are; MX_BYTES_HIGH: characters that are not ASCII */
	uint8_t budget; /* 255: any number */
	uint8_t common; /* as budget, of the groups in mx_grammar.common */
	bool accept;    /* the rule may end here */
};
#define MX_NO_ROW   UINT32_MAX
#define MX_NO_STATE UINT32_MAX

struct mx_grule {
	uint32_t start;     /* its first state; its states stand together */
	bool deterministic; /* a byte has one edge at most; edges are in the order of bytes */
	uint32_t first[8];  /* bit a byte: with which its texts begin */
	uint32_t follow[8]; /* with which something can follow them */
};

struct mx_grammar {
	atomic_uint references;
	uint64_t id;              /* of this grammar in the process */
	struct mx_gstate *states; /* [n_states + 1] state 0 is the start */
	uint32_t n_states;
	struct mx_gedge *edges;
	struct mx_gcall *calls;
	struct mx_grule *rules;
	uint32_t n_rules;
	uint32_t (*rows)[256]; /* for states of many edges: the next state by byte, or MX_NO_STATE */
	uint32_t n_rows;
	uint32_t common; /* groups of bytes that are taken in more states than any others */
	size_t bytes;
};

static inline bool mx_byte_in(const uint32_t set[8], uint8_t byte)
{
	return set[byte >> 5] >> (byte & 31) & 1;
}

#endif
