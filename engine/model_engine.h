/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model engine: an engine (core.h) with a device and a resolved model. On CPUs one mapping
 * holds norms, biases, slots, pages, snapshots and scratch. A device with its own memory has these
 * and the matrices in one allocation there, and the mapping holds the host's buffers.
 *
 * load.c builds the engine. model_engine.c implements its table and runs a step; launch.c does so
 * on an asynchronous device; step_layout.c fills the step's spans and tables, page_table.c keeps
 * the page lists there. forward.c runs the layers, with norm.c, mlp.c for feed-forwards and
 * experts.c for mixtures of them; resume.c resumes sequences that were loaded from snapshots.
 * logits.c turns hidden states into tokens and log-probabilities.
 */
#ifndef MX_ENGINE_MODEL_ENGINE_H
#define MX_ENGINE_MODEL_ENGINE_H

#include "engine/core.h"
#include "engine/mask_workers.h"
#include "engine/memory.h"
#include "engine/touch.h"

/* A recorded decode step. */
struct mx_bucket {
	uint32_t rows, spans; /* most rows and sequences of a step that replays it */
	uint32_t longest;     /* most tokens of a sequence; 1 = there are no drafts */
	bool trees;           /* drafts are trees, or chains beside them */
	bool gathers;         /* it makes the logits of `spans` listed rows, else of all rows */
	struct mx_recording *recording;
	struct mx_recording *follow; /* the head's part of such a step; NULL = the model has no head */
	struct mx_recording *draft;  /* without drafts: a draft of the head; likewise */
	struct mx_tables host, device;  /* the step's tables, as the host writes and the device reads */
	struct mx_device_tables tables; /* the same as `device`, for the mixers */
	size_t bytes;                   /* of the tables */
};

/* Rows of the buckets: 1, 2, 4, 8, 12, 16, 24 .. 64, 80 .. 128, 160 .. 256, 320 .. 512. Behind
 * them, with drafts: 1, 2, 4, 8 .. 256 sequences of 2, 3, 4, 5, 7 and 9 rows each, and, if there
 * may be trees, as many with trees. */
#define MX_MAX_BUCKETS       (24 + 2 * (8 + 9 * 6))
#define MX_MAX_DRAFTED_SPANS 256
#define MX_MAX_DRAFTED_ROWS  512

/* Most forward passes that are repeated to find out why a result is not finite. */
#define MX_MAX_DIAGNOSES 16

/* What is known of results that are not finite. */
struct mx_diagnosis {
	char text[256];   /* of the latest diagnosis: names layer and tensor */
	char later[320];  /* cause of results that are not diagnosed themselves */
	uint32_t n;       /* diagnoses so far */
	bool weight;      /* a weight is to blame: no pass is repeated any more */
	uint32_t suspect; /* while a pass is repeated: the first stage that is not finite */
};

struct mx_ranks;

/* How far a rank has resumed a slot: see mx_forward_resume. */
struct mx_resume_point {
	uint32_t module, progress;
	bool done, left; /* left: another rank is not done */
};

struct mx_model_engine {
	struct mx_core core; /* without sequences and tables, but of rank 0 */
	struct mx_device *device;
	struct mx_comm *comm;            /* of the ranks' devices; NULL = there are no other ranks */
	struct mx_comm *calls;           /* of the ranks' threads (ranks.h): on CPUs the same */
	struct mx_comm *context;         /* with the ranks that share pages; NULL = none do */
	struct mx_ranks *ranks;          /* rank 0: the other ranks (ranks.h); NULL = there are none */
	struct mx_resume_point *resumes; /* [n_slots], owned; NULL = one rank, or nothing to resume */
	struct mx_model model;
	bool trees;                 /* drafts may be trees: asked for, and every mixer takes them */
	struct mx_memory_plan plan; /* of the memory that it has, of all ranks together */
	struct mx_step_limits limits;
	struct mx_scratch scratch;
	unsigned char *map; /* mx_map */
	size_t map_bytes;
	struct mx_toucher toucher;
	unsigned char *arena;  /* the engine's allocation in the device's own memory; NULL on CPUs */
	unsigned char *tables; /* the step's tables, in host memory that the device copies from */
	unsigned char *moves_memory; /* likewise, that of `moves`; NULL on CPUs, and without a head */
	struct mx_head_moves moves;  /* as the host writes them */
	unsigned char *pooling;      /* hidden states that the device was asked for; NULL on CPUs */
	unsigned char *slots;        /* [max_sequences, slot_bytes] in the arena, or else in the map */
	unsigned char *pages;        /* [n_pages, page_bytes] likewise */
	unsigned char *snapshots; /* [n_snapshots, snapshot_bytes] likewise; a saved slot and a page */

