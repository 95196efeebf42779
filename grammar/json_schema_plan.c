/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/json_schema_plan.h"

#include <stdio.h>
#include <string.h>

#include "grammar/json_schema_eval.h"
#include "grammar/json_schema_quote.h"
#include "grammar/json_schema_scalar.h"

enum {
	MAX_PATTERNS = 64, /* of the layers of one shape: a bit each */
	MAX_CLASSES = 128, /* into which they cut the names */
	MAX_LISTED = 32,   /* names of a class that become members */
	MAX_CONTAINS = 3,  /* of one shape */
	MAX_ITEM_STATES = 4096,
};

/* ---- objects ------------------------------------------------------------------------------- */

static void add_member(struct js *c, struct js_object_plan *p, const char *name, uint32_t goal,
                       bool required)
{
	p->member = js_grow(&c->doc.base, p->member, p->n_members, sizeof *p->member);
	p->member[p->n_members++] = (struct js_member){name, goal, required};
}

static bool is_member(struct js *c, const struct js_object_plan *p, const char *name)
{
	js_work(&c->doc.base, 1 + p->n_members / 8);
	for (size_t i = 0; i < p->n_members; i++)
		if (strcmp(p->member[i].name, name) == 0)
			return true;
	return false;
}

static bool is_required(const struct js_object *o, const char *name)
{
	for (size_t i = 0; i < o->n_required; i++)
		if (strcmp(o->required[i], name) == 0)
			return true;
	return false;
}

/* Lists the properties that have names in the schema: `properties` in order, then `required`. */
static void list_members(struct js *c, const struct js_object *o, struct js_object_plan *p)
{
	for (size_t i = 0; i < o->n_layers; i++)
		for (size_t k = 0; k < o->layer[i]->n; k++) {
			const char *name = o->layer[i]->name[k];
			if (i && is_member(c, p, name))
				continue;
			js_work(&c->doc.base, 1 + o->n_required / 8);
			add_member(c, p, name, js_property_goal(c, o, name), is_required(o, name));
		}
	for (size_t i = 0; i < o->n_required; i++)
		if (!is_member(c, p, o->required[i]))
			add_member(c, p, o->required[i], js_property_goal(c, o, o->required[i]), true);
}

struct cell {
	const struct js_dfa *names;
	uint64_t matched; /* patterns, counted over all layers */
};

/* Cuts the other names by the patterns that they match; returns the number of cells. */
static size_t cut_names(struct js *c, const struct js_object *o, const struct js_object_plan *p,
                        struct cell cell[MAX_CLASSES])
{
	struct js_base *b = &c->doc.base;
	const struct js_dfa *rest = o->names ? o->names : js_dfa_all(b);
	struct js_text *text = js_alloc(b, p->n_members, sizeof *text);
	for (size_t i = 0; i < p->n_members; i++)
		text[i] = (struct js_text){p->member[i].name, strlen(p->member[i].name)};
	if (p->n_members)
		rest = js_dfa_minus(b, rest, js_dfa_texts(b, text, p->n_members));
	size_t n = 0, at = 0;
	if (rest->n)
		cell[n++] = (struct cell){rest, 0};
	for (size_t i = 0; i < o->n_layers; i++)
		for (size_t k = 0; k < o->layer[i]->n_patterns; k++, at++) {
			if (at == MAX_PATTERNS)
				js_fail(b, MX_E_LIMIT, "more than %d patternProperties", MAX_PATTERNS);
			size_t before = n;
			for (size_t j = 0; j < before; j++) {
				const struct js_dfa *in = js_dfa_and(b, cell[j].names, o->layer[i]->pattern[k]);
				if (!in->n)
					continue;
				const struct js_dfa *out = js_dfa_minus(b, cell[j].names, o->layer[i]->pattern[k]);
				if (out->n && n == MAX_CLASSES)
					js_fail(b, MX_E_LIMIT, "patternProperties overlap in more than %d ways",
					        MAX_CLASSES);
				if (out->n)
					cell[n++] = (struct cell){out, cell[j].matched};
				cell[j] = (struct cell){in, cell[j].matched | 1ull << at};
			}
		}
	return n;
}

