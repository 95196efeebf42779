/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products of bf16 weights with VDPBF16PS.
 *
 * Order of operations of every y[i][r], whatever else the call computes:
 *   x is rounded to bf16, to nearest even;
 *   start from b[r] (or 0), plus the old y[i][r] if accumulating;
 *   for each block of columns (bf16_block), in ascending order:
 *     lane j of one vector adds up columns 32 m + 2 j and 32 m + 2 j + 1 by one
 *     VDPBF16PS, m ascending, with zeros past the last column;
 *     the lanes are summed as vf_sum4 does; the sum is added to y[i][r].
 *
 * So the weight is used where it is mapped, row by row, whether rows of x are few
 * or many.
 */
#include <immintrin.h>
#include <string.h>

#include "base/mem.h"
#include "device/cpu/kernels.h"
#include "device/cpu/vec.h"

#include "device/cpu/bf16.h"

#include "device/cpu/bf16_few.h"
#include "device/cpu/bf16_many.h"

static size_t packed_bytes(size_t n, size_t cols)
{
	return n * bf16_padded(cols) * sizeof(uint16_t);
}

/* Packs rows of x as bf16 [n][bf16_padded(cols)], zeros past the last column. */
static void pack(const float *x, size_t ldx, size_t n, size_t cols, size_t first, size_t count,
                 void *packed)
{
	const size_t ld = bf16_padded(cols);
	(void)n;
	for (size_t i = first; i < first + count; i++) {
		const float *from = x + i * ldx;
		uint16_t *to = (uint16_t *)packed + i * ld;
		for (size_t k = 0; k < cols; k += BF16_STEP) {
			const size_t left = cols - k;
			const uint32_t mask = left < BF16_STEP ? (1u << left) - 1 : UINT32_MAX;
			__m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, from + k);
			__m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + k + 16);
			_mm512_storeu_si512(to + k, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
		}
	}
}

static void run(const struct mx_product *p, size_t r0, size_t r1, void *scratch)
{
	if (p->n >= BF16_MANY) {
		bf16_many(p, r0, r1, scratch);
		return;
	}
	if (p->n > (p->w->cols <= BF16_APART_COLS ? BF16_APART : BF16_APART_LONG)) {
		bf16_few(p, r0, r1);
		return;
	}
	bf16_apart_of[p->n - 1](p, r0, r1);
}

void mx_kernels_avx512_bf16(struct mx_kernels *k)
{
	k->gemm[MX_BF16] = (struct mx_gemm){.rounds_x = true,
	                                    .packed_bytes = packed_bytes,
	                                    .pack = pack,
	                                    .scratch_bytes = bf16_many_scratch,
	                                    .run = run};
}
