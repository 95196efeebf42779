/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products for compute capability 9.0a whose bits depend on nothing but the rows they are made of:
 * each element of y is one chain of sums of 16 products (wgmma), over the columns in ascending
 * order. A warpgroup's product of 64 rows of W and N rows of x does these sums for every N in the
 * same way, so tiles may have any shape. W is the A operand and x the B operand of all of them.
 *
 * A gated product takes rows of W in groups of 16, 8 of gate and 8 of up, so that a thread has both
 * sums of an element of y.
 *
 * A thread block goes through every gridDim-th tile of y. One thread copies boxes of 64 columns of
 * W and x to a ring of stages; for the first stages it asks for W before the wait for the previous
 * kernel. G x T warpgroups multiply: G share the rows of x, T those of W.
 *
 * With few rows of x the chain's latency (some 45 + N / 2 clocks a link) has to stay below the time
 * that reading W takes; with many, shared memory is the limit: a link of 64 x N reads 2 KiB of W
 * and 32 N bytes of x. `choose` picks the tile by such counts.
 */
#include <cuda.h>

#include "device/cuda/bulk.cuh"
#include "device/cuda/linear.cuh"
#include "device/cuda/wgmma.cuh"

#define BLOCK      64 /* columns: 128 bytes of a row, the widest swizzle */
#define LINK       16 /* columns of one product */
#define MAX_STAGES 12
#define RING_BYTES (192 << 10)
#define SPARE      8192 /* what products of tiles of less than 64 rows read behind the ring */
#define TOKENS     32   /* whose outputs a warp transposes at a time */
#define PITCH      48   /* bytes from token to token of these: no bank conflicts */
#define WIDE       256  /* G T N from here on: registers are moved to the warps that multiply */

/* Calls f(G, T, N, B) for the shapes of tiles that are compiled; B: blocks of columns a stage. */
#define SHAPES(f)                                                                                  \
	f(1, 1, 8, 4) f(1, 1, 16, 4) f(1, 1, 32, 4) f(1, 2, 32, 4) f(1, 1, 128, 2) f(2, 1, 64, 2)      \
		f(2, 1, 128, 1) f(2, 1, 256, 1)

