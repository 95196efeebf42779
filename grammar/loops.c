/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/loops.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/bytes.h"

static uint32_t next(const struct mx_grammar *g, uint32_t s, uint8_t byte)
{
	if (g->states[s].row != MX_NO_ROW)
		return g->rows[g->states[s].row][byte];
	for (uint32_t i = g->states[s].edges; i < g->states[s + 1].edges; i++)
		if (g->edges[i].lo <= byte && byte <= g->edges[i].hi)
			return g->edges[i].to;
	return MX_NO_STATE;
}

/* The state to which all strings of `n` ranges of bytes lead, or MX_NO_STATE. */
static uint32_t target(const struct mx_grammar *g, uint32_t s, const uint8_t (*ranges)[2], int n)
{
	uint32_t to = MX_NO_STATE;
	if (!n)
		return s;
	uint32_t last = MX_NO_STATE;
	for (int b = ranges[0][0]; b <= ranges[0][1]; b++) {
		uint32_t via = next(g, s, (uint8_t)b);
		if (via == MX_NO_STATE || g->states[via].calls != g->states[via + 1].calls ||
		    (n > 1 && g->states[via].accept))
			return MX_NO_STATE;
		if (b > ranges[0][0] && via == last)
			continue;
		last = via;
		uint32_t end = target(g, via, ranges + 1, n - 1);
		if (end == MX_NO_STATE || (to != MX_NO_STATE && end != to))
			return MX_NO_STATE;
		to = end;
	}
	return to;
}

