/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA attention module by itself, for its test and its benchmark: a device
 * whose products are copies, so that queries, keys and values are what the
 * caller says and the output is attention's own. Any CUDA error ends the
 * program.
 */
#ifndef MX_TESTS_GPU_ATTENTION_RIG_H
#define MX_TESTS_GPU_ATTENTION_RIG_H

#include <cuda_runtime_api.h>

#include "device/comm.h"
#include "device/cuda/cuda.h"
#include "mixers/mixer.h"
#include "tests/rng.h"

struct att_case {
	const char *name;
	uint32_t heads, kv_heads, head_dim, window;
	enum mx_dtype act, kv;
	uint32_t page_tokens;
	bool rope, norm;
	/* largest |y - reference| / largest |reference|; with rope in f32 the angle at position 5000 is
	 * rounded to 2.4e-4 of a radian */
	double tolerance;
	double cap; /* softcap; 0 = none */
	bool sinks;
	bool pairs; /* rope of pairs */
	bool skip_first;
};

#define ATT_SHAPES                                                                                   \
	{"8 of 128", 8, 2, 128, 0, MX_BF16, MX_BF16, 32, false, false, .tolerance = 1e-2},               \
		{"8 of 128, rope, norm", 8, 2, 128, 0, MX_BF16, MX_BF16, 64, true, true, .tolerance = 2e-2}, \
		{"7 of 64, window", 14, 2, 64, 300, MX_BF16, MX_BF16, 16, false, false, .tolerance = 1e-2},  \
		{"one of 96", 2, 2, 96, 0, MX_BF16, MX_BF16, 48, false, false, .tolerance = 1e-2},           \
		{"8 a key head, of 80", 8, 1, 80, 0, MX_BF16, MX_BF16, 32, true, false, .tolerance = 2e-2},  \
		{"4 of 256, window", 4, 1, 256, 70, MX_BF16, MX_BF16, 32, false, false, .tolerance = 1e-2},  \
		{"20 of 16", 20, 1, 16, 0, MX_BF16, MX_BF16, 32, false, false, .tolerance = 1e-2},           \
		{"3 of 7, odd", 6, 2, 7, 0, MX_BF16, MX_BF16, 32, false, true, .tolerance = 2e-2},           \
		{"8 of 128, fp8", 8, 2, 128, 0, MX_BF16, MX_F8E4M3, 32, false, false, .tolerance = 1e-2},    \
		{"4 of 64, fp8, window", 8, 2, 64, 129, MX_BF16, MX_F8E4M3, 16, false, false,                \
	     .tolerance = 1e-2},                                                                         \
		{"2 of 96, fp8", 4, 2, 96, 0, MX_BF16, MX_F8E4M3, 32, false, false, .tolerance = 1e-2},      \
		{"2 of 32, fp8", 4, 2, 32, 0, MX_BF16, MX_F8E4M3, 32, false, false, .tolerance = 1e-2},      \
		{"1 of 256, fp8", 2, 2, 256, 0, MX_BF16, MX_F8E4M3, 32, false, false, .tolerance = 1e-2},    \
		{"8 of 128, softcap", 8,       2, 128, 200, MX_BF16, MX_BF16, 32, true, false,               \
	     .tolerance = 2e-2,   .cap = 5},                                                             \
		{"4 of 256, softcap", 8,       4, 256, 0, MX_BF16, MX_BF16, 32, false, false,                \
	     .tolerance = 1e-2,   .cap = 3},                                                             \
		{"8 of 64, sinks", 8, 1, 64, 128, MX_BF16, MX_BF16, 32, true, false, .tolerance = 2e-2,      \
	     .sinks = true},                                                                             \
		{"4 of 128, sinks, fp8",                                                                     \
	     4,                                                                                          \
	     2,                                                                                          \
	     128,                                                                                        \
	     0,                                                                                          \
	     MX_BF16,                                                                                    \
	     MX_F8E4M3,                                                                                  \
	     32,                                                                                         \
	     false,                                                                                      \
	     false,                                                                                      \
	     .tolerance = 1e-2,                                                                          \
	     .sinks = true},                                                                             \
		{"8 of 128, pairs", 8, 2, 128, 90, MX_BF16, MX_BF16, 32, true, false, .tolerance = 2e-2,     \
	     .pairs = true},                                                                             \
		{"all, f32",                                                                                 \
	     4,                                                                                          \
	     1,                                                                                          \
	     24,                                                                                         \
	     70,                                                                                         \
	     MX_F32,                                                                                     \
	     MX_F32,                                                                                     \
	     32,                                                                                         \
	     true,                                                                                       \
	     false,                                                                                      \
	     .tolerance = 2e-4,                                                                          \
	     .cap = 2,                                                                                   \
	     .sinks = true,                                                                              \
	     .pairs =                                                                                    \
	         true}, /* prompts have more tiles than the GPU has multiprocessors (prefill.cu) */      \
		{"24 of 64", 24, 8, 64, 0, MX_BF16, MX_BF16, 32, true, false, .tolerance = 2e-2},            \
		{"16 of 128, fp8", 16, 16, 128, 0, MX_BF16, MX_F8E4M3, 16, false, false, .tolerance = 1e-2}, \
		{"4 of 8, f32", 4, 1, 8, 0, MX_F32, MX_F32, 16, true, true, .tolerance = 2e-5},              \
		{"2 of 512", 4, 2, 512, 0, MX_BF16, MX_BF16, 32, true, true, .tolerance = 2e-2},             \
		{"4 of 300, fp8, window", 4, 1, 300, 90, MX_BF16, MX_F8E4M3, 32, true, false,                \
	     .tolerance = 2e-2},                                                                         \
		{"2 of 512, f32", 2, 1, 512, 0, MX_F32, MX_F32, 32, true, true, .tolerance = 2e-4},          \
		{"2 of 128, f32, window", 4, 2, 128, 100, MX_F32, MX_F32, 32, false, false,                  \
	     .tolerance = 2e-5},                                                                         \
		{"f32 of bf16 keys", 4, 2, 64, 0, MX_F32, MX_BF16, 32, false, false, .tolerance = 2e-5},     \
		{"8 of 128, skip first", 8, 2, 128, 0, MX_BF16, MX_BF16, 32, true, true, .tolerance = 2e-2,  \
	     .skip_first = true},                                                                        \
		{"7 of 64, skip first, window",                                                              \
	     14,                                                                                         \
	     2,                                                                                          \
	     64,                                                                                         \
	     300,                                                                                        \
	     MX_BF16,                                                                                    \
	     MX_BF16,                                                                                    \
	     16,                                                                                         \
	     false,                                                                                      \
	     false,                                                                                      \
	     .tolerance = 1e-2,                                                                          \
	     .skip_first = true},                                                                        \
		{"4 of 256, skip first", 8, 2, 256, 0, MX_BF16, MX_BF16, 32, true, true, .tolerance = 2e-2,  \
	     .skip_first = true},                                                                        \
		{"4 of 8, f32, skip first", 4, 1, 8, 0, MX_F32, MX_F32, 16, true, false, .tolerance = 2e-4,  \
	     .skip_first = true},                                                                        \
	{                                                                                                \
		"bf16 of f32 keys", 4, 2, 64, 0, MX_BF16, MX_F32, 32, false, false, .tolerance = 1e-2        \
	}

