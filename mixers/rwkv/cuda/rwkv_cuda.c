/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the mixer rwkv on CUDA devices. A slot is the token shift's ring of inputs, then of
 * time mixing the heads' units; a snapshot is a copy of it. commit does nothing: the next span's
 * position tells which tokens were kept.
 */
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/cuda.h"
#include "mixers/recurrence/cuda/slots.h"
#include "mixers/rwkv/cuda/rwkv_kernels.h"
#include "mixers/rwkv/rwkv_params.h"

/* Sizes that follow from the layer and the device. Offsets of scratch in bytes from its start. */
struct sizes {
	struct rwkv_unit unit;
	uint32_t shift_cap;
	size_t units_at, slot;               /* bytes */
	uint32_t low_at[RWKV_LORAS], ld_low; /* columns of the first products of low ranks */
	size_t mixed[RWKV_SHIFTED], low, r, k, v, g, share, w, a, inner, scratch;
	/* of long spans: k, z and r as the recurrence takes them, in the place of `mixed`; v; y */
	size_t made[4], y, bonus;
};

struct mx_mixer {
	struct recur_cuda_slots slots;
	struct mx_device *device;
	struct rwkv_params params;
	struct rwkv_weights w;
	struct sizes sizes;
	uint32_t width, max_rows, max_draft;
	/* act [max_rows, width] v of the model's first time mixing in this step. That instance owns
	 * it; prepare hands it to the others. NULL for channel mixing. */
	void *v_first;
	bool is_first;
};

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct rwkv_params p;
	const enum mx_dtype act = device->info.act_dtype;
	if (device->info.kind != MX_DEVICE_CUDA || (act != MX_BF16 && act != MX_F32))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "rwkv: this module runs on CUDA devices in bf16 or f32");
	mx_status status = rwkv_params_read(layer, &p, err);
	if (status == MX_OK && p.part == RWKV_TIME && p.dim > RWKV_MAX_DIM)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "rwkv: heads of %u elements; on GPUs there may be %d", p.dim,
		                     RWKV_MAX_DIM);
	return status;
}

/* ---- sizes ---- */

static size_t take(size_t *at, size_t bytes)
{
	const size_t from = *at;
	*at += (bytes + 255) / 256 * 256;
	return from;
}

static void size_time(const struct mx_layer_desc *layer, const struct rwkv_params *p, size_t act,
                      struct sizes *z)
{
	const size_t all = (size_t)layer->max_rows * layer->width;
	rwkv_cuda_unit(p->dim, layer->max_draft, &z->unit);
	z->units_at = take(&z->slot, p->heads * z->unit.bytes);
	for (int i = 0; i < RWKV_LORAS; i++) {
		z->low_at[i] = z->ld_low;
		z->ld_low += (p->rank[i] + 7) / 8 * 8; /* rows of inputs of products are aligned */
	}
	z->low = take(&z->scratch, (size_t)layer->max_rows * z->ld_low * act);
	z->r = take(&z->scratch, all * act);
	z->k = take(&z->scratch, all * act);
	z->v = take(&z->scratch, all * act);
	z->g = take(&z->scratch, all * act);
	z->share = take(&z->scratch, p->value_residual ? all * act : 0);
	z->w = take(&z->scratch, all * sizeof(float));
	z->a = take(&z->scratch, all * sizeof(float));
	z->y = take(&z->scratch, all * sizeof(float));
	z->bonus = take(&z->scratch, (size_t)layer->max_rows * p->heads * sizeof(float));
	/* three arrays of f32 are at most as long as the inputs of products, which are used up */
	size_t at = z->mixed[0];
	for (int i = 0; i < 3; i++)
		z->made[i] = take(&at, all * sizeof(float));
	z->made[3] = take(&z->scratch, all * sizeof(float));
}

