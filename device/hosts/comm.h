/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communication of CPU ranks of several hosts (device/comm.h). Each host has as many ranks: host h
 * has ranks h * L .. h * L + L - 1 of all. The ranks of a host meet in the communicator of its
 * threads; the first of them leads, and exchanges with the leaders of other hosts: each with host
 * 0, which hands on what is for the others.
 *
 * Sums: first the ranks of a host in their order, then the hosts in theirs, so the bits depend on
 * the numbers of hosts and ranks alone.
 *
 * Messages from rank to rank (send, recv) are for ranks of one host: others MX_E_UNSUPPORTED.
 */
#ifndef MX_DEVICE_HOSTS_COMM_H
#define MX_DEVICE_HOSTS_COMM_H

#include "device/comm.h"
#include "device/hosts/hosts.h"

/* Creates the communicators of this host's ranks, [n] with n * hosts at most MX_MAX_RANKS. local[i]
 * is the thread communicator of rank i of this host (device/cpu/comm.h). Both outlive them; abort
 * of either ends both. MX_E_NOMEM. */
mx_status mx_hosts_comm_create(struct mx_hosts *hosts, struct mx_comm *const *local, uint32_t n,
                               struct mx_comm **out);

#endif
