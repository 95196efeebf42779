/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of the mixer mla on CPUs: memory, life cycle. The arithmetic is in mla_forward.c and in
 * mixers/softmax.
 *
 * Multi-head latent attention in the absorbed form: pages hold a latent and a rotated key a token,
 * whatever the number of heads. See README.md.
 */
#include "mixers/mla/mla.h"

#include <stdlib.h>

#include "base/mem.h"
#include "mixers/tree.h"

static mx_status mla_probe(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_err *err)
{
	struct mla_params p;
	if (device->info.kind != MX_DEVICE_CPU || device->info.act_dtype != MX_F32)
		return mx_mixer_fail(err, MX_E_UNSUPPORTED, "mla: this module runs on CPUs in f32");
	return mla_params_read(layer, &p, err);
}

/* Bytes of the copy of the keys' part of kv_b. */
static size_t uk_bytes(const struct mla_params *p, enum mx_dtype dtype)
{
	return mx_round_up((size_t)p->heads * p->rank * p->nope * mx_dtype_size(dtype), 64);
}

static mx_status mla_state(const struct mx_layer_desc *layer, const struct mx_device *device,
                           struct mx_state_spec *out)
{
	struct mla_params p;
	struct mla_scratch scratch;
	mx_status s = mla_params_read(layer, &p, NULL);
	if (s != MX_OK)
		return s;
	const struct mx_softmax_shape shape = mla_softmax_shape(&p);
	mla_scratch_layout(layer, &p, device->info.threads, &scratch);
	*out = mx_softmax_state(&shape, scratch.bytes);
	out->instance_bytes = uk_bytes(&p, layer->weight_dtype);
	return MX_OK;
}

static void mla_destroy(struct mx_mixer *m)
{
	if (!m)
		return;
	free(m->uk);
	free(m->uv);
	free(m->each);
	free(m->uk_data);
	free(m->inv_freq);
	free(m);
}

/* Fills `to` [cols, rows] with the transpose of `from`. */
static void transpose(const struct mx_weight *from, unsigned char *to)
{
	enum { TILE = 32 }; /* rows and columns of a tile both stay in the cache */
	const unsigned char *data = from->data;
	const size_t rows = from->rows, cols = from->cols, size = mx_dtype_size(from->dtype);
	for (size_t r0 = 0; r0 < rows; r0 += TILE)
		for (size_t c0 = 0; c0 < cols; c0 += TILE)
			for (size_t r = r0; r < rows && r < r0 + TILE; r++)
				for (size_t c = c0; c < cols && c < c0 + TILE; c++)
					memcpy(to + (c * rows + r) * size, data + (r * cols + c) * size, size);
}

/* Takes kv_b apart: rows of a head are [nope of its keys | v of its values]. The keys' part is
 * applied to queries from the other side, so a transposed copy of it is made. */
static mx_status absorb(struct mx_mixer *m)
{
	const struct mla_params *p = &m->params;
	const struct mx_weight *kv = m->weights.kv_b;
	size_t head_bytes = (size_t)p->rank * p->nope * mx_dtype_size(kv->dtype);
	m->uk = calloc(p->heads, sizeof *m->uk);
	m->uv = calloc(p->heads, sizeof *m->uv);
	m->each = calloc(p->heads, sizeof *m->each);
	m->uk_data = aligned_alloc(64, uk_bytes(p, kv->dtype));
	if (!m->uk || !m->uv || !m->each || !m->uk_data)
		return MX_E_NOMEM;
	for (uint32_t h = 0; h < p->heads; h++) {
		const struct mx_weight keys = mx_weight_rows(kv, h * (p->nope + p->v), p->nope);
		unsigned char *to = (unsigned char *)m->uk_data + h * head_bytes;
		transpose(&keys, to);
		m->uk[h] = (struct mx_weight){kv->dtype, p->rank, p->nope, to, NULL};
		m->uv[h] = mx_weight_rows(kv, h * (p->nope + p->v) + p->nope, p->v);
	}
	return MX_OK;
}

