/* SPDX-License-Identifier: Apache-2.0 */
/* A recurrent layer on a CUDA device: sizes, life cycle, slots. */
#include "mixers/recurrence/cuda/layer_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/cuda.h"
#include "mixers/recurrence/cuda/stretch.h"

static bool channel(const struct mx_recur_layer *d)
{
	return d->core.decay == MX_RECUR_CHANNEL;
}

/* Elements of a key, padded. */
static uint32_t kpad_of(const struct mx_recur_layer *d)
{
	uint32_t kpad = 32;
	while (kpad < d->core.k_dim)
		kpad *= 2;
	return kpad;
}

mx_status recur_cuda_probe(const char *mixer, const struct mx_recur_layer *desc,
                           const struct mx_device *device, struct mx_err *err)
{
	const enum mx_dtype act = device->info.act_dtype;
	if (device->info.kind != MX_DEVICE_CUDA || (act != MX_BF16 && act != MX_F32))
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "%s: this module runs on CUDA devices in bf16 or f32", mixer);
	if (desc->core.k_dim > RECUR_MAX_KEYS)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "%s: heads of %u keys; on GPUs there may be %d",
		                     mixer, desc->core.k_dim, RECUR_MAX_KEYS);
	const bool vector = desc->core.decay == MX_RECUR_VECTOR;
	const uint32_t kpad = kpad_of(desc);
	const size_t room = ((const struct mx_cuda_base *)device)->smem;
	const uint32_t cols = recur_cuda_step_cols(kpad, vector, room);
	if (desc->core.heads * (desc->core.v_dim / cols + 1) > 65535)
		return mx_mixer_fail(err, MX_E_LIMIT, "%s: %u heads", mixer, desc->core.heads);
	const size_t need = channel(desc) ? 0 : recur_cuda_chunks_bytes(act, kpad, vector);
	if (need > room)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED,
		                     "%s: heads of %u keys in f32 need thread blocks of %zu KiB of shared "
		                     "memory; this GPU's have %zu",
		                     mixer, desc->core.k_dim, (need + 1023) / 1024, room / 1024);
	return MX_OK;
}

/* ---- sizes ---- */

/* Layers and steps whose notes of stretches would need more take recur_cuda_prompt. */
#define MOST_NOTES ((size_t)5 << 28)

static size_t take(size_t *at, size_t bytes)
{
	const size_t from = *at;
	*at += (bytes + 255) / 256 * 256;
	return from;
}

/* True if a stream's products are f32: what is summed up over many tokens. */
static bool in_gates(const struct mx_recur_layer *d, int s)
{
	return (s == MX_RECUR_A || s == MX_RECUR_BETA) && !d->streams[s].conv;
}

/* Bytes of what recur_cuda_stretch notes in a step: of layers with scalar factors and without the
 * delta rule nothing. */
static size_t notes_bytes(const struct mx_layer_desc *layer, const struct mx_recur_layer *d,
                          const struct recur_cuda_sizes *z)
{
	const size_t n =
		layer->max_rows / RECUR_STRETCH + (size_t)layer->max_spans * z->extra_chunks + 1;
	if (!d->core.delta && d->core.decay != MX_RECUR_VECTOR)
		return 0;
	return n * d->core.heads *
	       recur_cuda_note_bytes(z->kpad, d->core.decay == MX_RECUR_VECTOR, d->core.delta);
}

