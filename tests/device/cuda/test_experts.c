/* SPDX-License-Identifier: Apache-2.0 */
/*
 * experts of the CUDA device, on random data and poisoned outputs and workspace: against the same
 * in double precision with the CPU's choice of experts; recorded against not; a row alone against
 * the row among others, bit for bit on a deterministic device; a rank that has some of the experts;
 * and a row that is not a number leaves its neighbours alone. Likewise matrices packed in every
 * form of tests/device/quant_source.c, with groups among them whose scales are zero or whose minima
 * are large, against the numbers that the panels stand for.
 *
 *   tests/device/cuda/test_experts [part of a case's name [number of a form]]
 *
 * With a number only that form is tried. MIXD_TEST_SEED repeats a run.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cuda/experts_cases.h"
#include "device/open.h"
#include "engine/router.h"
#include "tests/device/quant_source.h"
#include "tests/rng.h"

static const uint32_t numbers[] = {1, 2, 3, 8, 17, 64, 150};

#define COUNT(a)  (sizeof(a) / sizeof(*(a)))
#define MAX_N     150
#define REFERENCE 12 /* rows of a large case that are compared */

struct bench {
	struct mx_device *d;
	bool bf16;
	struct rng rng;
	const struct shape *s;
	const struct quant_case *form; /* of packed matrices; NULL = they are plain */
	struct mx_quant up_quant, down_quant;
	struct mx_experts m; /* its pointers are the device's */
	unsigned char *pinned;
	float *host;                    /* all weights as floats, exactly as on the device */
	struct mx_expert_weights *rows; /* [n] pointers into host */
	float *correction, *scales;     /* of the host; NULL = none */
	float *logits, *x, *y0, *share; /* [MAX_N, ...] */
	unsigned char *got, *kept;
	void *dw, *dlogits, *dx, *dy, *dshare, *dwork, *dtable, *dcorrection, *dscales;
	size_t work;
	int faults;
	struct mx_expert_weights *own; /* [n] the table of a rank; NULL = it has all experts */
};

static void must(mx_status s, const char *what)
{
	if (s != MX_OK) {
		fprintf(stderr, "%s: status %d\n", what, (int)s);
		exit(1);
	}
}

static void *host_memory(size_t bytes)
{
	void *p = calloc(1, bytes ? bytes : 1);
	if (!p)
		exit(1);
	return p;
}

static void *device_memory(struct bench *b, size_t bytes)
{
	void *p = NULL;
	must(b->d->ops->alloc(b->d, bytes ? bytes : 1, &p), "alloc");
	return p;
}

static void put(struct bench *b, void *to, const void *from, size_t bytes)
{
	memcpy(b->pinned, from, bytes);
	must(b->d->ops->upload(b->d, to, b->pinned, bytes), "upload");
	must(b->d->ops->wait(b->d), "wait");
}

/* Copies n floats as elements of the device's type. */
static void put_elements(struct bench *b, void *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n && b->bf16; i++)
		((uint16_t *)(void *)b->pinned)[i] = mx_f32_to_bf16(from[i]);
	if (!b->bf16)
		memcpy(b->pinned, from, n * sizeof *from);
	must(b->d->ops->upload(b->d, to, b->pinned, n * (b->bf16 ? 2 : 4)), "upload");
	must(b->d->ops->wait(b->d), "wait");
}

static void draw(struct bench *b, float *to, size_t n, float size)
{
	for (size_t i = 0; i < n; i++) {
		float v = (rng_unit(&b->rng) * 2 - 1) * size;
		to[i] = b->bf16 ? mx_bf16_to_f32(mx_f32_to_bf16(v)) : v;
	}
}

static float at(const struct bench *b, const unsigned char *y, size_t i)
{
	return b->bf16 ? mx_bf16_to_f32(((const uint16_t *)(const void *)y)[i])
	               : ((const float *)(const void *)y)[i];
}

