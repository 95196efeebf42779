/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/loops.h"

#include <stdlib.h>

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

/* Whether every character that is not ASCII leads from s to t. */
static bool takes_characters(const struct mx_grammar *g, uint32_t s, uint32_t t)
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
	for (int i = 0; i < 8; i++)
		if (target(g, s, encodings[i].ranges, encodings[i].n) != t)
			return false;
	return true;
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

/* The groups of bytes that all lead from s to t. */
static uint32_t groups_to(const struct mx_grammar *g, uint32_t s, uint32_t t)
{
	uint32_t yes = 0, no = MX_BYTES_HIGH;
	for (int b = 0; b < 0x80; b++)
		*(next(g, s, (uint8_t)b) == t ? &yes : &no) |= mx_byte_bit((uint8_t)b);
	yes &= ~no;
	return takes_characters(g, s, t) ? yes | MX_BYTES_HIGH : yes;
}

mx_status mx_grammar_find_loops(struct mx_grammar *g)
{
	uint32_t *to = mx_calloc((size_t)g->n_states + 1, 2 * sizeof(*to)), *path = to + g->n_states;
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
		if (to[s] != MX_NO_STATE)
			state->loop = groups_to(g, s, to[s]);
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
