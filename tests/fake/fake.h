/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that says it is a GPU and computes on the CPU: memory of its own, and
 * everything asked for is done late, when the host waits. It records. So the
 * engine's side of such devices is tested where there is no GPU: who reads before
 * it was computed, or writes where a copy has not been made, gets it wrong.
 * Activations are f32, whatever was asked for. With MIXD_FAKE_STEPS in the
 * environment the device is lost when tokens have been drawn so many times.
 */
#ifndef MX_TESTS_FAKE_FAKE_H
#define MX_TESTS_FAKE_FAKE_H

#include "device/device.h"

/* First member of the device. Its ops->parallel(d, 1, fn, arg) calls fn(arg, 0, 0) when the calls
 * before it are done, and each time a recording that holds it is replayed. */
struct fake_base {
	struct mx_device device;
	struct mx_device *cpu; /* that computes */
};

#endif
