/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of rows that only this mixer needs. Each row is computed alone, in
 * one order, so any division among threads gives the same bits.
 */
#include <math.h>
#include <string.h>

#include "mixers/gla/gla.h"

#define TASK_ELEMENTS 8192 /* less work is not worth waking a thread */

typedef void row_f(const void *arg, size_t row);

struct rows {
	row_f *f;
	const void *arg;
	size_t n_rows, rows_per_task;
};

static void rows_task(void *arg, size_t task, unsigned worker)
{
	const struct rows *r = arg;
	size_t from = task * r->rows_per_task, to = from + r->rows_per_task;
	(void)worker;
	for (size_t i = from; i < to && i < r->n_rows; i++)
		r->f(r->arg, i);
}

/* Calls f for each row of `elements` elements. */
static void for_rows(struct mx_device *d, size_t n_rows, size_t elements, row_f *f, const void *arg)
{
	struct rows r = {f, arg, n_rows, elements < TASK_ELEMENTS ? TASK_ELEMENTS / elements : 1};
	size_t tasks = (n_rows + r.rows_per_task - 1) / r.rows_per_task;
	if (tasks == 1)
		rows_task(&r, 0, 0);
	else
		d->ops->parallel(d, tasks, rows_task, &r);
}

/* ---- affine ---- */

struct affine {
	size_t n;
	const float *mul, *add;
	float min;
	float *x;
};

static void affine_row(const void *arg, size_t row)
{
	const struct affine *a = arg;
	const float *mul = a->mul, *add = a->add;
	float *x = a->x + row * a->n, min = a->min;
	if (add)
		for (size_t i = 0; i < a->n; i++)
			x[i] = x[i] * mul[i] + add[i];
	else
		for (size_t i = 0; i < a->n; i++)
			x[i] = x[i] * mul[i];
	if (min > -INFINITY)
		for (size_t i = 0; i < a->n; i++)
			x[i] = x[i] > min ? x[i] : min;
}

void gla_affine(struct mx_device *d, size_t n_rows, size_t n, const float *mul, const float *add,
                float min, float *x)
{
	const struct affine a = {n, mul, add, min, x};
	for_rows(d, n_rows, n, affine_row, &a);
}

/* ---- the order of heads ---- */

struct turns {
	size_t k_heads, each, dim;
	const float *y;
	float *to;
};

static void turns_row(const void *arg, size_t row)
{
	const struct turns *t = arg;
	const size_t n = t->k_heads * t->each * t->dim;
	const float *y = t->y + row * n;
	float *to = t->to + row * n;
	for (size_t k = 0; k < t->k_heads; k++)
		for (size_t i = 0; i < t->each; i++, y += t->dim)
			memcpy(to + (i * t->k_heads + k) * t->dim, y, t->dim * sizeof *y);
}

void gla_heads_by_turns(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                        const float *y, float *to)
{
	const struct turns t = {p->recur.heads / p->by_turns, p->by_turns, p->v_dim, y, to};
	for_rows(d, n_rows, (size_t)p->recur.heads * p->v_dim, turns_row, &t);
}

/* ---- complements ---- */

struct pair {
	size_t n;
	const float *a;
	float *y;
};

static void complement_row(const void *arg, size_t row)
{
	const struct pair *p = arg;
	const float *a = p->a + row * p->n;
	float *y = p->y + row * p->n;
	for (size_t i = 0; i < p->n; i++)
		y[i] = 1 - a[i];
}

void gla_complement(struct mx_device *d, size_t n_rows, size_t n, const float *a, float *k)
{
	const struct pair p = {n, a, k};
	for_rows(d, n_rows, n, complement_row, &p);
}

static void input_gate_row(const void *arg, size_t row)
{
	const struct pair *p = arg;
	const float *a = p->a + row * p->n;
	float *y = p->y + row * p->n;
	for (size_t i = 0; i < p->n; i++)
		y[i] *= 1 - a[i];
}

void gla_input_gate(struct mx_device *d, size_t n_rows, size_t n, const float *a, float *v)
{
	const struct pair p = {n, a, v};
	for_rows(d, n_rows, n, input_gate_row, &p);
}

/* ---- features ---- */

