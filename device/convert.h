/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of tensors while they are loaded. */
#ifndef MX_DEVICE_CONVERT_H
#define MX_DEVICE_CONVERT_H

#include <stdbool.h>

#include "device/dtype.h"

/* Can elements of `from` be loaded as `to`? To the same type; f32, f16 and bf16 to f32 and bf16. */
bool mx_converts(enum mx_dtype to, enum mx_dtype from);

/* n elements, rounded to nearest even; `to` and `from` do not overlap. Neither need be aligned. */
void mx_convert(void *to, enum mx_dtype to_dtype, const void *from, enum mx_dtype dtype, size_t n);

#endif
