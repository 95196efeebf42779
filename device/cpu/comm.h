/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process, with CPU devices: they communicate by shared memory. */
#ifndef MX_DEVICE_CPU_COMM_H
#define MX_DEVICE_CPU_COMM_H

#include "device/comm.h"
#include "device/device.h"

/* Creates the communicators of `ranks` ranks, 1 .. MX_MAX_RANKS: out[r] is that of rank r, whose
 * operators devices[r] runs. The devices outlive them. MX_E_NOMEM. */
mx_status mx_cpu_comm_create(struct mx_device *const *devices, uint32_t ranks,
                             struct mx_comm **out);

/* Creates the communicators of some of the ranks: out[i] is that of the rank whose communicator is
 * comms[i], 0 <= i < ranks, and it is number i there. Only these ranks call its operators; abort of
 * either ends both. MX_E_NOMEM. */
mx_status mx_cpu_comm_part(struct mx_comm *const *comms, uint32_t ranks, struct mx_comm **out);

/* Has the ranks' threads stay awake for so long while they wait, giving way to other threads: one
 * that sleeps takes some 50 us to wake. Before they wait. */
void mx_cpu_comm_stay_awake(struct mx_comm *c, uint64_t ns);

#endif
