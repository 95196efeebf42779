/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the memory of a model, and loads it: builds its engine. */
#ifndef MX_ENGINE_LOAD_H
#define MX_ENGINE_LOAD_H

#include "device/comm.h"
#include "device/hosts/hosts.h"
#include "engine/engine.h"
#include "mixers/registry.h"
#include "model/plan.h"
#include "model/safetensors.h"

/* The engine chooses. */
#define MX_SNAPSHOT_MEMORY_AUTO SIZE_MAX
#define MX_SNAPSHOT_EVERY_AUTO  UINT32_MAX

/* What proposes drafts (engine/draft.h). */
enum mx_speculation {
	MX_SPECULATION_NONE,
	MX_SPECULATION_NGRAM, /* prompt lookup */
	MX_SPECULATION_DRAFT, /* a draft model */
	MX_SPECULATION_MTP,   /* the model's head for multi-token prediction */
};

/* The operator's settings. */
struct mx_engine_config {
	const char *name;   /* for messages */
	const char *device; /* "cpu", "cuda" or "cuda:N"; NULL = "cpu" */
	/* Of several ranks: the device of each of this host; NULL = all are `device`, which is a CPU. A
	 * GPU may be named for several ranks, as a test of ranks (device/cuda/device_cuda.h). */
	const char *const *devices;
	bool deterministic; /* a row's bits do not depend on the other rows; always so on CPUs */
	bool unrecorded;    /* record no steps: for tests and benchmarks */
	unsigned threads;   /* of a CPU device; 0 = one per usable CPU */
	/* tensor times context devices compute the model together, each a part of every layer. Groups
	 * of `context` of them share the pages of the mixers that can (MX_MIXER_CONTEXT), whose heads
	 * are split over the groups. 0 = 1. */
	uint32_t tensor, context;
	/* The ranks are those of n_hosts hosts, in the order of the hosts, as many of each; `device`,
	 * `devices`, `threads` and `memory` are this host's. 0 = 1. `host` is this one's number, and
	 * `hosts` the connections to the others, which outlive the engine; not needed for a plan. */
	uint32_t n_hosts, host;
	struct mx_hosts *hosts;
	/* Of the load itself, which the caller leaves 0: which of the ranks, and how many have the same
	 * device. */
	uint32_t rank, sharers;
	uint32_t max_context; /* 0 = the model's own */
	size_t memory;        /* CPU: bytes for everything but the matrices; 0 = just enough for
	                       * max_sequences of max_context, at most half of what the matrices
	                       * leave of the host's (or the cgroup's) memory. Device with its own
	                       * memory: bytes there, weights included; 0 = at most nine tenths of
	                       * what is free */
	size_t outside;       /* bytes of the process outside the engine, counted in memory */
	uint32_t max_sequences;
	uint32_t step_tokens;
	uint32_t page_tokens; /* 0 = the default */
	int weight_bits;      /* round matrices to 8 or 4 bits; 0 = as the checkpoint has them */
	int kv_dtype;         /* enum mx_dtype, or -1 = f32 for an f32 checkpoint, else bf16 */
	bool copy_weights;    /* CPU: the matrices are copied to huge pages of the process */
	bool prefix_cache;
	bool kv_events; /* tell the changes of the prefix cache */
	enum mx_speculation speculation;
	uint32_t draft_tokens; /* with speculation: most drafts of a sequence in a step, 1 .. 8 */
	bool draft_tree;       /* with prompt lookup: drafts may be trees, if every mixer takes them */
	/* MX_SPECULATION_DRAFT: the draft model, whose tokens are the model's. Both outlive the engine.
	 * Its memory is part of `memory`: it has room for as many tokens and sequences, in proportion.
	 */
	const struct mx_plan *draft_plan;
	const struct mx_checkpoint *draft_checkpoint;
	/* Of an engine that is a draft model's own: most tokens of a tentative item, and whether it
	 * leaves what max_sequences of max_context do not need of `memory`. */
	uint32_t tentative;
	bool spare;
	/* The same: the model's device, whose threads it uses if that is a CPU; or NULL. */
	struct mx_device *beside;
	/* Models with slots only. */
	size_t snapshot_memory;  /* bytes for snapshots, part of memory; 0 = no prefix cache */
	uint32_t snapshot_every; /* tokens between two snapshots of a sequence; 0 = only at ends */
};

/* Returns how many devices compute the model together. */
static inline uint32_t mx_load_n_ranks(const struct mx_engine_config *config)
{
	return (config->tensor > 1 ? config->tensor : 1) * (config->context > 1 ? config->context : 1);
}

/* Returns how many of them this host has. */
static inline uint32_t mx_load_local_ranks(const struct mx_engine_config *config)
{
	return mx_load_n_ranks(config) / (config->n_hosts > 1 ? config->n_hosts : 1);
}

