/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input of a step for a device, in one block: the host writes it and uploads it with one copy.
 * On CPUs the device reads the host's block, which has no spans.
 *
 * The offsets of the arrays depend only on the numbers of rows, spans and gathered rows, so they
 * are the same for all steps that replay a recording.
 *
 * Page lists are not in it: a device with memory of its own keeps those of all slots, and is told
 * what changes (page_table.h).
 */
#ifndef MX_ENGINE_TABLES_H
#define MX_ENGINE_TABLES_H

#include "mixers/mixer.h"

struct mx_tables {
	int32_t *ids;                 /* [rows] token of each row */
	uint32_t *pos, *row_span;     /* [rows] as in struct mx_device_tables */
	struct mx_device_span *spans; /* [spans] */
	uint32_t *parents;            /* [rows] of spans that are trees: a span's begin at its row */
	uint32_t *gather;             /* [wanted] rows whose logits are needed */
};

/* Divides the block at `base`, aligned to 64, into the arrays, and returns its bytes. With `base`
 * NULL only the size is computed. */
size_t mx_tables_layout(size_t rows, size_t spans, size_t wanted, unsigned char *base,
                        struct mx_tables *out);

#endif
