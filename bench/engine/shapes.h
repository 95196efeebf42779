/* SPDX-License-Identifier: Apache-2.0 */
/* The models of bench/engine/engine (shapes.c) and of bench/engine/cuda/engine (cuda/shapes.c). */
#ifndef MX_BENCH_ENGINE_SHAPES_H
#define MX_BENCH_ENGINE_SHAPES_H

#include "bench/engine/options.h"

/* The struct mx_random_model of Llama's shape, and of a model that a config describes. */
#define LLAMA(width_, layers_, heads_, kv_heads_, intermediate_, vocab_, max_context_)             \
	{                                                                                              \
		.width = width_, .layers = layers_, .heads = heads_, .kv_heads = kv_heads_,                \
		.intermediate = intermediate_, .vocab = vocab_, .max_context = max_context_, .seed = 1     \
	}
#define OTHER(width_, layers_, vocab_, max_context_)                                               \
	{                                                                                              \
		.width = width_, .layers = layers_, .vocab = vocab_, .max_context = max_context_,          \
		.seed = 1                                                                                  \
	}

/* config.json of Hyena as trained on the Pile, of 18 times `layer`, an element of mixd_layers. */
#define PILE_HYENA(layer, max_positions)                                                           \
	"{\"model_type\": \"mixd\", \"hidden_size\": 864, \"intermediate_size\": 1728,\n"              \
	" \"vocab_size\": 50288, \"max_position_embeddings\": " max_positions ",\n"                    \
	" \"mlp_bias\": true, \"norm_type\": \"layernorm\", \"mlp_type\": \"gelu_tanh\",\n"            \
	" \"tie_word_embeddings\": true, \"mixd_layers\": [" SIX(layer) "," SIX(layer) "," SIX(        \
		layer) "]}\n"
#define SIX(layer) layer "," layer "," layer "," layer "," layer "," layer

extern const struct shape engine_shapes[]; /* [n_engine_shapes], the default first */
extern const size_t n_engine_shapes;

#endif
