/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A unit of a long convolution: the tiles of one block of outputs, for as many channels as fill a
 * thread block, or a part of one channel's. With transforms the arithmetic is that of ../kernels.h,
 * the right-angle convolution: inputs with weights exp(-i pi k / 2n), a cyclic product of n
 * numbers.
 *
 * Part p of P has the frequencies P q + p: a transform of m = n / P numbers, of inputs with weights
 * exp(-i pi k (1 + 4 p) / 2n) that are added modulo m. With k = t + m/16 q + m j a weight has a
 * factor for each of t, q and j: that of t goes into the factors of the transform's first pass.
 */
#ifndef MX_MIXERS_HYENA_CUDA_UNIT_CUH
#define MX_MIXERS_HYENA_CUDA_UNIT_CUH

#include "device/cuda/launch.cuh"
#include "mixers/hyena/cuda/fft.cuh"
#include "mixers/hyena/cuda/lc_cuda.h"

namespace lcg
{

/* Page numbers of a sequence from number `first` on. */
struct page_range {
	const uint32_t *pages;
	uint32_t first;
};

/* A unit's place: in shared memory, where it takes no registers. */
struct place {
	unsigned char *page_base;
	size_t page_stride;
	uint32_t page_tokens, page_magic;
	const float *spectra;   /* of the level */
	page_range in, out;     /* pages of its inputs and outputs */
	uint32_t channels, end; /* no outputs from position `end` on */
	uint32_t log2_n, block, group, first_part, end_part;
};

/* The same where not all outputs go to cells: those before `from` go nowhere, and those of
 * positions sums_begin .. sums_end - 1 to sums[channel * sums_ld + position - sums_begin]. */
struct place_in_range : place {
	uint32_t from;
	float *sums;
	size_t sums_ld;
	uint32_t sums_begin, sums_end;
	bool undo; /* subtracts what was added */
};

__device__ __forceinline__ bool undoes(const place &)
{
	return false;
}

__device__ __forceinline__ bool undoes(const place_in_range &u)
{
	return u.undo;
}

/* First position past a sequence's cells. */
__device__ __forceinline__ uint32_t cells_end(const lcg_shape &s, const mx_device_span &span)
{
	const uint32_t len = span.max_len < s.max_len ? span.max_len : s.max_len;
	const uint64_t paged = (uint64_t)span.n_pages * s.page_tokens;
	return len < paged ? len : (uint32_t)paged;
}

__device__ __forceinline__ float *cell(const lcg_shape &s, const lcg_layer &l,
                                       const uint32_t *pages, uint32_t channel, uint32_t pos)
{
	const uint32_t page = __umulhi(pos, s.page_magic), at = pos - page * s.page_tokens;
	return (float *)(l.page_base + pages[page] * s.page_stride) +
	       ((size_t)channel * s.page_tokens + at);
}

__device__ __forceinline__ float *cell(const place &u, const page_range &in, uint32_t channel,
                                       uint32_t pos)
{
	const uint32_t page = __umulhi(pos, u.page_magic), at = pos - page * u.page_tokens;
	return (float *)(u.page_base + in.pages[page - in.first] * u.page_stride) +
	       ((size_t)channel * u.page_tokens + at);
}

__device__ __forceinline__ float *output(const place_in_range &u, uint32_t channel, uint32_t pos)
{
	if (pos < u.from || pos >= u.end)
		return nullptr;
	if (pos >= u.sums_begin && pos < u.sums_end)
		return u.sums + (channel * u.sums_ld + (pos - u.sums_begin));
	return cell(u, u.out, channel, pos);
}

__device__ __forceinline__ uint32_t distance_of(uint32_t block)
{
	return block % 2 ? 3 : 2;
}

/* True if no larger side has written the block's cells: at the levels above, they belong to blocks
 * 0 and 1. */
__device__ __forceinline__ bool is_first(uint32_t block)
{
	return block < 4;
}

/* ---- by transforms ---- */

/* exp(-i pi q / 32) */
__device__ __forceinline__ float2 eighth(int q)
{
	constexpr float C[17] = {1.0f,
	                         0.99518472667f,
	                         0.98078528040f,
	                         0.95694033573f,
	                         0.92387953251f,
	                         0.88192126435f,
	                         0.83146961230f,
	                         0.77301045336f,
	                         0.70710678119f,
	                         0.63439328416f,
	                         0.55557023302f,
	                         0.47139673683f,
	                         0.38268343236f,
	                         0.29028467725f,
	                         0.19509032202f,
	                         0.09801714033f,
	                         0.0f};
	return make_float2(C[q], -C[16 - q]);
}

/* Weights of part `part` of a side: v for each thread, a^q, and one for each j. If there is one
 * part, a^q is `eighth`. */
struct weights {
	float2 v, a;
	float step; /* of the angle of j, in units of pi */

