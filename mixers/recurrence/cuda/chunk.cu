/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence in chunks of 16 tokens at absolute positions, README.md has the equations. A block
 * computes a unit (some columns of a head) of a span, chunk by chunk; a warp has 16 columns of S in
 * registers, transposed, so that they are at once the sums of a product and an operand of the next.
 *
 * What a chunk's tokens are to each other is computed by the whole block: scores, the inverse T of
 * the delta rule's triangle, and the weights M with which tokens go into outputs:
 *
 *     x_r = beta_r (v_r - S^T w_r)             w_r: k_r decayed from the border; without the delta
 *     o_r = S^T q'_r + sum_j M_rj x_j          rule x_r = v_r, and beta is a gain
 *     S  <- d S + sum_j k'_j (T x)_j           k'_j: k_j decayed to the chunk's end
 *
 * A row's bits depend on the tokens of its chunk up to its own and on S as of the border: rows of
 * tokens that are not there are zero, and zero times a number adds nothing.
 *
 * A tree of drafts is computed path by path, each from the border on but for the tokens that it
 * shares with an earlier one. A token is in rings where token i of a chain would be, and in its
 * chunk at its depth.
 */
#include "mixers/recurrence/cuda/chunk.cuh"

namespace
{

/* A path of a tree of drafts, in shared memory. A chain is one path. */
struct path {
	uint32_t parents[MX_TREE_TOKENS], tokens[MX_TREE_TOKENS]; /* tokens: of this path, by depth */
	uint32_t entries[Q], rows[Q];                             /* see struct work */
};

/* Finds the next path, as mx_tree_next does: its length, and *first, the tokens of it that an
 * earlier one has computed. 0 = there is none. By the whole block. */
__device__ __forceinline__ uint32_t next_path(const mx_device_span &span, path &s, uint32_t *seen,
                                              uint32_t *first)
{
	uint32_t inner = *seen, depth = 0, own = 0;
	for (uint32_t i = 0; i < span.n; i++)
		if (s.parents[i] < span.n)
			inner |= 1u << s.parents[i];
	const uint32_t leaf = (uint32_t)__ffs(~inner) - 1;
	if (leaf >= span.n)
		return 0;
	for (uint32_t i = leaf; i < span.n; i = s.parents[i]) {
		own += !(*seen >> i & 1);
		*seen |= 1u << i;
		depth++;
	}
	*first = depth - own;
	__syncthreads(); /* the path before is no longer read */
	if (threadIdx.x == 0)
		for (uint32_t i = leaf, k = depth; i < span.n; i = s.parents[i])
			s.tokens[--k] = i;
	__syncthreads();
	return depth;
}

/* Finds where the tokens of the chunk at `from` are. By the whole block. */
__device__ __forceinline__ void find_tokens(const recur_core &a, const mx_device_span &span,
                                            const work &w, uint32_t from, path &s)
{
	const uint32_t at = from + threadIdx.x;
	if (threadIdx.x < Q) {
		const uint32_t token = at >= span.pos && at < w.end ? s.tokens[at - span.pos] : 0;
		s.entries[threadIdx.x] = (at < span.pos ? at : span.pos + token) % a.unit.cap;
		s.rows[threadIdx.x] = span.row + token;
	}
	__syncthreads();
}

/* Computes chunks from `border` on, until the end of the span or path. Positions before `begin` are
 * not computed again. S is written when it is as of `next`, if that is beyond `border`. */
template <typename T, int P, int KT>
__device__ __forceinline__ void run_chunks(const recur_core &a, const mx_device_span &span,
                                           const work &w, uint32_t border, uint32_t begin,
                                           uint32_t next, const shared<T> &s, path &of_tree,
                                           columns<T, P, KT> &state)
{
	const uint32_t warp = threadIdx.x >> 5;
	for (uint32_t at = border; at < w.end; at += Q) {
		part p = {at, begin > at ? begin - at : 0, 0, at + Q < w.end};
		p.r0 = p.r0 < Q ? p.r0 : Q;
		p.r1 = p.whole ? Q : w.end - at;
		if (at == next && at > border)
			state.write(a, w, warp);
		if (w.entries)
			find_tokens(a, span, w, at, of_tree);
		load(a, w, p, s);
		__syncthreads();
		if (a.vector)
			vector_scores(a, p, s);
		else
			scores<T, P>(a, p, s);
		__syncthreads();
		decay_scores(a, p, s);
		__syncthreads();
		if (a.delta) {
			invert(a, w, p, s);
			__syncthreads();
		}
		weights(a, w, p, s);
		__syncthreads();
		run_chunk(a, w, p, s, warp, state);
		__syncthreads();
	}
}

/* TREES: there may be trees; a kernel of its own, since it needs more registers. */
template <typename T, int P, int KT, bool TREES>
__global__ void __launch_bounds__(RECUR_UNIT * 2, P == 1 && KT <= 8 ? 2 : 1)
	chunks(const recur_core a)
{
	extern __shared__ __align__(16) unsigned char memory[];
	__shared__ path of_tree;
	const uint32_t warp = threadIdx.x >> 5, unit = blockIdx.x;
	const mx_device_span span = a.step.spans[blockIdx.y];
	shared<T> s;
	columns<T, P, KT> state;
	mx_pdl_launch();
	share(memory, a.kpad, a.vector, &s);
	work w;
	w.head = unit / a.unit.per_head;
	w.col = unit % a.unit.per_head * a.unit.cols;
	w.row = span.row, w.pos = span.pos, w.end = span.pos + span.n;
	w.unit = a.step.slot_base + span.slot * a.step.slot_stride + unit * a.unit.bytes;
	const bool stays = span.kind != MX_SPAN_DRAFT, tree = TREES && is_tree(a.step, span);
	if (!span.n || (!a.all && !tree && (span.n <= a.few || (stays && span.n >= RECUR_LONG)))) {
		mx_pdl_wait();
		return;
	}
	const uint32_t border = *(const volatile uint32_t *)w.unit;
	state.read(a, w, warp);
	const uint32_t next = border_after(span, border, Q);
	w.keep_from = next > span.pos ? next : span.pos;
	if (tree && threadIdx.x < span.n)
		of_tree.parents[threadIdx.x] = a.step.parents[span.parent_begin + threadIdx.x];
	__syncthreads();
	mx_pdl_wait();
	if (!tree)
		run_chunks(a, span, w, border, span.pos, next, s, of_tree, state);
	else {
		uint32_t seen = 0, first = 0, n, at = border;
		w.entries = of_tree.entries, w.rows = of_tree.rows;
		for (bool again = false; (n = next_path(span, of_tree, &seen, &first)); again = true) {
			w.end = span.pos + n;
			if (again) { /* S has tokens of the path before */
				state.read(a, w, warp);
				at = next;
			}
			run_chunks(a, span, w, at, span.pos + first, next, s, of_tree, state);
		}
	}
	if (threadIdx.x == 0 && next != border)
		*(uint32_t *)w.unit = next;
	keep_inputs<T>(a, span);
}

template <typename T, int P, int KT> cudaError_t launch(cudaStream_t stream, const recur_core &a)
{
	const size_t smem = share<T>(NULL, a.kpad, a.vector, NULL);
	const dim3 grid(a.heads * a.unit.per_head, a.step.n_spans), block(a.unit.cols * 2);
	return a.step.parents ? mx_launch(chunks<T, P, KT, true>, grid, block, smem, stream, a)
	                      : mx_launch(chunks<T, P, KT, false>, grid, block, smem, stream, a);
}

/* Opts a kernel into so many bytes of shared memory; never into fewer than before, which layers
 * with other decays may need. */
template <typename K> cudaError_t allow(K *kernel, size_t smem)
{
	cudaFuncAttributes now;
	const cudaError_t e = cudaFuncGetAttributes(&now, kernel);
	return e != cudaSuccess || (size_t)now.maxDynamicSharedSizeBytes >= smem
	           ? e
	           : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                  (int)smem);
}

