/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a loaded model as JSON: its layers, mixers, kernels and memory. */
#ifndef MX_DAEMON_MAP_JSON_H
#define MX_DAEMON_MAP_JSON_H

#include "base/buf.h"
#include "engine/engine.h"

/* Writes members of an object, without its braces. The engine is one of mx_engine_load. */
void mx_map_json(const struct mx_engine *e, struct mx_buf *out);

#endif
