/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the engine of a model: plan the memory, then load. */
#ifndef MX_ENGINE_LOAD_H
#define MX_ENGINE_LOAD_H

#include "engine/engine.h"
#include "mixers/registry.h"
#include "model/plan.h"
#include "model/safetensors.h"

/* Left to the engine. */
#define MX_SNAPSHOT_MEMORY_AUTO SIZE_MAX
#define MX_SNAPSHOT_EVERY_AUTO  UINT32_MAX

/* What the operator asked for. */
struct mx_engine_config {
	const char *name;     /* for messages */
	const char *device;   /* "cpu", "cuda" or "cuda:N"; NULL = "cpu" */
	bool deterministic;   /* on devices that are not anyway: a row's bits depend on it alone */
	bool unrecorded;      /* steps are not recorded: for tests and benchmarks */
	unsigned threads;     /* of a CPU; 0 = one per usable CPU */
	uint32_t max_context; /* 0 = the model's own */
	size_t memory;        /* bytes for everything but the mapped weights; 0 = just enough for
	                       * max_sequences of max_context, at most half of what the mapped
	                       * weights leave of the host's (or the cgroup's) memory. Of a device
	                       * with memory of its own: bytes there, weights included; 0 = at most
	                       * nine tenths of what is free */
	size_t outside;       /* bytes that the process holds beside the engine, part of memory */
	uint32_t max_sequences;
	uint32_t step_tokens;
	uint32_t page_tokens; /* 0 = the default */
	int kv_dtype;         /* enum mx_dtype, or -1 = f32 for an f32 checkpoint, else bf16 */
	bool prefix_cache;
	/* For models with slots: bytes for saved states (part of memory), without which they have no
	 * prefix cache; and a state is saved at each multiple of so many tokens, 0 = only at ends. */
	size_t snapshot_memory;
	uint32_t snapshot_every;
};

/* Where the memory will go, in bytes; computed from config.json and tensor shapes alone. */
struct mx_memory_plan {
	bool own_memory;        /* the device has memory of its own: everything but `other` is there */
	char device[64];        /* its name then */
	size_t device_free;     /* what it has */
	size_t device_total;    /* what is taken of it */
	size_t weights_device;  /* copies of the checkpoint's matrices */
	size_t weights_mapped;  /* of the checkpoint file, shared with the page cache */
	size_t weights_private; /* converted copies (norms, biases) */
	size_t pages;           /* n_pages * page_bytes */
	size_t slots;           /* n_slots * slot_bytes */
	size_t snapshots;       /* n_snapshots * snapshot_bytes */
	size_t instances; /* what mixers allocate for themselves, and the most while one is created */
	size_t scratch;   /* activations, logits, operators' workspace */
	size_t other;     /* tables of pages and sequences, threads' stacks, what is outside */
	size_t total;     /* what the process will hold resident once warm */
	uint32_t n_pages, page_tokens;
	uint32_t n_slots; /* at most max_sequences: what the memory allows */
	size_t page_bytes, slot_bytes;
	uint32_t n_snapshots, snapshot_every;
	bool snapshots_short;  /* the operator's snapshot_every lets a longest sequence leave more */
	size_t snapshot_bytes; /* of a slot and of the page that is begun */
	struct mx_engine_mixer mixers[MX_ENGINE_MAX_MIXERS];
	uint32_t n_mixers;
};

/* Sequences of `tokens` tokens that fit at once. */
uint32_t mx_memory_sequences(const struct mx_memory_plan *p, uint32_t tokens);

/* Checks every tensor and parameter and fills the plan; loads nothing. */
mx_status mx_engine_plan(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         struct mx_memory_plan *out, struct mx_err *err);

/* Called during loading with a fraction in 0..1. */
typedef void mx_progress_f(void *arg, double fraction);

/* Loads a model. Plan, checkpoint and registry must outlive the engine. */
mx_status mx_engine_load(const struct mx_plan *plan, const struct mx_checkpoint *checkpoint,
                         const struct mx_registry *mixers, const struct mx_engine_config *config,
                         mx_progress_f *progress, void *progress_arg, struct mx_engine **out,
                         struct mx_err *err);

#endif
