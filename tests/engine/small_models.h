/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint of random weights of each kind of model, for tests of the model engine: two or three
 * layers, 64 wide, 320 tokens, contexts of up to 512.
 */
#ifndef MX_TESTS_ENGINE_SMALL_MODELS_H
#define MX_TESTS_ENGINE_SMALL_MODELS_H

enum { VOCAB = 320, CONTEXT = 512 };

/* Llama's shape in f32 and bf16; attention and slot state in turn; slot state alone;
 * two mixers in a layer, multipliers and experts; look-ahead pages and slot state; the recurrent
 * families: one with attention in between, one with a tensor that all layers share, one without
 * feed-forward; long convolutions. */
enum { F32, BF16, HYBRID, RECURRENT, MIXTURE, REACHING, DELTA, HGRN2, MAMBA2, HYENA, N_DIRS };
/* The folder of each. */
extern char small_dirs[N_DIRS][64];

/* Beginning of a config.json of `model_type: mixd` with these sizes; "mixd_layers" and a brace are
 * to follow. */
#define SMALL_MIXD                                                                                 \
	"{\"model_type\":\"mixd\",\"hidden_size\":64,\"num_attention_heads\":4,"                       \
	"\"num_key_value_heads\":2,\"intermediate_size\":160,\"vocab_size\":320,"                      \
	"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"

/* Of a cmocka group: writes the checkpoints, and removes them. */
int small_models_make(void **state);
int small_models_remove(void **state);

#endif
