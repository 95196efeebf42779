/* SPDX-License-Identifier: Apache-2.0 */
/* The names that Hugging Face's checkpoints give to the tensors of a GGUF file. */
#ifndef MX_MODEL_GGUF_NAMES_H
#define MX_MODEL_GGUF_NAMES_H

#include "model/gguf/gguf.h"
#include "model/gguf/row_order.h"

/* A tensor, or a part of one, under Hugging Face's name. */
struct mx_gguf_named {
	char name[256];
	const struct mx_gguf_tensor *tensor;
	uint32_t ndim;
	uint64_t shape[MX_GGUF_MAX_DIMS];
	const void *data;
	size_t bytes;
	struct mx_row_order order;
	bool minus_exp;                      /* the elements are -exp(x) for x */
	const struct mx_gguf_tensor *values; /* see struct mx_tensor; NULL = none */
};

/* Calls `each` for every tensor of the file; stops when it fails, and returns that.
 * MX_E_UNSUPPORTED for an architecture that is not known, MX_E_FORMAT for shapes that cannot be. */
mx_status mx_gguf_names(const struct mx_gguf *g,
                        mx_status (*each)(void *arg, const struct mx_gguf_named *t), void *arg,
                        struct mx_err *err);

#endif