namespace
{

/* What all thread blocks of a product share. */
struct task {
	mx_cuda_product p;
	uint32_t height; /* rows of W of a warpgroup, a multiple of 8 (gated: of 16), at most 64 */
	uint32_t stages;
	uint32_t tiles_w, tiles_x;
	uint32_t together; /* tiles of W that are gone through for each tile of x */
	bool wide;         /* y takes 16 bytes at a time */
};

template <int G, int T, int N> constexpr int threads(void)
{
	return 128 * G * T + (G * T * N >= WIDE ? 128 : 32);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Finds tile i: the first of its rows of W, and the number of its tile of x. */
template <int G>
__device__ __forceinline__ void find_tile(const task &t, uint32_t i, uint32_t &row, uint32_t &x)
{
	const uint32_t all = t.together * t.tiles_x, first = i / all * t.together, rest = i % all;
	const uint32_t here = min(t.tiles_w - first, t.together);
	row = (first + rest % here) * t.height * G;
	x = rest / here;
}

/* The ring: stages of B blocks of W, then of x, and two barriers for each. Addresses in shared
 * memory. */
struct ring {
	uint32_t at, bars, stage_bytes, w_block;
	__device__ uint32_t full(uint32_t stage) const
	{
		return bars + stage * 16;
	}
	__device__ uint32_t empty(uint32_t stage) const
	{
		return bars + stage * 16 + 8;
	}
};

template <int G, int T, int N, int B>
__device__ void produce(const task &t, const CUtensorMap *w, const CUtensorMap *x, const ring &r)
{
	const uint32_t tiles = t.tiles_w * t.tiles_x;
	const uint32_t steps = (t.p.cols + B * BLOCK - 1) / (B * BLOCK);
	uint32_t stage = 0, phase = 1, ahead, row, tok;
	auto bring_w = [&](uint32_t to, uint32_t s) {
		const uint32_t at = r.at + to * r.stage_bytes;
		barrier_expect(r.full(to), r.stage_bytes);
#pragma unroll
		for (uint32_t k = 0; k < B; k++)
			if (t.p.gated)
				copy_groups(at + k * r.w_block, w, (s * B + k) * BLOCK, row / 16, r.full(to));
			else
				copy_box(at + k * r.w_block, w, (s * B + k) * BLOCK, row, r.full(to));
	};
	find_tile<G>(t, blockIdx.x, row, tok);
	for (ahead = 0; ahead < t.stages && ahead < steps; ahead++)
		bring_w(ahead, ahead);
	mx_pdl_wait();
	for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
		find_tile<G>(t, i, row, tok);
		for (uint32_t s = 0; s < steps; s++) {
			const uint32_t at = r.at + stage * r.stage_bytes + B * r.w_block;
			if (ahead) {
				ahead--;
			} else {
				barrier_wait(r.empty(stage), phase);
				bring_w(stage, s);
			}
#pragma unroll
			for (uint32_t k = 0; k < B; k++)
				copy_box(at + k * (T * N * 128), x, (s * B + k) * BLOCK, tok * (T * N),
				         r.full(stage));
			if (++stage == t.stages)
				stage = 0, phase ^= 1;
		}
	}
}

/* Stores a warp's 16 rows x N tokens 16 bytes at a time, by way of `own`, shared memory of the
 * warp. */
template <int N>
__device__ void store_wide(const task &t, const float (&acc)[N / 2], uint32_t row0, uint32_t height,
                           uint32_t token0, unsigned char *own)
{
	constexpr int chunk = N < TOKENS ? N : TOKENS;
	const uint32_t lane = threadIdx.x % 32, at = (uint32_t)__cvta_generic_to_shared(own);
#pragma unroll
	for (int c = 0; c < N / chunk; c++) {
#pragma unroll
		for (int j = 0; j < chunk / 8; j++) {
			const float *a = acc + (c * chunk / 8 + j) * 4;
			const __nv_bfloat162 lo = __floats2bfloat162_rn(a[0], a[1]);
			const __nv_bfloat162 hi = __floats2bfloat162_rn(a[2], a[3]);
			const uint32_t to = at + (j * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16;
			asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
			             "r"(*(const uint32_t *)&lo), "r"(*(const uint32_t *)&hi)
			             : "memory");
		}
		__syncwarp();
#pragma unroll
		for (int i = 0; i < (chunk + 15) / 16; i++) {
			const uint32_t tok = i * 16 + lane / 2, half = lane % 2 * 8;
			const uint32_t token = token0 + c * chunk + tok, row = row0 + half;
			if (tok < chunk && token < t.p.n && half < height && row < t.p.rows)
				*(uint4 *)((__nv_bfloat16 *)t.p.y + (size_t)token * t.p.ldy + row) =
					*(const uint4 *)(own + tok * PITCH + half * 2);
		}
		__syncwarp();
	}
}

/* Stores a warp's 8 rows x N tokens of a gated product, from row `row` on. */
template <int N>
__device__ void store_gated(const task &t, const float (&acc)[N / 2], uint32_t row, uint32_t token0,
                            unsigned char *own)
{
	constexpr int chunk = N < TOKENS ? N : TOKENS;
	const uint32_t lane = threadIdx.x % 32, at = (uint32_t)__cvta_generic_to_shared(own);
#pragma unroll
	for (int c = 0; c < N / chunk; c++) {
#pragma unroll
		for (int j = 0; j < chunk / 8; j++) {
			const float *a = acc + (c * chunk / 8 + j) * 4;
			const __nv_bfloat162 v =
				__floats2bfloat162_rn(mx_linear_gated(a[0], a[2]), mx_linear_gated(a[1], a[3]));
			const uint32_t to = at + (j * 8 + lane % 8) * PITCH;
			asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to),
			             "r"(*(const uint32_t *)&v)
			             : "memory");
		}
		__syncwarp();
		const uint32_t token = token0 + c * chunk + lane;
		if (lane < chunk && token < t.p.n && row < t.p.rows)
			*(uint4 *)((__nv_bfloat16 *)t.p.y + (size_t)token * t.p.ldy + row) =
				*(const uint4 *)(own + lane * PITCH);
		__syncwarp();
	}
}

