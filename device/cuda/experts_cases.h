/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of experts_cases.def as a table, for the test and the benchmark that include it. */
#ifndef MX_DEVICE_CUDA_EXPERTS_CASES_H
#define MX_DEVICE_CUDA_EXPERTS_CASES_H

#include <stdint.h>

/* What uses a case. PACKED: with packed matrices, too. */
enum { TEST = 1, BENCH = 2, PACKED = 4 };
/* Parts of a variant. */
enum {
	GATED = 1,
	GELU = 2,
	RELU2 = 4,
	LIMIT = 8,
	BIASES = 16,
	SIGMOID = 32,
	CORRECTED = 64,
	GROUPS = 128,
	BY_BEST = 256,
	NORMALIZE = 512,
	SCALES = 1024,
	SHARED = 2048,
	SHARE = 4096,
};

static const struct shape {
	const char *name;
	uint32_t n, chosen, cols, width, variant, uses;
} shapes[] = {
#define EXPERTS(name, n, chosen, cols, width, variant, uses)                                       \
	{name, n, chosen, cols, width, variant, uses},
#include "device/cuda/experts_cases.def"
#undef EXPERTS
};

#endif
