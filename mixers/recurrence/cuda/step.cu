/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence of spans of one token that stays, bf16: the arithmetic of chunk.cu for one row,
 * with nothing else computed. S and rings are from earlier steps: they are on their way while the
 * kernels in front of this one run. The row's k and q are two columns of one product with S.
 */
#include "mixers/recurrence/cuda/chunk.cuh"

namespace
{

typedef __nv_bfloat16 T;

/* Columns of an operand B: row 0 is `x`, row 1 is `y`, the others are zero. Two operands, of
 * columns col .. col + 15 and of the next 16. */
__device__ __forceinline__ void pair_b(const T *x, const T *y, const T *zero, uint32_t col,
                                       operand_b<1> (&b)[2])
{
	const uint32_t lane = threadIdx.x & 31, part = lane / 8 * 8;
	const T *row = lane % 8 == 0 ? x + col + part : lane % 8 == 1 ? y + col + part : zero;
	load_matrices(b[0].r[0][0], b[0].r[0][1], b[1].r[0][0], b[1].r[0][1], row);
}

/* Begins the copies of the chunk's earlier tokens, 0 .. r - 1, from the rings; all of it precedes
 * the step. */
template <int KT>
__device__ __forceinline__ void load_old(const recur_core &a, const work &w, uint32_t first,
                                         uint32_t r, const shared<T> &s)
{
	const uint32_t n = threadIdx.x, threads = blockDim.x;
	constexpr uint32_t parts = KT * 2, kpad = KT * 16;
	const T *ring = (const T *)(w.unit + a.unit.k) + (size_t)first * kpad;
	for (uint32_t i = n; i < r * parts; i += threads)
		copy16(s.k + i / parts * s.ld + i % parts * 8, ring + i * 8);
	if (a.vector) {
		const float *f = (const float *)(w.unit + a.unit.a) + (size_t)first * kpad;
		for (uint32_t i = n; i < r * kpad / 4; i += threads)
			copy16(s.av + 4 * i, f + 4 * i);
	}
	if (a.delta) {
		const float *t = (const float *)(w.unit + a.unit.t) + (size_t)first * Q;
		for (uint32_t i = n; i < r * 4; i += threads)
			copy16(s.t + i / 4 * LDM + i % 4 * 4, t + 4 * i);
	}
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Factors and gains of the chunk's earlier tokens: those of lane j's. */
__device__ __forceinline__ void old_numbers(const recur_core &a, const work &w, uint32_t first,
                                            uint32_t r, float *f, float *b)
{
	const uint32_t j = threadIdx.x & 31;
	*f = 1, *b = 0;
	if (j >= r)
		return;
	if (a.decays && !a.vector)
		*f = a.fixed_a ? a.fixed_a[w.head]
		               : ((const volatile float *)(w.unit + a.unit.a))[first + j];
	if (a.gain)
		*b = ((const volatile float *)(w.unit + a.unit.b))[first + j];
}

/* Brings the row's own k and q and vector of factors, and puts them in the rings. */
__device__ __forceinline__ void load_own(const recur_core &a, const work &w, size_t entry,
                                         uint32_t r, const shared<T> &s)
{
	const uint32_t n = threadIdx.x, parts = a.kpad / 8;
	const size_t row = w.row;
	const uint32_t hk = shared_head(w.head, a.per_k);
	const uint32_t hq = shared_head(w.head, a.per_q);
	for (uint32_t i = n; i < 2 * parts; i += blockDim.x) {
		if (i < parts) {
			const uint4 k = ((const uint4 *)a.k)[(row * a.k_heads + hk) * parts + i];
			((uint4 *)(w.unit + a.unit.k))[entry * parts + i] = k;
			*(uint4 *)(s.k + r * s.ld + i * 8) = k;
		} else
			*(uint4 *)(s.q + r * s.ld + (i - parts) * 8) =
				((const uint4 *)a.q)[(row * a.q_heads + hq) * parts + i - parts];
	}
	if (a.vector) {
		const uint32_t ha = shared_head(w.head, a.per_a);
		float *ring = (float *)(w.unit + a.unit.a) + entry * a.kpad;
		for (uint32_t i = n; i < a.kpad; i += blockDim.x)
			ring[i] = s.av[r * a.kpad + i] = a.a[(row * a.a_heads + ha) * a.kpad + i];
	}
}

/* Factor and beta of the row itself; one thread puts them in the rings. */
__device__ __forceinline__ void own_numbers(const recur_core &a, const work &w, size_t entry,
                                            float *f, float *b)
{
	const size_t row = w.row;
	*f = 1;
	if (a.decays && !a.vector)
		*f = a.fixed_a ? a.fixed_a[w.head] : a.a[row * a.a_heads + shared_head(w.head, a.per_a)];
	*b = a.b ? a.b[row * a.heads + w.head] : a.fixed_b;
	if (threadIdx.x)
		return;
	if (a.decays && !a.vector && !a.fixed_a)
		((float *)(w.unit + a.unit.a))[entry] = *f;
	if (a.gain)
		((float *)(w.unit + a.unit.b))[entry] = *b;
}

/* Products of k_r and q_r with the chunk's keys to row 0 of sk and sq; by one warp. */
template <int KT>
__device__ __forceinline__ void row_scores(const shared<T> &s, const T *zero, uint32_t r)
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2;
	float c[4] = {0, 0, 0, 0};
#pragma unroll
	for (int i = 0; i < KT; i += 2) {
		operand_b<1> b[2];
		operand_a<1> k[2];
		pair_b(s.k + r * s.ld, s.q + r * s.ld, zero, 16 * i, b);
#pragma unroll
		for (int half = 0; half < 2; half++)
			load_matrices(k[half].r[0][0], k[half].r[0][1], k[half].r[0][2], k[half].r[0][3],
			              s.k + lane % 16 * s.ld + 16 * (i + half) + lane / 16 * 8);
		mma(c, k[0].r[0], b[0].r[0]);
		mma(c, k[1].r[0], b[1].r[0]);
	}
	if (lane % 4 == 0) {
		s.sk[g] = c[0], s.sq[g] = c[1];
		s.sk[g + 8] = c[2], s.sq[g + 8] = c[3];
	}
}

/* The same with vectors of factors: a warp has every warps-th key. The first key's goes on to the
 * border: wk and wq. */
template <int KT>
__device__ __forceinline__ void row_vector_scores(const recur_core &a, const shared<T> &s,
                                                  uint32_t r)
{
	const uint32_t lane = threadIdx.x & 31;
	constexpr int each = KT / 2;
	for (uint32_t j = threadIdx.x >> 5; j <= r; j += blockDim.x >> 5) {
		float q[each], k[each], sq = 0, sk = 0;
#pragma unroll
		for (int e = 0; e < each; e++) {
			q[e] = __bfloat162float(s.q[r * s.ld + e * 32 + lane]);
			k[e] = __bfloat162float(s.k[r * s.ld + e * 32 + lane]);
		}
		for (uint32_t i = r; i > j; i--)
#pragma unroll
			for (int e = 0; e < each; e++) {
				const float f = s.av[i * a.kpad + e * 32 + lane];
				q[e] = __fmul_rn(q[e], f);
				k[e] = __fmul_rn(k[e], f);
			}
#pragma unroll
		for (int e = 0; e < each; e++) {
			const float key = __bfloat162float(s.k[j * s.ld + e * 32 + lane]);
			sq = __fmaf_rn(q[e], key, sq);
			sk = __fmaf_rn(k[e], key, sk);
		}
		sq = warp_sum(sq);
		if (a.delta)
			sk = warp_sum(sk);
		if (lane == 0)
			s.sq[j] = sq, s.sk[j] = sk;
		if (j == 0)
#pragma unroll
			for (int e = 0; e < each; e++) {
				const float f = s.av[e * 32 + lane];
				s.wq[r * s.ld + e * 32 + lane] = __float2bfloat16_rn(__fmul_rn(q[e], f));
				s.wk[r * s.ld + e * 32 + lane] = __float2bfloat16_rn(__fmul_rn(k[e], f));
			}
	}
}

/* Row r of T, which goes to its ring, and of M, and gamma; by one warp, lane j has token j, its
 * factor and gain. Loops are unrolled, so that what they read is on its way at once. */
__device__ __forceinline__ void row_weights(const recur_core &a, const work &w, size_t entry,
                                            uint32_t r, const shared<T> &s, float factor,
                                            float gain, float beta)
{
	const uint32_t lane = threadIdx.x & 31, c = lane & 15;
	const int down_to = lane < Q ? (int)lane : -1; /* lane 16 has the product of all: gamma */
	float f = 1, m = 0;
	if (!a.vector)
#pragma unroll
		for (int i = Q - 1; i >= 0; i--) {
			const float x = __shfl_sync(~0u, factor, i);
			f = i <= (int)r && i > down_to ? __fmul_rn(f, x) : f;
		}
	const float p = lane <= r ? __fmul_rn(s.sq[c], f) : 0;
	if (a.delta) {
		const float l = lane < r ? __fmul_rn(__fmul_rn(s.sk[c], f), beta) : 0;
		float x = 0, t[Q - 1];
#pragma unroll
		for (uint32_t j = 0; j < Q - 1; j++)
			t[j] = s.t[j * LDM + c];
#pragma unroll
		for (uint32_t j = 0; j < Q - 1; j++) {
			const float lj = __shfl_sync(~0u, l, j), pj = __shfl_sync(~0u, p, j);
			x = j < r ? __fmaf_rn(lj, t[j], x) : x;
			m = j < r ? __fmaf_rn(pj, t[j], m) : m;
		}
		x = (c == r ? 1 : 0) - x;
		m = __fmaf_rn(__shfl_sync(~0u, p, r), x, m);
		if (lane < Q)
			((float *)(w.unit + a.unit.t))[entry * Q + c] = x;
	} else {
		m = a.gain && lane <= r ? __fmul_rn(p, lane == r ? beta : gain) : p;
		if (a.skip && lane == r)
			m += a.skip[w.head];
	}
	if (lane < Q)
		s.m[c] = m;
	if (lane == Q)
		s.gamma[0] = f;
}

/* x of the chunk's earlier tokens, in C's place; those after them are zero. */
__device__ __forceinline__ void old_inputs(const recur_core &a, const work &w, uint32_t first_token,
                                           uint32_t r, uint32_t col, float (&x)[2][4])
{
	const unsigned char *ring = w.unit + a.unit.x;
	const size_t first = (size_t)first_token * a.unit.cols + col;
	each_of([&](int half, int i, uint32_t j, uint32_t c) {
		const size_t at = first + j * a.unit.cols + c;
		x[half][i] = 0;
		if (j < r)
			x[half][i] =
				a.delta
					? ((const volatile float *)ring)[at]
					: __bfloat162float(__ushort_as_bfloat16(((const volatile uint16_t *)ring)[at]));
	});
}

template <int KT>
__global__ void __launch_bounds__(RECUR_UNIT * 2, KT <= 8 ? 2 : 1) step(const recur_core a)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ __align__(16) T zero[8];
	const uint32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2;
	const mx_device_span span = a.step.spans[blockIdx.y];
	mx_pdl_launch();
	if (span.n != 1 || span.kind == MX_SPAN_DRAFT) {
		mx_pdl_wait();
		return;
	}
	shared<T> s;
	columns<T, 1, KT> state;
	share(memory, a.kpad, a.vector, &s);
	work w;
	w.head = shared_head(blockIdx.x, a.per_unit);
	w.col = (blockIdx.x - w.head * a.unit.per_head) * a.unit.cols;
	w.row = span.row, w.pos = span.pos, w.end = span.pos + 1, w.keep_from = span.pos;
	w.unit = a.step.slot_base + span.slot * a.step.slot_stride + blockIdx.x * a.unit.bytes;
	const uint32_t from = span.pos / Q * Q, r = span.pos - from, col = warp * 16;
	const uint32_t first = ring_of(a, from);
	const size_t entry = first + r;
	const uint32_t border = *(const volatile uint32_t *)w.unit;
	state.read(a, w, warp);
	load_old<KT>(a, w, first, r, s);
	float x[2][4], f, gain, own_f, beta;
	old_numbers(a, w, first, r, &f, &gain);
	old_inputs(a, w, first, r, col, x);
	if (threadIdx.x < 8)
		zero[threadIdx.x] = __float2bfloat16_rn(0);
	if (border < from) { /* there are chunks that are whole by now */
		asm volatile("cp.async.wait_all;" ::: "memory");
		__syncthreads();
		for (uint32_t at = border; at < from; at += Q) {
			const part p = {at, Q, Q, true};
			load(a, w, p, s);
			__syncthreads();
			if (a.vector)
				vector_scores(a, p, s);
			decay_scores(a, p, s);
			__syncthreads();
			run_chunk(a, w, p, s, warp, state);
			__syncthreads();
		}
		load_old<KT>(a, w, first, r, s);
	}
	mx_pdl_wait();
	load_own(a, w, entry, r, s);
	own_numbers(a, w, entry, &own_f, &beta);
	const uint32_t hv = shared_head(w.head, a.per_v);
	const T *v = (const T *)a.v + ((size_t)w.row * a.v_heads + hv) * a.vpad + w.col + col + g;
	const T v0 = v[0], v1 = v[8];
	if (border < from)
		state.write(a, w, warp);
	keep_inputs<T>(a, span);
	if (lane == r)
		f = own_f;
	asm volatile("cp.async.wait_all;" ::: "memory");
	__syncthreads();
	if (a.vector) {
		row_vector_scores<KT>(a, s, r);
		__syncthreads();
	} else if (warp == 0)
		row_scores<KT>(s, zero, r);
	__syncwarp();
	if (warp == 0)
		row_weights(a, w, entry, r, s, f, gain, beta);
	float c[4] = {0, 0, 0, 0};
#pragma unroll
	for (int i = 0; i < KT; i += 2) {
		operand_b<1> b[2];
		pair_b(s.wk + r * s.ld, s.wq + r * s.ld, zero, 16 * i, b);
		mma(c, sums_a<1>(state.S[i]).r[0], b[0].r[0]);
		mma(c, sums_a<1>(state.S[i + 1]).r[0], b[1].r[0]);
	}
	__syncthreads();
	/* lanes t = 0 have what S says of k and q, in columns g and g + 8 */
	float x0 = __bfloat162float(v0), x1 = __bfloat162float(v1);
	const float gamma = a.vector ? 1 : s.gamma[0], b = beta;
	const size_t place = entry * a.unit.cols + col + g;
	if (a.delta) {
		x0 = __fmul_rn(b, __fmaf_rn(-gamma, c[0], x0));
		x1 = __fmul_rn(b, __fmaf_rn(-gamma, c[2], x1));
	}
	if (lane % 4 == 0 && a.delta) {
		((float *)(w.unit + a.unit.x))[place] = x0;
		((float *)(w.unit + a.unit.x))[place + 8] = x1;
	} else if (lane % 4 == 0) {
		((T *)(w.unit + a.unit.x))[place] = v0;
		((T *)(w.unit + a.unit.x))[place + 8] = v1;
	}
	x0 = __shfl_sync(~0u, x0, lane & ~3u);
	x1 = __shfl_sync(~0u, x1, lane & ~3u);
	each_of([&](int half, int i, uint32_t j, uint32_t) {
		if (j == r)
			x[half][i] = i < 2 ? x0 : x1;
	});
	float o[4] = {c[1] * gamma, 0, c[3] * gamma, 0};
	operand_b<2> m = {};
	if (g == 0) {
		take<2>(s.m + 2 * lane, m.r, 0);
		take<2>(s.m + 2 * lane + 8, m.r, 1);
	}
	multiply(o, sums_a<2>(x), m);
	float *y = a.y + ((size_t)w.row * a.heads + w.head) * a.v_dim;
	if (lane % 4 == 0 && w.col + col + g < a.v_dim)
		y[w.col + col + g] = o[0];
	if (lane % 4 == 0 && w.col + col + g + 8 < a.v_dim)
		y[w.col + col + g + 8] = o[2];
	if (threadIdx.x == 0 && border < from)
		*(uint32_t *)w.unit = from;
}

template <int KT> cudaError_t launch(cudaStream_t stream, const recur_core &a)
{
	return mx_launch(step<KT>, dim3(a.heads * a.unit.per_head, a.step.n_spans),
	                 dim3(a.unit.cols * 2), share<T>(NULL, a.kpad, a.vector, NULL), stream, a);
}

template <int KT> cudaError_t prepare(uint32_t kpad)
{
	return cudaFuncSetAttribute(step<KT>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                            (int)share<T>(NULL, kpad, true, NULL));
}

} // namespace

cudaError_t recur_cuda_step(cudaStream_t stream, const struct recur_core *a)
{
	switch (a->kpad) {
	case 32: return launch<2>(stream, *a);
	case 64: return launch<4>(stream, *a);
	case 128: return launch<8>(stream, *a);
	case 256: return launch<16>(stream, *a);
	default: return cudaErrorInvalidValue;
	}
}

cudaError_t recur_cuda_step_prepare(uint32_t kpad)
{
	switch (kpad) {
	case 32: return prepare<2>(kpad);
	case 64: return prepare<4>(kpad);
	case 128: return prepare<8>(kpad);
	case 256: return prepare<16>(kpad);
	default: return cudaErrorInvalidValue;
	}
}
