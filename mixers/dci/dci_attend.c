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
	((size_t)1 << 19)     /* of queries and their candidates: about an L2 cache's half             \
	                       */
#define SPARE        3    /* found keys are cut to about what is wanted at so many times that */
#define BLOCK        64   /* runs whose centres are scored at a time */
#define NEAR         8    /* runs that queries scan in turn: an L1 cache's half */
#define SAMPLE       8    /* runs that tell where a bound should begin */
#define SAMPLED_FROM 32   /* runs that are searched, for a sample to pay */
#define NEAR_KEYS    1024 /* keys that the queries of a task score in turn, at least */

/* The share of the variance that the products of a run's keys have where the largest are attended
 * to: the mean of exp(x) of keys below a bound, of normal x, is exp(mean + REST variance / 2). By
 * the errors of outputs of the bundled model, 0.3 to 0.5 are equally good, 0 and 0.7 worse. */
#define REST 0.4f

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

/* A worker's memory. T = bounds.rows * group; H = DCI_SCAN query heads of a row at a time. */
struct worker {
	float *packed;                /* [T][dim] */
	uint8_t *tables;              /* [T][directions * 4] */
	struct dci_query *query;      /* [T] */
	struct dci_found *found;      /* [T] */
	uint32_t *want;               /* [T] keys to find */
	uint32_t *end;                /* [T] the end of the runs to scan */
	uint32_t *scored;             /* [T] found keys whose products are computed */
	uint32_t *value, *pos;        /* [T][cap] */
	float *base;                  /* [T][BLOCK] */
	const unsigned char **dense;  /* [exact] rows that all queries of a row attend to */
	const unsigned char **chosen; /* [H][visits] */
	float *scores;                /* [H][list] of dense rows, of means, of chosen rows */
	float *o;                     /* [H][dim] */
	float *projected;             /* [directions] */
	const unsigned char **keys;   /* [runs] the first key of each run */
	const unsigned char **means;  /* [runs] the centre of each run that is searched */
	float *rest;                  /* [runs] how many of its keys a query does not attend to */
	float *spread;                /* [runs] of the keys around their centre */
	float *norm;                  /* [T] squares of queries' lengths */
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
	b.exact = p->first + b.recent < max_context ? p->first + b.recent : max_context;
	b.runs = max_context / DCI_RUN + 1;
	b.list = b.visits + b.exact + (p->rest ? b.runs : 0) + 16;
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
	PLACE(end, t);
	PLACE(scored, t);
	PLACE(value, t * cap);
	PLACE(pos, t * cap);
	PLACE(base, t * BLOCK);
	PLACE(dense, b->exact);
	PLACE(chosen, DCI_SCAN * b->visits);
	PLACE(scores, DCI_SCAN * b->list);
	PLACE(o, DCI_SCAN * l.dim);
	PLACE(projected, p->directions);
	PLACE(keys, b->runs);
	PLACE(means, b->runs);
	PLACE(rest, b->runs);
	PLACE(spread, b->runs);
	PLACE(norm, t);
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
		m->rows->pack(dim, padded, w->packed + (size_t)i * dim);
		float norm = 0;
		for (uint32_t k = 0; k < p->head_dim; k++)
			norm += q[k] * q[k];
		w->norm[i] = norm;
		w->found[i] = (struct dci_found){.value = w->value + (size_t)i * cap,
		                                 .pos = w->pos + (size_t)i * cap};
		w->want[i] = s.visits;
		w->end[i] = s.all ? 0 : s.end;
		struct dci_query *query = &w->query[i];
		uint8_t *table = w->tables + (size_t)i * m->params.directions * 4;
		*query = (struct dci_query){.table = table, .least = -INFINITY};
		if (s.all || !s.visits)
			continue;
		dci_project(m, t->kv_head, q, w->projected);
		m->search->tabulate(m->params.directions, w->projected, table, &query->step,
		                    &query->offset);
	}
}

/* Fetches bytes from .. to - 1 of the index of some runs: they lie far apart, where no processor
 * looks ahead by itself. */
