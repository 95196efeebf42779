/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gla mixer's table: linear attention and its descendants (RetNet, GLA,
 * HGRN, DeltaNet, Gated DeltaNet, KDA ...) over the core in mixers/recurrence.
 * Parameters are read in gla_params.c, a step is in gla_forward.c; see README.md.
 *
 * A slot is the recurrence's part, then a part for each convolution. commit has
 * nothing to do: the next span's position tells the core which tokens were kept.
 */
#include <stdlib.h>

#include "mixers/gla/gla.h"

static mx_status probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_err *err)
{
	struct gla_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "gla: this module runs on CPUs in f32");
	return gla_params_read(layer, &p, err);
}

_Static_assert(1 + MX_RECUR_STREAMS <= MX_RECUR_PARTS, "a recurrence, and a convolution a stream");

/* Returns the parts of a layer's slot. convs: of the streams that have one, [MX_RECUR_STREAMS]; as
 * long as the result. */
static struct mx_recur_slots slots_of(const struct gla_params *p, struct mx_conv_spec *convs)
{
	struct mx_recur_slots slots = {.parts = {{.recur = &p->recur}}};
	for (int s = 0, n = 1; s < MX_RECUR_STREAMS; s++)
		if (p->streams[s].conv) {
			convs[s] = gla_conv_spec(p, s);
			slots.parts[n++].conv = &convs[s];
		}
	return slots;
}

static mx_status state(const struct mx_layer_desc *layer, const struct mx_device *device,
                       struct mx_state_spec *out)
{
	struct gla_params p;
	mx_status status = gla_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	struct mx_conv_spec convs[MX_RECUR_STREAMS];
	const struct mx_recur_slots slots = slots_of(&p, convs);
	*out = (struct mx_state_spec){
		.fixed_bytes = mx_recur_slots_bytes(&slots),
		.scratch_bytes = gla_layout(&p, layer->max_rows, device->info.threads, NULL, NULL),
		.snapshot_bytes = mx_recur_slots_snapshot_bytes(&slots),
	};
	return MX_OK;
}

static void destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	gla_tables_free(&m->tables);
	free(m->beta_scale);
	free(m);
}

static bool fill_beta(struct mx_mixer *m)
{
	const uint32_t heads = m->params.recur.heads;
	m->beta_scale = calloc(heads, sizeof(float));
	for (uint32_t h = 0; m->beta_scale && h < heads; h++)
		m->beta_scale[h] = m->params.neg_eigval ? 2 : 1;
	return m->beta_scale != NULL;
}

static const struct mx_mixer_ops gla_ops;

static mx_status create(const struct mx_mixer_init *init, struct mx_mixer **out, struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	mx_status status = MX_E_NOMEM;

	if (!m)
		goto fail;
	m->common = (struct mx_recur_mixer){.base = {&gla_ops, layer->index}, .device = init->device};
	m->comm = init->comm;
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	m->kernels = mx_recur_kernels_find(mx_isa_parse(init->device->info.isa));
	status = gla_params_read(layer, &m->params, err);
	if (status == MX_OK)
		status = gla_take_weights(init, &m->params, &m->w, err);
	if (status != MX_OK)
		goto fail;
	status = gla_tables_fill(layer, &m->params, &m->w, &m->tables);
	if (status == MX_OK && !fill_beta(m))
		status = MX_E_NOMEM;
	if (status != MX_OK)
		goto fail;
	m->w.a_log = m->w.lower_bounds = NULL; /* host vectors are valid during create only */
	m->common.slots = slots_of(&m->params, m->convs);
	m->common.slots.base = init->slot_base;
	m->common.slots.stride = init->slot_stride;
	*out = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_mixer_fail(err, status, "gla: out of memory");
	destroy(m);
	return status;
}

static void describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct gla_params *p = &m->params;
	if (p->variant->shape == GLA_CHANNELS)
		snprintf(text, cap, "gla: %s, %u channels, kernels %s", p->variant->name,
		         p->recur.heads * p->v_dim, mx_recur_kernels_name(m->kernels));
	else
		snprintf(text, cap, "gla: %s, %u heads of %u x %u, kernels %s", p->variant->name,
		         p->recur.heads, p->recur.k_dim, p->recur.v_dim, mx_recur_kernels_name(m->kernels));
}

static const struct mx_mixer_ops gla_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "gla",
	.summary = "linear attention: RetNet, GLA, HGRN, DeltaNet, Gated DeltaNet, KDA",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_FORK | MX_MIXER_SNAPSHOT |
            MX_MIXER_RANKS,
	.probe = probe,
	.weights = gla_list_weights,
	.state = state,
	.extent = mx_mixer_extent_all,
	.create = create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = destroy,
	.forward = gla_forward,
	.commit = mx_recur_slots_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_recur_slots_fork,
	.save = mx_recur_slots_save,
	.load = mx_recur_slots_load,
	.resume = mx_mixer_resume_nothing,
	.describe = describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &gla_ops;
}
