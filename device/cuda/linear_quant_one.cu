/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of one row of x with weights of 4 bits. linear_quant_few.cu needs as many instructions
 * for zeros and scales as for the products, since each group of 32 columns has its own; there, one
 * row uses one of eight columns of mma's operand B. Here, each of the eight has x in another group
 * and zeros elsewhere, so that mma leaves the sums of eight groups side by side, and a lane has a
 * group's scale and zero once for two rows:
 *
 *     y += scale (sum of (128 + code) x  -  (128 + zero) sum of x)
 *
 * where the sum of x comes from mma too, with ones for W. 128 + code is the code's bits below a
 * constant: no subtraction is left.
 *
 * The ring and tiles are those of linear_quant_few.cu. A warp takes two blocks of a tile at a time:
 * block l + 16 i of lane l, and the one eight behind it. The order of sums depends on the number of
 * W's columns only.
 */
#include "device/cuda/linear_quant_block.cuh"
#include "device/cuda/linear_quant_ring.cuh"
#include "device/cuda/norm.cuh"

#define TILE     MX_QUANT_ROWS
#define COLS     MX_QUANT_FRAGMENT
#define THREADS  (W * 32 + 32)      /* a warp more fills the ring */
#define SUMS     (2 * W * R * TILE) /* floats: two buffers, so that a group needs one barrier */
#define BARRIERS (W * MOST_STAGES * 8)

/* ---- two blocks of a tile ---- */

/* What a lane has of x for the two: its group's eight columns, if g is the group's number. */
static __device__ __forceinline__ uint4 of_group(const uint4 &x, uint32_t g, uint32_t group)
{
	return only_if(g == group, x);
}

/* Adds the sums of the four groups of a block, the first of which is `first`. */
static __device__ __forceinline__ void add_codes(float (&sum)[4], const uint4 *codes,
                                                 const uint4 &x, uint32_t g, uint32_t first)
{
	uint4 v;
#pragma unroll
	for (int j = 0; j < 4; j++) {
		if (j % 2 == 0)
			v = codes[j / 2 * 32];
		const uint32_t in[2] = {j % 2 ? v.z : v.x, j % 2 ? v.w : v.y};
		uint4 a[2];
#pragma unroll
		for (int h = 0; h < 2; h++)
			a[h] = make_uint4(mx_and_or(in[h], 0x000f000f, 0x43004300),
			                  mx_and_or(in[h] >> 4, 0x000f000f, 0x43004300),
			                  mx_and_or(in[h] >> 8, 0x000f000f, 0x43004300),
			                  mx_and_or(in[h] >> 12, 0x000f000f, 0x43004300));
		mx_mma32(sum, a[0], a[1], of_group(x, g, first + j));
	}
}

/* The sums of x in each group, in the places of the others. */
static __device__ __forceinline__ void add_x(float (&sum)[4], const uint4 &x, uint32_t g,
                                             uint32_t first)
{
	const uint4 one = make_uint4(0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80);
#pragma unroll
	for (int j = 0; j < 4; j++)
		mx_mma32(sum, one, one, of_group(x, g, first + j));
}

/* This lane's scales and 128 + zeros: of two groups of its block, 2 (t % 2) and the next, and of
 * rows g and g + 8. */
struct factors {
	float2 scale[2], zero[2]; /* [group] of rows */

	template <int OFFSET, int SCALING>
	__device__ __forceinline__ void load(const mx_cuda_quant &q, const unsigned char *block,
	                                     uint32_t g, uint32_t t)
	{
		const uint32_t first = t % 2 * 2;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			/* BY_F32: groups of 64 or 128 columns */
			const uint32_t j = SCALING == BY_F16 ? first + i : first * 32 >> q.group_shift;
			if (SCALING == BY_F16)
				scale[i] = __half22float2(((const __half2 *)block)[j * 8 + g]);
			else if (i == 0)
				scale[i] = ((const float2 *)block)[j * 8 + g];
			else
				scale[i] = scale[0];
			if (OFFSET == MX_OFFSET_ZERO) {
				if (SCALING == BY_F16 || i == 0) {
					const uint32_t z = ((const uint16_t *)(block + q.zeros))[j * 8 + g];
					zero[i] = make_float2(__uint_as_float(__byte_perm(z, 0x43, 0x4022)),
					                      __uint_as_float(__byte_perm(z, 0x43, 0x4122)));
				} else {
					zero[i] = zero[0];
				}
			} else {
				const float center = __uint_as_float((0x4300 | q.center) << 16);
				zero[i] = make_float2(center, center);
			}
		}
	}

	/* Adds a lane's groups of rows g and g + 8 to sum[0] and sum[1]. */
	__device__ __forceinline__ void add(float *sum, const float (&part)[4],
	                                    const float (&x)[4]) const
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			sum[0] = fmaf(scale[i].x, fmaf(-zero[i].x, x[i], part[i]), sum[0]);
			sum[1] = fmaf(scale[i].y, fmaf(-zero[i].y, x[i], part[2 + i]), sum[1]);
		}
	}
};

