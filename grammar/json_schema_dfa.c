/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_dfa.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void js_fail(struct js_base *b, mx_status status, const char *fmt, ...)
{
	va_list ap;
	char text[sizeof b->err->text], where[sizeof b->err->where] = "";
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (b->place)
		b->place(b, where, sizeof where);
	mx_fail_at(b->err, status, where, "%s", text);
	longjmp(b->fail, 1);
}

static void *take(struct js_base *b, struct mx_arena *a, size_t n, size_t size)
{
	if (size && n > SIZE_MAX / 2 / size)
		js_fail(b, MX_E_LIMIT, "the schema is too large");
	void *p = mx_arena_alloc(a, n && size ? n * size : 1);
	if (!p)
		js_fail(b, MX_E_LIMIT, "the schema takes too much memory");
	return p;
}

void *js_alloc(struct js_base *b, size_t n, size_t size)
{
	return take(b, &b->arena, n, size);
}

void *js_scratch(struct js_base *b, size_t n, size_t size)
{
	return take(b, &b->scratch, n, size);
}

static void *grow(struct js_base *b, struct mx_arena *a, void *array, size_t n, size_t size)
{
	if (n && (n & (n - 1)))
		return array;
	void *p = take(b, a, n ? 2 * n : 1, size);
	if (n)
		memcpy(p, array, n * size);
	return p;
}

void *js_grow(struct js_base *b, void *array, size_t n, size_t size)
{
	return grow(b, &b->arena, array, n, size);
}

void js_work(struct js_base *b, size_t n)
{
	if (n > JS_MAX_WORK || (b->work += (uint32_t)n) > JS_MAX_WORK)
		js_fail(b, MX_E_LIMIT, "the schema is too complex");
}

uint32_t js_utf8(const char *s, size_t n, size_t *len)
{
	const uint8_t *p = (const uint8_t *)s;
	size_t want = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	uint32_t c = want == 1 ? p[0] : p[0] & (0x7fu >> want);
	if (want > n)
		want = n;
	for (size_t i = 1; i < want; i++)
		c = c << 6 | (p[i] & 0x3f);
	*len = want;
	return c;
}

/* Writes code point c and returns the number of bytes, at most 4. */
static size_t utf8_put(char *out, uint32_t c)
{
	if (c < 0x80) {
		out[0] = (char)c;
		return 1;
	}
	size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (size_t i = n - 1; i > 0; i--, c >>= 6)
		out[i] = (char)(0x80 | (c & 0x3f));
	out[0] = (char)((0xf00 >> n) | c);
	return n;
}

void js_edge_add(struct js_base *b, struct mx_arena *arena, struct js_state *s, struct js_edge e)
{
	struct js_edge *last = s->n_edges ? &s->edge[s->n_edges - 1] : NULL;
	if (last && last->to == e.to && last->hi + 1 == e.lo) {
		last->hi = e.hi;
		return;
	}
	s->edge = grow(b, arena, s->edge, s->n_edges, sizeof *s->edge);
	s->edge[s->n_edges++] = e;
}

/* ---- automata that are made directly ------------------------------------------------------- */

/* Adds edges of all Unicode scalar values. */
static void any_char(struct js_base *b, struct js_state *s, uint32_t to)
{
	js_edge_add(b, &b->arena, s, (struct js_edge){0, 0xd7ff, to});
	js_edge_add(b, &b->arena, s, (struct js_edge){0xe000, JS_MAX_CODE, to});
}

const struct js_dfa *js_dfa_length(struct js_base *b, uint32_t min, uint32_t max)
{
	struct js_dfa *d = js_alloc(b, 1, sizeof *d);
	if (min > max)
		return d;
	uint32_t last = max == UINT32_MAX ? min : max;
	if (last >= JS_MAX_STATES)
		js_fail(
			b, MX_E_LIMIT,
			"a length of %u cannot be combined with other constraints of the string; the largest "
			"that can is %d",
			last, JS_MAX_STATES - 1);
	js_work(b, last);
	d->n = last + 1;
	d->state = js_alloc(b, d->n, sizeof *d->state);
	for (uint32_t i = 0; i < d->n; i++) {
		d->state[i].accept = i >= min;
		if (i < last)
			any_char(b, &d->state[i], i + 1);
		else if (max == UINT32_MAX)
			any_char(b, &d->state[i], i);
	}
	return d;
}

