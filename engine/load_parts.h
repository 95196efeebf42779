/* SPDX-License-Identifier: Apache-2.0 */
/* Private to load*.c: the parts of a load. */
#ifndef MX_ENGINE_LOAD_PARTS_H
#define MX_ENGINE_LOAD_PARTS_H

#include "engine/load.h"
#include "engine/model_engine.h"

struct mx_rank_wire;

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

/* ---- load_build.c ---- */

/* Resolves the part of the model that config's rank computes. */
mx_status mx_load_resolve(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                          const struct mx_registry *mixers, const struct mx_engine_config *config,
                          const struct mx_device *device, struct mx_model *out, struct mx_err *err);
/* Builds the engine of a device, whose model is resolved, in the memory that is planned. */
mx_status mx_load_build(struct mx_model_engine *e, const struct mx_memory_plan *p,
                        const struct mx_engine_config *config, struct mx_touch_progress *progress,
                        struct mx_err *err);

/* ---- load_ranks.c: several devices that compute one model ---- */

/* The engines of the ranks behind the first, as long as no thread has them. */
struct mx_load_ranks {
	struct mx_model_engine **others; /* [n] */
	uint32_t n;
};

/* Returns the bytes of the matrices that a rank's model multiplies with. */
size_t mx_load_matrix_bytes(const struct mx_model *m);
/* Checks config's devices and how the model is to be split. */
mx_status mx_load_check_ranks(const struct mx_engine_config *config, struct mx_err *err);
/* Returns the settings of a rank: its number, and its share of its host's threads and memory. Of
 * another host's rank: as if that had this one's devices and threads. */
struct mx_engine_config mx_load_rank_config(const struct mx_engine_config *config, uint32_t rank);
/* Returns those of this host's first rank. */
struct mx_engine_config mx_load_first_config(const struct mx_engine_config *config);
/* Makes the plan of the first rank, whose model is m, that of all. MX_E_RANGE if the host has less.
 */
mx_status mx_load_plan_ranks(const struct mx_model *m, const struct mx_engine_config *config,
                             struct mx_memory_plan *p, struct mx_err *err);
/* Finds what each rank has, for a plan of m: p->shares. load_shares.c */
mx_status mx_load_plan_shares(const struct mx_model *m, const struct mx_registry *mixers,
                              const struct mx_engine_config *config, struct mx_memory_plan *p,
                              struct mx_err *err);
/* Finds how as many ranks could divide the model else: p->layouts. load_layouts.c */
mx_status mx_load_plan_layouts(const struct mx_model *m, const struct mx_registry *mixers,
                               const struct mx_engine_config *config, struct mx_memory_plan *p,
                               struct mx_err *err);
/* Opens the devices of the other ranks, resolves their parts of e's model, and makes all
 * communicators, e's too. The caller frees *out, on failure too. */
mx_status mx_load_ranks_open(struct mx_model_engine *e, const struct mx_registry *mixers,
                             const struct mx_engine_config *config, struct mx_load_ranks *out,
                             struct mx_err *err);
/* Builds all ranks as planned for the first, which is e, and starts the others' threads: e owns
 * them then. `tell` gets the first rank's progress. */
mx_status mx_load_ranks_build(struct mx_model_engine *e, const struct mx_engine_config *config,
                              const struct mx_memory_plan *p, struct mx_load_ranks *r,
                              struct mx_touch_progress *tell, struct mx_err *err);
void mx_load_ranks_free(struct mx_load_ranks *r);

/* ---- load_hosts.c: several hosts; nothing of it is done without them ---- */

/* Checks how the ranks are spread over hosts. */
mx_status mx_load_hosts_check(const struct mx_engine_config *config, enum mx_device_kind kind,
                              struct mx_err *err);
/* Makes the plan of host 0's first rank that of all: *p is the plan of this host's. */
mx_status mx_load_hosts_plan(const struct mx_model *m, const struct mx_engine_config *config,
                             struct mx_memory_plan *p, struct mx_err *err);
/* Creates the communicators of this host's ranks. */
mx_status mx_load_hosts_connect(struct mx_model_engine *const *engines,
                                struct mx_device *const *devices,
                                const struct mx_engine_config *config, struct mx_err *err);
/* Creates the way of calls to or from the other hosts; *out = NULL without them. */
mx_status mx_load_hosts_wire(const struct mx_model_engine *e, const struct mx_memory_plan *p,
                             const struct mx_engine_config *config, struct mx_rank_wire **out);
/* Waits until all hosts have loaded. */
mx_status mx_load_hosts_ready(const struct mx_engine_config *config, struct mx_err *err);
/* Tells the others that this host cannot load; or, if another one could not, makes that the error.
 */
void mx_load_hosts_fail(const struct mx_engine_config *config, struct mx_err *err);

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
