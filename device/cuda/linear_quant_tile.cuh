/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The product of a tile: 128 rows of quantised matrices, a panel a warp, with N rows of x. A warp
 * makes bf16 of its codes in registers, which are the A operand of wgmma; x is the B operand, in
 * shared memory. A stage of the ring has 128 columns: the block of each panel, by a bulk copy, and
 * x, by cp.async in pieces of two columns, since a lane's eight columns of W (quant_pack.h) are not
 * those that wgmma gives it: the order of columns is the same for both. Compute capability 9.0a.
 *
 * A sum is one chain over the columns, whatever N and the number of rows.
 */
#ifndef MX_DEVICE_CUDA_LINEAR_QUANT_TILE_CUH
#define MX_DEVICE_CUDA_LINEAR_QUANT_TILE_CUH

#include "device/cuda/bulk.cuh"
#include "device/cuda/linear_quant.cuh"
#include "device/cuda/wgmma.cuh"

#define MX_TILE_WARPS  8
#define MX_TILE_ROWS   (MX_TILE_WARPS * MX_QUANT_ROWS)
#define MX_TILE_PITCH  (MX_TILE_ROWS + 4) /* floats from row to row of x: no bank conflicts */
#define MX_TILE_SUPER  2560               /* most bytes of a block of a panel */
#define MX_TILE_NO_ROW UINT32_MAX

/* Barriers come first, so that x is aligned for the swizzle. */
#define MX_TILE_BARRIERS 1024

/* Stages of a ring: two CTAs a multiprocessor up to 64 rows of x. */
#define MX_TILE_STAGES(N) ((N) > 64 ? 4u : 3u)

/* How codes become the operand. */
enum mx_tile_scaling {
	MX_TILE_SUMS,  /* exactly; the sums of 128 columns are multiplied by their scale */
	MX_TILE_CODES, /* codes are multiplied by their scale, less the minimum, and rounded to bf16 */
};

/* Returns the bytes of shared memory. The swizzle needs 1024 bytes' alignment of every CTA of a
 * multiprocessor. */
static inline uint32_t mx_tile_smem(uint32_t N, uint32_t super_bytes)
{
	const uint32_t bytes = MX_TILE_BARRIERS + MX_TILE_STAGES(N) * (N * MX_QUANT_FRAGMENT * 2 +
	                                                               MX_TILE_WARPS * super_bytes);
	return (bytes + 1023) / 1024 * 1024;
}

