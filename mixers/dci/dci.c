/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dci mixer's table on CPUs: memory, life cycle, a step.
 *
 * Softmax attention over the keys that a search finds, besides the first and the most recent ones.
 * Parameters and tensors are attention's, so that it can take the place of any attention layer. See
 * README.md.
 */
#include <stdlib.h>

#include "mixers/dci/dci.h"

static mx_status dci_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_err *err)
{
	struct dci_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "dci: this module runs on CPUs in f32");
	return dci_params_read(layer, &p, err);
}

static size_t signs_bytes(const struct dci_params *p)
{
	return (size_t)p->heads.kv_heads * 3 * p->directions * sizeof(float);
}

static mx_status dci_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_state_spec *out)
{
	struct dci_params p;
	struct dci_layout layout;
	struct attn_heads_scratch heads;
	mx_status status = dci_params_read(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct dci_bounds bounds = dci_bounds_of(&p, layer->max_context);
	dci_layout_of(&p, &layout);
	attn_heads_layout(layer, &p.heads, &heads);
	*out = (struct mx_state_spec){
		.bytes_per_token = p.heads.kv_heads * layout.token,
		.page_multiple = DCI_RUN,
		.scratch_bytes = heads.bytes + dci_items_bytes(layer) +
	                     device->info.threads * dci_worker_bytes(&p, &bounds),
		.instance_bytes = signs_bytes(&p),
	};
	return MX_OK;
}

static void dci_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	attn_heads_free(&m->heads);
	free(m->signs);
	free(m);
}

static const struct mx_mixer_ops dci_ops;

static mx_status dci_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                            struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof *m);
	mx_status status = MX_E_NOMEM;

	if (!m)
		goto fail;
	m->base.ops = &dci_ops;
	m->base.layer = layer->index;
	status = dci_params_read(layer, &m->params, err);
	if (status != MX_OK)
		goto fail;
	if (init->page_tokens == 0 || init->page_tokens % DCI_RUN) {
		status = mx_mixer_fail(err, MX_E_INVALID, "dci: pages of %u tokens", init->page_tokens);
		goto fail;
	}
	status = attn_heads_init(init, &m->params.heads, &m->heads);
	m->signs = malloc(signs_bytes(&m->params));
	if (status != MX_OK || !m->signs) {
		status = status != MX_OK ? status : MX_E_NOMEM;
		goto fail;
	}
	dci_signs_fill(&m->params, layer->index, m->signs);
	dci_layout_of(&m->params, &m->layout);
	m->bounds = dci_bounds_of(&m->params, layer->max_context);
	m->search = dci_search_find(mx_isa_parse(init->device->info.isa));
	m->rows = dci_rows_find(mx_isa_parse(init->device->info.isa), m->layout.dtype);
	m->page_base = init->page_base;
	m->page_stride = init->page_stride;
	m->page_tokens = init->page_tokens;
	m->head_bytes = m->page_tokens * m->layout.token;
	m->values = m->page_tokens * m->layout.row;
	m->items_bytes = dci_items_bytes(layer);
	m->worker_bytes = dci_worker_bytes(&m->params, &m->bounds);
	*out = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_mixer_fail(err, status, "dci: out of memory");
	dci_destroy(m);
	return status;
}

static mx_status dci_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y)
{
	struct attn_rows rows;
	mx_status status = attn_heads_project(&m->heads, step, x, &rows);
	if (status != MX_OK)
		return status;
	dci_append(m, step, &rows);
	dci_attend(m, step, (unsigned char *)step->scratch + m->heads.scratch.bytes, rows.q);
	return attn_heads_output(&m->heads, step, y);
}

static void dci_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct dci_params *p = &m->params;
	char k[16] = "auto", visits[16] = "auto";
	if (p->top_k != DCI_AUTO)
		snprintf(k, sizeof k, "%u", p->top_k);
	if (p->visits != DCI_AUTO)
		snprintf(visits, sizeof visits, "%u", p->visits);
	snprintf(text, cap,
	         "dci: %u heads, %u key heads of %u, keys and values in %s, top_k %s of %s visits, "
	         "first %u, recent %u, %u directions%s, kernels %s",
	         p->heads.heads, p->heads.kv_heads, p->heads.head_dim, mx_dtype_name(p->heads.dtype), k,
	         visits, p->first, p->recent, p->directions, p->rest ? ", the rest by means" : "",
	         m->rows->name);
}

/* commit does nothing: a row reads no position after its own, and keys that are taken back are
 * written again, with their run's index, before they are read. */
static const struct mx_mixer_ops dci_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "dci",
	.summary = "softmax attention over keys that are searched for",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_SHARE_PAGES | MX_MIXER_RANKS,
	.probe = dci_probe,
	.weights = attn_params_weights,
	.state = dci_state,
	.extent = mx_mixer_extent_all,
	.create = dci_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = dci_destroy,
	.forward = dci_forward,
	.commit = mx_mixer_commit_nothing,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = dci_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &dci_ops;
}