/* ---- a case's data ---- */

/* Makes the scales of some groups zero, and the minima of others large. */
static void spoil(struct bench *b, struct quant_matrix *m)
{
	const enum mx_quant_format f = b->form->format;
	const size_t elements = (size_t)m->s.rows * m->s.cols;
	if (f == MX_QUANT_PLAIN) {
		for (size_t i = 0; i + 32 <= elements; i += 32)
			if (rng_below(&b->rng, 8) == 0)
				memset(m->codes + 2 * i, 0, 64);
		return;
	}
	if (m->scales) {
		const size_t size = f == MX_QUANT_FP4 ? 1 : mx_dtype_size(m->s.scale_dtype);
		const size_t groups = (m->s.cols + m->s.group - 1) / m->s.group;
		for (size_t i = 0; i < m->s.rows * groups; i++)
			if (rng_below(&b->rng, 8) == 0)
				memset(m->scales + i * size, 0, size);
		return;
	}
	const uint32_t n = mx_quant_block_elements(f);
	const size_t block = mx_quant_row_bytes(f, n);
	const bool k2 = f == MX_QUANT_Q2_K;
	const bool minima =
		f == MX_QUANT_Q4_1 || f == MX_QUANT_Q5_1 || k2 || f == MX_QUANT_Q4_K || f == MX_QUANT_Q5_K;
	const uint16_t large = 0x5000; /* 32 as a half */
	for (size_t at = 0; at < elements / n * block; at += block) {
		const size_t scale = f == MX_QUANT_Q6_K ? 208 : k2 ? 80 : 0;
		if (rng_below(&b->rng, 8) == 0)
			memset(m->codes + at + scale, 0, f == MX_QUANT_MXFP4 ? 1 : 2);
		if (minima && rng_below(&b->rng, 8) == 0)
			memcpy(m->codes + at + scale + 2, &large, 2);
	}
}

/* Draws a packed matrix [rows, cols] of an expert to `host`, as the panels have it, and to
 * `device`.
 */
static void fill_packed(struct bench *b, uint32_t rows, uint32_t cols, float *host, void *device,
                        struct mx_quant *out)
{
	struct quant_matrix m;
	quant_matrix_make(&m, b->form, rows, cols, &b->rng);
	spoil(b, &m);
	must(quant_matrix_pack_expert(&m, b->form->bits), "packing");
	for (size_t r = 0; r < rows; r++)
		mx_quant_row(&m.w, r, host + r * cols);
	put(b, device, m.panels, mx_quant_bytes(&m.q, rows));
	*out = m.q;
	quant_matrix_free(&m);
}

/* True if the matrices of a case can have a form. */
static bool fits(const struct shape *s, const struct quant_case *f)
{
	const uint32_t whole = f->group == QUANT_WHOLE || f->format == MX_QUANT_PLAIN ? 8
	                       : f->group                                             ? f->group
	                                  : mx_quant_block_elements(f->format);
	return s->cols % whole == 0 && s->width % whole == 0;
}

/* Draws the weights of all experts and tells the device where they are. A packed matrix takes no
 * more memory than a plain one in f32. */
