/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model around the convolutions: blocks of Hyena (order 2) and a feed-forward with 2 width
 * inner values and GELU, as in Flash Inference's experiments, with random weights. A step's input
 * is noise: no embedding is looked up and no token drawn.
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

/* Creates a model with the layers, channels (the width) and batch of the shape, and weights in
 * f32 or bf16. Ends the program if there is no memory. */
struct model *model_open(const struct conv_shape *s, enum mx_dtype weights, struct mx_device *d);
void model_close(struct model *m);
size_t model_bytes(const struct conv_shape *s, enum mx_dtype weights);

/* Runs step t of n sequences. Without `whole` it runs the convolutions alone, on noise, and
 * writes their outputs to out[layers][n, channels] unless that is NULL. */
struct model_time model_step(struct model *m, struct conv *c, uint32_t n, uint32_t t, bool whole,
                             float *out);

/* Computes the input [n, channels] of a layer's convolution in a step t without `whole`. */
const float *model_noise(const struct model *m, uint32_t layer, uint32_t t);

#endif
