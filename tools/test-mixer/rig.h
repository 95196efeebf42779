/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a mixer as the engine does, on the worst memory that the contract allows:
 * two layers of it one after the other, sequences with slots and pages in random
 * places. What is handed out holds NaN or what another sequence left there; what
 * lies between has guards. Every row that comes out is compared at once, to the
 * bit, with what the sequence's text says. Any fault ends the test.
 *
 * Pages reach as far ahead as the mixer asks (extent), those ahead as dirty as
 * all others. Of some sequences that are computed from their beginning it does
 * not see again what it says that it needs no more; saves and forks of them do.
 */
#ifndef MX_TOOLS_TEST_MIXER_RIG_H
#define MX_TOOLS_TEST_MIXER_RIG_H

#include "tests/mixers/mixer_cases.h"
#include "mixers/registry.h"
#include "tests/rng.h"

#define RUN_LAYERS 2
#define RUN_SPANS  9   /* most spans of a step */
#define RUN_SLOTS  12  /* most sequences at a time */
#define RUN_ROWS   200 /* a step takes so many, or a whole text */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RUN_SLOWLY 1 /* everything takes some ten times as long */
#else
#define RUN_SLOWLY 0
#endif

/* ---- memory ---- */

struct block {
	unsigned char *all, *p; /* p is aligned as the device says and no better */
	size_t size;
	struct mx_device *of; /* memory that it reads as well as we do; NULL: only we */
};

void block_alloc(struct block *b, struct mx_device *of, size_t size, size_t align);
void block_check(const struct block *b, const char *what); /* that its guards are whole */
void block_free(struct block *b);

/* Pages or slots: items with a part for each layer, and guards behind each part. */
struct pool {
	struct block mem;
	size_t bytes; /* of a part */
	size_t part;  /* from a part to the next */
	uint32_t n;
	uint32_t *refs;
};

/* ---- one mixer on one device ---- */

struct run_weight {
	struct mx_weight matrix;
	struct block data;
	float *f32;
	bool vector;
};

struct rig {
	const struct mixer_case *c;
	const char *what; /* what is being tried, for messages */
	uint64_t seed;
	struct rng rng;
	const struct mx_mixer_ops *ops;
	struct mx_device *device;
	struct mx_layer_desc layer;
	struct mx_state_spec state;
	struct mx_mixer *mixers[RUN_LAYERS];
	struct run_weight weights[MX_MIXER_MAX_WEIGHTS]; /* the same for both layers */
	const void *weight_ptrs[MX_MIXER_MAX_WEIGHTS];
	const float *f32_ptrs[MX_MIXER_MAX_WEIGHTS];
	size_t n_weights;
	uint32_t page_tokens, max_pages; /* max_pages: of one sequence */
	struct pool pages, slots;
	struct block scratch, settle; /* workspace of a call, and of settle */
	struct block x, y;            /* [max_rows, width] activations */
	size_t element;               /* bytes of an activation */
	unsigned char *x_copy;
	uint32_t *pos;
	struct block tables;       /* a step's once more, for devices that are not the CPU */
	bool can_fork, can_resume; /* state, or pages, or both, as the mixer has them */
};

struct rig_options {
	const char *mixer;
	const char *device; /* "cuda:0"; NULL: the CPU */
	enum mx_isa isa;
	unsigned threads;
	uint32_t max_draft; /* none if the mixer takes no drafts */
	uint64_t seed;
};

void rig_open(struct rig *r, const struct mx_registry *registry, const struct mixer_case *c,
              const struct rig_options *o);
void rig_close(struct rig *r); /* checks that all pages and slots came back */
_Noreturn void rig_fail(const struct rig *r, const char *fmt, ...) MX_PRINTF(2, 3);

/* ---- sequences ---- */

struct text {
	uint32_t len;
	float *x;             /* [len, width] */
	float *y[RUN_LAYERS]; /* [len, width] what each layer must make of it */
};

struct seq {
	struct text *text;
	bool record;        /* y is written instead of compared */
	uint32_t computed;  /* tokens committed */
	uint32_t save_from; /* see seq_resume */
	bool resumes;       /* was loaded or forked, and no step has run since */
	uint32_t max_len;   /* any number will do */
	uint32_t slot;
	uint32_t *pages, n_pages; /* NULL, 0 if the mixer has none */
	uint32_t *shown;          /* [n_pages] what it is told of them */
	bool drops;               /* those that it needs no more are not shown to it */
};

void seq_open(struct rig *r, struct seq *s, struct text *text);
void seq_close(struct rig *r, struct seq *s);
/* `to` begins where `from` is; the texts must be the same up to there. */
void seq_fork(struct rig *r, const struct seq *from, struct seq *to, struct text *text);

/* A point of a sequence to begin others from: shared pages, a copy of the page that is not full,
 * and a snapshot of the slot, as a prefix cache has them. */
struct saved {
	struct text *text;
	uint32_t pos;
	uint32_t *pages, n_pages;
	struct block bytes[RUN_LAYERS];
};

/* Saves twice, to see that every byte is written. s->computed >= s->save_from. */
void seq_save(struct rig *r, const struct seq *s, struct saved *out);
void saved_drop(struct rig *r, struct saved *v);
/* `at` is v->pos or one less. In that case the state has no token left to spare: the sequence can
 * be saved again from v->pos on. */
void seq_resume(struct rig *r, struct seq *s, const struct saved *v, struct text *text,
                uint32_t at);

/* ---- a step ---- */

/* Tokens [computed, computed + n) of a sequence, of which the first `keep` stay. From `truth` on
 * they are not those of the text (drafts only; keep <= truth <= n). */
struct item {
	struct seq *seq;
	enum mx_span_kind kind;
	uint32_t n, keep, truth;
};

struct item item_prefill(struct seq *s, uint32_t n);
struct item item_decode(struct seq *s);
struct item item_draft(struct rig *r, struct seq *s, uint32_t n, uint32_t keep);
/* Any kind, at most `most` tokens. */
struct item item_random(struct rig *r, struct seq *s, uint32_t most);

/* The items in random order through both layers, commit and settle. */
void rig_step(struct rig *r, struct item *items, uint32_t n_items);

#endif
