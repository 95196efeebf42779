/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine as the scheduler sees it: sequences, pages and steps. struct mx_engine_ops is
 * implemented by the model engine (engine/model_engine.c) and, for tests and front-end benchmarks,
 * by a fake that computes nothing (engine/fake_engine.c). Both manage their pages with
 * engine/pages.h.
 *
 * All calls come from one thread, the model's engine thread, except `info`, `usage`, `rank` and
 * `kv_events`, which any thread may call.
 *
 * A sequence is a list of tokens (prompt, then sampled tokens) with the pages and the slot that
 * hold the state of its first `computed` tokens. The engine owns the sampled tokens; the scheduler
 * owns the prompt, which sequences may share, and decides which tokens are computed when:
 *
 *     open -> attach -> (reserve -> step -> save_snapshots)* -> close
 *                ^----------- release (preemption)
 *
 * A step has two halves, begin and finish; `step` calls both. On an asynchronous device
 * (info.overlaps) begin returns while the step still runs. Between begin and finish the scheduler
 * may open, attach, release and close sequences that are not in the step, and may reserve pages for
 * any sequence. It must not call begin, step, save_snapshots, drop_cache or destroy, nor attach,
 * release or close a sequence of the step.
 *
 * Bit-equality: the results of a step for a sequence depend only on that sequence's tokens and
 * sampling parameters.
 */
#ifndef MX_ENGINE_ENGINE_H
#define MX_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/sampling.h"
#include "engine/constraint.h"
#include "engine/seq_tokens.h"

struct mx_engine;
struct mx_kv_events;
struct mx_seq;

/* Most mixer modules that one model may use. */
#define MX_ENGINE_MAX_MIXERS 8

/* Memory of one mixer module, the sum over its layers. */
struct mx_engine_mixer {
	char name[32];
	uint32_t layers;
	size_t page_bytes;     /* its part of a page */
	size_t slot_bytes;     /* its part of a slot */
	size_t snapshot_bytes; /* its part of a saved slot */
	size_t instance_bytes; /* memory that its instances allocate themselves */
};

/* Result of a look-up in the prefix cache. */
enum mx_lookup {
	MX_LOOKUP_HIT,         /* the state of at least one token was found */
	MX_LOOKUP_MISS,        /* no prefix of the tokens is known */
	MX_LOOKUP_NO_SNAPSHOT, /* a prefix was computed before, but its state was not saved */
	MX_LOOKUP_EVICTED,     /* a usable state was saved, and evicted since */
	MX_LOOKUP_UNSUPPORTED, /* a mixer of the model cannot share its pages or save its slot */
	MX_LOOKUP_N
};

struct mx_engine_info {
	char model[128]; /* name in the configuration */
	char device[64]; /* "cpu", "cuda:0" */
	uint32_t vocab;
	uint32_t width;       /* elements of a hidden state */
	bool headless;        /* the checkpoint has no lm_head: only hidden states mean anything */
	uint32_t max_context; /* tokens of prompt and output together */
	/* Sequences with a larger max_len have other states than those without: their prefixes are kept
	 * apart; 0 = all have the same. */
	uint32_t long_from;
	uint32_t max_sequences; /* most attached sequences: the number of slots */
	uint32_t step_tokens;   /* most rows of a step */
	uint32_t free_rows; /* a step of up to this many prompt tokens takes hardly longer than one of a
	                     * single token; 0 = every token costs */
	uint32_t page_tokens;
	uint32_t n_pages;
	bool overlaps;                      /* the device computes between begin and finish */
	bool prefix_cache;                  /* prefixes are shared */
	bool prefix_unsupported;            /* configured to be shared, but a mixer cannot */
	bool kv_events;                     /* changes of the prefix cache are told */
	uint32_t max_draft;                 /* most draft tokens of an item; 0 = no speculation */
	bool trees;                         /* drafts may be trees, and the source's are */
	uint32_t max_tentative;             /* most tokens of a tentative item; 0 = takes none */
	uint32_t n_snapshots;               /* snapshots that there is room for */
	uint32_t snapshot_every;            /* tokens between two snapshots; 0 = only at ends */
	size_t weight_bytes, scratch_bytes; /* bytes in total */
	size_t host_bytes;             /* memory of the host that it takes, without mapped weights */
	size_t page_bytes, slot_bytes; /* bytes of one */
	size_t snapshot_bytes;         /* bytes of one: a saved slot and a page */
	struct mx_engine_mixer mixers[MX_ENGINE_MAX_MIXERS];
	uint32_t n_mixers;
};

