/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/trials.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the texts of a case ---- */

#define LAST 10 /* tokens of a text that come one by one even after large chunks */

static struct text text_make(const struct rig *r, uint32_t len, struct rng *g)
{
	size_t n = (size_t)len * r->layer.width;
	struct text t = {len, allocate(n, 4), {0}};
	for (size_t i = 0; i < n; i++)
		t.x[i] = rng_normal(g);
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		t.y[l] = allocate(n, 4);
	return t;
}

static void text_free(struct text *t)
{
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		free(t->y[l]);
	free(t->x);
}

void texts_make(struct rig *r, struct texts *x)
{
	struct rng g = {12345}; /* the same in every run: tolerances are for these texts */
	uint32_t n = r->c->tokens, width = r->layer.width;
	rig_begin(r, "in one piece");
	x->common = n / 2;
	x->t[0] = text_make(r, n, &g);
	x->t[1] = text_make(r, n * 2 / 3, &g);
	x->t[2] = text_make(r, 50, &g);
	memcpy(x->t[1].x, x->t[0].x, (size_t)x->common * width * 4);
	for (int i = 0; i < N_TEXTS; i++)
		seq_whole(r, &x->t[i]);
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		if (memcmp(x->t[0].y[l], x->t[1].y[l], (size_t)x->common * width * 4))
			rig_fail(r, "outputs depend on later tokens");
}

void texts_free(struct texts *x)
{
	for (int i = 0; i < N_TEXTS; i++)
		text_free(&x->t[i]);
}

/* Returns a text that begins with the first n tokens of `t`. */
static struct text *text_after(struct rig *r, struct texts *x, struct text *t, uint32_t n)
{
	return t == &x->t[2] || n > x->common ? t : &x->t[rng_below(&r->rng, 2)];
}

/* ---- the reference, and whether the case tests anything ---- */

static void check_reference(struct rig *r, const struct texts *x)
{
	const struct text *t = &x->t[0];
	size_t n = (size_t)t->len * r->layer.width;
	double top = 0, worst = 0;
	float *y = allocate(n, 4);
	for (size_t i = 0; i < n; i++)
		if (!isfinite(t->y[0][i]))
			rig_fail(r, "token %zu is not finite", i / r->layer.width);
	if (r->c->reference)
		r->c->reference(r->c, t->len, t->x, r->f32_ptrs, y);
	for (size_t i = 0; r->c->reference && i < n; i++) {
		top = fmax(top, fabs(y[i]));
		worst = fmax(worst, fabs((double)y[i] - t->y[0][i]));
	}
	/* The case's tolerance is for f32 activations. */
	double tolerance = r->element == 2 ? fmax(r->c->tolerance, ROUNDED) : r->c->tolerance;
	if (!(worst <= tolerance * top))
		rig_fail(r, "error %g of %g, allowed %g", worst, top, tolerance * top);
	free(y);
}

/* Ends the test if another first token does not show `reach` tokens later. */
static void check_reach(struct rig *r, const struct texts *x)
{
	struct rng g = {54321};
	size_t width = r->layer.width, reach = r->c->reach ? r->c->reach : CASE_REACH;
	if (!r->state.fixed_bytes)
		return;
	rig_begin(r, "the state lasts");
	struct text t = text_make(r, (uint32_t)reach + 1, &g);
	memcpy(t.x + width, x->t[0].x + width, reach * width * 4);
	seq_whole(r, &t);
	if (!memcmp(t.y[0] + reach * width, x->t[0].y[0] + reach * width, width * 4))
		rig_fail(r,
		         "the first token does not change the output %zu tokens later: either the state is "
		         "lost, or it fades and the case must say how tensors are drawn, or its reach",
		         reach);
	text_free(&t);
}

/* ---- cuts ---- */

/* Cuts a short text in two, at every token or every third. */
static void check_cuts(struct rig *r, struct texts *x)
{
	struct text *t = &x->t[2];
	uint32_t each = r->o.thorough ? 1 : 3, room = r->layer.max_rows / t->len, cut = 1;
	rig_begin(r, "cut in two");
	while (cut < t->len) {
		struct seq seqs[RUN_SPANS];
		struct item items[RUN_SPANS];
		uint32_t n = 0;
		for (; n < room && n < RUN_SPANS && cut < t->len; n++, cut += each) {
			seq_open(r, &seqs[n], t);
			items[n] = item_prefill(&seqs[n], cut);
		}
		rig_step(r, items, n);
		for (uint32_t i = 0; i < n; i++)
			items[i] = item_prefill(&seqs[i], t->len);
		rig_step(r, items, n);
		for (uint32_t i = 0; i < n; i++)
			seq_close(r, &seqs[i]);
	}
}

