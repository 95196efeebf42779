/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why a result is not finite. Nothing is checked on the way through the layers, since it costs
 * time; when logits turn out not to be finite, the pass of that sequence is repeated, and each
 * stage's rows are looked at: the embedding, the blocks, the final norm. Of the first stage whose
 * rows are not finite, the weights are read where the checkpoint is mapped. Either one of them
 * holds a value that is not finite, or the arithmetic overflows.
 *
 * A repeated pass changes the state of its own sequence only, which has failed already.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "engine/finite.h"
#include "engine/ranks.h"
#include "engine/step_layout.h"

/* ---- rows ---- */

/* Points *out to row `row` of x in the host's memory. */
static mx_status read_row(struct mx_model_engine *e, const void *x, size_t row, const void **out)
{
	struct mx_device *d = e->device;
	size_t bytes = e->model.plan->width * mx_dtype_size(d->info.act_dtype);
	const unsigned char *from = (const unsigned char *)x + row * bytes;
	*out = from;
	if (!d->info.own_memory)
		return MX_OK;
	*out = e->pooling; /* which holds a row, and which nobody waits for now */
	mx_status st = d->ops->download(d, e->pooling, from, bytes);
	return st == MX_OK ? d->ops->wait(d) : st;
}

static bool row_finite(enum mx_dtype dtype, const void *row, uint32_t width)
{
	for (uint32_t i = 0; i < width; i++) {
		float v = dtype == MX_F32    ? ((const float *)row)[i]
		          : dtype == MX_BF16 ? mx_bf16_to_f32(((const uint16_t *)row)[i])
		                             : mx_f16_to_f32(((const uint16_t *)row)[i]);
		if (!isfinite(v))
			return false;
	}
	return true;
}

/* The probe of struct mx_model_engine: MX_E_NOTFOUND ends the pass at the first stage with a row
 * that is not finite, unless there are several ranks. */
static mx_status probe(struct mx_model_engine *e, uint32_t stage, const void *x, size_t n_rows)
{
	for (size_t i = 0; i < n_rows; i++) {
		const void *row;
		mx_status st = read_row(e, x, i, &row);
		if (st != MX_OK)
			return st;
		if (!row_finite(e->device->info.act_dtype, row, e->model.plan->width)) {
			if (stage < e->diagnosis.suspect)
				e->diagnosis.suspect = stage;
			return e->ranks ? MX_OK : MX_E_NOTFOUND; /* other ranks go on, and need this one */
		}
	}
	return MX_OK;
}

/* Repeats the pass of core.items. Returns the first stage that is not finite; the stage after the
 * last, the logits, if all are. */
static uint32_t repeat(struct mx_model_engine *e)
{
	const struct mx_tables *t = &e->scratch.tables;
	e->diagnosis.suspect = e->model.n_own + 2;
	e->probe = probe;
	if (e->device->info.async) {
		(void)mx_launch_again(e);
	} else {
		uint32_t longest, n_rows = mx_lay_out_rows(e, t, &longest);
		const struct mx_rank_call call = {.run = mx_forward_rank,
		                                  .step = {.spans = e->scratch.spans,
		                                           .n_spans = e->core.n_items,
		                                           .n_rows = n_rows,
		                                           .longest = longest,
		                                           .pos = t->pos},
		                                  .ids = t->ids};
		(void)mx_ranks_run(e, &call);
	}
	e->probe = NULL;
	return e->diagnosis.suspect;
}

/* ---- weights ---- */

__attribute__((format(printf, 2, 3))) static void say(struct mx_diagnosis *d, const char *text, ...)
{
	va_list args;
	va_start(args, text);
	vsnprintf(d->text, sizeof d->text, text, args);
	va_end(args);
}

/* True if elements first .. first + n - 1 of the tensor hold a value that is not finite; then the
 * diagnosis says so. */
static bool blame(struct mx_diagnosis *d, const char *layer, const struct mx_tensor *t,
                  size_t first, size_t n)
{
	size_t index, bad = mx_tensor_not_finite(t, first, n, &index);
	if (!bad)
		return false;
	say(d, "%s: %.160s in %.60s holds %zu value%s not finite, the first at element %zu", layer,
	    t->name, t->file, bad, bad > 1 ? "s that are" : " that is", index);
	d->weight = true;
	return true;
}

/* Returns the tensor of the checkpoint that a matrix was made of. Of one that is stored as codes
 * and scales in tensors of their own, the matrix itself. */
static const struct mx_tensor *stored(const struct mx_model *m, const struct mx_tensor *t)
{
	for (const struct mx_model_packed *x = m->packed; x; x = x->next)
		if (t == &x->made && x->from.source.format == x->from.tensor->format) {
			t = x->from.tensor;
			break;
		}
	for (const struct mx_model_made *x = m->made; x;) {
		const bool own = t == &x->made;
		t = own ? x->from : t; /* which may have been made itself */
		x = own ? m->made : x->next;
	}
	return t;
}

