/* SPDX-License-Identifier: Apache-2.0 */
/* Of stretch.cu: what is where in a thread block's shared memory, and the warp that copies it. */
#ifndef MX_MIXERS_RECURRENCE_CUDA_STRETCH_COPY_CUH
#define MX_MIXERS_RECURRENCE_CUDA_STRETCH_COPY_CUH

#include <cuda.h>

#include "mixers/recurrence/cuda/stretch.cuh"
#include "mixers/recurrence/cuda/warpgroup.cuh"

#define GROUP  128 /* threads of a warpgroup */
#define COLS   64  /* columns of a thread block */
#define STAGES 3
#define LOOK   8 /* notes that are waited for at once: a fence takes as long as a copy */

namespace
{

typedef __nv_bfloat16 T;

/* Shared memory. `chain`: k, v, T of a stretch, k_from with vectors of factors, numbers; `outputs`:
 * q, P and numbers. plain: P and numbers are computed here. */
template <int KT, bool DELTA, bool VECTOR> struct plan {
	static constexpr int keys_16 = KT;
	static constexpr bool delta = DELTA, vector = VECTOR, plain = !DELTA && !VECTOR;
	/* Registers are given to warpgroups: of S, outputs, copies and, if they are computed here,
	 * scores. Of the warpgroup of copies two warps do something, or three, one for numbers. */
	static constexpr uint32_t threads = (plain ? 4 : 3) * GROUP;
	static constexpr uint32_t working = threads - GROUP + (plain ? 96 : 64);
	static constexpr int for_state = plain ? 160 : 240, for_outputs = plain ? 152 : 160;
	static constexpr uint32_t keys = STRETCH * KT * 32; /* bytes of k or q */
	static constexpr uint32_t v = keys, t = v + MATRIX;
	static constexpr uint32_t chain_numbers = t + (DELTA ? MATRIX : 0);
	static constexpr uint32_t d = chain_numbers + NOTE_NUMBERS;
	static constexpr uint32_t k_from = d + (VECTOR ? 1024 : 0);
	static constexpr uint32_t chain = k_from + (VECTOR && DELTA ? keys : 0);
	/* outputs in f32 take the place of q, or of q and P: 16 KiB */
	static constexpr uint32_t out_numbers = keys + (plain && KT > 4 ? 0 : MATRIX);
	static constexpr uint32_t outputs = out_numbers + (plain ? 0 : NOTE_NUMBERS);
	static constexpr uint32_t depth = VECTOR && DELTA ? 2 : STAGES; /* stages of `chain` */
	static constexpr uint32_t out_depth = plain ? 4 : STAGES;       /* of `outputs` */
	/* handed over: S and U as operands, 16 bytes a thread and step */
	static constexpr uint32_t hand = (KT + STRETCH / 16) * GROUP * 16;
	static constexpr uint32_t at_outputs = depth * chain, at_p = at_outputs + out_depth * outputs;
	static constexpr uint32_t p_bytes = MATRIX + 1024; /* plain: P and gamma, two of them */
	static constexpr uint32_t at_hand = at_p + (plain ? 2 * p_bytes : 0);
	static constexpr uint32_t at_bars = at_hand + 2 * hand;
	static constexpr uint32_t bars = depth + out_depth;
	static constexpr uint32_t bytes = at_bars + bars * 8 + 1024; /* begins at 1024 n */
	static_assert(bytes <= 232448, "more shared memory than a thread block can have");
};

/* The same of a thread block that adds up a piece of a span (stretch_pieces.cu). */
template <int KT, bool VECTOR> struct piece_plan {
	static constexpr int keys_16 = KT;
	static constexpr bool delta = false, vector = VECTOR, plain = !VECTOR;
	static constexpr uint32_t threads = GROUP + 64, working = GROUP + (plain ? 64 : 32);
	static constexpr uint32_t keys = STRETCH * KT * 32;
	static constexpr uint32_t v = keys, t = v + MATRIX, chain_numbers = t;
	static constexpr uint32_t d = chain_numbers + NOTE_NUMBERS;
	static constexpr uint32_t k_from = d + (VECTOR ? 1024 : 0), chain = k_from;
	static constexpr uint32_t depth = 4;
	static constexpr uint32_t at_bars = depth * chain;
	static constexpr uint32_t bytes = at_bars + depth * 8 + 1024;
	static_assert(2 * (bytes + 1024) <= 233472, "a multiprocessor has two");
};

/* Tensors of a step, for copies of 64 rows of 128 bytes, swizzled. y_too: y can be one. */
struct tensors {
	CUtensorMap k, q, v, y;
	bool y_too;
};

/* What a thread block computes. */
struct part_of_head {
	mx_device_span span;
	division all;
	uint32_t from, n;                   /* its first stretch, and how many it computes */
	uint32_t head, col, unit_col, cols; /* first column of the head, of the unit; columns */
	unsigned char *unit;
	bool beside; /* notes are still being written */
};

/* Stretch i of a thread block's. */
__device__ __forceinline__ stretch stretch_at(const part_of_head &w, uint32_t i)
{
	return stretch_of(w.all, w.from + i);
}
__device__ __forceinline__ bool is_last(const part_of_head &w, uint32_t i)
{
	return w.from + i + 1 == w.all.n;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* All warps that do something, `n` threads, wait for each other. */
template <uint32_t n> __device__ __forceinline__ void meet(void)
{
	asm volatile("bar.sync 1, %0;" ::"n"(n) : "memory");
}

/* The outputs of stretch i - 2 have left shared memory: a warp of the second warpgroup tells the
 * one that copies, and does not wait for it. */
__device__ __forceinline__ void outputs_written(void)
{
	asm volatile("bar.arrive 4, 64;" ::: "memory");
}
__device__ __forceinline__ void wait_written(void)
{
	asm volatile("bar.sync 4, 64;" ::: "memory");
}

/* Where a thread block's operands come from. */
struct sources {
	const T *k, *q, *v, *ring_k, *ring_v; /* of position 0; rings */
	size_t ld_k, ld_q, ld_v;
	const unsigned char *notes; /* of the first stretch */
	size_t ld_note;
};

__device__ __forceinline__ sources sources_of(const recur_core &a, const part_of_head &w)
{
	const int64_t row = (int64_t)w.span.row - w.span.pos;
	sources s;
	s.ld_k = ld_k_of(a);
	s.ld_q = (size_t)a.q_heads * a.kpad;
	s.ld_v = ld_v_of(a);
	s.k = (const T *)a.k + row * (int64_t)s.ld_k + shared_head(w.head, a.per_k) * a.kpad;
	s.q = (const T *)a.q + row * (int64_t)s.ld_q + shared_head(w.head, a.per_q) * a.kpad;
	s.v = (const T *)a.v + row * (int64_t)s.ld_v + shared_head(w.head, a.per_v) * a.vpad + w.col;
	s.ring_k = (const T *)(w.unit + a.unit.k);
	s.ring_v = (const T *)(w.unit + a.unit.x) + w.unit_col;
	s.ld_note = (size_t)a.heads * a.note_bytes;
	s.notes = (const unsigned char *)note_at(a, first_note(a, w.span, blockIdx.y) + w.from, w.head);
	return s;
}

/* Copies rows of `parts` x 16 bytes, of which the first r0 are a ring's and those from `len` on are
 * zero; 8 parts are a panel. */
template <int PARTS>
__device__ __forceinline__ void copy_rows(uint32_t to, const T *from, size_t ld, const T *ring,
                                          uint32_t ld_ring, const stretch &s, uint32_t there)
{
	const uint32_t n = threadIdx.x & 31, c = n % PARTS;
	constexpr uint32_t each = 32 / PARTS;
#pragma unroll 1
	for (uint32_t i = 0; i < STRETCH / each; i++) {
		const uint32_t j = n / PARTS + i * each;
		const T *p = j >= s.len || c >= there ? NULL
		             : j < s.r0               ? (ring ? ring + j * ld_ring + 8 * c : NULL)
		                                      : from + (size_t)j * ld + 8 * c;
		const int bytes = p ? 16 : 0;
		asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + c / 8 * MATRIX +
		                                                                   swizzled(j, c % 8)),
		             "l"(p ? p : from), "r"(bytes)
		             : "memory");
	}
}