const struct js_dfa *js_dfa_all(struct js_base *b)
{
	if (!b->any)
		b->any = js_dfa_length(b, 0, UINT32_MAX);
	return b->any;
}

/* The state behind `c` of state s in a tree of texts; makes it if it is not there. */
static uint32_t tree_step(struct js_base *b, struct js_dfa *d, uint32_t s, uint32_t c)
{
	struct js_state *st = &d->state[s];
	uint32_t i = 0;
	while (i < st->n_edges && st->edge[i].lo < c)
		i++;
	if (i < st->n_edges && st->edge[i].lo == c)
		return st->edge[i].to;
	if (d->n >= 16 * JS_MAX_STATES)
		js_fail(b, MX_E_LIMIT, "too many values");
	js_work(b, 1 + st->n_edges / 16);
	uint32_t to = d->n;
	d->state = grow(b, &b->scratch, d->state, d->n++, sizeof *d->state);
	memset(&d->state[to], 0, sizeof d->state[to]);
	st = &d->state[s];
	st->edge = grow(b, &b->scratch, st->edge, st->n_edges, sizeof *st->edge);
	memmove(st->edge + i + 1, st->edge + i, (st->n_edges - i) * sizeof *st->edge);
	st->edge[i] = (struct js_edge){c, c, to};
	st->n_edges++;
	return to;
}

const struct js_dfa *js_dfa_texts(struct js_base *b, const struct js_text *text, size_t n)
{
	struct js_dfa d = {.n = 1};
	d.state = grow(b, &b->scratch, NULL, 0, sizeof *d.state);
	for (size_t i = 0; i < n; i++) {
		uint32_t s = 0;
		for (size_t at = 0, len; at < text[i].len; at += len) {
			uint32_t c = js_utf8(text[i].s + at, text[i].len - at, &len);
			s = tree_step(b, &d, s, c);
		}
		d.state[s].accept = true;
	}
	return js_dfa_finish(b, &d);
}

/* ---- minimal automata ---------------------------------------------------------------------- */

/* Marks the states from which an accepting one is reached. */
static bool *find_live(struct js_base *b, const struct js_dfa *d)
{
	bool *live = js_scratch(b, d->n, sizeof *live);
	uint32_t *first = js_scratch(b, d->n + 1, sizeof *first), n_edges = 0, top = 0;
	for (uint32_t i = 0; i < d->n; i++)
		for (uint32_t k = 0; k < d->state[i].n_edges; k++, n_edges++)
			first[d->state[i].edge[k].to]++;
	js_work(b, d->n + n_edges);
	uint32_t *from = js_scratch(b, n_edges, sizeof *from),
			 *stack = js_scratch(b, d->n, sizeof *stack);
	for (uint32_t i = 0, sum = 0; i <= d->n; i++) {
		sum += i < d->n ? first[i] : 0;
		first[i] = sum; /* the end; it moves down to the begin as the list is filled */
	}
	for (uint32_t i = 0; i < d->n; i++)
		for (uint32_t k = 0; k < d->state[i].n_edges; k++)
			from[--first[d->state[i].edge[k].to]] = i;
	for (uint32_t i = 0; i < d->n; i++)
		if (d->state[i].accept) {
			live[i] = true;
			stack[top++] = i;
		}
	while (top) {
		uint32_t s = stack[--top];
		for (uint32_t k = first[s]; k < first[s + 1]; k++)
			if (!live[from[k]]) {
				live[from[k]] = true;
				stack[top++] = from[k];
			}
	}
	return live;
}

/* A state as its class sees it. */
struct signature {
	const struct js_state *s;
	uint32_t self; /* class before */
};

/* Walks the edges of s to live states with the classes of their ends; neighbours of one class are
 * one. */