static void fetch_index(const struct tile *t, uint32_t first, uint32_t end, size_t from, size_t to)
{
	for (uint32_t r = first; r < end; r++) {
		const unsigned char *index = dci_index(t->run->m, t->span->pages, t->kv_head, r * DCI_RUN);
		for (size_t at = from; at < to; at += 64)
			__builtin_prefetch(index + at);
	}
}

/* Scans a run for queries i .. i + n - 1, n <= DCI_SCAN. base [n], ld apart, is that of the run. */
static void scan_run(const struct tile *t, uint32_t run, uint32_t i, uint32_t n, const float *base,
                     size_t ld)
{
	const struct mx_mixer *m = t->run->m;
	const unsigned char *index = dci_index(m, t->span->pages, t->kv_head, run * DCI_RUN);
	const float *factors = (const float *)(const void *)(index + m->layout.factors);
	struct dci_found *found = &t->w->found[i];
	struct dci_query *query = &t->w->query[i];
	float bases[DCI_SCAN] = {0};
	for (uint32_t k = 0; k < n; k++)
		bases[k] = base[k * ld];
	m->search->scan(m->params.directions / 8, index, factors, n, query, bases, run * DCI_RUN,
	                found);
	for (uint32_t k = 0; k < n; k++) {
		uint32_t want = t->w->want[i + k];
		if (found[k].n > SPARE * want)
			query[k].least = from_ordered(m->search->keep(&found[k], want, want * 5 / 4));
	}
}

/* Computes the products of queries i .. i + n - 1 with the centres of runs: base [n], ld apart. */
static void score_centres(const struct tile *t, uint32_t n_runs, const uint32_t *runs, uint32_t i,
                          uint32_t n, float *base, size_t ld)
{
	const struct mx_mixer *m = t->run->m;
	const unsigned char *centres[BLOCK];
	for (uint32_t k = 0; k < n_runs; k++)
		centres[k] = dci_index(m, t->span->pages, t->kv_head, runs[k] * DCI_RUN) + m->layout.centre;
	for (uint32_t k = 0, n_q; k < n; k += n_q) {
		n_q = n - k < DCI_SCAN ? n - k : DCI_SCAN;
		m->rows->score(n_runs, centres, m->layout.dim, n_q,
		               t->w->packed + (size_t)(i + k) * m->layout.dim, base + k * ld, ld);
	}
}

/* Scans runs a .. b - 1, as far as they see them, for queries i .. i + n - 1, n <= DCI_SCAN; later
 * queries see all that earlier ones do. base [n][BLOCK] begins with run a. */
static void scan_near(const struct tile *t, uint32_t a, uint32_t b, uint32_t i, uint32_t n,
                      const float *base)
{
	const uint32_t *end = t->w->end + i;
	uint32_t r = a;
	for (; r < b && r < end[0]; r++)
		scan_run(t, r, i, n, base + (r - a), BLOCK);
	for (; r < b; r++)
		for (uint32_t k = 1; k < n; k++)
			if (r < end[k])
				scan_run(t, r, i + k, 1, base + k * BLOCK + (r - a), BLOCK);
}

/* Scans all runs that they see for queries from .. to - 1. */
static void scan_all(const struct tile *t, uint32_t from, uint32_t to)
{
	struct worker *w = t->w;
	const struct dci_layout *l = &t->run->m->layout;
	uint32_t last = w->end[to - 1], runs[BLOCK];
	for (uint32_t r = seen_by(t, to - 1).first; r < last; r += BLOCK) {
		uint32_t n = last - r < BLOCK ? last - r : BLOCK;
		while (w->end[from] <= r)
			from++;
		for (uint32_t k = 0; k < n; k++)
			runs[k] = r + k;
		fetch_index(t, r, r + n, l->centre, l->index);
		score_centres(t, n, runs, from, to - from, w->base + (size_t)from * BLOCK, BLOCK);
		fetch_index(t, r, r + (n < NEAR ? n : NEAR), 0, l->centre);
		for (uint32_t k = 0; k < n; k += NEAR) {
			uint32_t next = k + NEAR; /* to be fetched, a run beside each of the first queries */
			for (uint32_t i = from; i < to; i += DCI_SCAN) {
				uint32_t end = k + 2 * NEAR < n ? k + 2 * NEAR : n;
				if (i + DCI_SCAN < to && next + 1 < end)
					end = next + 1;
				if (next < end)
					fetch_index(t, r + next, r + end, 0, l->centre);
				next++;
				scan_near(t, r + k, r + (n - k < NEAR ? n : k + NEAR), i,
				          to - i < DCI_SCAN ? to - i : DCI_SCAN, w->base + (size_t)i * BLOCK + k);
			}
		}
	}
}