/* A whole stretch of this span: boxes of tensors can be copied. Others have rows of a ring, or rows
 * that are not the stretch's and must be zero. */
__device__ __forceinline__ bool is_whole(const stretch &x)
{
	return x.r0 == 0 && x.len == STRETCH;
}

/* Waits until the notes of n stretches from `from` on are complete, a lane for each. */
__device__ __forceinline__ void wait_done(const unsigned char *from, size_t ld, uint32_t n)
{
	const uint32_t lane = threadIdx.x & 31;
	const note *mine = (const note *)(from + (lane < n ? lane : 0) * ld);
	uint32_t done;
	do
		asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
		             : "=r"(done)
		             : "l"(&mine->done)
		             : "memory");
	while (!done);
	__syncwarp();
	asm volatile("fence.proxy.async;" ::: "memory");
}

/* Begins the copies of stretch i. */
template <typename P>
__device__ __forceinline__ void fetch_chain(const recur_core &a, const tensors &maps,
                                            const part_of_head &w, const sources &s, uint32_t base,
                                            uint32_t i)
{
	constexpr int KT = P::keys_16;
	constexpr bool DELTA = P::delta, VECTOR = P::vector;
	const stretch x = stretch_at(w, i);
	const vector_note<KT> *from = (const vector_note<KT> *)(s.notes + i * s.ld_note);
	const uint32_t stage = i % P::depth * P::chain, to = base + stage, lane = threadIdx.x & 31;
	const uint32_t bar = base + P::at_bars + i % P::depth * 8;
	const uint32_t row = w.span.row + x.from - w.span.pos;
	const bool whole = is_whole(x), boxes = whole && !VECTOR;
	if (DELTA && !VECTOR && w.beside && i % LOOK == 0)
		wait_done((const unsigned char *)from, s.ld_note, w.n - i < LOOK ? w.n - i : LOOK);
	if (lane == 0) {
		barrier_expect(bar, (whole ? MATRIX : 0) + (whole || VECTOR ? P::keys : 0) +
		                        (P::plain ? 0 : P::chain - P::t));
		if (boxes)
#pragma unroll
			for (uint32_t p = 0; p < KT / 4; p++)
				copy_box(to + p * MATRIX, &maps.k, shared_head(w.head, a.per_k) * a.kpad + 64 * p,
				         row, bar);
		if (VECTOR) {
			copy_bulk(to, from->k_to, P::keys, bar);
			copy_bulk(to + P::d, from->d, 1024, bar);
		}
		if (VECTOR && DELTA)
			copy_bulk(to + P::k_from, from->k_from, P::keys, bar);
		if (DELTA)
			copy_bulk(to + P::t, from->base.t, MATRIX + NOTE_NUMBERS, bar);
		else if (VECTOR)
			copy_bulk(to + P::chain_numbers, from->base.gamma, NOTE_NUMBERS, bar);
		if (whole)
			copy_box(to + P::v, &maps.v, shared_head(w.head, a.per_v) * a.vpad + w.col, row, bar);
	}
	__syncwarp();
	if (whole)
		return;
	const uint32_t entry = x.r0 ? ring_of(a, x.from) : 0;
	if (!VECTOR)
		copy_rows<KT * 2>(to, s.k + x.from * s.ld_k, s.ld_k, s.ring_k + entry * a.kpad, a.kpad, x,
		                  KT * 2);
	copy_rows<8>(to + P::v, s.v + x.from * s.ld_v, s.ld_v,
	             DELTA ? NULL : s.ring_v + (size_t)entry * a.unit.cols, a.unit.cols, x, w.cols / 8);
}

