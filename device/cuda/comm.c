/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator of ranks on GPUs of one process: makes the memory that they share and launches
 * the kernels of comm.h. Every call goes to the rank's stream and returns at once.
 */
#include "device/cuda/comm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

struct group;

struct cuda_comm {
	struct mx_comm base;
	struct group *group;
	struct mx_device *device;
	struct mx_comm_rank rank;
	int ordinal;                   /* of the GPU */
	cudaStream_t reader;           /* reads the rank's clock while its stream computes */
	atomic_uint_fast64_t spent_ns; /* as last read */
	bool rehearses;
};

struct group {
	uint32_t ranks, blocks; /* blocks: of a copy */
	bool shared;
	struct group *whole; /* that this one is a part of; NULL */
	uint32_t *ended; /* pinned; kernels poll it, and end the communication themselves; of whole */
	atomic_uint handles; /* not destroyed yet */
	struct cuda_comm comms[MX_CUDA_MAX_RANKS];
};

static struct cuda_comm *comm_of(struct mx_comm *c)
{
	return (struct cuda_comm *)c;
}

static bool has_ended(const struct group *g)
{
	return __atomic_load_n(g->ended, __ATOMIC_ACQUIRE) != 0;
}

static void end_all(const struct group *g)
{
	__atomic_store_n(g->ended, 1, __ATOMIC_RELEASE);
}

/* True while a step is recorded: nothing runs. */
static bool is_recording(cudaStream_t stream)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
	return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
	       status == cudaStreamCaptureStatusActive;
}

/* Sets *out to the rank's stream, for a collective. *out_skip: there is nothing to do. */
static mx_status open_call(struct mx_comm *c, cudaStream_t *out, bool *out_skip)
{
	struct cuda_comm *x = comm_of(c);
	mx_status st = mx_cuda_bind(x->device);
	*out_skip = false;
	if (st != MX_OK || has_ended(x->group))
		return MX_E_DEVICE;
	*out = mx_cuda_stream(x->device);
	*out_skip = x->rehearses && !is_recording(*out);
	return MX_OK;
}

static mx_status check_call(struct mx_comm *c, cudaError_t e, const char *what)
{
	return mx_cuda_check(comm_of(c)->device, e, what);
}

static mx_status sum(struct mx_comm *c, void *x, size_t n, enum mx_dtype dtype)
{
	struct cuda_comm *own = comm_of(c);
	cudaStream_t stream;
	bool skip;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || skip || !n)
		return st;
	const struct mx_comm_rank *r = &own->rank;
	return check_call(
		c,
		mx_comm_may_push(r, n * mx_dtype_size(dtype))
			? mx_comm_push_sum(r, stream, x, n, dtype)
			: mx_comm_sum(r, r->shared ? MX_COMM_FEW_BLOCKS : MX_COMM_BLOCKS, stream, x, n, dtype),
		"summing over ranks");
}

static mx_status all_reduce(struct mx_comm *c, void *x, size_t n)
{
	return sum(c, x, n, comm_of(c)->device->info.act_dtype);
}

static mx_status all_reduce_f32(struct mx_comm *c, float *x, size_t n)
{
	return sum(c, x, n, MX_F32);
}

static mx_status all_reduce_norm(struct mx_comm *c, void *y, void *h, const float *weight,
                                 float eps, size_t rows, size_t width, void *x)
{
	struct cuda_comm *own = comm_of(c);
	struct mx_device *d = own->device;
	const enum mx_dtype dtype = d->info.act_dtype;
	const struct mx_comm_norm norm = {y, h, x, weight, eps, rows, width};
	cudaStream_t stream;
	bool skip;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || !rows)
		return st;
	if (!skip && mx_comm_may_push_norm(&own->rank, &norm, dtype))
		return check_call(c, mx_comm_push_norm(&own->rank, stream, &norm, dtype),
		                  "a norm behind a sum over ranks");
	st = sum(c, y, rows * width, dtype);
	return st == MX_OK ? d->ops->add_rmsnorm(d, h, y, weight, eps, rows, width, x) : st;
}

static mx_status fold_partials(struct mx_comm *c, const struct mx_partials *p)
{
	struct cuda_comm *own = comm_of(c);
	cudaStream_t stream;
	bool skip;
	if (p->dim % 4 || p->dim < 4 || p->dim > MX_COMM_FOLD_DIM || p->out > p->dim)
		return MX_E_INVALID;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || skip || !p->rows)
		return st;
	return check_call(c, mx_comm_fold(&own->rank, stream, p, own->device->info.act_dtype),
	                  "folding partials of ranks");
}

