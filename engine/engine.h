/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine as the scheduler sees it: sequences, pages and steps. Behind the
 * table stands a model instance (engine/model_engine.c) or, in tests and
 * front-end benchmarks, a fake that computes nothing (engine/fake_engine.c).
 * Both keep their pages with engine/pages.h.
 *
 * All calls come from one thread, the model's engine thread, except `info` and
 * `usage`, which any thread may call.
 *
 * A sequence is a list of tokens (prompt, then what was sampled) and the pages
 * and the slot that hold the state of its first `computed` tokens. The engine
 * keeps the tokens; the scheduler decides what is computed when:
 *
 *     open -> attach -> (reserve -> step -> save_snapshots)* -> close
 *                ^----------- release (preemption)
 *
 * A step is begun and finished; `step` does both. On a device that runs behind
 * the host (info.overlaps) begin returns while the step runs. Between the two
 * everything may be called but another begin or step, save_snapshots, drop_cache and
 * destroy, and release, close and attach of a sequence that is in the step:
 * other sequences come and go, and pages may be reserved ahead for those of the
 * step too.
 *
 * Bit-equality: what a step returns for a sequence depends on nothing but that
 * sequence's tokens and sampling parameters.
 */
#ifndef MX_ENGINE_ENGINE_H
#define MX_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/sampling.h"

struct mx_engine;
struct mx_seq;

/* The kinds of mixers that one model may have. */
#define MX_ENGINE_MAX_MIXERS 8

/* One of them, all its layers together. */
struct mx_engine_mixer {
	char name[32];
	uint32_t layers;
	size_t page_bytes;     /* its part of a page */
	size_t slot_bytes;     /* its part of a slot */
	size_t snapshot_bytes; /* its part of a saved slot */
	size_t instance_bytes; /* what it allocates for itself */
};

/* What came of a look-up in the prefix cache. */
enum mx_lookup {
	MX_LOOKUP_HIT,         /* at least a token need not be computed */
	MX_LOOKUP_MISS,        /* nothing is known */
	MX_LOOKUP_NO_SNAPSHOT, /* its beginning was computed before, but no state was saved there */
	MX_LOOKUP_EVICTED,     /* a state that would do was saved, and has made room for others */
	MX_LOOKUP_UNSUPPORTED, /* a mixer of the model cannot share or save its state */
	MX_LOOKUP_N
};

struct mx_engine_info {
	char model[128]; /* name in the configuration */
	char device[64]; /* "cpu", "cuda:0" */
	uint32_t vocab;
	uint32_t max_context;   /* tokens of prompt and output together */
	uint32_t max_sequences; /* attached at a time: the number of slots */
	uint32_t step_tokens;   /* most rows of a step */
	uint32_t free_rows; /* prompt tokens that make a step hardly longer than one does; 0 = none */
	uint32_t page_tokens;
	uint32_t n_pages;
	bool overlaps;                      /* a step runs between begin and finish */
	bool prefix_cache;                  /* prefixes are shared */
	bool prefix_unsupported;            /* they were to be, but a mixer cannot */
	uint32_t n_snapshots;               /* saved slots that there is room for */
	uint32_t snapshot_every;            /* tokens between two saved states; 0 = only at ends */
	size_t weight_bytes, scratch_bytes; /* in all */
	size_t page_bytes, slot_bytes;      /* of one */
	size_t snapshot_bytes;              /* of one: a slot and a page */
	struct mx_engine_mixer mixers[MX_ENGINE_MAX_MIXERS];
	uint32_t n_mixers;
};

struct mx_engine_usage {
	uint32_t pages_used;   /* held by open sequences */
	uint32_t pages_cached; /* held by the prefix cache alone: free on demand */
	uint32_t pages_free;
	uint32_t slots_used;                  /* attached sequences */
	uint64_t prefix_queries, prefix_hits; /* tokens looked up and found */
	uint64_t prefix_lookups[MX_LOOKUP_N]; /* look-ups by what came of them */
	uint64_t prefix_evictions;            /* cached pages dropped to make room */
	uint32_t snapshots_used;              /* blocks that hold a saved state */
	uint64_t snapshot_saves, snapshot_evictions;
};

/* How to draw tokens and what to report; copied by open. */
struct mx_seq_params {
	struct mx_sampling sampling;
	uint32_t max_len;    /* prompt + output tokens, <= max_context */
	uint32_t min_tokens; /* the ids in `stop` are not drawn before that many output tokens */
	const int32_t *stop; /* [n_stop] ids banned until min_tokens (EOS and stop token ids) */
	size_t n_stop;
	int32_t logprobs;        /* -1 = none; else the number of alternatives for output tokens */
	int32_t prompt_logprobs; /* -1 = none; else for every prompt token but the first */
	bool no_prefix_cache;    /* neither look up nor leave anything */
	const char *cache_salt;  /* sequences with different salts share nothing; may be NULL */
};

