/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoints of small_models.h. */
#include "tests/engine/small_models.h"

#include "base/log.h"
#include "tests/engine/engine_util.h"

char small_dirs[N_DIRS][64];

static const char *const configs[N_DIRS] = {
	[HYBRID] = SMALL_MIXD "\"mixd_layers\":[{\"mixer\":\"attention\"},{\"mixer\":\"ema\"}]}",
	[RECURRENT] =
		SMALL_MIXD "\"mixd_layers\":[{\"mixer\":\"ema\",\"mlp\":false},{\"mixer\":\"ema\"}]}",
	[MIXTURE] =
		SMALL_MIXD "\"embedding_scale\":2,\"residual_scale\":0.6,\"logit_scale\":0.8,"
				   "\"num_experts_per_tok\":2,\"moe_intermediate_size\":48,\"mixd_layers\":["
				   "{\"mixers\":[{\"mixer\":\"attention\",\"out_scale\":0.5},"
				   "{\"mixer\":\"ema\",\"in_scale\":1.5}],\"mlp\":{\"num_experts\":6,"
				   "\"norm_topk_prob\":true,\"shared_expert_intermediate_size\":32}},"
				   "{\"mixer\":\"attention\",\"mlp\":{\"num_experts\":3}}]}",
	[REACHING] = SMALL_MIXD "\"mixd_layers\":[{\"mixer\":\"reaching\"},{\"mixer\":\"ema\"}]}",
	[HYENA] = SMALL_MIXD "\"mixd_layers\":[{\"mixer\":\"hyena\",\"filter_len\":600,\"emb_dim\":5,"
						 "\"filter_order\":16},{\"mixer\":\"attention\"},"
						 "{\"mixer\":\"hyena\",\"filter\":\"modal\",\"state_size\":4}]}",
	[DELTA] = "{\"model_type\":\"gated_deltanet\",\"hidden_size\":64,\"num_hidden_layers\":3,"
			  "\"num_heads\":2,\"head_dim\":32,\"expand_v\":2,\"intermediate_size\":160,"
			  "\"vocab_size\":320,\"max_position_embeddings\":512,"
			  "\"attn\":{\"layers\":[1],\"num_heads\":4,\"num_kv_heads\":2}}",
	[MAMBA2] = "{\"model_type\":\"mamba2\",\"hidden_size\":64,\"num_hidden_layers\":2,"
			   "\"num_heads\":8,\"head_dim\":16,\"state_size\":32,\"n_groups\":2,"
			   "\"vocab_size\":320}",
	[HGRN2] = "{\"model_type\":\"hgrn2\",\"hidden_size\":64,\"num_hidden_layers\":3,"
			  "\"expand_ratio\":16,\"intermediate_size\":160,\"vocab_size\":320,"
			  "\"max_position_embeddings\":512}",
};

static const struct mx_random_model small_model = {
	.width = 64,
	.layers = 2,
	.heads = 4,
	.kv_heads = 2,
	.intermediate = 160,
	.vocab = VOCAB,
	.max_context = CONTEXT,
	.seed = 3,
};

int small_models_make(void **state)
{
	(void)state;
	mx_log_set_level(MX_LOG_WARNING);
	for (int i = 0; i < N_DIRS; i++) {
		struct mx_random_model m = small_model;
		m.dtype = i == BF16 || i == MIXTURE ? MX_BF16 : MX_F32;
		m.tied = i == BF16;
		if (configs[i])
			make_checkpoint(small_dirs[i], configs[i], m.dtype, m.seed);
		else
			make_llama(small_dirs[i], &m);
	}
	return 0;
}

int small_models_remove(void **state)
{
	(void)state;
	for (int i = 0; i < N_DIRS; i++)
		mx_random_model_remove(small_dirs[i]);
	return 0;
}
