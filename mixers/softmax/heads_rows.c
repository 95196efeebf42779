/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to the rows of queries, keys and outputs beside attention: products are taken apart,
 * queries and keys are normalised and rotated, outputs are multiplied by their gates.
 */
#include <math.h>
#include <string.h>

#include "mixers/softmax/heads.h"
#include "mixers/softmax/softmax.h"

#define TASK_ROWS 8 /* of a task of these passes over activations */

/* ---- rotary embedding ---- */

/* Computes the frequencies of one position beyond the trained length, those of a model that decodes
 * token by token: base * (factor * (pos + 1) / max - (factor - 1)) ^ (dim / (dim - 2)) (dynamic
 * NTK, as in transformers' _compute_dynamic_ntk_parameters). A function of the position alone. */
static void dynamic_frequencies(const struct attn_params *p, uint32_t pos, float *out)
{
	double dim = p->rope_dim;
	double stretch = p->factor * ((double)pos + 1) / p->max_position - (p->factor - 1);
	double base = p->theta * pow(stretch, dim / (dim - 2));
	for (uint32_t i = 0; i < p->rope_dim / 2; i++)
		out[i] = (float)pow(base, -2.0 * i / dim);
}

static mx_status rotate_rows(const struct attn_heads *m, float *q, float *k, uint32_t first,
                             uint32_t n, const uint32_t *pos, const float *inv_freq)
{
	const struct attn_params *p = &m->params;
	const struct mx_ops *ops = m->device->ops;
	size_t ldq = (size_t)p->heads * p->head_dim, ldk = (size_t)p->kv_heads * p->head_dim;
	struct mx_rope rope = {inv_freq, p->rope_dim, p->rope_attention_factor};

	const float *q_norm = p->qk_norm && !p->norm_last ? m->weights.q_norm : NULL;
	const float *k_norm = p->qk_norm && !p->norm_last ? m->weights.k_norm : NULL;

	mx_status status = ops->rope(m->device, q + first * ldq, ldq, n, p->heads, p->head_dim, &rope,
	                             pos + first, q_norm, p->norm_eps);
	if (status == MX_OK && k)
		status = ops->rope(m->device, k + first * ldk, ldk, n, p->kv_heads, p->head_dim, &rope,
		                   pos + first, k_norm, p->norm_eps);
	return status;
}

/* Beyond the trained length the frequencies are those of a position. */
static mx_status rotate_dynamic(const struct attn_heads *m, float *q, float *k, uint32_t n,
                                const uint32_t *pos)
{
	const struct attn_params *p = &m->params;
	for (uint32_t i = 0, run; i < n; i += run) {
		const float *freq = m->inv_freq;
		run = 1;
		if (pos[i] < p->max_position) {
			while (i + run < n && pos[i + run] < p->max_position)
				run++;
		} else {
			dynamic_frequencies(p, pos[i], m->dynamic_freq);
			freq = m->dynamic_freq;
		}
		mx_status status = rotate_rows(m, q, k, i, run, pos, freq);
		if (status != MX_OK)
			return status;
	}
	return MX_OK;
}

/* Sequences that may outgrow the original length have the long frequencies, from their first token
 * on: keys of both kinds never meet. */
static mx_status rotate_long(const struct attn_heads *m, float *q, float *k,
                             const struct mx_step *step)
{
	mx_status status = MX_OK;
	for (uint32_t i = 0; i < step->n_spans && status == MX_OK; i++) {
		const struct mx_span *s = &step->spans[i];
		const float *freq = s->max_len > m->params.original ? m->long_freq : m->inv_freq;
		status = rotate_rows(m, q, k, s->row, s->n, step->pos, freq);
	}
	return status;
}

/* Multiplies queries by the factor of their position. */
static void scale_queries(const struct attn_heads *m, float *q, uint32_t n, const uint32_t *pos)
{
	const struct attn_params *p = &m->params;
	size_t ld = (size_t)p->heads * p->head_dim;
	for (uint32_t i = 0; i < n; i++) {
		float factor = 1 + p->q_beta * logf(1 + (float)(pos[i] / p->q_length));
		for (size_t k = 0; factor != 1 && k < ld; k++)
			q[i * ld + k] *= factor;
	}
}

/* Normalises the heads of queries and keys. */
static mx_status norm_heads(const struct attn_heads *m, float *q, float *k, size_t n)
{
	const struct attn_params *p = &m->params;
	const struct mx_ops *ops = m->device->ops;
	mx_status status =
		ops->rmsnorm(m->device, q, m->weights.q_norm, p->norm_eps, n * p->heads, p->head_dim, q);
	if (status == MX_OK && k)
		status = ops->rmsnorm(m->device, k, m->weights.k_norm, p->norm_eps, n * p->kv_heads,
		                      p->head_dim, k);
	return status;
}

