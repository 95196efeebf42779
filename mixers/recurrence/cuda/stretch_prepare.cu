/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tokens of a stretch are to each other, for all stretches of all heads at once: P, T and
 * products of factors, to notes in scratch. Heads that share q and k share their scores.
 */
#include "mixers/recurrence/cuda/stretch.h"
#include "mixers/recurrence/cuda/stretch_inverse.cuh"

#define AT_ONCE 2 /* heads */
#define TEAMS   4 /* of a thread block that runs beside the next kernel */

namespace
{

typedef __nv_bfloat16 T;

/* A note is complete: what the team wrote before it met is seen by who sees `done`. */
__device__ __forceinline__ void set_done(note *to)
{
	asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(&to->done), "r"(1) : "memory");
}

/* Bulk copies, which read the notes, see what the thread has written. Nothing before Hopper has
 * them. */
__device__ __forceinline__ void bulk_copies_see(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

/* The numbers of a head's tokens. */
struct numbers {
	float sum[STRETCH], b[STRETCH];
};

/* Begins copies of k and q to shared memory; rows that are not there are zero. */
template <int KT>
__device__ __forceinline__ void fetch(const recur_core &a, const place &w, T *k, T *q)
{
	constexpr uint32_t kpad = KT * 16, parts = kpad / 8, ld = kpad + 8,
					   each = PREPARE_THREADS / parts;
	const uint32_t hk = shared_head(w.head, a.per_k), hq = shared_head(w.head, a.per_q);
	const int64_t row = (int64_t)w.span.row + w.s.from - w.span.pos; /* of the stretch's first */
	const uint32_t e = threadIdx.x % parts * 8, first = threadIdx.x % PREPARE_THREADS / parts;
	const size_t ld_k = ld_k_of(a);
	const T *from_k = (const T *)a.k + row * (int64_t)ld_k + hk * kpad + e;
	const T *from_q = (const T *)a.q + (row * a.q_heads + hq) * (int64_t)kpad + e;
	const T *ring = (const T *)(unit_of(a, w, w.head) + a.unit.k) + e +
	                (w.s.r0 ? (size_t)ring_of(a, w.s.from) * kpad : 0);
	const size_t ld_q = (size_t)a.q_heads * kpad;
#pragma unroll
	for (uint32_t i = 0; i < STRETCH / each; i++) {
		const uint32_t j = first + i * each;
		const bool own = j >= w.s.r0 && j < w.s.len;
		copy16(k + j * ld + e, own ? from_k + j * ld_k : j < w.s.r0 ? ring + j * kpad : NULL);
		copy16(q + j * ld + e, own ? from_q + j * ld_q : NULL);
	}
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* A warp: the numbers of a head, and what chain needs of them. */
__device__ __forceinline__ void take_numbers(const recur_core &a, const place &w, uint32_t head,
                                             numbers &out, note *to)
{
	const uint32_t lane = threadIdx.x & 31;
	const pair_numbers x = numbers_of(a, inputs_of(a, w.span, w.s, unit_of(a, w, head), head));
	*(float2 *)(out.sum + 2 * lane) = x.sum;
	*(float2 *)(out.b + 2 * lane) = x.b;
	*(float2 *)(to->gamma + 2 * lane) = make_float2(power(x.sum.x), power(x.sum.y));
	*(float2 *)(to->to_end + 2 * lane) = x.to_end;
	*(float2 *)(to->b + 2 * lane) = x.b;
	if (lane == 0)
		to->d = x.d;
}

/* Scores without decay of rows 16 w .. of a warp: of q with k and of k with k. */
template <int KT>
__device__ __forceinline__ void scores(const T *k, const T *q, uint32_t warp, float (&cq)[8][4],
                                       float (&ck)[8][4])
{
	constexpr uint32_t kpad = KT * 16, ld = kpad + 8;
	const uint32_t lane = threadIdx.x & 31;
	const uint32_t at = (16 * warp + lane % 16) * ld + lane / 16 * 8;
	const uint32_t bt = (lane / 16 * 8 + lane % 8) * ld + lane / 8 % 2 * 8;
#pragma unroll 2
	for (uint32_t i = 0; i < kpad; i += 16) {
		uint32_t aq[4], ak[4];
		load_matrices(aq[0], aq[1], aq[2], aq[3], q + at + i);
		load_matrices(ak[0], ak[1], ak[2], ak[3], k + at + i);
#pragma unroll
		for (uint32_t p = 0; p < 4; p++) {
			if (p > warp)
				break;
			uint32_t b[2][2];
			load_matrices(b[0][0], b[0][1], b[1][0], b[1][1], k + 16 * p * ld + bt + i);
			mma(cq[2 * p], aq, b[0]);
			mma(cq[2 * p + 1], aq, b[1]);
			mma(ck[2 * p], ak, b[0]);
			mma(ck[2 * p + 1], ak, b[1]);
		}
	}
}

/* P of a warp's rows to the note; L to shared memory. Rows and keys that are not there, or q of a
 * ring's, are zero, and so are their scores; b of a ring's k is zero. */
__device__ __forceinline__ void decay(const numbers &s, uint32_t warp, const float (&cq)[8][4],
                                      const float (&ck)[8][4], note *to, triangle *tri)
{
	const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, r = 16 * warp + g;
	const float sum[2] = {s.sum[r], s.sum[r + 8]}, b[2] = {s.b[r], s.b[r + 8]};
	const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll
	for (uint32_t n = 0; n < 8; n++) {
		if (n > 2 * warp + 1)
			break;
		const float2 past = *(const float2 *)(s.sum + 8 * n + 2 * t);
#pragma unroll
		for (uint32_t half = 0; half < 2; half++) {
			const uint32_t row = r + 8 * half, j = 8 * n + 2 * t;
			const float f0 = power(sum[half] - past.x), f1 = power(sum[half] - past.y);
			float p0 = cq[n][2 * half] * f0, p1 = cq[n][2 * half + 1] * f1;
			float l0 = ck[n][2 * half] * (f0 * b[half]), l1 = ck[n][2 * half + 1] * (f1 * b[half]);
			if (n >= 2 * warp) { /* on the diagonal, above which powers may be infinite */
				p0 = j <= row ? p0 : 0, p1 = j + 1 <= row ? p1 : 0;
				l0 = j < row ? l0 : 0, l1 = j + 1 < row ? l1 : 0;
			}
			*(float2 *)(tri->m + row * LDS + j) = make_float2(l0, l1);
			const __nv_bfloat162 two = __floats2bfloat162_rn(p0, p1);
			*(uint32_t *)(to->p + swizzled(row, n) + 4 * t) = *(const uint32_t *)&two;
		}
	}
	for (uint32_t i = lane; i < 16 * (6 - 2 * warp); i += 32) /* above the diagonal */
		*(uint4 *)(to->p + swizzled(16 * warp + i % 16, 2 * warp + 2 + i / 16)) = none;
}

template <int KT> __host__ __device__ constexpr size_t smem_of(void)
{
	constexpr size_t keys = 2 * STRETCH * (KT * 16 + 8) * sizeof(T);
	constexpr size_t inverse = AT_ONCE * sizeof(triangle);
	return inverse > keys ? inverse : keys;
}

/* A team's stretch: `share` heads, at most AT_ONCE, with the same q and k. `turn`: a warp's scores
 * grow with its number, let each quarter of a multiprocessor have all kinds. */
template <int KT>
__device__ __forceinline__ void prepare_stretch(const recur_core &a, const place &w, uint32_t n,
                                                uint32_t share, uint32_t team, uint32_t turn,
                                                unsigned char *memory, numbers *all)
{
	const uint32_t mine = threadIdx.x % PREPARE_THREADS >> 5, warp = (mine + turn) & 3;
	T *k = (T *)memory, *q = k + STRETCH * (KT * 16 + 8);
	triangle *tri = (triangle *)memory;
	float cq[8][4] = {}, ck[8][4] = {};
	fetch<KT>(a, w, k, q);
	if (mine < share)
		take_numbers(a, w, w.head + mine, all[mine], note_at(a, n, w.head + mine));
	asm volatile("cp.async.wait_group 0;" ::: "memory");
	team_meet(team);
	scores<KT>(k, q, warp, cq, ck);
	team_meet(team); /* k and q have been read */
	for (uint32_t i = 0; i < share; i++)
		decay(all[i], warp, cq, ck, note_at(a, n, w.head + i), tri + i);
	team_meet(team);
	inverse(a, w, w.head, share, team, warp, tri, note_at(a, n, w.head));
}

template <int KT>
__global__ void __launch_bounds__(PREPARE_THREADS, 4)
	prepare(const recur_core a, const uint32_t share)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ numbers all[AT_ONCE];
	const uint32_t n = blockIdx.y;
	place w;
	mx_pdl_launch();
	const bool there = find_stretch(a, n, blockIdx.x * share, &w);
	mx_pdl_wait();
	if (there)
		prepare_stretch<KT>(a, w, n, share, 0, blockIdx.x + blockIdx.y, memory, all);
}

/* No note is complete. */
__global__ void __launch_bounds__(PREPARE_THREADS) undo(const recur_core a)
{
	const uint32_t n = blockIdx.x * PREPARE_THREADS + threadIdx.x;
	mx_pdl_launch();
	mx_pdl_wait();
	if (n < a.n_notes * a.heads)
		note_at(a, 0, 0)[n].done = 0;
}

/* The same beside the kernel that reads the notes: in its order, stretch by stretch. */
template <int KT>
__global__ void __launch_bounds__(TEAMS *PREPARE_THREADS, 1)
	prepare_beside(const recur_core a, const uint32_t share)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ numbers all[TEAMS][AT_ONCE];
	const uint32_t team = threadIdx.x / PREPARE_THREADS, per = a.heads / share;
	mx_pdl_wait();
	mx_pdl_launch(); /* not before: the next kernel reads `done`, which undo has cleared by now */
	for (uint32_t i = blockIdx.x * TEAMS + team; i < per * a.n_notes; i += gridDim.x * TEAMS) {
		const uint32_t n = i / per;
		place w;
		if (!find_stretch(a, n, i % per * share, &w))
			continue;
		prepare_stretch<KT>(a, w, n, share, team, team + i, memory + team * smem_of<KT>(),
		                    all[team]);
		bulk_copies_see();
		team_meet(team);
		if (threadIdx.x % PREPARE_THREADS < share)
			set_done(note_at(a, n, w.head + threadIdx.x % PREPARE_THREADS));
	}
}