/* ---- the sums of a warp ---- */

/* Adds up sum[tile][row half] of the four lanes of a row, and writes them to [tile][TILE]. */
template <int N>
static __device__ __forceinline__ void put_sums(float *to, const float (&sum)[R][2], uint32_t g,
                                                uint32_t t)
{
	if (N == R) {
		const bool odd = t % 2, high = t / 2;
		float keep[2];
#pragma unroll
		for (int h = 0; h < 2; h++)
			keep[h] = (odd ? sum[1][h] : sum[0][h]) +
			          __shfl_xor_sync(~0u, odd ? sum[0][h] : sum[1][h], 1);
		to[(odd ? TILE : 0) + (high ? 8 : 0) + g] =
			(high ? keep[1] : keep[0]) + __shfl_xor_sync(~0u, high ? keep[0] : keep[1], 2);
		return;
	}
	const bool odd = t % 2;
	float v = (odd ? sum[0][1] : sum[0][0]) + __shfl_xor_sync(~0u, odd ? sum[0][0] : sum[0][1], 1);
	v += __shfl_xor_sync(~0u, v, 2);
	if (t < 2)
		to[(odd ? 8 : 0) + g] = v;
}

/* ---- the kernel ---- */

template <int N> struct number {
	static constexpr int n = N;
};

template <int OFFSET, int SCALING, bool NORM>
static __global__ void __launch_bounds__(THREADS, 2)
	one_quant(const mx_cuda_quant_product a, uint32_t *ask, const uint32_t stages)
{
#if __CUDA_ARCH__ >= 900
	extern __shared__ __align__(128) unsigned char smem[]; /* barriers, stages, sums, x */
	const mx_cuda_product &p = a.p;
	const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = lane_id();
	const uint32_t g = lane / 4, t = lane % 4;
	const work w(a, TILE, COLS);
	unsigned char *const at = smem + BARRIERS;
	float *sums = (float *)(at + W * stages * w.bytes);

	mx_pdl_launch();
	ring<true> from(smem, at, stages, w.bytes, warp, lane);
	if (warp == W) {
		if (lane == 0)
			from.feed(w, ask);
		return;
	}

	const __nv_bfloat16 *of_x = (const __nv_bfloat16 *)p.x;
	if constexpr (NORM) {
		__shared__ float part[2 * 8];
		__nv_bfloat16 *normed = (__nv_bfloat16 *)(sums + SUMS);
		mx_norm_weights weights;
		weights.load(p);
		mx_pdl_wait();
		mx_norm_rows(p, weights, normed, part);
		of_x = normed;
	} else {
		mx_pdl_wait();
	}

	/* lanes of g < 4 have the groups of the first block, the others those of the second */
	const uint32_t mine = (g < 4 ? warp : warp + W) * COLS + g % 4 * 32 + t * 8;
	auto x_of = [&](uint32_t base) {
		uint4 v = make_uint4(0, 0, 0, 0);
		if (base * COLS + mine < p.cols)
			v = *(const uint4 *)(of_x + base * COLS + mine);
		return v;
	};
	uint4 next;
	if constexpr (!NORM)
		next = x_of(0);
	for (uint32_t n = 0;; n++) {
		uint32_t begun = from.take(), lead;
		const uint32_t group = from.groups[begun];
		if (group == NO_GROUP)
			break;
		const uint32_t here = w.group(group, &lead);
		float acc[R][2] = {};
#pragma unroll 1
		for (uint32_t base = 0; base < w.blocks; base += 2 * W) {
			const bool two = base + W < w.blocks; /* stages */
			const bool there[2] = {base + warp < w.blocks, base + W + warp < w.blocks};
			uint4 x;
			if constexpr (NORM) {
				x = x_of(base);
			} else {
				x = next;
				next = x_of(base + 2 * W < w.blocks ? base + 2 * W : 0);
			}
			auto tiles = [&](auto count) {
				constexpr int N = decltype(count)::n;
				uint32_t stage[2][N];
				float sum[N][2][4] = {}, of_x[2][4] = {};
#pragma unroll
				for (int b = 0; b < 2; b++) {
#pragma unroll
					for (int r = 0; r < N; r++)
						if (b == 0 || two)
							stage[b][r] = base == 0 && b == 0 && r == 0 ? begun : from.take();
					if (there[b]) {
						add_x(of_x[b], x, g, 4 * b);
#pragma unroll
						for (int r = 0; r < N; r++)
							add_codes(sum[r][b],
							          (const uint4 *)(from.mine + stage[b][r] * from.stage_bytes +
							                          a.q.codes) +
							              lane,
							          x, g, 4 * b);
					}
				}
				if (t < 2 ? there[0] : there[1]) {
#pragma unroll
					for (int r = 0; r < N; r++) {
						factors f;
						f.load<OFFSET, SCALING>(
							a.q, from.mine + (t < 2 ? stage[0][r] : stage[1][r]) * from.stage_bytes,
							g, t);
						float part[4], xs[4];
#pragma unroll
						for (int i = 0; i < 4; i++) {
							part[i] = sum[r][0][i] + sum[r][1][i]; /* one of them is 0 */
							xs[i] = of_x[0][i] + of_x[1][i];
						}
						f.add(acc[r], part, xs);
					}
				}
				__syncwarp();
#pragma unroll
				for (int b = 0; b < 2; b++)
#pragma unroll
					for (int r = 0; r < N; r++)
						if (b == 0 || two)
							from.leave(w, stage[b][r], warp, lane);
			};
			if (here == R)
				tiles(number<R>());
			else
				tiles(number<1>());
		}

		float *buffer = sums + n % 2 * (W * R * TILE);
		if (here == R)
			put_sums<R>(buffer + warp * R * TILE, acc, g, t);
		else
			put_sums<1>(buffer + warp * R * TILE, acc, g, t);
		mx_norm_barrier();
		if (warp != n % W)
			continue;
		float v = buffer[lane];
#pragma unroll
		for (int l = 1; l < W; l++)
			v += buffer[l * R * TILE + lane];
		const uint32_t r = lane / TILE, row = lane % TILE;
		const float up = __shfl_down_sync(~0u, v, TILE);
		const uint32_t out = (p.gated ? lead : lead + r) * TILE + row;
		if (r >= (p.gated ? 1 : here) || out >= p.rows)
			continue;
		if (p.gated)
			((__nv_bfloat16 *)p.y)[out] = __float2bfloat16_rn(mx_linear_gated(v, up));
		else if (p.bf16_out)
			mx_linear_store<__nv_bfloat16>(p, 0, out, v);
		else
			mx_linear_store<float>(p, 0, out, v);
	}
#endif
}