static uint32_t cell_goal(struct js *c, const struct js_object *o, uint64_t matched)
{
	uint32_t goal = JS_ANY;
	size_t at = 0;
	for (size_t i = 0; i < o->n_layers; i++) {
		bool found = false;
		for (size_t k = 0; k < o->layer[i]->n_patterns; k++, at++)
			if (matched >> at & 1) {
				goal = js_goal_and(c, goal, o->layer[i]->pattern_goal[k]);
				found = true;
			}
		if (!found)
			goal = js_goal_and(c, goal, o->layer[i]->more);
	}
	return goal;
}

/* Whether a shape names properties, and nothing says what others are or how many there must be. */
static bool names_all(const struct js_object *o)
{
	bool lists = false;
	for (size_t i = 0; i < o->n_layers; i++) {
		const struct js_layer *l = o->layer[i];
		if (l->more != JS_ANY || l->n_patterns || l->all)
			return false;
		lists |= l->lists;
	}
	return lists && !o->names && !o->min;
}

/* Plans the properties that have no names in the schema. */
static void list_classes(struct js *c, const struct js_object *o, struct js_object_plan *p)
{
	struct js_base *b = &c->doc.base;
	bool closed = false;
	for (size_t i = 0; i < o->n_layers; i++)
		closed |= o->layer[i]->more == JS_NONE && !o->layer[i]->n_patterns;
	if (closed || p->max == 0 || (c->closed && names_all(o)))
		return;
	struct cell cell[MAX_CLASSES];
	size_t n = cut_names(c, o, p, cell);
	p->class = js_alloc(b, n, sizeof *p->class);
	for (size_t i = 0; i < n; i++) {
		uint32_t goal = cell_goal(c, o, cell[i].matched);
		if (goal == JS_NONE)
			continue;
		struct js_text name[MAX_LISTED];
		size_t listed = js_dfa_members(b, cell[i].names, MAX_LISTED, name);
		if (listed <= MAX_LISTED) {
			bool zero = false; /* member names are C strings */
			for (size_t k = 0; k < listed; k++)
				zero |= strlen(name[k].s) != name[k].len;
			for (size_t k = 0; k < listed && !zero; k++)
				add_member(c, p, name[k].s, goal, false);
			if (!zero)
				continue;
		}
		bool all = !o->names && !p->n_members && n == 1;
		p->class[p->n_classes++] = (struct js_class){all ? NULL : cell[i].names, goal};
	}
}

static void plan_object(struct js *c, const struct js_object *o, struct js_object_plan *p)
{
	*p = (struct js_object_plan){.min = o->min, .max = o->max, .fault = o->fault};
	list_members(c, o, p);
	list_classes(c, o, p);
	if (p->min > p->n_members + (p->n_classes > 0)) {
		if (p->n_classes && !p->fault)
			p->fault = o->few;
		p->dead = !p->n_classes;
	}
}

/* ---- arrays -------------------------------------------------------------------------------- */

/* The state of an array with contains: items so far, saturated, and how many each contains has. */
struct item_states {
	uint32_t items;                /* that are told apart */
	uint32_t counts[MAX_CONTAINS]; /* that are told apart, of each */
	uint32_t n;
};

static bool count_states(const struct js_array *a, struct js_array_plan *p, struct item_states *s)
{
	uint64_t n;
	s->items = p->max < UINT32_MAX ? p->max : p->min > p->n ? p->min : (uint32_t)p->n;
	s->items = s->items ? s->items : 1;
	n = s->items + 1ull;
	for (size_t i = 0; i < a->n_contains && i < MAX_CONTAINS; i++) {
		const struct js_contains *k = &a->contains[i];
		s->counts[i] = k->max < UINT32_MAX ? k->max : k->min;
		n = n > MAX_ITEM_STATES ? n : n * (s->counts[i] + 1ull);
	}
	s->n = (uint32_t)n;
	return a->n_contains <= MAX_CONTAINS && n <= MAX_ITEM_STATES;
}

