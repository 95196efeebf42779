/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised matrices of random numbers, of every form that there are products for: one list for the
 * tests and benchmarks of CPUs and GPUs. */
#ifndef MX_TESTS_DEVICE_QUANT_SOURCE_H
#define MX_TESTS_DEVICE_QUANT_SOURCE_H

#include "device/quant.h"
#include "tests/rng.h"

#ifdef __cplusplus
extern "C" {
#endif

#define QUANT_WHOLE UINT32_MAX /* a group of all columns */

struct quant_case {
	enum mx_quant_format format;
	uint32_t group;
	enum mx_dtype scale;
	bool zeros;
	int bits;            /* MX_QUANT_PLAIN: to which it is rounded */
	uint32_t group_rows; /* MX_QUANT_FP8 */
};

extern const struct quant_case quant_cases[];
extern const size_t n_quant_cases;

struct quant_matrix {
	struct mx_quant_source s;
	unsigned char *codes, *scales, *zeros;
	unsigned char *panels; /* NULL until quant_matrix_pack */
	struct mx_quant q;
	struct mx_weight w;
};

/* Makes a source of a case's format. It must not be moved. */
void quant_matrix_make(struct quant_matrix *m, const struct quant_case *of, uint32_t rows,
                       uint32_t cols, struct rng *rng);
/* Packs it: for CPUs, or in fragments. Returns what mx_quant_choose says. */
mx_status quant_matrix_pack(struct quant_matrix *m, int bits, bool fragments);
/* Packs it in fragments, for products of experts. */
mx_status quant_matrix_pack_expert(struct quant_matrix *m, int bits);
void quant_matrix_free(struct quant_matrix *m);

#ifdef __cplusplus
}
#endif

#endif
