/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part that all engines share: sequences with their tokens, pages and slots. An engine embeds
 * struct mx_core as its first member, puts these functions into its table, and adds begin, finish
 * and whatever else differs.
 *
 * Threads: as in engine/engine.h.
 */
#ifndef MX_ENGINE_CORE_H
#define MX_ENGINE_CORE_H

#include <stdatomic.h>

#include "engine/counts.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/kv_events.h"
#include "engine/mask.h"
#include "engine/pages.h"
#include "engine/pooled.h"
#include "engine/snapshots.h"

#define MX_NO_SLOT UINT32_MAX

/* Prefixes of fewer tokens are not saved: computing them again takes about as long as one or two
 * decode steps, and a snapshot takes the same memory for a dozen tokens as for thousands. */
#define MX_SNAPSHOT_MIN 32

struct mx_seq {
	struct mx_seq_tokens tokens; /* prompt, then output [params.max_len - n_prompt] */
	uint32_t n_prompt, n;        /* tokens of the prompt, of prompt and output */
	uint32_t computed;           /* number of tokens whose state is in the pages and the slot */
	uint32_t slot;               /* MX_NO_SLOT = not attached */
	uint32_t reserved; /* steps may compute up to this many tokens on the pages it holds */
	struct mx_page_list pages;
	struct mx_seq_params params; /* the pointers in it are the sequence's own copies */
	struct mx_counts counts;     /* empty unless a penalty is on */
	bool counting;               /* a penalty is on */
	struct mx_mask mask;         /* of a constrained sequence */
	uint32_t prompt_reported;    /* log-probabilities of positions 1 .. this one were reported */
	struct mx_pooled pooled;     /* empty without pooling */
	struct mx_draft draft;       /* empty without speculation */
	struct mx_guess guess;       /* of a draft model's sequence: how it samples; else zeroed */

	/* See prefix.h. */
	struct mx_prefix_hash hash; /* of the first hash.n tokens */
	/* Number of tokens covered by the newest snapshot that was loaded or saved for this sequence;
	 * without snapshots, by the prefix that attach found. */
	uint32_t snapshotted;
	/* Number of its first tokens that an earlier sequence computed too: a state after them is worth
	 * saving. 0 = none. */
	uint32_t branch;
	/* Result of the look-up (enum mx_lookup) until it is counted; MX_LOOKUP_N = none. */
	uint32_t lookup;
	bool save_pending; /* its state is to be saved: it is in mx_core.to_save */
	uint32_t in_step;  /* its tokens in the step that runs; stays set if the step fails for it */
	bool resumes;      /* its slot was loaded from a snapshot, and is not resumed yet */
	uint32_t resume_module, resume_progress; /* how far: see mx_forward_resume */
};

struct mx_core;

/* Functions of an engine for the state of its sequences. */
struct mx_state_ops {
	/* Tells which pages a sequence needs: extent of struct mx_mixer_ops, for all layers together.
	 */
	void (*extent)(const struct mx_core *c, uint32_t n, uint32_t max_len, uint32_t *out_first,
	               uint32_t *out_end);

	/* The other functions are about the state outside full pages: the slot, and the page that holds
	 * the last computed token. A snapshot holds both. These entries are NULL in
	 * an engine without slots. */

	/* Resets the slot to the state of a sequence without tokens. */
	void (*clear)(struct mx_core *c, const struct mx_seq *s);
	/* Copies the state after s->computed tokens to a block. */
	mx_status (*save)(struct mx_core *c, const struct mx_seq *s, uint32_t block);
	/* Copies a block to the slot and to the last page that s holds. The block was saved at
	 * s->computed tokens or one more. */
	mx_status (*load)(struct mx_core *c, const struct mx_seq *s, uint32_t block);
};

struct mx_core {
	struct mx_engine engine;
	struct mx_engine_info info;
	struct mx_pages *pages;
	uint32_t *free_slots;     /* [n_free_slots], a stack */
	atomic_uint n_free_slots; /* written by the engine thread only */

	struct mx_step_item *items; /* [n_items] of the step that runs */
	uint32_t n_items;
	bool stepping;                  /* a step has begun and is not finished */
	struct mx_draft_source *drafts; /* NULL = no speculation; the core destroys it */

