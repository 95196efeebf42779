/* SPDX-License-Identifier: Apache-2.0 */
/* One safetensors file's header, checked. Internal to model/. */
#ifndef MX_MODEL_SAFETENSORS_FILE_H
#define MX_MODEL_SAFETENSORS_FILE_H

#include "base/mem.h"
#include "model/safetensors.h"

/* A tensor of the file. `other` is NULL, or the dtype's name if it is none that we compute with
 * (then tensor.dtype means nothing). */
struct mx_st_entry {
	struct mx_tensor tensor;
	const char *other;
};

/* Reads the header of a file of `size` bytes at `data`; `file` is its name for messages and for
 * tensor.file (copied into the arena). *out (free with free()) is sorted by name; its strings are
 * in the arena, its data pointers in `data`. MX_E_FORMAT for damage. */
mx_status mx_st_read(const void *data, size_t size, const char *file, struct mx_arena *arena,
                     struct mx_st_entry **out, size_t *out_n, struct mx_err *err);

#endif
