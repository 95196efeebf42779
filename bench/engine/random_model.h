/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a Llama-shaped checkpoint of random weights: config.json and
 * model.safetensors. For benchmarks and tests; there is no tokenizer.
 *
 * Weights are uniform with variance 1 / columns, which keeps the scale of activations; norms are
 * 1. So no activation is subnormal, and the speed is that of a trained model.
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
	enum mx_dtype dtype;
	uint64_t seed;
};

/* Writes both files. dir must exist. */
mx_status mx_random_model_write(const char *dir, const struct mx_random_model *m,
                                struct mx_err *err);
/* Removes both files and the folder. */
void mx_random_model_remove(const char *dir);

/* ---- the parts, for checkpoints of another shape ---- */

/* A tensor to write: uniform in offset +- scale. */
struct mx_random_tensor {
	char name[128];
	uint32_t ndim;
	uint64_t shape[4];
	float scale, offset;
};

/* Returns the scale at which a uniform distribution has the variance 1 / cols. */
float mx_random_scale(uint64_t cols);
mx_status mx_random_config_write(const char *dir, const char *text, struct mx_err *err);
mx_status mx_random_tensors_write(const char *dir, const struct mx_random_tensor *tensors, size_t n,
                                  enum mx_dtype dtype, uint64_t seed, struct mx_err *err);

#endif
