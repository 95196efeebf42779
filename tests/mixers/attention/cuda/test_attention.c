/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the CUDA attention module against the equation in double precision: random batches of
 * chunks of prompts, single tokens and drafts, on memory full of NaN. Other sequences in the batch
 * change nothing but rounding; a recorded step can be replayed with other contents; with
 * `deterministic` neither a cut into chunks nor the batch changes a bit. Likewise of ranks that
 * share pages, here all on one GPU, whose partials the test folds.
 *
 *   tests/mixers/attention/cuda/test_attention [folder of attention-cuda.so]     MIXD_TEST_SEED
 * repeats a run
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "mixers/attention/attention_ref.h"
#include "tests/mixers/attention/cuda/attention_rig.h"

#define N_SEQS     6
#define MAX_LEN    5000
#define MAX_ROWS   1400
#define COMPANY    (N_SEQS + 4) /* spans of most steps */
#define MAX_SPANS  520          /* enough for splits that are done together (attn_lead_for) */
#define CHECK_ROWS 24           /* of a long sequence; the last ones are among them */

static const struct att_case cases[] = {ATT_SHAPES};
static const char *modules = "mixers/.libs";
static struct rng rng;
static uint64_t seed;
static const char *doing = "";

_Noreturn static void fail(const struct att_case *c, const char *what)
{
	printf("FAILED: %s, %s: %s (MIXD_TEST_SEED=%llu)\n", c->name, doing, what,
	       (unsigned long long)seed);
	exit(1);
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);
	if (!p)
		abort();
	return p;
}

/* ---- numbers ---- */

/* Nearest e4m3 number, ties to even; |v| is small enough. */
static float round_fp8(float v)
{
	int e;
	if (v == 0)
		return 0;
	frexpf(v, &e); /* |v| in [2^(e-1), 2^e) */
	float unit = ldexpf(1, e - 1 < -6 ? -9 : e - 4);
	return rintf(v / unit) * unit;
}

static float rounded(enum mx_dtype t, float v)
{
	return t == MX_F32 ? v : t == MX_F8E4M3 ? round_fp8(v) : mx_bf16_to_f32(mx_f32_to_bf16(v));
}

static void to_act(const struct att_rig *r, void *to, const float *from, size_t n)
{
	if (r->c->act == MX_F32)
		memcpy(to, from, n * sizeof(float));
	else
		for (size_t i = 0; i < n; i++)
			((uint16_t *)to)[i] = mx_f32_to_bf16(from[i]);
}

static float from_act(const struct att_rig *r, const void *p, size_t i)
{
	return r->c->act == MX_F32 ? ((const float *)p)[i] : mx_bf16_to_f32(((const uint16_t *)p)[i]);
}

/* ---- ranks that share pages ---- */

#define MAX_CONTEXTS 4

/* The ranks behind the first, which has number 0. */
static struct att_rig others[MAX_CONTEXTS];

static uint32_t contexts_of(const struct att_rig *r)
{
	return r->limits.contexts ? r->limits.contexts : 1;
}

static struct att_rig *rank_of(struct att_rig *r, uint32_t i)
{
	return i ? &others[i] : r;
}

/* Puts the output of a row and a head together from what all ranks have told. */
static void fold_row(struct att_rig *r, uint32_t n_rows, uint32_t row, uint32_t head, void *out)
{
	const struct att_case *c = r->c;
	const uint32_t n = contexts_of(r), own = c->heads / n;
	const size_t at = (((size_t)(head / own) * n_rows + row) * own + head % own) * (r->dim + 4);
	const double sink = (double)att_sink(head) * 1.4426950408889634;
	double top = c->sinks ? sink : -INFINITY, l = 0;
	float y[512];
	for (uint32_t i = 0; i < n; i++)
		top = fmax(top, (double)rank_of(r, i)->told[at + r->dim]);
	if (c->sinks)
		l = exp2(sink - top);
	for (uint32_t i = 0; i < n; i++) {
		const float *t = rank_of(r, i)->told + at;
		l += (double)t[r->dim + 1] * exp2((double)t[r->dim] - top);
	}
	for (uint32_t d = 0; d < c->head_dim; d++) {
		double o = 0;
		for (uint32_t i = 0; i < n; i++) {
			const float *t = rank_of(r, i)->told + at;
			o += (double)t[d] * exp2((double)t[r->dim] - top);
		}
		y[d] = (float)(o / l);
	}
	to_act(r, out, y, c->head_dim);
}

