/* SPDX-License-Identifier: Apache-2.0 */
/* Finds values of a checkpoint that are not numbers. */
#ifndef MX_ENGINE_FINITE_H
#define MX_ENGINE_FINITE_H

#include "model/safetensors.h"

/* Returns how many of the tensor's elements first .. first + n - 1 are NaN or infinite; *out_index,
 * written if there are any, is the index of the first of these. Elements of GGUF's blocks are
 * looked at as they are expanded. Where the tensor has -exp(x) for x (minus_exp), positive ones
 * count too: no x is meant by them. Not of t->values, which is a tensor of its own. Reads the
 * elements from the mapping. */
size_t mx_tensor_not_finite(const struct mx_tensor *t, size_t first, size_t n, size_t *out_index);

/* Returns the number of elements, as the file stores them: without those of t->values. */
size_t mx_tensor_count(const struct mx_tensor *t);

#endif
