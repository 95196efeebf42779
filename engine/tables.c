/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/tables.h"

#include "base/mem.h"

#define ALIGN 64

static void *take(unsigned char *base, size_t *at, size_t bytes)
{
	void *p = base ? base + *at : NULL;
	*at += mx_round_up(bytes, ALIGN);
	return p;
}

size_t mx_tables_layout(size_t rows, size_t spans, size_t wanted, unsigned char *base,
                        struct mx_tables *out)
{
	struct mx_tables t;
	size_t at = 0;
	t.ids = take(base, &at, rows * sizeof *t.ids);
	t.pos = take(base, &at, rows * sizeof *t.pos);
	t.row_span = take(base, &at, rows * sizeof *t.row_span);
	t.spans = take(base, &at, spans * sizeof *t.spans);
	t.parents = take(base, &at, rows * sizeof *t.parents);
	t.gather = take(base, &at, wanted * sizeof *t.gather);
	*out = t;
	return at;
}
