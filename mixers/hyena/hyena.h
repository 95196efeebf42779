/* SPDX-License-Identifier: Apache-2.0 */
/* The hyena mixer's instance and what its files share. */
#ifndef MX_MIXERS_HYENA_HYENA_H
#define MX_MIXERS_HYENA_HYENA_H

#include "mixers/hyena/hyena_params.h"
#include "mixers/hyena/longconv.h"
#include "mixers/hyena/modal.h"
#include "mixers/recurrence/recurrence.h"
#include "mixers/mixer.h"

/* Where things are in the step's scratch memory, in bytes from its start, where the long
 * convolution's own scratch is. All are f32, the step's rows one after the other. */
struct hyena_scratch {
	size_t u; /* [max_rows, 3 channels]: x0, x1, v of each head */
	size_t z; /* [max_rows, channels] x1 v */
	size_t y; /* [max_rows, channels] */
	size_t bytes;
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct hyena_params params;
	struct mx_device *device;
	const struct mx_recur_kernels *kernels; /* of the short convolution */
	struct mx_conv_spec conv;
	const struct mx_weight *w_in[3], *w_out; /* w_in: the parts of the projection */
	const float *b_in, *b_out;               /* NULL = none; b_in [3 width] of all ranks */
	const float *conv_weight, *conv_bias;    /* [3 channels, taps], [3 channels] */
	float *own_conv;                         /* both, owned; NULL = one rank */
	struct lc *lc;                           /* implicit */
	struct modal *modal;                     /* modal */
	uint32_t width, channels, max_rows;      /* channels: the rank's */
	uint32_t max_context;                    /* lags of an implicit filter that are used */
	struct hyena_scratch scratch;
	unsigned char *slot_base; /* a slot: the filter's part, then the short convolution's */
	size_t slot_stride;
	size_t filter_bytes;    /* bytes of the filter's part of a slot */
	size_t filter_snapshot; /* bytes of the filter's part of a snapshot */
	void *settle_scratch;   /* shared by all layers of the module */
};

/* ---- hyena_forward.c ---- */

/* Lays out the scratch memory of a step. filter: bytes that the filter needs. */
void hyena_scratch_layout(const struct mx_layer_desc *layer, const struct hyena_params *p,
                          size_t filter, struct hyena_scratch *out);
mx_status hyena_forward(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

#endif
