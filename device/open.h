/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a device by name: "cpu", "cuda" (= "cuda:0"), "cuda:1" ...
 *
 * All CUDA code is in a module, device-cuda.so. It is loaded when the first CUDA device is opened,
 * from the folders of MIXD_DEVICE_PATH (separated by colons) or else from where it was installed,
 * and is never unloaded.
 */
#ifndef MX_DEVICE_OPEN_H
#define MX_DEVICE_OPEN_H

#include "device/cuda/device_cuda.h"
#include "device/device.h"

/* Limits of a device: it allocates memory for them when it is created, never later. */
struct mx_device_options {
	/* CPUs, as for mx_cpu_create; the instruction set is the best available (mx_cpu_isa) */
	unsigned threads;
	size_t max_rows, max_width;
	/* CPUs: a CPU device whose threads this one uses instead, as for mx_cpu_create_beside; or NULL
	 */
	struct mx_device *beside;
	struct mx_cuda_limits cuda; /* CUDA devices */
};

/* Parses a device's name into its kind and its number (0 for CPUs); outputs may be NULL. False if
 * it is not a valid name. The device need not exist. */
bool mx_device_parse(const char *name, enum mx_device_kind *out_kind, int *out_ordinal);

/* Creates the device; destroy it with its ops->destroy. On failure *err says why: MX_E_INVALID for
 * an invalid name, MX_E_NOTFOUND if the module or the device does not exist, MX_E_UNSUPPORTED if it
 * is too old, MX_E_DEVICE if it does not work. */
mx_status mx_device_open(const char *name, const struct mx_device_options *options,
                         struct mx_device **out, struct mx_err *err);

/* Returns in *out an upper bound for the bytes of its own memory that the device allocates for
 * itself with these options. */
mx_status mx_device_own_bytes(const char *name, const struct mx_device_options *options,
                              size_t *out, struct mx_err *err);

/* Makes the communicators out[ranks] of ranks on these devices, which are all of one kind: those of
 * CPUs, or of the CUDA module (device_cuda.h). On failure *err says why. */
mx_status mx_device_comm(struct mx_device *const *devices, uint32_t ranks, struct mx_comm **out,
                         struct mx_err *err);

/* Makes the communicators out[ranks] of some of the ranks that comms[ranks] are of, on devices of
 * this kind: they end together. */
mx_status mx_device_comm_part(enum mx_device_kind kind, struct mx_comm *const *comms,
                              uint32_t ranks, struct mx_comm **out, struct mx_err *err);

#endif
