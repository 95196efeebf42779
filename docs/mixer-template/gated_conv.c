/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A complete mixer out of mixd's tree: a gated short convolution, as in LFM2's layers.
 *
 *     [B, C, u] = W_in x             three vectors of `width` for each token
 *     v_t = B_t * u_t                a gate before the convolution, channel by channel
 *     s_t = sum over k of conv[k] * v_(t - taps + 1 + k)
 *     y_t = W_out (C_t * s_t)        a gate after it
 *
 * Parameter: taps (1 .. 64, default 4). Tensors: in_proj.weight [3 * width, width], conv.weight
 * [width, 1, taps], out_proj.weight [width, width].
 *
 * State. A sequence needs the last v: a slot is a ring of rows v, and the row of position p is at
 * p % ring. Nothing else is kept, so the position that forward is told is all it takes to go back:
 * rows after it are those of tokens that were taken back, and are written again. How many rows the
 * ring must have is explained at ring_of.
 *
 * The module links against nothing: products go through device->ops. It allocates in create only.
 */
#include <stdlib.h>
#include <string.h>

#include "mixers/mixer.h"

/* Channels of one task. Any number gives the same bits: no sum goes over channels. */
#define BLOCK 64

#define DEFAULT_TAPS 4
#define MAX_TAPS     64

/* The instance: one layer. Its first member is struct mx_mixer_base. */
struct mx_mixer {
	struct mx_mixer_base base;
	struct mx_device *device;
	const struct mx_weight *in, *out; /* owned by the engine */
	float *conv;                      /* [taps, width], owned */
	uint32_t width, taps, ring;
	unsigned char *slot_base; /* slot s is at slot_base + s * slot_stride */
	size_t slot_stride;
};

/* ---- what the layer needs: pure functions, called before anything is allocated ---- */

static uint32_t taps_of(const struct mx_layer_desc *layer)
{
	return (uint32_t)mx_param_int(&layer->params, "taps", DEFAULT_TAPS);
}

/* Rows of the ring. The convolution reads taps - 1 rows before a token. A draft writes max_draft
 * rows that must not overwrite these, since it may be taken back as a whole. One row more lets a
 * saved sequence go on one token earlier: load at pos - 1 is part of the contract. */
static uint32_t ring_of(const struct mx_layer_desc *layer)
{
	return taps_of(layer) + layer->max_draft;
}

static size_t slot_bytes(const struct mx_layer_desc *layer)
{
	return (size_t)ring_of(layer) * layer->width * sizeof(float);
}

/* Checks the parameters. The message says which one is wrong and what it may be. */
static mx_status gated_conv_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                                  struct mx_err *err)
{
	static const char *const known[] = {"taps"};
	uint32_t taps;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "gated_conv: this module runs on CPUs, in f32");
	mx_status st = mx_param_read_u32(&layer->params, "gated_conv", "taps", DEFAULT_TAPS, 1,
	                                 MAX_TAPS, &taps, err);
	return st == MX_OK ? mx_params_known(&layer->params, known, 1, "gated_conv", err) : st;
}

/* Lists the tensors, in the order in which create gets them. */
static mx_status gated_conv_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                                    size_t *out_n)
{
	const uint64_t w = layer->width;
	specs[0] = MX_WEIGHT_SPEC("in_proj.weight", MATRIX, {3 * w, w});
	specs[1] = MX_WEIGHT_SPEC("conv.weight", VECTOR, {w, 1, taps_of(layer)});
	specs[2] = MX_WEIGHT_SPEC("out_proj.weight", MATRIX, {w, w});
	*out_n = 3;
	return MX_OK;
}

/* Tells the memory that the layer needs. A slot is saved as it is. */
static mx_status gated_conv_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                                  struct mx_state_spec *out)
{
	(void)device;
	out->fixed_bytes = slot_bytes(layer);
	out->snapshot_bytes = slot_bytes(layer);
	out->scratch_bytes = (size_t)layer->max_rows * 4 * layer->width * sizeof(float);
	return MX_OK;
}

/* ---- the instance ---- */

static void gated_conv_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->conv);
	free(m);
}

static const struct mx_mixer_ops gated_conv_ops;

static mx_status gated_conv_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                                   struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	const uint32_t width = layer->width, taps = taps_of(layer);
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m || !(m->conv = calloc((size_t)taps * width, sizeof(*m->conv)))) {
		gated_conv_destroy(m);
		return mx_mixer_fail(err, MX_E_NOMEM, "gated_conv: out of memory");
	}
	m->base = (struct mx_mixer_base){&gated_conv_ops, layer->index};
	m->device = init->device;
	m->in = init->weights[0];
	m->out = init->weights[2];
	m->width = width;
	m->taps = taps;
	m->ring = ring_of(layer);
	m->slot_base = init->slot_base;
	m->slot_stride = init->slot_stride;
	/* The vector's values on the host: [width, taps]. Its transpose is what the kernel reads. */
	const float *conv = init->host_vectors[1];
	for (uint32_t c = 0; c < width; c++)
		for (uint32_t k = 0; k < taps; k++)
			m->conv[(size_t)k * width + c] = conv[(size_t)c * taps + k];
	*out = m;
	return MX_OK;
}

/* ---- a step ---- */

static float *slot_of(const struct mx_mixer *m, uint32_t slot)
{
	return (float *)(m->slot_base + slot * m->slot_stride);
}

