/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 floats in AVX-512: what dci_avx512.c and dci_bf16.c share. */
#ifndef MX_MIXERS_DCI_AVX512_H
#define MX_MIXERS_DCI_AVX512_H

#include <string.h>

#include "mixers/dci/dci_kernels.h"
#include "mixers/softmax/softmax_avx512.h"

/* As in softmax_portable.c. */
static inline v16 v_exp2(v16 x)
{
	__mmask16 live = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_GT_OQ);
	v16 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	v16 f = _mm512_sub_ps(x, n), p = v_set1(0.00015353360504377633f);
	p = v_fma(p, f, v_set1(0.0013398875016719103f));
	p = v_fma(p, f, v_set1(0.00961843691766262f));
	p = v_fma(p, f, v_set1(0.055503323674201965f));
	p = v_fma(p, f, v_set1(0.24022647738456726f));
	p = v_fma(p, f, v_set1(0.6931471824645996f));
	p = v_fma(p, f, v_set1(1.0f));
	return _mm512_maskz_scalef_ps(live, p, n);
}

static inline void v_sum4(v16 a, v16 b, v16 c, v16 d, float *out)
{
	__m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
	__m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
	__m512d lo = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
	__m512d hi = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
	__m512 x = _mm512_add_ps(_mm512_castpd_ps(lo), _mm512_castpd_ps(hi));
	__m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
	_mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}

#endif
