/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixer for tests of the engine and of the mixers: an exponential moving average of each channel,
 * with a learned share of the past. Its equation is one line:
 *     u_t = W_in x_t,  h_t = a h_{t-1} + (1 - a) u_t,  y_t = W_out h_t,
 *     a = sigmoid(gate), channel by channel
 * The slot holds h before the last token, and u from the last token on. So the position is all it
 * takes to go back: u of a draft token that was taken back, or of a prompt's last token that is
 * computed again, is not taken up by the next forward.
 */
#include <math.h>
#include <stdlib.h>

#include "mixers/mixer.h"

struct mx_mixer {
	struct mx_mixer_base base;
	struct mx_device *device;
	const struct mx_weight *in, *out; /* [width, width] */
	float *keep;                      /* [width] a, owned */
	uint32_t width, max_rows, max_draft;
	unsigned char *slot_base;
	size_t slot_stride, state_bytes;
};

/* A slot. All zero: a sequence without tokens. */
struct ema_state {
	uint32_t base; /* h is after tokens 0 .. base-1 */
	float h[];     /* [width], then u [max_draft + 1, width] of the tokens from base on */
};

static size_t state_bytes(const struct mx_layer_desc *layer)
{
	size_t vectors = 2 + (size_t)layer->max_draft;
	return sizeof(struct ema_state) + vectors * layer->width * sizeof(float);
}

static mx_status ema_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_err *err)
{
	(void)layer;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "ema: this module runs on CPUs in f32");
	return MX_OK;
}

static mx_status ema_weights(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
                             size_t *out_n)
{
	const uint64_t w = layer->width;
	specs[0] = MX_WEIGHT_SPEC("in_proj.weight", MATRIX, {w, w});
	specs[1] = MX_WEIGHT_SPEC("out_proj.weight", MATRIX, {w, w});
	specs[2] = MX_WEIGHT_SPEC("gate", VECTOR, {w});
	*out_n = 3;
	return MX_OK;
}

static mx_status ema_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_state_spec *out)
{
	(void)device;
	*out = (struct mx_state_spec){
		.fixed_bytes = state_bytes(layer),
		.snapshot_bytes = state_bytes(layer),
		.scratch_bytes = ((size_t)layer->max_rows + 1) * layer->width * sizeof(float),
	};
	return MX_OK;
}

static void ema_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->keep);
	free(m);
}

static const struct mx_mixer_ops ema_ops;

static mx_status ema_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                            struct mx_err *err)
{
	const float *gate = init->weights[2];
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m || !(m->keep = calloc(init->layer->width, sizeof(float)))) {
		ema_destroy(m);
		return mx_mixer_fail(err, MX_E_NOMEM, "ema: out of memory");
	}
	m->base = (struct mx_mixer_base){&ema_ops, init->layer->index};
	m->device = init->device;
	m->in = init->weights[0];
	m->out = init->weights[1];
	m->width = init->layer->width;
	m->max_rows = init->layer->max_rows;
	m->max_draft = init->layer->max_draft;
	m->state_bytes = state_bytes(init->layer);
	m->slot_base = init->slot_base;
	m->slot_stride = init->slot_stride;
	for (uint32_t i = 0; i < m->width; i++)
		m->keep[i] = 1 / (1 + expf(-gate[i]));
	*out = m;
	return MX_OK;
}

static struct ema_state *state_of(const struct mx_mixer *m, uint32_t slot)
{
	return (struct ema_state *)(m->slot_base + slot * m->slot_stride);
}

/* Updates h[width] by one token with the input u. */
static void update(const struct mx_mixer *m, float *h, const float *u)
{
	for (uint32_t i = 0; i < m->width; i++)
		h[i] = m->keep[i] * h[i] + (1 - m->keep[i]) * u[i];
}

/* Runs one span. rows [n, width] holds u of its tokens and receives h after each of them. now
 * [width] is workspace. */
static void run_span(const struct mx_mixer *m, const struct mx_span *span, float *rows, float *now)
{
	struct ema_state *s = state_of(m, span->slot);
	size_t w = m->width, row = w * sizeof(float);
	float *u = s->h + w;
	uint32_t inputs = span->pos - s->base; /* committed tokens whose u is kept */

	/* u of the last committed token is kept: it may be computed again. */
	for (; inputs > 1; inputs--, s->base++) {
		update(m, s->h, u);
		memmove(u, u + w, m->max_draft * row);
	}
	memcpy(now, s->h, row);
	if (inputs)
		update(m, now, u);
	for (uint32_t t = 0; t < span->n; t++) {
		float *x = rows + t * w;
		if (span->kind != MX_SPAN_DRAFT) { /* all earlier tokens are final */
			memcpy(s->h, now, row);
			s->base = span->pos + t;
			inputs = 0;
		}
		memcpy(u + w * inputs++, x, row);
		update(m, now, x);
		memcpy(x, now, row);
	}
}

static mx_status ema_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	float *u = step->scratch; /* [n_rows, width] */
	float *now = u + (size_t)m->max_rows * m->width;
	const struct mx_linear_out in = {.w = m->in, .y = u, .ldy = m->width};
	const struct mx_linear_out out = {.w = m->out, .y = y, .ldy = m->width};

	if (step->n_rows > m->max_rows)
		return MX_E_RANGE;
	mx_status status = m->device->ops->linear(m->device, x, m->width, step->n_rows, &in, 1);
	if (status != MX_OK)
		return status;
	for (uint32_t s = 0; s < step->n_spans; s++)
		run_span(m, &step->spans[s], u + (size_t)step->spans[s].row * m->width, now);
	return m->device->ops->linear(m->device, u, m->width, step->n_rows, &out, 1);
}

static mx_status ema_fork(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
                          uint32_t to_slot)
{
	for (uint32_t i = 0; i < n_layers; i++)
		memcpy(state_of(layers[i], to_slot), state_of(layers[i], from_slot),
		       layers[i]->state_bytes);
	return MX_OK;
}

static mx_status ema_save(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                          uint32_t pos, void *const *out)
{
	(void)pos; /* forward will be told where it goes on */
	for (uint32_t i = 0; i < n_layers; i++)
		memcpy(out[i], state_of(layers[i], slot), layers[i]->state_bytes);
	return MX_OK;
}

static mx_status ema_load(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
                          uint32_t pos, const void *const *in)
{
	(void)pos;
	for (uint32_t i = 0; i < n_layers; i++)
		memcpy(state_of(layers[i], slot), in[i], layers[i]->state_bytes);
	return MX_OK;
}

static void ema_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	snprintf(text, cap, "ema: %u channels", m->width);
}

static const struct mx_mixer_ops ema_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "ema",
	.summary = "exponential moving average with a learned share of the past",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_FORK | MX_MIXER_SNAPSHOT,
	.probe = ema_probe,
	.weights = ema_weights,
	.state = ema_state,
	.extent = mx_mixer_extent_all,
	.create = ema_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = ema_destroy,
	.forward = ema_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = ema_fork,
	.save = ema_save,
	.load = ema_load,
	.resume = mx_mixer_resume_nothing,
	.describe = ema_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &ema_ops;
}
