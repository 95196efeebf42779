/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is around the convolutions: blocks of Hyena (order 2) and a feed-forward
 * with 2 width inner values and GELU, as in Flash Inference's experiments, with
 * random weights. A step's input is noise: nothing is looked up or drawn.
 */
#ifndef MX_BENCH_HYENA_MODEL_H
#define MX_BENCH_HYENA_MODEL_H

#include <stdbool.h>

#include "bench/mixers/hyena/conv.h"

struct model;

/* Nanoseconds of a step. */
struct model_time {
	uint64_t conv; /* in the long convolutions */
	uint64_t all;
};

/* layers, channels (the width) and batch of the shape; weights f32 or bf16. Ends the program if
 * there is no memory. */
struct model *model_open(const struct conv_shape *s, enum mx_dtype weights, struct mx_device *d);
void model_close(struct model *m);
size_t model_bytes(const struct conv_shape *s, enum mx_dtype weights);

/* Step t of n sequences. Without `whole` the convolutions alone, on noise; out (may be NULL) then
 * takes their outputs [layers][n, channels]. */
struct model_time model_step(struct model *m, struct conv *c, uint32_t n, uint32_t t, bool whole,
                             float *out);

/* What the convolution of a layer gets as input in step t of a step without `whole`: [n, channels].
 */
const float *model_noise(const struct model *m, uint32_t layer, uint32_t t);

#endif
