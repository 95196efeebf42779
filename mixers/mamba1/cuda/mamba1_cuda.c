/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the mixer mamba1 on CUDA devices. A snapshot is a copy of the slot. commit does
 * nothing: the next span's position tells which tokens were kept (scan.cu).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/comm.h"
#include "device/cuda/cuda.h"
#include "mixers/mamba1/cuda/mamba1_kernels.h"
#include "mixers/mamba1/mamba1_params.h"
#include "mixers/recurrence/cuda/slots.h"

/* Sizes that follow from the layer and the device. Offsets of scratch in bytes from its start. */
struct sizes {
	struct mamba1_unit unit;
	uint32_t units, conv_cap;
	size_t conv_at, slot; /* bytes */
	size_t xz, x, selected, low, bc, dt, scratch;
};

struct mx_mixer {
	struct recur_cuda_slots slots;
	struct mx_device *device;
	struct mx_comm *comm; /* NULL = one rank */
	struct mamba1_params params;
	struct mamba1_weights w;
	struct sizes sizes;
	struct mamba1_args args; /* everything that is the same in every step */
	void *a, *conv;          /* args.a and args.conv, in the device's memory, owned */
	uint32_t width, max_rows, max_draft;
};

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct mamba1_params p;
	const enum mx_dtype act = device->info.act_dtype;
	if (device->info.kind != MX_DEVICE_CUDA || (act != MX_BF16 && act != MX_F32))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "mamba1: this module runs on CUDA devices in bf16 or f32");
	return mamba1_params_read(layer, &p, err);
}

/* ---- sizes ---- */

static size_t take(size_t *at, size_t bytes)
{
	const size_t from = *at;
	*at += (bytes + 255) / 256 * 256;
	return from;
}

static struct sizes sizes_of(const struct mx_layer_desc *layer, const struct mamba1_params *p,
                             const struct mx_device *device)
{
	const size_t act = mx_dtype_size(device->info.act_dtype), rows = layer->max_rows;
	struct sizes z = {0};
	mamba1_cuda_unit(p->states, layer->max_draft, &z.unit);
	z.units = (p->inner + MAMBA1_UNIT - 1) / MAMBA1_UNIT;
	z.conv_cap = p->taps + layer->max_draft;
	take(&z.slot, z.units * z.unit.bytes);
	z.conv_at = take(&z.slot, (size_t)z.conv_cap * p->inner * act);
	z.xz = take(&z.scratch, 2 * rows * p->inner * act);
	z.x = take(&z.scratch, rows * p->inner * act);
	z.selected = take(&z.scratch, rows * (p->rank + 2 * p->states) * sizeof(float));
	z.low = take(&z.scratch, rows * p->rank * act);
	z.bc = take(&z.scratch, rows * 2 * z.unit.padded * sizeof(float));
	z.dt = take(&z.scratch, rows * p->inner * sizeof(float));
	return z;
}

/* Elements of args.a. */
static size_t rates(const struct sizes *z)
{
	return (size_t)z->units * MAMBA1_UNIT * z->unit.padded;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct mamba1_params p;
	mx_status status = mamba1_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct sizes z = sizes_of(layer, &p, device);
	*out = (struct mx_state_spec){.fixed_bytes = z.slot,
	                              .scratch_bytes = z.scratch,
	                              .snapshot_bytes = z.slot,
	                              .instance_bytes =
	                                  (rates(&z) + (size_t)p.taps * p.inner) * sizeof(float)};
	return MX_OK;
}

/* ---- life cycle ---- */

static void destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	m->device->ops->release(m->device, m->a);
	m->device->ops->release(m->device, m->conv);
	free(m);
}

/* Makes args.a of A_log [inner, states]: the rates of decay, those of padding 0. */
static mx_status make_rates(struct mx_mixer *m, const float *a_log)
{
	const struct sizes *z = &m->sizes;
	const uint32_t states = m->params.states, block = MAMBA1_UNIT * z->unit.padded;
	float *a = calloc(rates(z), sizeof(*a));
	if (!a)
		return MX_E_NOMEM;
	for (size_t i = 0; i < (size_t)m->params.inner * states; i++) {
		const size_t c = i / states, n = i % states;
		const size_t at = (n / 16 * MAMBA1_UNIT + c % MAMBA1_UNIT) * 16 + n % 16;
		a[c / MAMBA1_UNIT * block + at] = (float)(-exp((double)a_log[i]) * M_LOG2E);
	}
	mx_status status = mx_upload_array(m->device, a, rates(z) * sizeof(*a), &m->a);
	free(a);
	return status;
}

/* Makes args.conv of the convolution's weights [inner, taps]. */
static mx_status make_taps(struct mx_mixer *m, const float *from)
{
	const size_t inner = m->params.inner, taps = m->params.taps;
	float *to = malloc(inner * taps * sizeof(*to));
	if (!to)
		return MX_E_NOMEM;
	for (size_t c = 0; c < inner; c++)
		for (size_t i = 0; i < taps; i++)
			to[(taps - 1 - i) * inner + c] = from[c * taps + i];
	mx_status status = mx_upload_array(m->device, to, inner * taps * sizeof(*to), &m->conv);
	free(to);
	return status;
}