/* Rows of heads of which other ranks have more. */
struct whole {
	const float *weight;
	float *x, *sums; /* [n, width], [n] */
	size_t width, all, n;
	float eps;
};

static void sum_squares(void *arg, size_t task, unsigned worker)
{
	const struct whole *w = arg;
	size_t end = (task + 1) * TASK_ROWS < w->n ? (task + 1) * TASK_ROWS : w->n;
	(void)worker;
	for (size_t i = task * TASK_ROWS; i < end; i++) {
		double sum = 0;
		for (size_t k = 0; k < w->width; k++)
			sum += (double)w->x[i * w->width + k] * (double)w->x[i * w->width + k];
		w->sums[i] = (float)sum;
	}
}

static void divide(void *arg, size_t task, unsigned worker)
{
	const struct whole *w = arg;
	size_t end = (task + 1) * TASK_ROWS < w->n ? (task + 1) * TASK_ROWS : w->n;
	(void)worker;
	for (size_t i = task * TASK_ROWS; i < end; i++) {
		float share = 1 / sqrtf(w->sums[i] / (float)w->all + w->eps);
		for (size_t k = 0; k < w->width; k++)
			w->x[i * w->width + k] *= share * w->weight[k];
	}
}

/* Normalises the rows of all heads together, of which this rank has some. Heads that several
 * ranks have are summed up by each of them. */
static mx_status norm_summed(const struct attn_heads *m, const struct mx_step *step, float *q,
                             float *k)
{
	const struct attn_params *p = &m->params;
	const size_t n = step->n_rows, d = p->head_dim, tasks = (n + TASK_ROWS - 1) / TASK_ROWS;
	float *sums = (float *)(void *)((unsigned char *)step->scratch + m->scratch.sums);
	struct whole rows[2] = {
		{m->weights.q_norm, q, sums, p->heads * d, p->all_heads * p->contexts * d, n, p->norm_eps},
		{m->weights.k_norm, k, sums + n, p->kv_heads * d, p->all_kv_heads * p->sharers * d, n,
	     p->norm_eps},
	};
	const size_t both = k ? 2 : 1;
	for (size_t i = 0; i < both; i++)
		m->device->ops->parallel(m->device, tasks, sum_squares, &rows[i]);
	mx_status status = m->comm->ops->all_reduce(m->comm, sums, both * n);
	for (size_t i = 0; i < both && status == MX_OK; i++)
		m->device->ops->parallel(m->device, tasks, divide, &rows[i]);
	return status;
}

mx_status attn_rows_rotate(const struct attn_heads *m, const struct mx_step *step, float *q,
                           float *k)
{
	const struct attn_params *p = &m->params;
	const struct mx_ops *ops = m->device->ops;
	size_t ldq = (size_t)p->heads * p->head_dim, ldk = (size_t)p->kv_heads * p->head_dim;
	uint32_t n = step->n_rows;
	mx_status status = MX_OK;
	if (p->summed)
		status = norm_summed(m, step, q, k);
	else if (p->qk_norm_whole)
		status = ops->rmsnorm(m->device, q, m->weights.q_norm, p->norm_eps, n, ldq, q);
	if (p->qk_norm_whole && !p->summed && k && status == MX_OK)
		status = ops->rmsnorm(m->device, k, m->weights.k_norm, p->norm_eps, n, ldk, k);
	if (status != MX_OK)
		return status;
	if (p->rope == ATTN_ROPE_DYNAMIC)
		status = rotate_dynamic(m, q, k, n, step->pos);
	else if (p->rope == ATTN_ROPE_LONG)
		status = rotate_long(m, q, k, step);
	else if (p->rope != ATTN_ROPE_NONE || p->qk_norm)
		status = rotate_rows(m, q, k, 0, n, step->pos, m->inv_freq);
	if (status == MX_OK && p->norm_last)
		status = norm_heads(m, q, k, n);
	if (status == MX_OK && p->q_beta != 0)
		scale_queries(m, q, n, step->pos);
	return status;
}

/* ---- taking products apart ---- */

struct rows_run {
	const struct attn_heads *m;
	uint32_t n_rows;
	float *raw, *q, *k, *v;
};

/* Divides each head by its root mean square. */
static void norm_values(const struct attn_params *p, float *v)
{
	uint32_t d = p->head_dim;
	for (uint32_t h = 0; h < p->kv_heads; h++, v += d) {
		double sum = 0;
		for (uint32_t i = 0; i < d; i++)
			sum += (double)v[i] * (double)v[i];
		float scale = (float)(1 / sqrt(sum / d + (double)p->norm_eps));
		for (uint32_t i = 0; i < d; i++)
			v[i] *= scale;
	}
}

