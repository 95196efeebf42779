/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU device: operators on a pool of threads, kernels chosen at run time. */
#ifndef MX_DEVICE_CPU_CPU_H
#define MX_DEVICE_CPU_CPU_H

#include "device/device.h"

/* Returns the best level that this machine and the environment variable MIXD_ISA (a name of
 * mx_isa_name, for tests and benchmarks) allow. */
enum mx_isa mx_cpu_isa(void);

/* Creates the device with n_threads workers (0 = one per usable CPU) and kernels of level `isa`
 * (MX_E_UNSUPPORTED if the machine lacks it). `max_rows` is the largest n of any operator call,
 * `max_width` the largest number of columns of a weight: scratch is allocated here, never later.
 * Destroy with mx_cpu_destroy, which takes NULL. */
mx_status mx_cpu_create(unsigned n_threads, enum mx_isa isa, size_t max_rows, size_t max_width,
                        struct mx_device **out, struct mx_err *err);
/* The same with the threads of the CPU device `other`: one of the two computes at a time. Threads
 * that wait for work of one would keep its CPUs from the other. */
mx_status mx_cpu_create_beside(struct mx_device *other, enum mx_isa isa, size_t max_rows,
                               size_t max_width, struct mx_device **out, struct mx_err *err);
void mx_cpu_destroy(struct mx_device *d);

/* Returns the bytes of scratch that mx_cpu_create allocates for these limits. */
size_t mx_cpu_scratch_bytes(unsigned n_threads, enum mx_isa isa, size_t max_rows, size_t max_width);

#endif