	/* See prefix.h. */
	struct mx_snapshots *snapshots; /* NULL if the engine has none */
	struct mx_state_ops state;
	struct mx_kv_events *kv_events; /* NULL if the engine tells none */
	struct mx_cover *covers;        /* [n_snapshots] the pages that each block covers; NULL without
	                                 * events */
	struct mx_seq **to_save;        /* [n_to_save] sequences whose state save_snapshots saves */
	uint32_t n_to_save;
	atomic_ullong queries, hits, lookups[MX_LOOKUP_N]; /* written by the engine thread only */
};

/* Creates page pool, slots and snapshots of the sizes in `info`, and copies `info`. On failure
 * nothing is left to free. */
mx_status mx_core_init(struct mx_core *c, const struct mx_engine_ops *ops,
                       const struct mx_state_ops *state, const struct mx_engine_info *info);
void mx_core_fini(struct mx_core *c); /* takes a zeroed core */

/* ---- functions for struct mx_engine_ops ---- */

/* Each is the entry of its name in engine.h, where its arguments, results and errors are. They take
 * an engine whose first member is a core. */
void mx_core_info(const struct mx_engine *e, struct mx_engine_info *out);
void mx_core_usage(const struct mx_engine *e, struct mx_engine_usage *out);
mx_status mx_core_open(struct mx_engine *e, const int32_t *prompt, uint32_t n,
                       const struct mx_seq_params *params, struct mx_seq **out);
mx_status mx_core_attach(struct mx_engine *e, struct mx_seq *s, uint32_t *out_computed);
mx_status mx_core_reserve(struct mx_engine *e, struct mx_seq *s, uint32_t n_tokens);
uint32_t mx_core_chunk(const struct mx_engine *e, const struct mx_seq *s, uint32_t n);
void mx_core_release(struct mx_engine *e, struct mx_seq *s);
void mx_core_close(struct mx_engine *e, struct mx_seq *s);
const struct mx_seq_tokens *mx_core_tokens(const struct mx_seq *s, uint32_t *out_n,
                                           uint32_t *out_computed);
void mx_core_propose(struct mx_engine *e, struct mx_step_item *items, uint32_t n);
void mx_core_save_snapshots(struct mx_engine *e);
void mx_core_drop_cache(struct mx_engine *e);
struct mx_kv_events *mx_core_kv_events(const struct mx_engine *e);

/* Runs a step by calling the engine's begin and finish. */
mx_status mx_core_step(struct mx_engine *e, const struct mx_step_item *items, uint32_t n,
                       struct mx_step_result *results, struct mx_step_times *out_times);

/* ---- functions for an engine's begin and finish ---- */

/* Copies the items to c->items; begin calls it first. MX_E_INVALID if they break the rules of
 * engine.h (that a sequence occurs once is not checked). A sequence's state is undefined from here
 * until its mx_core_commit. */
mx_status mx_core_begin_step(struct mx_core *c, const struct mx_step_item *items, uint32_t n);
/* Clears results[c->n_items]; finish calls it first. MX_E_INVALID if no step has begun. */
mx_status mx_core_finish_step(struct mx_core *c, struct mx_step_result *results);
/* Counts n more tokens of s as computed. Pages that became full go to the prefix cache; a sequence
 * that does not use the prefix cache gives back the pages that it needs no more. */
void mx_core_commit(struct mx_core *c, struct mx_seq *s, uint32_t n);
/* The same for a tentative item: the sequence is as before the step. */
void mx_core_commit_none(struct mx_seq *s);
/* Appends a sampled token. */
void mx_core_append(struct mx_seq *s, int32_t token);
/* Takes tokens of the output back, so that n are left: at least those that are computed. */
void mx_core_take_back(struct mx_seq *s, uint32_t n);
/* Returns the draft that is kept when `token` was sampled behind draft `last` of an item, or with
 * MX_NO_DRAFT behind its tokens: one whose parent that is, which is the same token and does not end
 * the sequence. MX_NO_DRAFT if there is none. */
uint32_t mx_core_accepts(const struct mx_step_item *item, uint32_t last, int32_t token);

/* Returns the parent of draft i of an item, as in item->parent. */
static inline uint32_t mx_core_parent(const struct mx_step_item *item, uint32_t i)
{
	return item->parent ? item->parent[i] : i ? i - 1 : MX_NO_DRAFT;
}

/* Returns the number of drafts in front of draft i of an item. */
static inline uint32_t mx_core_depth(const struct mx_step_item *item, uint32_t i)
{
	uint32_t depth = 0;
	while ((i = mx_core_parent(item, i)) != MX_NO_DRAFT)
		depth++;
	return depth;
}

#endif
