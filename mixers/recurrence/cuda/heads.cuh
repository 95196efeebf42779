/* SPDX-License-Identifier: Apache-2.0 */
/* What heads.cu and heads_many.cu share. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_HEADS_CUH
#define MX_MIXERS_RECURRENCE_CUDA_HEADS_CUH

#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/elements.cuh"
#include "mixers/recurrence/cuda/slot.cuh"

#define WARPS 4
#define WIDE  128 /* elements of a piece of a stream */
#define TAPS  4

namespace
{

/* Pieces of n elements of a head. */
__host__ __device__ __forceinline__ uint32_t pieces(uint32_t n)
{
	return (n + WIDE - 1) / WIDE;
}

/* Returns a lane's part of the sum of a head's norm. */
__device__ __forceinline__ float norm_part(enum mx_recur_qk_norm norm, float4 v)
{
	if (norm == MX_RECUR_QK_L2)
		return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmul_rn(v.x, v.x))));
	if (norm == MX_RECUR_QK_L1)
		return fabsf(v.x) + fabsf(v.y) + fabsf(v.z) + fabsf(v.w);
	return v.x + v.y + v.z + v.w;
}

/* Numbers of heads: a, beta and Mamba's step. A lane has a head; 8 rows are read at a time. */
__device__ __forceinline__ void run_numbers(const recur_rows &a, int stream, uint32_t head,
                                            uint32_t first, uint32_t rows)
{
	constexpr uint32_t ahead = 8;
	const recur_source &s = a.source[stream];
	const uint32_t n = head + (threadIdx.x & 31);
	const uint32_t end = first + rows < a.step.n_rows ? first + rows : a.step.n_rows;
	if (n >= s.heads)
		return;
	const float *from = (const float *)a.gates + s.off + n / s.per * s.stride + n % s.per;
	const float bias = s.bias ? s.bias[n] : 0;
	for (uint32_t base = first; base < end; base += ahead) {
		float all[ahead];
#pragma unroll
		for (uint32_t u = 0; u < ahead; u++)
			all[u] = base + u < end ? from[(base + u) * a.ld_gates] : 0;
#pragma unroll 1
		for (uint32_t u = 0; u < ahead && base + u < end; u++) {
			const size_t to = (size_t)(base + u) * s.heads + n;
			const float z = all[0] + bias;
#pragma unroll
			for (uint32_t i = 0; i + 1 < ahead; i++)
				all[i] = all[i + 1];
			if (stream == MX_RECUR_A)
				a.a[to] = factor(a, n, z);
			else if (a.beta == MX_RECUR_BETA_STEP) {
				float b = softplus(z * a.beta_scale);
				b = b < a.step_min ? a.step_min : b > a.step_max ? a.step_max : b;
				a.a[to] = expf(b * a.mul[n]);
				a.b[to] = b;
			} else
				a.b[to] = sigmoid(z) * a.beta_scale;
		}
	}
}

} // namespace

/* Heads of q, k and v for many rows, bf16, and numbers; vectors of factors are left to `heads`. */
bool recur_heads_many_can(const recur_rows &a);
cudaError_t recur_heads_many(cudaStream_t stream, const recur_rows &a);

#endif