static mx_status make_frequencies(struct mx_mixer *m)
{
	const struct mla_params *p = &m->params;
	m->inv_freq = calloc(p->rope / 2 + 1, sizeof *m->inv_freq);
	if (!m->inv_freq)
		return MX_E_NOMEM;
	for (uint32_t i = 0; p->rotates && i < p->rope / 2; i++)
		m->inv_freq[i] = mla_params_frequency(p, i);
	m->params.inv_freq = NULL; /* the description is valid during create only */
	return MX_OK;
}

static const struct mx_mixer_ops mla_ops;

static mx_status mla_create(const struct mx_mixer_init *init, struct mx_mixer **out,
                            struct mx_err *err)
{
	const struct mx_layer_desc *layer = init->layer;
	struct mx_mixer *m = calloc(1, sizeof(*m));
	if (!m)
		return mx_mixer_fail(err, MX_E_NOMEM, "mla: out of memory");
	m->base = (struct mx_mixer_base){&mla_ops, layer->index};
	m->device = init->device;
	m->width = layer->width;
	m->max_rows = layer->max_rows;
	mx_status s = mla_params_read(layer, &m->params, err);
	if (s == MX_OK) {
		const struct mx_softmax_shape shape = mla_softmax_shape(&m->params);
		s = mx_softmax_init(&shape, init, "mla", &m->softmax, err);
	}
	if (s == MX_OK) {
		mla_params_take(&m->params, init->weights, &m->weights);
		m->kv_latent = mx_weight_rows(m->weights.kv_a, 0, m->params.rank);
		m->k_rope = mx_weight_rows(m->weights.kv_a, m->params.rank, m->params.rope);
		mla_scratch_layout(layer, &m->params, m->device->info.threads, &m->scratch);
		s = absorb(m);
		if (s == MX_OK)
			s = make_frequencies(m);
		if (s != MX_OK)
			mx_mixer_fail(err, s, "mla: out of memory");
	}
	if (s != MX_OK) {
		mla_destroy(m);
		return s;
	}
	*out = m;
	return MX_OK;
}

static void mla_describe(const struct mx_mixer *m, char *text, size_t cap)
{
	const struct mla_params *p = &m->params;
	snprintf(text, cap, "mla: %u heads, latents of %u + %u in %s, kernels %s", p->heads, p->rank,
	         p->rope, mx_dtype_name(p->dtype), m->softmax.kernels->name);
}

struct commit_run {
	struct mx_mixer *const *layers;
	const struct mx_step *step;
	const struct mx_kept *kept;
};

static void commit_task(void *arg, size_t task, unsigned worker)
{
	const struct commit_run *run = arg;
	(void)worker;
	mx_softmax_commit(&run->layers[task]->softmax, run->step, run->kept);
}

/* Moves what a tree left; of chains nothing needs to be done, as in attention. */
static mx_status mla_commit(struct mx_mixer *const *layers, uint32_t n_layers,
                            const struct mx_step *step, const struct mx_kept *kept)
{
	struct mx_device *d = layers[0]->device;
	struct commit_run run = {layers, step, kept};
	if (mx_tree_any_moves(step, kept))
		d->ops->parallel(d, n_layers, commit_task, &run);
	return MX_OK;
}

static const struct mx_mixer_ops mla_ops = {
	.abi = MX_MIXER_ABI,
	.struct_size = sizeof(struct mx_mixer_ops),
	.name = "mla",
	.summary = "multi-head latent attention over paged latents",
	.caps = MX_MIXER_CPU | MX_MIXER_DRAFT | MX_MIXER_TREE | MX_MIXER_SHARE_PAGES | MX_MIXER_RANKS |
            MX_MIXER_CONTEXT,
	.probe = mla_probe,
	.weights = mla_params_weights,
	.state = mla_state,
	.extent = mx_mixer_extent_all,
	.create = mla_create,
	.prepare = mx_mixer_prepare_nothing,
	.destroy = mla_destroy,
	.forward = mla_forward,
	.commit = mla_commit,
	.settle = mx_mixer_settle_nothing,
	.fork = mx_mixer_fork_unsupported,
	.save = mx_mixer_save_unsupported,
	.load = mx_mixer_load_unsupported,
	.resume = mx_mixer_resume_nothing,
	.describe = mla_describe,
};

mx_mixer_module_f mx_mixer_module_v2;

const struct mx_mixer_ops *mx_mixer_module_v2(void)
{
	return &mla_ops;
}