/* softmax(2x, -2x) (Zhang et al. 2024, "The Hedgehog & the Porcupine"). */
static void hedgehog(size_t n, const float *x, float *y)
{
	float max = 0, sum = 0;
	for (size_t i = 0; i < n; i++)
		max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
	for (size_t i = 0; i < n; i++) {
		y[i] = expf(2 * x[i] - 2 * max);
		y[n + i] = expf(-2 * x[i] - 2 * max);
	}
	for (size_t i = 0; i < 2 * n; i++)
		sum += y[i];
	for (size_t i = 0; i < 2 * n; i++)
		y[i] /= sum;
}

static float dpfp_part(size_t n, const float *x, size_t i)
{
	float z = i < n ? x[i] : -x[i - n];
	return z > 0 ? z : 0;
}

/* z = (relu x, relu -x); y = z_i z_(i-j) for j = 1 .. 4 (Schlag et al. 2021). */
static void dpfp(size_t n, const float *x, float *y)
{
	for (size_t j = 1; j <= 4; j++)
		for (size_t i = 0; i < 2 * n; i++)
			*y++ = dpfp_part(n, x, i) * dpfp_part(n, x, (i + 4 * n - j % (2 * n)) % (2 * n));
}

static void feature_head(enum mx_recur_feature f, size_t n, const float *x, const float *x2,
                         float *y)
{
	switch (f) {
	case MX_RECUR_FEATURE_IDENTITY:
		for (size_t i = 0; i < n; i++)
			y[i] = x[i];
		break;
	case MX_RECUR_FEATURE_RELU:
	case MX_RECUR_FEATURE_T2R:
		for (size_t i = 0; i < n; i++)
			y[i] = x[i] > 0 ? x[i] : 0;
		break;
	case MX_RECUR_FEATURE_SIGMOID:
		for (size_t i = 0; i < n; i++)
			y[i] = 1 / (1 + expf(-x[i]));
		break;
	case MX_RECUR_FEATURE_SILU:
		for (size_t i = 0; i < n; i++)
			y[i] = x[i] / (1 + expf(-x[i]));
		break;
	case MX_RECUR_FEATURE_ELU:
		for (size_t i = 0; i < n; i++)
			y[i] = x[i] > 0 ? x[i] + 1 : expf(x[i]);
		break;
	case MX_RECUR_FEATURE_PRODUCT:
		for (size_t i = 0; i < n; i++)
			y[i] = x[i] * x2[i];
		break;
	case MX_RECUR_FEATURE_HEDGEHOG: hedgehog(n, x, y); break;
	case MX_RECUR_FEATURE_DPFP: dpfp(n, x, y); break;
	}
}

struct feature_rows {
	const struct gla_features *f;
	const float *x, *x2;
	float *y;
};

static void feature_row(const void *arg, size_t row)
{
	const struct feature_rows *r = arg;
	const struct gla_features *f = r->f;
	size_t out = mx_recur_feature_dim(f->feature, f->dim);
	for (size_t h = row * f->heads; h < (row + 1) * f->heads; h++) {
		float *y = r->y + h * out, scale = f->scale, sum = 0;
		bool l1 = f->norm == MX_RECUR_QK_L1;
		feature_head(f->feature, f->dim, r->x + h * f->dim, r->x2 ? r->x2 + h * f->dim : NULL, y);
		if (f->norm != MX_RECUR_QK_NONE) {
			for (size_t i = 0; i < out; i++)
				sum += l1 ? fabsf(y[i]) : y[i];
			scale /= l1 ? fmaxf(sum, 1e-6f) : sum + 1e-4f;
		}
		if (scale != 1)
			for (size_t i = 0; i < out; i++)
				y[i] *= scale;
	}
}

void gla_apply_features(struct mx_device *d, const struct gla_features *f, size_t n_rows,
                        const float *x, const float *x2, float *y)
{
	const struct feature_rows r = {f, x, x2, y};
	for_rows(d, n_rows, (size_t)f->heads * mx_recur_feature_dim(f->feature, f->dim), feature_row,
	         &r);
}

/* ---- the denominator of normalised linear attention ---- */

struct groups {
	size_t heads, dim;
	float *x;
};

/* From the last group to the first, because groups move towards the end. */
static void ones_row(const void *arg, size_t row)
{
	const struct groups *g = arg;
	float *x = g->x + row * g->heads * (g->dim + 1);
	for (size_t h = g->heads; h-- > 0;) {
		memmove(x + h * (g->dim + 1), x + h * g->dim, g->dim * sizeof(*x));
		x[h * (g->dim + 1) + g->dim] = 1;
	}
}