static void fill_weights(struct bench *b)
{
	const struct shape *s = b->s;
	const uint32_t v = s->variant, size = b->bf16 && !b->form ? 2 : 4;
	const size_t matrix = (size_t)s->cols * s->width, each = (v & GATED ? 3 : 2) * matrix;
	const size_t biases = v & BIASES ? 2 * (size_t)s->width + s->cols : 0;
	const size_t even = (each + 127) / 128 * 128; /* matrices begin at multiples of 16 bytes */
	b->host = host_memory(s->n * (even + biases) * sizeof(float));
	b->rows = host_memory(s->n * sizeof *b->rows);
	b->dw = device_memory(b, s->n * (even * size + biases * sizeof(float)));
	float *of_biases = b->host + s->n * even;
	unsigned char *device_biases = (unsigned char *)b->dw + s->n * even * size;
	struct mx_expert_weights *table = host_memory(s->n * sizeof *table);
	for (uint32_t e = 0; e < s->n; e++) {
		float *w = b->host + e * even, *bias = of_biases + e * biases;
		unsigned char *dw = (unsigned char *)b->dw + e * even * size;
		float *dbias = (float *)(void *)(device_biases + e * biases * sizeof(float));
		const size_t up = v & GATED ? matrix : 0;
		draw(b, bias, biases, 0.5f);
		if (b->form) {
			if (v & GATED)
				fill_packed(b, s->width, s->cols, w, dw, &b->up_quant);
			fill_packed(b, s->width, s->cols, w + up, dw + up * size, &b->up_quant);
			fill_packed(b, s->cols, s->width, w + up + matrix, dw + (up + matrix) * size,
			            &b->down_quant);
		} else {
			draw(b, w, each, 1.5f / sqrtf((float)s->cols));
			put_elements(b, dw, w, each);
		}
		put(b, dbias, bias, biases * sizeof(float));
		b->rows[e] = (struct mx_expert_weights){.gate = w, .up = w + up, .down = w + up + matrix};
		table[e] = (struct mx_expert_weights){
			.gate = v & GATED ? dw : NULL, .up = dw + up * size, .down = dw + (up + matrix) * size};
		if (biases) {
			b->rows[e].gate_bias = bias, table[e].gate_bias = dbias;
			b->rows[e].up_bias = bias + s->width, table[e].up_bias = dbias + s->width;
			b->rows[e].down_bias = bias + 2 * s->width;
			table[e].down_bias = dbias + 2 * s->width;
		}
	}
	b->dtable = device_memory(b, s->n * sizeof *table);
	put(b, b->dtable, table, s->n * sizeof *table);
	free(table);
}

static void fill(struct bench *b)
{
	const struct shape *s = b->s;
	const uint32_t v = s->variant;
	fill_weights(b);
	b->logits = host_memory(MAX_N * (size_t)s->n * sizeof(float));
	b->x = host_memory(MAX_N * (size_t)s->cols * sizeof(float));
	b->y0 = host_memory(MAX_N * (size_t)s->cols * sizeof(float));
	b->share = host_memory(MAX_N * sizeof(float));
	b->got = host_memory(MAX_N * (size_t)s->cols * 4);
	b->kept = host_memory(MAX_N * (size_t)s->cols * 4);
	for (size_t i = 0; i < MAX_N * (size_t)s->n; i++)
		b->logits[i] = rng_normal(&b->rng) * 2;
	draw(b, b->x, MAX_N * (size_t)s->cols, 2);
	draw(b, b->y0, MAX_N * (size_t)s->cols, 1);
	draw(b, b->share, MAX_N, 3);
	b->dlogits = device_memory(b, MAX_N * (size_t)s->n * sizeof(float));
	b->dx = device_memory(b, MAX_N * (size_t)s->cols * 4);
	b->dy = device_memory(b, MAX_N * (size_t)s->cols * 4);
	b->dshare = device_memory(b, MAX_N * sizeof(float));
	b->work = mx_experts_work(MAX_N, s->n, s->chosen, s->cols, s->width, b->bf16 ? 2 : 4);
	b->dwork = device_memory(b, b->work);
	b->correction = v & CORRECTED ? host_memory(s->n * sizeof(float)) : NULL;
	b->scales = v & SCALES ? host_memory(s->n * sizeof(float)) : NULL;
	b->dcorrection = device_memory(b, s->n * sizeof(float));
	b->dscales = device_memory(b, s->n * sizeof(float));
	for (uint32_t e = 0; e < s->n; e++) {
		if (b->correction)
			b->correction[e] = rng_unit(&b->rng) - 0.5f;
		if (b->scales)
			b->scales[e] = rng_unit(&b->rng) + 0.5f;
	}
	if (b->correction)
		put(b, b->dcorrection, b->correction, s->n * sizeof(float));
	if (b->scales)
		put(b, b->dscales, b->scales, s->n * sizeof(float));
	b->m = (struct mx_experts){
		.rule = {.scores = v & SIGMOID ? MX_ROUTER_SIGMOID : MX_ROUTER_SOFTMAX,
	             .chosen = s->chosen,
	             .groups = v & GROUPS ? 8 : 0,
	             .kept_groups = v & GROUPS ? 3 : 0,
	             .by_best = v & BY_BEST,
	             .normalize = v & NORMALIZE,
	             .sum_epsilon = v & NORMALIZE ? 1e-20f : 0,
	             .scale = v & NORMALIZE ? 1.5f : 1},
		.n = s->n,
		.cols = s->cols,
		.width = s->width,
		.act = v & GELU    ? MX_ACT_GELU_TANH
	           : v & RELU2 ? MX_ACT_RELU2
	                       : MX_ACT_SILU,
		.gated = v & GATED,
		.alpha = v & LIMIT ? 1.702f : 0,
		.limit = v & LIMIT ? 2 : 0,
		.correction = b->correction ? b->dcorrection : NULL,
		.scales = b->scales ? b->dscales : NULL,
		.weights = b->dtable,
		.up_quant = b->form ? &b->up_quant : NULL,
		.down_quant = b->form ? &b->down_quant : NULL,
	};
}

