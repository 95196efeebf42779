/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of the generic mixer test: layers to try a mixer with. The installed program reads them
 * from a JSON file (cases_json.h), tests/mixers has them as C tables.
 */
#ifndef MX_TOOLS_TEST_MIXER_CASE_H
#define MX_TOOLS_TEST_MIXER_CASE_H

#include "mixers/mixer.h"

#define CASE_MAX_PARAMS 24
#define CASE_REACH      40

/* Number of the layer that is tried, of how many. References are for this layer. */
#define CASE_LAYER  1
#define CASE_LAYERS 4

/* How the elements of one tensor are drawn: from a normal distribution. A negative spread means
 * that the tensor, which must be optional, is absent. */
struct mixer_weight {
	const char *name; /* as in the specs of the mixer */
	float mean, spread;
};

struct mixer_case {
	const char *label;
	uint32_t width;
	uint32_t tokens; /* length of the longest sequence of the test */
	enum mx_dtype weight_dtype, state_dtype;
	struct mx_param params[CASE_MAX_PARAMS];
	size_t n_params;
	/* Tensors that are not drawn by default (matrices: so that rows keep their size; vectors:
	 * around 1), e.g. so that a state decays slowly. Ends with an empty one; NULL = none. */
	const struct mixer_weight *weights;
	/* Largest |y - reference| / (largest |reference|) that is allowed. */
	double tolerance;
	/* Computes y[n, width] of one sequence from x[n, width] and the weights in f32, in the order of
	 * the specs, NULL for an absent one. NULL = the case has no reference. */
	void (*reference)(const struct mixer_case *c, uint32_t n, const float *x,
	                  const float *const *weights, float *y);
	/* A change of the first token must change the output this many tokens later: otherwise a lost
	 * state would not be noticed. Only for mixers with a slot; 0 = CASE_REACH. */
	uint32_t reach;
};

/* A wrong parameter: with it in place of the first case's, or added to them, probe must refuse the
 * layer with a message that contains `says`. */
struct mixer_wrong {
	struct mx_param param;
	const char *says;
};

/* The cases of one mixer. */
struct mixer_set {
	const char *mixer;
	const struct mixer_case *cases;
	size_t n_cases;
	const struct mixer_wrong *wrongs;
	size_t n_wrongs;
	uint32_t max_draft; /* tokens of the longest draft that the mixer takes; 0 = any number */
};

/* Tolerance where everything is f32: rounding of a few hundred additions. */
#define EXACT 2e-5
/* Tolerance with weights, states or activations in bf16: some instruction sets round what meets
 * them to 8 bits too, and the errors average out. */
#define ROUNDED 2e-2

#endif
