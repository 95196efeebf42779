/* SPDX-License-Identifier: Apache-2.0 */
/* Private to tests/fake: the calls that a device has not run yet. */
#ifndef MX_TESTS_FAKE_QUEUE_H
#define MX_TESTS_FAKE_QUEUE_H

#include "device/comm.h"
#include "tests/fake/fake.h"

enum { MAX_OUT = 3 };

struct fake_comm;

/* A call that has not run yet; `run` knows the meaning of its operands. */
struct call {
	void (*run)(struct mx_device *cpu, const struct call *c);
	const void *a, *b;
	void *y;
	size_t n, m, k, l;
	float f;
	int i;
	struct mx_linear_out out[MAX_OUT];
	struct mx_weight w[MAX_OUT];
	mx_parallel_f *fn;
	struct mx_experts experts;
	struct mx_experts_call experts_call;
	struct call *next;
};

struct mx_recording {
	struct call *first, *last;
	struct mx_recording *next;
};

struct fake {
	struct fake_base base;
	struct mx_recording queue;     /* calls that have not run yet */
	struct mx_recording *recorded; /* all recordings */
	struct mx_recording *recording;
	struct mx_sample_row *samples;
	int32_t *drawn;
	mx_status sampled;
	unsigned long steps_left; /* steps until the device is lost; 0 = never */
	bool lost;
	struct fake_comm *comm; /* of a rank; NULL = it is none */
};

/* device.c: adds a call to the queue, or to the recording. */
mx_status fake_later(struct mx_device *d, const struct call *c);
/* Runs calls up to the first that waits for other ranks. */
void fake_advance(struct fake *f);
/* Takes the first call off the queue. */
void fake_pop(struct fake *f);

/* comm.c: makes the communicators of ranks on these devices. */
mx_status fake_comm_create(struct mx_device *const *devices, uint32_t ranks, struct mx_comm **out,
                           struct mx_err *err);
/* The mixers of these devices do not exchange anything inside of a layer: MX_E_UNSUPPORTED. */
mx_status fake_comm_part(struct mx_comm *const *comms, uint32_t ranks, struct mx_comm **out,
                         struct mx_err *err);
/* True if the call is to be done by all ranks together. */
bool fake_is_collective(const struct call *c);
/* Runs the queue of a rank to its end, and those of the others as far as it needs them. A rank
 * whose next meeting another thread has not asked for yet waits. */
void fake_run_ranks(struct fake *f);
/* What a rank does around a change of its queue, which other threads run, too. */
void fake_lock(struct fake *f);
void fake_unlock(struct fake *f);

#endif
