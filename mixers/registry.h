/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads mixer modules and finds their tables by name. Not installed. One thread fills a registry at
 * start; after that any thread may read it.
 */
#ifndef MX_MIXERS_REGISTRY_H
#define MX_MIXERS_REGISTRY_H

#include "mixers/mixer.h"

struct mx_registry;

mx_status mx_registry_create(struct mx_registry **out);
/* Closes every module: no instance may be left. Takes NULL. */
void mx_registry_destroy(struct mx_registry *r);

/* Loads every "*.so" of a directory, in order of name. Files called "*-cuda.so" are only
 * remembered: hosts without a GPU have no use for them. *err says which module is refused and why:
 * another version of the contract, a table that is too small or has an empty entry, or a name that
 * is already known for the same kind of device. */
mx_status mx_registry_load_dir(struct mx_registry *r, const char *dir, struct mx_err *err);

/* Loads one module, whatever the file is called. Errors as for mx_registry_load_dir. */
mx_status mx_registry_load_file(struct mx_registry *r, const char *file, struct mx_err *err);

/* Loads the "*-cuda.so" that were remembered: called once a model is to run on a CUDA device. */
mx_status mx_registry_load_cuda(struct mx_registry *r, struct mx_err *err);

/* Returns the table of that name that runs on devices of `kind`. Returns NULL if there is none;
 * *err then lists those that there are. */
const struct mx_mixer_ops *mx_registry_find(const struct mx_registry *r, const char *name,
                                            enum mx_device_kind kind, struct mx_err *err);

/* Returns the i-th module, for listings, and the file that it was loaded from; NULL past the end.
 */
const struct mx_mixer_ops *mx_registry_at(const struct mx_registry *r, size_t i,
                                          const char **out_path);

#endif
