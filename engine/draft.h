/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources of drafts: what guesses the next tokens of a sequence, so that one step can check several
 * of them (speculation). A guess costs time and never changes a token: the engine samples at every
 * position as it would without drafts, and keeps a draft token while it equals the sample. For a
 * source that always proposes one token at a position this accepts as often as rejection sampling
 * does (Leviathan et al. 2023), and unlike that it leaves the sampled tokens as they are, bit for
 * bit.
 *
 * A source belongs to one engine; all calls come from the engine thread. What it keeps of a
 * sequence is allocated by open; propose allocates nothing, and has a bound in time. A sequence for
 * which a source has nothing simply gets no drafts: but for a lack of memory in open, no fault of a
 * source is a fault of the sequence.
 */
#ifndef MX_ENGINE_DRAFT_H
#define MX_ENGINE_DRAFT_H

#include "engine/engine.h"

/* What is drafted for one sequence. */
struct mx_draft {
	struct mx_draft_source *source; /* NULL = nothing is */
	void *state;                    /* the source's own */
	int32_t tokens[MX_MAX_DRAFT];   /* the latest proposal */
	/* Their parents, as in struct mx_step_item, if is_tree. */
	uint32_t parents[MX_MAX_DRAFT];
	bool is_tree;
	float odds[MX_MAX_DRAFT]; /* as in struct mx_step_item, if has_odds */
	bool has_odds;
};

struct mx_draft_source_ops {
	/* Creates what the source keeps of a sequence without output: *out_state. `params` are those of
	 * mx_engine_ops.open, with its prediction. */
	mx_status (*open)(struct mx_draft_source *d, const struct mx_seq *s,
	                  const struct mx_seq_params *params, void **out_state);
	void (*close)(struct mx_draft_source *d, void *state);
	/* Gives back the memory that others could use, until the next propose: the sequence is
	 * preempted. */
	void (*release)(struct mx_draft_source *d, void *state);
	/* Proposes for the items [n] with n_draft > 0, whose sequences were all opened: writes at most
	 * n_draft <= MX_MAX_DRAFT tokens that probably follow the sequence's to item.seq->draft.tokens,
	 * and their number to n_draft. If they are a tree, sets item.seq->draft.is_tree, which is
	 * false, and parents; if their probabilities are known, has_odds, which is false, and odds.
	 * Whatever was proposed before, the sequence's tokens tell what was kept.
	 */
	void (*propose)(struct mx_draft_source *d, struct mx_step_item *items, uint32_t n);
	void (*destroy)(struct mx_draft_source *d);
	/* Empties the source's prefix cache. See mx_engine_ops.drop_cache. */
	void (*drop_cache)(struct mx_draft_source *d);
};

/* First member of every source. */
struct mx_draft_source {
	const struct mx_draft_source_ops *ops;
};

/* Creates the source of prompt lookup: it continues the sequence as the longest suffix of its
 * tokens was continued before, in the prediction, the prompt or the output (ngram.c). With `trees`,
 * as it and shorter ones were continued, where that differs. */
mx_status mx_draft_ngram_create(bool trees, struct mx_draft_source **out);
/* Returns the most bytes that it keeps of a sequence of max_len tokens. */
size_t mx_draft_ngram_bytes(uint32_t max_len);

/* Creates the source of a draft model (draft_model.c): `drafter` is its engine, whose items may be
 * tentative, and whose tokens are those of the engine that has the source, `vocab` of them. The
 * source destroys it. On failure it stays the caller's. */
mx_status mx_draft_model_create(struct mx_engine *drafter, uint32_t vocab,
                                struct mx_draft_source **out);

void mx_draft_source_destroy(struct mx_draft_source *d); /* takes NULL */
/* drop_cache of a source that has none. */
void mx_draft_drop_nothing(struct mx_draft_source *d);

mx_status mx_draft_open(struct mx_draft_source *source, const struct mx_seq *s,
                        const struct mx_seq_params *params, struct mx_draft *out);
void mx_draft_close(struct mx_draft *d);   /* takes an empty one */
void mx_draft_release(struct mx_draft *d); /* likewise */
/* See mx_engine_ops.propose. Items whose sequences have no draft get none. */
void mx_draft_propose(struct mx_draft_source *d, struct mx_step_item *items, uint32_t n);

#endif
