/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/step.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

mx_status mx_stepper_init(struct mx_stepper *s, const struct mx_grammar *g, uint32_t max_configs,
                          uint32_t max_frames, size_t work)
{
	*s = (struct mx_stepper){
		.grammar = g, .max_configs = max_configs, .max_frames = max_frames, .work = work};
	s->frames.cap = 32;
	s->frames.table_size = 64;
	s->frames.at = mx_calloc(s->frames.cap, sizeof(*s->frames.at));
	s->frames.table = mx_calloc(s->frames.table_size, sizeof(*s->frames.table));
	s->frames.n = 1;
	if (s->frames.at && s->frames.table)
		return MX_OK;
	mx_stepper_free(s);
	return MX_E_NOMEM;
}

void mx_stepper_free(struct mx_stepper *s)
{
	free(s->frames.at);
	free(s->frames.table);
	free(s->closure.at);
	*s = (struct mx_stepper){0};
}

mx_status mx_stepper_copy(const struct mx_stepper *s, struct mx_stepper *out)
{
	struct mx_stepper c = *s;
	c.closure = (struct mx_configs){0};
	c.frames.cap = s->frames.n;
	c.frames.at = mx_calloc(c.frames.cap, sizeof(*c.frames.at));
	c.frames.table = mx_calloc(c.frames.table_size, sizeof(*c.frames.table));
	if (!c.frames.at || !c.frames.table) {
		mx_stepper_free(&c);
		return MX_E_NOMEM;
	}
	memcpy(c.frames.at, s->frames.at, s->frames.n * sizeof(*c.frames.at));
	memcpy(c.frames.table, s->frames.table, s->frames.table_size * sizeof(*c.frames.table));
	*out = c;
	return MX_OK;
}

static uint32_t place_of(const struct mx_frames *f, uint32_t state, uint32_t below)
{
	uint64_t h = ((uint64_t)state << 32 | below) * 0x9e3779b97f4a7c15u;
	return (uint32_t)(h >> 32) & (f->table_size - 1);
}

static void enter(struct mx_frames *f, uint32_t number)
{
	uint32_t h = place_of(f, f->at[number].state, f->at[number].below);
	while (f->table[h])
		h = (h + 1) & (f->table_size - 1);
	f->table[h] = number;
}

static bool grow_frames(struct mx_stepper *s)
{
	struct mx_frames *f = &s->frames;
	if (f->n >= s->max_frames) {
		s->status = MX_E_LIMIT;
		return false;
	}
	struct mx_frame *at = mx_realloc(f->at, 2 * (size_t)f->cap, sizeof(*at));
	if (at) {
		f->at = at;
		f->cap *= 2;
	}
	uint32_t size = f->table_size;
	while (size < 2 * f->cap)
		size *= 2;
	uint32_t *table = mx_calloc(size, sizeof(*table));
	if (!at || !table) {
		free(table);
		s->status = MX_E_NOMEM;
		return false;
	}
	free(f->table);
	f->table = table;
	f->table_size = size;
	for (uint32_t i = 1; i < f->n; i++)
		enter(f, i);
	return true;
}

/* Returns the stack of a frame on another one; 0 on failure. */
static uint32_t push_frame(struct mx_stepper *s, uint32_t state, uint32_t below)
{
	struct mx_frames *f = &s->frames;
	uint32_t h = place_of(f, state, below);
	for (; f->table[h]; h = (h + 1) & (f->table_size - 1)) {
		const struct mx_frame *frame = &f->at[f->table[h]];
		if (frame->state == state && frame->below == below)
			return f->table[h];
	}
	if (f->n == f->cap || f->n >= s->max_frames) {
		if (!grow_frames(s))
			return 0;
		h = place_of(f, state, below);
		while (f->table[h])
			h = (h + 1) & (f->table_size - 1);
	}
	f->at[f->n] = (struct mx_frame){state, below};
	f->table[h] = f->n;
	return f->n++;
}

