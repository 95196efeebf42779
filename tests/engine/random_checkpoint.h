/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of random weights for any config.json: the plan and the mixers tell which tensors it
 * has. */
#ifndef MX_TESTS_RANDOM_CHECKPOINT_H
#define MX_TESTS_RANDOM_CHECKPOINT_H

#include "base/status.h"
#include "device/dtype.h"
#include "mixers/registry.h"

/* Writes DIR/config.json (that text) and DIR/model.safetensors; mx_random_model_remove removes
 * them. Norms are ones, other vectors uniform in +-0.5 (dt_bias: about -3, since with larger values
 * a state forgets within a few tokens), matrices as in bench/engine/random_model.h. */
mx_status random_checkpoint_write(const char *dir, const char *config,
                                  const struct mx_registry *mixers, enum mx_dtype dtype,
                                  uint64_t seed, struct mx_err *err);

#endif
