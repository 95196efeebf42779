/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every engine has in common: sequences with their tokens, pages and
 * slots. An engine embeds struct mx_core as its first member, names these
 * functions in its table and adds step (and whatever else differs).
 *
 * Threads: as engine/engine.h.
 */
#ifndef MX_ENGINE_CORE_H
#define MX_ENGINE_CORE_H

#include <stdatomic.h>

#include "engine/counts.h"
#include "engine/engine.h"
#include "engine/pages.h"
#include "engine/snapshots.h"

#define MX_NO_SLOT UINT32_MAX

/* Shorter prefixes are not saved: computing that many tokens takes a step of about the time of a
 * decode step or two, and a snapshot takes the same memory for a dozen tokens as for thousands. */
#define MX_SNAPSHOT_MIN 32

struct mx_seq {
	int32_t *tokens; /* [params.max_len]: prompt, then output */
	uint32_t n_prompt, n;
	uint32_t computed; /* tokens whose state is in the pages and the slot */
	uint32_t slot;     /* MX_NO_SLOT = not attached */
	uint32_t reserved; /* tokens that steps may compute on the pages that it holds */
	struct mx_page_list pages;
	struct mx_seq_params params; /* its pointers are the sequence's own copies */
	struct mx_counts counts;     /* empty unless a penalty is on */
	bool counting;               /* a penalty is on */
	uint32_t prompt_reported;    /* prompt log-probabilities of positions 1 .. that are out */

	/* See prefix.h. */
	struct mx_prefix_hash hash; /* of its tokens, as far as it was needed */
	uint32_t kept;              /* as many computed tokens came from or went to a snapshot */
	uint32_t branch;            /* where it parts from those before it; 0 = nowhere */
	bool due;                   /* its state is to be saved */
	uint32_t in_step;           /* tokens in a step that has begun and was not committed for it */
	bool resumes;               /* its slot was loaded from a snapshot, and no step has run since */
};

struct mx_core;

/* What an engine does with the state of its sequences. */
struct mx_state_ops {
	/* Which pages a sequence needs: struct mx_mixer_ops's extent, for all layers together. */
	void (*extent)(const struct mx_core *c, uint32_t n, uint32_t max_len, uint32_t *out_first,
	               uint32_t *out_end);

	/* The rest is about what is not in full pages: the slot, and the page that holds the last
	 * computed token. Blocks are those of snapshots.h; they hold both. NULL without slots. */

	/* Makes the slot that of a sequence without tokens. */
	void (*clear)(struct mx_core *c, const struct mx_seq *s);
	/* Copies the state after s->computed tokens to the block. */
	mx_status (*save)(struct mx_core *c, const struct mx_seq *s, uint32_t block);
	/* The reverse: into the slot and the last page that s holds. The block was saved at as many
	 * tokens as s->computed or one more. */
	mx_status (*load)(struct mx_core *c, const struct mx_seq *s, uint32_t block);
};

struct mx_core {
	struct mx_engine engine;
	struct mx_engine_info info;
	struct mx_pages *pages;
	uint32_t *free_slots;     /* [n_free_slots], a stack */
	atomic_uint n_free_slots; /* written by the engine thread only */

	struct mx_step_item *items; /* [n_items] of the step that has begun */
	uint32_t n_items;
	bool stepping;

	/* See prefix.h. */
	struct mx_snapshots *snapshots; /* NULL if there is no room for any */
	struct mx_state_ops state;
	struct mx_seq **due; /* [n_due] sequences whose state is to be saved */
	uint32_t n_due;
	atomic_ullong queries, hits, lookups[MX_LOOKUP_N]; /* written by the engine thread only */
};

/* Makes pool, slots and snapshots of the sizes in `info` and copies it. On failure nothing is left
 * to free. */
mx_status mx_core_init(struct mx_core *c, const struct mx_engine_ops *ops,
                       const struct mx_state_ops *state, const struct mx_engine_info *info);
void mx_core_fini(struct mx_core *c); /* takes a zeroed core */

/* Slots of struct mx_engine_ops. */
void mx_core_info(const struct mx_engine *e, struct mx_engine_info *out);
void mx_core_usage(const struct mx_engine *e, struct mx_engine_usage *out);
mx_status mx_core_open(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                       const struct mx_seq_params *params, struct mx_seq **out);
mx_status mx_core_attach(struct mx_engine *e, struct mx_seq *s, uint32_t *out_computed);
mx_status mx_core_reserve(struct mx_engine *e, struct mx_seq *s, uint32_t n_tokens);
uint32_t mx_core_chunk(const struct mx_engine *e, const struct mx_seq *s, uint32_t n);
void mx_core_release(struct mx_engine *e, struct mx_seq *s);
void mx_core_close(struct mx_engine *e, struct mx_seq *s);
const int32_t *mx_core_tokens(const struct mx_seq *s, uint32_t *out_n, uint32_t *out_computed);
void mx_core_save_snapshots(struct mx_engine *e);
void mx_core_drop_cache(struct mx_engine *e);

/* The slot `step` by the engine's own begin and finish. */
mx_status mx_core_step(struct mx_engine *e, const struct mx_step_item *items, uint32_t n,
                       struct mx_step_result *results, struct mx_step_times *out_times);

/* To be called first in begin: copies the items to c->items. MX_E_INVALID if it breaks the rules of
 * engine.h (except that a sequence comes once). From now on until its commit a sequence's state may
 * be anything. */
mx_status mx_core_begin_step(struct mx_core *c, const struct mx_step_item *items, uint32_t n);
/* To be called first in finish: clears results[c->n_items]. MX_E_INVALID if nothing has begun. */
mx_status mx_core_finish_step(struct mx_core *c, struct mx_step_result *results);
/* n more tokens have their state: it becomes shareable, or what it does not need any more is given
 * back. */
void mx_core_commit(struct mx_core *c, struct mx_seq *s, uint32_t n);
/* Appends a token that was drawn. */
void mx_core_append(struct mx_seq *s, int32_t token);

#endif
