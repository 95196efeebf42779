/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_emit.h"

#include <string.h>

#include "grammar/json_schema_plain.h"
#include "grammar/json_schema_quote.h"
#include "grammar/json_schema_scalar.h"

enum { MAX_OBJECT_STATES = 200000 };

enum { CACHE = 64 };

struct emit {
	struct js_plans *p;
	struct js_texts *t;
	struct js_base *b;
	/* automata that were written lately: a format that many properties have is written once */
	struct {
		const struct js_dfa *dfa;
		uint32_t node;
	} cache[CACHE];
	uint32_t n_cached;
	const struct mx_json_members *as; /* the notation of root's members; NULL: JSON */
	struct js_plain plain;
};

/* An automaton that is being written. */
struct machine {
	struct emit *e;
	struct mx_rules_edge *edge;
	size_t n_edges;
	bool *accept;
	uint32_t n;
};

static struct machine machine(struct emit *e, uint32_t n_states)
{
	return (struct machine){
		.e = e, .n = n_states, .accept = js_alloc(e->b, n_states, sizeof(bool))};
}

static void connect(struct machine *m, uint32_t from, uint32_t to, uint32_t node)
{
	js_work(m->e->b, 1);
	m->edge = js_grow(m->e->b, m->edge, m->n_edges, sizeof *m->edge);
	m->edge[m->n_edges++] = (struct mx_rules_edge){from, to, node};
}

static uint32_t finish(struct machine *m)
{
	return mx_rules_automaton(m->e->t->r, m->n, m->accept, m->edge, m->n_edges);
}

static bool used(const struct emit *e, uint32_t goal)
{
	return e->p->of[goal]->productive;
}

static bool any_shape(const struct js_set *s)
{
	return s->n_objects || s->n_arrays;
}

/* ---- scalars ------------------------------------------------------------------------------- */

static void add(uint32_t *node, size_t *n, uint32_t what)
{
	node[(*n)++] = what;
}

static uint32_t string_node(struct emit *e, const struct js_dfa *dfa)
{
	for (uint32_t i = 0; i < CACHE; i++)
		if (e->cache[i].dfa == dfa)
			return e->cache[i].node;
	uint32_t at = e->n_cached++ % CACHE;
	e->cache[at].dfa = dfa;
	return e->cache[at].node = js_text_dfa(e->t, e->b, dfa, true);
}

/* Says for errors that this goal is in work. */
static void at_goal(struct emit *e, uint32_t goal)
{
	const struct js_goal *g = &e->p->c->goal[goal];
	if (g->n)
		js_doc_at(&e->p->c->doc, g->member[0] / 2, NULL);
}

/* Leaves if the rules have failed. */
static void check(struct emit *e)
{
	struct mx_err err = {0};
	if (mx_rules_error(e->t->r, &err) != MX_OK)
		js_fail(e->b, err.status, "%s", err.text);
}

/* As check, where bounds were written: they are what fails. */
static void check_bounds(struct emit *e, const char *least, uint32_t min, const char *most,
                         uint32_t max)
{
	if (mx_rules_error(e->t->r, NULL) == MX_OK)
		return;
	js_doc_at_bound(&e->p->c->doc, max < UINT32_MAX ? most : least, max < UINT32_MAX ? max : min);
	check(e);
}

/* Writes the scalars of a set as up to five nodes; returns their number. */
static size_t scalars(struct emit *e, const struct js_set *s, uint32_t node[5])
{
	size_t n = 0;
	if (s->null)
		add(node, &n, js_text_bytes(e->t, "null"));
	if (s->no)
		add(node, &n, js_text_bytes(e->t, "false"));
	if (s->yes)
		add(node, &n, js_text_bytes(e->t, "true"));
	if (s->amount == JS_ALL_NUMBERS)
		add(node, &n, e->t->number);
	else if (s->amount == JS_SOME_NUMBERS)
		add(node, &n, js_text_dfa(e->t, e->b, js_num_written(e->b, s->number), false));
	if (!s->string.none && s->string.dfa) {
		add(node, &n, string_node(e, s->string.dfa));
	} else if (!s->string.none) {
		add(node, &n, js_text_string(e->t, s->string.min, s->string.max));
		check_bounds(e, "minLength", s->string.min, "maxLength", s->string.max);
	}
	return n;
}

/* The node of a goal. One with arrays or objects is a reference that js_emit defines later, so
 * nothing here calls itself. */
