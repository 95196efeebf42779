/* SPDX-License-Identifier: Apache-2.0 */
/* The instance of the mixer hyena on CUDA devices, and what its files share. */
#ifndef MX_MIXERS_HYENA_CUDA_HYENA_CUDA_H
#define MX_MIXERS_HYENA_CUDA_HYENA_CUDA_H

#include "device/cuda/cuda.h"
#include "mixers/hyena/cuda/lc_cuda.h"
#include "mixers/hyena/cuda/modal_cuda.h"
#include "mixers/hyena/hyena_params.h"

/* Where things are in the scratch memory of a step, in bytes. */
struct hyc_scratch {
	size_t u;       /* f32 [max_rows, 3 channels] */
	size_t z, gate; /* f32 [max_rows, channels]; with modal filters */
	size_t sums;    /* f32 [channels, max_rows]; of prompts, with implicit ones */
	size_t out;     /* activations [max_rows, channels] */
	size_t bytes;
};

/* What a layer needs, in bytes. */
struct hyc_sizes {
	struct hyc_scratch scratch;
	size_t conv_offset, slot;     /* slot: without padding */
	size_t snapshot, conv_saved;  /* conv_saved: where the short convolution's ring is in it */
	size_t conv, window, spectra; /* of the instance; conv: of one of several ranks */
	size_t near;                  /* of the instance; 0: prompts are computed by tiles alone */
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct hyena_params params;
	struct mx_device *device;
	const struct mx_weight *w_in[3], *w_out; /* w_in: params.n_parts */
	const float *b_in, *b_out;               /* NULL = none; b_in: of all ranks */
	void *own_conv;                          /* one of several ranks' short convolution */
	uint32_t width, channels, max_rows;      /* channels: of the rank */
	struct hyc_sizes sizes;
	struct lcg_shape shape;
	struct lcg_layer layer; /* as it is uploaded */
	struct lcg_modal modal;
	/* Of implicit filters: the module's layers in the device's memory, how many, and this one's
	 * number. Layer 0 owns the array. */
	struct lcg_layer *layers;
	uint32_t number, n_layers;
	uint32_t blocks; /* thread blocks that run units */
};

static inline bool hyc_modal(const struct mx_mixer *m)
{
	return m->params.filter == HYENA_MODAL;
}

/* ---- filter_cuda.c ---- */

/* Returns how many lags of the filter are used: those of the tiles of max_len positions. */
uint32_t hyc_lags(uint32_t max_len, uint32_t filter_len);
/* Returns the bytes of all spectra. */
size_t hyc_spectra_bytes(uint32_t channels, uint32_t max_len);
/* Computes the filter and uploads what the kernels need of it to m->layer. vectors: the filter's,
 * in host memory, in the order of hyena_weights. */
mx_status hyc_filter_create(struct mx_mixer *m, uint32_t max_len, const float *const *vectors);
void hyc_filter_destroy(struct mx_mixer *m);

/* ---- forward_cuda.c: the entries of the table ---- */

mx_status hyc_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);
mx_status hyc_settle(struct mx_mixer *const *layers, uint32_t n_layers, const struct mx_step *step,
                     const struct mx_kept *kept);
mx_status hyc_resume(struct mx_mixer *const *layers, uint32_t n_layers, const struct mx_step *step,
                     uint32_t *progress);

#endif