/* y = the x of n ranks from `first` on. */
static mx_status collect(struct mx_comm *c, const void *x, size_t bytes, uint32_t first, uint32_t n,
                         void *y)
{
	struct cuda_comm *own = comm_of(c);
	cudaStream_t stream;
	bool skip;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || skip || !bytes)
		return st;
	return check_call(
		c, mx_comm_collect(&own->rank, own->group->blocks, stream, x, bytes, first, n, y),
		"copying between ranks");
}

static mx_status all_gather(struct mx_comm *c, const void *x, size_t bytes, void *y)
{
	return collect(c, x, bytes, 0, c->ranks, y);
}

static mx_status broadcast(struct mx_comm *c, uint32_t root, void *x, size_t bytes)
{
	return collect(c, x, bytes, root, 1, c->rank == root ? NULL : x);
}

static mx_status gather_columns(struct mx_comm *c, uint32_t root, const float *x, size_t ldx,
                                size_t n, size_t first, size_t cols, float *y, size_t ldy)
{
	struct cuda_comm *own = comm_of(c);
	cudaStream_t stream;
	bool skip;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || skip || !n)
		return st;
	return check_call(c,
	                  mx_comm_columns(&own->rank, own->group->blocks, stream, root, x, ldx, n,
	                                  first, cols, y, ldy),
	                  "gathering columns of ranks");
}

static mx_status barrier(struct mx_comm *c)
{
	cudaStream_t stream;
	bool skip;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || skip)
		return st;
	return check_call(c, mx_comm_meet(&comm_of(c)->rank, stream), "a barrier of ranks");
}

static mx_status comm_send(struct mx_comm *c, uint32_t to, const void *x, size_t bytes)
{
	struct cuda_comm *own = comm_of(c);
	cudaStream_t stream;
	bool skip;
	if (to >= c->ranks || to == c->rank)
		return MX_E_INVALID;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || skip)
		return st;
	return check_call(c, mx_comm_give(&own->rank, own->group->blocks, stream, to, x, bytes),
	                  "sending to a rank");
}

static mx_status comm_recv(struct mx_comm *c, uint32_t from, void *y, size_t bytes)
{
	struct cuda_comm *own = comm_of(c);
	cudaStream_t stream;
	bool skip;
	if (from >= c->ranks || from == c->rank)
		return MX_E_INVALID;
	mx_status st = open_call(c, &stream, &skip);
	if (st != MX_OK || skip)
		return st;
	return check_call(c, mx_comm_take(&own->rank, own->group->blocks, stream, from, y, bytes),
	                  "receiving from a rank");
}

static void comm_abort(struct mx_comm *c)
{
	end_all(comm_of(c)->group);
}

static mx_status comm_check(struct mx_comm *c)
{
	return has_ended(comm_of(c)->group) ? MX_E_DEVICE : MX_OK;
}

static void rehearse(struct mx_comm *c, bool on)
{
	comm_of(c)->rehearses = on;
}

/* The GPU keeps the time; a copy on a stream of its own reads it while the rank computes. */
static uint64_t spent_ns(struct mx_comm *c)
{
	struct cuda_comm *own = comm_of(c);
	const struct mx_comm_memory *memory = own->rank.memory[c->rank];
	uint64_t ns;
	if (!has_ended(own->group) && mx_cuda_set_current(own->ordinal) == cudaSuccess &&
	    cudaMemcpyAsync(&ns, &memory->spent_ns, sizeof ns, cudaMemcpyDeviceToHost, own->reader) ==
	        cudaSuccess &&
	    cudaStreamSynchronize(own->reader) == cudaSuccess)
		atomic_store(&own->spent_ns, ns);
	return atomic_load(&own->spent_ns);
}

/* ---- life ---- */

static void free_group(struct group *g)
{
	for (uint32_t r = 0; r < g->ranks; r++)
		if (mx_cuda_set_current(g->comms[r].ordinal) == cudaSuccess) {
			cudaFree(g->comms[r].rank.memory[r]);
			cudaFree(g->comms[r].rank.push[r]);
			if (g->comms[r].reader)
				cudaStreamDestroy(g->comms[r].reader);
		}
	struct group *whole = g->whole;
	if (!whole && g->ended)
		cudaFreeHost(g->ended);
	free(g);
	if (whole && atomic_fetch_sub(&whole->handles, 1) == 1)
		free_group(whole);
}