static uint32_t goal_node(struct emit *e, uint32_t goal)
{
	struct js_plan *plan = e->p->of[goal];
	if (plan->node)
		return plan->node;
	if (goal == JS_ANY) {
		plan->node = e->t->value;
	} else if (any_shape(plan->set)) {
		plan->node = mx_rules_declare(e->t->r);
	} else {
		uint32_t node[5];
		at_goal(e, goal);
		size_t n = scalars(e, plan->set, node);
		plan->node = mx_rules_alt(e->t->r, node, n);
		check(e);
	}
	return plan->node;
}

/* ---- objects ------------------------------------------------------------------------------- */

/* Whether a member can exist, and be written. */
static bool live(struct emit *e, const struct js_member *m)
{
	if (!used(e, m->goal) || !e->as)
		return used(e, m->goal);
	enum mx_json_member kind = e->as->kind(e->as->arg, m->name);
	return kind == MX_JSON_MEMBER ||
	       (kind == MX_JSON_PLAIN && !e->p->of[m->goal]->set->string.none);
}

/* The members that can exist. */
static size_t live_members(struct emit *e, const struct js_object_plan *o,
                           const struct js_member **out, size_t *n_required)
{
	size_t n = 0;
	*n_required = 0;
	for (size_t i = 0; i < o->n_members; i++)
		if (live(e, &o->member[i])) {
			out[n++] = &o->member[i];
			*n_required += o->member[i].required;
		}
	return n;
}

/* A member in a notation of its own. */
static uint32_t own_member(struct emit *e, const struct js_member *m)
{
	bool plain = e->as->kind(e->as->arg, m->name) == MX_JSON_PLAIN;
	uint32_t value = 0;
	at_goal(e, m->goal);
	if (plain) {
		const struct js_string *s = &e->p->of[m->goal]->set->string;
		value = js_plain_node(&e->plain, e->p->c, e->t, s);
		check_bounds(e, "minLength", s->min, "maxLength", s->max);
		if (!value)
			js_fail(e->b, MX_E_UNSUPPORTED,
			        "no value can be written: each has the mark with which this model ends "
			        "strings");
	} else {
		value = goal_node(e, m->goal);
	}
	return e->as->write(e->as->arg, e->t->r, m->name, plain, value);
}

/* "name": value */
static uint32_t member_node(struct emit *e, const struct js_member *m)
{
	if (e->as)
		return own_member(e, m);
	uint32_t text = js_text_json(e->t, e->b, js_quote(e->b, m->name, strlen(m->name)));
	return js_text_seq(e->t, text, e->t->colon, goal_node(e, m->goal));
}

/* Any additional property. */
static uint32_t class_node(struct emit *e, const struct js_object_plan *o)
{
	uint32_t *node = js_alloc(e->b, o->n_classes, sizeof *node);
	size_t n = 0;
	for (size_t i = 0; i < o->n_classes && !e->as; i++) {
		if (!used(e, o->class[i].goal))
			continue;
		uint32_t name =
			o->class[i].names ? js_text_dfa(e->t, e->b, o->class[i].names, true) : e->t->string;
		node[n++] = js_text_seq(e->t, name, e->t->colon, goal_node(e, o->class[i].goal));
	}
	return n ? mx_rules_alt(e->t->r, node, n) : 0;
}

/*
 * The states of an object: i of the n members were decided on, and k properties written; then the k
 * written ones when additional properties have begun. `most`: up to which k is counted; it stands
 * for more where there is no maximum. Where only "none" and "some" are told apart, a member is
 * written once, in a state of its own behind the comma.
 */
struct object_states {
	uint32_t n, most;
};

static uint32_t object_state(const struct object_states *s, uint32_t i, uint32_t k)
{
	return i * (s->most + 1) + (k < s->most ? k : s->most);
}

static void connect_members(struct machine *m, const struct object_states *s, uint32_t max,
                            const struct js_member *const *member)
{
	struct emit *e = m->e;
	bool once = s->most == 1 && max > 1;
	uint32_t comma = e->as ? js_text_bytes(e->t, e->as->between) : e->t->comma;
	for (uint32_t i = 0; i < s->n; i++) {
		uint32_t node = member_node(e, member[i]), behind = object_state(s, s->n + 2, i);
		if (once) {
			behind = (s->n + 2) * 2 + i;
			connect(m, object_state(s, i, 0), behind, e->t->empty);
			connect(m, object_state(s, i, 1), behind, comma);
			connect(m, behind, object_state(s, i + 1, 1), node);
		}
		for (uint32_t k = 0; k <= s->most && k <= i; k++) {
			if (!once && (k < max || max == UINT32_MAX))
				connect(m, object_state(s, i, k), object_state(s, i + 1, k + 1),
				        k ? js_text_seq(e->t, comma, node, 0) : node);
			if (!member[i]->required)
				connect(m, object_state(s, i, k), object_state(s, i + 1, k), e->t->empty);
		}
	}
}