static const struct mx_mixer_ops mamba1_cuda_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mamba1_params p;
	mx_status status = mamba1_params_read(layer, &p, err);
	if (status != MX_OK)
		return status;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "mamba1: out of memory");
	const struct sizes z = sizes_of(layer, &p, init->device);
	*m = (struct mx_mixer){
		.slots = recur_cuda_slots(&mamba1_cuda_ops, init, z.slot),
		.device = init->device,
		.comm = init->comm,
		.params = p,
		.sizes = z,
		.width = layer->width,
		.max_rows = layer->max_rows,
		.max_draft = layer->max_draft,
	};
	mamba1_params_take(&p, init->weights, &m->w);
	status = make_rates(m, init->host_vectors[MAMBA1_A_LOG]);
	if (status == MX_OK)
		status = make_taps(m, init->host_vectors[MAMBA1_CONV]);
	if (status != MX_OK) {
		destroy(m);
		return mx_mixer_fail(err, status, "mamba1: no memory for its tables");
	}
	m->args = (struct mamba1_args){
		.channels = p.inner,
		.states = p.states,
		.taps = p.taps,
		.rank = p.rank,
		.slot_base = init->slot_base,
		.slot_stride = init->slot_stride,
		.unit = m->sizes.unit,
		.conv_at = m->sizes.conv_at,
		.conv_cap = m->sizes.conv_cap,
		.conv = m->conv,
		.conv_bias = m->w.conv_bias,
		.norm = p.norms != MAMBA1_NONE,
		.norm_eps = p.norm_eps,
		.norm_dt = m->w.norm_dt,
		.norm_b = m->w.norm_b,
		.norm_c = m->w.norm_c,
		.a = m->a,
		.skip = m->w.skip,
	};
	*out = m;
	return MX_OK;
}

/* ---- a step ---- */

/* Tells which spans there are: of one token that stays, and others. Only decode steps are recorded:
 * of one token each, or of drafts. */
static void sort_spans(const struct mx_step *step, bool drafts, bool *one, bool *more)
{
	*one = step->recording;
	*more = step->recording && (drafts || step->longest > 1);
	for (uint32_t i = 0; i < step->n_spans && !step->recording; i++) {
		const struct mx_span *s = &step->spans[i];
		*(s->n == 1 && s->kind != MX_SPAN_DRAFT ? one : more) = true;
	}
}

static mx_status forward(struct mx_mixer *m, const struct mx_step *step, const void *u, void *out)
{
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	const struct mx_ops *ops = m->device->ops;
	const enum mx_dtype act = m->device->info.act_dtype;
	const struct mamba1_params *p = &m->params;
	const struct sizes *z = &m->sizes;
	const size_t inner = p->inner, n = step->n_rows, selected = p->rank + 2 * (size_t)p->states;
	unsigned char *scratch = step->scratch;
	struct mamba1_args a = m->args;
	float *sel = (float *)(scratch + z->selected);
	bool one, more;

	if (n > m->max_rows)
		return MX_E_RANGE;
	if (n == 0)
		return MX_OK;
	a.spans = step->tables->spans;
	a.row_span = step->tables->row_span;
	a.n_rows = step->n_rows;
	a.n_spans = step->n_spans;
	a.xz = scratch + z->xz;
	a.x = scratch + z->x;
	a.selected = sel;
	a.low = scratch + z->low;
	a.bc = (float *)(scratch + z->bc);
	a.dt = (float *)(scratch + z->dt);
	sort_spans(step, m->max_draft > 0, &one, &more);
	/* products of one input side by side, so that the device can make them one */
	unsigned char *xz = scratch + z->xz;
	const struct mx_linear_out in[2] = {
		{.w = m->w.x, .bias = m->w.x_bias, .y = xz, .ldy = 2 * inner},
		{.w = m->w.z, .bias = m->w.z_bias, .y = xz + inner * mx_dtype_size(act), .ldy = 2 * inner},
	};
	const struct mx_linear_out select[3] = {
		{.w = m->w.low, .y = sel, .ldy = selected, .y_f32 = true},
		{.w = m->w.b, .y = sel + p->rank, .ldy = selected, .y_f32 = true},
		{.w = m->w.c, .y = sel + p->rank + p->states, .ldy = selected, .y_f32 = true},
	};
	const struct mx_linear_out dt = {
		.w = m->w.dt, .bias = m->w.dt_bias, .y = scratch + z->dt, .ldy = inner, .y_f32 = true};
	const struct mx_linear_out last = {
		.w = m->w.out, .bias = m->w.out_bias, .y = out, .ldy = m->width};

	cudaStream_t stream = (cudaStream_t)cuda->stream;
	mx_status status = ops->linear(m->device, u, m->width, n, in, 2);
	if (status == MX_OK)
		status = cuda->bind(m->device);
	if (status == MX_OK)
		status = cuda->check(m->device, mamba1_cuda_conv(stream, act, &a), "mamba1, convolution");
	if (status == MX_OK)
		status = ops->linear(m->device, a.x, inner, n, select, 3);
	if (status == MX_OK && m->comm)
		status = m->comm->ops->all_reduce_f32(m->comm, sel, n * selected);
	if (status == MX_OK)
		status = cuda->check(m->device, mamba1_cuda_select(stream, act, &a), "mamba1, norms");
	if (status == MX_OK)
		status = ops->linear(m->device, a.low, p->rank, n, &dt, 1);
	if (status == MX_OK)
		status =
			cuda->check(m->device, mamba1_cuda_scan(stream, act, &a, one, more), "mamba1, scan");
	return status == MX_OK ? ops->linear(m->device, a.x, inner, n, &last, 1) : status;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "mamba1: %u channels of %u states, on the GPU", m->params.inner,
	         m->params.states);
}

static const struct mx_mixer_ops mamba1_cuda_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mamba1",
	.summary = "Mamba, version 1: selective state space, for NVIDIA GPUs",
	.caps = MX_MIXER_CUDA | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT | MX_MIXER_RANKS,
	.probe = probe,
	.weights = mamba1_params_weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
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
	return &mamba1_cuda_ops;
}
