/* SPDX-License-Identifier: Apache-2.0 */
/* Finds mixer modules in directories and loads them. Not installed. */
#ifndef MX_MIXERS_REGISTRY_H
#define MX_MIXERS_REGISTRY_H

#include "mixers/mixer.h"

struct mx_registry;

mx_status mx_registry_create(struct mx_registry **out);
/* Closes every module. No instance may be left. Takes NULL. */
void mx_registry_destroy(struct mx_registry *r);

/* Loads every "*.so" of a directory. A module whose ABI or table size does not fit is refused by
 * name in *err; a name that is already known is refused too. */
mx_status mx_registry_load_dir(struct mx_registry *r, const char *dir, struct mx_err *err);

/* The module's table, or NULL with the list of known names in *err. */
const struct mx_mixer_ops *mx_registry_find(const struct mx_registry *r, const char *name,
                                            struct mx_err *err);

/* For listings: the i-th module and the file it came from, or NULL past the end. */
const struct mx_mixer_ops *mx_registry_at(const struct mx_registry *r, size_t i,
                                          const char **out_path);

#endif