	struct mx_bucket buckets[MX_MAX_BUCKETS]; /* those without drafts first, in ascending order */
	uint32_t n_recorded;                      /* number of buckets */
	uint64_t recording_ns;                    /* time that warming up and recording took */

	/* The step that runs. */
	struct mx_step step;
	struct mx_device_tables step_tables; /* tables of a step that is not recorded */
	const struct mx_bucket *bucket;      /* the recording that it replays; NULL = none */
	const int32_t *ids;                  /* [n_rows] its tokens, in the device's memory */
	uint32_t n_wants;                    /* rows whose logits are needed: wants in scratch */
	uint32_t n_sample;                   /* the first n_sample of these rows are sampled */
	bool in_order;                       /* wants[i] is row i of the step, for all i */
	bool waves;                          /* a draw may depend on the draws in front of it */
	bool commit_waits;                   /* asynchronous: the results say what is committed */
	const void *hidden;                  /* [n_wants, width] their normed hidden states */
	struct mx_mask_workers *masks;       /* of its constrained sequences */
	bool drawing;                        /* the device samples all n_wants rows by itself */
	bool draw_waits;                     /* it is to be asked for that when the masks are made */
	uint64_t fed_ns;                     /* when the device was given the step's first work */
	uint64_t begin_ns;                   /* from begin to then */
	uint32_t n_computed, n_deferred;     /* items of the step; their places are in scratch.order */
	uint64_t resume_ns;                  /* time that resuming took */
	uint64_t usual_ns; /* time of the shorter steps in which all decode; 0 = not known */

	struct mx_diagnosis diagnosis;
	/* NULL, but while a pass is repeated: called by mx_forward with the rows that a stage has
	 * computed, [n_rows, width]. Stage 0 is the embedding, i + 1 is block i, n_own + 1 the final
	 * norm. A status other than MX_OK ends the pass. */
	mx_status (*probe)(struct mx_model_engine *e, uint32_t stage, const void *x, size_t n_rows);
	/* NULL, but in tests: called with the head's logits [vocab] of the token behind those of s,
	 * drafts included; in the device's memory, when they are computed. */
	void (*head_probe)(void *arg, const struct mx_seq *s, const float *logits);
	void *head_probe_arg;
};

extern const struct mx_engine_ops mx_model_engine_ops;
extern const struct mx_state_ops mx_model_state_ops;

/* Destroys the engine with its mixer instances and its device. Takes a half-built engine. */
void mx_model_engine_destroy(struct mx_engine *e);

struct mx_rank_call;

/* Runs all layers on the rows of the step and leaves the normed hidden states in scratch.x. ids[i]
 * = token of row i, in the device's memory. Of several ranks this is one rank's part. */
mx_status mx_forward(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids);
/* The same as what a rank is to do: of c->step and c->ids. */
mx_status mx_forward_rank(struct mx_model_engine *e, const struct mx_rank_call *c);

/* The same of blocks first .. end - 1 and a final norm, from the residual stream in scratch.h. */
mx_status mx_forward_blocks(struct mx_model_engine *e, const struct mx_step *step, uint32_t first,
                            uint32_t end, const struct mx_model_norm *final_norm);

/* Computes y: the norm of x, after x += r unless r is NULL; y may be x. */
mx_status mx_norm_run(struct mx_model_engine *e, const struct mx_model_norm *norm, void *x,
                      const void *r, size_t rows, void *y);

/* Computes y[rows, width] = the feed-forward of x[rows, width], or += if `add`. x is not y. */
mx_status mx_mlp_run(struct mx_model_engine *e, const struct mx_model_mlp *m,
                     const struct mx_linear_in *in, size_t rows, void *y, bool add);

/* Computes scratch.y[rows, width] = the mixture of experts of scratch.x[rows, width], which may be
 * overwritten. scratch.h are the hidden states. */
mx_status mx_experts_run(struct mx_model_engine *e, const struct mx_model_block *b, size_t rows);
/* The same on a device with memory of its own. */
mx_status mx_experts_run_device(struct mx_model_engine *e, const struct mx_model_block *b,
                                size_t rows);
