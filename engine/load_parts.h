/* SPDX-License-Identifier: Apache-2.0 */
/* Private to load*.c: opening the device, filling the memory, and the log. */
#ifndef MX_ENGINE_LOAD_PARTS_H
#define MX_ENGINE_LOAD_PARTS_H

#include "engine/load.h"
#include "engine/model_engine.h"

/* ---- load_device.c ---- */

/* Opens the device that config names. A CPU device is opened for one row only, which is enough for
 * probe and state of the mixers; mx_load_reopen_cpu follows when the widest matrix in use is known.
 */
mx_status mx_load_open_device(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                              const struct mx_engine_config *config, struct mx_device **out,
                              struct mx_err *err);
/* Opens a CPU device again, for the model's rows and columns. Destroys *device first. */
mx_status mx_load_reopen_cpu(const struct mx_model *m, const struct mx_engine_config *config,
                             struct mx_device **device, struct mx_err *err);
/* Finds the bytes of its own memory that the device allocates for itself when it runs this model.
 */
mx_status mx_load_own_bytes(const struct mx_model *m, const struct mx_engine_config *config,
                            const struct mx_device *device, size_t *out, struct mx_err *err);

/* ---- load_memory.c ---- */

/* The f32 copies of norms and biases. */
struct mx_load_vectors {
	unsigned char *base; /* in the device's memory */
	unsigned char *host; /* in the host's memory; the same as base on CPUs */
};

/* Allocates the engine's memory as planned, divides it, and copies the weights to it. The caller
 * frees *out with mx_load_vectors_free, on failure too. */
mx_status mx_load_memory(struct mx_model_engine *e, const struct mx_memory_plan *p,
                         struct mx_touch_progress *progress, struct mx_load_vectors *out,
                         struct mx_err *err);
/* Frees the copies in the host's memory, unless the device uses them. */
void mx_load_vectors_free(const struct mx_model_engine *e, struct mx_load_vectors *v);

/* ---- load_log.c ---- */

/* Logs the loaded model: layers, kernels, memory. */
void mx_load_log(const struct mx_model_engine *e, const struct mx_memory_plan *p);

#endif
