/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence's slot: a head of 64 bytes, then for each group the input rows of the
 * block before, of the current block and of a draft beyond it, and LC_BLOCK rows of
 * sums. A snapshot is its position and the inputs of the current block: everything
 * else can be computed from the pages.
 */
#include "mixers/hyena/lc.h"

struct head {
	uint32_t finished; /* cells before this position hold inputs, even where the load was at less */
};

struct snapshot {
	uint32_t pos;
};

#define HEAD_BYTES    64
#define SNAPSHOT_ROWS (LC_BLOCK - 1)

size_t lc_bytes_per_token(const struct lc_spec *s)
{
	return lc_row_bytes(lc_groups(s));
}

static size_t group_rows(const struct lc_spec *s)
{
	return 3 * LC_BLOCK + s->max_draft;
}

size_t lc_slot_bytes(const struct lc_spec *s)
{
	return HEAD_BYTES + lc_row_bytes(lc_groups(s) * group_rows(s));
}

size_t lc_snapshot_bytes(const struct lc_spec *s)
{
	return HEAD_BYTES + lc_row_bytes((size_t)lc_groups(s) * SNAPSHOT_ROWS);
}

static unsigned char *slot_at(const struct lc *c, uint32_t slot)
{
	return c->memory.slot_base + slot * c->memory.slot_stride;
}

static struct head *head_of(const struct lc *c, uint32_t slot)
{
	return (struct head *)slot_at(c, slot);
}

float *lc_slot_rows(const struct lc *c, uint32_t slot, uint32_t g)
{
	return (float *)(slot_at(c, slot) + HEAD_BYTES + lc_row_bytes(g * group_rows(&c->s)));
}

float *lc_slot_sums(const struct lc *c, uint32_t slot, uint32_t g)
{
	return lc_slot_rows(c, slot, g) + (2 * LC_BLOCK + c->s.max_draft) * LC_LANES;
}

/* ---- from a block to the next ---- */

void lc_advance(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
                uint32_t from, uint32_t to)
{
	uint32_t block = from / LC_BLOCK, beyond = to % LC_BLOCK;
	float *past = lc_slot_rows(c, slot, g), *current = past + LC_BLOCK * LC_LANES;

	if (to / LC_BLOCK == block)
		return;
	if (block * LC_BLOCK >= head_of(c, slot)->finished)
		memcpy(lc_cell(c, cells, g, block * LC_BLOCK), current, lc_row_bytes(LC_BLOCK));
	memcpy(past, current, lc_row_bytes(LC_BLOCK));
	memcpy(current, current + LC_BLOCK * LC_LANES, lc_row_bytes(beyond));
}

void lc_enter(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
              uint32_t from, uint32_t to)
{
	uint32_t block = to / LC_BLOCK;
	if (block > from / LC_BLOCK && block >= 2 && block * LC_BLOCK < cells->end)
		memcpy(lc_slot_sums(c, slot, g), lc_cell(c, cells, g, block * LC_BLOCK),
		       lc_row_bytes(LC_BLOCK));
}

/* ---- save, load, fork, and what they leave to resume ---- */

void lc_save(const struct lc *c, uint32_t slot, uint32_t pos, void *out)
{
	uint32_t n = pos % LC_BLOCK;
	unsigned char *to = (unsigned char *)out + HEAD_BYTES;

	memset(out, 0, lc_snapshot_bytes(&c->s));
	((struct snapshot *)out)->pos = pos;
	for (uint32_t g = 0; g < c->groups; g++, to += lc_row_bytes(SNAPSHOT_ROWS))
		memcpy(to, lc_slot_rows(c, slot, g) + LC_BLOCK * LC_LANES, lc_row_bytes(n));
}

void lc_load(struct lc *c, uint32_t slot, uint32_t pos, const void *in)
{
	uint32_t saved = ((const struct snapshot *)in)->pos;
	const unsigned char *from = (const unsigned char *)in + HEAD_BYTES;

	(void)pos;
	*head_of(c, slot) = (struct head){.finished = saved / LC_BLOCK * LC_BLOCK};
	for (uint32_t g = 0; g < c->groups; g++, from += lc_row_bytes(SNAPSHOT_ROWS))
		memcpy(lc_slot_rows(c, slot, g) + LC_BLOCK * LC_LANES, from, lc_row_bytes(SNAPSHOT_ROWS));
}

void lc_fork(struct lc *c, uint32_t from_slot, uint32_t to_slot)
{
	memcpy(slot_at(c, to_slot), slot_at(c, from_slot), lc_slot_bytes(&c->s));
}

/* The page of the current block may be shared, so it is only read: no sum is written there. */
static void rebuild_slot(const struct lc *c, const struct lc_cells *cells, uint32_t slot,
                         uint32_t g, uint32_t pos)
{
	uint32_t block = pos / LC_BLOCK, start = block * LC_BLOCK;
	float *past = lc_slot_rows(c, slot, g);
	if (block)
		memcpy(past, lc_cell(c, cells, g, start - LC_BLOCK), lc_row_bytes(LC_BLOCK));
	if (start < head_of(c, slot)->finished)
		memcpy(past + LC_BLOCK * LC_LANES, lc_cell(c, cells, g, start),
		       lc_row_bytes(pos % LC_BLOCK));
}

/* A unit that may have to be run again: a part of a block's tiles. */
struct unit {
	uint32_t level, part;
	bool next; /* of the block after the one that holds the position; else of that one */
};

/* Units are numbered in the order in which they run: the largest levels come first. */
static struct unit unit_of(const struct lc *c, uint32_t number)
{
	return (struct unit){c->n_levels - 1 - number / (2 * LC_PARTS), number / 2 % LC_PARTS,
	                     number % 2};
}

uint32_t lc_rebuild_end(const struct lc *c, uint32_t pos, uint32_t from)
{
	uint32_t rows = 0, number = from;
	for (; number < c->n_levels * 2 * LC_PARTS && rows < LC_REBUILD_ROWS; number++) {
		struct unit u = unit_of(c, number);
		uint32_t side = LC_BLOCK << u.level, parts = lc_parts(side);
		if (u.part < parts && side <= pos)
			rows += side / parts;
	}
	return number;
}

void lc_rebuild(const struct lc *c, const struct lc_cells *cells, uint32_t slot, uint32_t g,
                uint32_t pos, uint32_t from, uint32_t end, float *scratch)
{
	if (!from)
		rebuild_slot(c, cells, slot, g, pos);
	for (uint32_t number = from; number < end; number++) {
		struct unit u = unit_of(c, number);
		const struct lc_level *l = &c->levels[u.level];
		uint32_t o = (pos >> l->log2_n) + u.next;
		if (u.part >= l->parts || o < 2 || o * l->n >= cells->end ||
		    o > lc_last_due(pos, l->log2_n, l->due[g * l->parts + u.part]))
			continue;
		lc_tile(c, l, cells, g, o, u.part, u.next ? o * l->n : (pos / LC_BLOCK + 1) * LC_BLOCK,
		        u.next ? NULL : lc_slot_sums(c, slot, g), scratch);
	}
}
