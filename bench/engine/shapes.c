/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes:
 * - 110m: 768 wide, 12 layers, 12 heads, 2048 feed-forward, 32,000 tokens tied: 109.5 million
 *   parameters
 * - 1.1b: TinyLlama: 2048 wide, 22 layers, 32 heads over 4 kv heads, 5632 feed-forward, 32,000
 *   tokens untied: 1.10 billion parameters
 * - mamba2-130m: state-spaces/mamba2-130m: 768 wide, 24 layers of 24 heads of 64 with states of
 *   128, 50,288 tokens tied: 129 million parameters
 * - gdn-350m: Gated DeltaNet: 1024 wide, 21 layers of 3 heads of 256 x 512, 2816 feed-forward,
 *   32,000 tokens tied: 350 million parameters
 * - hyena-153m: Hyena as trained on the Pile: 864 wide, 18 layers with filters of 2048, 1728
 *   feed-forward, 50,288 tokens tied: 150 million parameters, and those that make the filters
 * - moe: 8 experts of 1024, two of which a token uses: 768 wide, 4 layers, 12 heads, 8,192 tokens
 *   tied: 91 million parameters
 * - moe-dense: the same with one feed-forward of 2048: the parameters that a token of moe uses
 * - falcon-h1-1.5b: Falcon-H1 1.5B: 24 layers of Mamba-2 beside attention
 * - granite4-moe: ten layers of Granite 4.0 H Tiny: Mamba-2, one of attention; 64 experts, six used
 * - nemotron-h-1b: Nemotron-H's blocks, 28 of them, 2048 wide
 * - lfm2-1.2b: LFM2 1.2B: short convolutions and six layers of attention
 * - qwen3next-moe: Qwen3-Next's layers, 12 of them, 1024 wide: GDN, gated attention; 64 experts,
 *   eight used and one shared
 * - mamba-1.4b: Mamba 1.4B
 * - gemma3-1b: Gemma 3 1B
 * - qwen3-moe: Qwen 3's layers, 16 of them, 1024 wide: 64 experts, eight used
 * - rwkv7-1.5b: RWKV-7 World 1.5B
 * - gpt-oss-moe: four layers of gpt-oss 20B, two with a window: sinks, biases; 16 experts, four of
 *   them used
 * - deepseek-v2-moe: six layers as wide as those of DeepSeek-V2 Lite, queries through a latent as
 *   in the large model: latent attention; 32 experts, six used, and two shared
 *
 * LFM2, Gemma and RWKV-7 have their vocabularies, those from falcon-h1-1.5b on otherwise one of
 * 32,768 tokens.
 */
#include "bench/engine/shapes.h"

#define MAMBA5 "\"mamba\", \"mamba\", \"mamba\", \"mamba\", \"mamba\""

#define MOE(feed_forward)                                                                          \
	"{\"model_type\": \"mixd\", \"hidden_size\": 768, \"num_attention_heads\": 12,\n"              \
	" \"vocab_size\": 8192, \"max_position_embeddings\": 1280, \"tie_word_embeddings\": true,\n"   \
	" " feed_forward "\n"                                                                          \
	" \"mixd_layers\": [{\"mixer\": \"attention\"}, {\"mixer\": \"attention\"},\n"                 \
	"  {\"mixer\": \"attention\"}, {\"mixer\": \"attention\"}]}\n"

#define HYENA                                                                                      \
	"{\"mixer\": \"hyena\", \"filter_len\": 2048, \"emb_dim\": 33, \"filter_order\": 64, "         \
	"\"shift\": 0.0}"

