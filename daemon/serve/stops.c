/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/stops.h"

#include <string.h>

_Static_assert(MX_API_MAX_STOPS < UINT8_MAX && MX_API_MAX_STOP_LEN <= UINT16_MAX,
               "the fields of a state are wide enough");

static const struct mx_api_text *sorted(const struct mx_stops *s, size_t i)
{
	return &s->all[s->sorted[i]];
}

static size_t at(const struct mx_stops *s, struct mx_stop_state state)
{
	return s->offset[state.first] + state.depth;
}

/* Returns the first string of [first, end) whose byte at `depth` is not below `byte`. */
static uint8_t lower_bound(const struct mx_stops *s, uint8_t first, uint8_t end, uint16_t depth,
                           unsigned byte)
{
	while (first < end) {
		uint8_t mid = (uint8_t)((first + end) / 2);
		if ((unsigned char)sorted(s, mid)->s[depth] < byte)
			first = (uint8_t)(mid + 1);
		else
			end = mid;
	}
	return first;
}

/* Reads a byte where it continues a stop string. False if it continues none. */
static bool child(const struct mx_stops *s, struct mx_stop_state from, unsigned char byte,
                  struct mx_stop_state *out)
{
	/* the string that is no longer than the state comes first in its range */
	if (sorted(s, from.first)->len == from.depth && ++from.first == from.end)
		return false;
	uint8_t first = lower_bound(s, from.first, from.end, from.depth, byte);
	uint8_t end = lower_bound(s, first, from.end, from.depth, byte + 1u);
	if (first == end)
		return false;
	*out = (struct mx_stop_state){first, end, (uint16_t)(from.depth + 1)};
	return true;
}

static struct mx_stop_state root(const struct mx_stops *s)
{
	return (struct mx_stop_state){0, (uint8_t)s->n, 0};
}

/* Reads a byte: the state becomes that of the longest end of the text that begins a stop string.
 * Returns the number of transitions. */
static unsigned step(const struct mx_stops *s, struct mx_stop_state *state, unsigned char byte)
{
	unsigned n = 1;
	while (!child(s, *state, byte, state)) {
		if (!state->depth)
			return n;
		*state = s->fail[at(s, *state)];
		n++;
	}
	return n;
}

/* Compares two strings as unsigned bytes; a prefix comes before what it is a prefix of. */
static int compare(const struct mx_api_text *a, const struct mx_api_text *b)
{
	int order = memcmp(a->s, b->s, a->len < b->len ? a->len : b->len);
	return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Sorts the strings by insertion, of equal ones only the first. Returns how many there are. */
static uint32_t sort(const struct mx_api_text *all, uint32_t n, uint8_t *order)
{
	uint32_t m = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t to = m;
		int c = 1;
		while (to > 0 && (c = compare(&all[order[to - 1]], &all[i])) > 0)
			to--;
		if (to > 0 && c == 0)
			continue;
		memmove(order + to + 1, order + to, m - to);
		order[to] = (uint8_t)i;
		m++;
	}
	return m;
}

/* Fills in `fail` and `found` of a state's children, and adds them to `next`. */
static uint32_t expand(const struct mx_stops *s, struct mx_stop_state state,
                       struct mx_stop_state *fail, uint8_t *found, struct mx_stop_state *next,
                       uint32_t n_next)
{
	uint32_t i = state.first + (sorted(s, state.first)->len == state.depth);
	while (i < state.end) {
		unsigned char byte = (unsigned char)sorted(s, i)->s[state.depth];
		struct mx_stop_state c, f = root(s);
		if (!child(s, state, byte, &c))
			return n_next; /* never: the byte was taken from a string of the state */
		if (state.depth) {
			f = fail[at(s, state)];
			step(s, &f, byte);
		}
		fail[at(s, c)] = f;
		bool whole = sorted(s, c.first)->len == c.depth;
		found[at(s, c)] = whole ? (uint8_t)(s->sorted[c.first] + 1) : found[at(s, f)];
		next[n_next++] = c;
		i = c.end;
	}
	return n_next;
}

mx_status mx_stops_build(struct mx_arena *arena, const struct mx_api_text *all, uint32_t n,
                         struct mx_stops *out)
{
	*out = (struct mx_stops){0};
	if (!n)
		return MX_OK;
	uint8_t *order = mx_arena_alloc(arena, n);
	uint32_t *offset = mx_arena_alloc(arena, n * sizeof(*offset));
	if (!order || !offset)
		return MX_E_NOMEM;
	struct mx_stops s = {.n = sort(all, n, order), .all = all, .sorted = order, .offset = offset};
	size_t n_states = 0;
	uint16_t longest = 0;
	for (uint32_t i = 0; i < s.n; i++) {
		size_t len = sorted(&s, i)->len;
		offset[i] = (uint32_t)n_states;
		n_states += len + 1;
		if (len > longest)
			longest = (uint16_t)len;
	}
	struct mx_stop_state *fail = mx_arena_alloc(arena, n_states * sizeof(*fail));
	uint8_t *found = mx_arena_alloc(arena, n_states);
	if (!fail || !found)
		return MX_E_NOMEM;
	s.fail = fail;
	s.found = found;
	/* Breadth first: a state's `fail` is shorter than the state. A level has at most n states. */
	struct mx_stop_state levels[2][MX_API_MAX_STOPS] = {{root(&s)}};
	uint32_t n_level = 1;
	for (uint16_t depth = 0; depth < longest; depth++) {
		uint32_t n_next = 0;
		for (uint32_t i = 0; i < n_level; i++)
			n_next = expand(&s, levels[depth % 2][i], fail, found, levels[(depth + 1) % 2], n_next);
		n_level = n_next;
	}
	*out = s;
	return MX_OK;
}

bool mx_stops_feed(const struct mx_stops *s, struct mx_stop_cursor *c, const char *text, size_t n,
                   struct mx_stop_match *match)
{
	if (!s->n)
		return false;
	struct mx_stop_state state = c->state.depth ? c->state : root(s);
	/* beginnings relative to the fed text's, which may be negative */
	ptrdiff_t best = PTRDIFF_MAX;
	for (size_t i = 0; i < n; i++) {
		c->n_transitions += step(s, &state, (unsigned char)text[i]);
		uint8_t found = s->found[at(s, state)];
		if (!found)
			continue;
		ptrdiff_t begin = (ptrdiff_t)(i + 1) - (ptrdiff_t)s->all[found - 1].len;
		if (begin <= best) { /* of two that begin there, the later end is the longer */
			best = begin;
			*match = (struct mx_stop_match){found - 1u, i + 1};
		}
	}
	c->state = state;
	return best != PTRDIFF_MAX;
}
