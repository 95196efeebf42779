/* SPDX-License-Identifier: Apache-2.0 */
/* Finds values of a checkpoint that are not numbers. */
#ifndef MX_MODEL_FINITE_H
#define MX_MODEL_FINITE_H

#include "model/safetensors.h"

/* Returns how many of the tensor's elements first .. first + n - 1 are NaN or infinite; *out_index,
 * written if there are any, is the index of the first of these. Reads the elements from the
 * mapping. */
size_t mx_tensor_not_finite(const struct mx_tensor *t, size_t first, size_t n, size_t *out_index);

/* Returns the number of elements. */
size_t mx_tensor_count(const struct mx_tensor *t);

#endif
