/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include "bench/mixers/hyena/rows.h"

#include "mixers/hyena/kernels.h"

#ifdef MX_X86_64
#include <immintrin.h>
#endif

/* Both read and write memory in order, one stream for each operand, which the hardware's prefetch
 * follows. Four rows at a time hide the latency of an addition. */
#define ROWS(name, target, type, load, store, fma)                                                 \
	target static void dot_##name(const float *h, const float *z, uint32_t n, float *sum)          \
	{                                                                                              \
		enum { W = sizeof(type) / sizeof(float), N = LC_LANES / W };                               \
		type acc[4][N] = {{{0}}};                                                                  \
		uint32_t i = 0;                                                                            \
		for (; i + 4 <= n; i += 4, h -= 4 * LC_LANES, z += 4 * LC_LANES)                           \
			_Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) _Pragma(                           \
				"GCC unroll 4") for (int k = 0; k < N; k++) acc[r][k] =                            \
				fma(load(h - r * LC_LANES + k * W), load(z + r * LC_LANES + k * W), acc[r][k]);    \
		for (; i < n; i++, h -= LC_LANES, z += LC_LANES)                                           \
			_Pragma("GCC unroll 4") for (int k = 0; k < N; k++) acc[0][k] =                        \
				fma(load(h + k * W), load(z + k * W), acc[0][k]);                                  \
		_Pragma("GCC unroll 4") for (int k = 0; k < N; k++) store(                                 \
			sum + k * W, load(sum + k * W) + ((acc[0][k] + acc[1][k]) + (acc[2][k] + acc[3][k]))); \
	}                                                                                              \
	target static void axpy_##name(const float *h, const float *z, uint32_t n, float *y)           \
	{                                                                                              \
		enum { W = sizeof(type) / sizeof(float), N = LC_LANES / W };                               \
		type v[N];                                                                                 \
		_Pragma("GCC unroll 4") for (int k = 0; k < N; k++) v[k] = load(z + k * W);                \
		for (uint32_t i = 0; i < n; i++, h += LC_LANES, y += LC_LANES)                             \
			_Pragma("GCC unroll 4") for (int k = 0; k < N; k++)                                    \
				store(y + k * W, fma(load(h + k * W), v[k], load(y + k * W)));                     \
	}                                                                                              \
	static const struct rows_kernels rows_##name = {dot_##name, axpy_##name};

typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
#define LOAD_4(p)      (*(const v4 *)(const void *)(p))
#define STORE_4(p, v)  (*(v4 *)(void *)(p) = (v))
#define FMA_4(a, b, c) ((a) * (b) + (c))
ROWS(portable, , v4, LOAD_4, STORE_4, FMA_4)

#ifdef MX_X86_64
ROWS(avx2, __attribute__((target("avx2,fma"))), __m256, _mm256_loadu_ps, _mm256_storeu_ps,
     _mm256_fmadd_ps)
ROWS(avx512, __attribute__((target("avx512f"))), __m512, _mm512_loadu_ps, _mm512_storeu_ps,
     _mm512_fmadd_ps)
#endif

const struct rows_kernels *rows_kernels_find(enum mx_isa isa)
{
#ifdef MX_X86_64
	if (isa >= MX_ISA_AVX512)
		return &rows_avx512;
	if (isa >= MX_ISA_AVX2)
		return &rows_avx2;
#endif
	(void)isa;
	return &rows_portable;
}