static void drop(struct bench *b)
{
	void *const host[] = {b->host, b->rows, b->correction, b->scales, b->logits,
	                      b->x,    b->y0,   b->share,      b->got,    b->kept};
	void *const device[] = {b->dw,    b->dlogits, b->dx,          b->dy,     b->dshare,
	                        b->dwork, b->dtable,  b->dcorrection, b->dscales};
	for (size_t i = 0; i < COUNT(host); i++)
		free(host[i]);
	for (size_t i = 0; i < COUNT(device); i++)
		b->d->ops->release(b->d, device[i]);
}

/* ---- running ---- */

/* Computes rows first .. first + n - 1 into `out`. */
static void run(struct bench *b, uint32_t first, uint32_t n, bool recorded, unsigned char *out)
{
	const struct shape *s = b->s;
	const struct mx_ops *ops = b->d->ops;
	const size_t size = b->bf16 ? 2 : 4, bytes = n * (size_t)s->cols * size;
	const struct mx_experts_call call = {
		.logits = b->dlogits,
		.x = b->dx,
		.y = b->dy,
		.add = s->variant & SHARED,
		.share = s->variant & SHARE ? b->dshare : NULL,
		.work = b->dwork,
		.n = n,
	};
	memset(b->pinned, 0xff, b->work > bytes ? b->work : bytes);
	must(ops->upload(b->d, b->dwork, b->pinned, b->work), "upload");
	must(ops->upload(b->d, b->dy, b->pinned, bytes), "upload");
	must(ops->wait(b->d), "wait");
	put(b, b->dlogits, b->logits + first * (size_t)s->n, n * (size_t)s->n * sizeof(float));
	put(b, b->dshare, b->share + first, n * sizeof(float));
	put_elements(b, b->dx, b->x + first * (size_t)s->cols, n * (size_t)s->cols);
	if (s->variant & SHARED)
		put_elements(b, b->dy, b->y0 + first * (size_t)s->cols, n * (size_t)s->cols);
	struct mx_recording *r = NULL;
	if (recorded)
		must(ops->record(b->d), "record");
	must(ops->experts(b->d, &b->m, &call), "experts");
	if (recorded) {
		must(ops->recorded(b->d, &r), "recorded");
		must(ops->replay(b->d, r), "replay");
	}
	must(ops->download(b->d, b->pinned, b->dy, bytes), "download");
	must(ops->wait(b->d), "wait");
	memcpy(out, b->pinned, bytes);
	ops->forget(b->d, r);
}

