/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page lists of all slots in the memory of a device that has its own: scratch.page_table,
 * [slots, mx_list_pages]. A step reads those of its sequences there (mx_device_span.page_begin),
 * and begins with telling the device what has changed since the last one: page ids that a sequence
 * was given or that another sequence's replace. Entries that no list has are of no meaning.
 */
#ifndef MX_ENGINE_PAGE_TABLE_H
#define MX_ENGINE_PAGE_TABLE_H

#include "engine/model_engine.h"

/* Returns the place of a slot's list in the table. */
static inline uint32_t mx_page_table_at(const struct mx_model_engine *e, uint32_t slot)
{
	return slot * mx_list_pages(&e->model, &e->limits);
}

/* Tells the device ids [n] of a slot's list from entry `from` on, in the order of its calls,
 * without waiting. To be followed by the upload of the step's tables, behind which kernels may read
 * them before they wait (device/cuda/launch.cuh). */
mx_status mx_page_table_tell(struct mx_model_engine *e, uint32_t slot, uint32_t from,
                             const uint32_t *ids, uint32_t n);

/* Likewise what has changed in a sequence's list. */
mx_status mx_page_table_tell_sequence(struct mx_model_engine *e, struct mx_seq *q);

/* Tells it what has changed in the lists of core.items. */
mx_status mx_page_table_update(struct mx_model_engine *e);

#endif