/* What a CTA multiplies. */
struct mx_tile {
	const unsigned char *w; /* this warp's panel, at the first block */
	const __nv_bfloat16 *x;
	const uint32_t *rows; /* [N] of x; MX_TILE_NO_ROW: zeros. Shared memory */
	size_t ldx;
	uint32_t cols;         /* of W */
	uint32_t first, steps; /* blocks first .. first + steps - 1 are multiplied */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* d = a b, or += if `add`; a: 64 x 16 in registers, b: 16 x N in shared memory, along k. */
template <int N>
static __device__ __forceinline__ void mx_tile_product(float (&d)[N / 2], const uint4 &a,
                                                       uint64_t b, bool add);

#define MX_TILE_PRODUCT(n, half, a0, a1, a2, a3, desc, pred)                                       \
	template <>                                                                                    \
	__device__ __forceinline__ void mx_tile_product<n>(float(&d)[half], const uint4 &a,            \
	                                                   uint64_t b, bool add)                       \
	{                                                                                              \
		asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #pred ", 0;\n"                           \
		             "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" NAMES_##half     \
		             "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #desc ", p, 1, 1, 0;\n}\n"   \
		             : RESULTS_##half(d, 0)                                                        \
		             : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add));             \
	}
MX_TILE_PRODUCT(32, 16, 16, 17, 18, 19, 20, 21)
MX_TILE_PRODUCT(64, 32, 32, 33, 34, 35, 36, 37)
MX_TILE_PRODUCT(128, 64, 64, 65, 66, 67, 68, 69)

/* This lane's eight codes of one row as numbers of W. */
static __device__ __forceinline__ uint4 mx_tile_scaled(const uint4 &c, const mx_cuda_quant &q,
                                                       const unsigned char *block, uint32_t at)
{
	const float scale = mx_scale(q, block, at);
	const float less = q.offset == MX_OFFSET_MIN ? mx_minimum(q, block, at) : 0.0f;
	const uint32_t in[4] = {c.x, c.y, c.z, c.w};
	uint32_t out[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const __nv_bfloat162 v = __floats2bfloat162_rn(
			__fsub_rn(__fmul_rn(__uint_as_float(in[i] << 16), scale), less),
			__fsub_rn(__fmul_rn(__uint_as_float(in[i] & 0xffff0000), scale), less));
		out[i] = *reinterpret_cast<const uint32_t *>(&v);
	}
	return make_uint4(out[0], out[1], out[2], out[3]);
}

/* a: the operands of 2 x 16 columns, those 32 j .. 32 j + 31 of the warp's panel. */
template <int CODES_AS, int SCALING>
static __device__ __forceinline__ void mx_tile_operands(uint4 (&a)[2], const mx_cuda_quant &q,
                                                        const unsigned char *block, uint32_t lane,
                                                        uint32_t j)
{
	const uint32_t g = lane / 4, t = lane % 4;
	const unsigned char *codes = block + q.codes;
	uint4 lo, hi; /* rows g and g + 8, columns 8t .. 8t + 7 */
	if (CODES_AS == MX_CODES_4 || CODES_AS == MX_CODES_E2M1) {
		const uint2 v = *(const uint2 *)(codes + ((j / 2 * 32 + lane) * 2 + j % 2) * 8);
		uint32_t zero_lo = (0x4300 | q.center) * 0x10001, zero_hi = zero_lo;
		if (CODES_AS == MX_CODES_4 && q.offset == MX_OFFSET_ZERO) {
			const unsigned char *z = block + q.zeros + (j * 32 >> q.group_shift) * 16 + 2 * g;
			zero_lo = (0x4300u | z[0]) * 0x10001;
			zero_hi = (0x4300u | z[1]) * 0x10001;
		}
		lo = mx_codes<CODES_AS>(v.x, 0, zero_lo);
		hi = mx_codes<CODES_AS>(v.y, 0, zero_hi);
	} else {
		const uint4 v = *(const uint4 *)(codes + (j * 32 + lane) * 16);
		lo = mx_codes<CODES_AS>(v.x, v.y, 0);
		hi = mx_codes<CODES_AS>(v.z, v.w, 0);
	}
	if (SCALING == MX_TILE_CODES) {
		const uint32_t at = (j * 32 + t * 8 >> q.group_shift) * 16 + 2 * g;
		lo = mx_tile_scaled(lo, q, block, at);
		hi = mx_tile_scaled(hi, q, block, at + 1);
	}
	a[0] = make_uint4(lo.x, hi.x, lo.y, hi.y);
	a[1] = make_uint4(lo.z, hi.z, lo.w, hi.w);
}

/* Leaves the sums [N][MX_TILE_PITCH] of the tile in `smem`, which has mx_tile_smem bytes, aligned
 * to 1024, and is written by all threads of the CTA: a barrier comes before they are read. x is
 * read behind mx_pdl_wait, which this function calls if `wait`; rows, behind a barrier. */
template <int CODES_AS, int SCALING, int N>
static __device__ __forceinline__ void mx_tile_multiply(const mx_tile &p, const mx_cuda_quant &q,
                                                        unsigned char *smem, bool wait)
{
	constexpr uint32_t S = MX_TILE_STAGES(N), X = N * MX_QUANT_FRAGMENT * 2;
	const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
	const uint32_t g = lane / 4, t = lane % 4, super_bytes = q.super_bytes;
	const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem), bars = base + warp * S * 8;
	const uint32_t x_ring = base + MX_TILE_BARRIERS;
	unsigned char *const w_ring = smem + MX_TILE_BARRIERS + S * X + warp * super_bytes;
	if (lane == 0) {
		for (uint32_t s = 0; s < S; s++)
			barrier_init(bars + s * 8, 1);
		barriers_ready();
	}
	__syncwarp();
	auto bring_w = [&](uint32_t step, uint32_t stage) {
		if (step < p.steps && lane == 0) {
			barrier_expect(bars + stage * 8, super_bytes);
			copy_bulk(
				(uint32_t)__cvta_generic_to_shared(w_ring + stage * MX_TILE_WARPS * super_bytes),
				p.w + (size_t)step * super_bytes, super_bytes, bars + stage * 8);
		}
	};
	/* This lane's two columns of each 64, and where they lie in the row of 128 bytes. */
	const uint32_t chunk = lane / 16 * 4 + lane % 4, within = lane / 4 % 4 * 4;
	auto bring_x = [&](uint32_t step, uint32_t stage) {
		if (step < p.steps) {
			const uint32_t col = (p.first + step) * MX_QUANT_FRAGMENT + lane * 2;
#pragma unroll
			for (uint32_t i = 0; i < (uint32_t)N / MX_TILE_WARPS; i++) {
				const uint32_t r = warp + i * MX_TILE_WARPS, row = p.rows[r];
				const bool used = row != MX_TILE_NO_ROW;
				const __nv_bfloat16 *from = p.x + (used ? row : 0) * p.ldx;
				const uint32_t to =
					x_ring + stage * X + r * 128 + ((chunk ^ (r & 7)) << 4) + within;
#pragma unroll
				for (uint32_t h = 0; h < 2; h++) {
					const bool valid = used && col + h * 64 < p.cols;
					asm volatile(
						"cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + h * (N * 128)),
						"l"(from + (valid ? col + h * 64 : 0)), "r"(valid ? 4 : 0)
						: "memory");
				}
			}
		}
		mx_copy_commit();
	};
#pragma unroll 1
	for (uint32_t s = 0; s < S - 1; s++)
		bring_w(s, s);
	if (wait)
		mx_pdl_wait();
#pragma unroll 1
	for (uint32_t s = 0; s < S - 1; s++)
		bring_x(s, s);

