/* SPDX-License-Identifier: Apache-2.0 */
/* The table of tensors of a checkpoint that is a GGUF file. Internal to model/. */
#ifndef MX_MODEL_CHECKPOINT_GGUF_H
#define MX_MODEL_CHECKPOINT_GGUF_H

#include "base/mem.h"
#include "model/gguf/gguf.h"
#include "model/safetensors.h"

/* Makes *out [*n], sorted by name, of the file's tensors; free it with free(). Strings are in the
 * arena, data in the file's mapping. MX_E_UNSUPPORTED for a type that is not supported. */
mx_status mx_checkpoint_gguf(const struct mx_gguf *g, struct mx_arena *arena,
                             struct mx_tensor **out, size_t *n, struct mx_err *err);

#endif
