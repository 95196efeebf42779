/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the masks of a step's constrained sequences.
 *
 * On an asynchronous device threads of their own do it while the device runs the step's forward
 * pass; the engine thread helps when it has nothing else to do. A CPU is busy with that pass
 * itself, on all of its threads: there these make the masks when it is over, since more threads
 * than cores would hold up each operator.
 *
 * Used by the engine thread alone.
 */
#ifndef MX_ENGINE_MASK_WORKERS_H
#define MX_ENGINE_MASK_WORKERS_H

#include "device/device.h"
#include "engine/engine.h"

struct mx_mask_workers;

/* Creates workers for steps of at most max_items items. Threads are started for an asynchronous
 * device only. */
mx_status mx_mask_workers_create(struct mx_device *d, uint32_t max_items, uint32_t vocab,
                                 struct mx_mask_workers **out);
void mx_mask_workers_destroy(struct mx_mask_workers *w); /* takes NULL */

/* Lists those of the items that sample and are constrained, and lets the threads begin. */
void mx_mask_workers_begin(struct mx_mask_workers *w, const struct mx_step_item *items, uint32_t n);
/* Returns the number of sequences that the last begin listed. */
uint32_t mx_mask_workers_listed(const struct mx_mask_workers *w);
/* True if all masks of the last begin are made. */
bool mx_mask_workers_ready(const struct mx_mask_workers *w);
/* Returns when they are, having made some itself. */
void mx_mask_workers_finish(struct mx_mask_workers *w);

#endif
