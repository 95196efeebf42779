/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rwkv mixer's internals: RWKV-7 "Goose" (Peng et al. 2025, arXiv:2503.14456), as
 * flash-linear-attention computes it. An instance is one of the two parts of a layer: time mixing,
 * over the core in mixers/recurrence, or channel mixing, a feed-forward whose input is mixed with
 * that of the token before. README.md has the equations.
 */
#ifndef MX_MIXERS_RWKV_RWKV_H
#define MX_MIXERS_RWKV_RWKV_H

#include "mixers/recurrence/recurrence.h"
#include "mixers/rwkv/rwkv_params.h"

struct mx_mixer {
	struct mx_mixer_base base;
	struct mx_device *device;
	const struct mx_recur_kernels *kernels;
	struct rwkv_params params;
	struct rwkv_weights w;
	uint32_t width, max_rows;
	struct mx_conv_spec shift; /* makes x_{t-1} - x_t of inputs: the token shift */
	float *taps;               /* [width, 2] its weights */
	struct mx_recur_spec recur;
	/* [max_rows, inner] v of the model's first time mixing in this step. That instance owns
	 * it; prepare hands it to the others. NULL for channel mixing. */
	float *v_first;
	bool is_first;
	unsigned char *slot_base;
	/* A slot and a snapshot are the shift's part, then the recurrence's. */
	size_t slot_stride, slot_bytes, shift_bytes, shift_snapshot;
};

/* A step's scratch: [rows, inner] where nothing else is said. */
struct rwkv_buffers {
	float *delta; /* [rows, width] x_{t-1} - x_t; then the removal keys z [rows, inner] */
	float *mix;   /* [rows, width] an input of a product; then the recurrence's output */
	float *low;   /* [rows, rank] of a low-rank product */
	float *r, *w, *k, *a, *v, *v_mix, *g;
	float *bonus; /* [rows, heads] */
	float *inner; /* of channel mixing */
	void *core;
};

/* Places the buffers in `base` (NULL: computes the size only) and returns their bytes. */
size_t rwkv_layout(const struct rwkv_params *p, const struct mx_recur_spec *recur, uint32_t width,
                   size_t rows, unsigned threads, unsigned char *base, struct rwkv_buffers *out);

mx_status rwkv_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

/* ---- functions of rows, in rwkv_rows.c ---- */

/* y = x + delta * mu, all [n_rows, width] but mu [width]. */
void rwkv_mix(struct mx_device *d, size_t n_rows, size_t width, const float *x, const float *delta,
              const float *mu, float *y);

/* Turns the products of a step into the recurrence's inputs, in place: w to decay factors, k to
 * replacement keys, a to what is added where z is removed, v mixed with v_first; makes z (in
 * b->delta) and the bonus of each head. The first time mixing writes v_first instead. */
void rwkv_inputs(const struct mx_mixer *m, size_t n_rows, const struct rwkv_buffers *b);

/* mix = (group norm of mix + bonus * v) * g */
void rwkv_outputs(const struct mx_mixer *m, size_t n_rows, const struct rwkv_buffers *b);

#endif