static struct sizes sizes_of(const struct mx_layer_desc *layer, const struct rwkv_params *p,
                             const struct mx_device *device)
{
	const size_t act = mx_dtype_size(device->info.act_dtype), rows = layer->max_rows;
	const size_t shifted = p->part == RWKV_TIME ? RWKV_SHIFTED : 1;
	struct sizes z = {.shift_cap = 2 + layer->max_draft};
	take(&z.slot, (size_t)z.shift_cap * layer->width * act);
	for (size_t i = 0; i < shifted; i++)
		z.mixed[i] = take(&z.scratch, rows * layer->width * act);
	if (p->part == RWKV_TIME)
		size_time(layer, p, act, &z);
	else
		z.inner = take(&z.scratch, rows * p->inner * act);
	return z;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct rwkv_params p;
	mx_status status = rwkv_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct sizes z = sizes_of(layer, &p, device);
	const size_t act = mx_dtype_size(device->info.act_dtype);
	/* v of a step: the model's first time mixing is the one without a value residual */
	const bool first = p.part == RWKV_TIME && !p.value_residual;
	*out = (struct mx_state_spec){.fixed_bytes = z.slot,
	                              .scratch_bytes = z.scratch,
	                              .snapshot_bytes = z.slot,
	                              .instance_bytes =
	                                  first ? (size_t)layer->max_rows * layer->width * act : 0};
	return MX_OK;
}

/* ---- life cycle ---- */

static void destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	if (m->is_first)
		m->device->ops->release(m->device, m->v_first);
	free(m);
}

static const struct mx_mixer_ops rwkv_cuda_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct rwkv_params p;
	mx_status status = rwkv_params_read(layer, &p, err);
	if (status != MX_OK)
		return status;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "rwkv: out of memory");
	const struct sizes z = sizes_of(layer, &p, init->device);
	*m = (struct mx_mixer){
		.slots = recur_cuda_slots(&rwkv_cuda_ops, init, z.slot),
		.device = init->device,
		.params = p,
		.sizes = z,
		.width = layer->width,
		.max_rows = layer->max_rows,
		.max_draft = layer->max_draft,
	};
	status = rwkv_params_take(layer, &p, init->weights, &m->w, err);
	if (status != MX_OK) {
		destroy(m);
		return status;
	}
	*out = m;
	return MX_OK;
}

/* Finds the model's first time mixing, and shares its memory for v with the others. */
static mx_status prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	void *v_first = NULL;
	for (uint32_t i = 0; i < n_layers; i++) {
		struct mx_mixer *m = layers[i];
		struct mx_device *d = m->device;
		if (m->params.part != RWKV_TIME)
			continue;
		if (!v_first) {
			const size_t bytes = (size_t)m->max_rows * m->width * mx_dtype_size(d->info.act_dtype);
			if (d->ops->alloc(d, bytes, &v_first) != MX_OK)
				return mx_mixer_fail(err, MX_E_NOMEM, "rwkv: no memory for the values of a step");
			m->is_first = true;
		}
		m->v_first = v_first;
	}
	return MX_OK;
}

/* ---- a step ---- */

/* What the functions of a step share. */
struct run {
	const struct mx_mixer *m;
	const struct mx_step *step;
	unsigned char *scratch;
	enum mx_dtype act;
	cudaStream_t stream;
};

static mx_status check(const struct run *r, cudaError_t e, const char *what)
{
	return mx_cuda_base(r->m->device)->check(r->m->device, e, what);
}

static struct rwkv_step step_of(const struct run *r)
{
	return (struct rwkv_step){
		.spans = r->step->tables->spans,
		.row_span = r->step->tables->row_span,
		.n_rows = r->step->n_rows,
		.n_spans = r->step->n_spans,
		.slot_base = r->m->slots.first,
		.slot_stride = r->m->slots.stride,
	};
}

/* Makes the inputs of all products, of shifts first .. first + n - 1. */
static mx_status shift(const struct run *r, const void *x, int first, uint32_t n)
{
	const struct mx_mixer *m = r->m;
	struct rwkv_shift_args a = {
		.step = step_of(r), .width = m->width, .cap = m->sizes.shift_cap, .n = n, .x = x};
	for (uint32_t i = 0; i < n; i++) {
		a.mu[i] = m->w.x[(uint32_t)first + i];
		a.y[i] = r->scratch + m->sizes.mixed[i];
	}
	mx_status status = mx_cuda_base(m->device)->bind(m->device);
	return status != MX_OK ? status
	                       : check(r, rwkv_cuda_shift(r->stream, r->act, &a), "rwkv, token shift");
}

/* A product that fills the rows of y. */
static struct mx_linear_out product(const struct mx_weight *w, void *y)
{
	return (struct mx_linear_out){.w = w, .y = y, .ldy = w->rows};
}