static void fault(struct bench *b, const char *what, uint32_t n, uint32_t row, double value)
{
	if (b->faults++ < 20)
		fprintf(stderr, "%s, %s%s, form %d, %u rows: row %u: %s (%g)\n", b->s->name,
		        b->bf16 ? "bf16" : "f32", b->d->info.deterministic ? " deterministic" : "",
		        b->form ? (int)(b->form - quant_cases) : -1, n, row, what, value);
}

/* ---- the reference ---- */

static double activation(const struct mx_experts *m, double x)
{
	switch (m->act) {
	case MX_ACT_SILU: return x / (1 + exp(-x));
	case MX_ACT_GELU_TANH:
		return x / 2 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
	case MX_ACT_GELU: return x / 2 * (1 + erf(x / sqrt(2)));
	case MX_ACT_RELU2: break;
	}
	return x > 0 ? x * x : 0;
}

/* `rounded`: of numbers of W as bf16. Adds the squares of the terms to *squares; or NULL. */
static double dot(const float *w, const float *x, size_t n, bool rounded, double *squares)
{
	double sum = 0, of_terms = 0;
	for (size_t i = 0; i < n; i++) {
		const double term = (double)(rounded ? mx_bf16_to_f32(mx_f32_to_bf16(w[i])) : w[i]) * x[i];
		sum += term;
		of_terms += term * term;
	}
	if (squares)
		*squares += of_terms;
	return sum;
}

/* Adds weight * expert(x) to y, and the squares of what each output sums to *squares. */
static void add_expert(const struct bench *b, const struct mx_expert_weights *w, const float *x,
                       double weight, bool rounded, double *y, double *squares)
{
	const struct mx_experts *m = &b->m;
	float *product = host_memory(m->width * sizeof *product);
	for (uint32_t i = 0; i < m->width; i++) {
		const size_t row = i * (size_t)m->cols;
		double up = dot((const float *)w->up + row, x, m->cols, rounded, NULL);
		double gate = m->gated ? dot((const float *)w->gate + row, x, m->cols, rounded, NULL) : 0;
		up += w->up_bias ? w->up_bias[i] : 0;
		gate += w->gate_bias ? w->gate_bias[i] : 0;
		if (m->limit != 0) {
			gate = fmin(gate, m->limit);
			up = fmax(-m->limit, fmin(up, m->limit));
			product[i] = (float)(gate / (1 + exp(-m->alpha * gate)) * (up + 1));
		} else {
			product[i] = (float)(m->gated ? activation(m, gate) * up : activation(m, up));
		}
	}
	double terms = 0;
	for (uint32_t i = 0; i < m->cols; i++)
		y[i] += weight * (dot((const float *)w->down + i * (size_t)m->width, product, m->width,
		                      rounded, &terms) +
		                  (w->down_bias ? w->down_bias[i] : 0));
	*squares += weight * weight * terms;
	free(product);
}

/* Returns the error of a whole row, relative to the row and to what its numbers are sums of:
 * products are rounded before they are summed, and may cancel each other. */
static double error_of(const struct bench *b, uint32_t row, const unsigned char *y, bool rounded)
{
	const struct shape *s = b->s;
	struct mx_expert_link links[MX_EXPERTS_MAX_CHOSEN];
	float logits[MX_EXPERTS_MAX];
	double *want = host_memory(s->cols * sizeof *want), error = 0, squares = 0, norm;
	memcpy(logits, b->logits + row * (size_t)s->n, s->n * sizeof *logits);
	mx_router_choose(&b->m.rule, b->correction, s->n, logits, links);
	const double share = s->variant & SHARE ? 1 / (1 + exp(-(double)b->share[row])) : 1;
	for (uint32_t i = 0; i < s->cols && s->variant & SHARED; i++)
		want[i] = share * b->y0[row * (size_t)s->cols + i];
	for (uint32_t k = 0; k < s->chosen; k++) {
		if (b->own && !b->own[links[k].index].up)
			continue;
		const double scale = b->scales ? b->scales[links[k].index] : 1;
		add_expert(b, &b->rows[links[k].index], b->x + row * (size_t)s->cols,
		           scale * links[k].weight, rounded, want, &squares);
	}
	norm = squares;
	for (uint32_t i = 0; i < s->cols; i++) {
		const double d = at(b, y, i) - want[i];
		error += d * d;
		norm += want[i] * want[i];
	}
	free(want);
	return sqrt(norm > 0 ? error / norm : error); /* norm 0: the rank has none of its experts */
}