/* Tokens of one sequence in one step: positions [computed, computed + n). */
struct mx_step_item {
	struct mx_seq *seq;
	uint32_t n;
	bool sample; /* the last of them is the newest token known: draw the next one */
};

/* What came of an item. Pointers are valid until the next step is finished. */
struct mx_step_result {
	mx_status status; /* not MX_OK: this sequence is broken and must be closed */
	bool sampled;
	int32_t token;             /* appended to the sequence */
	struct mx_logprob logprob; /* if asked for */
	/* Log-probabilities of the prompt tokens at positions first .. first + n - 1, if asked for. */
	const struct mx_logprob *prompt;
	uint32_t prompt_first, prompt_n;
};

/* Nanoseconds of a step by phase. A device that runs behind the host is waited for in `forward`,
 * sampling included. `host` is the part of begin and finish that a device spends idle: laying out,
 * uploading and launching, and what comes after the tokens are there; 0 on CPUs. */
struct mx_step_times {
	uint64_t forward, sample, commit, host;
};

struct mx_engine_ops {
	void (*info)(const struct mx_engine *e, struct mx_engine_info *out);
	void (*usage)(const struct mx_engine *e, struct mx_engine_usage *out);

	/* A new sequence with a copy of the prompt; holds no pages. n >= 1, n < max_len. A prompt with
	 * nothing to generate (scoring) has max_len == n. */
	mx_status (*open)(struct mx_engine *e, const int32_t *prompt, uint32_t n,
	                  const struct mx_seq_params *params, struct mx_seq **out);

	/* Takes a slot and, from the prefix cache, the state of the longest prefix of the sequence's
	 * tokens that is there, at most all but the last token. Only for a sequence that holds nothing.
	 * *out_computed = tokens covered. MX_E_NOMEM if no slot is free, or no page for a prefix that
	 * ends within one; nothing is held then. */
	mx_status (*attach)(struct mx_engine *e, struct mx_seq *s, uint32_t *out_computed);

	/* Makes sure of the pages that it takes to compute the first n_tokens <= max_len positions,
	 * evicting cached pages if needed. (They may be many more than for one token less: some mixers
	 * want pages ahead.) All or nothing: MX_E_NOMEM leaves the sequence as it was. */
	mx_status (*reserve)(struct mx_engine *e, struct mx_seq *s, uint32_t n_tokens);

	/* How many of the next n tokens, after those of a step that runs, a step should take: it ends
	 * where the prefix cache wants to save the state. 1 .. n, n where it does not matter; taking
	 * more costs others that state. n >= 1. */
	uint32_t (*chunk)(const struct mx_engine *e, const struct mx_seq *s, uint32_t n);

	/* Gives slot and pages back (preemption); tokens stay. What was computed goes to the prefix
	 * cache, so that recomputing is cheap if nobody needed the room. */
	void (*release)(struct mx_engine *e, struct mx_seq *s);

	/* Releases and frees the sequence. Takes NULL. */
	void (*close)(struct mx_engine *e, struct mx_seq *s);

	/* Computes the items, at most step_tokens tokens in all; each sequence at most once, attached
	 * and reserved. results[n]. A status other than MX_OK fails every item (device lost). */
	mx_status (*step)(struct mx_engine *e, const struct mx_step_item *items, uint32_t n,
	                  struct mx_step_result *results, struct mx_step_times *out_times);

	/* `step` in two. begin copies the items; what it refuses has not begun, and a device that is
	 * lost is lost for every item, whichever of the two says so. finish waits, and yields what step
	 * would have, results in the order of the items; it must follow a begin that was MX_OK. */
	mx_status (*begin)(struct mx_engine *e, const struct mx_step_item *items, uint32_t n);
	mx_status (*finish)(struct mx_engine *e, struct mx_step_result *results,
	                    struct mx_step_times *out_times);

	/* What can wait until the results of a step are delivered: the prefix cache gets the states of
	 * sequences that have come to the end of their prompt or to a place that chunk said. To be
	 * called before anything else but close, so before the next begin; a state that was passed
	 * cannot be saved any more. */
	void (*save_snapshots)(struct mx_engine *e);

	/* Tokens of the sequence (prompt and output), and how many have their state computed. */
	const int32_t *(*tokens)(const struct mx_seq *s, uint32_t *out_n, uint32_t *out_computed);

	/* Drops what the prefix cache holds alone. */
	void (*drop_cache)(struct mx_engine *e);

	/* Frees everything; no sequence may be open. Takes NULL. */
	void (*destroy)(struct mx_engine *e);
};

/* First member of every engine. */
struct mx_engine {
	const struct mx_engine_ops *ops;
};

#endif