/* Peers may still read this rank's memory: the last one frees that of all. */
static void comm_destroy(struct mx_comm *c)
{
	struct cuda_comm *own = comm_of(c);
	struct group *g = own->group;
	(void)own->device->ops->wait(own->device);
	if (atomic_fetch_sub(&g->handles, 1) == 1)
		free_group(g);
}

static const struct mx_comm_ops cuda_comm_ops = {
	.struct_size = sizeof(struct mx_comm_ops),
	.all_reduce = all_reduce,
	.all_gather = all_gather,
	.broadcast = broadcast,
	.gather_columns = gather_columns,
	.barrier = barrier,
	.send = comm_send,
	.recv = comm_recv,
	.abort = comm_abort,
	.destroy = comm_destroy,
	.all_reduce_f32 = all_reduce_f32,
	.check = comm_check,
	.rehearse = rehearse,
	.all_reduce_norm = all_reduce_norm,
	.spent_ns = spent_ns,
	.fold_partials = fold_partials,
};

/* Lets GPU a reach the memory of GPU b. */
static mx_status enable_peer(const struct cuda_comm *a, const struct cuda_comm *b,
                             struct mx_err *err)
{
	int can = 0;
	cudaError_t e = mx_cuda_set_current(a->ordinal);
	if (e == cudaSuccess)
		e = cudaDeviceCanAccessPeer(&can, a->ordinal, b->ordinal);
	if (e == cudaSuccess && !can)
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "cuda:%d does not reach the memory of cuda:%d: ranks need GPUs that are "
		               "peers, by NVLink or PCIe (nvidia-smi topo -p2p r)",
		               a->ordinal, b->ordinal);
	if (e == cudaSuccess)
		e = cudaDeviceEnablePeerAccess(b->ordinal, 0);
	if (e == cudaErrorPeerAccessAlreadyEnabled) {
		cudaGetLastError(); /* clears it */
		e = cudaSuccess;
	}
	return e == cudaSuccess ? MX_OK
	                        : mx_fail(err, MX_E_DEVICE, "cuda:%d and the memory of cuda:%d: %s",
	                                  a->ordinal, b->ordinal, cudaGetErrorString(e));
}

/* Connects all pairs of GPUs, and finds out if ranks share one. A kernel that is loaded when it is
 * first called may wait until the GPU is idle, which it never is while a rank waits for this one.
 */
static mx_status connect(struct group *g, struct mx_err *err)
{
	const char *loading = getenv("CUDA_MODULE_LOADING");
	mx_status st = MX_OK;
	for (uint32_t a = 0; a < g->ranks; a++)
		for (uint32_t b = 0; b < g->ranks && st == MX_OK; b++)
			if (g->comms[a].ordinal != g->comms[b].ordinal)
				st = enable_peer(&g->comms[a], &g->comms[b], err);
			else if (a < b)
				g->shared = true;
	if (st == MX_OK && g->shared && (!loading || strcmp(loading, "EAGER") != 0))
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "several ranks on one GPU are a test of ranks, and need "
		               "CUDA_MODULE_LOADING=EAGER in the environment");
	return st;
}

/* Allocates memory of the current GPU, cleared. */
static cudaError_t make(size_t bytes, void **out)
{
	cudaError_t e = cudaMalloc(out, bytes);
	return e == cudaSuccess ? cudaMemset(*out, 0, bytes) : e;
}

/* Allocates the memory of a rank and loads the kernels on its GPU. */
static cudaError_t make_memory(const struct group *g, const struct cuda_comm *c, void **out_memory,
                               void **out_push)
{
	const size_t slots = (size_t)g->ranks * MX_COMM_PUSH_BLOCKS(g->ranks) * 2;
	cudaError_t e = mx_cuda_set_current(c->ordinal);
	if (e == cudaSuccess)
		e = mx_comm_load_kernels();
	if (e == cudaSuccess)
		e = mx_comm_load_push();
	if (e == cudaSuccess)
		e = mx_comm_load_fold();
	if (e == cudaSuccess)
		e = make(sizeof(struct mx_comm_memory), out_memory);
	if (e == cudaSuccess)
		e = make(slots * MX_COMM_PUSH_VECTORS * MX_COMM_PUSH_BYTES, out_push);
	return e == cudaSuccess ? cudaDeviceSynchronize() : e;
}

