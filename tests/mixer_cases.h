/* SPDX-License-Identifier: Apache-2.0 */
/* Layer configurations that every mixer test and benchmark runs, with references where there are
 * some. A new mixer adds its cases to mixer_cases.c. */
#ifndef MX_TESTS_MIXER_CASES_H
#define MX_TESTS_MIXER_CASES_H

#include "mixers/mixer.h"

struct mixer_case {
	const char *label;
	const char *mixer; /* a case whose module is not loaded is left out */
	uint32_t width;
	uint32_t tokens; /* length of the sequences of the test */
	enum mx_dtype weight_dtype, state_dtype;
	struct mx_param params[24];
	size_t n_params;
	/* Largest |y - reference| / (largest |reference|) allowed, and why, beside the case. */
	double tolerance;
	/* y[n, width] of one sequence from x[n, width] and the weights in f32, in the order of the
	 * specs; NULL = none. */
	void (*reference)(const struct mixer_case *c, uint32_t n, const float *x,
	                  const float *const *weights, float *y);
};

extern const struct mixer_case mixer_cases[];
extern const size_t n_mixer_cases;

#endif
