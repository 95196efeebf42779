/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of longconv: a layer, a sequence's cells and slot, and what each lc_*.c does. */
#ifndef MX_MIXERS_HYENA_LC_H
#define MX_MIXERS_HYENA_LC_H

#include "mixers/hyena/longconv.h"

#define LC_LOG2_BLOCK   5
#define LC_MAX_LEVELS   20             /* LC_BLOCK .. 2^24, the longest plan */
#define LC_WHOLE        4096           /* the longest transform that is one unit */
#define LC_MAX_DIRECT   (2 * LC_WHOLE) /* the largest side of tiles without transforms */
#define LC_REBUILD_ROWS 2048           /* sides of the tiles that resume computes in one call */
#define LC_FREE         16 /* no unit of a block is due in the last positions before the block */

/* All tiles of one side. */
struct lc_level {
	uint32_t n, log2_n;
	uint32_t parts;             /* units of a group: 1 or LC_PARTS */
	const struct lc_plan *plan; /* of n rows, lc_tables; NULL: tiles without transforms */
	const float *weights;       /* [LC_PARTS][n][2], lc_tables; NULL if there is one part */
	struct lc_plan part;        /* of n / parts rows */
	float *spectra;     /* [groups][distances][n] complex rows, distances 2 and, if there, 3 */
	uint32_t distances; /* 1 or 2: 2, 3 */
	uint32_t *due;      /* [groups][parts] lc_due */
};

struct lc {
	struct lc_spec s;
	struct mx_device *device;
	struct lc_memory memory;
	const struct lc_kernels *kernels;
	uint32_t groups, phase;
	float *lags; /* [groups][n_lags] rows, by lag: for the window and direct tiles */
	uint32_t n_lags;
	struct lc_level levels[LC_MAX_LEVELS]; /* ascending */
	uint32_t n_levels;
};

static inline uint32_t lc_groups(const struct lc_spec *s)
{
	return (s->channels + LC_LANES - 1) / LC_LANES;
}

/* Returns the bytes of n rows. */
static inline size_t lc_row_bytes(size_t n)
{
	return n * LC_LANES * sizeof(float);
}

/* ---- lc_units.c: when each unit is due; pure ---- */

/* Returns the levels for max_len lags: sides LC_BLOCK << 0 .. LC_BLOCK << (levels - 1). */
uint32_t lc_levels(uint32_t max_len);

/* Returns 2 or 3: tiles of block o take inputs of blocks o - 2 .. o - lc_distance(o). */
static inline uint32_t lc_distance(uint32_t o)
{
	return o % 2 ? 3 : 2;
}

/* True if the tiles of block o are the first to write its cells: at the levels above, these cells
 * belong to blocks 0 and 1, which have no tiles. */
static inline bool lc_first(uint32_t o)
{
	return o < 4;
}

/* Returns the number of units of a transform of n rows. The largest are divided, because a step
 * must not wait for a whole one. */
static inline uint32_t lc_parts(uint32_t n)
{
	return n > LC_WHOLE ? LC_PARTS : 1;
}

/* Returns d = 1 .. n - LC_FREE: the group's unit of block o is due when (o - 1) n + d positions are
 * final. No unit is due before the units of larger sides that write the same cells. */
uint32_t lc_due(uint32_t log2_n, uint32_t part, uint32_t group, uint32_t n_groups, uint32_t phase);

/* Returns the last block whose unit is done or due when f positions are final; 0 = none. */
static inline uint32_t lc_last_due(uint32_t f, uint32_t log2_n, uint32_t due)
{
	return f < due ? 0 : ((f - due) >> log2_n) + 1;
}

/* ---- lc_tables.c: tables that all layers share ---- */

/* Gets the tables for tiles of side 2^log2_n, valid until lc_tables_leave, on any thread.
 * MX_E_NOMEM. */
mx_status lc_tables_take(uint32_t log2_n, const struct lc_plan **out_plan,
                         const float **out_weights);
void lc_tables_leave(uint32_t log2_n);

/* ---- lc_filter.c: lags and spectra ---- */

mx_status lc_filter_create(struct lc *c, const float *h, uint32_t direct);
void lc_filter_destroy(struct lc *c);

/* ---- lc_tile.c ---- */

/* The cells of a sequence: its pages, and the first position that has no page or will never be
 * reached, a multiple of LC_BLOCK. */
struct lc_cells {
	const uint32_t *pages;
	uint32_t end;
};

struct lc_cells lc_cells_of(const struct lc *c, const struct mx_span *span);

/* Returns the row of group g at `pos`. The next rows follow it, up to the end of the page. */
static inline float *lc_cell(const struct lc *c, const struct lc_cells *cells, uint32_t g,
                             uint32_t pos)
{
	uint32_t tokens = c->memory.page_tokens;
	const unsigned char *page =
		c->memory.page_base + cells->pages[pos / tokens] * c->memory.page_stride;
	return (float *)(page + lc_row_bytes((size_t)g * tokens + pos % tokens));
}

/* Runs a unit: part `part` of the tiles of block o. Adds its outputs to the cells from position
 * `from` on and, unless NULL, to current_sums, those of the LC_BLOCK positions before `from`. Parts
 * run in ascending order. scratch: lc_worker_bytes. */
void lc_tile(const struct lc *c, const struct lc_level *l, const struct lc_cells *cells, uint32_t g,
             uint32_t o, uint32_t part, uint32_t from, float *current_sums, float *scratch);

size_t lc_worker_bytes(const struct lc_spec *s);

/* ---- lc_state.c: the slot ---- */

/* Rows of a group in a slot. lc_slot_rows: the inputs of the block before the current one, of the
 * current block, and of a draft beyond it. lc_slot_sums: what all tiles contribute to the current
 * block. */
float *lc_slot_rows(const struct lc *c, uint32_t slot, uint32_t g);
float *lc_slot_sums(const struct lc *c, uint32_t slot, uint32_t g);

/* Moves group g on from `from` to `to` final positions, whose inputs are in the slot: if the
 * current block is finished, copies it to its cells and makes it the block before. to <= from +
 * LC_BLOCK. */
void lc_advance(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
                uint32_t from, uint32_t to);
/* Copies the sums of tiles for a new current block from its cells to the slot. */
void lc_enter(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
              uint32_t from, uint32_t to);

/* After load or fork, for a sequence that goes on at pos: runs units from .. end - 1 of group g
 * again, as far as they are due by pos. Unit 0 comes with a copy of the inputs of the current block
 * and of the one before from the pages to the slot. */
void lc_rebuild(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
                uint32_t pos, uint32_t from, uint32_t end, float *scratch);
/* Returns the end of the units that are run together with `from`: so many that their sides add up
 * to LC_REBUILD_ROWS. If it is `from`, all were run. */
uint32_t lc_rebuild_end(const struct lc *c, uint32_t pos, uint32_t from);

/* ---- for tests and benchmarks ---- */

/* Makes all units of a block due together, as soon as its inputs are final. The bits stay the same.
 * Not while a sequence has units that are not due yet. */
void lc_at_once(struct lc *c);

#endif