/* ---- sequences ---- */

struct seq {
	uint32_t len, done;
	float *x;         /* [len, ld]: q, k, v as the products have them */
	float *q, *k, *v; /* after norm, rope and rounding */
	unsigned char *y; /* [len, heads * head_dim] of the device, activations */
	uint32_t *pages, n_pages;
};

static void norm_and_rope(const struct att_case *c, float *x, uint32_t pos)
{
	uint32_t half = c->head_dim / 2;
	if (c->norm) {
		double sum = 0;
		for (uint32_t i = 0; i < c->head_dim; i++)
			sum += (double)x[i] * x[i];
		for (uint32_t i = 0; i < c->head_dim; i++)
			x[i] = (float)(x[i] / sqrt(sum / c->head_dim + ATT_NORM_EPS) * att_norm_weight(i));
	}
	for (uint32_t i = 0; c->rope && i < half; i++) {
		double angle = (double)pos * (float)att_frequency(c->head_dim, i);
		uint32_t lo = c->pairs ? 2 * i : i, hi = c->pairs ? lo + 1 : i + half;
		double a = x[lo], b = x[hi];
		x[lo] = (float)(a * cos(angle) - b * sin(angle));
		x[hi] = (float)(b * cos(angle) + a * sin(angle));
	}
}

static void seq_make(struct att_rig *r, struct seq *s, uint32_t len)
{
	const struct att_case *c = r->c;
	uint32_t hq = c->heads * c->head_dim, hk = c->kv_heads * c->head_dim;
	*s = (struct seq){.len = len};
	s->x = allocate((size_t)len * r->ld, sizeof(float));
	s->q = allocate((size_t)len * hq, sizeof(float));
	s->k = allocate((size_t)len * hk, sizeof(float));
	s->v = allocate((size_t)len * hk, sizeof(float));
	s->y = allocate((size_t)len * hq, r->element);
	s->pages = allocate(r->limits.max_context / c->page_tokens + 2, sizeof(*s->pages));
	for (size_t i = 0; i < (size_t)len * r->ld; i++)
		s->x[i] = rounded(c->act, 1.5f * rng_normal(&rng));
	/* a value that no sum hides */
	for (size_t i = hq + hk; c->skip_first && i < r->ld; i++)
		s->x[i] *= 4096;
	for (uint32_t i = 0; i < len; i++) {
		memcpy(s->q + (size_t)i * hq, s->x + (size_t)i * r->ld, hq * sizeof(float));
		memcpy(s->k + (size_t)i * hk, s->x + (size_t)i * r->ld + hq, hk * sizeof(float));
		memcpy(s->v + (size_t)i * hk, s->x + (size_t)i * r->ld + hq + hk, hk * sizeof(float));
		for (uint32_t h = 0; h < c->heads; h++)
			norm_and_rope(c, s->q + (size_t)i * hq + h * c->head_dim, i);
		for (uint32_t h = 0; h < c->kv_heads; h++)
			norm_and_rope(c, s->k + (size_t)i * hk + h * c->head_dim, i);
	}
	for (size_t i = 0; i < (size_t)len * hq; i++)
		s->q[i] = rounded(c->act, s->q[i]);
	for (size_t i = 0; i < (size_t)len * hk; i++) {
		s->k[i] = rounded(c->kv, s->k[i]);
		s->v[i] = rounded(c->kv, s->v[i]);
	}
}

static void seq_free(struct seq *s)
{
	free(s->x);
	free(s->q);
	free(s->k);
	free(s->v);
	free(s->y);
	free(s->pages);
}

/* Pages are taken at random and never given back. */
static bool taken[4096];