/* ---- launches ---- */

typedef void one_f(const mx_cuda_quant_product, uint32_t *, const uint32_t);

/* By form: without a norm and with one. */
static one_f *const kernels[][2] = {
#define KERNEL(offset, by)                                                                         \
	{                                                                                              \
		one_quant<offset, by, false>, one_quant<offset, by, true>                                  \
	}
	KERNEL(MX_OFFSET_NONE, BY_F16),
	KERNEL(MX_OFFSET_NONE, BY_F32),
	KERNEL(MX_OFFSET_ZERO, BY_F16),
	KERNEL(MX_OFFSET_ZERO, BY_F32),
#undef KERNEL
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

extern "C" bool mx_cuda_quant_one_can(const struct mx_cuda_quant *q)
{
	const scaling by = scaling_of(*q);
	return q->codes_as == MX_CODES_4 && q->offset != MX_OFFSET_MIN &&
	       (by == BY_F16 || by == BY_F32);
}

extern "C" cudaError_t mx_cuda_quant_one_setup(void)
{
	cudaError_t e = cudaSuccess;
	for (int i = 0; i < N_KERNELS * 2 && e == cudaSuccess; i++) {
		one_f *f = kernels[i / 2][i % 2];
		e = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, MX_CUDA_WIDE);
		if (e == cudaSuccess)
			e = cudaFuncSetAttribute(f, cudaFuncAttributePreferredSharedMemoryCarveout,
			                         cudaSharedmemCarveoutMaxShared);
	}
	return e;
}

extern "C" cudaError_t mx_cuda_quant_one(const struct mx_cuda_quant_product *p, uint32_t *ask,
                                         int sms, cudaStream_t stream)
{
	const int kernel = (scaling_of(p->q) == BY_F32) + (p->q.offset == MX_OFFSET_ZERO ? 2 : 0);
	const uint32_t tiles = (p->p.rows + TILE - 1) / TILE, stage = W * p->q.super_bytes;
	const uint32_t fixed = BARRIERS + SUMS * 4 + (p->p.norm ? p->p.cols * 2 : 0);
	const uint32_t room = p->p.wide ? MX_CUDA_WIDE : MX_CUDA_NARROW, fit = (room - fixed) / stage;
	const uint32_t stages = fit < MOST_STAGES ? fit : MOST_STAGES;
	if (stages < 2 * R)
		return cudaErrorInvalidValue;
	return mx_launch(kernels[kernel][p->p.norm ? 1 : 0], dim3(min(tiles, (uint32_t)sms)),
	                 dim3(THREADS), p->p.wide ? room : fixed + stages * stage, stream, *p, ask,
	                 stages);
}