	__device__ __forceinline__ weights(const fft::plan &p, uint32_t log2_n, uint32_t part)
	{
		const float n2 = (float)(2u << log2_n);
		v = (int)log2_n == p.log2 ? p.weight() : fft::root((float)(p.t * (1 + 4 * part)) / n2);
		a = fft::root((float)(p.threads * (1 + 4 * part)) / n2);
		step = (float)((1 + 4 * part) << p.log2) / n2;
	}
	__device__ __forceinline__ float2 of_j(uint32_t j) const
	{
		return fft::root(step * (float)j);
	}
};

/* ---- what a unit reads ---- */

/* Shared memory of a thread block that runs units. parked: of each thread a spectrum, then the
 * product with it of the first of two blocks of inputs, since two transforms do not fit in
 * registers; then sums of outputs. */
struct shared_memory {
	static constexpr uint32_t PAGES = 800;

	float2 room[fft::room_of(LCG_THREADS)];
	float4 parked[LCG_POINTS / 2];
	float2 tables[2 * fft::TABLE];
	uint32_t pages[PAGES];
};

/* Brings the page numbers of the unit's inputs and outputs to shared memory, if they fit. u: in
 * shared memory; in and out have the numbers of all pages. All threads of the block take part. */
__device__ __forceinline__ void find_pages(place &u, shared_memory *shared)
{
	const uint32_t begin = u.block << u.log2_n, n = 1u << u.log2_n;
	const uint32_t end = u.end - begin < n ? u.end : begin + n;
	const uint32_t in = __umulhi(begin - (distance_of(u.block) << u.log2_n), u.page_magic);
	const uint32_t n_in = __umulhi(begin - n - 1, u.page_magic) + 1 - in;
	const uint32_t out = __umulhi(begin, u.page_magic);
	const uint32_t all = n_in + __umulhi(end - 1, u.page_magic) + 1 - out;
	const uint32_t *pages = u.in.pages;
	if (all > shared_memory::PAGES)
		return;
	for (uint32_t i = threadIdx.x; i < all; i += LCG_THREADS)
		shared->pages[i] = pages[i < n_in ? in + i : out + i - n_in];
	__syncthreads();
	if (threadIdx.x == 0) {
		u.in = {shared->pages, in};
		u.out = {shared->pages + n_in, out};
	}
	__syncthreads();
}

__device__ __forceinline__ void prefetch(const void *p)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

__device__ __forceinline__ void copy_async(float *to, const float *from)
{
	asm volatile(
		"cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
		"l"(from)
		: "memory");
}

__device__ __forceinline__ void copy_async(float4 *to, const float4 *from)
{
	asm volatile(
		"cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
		"l"(from)
		: "memory");
}

__device__ __forceinline__ void copies_end()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for the thread's copies but for those of the last MORE groups. */
template <int MORE> __device__ __forceinline__ void wait_copies()
{
	asm volatile("cp.async.wait_group %0;" ::"n"(MORE) : "memory");
}

/* Asks for the lines that the unit reads late: a second block of inputs, sums of outputs. */
__device__ __forceinline__ void prefetch_cells(const place &u)
{
	const uint32_t log2_lines = u.log2_n - 5, log2_parts = lcg_log2_parts(u.log2_n);
	const uint32_t lines = LCG_POINTS / 32 << log2_parts;
	const uint32_t first = u.group << (LCG_LOG2_POINTS + log2_parts - u.log2_n);
#pragma unroll 1
	for (uint32_t i = threadIdx.x; i < 2 * lines; i += LCG_THREADS) {
		const uint32_t line = i & (lines - 1), channel = first + (line >> log2_lines);
		const bool out = i >= lines;
		const uint32_t pos =
			((u.block - (out ? 0 : 3)) << u.log2_n) + (line & ((1u << log2_lines) - 1)) * 32;
		if (channel < u.channels &&
		    (out ? pos < u.end && !is_first(u.block) : distance_of(u.block) == 3))
			prefetch(cell(u, out ? u.out : u.in, channel, pos));
	}
}

/* ---- cells in shared memory ---- */

/* LCG_POINTS cells of a unit: of all its channels, or a piece of its only one. Cell i is at i + 4
 * (i / 32), so that a warp's accesses touch most banks whatever the side. */
constexpr uint32_t CELLS = LCG_POINTS / 32 * 36;
static_assert(CELLS * sizeof(float) <= sizeof(shared_memory::room), "cells");

__device__ __forceinline__ uint32_t place_of_cell(uint32_t i)
{
	return i + (i >> 5) * 4;
}

/* Cell i of a piece that begins at `at`. */
struct cell_of {
	uint32_t channel, pos;