/*
 * Compares a row with the reference. bf16 rounds the product and each expert's output (2^-9 each)
 * and the sum once more: under 1 %. In f32 only the order of sums differs. Packed matrices of many
 * links are rounded to bf16, which is far from their numbers where a minimum is large: then the
 * row is near the reference of rounded matrices.
 */
static void check_row(struct bench *b, uint32_t n, uint32_t row, const unsigned char *y)
{
	const double most = b->bf16 ? 1e-2 : 2e-6;
	const bool many = b->form && b->bf16 && !b->d->info.deterministic && n > 8;
	double error = error_of(b, row, y, false);
	if (!(error < most) && many)
		error = error_of(b, row, y, true);
	if (!(error < most))
		fault(b, "far from the reference", n, row, error);
}

/* ---- checks ---- */

/* A rank that has some of the experts. */
static void check_rank(struct bench *b, uint32_t n)
{
	const size_t bytes = b->s->n * sizeof *b->own;
	struct mx_expert_weights *all = host_memory(bytes);
	must(b->d->ops->download(b->d, b->pinned, b->dtable, bytes), "download");
	must(b->d->ops->wait(b->d), "wait");
	memcpy(all, b->pinned, bytes);
	b->own = host_memory(bytes);
	for (uint32_t e = 0; e < b->s->n; e++)
		if (rng_below(&b->rng, 2))
			b->own[e] = all[e];
	put(b, b->dtable, b->own, bytes);
	run(b, 0, n, false, b->got);
	for (uint32_t k = 0; k < REFERENCE; k++) {
		const uint32_t row = rng_below(&b->rng, n);
		check_row(b, n, row, b->got + row * (size_t)b->s->cols * (b->bf16 ? 2 : 4));
	}
	put(b, b->dtable, all, bytes);
	free(b->own);
	b->own = NULL;
	free(all);
}

static void check_values(struct bench *b, uint32_t n)
{
	const size_t row_bytes = (size_t)b->s->cols * (b->bf16 ? 2 : 4);
	const bool large = (size_t)b->s->cols * b->s->width > 1 << 18;
	run(b, 0, n, false, b->got);
	for (uint32_t k = 0; k < (large && n > REFERENCE ? REFERENCE : n); k++) {
		const uint32_t row = large ? rng_below(&b->rng, n) : k;
		check_row(b, n, row, b->got + row * row_bytes);
	}
	run(b, 0, n, true, b->kept);
	if (memcmp(b->got, b->kept, n * row_bytes) != 0)
		fault(b, "recorded, other bits", n, 0, 0);
	check_rank(b, n);
}

/* Rows in company have the bits of rows alone. */
static void check_bits(struct bench *b)
{
	const size_t row_bytes = (size_t)b->s->cols * (b->bf16 ? 2 : 4);
	run(b, 0, MAX_N, false, b->kept);
	for (size_t i = 0; i < COUNT(numbers); i++) {
		const uint32_t n = numbers[i], first = rng_below(&b->rng, MAX_N - n + 1);
		run(b, first, n, false, b->got);
		for (uint32_t k = 0; k < n; k++)
			if (memcmp(b->got + k * row_bytes, b->kept + (first + k) * row_bytes, row_bytes) != 0)
				fault(b, "other bits in company", n, first + k, 0);
	}
}