template <typename T, int P, int KT> cudaError_t prepare(uint32_t kpad, bool vector)
{
	const size_t smem = share<T>(NULL, kpad, vector, NULL);
	const cudaError_t e = allow(chunks<T, P, KT, false>, smem);
	return e == cudaSuccess ? allow(chunks<T, P, KT, true>, smem) : e;
}

} // namespace

/* One kernel for each size of keys and type. */
#define FOR_SIZE(f, ...)                                                                           \
	do {                                                                                           \
		const bool f32 = act == MX_F32;                                                            \
		switch (kpad) {                                                                            \
		case 32: return f32 ? f<float, 3, 2>(__VA_ARGS__) : f<__nv_bfloat16, 1, 2>(__VA_ARGS__);   \
		case 64: return f32 ? f<float, 3, 4>(__VA_ARGS__) : f<__nv_bfloat16, 1, 4>(__VA_ARGS__);   \
		case 128: return f32 ? f<float, 3, 8>(__VA_ARGS__) : f<__nv_bfloat16, 1, 8>(__VA_ARGS__);  \
		case 256:                                                                                  \
			return f32 ? f<float, 3, 16>(__VA_ARGS__) : f<__nv_bfloat16, 1, 16>(__VA_ARGS__);      \
		default: return cudaErrorInvalidValue;                                                     \
		}                                                                                          \
	} while (0)

