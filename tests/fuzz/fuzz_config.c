/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes any bytes as config.json and, after the first NUL, generation_config.json: they are
 * refused with a message, or give a complete plan.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int yes)
{
	if (!yes)
		abort();
}

static void check_mixer(const struct mx_plan_mixer *m)
{
	require(m->mixer && m->prefix);
	for (size_t i = 0; i < m->params.n; i++)
		require(m->params.items[i].name != NULL);
	if (strcmp(m->mixer, "attention"))
		return;
	int64_t heads = mx_param_int(&m->params, "heads", 0);
	int64_t kv_heads = mx_param_int(&m->params, "kv_heads", 0);
	int64_t dim = mx_param_int(&m->params, "head_dim", 0);
	require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && dim > 0);
	const struct mx_param *freq = mx_param_find(&m->params, "rope_inv_freq");
	for (size_t i = 0; freq && i < freq->n; i++)
		require(isfinite(freq->v[i]));
}

static void check_mlp(const struct mx_plan_mlp *m)
{
	require((m->up || (m->gate && m->from_input)) && m->down && m->width > 0);
	require(m->act <= MX_ACT_RELU2);
}

static void check_block(const struct mx_plan_block *b)
{
	const struct mx_plan_experts *x = &b->experts;
	require(isfinite(b->residual_scale));
	require(b->kind != MX_BLOCK_EXPERTS || b->norm);
	switch (b->kind) {
	case MX_BLOCK_MIXER:
		require(b->n_mixers > 0);
		for (uint32_t i = 0; i < b->n_mixers; i++)
			check_mixer(&b->mixers[i]);
		break;
	case MX_BLOCK_ASIDE:
		require(b->n_mixers == 1 && b->aside.norm && b->aside.mlp_norm && b->aside.out);
		check_mlp(&b->mlp);
		break;
	case MX_BLOCK_MLP: check_mlp(&b->mlp); break;
	case MX_BLOCK_EXPERTS:
		require(x->router && ((x->list && x->up && x->down) || (x->fused_up && x->fused_down)) &&
		        x->width > 0);
		require(x->rule.chosen > 0 && x->rule.chosen <= x->n);
		if (x->rule.groups > 1)
			require(x->n % x->rule.groups == 0 && x->rule.groups <= MX_ROUTER_MAX_GROUPS &&
			        x->n / x->rule.groups * x->rule.kept_groups >= x->rule.chosen);
		if (b->mlp.width)
			check_mlp(&b->mlp);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data, *nul = size ? memchr(text, 0, size) : NULL;
	size_t len = nul ? (size_t)(nul - text) : size;
	struct mx_plan *p = NULL;
	struct mx_err err = {0};
	if (mx_plan_parse(text, len, nul ? nul + 1 : NULL, nul ? size - len - 1 : 0, &p, &err)) {
		require(err.text[0] && !p);
		return 0;
	}
	require(p->n_layers > 0 && p->width > 0 && p->vocab > 0 && p->max_context > 0);
	for (size_t i = 0; i < p->n_eos; i++)
		require(p->eos[i] >= 0 && (uint32_t)p->eos[i] < p->vocab);
	for (uint32_t i = 0; i < p->n_layers; i++)
		for (uint32_t k = 0; k < p->layers[i].n_blocks; k++)
			check_block(&p->layers[i].blocks[k]);
	mx_plan_destroy(p);
	return 0;
}
