/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model_map.h"

#include "engine/model_engine.h"

static size_t matrix_bytes(const struct mx_weight *w)
{
	return w->quant ? mx_quant_bytes(w->quant, w->rows)
	                : (size_t)w->rows * w->cols * mx_dtype_size(w->dtype);
}

void mx_model_map_get(const struct mx_engine *engine, struct mx_model_map *out)
{
	const struct mx_model_engine *e = (const struct mx_model_engine *)engine;
	const struct mx_model *m = &e->model;
	const struct mx_device_info *d = &e->device->info;
	bool tied = m->lm_head.data == m->embed.data;
	*out = (struct mx_model_map){
		.n_layers = m->plan->n_layers,
		.width = m->plan->width,
		.vocab = m->plan->vocab,
		.isa = d->isa,
		.weights = m->embed.dtype,
		.act = d->act_dtype,
		.threads = d->threads,
		.deterministic = d->deterministic,
		.embed_bytes = matrix_bytes(&m->embed),
		.head_bytes = tied ? 0 : matrix_bytes(&m->lm_head),
		.memory = &e->plan,
	};
}

static size_t mixer_bytes(const struct mx_model_mixer *x)
{
	size_t sum = 0;
	for (size_t i = 0; i < x->n_weights; i++)
		sum += matrix_bytes(&x->matrices[i]); /* none of vectors and absent ones */
	return sum;
}

static void describe_mixer(const struct mx_model_mixer *x, struct mx_model_map_part *out)
{
	out->kind = MX_BLOCK_MIXER;
	out->mixer = x->ops->name;
	out->bytes_per_token = x->state.bytes_per_token;
	out->bytes_per_sequence = x->state.fixed_bytes;
	out->weight_bytes = mixer_bytes(x);
	x->ops->describe(x->instance, out->kernels, sizeof out->kernels);
}

/* Describes what block b has beside its mixers. */
static void describe_rest(const struct mx_model *m, uint32_t b, struct mx_model_map_part *out)
{
	const struct mx_model_block *block = &m->blocks[b];
	size_t end = b + 1 < m->n_blocks ? m->blocks[b + 1].first_use : m->n_uses;
	for (size_t u = block->first_use; u < end; u++)
		out->weight_bytes += matrix_bytes(m->uses[u].weight);
	for (uint32_t i = 0; i < block->n_mixers; i++)
		out->weight_bytes -= mixer_bytes(&block->mixers[i]);
	out->kind = block->kind;
	out->width = block->mlp.width;
	if (block->kind != MX_BLOCK_EXPERTS)
		return;
	out->width = block->experts.experts[0].width;
	out->n_experts = block->experts.n;
	out->n_chosen = block->experts.rule.chosen;
}

bool mx_model_map_next(const struct mx_engine *engine, struct mx_model_map_cursor *at,
                       struct mx_model_map_part *out)
{
	const struct mx_model *m = &((const struct mx_model_engine *)engine)->model;
	for (; at->block < m->n_blocks; *at = (struct mx_model_map_cursor){at->block + 1, 0}) {
		const struct mx_model_block *block = &m->blocks[at->block];
		uint32_t n = block->n_mixers + (block->kind != MX_BLOCK_MIXER);
		if (at->part == n)
			continue;
		*out = (struct mx_model_map_part){.layer = block->layer};
		if (at->part < block->n_mixers)
			describe_mixer(&block->mixers[at->part], out);
		else
			describe_rest(m, at->block, out);
		at->part++;
		return true;
	}
	return false;
}