/* The state behind an item in state `from` that has what `has` says; JS_DEAD if there is none. */
static uint32_t item_step(const struct js_array *a, const struct js_array_plan *p,
                          const struct item_states *s, uint32_t from, unsigned has)
{
	uint32_t rest = from / (s->items + 1), to = from % (s->items + 1), scale = s->items + 1;
	if (to >= p->max)
		return JS_DEAD;
	to += to < s->items;
	for (size_t i = 0; i < a->n_contains; i++) {
		uint32_t count = rest % (s->counts[i] + 1);
		rest /= s->counts[i] + 1;
		if (has >> i & 1) {
			if (count == s->counts[i] && a->contains[i].max < UINT32_MAX)
				return JS_DEAD;
			count += count < s->counts[i];
		}
		to += count * scale;
		scale *= s->counts[i] + 1;
	}
	return to;
}

static bool item_accept(const struct js_array *a, const struct js_array_plan *p,
                        const struct item_states *s, uint32_t at)
{
	uint32_t rest = at / (s->items + 1);
	if (at % (s->items + 1) < p->min)
		return false;
	for (size_t i = 0; i < a->n_contains; i++) {
		if (rest % (s->counts[i] + 1) < a->contains[i].min)
			return false;
		rest /= s->counts[i] + 1;
	}
	return true;
}

static void plan_contains(struct js *c, const struct js_array *a, struct js_array_plan *p)
{
	struct item_states s;
	if (!count_states(a, p, &s)) {
		p->fault = p->fault ? p->fault : a->contains[0].fault;
		return;
	}
	p->n_states = s.n;
	p->accept = js_alloc(&c->doc.base, s.n, sizeof *p->accept);
	for (uint32_t from = 0; from < s.n; from++) {
		uint32_t index = from % (s.items + 1);
		p->accept[from] = item_accept(a, p, &s, from);
		for (unsigned has = 0; has < 1u << a->n_contains; has++) {
			uint32_t to = item_step(a, p, &s, from, has);
			uint32_t goal = index < p->n ? p->goal[index] : p->rest;
			for (size_t i = 0; i < a->n_contains; i++) {
				/* an item that would count may pass as one that does not, unless there is a maximum
				 */
				if (has >> i & 1)
					goal = js_goal_and(c, goal, a->contains[i].goal);
				else if (a->contains[i].max < UINT32_MAX)
					goal = js_goal_and(c, goal, a->contains[i].other);
			}
			if (to == JS_DEAD || goal == JS_NONE)
				continue;
			p->edge = js_grow(&c->doc.base, p->edge, p->n_edges, sizeof *p->edge);
			p->edge[p->n_edges++] = (struct js_item_edge){from, to, goal};
		}
	}
	if (!p->n_edges) { /* no item can be there */
		p->dead = !p->accept[0];
		p->max = 0;
	}
}

/* The JSON texts of a goal that has scalars only, and few. Returns their number, or JS_MAX_UNIQUE
 * + 1. */
static size_t scalar_texts(struct js *c, const struct js_set *s, struct js_text out[JS_MAX_UNIQUE])
{
	struct js_base *b = &c->doc.base;
	struct js_text text[JS_MAX_UNIQUE];
	size_t n = 0, more = 0;
	if (s->n_arrays || s->n_objects || s->amount == JS_ALL_NUMBERS ||
	    (!s->string.none && !s->string.dfa))
		return JS_MAX_UNIQUE + 1;
	if (s->null)
		out[n++] = (struct js_text){"null", 4};
	if (s->no)
		out[n++] = (struct js_text){"false", 5};
	if (s->yes)
		out[n++] = (struct js_text){"true", 4};
	if (s->amount)
		more = js_dfa_members(b, js_num_written(b, s->number), JS_MAX_UNIQUE, text);
	for (size_t i = 0; i < more && n + more <= JS_MAX_UNIQUE; i++)
		out[n + i] = text[i];
	n += more;
	more = s->string.none ? 0 : js_dfa_members(b, s->string.dfa, JS_MAX_UNIQUE, text);
	for (size_t i = 0; i < more && n + more <= JS_MAX_UNIQUE; i++)
		out[n + i] = js_quote(b, text[i].s, text[i].len);
	n += more;
	return n <= JS_MAX_UNIQUE ? n : JS_MAX_UNIQUE + 1;
}