static bool next_edge(const struct js_state *s, const bool *live, const uint32_t *class,
                      uint32_t *at, struct js_edge *e)
{
	uint32_t i = *at;
	while (i < s->n_edges && !live[s->edge[i].to])
		i++;
	if (i >= s->n_edges)
		return false;
	*e = (struct js_edge){s->edge[i].lo, s->edge[i].hi, class[s->edge[i].to]};
	for (i++; i < s->n_edges && s->edge[i].lo == e->hi + 1 && live[s->edge[i].to] &&
	          class[s->edge[i].to] == e->to;
	     i++)
		e->hi = s->edge[i].hi;
	*at = i;
	return true;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = (h ^ v) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static bool same_signature(const struct signature *x, const struct signature *y, const bool *live,
                           const uint32_t *class)
{
	if (x->self != y->self)
		return false;
	struct js_edge ex, ey;
	for (uint32_t i = 0, j = 0;;) {
		bool more = next_edge(x->s, live, class, &i, &ex);
		if (next_edge(y->s, live, class, &j, &ey) != more)
			return false;
		if (!more)
			return true;
		if (ex.lo != ey.lo || ex.hi != ey.hi || ex.to != ey.to)
			return false;
	}
}

/* One round of refinement (E. F. Moore, 1956): states of one class that differ in an edge part.
 * `table` has `mask` + 1 places. Returns the number of classes. */
static uint32_t refine(struct js_base *b, const struct js_dfa *d, const bool *live,
                       const uint32_t *class, uint32_t *next, uint32_t *table, uint32_t mask)
{
	memset(table, 0xff, (mask + (size_t)1) * sizeof *table);
	uint32_t n = 0;
	for (uint32_t i = 0; i < d->n; i++) {
		if (!live[i])
			continue;
		struct signature sig = {&d->state[i], class[i]};
		uint64_t h = mix(1, class[i]);
		struct js_edge e;
		for (uint32_t at = 0; next_edge(sig.s, live, class, &at, &e);)
			h = mix(mix(mix(h, e.lo), e.hi), e.to);
		js_work(b, 1 + sig.s->n_edges / 4);
		uint32_t k = (uint32_t)h & mask;
		for (; table[k] != JS_DEAD; k = (k + 1) & mask) {
			struct signature other = {&d->state[table[k]], class[table[k]]};
			if (same_signature(&sig, &other, live, class))
				break;
		}
		if (table[k] == JS_DEAD) {
			table[k] = i;
			next[i] = n++;
		} else {
			next[i] = next[table[k]];
		}
	}
	return n;
}

/* Sets the class of each live state so that equal states share one. Gives up merging, which is only
 * slower later, where a long chain would take too many rounds. */
static uint32_t *find_classes(struct js_base *b, const struct js_dfa *d, const bool *live)
{
	uint32_t *class = js_scratch(b, d->n, sizeof *class), *next = js_scratch(b, d->n, sizeof *next);
	uint32_t mask = 15;
	while (mask < 2 * d->n)
		mask = 2 * mask + 1;
	uint32_t *table = js_scratch(b, mask + (size_t)1, sizeof *table), n = 0;
	for (uint32_t i = 0; i < d->n; i++)
		class[i] = d->state[i].accept;
	for (uint32_t round = 0, before = 2; round * (uint64_t)d->n < 200000 || round < 8; round++) {
		n = refine(b, d, live, class, next, table, mask);
		uint32_t *swap = class;
		class = next;
		next = swap;
		if (n == before && round)
			return class;
		before = n;
	}
	for (uint32_t i = 0; i < d->n; i++)
		class[i] = i;
	return class;
}

const struct js_dfa *js_dfa_finish(struct js_base *b, const struct js_dfa *raw)
{
	struct js_dfa *d = js_alloc(b, 1, sizeof *d);
	bool *live = raw->n ? find_live(b, raw) : NULL;
	if (!raw->n || !live[0]) {
		mx_arena_free(&b->scratch);
		return d;
	}
	uint32_t *class = find_classes(b, raw, live);
	/* Number the classes in the order in which the start reaches them; `member` is one state of
	 * each. */
	uint32_t *number = js_scratch(b, raw->n, sizeof *number);
	uint32_t *member = js_scratch(b, raw->n, sizeof *member), n = 1;
	memset(number, 0xff, raw->n * sizeof *number);
	number[class[0]] = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct js_edge e;
		for (uint32_t at = 0; next_edge(&raw->state[member[i]], live, class, &at, &e);)
			if (number[e.to] == JS_DEAD) {
				/* the state behind the first edge of this class stands for it */
				const struct js_state *s = &raw->state[member[i]];
				for (uint32_t k = 0; k < s->n_edges; k++)
					if (live[s->edge[k].to] && class[s->edge[k].to] == e.to)
						member[n] = s->edge[k].to;
				number[e.to] = n++;
			}
	}
	if (n > JS_MAX_STATES)
		js_fail(b, MX_E_LIMIT, "the constraints of a string need %u states; the most are %d", n,
		        JS_MAX_STATES);
	d->n = n;
	d->state = js_alloc(b, n, sizeof *d->state);
	for (uint32_t i = 0; i < n; i++) {
		const struct js_state *s = &raw->state[member[i]];
		struct js_edge e;
		d->state[i].accept = s->accept;
		for (uint32_t at = 0; next_edge(s, live, class, &at, &e);)
			js_edge_add(b, &b->arena, &d->state[i], (struct js_edge){e.lo, e.hi, number[e.to]});
	}
	mx_arena_free(&b->scratch);
	return d;
}