/* Fills host[n_experts of the model] with where the experts' matrices are, block after block, and
 * notes that the device has these tables at `device`. */
void mx_experts_tables(struct mx_model *m, struct mx_expert_weights *host,
                       const struct mx_expert_weights *device);

/* experts_row.c, after the only row of a step chose its experts. Adds the outputs of these for x to
 * y, both [width of their inputs]. MX_E_UNSUPPORTED, and nothing is done: they cannot be computed
 * together, since they have biases or limits, weights of several types, or are too many. */
mx_status mx_experts_run_row(struct mx_model_engine *e, const struct mx_model_experts *m,
                             const float *x, float *y);

/* Computes scratch.aside[rows, width] = scratch.h plus the output of a block of the kind
 * MX_BLOCK_ASIDE. Overwrites scratch.x and scratch.y. aside.c */
mx_status mx_aside_run(struct mx_model_engine *e, const struct mx_model_block *b,
                       const struct mx_step *step);

/* head.c: the head for multi-token prediction. Writes what never changes to the device's memory. */
mx_status mx_head_prepare(struct mx_model_engine *e);
/* Computes the head's rows of a step, as mx_forward does the model's, whose hidden states are in
 * scratch.x: moves scratch.moves.follow[2 n_rows] and leaves the normed hidden states in scratch.x.
 */
mx_status mx_head_forward(struct mx_model_engine *e, const struct mx_step *step,
                          const int32_t *ids);
/* The same of a row of drafts of each sequence, with scratch.moves.draft [n_rows]. */
mx_status mx_head_draft(struct mx_model_engine *e, const struct mx_step *step, const int32_t *ids);
/* Computes the head's part of the step that the model has computed: of all rows, of which `results`
 * say how many stay. Keeps in the pages what later steps need of the model's hidden states, which
 * are in scratch.x and are overwritten. */
mx_status mx_head_follow(struct mx_model_engine *e, const struct mx_step_result *results);
/* Creates its source of drafts. MX_E_NOMEM. */
mx_status mx_draft_head_create(struct mx_model_engine *e, struct mx_draft_source **out);

/* Calls resume of a module for the spans of the step, which has no rows. *module and *progress are
 * 0 at first, and of no meaning to the caller. *out_done: nothing was left to do. MX_E_INTERNAL: a
 * mixer makes no progress. */
mx_status mx_forward_resume(struct mx_model_engine *e, const struct mx_step *step, uint32_t *module,
                            uint32_t *progress, bool *out_done);

/* Commits kept[n_spans] of the step, then settles. */
mx_status mx_forward_commit(struct mx_model_engine *e, const struct mx_step *step,
                            const struct mx_kept *kept);
/* The same as what a rank is to do: of c->step and c->kept. */
mx_status mx_forward_commit_rank(struct mx_model_engine *e, const struct mx_rank_call *c);

/* ---- what else a rank is to do (ranks.h), where devices are not asynchronous ---- */

/* model_state.c: clears a slot; saves it to a snapshot, with a page; loads it. */
mx_status mx_rank_clear(struct mx_model_engine *e, const struct mx_rank_call *c);
mx_status mx_rank_save(struct mx_model_engine *e, const struct mx_rank_call *c);
mx_status mx_rank_load(struct mx_model_engine *e, const struct mx_rank_call *c);
/* logits.c: computes logits of n rows that rank 0 has. */
mx_status mx_rank_logits(struct mx_model_engine *e, const struct mx_rank_call *c);
/* resume.c: resumes a part of a slot. */
mx_status mx_rank_resume(struct mx_model_engine *e, const struct mx_rank_call *c);
/* head.c: computes the head's part of a step, and a row of drafts. */
mx_status mx_rank_follow(struct mx_model_engine *e, const struct mx_rank_call *c);
mx_status mx_rank_draft(struct mx_model_engine *e, const struct mx_rank_call *c);

/* ---- resume.c: devices that are not asynchronous ---- */

/* Resumes sequences of core.items: all of them, or a part of the work. Takes those that are not
 * resumed yet out of core.items. */
mx_status mx_resume_items(struct mx_model_engine *e);
/* Puts the results of the n_computed items at the places of these items in the step, and fills
 * those of deferred ones. */
