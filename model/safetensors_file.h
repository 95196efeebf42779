/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the header of one safetensors file. Internal to model/. */
#ifndef MX_MODEL_SAFETENSORS_FILE_H
#define MX_MODEL_SAFETENSORS_FILE_H

#include "base/mem.h"
#include "model/safetensors.h"

/* A tensor of the file. If its dtype is not supported, `other` is the dtype's name and tensor.dtype
 * has no meaning. Else `other` is NULL. */
struct mx_st_entry {
	struct mx_tensor tensor;
	const char *other;
};

/* Reads the header of a file of `size` bytes at `data`. `file` is its name for messages and for
 * tensor.file (copied into the arena). *out is sorted by name; free it with free(). Its strings are
 * in the arena, its data pointers point into `data`. MX_E_FORMAT if the file is damaged. */
mx_status mx_st_read(const void *data, size_t size, const char *file, struct mx_arena *arena,
                     struct mx_st_entry **out, size_t *out_n, struct mx_err *err);

#endif