void gla_append_ones(struct mx_device *d, size_t n_rows, uint32_t heads, uint32_t dim, float *v)
{
	const struct groups g = {heads, dim, v};
	for_rows(d, n_rows, (size_t)heads * dim, ones_row, &g);
}

static void divide_row(const void *arg, size_t row)
{
	const struct groups *g = arg;
	float *x = g->x + row * g->heads * (g->dim + 1);
	for (size_t h = 0; h < g->heads; h++) {
		float sum = x[h * (g->dim + 1) + g->dim] + 1e-10f;
		for (size_t i = 0; i < g->dim; i++)
			x[h * g->dim + i] = x[h * (g->dim + 1) + i] / sum;
	}
}

void gla_divide(struct mx_device *d, size_t n_rows, uint32_t heads, uint32_t dim, float *y)
{
	const struct groups g = {heads, dim, y};
	for_rows(d, n_rows, (size_t)heads * dim, divide_row, &g);
}

/* ---- streams that are taken from products, key head by key head ---- */

struct unpack {
	const struct gla_params *p;
	const struct gla_buffers *b;
	const float *bias;
};

/* Copies n elements to the next place of a stream. */
static const float *take(float **to, const float *from, size_t n)
{
	memcpy(*to, from, n * sizeof *from);
	*to += n;
	return from + n;
}

static void unpack_row(const void *arg, size_t row)
{
	const struct unpack *u = arg;
	const struct gla_params *p = u->p;
	const uint32_t k_heads = p->recur.k_heads, each = p->recur.heads / k_heads;
	const float *qkvz =
		u->b->qkvz + row * 2 * (p->streams[MX_RECUR_Q].n + p->streams[MX_RECUR_V].n);
	const float *ba = u->b->ba + row * 2 * p->recur.heads;
	float *to[MX_RECUR_STREAMS];
	for (int s = 0; s < MX_RECUR_STREAMS; s++)
		to[s] = u->b->streams[s] + row * p->streams[s].ld;
	for (uint32_t h = 0; h < k_heads; h++) {
		qkvz = take(&to[MX_RECUR_Q], qkvz, p->k_dim);
		qkvz = take(&to[MX_RECUR_K], qkvz, p->k_dim);
		qkvz = take(&to[MX_RECUR_V], qkvz, (size_t)each * p->v_dim);
		qkvz = take(&to[MX_RECUR_GATE], qkvz, (size_t)each * p->v_dim);
		ba = take(&to[MX_RECUR_BETA], ba, each);
		ba = take(&to[MX_RECUR_A], ba, each);
	}
	float *a = u->b->streams[MX_RECUR_A] + row * p->streams[MX_RECUR_A].ld;
	for (uint32_t h = 0; h < p->recur.heads; h++)
		a[h] += u->bias[h];
}

void gla_unpack(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                const struct gla_buffers *b, const float *bias)
{
	const struct unpack u = {p, b, bias};
	for_rows(d, n_rows, 2 * (p->streams[MX_RECUR_Q].n + p->streams[MX_RECUR_V].n), unpack_row, &u);
}

static void unpack_qkv_row(const void *arg, size_t row)
{
	const struct unpack *u = arg;
	const struct gla_params *p = u->p;
	const float *qkv = u->b->qkvz + row * (2 * p->streams[MX_RECUR_Q].n + p->streams[MX_RECUR_V].n);
	float *to[MX_RECUR_V + 1];
	for (int s = MX_RECUR_Q; s <= MX_RECUR_V; s++)
		to[s] = u->b->streams[s] + row * p->streams[s].ld;
	for (uint32_t h = 0; h < p->recur.heads; h++) {
		qkv = take(&to[MX_RECUR_Q], qkv, p->k_dim);
		qkv = take(&to[MX_RECUR_K], qkv, p->k_dim);
		qkv = take(&to[MX_RECUR_V], qkv, p->v_dim);
	}
}

void gla_unpack_qkv(struct mx_device *d, const struct gla_params *p, size_t n_rows,
                    const struct gla_buffers *b)
{
	const struct unpack u = {p, b, NULL};
	for_rows(d, n_rows, 2 * p->streams[MX_RECUR_Q].n + p->streams[MX_RECUR_V].n, unpack_qkv_row,
	         &u);
}
