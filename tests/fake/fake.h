/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that claims to be a GPU and computes on the CPU: it has its own memory,
 * is asynchronous and records. It runs operators only when the host waits. So the
 * engine's support for such devices is tested without a GPU: code that reads a
 * result before it was computed, or overwrites memory before it was copied, gets
 * wrong results. Activations are always f32. If MIXD_FAKE_STEPS is set, the device
 * is lost after that number of drawn steps.
 */
#ifndef MX_TESTS_FAKE_FAKE_H
#define MX_TESTS_FAKE_FAKE_H

#include "device/device.h"

/* First member of the device. ops->parallel(d, 1, fn, arg) calls fn(arg, 0, 0) after the calls
 * before it, and again each time a recording that contains it is replayed. */
struct fake_base {
	struct mx_device device;
	struct mx_device *cpu;    /* computes */
	size_t uploaded;          /* bytes that the host has sent with upload and put */
	unsigned long n_put;      /* calls of put */
	unsigned long n_replayed; /* recordings that were replayed */
};

/* experts.c: the operator `experts`, at once. Without `limit`. */
mx_status fake_experts(struct mx_device *cpu, const struct mx_experts *m,
                       const struct mx_experts_call *c);

#endif
