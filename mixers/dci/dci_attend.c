/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of a step's rows: search, score, softmax.
 *
 * A row at position p attends to the first tokens and to those from a border on, exactly. The
 * border is the end of the last run that ends `recent` tokens before the row or earlier. Of the
 * runs between the two, estimates choose the keys to score ("visits"), and scores choose those to
 * attend to
 * ("top_k"). All of that is a function of the row and of the keys it sees.
 *
 * An item is up to bounds.rows rows of a span; a task is an item for one key head. The queries of a
 * task go through the runs together, so that each run's index is read once for them.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "mixers/dci/dci.h"

#define TILE_ROWS 16
#define TILE_BYTES                                                                                 \
	((size_t)1 << 19) /* of queries and their candidates: about an L2 cache's half                 \
	                   */
#define SPARE 3       /* found keys are cut to what is wanted at so many times that */
#define BLOCK 64      /* runs whose centres are scored at a time */

struct item {
	uint32_t span, first, n; /* rows first .. first + n - 1 of the span */
};

struct attend_run {
	const struct mx_mixer *m;
	const struct mx_step *step;
	float *q;
	struct item *items;
	uint32_t n_items;
	unsigned char *workers;
};

/* A worker's memory. T = bounds.rows * group. */
struct worker {
	float *packed;              /* [T][dim] */
	uint8_t *tables;            /* [T][directions * 4] */
	struct dci_query *query;    /* [T] */
	struct dci_found *found;    /* [T] */
	uint32_t *want;             /* [T] keys to find */
	uint32_t *value, *pos;      /* [T][cap] */
	float *base;                /* [T][BLOCK] */
	const unsigned char **rows; /* [list] */
	float *scores;              /* [list] */
	float *o;                   /* [dim] */
	float *projected;           /* [directions] */
};

static uint32_t capacity(const struct dci_bounds *b)
{
	return SPARE * b->visits + 2 * DCI_RUN;
}

struct dci_bounds dci_bounds_of(const struct dci_params *p, uint32_t max_context)
{
	struct dci_layout l;
	struct dci_bounds b = {.visits = dci_visits(p, max_context), .recent = p->recent + DCI_RUN};
	dci_layout_of(p, &l);
	uint32_t exact = p->first + b.recent;
	b.list = b.visits + (exact < max_context ? exact : max_context) + 16;
	size_t group = p->heads.group, query = l.dim * 4 + p->directions * 4 + capacity(&b) * 8;
	size_t rows = TILE_BYTES / (group * query);
	b.rows = rows < 1 ? 1 : rows > TILE_ROWS ? TILE_ROWS : (uint32_t)rows;
	return b;
}

static size_t worker_layout(const struct dci_params *p, const struct dci_bounds *b,
                            unsigned char *base, struct worker *out)
{
	struct dci_layout l;
	size_t at = 0, t = (size_t)b->rows * p->heads.group, cap = capacity(b);
	dci_layout_of(p, &l);
#define PLACE(field, count)                                                                        \
	do {                                                                                           \
		if (out)                                                                                   \
			out->field = (void *)(base + at);                                                      \
		at += mx_round_up((count) * sizeof *((struct worker *)0)->field, 64);                      \
	} while (0)
	PLACE(packed, t * l.dim);
	PLACE(tables, t * p->directions * 4);
	PLACE(query, t);
	PLACE(found, t);
	PLACE(want, t);
	PLACE(value, t * cap);
	PLACE(pos, t * cap);
	PLACE(base, t * BLOCK);
	PLACE(rows, b->list);
	PLACE(scores, b->list);
	PLACE(o, l.dim);
	PLACE(projected, p->directions);
#undef PLACE
	return mx_round_up(at, 4096) +
	       64; /* not a multiple of a page: workers' buffers must not alias */
}

size_t dci_worker_bytes(const struct dci_params *p, const struct dci_bounds *b)
{
	return worker_layout(p, b, NULL, NULL);
}

size_t dci_items_bytes(const struct mx_layer_desc *layer)
{
	return mx_round_up(((size_t)layer->max_rows + layer->max_spans) * sizeof(struct item), 64);
}

/* ---- what a row sees ---- */

/* The runs that a row searches: first .. end - 1; none if end <= first. */
struct seen {
	uint32_t first, end;
	uint32_t visits, top_k; /* 0 = none */
	bool all;               /* every key is visited */
};

static struct seen seen_at(const struct dci_params *p, uint32_t pos)
{
	struct seen s = {.first = p->first / DCI_RUN};
	s.end = pos + 1 > p->recent ? (pos + 1 - p->recent) / DCI_RUN : 0;
	if (s.end <= s.first) {
		s.first = s.end = 0;
		return s;
	}
	uint32_t n = (s.end - s.first) * DCI_RUN;
	s.visits = dci_visits(p, n);
	s.top_k = dci_top_k(p, n);
	s.top_k = s.top_k < s.visits ? s.top_k : s.visits;
	s.all = s.visits == n;
	return s;
}

