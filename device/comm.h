/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communication of the ranks that compute one model together. A rank is a device with its own part
 * of the weights and states; rank r of R has the handle comm->rank = r, comm->ranks = R.
 *
 * A collective is called by every rank, in the same order on all ranks and with the same sizes. It
 * belongs to the sequence of the device's operators: on a CPU it is done on return, on an
 * asynchronous device it is done when the device comes to it, and it may be recorded.
 *
 * Determinism: sums are made in the order of the ranks, ((x0 + x1) + x2) + ..., whichever rank
 * comes first, and all ranks get the same bits.
 *
 * Some ranks may have a communicator of their own beside that of all; its rank numbers are theirs
 * in it. Abort ends those of all ranks, whichever it is called for.
 *
 * Errors: MX_E_DEVICE from the moment that any rank has called abort. Calls that wait end with it
 * at once, all later calls fail with it, and the contents of outputs are undefined. On an
 * asynchronous device what has been called already ends without a result: `check` tells so, behind
 * the device's wait. There a rank that does not come within MX_COMM_PATIENCE_MS ends the
 * communication too.
 *
 * Threads: one thread a rank; only abort and spent_ns may be called by any thread.
 */
#ifndef MX_DEVICE_COMM_H
#define MX_DEVICE_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MX_MAX_RANKS 64

/* How long an asynchronous rank waits for another one, in milliseconds of the device's clock. */
#define MX_COMM_PATIENCE_MS 4000

struct mx_comm;

/* Partial results of attention, each over a rank's own keys: with s the scaled scores in powers of
 * two, the maximum m, the sum l of 2^(s - m) and the sums o of 2^(s - m) v. Without keys: -inf, 0,
 * zeros. A rank finishes `heads` heads of each row, and has partials for all ranks. */
struct mx_partials {
	/* f32 [ranks][rows][heads][dim + 4]: o, m, l, two that are not used; of the heads that each
	 * rank finishes. dim: 4 .. 512, a multiple of 4. Starts at a multiple of 16 bytes. */
	const float *x;
	size_t rows;
	uint32_t heads, dim;
	const float *sinks; /* [heads] scores of keys of value 0, of base e; NULL = none */
	/* activations [rows, ldy]: o / l of all ranks' keys, `out` <= dim elements of each head. */
	void *y;
	size_t ldy;
	uint32_t out;
};

/* Pointers are memory of the rank's own device. Elements are of the activations' type (f32 on
 * CPUs) where no size in bytes is given. */
struct mx_comm_ops {
	uint32_t struct_size;

	/* x[n] of every rank = the sum of the x[n] of all ranks. */
	mx_status (*all_reduce)(struct mx_comm *c, void *x, size_t n);

	/* y[ranks][bytes] of every rank = the x[bytes] of all ranks, in their order. x is not in y. */
	mx_status (*all_gather)(struct mx_comm *c, const void *x, size_t bytes, void *y);

	/* x[bytes] of every rank = that of rank `root`. */
	mx_status (*broadcast)(struct mx_comm *c, uint32_t root, void *x, size_t bytes);

	/* Columns first .. first + cols - 1 of y [n, ldy] of rank `root` = x [n, ldx], of f32: each
	 * rank gives columns of its own. y is of `root` only, whose x may be its columns in y. */
	mx_status (*gather_columns)(struct mx_comm *c, uint32_t root, const float *x, size_t ldx,
	                            size_t n, size_t first, size_t cols, float *y, size_t ldy);

	/* Waits until all ranks have called it. */
	mx_status (*barrier)(struct mx_comm *c);

	/* Copies x[bytes] to the y[bytes] of rank `to`, whose recv names this rank and as many bytes;
	 * else both fail with MX_E_INVALID (asynchronous devices: the communication ends). Both wait
	 * for each other. No collectives: only the two ranks take part. */
	mx_status (*send)(struct mx_comm *c, uint32_t to, const void *x, size_t bytes);
	mx_status (*recv)(struct mx_comm *c, uint32_t from, void *y, size_t bytes);

	/* Ends the communication of all ranks: one of them cannot go on. */
	void (*abort)(struct mx_comm *c);

	/* Frees the handle, when no call of it runs. Before the device is destroyed. */
	void (*destroy)(struct mx_comm *c);

	/* As all_reduce, for f32 whatever the activations' type. */
	mx_status (*all_reduce_f32)(struct mx_comm *c, float *x, size_t n);

	/* MX_E_DEVICE if the communication has ended. */
	mx_status (*check)(struct mx_comm *c);

	/* While it is on, collectives of this rank do nothing, on asynchronous devices, unless they are
	 * recorded: so a rank can run a step for the first use of its kernels, alone. */
	void (*rehearse)(struct mx_comm *c, bool on);

	/* y[ranks][bytes] of every rank = block number comm->rank of the x[ranks][bytes] of all ranks,
	 * in their order. x and y do not overlap. NULL on GPUs, which have fold_partials. */
	mx_status (*all_to_all)(struct mx_comm *c, const void *x, size_t bytes, void *y);

	/* h [rows, width] += the sum of y over all ranks, then x = rmsnorm(h) * weight, f32 [width]; y
	 * is lost. The bits of all_reduce and the device's add_rmsnorm. NULL where it would be no
	 * faster than the two. */
	mx_status (*all_reduce_norm)(struct mx_comm *c, void *y, void *h, const float *weight,
	                             float eps, size_t rows, size_t width, void *x);

	/* Returns the nanoseconds that this rank has spent in sums, gathers and exchanges, waiting for
	 * the others included. A CPU's are without broadcasts and barriers, in which a rank may wait
	 * for work; a GPU's are with those in its stream. Any thread. NULL = they are not counted. */
	uint64_t (*spent_ns)(struct mx_comm *c);

	/* p->y of every rank = its heads of the attention over the keys of all ranks, folded in the
	 * order of the ranks. x is read by the peers until the call is done. NULL where there is
	 * nothing faster than all_to_all and a fold by the caller. */
	mx_status (*fold_partials)(struct mx_comm *c, const struct mx_partials *p);
};

/* First member of every communicator. */
struct mx_comm {
	const struct mx_comm_ops *ops;
	uint32_t rank, ranks;
};

#endif
