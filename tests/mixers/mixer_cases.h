/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layer configurations that every mixer test and benchmark runs, with references
 * where there are some. A mixer's cases are in mixer_cases_<name>.c; a new one
 * adds its set to the table in mixer_cases.c.
 */
#ifndef MX_TESTS_MIXER_CASES_H
#define MX_TESTS_MIXER_CASES_H

#include "mixers/mixer.h"

/* References are of this layer, of so many. */
#define MIXER_LAYER  1
#define MIXER_LAYERS 4

/* How the elements of a tensor are drawn: normal, around `mean`. With a spread below 0 the tensor
 * is not there, if it is optional. */
struct mixer_weight {
	const char *name; /* as in the specs */
	float mean, spread;
};

struct mixer_case {
	const char *label;
	uint32_t width;
	uint32_t tokens; /* length of the sequences of the test */
	enum mx_dtype weight_dtype, state_dtype;
	struct mx_param params[24];
	size_t n_params;
	/* Tensors that must not be drawn as usual (matrices keep the size of a row, vectors are
	 * about 1), e.g. so that a state decays slowly; ends with an empty one; NULL = none. */
	const struct mixer_weight *weights;
	/* Largest |y - reference| / (largest |reference|) allowed, and why, beside the case. */
	double tolerance;
	/* y[n, width] of one sequence from x[n, width] and the weights in f32, in the order of the
	 * specs, NULL if not there. No reference: NULL. */
	void (*reference)(const struct mixer_case *c, uint32_t n, const float *x,
	                  const float *const *weights, float *y);
};

/* The first case with one parameter changed or added: probe says no, in a message with `says`. */
struct mixer_wrong {
	struct mx_param param;
	const char *says;
};

/* Of one mixer; left out if its module is not loaded. */
struct mixer_set {
	const char *mixer;
	const struct mixer_case *cases;
	size_t n_cases;
	const struct mixer_wrong *wrongs;
	size_t n_wrongs;
	uint32_t max_draft; /* the longest drafts it takes, 0 = any */
};

extern const struct mixer_set mixer_set_attention, mixer_set_ema, mixer_set_gla, mixer_set_hyena,
	mixer_set_hyena_modal, mixer_set_mamba, mixer_set_reaching;
extern const struct mixer_set *const mixer_sets[]; /* ends with NULL */

/* For references: y[n, rows] = W x + b, summed in double; b may be NULL. */
void mixer_product(uint32_t n, uint32_t rows, uint32_t cols, const float *w, const float *b,
                   const float *x, float *y);

/* For tables. */
#define INT(key, value)                                                                            \
	{                                                                                              \
		.name = key, .type = MX_PARAM_INT, .i = value, .f = value                                  \
	}
#define BOOL(key)                                                                                  \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL, .i = 1                                                 \
	}
#define FLOAT(key, value)                                                                          \
	{                                                                                              \
		.name = key, .type = MX_PARAM_FLOAT, .f = value                                            \
	}
#define STRING(key, value)                                                                         \
	{                                                                                              \
		.name = key, .type = MX_PARAM_STRING, .s = value                                           \
	}
#define FLOATS(key, array)                                                                         \
	{                                                                                              \
		.name = key, .type = MX_PARAM_FLOATS, .v = array, .n = sizeof(array) / sizeof(*array)      \
	}
#define ABSENT(name)                                                                               \
	{                                                                                              \
		name, 0, -1                                                                                \
	}
#define PARAMS(...)                                                                                \
	{__VA_ARGS__}, sizeof((struct mx_param[]){__VA_ARGS__}) / sizeof(struct mx_param)
#define SET(array) array, sizeof(array) / sizeof(*(array))

/* f32 all through: rounding of a few hundred additions. */
#define EXACT 2e-5
/* bf16 weights or state: at some levels what meets them is rounded too, 8 bits, and averaged. */
#define ROUNDED 2e-2

#endif
