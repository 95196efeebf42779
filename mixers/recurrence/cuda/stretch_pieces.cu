/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long span in segments, without the delta rule: what pieces of it add to S, all at once. A piece
 * begins with S = 0; a segment's thread block then takes S through the pieces in front of it
 * (stretch.cu), S <- d S + what the piece adds, as a chain would.
 */
#include "mixers/recurrence/cuda/stretch.h"
#include "mixers/recurrence/cuda/stretch_state.cuh"

namespace
{

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* S through a stretch, and `d` of the piece so far: one number, or those of a thread's elements. */
template <typename P, int N>
__device__ __forceinline__ void add_stretch(uint32_t stage, const float *numbers,
                                            float (&state)[P::keys_16 * 8], float (&d)[N])
{
	const uint32_t t = threadIdx.x & 3;
	const float *factors = numbers + (P::d - P::chain_numbers) / 4;
	uint32_t v[4][4];
	load_v(stage + P::v, v);
#pragma unroll
	for (int n = 0; n < 8; n++) {
		const float2 f = *(const float2 *)(numbers + STRETCH + 8 * n + 2 * t);
		uint32_t *two = v[n / 2] + n % 2 * 2;
		two[0] = pack(low_of(two[0]) * f.x, high_of(two[0]) * f.y);
		two[1] = pack(low_of(two[1]) * f.x, high_of(two[1]) * f.y);
	}
	decay_state<P::keys_16, P::vector>(numbers[3 * STRETCH], factors, state);
	if (P::vector)
#pragma unroll
		for (int k = 0; k < N; k++)
			d[k] *= factors[k / 2 * 8 + 2 * t + k % 2];
	else
		d[0] *= numbers[3 * STRETCH];
	hold(state);
	hold(v);
	products_begin();
#pragma unroll
	for (int k = 0; k < 4; k++)
		product_16<1>(state, v[k], matrix_at(stage + k * 2048, MATRIX), true);
	products_commit();
	products_wait();
	hold(state);
}

/* The warpgroup that has S. */
template <typename P>
__device__ __forceinline__ void add_all(const recur_core &a, const part_of_head &w, uint32_t base,
                                        unsigned char *memory, piece *to)
{
	constexpr int N = P::vector ? P::keys_16 * 4 : 1;
	const uint32_t t = threadIdx.x & 3;
	float state[P::keys_16 * 8] = {}, d[N];
#pragma unroll
	for (int k = 0; k < N; k++)
		d[k] = 1;
	for (uint32_t i = 0; i < w.n; i++) {
		meet<P::working>(); /* operands of stretch i are there */
		const uint32_t stage = i % P::depth * P::chain;
		barrier_wait(base + P::at_bars + i % P::depth * 8, i / P::depth & 1);
		add_stretch<P>(base + stage, (const float *)(memory + stage + P::chain_numbers), state, d);
	}
	meet<P::working>();
#pragma unroll
	for (int i = 0; i < P::keys_16 * 2; i++)
		to->s[i * GROUP + threadIdx.x] =
			make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
	if (P::vector && threadIdx.x < 4)
#pragma unroll
		for (int k = 0; k < N; k++)
			to->d[k / 2 * 8 + 2 * t + k % 2] = d[k];
	if (!P::vector && threadIdx.x == 0)
		to->d[0] = d[0];
}

/* The warp that copies operands; depth - 1 stretches ahead. */
template <typename P>
__device__ __forceinline__ void copy_pieces(const recur_core &a, const tensors &maps,
                                            const part_of_head &w, uint32_t base)
{
	const sources from = sources_of(a, w);
	for (uint32_t i = 0; i + 1 < P::depth && i < w.n; i++)
		fetch_chain<P>(a, maps, w, from, base, i);
	for (uint32_t i = 0; i <= w.n; i++) {
		asm volatile("cp.async.wait_all;" ::: "memory"); /* of stretches that are not whole */
		stores_done();
		meet<P::working>();
		if (i + P::depth - 1 < w.n)
			fetch_chain<P>(a, maps, w, from, base, i + P::depth - 1);
	}
}

#endif

template <int KT, bool VECTOR>
__global__ void __launch_bounds__(piece_plan<KT, VECTOR>::threads, 2)
	add_up(const recur_core a, const __grid_constant__ tensors maps, const segments all)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	typedef piece_plan<KT, VECTOR> P;
	extern __shared__ unsigned char memory[];
	part_of_head w;
	const bool there = find_part(a, &w);
	mx_pdl_launch();
	mx_pdl_wait();
	if (!there)
		return;
	take_pieces(all, blockIdx.z, 1, &w);
	const uint32_t start = (uint32_t)__cvta_generic_to_shared(memory);
	const uint32_t base = (start + 1023) / 1024 * 1024;
	unsigned char *at = memory + (base - start);
	if (threadIdx.x == 0) {
		for (uint32_t i = 0; i < P::depth; i++)
			barrier_init(base + P::at_bars + 8 * i);
		barriers_ready();
	}
	if (blockIdx.z == 0 && threadIdx.x < GROUP) { /* S, which the last segment's block overwrites */
		piece *to = piece_at(a, all, 0);
		float state[KT * 8];
		load_state<KT>(a, w, state);
#pragma unroll
		for (int i = 0; i < KT * 2; i++)
			to->s[i * GROUP + threadIdx.x] =
				make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
	}
	__syncthreads();
	const uint32_t role = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
	if (role == 0)
		add_all<P>(a, w, base, at, piece_at(a, all, 1 + blockIdx.z));
	else if (threadIdx.x < GROUP + 32)
		copy_pieces<P>(a, maps, w, base);
	else if (P::plain)
		number_all<P>(a, w, at);
#else
	(void)a, (void)maps, (void)all;
	__trap(); /* never launched: recur_cuda_stretch_can is false */
#endif
}

template <int KT, bool VECTOR>
cudaError_t launch(cudaStream_t stream, const recur_core &a, const tensors &maps,
                   const segments &all)
{
	const uint32_t per_unit = (a.unit.cols + COLS - 1) / COLS;
	const dim3 grid(a.heads * a.unit.per_head * per_unit, a.step.n_spans, entries_of(all) - 1);
	return mx_launch(add_up<KT, VECTOR>, grid, dim3(piece_plan<KT, VECTOR>::threads),
	                 piece_plan<KT, VECTOR>::bytes, stream, a, maps, all);
}

template <int KT, bool VECTOR> cudaError_t opt_in(void)
{
	return cudaFuncSetAttribute(add_up<KT, VECTOR>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            piece_plan<KT, VECTOR>::bytes);
}

} // namespace

cudaError_t recur_cuda_stretch_pieces(cudaStream_t stream, const struct recur_core *a,
                                      const void *maps, uint32_t n, uint32_t pieces)
{
	const segments all = {n, pieces};
	const tensors &t = *(const tensors *)maps;
	if (a->kpad == 64)
		return a->vector ? launch<4, true>(stream, *a, t, all)
		                 : launch<4, false>(stream, *a, t, all);
	return a->vector ? launch<8, true>(stream, *a, t, all) : launch<8, false>(stream, *a, t, all);
}

cudaError_t recur_cuda_stretch_pieces_prepare(uint32_t kpad, bool vector)
{
	if (kpad == 64)
		return vector ? opt_in<4, true>() : opt_in<4, false>();
	return vector ? opt_in<8, true>() : opt_in<8, false>();
}
