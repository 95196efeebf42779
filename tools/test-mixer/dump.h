/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what a case computes, for a check of values in the author's own program. */
#ifndef MX_TOOLS_TEST_MIXER_DUMP_H
#define MX_TOOLS_TEST_MIXER_DUMP_H

#include "tools/test-mixer/rig.h"

/* Writes a safetensors file, all in F32: "x" and "y", the inputs and outputs [tokens, width] of the
 * case's first layer in one piece, and the tensors as the mixer got them, after rounding to their
 * dtypes. A part of a tensor is called "name[first:end]" by its rows. */
mx_status dump_case(const char *file, const struct rig_options *o, const struct mixer_case *c,
                    struct mx_err *err);

#endif