/* Sets a bound for queries i .. i + n - 1, n <= DCI_SCAN, that about twice the keys that they want
 * are above, by some runs. */
static void sample(const struct tile *t, uint32_t i, uint32_t n)
{
	const struct mx_mixer *m = t->run->m;
	struct worker *w = t->w;
	uint32_t end = w->end[i], first = seen_by(t, i + n - 1).first, runs[SAMPLE];
	if (end < first + SAMPLED_FROM || w->end[i + n - 1] != end)
		return;
	for (uint32_t k = 0; k < SAMPLE; k++)
		runs[k] = first + (2 * k + 1) * (end - first) / (2 * SAMPLE);
	for (uint32_t k = 0; k < SAMPLE; k++)
		fetch_index(t, runs[k], runs[k] + 1, 0, m->layout.index);
	score_centres(t, SAMPLE, runs, i, n, w->base, BLOCK);
	for (uint32_t k = 0; k < SAMPLE; k++)
		scan_run(t, runs[k], i, n, w->base + k, BLOCK);
	for (uint32_t k = i; k < i + n; k++) {
		uint32_t rank = 16 + 2 * SAMPLE * w->want[k] / (end - first);
		w->query[k].least = -INFINITY;
		if (rank < w->found[k].n) {
			uint32_t bound = m->search->keep(&w->found[k], rank, rank + rank / 4);
			w->query[k].least = from_ordered(bound);
		}
		w->found[k].n = 0;
	}
}

/* Finds the keys with the largest estimates. What a query finds does not depend on the bound that
 * it begins with: where too few are above, it begins again without. */
static void search(const struct tile *t)
{
	struct worker *w = t->w;
	uint32_t from = 0;
	while (from < t->n_queries && !w->end[from])
		from++;
	if (from == t->n_queries)
		return;
	for (uint32_t i = from; i < t->n_queries; i += DCI_SCAN)
		sample(t, i, t->n_queries - i < DCI_SCAN ? t->n_queries - i : DCI_SCAN);
	scan_all(t, from, t->n_queries);
	for (uint32_t i = from; i < t->n_queries; i++)
		if (w->found[i].n < w->want[i]) {
			w->found[i].n = 0;
			w->query[i].least = -INFINITY;
			scan_all(t, i, i + 1);
		}
}

/* ---- attend ---- */

/* Lists the first key of each run that begins before position `end`. */
static void list_runs(const struct tile *t, uint32_t end)
{
	const struct mx_mixer *m = t->run->m;
	uint32_t runs = m->page_tokens / DCI_RUN;
	for (uint32_t r = 0, page = 0; r * DCI_RUN < end; page++) {
		const unsigned char *key = dci_key(m, t->span->pages, t->kv_head, page * m->page_tokens);
		for (uint32_t i = 0; i < runs && r * DCI_RUN < end; i++, r++)
			t->w->keys[r] = key + i * DCI_RUN * m->layout.row;
	}
}

static const unsigned char *key_at(const struct tile *t, uint32_t pos)
{
	return t->w->keys[pos / DCI_RUN] + pos % DCI_RUN * t->run->m->layout.row;
}

/* Lists the keys of positions a .. b - 1. */
static uint32_t list_keys(const struct tile *t, uint32_t a, uint32_t b, const unsigned char **rows)
{
	uint32_t n = 0;
	while (a < b) {
		const unsigned char *key = key_at(t, a);
		uint32_t end = (a / DCI_RUN + 1) * DCI_RUN;
		end = end < b ? end : b;
		for (; a < end; a++, key += t->run->m->layout.row)
			rows[n++] = key;
	}
	return n;
}