/* One step of one layer, for the tasks of conv_block. */
struct step_args {
	const struct mx_mixer *m;
	const struct mx_step *step;
	const float *bcu; /* [n_rows, 3 * width] B, C, u */
	float *gated;     /* [n_rows, width] C * s, the input of W_out */
};

/* Runs channels [first, end) of one token at position pos: its v goes to the ring, then the taps
 * are summed in one fixed order. Rows before position 0 are not read: the ring may hold rows there
 * of tokens that were taken back. */
static void conv_token(const struct mx_mixer *m, float *ring, uint32_t pos, const float *bcu,
                       float *gated, uint32_t first, uint32_t end)
{
	const uint32_t w = m->width, before = pos < m->taps - 1 ? pos : m->taps - 1;
	const float *gate_in = bcu, *gate_out = bcu + w, *u = bcu + 2 * (size_t)w;
	float *row = ring + (size_t)(pos % m->ring) * w;

	for (uint32_t c = first; c < end; c++) {
		row[c] = gate_in[c] * u[c];
		gated[c] = 0;
	}
	for (uint32_t back = before + 1; back-- > 0;) { /* the oldest token first */
		const float *v = ring + (size_t)((pos - back) % m->ring) * w;
		const float *tap = m->conv + (size_t)(m->taps - 1 - back) * w;
		for (uint32_t c = first; c < end; c++)
			gated[c] += tap[c] * v[c];
	}
	for (uint32_t c = first; c < end; c++)
		gated[c] *= gate_out[c];
}

/* A task: one block of channels of all spans. Tasks write different memory, so it does not matter
 * which thread runs which. */
static void conv_block(void *arg, size_t task, unsigned worker)
{
	const struct step_args *a = arg;
	const uint32_t w = a->m->width, first = (uint32_t)task * BLOCK;
	const uint32_t end = first + BLOCK < w ? first + BLOCK : w;
	(void)worker;
	for (uint32_t i = 0; i < a->step->n_spans; i++) {
		const struct mx_span *span = &a->step->spans[i];
		float *ring = slot_of(a->m, span->slot);
		for (uint32_t t = 0; t < span->n; t++) {
			const size_t row = span->row + t;
			conv_token(a->m, ring, span->pos + t, a->bcu + row * 3 * w, a->gated + row * w, first,
			           end);
		}
	}
}

static mx_status gated_conv_forward(struct mx_mixer *m, const struct mx_step *step, const void *x,
                                    void *y)
{
	const size_t n = step->n_rows, w = m->width;
	float *bcu = step->scratch, *gated = bcu + n * 3 * w;
	/* One product for B, C and u: see mixers/README.md for the fields. */
	const struct mx_linear_out in = {.w = m->in, .y = bcu, .ldy = 3 * w};
	const struct mx_linear_out out = {.w = m->out, .y = y, .ldy = w};
	struct step_args args = {m, step, bcu, gated};

	mx_status st = m->device->ops->linear(m->device, x, w, n, &in, 1);
	if (st != MX_OK)
		return st;
	m->device->ops->parallel(m->device, (w + BLOCK - 1) / BLOCK, conv_block, &args);
	return m->device->ops->linear(m->device, gated, w, n, &out, 1);
}

/* ---- slots: between steps ---- */

static mx_status gated_conv_fork(struct mx_mixer *const *layers, uint32_t n_layers,
                                 uint32_t from_slot, uint32_t to_slot)
{
	for (uint32_t i = 0; i < n_layers; i++) {
		const struct mx_mixer *m = layers[i];
		memcpy(slot_of(m, to_slot), slot_of(m, from_slot), m->ring * m->width * sizeof(float));
	}
	return MX_OK;
}

static mx_status gated_conv_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                                 uint32_t pos, void *const *out)
{
	(void)pos; /* rows have their places by absolute position */
	for (uint32_t i = 0; i < n_layers; i++) {
		const struct mx_mixer *m = layers[i];
		memcpy(out[i], slot_of(m, slot), m->ring * m->width * sizeof(float));
	}
	return MX_OK;
}

static mx_status gated_conv_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                                 uint32_t pos, const void *const *in)
{
	(void)pos; /* the next forward says where the sequence goes on */
	for (uint32_t i = 0; i < n_layers; i++) {
		const struct mx_mixer *m = layers[i];
		memcpy(slot_of(m, slot), in[i], m->ring * m->width * sizeof(float));
	}
	return MX_OK;
}

static void gated_conv_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "gated_conv: %u channels, %u taps", m->width, m->taps);
}

/* ---- the table: complete; defaults stand where there is nothing to do ---- */

static const struct mx_mixer_ops gated_conv_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "gated_conv",
	.summary = "gated short convolution",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT,
	.probe = gated_conv_probe,
	.weights = gated_conv_weights,
	.state = gated_conv_state,
	.extent = mx_mixer_extent_all, /* for pages, which this mixer has not */
	.create = gated_conv_create,
	.prepare = mx_mixer_prepare_nothing, /* layers share nothing */
	.destroy = gated_conv_destroy,
	.forward = gated_conv_forward,
	.commit = mx_mixer_commit_nothing, /* the next position says what was kept */
	.settle = mx_mixer_settle_nothing, /* no deferred work */
	.fork = gated_conv_fork,
	.save = gated_conv_save,
	.load = gated_conv_load,
	.resume = mx_mixer_resume_nothing, /* load and fork leave nothing out */
	.describe = gated_conv_describe,
};

/* The only symbol that the module exports. */
mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &gated_conv_ops;
}