/* Stores a warp's 16 rows x N tokens, of which `height` rows belong to the tile. */
template <int N>
__device__ void store(const task &t, float (&acc)[N / 2], uint32_t row0, uint32_t height,
                      uint32_t token0, unsigned char *own)
{
	const uint32_t g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
	if (t.p.gated) {
		store_gated<N>(t, acc, row0 / 2, token0, own);
		return;
	}
	if (t.wide) {
		if (t.p.bias) {
			const float low = row0 + g < t.p.rows ? t.p.bias[row0 + g] : 0.0f;
			const float high = row0 + g + 8 < t.p.rows ? t.p.bias[row0 + g + 8] : 0.0f;
#pragma unroll
			for (int i = 0; i < N / 2; i++)
				acc[i] += i & 2 ? high : low;
		}
		store_wide<N>(t, acc, row0, height, token0, own);
		return;
	}
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		const uint32_t r = g + (i & 2) * 4, token = token0 + i / 4 * 8 + 2 * q + (i & 1);
		if (r >= height || row0 + r >= t.p.rows || token >= t.p.n)
			continue;
		if (t.p.bf16_out)
			mx_linear_store<__nv_bfloat16>(t.p, token, row0 + r, acc[i]);
		else
			mx_linear_store<float>(t.p, token, row0 + r, acc[i]);
	}
}

/* Makes a matrix descriptor of its lower word, an address in units of 16 bytes; the upper one says
 * 1024 bytes from 8 rows to the next, and the swizzle of 128 bytes. */
__device__ __forceinline__ uint64_t matrix(uint32_t low)
{
	return (uint64_t)(1024 >> 4 | 1u << 30) << 32 | low;
}

template <int G, int T, int N, int B>
__device__ void consume(const task &t, const ring &r, unsigned char *own)
{
	const uint32_t tiles = t.tiles_w * t.tiles_x;
	const uint32_t steps = (t.p.cols + B * BLOCK - 1) / (B * BLOCK);
	const uint32_t wg = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 32;
	const uint32_t warp = threadIdx.x % 128 / 32, gw = wg % G, gx = wg / G;
	/* in units of 16 bytes */
	const uint32_t w0 = r.at / 16 + gw * t.height * 8, w_block = r.w_block / 16;
	const uint32_t x0 = (r.at + B * r.w_block) / 16 + gx * (N * 8), pitch = r.stage_bytes / 16;
	uint32_t stage = 0, phase = 0;
	float acc[N / 2];
	mx_pdl_wait();
	for (uint32_t i = blockIdx.x; i < tiles; i += gridDim.x) {
		uint32_t row, tok, before = 0;
		find_tile<G>(t, i, row, tok);
#pragma unroll
		for (int k = 0; k < N / 2; k++)
			acc[k] = 0;
		for (uint32_t s = 0; s < steps; s++) {
			const uint32_t w = w0 + stage * pitch, x = x0 + stage * pitch;
			barrier_wait(r.full(stage), phase);
			hold(acc);
			products_begin();
#pragma unroll
			for (uint32_t k = 0; k < B; k++)
#pragma unroll
				for (uint32_t c = 0; c < BLOCK / LINK; c++)
					wide_product<N>(acc, matrix(w + k * w_block + c * (LINK / 8)),
					                matrix(x + k * (T * N * 8) + c * (LINK / 8)));
			products_commit();
			products_wait<1>(); /* those of the stage before have been read */
			hold(acc);
			if (s && lane == 0)
				barrier_arrive(r.empty(before));
			before = stage;
			if (++stage == t.stages)
				stage = 0, phase ^= 1;
		}
		products_wait<0>();
		hold(acc);
		if (lane == 0)
			barrier_arrive(r.empty(before));
		if (warp * 16 < t.height)
			store<N>(t, acc, row + gw * t.height + warp * 16, t.height - warp * 16,
			         (tok * T + gx) * N, own);
	}
}

#endif