/* Computes the products of all queries with the keys that they found: those take the place of the
 * estimates. Queries go through the keys together, so that a key is read from afar once. */
static void score_found(const struct tile *t)
{
	const struct mx_mixer *m = t->run->m;
	struct worker *w = t->w;
	uint32_t last = w->end[t->n_queries - 1] * DCI_RUN, step = last, n;
	for (uint32_t i = 0; i < t->n_queries; i++) {
		if (w->found[i].n > w->want[i])
			m->search->keep(&w->found[i], w->want[i], w->want[i]);
		w->scored[i] = 0;
	}
	if (t->n_queries > DCI_SCAN)
		step = last / 32 > NEAR_KEYS ? last / 32 : NEAR_KEYS;
	for (uint32_t end = step; last; end += step) {
		for (uint32_t i = 0; i < t->n_queries; i++) {
			struct dci_found *f = &w->found[i];
			uint32_t *at = &w->scored[i];
			for (n = 0; *at + n < f->n && f->pos[*at + n] < end; n++)
				w->chosen[n] = key_at(t, f->pos[*at + n]);
			if (!n)
				continue;
			m->rows->score(n, w->chosen, m->layout.dim, 1, w->packed + (size_t)i * m->layout.dim,
			               w->scores, 0);
			for (uint32_t k = 0; k < n; k++)
				f->value[*at + k] = dci_ordered(w->scores[k]);
			*at += n;
		}
		if (end >= last)
			break;
	}
}

/* Lists the keys that query i attends to besides the exact ones, and their scores. Returns their
 * number. */
static uint32_t choose(const struct tile *t, uint32_t i, const struct seen *s,
                       const unsigned char **rows, float *scores)
{
	const struct mx_mixer *m = t->run->m;
	struct dci_found *f = &t->w->found[i];
	if (s->all) {
		f->n = list_keys(t, s->first * DCI_RUN, s->end * DCI_RUN, rows);
		m->rows->score(f->n, rows, m->layout.dim, 1, t->w->packed + (size_t)i * m->layout.dim,
		               scores, 0);
		if (s->top_k >= f->n)
			return f->n;
		for (uint32_t k = 0; k < f->n; k++) {
			f->value[k] = dci_ordered(scores[k]);
			f->pos[k] = s->first * DCI_RUN + k;
		}
	}
	if (s->top_k < f->n)
		m->search->keep(f, s->top_k, s->top_k);
	for (uint32_t k = 0; k < f->n; k++) {
		rows[k] = key_at(t, f->pos[k]);
		scores[k] = from_ordered(f->value[k]);
	}
	return f->n;
}

/* Lists the centres and spreads of the runs that the task's last row searches; earlier rows see the
 * first of them. */
static void list_means(const struct tile *t)
{
	const struct mx_mixer *m = t->run->m;
	struct seen s = seen_by(t, t->n_queries - 1);
	for (uint32_t r = s.first; r < s.end; r++) {
		const unsigned char *index = dci_index(m, t->span->pages, t->kv_head, r * DCI_RUN);
		t->w->means[r - s.first] = index + m->layout.centre;
		t->w->spread[r - s.first] = *(const float *)(const void *)(index + m->layout.spread);
	}
}

/* Turns the products of query i with the centres of n_runs runs into scores of the keys that it
 * does not attend to, and counts these, w->rest [n_runs]. A score is at most the mean of the n
 * scores of keys that the query attends to. */
static void score_rest(const struct tile *t, uint32_t i, const struct seen *s, uint32_t n,
                       const float *scores, uint32_t n_runs, float *of_means)
{
	const struct worker *w = t->w;
	const struct dci_found *f = &w->found[i];
	float scale = t->run->m->params.heads.scale / (float)ATTN_LOG2E, sum = 0;
	float variance = REST / 2 * scale * w->norm[i];
	for (uint32_t r = 0; r < n_runs; r++)
		w->rest[r] = DCI_RUN;
	for (uint32_t k = 0; k < n; k++) {
		w->rest[f->pos[k] / DCI_RUN - s->first]--;
		sum += scores[k];
	}
	float most = sum / (float)n;
	for (uint32_t r = 0; r < n_runs; r++) {
		float score = of_means[r] + variance * w->spread[r];
		of_means[r] = score > most ? most : score;
	}
}