/* First product of a low rank, to its columns of `low`. */
static struct mx_linear_out down(const struct run *r, enum rwkv_lora l)
{
	const struct mx_mixer *m = r->m;
	return (struct mx_linear_out){.w = m->w.down[l],
	                              .y = r->scratch + m->sizes.low +
	                                   m->sizes.low_at[l] * mx_dtype_size(r->act),
	                              .ldy = m->sizes.ld_low};
}

/* Second product of a low rank. */
static mx_status up(const struct run *r, enum rwkv_lora l, size_t y, bool y_f32)
{
	const struct mx_mixer *m = r->m;
	const struct mx_linear_out out = {.w = m->w.up[l],
	                                  .bias = m->w.bias[l],
	                                  .y = r->scratch + y,
	                                  .ldy = m->params.inner,
	                                  .y_f32 = y_f32};
	return m->device->ops->linear(m->device, down(r, l).y, m->sizes.ld_low, r->step->n_rows, &out,
	                              1);
}

/* Products of mixed input `from`. */
static mx_status products(const struct run *r, enum rwkv_shift from, struct mx_linear_out first,
                          const struct mx_linear_out *second)
{
	const struct mx_mixer *m = r->m;
	const struct mx_linear_out outs[2] = {first, second ? *second : first};
	return m->device->ops->linear(m->device, r->scratch + m->sizes.mixed[from], m->width,
	                              r->step->n_rows, outs, second ? 2 : 1);
}

/* True if v is mixed with that of the model's first time mixing. */
static bool mixes_values(const struct mx_mixer *m)
{
	return m->params.value_residual && !m->is_first;
}

static mx_status low_ranks(const struct run *r)
{
	const struct mx_mixer *m = r->m;
	const struct sizes *z = &m->sizes;
	const struct rwkv_low_args low = {.n_rows = r->step->n_rows,
	                                  .ld = z->ld_low,
	                                  .tanh = m->params.rank[RWKV_W],
	                                  .sigmoid = z->low_at[RWKV_G],
	                                  .end = z->low_at[RWKV_G] + m->params.rank[RWKV_G],
	                                  .low = r->scratch + z->low};
	mx_status status = check(r, rwkv_cuda_low(r->stream, r->act, &low), "rwkv, low ranks");
	if (status == MX_OK)
		status = up(r, RWKV_W, z->w, true);
	if (status == MX_OK)
		status = up(r, RWKV_A, z->a, true);
	if (status == MX_OK && mixes_values(m))
		status = up(r, RWKV_V, z->share, false);
	return status == MX_OK ? up(r, RWKV_G, z->g, false) : status;
}

/* Computes all products before the recurrence. */
static mx_status project(const struct run *r, const void *x, void *v)
{
	const struct mx_mixer *m = r->m;
	const struct sizes *z = &m->sizes;
	const struct rwkv_weights *w = &m->w;
	const struct mx_linear_out share = down(r, RWKV_V);
	mx_status status = shift(r, x, 0, RWKV_SHIFTED);
	if (status == MX_OK)
		status = products(r, RWKV_X_R, product(w->r, r->scratch + z->r), NULL);
	if (status == MX_OK)
		status = products(r, RWKV_X_W, down(r, RWKV_W), NULL);
	if (status == MX_OK)
		status = products(r, RWKV_X_K, product(w->k, r->scratch + z->k), NULL);
	if (status == MX_OK)
		status = products(r, RWKV_X_V, product(w->v, v), mixes_values(m) ? &share : NULL);
	if (status == MX_OK)
		status = products(r, RWKV_X_A, down(r, RWKV_A), NULL);
	if (status == MX_OK)
		status = products(r, RWKV_X_G, down(r, RWKV_G), NULL);
	return status == MX_OK ? low_ranks(r) : status;
}

/* Computes the recurrences of all spans. Only decode steps are recorded: no span is long. */
static mx_status recur(const struct run *r, const struct rwkv_time_args *a)
{
	const struct mx_step *step = r->step;
	bool one = step->recording, more = step->recording && (r->m->max_draft || step->longest > 1);
	bool prompt = false;
	for (uint32_t i = 0; i < step->n_spans && !step->recording; i++) {
		const struct mx_span *s = &step->spans[i];
		if (s->n == 1 && s->kind != MX_SPAN_DRAFT)
			one = true;
		else if (s->n >= RWKV_LONG && s->kind != MX_SPAN_DRAFT && a->dim == a->unit.padded)
			prompt = true;
		else
			more = true;
	}
	mx_status status = MX_OK;
	if (one || more)
		status = check(r, rwkv_cuda_time(r->stream, r->act, a, one, more), "rwkv, recurrence");
	if (status == MX_OK && prompt)
		status = check(r, rwkv_cuda_prompt(r->stream, r->act, a), "rwkv, prompts");
	return status;
}

