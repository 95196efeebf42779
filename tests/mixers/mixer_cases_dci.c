/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the dci mixer. Where it attends to all keys the reference is attention's. */
#include "mixer_cases.h"

static const double freq8[] = {1,    0.31622776601683794,   0.1,   0.031622776601683794,
                               0.01, 0.0031622776601683794, 0.001, 0.00031622776601683794};

#define HEADS(h, k, d)         INT("heads", h), INT("kv_heads", k), INT("head_dim", d)
#define ROPE                   STRING("rope", "default"), INT("rope_dim", 16), FLOATS("rope_inv_freq", freq8)
#define EXACTLY(first, recent) INT("first", first), INT("recent", recent)

#define DCI(label, width, tokens, weights, state, tolerance, reference, ...)                       \
	{                                                                                              \
		label, width, tokens, weights, state, PARAMS(__VA_ARGS__), NULL, tolerance, reference, 0   \
	}

static const struct mixer_case cases[] = {
	DCI("all keys, f32", 48, 600, MX_F32, MX_F32, EXACT, mixer_attention_reference, HEADS(4, 2, 16),
        ROPE, EXACTLY(0, 1), INT("top_k", 600), INT("visits", 600)),
	DCI("all keys, odd head, softcap, bf16", 32, 300, MX_BF16, MX_BF16, ROUNDED,
        mixer_attention_reference, HEADS(5, 1, 80), ROPE, EXACTLY(64, 20), INT("top_k", 300),
        INT("visits", 300), FLOAT("softcap", 2)),
	DCI("all keys, sinks, biases, qk-norm, f32", 48, 300, MX_F32, MX_F32, EXACT,
        mixer_attention_reference, HEADS(6, 2, 24), ROPE, EXACTLY(0, 40), INT("top_k", 300),
        INT("visits", 300), BOOL("sinks"), BOOL("bias"), BOOL("qk_norm"), BOOL("o_bias")),
	DCI("few keys, f32", 48, 600, MX_F32, MX_F32, EXACT, NULL, HEADS(4, 2, 16), ROPE,
        EXACTLY(64, 10), INT("top_k", 5), INT("visits", 20)),
	DCI("few keys without the rest, f32", 48, 600, MX_F32, MX_F32, EXACT, NULL, HEADS(4, 2, 16),
        ROPE, EXACTLY(64, 10), INT("top_k", 5), INT("visits", 20),
        {.name = "rest", .type = MX_PARAM_BOOL, .i = 0}),
	DCI("few keys, bf16", 32, 600, MX_BF16, MX_BF16, ROUNDED, NULL, HEADS(6, 1, 64), ROPE,
        EXACTLY(0, 100), INT("top_k", 30), INT("visits", 30), INT("seed", 7)),
	DCI("auto, head of 128, many directions, bf16", 32, 600, MX_BF16, MX_BF16, ROUNDED, NULL,
        HEADS(4, 2, 128), ROPE, EXACTLY(0, 30), STRING("top_k", "auto"), STRING("visits", "auto"),
        INT("directions", 256), FLOAT("alpha", 0.05)),
};

static const struct mixer_wrong wrongs[] = {
	{INT("heads", 0), "heads"},         {INT("window", 100), "sliding window"},
	{INT("top_k", 0), "top_k"},         {STRING("top_k", "some"), "top_k"},
	{INT("visits", 1000000), "visits"}, {INT("visits", 10), "top_k"},
	{INT("first", -1), "first"},        {INT("recent", 0), "recent"},
	{FLOAT("alpha", 2), "alpha"},       {INT("directions", 100), "directions"},
	{INT("top_kk", 5), "top_kk"},       {INT("directions", 1 << 20), "directions"},
};

const struct mixer_set mixer_set_dci = {"dci", SET(cases), SET(wrongs), 0};