/* ---- products ------------------------------------------------------------------------------ */

struct product {
	struct js_base *b;
	const struct js_dfa *x, *y;
	unsigned op; /* bit (in x) + 2 * (in y): whether such a string is in the result */
	struct js_dfa out;
	uint32_t (*pair)[2];
	uint32_t *table, mask; /* open addressing; elements are states */
};

static void rehash(struct product *p)
{
	p->mask = p->mask ? 2 * p->mask + 1 : 63;
	p->table = js_scratch(p->b, p->mask + (size_t)1, sizeof *p->table);
	memset(p->table, 0xff, (p->mask + (size_t)1) * sizeof *p->table);
	for (uint32_t i = 0; i < p->out.n; i++) {
		uint32_t k = (uint32_t)mix(mix(3, p->pair[i][0]), p->pair[i][1]) & p->mask;
		while (p->table[k] != JS_DEAD)
			k = (k + 1) & p->mask;
		p->table[k] = i;
	}
}

static uint32_t product_state(struct product *p, uint32_t x, uint32_t y)
{
	if (!p->mask || p->out.n > p->mask / 2)
		rehash(p);
	uint32_t k = (uint32_t)mix(mix(3, x), y) & p->mask;
	for (; p->table[k] != JS_DEAD; k = (k + 1) & p->mask)
		if (p->pair[p->table[k]][0] == x && p->pair[p->table[k]][1] == y)
			return p->table[k];
	js_work(p->b, 1);
	uint32_t n = p->out.n;
	p->pair = grow(p->b, &p->b->scratch, p->pair, n, sizeof *p->pair);
	p->out.state = grow(p->b, &p->b->scratch, p->out.state, n, sizeof *p->out.state);
	p->pair[n][0] = x;
	p->pair[n][1] = y;
	bool in_x = x != JS_DEAD && p->x->state[x].accept, in_y = y != JS_DEAD && p->y->state[y].accept;
	p->out.state[n] = (struct js_state){.accept = p->op >> (in_x + 2 * in_y) & 1};
	p->table[k] = n;
	p->out.n++;
	return n;
}

/* Adds the edges of pair `i`: the pieces into which the edges of both cut the code points. */
static void product_edges(struct product *p, uint32_t i)
{
	static const struct js_state none;
	uint32_t x = p->pair[i][0], y = p->pair[i][1], kx = 0, ky = 0, at = 0;
	const struct js_state *sx = x == JS_DEAD ? &none : &p->x->state[x];
	const struct js_state *sy = y == JS_DEAD ? &none : &p->y->state[y];
	js_work(p->b, sx->n_edges + sy->n_edges);
	for (;;) {
		while (kx < sx->n_edges && sx->edge[kx].hi < at)
			kx++;
		while (ky < sy->n_edges && sy->edge[ky].hi < at)
			ky++;
		const struct js_edge *ex = kx < sx->n_edges ? &sx->edge[kx] : NULL;
		const struct js_edge *ey = ky < sy->n_edges ? &sy->edge[ky] : NULL;
		if (!ex && !ey)
			return;
		uint32_t lo = ex && (!ey || ex->lo < ey->lo) ? ex->lo : ey->lo;
		lo = lo < at ? at : lo;
		uint32_t hi = JS_MAX_CODE, tx = JS_DEAD, ty = JS_DEAD;
		if (ex && ex->lo <= lo) {
			tx = ex->to;
			hi = ex->hi;
		} else if (ex) {
			hi = ex->lo - 1;
		}
		if (ey && ey->lo <= lo) {
			ty = ey->to;
			hi = hi < ey->hi ? hi : ey->hi;
		} else if (ey) {
			hi = hi < ey->lo - 1 ? hi : ey->lo - 1;
		}
		/* without x only the members of y alone count, and the reverse */
		if ((tx != JS_DEAD || p->op >> 2 & 1) && (ty != JS_DEAD || p->op >> 1 & 1)) {
			uint32_t to = product_state(p, tx, ty);
			js_edge_add(p->b, &p->b->scratch, &p->out.state[i], (struct js_edge){lo, hi, to});
		}
		at = hi + 1;
	}
}