template <typename P>
__device__ __forceinline__ void fetch_outputs(const recur_core &a, const tensors &maps,
                                              const part_of_head &w, const sources &s,
                                              uint32_t base, uint32_t i)
{
	constexpr int KT = P::keys_16;
	constexpr bool VECTOR = P::vector;
	const stretch x = stretch_at(w, i);
	const vector_note<KT> *from = (const vector_note<KT> *)(s.notes + i * s.ld_note);
	const uint32_t to = base + P::at_outputs + i % P::out_depth * P::outputs;
	const uint32_t bar = base + P::at_bars + (P::depth + i % P::out_depth) * 8;
	const bool whole = is_whole(x);
	if (P::delta && !VECTOR && w.beside && i % LOOK == 0)
		wait_done((const unsigned char *)from, s.ld_note, w.n - i < LOOK ? w.n - i : LOOK);
	if ((threadIdx.x & 31) == 0) {
		barrier_expect(bar,
		               (whole || VECTOR ? P::keys : 0) + (P::plain ? 0 : MATRIX + NOTE_NUMBERS));
		if (VECTOR)
			copy_bulk(to, from->q, P::keys, bar);
		else if (whole)
#pragma unroll
			for (uint32_t p = 0; p < KT / 4; p++)
				copy_box(to + p * MATRIX, &maps.q, shared_head(w.head, a.per_q) * a.kpad + 64 * p,
				         w.span.row + x.from - w.span.pos, bar);
		if (!P::plain) {
			copy_bulk(to + P::keys, from->base.p, MATRIX, bar);
			copy_bulk(to + P::out_numbers, from->base.gamma, NOTE_NUMBERS, bar);
		}
	}
	__syncwarp();
	if (!whole && !VECTOR)
		copy_rows<KT * 2>(to, s.q + x.from * s.ld_q, s.ld_q, NULL, 0, x, KT * 2);
}