static void seq_pages(struct att_rig *r, struct seq *s, uint32_t tokens)
{
	while (s->n_pages * r->c->page_tokens * contexts_of(r) < tokens) {
		uint32_t p = rng_below(&rng, r->limits.n_pages);
		while (taken[p])
			p = (p + 1) % r->limits.n_pages;
		taken[p] = true;
		s->pages[s->n_pages++] = p;
	}
}

/* ---- steps ---- */

struct item {
	struct seq *seq; /* NULL: a row that fills up */
	uint32_t n, pos;
};

static void fill_step(struct att_rig *r, const struct item *items, uint32_t n_items,
                      struct att_span *spans)
{
	unsigned char *x = allocate((size_t)r->limits.max_rows * r->ld, r->element), *to = x;
	memset(x, ATT_POISON, (size_t)r->limits.max_rows * r->ld * r->element);
	for (uint32_t i = 0; i < n_items; i++) {
		const struct item *it = &items[i];
		spans[i] = (struct att_span){0};
		if (it->seq) {
			seq_pages(r, it->seq, it->pos + it->n);
			spans[i] = (struct att_span){it->n, it->pos, it->seq->pages, it->seq->n_pages};
			to_act(r, to, it->seq->x + (size_t)it->pos * r->ld, (size_t)it->n * r->ld);
		}
		to += (size_t)(it->seq ? it->n : 1) * r->ld * r->element;
	}
	ATT_CUDA(cudaMemcpy(r->x, x, (size_t)r->limits.max_rows * r->ld * r->element,
	                    cudaMemcpyHostToDevice));
	ATT_CUDA(cudaMemset(r->y, ATT_POISON, (size_t)r->limits.max_rows * r->ld * r->element));
	ATT_CUDA(cudaMemset(r->scratch, ATT_POISON, r->state.scratch_bytes));
	ATT_CUDA(cudaDeviceSynchronize());
	free(x);
}

