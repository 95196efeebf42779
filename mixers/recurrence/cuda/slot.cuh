/* SPDX-License-Identifier: Apache-2.0 */
/* What the recurrence's kernels share: what a step leaves in a slot. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_SLOT_CUH
#define MX_MIXERS_RECURRENCE_CUDA_SLOT_CUH

#include "mixers/recurrence/cuda/recur_cuda.h"

/* True if the span's tokens have parents: its kernels go from path to path. */
static __device__ __forceinline__ bool is_tree(const recur_step &s, const mx_device_span &span)
{
	return s.parents && span.parent_begin != UINT32_MAX && span.n > 1;
}

/* Returns the token of the span that is `back` tokens before token t; UINT32_MAX if that one is
 * before the span. */
static __device__ __forceinline__ uint32_t token_before(const recur_step &s,
                                                        const mx_device_span &span, uint32_t t,
                                                        uint32_t back)
{
	if (!is_tree(s, span))
		return t >= back ? t - back : UINT32_MAX;
	for (; back && t < span.n; back--)
		t = s.parents[span.parent_begin + t];
	return t < span.n ? t : UINT32_MAX;
}

/* Returns the position of token t of the span. */
static __device__ __forceinline__ uint32_t position_of(const recur_step &s,
                                                       const mx_device_span &span, uint32_t t)
{
	return is_tree(s, span) ? s.pos[span.row + t] : span.pos + t;
}

/* Copies the inputs of convolutions that the next step may need to the slot: a part of the
 * channels, for each unit another one. */
template <typename T>
static __device__ void keep_inputs(const recur_core &a, const mx_device_span &span, uint32_t unit)
{
	const uint32_t taps = a.conv.taps, first = a.keep_channels * unit;
	const uint32_t last = first + a.keep_channels;
	const uint32_t keep = span.kind == MX_SPAN_DRAFT || span.n < taps ? span.n : taps;
	if (!a.conv.channels)
		return;
	T *ring = (T *)(a.step.slot_base + span.slot * a.step.slot_stride + a.conv.at);
	for (int n = 0; n < MX_RECUR_STREAMS; n++) {
		const recur_source &s = a.source[n];
		if (!s.conv)
			continue;
		const uint32_t from = first > s.channel ? first - s.channel : 0;
		const uint32_t size = s.heads * s.dim, end = last < s.channel ? 0 : last - s.channel;
		for (uint32_t i = from + threadIdx.x; i < end && i < size; i += blockDim.x) {
			uint32_t at = s.off + i;
			if (s.per < s.heads) {
				const uint32_t h = i / s.dim;
				at = s.off + h / s.per * s.stride + h % s.per * s.dim + i % s.dim;
			}
			for (uint32_t t = span.n - keep; t < span.n; t++)
				ring[(size_t)((span.pos + t) % a.conv.cap) * a.conv.channels + s.channel + i] =
					((const T *)a.proj)[(span.row + t) * a.ld_proj + at];
		}
	}
}

template <typename T>
static __device__ void keep_inputs(const recur_core &a, const mx_device_span &span)
{
	keep_inputs<T>(a, span, blockIdx.x);
}

/* The border of S after a step: as in recurrence_forward.c. */
static __device__ __forceinline__ uint32_t border_after(const mx_device_span &span, uint32_t border,
                                                        uint32_t chunk)
{
	const uint32_t end = span.kind == MX_SPAN_DRAFT ? span.pos : span.pos + span.n;
	const uint32_t b = end ? (end - 1) / chunk * chunk : 0;
	return b > border ? b : border;
}

#endif