struct mx_engine_usage {
	uint32_t pages_used;   /* held by open sequences */
	uint32_t pages_cached; /* held by the prefix cache alone: evicted on demand */
	uint32_t pages_free;
	uint32_t slots_used; /* attached sequences */
	/* Of each sequence that looks its prompt up, counted once, when its first step begins: */
	uint64_t prefix_queries, prefix_hits; /* tokens looked up; tokens found */
	uint64_t prefix_lookups[MX_LOOKUP_N]; /* number of look-ups by result */
	uint64_t prefix_evictions;            /* cached pages evicted */
	uint32_t snapshots_used;              /* snapshots that hold a saved state */
	uint64_t snapshot_saves, snapshot_evictions;
};

/* One of the ranks of this process that compute the model together. */
struct mx_engine_rank {
	uint32_t rank; /* its number among the ranks of all hosts */
	char device[64];
	size_t memory;     /* bytes of the device that the model takes; CPUs: without mapped weights */
	double exchange_s; /* seconds in sums over the ranks and other exchanges, waiting included */
};

/* Most tokens of MX_POOLING_TOKENS. */
#define MX_MAX_POOLED 8

/* What a sequence gives of its prompt when all of it is computed. */
enum mx_pooling {
	MX_POOLING_NONE,
	MX_POOLING_LAST,   /* the hidden state of the last token, after the final norm: [width] */
	MX_POOLING_MEAN,   /* the mean of those of all tokens: [width] */
	MX_POOLING_TOKENS, /* the log-probabilities of some tokens as the next one: [n_pooled] */
};

/* How to sample tokens and what to report; open copies it, but for the constraint. */
struct mx_seq_params {
	struct mx_sampling sampling;
	uint32_t max_len;    /* prompt + output tokens, <= max_context */
	uint32_t min_tokens; /* ids in `stop` are not sampled before this many output tokens */
	const int32_t *stop; /* [n_stop] ids banned until min_tokens (EOS and stop token ids) */
	size_t n_stop;
	int32_t logprobs;        /* -1 = none; else the number of alternatives for output tokens */
	int32_t prompt_logprobs; /* -1 = none; else likewise for prompt tokens but the first */
	bool no_prefix_cache;    /* neither look up in the prefix cache nor add to it */
	const char *cache_salt;  /* sequences with different salts share nothing; may be NULL */
	/* Unless NONE, the prompt is all there is (max_len is its length). MEAN needs the hidden states
	 * of all tokens, and so looks nothing up in the prefix cache and adds nothing to it. */
	enum mx_pooling pooling;
	const int32_t *pooled; /* [n_pooled] tokens of MX_POOLING_TOKENS */
	size_t n_pooled;       /* 1 .. MX_MAX_POOLED */
	/* Restricts the output; NULL = nothing does. Stays the caller's, and must stay until close. Its
	 * bans go before those of `stop`: a text that can only end ends before min_tokens. */
	struct mx_constraint *constraint;
	/* [n_ends] ids that end the sequence: no draft behind one of them is kept. The caller's, until
	 * close. */
	const int32_t *ends;
	size_t n_ends;
	/* [n_prediction] a text that the output probably resembles, for the source of drafts. */
	const int32_t *prediction;
	size_t n_prediction;
	bool no_speculation; /* propose finds nothing for the sequence */
};

/* Most draft tokens of an item. */
#define MX_MAX_DRAFT 8
#define MX_NO_DRAFT  UINT32_MAX