/* Frequencies of all rotated dimensions; the whole head is rotated. */
double att_frequency(uint32_t head_dim, uint32_t i);
#define ATT_NORM_EPS 1e-6
float att_sink(uint32_t head);     /* its score */
float att_norm_weight(uint32_t i); /* of dimension i, of queries and keys alike */

struct att_limits {
	uint32_t max_context, max_rows, max_spans, max_draft, n_pages;
	bool deterministic;
	/* ranks that share pages, and which of them the rig is; page_tokens of the case are those of a
	 * rank. 0 = none do. Then there are partials instead of outputs. */
	uint32_t contexts, context;
};

struct att_rig {
	struct mx_cuda_base base; /* the device */
	struct mx_comm comm;      /* with ranks that share pages: takes what they are told */
	float *told; /* [contexts][rows][heads / contexts][dim + 4] of the last step, owned */
	uint32_t dim;
	struct mx_ops device_ops;
	bool products; /* false: linear does nothing, scratch is what it is */
	const struct att_case *c;
	struct att_limits limits;
	const struct mx_mixer_ops *ops;
	struct mx_mixer *mixer;
	struct mx_state_spec state;
	uint32_t ld;    /* elements of a row of q, k and v side by side; also the layer's width */
	size_t element; /* bytes of an activation */
	unsigned char *pages, *scratch, *x, *y; /* device memory; y [rows, ld] */
	size_t page_bytes, page_stride, pages_bytes;
	/* the step's tables, here and on the device */
	struct mx_device_tables tables;
	uint32_t *pos, *row_span, *page_list;
	struct mx_device_span *spans;
	struct mx_span *host_spans;
	uint32_t longest; /* tokens of the longest of them */
	uint32_t max_page_list;
	struct mx_weight w[4];
	void *owned[16]; /* device memory */
	int n_owned;
};

#define ATT_GUARD  0xa5 /* between pages */
#define ATT_POISON 0xff /* NaN in every format */

void att_check(cudaError_t e, const char *what);
#define ATT_CUDA(call) att_check((call), #call)

/* False if there is no GPU. */
bool att_gpu(void);
/* Returns the compute capability of the GPU, 90 = 9.0. */
int att_sm(void);
/* `modules` is the folder of attention-cuda.so. */
void att_open(struct att_rig *r, const char *modules, const struct att_case *c,
              const struct att_limits *l);
void att_close(struct att_rig *r);

/* Rows of one sequence in a step; n = 0: a row that fills up. */
struct att_span {
	uint32_t n, pos;
	const uint32_t *pages;
	uint32_t n_pages;
};

/* Writes the tables of a step, here and to the device; rows in the order of spans. Returns the
 * number of rows. */
uint32_t att_tables(struct att_rig *r, const struct att_span *spans, uint32_t n_spans);
/* forward of what att_tables wrote, in the stream. */
void att_forward(struct att_rig *r, uint32_t n_rows, uint32_t n_spans, bool recording);

#endif