static void lay_out(const struct mx_recur_layer *d, const struct mx_layer_desc *layer, size_t act,
                    struct recur_cuda_sizes *z)
{
	const size_t rows = layer->max_rows;
	const struct mx_recur_spec *c = &d->core;
	struct recur_cuda_scratch s = {0};
	size_t at = 0;
	const uint32_t heads[2] = {c->q_heads, c->k_heads};
	const size_t a = channel(d)                    ? (size_t)c->heads * z->vpad
	                 : c->decay == MX_RECUR_VECTOR ? (size_t)c->a_heads * z->kpad
	                                               : c->a_heads;
	s.proj = take(&at, rows * z->ld_proj * act);
	s.gates = take(&at, rows * z->ld_gates * sizeof(float));
	for (int i = 0; i < MX_RECUR_STREAMS; i++)
		s.low[i] = take(&at, rows * d->streams[i].rank * act);
	for (int i = 0; i < 2 && mx_recur_feature_layers(d->feature); i++) {
		s.plain[i] = take(&at, rows * heads[i] * d->k_dim * act);
		for (int l = 0; l < 2; l++)
			s.layers[i][l] = take(&at, rows * heads[i] * d->k_dim * act);
	}
	s.q = take(&at, rows * c->q_heads * z->kpad * act);
	s.k = take(&at, rows * c->k_heads * z->kpad * act);
	s.v = take(&at, rows * c->v_heads * z->vpad * act);
	s.a = take(&at, rows * a * sizeof(float));
	s.b = take(&at, rows * c->heads * sizeof(float));
	s.y = take(&at, rows * c->heads * c->v_dim * sizeof(float));
	s.out = take(&at, rows * c->heads * d->v_dim * act);
	s.sums = take(&at, rows * d->share_groups * sizeof(float));
	if (z->stretches && !c->delta)
		s.pieces = take(&at, (size_t)RECUR_PIECES * RECUR_PIECE_BYTES);
	if (z->stretches)
		s.records = take(&at, notes_bytes(layer, d, z));
	else if (act == 2 && !channel(d))
		s.records =
			take(&at, (rows / MX_RECUR_CHUNK + (size_t)layer->max_spans * z->extra_chunks + 1) *
		                  c->heads * recur_cuda_record_bytes(z->kpad, c->decay == MX_RECUR_VECTOR));
	s.bytes = at;
	z->scratch = s;
}

/* In the delta rule, errors do not grow from token to token if keys are no longer than 1 and beta
 * is at most 1. Other layers need the pieces of recur_cuda_prompt. */
static bool stretches_right(const struct mx_recur_layer *d)
{
	return !d->core.delta || (d->norm_k == MX_RECUR_QK_L2 && d->beta_scale <= 1);
}

static void sizes_of(const struct mx_layer_desc *layer, const struct mx_recur_layer *d,
                     const struct mx_device *device, struct recur_cuda_sizes *out)
{
	const size_t act = mx_dtype_size(device->info.act_dtype);
	const struct mx_cuda_base *cuda = (const struct mx_cuda_base *)device;
	struct recur_cuda_sizes z = {.kpad = 32};
	if (channel(d)) {
		recur_cuda_scan_unit(&d->core, act, &z.unit);
		z.units = z.unit.per_head;
		z.vpad = d->core.v_dim;
	} else {
		z.kpad = kpad_of(d);
		recur_cuda_unit(&d->core, z.kpad, act, cuda->smem, &z.unit);
		z.units = d->core.heads * z.unit.per_head;
		z.vpad = z.unit.per_head * z.unit.cols;
	}
	for (int s = 0; s < MX_RECUR_STREAMS; s++) {
		z.channels += d->streams[s].conv ? d->streams[s].n : 0;
		*(in_gates(d, s) ? &z.ld_gates : &z.ld_proj) += d->streams[s].n;
	}
	z.ld_proj = (z.ld_proj + 7) / 8 * 8;
	z.ld_gates = (z.ld_gates + 3) / 4 * 4;
	z.conv_at = (size_t)z.units * z.unit.bytes;
	z.slot_bytes =
		z.conv_at + ((size_t)(d->taps + d->core.max_draft) * z.channels * act + 63) / 64 * 64;
	z.extra_chunks = 5 + d->core.max_draft / MX_RECUR_CHUNK;
	if (recur_cuda_few_can(z.kpad, d->core.decay == MX_RECUR_VECTOR, cuda->smem))
		z.few = d->core.max_draft < RECUR_FEW ? d->core.max_draft : RECUR_FEW;
	z.stretches = act == 2 && !channel(d) && !device->info.deterministic && stretches_right(d) &&
	              recur_cuda_stretch_can(cuda->sm, z.kpad) &&
	              notes_bytes(layer, d, &z) <= MOST_NOTES;
	lay_out(d, layer, act, &z);
	*out = z;
}

mx_status recur_cuda_state(const struct mx_layer_desc *layer, const struct mx_recur_layer *desc,
                           const struct mx_device *device, struct mx_state_spec *out)
{
	struct recur_cuda_sizes z;
	sizes_of(layer, desc, device, &z);
	*out = (struct mx_state_spec){
		.fixed_bytes = z.slot_bytes,
		.scratch_bytes = z.scratch.bytes,
		.snapshot_bytes = z.slot_bytes,
	};
	return MX_OK;
}