static mx_status make_all(struct group *g, struct mx_err *err)
{
	void *memory[MX_CUDA_MAX_RANKS] = {NULL}, *push[MX_CUDA_MAX_RANKS] = {NULL}, *ended = NULL;
	cudaError_t e = cudaSuccess;
	if (g->whole) {
		g->ended = g->whole->ended;
	} else {
		e = cudaHostAlloc(&ended, 64, cudaHostAllocPortable | cudaHostAllocMapped);
		g->ended = ended;
		if (e == cudaSuccess)
			*g->ended = 0;
	}
	for (uint32_t r = 0; r < g->ranks && e == cudaSuccess; r++) {
		e = make_memory(g, &g->comms[r], &memory[r], &push[r]);
		g->comms[r].rank.memory[r] = memory[r]; /* freed from here */
		g->comms[r].rank.push[r] = push[r];
		if (e == cudaSuccess)
			e = cudaStreamCreateWithFlags(&g->comms[r].reader, cudaStreamNonBlocking);
	}
	if (e != cudaSuccess)
		return mx_fail(err, MX_E_NOMEM, "memory for the communication of %u ranks: %s", g->ranks,
		               cudaGetErrorString(e));
	for (uint32_t r = 0; r < g->ranks; r++) {
		struct mx_comm_rank *rank = &g->comms[r].rank;
		for (uint32_t k = 0; k < g->ranks; k++) {
			rank->memory[k] = memory[k];
			rank->push[k] = push[k];
		}
		rank->push_blocks = MX_COMM_PUSH_BLOCKS(g->ranks);
		rank->ended = g->ended;
		rank->rank = r;
		rank->ranks = g->ranks;
		rank->shared = g->shared;
	}
	return MX_OK;
}

/* Makes a group of ranks that nothing connects yet; NULL if memory is short. */
static struct group *new_group(struct mx_device *const *devices, uint32_t ranks)
{
	struct group *g = calloc(1, sizeof *g);
	if (!g)
		return NULL;
	g->ranks = ranks;
	g->handles = ranks;
	for (uint32_t r = 0; r < ranks; r++)
		g->comms[r] = (struct cuda_comm){.base = {&cuda_comm_ops, r, ranks},
		                                 .group = g,
		                                 .device = devices[r],
		                                 .ordinal = mx_cuda(devices[r])->base.ordinal};
	return g;
}

mx_status mx_cuda_comm_create(struct mx_device *const *devices, uint32_t ranks,
                              struct mx_comm **out, struct mx_err *err)
{
	if (ranks < 2 || ranks > MX_CUDA_MAX_RANKS)
		return mx_fail(err, MX_E_RANGE, "%u GPUs for one model: must be 2 .. %d", ranks,
		               MX_CUDA_MAX_RANKS);
	struct group *g = new_group(devices, ranks);
	if (!g)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	mx_status st = connect(g, err);
	g->blocks = g->shared ? MX_COMM_FEW_BLOCKS : MX_COMM_COPY_BLOCKS;
	if (st == MX_OK)
		st = make_all(g, err);
	if (st != MX_OK) {
		free_group(g);
		return st;
	}
	if (g->shared)
		mx_warning("cuda", "%u ranks share a GPU: a test of ranks, which makes nothing faster",
		           ranks);
	for (uint32_t r = 0; r < ranks; r++)
		out[r] = &g->comms[r].base;
	return MX_OK;
}

/* Ranks outside of the part may need its GPUs: they are shared if those of the whole are. */
mx_status mx_cuda_comm_part(struct mx_comm *const *comms, uint32_t ranks, struct mx_comm **out,
                            struct mx_err *err)
{
	struct mx_device *devices[MX_CUDA_MAX_RANKS];
	for (uint32_t r = 0; r < ranks; r++)
		devices[r] = comm_of(comms[r])->device;
	struct group *g = new_group(devices, ranks);
	if (!g)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	g->whole = comm_of(comms[0])->group;
	g->shared = g->whole->shared;
	g->blocks = g->whole->blocks;
	atomic_fetch_add(&g->whole->handles, 1);
	mx_status st = make_all(g, err);
	if (st != MX_OK) {
		free_group(g);
		return st;
	}
	for (uint32_t r = 0; r < ranks; r++)
		out[r] = &g->comms[r].base;
	return MX_OK;
}
