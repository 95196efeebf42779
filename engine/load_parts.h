/* SPDX-License-Identifier: Apache-2.0 */
/* Inside load: opening the device, filling the memory, and the log. */
#ifndef MX_ENGINE_LOAD_PARTS_H
#define MX_ENGINE_LOAD_PARTS_H

#include "engine/load.h"
#include "engine/model_engine.h"

/* ---- load_device.c ---- */

/* Opens the device that config names. A CPU is opened with room for one row only: enough to answer
 * the mixers' questions about threads and kernels, until the widest matrix in use is known. */
mx_status mx_load_open_device(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                              const struct mx_engine_config *config, struct mx_device **out,
                              struct mx_err *err);
/* Opens a CPU device again, for the model's rows and columns; *device is destroyed first. */
mx_status mx_load_reopen_cpu(const struct mx_model *m, const struct mx_engine_config *config,
                             struct mx_device **device, struct mx_err *err);
/* Bytes of its own memory that the device takes for itself, for this model. */
mx_status mx_load_own_bytes(const struct mx_model *m, const struct mx_engine_config *config,
                            const struct mx_device *device, size_t *out, struct mx_err *err);

/* ---- load_memory.c ---- */

/* The f32 copies of norms and biases: where the device uses them, and where the host can read them.
 * Both are the same if the device's memory is the host's. */
struct mx_load_vectors {
	unsigned char *base, *host;
};

/* Allocates the engine's memory as planned, divides it, and fills it with the weights. *out must be
 * freed, on failure too. */
mx_status mx_load_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                         struct mx_touch_progress *progress, struct mx_load_vectors *out,
                         struct mx_err *err);
/* Frees the host's copies unless the device uses them. */
void mx_load_vectors_free(const struct mx_model_engine *e, struct mx_load_vectors *v);

/* ---- load_log.c ---- */

/* Logs what was loaded: layers, kernels, memory. */
void mx_load_log(const struct mx_model_engine *e, const struct mx_memory_plan *p);

#endif
