/* SPDX-License-Identifier: Apache-2.0 */
/* The models of bench/engine/engine. */
#ifndef MX_BENCH_ENGINE_SHAPES_H
#define MX_BENCH_ENGINE_SHAPES_H

#include "bench/engine/options.h"

extern const struct shape engine_shapes[]; /* [n_engine_shapes], the default first */
extern const size_t n_engine_shapes;

#endif