template <int G, int T, int N, int B>
__global__ void __launch_bounds__(threads<G, T, N>(), 1)
	chain(const task t, const __grid_constant__ CUtensorMap w,
          const __grid_constant__ CUtensorMap x)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
	extern __shared__ __align__(1024) unsigned char smem[];
	__shared__ __align__(16) unsigned char turned[G * T * 4][(N < TOKENS ? N : TOKENS) * PITCH];
	__shared__ uint64_t bars[2 * MAX_STAGES];
	const uint32_t w_block = t.height * G * 128;
	const ring r = {(uint32_t)__cvta_generic_to_shared(smem),
	                (uint32_t)__cvta_generic_to_shared(bars), B * (w_block + T * N * 128), w_block};
	mx_pdl_launch();
	if (threadIdx.x == 0) {
		for (uint32_t s = 0; s < t.stages; s++) {
			barrier_init(r.full(s), 1);
			barrier_init(r.empty(s), 4 * G * T);
		}
		barriers_ready();
	}
	__syncthreads();
	if (threadIdx.x < 128 * G * T) {
		if constexpr (G * T * N >= WIDE)
			asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
		consume<G, T, N, B>(t, r, turned[threadIdx.x / 32]);
	} else {
		if constexpr (G * T * N >= WIDE)
			asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		if (threadIdx.x == 128 * G * T)
			produce<G, T, N, B>(t, &w, &x, r);
	}
#else
	(void)t;
	__trap(); /* never launched: mx_cuda_linear_chain_can is false */
#endif
}

/* ---- which tile ---- */

struct shape {
	uint32_t g, t, n, b; /* as in SHAPES */
};

const shape shapes[] = {
#define SHAPE(g, t, n, b) {g, t, n, b},
	SHAPES(SHAPE)
#undef SHAPE
};

/* Sets how the product is divided into tiles of shape `s`, all of which are done in `waves`.
 * Returns the clocks that it will take, about; UINT64_MAX if that cannot be. */
uint64_t divide(const shape &s, uint32_t waves, uint32_t sms, task *t)
{
	const uint32_t rows = t->p.gated ? 2 * t->p.rows : t->p.rows, unit = t->p.gated ? 16 : 8;
	const uint32_t tokens = s.t * s.n;
	t->tiles_x = (t->p.n + tokens - 1) / tokens;
	const uint64_t room = (uint64_t)waves * sms / t->tiles_x * s.g;
	if (room == 0 || (rows + room - 1) / room > 64)
		return UINT64_MAX;
	t->height = (uint32_t)((rows + room - 1) / room + unit - 1) / unit * unit;
	t->tiles_w = (rows + t->height * s.g - 1) / (t->height * s.g);
	t->together = s.n < 128 ? t->tiles_w : 16;
	const uint32_t stage = s.b * (t->height * s.g + tokens) * BLOCK * 2;
	t->stages = min(RING_BYTES / stage, (uint32_t)MAX_STAGES);
	const uint64_t blocks = (t->p.cols + BLOCK - 1) / BLOCK, tall = t->height * s.g;
	/* clocks of a block of columns: the chain; what products read of shared memory, and what is
	 * copied there; what comes from L2 */
	const uint64_t links = BLOCK / LINK * (45 + s.n / 2);
	const uint64_t shared =
		BLOCK / LINK * s.g * s.t * (2048 + 32 * s.n) / 128 + (tall + tokens) * BLOCK * 2 / 128;
	const uint64_t copied = (tall + tokens) * BLOCK * 2 / 55;
	const uint64_t own = waves * (blocks * max(links, max(shared * 9 / 8, copied)) + 1500);
	/* W from memory, 2500 bytes a clock; tiles of x that share rows of W do not read at one time */
	const uint64_t reading =
		waves * sms * tall * t->p.cols * 2 / 2500 / t->tiles_x * (7 + t->tiles_x) / 8;
	return max(own, reading) + own / 8;
}

