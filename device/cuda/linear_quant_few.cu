/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of few rows with quantised weights. Their cost is reading W, so the kernel is that of
 * linear_few.cu but for the ring (linear_quant_ring.cuh), whose blocks have their scales with them.
 * Codes are read in the order in which mma takes them; three instructions make bf16 of two of 4
 * bits. Gated products and norms are as in linear_few.cu.
 */
#include "device/cuda/linear_quant_block.cuh"
#include "device/cuda/linear_quant_ring.cuh"
#include "device/cuda/norm.cuh"

#define TILE      MX_QUANT_ROWS
#define COLS      MX_QUANT_FRAGMENT
#define SUM_PITCH 20 /* floats from token to token: no bank conflicts */
#define SUM_TILE  (8 * SUM_PITCH)
#define BARRIERS  (W * MOST_STAGES * 8)
#define FIXED     128 /* bytes of static shared memory */

/* ---- x ---- */

/* This lane's rows of x: row g of each 8, from column 8 t on. Rows that there are not are row 0:
 * what they give goes nowhere. */
template <int NT> struct rows {
	const uint4 *at[NT];
	uint32_t cols;

	__device__ rows(const mx_cuda_product &p, const __nv_bfloat16 *x, size_t ldx, uint32_t g,
	                uint32_t t)
		: cols(p.cols)
	{
#pragma unroll
		for (int i = 0; i < NT; i++) {
			const uint32_t token = i * 8 + g;
			at[i] = (const uint4 *)(x + (token < p.n ? token : 0) * ldx) + t;
		}
	}

	/* Columns 8t .. 8t+7 of each 32 of a block; zeros behind the last column. */
	__device__ __forceinline__ void load(uint4 (&x)[NT][4], uint32_t block, uint32_t t) const
	{
		const bool whole = (block + 1) * COLS <= cols;
#pragma unroll
		for (int i = 0; i < NT; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				if (whole)
					x[i][j] = at[i][block * (COLS / 8) + j * 4];
		if (whole)
			return;
#pragma unroll
		for (int i = 0; i < NT; i++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				x[i][j] = make_uint4(0, 0, 0, 0);
				if (block * COLS + j * 32 + t * 8 < cols)
					x[i][j] = at[i][block * (COLS / 8) + j * 4];
			}
	}
};

/* ---- products ---- */

template <int N> struct number {
	static constexpr int n = N;
};

/* True if a warp of its own fills the ring of kernels for 8 NT rows: those for more need the
 * registers. */
static constexpr __host__ __device__ bool fed(int NT)
{
	return NT == 1;
}

static constexpr __host__ __device__ int threads(int NT)
{
	return W * 32 + (fed(NT) ? 32 : 0);
}

template <int CODES, int OFFSET, int SCALING, int NT, bool NORM>
static __global__ void __launch_bounds__(threads(NT), NT < 4 ? 2 : 1)
	few_quant(const mx_cuda_quant_product a, uint32_t *ask, const uint32_t stages)
{
	constexpr uint32_t KEEPS = keeps(SCALING, OFFSET);
	extern __shared__ __align__(128) unsigned char smem[]; /* barriers, kept, stages, sums, x */
	const mx_cuda_product &p = a.p;
	const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = lane_id();
	const uint32_t g = lane / 4, t = lane % 4;
	const work w(a, TILE, COLS);
	kept *const k = (kept *)(smem + BARRIERS) + warp * R * KEEPS;
	unsigned char *const at = smem + BARRIERS + W * R * KEEPS * sizeof(kept);
	float *sums = (float *)(at + W * stages * w.bytes);

	mx_pdl_launch();
#if __CUDA_ARCH__ >= 900
	constexpr bool FED = fed(NT);
#else
	constexpr bool FED = false;
#endif
	ring<FED> from(smem, at, stages, w.bytes, warp, lane);
	if (warp == W) {
		if (FED && lane == 0)
			from.feed(w, ask);
		return;
	}
	if (!FED)
#pragma unroll 1
		for (uint32_t s = 0; s < stages; s++)
			from.copy(w, warp, lane);

	const __nv_bfloat16 *of_x = (const __nv_bfloat16 *)p.x;
	size_t ldx = p.ldx;
	if constexpr (NORM) {
		__shared__ float part[2 * 8];
		__nv_bfloat16 *normed = (__nv_bfloat16 *)(sums + W * R * NT * SUM_TILE);
		mx_norm_weights weights;
		weights.load(p);
		mx_pdl_wait();
		mx_norm_rows(p, weights, normed, part);
		of_x = normed;
		ldx = p.cols;
	} else {
		mx_pdl_wait();
	}

	const rows<NT> from_x(p, of_x, ldx, g, t);
	const uint32_t second = a.q.group_shift == 6 ? 64 : 0;
	const uint32_t center = (0x4300 | a.q.center) * 0x10001;
	uint4 next[NORM ? 1 : NT][4];
	if constexpr (!NORM)
		from_x.load(next, warp < w.blocks ? warp : 0, t);
	for (uint32_t tile = 0; FED || tile < w.last; tile += R) {
		/* the first tile, or pair of gate and up, and the distance to the second */
		uint32_t here = min((uint32_t)R, w.last - tile), step = gridDim.x, begun = 0;
		uint32_t lead = (p.gated ? tile / 2 : tile) * gridDim.x + blockIdx.x;
		if (FED) {
			begun = from.take();
			const uint32_t group = from.groups[begun];
			if (group == NO_GROUP)
				break;
			here = w.group(group, &lead);
			step = 1;
		}
		float acc[R][NT][4] = {};
#pragma unroll 1
		for (uint32_t block = warp; block < w.blocks + warp; block += W) {
			const bool there = block < w.blocks;
			uint4 x[NT][4];
			if constexpr (NORM) {
				if (there)
					from_x.load(x, block, t);
			} else {
#pragma unroll
				for (int i = 0; i < NT; i++)
					for (int j = 0; j < 4; j++)
						x[i][j] = next[i][j];
				from_x.load(next, block + W < w.blocks ? block + W : warp < w.blocks ? warp : 0, t);
			}
			uint32_t stage[R];
			const unsigned char *data[R];
#pragma unroll
			for (int r = 0; r < R; r++)
				if (r < here && (FED || there)) {
					stage[r] = FED && block == warp && r == 0 ? begun : from.take();
					data[r] = from.mine + stage[r] * from.stage_bytes;
				}
			if (KEEPS && there) {
				for (int r = 0; r < R; r++)
					if (r < here)
						keep<CODES, OFFSET, SCALING>(k + r * KEEPS, a.q, data[r], lane);
				__syncwarp();
			}
			auto tiles = [&](auto count) {
#pragma unroll
				for (int r = 0; r < decltype(count)::n; r++) {
					const beside b = {data[r] + g * (SCALING == BY_F16 ? 4 : 8),
					                  data[r] + a.q.zeros + g * 2, k + r * KEEPS, second};
					multiply<CODES, OFFSET, SCALING, NT>(
						acc[r], x, (const uint4 *)(data[r] + a.q.codes) + lane, b, g, t, center);
				}
			};
			if (there && here == R)
				tiles(number<R>());
			else if (there)
				tiles(number<1>());
			__syncwarp();
#pragma unroll
			for (int r = 0; r < R; r++)
				if (r < here && (FED || there))
					from.leave(w, stage[r], warp, lane);
		}

		if (tile)
			mx_norm_barrier(); /* the sums of the group before have been read */
#pragma unroll
		for (int r = 0; r < R; r++) {
#pragma unroll
			for (int i = 0; i < NT; i++) {
				float *to = sums + ((warp * R + r) * NT + i) * SUM_TILE + 2 * t * SUM_PITCH + g;
				to[0] = acc[r][i][0];
				to[SUM_PITCH] = acc[r][i][1];
				to[8] = acc[r][i][2];
				to[SUM_PITCH + 8] = acc[r][i][3];
			}
		}
		mx_norm_barrier();
		auto sum_of = [&](uint32_t r, uint32_t token, uint32_t row) {
			const float *from =
				sums + (r * NT + token / 8) * SUM_TILE + token % 8 * SUM_PITCH + row;
			float v = from[0];
#pragma unroll
			for (int l = 1; l < W; l++)
				v += from[l * R * NT * SUM_TILE];
			return v;
		};
		const uint32_t outputs = p.gated ? 1 : here;
		for (uint32_t o = threadIdx.x; o < outputs * NT * 8 * TILE; o += W * 32) {
			const uint32_t row = o % TILE, token = o / TILE % (NT * 8), r = o / (TILE * NT * 8);
			const uint32_t out = (lead + r * step) * TILE + row;
			if (token >= p.n || out >= p.rows)
				continue;
			const float v = sum_of(r, token, row);
			if (p.gated)
				((__nv_bfloat16 *)p.y)[(size_t)token * p.ldy + out] =
					__float2bfloat16_rn(mx_linear_gated(v, sum_of(1, token, row)));
			else if (p.bf16_out)
				mx_linear_store<__nv_bfloat16>(p, token, out, v);
			else
				mx_linear_store<float>(p, token, out, v);
		}
	}
}

/* ---- launches ---- */

typedef void few_f(const mx_cuda_quant_product, uint32_t *, const uint32_t);

enum { NORMED = 1, UP_TO_16, UP_TO_32, N_SIZES };

/* By form: for up to 8 rows, without a norm and with one, for 16 and for 32. */
static few_f *const kernels[][N_SIZES] = {
#define KERNEL(codes, offset, scaling)                                                             \
	{                                                                                              \
		few_quant<codes, offset, scaling, 1, false>, few_quant<codes, offset, scaling, 1, true>,   \
			few_quant<codes, offset, scaling, 2, false>,                                           \
			few_quant<codes, offset, scaling, 4, false>                                            \
	}
	KERNEL(MX_CODES_4, MX_OFFSET_NONE, BY_F16),     KERNEL(MX_CODES_4, MX_OFFSET_NONE, BY_F32),
	KERNEL(MX_CODES_4, MX_OFFSET_ZERO, BY_F16),     KERNEL(MX_CODES_4, MX_OFFSET_ZERO, BY_F32),
	KERNEL(MX_CODES_4, MX_OFFSET_ZERO, BY_KEPT),    KERNEL(MX_CODES_4, MX_OFFSET_MIN, BY_KEPT),
	KERNEL(MX_CODES_8, MX_OFFSET_NONE, BY_F16),     KERNEL(MX_CODES_8, MX_OFFSET_NONE, BY_F32),
	KERNEL(MX_CODES_8, MX_OFFSET_NONE, BY_KEPT),    KERNEL(MX_CODES_8, MX_OFFSET_MIN, BY_KEPT),
	KERNEL(MX_CODES_8, MX_OFFSET_NONE, BY_SMALL),   KERNEL(MX_CODES_E4M3, MX_OFFSET_NONE, BY_F32),
	KERNEL(MX_CODES_E4M3, MX_OFFSET_NONE, BY_KEPT), KERNEL(MX_CODES_4, MX_OFFSET_NONE, BY_SMALL),
	KERNEL(MX_CODES_4, MX_OFFSET_MIN, BY_SMALL),
#undef KERNEL
};
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

/* Returns the row of the table for a form. Groups of 16 columns of 8 bits have no minima. */
static int kernel_of(const mx_cuda_quant &q, scaling by)
{
	const int minima = q.offset == MX_OFFSET_MIN;
	if (q.codes_as == MX_CODES_E4M3)
		return by == BY_F32 ? 11 : 12;
	if (by == BY_SMALL)
		return q.codes_as == MX_CODES_8 ? 10 : 13 + minima;
	if (q.codes_as == MX_CODES_8)
		return 6 + by + minima;
	return by == BY_KEPT ? 4 + minima : by + (q.offset == MX_OFFSET_ZERO ? 2 : 0);
}

/* Returns the dynamic shared memory of a CTA where a thread block has at most `room`. */
static uint32_t smem_of(size_t room)
{
	return room - FIXED < MX_CUDA_NARROW ? (uint32_t)(room - FIXED) : MX_CUDA_NARROW;
}

extern "C" cudaError_t mx_cuda_quant_few_setup(size_t room)
{
	cudaError_t e = cudaSuccess;
	for (int i = 0; i < N_KERNELS * N_SIZES && e == cudaSuccess; i++) {
		few_f *f = kernels[i / N_SIZES][i % N_SIZES];
		e = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize,
		                         (int)(room >= MX_CUDA_WIDE ? MX_CUDA_WIDE : smem_of(room)));
		if (e == cudaSuccess)
			e = cudaFuncSetAttribute(f, cudaFuncAttributePreferredSharedMemoryCarveout,
			                         cudaSharedmemCarveoutMaxShared);
	}
	return e;
}

