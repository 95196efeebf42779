/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device is told of a step, packed into one block: written by the host,
 * uploaded with one copy to where the device reads it. On CPUs it is the same
 * memory, and there are no spans and pages in it.
 *
 * Pages come last, so that a copy ends with those that there are; where the
 * other arrays begin depends on the numbers of rows, spans and wanted rows only,
 * so it is fixed for the steps that one recording stands for.
 */
#ifndef MX_ENGINE_TABLES_H
#define MX_ENGINE_TABLES_H

#include "mixers/mixer.h"

struct mx_tables {
	int32_t *ids;                 /* [rows] */
	uint32_t *pos, *row_span;     /* [rows] */
	struct mx_device_span *spans; /* [spans] */
	uint32_t *gather;             /* [wanted] rows whose logits are wanted */
	uint32_t *pages;              /* [pages] */
};

/* Lays the arrays out from `base`, aligned to 64 or NULL; returns the bytes of the block. */
size_t mx_tables_layout(size_t rows, size_t spans, size_t wanted, size_t pages, unsigned char *base,
                        struct mx_tables *out);

#endif
