/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attention mixer on CPUs: memory, life cycle, a step. Heads and their
 * parameters, and softmax over pages, are in mixers/softmax.
 *
 * Softmax attention with grouped queries, optional biases, qk-norm, sliding
 * window and rotary embedding; keys and values in pages. See README.md.
 */
#include <stdlib.h>

#include "mixers/softmax/heads.h"
#include "mixers/softmax/softmax.h"
#include "mixers/tree.h"

struct mx_mixer {
	struct mx_mixer_base base;
	struct attn_heads heads;
	struct mx_softmax softmax;
};

/* Reads and checks the parameters, as probe does. The other entries of the table call it again
 * instead of keeping state. */
static mx_status read_params(const struct mx_layer_desc *layer, struct attn_params *out,
                             struct mx_err *err)
{
	mx_status status = attn_params_read(layer, out, err);
	if (status != MX_OK)
		return status;
	if (out->dtype != MX_F32 && out->dtype != MX_BF16 && out->dtype != MX_I8)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: keys and values in %s",
		                     mx_dtype_name(out->dtype));
	return MX_OK;
}

static mx_status attn_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_err *err)
{
	struct attn_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "attention: this module runs on CPUs in f32");
	return read_params(layer, &p, err);
}

static struct mx_softmax_shape softmax_shape(const struct attn_params *p)
{
	return (struct mx_softmax_shape){
		.heads = p->heads,
		.kv_heads = p->kv_heads,
		.key_dim = p->head_dim,
		.value_dim = p->head_dim,
		.window = p->window,
		.skip_first = p->skip_first,
		.scale = p->scale,
		.cap = p->cap,
		.dtype = p->dtype,
		.contexts = p->contexts,
		.context = p->context,
	};
}

static mx_status attn_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                            struct mx_state_spec *out)
{
	struct attn_params p;
	struct attn_heads_scratch heads;
	mx_status status = read_params(layer, &p, NULL);
	if (status != MX_OK)
		return status;
	const struct mx_softmax_shape shape = softmax_shape(&p);
	attn_heads_layout(layer, &p, &heads);
	*out = mx_softmax_state(
		&shape, heads.bytes + mx_softmax_scratch_bytes(layer, &shape, device->info.threads));
	if (p.shared_kv)
		out->bytes_per_token = 0; /* the pages of another layer are read */
	return MX_OK;
}

static void attn_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	attn_heads_free(&m->heads);
	free(m);
}

static const struct mx_mixer_ops attn_ops;

static mx_status attn_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                             struct mx_err *err)
{
	struct attn_params params;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	mx_status status = MX_E_NOMEM;

	if (!m)
		goto fail;
	m->base.ops = &attn_ops;
	m->base.layer = init->layer->index;
	status = read_params(init->layer, &params, err);
	if (status == MX_OK)
		status = attn_heads_init(init, &params, &m->heads);
	if (status != MX_OK)
		goto fail;
	const struct mx_softmax_shape shape = softmax_shape(&params);
	status = mx_softmax_init(&shape, init, "attention", &m->softmax, err);
	if (status != MX_OK)
		goto fail;
	m->softmax.sinks = m->heads.weights.sinks;
	*out = m;
	return MX_OK;
fail:
	if (status == MX_E_NOMEM)
		mx_mixer_fail(err, status, "attention: out of memory");
	attn_destroy(m);
	return status;
}

static mx_status attn_forward(struct mx_mixer *m, const struct mx_step *step, const void *x,
                              void *y)
{
	struct attn_rows rows;
	mx_status status = attn_heads_project(&m->heads, step, x, &rows);
	if (status != MX_OK)
		return status;
	unsigned char *scratch = (unsigned char *)step->scratch + m->heads.scratch.bytes;
	status = mx_softmax_run(&m->softmax, step, scratch, rows.q, rows.k, rows.v);
	if (status != MX_OK)
		return status;
	return attn_heads_output(&m->heads, step, y);
}

struct commit_run {
	struct mx_mixer *const *layers;
	const struct mx_step *step;
	const struct mx_kept *kept;
};

static void commit_task(void *arg, size_t task, unsigned worker)
{
	const struct commit_run *run = arg;
	const struct mx_mixer *m = run->layers[task];
	(void)worker;
	if (!m->heads.params.shared_kv)
		mx_softmax_commit(&m->softmax, run->step, run->kept);
}

/* Moves what a tree left. Of chains nothing needs to be done: the caller tracks lengths, a row
 * reads no position after its own, and positions that are taken back are written again before they
 * are read. */
static mx_status attn_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                             const struct mx_step *step, const struct mx_kept *kept)
{
	struct mx_device *d = layers[0]->softmax.device;
	struct commit_run run = {layers, step, kept};
	if (mx_tree_any_moves(step, kept))
		d->ops->parallel(d, n_layers, commit_task, &run);
	return MX_OK;
}

static void attn_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct attn_params *p = &m->heads.params;
	snprintf(text, cap,
	         "attention: %u heads, %u key heads of %u, keys and values %sin %s, kernels %s",
	         p->heads, p->kv_heads, p->head_dim, p->shared_kv ? "of an earlier layer " : "",
	         mx_dtype_name(p->dtype), m->softmax.kernels->name);
}

static const struct mx_mixer_ops attn_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "attention",
	.summary = "softmax attention over paged keys and values",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_SHARE_PAGES | MX_MIXER_RANKS |
            MX_MIXER_CONTEXT,
	.probe = attn_probe,
	.weights = attn_params_weights,
	.state = attn_state,
	.extent = mx_mixer_extent_all,
	.create = attn_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = attn_destroy,
	.forward = attn_forward,
	.commit = attn_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = attn_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &attn_ops;
}
