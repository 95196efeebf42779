/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to comm.c, comm_kernels.cu, comm_push.cu and comm_fold.cu: the communicator of ranks on
 * GPUs of one process (device/comm.h), and its kernels.
 *
 * Every rank has memory of its own that its peers read and write over NVLink or PCIe. A kernel of a
 * collective runs on every rank with the same number of blocks, and block b meets only the blocks b
 * of its peers: each writes its epoch, a number that grows by one with every meeting, to flags in
 * the peers' memory, and waits until the peers' epochs are in its own. Small sums do without
 * (comm_push.cu). Nothing comes from the host, so a recorded kernel can be replayed.
 *
 * Ranks that share a GPU, as tests do, must not wait for each other in vain: kernels of a
 * collective then have few blocks, which leaves multiprocessors for the peers' kernels, and the
 * kernel behind one begins when it has ended, not while it waits.
 */
#ifndef MX_DEVICE_CUDA_COMM_H
#define MX_DEVICE_CUDA_COMM_H

#include "device/comm.h"
#include "device/cuda/impl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MX_CUDA_MAX_RANKS   8
#define MX_COMM_BLOCKS      64                /* most blocks of a collective; half of an H100 */
#define MX_COMM_COPY_BLOCKS 32                /* of one that copies: more are slower */
#define MX_COMM_FEW_BLOCKS  8                 /* where ranks share a GPU */
#define MX_COMM_BLOCK_BYTES ((size_t)8 << 10) /* a block more for each so many bytes */

/* Small sums are written into slots in the memory of the peers (comm_push.cu): most bytes that a
 * rank writes so to all peers, the blocks that have slots, and a slot's vectors of 16 bytes, each
 * with the numbers that tell when it is there. */
#define MX_COMM_PUSH_MOST          ((size_t)1 << 20)
#define MX_COMM_PUSH_NORM          ((size_t)128 << 10) /* of more rows the norm is apart */
#define MX_COMM_PUSH_BLOCKS(ranks) (128 / (ranks))
#define MX_COMM_PUSH_VECTORS       2048
#define MX_COMM_PUSH_BYTES         32

#define MX_COMM_FOLD_DIM 512 /* most values of a partial */

/* Where a block's share of a collective is. */
struct mx_comm_post {
	void *x;
	size_t n; /* elements from row to row, or bytes of a message */
};

/* A rank's memory. Peers write the flags, all else is the rank's own to write. */
struct mx_comm_memory {
	/* [peer][block] epochs of collectives; of messages: that were sent to this rank, and that were
	 * taken from it. */
	uint32_t met[MX_CUDA_MAX_RANKS][MX_COMM_BLOCKS];
	uint32_t sent[MX_CUDA_MAX_RANKS][MX_COMM_BLOCKS];
	uint32_t taken[MX_CUDA_MAX_RANKS][MX_COMM_BLOCKS];

	uint32_t epochs[MX_COMM_BLOCKS]; /* meetings so far */
	uint32_t pushes[MX_COMM_PUSH_BLOCKS(2)];
	uint64_t spent_ns; /* in sums, gathers and messages, so far */
	uint32_t sends[MX_CUDA_MAX_RANKS][MX_COMM_BLOCKS];
	uint32_t recvs[MX_CUDA_MAX_RANKS][MX_COMM_BLOCKS];
	struct mx_comm_post posts[MX_COMM_BLOCKS];
	struct mx_comm_post mail[MX_CUDA_MAX_RANKS][MX_COMM_BLOCKS];
};

/* What every kernel of a rank gets. */
struct mx_comm_rank {
	struct mx_comm_memory *memory[MX_CUDA_MAX_RANKS]; /* [ranks] */
	void *push[MX_CUDA_MAX_RANKS]; /* [sender][push_blocks][2][MX_COMM_PUSH_VECTORS] of each rank */
	uint32_t push_blocks;
	uint32_t *ended; /* in pinned memory of the host: not 0 = the communication has ended */
	uint32_t rank, ranks;
	bool shared; /* a GPU has several ranks */
};

/* Loads the kernels, for the calling thread's device. */
cudaError_t mx_comm_load_kernels(void);

/* x[n] = the sum over the ranks. */
cudaError_t mx_comm_sum(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream, void *x,
                        size_t n, enum mx_dtype dtype);

/* h += the sum of y over the ranks, then x = rmsnorm(h) * weight: [rows, width], weight [width]. */
struct mx_comm_norm {
	const void *y;
	void *h, *x;
	const float *weight;
	float eps;
	size_t rows, width;
};

/* comm_push.cu: small sums, of so many bytes as it takes. */
bool mx_comm_may_push(const struct mx_comm_rank *r, size_t bytes);
cudaError_t mx_comm_push_sum(const struct mx_comm_rank *r, cudaStream_t stream, void *x, size_t n,
                             enum mx_dtype dtype);
bool mx_comm_may_push_norm(const struct mx_comm_rank *r, const struct mx_comm_norm *norm,
                           enum mx_dtype dtype);
cudaError_t mx_comm_push_norm(const struct mx_comm_rank *r, cudaStream_t stream,
                              const struct mx_comm_norm *norm, enum mx_dtype dtype);
cudaError_t mx_comm_load_push(void);

/* comm_fold.cu: fold_partials of struct mx_comm_ops. */
cudaError_t mx_comm_fold(const struct mx_comm_rank *r, cudaStream_t stream,
                         const struct mx_partials *p, enum mx_dtype dtype);
cudaError_t mx_comm_load_fold(void);

/* y[bytes] behind each other = the x of ranks first .. first + n - 1; y may be NULL: a rank that
 * only gives. */
cudaError_t mx_comm_collect(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                            const void *x, size_t bytes, uint32_t first, uint32_t n, void *y);

/* As gather_columns of struct mx_comm_ops. */
cudaError_t mx_comm_columns(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                            uint32_t root, const float *x, size_t ldx, size_t n, size_t first,
                            size_t cols, float *y, size_t ldy);

/* All ranks meet. */
cudaError_t mx_comm_meet(const struct mx_comm_rank *r, cudaStream_t stream);

/* A message to `peer`, or from it. */
cudaError_t mx_comm_give(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                         uint32_t peer, const void *x, size_t bytes);
cudaError_t mx_comm_take(const struct mx_comm_rank *r, uint32_t blocks, cudaStream_t stream,
                         uint32_t peer, void *y, size_t bytes);

/* comm.c: comm_create and comm_part of mx_cuda_device_ops */
mx_status mx_cuda_comm_create(struct mx_device *const *devices, uint32_t ranks,
                              struct mx_comm **out, struct mx_err *err);
mx_status mx_cuda_comm_part(struct mx_comm *const *comms, uint32_t ranks, struct mx_comm **out,
                            struct mx_err *err);

#ifdef __cplusplus
}
#endif

#endif