/* The state to which all characters that are not ASCII lead from s, or MX_NO_STATE. */
static uint32_t behind_characters(const struct mx_grammar *g, uint32_t s)
{
	static const struct {
		int n;
		uint8_t ranges[4][2];
	} encodings[] = {
		{2, {{0xc2, 0xdf}, {0x80, 0xbf}}},
		{3, {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}},
		{3, {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}}},
		{3, {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}},
		{3, {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}}},
		{4, {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
		{4, {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
		{4, {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}},
	};
	uint32_t t = target(g, s, encodings[0].ranges, encodings[0].n);
	for (int i = 1; i < 8 && t != MX_NO_STATE; i++)
		if (target(g, s, encodings[i].ranges, encodings[i].n) != t)
			t = MX_NO_STATE;
	return t;
}

/* The state behind the most usual bytes. */
static uint32_t usual_next(const struct mx_grammar *g, uint32_t s)
{
	static const uint8_t bytes[] = "e0 A";
	uint32_t to = MX_NO_STATE;
	for (int i = 0; to == MX_NO_STATE && bytes[i]; i++)
		to = next(g, s, bytes[i]);
	return to;
}

/* The groups of bytes that all lead from s to t; chars: the state behind characters that are not
 * ASCII. */
static uint32_t groups_to(const struct mx_grammar *g, uint32_t s, uint32_t t, uint32_t chars)
{
	uint32_t yes = 0, no = MX_BYTES_HIGH;
	for (int b = 0; b < 0x80; b++)
		*(next(g, s, (uint8_t)b) == t ? &yes : &no) |= mx_byte_bit((uint8_t)b);
	yes &= ~no;
	return chars == t ? yes | MX_BYTES_HIGH : yes;
}

/* The groups of bytes that are all taken in s. */
static uint32_t groups_taken(const struct mx_grammar *g, uint32_t s, uint32_t chars)
{
	uint32_t no = chars == MX_NO_STATE ? MX_BYTES_HIGH : 0;
	for (int b = 0; b < 0x80; b++)
		if (next(g, s, (uint8_t)b) == MX_NO_STATE)
			no |= mx_byte_bit((uint8_t)b);
	return ~no;
}

/* ---- the groups that most states take ------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/* The value that most elements of a list have which are not 0; sorts the list. */
static uint32_t most_frequent(uint32_t *list, uint32_t n)
{
	uint32_t best = 0, most = 0;
	qsort(list, n, sizeof(*list), by_value);
	for (uint32_t i = 0, k; i < n; i = k) {
		for (k = i + 1; k < n && list[k] == list[i]; k++)
			;
		if (list[i] && k - i > most) {
			most = k - i;
			best = list[i];
		}
	}
	return best;
}

/* Calls f for the states to which bytes of the common groups lead from s. */
typedef void edge_f(void *arg, uint32_t from, uint32_t to);
static void each_common(const struct mx_grammar *g, uint32_t s, const uint32_t *chars, edge_f *f,
                        void *arg)
{
	uint32_t last = MX_NO_STATE;
	for (int b = 0; b < 0x80; b++) {
		uint32_t to = g->common & mx_byte_bit((uint8_t)b) ? next(g, s, (uint8_t)b) : MX_NO_STATE;
		if (to != MX_NO_STATE && to != last)
			f(arg, s, last = to);
	}
	if (g->common & MX_BYTES_HIGH && chars[s] != last)
		f(arg, s, chars[s]);
}

struct reversed {
	uint32_t *first; /* [n_states + 2] of edges[] by the state to which they lead */
	uint32_t *edges; /* states from which they come */
};

static void count_edge(void *arg, uint32_t from, uint32_t to)
{
	(void)from;
	((struct reversed *)arg)->first[to + 2]++;
}

static void put_edge(void *arg, uint32_t from, uint32_t to)
{
	struct reversed *r = arg;
	r->edges[r->first[to + 1]++] = from;
}

/* Fills `common` of all states: the fewest bytes of these groups that lead to a state which does
 * not take them all (breadth first, from those states backwards). taken, chars: [n_states]. */
static mx_status find_common(struct mx_grammar *g, const uint32_t *taken, const uint32_t *chars)
{
	struct reversed r = {mx_calloc((size_t)g->n_states + 2, sizeof(*r.first)), NULL};
	uint32_t *queue = mx_calloc((size_t)g->n_states + 1, sizeof(*queue)), n = 0;
	for (uint32_t s = 0; r.first && s < g->n_states; s++)
		if (!(g->common & ~taken[s]))
			each_common(g, s, chars, count_edge, &r);
	for (uint32_t i = 1; r.first && i < g->n_states + 2; i++)
		r.first[i] += r.first[i - 1];
	if (r.first)
		r.edges = mx_calloc((size_t)r.first[g->n_states + 1] + 1, sizeof(*r.edges));
	if (!queue || !r.edges) {
		free(queue);
		free(r.first);
		free(r.edges);
		return MX_E_NOMEM;
	}
	for (uint32_t s = 0; s < g->n_states; s++) {
		bool good = !(g->common & ~taken[s]);
		g->states[s].common = good ? 255 : 0;
		if (good)
			each_common(g, s, chars, put_edge, &r);
		else
			queue[n++] = s;
	}
	for (uint32_t i = 0; i < n; i++) {
		unsigned steps = g->states[queue[i]].common + 1u;
		for (uint32_t k = r.first[queue[i]]; k < r.first[queue[i] + 1]; k++) {
			struct mx_gstate *from = &g->states[r.edges[k]];
			if (from->common != 255)
				continue;
			from->common = (uint8_t)(steps > 254 ? 254 : steps);
			queue[n++] = r.edges[k];
		}
	}
	free(queue);
	free(r.first);
	free(r.edges);
	return MX_OK;
}

mx_status mx_grammar_find_loops(struct mx_grammar *g)
{
	uint32_t *to = mx_calloc((size_t)g->n_states + 1, 5 * sizeof(*to)), *path = to + g->n_states;
	uint32_t *taken = path + g->n_states, *chars = taken + g->n_states;
	uint8_t *done = mx_calloc((size_t)g->n_states + 1, 1);
	if (!to || !done) {
		free(to);
		free(done);
		return MX_E_NOMEM;
	}
	for (uint32_t s = 0; s < g->n_states; s++) {
		struct mx_gstate *state = &g->states[s];
		bool plain = g->rules[state->rule].deterministic && state->calls == state[1].calls;
		/* a state of few edges has no groups that are worth it */
		bool wide = state->row != MX_NO_ROW;
		for (uint32_t i = state->edges; i < state[1].edges && !wide; i++)
			wide = g->edges[i].hi - g->edges[i].lo >= 9;
		to[s] = plain && wide ? usual_next(g, s) : MX_NO_STATE;
		if (to[s] == MX_NO_STATE)
			continue;
		chars[s] = behind_characters(g, s);
		state->loop = groups_to(g, s, to[s], chars[s]);
		taken[s] = groups_taken(g, s, chars[s]);
	}
	memcpy(path, taken, g->n_states * sizeof(*path));
	g->common = most_frequent(path, g->n_states);
	if (g->common && find_common(g, taken, chars) != MX_OK) {
		free(to);
		free(done);
		return MX_E_NOMEM;
	}
	/* How many bytes the groups of a state are enough for: follow the states up to one that is
	 * done, and come back. */
	for (uint32_t s = 0; s < g->n_states; s++) {
		uint32_t n = 0, at = s;
		for (; at != MX_NO_STATE && !done[at]; at = to[at]) {
			done[at] = 1;
			path[n++] = at;
		}
		while (n--) {
			struct mx_gstate *state = &g->states[path[n]];
			uint32_t t = to[path[n]];
			if (!state->loop)
				continue;
			const struct mx_gstate *behind = &g->states[t];
			bool goes_on = (state->loop & ~behind->loop) == 0;
			unsigned budget = t == path[n] ? 255 : 1 + (goes_on ? behind->budget : 0u);
			state->budget = (uint8_t)(budget > 255 ? 255 : budget);
		}
	}
	free(to);
	free(done);
	return MX_OK;
}
