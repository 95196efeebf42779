/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stop strings of a request as one automaton, which finds them all while it
 * reads a text byte by byte (Aho and Corasick, "Efficient string matching", 1975).
 *
 * A state says which stop strings the end of the text could be the beginning of.
 * One byte takes two transitions on average, however many and long the stop
 * strings are, and a transition at most 14 comparisons of bytes.
 */
#ifndef MX_DAEMON_SERVE_STOPS_H
#define MX_DAEMON_SERVE_STOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"
#include "proto/request.h"

/* The longest end of the text that begins a stop string: the strings [first, end) of the sorted
 * list begin with its `depth` bytes. */
struct mx_stop_state {
	uint8_t first, end;
	uint16_t depth;
};

/* Built once, then only read. */
struct mx_stops {
	uint32_t n;                    /* different stop strings, 0 = none */
	const struct mx_api_text *all; /* as the request has them */
	const uint8_t *sorted;         /* [n] indices into `all` */
	const uint32_t *offset;        /* [n] where a string's states begin in the two arrays below */
	/* Each state's next one if the text goes on otherwise: the longest shorter end of the text that
	 * begins a stop string. State (first, depth) is at offset[first] + depth. */
	const struct mx_stop_state *fail;
	const uint8_t *found; /* longest stop string that ends in a state: its index in `all` + 1 */
};

/* A text's state. All zero at its beginning. */
struct mx_stop_cursor {
	struct mx_stop_state state;
	uint64_t n_transitions; /* made so far */
};

/* A stop string in a text that was fed. */
struct mx_stop_match {
	uint32_t stop; /* index in the request's list; of equal strings the first */
	size_t end;    /* bytes of the fed text up to its end; its beginning may be in earlier text */
};

/* Builds the automaton of n stop strings (n <= MX_API_MAX_STOPS, none empty, none longer than
 * MX_API_MAX_STOP_LEN) in 5 bytes of the arena for each of their bytes. The strings must outlive
 * it. MX_E_NOMEM if the arena has no room. */
mx_status mx_stops_build(struct mx_arena *arena, const struct mx_api_text *all, uint32_t n,
                         struct mx_stops *out);

/* Reads n more bytes of a text. True if a stop string ends in them; then *match is the one that
 * begins first, of those the longest. */
bool mx_stops_feed(const struct mx_stops *s, struct mx_stop_cursor *c, const char *text, size_t n,
                   struct mx_stop_match *match);

#endif