void mx_frames_collect(struct mx_stepper *s, struct mx_config *configs, uint32_t n)
{
	struct mx_frames *f = &s->frames;
	uint32_t *number = mx_calloc(f->n, sizeof(*number)), kept = 1;
	if (!number)
		return; /* it is done some other time */
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = configs[i].stack; k && !number[k]; k = f->at[k].below)
			number[k] = 1;
	memset(f->table, 0, f->table_size * sizeof(*f->table));
	for (uint32_t i = 1; i < f->n; i++) {
		if (!number[i])
			continue;
		/* the frame below has a lower number, and so its new one already */
		f->at[kept] = (struct mx_frame){f->at[i].state, number[f->at[i].below]};
		enter(f, kept);
		number[i] = kept++;
	}
	f->n = kept;
	for (uint32_t i = 0; i < n; i++)
		configs[i].stack = number[configs[i].stack];
	free(number);
}

bool mx_configs_add(struct mx_configs *c, struct mx_config config)
{
	if (c->n == c->cap) {
		uint32_t cap = c->cap ? c->cap * 2 : 16;
		struct mx_config *at = mx_realloc(c->at, cap, sizeof(*at));
		if (!at)
			return false;
		c->at = at;
		c->cap = cap;
	}
	c->at[c->n++] = config;
	return true;
}

/* Adds a configuration to those from `begin` on unless it is among them. */
static void add(struct mx_stepper *s, struct mx_configs *c, uint32_t begin, uint32_t state,
                uint32_t stack)
{
	uint32_t n = c->n - begin;
	if (s->work < n + 1)
		s->work = 0;
	if (!s->work || n >= s->max_configs) {
		s->status = MX_E_LIMIT;
		return;
	}
	s->work -= n + 1;
	for (uint32_t i = begin; i < c->n; i++)
		if (c->at[i].state == state && c->at[i].stack == stack)
			return;
	if (!mx_configs_add(c, (struct mx_config){state, stack}))
		s->status = MX_E_NOMEM;
}

static void step_state(struct mx_stepper *s, struct mx_config c, uint8_t byte,
                       struct mx_configs *out, uint32_t begin)
{
	const struct mx_grammar *g = s->grammar;
	const struct mx_gstate *state = &g->states[c.state];
	if (state->row != MX_NO_ROW) {
		uint32_t to = g->rows[state->row][byte];
		if (to != MX_NO_STATE)
			add(s, out, begin, to, c.stack);
		return;
	}
	bool one = g->rules[state->rule].deterministic;
	for (uint32_t i = state->edges; i < state[1].edges; i++) {
		const struct mx_gedge *e = &g->edges[i];
		if (e->lo > byte && one)
			return;
		if (e->lo <= byte && byte <= e->hi) {
			add(s, out, begin, e->to, c.stack);
			if (one)
				return;
		}
	}
}

/* Adds what a configuration leads to without a byte: the end of its rule, and calls of rules that
 * begin with `byte`. */
static void follow(struct mx_stepper *s, struct mx_config c, uint8_t byte)
{
	const struct mx_grammar *g = s->grammar;
	const struct mx_gstate *state = &g->states[c.state];
	if (state->accept && c.stack)
		add(s, &s->closure, 0, s->frames.at[c.stack].state, s->frames.at[c.stack].below);
	for (uint32_t i = state->calls; i < state[1].calls && !s->status; i++) {
		const struct mx_gcall *call = &g->calls[i];
		if (!mx_byte_in(g->rules[call->rule].first, byte))
			continue;
		uint32_t stack = call->tail ? c.stack : push_frame(s, call->back, c.stack);
		if (!s->status)
			add(s, &s->closure, 0, call->start, stack);
	}
}

void mx_step(struct mx_stepper *s, const struct mx_config *in, uint32_t n, uint8_t byte,
             struct mx_configs *out)
{
	uint32_t begin = out->n;
	s->closure.n = 0;
	for (uint32_t i = 0; i < n && !s->status; i++)
		add(s, &s->closure, 0, in[i].state, in[i].stack);
	for (uint32_t i = 0; i < s->closure.n && !s->status; i++) {
		struct mx_config c = s->closure.at[i];
		step_state(s, c, byte, out, begin);
		follow(s, c, byte);
	}
	if (s->status)
		out->n = begin;
}

bool mx_may_return(const struct mx_stepper *s, const struct mx_config *in, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t state = in[i].state, stack = in[i].stack;
		while (s->grammar->states[state].accept && stack) {
			state = s->frames.at[stack].state;
			stack = s->frames.at[stack].below;
		}
		if (s->grammar->states[state].accept)
			return true;
	}
	return false;
}