/* Runs texts first .. 2 together, `chunk` tokens a step, and the last tokens one by one. */
static void check_chunks(struct rig *r, struct texts *x, uint32_t first, uint32_t chunk,
                         const char *what)
{
	struct seq seqs[N_TEXTS];
	rig_begin(r, what);
	for (uint32_t i = first; i < N_TEXTS; i++)
		seq_open(r, &seqs[i], &x->t[i]);
	for (;;) {
		struct item items[N_TEXTS];
		uint32_t n = 0;
		for (uint32_t i = first; i < N_TEXTS; i++) {
			uint32_t left = x->t[i].len - seqs[i].computed;
			if (left > LAST)
				items[n++] = item_prefill(&seqs[i], chunk < left - LAST ? chunk : left - LAST);
			else if (left)
				items[n++] = item_decode(&seqs[i]);
		}
		if (!n)
			break;
		rig_step(r, items, n);
	}
	for (uint32_t i = first; i < N_TEXTS; i++)
		seq_close(r, &seqs[i]);
}

/* ---- drafts ---- */

/* Chooses what follows a draft: another draft at once, a decode, or a chunk. */
static bool after_draft(struct rig *r, struct seq *s, uint32_t round, struct item *out)
{
	if (round % 4 == 0 || s->computed == s->text->len)
		return false;
	*out = round % 4 == 2 ? item_prefill(s, 1 + rng_below(&r->rng, 17)) : item_decode(s);
	return true;
}

/* Runs one sequence for each number 0 .. m of tokens that drafts of m keep, over some borders of
 * blocks and pages. Before the drafts each has a prompt of 1 .. 16 tokens, after a load if there is
 * a saved state. */
static void draft_walk(struct rig *r, struct text *t, uint32_t m, const struct saved *from)
{
	struct seq seqs[RUN_SPANS];
	struct item items[RUN_SPANS];
	uint32_t open = m + 1, end = (from ? from->pos : 0) + 40;
	for (uint32_t i = 0; i <= m; i++) {
		if (from)
			seq_resume(r, &seqs[i], from, t, from->pos - rng_below(&r->rng, 2));
		else
			seq_open(r, &seqs[i], t);
		items[i] = item_prefill(&seqs[i], 1 + rng_below(&r->rng, 16));
	}
	rig_step(r, items, m + 1);
	for (uint32_t round = 0; open; round++) {
		uint32_t n = open = 0;
		for (uint32_t i = 0; i <= m; i++)
			if (seqs[i].computed < end && seqs[i].computed < t->len)
				items[open++] = item_draft(r, &seqs[i], m, i);
		if (open)
			rig_step(r, items, open);
		for (uint32_t i = 0; i <= m; i++)
			if (after_draft(r, &seqs[i], round + i, &items[n]))
				n++;
		if (n)
			rig_step(r, items, n);
	}
	for (uint32_t i = 0; i <= m; i++)
		seq_close(r, &seqs[i]);
}

static void check_drafts(struct rig *r, struct texts *x)
{
	uint32_t far = 230, last = r->layer.max_draft < RUN_SPANS ? r->layer.max_draft : RUN_SPANS - 1;
	struct text *t = &x->t[0];
	if (!last)
		return;
	rig_begin(r, "drafts");
	for (uint32_t m = 1; m <= last; m += r->o.thorough ? 1 : 2)
		draft_walk(r, t, m, NULL);
	if (!r->can_resume || t->len < far + 40)
		return;
	struct seq s;
	struct saved v;
	rig_begin(r, "drafts after a load");
	seq_open(r, &s, t);
	struct item it = item_prefill(&s, far);
	rig_step(r, &it, 1);
	seq_save(r, &s, &v);
	seq_close(r, &s);
	draft_walk(r, t, last, &v);
	saved_drop(r, &v);
}

/* ---- trees of drafts ---- */