/* Looks at all elements of what a matrix was made of, in both parts of one that has two. */
static bool blame_matrix(struct mx_model_engine *e, const char *layer, const struct mx_tensor *made)
{
	const struct mx_tensor *t = stored(&e->model, made);
	return blame(&e->diagnosis, layer, t, 0, mx_tensor_count(t)) ||
	       (t->values && blame(&e->diagnosis, layer, t->values, 0, mx_tensor_count(t->values)));
}

static bool blame_named(struct mx_model_engine *e, const char *layer, const char *name)
{
	const struct mx_tensor *t;
	return mx_checkpoint_find(e->model.checkpoint, name, &t, NULL) == MX_OK &&
	       blame_matrix(e, layer, t);
}

/* Reads the rows of a table for the sequence's tokens: one that is not finite may have come in an
 * earlier step, and be in the state of the first layer since. */
static bool blame_rows(struct mx_model_engine *e, const struct mx_seq *s, const struct mx_tensor *t)
{
	size_t width = t->shape[1];
	for (uint32_t i = 0; i < s->n; i++)
		if (blame(&e->diagnosis, "embedding", t, mx_seq_token(&s->tokens, i) * width, width))
			return true;
	return false;
}

/* Looks for the embeddings' tables, and what makes the layers' inputs of them. */
static bool blame_embedding(struct mx_model_engine *e, const struct mx_seq *s)
{
	const struct mx_model *m = &e->model;
	for (size_t u = 0; u < m->blocks[0].first_use; u++) {
		const struct mx_weight *w = m->uses[u].weight;
		if ((w == &m->embed || w == &m->inputs.embed) &&
		    blame_rows(e, s, stored(m, m->uses[u].tensor)))
			return true;
		if (w == &m->inputs.projection && blame_matrix(e, "embedding", m->uses[u].tensor))
			return true;
	}
	return false;
}

static void describe_block(const struct mx_model_block *b, char *text, size_t cap)
{
	int n = snprintf(text, cap, "layer %u (", b->layer);
	for (uint32_t i = 0; i < b->n_mixers && n > 0 && (size_t)n < cap; i++)
		n += snprintf(text + n, cap - (size_t)n, "%s%s", i ? ", " : "", b->mixers[i].ops->name);
	if (n > 0 && (size_t)n < cap)
		snprintf(text + n, cap - (size_t)n, "%s)",
		         b->kind == MX_BLOCK_MIXER || b->kind == MX_BLOCK_ASIDE ? ""
		         : b->kind == MX_BLOCK_MLP                              ? "feed-forward"
		                                                                : "experts");
}

static void blame_block(struct mx_model_engine *e, uint32_t i)
{
	const struct mx_model *m = &e->model;
	const struct mx_model_block *b = &m->blocks[i], *next = i + 1 < m->n_blocks ? b + 1 : NULL;
	struct mx_diagnosis *d = &e->diagnosis;
	char name[96];
	describe_block(b, name, sizeof name);
	for (size_t v = b->first_vector; v < (next ? next->first_vector : m->n_vectors); v++)
		if (blame(d, name, m->vectors[v].tensor, 0, m->vectors[v].n))
			return;
	for (size_t u = b->first_use; u < (next ? next->first_use : m->n_uses); u++)
		if (blame_matrix(e, name, m->uses[u].tensor))
			return;
	say(d, "%s: its output is not finite, although its weights are: its activations overflow %s",
	    name, mx_dtype_name(e->device->info.act_dtype));
}

/* Fills the diagnosis for the sequence of core.items[0], which is the only item. */
static void diagnose(struct mx_model_engine *e)
{
	const struct mx_plan *p = e->model.plan;
	if (blame_embedding(e, e->core.items[0].seq))
		return;
	uint32_t stage = repeat(e);
	if (stage && stage <= e->model.n_own) {
		blame_block(e, stage - 1);
		return;
	}
	if (blame_named(e, "final norm", p->final_norm) || blame_named(e, "lm_head", p->lm_head))
		return;
	say(&e->diagnosis, "the logits are not finite, although all weights that lead to them are");
}

static bool unexplained(const struct mx_step_result *r)
{
	return r->status != MX_OK && !r->cause;
}

void mx_diagnose(struct mx_model_engine *e, struct mx_step_result *results)
{
	struct mx_core *c = &e->core;
	struct mx_diagnosis *d = &e->diagnosis;
	uint32_t first = 0, n = c->n_items;
	while (!unexplained(&results[first]))
		first++;
	if (!d->weight && d->n < MX_MAX_DIAGNOSES) {
		c->items[0] = c->items[first];
		c->n_items = 1;
		diagnose(e);
		d->n++;
		mx_error("engine", "%s: a result is not finite: %s", c->info.model, d->text);
		snprintf(d->later, sizeof d->later, "not finite; an earlier one came from: %s", d->text);
		results[first++].cause = d->text;
	}
	for (uint32_t i = first; i < n; i++)
		if (unexplained(&results[i]))
			results[i].cause = d->later;
	c->n_items = 0;
}