static void plan_unique(struct js *c, const struct js_array *a, struct js_array_plan *p)
{
	const struct js_set *s = p->n || a->n_contains ? NULL : js_goal_set(c, p->rest);
	size_t n = s ? scalar_texts(c, s, p->unique) : JS_MAX_UNIQUE + 1;
	if (n > JS_MAX_UNIQUE) {
		p->fault = p->fault ? p->fault : a->unique;
		return;
	}
	p->n_unique = n;
	p->dead = n < p->min;
	if (!n)
		p->max = 0;
}

static void plan_array(struct js *c, const struct js_array *a, struct js_array_plan *p)
{
	*p = (struct js_array_plan){.min = a->min, .max = a->max, .fault = a->fault};
	for (size_t i = 0; i < a->n_layers; i++)
		p->n = a->layer[i]->n > p->n ? a->layer[i]->n : p->n;
	if (p->n > p->max)
		p->n = p->max;
	p->goal = js_alloc(&c->doc.base, p->n, sizeof *p->goal);
	for (size_t i = 0; i < p->n; i++)
		p->goal[i] = js_items_goal(c, a, i);
	p->rest = js_items_goal(c, a, SIZE_MAX);
	if (a->unique && p->max > 1)
		plan_unique(c, a, p);
	if (a->n_contains)
		plan_contains(c, a, p);
}

/* ---- all goals ----------------------------------------------------------------------------- */

static void reach(struct js_plans *p, uint32_t goal)
{
	struct js_base *b = &p->c->doc.base;
	if (goal >= p->n) {
		uint32_t n = p->n ? p->n : 64;
		while (n <= goal)
			n *= 2;
		struct js_plan **of = js_alloc(b, n, sizeof *of);
		if (p->n)
			memcpy(of, p->of, p->n * sizeof *of);
		p->of = of;
		p->n = n;
	}
	if (p->of[goal])
		return;
	p->of[goal] = js_alloc(b, 1, sizeof **p->of);
	p->order = js_grow(b, p->order, p->n_order, sizeof *p->order);
	p->order[p->n_order++] = goal;
}

typedef void visit_f(struct js_plans *p, uint32_t goal);

/* Calls `visit` for every goal inside a shape. */
static void each_in_object(struct js_plans *p, const struct js_object_plan *o, visit_f *visit)
{
	for (size_t i = 0; i < o->n_members; i++)
		visit(p, o->member[i].goal);
	for (size_t i = 0; i < o->n_classes; i++)
		visit(p, o->class[i].goal);
}

static void each_in_array(struct js_plans *p, const struct js_array_plan *a, visit_f *visit)
{
	for (size_t i = 0; i < a->n_edges; i++)
		visit(p, a->edge[i].goal);
	for (size_t i = 0; i < a->n && !a->n_edges; i++)
		visit(p, a->goal[i]);
	if (a->max > a->n && !a->n_edges && !a->n_unique)
		visit(p, a->rest);
}

static void plan_goal(struct js_plans *p, uint32_t goal)
{
	struct js *c = p->c;
	struct js_plan *plan = p->of[goal];
	if (c->goal[goal].n)
		js_doc_at(&c->doc, c->goal[goal].member[0] / 2, NULL);
	plan->set = js_goal_set(c, goal);
	if (!plan->set) {
		js_doc_at(&c->doc, c->loop, NULL);
		js_fail(&c->doc.base, MX_E_INVALID, "the schema refers to itself without a value between");
	}
	if (c->goal[goal].n)
		js_doc_at(&c->doc, c->goal[goal].member[0] / 2, NULL);
	const struct js_set *s = plan->set;
	plan->object = js_alloc(&c->doc.base, s->n_objects, sizeof *plan->object);
	plan->array = js_alloc(&c->doc.base, s->n_arrays, sizeof *plan->array);
	for (size_t i = 0; i < s->n_objects; i++) {
		plan_object(c, &s->object[i], &plan->object[i]);
		each_in_object(p, &plan->object[i], reach);
	}
	for (size_t i = 0; i < s->n_arrays; i++) {
		plan_array(c, &s->array[i], &plan->array[i]);
		each_in_array(p, &plan->array[i], reach);
	}
}