/* ---- life cycle ---- */

mx_status recur_cuda_own(struct mx_mixer *m, const float *from, size_t n, const float **out)
{
	void *to = NULL;
	if (m->n_owned == RECUR_CUDA_OWNED)
		return MX_E_LIMIT;
	mx_status status = mx_upload_array(m->device, from, n * sizeof(*from), &to);
	if (status == MX_OK)
		m->owned[m->n_owned++] = to;
	*out = to;
	return status;
}

static mx_status own_table(struct mx_mixer *m, const float *from, size_t n, float **out)
{
	const float *to = NULL;
	mx_status status = from && n ? recur_cuda_own(m, from, n, &to) : MX_OK;
	*out = (float *)to;
	return status;
}

static mx_status own_tables(struct mx_mixer *m, const struct mx_recur_tables *t)
{
	const struct mx_recur_layer *d = &m->desc;
	const size_t heads = d->core.heads;
	const size_t n = d->decay == MX_RECUR_A_STEP ? heads : d->streams[MX_RECUR_A].n;
	mx_status status = MX_OK;
	if (d->rope)
		status = own_table(m, t->inv_freq, d->k_dim / 2, &m->tables.inv_freq);
	if (status == MX_OK && d->decay == MX_RECUR_A_FIXED)
		status = own_table(m, t->fixed_a, heads, &m->tables.fixed_a);
	if (status == MX_OK)
		status = own_table(m, t->pre, n, &m->tables.pre);
	if (status == MX_OK)
		status = own_table(m, t->mul, n, &m->tables.mul);
	if (status == MX_OK)
		status = own_table(m, t->add, n, &m->tables.add);
	return status;
}

/* Heads of a stream, as its source counts them. */
static uint32_t heads_of(const struct mx_recur_layer *d, int s)
{
	const struct mx_recur_spec *c = &d->core;
	switch ((enum mx_recur_stream)s) {
	case MX_RECUR_Q: return c->q_heads;
	case MX_RECUR_K: return c->k_heads;
	case MX_RECUR_V: return c->v_heads;
	case MX_RECUR_A: return c->a_heads;
	default: return c->heads;
	}
}

/* Gives each stream its place in the rows of products. */
static void place_streams(struct mx_mixer *m)
{
	const struct mx_recur_layer *d = &m->desc;
	const struct recur_cuda_weights *w = &m->w;
	uint32_t proj = 0, gates = 0, channel = 0;
	const struct mx_weight *gate = w->streams[MX_RECUR_GATE].w, *packed = w->packed[0];

	/* in the order of the weights in memory, so that they can be one product */
	const bool gate_first = gate && packed && !w->streams[MX_RECUR_GATE].up &&
	                        (const char *)gate->data < (const char *)packed->data;
	if (gate_first)
		proj = d->streams[MX_RECUR_GATE].n;
	for (int i = 0; i < 2; i++)
		if (w->packed[i]) {
			uint32_t *at = i ? &gates : &proj;
			m->packed_at[i] = *at;
			*at += w->packed[i]->rows;
		}
	for (int s = 0; s < MX_RECUR_STREAMS; s++) {
		const struct mx_recur_stream_desc *shape = &d->streams[s];
		const struct recur_cuda_stream *from = &w->streams[s];
		const bool f32 = in_gates(d, s);
		struct recur_source *to = &m->source[s];
		if (!shape->n)
			continue;
		*to = (struct recur_source){
			.heads = heads_of(d, s),
			.dim = shape->n / heads_of(d, s),
			.per = heads_of(d, s),
			.gates = f32,
			.conv = shape->conv,
			.silu = shape->silu,
			.channel = channel,
			.bias = f32 ? from->bias : NULL,
			.w = from->conv,
			.conv_bias = from->conv_bias,
		};
		channel += shape->conv ? shape->n : 0;
		if (!from->w) {
			to->off = m->packed_at[from->pack] + from->off;
			to->per = from->per;
			to->stride = from->stride;
		} else if (s == MX_RECUR_GATE && gate_first)
			to->off = 0;
		else {
			uint32_t *at = f32 ? &gates : &proj;
			to->off = *at;
			*at += shape->n;
		}
	}
}