const struct shape engine_shapes[] = {
	{.name = "110m",
     .model = {.width = 768,
               .layers = 12,
               .heads = 12,
               .kv_heads = 12,
               .intermediate = 2048,
               .vocab = 32000,
               .max_context = 16384 + 256,
               .tied = true,
               .seed = 1},
     .deepest = 16384},
	{.name = "1.1b", .model = LLAMA(2048, 22, 32, 4, 5632, 32000, 4096 + 256), .deepest = 4096},
	{.name = "mamba2-130m",
     .model = OTHER(768, 24, 50288, 4096 + 256),
     .deepest = 4096,
     .config = "{\"model_type\": \"mamba2\", \"hidden_size\": 768, \"num_hidden_layers\": 24,\n"
               " \"num_heads\": 24, \"head_dim\": 64, \"state_size\": 128, \"n_groups\": 1,\n"
               " \"conv_kernel\": 4, \"layer_norm_epsilon\": 1e-05, \"vocab_size\": 50288,\n"
               " \"max_position_embeddings\": 4352, \"tie_word_embeddings\": true}\n",
     /* S is read and updated; a token sees 8.5 tokens of its chunk of 16 on average, and heads
      * share C B */
     .mixer_ops = 24 * (24 * 2.0 * (2 * 64 * 128 + 8.5 * 64) + 2 * 8.5 * 128),
     .state_bytes = 24 * 24 * 64 * 128 * 4.0},
	{.name = "gdn-350m",
     .model = OTHER(1024, 21, 32000, 4096 + 256),
     .deepest = 4096,
     .config = "{\"model_type\": \"gated_deltanet\", \"hidden_size\": 1024,\n"
               " \"num_hidden_layers\": 21, \"num_heads\": 3, \"head_dim\": 256, \"expand_v\": 2,\n"
               " \"vocab_size\": 32000, \"max_position_embeddings\": 4352,\n"
               " \"tie_word_embeddings\": true}\n",
     /* S is read for k and for q, and updated; both see 8.5 tokens of a chunk on average */
     .mixer_ops = 21 * 3 * (6.0 * 256 * 512 + 8.5 * 4 * (256 + 512)),
     .state_bytes = 21 * 3 * 256 * 512 * 4.0},
	{.name = "hyena-153m",
     .model = OTHER(864, 18, 50288, 2048),
     .deepest = 1024,
     .config = PILE_HYENA(HYENA, "2048"),
     /* tiles (mixers/hyena/README.md), short filters and gates */
     .mixer_ops = 18 * 864 * (500 + 3 * 6 + 2.0),
     /* lags and inputs of the window; spectra and cells of the tiles, a step's share */
     .state_bytes = 18 * 864 * 4.0 * (128 + 30)},
	/* Attention over prompts this short is 3 % of the operations and is not counted. */
	{.name = "moe",
     .model = OTHER(768, 4, 8192, 1024 + 256),
     .deepest = 512,
     .config = MOE("\"num_experts\": 8, \"num_experts_per_tok\": 2,\n"
                   " \"moe_intermediate_size\": 1024, \"norm_topk_prob\": true,")},
	{.name = "moe-dense",
     .model = OTHER(768, 4, 8192, 1024 + 256),
     .deepest = 512,
     .config = MOE("\"intermediate_size\": 2048,")},
	/* Of the sizes of published checkpoints, or fewer layers or experts of theirs. */
	{.name = "falcon-h1-1.5b",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"falcon_h1\", \"hidden_size\": 2048, \"intermediate_size\": 4096,\n"
         " \"num_hidden_layers\": 24, \"num_attention_heads\": 8, \"num_key_value_heads\": 2,\n"
         " \"head_dim\": 128, \"vocab_size\": 32768, \"hidden_act\": \"silu\",\n"
         " \"max_position_embeddings\": 16384, \"rms_norm_eps\": 1e-05,\n"
         " \"rope_theta\": 1e11, \"attention_bias\": false, \"mlp_bias\": false,\n"
         " \"projectors_bias\": false, \"mamba_d_ssm\": 3072, \"mamba_n_heads\": 48,\n"
         " \"mamba_d_head\": 64, \"mamba_d_state\": 256, \"mamba_n_groups\": 1,\n"
         " \"mamba_d_conv\": 4, \"mamba_expand\": 2, \"mamba_conv_bias\": true,\n"
         " \"mamba_proj_bias\": false, \"mamba_rms_norm\": false,\n"
         " \"mamba_norm_before_gate\": false, \"tie_word_embeddings\": false}\n"},
	{.name = "granite4-moe",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"granitemoehybrid\", \"hidden_size\": 1536,\n"
         " \"intermediate_size\": 512, \"shared_intermediate_size\": 1024,\n"
         " \"num_hidden_layers\": 10, \"num_attention_heads\": 12, \"num_key_value_heads\": 4,\n"
         " \"vocab_size\": 32768, \"hidden_act\": \"silu\", \"max_position_embeddings\": 131072,\n"
         " \"rms_norm_eps\": 1e-05, \"attention_bias\": false,\n"
         " \"attention_multiplier\": 0.0078125, \"embedding_multiplier\": 12,\n"
         " \"logits_scaling\": 6, \"residual_multiplier\": 0.22,\n"
         " \"position_embedding_type\": \"nope\", \"rope_theta\": 10000,\n"
         " \"num_local_experts\": 64, \"num_experts_per_tok\": 6, \"mamba_n_heads\": 48,\n"
         " \"mamba_d_head\": 64, \"mamba_d_state\": 128, \"mamba_n_groups\": 1,\n"
         " \"mamba_d_conv\": 4, \"mamba_expand\": 2, \"mamba_conv_bias\": true,\n"
         " \"mamba_proj_bias\": false, \"mamba_chunk_size\": 256,\n"
         " \"layer_types\": [" MAMBA5
         ", \"attention\", \"mamba\", \"mamba\", \"mamba\", \"mamba\"],\n"
         " \"tie_word_embeddings\": true}\n"},
	{.name = "nemotron-h-1b",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"nemotron_h\", \"hidden_size\": 2048, \"intermediate_size\": 8192,\n"
         " \"num_hidden_layers\": 28, \"num_attention_heads\": 16, \"num_key_value_heads\": 4,\n"
         " \"hybrid_override_pattern\": \"M-M-M-M*-M-M-M-M*-M-M-M-M-M-\", \"head_dim\": 128,\n"
         " \"vocab_size\": 32768, \"mlp_hidden_act\": \"relu2\", \"mlp_bias\": false,\n"
         " \"attention_bias\": false, \"mamba_num_heads\": 64, \"mamba_head_dim\": 64,\n"
         " \"ssm_state_size\": 128, \"n_groups\": 8, \"conv_kernel\": 4, \"expand\": 2,\n"
         " \"use_bias\": false, \"use_conv_bias\": true, \"layer_norm_epsilon\": 1e-05,\n"
         " \"max_position_embeddings\": 131072, \"tie_word_embeddings\": false}\n"},
	{.name = "lfm2-1.2b",
     .model = {.seed = 1},
     .deepest = 512,
     .config = "{\"model_type\": \"lfm2\", \"hidden_size\": 2048, \"num_hidden_layers\": 16,\n"
               " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 65536,\n"
               " \"max_position_embeddings\": 128000, \"norm_eps\": 1e-05,\n"
               " \"rope_theta\": 1000000.0, \"conv_L_cache\": 3, \"conv_bias\": false,\n"
               " \"block_ff_dim\": 12288, \"block_multiple_of\": 256,\n"
               " \"block_ffn_dim_multiplier\": 1.0, \"block_auto_adjust_ff_dim\": true,\n"
               " \"full_attn_idxs\": [2, 5, 8, 10, 12, 14], \"tie_embedding\": true}\n"},
	{.name = "qwen3next-moe",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"qwen3_next\", \"hidden_size\": 1024, \"intermediate_size\": 2048,\n"
         " \"num_hidden_layers\": 12, \"num_attention_heads\": 8, \"num_key_value_heads\": 2,\n"
         " \"head_dim\": 256, \"vocab_size\": 32768, \"hidden_act\": \"silu\",\n"
         " \"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-06,\n"
         " \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25,\n"
         " \"full_attention_interval\": 4, \"linear_num_key_heads\": 8,\n"
         " \"linear_num_value_heads\": 16, \"linear_key_head_dim\": 128,\n"
         " \"linear_value_head_dim\": 128, \"linear_conv_kernel_dim\": 4, \"num_experts\": 64,\n"
         " \"num_experts_per_tok\": 8, \"decoder_sparse_step\": 1, \"mlp_only_layers\": [],\n"
         " \"moe_intermediate_size\": 512, \"shared_expert_intermediate_size\": 512,\n"
         " \"norm_topk_prob\": true, \"attention_bias\": false,\n"
         " \"tie_word_embeddings\": false}\n"},
	{.name = "mamba-1.4b",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"mamba\", \"hidden_size\": 2048, \"num_hidden_layers\": 48,\n"
         " \"state_size\": 16, \"expand\": 2, \"intermediate_size\": 4096, \"conv_kernel\": 4,\n"
         " \"time_step_rank\": 128, \"use_bias\": false, \"use_conv_bias\": true,\n"
         " \"vocab_size\": 32768, \"layer_norm_epsilon\": 1e-05, \"hidden_act\": \"silu\"}\n"},
	{.name = "gemma3-1b",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"gemma3_text\", \"hidden_size\": 1152, \"intermediate_size\": 6912,\n"
         " \"num_hidden_layers\": 26, \"num_attention_heads\": 4, \"num_key_value_heads\": 1,\n"
         " \"head_dim\": 256, \"vocab_size\": 262144, \"query_pre_attn_scalar\": 256,\n"
         " \"sliding_window\": 512, \"hidden_activation\": \"gelu_pytorch_tanh\",\n"
         " \"max_position_embeddings\": 32768, \"rms_norm_eps\": 1e-06,\n"
         " \"rope_theta\": 1000000.0, \"rope_local_base_freq\": 10000.0,\n"
         " \"sliding_window_pattern\": 6}\n"},
	{.name = "qwen3-moe",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 1024, \"intermediate_size\": 3072,\n"
         " \"num_hidden_layers\": 16, \"num_attention_heads\": 16, \"num_key_value_heads\": 4,\n"
         " \"head_dim\": 128, \"vocab_size\": 32768, \"hidden_act\": \"silu\",\n"
         " \"max_position_embeddings\": 40960, \"rms_norm_eps\": 1e-06,\n"
         " \"rope_theta\": 1000000.0, \"num_experts\": 64, \"num_experts_per_tok\": 8,\n"
         " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"moe_intermediate_size\": 384,\n"
         " \"norm_topk_prob\": true, \"attention_bias\": false,\n"
         " \"tie_word_embeddings\": false}\n"},
	{.name = "rwkv7-1.5b",
     .model = {.seed = 1},
     .deepest = 512,
     .config = "{\"model_type\": \"rwkv7\", \"hidden_size\": 2048, \"num_hidden_layers\": 24,\n"
               " \"head_dim\": 64, \"intermediate_size\": 8192, \"hidden_act\": \"sqrelu\",\n"
               " \"decay_low_rank_dim\": 96, \"a_low_rank_dim\": 96, \"v_low_rank_dim\": 64,\n"
               " \"gate_low_rank_dim\": 256, \"norm_first\": true, \"norm_bias\": true,\n"
               " \"norm_eps\": 1e-05, \"vocab_size\": 65536, \"max_position_embeddings\": 4096,\n"
               " \"tie_word_embeddings\": false}\n"},
	{.name = "gpt-oss-moe",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"gpt_oss\", \"hidden_size\": 2880, \"intermediate_size\": 2880,\n"
         " \"num_hidden_layers\": 4, \"num_attention_heads\": 64, \"num_key_value_heads\": 8,\n"
         " \"head_dim\": 64, \"vocab_size\": 32768, \"hidden_act\": \"silu\",\n"
         " \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-05,\n"
         " \"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0,\n"
         "  \"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false,\n"
         "  \"original_max_position_embeddings\": 4096},\n"
         " \"sliding_window\": 128, \"attention_bias\": true, \"swiglu_limit\": 7.0,\n"
         " \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\",\n"
         "  \"full_attention\"], \"num_local_experts\": 16, \"num_experts_per_tok\": 4,\n"
         " \"tie_word_embeddings\": false}\n"},
	{.name = "deepseek-v2-moe",
     .model = {.seed = 1},
     .deepest = 512,
     .config =
         "{\"model_type\": \"deepseek_v2\", \"hidden_size\": 2048, \"intermediate_size\": 10944,\n"
         " \"num_hidden_layers\": 6, \"num_attention_heads\": 16, \"num_key_value_heads\": 16,\n"
         " \"q_lora_rank\": 768, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128,\n"
         " \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"vocab_size\": 32768,\n"
         " \"hidden_act\": \"silu\", \"max_position_embeddings\": 4096,\n"
         " \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000, \"attention_bias\": false,\n"
         " \"n_routed_experts\": 32, \"num_experts_per_tok\": 6, \"n_shared_experts\": 2,\n"
         " \"moe_intermediate_size\": 1408, \"moe_layer_freq\": 1,\n"
         " \"first_k_dense_replace\": 1, \"norm_topk_prob\": false, \"scoring_func\": "
         "\"softmax\",\n"
         " \"topk_method\": \"greedy\", \"n_group\": 1, \"topk_group\": 1,\n"
         " \"routed_scaling_factor\": 1.0, \"tie_word_embeddings\": false}\n"},
};

const size_t n_engine_shapes = sizeof engine_shapes / sizeof *engine_shapes;
