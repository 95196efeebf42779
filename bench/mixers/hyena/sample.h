/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long all steps of a run take, from some of them: the quadratic ways would
 * take hours, but what a step of theirs costs is a smooth function of its
 * position, and that of a tile of its side. Steps are run at the positions wanted
 * without those between: what is computed is then wrong, and takes the same time.
 */
#ifndef MX_BENCH_HYENA_SAMPLE_H
#define MX_BENCH_HYENA_SAMPLE_H

#include "bench/mixers/hyena/model.h"
#include "bench/mixers/hyena/options.h"

#define SAMPLE_MAX_LOG OPTIONS_MAX_LOG

struct sample {
	double conv[SAMPLE_MAX_LOG + 1]; /* [k] seconds in the convolutions over 2^k positions */
	double rest;                     /* seconds of a step that are not */
	uint32_t steps;                  /* run for this */
};

/* A convolution that was just opened, of 2^k positions, k <= SAMPLE_MAX_LOG. conv[10 .. k] is
 * filled in. What sequences hold afterwards is of no use. */
void sample_run(struct conv *c, struct model *m, struct sample *out);

/* All steps, whatever the kind: what an estimate should come to. Each is run twice and the lesser
 * time taken. rest is left alone. */
void sample_all(struct conv *c, struct model *m, struct sample *out);

double sample_median(double *values, uint32_t n); /* sorts them */

#endif