extern "C" cudaError_t mx_cuda_quant_few(const struct mx_cuda_quant_product *p, uint32_t *ask,
                                         int sms, size_t room, cudaStream_t stream)
{
	const int nt = p->p.n <= 8 ? 0 : p->p.n <= 16 ? 1 : 2;
	const int kernel = nt ? UP_TO_16 + nt - 1 : p->p.norm ? NORMED : 0;
	const uint32_t normed = p->p.norm ? p->p.n * p->p.cols * 2 : 0;
	const scaling by = scaling_of(p->q);
	const uint32_t tiles = (p->p.rows + TILE - 1) / TILE, stage = W * p->q.super_bytes;
	const uint32_t fixed = BARRIERS + W * R * keeps(by, p->q.offset) * (uint32_t)sizeof(kept) +
	                       W * R * (1u << nt) * SUM_TILE * 4 + normed;
	const uint32_t most = p->p.wide ? MX_CUDA_WIDE : smem_of(room), fit = (most - fixed) / stage;
	const uint32_t stages = fit < MOST_STAGES ? fit : MOST_STAGES;
	if (stages < R)
		return cudaErrorInvalidValue;
	return mx_launch(kernels[kernel_of(p->q, by)][kernel], dim3(min(tiles, (uint32_t)sms)),
	                 dim3(threads(1 << nt)), p->p.wide ? MX_CUDA_WIDE : fixed + stages * stage,
	                 stream, *p, ask, stages);
}