/* Returns the float whose dci_ordered is u. */
static float from_ordered(uint32_t u)
{
	float f;
	u = u >> 31 ? u & 0x7fffffffu : ~u;
	memcpy(&f, &u, 4);
	return f;
}

/* ---- search ---- */

/* The queries of a task. */
struct tile {
	const struct attend_run *run;
	const struct mx_span *span;
	uint32_t kv_head;
	uint32_t pos; /* of the first row */
	uint32_t n_queries;
	struct worker *w;
};

static struct seen seen_by(const struct tile *t, uint32_t query)
{
	const struct dci_params *p = &t->run->m->params;
	return seen_at(p, t->pos + query / p->heads.group);
}

static void prepare(const struct tile *t)
{
	const struct mx_mixer *m = t->run->m;
	const struct attn_params *p = &m->params.heads;
	uint32_t group = p->group, dim = m->layout.dim, cap = capacity(&m->bounds);
	struct worker *w = t->w;
	for (uint32_t i = 0; i < t->n_queries; i++) {
		uint32_t row = t->span->row + (t->pos - t->span->pos) + i / group;
		uint32_t head = t->kv_head * group + i % group;
		const float *q = t->run->q + ((size_t)row * p->heads + head) * p->head_dim;
		float padded[512] = {0};
		struct seen s = seen_by(t, i);
		memcpy(padded, q, p->head_dim * sizeof *q);
		m->kernels->pack(dim, padded, w->packed + (size_t)i * dim);
		w->found[i] = (struct dci_found){.value = w->value + (size_t)i * cap,
		                                 .pos = w->pos + (size_t)i * cap};
		w->want[i] = s.visits;
		struct dci_query *query = &w->query[i];
		uint8_t *table = w->tables + (size_t)i * m->params.directions * 4;
		*query = (struct dci_query){.table = table, .least = -INFINITY};
		if (s.all || !s.visits)
			continue;
		dci_project(m, t->kv_head, q, w->projected);
		m->kernels->tabulate(m->params.directions, w->projected, table, &query->step,
		                     &query->offset);
	}
}

/* Scans one run for the queries from `from` on. base [n_queries][BLOCK] is that of the run. */
static void scan_run(const struct tile *t, uint32_t run, uint32_t from, const float *base)
{
	const struct mx_mixer *m = t->run->m;
	const unsigned char *index = dci_index(m, t->span->pages, t->kv_head, run * DCI_RUN);
	const float *factors = (const float *)(const void *)(index + m->layout.factors);
	for (uint32_t i = from, n; i < t->n_queries; i += n) {
		struct dci_found *found = &t->w->found[i];
		struct dci_query *query = &t->w->query[i];
		float bases[DCI_SCAN];
		n = t->n_queries - i < DCI_SCAN ? t->n_queries - i : DCI_SCAN;
		for (uint32_t k = 0; k < n; k++)
			bases[k] = base[(size_t)(i + k) * BLOCK];
		m->kernels->scan(m->params.directions / 8, index, factors, n, query, bases, run * DCI_RUN,
		                 found);
		for (uint32_t k = 0; k < n; k++)
			if (found[k].n > SPARE * t->w->want[i + k])
				query[k].least = from_ordered(m->kernels->keep(&found[k], t->w->want[i + k]));
	}
}

/* Returns the first query that searches run `run`: later rows see all that earlier ones do. */
static uint32_t first_query(const struct tile *t, uint32_t run)
{
	uint32_t i = 0, group = t->run->m->params.heads.group;
	for (; i < t->n_queries; i += group) {
		struct seen s = seen_by(t, i);
		if (s.end > run && !s.all)
			break;
	}
	return i;
}

static void search(const struct tile *t)
{
	const struct mx_mixer *m = t->run->m;
	struct worker *w = t->w;
	struct seen last = seen_by(t, t->n_queries - 1);
	if (last.all)
		return;
	for (uint32_t r = last.first; r < last.end; r += BLOCK) {
		uint32_t n = last.end - r < BLOCK ? last.end - r : BLOCK;
		const unsigned char *centres[BLOCK];
		for (uint32_t k = 0; k < n; k++)
			centres[k] =
				dci_index(m, t->span->pages, t->kv_head, (r + k) * DCI_RUN) + m->layout.centre;
		for (uint32_t i = first_query(t, r); i < t->n_queries; i++)
			m->kernels->score(n, centres, m->layout.dim, w->packed + (size_t)i * m->layout.dim,
			                  w->base + (size_t)i * BLOCK);
		for (uint32_t k = 0; k < n; k++)
			scan_run(t, r + k, first_query(t, r + k), w->base + k);
	}
}

/* ---- attend ---- */