/* A row whose input and logits are not numbers. */
static void check_nan(struct bench *b)
{
	const struct shape *s = b->s;
	const size_t row_bytes = (size_t)s->cols * (b->bf16 ? 2 : 4);
	const uint32_t n = 17, bad = rng_below(&b->rng, n);
	run(b, 0, n, false, b->kept);
	for (uint32_t i = 0; i < s->cols; i++)
		b->x[bad * (size_t)s->cols + i] = NAN;
	for (uint32_t i = 0; i < s->n; i++)
		b->logits[bad * (size_t)s->n + i] = NAN;
	run(b, 0, n, false, b->got);
	for (uint32_t row = 0; row < n; row++)
		if (row == bad
		        ? !isnan(at(b, b->got + row * row_bytes, 0))
		        : memcmp(b->got + row * row_bytes, b->kept + row * row_bytes, row_bytes) != 0)
			fault(b, "beside a row that is not a number", n, row, bad);
}

static const char *only;    /* part of the names of the cases to try; NULL = all */
static long only_form = -1; /* the form to try; -1 = all, and plain matrices */

static void try_case(struct bench *b, const struct shape *s, const struct quant_case *form)
{
	b->s = s;
	b->form = form;
	fill(b);
	for (size_t k = 0; k < COUNT(numbers); k++)
		check_values(b, numbers[k]);
	if (b->d->info.deterministic)
		check_bits(b);
	check_nan(b);
	drop(b);
}

/* Tries all cases on one device; false if there is none. */
static bool try_device(bool bf16, bool deterministic, uint64_t seed, int *faults)
{
	const struct mx_device_options options = {.threads = 1,
	                                          .max_rows = 1,
	                                          .max_width = 1,
	                                          .cuda = {.act_dtype = bf16 ? MX_BF16 : MX_F32,
	                                                   .max_samples = 64,
	                                                   .vocab = 32000,
	                                                   .deterministic = deterministic}};
	struct bench b = {.bf16 = bf16, .rng = {seed}};
	struct mx_err err = {0};
	void *pinned;
	if (mx_device_open("cuda:0", &options, &b.d, &err) != MX_OK) {
		printf("%s\n", err.text);
		return false;
	}
	must(b.d->ops->host_alloc(b.d, (size_t)256 << 20, &pinned), "host_alloc");
	b.pinned = pinned;
	for (size_t i = 0; i < COUNT(shapes); i++) {
		const struct shape *s = &shapes[i];
		if (only && !strstr(s->name, only))
			continue;
		if (s->uses & TEST && only_form < 0 && (bf16 || (size_t)s->cols * s->width <= 1 << 18))
			try_case(&b, s, NULL);
		for (size_t f = 0; f < n_quant_cases; f++)
			if (s->uses & PACKED && !(s->uses & BENCH) && b.d->info.packs_experts &&
			    (only_form < 0 || only_form == (long)f) && fits(s, &quant_cases[f]))
				try_case(&b, s, &quant_cases[f]);
	}
	printf("%s%s: %d faults\n", bf16 ? "bf16" : "f32", deterministic ? ", deterministic" : "",
	       b.faults);
	*faults += b.faults;
	b.d->ops->host_release(b.d, b.pinned);
	b.d->ops->destroy(b.d);
	return true;
}

int main(int argc, char **argv)
{
	const char *given = getenv("MIXD_TEST_SEED");
	const uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) | 1;
	int faults = 0;
	only = argc > 1 ? argv[1] : NULL;
	only_form = argc > 2 ? atol(argv[2]) : -1;
	printf("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < 4; i++)
		if (!try_device(i % 2 == 0, i / 2, seed + (uint64_t)i, &faults))
			return 77;
	return faults ? 1 : 0;
}
