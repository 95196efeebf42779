/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: the choice of each row's experts, their grouping, and the sum of their
 * outputs. engine/router.c has the choice for CPUs, with its sources. */
#include "device/cuda/experts.h"
#include "device/cuda/launch.cuh"

#define WARP      32
#define ROWS      4 /* of a block of route, one a warp */
#define BLOCK     256
#define GROUP     1024        /* threads of group */
#define ONE_BLOCK (40u << 10) /* most bytes of scores of route_and_group */
#define OTHERS    UINT32_MAX  /* in place of an expert of another rank */

static_assert(MX_EXPERTS_MAX <= GROUP, "group has a thread for each expert");
static_assert(MX_EXPERTS_MAX_CHOSEN <= WARP, "a lane holds one of a row's experts");
static_assert(MX_ROUTER_MAX_GROUPS <= 2 * WARP, "a lane holds two groups");

namespace
{

/* ---- route: a warp a row; lane l has experts l, l + 32 ... ---- */

/* Returns a number that orders as the rank does: 0 < not a number < all others. */
__device__ __forceinline__ uint32_t order_of(float rank)
{
	const uint32_t bits = __float_as_uint(rank + 0.0f); /* -0 becomes 0 */
	return isnan(rank) ? 1u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* A candidate of this lane: order 0 = none. Returns the index of the warp's highest one, the lowest
 * such index if there are several. */
__device__ __forceinline__ uint32_t best_of(uint32_t order, uint32_t index)
{
	const uint32_t most = __reduce_max_sync(~0u, order);
	return __reduce_min_sync(~0u, order == most ? index : UINT32_MAX);
}

__device__ __forceinline__ float warp_sum(float v)
{
	for (int i = WARP / 2; i; i /= 2)
		v += __shfl_xor_sync(~0u, v, i);
	return v;
}

/* Replaces the row's logits by their scores. */
__device__ void score(enum mx_router_scores kind, float *v, uint32_t n)
{
	const uint32_t lane = threadIdx.x % WARP;
	if (kind == MX_ROUTER_SIGMOID) {
		for (uint32_t e = lane; e < n; e += WARP)
			v[e] = 1.0f / (1.0f + expf(-v[e]));
		return;
	}
	float most = -INFINITY, sum = 0;
	for (uint32_t e = lane; e < n; e += WARP)
		most = fmaxf(most, v[e]);
	for (int i = WARP / 2; i; i /= 2)
		most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
	for (uint32_t e = lane; e < n; e += WARP)
		sum += v[e] = expf(v[e] - most);
	sum = warp_sum(sum);
	for (uint32_t e = lane; e < n; e += WARP)
		v[e] /= sum;
}

/* Returns the sum of the two highest ranks of experts first .. first + n - 1, or the highest one.
 */
__device__ float group_rank(const float *v, const float *correction, uint32_t first, uint32_t n,
                            bool by_best)
{
	float a = -INFINITY, b = -INFINITY;
	for (uint32_t e = first; e < first + n; e++) {
		const float r = correction ? v[e] + correction[e] : v[e];
		b = r > a ? a : r > b ? r : b;
		a = r > a ? r : a;
	}
	return by_best ? a : a + b;
}

/* Returns the groups that can be chosen from, a bit each. */
__device__ uint64_t keep_groups(const mx_router_rule &rule, const float *v, const float *correction,
                                uint32_t n)
{
	const uint32_t lane = threadIdx.x % WARP, per_group = n / rule.groups;
	float ranks[2];
	uint64_t keep = 0;
	for (uint32_t i = 0; i < 2; i++) {
		const uint32_t g = lane + i * WARP;
		ranks[i] =
			g < rule.groups ? group_rank(v, correction, g * per_group, per_group, rule.by_best) : 0;
	}
	for (uint32_t k = 0; k < rule.kept_groups; k++) {
		uint32_t order = 0, index = lane;
		for (uint32_t i = 0; i < 2; i++) {
			const uint32_t g = lane + i * WARP;
			const uint32_t o = g < rule.groups && !(keep >> g & 1) ? order_of(ranks[i]) : 0;
			index = o > order ? g : index;
			order = o > order ? o : order;
		}
		keep |= (uint64_t)1 << best_of(order, index);
	}
	return keep;
}

/* The best of this lane's experts that can still be chosen. */
struct candidate {
	uint32_t order, index; /* order 0 = none */
};

/* orders [n]: order_of each expert's rank, 0 = it cannot be chosen. */
__device__ __forceinline__ candidate best_here(const uint32_t *orders, uint32_t n)
{
	candidate c = {0, UINT32_MAX};
	for (uint32_t e = threadIdx.x % WARP; e < n; e += WARP)
		if (orders[e] > c.order)
			c = {orders[e], e};
	return c;
}

/* Chooses a row's experts; v [2 n] is the warp's workspace. */
__device__ void route_row(const mx_cuda_experts &p, uint32_t row, float *v)
{
	uint32_t *orders = (uint32_t *)v + p.m.n;
	const uint32_t lane = threadIdx.x % WARP, n = p.m.n, chosen = p.m.rule.chosen;
	const mx_router_rule &rule = p.m.rule;
	for (uint32_t e = lane; e < n; e += WARP)
		v[e] = p.logits[(size_t)row * n + e];
	score(rule.scores, v, n);
	__syncwarp();
	const uint64_t keep = rule.groups > 1 ? keep_groups(rule, v, p.m.correction, n) : 0;
	for (uint32_t e = lane; e < n; e += WARP) {
		const bool can = rule.groups <= 1 || keep >> e / (n / rule.groups) & 1;
		orders[e] = can ? order_of(p.m.correction ? v[e] + p.m.correction[e] : v[e]) : 0;
	}
	candidate own = best_here(orders, n);
	uint32_t mine = UINT32_MAX; /* lane i has the row's i-th best expert */
	float weight = 0, sum = 0;
	for (uint32_t i = 0; i < chosen; i++) {
		const uint32_t e = best_of(own.order, own.index);
		sum += v[e];
		if (lane == i)
			mine = e, weight = v[e];
		if (own.index == e) {
			orders[e] = 0;
			own = best_here(orders, n);
		}
	}
	if (rule.normalize)
		weight /= sum + rule.sum_epsilon;
	weight *= rule.scale;
	if (lane < chosen && p.m.scales)
		weight *= p.m.scales[mine];
	uint32_t place = 0; /* in ascending order of expert */
	for (uint32_t i = 0; i < chosen; i++)
		place += __shfl_sync(~0u, mine, i) < mine;
	if (lane < chosen)
		p.choices[(size_t)row * chosen + place] = mx_expert_link{mine, weight};
}

__global__ void __launch_bounds__(ROWS *WARP) route(const mx_cuda_experts p)
{
	extern __shared__ float scores[]; /* [ROWS][2 n] */
	const uint32_t warp = threadIdx.x / WARP, row = blockIdx.x * ROWS + warp;
	mx_pdl_launch();
	mx_pdl_wait();
	if (row < p.n)
		route_row(p, row, scores + warp * 2 * p.m.n);
}

/* ---- group: one block of GROUP threads ---- */

/* Returns the sum of v over the threads before this one. No thread may still read part[]. */
__device__ uint32_t sum_before(uint32_t v, uint32_t *part)
{
	const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	uint32_t sum = v;
	for (uint32_t i = 1; i < WARP; i *= 2) {
		const uint32_t other = __shfl_up_sync(~0u, sum, i);
		sum += lane >= i ? other : 0;
	}
	if (lane == WARP - 1)
		part[warp] = sum;
	__syncthreads();
	return sum - v + __reduce_add_sync(~0u, lane < warp ? part[lane] : 0);
}

__device__ void group_links(const mx_cuda_experts &p)
{
	__shared__ uint32_t at[GROUP], part[2][GROUP / WARP];
	const uint32_t e = threadIdx.x, links = p.n * p.m.rule.chosen;
	at[e] = 0;
	__syncthreads();
	for (uint32_t l = e; l < links; l += GROUP)
		atomicAdd(&at[p.choices[l].index], 1);
	__syncthreads();
	const uint32_t n = at[e];
	const bool own = n && p.m.weights[e].up;
	const uint32_t tiles = own ? (n + p.tile - 1) / p.tile : 0;
	const uint32_t first = sum_before(n, part[0]), tile = sum_before(tiles, part[1]);
	for (uint32_t i = 0; i < tiles; i++)
		p.tiles[tile + i] =
			mx_expert_tile{p.m.weights[e], first + i * p.tile, min(p.tile, n - i * p.tile)};
	if (e == GROUP - 1)
		*p.n_tiles = tile + tiles;
	at[e] = own ? first : OTHERS;
	__syncthreads();
	/* which place an expert's link gets is left to chance: no sum depends on it */
	for (uint32_t l = e; l < links; l += GROUP) {
		uint32_t *to = &at[p.choices[l].index];
		if (*to == OTHERS)
			p.choices[l].index = OTHERS;
		else
			p.order[atomicAdd(to, 1)] = l;
	}
}

__global__ void __launch_bounds__(GROUP) group(const mx_cuda_experts p)
{
	mx_pdl_launch();
	mx_pdl_wait();
	group_links(p);
}

/* Both, for so few rows that each has a warp of one block. */
__global__ void __launch_bounds__(GROUP) route_and_group(const mx_cuda_experts p)
{
	extern __shared__ float scores[]; /* [p.n][2 n] */
	const uint32_t row = threadIdx.x / WARP;
	mx_pdl_launch();
	mx_pdl_wait();
	if (row < p.n)
		route_row(p, row, scores + row * 2 * p.m.n);
	__syncthreads();
	group_links(p);
}

/* ---- combine: block (row, part of the columns), N columns a thread ---- */

template <typename T, int N> struct alignas(N * sizeof(T)) run_of {
	T v[N];
};

template <typename T, int N>
__global__ void __launch_bounds__(BLOCK) combine(const mx_cuda_experts p)
{
	const uint32_t row = blockIdx.x, chosen = p.m.rule.chosen, cols = p.m.cols;
	const uint32_t col = (blockIdx.y * BLOCK + threadIdx.x) * N;
	mx_pdl_launch();
	mx_pdl_wait();
	if (col >= cols)
		return;
	run_of<T, N> *y = (run_of<T, N> *)((T *)p.y + (size_t)row * cols + col);
	float sum[N] = {};
	if (p.add) {
		const float share = p.share ? 1.0f / (1.0f + expf(-p.share[row])) : 1.0f;
		const run_of<T, N> old = *y;
#pragma unroll
		for (int i = 0; i < N; i++)
			sum[i] = share * mx_to_float<T>(old.v[i]);
	}
	for (uint32_t k = 0; k < chosen; k++) {
		const size_t link = (size_t)row * chosen + k;
		if (p.choices[link].index == OTHERS)
			continue;
		const float weight = p.choices[link].weight;
		const run_of<T, N> out = *(const run_of<T, N> *)((const T *)p.out + link * cols + col);
#pragma unroll
		for (int i = 0; i < N; i++)
			sum[i] = fmaf(weight, mx_to_float<T>(out.v[i]), sum[i]);
	}
	run_of<T, N> to;
#pragma unroll
	for (int i = 0; i < N; i++)
		to.v[i] = mx_from_float<T>(sum[i]);
	*y = to;
}

template <typename T, int N> cudaError_t combine_as(const mx_cuda_experts &p, cudaStream_t stream)
{
	const uint32_t parts = (p.m.cols / N + BLOCK - 1) / BLOCK;
	return mx_launch(combine<T, N>, dim3(p.n, parts), dim3(BLOCK), 0, stream, p);
}

} // namespace

cudaError_t mx_cuda_experts_route(const struct mx_cuda_experts *p, cudaStream_t stream)
{
	if (p->n <= GROUP / WARP && p->n * 2 * p->m.n * sizeof(float) <= ONE_BLOCK)
		return mx_launch(route_and_group, dim3(1), dim3(GROUP), p->n * 2 * p->m.n * sizeof(float),
		                 stream, *p);
	cudaError_t e = mx_launch(route, dim3((p->n + ROWS - 1) / ROWS), dim3(ROWS * WARP),
	                          ROWS * 2 * p->m.n * sizeof(float), stream, *p);
	return e == cudaSuccess ? mx_launch(group, dim3(1), dim3(GROUP), 0, stream, *p) : e;
}

cudaError_t mx_cuda_experts_combine(const struct mx_cuda_experts *p, bool bf16, cudaStream_t stream)
{
	if (p->m.cols % 8 == 0 && bf16)
		return combine_as<__nv_bfloat16, 8>(*p, stream);
	if (p->m.cols % 4 == 0 && !bf16)
		return combine_as<float, 4>(*p, stream);
	return bf16 ? combine_as<__nv_bfloat16, 1>(*p, stream) : combine_as<float, 1>(*p, stream);
}