/* What one of several ranks has of a model; sizes in bytes of matrices. */
struct mx_rank_share {
	char device[64];    /* its name */
	size_t device_free; /* device with memory of its own: free before loading */
	unsigned threads;
	size_t mixers, mlps, experts, logits; /* experts: with their router, and shared ones */
	size_t made; /* copies of matrices, and converted vectors; those are counted above, too */
	uint32_t first_expert, n_experts; /* of a mixture; n_experts 0 = there is none, or none here */
	uint32_t first_token, tokens;     /* the logits' part of the vocabulary */
};

/* One of the ways in which the ranks of a model could divide it. */
struct mx_rank_layout {
	uint32_t tensor, context;
	/* Of the rank with the most, in bytes: */
	size_t matrices;   /* that it multiplies with */
	size_t states;     /* pages and slot of a sequence of max_context */
	char refused[200]; /* why the model cannot be divided so; "" = it can */
};

#define MX_MAX_LAYOUTS 12 /* ways to write MX_MAX_RANKS or less as a product */

/* The use of memory, in bytes; computed from config.json and tensor shapes alone. */
struct mx_memory_plan {
	bool own_memory;       /* the device has its own memory, which holds all but `other` */
	char device[64];       /* own_memory: the device's name */
	size_t device_free;    /* own_memory: free before loading */
	size_t device_total;   /* own_memory: used by the engine; of ranks: on the first one's device */
	size_t weights_device; /* copies of the matrices in the devices' memory */
	size_t weights_mapped; /* mapping of the checkpoint file, shared with the page cache */
	size_t weights_private; /* converted copies (norms, biases) */
	size_t weights_made;    /* CPU: copies of matrices: in another form, packed, or on huge pages */
	size_t pages;           /* n_pages * page_bytes */
	size_t slots;           /* n_slots * slot_bytes */
	size_t snapshots;       /* n_snapshots * snapshot_bytes */
	size_t instances;       /* allocated by mixer instances, and the most while one is created */
	size_t scratch;         /* activations, logits, operators' workspace */
	size_t other;           /* tables of pages and snapshots, threads' stacks, config's `outside` */
	size_t head_page;    /* with a head for multi-token prediction: its bytes of a page; else 0 */
	size_t draft;        /* all of the draft model */
	size_t draft_mapped; /* part of it: mapping of its checkpoint file */
	size_t total;        /* resident memory of the process once warm */
	uint32_t n_pages, page_tokens;
	uint32_t n_slots; /* as many as the memory allows, at most max_sequences */
	size_t page_bytes, slot_bytes;
	uint32_t n_snapshots, snapshot_every;
	bool snapshots_short;  /* config's snapshot_every asks for more than n_snapshots from one
	                        * sequence of max_context */
	size_t snapshot_bytes; /* of a saved slot and a page */
	struct mx_engine_mixer mixers[MX_ENGINE_MAX_MIXERS];
	uint32_t n_mixers;
	/* All sizes are those of all ranks of this host together; of each rank, with several: */
	uint32_t hosts;           /* 1 = all ranks are of one */
	uint32_t ranks, contexts; /* contexts: the ranks that share a page; 1 = none do */
	unsigned rank_threads;    /* of the first; others may have one less */
	size_t rank_weights;      /* matrices that it multiplies with, mapped or made */
	size_t rank_made;         /* those that are copies, and converted vectors */
	size_t rank_page_bytes, rank_slot_bytes, rank_snapshot_bytes;
	size_t rank_scratch;
	/* [ranks] by mx_engine_plan only. Each multiplies with its own matrices; the embedding, and
	 * what is not split, are mapped once. */
	struct mx_rank_share shares[MX_MAX_RANKS];
	/* [n_layouts] by mx_engine_plan only, with several ranks: the ways for as many, by falling
	 * tensor. A decode step reads matrices and states, so the best of those that the model allows
	 * is that with the least of both, and of equal ones the first, which exchanges less. */
	struct mx_rank_layout layouts[MX_MAX_LAYOUTS];
	uint32_t n_layouts, best_layout;
};

/* Returns the bytes that this process may use: the host's memory, or its cgroup's limit if less. */
size_t mx_host_memory(void);

/* Returns how many sequences of `tokens` tokens fit at a time. */
uint32_t mx_memory_sequences(const struct mx_memory_plan *p, uint32_t tokens);

/* Checks every tensor and parameter and fills the plan; loads nothing. */
mx_status mx_engine_plan(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         struct mx_memory_plan *out, struct mx_err *err);

/* Called during loading: `done` of `all` bytes of weights and memory are ready. */
typedef void mx_progress_f(void *arg, size_t done, size_t all);

/* Loads a model. Plan, checkpoint and registry must outlive the engine. */
mx_status mx_engine_load(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         mx_progress_f *progress, void *progress_arg, struct mx_engine **out,
                         struct mx_err *err);

/* Of an engine that was loaded as another host than host 0: runs what host 0 calls, until that
 * ends, and returns MX_OK. MX_E_DEVICE: the hosts are lost. Such an engine has no sequences:
 * besides this, only destroy may be called. */
mx_status mx_engine_follow(struct mx_engine *engine);

/* Waits until all memory of the plan is resident, which a background thread sees to. For
 * benchmarks; a thread that has the engine to itself. */
void mx_engine_wait_resident(struct mx_engine *engine);

#endif
