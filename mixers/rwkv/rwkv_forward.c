/* SPDX-License-Identifier: Apache-2.0 */
/* A step of the rwkv mixer: the token shift, products, the recurrence. */
#include "mixers/rwkv/rwkv.h"

static size_t place(unsigned char *base, size_t at, size_t n, float **out)
{
	if (base)
		*out = (float *)(base + at);
	return at + ((n * sizeof(float) + 63) & ~(size_t)63);
}

size_t rwkv_layout(const struct rwkv_params *p, const struct mx_recur_spec *recur, uint32_t width,
                   size_t rows, unsigned threads, unsigned char *base, struct rwkv_buffers *out)
{
	const size_t all = rows * width, own = rows * p->inner;
	struct rwkv_buffers b = {0};
	uint32_t rank = 0;
	size_t n = place(base, 0, all, &b.delta);
	n = place(base, n, all, &b.mix);
	if (p->part == RWKV_CHANNEL) {
		n = place(base, n, own, &b.inner);
	} else {
		for (int i = 0; i < RWKV_LORAS; i++)
			rank = p->rank[i] > rank ? p->rank[i] : rank;
		n = place(base, n, rows * rank, &b.low);
		n = place(base, n, own, &b.r);
		n = place(base, n, own, &b.w);
		n = place(base, n, own, &b.k);
		n = place(base, n, own, &b.a);
		n = place(base, n, own, &b.v);
		n = place(base, n, p->value_residual ? own : 0, &b.v_mix);
		n = place(base, n, own, &b.g);
		n = place(base, n, rows * p->heads, &b.bonus);
		b.core = base ? base + n : NULL;
		n += mx_recur_scratch_bytes(recur, threads);
	}
	if (base)
		*out = b;
	return n;
}

/* Computes y = W2 f(W1 x) + bias of a low-rank product, W1 x being in b->low. */
static mx_status lora_up(const struct mx_mixer *m, enum rwkv_lora l, size_t n,
                         const struct rwkv_buffers *b, float *y)
{
	const uint32_t rank = m->params.rank[l];
	const struct mx_weight *up = m->w.up[l];
	const struct mx_linear_out out = {.w = up, .bias = m->w.bias[l], .y = y, .ldy = up->rows};
	if (l == RWKV_W)
		mx_recur_map(m->kernels, m->device, MX_RECUR_TANH, n, rank, b->low, rank);
	if (l == RWKV_G)
		mx_recur_map(m->kernels, m->device, MX_RECUR_SIGMOID, n, rank, b->low, rank);
	return m->device->ops->linear(m->device, b->low, rank, n, &out, 1);
}

/* Computes products of one mixed input: y = w of it, and y_lora = the low-rank product. Either may
 * be absent: NULL. */
static mx_status products(const struct mx_mixer *m, const float *x, enum rwkv_shift shift, size_t n,
                          const struct rwkv_buffers *b, const struct mx_weight *w, float *y,
                          enum rwkv_lora l, float *y_lora)
{
	struct mx_device *d = m->device;
	struct mx_linear_out out[2];
	size_t n_out = 0;
	if (w)
		out[n_out++] = (struct mx_linear_out){.w = w, .y = y, .ldy = w->rows};
	if (y_lora)
		out[n_out++] =
			(struct mx_linear_out){.w = m->w.down[l], .y = b->low, .ldy = m->params.rank[l]};
	rwkv_mix(d, n, m->width, x, b->delta, m->w.x[shift], b->mix);
	mx_status st = d->ops->linear(d, b->mix, m->width, n, out, n_out);
	return st == MX_OK && y_lora ? lora_up(m, l, n, b, y_lora) : st;
}

static mx_status time_mixing(struct mx_mixer *m, const struct mx_step *step, const float *x,
                             const struct rwkv_buffers *b, float *y)
{
	const struct rwkv_weights *w = &m->w;
	const size_t n = step->n_rows, ld = m->params.inner;
	struct mx_device *d = m->device;
	mx_status st = products(m, x, RWKV_X_R, n, b, w->r, b->r, RWKV_W, NULL);
	if (st == MX_OK)
		st = products(m, x, RWKV_X_W, n, b, NULL, NULL, RWKV_W, b->w);
	if (st == MX_OK)
		st = products(m, x, RWKV_X_K, n, b, w->k, b->k, RWKV_A, NULL);
	if (st == MX_OK)
		st = products(m, x, RWKV_X_V, n, b, w->v, b->v, RWKV_V,
		              m->params.value_residual && !m->is_first ? b->v_mix : NULL);
	if (st == MX_OK)
		st = products(m, x, RWKV_X_A, n, b, NULL, NULL, RWKV_A, b->a);
	if (st == MX_OK)
		st = products(m, x, RWKV_X_G, n, b, NULL, NULL, RWKV_G, b->g);
	if (st != MX_OK)
		return st;
	rwkv_inputs(m, n, b);
	const struct mx_recur_in in = {
		.q = b->r,
		.k = b->k,
		.v = b->v,
		.a = b->w,
		.z = b->delta,
		.b = b->a,
		.ldq = ld,
		.ldk = ld,
		.ldv = ld,
		.lda = ld,
	};
	mx_recur_forward(m->kernels, d, &m->recur, step, m->slot_base + m->shift_bytes, m->slot_stride,
	                 &in, b->core, b->mix, ld);
	rwkv_outputs(m, n, b);
	const struct mx_linear_out out = {.w = w->o, .y = y, .ldy = m->width};
	return d->ops->linear(d, b->mix, ld, n, &out, 1);
}

static mx_status channel_mixing(struct mx_mixer *m, const struct mx_step *step, const float *x,
                                const struct rwkv_buffers *b, float *y)
{
	const size_t n = step->n_rows, inner = m->params.inner;
	struct mx_device *d = m->device;
	const struct mx_linear_out key = {.w = m->w.key, .y = b->inner, .ldy = inner};
	const struct mx_linear_out value = {.w = m->w.value, .y = y, .ldy = m->width};
	rwkv_mix(d, n, m->width, x, b->delta, m->w.x[RWKV_X_K], b->mix);
	mx_status st = d->ops->linear(d, b->mix, m->width, n, &key, 1);
	if (st == MX_OK)
		st = d->ops->act_mul(d, MX_ACT_RELU2, b->inner, inner, NULL, 0, n, inner, b->inner, inner);
	return st == MX_OK ? d->ops->linear(d, b->inner, inner, n, &value, 1) : st;
}

mx_status rwkv_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	struct rwkv_buffers b;
	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	rwkv_layout(&m->params, &m->recur, m->width, m->max_rows, m->device->info.threads,
	            step->scratch, &b);
	mx_conv_forward(m->kernels, m->device, &m->shift, step, m->slot_base, m->slot_stride, m->taps,
	                NULL, x, m->width, b.delta, m->width);
	return m->params.part == RWKV_TIME ? time_mixing(m, step, x, &b, y)
	                                   : channel_mixing(m, step, x, &b, y);
}
