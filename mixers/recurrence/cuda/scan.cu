/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MX_RECUR_CHANNEL: h = a h + v, each channel on its own, token by token. A thread has a channel. h
 * in the slot is as of the last token but one, and the tokens since are in rings, so that a draft
 * undoes nothing and a saved state can go on one token earlier.
 */
#include "device/cuda/launch.cuh"
#include "mixers/recurrence/cuda/recur_cuda.h"
#include "mixers/recurrence/cuda/slot.cuh"

namespace
{

#define AHEAD 16 /* tokens that are on their way at once */

/* Goes through tokens from .. to - 1 of the step; returns h after them. */
template <typename T>
__device__ __forceinline__ float advance(const float *a, const T *v, float *y, uint32_t channels,
                                         uint32_t from, uint32_t to, float h)
{
	for (; from < to; from += AHEAD) {
		float f[AHEAD], in[AHEAD];
#pragma unroll
		for (uint32_t i = 0; i < AHEAD; i++)
			if (from + i < to) {
				f[i] = a[(size_t)(from + i) * channels];
				in[i] = mx_to_float(v[(size_t)(from + i) * channels]);
			}
#pragma unroll
		for (uint32_t i = 0; i < AHEAD; i++)
			if (from + i < to)
				y[(size_t)(from + i) * channels] = h = __fmaf_rn(f[i], h, in[i]);
	}
	return h;
}

/* The tokens of a tree: each goes on from its parent. h: before the span. */
template <typename T>
__device__ __forceinline__ void branch(const recur_step &s, const mx_device_span &span,
                                       const float *a, const T *v, float *y, uint32_t channels,
                                       float h)
{
	float after[MX_TREE_TOKENS];
	for (uint32_t i = 0; i < span.n; i++) {
		const uint32_t parent = s.parents[span.parent_begin + i];
		const size_t at = (size_t)i * channels;
		after[i] = __fmaf_rn(a[at], parent < span.n ? after[parent] : h, mx_to_float(v[at]));
		y[at] = after[i];
	}
}

template <typename T> __global__ void __launch_bounds__(RECUR_CHANNELS) scan(const recur_core a)
{
	const mx_device_span span = a.step.spans[blockIdx.y];
	const uint32_t channels = a.heads * a.v_dim, n = threadIdx.x;
	const uint32_t channel = blockIdx.x * RECUR_CHANNELS + n;
	unsigned char *unit =
		a.step.slot_base + span.slot * a.step.slot_stride + blockIdx.x * a.unit.bytes;
	mx_pdl_launch();
	mx_pdl_wait();
	if (!span.n)
		return;
	const uint32_t border = *(const volatile uint32_t *)unit, next = border_after(span, border, 1);
	float *state = (float *)(unit + a.unit.S), *ring_a = (float *)(unit + a.unit.a);
	T *ring_v = (T *)(unit + a.unit.x);
	__syncthreads(); /* every thread has read the border */
	if (channel < channels) {
		const int64_t first = ((int64_t)span.row - span.pos) * channels + channel;
		const float *in_a = a.a + first;
		const T *in_v = (const T *)a.v + first;
		const uint32_t end = span.pos + span.n, keep = next > span.pos ? next : span.pos;
		float h = state[n];
		for (uint32_t pos = border; pos < span.pos; pos++) {
			const uint32_t at = pos % a.unit.cap * RECUR_CHANNELS + n;
			if (pos == next)
				state[n] = h;
			h = __fmaf_rn(ring_a[at], h, mx_to_float(ring_v[at]));
		}
		if (next >= span.pos) {
			h = advance(in_a, in_v, a.y + first, channels, span.pos, next, h);
			state[n] = h;
		}
		if (is_tree(a.step, span)) {
			const int64_t own = first + (int64_t)span.pos * channels;
			branch(a.step, span, a.a + own, (const T *)a.v + own, a.y + own, channels, h);
		} else
			advance(in_a, in_v, a.y + first, channels, keep, end, h);
		for (uint32_t pos = keep; pos < end; pos++) {
			const uint32_t at = pos % a.unit.cap * RECUR_CHANNELS + n;
			ring_a[at] = in_a[(size_t)pos * channels];
			ring_v[at] = in_v[(size_t)pos * channels];
		}
	}
	if (n == 0)
		*(uint32_t *)unit = next;
	keep_inputs<T>(a, span);
}

template <typename T> cudaError_t launch(cudaStream_t stream, const recur_core &a)
{
	return mx_launch(scan<T>, dim3(a.unit.per_head, a.step.n_spans), dim3(RECUR_CHANNELS), 0,
	                 stream, a);
}

} // namespace

cudaError_t recur_cuda_scan(cudaStream_t stream, enum mx_dtype act, const struct recur_core *a)
{
	return act == MX_F32 ? launch<float>(stream, *a) : launch<__nv_bfloat16>(stream, *a);
}

void recur_cuda_scan_unit(const struct mx_recur_spec *s, size_t act_size, struct recur_unit *out)
{
	struct recur_unit u = {};
	u.per_head = (s->heads * s->v_dim + RECUR_CHANNELS - 1) / RECUR_CHANNELS;
	u.cols = RECUR_CHANNELS;
	u.cap = 1 + s->max_draft;
	u.S = 64;
	u.x = u.S + RECUR_CHANNELS * sizeof(float);
	u.a = u.x + (u.cap * RECUR_CHANNELS * act_size + 63) / 64 * 64;
	u.bytes = u.a + u.cap * RECUR_CHANNELS * sizeof(float);
	*out = u;
}