/* Chooses the shape of the tiles. */
shape choose(uint32_t sms, task *t)
{
	shape best = shapes[0];
	uint64_t least = UINT64_MAX;
	const task given = *t;
	for (const shape &s : shapes) {
		const uint32_t tall = 64 * s.g, tokens = s.t * s.n;
		if (tokens < given.p.n && given.p.n <= 64)
			continue; /* reading W twice */
		const uint64_t tiles = ((given.p.gated ? 2 : 1) * (uint64_t)given.p.rows + tall - 1) /
		                       tall * ((given.p.n + tokens - 1) / tokens);
		const uint32_t waves = (uint32_t)((tiles + sms - 1) / sms);
		/* shorter tiles in more waves may leave fewer multiprocessors idle in the last */
		for (uint32_t i = waves; i < waves + (s.n < 128 ? 4 : 1); i++) {
			task with = given;
			const uint64_t clocks = divide(s, i, sms, &with);
			if (clocks < least)
				least = clocks, best = s, *t = with;
		}
	}
	return best;
}

typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                           const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                           const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

encode_fn *encode; /* the driver's cuTensorMapEncodeTiled */

/* Describes boxes of 64 columns x `box` rows of a matrix. What lies outside of it reads as zero. */
bool describe(CUtensorMap *map, const void *at, uint32_t rows, uint32_t cols, size_t ld,
              uint32_t box)
{
	const cuuint64_t dims[2] = {cols, rows}, stride = ld * 2;
	const cuuint32_t boxes[2] = {BLOCK, box}, steps[2] = {1, 1};
	return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)at, dims, &stride, boxes, steps,
	              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
	              CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* The same for the matrices of a gated product: boxes of `groups` groups of 8 rows of each. */
bool describe_gated(CUtensorMap *map, const mx_cuda_product &p, uint32_t groups)
{
	const cuuint64_t dims[4] = {p.cols, 8, 2, p.rows / 8}, row = (cuuint64_t)p.cols * 2;
	const cuuint64_t strides[3] = {row, p.rows * row, 8 * row};
	const cuuint32_t boxes[4] = {BLOCK, 8, 2, groups}, steps[4] = {1, 1, 1, 1};
	return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)p.w, dims, strides, boxes,
	              steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
	              CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

} // namespace

extern "C" bool mx_cuda_linear_chain_can(int sm)
{
#if defined(MX_CUDA_90A)
	return sm == 90;
#else
	(void)sm;
	return false;
#endif
}

extern "C" cudaError_t mx_cuda_linear_chain_setup(void)
{
	cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
#if CUDART_VERSION >= 12050
	cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode,
	                                                 12000, cudaEnableDefault, &found);
#else
	cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", (void **)&encode,
	                                        cudaEnableDefault, &found);
#endif
	if (e == cudaSuccess && found != cudaDriverEntryPointSuccess)
		e = cudaErrorNotSupported;
#define ALLOW(g, t, n, b)                                                                          \
	if (e == cudaSuccess)                                                                          \
		e = cudaFuncSetAttribute(chain<g, t, n, b>, cudaFuncAttributeMaxDynamicSharedMemorySize,   \
		                         RING_BYTES + SPARE);
	SHAPES(ALLOW)
#undef ALLOW
	return e;
}

extern "C" cudaError_t mx_cuda_linear_chain(const struct mx_cuda_product *p, int sms,
                                            cudaStream_t stream)
{
	task t = {};
	CUtensorMap w, x;
	t.p = *p;
	t.wide = p->bf16_out && !p->accumulate && p->rows % 8 == 0 && p->ldy % 8 == 0 &&
	         (uintptr_t)p->y % 16 == 0;
	const shape s = choose((uint32_t)sms, &t);
	const uint32_t tall = t.height * s.g;
	if (!(p->gated ? describe_gated(&w, *p, tall / 16)
	               : describe(&w, p->w, p->rows, p->cols, p->cols, tall)) ||
	    !describe(&x, p->x, p->n, p->cols, p->ldx, s.t * s.n))
		return cudaErrorInvalidValue;
	const size_t bytes = (size_t)t.stages * s.b * (tall + s.t * s.n) * BLOCK * 2 + SPARE;
	const dim3 grid(min(t.tiles_w * t.tiles_x, (uint32_t)sms));
#define LAUNCH(G, T, N, B)                                                                         \
	if (s.g == G && s.t == T && s.n == N)                                                          \
		return mx_launch(chain<G, T, N, B>, grid, dim3(threads<G, T, N>()), bytes, stream, t, w, x);
	SHAPES(LAUNCH)
#undef LAUNCH
	return cudaErrorInvalidValue;
}