	__device__ __forceinline__ cell_of(const place &u, uint32_t at, uint32_t i)
	{
		const uint32_t log2 = u.log2_n < LCG_LOG2_POINTS ? u.log2_n : LCG_LOG2_POINTS;
		channel = (u.group << (LCG_LOG2_POINTS - log2)) + (i >> log2);
		pos = at + (i & ((1u << log2) - 1));
	}
};

/* Copies a piece of inputs or of sums, up to position `end`. */
__device__ __forceinline__ void fetch_cells(const place &u, const page_range &in, uint32_t at,
                                            uint32_t end, float *to)
{
#pragma unroll
	for (uint32_t i = threadIdx.x * 4; i < LCG_POINTS; i += LCG_THREADS * 4) {
		const cell_of c(u, at, i);
		if (c.channel < u.channels && c.pos < end)
			copy_async((float4 *)(to + place_of_cell(i)),
			           (const float4 *)cell(u, in, c.channel, c.pos));
	}
}

__device__ __forceinline__ void fetch_sums(const place &u, uint32_t at, float *to)
{
	fetch_cells(u, u.out, at, u.end, to);
}

/* Cells of a page behind the sequence's end may be written: nothing reads them. */
__device__ __forceinline__ void put_sums(const place &u, uint32_t at, const float *from)
{
#pragma unroll 1
	for (uint32_t i = threadIdx.x * 4; i < LCG_POINTS; i += LCG_THREADS * 4) {
		const cell_of c(u, at, i);
		if (c.channel < u.channels && c.pos < u.end)
			*(float4 *)cell(u, u.out, c.channel, c.pos) =
				*(const float4 *)(from + place_of_cell(i));
	}
}

/* Returns where outputs pos .. pos + 3 are side by side, 16 bytes aligned; NULL if they are not, or
 * go nowhere. */
__device__ __forceinline__ float4 *four_outputs(const place_in_range &u, uint32_t channel,
                                                uint32_t pos)
{
	const auto parts = [=](uint32_t border) { return pos < border && pos + 3 >= border; };
	float *to = output(u, channel, pos);
	const bool one = !parts(u.from) && !parts(u.end) && !parts(u.sums_begin) && !parts(u.sums_end);
	return one && (size_t)to % sizeof(float4) == 0 ? (float4 *)to : nullptr;
}

__device__ __forceinline__ void fetch_sums(const place_in_range &u, uint32_t at, float *to)
{
#pragma unroll 1
	for (uint32_t i = threadIdx.x * 4; i < LCG_POINTS; i += LCG_THREADS * 4) {
		const cell_of c(u, at, i);
		if (c.channel >= u.channels)
			continue;
		const float4 *four = four_outputs(u, c.channel, c.pos);
		if (four)
			copy_async((float4 *)(to + place_of_cell(i)), four);
		for (uint32_t k = 0; !four && k < 4; k++) {
			const float *from = output(u, c.channel, c.pos + k);
			if (from)
				copy_async(to + place_of_cell(i) + k, from);
		}
	}
}

__device__ __forceinline__ void put_sums(const place_in_range &u, uint32_t at, const float *from)
{
#pragma unroll 1
	for (uint32_t i = threadIdx.x * 4; i < LCG_POINTS; i += LCG_THREADS * 4) {
		const cell_of c(u, at, i);
		if (c.channel >= u.channels)
			continue;
		float4 *four = four_outputs(u, c.channel, c.pos);
		if (four)
			*four = *(const float4 *)(from + place_of_cell(i));
		for (uint32_t k = 0; !four && k < 4; k++) {
			float *to = output(u, c.channel, c.pos + k);
			if (to)
				*to = from[place_of_cell(i) + k];
		}
	}
}

/* ---- a unit ---- */

/* Number of a thread's cell q = 0 in a piece; cell q is p.threads q further. */
__device__ __forceinline__ uint32_t first_cell(const fft::plan &p)
{
	return ((threadIdx.x >> (p.log2 - 4)) << p.log2) + (uint32_t)p.t;
}

/* Inputs of a block, weighted but for v, through cells[CELLS]. All threads of the block take part;
 * they meet at the end. Those of channels that do not exist get any numbers. */
__device__ __forceinline__ void fold(const place &u, const fft::plan &p, const weights &w,
                                     uint32_t block, uint32_t parts, float *cells, float2 *x)
{
	uint32_t at = block << u.log2_n;
	const uint32_t first = first_cell(p);
#pragma unroll 1
	for (uint32_t j = 0; j < parts; j++, at += 1u << p.log2) {
		float z[16];
		fetch_cells(u, u.in, at, UINT32_MAX, cells);
		copies_end();
		wait_copies<0>();
		__syncthreads();
#pragma unroll
		for (int q = 0; q < 16; q++)
			z[q] = cells[place_of_cell(first + p.threads * q)];
		if (parts == 1) {
#pragma unroll
			for (int q = 0; q < 16; q++)
				x[q] = make_float2(__fmul_rn(z[q], eighth(q).x), __fmul_rn(z[q], eighth(q).y));
		} else {
			const float2 b = w.of_j(j);
#pragma unroll
			for (int q = 0; q < 16; q++)
				x[q] = make_float2(__fmaf_rn(z[q], b.x, j ? x[q].x : 0),
				                   __fmaf_rn(z[q], b.y, j ? x[q].y : 0));
		}
		__syncthreads();
	}
	if (parts > 1)
		fft::turn_all(x, make_float2(1, 0), w.a);
}

/* Adds x, the conjugate of what came back, to the outputs, or sets these. sums[CELLS]: the first
 * piece is on its way there. All threads of the block take part. */
template <typename U>
__device__ __forceinline__ void unfold(const U &u, const fft::plan &p, const weights &w,
                                       uint32_t parts, bool set, float *sums, float2 *x)
{
	uint32_t at = u.block << u.log2_n;
	const uint32_t first = first_cell(p);
	if (parts > 1)
		fft::turn_all(x, make_float2(1, 0), w.a);
#pragma unroll 1
	for (uint32_t j = 0; j < parts; j++, at += 1u << p.log2) {
		if (j && !set)
			fetch_sums(u, at, sums);
		copies_end();
		wait_copies<0>();
		__syncthreads();
		const float2 b = w.of_j(j);
#pragma unroll
		for (int q = 0; q < 16; q++) {
			float *y = sums + place_of_cell(first + p.threads * q);
			const float2 c = parts == 1 ? eighth(q) : b;
			const float now = __fmaf_rn(x[q].x, c.x, -__fmul_rn(x[q].y, c.y));
			*y = set ? now : __fadd_rn(*y, undoes(u) ? -now : now);
		}
		__syncthreads();
		put_sums(u, at, sums);
	}
}

/* x times a spectrum that lies in parked; the product goes there too if it is needed later. */
__device__ __forceinline__ void multiply_first(bool later, float4 *parked, float2 *x)
{
	const float2 zero = make_float2(0, 0);
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const float4 s = parked[e * LCG_THREADS];
		const float2 a = fft::fma(x[2 * e], make_float2(s.x, s.y), zero);
		const float2 b = fft::fma(x[2 * e + 1], make_float2(s.z, s.w), zero);
		x[2 * e] = a;
		x[2 * e + 1] = b;
		if (later)
			parked[e * LCG_THREADS] = make_float4(a.x, a.y, b.x, b.y);
	}
}

