/* SPDX-License-Identifier: Apache-2.0 */
/* One file of GGUF, and what is made of several. Private to model/gguf/. */
#ifndef MX_MODEL_GGUF_FILE_H
#define MX_MODEL_GGUF_FILE_H

#include "base/mem.h"
#include "model/gguf/gguf.h"

#define MX_GGUF_MAX_SHARDS 1024

struct mx_gguf_mapping {
	void *data;
	size_t size;
};

struct mx_gguf {
	const char *name; /* of the first file, in the arena */
	struct mx_arena arena;
	struct mx_gguf_value *values; /* [n_values] of the first file, sorted by key */
	size_t n_values;
	struct mx_gguf_tensor *tensors; /* [n_tensors] of all files, sorted by name */
	size_t n_tensors;
	struct mx_gguf_mapping *files; /* [n_files] mapped by mx_gguf_open */
	size_t n_files;
};

/* Reads the bytes of one file, whose tensors are added behind those of *g, not sorted. The first
 * file's metadata is kept, that of others is checked and dropped. parse.c */
mx_status mx_gguf_read(struct mx_gguf *g, const void *data, size_t size, const char *name,
                       struct mx_err *err);
/* Sorts the tensors; MX_E_FORMAT if two have one name. parse.c */
mx_status mx_gguf_index(struct mx_gguf *g, struct mx_err *err);

#endif
