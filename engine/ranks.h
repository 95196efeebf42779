/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of a model: several devices that compute it together, each with its part of the weights
 * and states. Bookkeeping is done once, execution on every rank: the model engine with sequences,
 * pages and sampling is rank 0, and its thread. Each other rank is a model engine without
 * sequences, with a thread of its own; its pages, slots and snapshots have the numbers of rank 0's.
 *
 * What every rank is to do is a call, which rank 0 sends to the others. Ranks meet in the
 * communicator's operators on the way (device/comm.h), and at the end of the call. If a call fails
 * on one rank, it fails on all of them, the threads end, and no later call succeeds: the engine is
 * lost.
 *
 * Calls go from thread to thread by a communicator of their own: on asynchronous devices a call is
 * done when every rank has asked its device for all of it, and the devices meet later.
 *
 * Of several hosts (device/hosts/hosts.h) each has such threads. Rank 0's host sends calls to the
 * others as messages (rank_wire.h), and does not wait until they are done there: ranks of several
 * hosts meet in the communicator's operators only.
 */
#ifndef MX_ENGINE_RANKS_H
#define MX_ENGINE_RANKS_H

#include "engine/model_engine.h"

/* A call, and what it needs of the fields below. Pointers are to rank 0's memory: only to what the
 * host reads, and what does not change during the call. */
struct mx_rank_call {
	mx_status (*run)(struct mx_model_engine *e, const struct mx_rank_call *c);
	struct mx_step step;              /* scratch is each rank's own */
	const int32_t *ids;               /* [step.n_rows] */
	const struct mx_kept *kept;       /* [step.n_spans] */
	const struct mx_step_item *items; /* [n] */
	const uint32_t *rows;             /* [step.n_rows] of drafts: see head.c */
	const void *x;                    /* [n, width] hidden states, in rank 0's device memory */
	size_t n;
	uint32_t slot, pos, page, block; /* of a state that is cleared, saved, loaded or resumed */
	bool begins;                     /* the first part of a resume */
	/* Asynchronous devices: the step's tables as rank 0 has written them, which every rank uploads
	 * [bytes], and the number of the recording that is replayed. */
	const void *tables;
	size_t bytes;
	uint32_t bucket;
};

struct mx_rank_wire;

/* Starts the threads of this host's other ranks, others[n], and gives e its ranks, which own them.
 * wire: sends calls to other hosts, or receives them; taken too. NULL = there are none. On failure
 * the caller still has the others and the wire. */
mx_status mx_ranks_create(struct mx_model_engine *e, struct mx_model_engine *const *others,
                          uint32_t n, struct mx_rank_wire *wire);
/* Ends the threads and destroys the other ranks. Takes NULL. */
void mx_ranks_destroy(struct mx_ranks *r);

/* Returns rank number i of this host, whose first is e; NULL if there is none. Any thread. */
const struct mx_model_engine *mx_ranks_at(const struct mx_model_engine *e, uint32_t i);

/* Runs the call on all ranks, on rank 0 by this thread, and waits until all are done; without other
 * ranks, just c->run. MX_E_DEVICE if another rank failed, which has been logged. */
mx_status mx_ranks_run(struct mx_model_engine *e, const struct mx_rank_call *c);

/* Of the first rank of another host than rank 0's: runs the calls that come, on all ranks of this
 * host, until rank 0 ends. MX_E_DEVICE: the hosts are lost (mx_hosts_lost says why). */
mx_status mx_ranks_follow(struct mx_model_engine *e);

#endif