static uint32_t object_inside(struct emit *e, const struct js_object_plan *o)
{
	const struct js_member **member = js_alloc(e->b, o->n_members, sizeof *member);
	size_t n_required, n = live_members(e, o, member, &n_required);
	uint32_t more = class_node(e, o);
	bool counts = o->min > n_required || (o->max < UINT32_MAX && (more || o->max < n));
	struct object_states s = {(uint32_t)n, counts ? o->max < UINT32_MAX ? o->max : o->min : 1};
	uint32_t max = counts ? o->max : UINT32_MAX, min = counts ? o->min : 0;
	if (max == UINT32_MAX && s.most > n + 1)
		s.most = (uint32_t)n + 1;
	if (max < UINT32_MAX && !more && s.most > n)
		s.most = (uint32_t)n;
	s.most = s.most ? s.most : 1;
	if ((n + 3ull) * (s.most + 1ull) > MAX_OBJECT_STATES) {
		bool most = max < UINT32_MAX;
		js_doc_at_bound(&e->p->c->doc, most ? "maxProperties" : "minProperties", most ? max : min);
		js_fail(e->b, MX_E_LIMIT,
		        "minProperties and maxProperties are too large to be counted with %zu properties",
		        n);
	}
	struct machine m = machine(e, (uint32_t)((n + 3) * (s.most + 1) + n));
	connect_members(&m, &s, max, member);
	for (uint32_t k = 0; k <= s.most && k <= n; k++) {
		m.accept[object_state(&s, s.n, k)] = k >= min;
		/* of the additional ones only the first counts for the minimum: others may repeat its name
		 */
		if (more && k + 1 >= min && (k < max || max == UINT32_MAX))
			connect(&m, object_state(&s, s.n, k), object_state(&s, s.n + 1, k + 1),
			        k ? js_text_seq(e->t, e->t->comma, more, 0) : more);
	}
	for (uint32_t k = 1; more && k <= s.most; k++) {
		m.accept[object_state(&s, s.n + 1, k)] = true;
		if (k < max || max == UINT32_MAX)
			connect(&m, object_state(&s, s.n + 1, k), object_state(&s, s.n + 1, k + 1),
			        js_text_seq(e->t, e->t->comma, more, 0));
	}
	return finish(&m);
}

static bool any_object(const struct js_object_plan *o)
{
	return !o->n_members && o->n_classes == 1 && !o->class[0].names && o->class[0].goal == JS_ANY &&
	       !o->min && o->max == UINT32_MAX;
}

static uint32_t object_node(struct emit *e, const struct js_object_plan *o)
{
	return any_object(o) ? e->t->object : js_text_brackets(e->t, "{}", object_inside(e, o));
}

/* ---- arrays -------------------------------------------------------------------------------- */

static uint32_t behind_comma(struct emit *e, uint32_t node)
{
	return js_text_seq(e->t, e->t->comma, node, 0);
}

/* Each of the texts at most once: the states are the subsets that were written. */
static uint32_t unique_inside(struct emit *e, const struct js_array_plan *a)
{
	struct machine m = machine(e, 1u << a->n_unique);
	for (uint32_t set = 0; set < m.n; set++) {
		uint32_t size = (uint32_t)__builtin_popcount(set);
		m.accept[set] = size >= a->min && size <= a->max;
		for (size_t i = 0; i < a->n_unique; i++) {
			uint32_t text = js_text_json(e->t, e->b, a->unique[i]);
			if (!(set >> i & 1) && size < a->max)
				connect(&m, set, set | 1u << i, set ? behind_comma(e, text) : text);
		}
	}
	return finish(&m);
}

static uint32_t edges_inside(struct emit *e, const struct js_array_plan *a)
{
	struct machine m = machine(e, a->n_states);
	memcpy(m.accept, a->accept, a->n_states * sizeof *m.accept);
	for (size_t i = 0; i < a->n_edges; i++) {
		const struct js_item_edge *x = &a->edge[i];
		if (!used(e, x->goal))
			continue;
		uint32_t node = goal_node(e, x->goal);
		connect(&m, x->from, x->to, x->from ? behind_comma(e, node) : node);
	}
	return finish(&m);
}

