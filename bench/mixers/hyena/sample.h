/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Estimates the time of all steps of a run from some of them: the quadratic ways would take hours,
 * but the time of their steps is a smooth function of the position, and that of a tile of its
 * side. Steps are run at the positions wanted without those in between: the values are then wrong
 * and take the same time.
 */
#ifndef MX_BENCH_HYENA_SAMPLE_H
#define MX_BENCH_HYENA_SAMPLE_H

#include "bench/mixers/hyena/model.h"
#include "bench/mixers/hyena/options.h"

#define SAMPLE_MAX_LOG OPTIONS_MAX_LOG

struct sample {
	double conv[SAMPLE_MAX_LOG + 1]; /* [k] seconds in the convolutions over 2^k positions */
	double rest;                     /* seconds of a step outside of the convolutions */
	uint32_t steps;                  /* steps that were run for the estimate */
};

/* Samples a convolution of 2^k positions (k <= SAMPLE_MAX_LOG) that was just opened. Fills in
 * conv[10 .. k]. The values of the sequences are of no use afterwards. */
void sample_run(struct conv *c, struct model *m, struct sample *out);

/* Measures all steps, which an estimate should agree with. Each is run twice and the smaller time
 * counts. Leaves `rest` unchanged. */
void sample_all(struct conv *c, struct model *m, struct sample *out);

double sample_median(double *values, uint32_t n); /* sorts them */

#endif
