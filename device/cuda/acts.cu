/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators of families beside Llama's: LayerNorm, activations of feed-forwards, softcap of logits.
 * All are limited by memory bandwidth. Arithmetic is f32, rounded once when it is stored; a row's
 * bits depend on that row alone.
 */
#include <stdint.h>

#include "device/cuda/acts.cuh"
#include "device/cuda/impl.h"
#include "device/cuda/launch.cuh"

#define WARP  32
#define BLOCK 256

namespace
{

uint32_t div_up(size_t n, size_t by)
{
	return (uint32_t)((n + by - 1) / by);
}

/* Returns the sum over the thread block to every thread. No thread may still read part[]. */
__device__ __forceinline__ float block_sum(float v, float *part)
{
	for (int i = WARP / 2; i; i /= 2)
		v += __shfl_xor_sync(~0u, v, i);
	if (threadIdx.x % WARP == 0)
		part[threadIdx.x / WARP] = v;
	__syncthreads();
	v = 0;
	for (unsigned i = 0; i < BLOCK / WARP; i++)
		v += part[i];
	return v;
}

/* ---- layernorm (Ba, Kiros and Hinton, 2016): a thread block a row ---- */

template <typename T>
__global__ void __launch_bounds__(BLOCK)
	layernorm(T *x, const T *r, const float *weight, const float *bias, float eps, uint32_t width,
              T *y)
{
	__shared__ float part[2][BLOCK / WARP];
	const size_t at = (size_t)blockIdx.x * width;
	mx_pdl_launch();
	mx_pdl_wait();
	float sum = 0, squares = 0;
	for (uint32_t i = threadIdx.x; i < width; i += BLOCK) {
		float f = mx_to_float<T>(x[at + i]);
		if (r) {
			x[at + i] = mx_from_float<T>(f + mx_to_float<T>(r[at + i]));
			f = mx_to_float<T>(x[at + i]);
		}
		sum += f;
	}
	const float mean = block_sum(sum, part[0]) / (float)width;
	for (uint32_t i = threadIdx.x; i < width; i += BLOCK) {
		float f = mx_to_float<T>(x[at + i]) - mean;
		squares = fmaf(f, f, squares);
	}
	const float scale = 1.0f / sqrtf(block_sum(squares, part[1]) / (float)width + eps);
	for (uint32_t i = threadIdx.x; i < width; i += BLOCK) {
		float f = (mx_to_float<T>(x[at + i]) - mean) * scale;
		y[at + i] = mx_from_float<T>(fmaf(f, weight[i], bias ? bias[i] : 0.0f));
	}
}

template <typename T>
cudaError_t layernorm_as(struct mx_device *d, void *x, const void *r, const float *weight,
                         const float *bias, float eps, size_t n, size_t width, void *y)
{
	return mx_launch(layernorm<T>, dim3((uint32_t)n), dim3(BLOCK), 0, mx_cuda_stream(d), (T *)x,
	                 (const T *)r, weight, bias, eps, (uint32_t)width, (T *)y);
}

/* ---- activations: block (row, part of the columns) ---- */

template <typename T>
__global__ void __launch_bounds__(BLOCK)
	act_mul(enum mx_act act, const T *gate, size_t ld_gate, const T *up, size_t ld_up,
            uint32_t width, T *y, size_t ld_y)
{
	const size_t row = blockIdx.x;
	const uint32_t i = blockIdx.y * BLOCK + threadIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	if (i >= width)
		return;
	float v = mx_activation(act, mx_to_float<T>(gate[row * ld_gate + i]));
	y[row * ld_y + i] = mx_from_float<T>(up ? v * mx_to_float<T>(up[row * ld_up + i]) : v);
}

template <typename T>
cudaError_t act_mul_as(struct mx_device *d, enum mx_act act, const void *gate, size_t ld_gate,
                       const void *up, size_t ld_up, size_t n, size_t width, void *y, size_t ld_y)
{
	return mx_launch(act_mul<T>, dim3((uint32_t)n, div_up(width, BLOCK)), dim3(BLOCK), 0,
	                 mx_cuda_stream(d), act, (const T *)gate, ld_gate, (const T *)up, ld_up,
	                 (uint32_t)width, (T *)y, ld_y);
}

__global__ void __launch_bounds__(BLOCK) softcap(float *y, size_t ld, uint32_t width, float cap)
{
	const uint32_t i = blockIdx.y * BLOCK + threadIdx.x;
	float *at = y + blockIdx.x * ld + i;
	mx_pdl_launch();
	mx_pdl_wait();
	if (i < width)
		*at = cap * tanhf(*at / cap);
}

} // namespace

mx_status mx_cuda_layernorm(struct mx_device *d, void *x, const void *r, const float *weight,
                            const float *bias, float eps, size_t n, size_t width, void *y)
{
	if (!n)
		return MX_OK;
	auto as = mx_cuda_bf16(d) ? layernorm_as<__nv_bfloat16> : layernorm_as<float>;
	return mx_cuda_check(d, as(d, x, r, weight, bias, eps, n, width, y), "layernorm");
}

mx_status mx_cuda_act_mul(struct mx_device *d, enum mx_act act, const void *gate, size_t ld_gate,
                          const void *up, size_t ld_up, size_t n, size_t width, void *y,
                          size_t ld_y)
{
	if (!n || !width)
		return MX_OK;
	if (act == MX_ACT_SILU && up) /* has vectors */
		return mx_cuda_silu_mul(d, gate, ld_gate, up, ld_up, n, width, y, ld_y);
	auto as = mx_cuda_bf16(d) ? act_mul_as<__nv_bfloat16> : act_mul_as<float>;
	return mx_cuda_check(d, as(d, act, gate, ld_gate, up, ld_up, n, width, y, ld_y), "act_mul");
}

mx_status mx_cuda_gelu_tanh(struct mx_device *d, void *y, size_t n)
{
	const size_t row = (size_t)1 << 16; /* a grid has at most 65535 parts of columns */
	mx_status st = MX_OK;
	if (n / row)
		st = mx_cuda_act_mul(d, MX_ACT_GELU_TANH, y, row, NULL, 0, n / row, row, y, row);
	unsigned char *rest = (unsigned char *)y + n / row * row * (mx_cuda_bf16(d) ? 2 : 4);
	return st == MX_OK
	           ? mx_cuda_act_mul(d, MX_ACT_GELU_TANH, rest, row, NULL, 0, 1, n % row, rest, row)
	           : st;
}

mx_status mx_cuda_softcap_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                                 float cap)
{
	if (!n || !vocab)
		return MX_OK;
	return mx_cuda_check(d,
	                     mx_launch(softcap, dim3((uint32_t)n, div_up(vocab, BLOCK)), dim3(BLOCK), 0,
	                               mx_cuda_stream(d), y, ld, vocab, cap),
	                     "softcap_logits");
}