static mx_status time_mixing(const struct run *r, const void *x, void *y)
{
	const struct mx_mixer *m = r->m;
	const struct sizes *z = &m->sizes;
	const struct rwkv_weights *w = &m->w;
	void *v = m->is_first ? m->v_first : r->scratch + z->v;
	struct rwkv_time_args a = {
		.step = step_of(r),
		.heads = m->params.heads,
		.dim = m->params.dim,
		.unit = z->unit,
		.units_at = z->units_at,
		.r = r->scratch + z->r,
		.k = r->scratch + z->k,
		.v = v,
		.g = r->scratch + z->g,
		.v_first = m->v_first,
		.v_share = mixes_values(m) ? r->scratch + z->share : NULL,
		.w = (float *)(r->scratch + z->w),
		.a = (float *)(r->scratch + z->a),
		.k_k = w->k_k,
		.k_a = w->k_a,
		.r_k = w->r_k,
		.norm = w->norm,
		.norm_bias = w->norm_bias,
		.norm_eps = m->params.norm_eps,
		.l2_eps = m->params.l2_eps,
		.y = (float *)(r->scratch + z->y),
		.bonus = (float *)(r->scratch + z->bonus),
	};
	a.made[0] = a.w;
	a.made[1] = a.a;
	for (int i = 0; i < 4; i++)
		a.made[2 + i] = (float *)(r->scratch + z->made[i]);
	const struct mx_linear_out out = product(w->o, y);
	mx_status status = project(r, x, v);
	if (status == MX_OK)
		status = recur(r, &a);
	if (status != MX_OK)
		return status;
	return m->device->ops->linear(m->device, a.r, m->params.inner, r->step->n_rows, &out, 1);
}

static mx_status channel_mixing(const struct run *r, const void *x, void *y)
{
	const struct mx_mixer *m = r->m;
	const struct mx_ops *ops = m->device->ops;
	const size_t n = r->step->n_rows, inner = m->params.inner;
	void *h = r->scratch + m->sizes.inner;
	const struct mx_linear_out key = {.w = m->w.key, .y = h, .ldy = inner};
	const struct mx_linear_out value = product(m->w.value, y);
	mx_status status = shift(r, x, RWKV_X_K, 1);
	if (status == MX_OK)
		status = ops->linear(m->device, r->scratch + m->sizes.mixed[0], m->width, n, &key, 1);
	if (status == MX_OK)
		status = ops->act_mul(m->device, MX_ACT_RELU2, h, inner, NULL, 0, n, inner, h, inner);
	return status == MX_OK ? ops->linear(m->device, h, inner, n, &value, 1) : status;
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	const struct run r = {
		.m = m,
		.step = step,
		.scratch = step->scratch,
		.act = m->device->info.act_dtype,
		.stream = (cudaStream_t)mx_cuda_base(m->device)->stream,
	};
	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	if (step->n_rows == 0)
		return MX_OK;
	return m->params.part == RWKV_TIME ? time_mixing(&r, x, y) : channel_mixing(&r, x, y);
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct rwkv_params *p = &m->params;
	if (p->part == RWKV_TIME)
		snprintf(text, cap, "rwkv: time mixing, %u heads of %u, on the GPU", p->heads, p->dim);
	else
		snprintf(text, cap, "rwkv: channel mixing of %u, on the GPU", p->inner);
}

static const struct mx_mixer_ops rwkv_cuda_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "rwkv",
	.summary = "RWKV-7: time mixing and channel mixing, for NVIDIA GPUs",
	.caps = MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT | MX_MIXER_RANKS,
	.probe = probe,
	.weights = rwkv_params_weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = prepare,
	.destroy = destroy,
	.forward = forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = recur_cuda_slots_fork,
	.save = recur_cuda_slots_save,
	.load = recur_cuda_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &rwkv_cuda_ops;
}