/* Runs sequences from `from`, or from the beginning, over `length` tokens: trees of 1 .. n tokens,
 * and between them other trees, a decode or a piece of the prompt. */
static void tree_walk(struct rig *r, struct text *t, uint32_t n, const struct saved *from,
                      uint32_t length)
{
	struct seq seqs[RUN_SPANS];
	struct item items[RUN_SPANS];
	uint32_t open = RUN_SPANS, end = (from ? from->pos : 0) + length;
	for (uint32_t i = 0; i < RUN_SPANS; i++) {
		if (from)
			seq_resume(r, &seqs[i], from, t, from->pos - rng_below(&r->rng, 2));
		else
			seq_open(r, &seqs[i], t);
		items[i] = item_prefill(&seqs[i], 1 + rng_below(&r->rng, 16));
	}
	if (rng_below(&r->rng, 2)) /* else the first tokens are a tree's */
		rig_step(r, items, RUN_SPANS);
	for (uint32_t round = 0; open; round++) {
		open = 0;
		for (uint32_t i = 0; i < RUN_SPANS; i++) {
			struct seq *s = &seqs[i];
			if (s->computed >= end || s->computed >= t->len)
				continue;
			if ((round + i) % 3)
				items[open++] = item_tree(r, s, 1 + rng_below(&r->rng, n));
			else if (rng_below(&r->rng, 2))
				items[open++] = item_decode(s);
			else
				items[open++] = item_prefill(s, 1 + rng_below(&r->rng, 17));
		}
		if (open)
			rig_step(r, items, open);
	}
	for (uint32_t i = 0; i < RUN_SPANS; i++)
		seq_close(r, &seqs[i]);
}

/* Trees of all sizes at the beginning, and from a saved state over a border of 256 tokens. */
static void check_trees(struct rig *r, struct texts *x)
{
	uint32_t far = 230;
	struct text *t = &x->t[0];
	if (!r->max_tree)
		return;
	rig_begin(r, "trees of drafts");
	for (uint32_t n = 2; n <= r->max_tree; n += r->o.thorough ? 1 : 5)
		tree_walk(r, t, n, NULL, 60);
	if (!r->can_resume || t->len < far + 60)
		return;
	struct seq s;
	struct saved v;
	rig_begin(r, "trees of drafts after a load");
	seq_open(r, &s, t);
	struct item it = item_prefill(&s, far);
	rig_step(r, &it, 1);
	seq_save(r, &s, &v);
	seq_close(r, &s);
	tree_walk(r, t, r->max_tree, &v, 60);
	saved_drop(r, &v);
}

/* ---- saved states and forks ---- */

/* Runs steps of any kind to exactly position `to`. */
static void go_to(struct rig *r, struct seq *s, uint32_t to)
{
	while (s->computed < to) {
		struct item it = item_random(r, s, to - s->computed);
		rig_step(r, &it, 1);
	}
}

/* Runs the sequences together, each for `n` more tokens if its text has them. */
static void go_on(struct rig *r, struct seq *seqs, uint32_t n_seqs, uint32_t n)
{
	uint32_t ends[RUN_SPANS];
	for (uint32_t i = 0; i < n_seqs; i++) {
		uint32_t end = seqs[i].computed + n;
		ends[i] = end < seqs[i].text->len ? end : seqs[i].text->len;
	}
	for (;;) {
		struct item items[RUN_SPANS];
		uint32_t open = 0;
		for (uint32_t i = 0; i < n_seqs; i++)
			if (seqs[i].computed < ends[i])
				items[open++] = item_random(r, &seqs[i], ends[i] - seqs[i].computed);
		if (!open)
			break;
		rig_step(r, items, open);
	}
}

/* At every position of interest, sometimes just after a draft of which nothing stayed: saves, loads
 * at that position and at the one before, saves what was loaded, and forks. Then all of them go on,
 * some with another text, and so does the sequence that was saved. */
