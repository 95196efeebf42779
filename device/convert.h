/* SPDX-License-Identifier: Apache-2.0 */
/* Converts the elements of tensors while they are loaded. */
#ifndef MX_DEVICE_CONVERT_H
#define MX_DEVICE_CONVERT_H

#include <stdbool.h>

#include "device/dtype.h"

/* True if elements of `from` can be loaded as `to`: any type as itself; f32, f16 and bf16 as f32 or
 * bf16. */
bool mx_converts(enum mx_dtype to, enum mx_dtype from);

/* Converts n elements, rounding to nearest even. `to` and `from` do not overlap and need not be
 * aligned. */
void mx_convert(void *to, enum mx_dtype to_dtype, const void *from, enum mx_dtype dtype, size_t n);

#endif
