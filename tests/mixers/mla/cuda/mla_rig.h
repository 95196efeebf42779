/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA module of mla without an engine: a device whose products are copies, one layer, pages
 * and the tables of a step. For its test and its benchmark. Errors end the program.
 */
#ifndef MX_TESTS_MLA_RIG_H
#define MX_TESTS_MLA_RIG_H

#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "mixers/mixer.h"

#define RIG_CUDA(call) rig_check((call), #call)
void rig_check(cudaError_t e, const char *what);

#define RIG_PAGE  32 /* tokens */
#define RIG_SPANS 512

struct rig_layer {
	uint32_t heads, rank, nope, rope, v;
	bool skip_first, deterministic;
	uint32_t max_context, max_rows, n_pages;
};

struct rig_span {
	uint32_t n, pos;
	const uint32_t *pages; /* [n_pages] */
	uint32_t n_pages;
};

struct rig {
	struct mx_cuda_base base;
	struct mx_ops ops;
	void *module;
	const struct mx_mixer_ops *mixer;
	struct mx_mixer *m;
	struct mx_state_spec state;
	struct mx_weight matrices[MX_MIXER_MAX_WEIGHTS];
	bool products; /* products are copied; else outputs are left as they are */
	/* Inputs of the layer's products side by side, bf16: [latent | k_rope | q of each head];
	 * outputs of heads, [heads v]. Device memory. */
	uint32_t columns, width;
	uint16_t *x, *y;
	unsigned char *pages, *scratch;
	struct mx_device_tables tables;
	uint32_t *table; /* the tables' memory */
	void *owned[40];
	uint32_t n_owned;
};

bool rig_gpu(void);
void rig_open(struct rig *r, const char *folder, const struct rig_layer *l);
void rig_close(struct rig *r);
/* Puts a step's spans into the tables and waits. */
void rig_tables(struct rig *r, const struct rig_span *spans, uint32_t n);
/* Computes the step; the tables must hold the same spans. */
void rig_forward(struct rig *r, const struct rig_span *spans, uint32_t n, bool recording);

#endif