/* The outputs of items go to their sequences. */
static void take_outputs(struct att_rig *r, const struct item *items, uint32_t n_items)
{
	size_t width = (size_t)r->c->heads * r->c->head_dim * r->element, row = r->ld * r->element;
	unsigned char *y = allocate(r->limits.max_rows, row), *from = y;
	ATT_CUDA(cudaStreamSynchronize((cudaStream_t)r->base.stream));
	ATT_CUDA(cudaMemcpy(y, r->y, r->limits.max_rows * row, cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < n_items; i++) {
		const struct item *it = &items[i];
		for (uint32_t k = 0; it->seq && k < it->n; k++)
			memcpy(it->seq->y + (it->pos + k) * width, from + k * row, width);
		from += (it->seq ? it->n : 1) * row;
	}
	free(y);
}

/* A step of ranks that share pages. */
static void run_ranks(struct att_rig *r, const struct item *items, uint32_t n_items)
{
	const size_t head = r->c->head_dim * r->element, width = r->c->heads * head;
	struct att_span spans[MAX_SPANS];
	uint32_t rows = 0, row = 0;
	for (uint32_t i = 0; i < contexts_of(r); i++) {
		struct att_rig *rank = rank_of(r, i);
		fill_step(rank, items, n_items, spans);
		rows = att_tables(rank, spans, n_items);
		att_forward(rank, rows, n_items, false);
	}
	for (uint32_t i = 0; i < n_items; i++) {
		const struct item *it = &items[i];
		for (uint32_t k = 0; it->seq && k < it->n; k++)
			for (uint32_t h = 0; h < r->c->heads; h++)
				fold_row(r, rows, row + k, h, it->seq->y + (it->pos + k) * width + h * head);
		row += it->seq ? it->n : 1;
	}
}

static void run_step(struct att_rig *r, const struct item *items, uint32_t n_items)
{
	struct att_span spans[MAX_SPANS];
	if (contexts_of(r) > 1) {
		run_ranks(r, items, n_items);
		return;
	}
	fill_step(r, items, n_items, spans);
	uint32_t rows = att_tables(r, spans, n_items);
	att_forward(r, rows, n_items, false);
	take_outputs(r, items, n_items);
}

/* ---- checks ---- */

static void check_row(const struct att_rig *r, const struct seq *s, uint32_t i, double *worst)
{
	const struct att_case *c = r->c;
	uint32_t width = c->heads * c->head_dim;
	float *want = allocate(width, sizeof(float));
	double *score = allocate(s->len, sizeof(double)), top = 0, error = 0;
	float sinks[64];
	for (uint32_t h = 0; h < 64; h++)
		sinks[h] = att_sink(h);
	/* with skip_first the sequence of all rows but the first begins at position 1 */
	const uint32_t skip = c->skip_first && i;
	const size_t from = (size_t)skip * c->kv_heads * c->head_dim;
	mx_attention_ref_row(i - skip, c->heads, c->kv_heads, c->head_dim, c->window,
	                     1 / sqrt((double)c->head_dim), c->cap, c->sinks ? sinks : NULL,
	                     s->q + (size_t)i * width, s->k + from, s->v + from, score, want);
	for (uint32_t d = 0; d < width; d++) {
		float got = from_act(r, s->y, (size_t)i * width + d);
		double e = fabs((double)got - want[d]);
		top = fmax(top, fabs(want[d]));
		error = e > error || isnan(got) ? (isnan(got) ? INFINITY : e) : error;
	}
	if (!(error <= c->tolerance * top)) {
		printf("row %u of %u: error %g of %g\n", i, s->len, error, top);
		fail(c, "not what the equation says");
	}
	*worst = fmax(*worst, error / top);
	free(want);
	free(score);
}

static void check_seq(const struct att_rig *r, const struct seq *s, double *worst)
{
	for (uint32_t i = 0; i < s->len && s->len <= 2 * CHECK_ROWS; i++)
		check_row(r, s, i, worst);
	for (uint32_t k = 0; k < CHECK_ROWS && s->len > 2 * CHECK_ROWS; k++) {
		check_row(r, s, rng_below(&rng, s->len), worst);
		if (k < 4)
			check_row(r, s, s->len - 1 - k, worst);
	}
}

/* Guards are whole, and pages that nobody has are as they were. */
static void check_memory(const struct att_rig *r)
{
	unsigned char *all = allocate(r->pages_bytes, 1);
	ATT_CUDA(cudaMemcpy(all, r->pages, r->pages_bytes, cudaMemcpyDeviceToHost));
	for (uint32_t p = 0; p < r->limits.n_pages; p++) {
		const unsigned char *page = all + p * r->page_stride;
		for (size_t i = 0; i < r->page_bytes && !taken[p]; i++)
			if (page[i] != ATT_POISON)
				fail(r->c, "wrote to a page of nobody");
		for (size_t i = r->page_bytes; i < r->page_stride; i++)
			if (page[i] != ATT_GUARD)
				fail(r->c, "wrote between pages");
	}
	free(all);
}

static void open_ranks(struct att_rig *r, const struct att_case *c, uint32_t tokens,
                       bool deterministic, uint32_t contexts)
{
	struct att_limits limits = {
		.max_context = MAX_LEN,
		.max_rows = MAX_ROWS,
		.max_spans = MAX_SPANS,
		.max_draft = 5,
		.n_pages = tokens / c->page_tokens / contexts + N_SEQS + 20,
		.deterministic = deterministic,
		.contexts = contexts,
	};
	if (limits.n_pages > sizeof(taken))
		fail(c, "too many pages for this test");
	memset(taken, 0, sizeof(taken));
	att_open(r, modules, c, &limits);
	for (limits.context = 1; limits.context < contexts; limits.context++)
		att_open(&others[limits.context], modules, c, &limits);
}

static void close_ranks(struct att_rig *r)
{
	for (uint32_t i = 1; i < contexts_of(r); i++)
		att_close(&others[i]);
	att_close(r);
}

static void open_rig(struct att_rig *r, const struct att_case *c, uint32_t tokens,
                     bool deterministic)
{
	open_ranks(r, c, tokens, deterministic, 1);
}

/* ---- what is tried ---- */

static uint32_t pick_n(uint32_t left, uint32_t room)
{
	static const uint32_t most[] = {1, 1, 5, 16, 17, 64, 400, 1200};
	uint32_t n = 1 + rng_below(&rng, most[rng_below(&rng, 8)]);
	n = n < left ? n : left;
	return n < room ? n : room;
}

/* Sequences of all lengths grow in random company until they end. */
static void grow(struct att_rig *r, struct seq *seqs, uint32_t n)
{
	for (bool more = true; more;) {
		struct item items[MAX_SPANS];
		uint32_t n_items = 0, room = MAX_ROWS - 4;
		more = false;
		for (uint32_t i = 0; i < n; i++) {
			struct seq *s = &seqs[i];
			if (s->done == s->len)
				continue;
			more = true;
			if (!room || n_items == COMPANY || rng_below(&rng, 4) == 0)
				continue;
			uint32_t k = pick_n(s->len - s->done, room);
			items[n_items++] = (struct item){s, k, s->done};
			s->done += k;
			room -= k;
			if (room && n_items + n < COMPANY && rng_below(&rng, 4) == 0) {
				items[n_items++] = (struct item){0};
				room--;
			}
		}
		if (n_items)
			run_step(r, items, n_items);
	}
}

/* Ranks that share pages find together what the equation says, whatever the batch; and when
 * deterministic, whatever the cut, the same bits. */
static void test_contexts(const struct att_case *shape, uint32_t contexts)
{
	static const uint32_t lengths[N_SEQS] = {1, 33, 129, 300, 700, 1500};
	struct att_case c = *shape;
	double worst = 0;
	uint32_t all = 0;
	c.page_tokens = c.page_tokens % 32 ? 32 : c.page_tokens;
	if (c.heads % contexts)
		return;
	for (int i = 0; i < N_SEQS; i++)
		all += lengths[i] + 20 + c.page_tokens * contexts;
	for (int deterministic = 0; deterministic < 2; deterministic++) {
		struct seq seqs[N_SEQS];
		struct att_rig r;
		doing = deterministic ? "ranks, deterministic" : "ranks";
		open_ranks(&r, &c, all, deterministic, contexts);
		for (int i = 0; i < N_SEQS; i++)
			seq_make(&r, &seqs[i], lengths[i] + (i ? rng_below(&rng, 20) : 0));
		grow(&r, seqs, N_SEQS);
		for (int i = 0; i < N_SEQS; i++)
			check_seq(&r, &seqs[i], &worst);
		for (int i = 0; i < N_SEQS; i++) { /* token by token, alone */
			struct seq *s = &seqs[i];
			const size_t row = (size_t)c.heads * c.head_dim * r.element;
			const uint32_t from = s->len > 70 ? s->len - 70 : 0;
			unsigned char *want = allocate(s->len, row);
			memcpy(want, s->y, s->len * row);
			for (uint32_t k = from; k < s->len; k++)
				run_step(&r, &(struct item){s, 1, k}, 1);
			check_seq(&r, s, &worst);
			if (deterministic && memcmp(want, s->y, s->len * row))
				fail(&c, "a cut changes bits");
			free(want);
		}
		for (uint32_t i = 0; i < contexts; i++)
			check_memory(rank_of(&r, i));
		for (int i = 0; i < N_SEQS; i++)
			seq_free(&seqs[i]);
		close_ranks(&r);
	}
	printf("%-24s error %.1e of %.0e by %u ranks\n", c.name, worst, c.tolerance, contexts);
}

/* Is one row other than another by more than the case's tolerance, or not a number? */
static bool far(const struct att_rig *r, const unsigned char *a, const unsigned char *b, size_t row)
{
	for (size_t i = 0; i < row / r->element; i++)
		if (!(fabs((double)from_act(r, a, i) - (double)from_act(r, b, i)) <= r->c->tolerance))
			return true;
	return false;
}

static void test_equation(const struct att_case *c)
{
	static const uint32_t lengths[N_SEQS] = {1, 33, 128, 700, 2049, MAX_LEN};
	struct att_rig r;
	struct seq seqs[N_SEQS];
	double worst = 0;
	uint32_t all = 0;
	doing = "random batches";
	for (int i = 0; i < N_SEQS; i++)
		all += lengths[i] + 20;
	open_rig(&r, c, all, false);
	for (int i = 0; i < N_SEQS; i++)
		seq_make(&r, &seqs[i], lengths[i] + (i ? rng_below(&rng, 20) : 0) - (i == 5 ? 19 : 0));
	grow(&r, seqs, N_SEQS);
	for (int i = 0; i < N_SEQS; i++)
		check_seq(&r, &seqs[i], &worst);
	check_memory(&r);
	printf("%-24s error %.1e of %.0e\n", c->name, worst, c->tolerance);

	/* Company: the last token of each once more, all together, alone, and in recordings. */
	size_t row = (size_t)c->heads * c->head_dim * r.element;
	unsigned char *want = allocate(N_SEQS, row);
	struct item items[MAX_SPANS] = {{0}};
	for (int i = 0; i < N_SEQS; i++)
		items[i] = (struct item){&seqs[i], 1, seqs[i].len - 1};
	run_step(&r, items, N_SEQS);
	for (int i = 0; i < N_SEQS; i++)
		memcpy(want + i * row, seqs[i].y + (seqs[i].len - 1) * row, row);
	doing = "alone";
	for (int i = 0; i < N_SEQS; i++) {
		run_step(&r, &items[i], 1);
		if (far(&r, want + i * row, seqs[i].y + (seqs[i].len - 1) * row, row))
			fail(c, "company changes more than rounding does");
	}
	doing = "recorded";
	cudaStream_t stream = (cudaStream_t)r.base.stream;
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	ATT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	att_forward(&r, N_SEQS + 2, N_SEQS + 2, true);
	ATT_CUDA(cudaStreamEndCapture(stream, &graph));
	ATT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (int turn = 0; turn < 4; turn++) {
		struct att_span spans[MAX_SPANS];
		struct item mixed[MAX_SPANS] = {{0}};
		for (int i = 0; i < N_SEQS; i++) /* other places, and some are not there */
			if (!turn || rng_below(&rng, 3))
				mixed[(i + turn) % (N_SEQS + 2)] = items[i];
		for (int i = 0; i < N_SEQS; i++)
			memcpy(seqs[i].y + (seqs[i].len - 1) * row, want + i * row, row);
		fill_step(&r, mixed, N_SEQS + 2, spans);
		att_tables(&r, spans, N_SEQS + 2);
		ATT_CUDA(cudaGraphLaunch(exec, stream));
		take_outputs(&r, mixed, N_SEQS + 2);
		for (int i = 0; i < N_SEQS; i++)
			if (far(&r, want + i * row, seqs[i].y + (seqs[i].len - 1) * row, row))
				fail(c, "a replay differs");
	}
	ATT_CUDA(cudaGraphExecDestroy(exec));
	ATT_CUDA(cudaGraphDestroy(graph));
	check_memory(&r);
	for (int i = 0; i < N_SEQS; i++)
		seq_free(&seqs[i]);
	free(want);
	att_close(&r);
}

/* Runs a sequence from s->done to token `end` in steps as large as they may be. */
static void run_to(struct att_rig *r, struct seq *s, uint32_t end)
{
	while (s->done < end) {
		uint32_t n = end - s->done < MAX_ROWS ? end - s->done : MAX_ROWS;
		run_step(r, &(struct item){s, n, s->done}, 1);
		s->done += n;
	}
}

/* A sequence's last tokens as spans of one step have the bits of `want`, however many they are:
 * with few units warps share each, with many they work apart (rungs.cu), or take a row's first
 * splits together (attn_lead_for). Keys are written once more, with the same bits. */
static void check_company(struct att_rig *r, struct seq *s, const unsigned char *want)
{
	static const uint32_t numbers[] = {1, 2, 40, 255, MAX_SPANS};
	size_t row = (size_t)r->c->heads * r->c->head_dim * r->element;
	struct item items[MAX_SPANS];
	for (size_t k = 0; k < sizeof(numbers) / sizeof(*numbers); k++) {
		uint32_t n = numbers[k], from = s->len - n;
		for (uint32_t i = 0; i < n; i++)
			items[i] = (struct item){s, 1, from + i};
		memset(s->y + from * row, 0, n * row);
		run_step(r, items, n);
		if (memcmp(want + from * row, s->y + from * row, n * row)) {
			printf("%u spans\n", n);
			fail(r->c, "the number of units changes bits");
		}
	}
}

/* One sequence in large pieces, then cut at random, then token by token near its end: the same
 * bits. It is long enough for splits of different sizes (attn_rung). */
static void test_cuts(const struct att_case *c)
{
	struct att_rig r;
	struct seq s;
	double worst = 0;
	uint32_t len = 4200 + rng_below(&rng, 300);
	doing = "deterministic, cut";
	open_rig(&r, c, 8 * MAX_LEN, true);
	seq_make(&r, &s, len);
	size_t row = (size_t)c->heads * c->head_dim * r.element;
	unsigned char *want = allocate(len, row);
	run_to(&r, &s, len);
	memcpy(want, s.y, len * row);
	check_seq(&r, &s, &worst);
	for (int turn = 0; turn < 4; turn++) {
		s.n_pages = s.done = 0; /* other pages */
		memset(s.y, 0, len * row);
		if (turn == 3) {
			run_to(&r, &s, len - 40);
			for (; s.done < len; s.done++)
				run_step(&r, &(struct item){&s, 1, s.done}, 1);
		} else {
			run_to(&r, &s, turn ? len - 1000 : 0);
			grow(&r, &s, 1);
		}
		for (uint32_t i = 0; i < len; i++)
			if (memcmp(want + i * row, s.y + i * row, row)) {
				printf("row %u of %u\n", i, len);
				fail(c, "a cut changes bits");
			}
	}
	doing = "deterministic, among others";
	struct item items[MAX_SPANS] = {{0}};
	for (uint32_t n = 1; n <= MAX_SPANS; n += n < COMPANY ? 1 : MAX_SPANS / 2 - n / 3) {
		memset(s.y + (len - 1) * row, 0, row);
		items[n - 1] = (struct item){&s, 1, len - 1};
		run_step(&r, items, n);
		if (memcmp(want + (len - 1) * row, s.y + (len - 1) * row, row))
			fail(c, "company changes bits");
		items[n - 1] = (struct item){0};
	}
	doing = "deterministic, among its own";
	check_company(&r, &s, want);
	check_memory(&r);
	seq_free(&s);
	free(want);
	att_close(&r);
}

/* Heads that have kernels of their own where a thread block has little shared memory: as on a GPU
 * of 8.6, or of 12.0 where the code is for 9.0. */
static void test_little_memory(const struct att_case *c)
{
	const char *pinned = getenv("MIXD_CUDA_CAPABILITY");
	if ((pinned && *pinned) || c->act != MX_BF16 || c->head_dim < 128 || c->head_dim > 256)
		return;
	setenv("MIXD_CUDA_CAPABILITY", att_sm() < 90 ? "8.6" : "12.0", 1);
	test_equation(c);
	unsetenv("MIXD_CUDA_CAPABILITY");
}

int main(int argc, char **argv)
{
	const char *s = getenv("MIXD_TEST_SEED"), *only = argc > 2 ? argv[2] : NULL;
	if (!att_gpu()) {
		printf("no GPU\n");
		return 77;
	}
	modules = argc > 1 ? argv[1] : modules;
	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
	rng.state = seed = seed ? seed : 1;
	printf("seed %llu (MIXD_TEST_SEED repeats it)\n", (unsigned long long)seed);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (only && !strstr(cases[i].name, only))
			continue;
		test_equation(&cases[i]);
		test_cuts(&cases[i]);
		test_contexts(&cases[i], 2);
		test_contexts(&cases[i], 4);
		test_little_memory(&cases[i]);
	}
	printf("all passed\n");
	return 0;
}
