/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a device by name: "cpu", "cuda" (= "cuda:0"), "cuda:1" ...
 *
 * Everything CUDA is in a module, device-cuda.so, loaded the first time that one is asked for, from
 * the folders of MIXD_DEVICE_PATH (separated by colons) or else where it was installed. It stays
 * loaded for the life of the process.
 */
#ifndef MX_DEVICE_OPEN_H
#define MX_DEVICE_OPEN_H

#include "device/cuda/device_cuda.h"
#include "device/device.h"

/* What a device will be asked for at most: it allocates when it is created, never later. */
struct mx_device_options {
	/* CPUs, as for mx_cpu_create; the instruction set is the best there is (mx_cpu_isa) */
	unsigned threads;
	size_t max_rows, max_width;
	struct mx_cuda_limits cuda; /* CUDA devices */
};

/* The kind that a name says, and its number (0 for CPUs); outputs may be NULL. false if it is no
 * name of a device. Whether there is such a device is not asked. */
bool mx_device_parse(const char *name, enum mx_device_kind *out_kind, int *out_ordinal);

/* Creates the device; destroy it with its ops->destroy. *err says what is wrong: MX_E_INVALID for a
 * name that is none, MX_E_NOTFOUND for a module or a device that is not there, MX_E_UNSUPPORTED for
 * one that is too old, MX_E_DEVICE for one that does not work. */
mx_status mx_device_open(const char *name, const struct mx_device_options *options,
                         struct mx_device **out, struct mx_err *err);

/* Bytes of its own memory that the device takes for itself with these options; an upper bound. */
mx_status mx_device_own_bytes(const char *name, const struct mx_device_options *options,
                              size_t *out, struct mx_err *err);

#endif
