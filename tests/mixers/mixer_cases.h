/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cases of the mixers in this tree as C tables, with references where there are some. A mixer's
 * cases are in mixer_cases_<name>.c; a new one adds its set to the table in mixer_cases.c.
 */
#ifndef MX_TESTS_MIXER_CASES_H
#define MX_TESTS_MIXER_CASES_H

#include "tools/test-mixer/case.h"

/* Sets of mixers whose modules are not loaded are left out. */
extern const struct mixer_set mixer_set_attention, mixer_set_dci, mixer_set_ema, mixer_set_gla,
	mixer_set_hyena, mixer_set_hyena_modal, mixer_set_mamba, mixer_set_mamba1, mixer_set_mla,
	mixer_set_reaching, mixer_set_rwkv, mixer_set_shortconv, mixer_set_sliced;
extern const struct mixer_set *const mixer_sets[]; /* ends with NULL */

/* y[n, rows] = W x + b, summed in double, for references; b may be NULL. */
void mixer_product(uint32_t n, uint32_t rows, uint32_t cols, const float *w, const float *b,
                   const float *x, float *y);

/* The attention layer of mixer_cases_attention.c, in double precision. */
void mixer_attention_reference(const struct mixer_case *c, uint32_t n, const float *x,
                               const float *const *w, float *y);

/* Entries of tables. */
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

#endif
