/* SPDX-License-Identifier: Apache-2.0 */
/* dci's kernels in plain C, for any machine; the compiler vectorises the loops over lanes. */
#include <math.h>
#include <string.h>

#include "mixers/dci/dci_kernels.h"
#include "mixers/softmax/v16_portable.h"

static inline v16 v_sub(v16 a, v16 b)
{
	LANES a.f[i] -= b.f[i];
	return a;
}

static inline uint32_t v_above(v16 v, float least)
{
	uint32_t bits = 0;
	LANES bits |= (uint32_t)(v.f[i] > least) << i;
	return bits;
}

static void keep_above(struct dci_found *f, uint32_t t, uint32_t equal)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < f->n; i++) {
		uint32_t value = f->value[i], pos = f->pos[i];
		bool same = value == t && equal > 0;
		equal -= same;
		f->value[n] = value;
		f->pos[n] = pos;
		n += value > t || same;
	}
	f->n = n;
}

static inline void v_sum4(v16 a, v16 b, v16 c, v16 d, float *out)
{
	out[0] = v_hsum(a), out[1] = v_hsum(b), out[2] = v_hsum(c), out[3] = v_hsum(d);
}

static inline v16 v_hadamard(v16 x)
{
	for (int h = 1; h < 16; h *= 2) {
		v16 y = x;
		LANES x.f[i] = i & h ? y.f[i ^ h] - y.f[i] : y.f[i ^ h] + y.f[i];
	}
	return x;
}

static void sums(uint32_t bytes, const unsigned char *codes, uint32_t n, const struct dci_query *q,
                 float (*out)[DCI_RUN])
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t sum[DCI_RUN] = {0};
		for (uint32_t b = 0; b < bytes; b++) {
			const unsigned char *c = codes + (size_t)b * DCI_RUN;
			const uint8_t *t = q[i].table + (size_t)b * 32;
			for (uint32_t j = 0; j < DCI_RUN; j++)
				sum[j] += (uint32_t)t[c[j] & 15] + t[16 + (c[j] >> 4)];
		}
		for (uint32_t j = 0; j < DCI_RUN; j++) /* by place to by key */
			out[i][j / 2 + j % 2 * 32] = (float)sum[j];
	}
}

#define ROWS_SCORED 1
#define MIX_QUERIES 2
#define MIX_VECTORS 2
#define MIX_ALONE   4
#include "mixers/dci/dci_rows_body.h"
#include "mixers/dci/dci_search_body.h"

DCI_SEARCH(portable);
DCI_ROWS(portable, f32)
DCI_ROWS(portable, bf16)
