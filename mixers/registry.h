/* SPDX-License-Identifier: Apache-2.0 */
/* Finds mixer modules in directories and loads them. Not installed. */
#ifndef MX_MIXERS_REGISTRY_H
#define MX_MIXERS_REGISTRY_H

#include "mixers/mixer.h"

struct mx_registry;

mx_status mx_registry_create(struct mx_registry **out);
/* Closes every module. No instance may be left. Takes NULL. */
void mx_registry_destroy(struct mx_registry *r);

/* Loads every "*.so" of a directory, but for "*-cuda.so", which it only remembers: a host without a
 * GPU has no use for them. A module whose ABI or table size does not fit is refused by name in
 * *err; so is one whose name is already known for the same kind of device. */
mx_status mx_registry_load_dir(struct mx_registry *r, const char *dir, struct mx_err *err);

/* Loads the "*-cuda.so" of the directories seen so far: once a model is to run on a CUDA device. */
mx_status mx_registry_load_cuda(struct mx_registry *r, struct mx_err *err);

/* The table of that name that runs on devices of `kind`, or NULL with the list of those that do in
 * *err. */
const struct mx_mixer_ops *mx_registry_find(const struct mx_registry *r, const char *name,
                                            enum mx_device_kind kind, struct mx_err *err);

/* For listings: the i-th module and the file it came from, or NULL past the end. */
const struct mx_mixer_ops *mx_registry_at(const struct mx_registry *r, size_t i,
                                          const char **out_path);

#endif