/* Lists the keys of positions a .. b - 1. */
static uint32_t list_keys(const struct tile *t, uint32_t a, uint32_t b, const unsigned char **rows)
{
	const struct mx_mixer *m = t->run->m;
	uint32_t n = 0;
	while (a < b) {
		const unsigned char *key = dci_key(m, t->span->pages, t->kv_head, a);
		uint32_t end = (a / m->page_tokens + 1) * m->page_tokens;
		end = end < b ? end : b;
		for (; a < end; a++, key += m->layout.row)
			rows[n++] = key;
	}
	return n;
}

/* Lists the keys that query i attends to besides the exact ones, and their scores. Returns their
 * number. */
static uint32_t choose(const struct tile *t, uint32_t i, const struct seen *s,
                       const unsigned char **rows, float *scores)
{
	const struct mx_mixer *m = t->run->m;
	struct dci_found *f = &t->w->found[i];
	uint32_t n;
	const float *q = t->w->packed + (size_t)i * m->layout.dim;
	if (!s->visits)
		return 0;
	if (s->all) {
		n = list_keys(t, s->first * DCI_RUN, s->end * DCI_RUN, rows);
	} else {
		if (f->n > s->visits)
			m->kernels->keep(f, s->visits);
		n = f->n;
		for (uint32_t k = 0; k < n; k++)
			rows[k] = dci_key(m, t->span->pages, t->kv_head, f->pos[k]);
	}
	if (!n)
		return 0;
	m->kernels->score(n, rows, m->layout.dim, q, scores);
	if (s->top_k >= n)
		return n;
	/* The found positions are done with: their places take the scores' order. */
	for (uint32_t k = 0; k < n; k++) {
		f->value[k] = dci_ordered(scores[k]);
		f->pos[k] = k;
	}
	f->n = n;
	m->kernels->keep(f, s->top_k);
	for (uint32_t k = 0; k < s->top_k; k++) {
		rows[k] = rows[f->pos[k]];
		scores[k] = scores[f->pos[k]];
	}
	return s->top_k;
}

static void attend_query(const struct tile *t, uint32_t i, uint32_t n_dense)
{
	const struct mx_mixer *m = t->run->m;
	const struct attn_params *p = &m->params.heads;
	const struct seen s = seen_by(t, i);
	struct worker *w = t->w;
	uint32_t row = t->span->row + (t->pos - t->span->pos) + i / p->group;
	uint32_t head = t->kv_head * p->group + i % p->group;
	float *y = t->run->q + ((size_t)row * p->heads + head) * p->head_dim, top;

	m->kernels->score(n_dense, w->rows, m->layout.dim, w->packed + (size_t)i * m->layout.dim,
	                  w->scores);
	uint32_t n = n_dense + choose(t, i, &s, w->rows + n_dense, w->scores + n_dense);
	float l = m->kernels->softmax(n, w->scores, p->scale, p->cap, &top);
	if (m->heads.weights.sinks) /* a key of this score, whose value is 0 */
		l += exp2f(m->heads.weights.sinks[head] * (float)ATTN_LOG2E - top);
	m->kernels->mix(n, w->rows, m->values, w->scores, m->layout.dim, w->o);
	m->kernels->unpack(p->head_dim, w->o, 1 / l, y);
}

static void attend_task(void *arg, size_t task, unsigned worker)
{
	const struct attend_run *run = arg;
	const struct mx_mixer *m = run->m;
	const struct item *it = &run->items[task % run->n_items];
	uint32_t group = m->params.heads.group;
	struct worker w;
	worker_layout(&m->params, &m->bounds, run->workers + worker * m->worker_bytes, &w);
	const struct mx_span *span = &run->step->spans[it->span];
	const struct tile t = {.run = run,
	                       .span = span,
	                       .kv_head = (uint32_t)(task / run->n_items),
	                       .pos = span->pos + it->first,
	                       .n_queries = it->n * group,
	                       .w = &w};
	prepare(&t);
	search(&t);
	for (uint32_t r = 0; r < it->n; r++) {
		struct seen s = seen_at(&m->params, t.pos + r);
		uint32_t n = list_keys(&t, 0, s.first * DCI_RUN, w.rows);
		n += list_keys(&t, s.end * DCI_RUN, t.pos + r + 1, w.rows + n);
		for (uint32_t h = 0; h < group; h++)
			attend_query(&t, r * group + h, n);
	}
}

void dci_attend(const struct mx_mixer *m, const struct mx_step *step, unsigned char *scratch,
                float *q)
{
	struct attend_run run = {.m = m,
	                         .step = step,
	                         .q = q,
	                         .items = (struct item *)(void *)scratch,
	                         .workers = scratch + m->items_bytes};
	for (uint32_t s = 0; s < step->n_spans; s++)
		for (uint32_t r = 0; r < step->spans[s].n; r += m->bounds.rows) {
			uint32_t left = step->spans[s].n - r;
			run.items[run.n_items++] =
				(struct item){s, r, left < m->bounds.rows ? left : m->bounds.rows};
		}
	m->heads.device->ops->parallel(m->heads.device, (size_t)run.n_items * m->params.heads.kv_heads,
	                               attend_task, &run);
}