/* A state for each of the first n items, and one for all others. */
static uint32_t items_inside(struct emit *e, const struct js_array_plan *a)
{
	uint32_t n = (uint32_t)a->n;
	bool rest = a->max > n;
	uint32_t first = n || !rest ? n : 1; /* items with states of their own */
	struct machine m = machine(e, first + 2);
	for (uint32_t i = 0; i < first; i++) {
		uint32_t node = goal_node(e, i < n ? a->goal[i] : a->rest);
		connect(&m, i, i + 1, i ? behind_comma(e, node) : node);
	}
	for (uint32_t i = 0; i <= first; i++)
		m.accept[i] = i >= a->min;
	if (rest && a->max > first) {
		uint32_t min = a->min > first ? a->min - first : 0;
		uint32_t max = a->max == UINT32_MAX ? MX_RULES_NO_END : a->max - first;
		connect(&m, first, first + 1,
		        mx_rules_repeat(e->t->r, behind_comma(e, goal_node(e, a->rest)), min, max));
		m.accept[first + 1] = true;
		check_bounds(e, "minItems", a->min, "maxItems", a->max);
	}
	return finish(&m);
}

static uint32_t array_node(struct emit *e, const struct js_array_plan *a)
{
	if (!a->n && !a->n_edges && !a->n_unique && a->rest == JS_ANY && !a->min &&
	    a->max == UINT32_MAX)
		return e->t->array;
	return js_text_brackets(e->t, "[]",
	                        a->n_unique  ? unique_inside(e, a)
	                        : a->n_edges ? edges_inside(e, a)
	                                     : items_inside(e, a));
}

/* ---- goals --------------------------------------------------------------------------------- */

static void define(struct emit *e, uint32_t goal)
{
	const struct js_plan *plan = e->p->of[goal];
	const struct js_set *s = plan->set;
	uint32_t *node = js_alloc(e->b, 5 + s->n_objects + s->n_arrays, sizeof *node);
	size_t n = scalars(e, s, node);
	for (size_t i = 0; i < s->n_objects; i++)
		if (!plan->object[i].dead)
			add(node, &n, object_node(e, &plan->object[i]));
	for (size_t i = 0; i < s->n_arrays; i++)
		if (!plan->array[i].dead)
			add(node, &n, array_node(e, &plan->array[i]));
	mx_rules_define(e->t->r, plan->node, mx_rules_alt(e->t->r, node, n));
}

/* Defines what goal_node has declared, or will have. `but`: a goal that is not, or UINT32_MAX. */
static void define_all(struct emit *e, uint32_t but)
{
	for (uint32_t i = 0; i < e->p->n_order; i++) {
		uint32_t goal = e->p->order[i];
		if (goal == JS_ANY || goal == but || !any_shape(e->p->of[goal]->set))
			continue;
		goal_node(e, goal);
		at_goal(e, goal);
		define(e, goal);
		check(e);
	}
}

uint32_t js_emit(struct js_plans *p, struct js_texts *t, uint32_t root)
{
	struct emit e = {.p = p, .t = t, .b = &p->c->doc.base};
	uint32_t node = goal_node(&e, root);
	define_all(&e, UINT32_MAX);
	return node;
}

/* Whether the members that can be written suffice for an object. If not and `tell`, fails. */
static bool can_be_written(struct emit *e, const struct js_object_plan *o, bool tell)
{
	size_t n = 0;
	for (size_t i = 0; i < o->n_members; i++) {
		bool yes = live(e, &o->member[i]);
		n += yes;
		if (yes || !o->member[i].required)
			continue;
		if (!tell)
			return false;
		at_goal(e, o->member[i].goal);
		js_fail(e->b, MX_E_UNSUPPORTED,
		        "this model's format of calls has no way to write an argument of that name");
	}
	if (n < o->min && tell) {
		js_doc_at_bound(&e->p->c->doc, "minProperties", o->min);
		js_fail(e->b, MX_E_UNSUPPORTED,
		        "this model's format of calls has only arguments that the schema names");
	}
	return n >= o->min;
}

uint32_t js_emit_members(struct js_plans *p, struct js_texts *t, uint32_t root,
                         const struct mx_json_members *members)
{
	struct emit e = {
		.p = p, .t = t, .b = &p->c->doc.base, .as = members, .plain = {members->plain_end}};
	const struct js_plan *plan = p->of[root];
	size_t n = 0, n_objects = plan->set->n_objects;
	uint32_t *node = js_alloc(e.b, n_objects, sizeof *node);
	at_goal(&e, root);
	for (size_t i = 0; i < n_objects; i++)
		if (!plan->object[i].dead && can_be_written(&e, &plan->object[i], false))
			node[n++] = object_inside(&e, &plan->object[i]);
	for (size_t i = 0; i < n_objects && !n; i++)
		if (!plan->object[i].dead)
			can_be_written(&e, &plan->object[i], true);
	at_goal(&e, root);
	if (!n)
		js_fail(e.b, MX_E_INVALID, "no object obeys the schema");
	check(&e);
	e.as = NULL;
	define_all(&e, root);
	if (plan->node) { /* a member has such an object inside */
		define(&e, root);
		check(&e);
	}
	return mx_rules_alt(t->r, node, n);
}
