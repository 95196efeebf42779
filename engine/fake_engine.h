/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that computes nothing, for scheduler tests and for measuring the front end alone.
 * Pages, snapshots and prefix cache are the real ones. Each token is sampled from a hash of the
 * sequence's tokens, so that a preempted or cached run can be compared with an uninterrupted one.
 * Like a model's, the state can be in pages, in a slot, or in both, and can need look-ahead pages.
 */
#ifndef MX_ENGINE_FAKE_ENGINE_H
#define MX_ENGINE_FAKE_ENGINE_H

#include "engine/engine.h"

/* Elements of its hidden states. */
#define MX_FAKE_WIDTH 8

enum mx_fake_state { MX_FAKE_PAGES, MX_FAKE_SLOT, MX_FAKE_HYBRID };

struct mx_fake_config {
	const char *name;
	uint32_t vocab, max_context, max_sequences, step_tokens, page_tokens, n_pages;
	bool prefix_cache, kv_events;
	enum mx_fake_state state; /* with MX_FAKE_SLOT, page_tokens should be max_context */
	bool lookahead; /* more than 2^k tokens need pages for 3 * 2^k; not with MX_FAKE_SLOT */
	uint32_t n_snapshots, snapshot_every;
	bool prefix_unsupported;
	/* Steps in which a sequence that resumes from a snapshot is deferred, if others run; not with
	 * overlaps. */
	uint32_t resume_steps;
	uint64_t ns_per_hit;                /* time that attach takes if it finds a prefix */
	uint64_t ns_per_step, ns_per_token; /* time a step pretends to take; 0 = none */
	uint32_t free_rows;                 /* as in struct mx_engine_info */
	bool overlaps;                      /* a step's time runs from begin on, else from finish on */
	int32_t eos;                        /* sampled now and then; -1 = never */
	uint32_t eos_one_in;                /* about one token in this many is eos */
	/* [n_script] the output of every sequence, then eos; not NULL: nothing else is drawn. */
	const int32_t *script;
	uint32_t n_script;
	/* Most sampled tokens are those of so many places before, so that prompt lookup guesses them; 0
	 * = none are. */
	uint32_t echo;
	uint32_t max_draft; /* as in struct mx_engine_info: with prompt lookup */
	bool trees;         /* likewise */
};

mx_status mx_fake_engine_create(const struct mx_fake_config *config, struct mx_engine **out);

#endif