static void check_saves(struct rig *r, struct texts *x)
{
	static const uint32_t at[] = {1,  2,  15, 16, 17, 18, 31,  32,  33,  48,
	                              49, 64, 65, 95, 96, 97, 128, 129, 256, 257};
	struct seq s;
	if (!r->can_resume && !r->can_fork)
		return;
	rig_begin(r, "saved, loaded and forked");
	seq_open(r, &s, &x->t[0]);
	for (size_t i = 0; i < sizeof(at) / sizeof(*at) && at[i] < x->t[0].len; i++) {
		struct seq seqs[4];
		struct saved v, again;
		uint32_t n = 0;
		if (!r->o.thorough && rng_below(&r->rng, 2))
			continue;
		go_to(r, &s, at[i]);
		if (r->layer.max_draft && rng_below(&r->rng, 2)) {
			struct item it = item_draft(r, &s, 1 + rng_below(&r->rng, r->layer.max_draft), 0);
			rig_step(r, &it, 1);
		}
		if (r->can_fork)
			seq_fork(r, &s, &seqs[n++], text_after(r, x, s.text, at[i]));
		if (r->can_resume) {
			seq_save(r, &s, &v);
			seq_resume(r, &seqs[n++], &v, text_after(r, x, s.text, at[i]), at[i]);
			seq_resume(r, &seqs[n++], &v, text_after(r, x, s.text, at[i] - 1), at[i] - 1);
			seq_save(r, &seqs[n - 2], &again);
			saved_drop(r, &v);
			seq_resume(r, &seqs[n], &again, text_after(r, x, s.text, at[i] - 1),
			           at[i] - rng_below(&r->rng, 2));
			n++;
			saved_drop(r, &again);
		}
		go_on(r, seqs, n, 17);
		while (n)
			seq_close(r, &seqs[--n]);
	}
	seq_close(r, &s);
}

/* ---- everything at once ---- */

#define N_LIVE  5
#define N_SAVED 3

struct life {
	struct seq seqs[N_LIVE];
	bool live[N_LIVE];
	struct saved saved[N_SAVED];
};

/* Opens a sequence: a new one, from a saved state, or as a fork of another. */
static void begin(struct rig *r, struct texts *x, struct life *life, int i)
{
	struct seq *s = &life->seqs[i];
	const struct saved *v = &life->saved[rng_below(&r->rng, N_SAVED)];
	uint32_t j = rng_below(&r->rng, N_LIVE), how = rng_below(&r->rng, 3);
	if (how == 0 && v->text) {
		uint32_t at = v->pos - rng_below(&r->rng, 2);
		seq_resume(r, s, v, text_after(r, x, v->text, at), at);
	} else if (how == 1 && r->can_fork && life->live[j]) {
		const struct seq *from = &life->seqs[j];
		seq_fork(r, from, s, text_after(r, x, from->text, from->computed));
	} else {
		seq_open(r, s, &x->t[rng_below(&r->rng, N_TEXTS)]);
	}
	life->live[i] = true;
}

/* Runs one step of some of the sequences. */
static void live(struct rig *r, struct life *life)
{
	struct item items[N_LIVE];
	uint32_t n = 0, room = r->layer.max_rows;
	for (int i = 0; i < N_LIVE; i++) {
		struct seq *s = &life->seqs[i];
		if (life->live[i] && s->computed < s->text->len && room && rng_below(&r->rng, 4)) {
			items[n] = item_random(r, s, room);
			room -= items[n++].n;
		}
	}
	if (n)
		rig_step(r, items, n);
}

static void check_random(struct rig *r, struct texts *x, int steps)
{
	struct life life = {0};
	rig_begin(r, "at random");
	while (steps--) {
		for (int i = 0; i < N_LIVE; i++)
			if (!life.live[i] && rng_below(&r->rng, 2))
				begin(r, x, &life, i);
		live(r, &life);
		for (int i = 0; i < N_LIVE; i++) {
			struct seq *s = &life.seqs[i];
			struct saved *v = &life.saved[rng_below(&r->rng, N_SAVED)];
			if (life.live[i] && r->can_resume && s->computed >= s->save_from &&
			    !rng_below(&r->rng, 6)) {
				saved_drop(r, v);
				seq_save(r, s, v);
			}
			/* finished, or preempted */
			if (life.live[i] && (s->computed == s->text->len || !rng_below(&r->rng, 25))) {
				seq_close(r, s);
				life.live[i] = false;
			}
		}
	}
	for (int i = 0; i < N_LIVE; i++)
		if (life.live[i])
			seq_close(r, &life.seqs[i]);
	for (int i = 0; i < N_SAVED; i++)
		saved_drop(r, &life.saved[i]);
}

/* ---- all of it ---- */