/* Tokens of one sequence in one step: positions [computed, computed + n). */
struct mx_step_item {
	struct mx_seq *seq;
	uint32_t n;
	bool sample; /* sample the next token; the last of the n is then the sequence's last token */
	/* Draft tokens, which may follow the n: [n_draft] guesses of the tokens that are sampled next,
	 * valid until finish. Only with n = 1 and `sample`, and with pages reserved for n + n_draft.
	 * The step samples the token at each of their positions as it would without them, up to the
	 * first that differs from the draft; so drafts change how many tokens a step gives, and no
	 * token. */
	const int32_t *draft;
	uint32_t n_draft;
	/* [n_draft], only with info.trees: the drafts are a tree. Each has a parent, an earlier draft,
	 * or MX_NO_DRAFT for the sequence's last token; children of one parent are guesses of the same
	 * position. NULL: each draft's parent is the one before it. */
	const uint32_t *parent;
	/* What propose says of the drafts, if its source can: [n_draft] probability that each is
	 * sampled if those in front of it are. NULL: nothing. A step does not read it. */
	const float *odds;
	/* For propose: a draft that is sampled with less probability than this, together with all in
	 * front of it, is not worth the time to find more. */
	float least;
	/* The n tokens may be taken back (mx_core_take_back): the step computes them and samples, and
	 * the sequence's computed tokens stay what they were. n <= info.max_tentative. For draft
	 * models.
	 */
	bool tentative;
};

/* Result of an item. Pointers are valid until the next step is finished. */
struct mx_step_result {
	mx_status status;  /* not MX_OK: the sequence has failed and must be closed */
	const char *cause; /* of a failure, for people, valid like the pointers below; NULL = the status
	                    * says all */
	/* Nothing was computed: the engine has work to do for a prefix that was found in the cache,
	 * which other sequences should not wait for. The item is to be asked for again. Never true of
	 * all items, nor if info.overlaps. */
	bool deferred;
	bool sampled;
	/* The constraint allows nothing more, not even an end: no token was sampled, and none can be.
	 */
	bool ended;
	int32_t token;             /* the sampled token, already appended to the sequence */
	struct mx_logprob logprob; /* if asked for */
	/* Drafts path[n_accepted] of the item were sampled in front of `token`: they are appended to
	 * the sequence too. Their log-probabilities, if asked for: accepted[n_accepted]. */
	uint32_t n_accepted;
	uint32_t path[MX_MAX_DRAFT]; /* numbers of drafts; without parents 0, 1, .. */
	const struct mx_logprob *accepted;
	/* Log-probabilities of the prompt tokens at positions first .. first + n - 1, if asked for. */
	const struct mx_logprob *prompt;
	uint32_t prompt_first, prompt_n;
	/* Of a sequence with pooling whose prompt this step ended: its vector, [n_vector], valid until
	 * the sequence is closed. Else NULL. */
	const float *vector;
	uint32_t n_vector;
};

/* Nanoseconds of a step by phase. For an asynchronous device `forward` is the time that finish
 * waits for it, sampling included, and `host` is the host's own work in begin and finish, during
 * which the device may be idle: what comes in front of the step's first launch, or its replay, and
 * the work after its tokens have arrived. `host` is 0 on CPUs. `resume` is the part of `forward`
 * that was work for prefixes found in the cache. */
struct mx_step_times {
	uint64_t forward, sample, commit, host, resume;
};

struct mx_engine_ops {
	void (*info)(const struct mx_engine *e, struct mx_engine_info *out);
	void (*usage)(const struct mx_engine *e, struct mx_engine_usage *out);

	/* Creates a sequence that holds no pages. The prompt is not copied: it must stay as it is until
	 * close. n >= 1, n <= max_len; n == max_len for a prompt that is only scored. */
	mx_status (*open)(struct mx_engine *e, const int32_t *prompt, uint32_t n,
	                  const struct mx_seq_params *params, struct mx_seq **out);

