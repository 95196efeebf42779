/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's part of the generic mixer test: it runs a mixer as the engine does, on the worst
 * memory that the contract allows. Two layers of the mixer run one after the other, for sequences
 * with random slots and pages. Memory that is handed out holds NaN or what another sequence left;
 * guards lie between. Every output row is compared at once, bit for bit, with the row of the
 * sequence's text. Any fault ends the test through rig_fail.
 *
 * Pages reach as far ahead as the mixer asks (extent); those ahead are dirty like all others. Some
 * of the sequences that are computed from their beginning lose the pages that extent lets go;
 * snapshots and forks of them keep these pages.
 */
#ifndef MX_TOOLS_TEST_MIXER_RIG_H
#define MX_TOOLS_TEST_MIXER_RIG_H

#include "mixers/registry.h"
#include "mixers/tree.h"
#include "tools/test-mixer/case.h"
#include "tools/test-mixer/memory.h"

#define RUN_LAYERS 2
#define RUN_SPANS  9   /* most spans of a step */
#define RUN_SLOTS  12  /* most sequences at a time */
#define RUN_ROWS   200 /* rows of a step: this many, or a whole text */

/* ---- one mixer on one device ---- */

struct run_weight {
	struct mx_weight_spec spec;
	bool present;
	struct mx_weight matrix;
	struct block data;
	void *device; /* a copy in the device's memory if it has its own; else NULL */
	void *used;   /* the one that the mixer gets */
	float *f32;   /* the elements after rounding to the weight's dtype */
};

struct rig;

struct rig_options {
	const struct mx_registry *registry;
	const char *mixer;
	const struct mx_mixer_ops *ops; /* instead of the registry's; NULL = that */
	const char *device;             /* "cuda:0"; NULL = CPU */
	enum mx_isa isa;                /* CPU */
	unsigned threads;               /* CPU */
	uint32_t max_draft;             /* taken as 0 if the mixer takes no drafts */
	uint64_t seed;
	bool thorough; /* all trials, instead of a part of them */
	bool strict;   /* a tensor of the case that the mixer does not ask for is an error */
	bool loose;    /* the device need not be deterministic: for rows that are recorded only */
	/* Called before each check; may be NULL. */
	void (*begin)(const struct rig *r, const char *check);
};

struct rig {
	const struct mixer_case *c;
	struct rig_options o;
	const char *check; /* what is being tried, for messages; NULL = nothing yet */
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
	struct block tables; /* the arrays of a step for devices other than the CPU */
	uint32_t max_tree;   /* tokens of the largest tree; 0 = the mixer takes none */
	bool can_fork;       /* sequences can be forked: their slots and their pages */
	bool can_resume;     /* sequences can be saved and loaded */
};

/* Makes two layers of the case, with memory for pages, slots and steps. Ends the test if the module
 * refuses them. */
void rig_open(struct rig *r, const struct mixer_case *c, const struct rig_options *o);

/* Ends the test unless the module refuses the case's layer as unsupported, with a message. */
void rig_refuses(const struct mixer_case *c, const struct rig_options *o);

/* True if the device of that name can be opened; prints why if not. */
bool rig_can_open(const char *device);

void rig_close(struct rig *r); /* ends the test unless all pages and slots were given back */
noreturn void rig_fail(const struct rig *r, const char *fmt, ...) MX_PRINTF(2, 3);
/* Ends the test if a call of the mixer failed; waits until the device has done it. */
void rig_check(const struct rig *r, const char *call, mx_status st);
/* Begins a check: its name goes to the options' begin, and into messages. */
void rig_begin(struct rig *r, const char *check);

/* The device whose memory blocks are shared with; NULL for the CPU. */
struct mx_device *rig_memory(const struct rig *r);
/* Reads and writes element i of a block of activations. */
float rig_get(const struct rig *r, const struct block *b, size_t i);
void rig_put(const struct rig *r, struct block *b, size_t i, float v);
/* Number of pages that hold n tokens. */
uint32_t rig_pages(const struct rig *r, uint32_t n_tokens);
/* Number of pages of a sequence of n tokens by the mixer's extent, and the first page that is still
 * needed. */