cudaError_t recur_cuda_chunks(cudaStream_t stream, enum mx_dtype act, const struct recur_core *a)
{
	const uint32_t kpad = a->kpad;
	FOR_SIZE(launch, stream, *a);
}

cudaError_t recur_cuda_chunks_prepare(enum mx_dtype act, uint32_t kpad, bool vector)
{
	FOR_SIZE(prepare, kpad, vector);
}

size_t recur_cuda_chunks_bytes(enum mx_dtype act, uint32_t kpad, bool vector)
{
	const size_t fixed = sizeof(path);
	return fixed + (act == MX_F32 ? share<float>(NULL, kpad, vector, NULL)
	                              : share<__nv_bfloat16>(NULL, kpad, vector, NULL));
}

static size_t align_up(size_t n)
{
	return (n + 63) / 64 * 64;
}

void recur_cuda_unit(const struct mx_recur_spec *s, uint32_t kpad, size_t act_size, size_t room,
                     struct recur_unit *out)
{
	struct recur_unit u = {};
	const uint32_t most = recur_cuda_step_cols(kpad, s->decay == MX_RECUR_VECTOR, room);
	u.per_head = (s->v_dim + most - 1) / most;
	u.cols = ((s->v_dim + u.per_head - 1) / u.per_head + 15) / 16 * 16;
	u.cap = Q + (s->max_draft + Q - 1) / Q * Q;
	u.S = 64;
	u.low = u.S + (size_t)kpad * u.cols * sizeof(float) / 2;
	u.k = u.S + align_up((size_t)kpad * u.cols * sizeof(float));
	u.x = u.k + align_up((size_t)u.cap * kpad * act_size);
	u.a = u.x + align_up((size_t)u.cap * u.cols * (s->delta ? sizeof(float) : act_size));
	u.b = u.a + align_up((size_t)u.cap * sizeof(float) *
	                     (s->decay == MX_RECUR_VECTOR ? kpad
	                      : s->decay                  ? 1
	                                                  : 0));
	u.t = u.b + align_up(s->gain ? u.cap * sizeof(float) : 0);
	u.bytes = u.t + align_up(s->delta ? (size_t)u.cap * Q * sizeof(float) : 0);
	*out = u;
}