/* Multiplies the probabilities of n_runs centres by the keys that they stand for. Returns what that
 * adds to their sum. */
static float weigh_rest(const struct worker *w, uint32_t n_runs, float *p)
{
	float more = 0;
	for (uint32_t r = 0; r < n_runs; r++) {
		more += p[r] * (w->rest[r] - 1);
		p[r] *= w->rest[r];
	}
	return more;
}

/* Attends with queries i .. i + n_q - 1, all of one row, which share n_dense keys. */
static void attend_queries(const struct tile *t, uint32_t i, uint32_t n_q, uint32_t n_dense)
{
	const struct mx_mixer *m = t->run->m;
	const struct attn_params *p = &m->params.heads;
	const struct seen s = seen_by(t, i);
	struct worker *w = t->w;
	uint32_t list = m->bounds.list, visits = m->bounds.visits, dim = m->layout.dim, n[DCI_SCAN];
	uint32_t row = t->span->row + (t->pos - t->span->pos) + i / p->group;
	uint32_t head = t->kv_head * p->group + i % p->group;
	float *y = t->run->q + ((size_t)row * p->heads + head) * p->head_dim, sum[DCI_SCAN], top;

	uint32_t n_runs = m->params.rest && s.top_k < (s.end - s.first) * DCI_RUN ? s.end - s.first : 0;
	uint32_t shared = n_dense + n_runs;

	m->rows->score(n_dense, w->dense, dim, n_q, w->packed + (size_t)i * dim, w->scores, list);
	m->rows->score(n_runs, w->means, dim, n_q, w->packed + (size_t)i * dim, w->scores + n_dense,
	               list);
	for (uint32_t h = 0; h < n_q; h++) {
		float *scores = w->scores + (size_t)h * list;
		n[h] = choose(t, i + h, &s, w->chosen + (size_t)h * visits, scores + shared);
		if (n_runs)
			score_rest(t, i + h, &s, n[h], scores + shared, n_runs, scores + n_dense);
		sum[h] = m->rows->softmax(shared + n[h], scores, p->scale, p->cap, &top);
		if (n_runs)
			sum[h] += weigh_rest(w, n_runs, scores + n_dense);
		if (m->heads.weights.sinks) /* a key of this score, whose value is 0 */
			sum[h] += exp2f(m->heads.weights.sinks[head + h] * (float)ATTN_LOG2E - top);
	}
	memset(w->o, 0, (size_t)n_q * dim * sizeof *w->o);
	m->rows->mix(n_dense, w->dense, m->values, dim, n_q, w->scores, list, w->o);
	m->rows->mix(n_runs, w->means, m->layout.row, dim, n_q, w->scores + n_dense, list, w->o);
	for (uint32_t h = 0; h < n_q; h++) {
		float *o = w->o + (size_t)h * dim;
		m->rows->mix(n[h], w->chosen + (size_t)h * visits, m->values, dim, 1,
		             w->scores + (size_t)h * list + shared, 0, o);
		m->rows->unpack(p->head_dim, o, 1 / sum[h], y + (size_t)h * p->head_dim);
	}
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
	list_runs(&t, t.pos + it->n);
	if (m->params.rest)
		list_means(&t);
	score_found(&t);
	for (uint32_t r = 0; r < it->n; r++) {
		struct seen s = seen_at(&m->params, t.pos + r);
		uint32_t n = list_keys(&t, 0, s.first * DCI_RUN, w.dense);
		n += list_keys(&t, s.end * DCI_RUN, t.pos + r + 1, w.dense + n);
		for (uint32_t h = 0; h < group; h += DCI_SCAN)
			attend_queries(&t, r * group + h, group - h < DCI_SCAN ? group - h : DCI_SCAN, n);
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
