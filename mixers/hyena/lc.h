/* SPDX-License-Identifier: Apache-2.0 */
/* Inside longconv: a layer, a sequence's cells and slot, and what each file of lc_*.c does. */
#ifndef MX_MIXERS_HYENA_LC_H
#define MX_MIXERS_HYENA_LC_H

#include "mixers/hyena/longconv.h"

#define LC_LOG2_BLOCK 5
#define LC_MAX_LEVELS 20             /* LC_BLOCK .. 2^24, the longest plan */
#define LC_WHOLE      4096           /* the longest transform done at once */
#define LC_MAX_DIRECT (2 * LC_WHOLE) /* the largest side of tiles as they stand */
#define LC_FREE       16 /* the last positions before a block at which no unit of it is due */

/* All tiles of one side. */
struct lc_level {
	uint32_t n, log2_n;
	uint32_t parts;             /* units of a group: 1 or LC_PARTS */
	const struct lc_plan *plan; /* of n rows, lc_tables; NULL: tiles as they stand */
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
	float *lags; /* [groups][n_lags] rows, by lag: for the window and tiles as they stand */
	uint32_t n_lags;
	struct lc_level levels[LC_MAX_LEVELS]; /* ascending */
	uint32_t n_levels;
};

static inline uint32_t lc_groups(const struct lc_spec *s)
{
	return (s->channels + LC_LANES - 1) / LC_LANES;
}

/* A row of bytes, of n rows. */
static inline size_t lc_row_bytes(size_t n)
{
	return n * LC_LANES * sizeof(float);
}

/* ---- lc_units.c: what is due when; pure ---- */

/* Levels for max_len lags: sides LC_BLOCK << 0 .. LC_BLOCK << (levels - 1). */
uint32_t lc_levels(uint32_t max_len);

/* Tiles of block o take inputs of blocks o - 2 .. o - lc_distance(o). */
static inline uint32_t lc_distance(uint32_t o)
{
	return o % 2 ? 3 : 2;
}

/* Whether the tiles of block o are the first to reach its cells: those of the levels above are of
 * blocks 0 and 1, which have none. */
static inline bool lc_first(uint32_t o)
{
	return o < 4;
}

/* The largest transforms are done in parts: a step must not wait for the whole of one. */
static inline uint32_t lc_parts(uint32_t n)
{
	return n > LC_WHOLE ? LC_PARTS : 1;
}

/* 1 .. n - LC_FREE: a group's unit of block o is due when (o - 1) n + that many positions are
 * final. No unit is due before those of the same cells on larger sides. */
uint32_t lc_due(uint32_t log2_n, uint32_t part, uint32_t group, uint32_t n_groups, uint32_t phase);

/* Units of blocks o <= lc_last_due are done or due when f positions are final; 0 = none. */
static inline uint32_t lc_last_due(uint32_t f, uint32_t log2_n, uint32_t due)
{
	return f < due ? 0 : ((f - due) >> log2_n) + 1;
}

/* ---- lc_tables.c: one copy for all layers ---- */

/* Tables for tiles of side 2^log2_n, until lc_tables_leave; of any thread. MX_E_NOMEM. */
mx_status lc_tables_take(uint32_t log2_n, const struct lc_plan **out_plan,
                         const float **out_weights);
void lc_tables_leave(uint32_t log2_n);

/* ---- lc_filter.c: lags and spectra ---- */

mx_status lc_filter_create(struct lc *c, const float *h, uint32_t direct);
void lc_filter_destroy(struct lc *c);

/* ---- lc_tile.c ---- */

/* The cells of a sequence: pages, and the first position that has none or will never be reached, a
 * multiple of LC_BLOCK. */
struct lc_cells {
	const uint32_t *pages;
	uint32_t end;
};

struct lc_cells lc_cells_of(const struct lc *c, const struct mx_span *span);

/* The row at `pos` of group g. Those that follow are there too, up to the end of the page. */
static inline float *lc_cell(const struct lc *c, const struct lc_cells *cells, uint32_t g,
                             uint32_t pos)
{
	uint32_t tokens = c->memory.page_tokens;
	const unsigned char *page =
		c->memory.page_base + cells->pages[pos / tokens] * c->memory.page_stride;
	return (float *)(page + lc_row_bytes((size_t)g * tokens + pos % tokens));
}

/* A unit: a part of the tiles of block o, into the cells from position `from` on and, unless it is
 * NULL, into far, the sums of the LC_BLOCK positions before `from`. Parts go in ascending order.
 * scratch: lc_worker_bytes. */
void lc_tile(const struct lc *c, const struct lc_level *l, const struct lc_cells *cells, uint32_t g,
             uint32_t o, uint32_t part, uint32_t from, float *far, float *scratch);

size_t lc_worker_bytes(const struct lc_spec *s);

/* ---- lc_state.c: the slot ---- */

/* Rows of a group in a slot: inputs of the block before, of the block that was begun, and of a
 * draft beyond it; then the sums of the begun block's far tiles. */
float *lc_slot_rows(const struct lc *c, uint32_t slot, uint32_t g);
float *lc_slot_far(const struct lc *c, uint32_t slot, uint32_t g);

/* Group g, in whose slot are the inputs up to position `to`: `from` were final before, `to` are
 * now. Puts the begun block where it belongs if it is finished. to <= from + LC_BLOCK. */
void lc_advance(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
                uint32_t from, uint32_t to);
/* Takes the sums of a newly begun block into the slot. */
void lc_enter(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
              uint32_t from, uint32_t to);

/* After load or fork, for a sequence that goes on at pos: takes the block before the begun one, and
 * the begun one's inputs, from the pages, and does again the units of group g that are due by pos.
 */
void lc_rebuild(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
                uint32_t pos, float *scratch);

/* ---- for tests and benchmarks ---- */

/* From now on all units of a block are due together, when its inputs are final. The same bits. Not
 * while a sequence has tiles under way. */
void lc_at_once(struct lc *c);

#endif
