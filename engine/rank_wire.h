/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of ranks (ranks.h) as messages to other hosts. Host 0 has a wire that sends each call to
 * all others; each other host has one that receives them into memory of its own, which a call may
 * point to until the next one comes. A sequence's list of pages is sent once, and then only what
 * has changed of it. Both ends allocate what the largest call needs when they are created.
 *
 * A message that is not whole, or names rows, spans, slots or pages that are not there, ends the
 * communication.
 */
#ifndef MX_ENGINE_RANK_WIRE_H
#define MX_ENGINE_RANK_WIRE_H

#include "device/hosts/hosts.h"
#include "engine/ranks.h"

typedef mx_status mx_rank_run_f(struct mx_model_engine *e, const struct mx_rank_call *c);

/* Sizes of the engine that the calls are for. */
struct mx_rank_wire_limits {
	uint32_t rows, spans; /* most of a step */
	uint32_t slots, pages, blocks;
	uint32_t list; /* most pages of a sequence */
	uint32_t kept; /* most tokens of a path that is kept */
};

struct mx_rank_wire;

/* runs[n_runs]: what there is to call, in an order that is the same on all hosts; it must outlive
 * the wire, as hosts must. MX_E_NOMEM. */
mx_status mx_rank_wire_create(struct mx_hosts *hosts, const struct mx_rank_wire_limits *limits,
                              mx_rank_run_f *const *runs, uint32_t n_runs,
                              struct mx_rank_wire **out);
/* Takes NULL, as end does. */
void mx_rank_wire_destroy(struct mx_rank_wire *w);

/* Host 0: sends the call to all others. MX_E_DEVICE: the hosts are lost. */
mx_status mx_rank_wire_send(struct mx_rank_wire *w, const struct mx_rank_call *c);
/* Host 0: tells all others that no call comes any more. */
void mx_rank_wire_end(struct mx_rank_wire *w);
/* Another host: waits for a call. *out has nothing to run: it was the end. MX_E_DEVICE. */
mx_status mx_rank_wire_receive(struct mx_rank_wire *w, struct mx_rank_call *out);

/* For tests: writes a call to the wire's buffer, and returns it; reads one from bytes that came. */
const void *mx_rank_wire_write(struct mx_rank_wire *w, const struct mx_rank_call *c, size_t *bytes);
mx_status mx_rank_wire_read(struct mx_rank_wire *w, const void *message, size_t bytes,
                            struct mx_rank_call *out);

#endif