static void arrange_row(const struct rows_run *r, uint32_t row)
{
	const struct attn_params *p = &r->m->params;
	size_t d = p->head_dim, bytes = d * sizeof(float);
	const float *raw = r->raw + (size_t)row * attn_params_raw(p);
	float *q = r->q + row * p->heads * d, *k = r->k + row * p->kv_heads * d;
	float *v = r->v + row * p->kv_heads * d;

	for (uint32_t h = 0; p->gate && h < p->heads; h++)
		memcpy(q + h * d, raw + 2 * h * d, bytes);
	for (uint32_t h = 0; p->per_head && h < p->kv_heads; h++, raw += (p->group + 2) * d) {
		memcpy(q + h * p->group * d, raw, p->group * bytes);
		memcpy(k + h * d, raw + p->group * d, bytes);
		memcpy(v + h * d, raw + (p->group + 1) * d, bytes);
	}
	if (p->k_is_v)
		memcpy(v, k, p->kv_heads * bytes);
	if (p->v_norm)
		norm_values(p, v);
	if (p->rope_pairs) {
		mx_softmax_split_pairs(q, p->heads, p->head_dim, p->rope_dim);
		mx_softmax_split_pairs(k, p->kv_heads, p->head_dim, p->rope_dim);
	}
}

static void arrange_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *r = arg;
	(void)worker;
	for (uint32_t i = 0, row = (uint32_t)task * TASK_ROWS; i < TASK_ROWS && row < r->n_rows;
	     i++, row++)
		arrange_row(r, row);
}

static void run_rows(struct rows_run *r, mx_parallel_f *task)
{
	size_t n = (r->n_rows + TASK_ROWS - 1) / TASK_ROWS;
	if (n == 1) /* waking the threads costs more */
		task(r, 0, 0);
	else
		r->m->device->ops->parallel(r->m->device, n, task, r);
}

void attn_rows_arrange(const struct attn_heads *m, uint32_t n_rows, float *raw, float *q, float *k,
                       float *v)
{
	const struct attn_params *p = &m->params;
	struct rows_run r = {m, n_rows, raw, q, k, v};
	if (p->rope_pairs || p->gate || p->per_head || p->v_norm || p->k_is_v)
		run_rows(&r, arrange_task);
}

/* ---- gates ---- */

static void gate_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *r = arg;
	const struct attn_params *p = &r->m->params;
	uint32_t d = p->head_dim;
	(void)worker;
	for (uint32_t i = 0, row = (uint32_t)task * TASK_ROWS; i < TASK_ROWS && row < r->n_rows;
	     i++, row++)
		for (uint32_t h = 0; h < p->heads; h++) {
			const float *gate = r->raw + ((size_t)row * p->heads + h) * 2 * d + d;
			float *y = r->q + ((size_t)row * p->heads + h) * d;
			for (uint32_t k = 0; k < d; k++)
				y[k] /= 1 + expf(-gate[k]);
		}
}

static void wide_gate_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *r = arg;
	const struct attn_params *p = &r->m->params;
	size_t n = (size_t)p->heads * p->head_dim, first = task * TASK_ROWS;
	size_t rows = r->n_rows - first < TASK_ROWS ? r->n_rows - first : TASK_ROWS;
	(void)worker;
	for (size_t i = first * n; i < (first + rows) * n; i++)
		r->q[i] /= 1 + expf(-r->raw[i]);
}

static void head_gate_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_run *r = arg;
	const struct attn_params *p = &r->m->params;
	(void)worker;
	for (uint32_t i = 0, row = (uint32_t)task * TASK_ROWS; i < TASK_ROWS && row < r->n_rows;
	     i++, row++)
		for (uint32_t h = 0; h < p->heads; h++) {
			float factor = 1 / (1 + expf(-r->raw[(size_t)row * p->heads + h]));
			float *y = r->q + ((size_t)row * p->heads + h) * p->head_dim;
			for (uint32_t k = 0; k < p->head_dim; k++)
				y[k] *= factor;
		}
}

void attn_rows_gate(const struct attn_heads *m, uint32_t n_rows, float *raw, float *gates, float *y)
{
	struct rows_run r = {.m = m, .n_rows = n_rows, .raw = raw, .q = y};
	if (m->params.gate)
		run_rows(&r, gate_task);
	r.raw = gates;
	if (m->params.head_gate)
		run_rows(&r, head_gate_task);
	if (m->params.wide_gate)
		run_rows(&r, wide_gate_task);
}