	/* Takes a slot and, from the prefix cache, the state of the longest known prefix of the
	 * sequence's tokens, at most all but the last token. The sequence must hold neither slot nor
	 * pages. *out_computed = number of tokens covered. MX_E_NOMEM if no slot is free, or if the
	 * prefix ends within a page and no page is free; the sequence then holds nothing. */
	mx_status (*attach)(struct mx_engine *e, struct mx_seq *s, uint32_t *out_computed);

	/* Reserves the pages needed to compute the first n_tokens <= max_len positions, and evicts
	 * cached pages if necessary. One token more may need many more pages: some mixers need
	 * look-ahead pages. All or nothing: MX_E_NOMEM leaves the sequence unchanged. */
	mx_status (*reserve)(struct mx_engine *e, struct mx_seq *s, uint32_t n_tokens);

	/* Returns how many of the next n >= 1 tokens (after those of a step that runs) one step should
	 * take, 1 .. n, so that the step ends where the prefix cache is to save the state. A step may
	 * take more; that state is then not saved. */
	uint32_t (*chunk)(const struct mx_engine *e, const struct mx_seq *s, uint32_t n);

	/* Gives slot and pages back (preemption); the sequence keeps its tokens. The computed state
	 * goes to the prefix cache, so that resuming is cheap unless the state was evicted. */
	void (*release)(struct mx_engine *e, struct mx_seq *s);

	/* Releases and frees the sequence. Takes NULL. */
	void (*close)(struct mx_engine *e, struct mx_seq *s);

	/* Proposes drafts: of each of the items [n] with n_draft > 0, which says how many at most, sets
	 * draft, parent, odds and n_draft, to 0 if there is nothing to propose. At most info.max_draft
	 * of an item. Valid until the next step is finished. A draft model runs meanwhile; that takes
	 * time.
	 */
	void (*propose)(struct mx_engine *e, struct mx_step_item *items, uint32_t n);

	/* Computes the items, at most step_tokens tokens in total, and fills results[n]. Each sequence
	 * occurs at most once, and is attached and has its pages reserved. A status other than MX_OK
	 * fails every item (device lost). */
	mx_status (*step)(struct mx_engine *e, const struct mx_step_item *items, uint32_t n,
	                  struct mx_step_result *results, struct mx_step_times *out_times);

	/* The two halves of `step`. begin copies the items; if it fails, no step has begun. finish
	 * waits and fills what step would have filled, results in the order of the items; it must
	 * follow a begin that returned MX_OK. A failure of either fails every item. */
	mx_status (*begin)(struct mx_engine *e, const struct mx_step_item *items, uint32_t n);
	mx_status (*finish)(struct mx_engine *e, struct mx_step_result *results,
	                    struct mx_step_times *out_times);

	/* Saves the states of sequences that reached the end of their prompt, or an end that chunk
	 * asked for, to the prefix cache. Separate from finish, so that the results of a step are
	 * delivered first. Must be called after finish before any other call but close: a state can be
	 * saved only before the sequence's next step. */
	void (*save_snapshots)(struct mx_engine *e);

	/* Returns the tokens of the sequence (prompt and output), their number *out_n, and the number
	 * of tokens whose state is computed. */
	const struct mx_seq_tokens *(*tokens)(const struct mx_seq *s, uint32_t *out_n,
	                                      uint32_t *out_computed);

	/* Empties the prefix cache, but for pages that a sequence holds; a draft model's, too. */
	void (*drop_cache)(struct mx_engine *e);

	/* Returns the events of the prefix cache (engine/kv_events.h); NULL if info.kv_events is not
	 * set. Any thread. */
	struct mx_kv_events *(*kv_events)(const struct mx_engine *e);

	/* Describes rank number i of this process; false if there is none, or only one. Any thread. */
	bool (*rank)(const struct mx_engine *e, uint32_t i, struct mx_engine_rank *out);

	/* Frees everything; no sequence may be open. Takes NULL. */
	void (*destroy)(struct mx_engine *e);
};

/* First member of every engine. */
struct mx_engine {
	const struct mx_engine_ops *ops;
};

#endif