template <int KT> cudaError_t launch(cudaStream_t stream, const recur_core &a, uint32_t beside)
{
	const uint32_t share = a.heads / (a.q_heads > a.k_heads ? a.q_heads : a.k_heads);
	const uint32_t each = share % AT_ONCE ? 1 : AT_ONCE;
	if (!beside)
		return mx_launch(prepare<KT>, dim3(a.heads / each, a.n_notes), dim3(PREPARE_THREADS),
		                 smem_of<KT>(), stream, a, each);
	const uint32_t notes = a.n_notes * a.heads;
	const cudaError_t e = mx_launch(undo, dim3((notes + PREPARE_THREADS - 1) / PREPARE_THREADS),
	                                dim3(PREPARE_THREADS), 0, stream, a);
	return e != cudaSuccess
	           ? e
	           : mx_launch(prepare_beside<KT>, dim3(beside), dim3(TEAMS * PREPARE_THREADS),
	                       TEAMS * smem_of<KT>(), stream, a, each);
}

template <int KT> cudaError_t opt_in(void)
{
	const cudaError_t e = cudaFuncSetAttribute(
		prepare<KT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem_of<KT>());
	return e != cudaSuccess ? e
	                        : cudaFuncSetAttribute(prepare_beside<KT>,
	                                               cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                               (int)(TEAMS * smem_of<KT>()));
}

} // namespace

cudaError_t recur_cuda_stretch_scores(cudaStream_t stream, const struct recur_core *a,
                                      uint32_t beside)
{
	return a->kpad == 64 ? launch<4>(stream, *a, beside) : launch<8>(stream, *a, beside);
}

cudaError_t recur_cuda_stretch_scores_prepare(uint32_t kpad)
{
	return kpad == 64 ? opt_in<4>() : opt_in<8>();
}
