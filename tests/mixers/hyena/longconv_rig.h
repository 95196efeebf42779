/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test_longconv runs: long convolutions of two layers whose pages, slots and snapshots are
 * poisoned where nothing may be read and guarded where nothing may be written, and sequences on
 * them. Every step compares its outputs with what the texts say.
 */
#ifndef MX_TESTS_MIXERS_HYENA_LONGCONV_RIG_H
#define MX_TESTS_MIXERS_HYENA_LONGCONV_RIG_H

#include "device/cpu/cpu.h"
#include "mixers/hyena/lc.h"
#include "tests/rng.h"

#define LAYERS    2
#define SEQS      3    /* in a step */
#define MAX_PAGES 1313 /* of a sequence */
#define SLOTS     8

extern struct rng rng;         /* of the test, whose main seeds it */
extern float *filters[LAYERS]; /* [n_lags, channels]; of the test */
extern uint32_t n_lags;

/* Memory that is NaN; free() frees it. */
void *allocate(size_t n, size_t size);

struct text {
	uint32_t len;
	float *z;         /* [len, channels] */
	float *y[LAYERS]; /* as computed at once */
};

struct test_case {
	uint32_t channels, max_len, direct;
	double decay; /* of the filter, by max_len positions: exp(-decay) */
};

struct rig {
	const struct test_case *c;
	struct lc_spec s;
	struct mx_device *d;
	struct lc *layers[LAYERS];
	uint32_t page_tokens, n_pages;
	unsigned char *pages, *slots, *scratch;
	size_t page_bytes, page_stride, slot_bytes, slot_stride, snapshot_bytes;
	uint32_t *refs; /* [n_pages] */
	bool slot_used[SLOTS];
	float *z, *y;
	uint32_t max_rows, *pos;
	size_t ldz, ldy;
};

/* Opens the layers with filters[] and a device of `threads` threads. at_once: tiles are not spread
 * over steps. */
void rig_open(struct rig *r, const struct test_case *c, enum mx_isa isa, unsigned threads,
              uint32_t page_tokens, uint32_t max_draft, bool at_once);
/* Fails the running test if something was written behind a page, slot or scratch memory, or to a
 * page that no sequence has. */
void check_guards(const struct rig *r);
/* Fails the running test if a sequence still has pages. */
void rig_close(struct rig *r);

/* ---- sequences ---- */

struct item {
	struct seq *s;
	enum mx_span_kind kind;
	uint32_t n, keep, truth; /* tokens, those that stay, those that are the text's */
};

struct seq {
	const struct text *text; /* NULL: none */
	uint32_t computed, max_len, slot, n_pages;
	bool drops;         /* gives pages back that are not needed: is neither saved nor forked */
	bool resumes;       /* was loaded or forked, and is not resumed yet */
	uint32_t progress;  /* of resume */
	struct item waits;  /* valid if progress: what comes when it is resumed */
	uint32_t save_from; /* tokens */
	uint32_t pages[MAX_PAGES];
};

/* A saved sequence. */
struct saved {
	const struct text *text;
	uint32_t pos, n_pages;
	uint32_t pages[MAX_PAGES];
	unsigned char *bytes[LAYERS];
};

void seq_open(struct rig *r, struct seq *s, const struct text *text);
void seq_close(struct rig *r, struct seq *s);
void seq_fork(struct rig *r, const struct seq *from, struct seq *to);
/* seq_load loads what was saved at its end, or one token before. */
void seq_save(struct rig *r, const struct seq *s, struct saved *v);
void seq_load(struct rig *r, const struct saved *v, struct seq *s);
void saved_drop(struct rig *r, struct saved *v);

/* ---- steps ---- */

/* Does a part of the work for the item's sequence, and maybe all; other sequences run before it
 * goes on. */
void resume_part(struct rig *r, const struct item *it);
/* Runs a step of all items, resumes what is to be resumed, and fails the running test unless rows
 * that are the text's are the same bits as its y. record: where layer l's outputs go, [n_rows,
 * channels], instead of being compared. */
void rig_step(struct rig *r, const struct item *items, uint32_t n_items, float *const *record);

#endif