/* Writes the numbers of stretch i from `x`, and reads what the next one's are made of: it arrives
 * while this stretch is computed. */
template <typename P>
__device__ __forceinline__ void write_numbers(const recur_core &a, const part_of_head &w,
                                              unsigned char *memory, uint32_t i, pair_inputs &x)
{
	float *out = (float *)(memory + i % P::depth * P::chain + P::chain_numbers);
	const uint32_t lane = threadIdx.x & 31;
	const pair_numbers n = numbers_of(a, x);
	if (i + 1 < w.n)
		x = inputs_of(a, w.span, stretch_at(w, i + 1), w.unit, w.head);
	*(float2 *)(out + 2 * lane) = n.sum;
	*(float2 *)(out + STRETCH + 2 * lane) = n.to_end;
	*(float2 *)(out + 2 * STRETCH + 2 * lane) = n.b;
	if (lane == 0)
		out[3 * STRETCH] = n.d;
}

/* A warp writes the numbers of all stretches, as early as k and v are copied. */
template <typename P>
__device__ __forceinline__ void number_all(const recur_core &a, const part_of_head &w,
                                           unsigned char *memory)
{
	const uint32_t n = w.n;
	pair_inputs inputs = inputs_of(a, w.span, stretch_at(w, 0), w.unit, w.head);
	for (uint32_t i = 0; i + 1 < P::depth && i < n; i++)
		write_numbers<P>(a, w, memory, i, inputs);
	for (uint32_t i = 0; i <= n; i++) {
		meet<P::working>();
		if (i + P::depth - 1 < n)
			write_numbers<P>(a, w, memory, i + P::depth - 1, inputs);
	}
}

/* A warp copies what the chain takes, or (OUTPUTS) what outputs take. */
template <typename P, bool OUTPUTS>
__device__ __forceinline__ void copy_all(const recur_core &a, const tensors &maps,
                                         const part_of_head &w, uint32_t base)
{
	/* how far ahead: of outputs the place of the stretch before the last one is still written */
	constexpr uint32_t ahead = OUTPUTS ? P::out_depth - 2 : P::depth - 1;
	const sources from = sources_of(a, w);
	const auto fetch = [&](uint32_t i) {
		if (i >= w.n)
			return;
		if (OUTPUTS)
			fetch_outputs<P>(a, maps, w, from, base, i);
		else
			fetch_chain<P>(a, maps, w, from, base, i);
	};
	for (uint32_t i = 0; i < ahead; i++)
		fetch(i);
	for (uint32_t i = 0; i <= w.n; i++) {
		asm volatile("cp.async.wait_all;" ::: "memory"); /* of stretches that are not whole */
		stores_done();
		meet<P::working>();
		if (OUTPUTS)
			wait_written(); /* the place of stretch i - 2 is free */
		fetch(i + ahead);
	}
}

#endif

} // namespace

#endif
