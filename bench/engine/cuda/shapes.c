/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes:
 *   8b    Llama-3-8B: 4096 wide, 32 layers, 32 heads over 8, 14336 feed-forward, 128,256 tokens
 *   8b8   eight layers of it, 32,000 tokens: to compare two builds within seconds
 *   8b-long, 8b8-long  the same for contexts of up to 2^20
 *   70b8  eight of the 80 layers of Llama-3-70B, 32,000 tokens: 8192 wide, 64 heads over 8, 28672
 *   8b8-mqa, 8b8-mla  eight layers as wide, of one key head, or of latents of 512 and 32 heads
 *   1.1b  TinyLlama: 2048 wide, 22 layers, 32 heads over 4, 5632 feed-forward, 32,000 tokens
 *   tiny  1024 wide, 4 layers, 8 heads over 2, 2048 feed-forward, 8,192 tokens
 *   mamba2-2.7b  8 of the 64 layers of Mamba-2 2.7B: 2560 wide, 80 heads of 64 with states of 128,
 *         50,288 tokens tied; mamba2-2.7b-half: four of them
 *   gdn-8b  4 of the 32 layers of a hybrid as large as 8b: three of Gated DeltaNet, 16 heads of
 *         keys and 32 of values of 128, and one of attention
 *   gdn   the same with Gated DeltaNet alone, 4 layers
 *   hyena-32k, hyena-64k  Hyena as trained on the Pile (bench/engine/shapes.c), with filters of
 *         32,768 and 65,536; sequences that decode go on to the end
 *
 * What a step of the models with fewer layers costs beside its layers is the difference of two such
 * shapes.
 */
#include "bench/engine/shapes.h"

#define GDN                                                                                        \
	"{\"mixer\": \"gla\", \"variant\": \"gated_deltanet\", \"num_heads\": 16, "                    \
	"\"num_v_heads\": 32, \"head_dim\": 128, \"expand_v\": 1}"
#define ATTENTION "{\"mixer\": \"attention\"}"
#define HYBRID(layers)                                                                             \
	"{\"model_type\": \"mixd\", \"hidden_size\": 4096, \"intermediate_size\": 14336,\n"            \
	" \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256,\n"          \
	" \"max_position_embeddings\": 131328, \"mixd_layers\": [" layers "]}\n"
#define MAMBA2(layers)                                                                             \
	"{\"model_type\": \"mamba2\", \"hidden_size\": 2560, \"num_hidden_layers\": " layers ",\n"     \
	" \"num_heads\": 80, \"head_dim\": 64, \"state_size\": 128, \"n_groups\": 1,\n"                \
	" \"conv_kernel\": 4, \"layer_norm_epsilon\": 1e-05, \"vocab_size\": 50288,\n"                 \
	" \"max_position_embeddings\": 131328, \"tie_word_embeddings\": true}\n"

#define MLA                                                                                        \
	"{\"mixer\": \"mla\", \"heads\": 32, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "       \
	"\"qk_rope_head_dim\": 64, \"v_head_dim\": 128}"
#define FOUR(layer) layer ", " layer ", " layer ", " layer
#define LATENTS                                                                                    \
	"{\"model_type\": \"mixd\", \"hidden_size\": 4096, \"intermediate_size\": 14336,\n"            \
	" \"vocab_size\": 32000, \"max_position_embeddings\": 131328,\n"                               \
	" \"mixd_layers\": [" FOUR(MLA) ", " FOUR(MLA) "]}\n"

#define HYENA(length)                                                                              \
	"{\"mixer\": \"hyena\", \"filter_len\": " length ", \"emb_dim\": 5, \"filter_order\": 16}"
#define HYENA_MODEL(n) PILE_HYENA(HYENA(n), n)

const struct shape engine_shapes[] = {
	{.name = "8b", .model = LLAMA(4096, 32, 32, 8, 14336, 128256, 131072 + 256)},
	{.name = "8b8", .model = LLAMA(4096, 8, 32, 8, 14336, 32000, 131072 + 256)},
	{.name = "8b-long", .model = LLAMA(4096, 32, 32, 8, 14336, 128256, 1048576 + 256)},
	{.name = "8b8-long", .model = LLAMA(4096, 8, 32, 8, 14336, 32000, 1048576 + 256)},
	{.name = "70b8", .model = LLAMA(8192, 8, 64, 8, 28672, 32000, 131072 + 256)},
	{.name = "8b8-mqa", .model = LLAMA(4096, 8, 32, 1, 14336, 32000, 131072 + 256)},
	{.name = "8b8-mla", .model = OTHER(4096, 8, 32000, 131072 + 256), .config = LATENTS},
	{.name = "1.1b", .model = LLAMA(2048, 22, 32, 4, 5632, 32000, 131072 + 256)},
	{.name = "tiny", .model = LLAMA(1024, 4, 8, 2, 2048, 8192, 131072 + 256)},
	{.name = "mamba2-2.7b",
     .model = OTHER(2560, 8, 50288, 131072 + 256),
     .config = MAMBA2("8"),
     .state_bytes = 8 * 80 * 64 * 128 * 4.0},
	{.name = "mamba2-2.7b-half",
     .model = OTHER(2560, 4, 50288, 131072 + 256),
     .config = MAMBA2("4"),
     .state_bytes = 4 * 80 * 64 * 128 * 4.0},
	{.name = "gdn-8b",
     .model = OTHER(4096, 4, 128256, 131072 + 256),
     .config = HYBRID(GDN ", " GDN ", " GDN ", " ATTENTION),
     .state_bytes = 3 * 32 * 128 * 128 * 4.0},
	{.name = "gdn",
     .model = OTHER(4096, 4, 128256, 131072 + 256),
     .config = HYBRID(GDN ", " GDN ", " GDN ", " GDN),
     .state_bytes = 4 * 32 * 128 * 128 * 4.0},
	{.name = "hyena-32k",
     .model = OTHER(864, 18, 50288, 32768),
     .deepest = 32768,
     .config = HYENA_MODEL("32768")},
	{.name = "hyena-64k",
     .model = OTHER(864, 18, 50288, 65536),
     .deepest = 65536,
     .config = HYENA_MODEL("65536")},
};

const size_t n_engine_shapes = sizeof engine_shapes / sizeof *engine_shapes;