static void check_describe(struct rig *r)
{
	struct block text;
	rig_begin(r, "describe");
	block_alloc(&text, NULL, 16, 64);
	r->ops->describe(r->mixers[0], (char *)text.p, text.size);
	block_check(&text, "the text of describe");
	if (!memchr(text.p, 0, text.size))
		rig_fail(r, "the text has no end");
	block_free(&text);
}

#define SHORT_DRAFT 5
#define LONG_DRAFT  20 /* longer than a block of anything that has blocks of 16 */

static void open_with(struct rig *r, const struct mixer_case *c, const struct rig_options *o,
                      unsigned threads, uint32_t max_draft)
{
	struct rig_options with = *o;
	with.threads = threads;
	with.max_draft = max_draft;
	rig_open(r, c, &with);
}

void trials_run(const struct rig_options *o, const struct mixer_set *set,
                const struct mixer_case *c)
{
	uint32_t most = set->max_draft ? set->max_draft : LONG_DRAFT;
	unsigned last = o->threads ? o->threads : 3;
	struct rig r;
	struct texts x;

	open_with(&r, c, o, 1, 0);
	texts_make(&r, &x);
	check_reference(&r, &x);
	check_reach(&r, &x);
	check_describe(&r);
	check_cuts(&r, &x);
	check_chunks(&r, &x, o->thorough ? 0 : 1, 1, "token by token");
	if (o->thorough)
		check_chunks(&r, &x, 0, 16, "in chunks of 16");
	rig_close(&r);

	open_with(&r, c, o, 1, most < SHORT_DRAFT ? most : SHORT_DRAFT);
	check_drafts(&r, &x);
	check_saves(&r, &x);
	rig_close(&r);

	for (unsigned threads = o->thorough && last > 2 ? 2 : last; threads <= last; threads++) {
		open_with(&r, c, o, threads, most < LONG_DRAFT ? most : LONG_DRAFT);
		check_trees(&r, &x);
		check_random(&r, &x, o->thorough ? 40 : 20);
		check_chunks(&r, &x, 0, 61, "in chunks of 61");
		rig_close(&r);
	}
	texts_free(&x);
}

void trials_table(const struct mx_mixer_ops *ops)
{
	struct mx_err err = {0};
	struct mx_device device = {.info = {.kind = MX_DEVICE_CPU, .threads = 1, .align = 64}};
	const struct mx_layer_desc layer = {.n_layers = 1, .width = 64, .max_context = 64, .ranks = 1};
	ops->destroy(NULL);
	if (ops->caps & MX_MIXER_CPU)
		device.info.kind = MX_DEVICE_CUDA;
	if (ops->caps & MX_MIXER_CPU && ops->caps & MX_MIXER_CUDA)
		return;
	if (ops->probe(&layer, &device, &err) == MX_OK || !*err.text)
		test_fail("%s: probe must refuse, with a message, a kind of device that the mixer does not "
		          "run on",
		          ops->name);
}

static void check_wrong(const struct rig *r, const struct mixer_wrong *wrong)
{
	struct mx_param params[CASE_MAX_PARAMS + 1];
	struct mx_layer_desc layer = r->layer;
	struct mx_err err = {0};
	size_t at = 0, n = r->c->n_params;
	memcpy(params, r->c->params, n * sizeof(*params));
	while (at < n && strcmp(params[at].name, wrong->param.name))
		at++;
	params[at] = wrong->param;
	layer.params = (struct mx_params){params, n + (at == n)};
	if (r->ops->probe(&layer, r->device, &err) == MX_OK)
		rig_fail(r, "probe takes %s = %g", wrong->param.name, wrong->param.f);
	if (!strstr(err.text, wrong->says))
		rig_fail(r, "%s = %g is refused with \"%s\", which does not contain \"%s\"",
		         wrong->param.name, wrong->param.f, err.text, wrong->says);
}

void trials_wrongs(const struct rig_options *o, const struct mixer_set *set)
{
	struct rig r;
	if (!set->n_wrongs)
		return;
	open_with(&r, &set->cases[0], o, 1, 0);
	rig_begin(&r, "wrong parameters are refused");
	for (size_t i = 0; i < set->n_wrongs; i++)
		check_wrong(&r, &set->wrongs[i]);
	rig_close(&r);
}
