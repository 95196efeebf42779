/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a Llama-shaped checkpoint of random weights: config.json and
 * model.safetensors. For benchmarks and tests; there is no tokenizer.
 *
 * Weights are uniform with the variance that keeps the scale of what flows
 * through (1 / columns), norms are 1. So no activation is ever subnormal, and
 * speed is that of a trained model.
 */
#ifndef MX_BENCH_RANDOM_MODEL_H
#define MX_BENCH_RANDOM_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "device/dtype.h"

struct mx_random_model {
	uint32_t width, layers, heads, kv_heads, intermediate, vocab, max_context;
	bool tied;
	bool hybrid; /* of our own model_type: odd layers have the mixer "ema" of tests/out-of-tree */
	enum mx_dtype dtype;
	uint64_t seed;
};

/* dir must exist. */
mx_status mx_random_model_write(const char *dir, const struct mx_random_model *m,
                                struct mx_err *err);
/* Removes what the above wrote, and the folder. */
void mx_random_model_remove(const char *dir);
/* Number of parameters. */
uint64_t mx_random_model_parameters(const struct mx_random_model *m);

#endif