static const struct js_dfa *combine(struct js_base *b, const struct js_dfa *x,
                                    const struct js_dfa *y, unsigned op)
{
	struct product p = {.b = b, .x = x, .y = y, .op = op};
	product_state(&p, x->n ? 0 : JS_DEAD, y->n ? 0 : JS_DEAD);
	for (uint32_t i = 0; i < p.out.n; i++)
		product_edges(&p, i);
	return js_dfa_finish(b, &p.out);
}

const struct js_dfa *js_dfa_and(struct js_base *b, const struct js_dfa *x, const struct js_dfa *y)
{
	return combine(b, x, y, 8);
}

const struct js_dfa *js_dfa_or(struct js_base *b, const struct js_dfa *x, const struct js_dfa *y)
{
	return combine(b, x, y, 14);
}

const struct js_dfa *js_dfa_minus(struct js_base *b, const struct js_dfa *x, const struct js_dfa *y)
{
	return combine(b, x, y, 2);
}

/* ---- questions ----------------------------------------------------------------------------- */

bool js_dfa_accepts(const struct js_dfa *x, const char *s, size_t len)
{
	uint32_t at = x->n ? 0 : JS_DEAD;
	for (size_t i = 0, n; i < len && at != JS_DEAD; i += n) {
		uint32_t c = js_utf8(s + i, len - i, &n), to = JS_DEAD;
		for (uint32_t k = 0; k < x->state[at].n_edges; k++)
			if (x->state[at].edge[k].lo <= c && c <= x->state[at].edge[k].hi)
				to = x->state[at].edge[k].to;
		at = to;
	}
	return at != JS_DEAD && x->state[at].accept;
}

bool js_dfa_finite(struct js_base *b, const struct js_dfa *x)
{
	/* Every state leads to an accepting one, so the set is finite if there is no circle: if all
	 * states can be taken away one by one, each with no edge left that leads to it. */
	uint32_t *in = js_scratch(b, x->n, sizeof *in), *ready = js_scratch(b, x->n, sizeof *ready);
	uint32_t n = 0, taken = 0;
	js_work(b, x->n);
	for (uint32_t i = 0; i < x->n; i++)
		for (uint32_t k = 0; k < x->state[i].n_edges; k++)
			in[x->state[i].edge[k].to]++;
	if (x->n && !in[0])
		ready[n++] = 0;
	for (; taken < n; taken++) {
		const struct js_state *s = &x->state[ready[taken]];
		for (uint32_t k = 0; k < s->n_edges; k++)
			if (!--in[s->edge[k].to])
				ready[n++] = s->edge[k].to;
	}
	mx_arena_free(&b->scratch);
	return n == x->n;
}

size_t js_dfa_members(struct js_base *b, const struct js_dfa *x, size_t max, struct js_text *out)
{
	if (!x->n)
		return 0;
	if (!js_dfa_finite(b, x))
		return max + 1;
	/* A text of a set without circles has fewer characters than the automaton has states. */
	struct step {
		uint32_t state, edge, code, len;
	} *stack = js_alloc(b, x->n + 1, sizeof *stack);
	char *text = js_alloc(b, 4 * (size_t)x->n + 4, 1);
	size_t n = 0, top = 0;
	stack[top++] = (struct step){0};
	while (top) {
		struct step *s = &stack[top - 1];
		const struct js_state *st = &x->state[s->state];
		if (!s->edge && !s->code && st->accept) {
			if (n == max)
				return max + 1;
			char *copy = mx_arena_strndup(&b->arena, text, s->len);
			if (!copy)
				js_fail(b, MX_E_LIMIT, "the schema takes too much memory");
			out[n++] = (struct js_text){copy, s->len};
		}
		if (s->edge == st->n_edges) {
			top--;
			continue;
		}
		js_work(b, 1);
		const struct js_edge *e = &st->edge[s->edge];
		uint32_t c = e->lo + s->code;
		if (c == e->hi) {
			s->edge++;
			s->code = 0;
		} else {
			s->code++;
		}
		uint32_t len = s->len + (uint32_t)utf8_put(text + s->len, c);
		stack[top++] = (struct step){.state = e->to, .len = len};
	}
	return n;
}
