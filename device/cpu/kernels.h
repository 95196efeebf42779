/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the CPU device: the single-threaded parts of the operators.
 *
 * The table is filled in ascending order of instruction set: mx_kernels_ref sets
 * every function to the equation in double precision, then each level replaces
 * those that it does faster. Private to device/cpu, its tests and benchmarks.
 *
 * Every kernel is deterministic as the device is: the bits of a row of output
 * depend on that row's inputs and on the table, never on the other rows of the
 * call.
 */
#ifndef MX_DEVICE_CPU_KERNELS_H
#define MX_DEVICE_CPU_KERNELS_H

#include "device/cpu/cpu.h"

/* One product y (+)= x W^T + b. */
struct mx_product {
	const struct mx_weight *w;
	const float *bias; /* [w->rows] or NULL */
	float *y;          /* [n, ldy] */
	size_t ldy;
	bool accumulate;
	const float *x; /* [n, ldx], for kernels without pack */
	size_t ldx;
	const void *packed; /* output of pack */
	size_t n;
};

/* The matrix product for one weight dtype. */
struct mx_gemm {
	bool rounds_x; /* x is rounded to bf16 first, as other servers do for bf16 weights */
	/* Returns the bytes of n packed rows of `cols`; NULL: the kernel reads x itself. */
	size_t (*packed_bytes)(size_t n, size_t cols);
	/* Packs rows first .. first + count - 1 of x; first is a multiple of MX_PACK_ROWS. */
	void (*pack)(const float *x, size_t ldx, size_t n, size_t cols, size_t first, size_t count,
	             void *packed);
	/* Returns the bytes of workspace that run needs; NULL: none. */
	size_t (*scratch_bytes)(size_t n, size_t cols);
	/* Multiplies rows r0 .. r1 - 1 of the weight with all n rows of x; r0 is a multiple of
	 * MX_TASK_ROWS. */
	void (*run)(const struct mx_product *p, size_t r0, size_t r1, void *scratch);
};

#define MX_PACK_ROWS 16
#define MX_TASK_ROWS 32

struct mx_kernels {
	struct mx_gemm gemm[MX_QUANT + 1]; /* by enum mx_dtype; none of MX_F8E4M3 */

	/* x += r unless r is NULL, then y = rmsnorm(x) * weight; one row. y may be x. */
	void (*rmsnorm)(float *x, const float *r, const float *weight, float eps, size_t width,
	                float *y);
	/* x += r unless r is NULL, then y = (x - mean) / sqrt(var + eps) * weight + bias; one row. y
	 * may be x, bias may be NULL. */
	void (*layernorm)(float *x, const float *r, const float *weight, const float *bias, float eps,
	                  size_t width, float *y);
	/* y = act(gate) * up, or act(gate) if up is NULL; one row. y may be gate. */
	void (*act_mul)(enum mx_act act, const float *gate, const float *up, size_t width, float *y);
	/* Applies cap * tanh(y / cap) to each element. */
	void (*softcap)(float *y, size_t n, float cap);
	/* cs: cos[half], then sin[half] of pos * inv_freq, times scale. */
	void (*rope_table)(uint32_t pos, const float *inv_freq, size_t half, float scale, float *cs);
	/* Rotates the first 2 * half elements of one head: x[i], x[i + half] by table cs. */
	void (*rope_head)(float *x, const float *cs, size_t half);
	/* Converts one row of a table to f32. */
	void (*convert)(const void *src, enum mx_dtype dtype, size_t n, float *y);

	/* Returns the largest element; NaN if any is NaN. n >= 1. */
	float (*max)(const float *x, size_t n);
	/* y = exp((x - max) * scale), sums[b] = sum over block b of MX_SUM_BLOCK; y may be NULL. */
	void (*exp_sums)(const float *x, size_t n, float max, float scale, float *y, double *sums);
};

/* Elements that exp_sums adds up before it moves on to the next entry. */
#define MX_SUM_BLOCK 1024

void mx_kernels_ref(struct mx_kernels *k);
void mx_kernels_portable(struct mx_kernels *k);
void mx_kernels_avx2(struct mx_kernels *k);
void mx_kernels_avx512(struct mx_kernels *k);
void mx_kernels_avx512_bf16(struct mx_kernels *k);
void mx_kernels_amx_bf16(struct mx_kernels *k);

/* Products with packed weights (device/quant.h), which have the same bits on every level. */
void mx_quant_gemm_portable(struct mx_gemm *g);
void mx_quant_gemm_avx2(struct mx_gemm *g);
void mx_quant_gemm_vnni(struct mx_gemm *g);

/* Fills the table by all levels up to `isa`, in ascending order. */
void mx_kernels_of(struct mx_kernels *k, enum mx_isa isa);

/* Returns the highest level that this machine can run, regardless of MIXD_ISA. Asks the operating
 * system for permission to use AMX. */
enum mx_isa mx_cpu_isa_max(void);

/* True if this machine has AVX-512 VNNI. */
bool mx_cpu_has_vnni(void);

/* As mx_cpu_create, with the kernels given. */
mx_status mx_cpu_create_kernels(unsigned n_threads, const struct mx_kernels *k, enum mx_isa isa,
                                size_t max_rows, size_t max_width, struct mx_device **out,
                                struct mx_err *err);

#endif