mx_status recur_cuda_create(struct mx_mixer *m, const struct mx_mixer_init *init,
                            const struct mx_recur_tables *tables)
{
	m->comm = init->comm;
	m->width = init->layer->width;
	m->max_rows = init->layer->max_rows;
	sizes_of(init->layer, &m->desc, init->device, &m->sizes);
	m->slots = recur_cuda_slots(m->slots.base.ops, init, m->sizes.slot_bytes);
	place_streams(m);
	return own_tables(m, tables);
}

void recur_cuda_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->n_owned; i++)
		m->device->ops->release(m->device, m->owned[i]);
	if (m->rings)
		m->device->ops->release(m->device, m->rings);
	free(m);
}

/* Describes what the layer keeps of tokens. A ring ends where the next one begins. */
static struct recur_rings rings_of(const struct mx_mixer *m)
{
	const struct recur_unit *u = &m->sizes.unit;
	const size_t act = mx_dtype_size(m->device->info.act_dtype);
	const bool scan = channel(&m->desc);
	const size_t ends[] = {u->k, u->x, u->a, u->b, u->t, u->bytes};
	struct recur_rings r = {
		.slot_base = m->slots.first,
		.slot_stride = m->slots.stride,
		.unit_bytes = u->bytes,
		.units = m->sizes.units,
		.cap = u->cap,
		.conv_at = m->sizes.conv_at,
		.conv_cap = m->desc.taps + m->desc.core.max_draft,
		.conv_bytes = (uint32_t)(m->sizes.channels * act),
	};
	for (int i = 0; i < 5; i++) {
		const size_t end = scan && i == 2 ? u->bytes : ends[i + 1];
		r.at[i] = ends[i];
		r.bytes[i] = scan && i != 1 && i != 2 ? 0 : (uint32_t)((end - ends[i]) / u->cap);
	}
	return r;
}

/* Makes the list of all layers' rings, for commit. */
static mx_status list_rings(struct mx_mixer *const *layers, uint32_t n_layers)
{
	struct recur_rings *list = calloc(n_layers, sizeof *list);
	void *to = NULL;
	if (!list)
		return MX_E_NOMEM;
	for (uint32_t i = 0; i < n_layers; i++)
		list[i] = rings_of(layers[i]);
	mx_status status = mx_upload_array(layers[0]->device, list, n_layers * sizeof *list, &to);
	layers[0]->rings = to;
	free(list);
	return status;
}

mx_status recur_cuda_prepare(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err)
{
	mx_status status = n_layers ? mx_cuda_base(layers[0]->device)->bind(layers[0]->device) : MX_OK;
	if (status != MX_OK)
		return mx_mixer_fail(err, status, "recurrence: the device cannot be made current");
	for (uint32_t i = 0; i < n_layers; i++) {
		const struct mx_mixer *m = layers[i];
		if (channel(&m->desc))
			continue;
		const bool vector = m->desc.core.decay == MX_RECUR_VECTOR;
		const size_t room = mx_cuda_base(m->device)->smem;
		cudaError_t e = recur_cuda_chunks_prepare(m->device->info.act_dtype, m->sizes.kpad, vector);
		if (e == cudaSuccess)
			e = recur_cuda_step_prepare(m->sizes.kpad, vector, room);
		if (e == cudaSuccess && m->sizes.few > 1 && m->device->info.act_dtype == MX_BF16)
			e = recur_cuda_few_prepare(m->sizes.kpad, vector, room);
		if (e == cudaSuccess)
			e = m->sizes.stretches ? recur_cuda_stretch_prepare(m->sizes.kpad, vector)
			                       : recur_cuda_prompt_prepare(m->sizes.kpad);
		if (e != cudaSuccess)
			return mx_mixer_fail(err, MX_E_DEVICE, "recurrence: kernels for heads of %u keys: %s",
			                     m->desc.core.k_dim, cudaGetErrorString(e));
	}
	if (n_layers && layers[0]->desc.core.max_draft &&
	    (status = list_rings(layers, n_layers)) != MX_OK)
		return mx_mixer_fail(err, status, "recurrence: no memory on the device");
	return MX_OK;
}

void recur_cuda_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "%s", m->what);
}