static bool productive(const struct js_plans *p, uint32_t goal)
{
	return p->of[goal]->productive;
}

static bool object_possible(const struct js_plans *p, const struct js_object_plan *o)
{
	size_t members = 0;
	bool more = false;
	for (size_t i = 0; i < o->n_members; i++) {
		if (o->member[i].required && !productive(p, o->member[i].goal))
			return false;
		members += productive(p, o->member[i].goal);
	}
	for (size_t i = 0; i < o->n_classes; i++)
		more |= productive(p, o->class[i].goal);
	return !o->dead && (o->fault || o->min <= members + more);
}

/* Whether the automaton over items reaches an accepting state. */
static bool edges_possible(const struct js_plans *p, const struct js_array_plan *a)
{
	bool *met = js_scratch(&p->c->doc.base, a->n_states, sizeof *met), changed = true,
		 found = false;
	met[0] = true;
	while (changed) {
		changed = false;
		js_work(&p->c->doc.base, a->n_edges);
		for (size_t i = 0; i < a->n_edges; i++)
			if (met[a->edge[i].from] && !met[a->edge[i].to] && productive(p, a->edge[i].goal))
				met[a->edge[i].to] = changed = true;
	}
	for (uint32_t i = 0; i < a->n_states; i++)
		found |= met[i] && a->accept[i];
	mx_arena_free(&p->c->doc.base.scratch);
	return found;
}

static bool array_possible(const struct js_plans *p, const struct js_array_plan *a)
{
	if (a->dead || a->min > a->max)
		return false;
	if (a->n_edges)
		return edges_possible(p, a);
	for (size_t i = 0; i < a->min && i < a->n; i++)
		if (!productive(p, a->goal[i]))
			return false;
	return a->n_unique || a->min <= a->n || productive(p, a->rest);
}

/* Finds the goals that have values: the least set that follows from their plans. */
static void find_productive(struct js_plans *p)
{
	for (bool changed = true; changed;) {
		changed = false;
		for (uint32_t i = p->n_order; i-- > 0;) {
			struct js_plan *plan = p->of[p->order[i]];
			const struct js_set *s = plan->set;
			if (plan->productive)
				continue;
			js_work(&p->c->doc.base, 1);
			bool yes = s->null || s->no || s->yes || s->amount || !s->string.none;
			for (size_t k = 0; k < s->n_objects && !yes; k++)
				yes = object_possible(p, &plan->object[k]);
			for (size_t k = 0; k < s->n_arrays && !yes; k++)
				yes = array_possible(p, &plan->array[k]);
			plan->productive = yes;
			changed |= yes;
		}
	}
}

/* ---- what is used -------------------------------------------------------------------------- */

static _Noreturn void tell(struct js_plans *p, const struct js_fault *f)
{
	mx_fail_at(p->c->doc.base.err, MX_E_UNSUPPORTED, f->where ? f->where : "", "%s", f->text);
	longjmp(p->c->doc.base.fail, 1);
}

static void use(struct js_plans *p, uint32_t goal)
{
	if (!productive(p, goal) || p->of[goal]->used)
		return;
	p->of[goal]->used = true;
	p->order[p->n_order++] = goal;
}

/* Items end before the first that cannot exist. */
static void cut_array(const struct js_plans *p, struct js_array_plan *a)
{
	for (size_t i = 0; i < a->n && !a->n_edges; i++)
		if (!productive(p, a->goal[i])) {
			a->n = i;
			a->max = (uint32_t)i;
		}
	if (a->max > a->n && !a->n_edges && !a->n_unique && !productive(p, a->rest))
		a->max = (uint32_t)a->n;
}

/* Goes from the root to the goals that its values may have inside, and takes out what cannot exist.
 */