	float acc[N / 2], part[SCALING == MX_TILE_SUMS ? N / 2 : 1];
#pragma unroll
	for (int i = 0; i < N / 2; i++)
		acc[i] = 0;
	uint32_t stage = 0, parity = 0;
#pragma unroll 1
	for (uint32_t step = 0; step < p.steps; step++) {
		const uint32_t before = stage ? stage - 1 : S - 1;
		mx_copy_wait<S - 2>();
		asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
		__syncthreads(); /* x has come, and the stage before is read */
		bring_w(step + S - 1, before);
		bring_x(step + S - 1, before);
		const unsigned char *block = w_ring + stage * MX_TILE_WARPS * super_bytes;
		barrier_wait(bars + stage * 8, parity);
		uint4 ops[4][2];
#pragma unroll
		for (uint32_t j = 0; j < 4; j++)
			mx_tile_operands<CODES_AS, SCALING>(ops[j], q, block, lane, j);
		const uint64_t x_at = (uint64_t)(1024 >> 4 | 1u << 30) << 32 | (x_ring + stage * X) >> 4;
		products_begin();
#pragma unroll
		for (uint32_t k = 0; k < 8; k++) {
			const uint64_t b = x_at + k / 4 * (N * 128 / 16) + k % 4 * 2;
			if constexpr (SCALING == MX_TILE_SUMS)
				mx_tile_product<N>(part, ops[k / 2][k % 2], b, k > 0);
			else
				mx_tile_product<N>(acc, ops[k / 2][k % 2], b, true);
		}
		products_commit();
		products_wait<0>();
		if constexpr (SCALING == MX_TILE_SUMS) {
			hold(part);
			const float low = mx_scale(q, block, 2 * g), high = mx_scale(q, block, 2 * g + 1);
#pragma unroll
			for (int i = 0; i < N / 2; i++)
				acc[i] = fmaf(i & 2 ? high : low, part[i], acc[i]);
		} else {
			hold(acc);
		}
		if (++stage == S)
			stage = 0, parity ^= 1;
	}
	mx_copy_wait<0>();
	__syncthreads(); /* the ring is read */
	float *sums = (float *)smem + 2 * t * MX_TILE_PITCH + warp * MX_QUANT_ROWS + g;
#pragma unroll
	for (int i = 0; i < N / 8; i++) {
		float *to = sums + i * 8 * MX_TILE_PITCH;
		to[0] = acc[4 * i];
		to[MX_TILE_PITCH] = acc[4 * i + 1];
		to[8] = acc[4 * i + 2];
		to[MX_TILE_PITCH + 8] = acc[4 * i + 3];
	}
}

#endif
#endif