uint32_t rig_extent(const struct rig *r, uint32_t n, uint32_t max_len, uint32_t *out_first);

/* ---- sequences ---- */

struct text {
	uint32_t len;
	float *x;             /* [len, width] */
	float *y[RUN_LAYERS]; /* [len, width] the output of each layer */
};

struct seq {
	struct text *text;
	bool record;        /* outputs are written to the text instead of compared with it */
	uint32_t computed;  /* tokens committed */
	uint32_t save_from; /* first position at which it can be saved, see seq_resume */
	bool resumes;       /* was loaded or forked, and no step has run since */
	uint32_t max_len;   /* at least the text's length, else random */
	uint32_t slot;
	uint32_t *pages, n_pages; /* NULL, 0 if the mixer has none */
	uint32_t *shown;          /* [n_pages] page numbers as the mixer sees them */
	bool drops;               /* pages that extent lets go are not shown to the mixer */
};

/* Opens a sequence of the text at position 0, with a zeroed slot. seq_close gives back its pages
 * and slot. */
void seq_open(struct rig *r, struct seq *s, struct text *text);
void seq_close(struct rig *r, struct seq *s);
/* Computes a text in one step, in a sequence of its own, and records it. */
void seq_whole(struct rig *r, struct text *text);
/* Gives back pages until n_pages are left. */
void seq_trim(struct rig *r, struct seq *s, uint32_t n_pages);
/* Opens `to` at the position of `from`. The texts must be the same up to there. */
void seq_fork(struct rig *r, const struct seq *from, struct seq *to, struct text *text);

/* A point of a sequence from which others can go on, as a prefix cache has it: shared full pages, a
 * copy of the page that is not full, and a snapshot of the slot. */
struct saved {
	struct text *text;
	uint32_t pos;
	uint32_t *pages, n_pages;
	struct block bytes[RUN_LAYERS];
};

/* Saves twice, to see that every byte is written. s->computed >= s->save_from. */
void seq_save(struct rig *r, const struct seq *s, struct saved *out);
void saved_drop(struct rig *r, struct saved *v);
/* Opens s at `at`, which is v->pos or one less. If it is one less, the sequence can be saved again
 * from v->pos on. */
void seq_resume(struct rig *r, struct seq *s, const struct saved *v, struct text *text,
                uint32_t at);

/* ---- a step ---- */

/* Tokens [computed, computed + n) of a sequence, of which the first `keep` stay. Tokens from
 * `truth` on are not those of the text (drafts only; keep <= truth <= n). */
struct item {
	struct seq *seq;
	enum mx_span_kind kind;
	uint32_t n, keep, truth;
	/* A tree of drafts: each token's parent, of which `keep` in `path` stay. A token is true if it
	 * and its ancestors are those of the text. `truth` is 0. */
	bool tree;
	uint32_t parent[MX_TREE_TOKENS], path[MX_TREE_TOKENS];
	bool is_true[MX_TREE_TOKENS];
};

/* The next n tokens of the prompt; the next token; a draft of n tokens of which `keep` stay, some
 * of the others not the text's. */
struct item item_prefill(struct seq *s, uint32_t n);
struct item item_decode(struct seq *s);
struct item item_draft(struct rig *r, struct seq *s, uint32_t n, uint32_t keep);
/* A tree of n tokens at most, of which some path of 0 .. all of its tokens stays. */
struct item item_tree(struct rig *r, struct seq *s, uint32_t n);
/* An item of any kind with at most `most` tokens. */
struct item item_random(struct rig *r, struct seq *s, uint32_t most);

/* Runs the items, in random order, through both layers, commit and settle. */
void rig_step(struct rig *r, struct item *items, uint32_t n_items);

#endif
