/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-only view of a checkpoint's tensors: model.safetensors, or shards named
 * by model.safetensors.index.json, memory-mapped.
 *
 * The format: https://github.com/huggingface/safetensors (8-byte little-endian
 * header length, JSON header, data). The whole header is checked before a pointer
 * is handed out. Thread safe once open.
 */
#ifndef MX_MODEL_SAFETENSORS_H
#define MX_MODEL_SAFETENSORS_H

#include <stdbool.h>

#include "base/status.h"
#include "device/dtype.h"
#include "model/gguf/row_order.h"

#define MX_TENSOR_MAX_DIMS 8

struct mx_tensor {
	const char *name;
	enum mx_dtype dtype;
	enum mx_quant_format format; /* MX_QUANT: of the blocks; else MX_QUANT_PLAIN */
	uint32_t ndim;
	uint64_t shape[MX_TENSOR_MAX_DIMS];
	const void *data; /* in the mapping; aligned to its dtype if the file is */
	size_t bytes;
	const char *file; /* base name of the shard */
	/* Of GGUF, whose converter changes some tensors. */
	struct mx_row_order order;
	bool minus_exp; /* the file has -exp(x) for x */
	/* Of kv_b of latent attention, the matrix [heads (nope + v), rank]: `data` has of each head the
	 * rows of keys transposed, [heads, rank, nope], and *values those of values, [heads, v, rank].
	 */
	const struct mx_tensor *values; /* NULL = data is the matrix */
};

struct mx_checkpoint;

/* Opens the safetensors files of a folder, or a GGUF file, whose tensors get the names that they
 * have in such a folder. Tensors of dtypes other than F32, F16 and BF16 are not
 * counted and not listed; mx_checkpoint_find names their dtype. */
mx_status mx_checkpoint_open(const char *dir, struct mx_checkpoint **out, struct mx_err *err);
void mx_checkpoint_close(struct mx_checkpoint *c); /* takes NULL */

/* Looks a tensor up by name. MX_E_NOTFOUND if it is missing, MX_E_UNSUPPORTED if its dtype is not
 * F32, F16 or BF16 (*err names it). */
mx_status mx_checkpoint_find(const struct mx_checkpoint *c, const char *name,
                             const struct mx_tensor **out, struct mx_err *err);
/* Looks up a tensor of another dtype ("U8", "I32", "F8_E4M3" ...), which no count or list has. Its
 * `dtype` means nothing. MX_E_NOTFOUND if there is none of that dtype. */
mx_status mx_checkpoint_find_raw(const struct mx_checkpoint *c, const char *name, const char *dtype,
                                 const struct mx_tensor **out, struct mx_err *err);
size_t mx_checkpoint_count(const struct mx_checkpoint *c);
const struct mx_tensor *mx_checkpoint_at(const struct mx_checkpoint *c, size_t i);
/* Returns the bytes of all mappings. */
size_t mx_checkpoint_bytes(const struct mx_checkpoint *c);

/* Checks the bytes of one file, as for a mapped one: MX_OK if every tensor is sound. For tests and
 * fuzzing. */
mx_status mx_safetensors_check(const void *data, size_t size, struct mx_err *err);

#endif