static void find_used(struct js_plans *p, uint32_t root)
{
	uint32_t n = p->n_order;
	p->n_order = 0;
	p->order = js_alloc(&p->c->doc.base, n, sizeof *p->order);
	use(p, root);
	for (uint32_t i = 0; i < p->n_order; i++) {
		struct js_plan *plan = p->of[p->order[i]];
		for (size_t k = 0; k < plan->set->n_objects; k++) {
			struct js_object_plan *o = &plan->object[k];
			o->dead = !object_possible(p, o);
			if (!o->dead && o->fault)
				tell(p, o->fault);
			if (!o->dead)
				each_in_object(p, o, use);
		}
		for (size_t k = 0; k < plan->set->n_arrays; k++) {
			struct js_array_plan *a = &plan->array[k];
			a->dead = !array_possible(p, a);
			if (!a->dead && a->fault)
				tell(p, a->fault);
			cut_array(p, a);
			if (!a->dead)
				each_in_array(p, a, use);
		}
	}
}

/* ---- schemas without values ---------------------------------------------------------------- */

/* Whether no value obeys a schema that stands in another one. */
static bool hopeless(struct js_plans *p, uint32_t node)
{
	const struct js_set *s = node == JS_FALSE ? NULL : js_eval(p->c, node, false);
	return s && js_set_empty(s);
}

/* The schema that `node` asks its values to obey, by $ref or allOf, and that none obeys; or node.
 */
static uint32_t hopeless_part(struct js_plans *p, uint32_t node)
{
	struct js_doc *d = &p->c->doc;
	const json_t *schema = d->node[node].schema, *all = json_object_get(schema, "allOf");
	for (size_t i = 0; i < json_array_size(all); i++) {
		uint32_t part = js_doc_node(d, node, json_array_get(all, i));
		if (hopeless(p, part))
			return part;
	}
	uint32_t target = json_object_get(schema, "$ref") ? js_doc_ref(d, node, "$ref") : node;
	return target != node && hopeless(p, target) ? target : node;
}

/* The goal inside the only shape of a goal without which the shape has no values; 0 if it has none
 * such, or there are more shapes. */
static uint32_t missing(const struct js_plans *p, uint32_t goal)
{
	const struct js_plan *plan = p->of[goal];
	if (plan->set->n_objects + plan->set->n_arrays != 1)
		return 0;
	const struct js_object_plan *o = plan->set->n_objects ? plan->object : NULL;
	for (size_t i = 0; o && i < o->n_members; i++)
		if (o->member[i].required && !productive(p, o->member[i].goal))
			return o->member[i].goal;
	const struct js_array_plan *a = o ? NULL : plan->array;
	if (!a || a->dead || a->min > a->max || a->n_edges)
		return 0;
	for (size_t i = 0; i < a->min && i < a->n; i++)
		if (!productive(p, a->goal[i]))
			return a->goal[i];
	return a->min > a->n && !a->n_unique && !productive(p, a->rest) ? a->rest : 0;
}

/* Fails with the place of the innermost schema that no value obeys. */
static _Noreturn void no_value(struct js_plans *p, uint32_t root)
{
	struct js *c = p->c;
	uint32_t node = JS_FALSE + 1, steps = 0;
	for (uint32_t goal = root; goal > JS_NONE && steps < JS_MAX_NEST; steps++) {
		const struct js_goal *g = &c->goal[goal];
		node = g->member[0] / 2;
		for (uint32_t i = 0; i < g->n; i++)
			if (!(g->member[i] & 1) && hopeless(p, g->member[i] / 2))
				node = g->member[i] / 2;
		goal = missing(p, goal);
	}
	bool whole = node < c->doc.n_nodes; /* the root is no boolean */
	for (bool on = whole; on && steps < JS_MAX_NEST; steps++) {
		uint32_t part = hopeless_part(p, node);
		on = part != node;
		node = part;
	}
	js_doc_at(&c->doc, node, NULL);
	js_fail(&c->doc.base, MX_E_INVALID, "no value obeys the schema");
}

void js_plan_all(struct js_plans *p, uint32_t root)
{
	reach(p, root);
	for (uint32_t i = 0; i < p->n_order; i++)
		plan_goal(p, p->order[i]);
	find_productive(p);
	if (!productive(p, root))
		no_value(p, root);
	find_used(p, root);
}