void mx_resume_results(struct mx_model_engine *e, struct mx_step_result *results);
/* Takes note of the time of a step without the work of mx_resume_items. */
void mx_resume_observe(struct mx_model_engine *e, uint64_t ns);

/* ---- logits.c, in the order of the calls; items are core.items, spans are scratch.spans ---- */

/* True if the logits buffer holds all rows of the step of core.items, and those to be reported once
 * more, and none is of a prompt: the device can draw the step without waiting for the host. */
bool mx_logits_fit(const struct mx_model_engine *e);
/* True if the step of core.items has drafts whose draws depend on those in front of them, or that
 * the device cannot draw by itself: they are drawn in waves (logits.c). */
bool mx_logits_waves(const struct mx_model_engine *e);
/* Finds the rows whose logits are needed: fills scratch.wants, n_wants, n_sample and in_order. */
void mx_logits_collect(struct mx_model_engine *e);
/* Writes the numbers of these rows to rows[n_wants]. */
void mx_logits_list(const struct mx_model_engine *e, uint32_t *rows);
/* Gathers their hidden states at e->hidden. `rows` is the list of mx_logits_list, in the device's
 * memory. */
mx_status mx_logits_gather(struct mx_model_engine *e, const uint32_t *rows);

/* Samples tokens, computes log-probabilities, and waits for both. Fills the results; sets the
 * status of those only that failed. Adds the nanoseconds to *times. */
mx_status mx_logits_run(struct mx_model_engine *e, struct mx_step_result *results,
                        struct mx_step_times *times);

/* True if the device can sample the step's tokens without waiting for the host: mx_logits_fit, and
 * there are no waves. Then mx_logits_launch and mx_logits_take replace mx_logits_run. */
bool mx_logits_simple(const struct mx_model_engine *e);
/* Asks the device for the logits, without waiting. */
mx_status mx_logits_launch(struct mx_model_engine *e);
/* Asks the device to sample, whose sampling parameters it knows, without waiting, and to keep what
 * is to be reported. */
mx_status mx_logits_draw(struct mx_model_engine *e);
/* Waits for the sampled tokens, and for their log-probabilities where these are reported, and fills
 * the results with them. */
mx_status mx_logits_take(struct mx_model_engine *e, struct mx_step_result *results);
/* Tells the device the sampling parameters of n >= n_wants rows; rows past n_wants are greedy. The
 * masks must have been made. */
mx_status mx_logits_describe(struct mx_model_engine *e, uint32_t n);
/* Computes scratch.logits of the n rows x[n, width]. */
mx_status mx_logits_make(struct mx_model_engine *e, const void *x, size_t n);
/* The same as one rank's part, of x that every rank has. */
mx_status mx_logits_make_part(struct mx_model_engine *e, const void *x, size_t n);

/* ---- pooling.c ---- */

/* Gives the sequences with pooling what the step computed of them, after its logits were taken;
 * fills the vectors of results. Sets the status of those only that are not finite. */
mx_status mx_pooling_run(struct mx_model_engine *e, struct mx_step_result *results);

/* ---- diagnose.c ---- */

/* Sets the cause of results that failed without one: because they are not finite. The first of them
 * is diagnosed: its pass is repeated, stage by stage, to find the layer and the tensor. The others
 * may have another cause and say what the latest diagnosis found; so does the first, once a weight
 * is to blame or MX_MAX_DIAGNOSES passes were repeated. To be called when the step is finished;
 * core.items is empty afterwards. */
void mx_diagnose(struct mx_model_engine *e, struct mx_step_result *results);

/* ---- launch.c: asynchronous devices ---- */

/* Warms the device up and records the decode steps, if the device can record. Called once, when the
 * engine is otherwise complete. */
mx_status mx_launch_prepare(struct mx_model_engine *e, struct mx_err *err);
/* Frees the recordings. */
void mx_launch_forget(struct mx_model_engine *e);

/* Launches the passes of core.items again, call by call, up to the hidden states. */
mx_status mx_launch_again(struct mx_model_engine *e);
/* Launches the step of core.items without waiting: everything up to the sampling of tokens, or up
 * to the hidden states if mx_logits_simple is false; and commit. If masks are not made yet, it ends
 * with the logits and sets draw_waits. */
mx_status mx_launch_step(struct mx_model_engine *e);
/* Launches the rest of such a step, when the masks are made. */
mx_status mx_launch_draw(struct mx_model_engine *e);

#endif