/* x times a spectrum, plus what is parked. */
__device__ __forceinline__ void multiply_second(const float4 *spectrum, int threads,
                                                const float4 *parked, float2 *x)
{
#pragma unroll
	for (int e = 0; e < 8; e++) {
		const float4 s = __ldg(spectrum + e * threads), sum = parked[e * LCG_THREADS];
		x[2 * e] = fft::fma(x[2 * e], make_float2(s.x, s.y), make_float2(sum.x, sum.y));
		x[2 * e + 1] = fft::fma(x[2 * e + 1], make_float2(s.z, s.w), make_float2(sum.z, sum.w));
	}
}

/* One part of a unit. All threads of the block take part. */
template <typename U>
__device__ __forceinline__ void run_part(const U &u, uint32_t part, shared_memory *shared)
{
	const uint32_t channels = u.channels, log2_n = u.log2_n;
	const uint32_t parts = lcg_parts(log2_n), last = distance_of(u.block);
	const fft::plan p(log2_n < LCG_LOG2_POINTS ? (int)log2_n : LCG_LOG2_POINTS, shared->tables,
	                  shared->room);
	const uint32_t channel = u.group * (LCG_POINTS >> p.log2) + (threadIdx.x >> (p.log2 - 4));
	const bool active = channel < channels, set = part == 0 && is_first(u.block);
	float4 *parked = shared->parked + threadIdx.x;
	const size_t pairs = (size_t)1 << (p.log2 - 1);
	const float4 *spectrum =
		(const float4 *)u.spectra + ((size_t)channel * parts + part) * pairs + p.t;
	const weights w(p, log2_n, part);
	float2 x[16];
	if (active) { /* a line for each thread and distance */
		prefetch(spectrum + 7 * p.t);
		if (last == 3)
			prefetch(spectrum + channels * parts * pairs + 7 * p.t);
	}
#pragma unroll 1
	for (uint32_t d = 2; d <= last; d++, spectrum += channels * parts * pairs) {
		if (d == 3)
			__syncthreads();
		fold(u, p, w, u.block - d, parts, (float *)shared->room, x);
		if (active && d == 2) {
#pragma unroll
			for (int e = 0; e < 8; e++)
				copy_async(parked + e * LCG_THREADS, spectrum + e * p.threads);
		}
		copies_end();
		p.forward(x, w.v);
		if (active && d == 2) {
			wait_copies<0>();
			multiply_first(last == 3, parked, x);
		} else if (active) {
			multiply_second(spectrum, p.threads, parked, x);
		}
	}
	__syncthreads(); /* now nothing is parked */
	float *sums = (float *)shared->parked;
	if (!set)
		fetch_sums(u, u.block << log2_n, sums);
	fft::conjugate(x);
	p.backward(x, w.v);
	mx_pdl_wait(); /* for what is not waited for yet: before it nothing was written */
	unfold(u, p, w, parts, set, sums, x);
}

/* Runs a unit, whose place is in shared memory. All threads of the block take part, and have met
 * since it was written; they meet at the end. */
template <typename U> __device__ __forceinline__ void run_unit(U &u, shared_memory *shared)
{
	find_pages(u, shared);
	prefetch_cells(u);
#pragma unroll 1
	for (uint32_t part = u.first_part; part < u.end_part; part++) {
		run_part(u, part, shared);
		__syncthreads();
	}
}

} // namespace lcg

#endif
