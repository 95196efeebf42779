/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the products of experts. */
#ifndef MX_DEVICE_CUDA_EXPERTS_CUH
#define MX_DEVICE_CUDA_EXPERTS_CUH

#include "device/cuda/acts.cuh"
#include "device/cuda/experts.h"

/* Returns the feed-forward's product of row `row` of gate and up. */
static __device__ __forceinline__ float mx_feed(const mx_experts &m, const mx_expert_weights &w,
                                                uint32_t row, float gate, float up)
{
	if (w.up_bias)
		up += w.up_bias[row];
	if (!m.gated)
		return mx_activation(m.act, up);
	if (w.gate_bias)
		gate += w.gate_bias[row];
	if (m.limit == 0)
		return mx_activation(m.act, gate) * up;
	/* so written that a NaN remains one */
	gate = gate > m.limit ? m.limit : gate;
	up = up > m.limit ? m.limit : up;
	up = up < -m.limit ? -m.limit : up;
	return gate / (1.0f + expf(-m.alpha * gate)) * (up + 1.0f);
}

#endif
