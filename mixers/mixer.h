/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mixer contract, version 2. Installed. A mixer out of tree needs this header, the headers of
 * base/ and device/ that it includes, and `pkg-config mixd`; docs/mixer-template is a complete one.
 *
 * A mixer mixes along the sequence: softmax attention, a linear recurrence, a long convolution. A
 * module is a shared object with the table of one mixer (struct mx_mixer_ops) for one kind of
 * device. An instance (struct mx_mixer) belongs to one layer of one model. It maps the layer's
 * normalised hidden states [rows, width] to outputs of the same shape. The engine does the residual
 * add, the norm before the mixer and the feed-forward after it.
 *
 * A step computes the new tokens of several sequences at once. Each sequence contributes a span of
 * consecutive tokens; the spans' tokens are the rows of the step. The model's engine thread calls,
 * in this order:
 * - forward, for each layer: the outputs of the step's rows. What a draft span writes is tentative.
 * - commit, for all layers of the module: some tokens of each span stay, the others are taken back.
 *   Afterwards the sequence behaves as if it had only ever seen the tokens that stay.
 * - settle, for all layers of the module: deferred work whose inputs are now final.
 *
 * Equalities that every mixer must keep, bit for bit (mixd-test-mixer checks them):
 * - a prompt in one span = in spans of any lengths = token by token;
 * - a sequence alone = in any batch, with any number of threads;
 * - after commit = never having seen the tokens that were taken back;
 * - computed again after its memory was given back = computed once;
 * - saved and loaded, or forked = never interrupted.
 *
 * So reduce in a fixed order per row, and put block borders at absolute positions: never relative
 * to the span, the batch or the thread count.
 *
 * A mixer allocates in create and prepare only. The engine owns the state of sequences:
 * - Pages hold bytes_per_token * page_tokens bytes each. A sequence's pages are listed in order of
 *   position. A page is full when all of its tokens are committed; a full page may then be shared,
 *   read-only, by sequences with the same prefix (MX_MIXER_SHARE_PAGES). Pages ahead of the
 *   position (see extent) are never shared.
 * - Slots hold fixed_bytes each; a sequence has one. A slot is zeroed when a sequence begins.
 *
 * All other memory is handed out dirty. A mixer must not read what it has not written.
 *
 * A mixer with a slot takes part in the prefix cache if its state can be saved:
 * - save copies what the committed tokens 0 .. pos-1 have made of a slot to a snapshot.
 * - load fills a slot from a snapshot, at pos or at pos - 1: the logits of a prompt's last token
 *   need that token computed again. So a snapshot must hold what it takes to go on one token
 *   earlier. A slot that was loaded at pos - 1 is saved again only after pos is reached.
 * - resume rebuilds what load or fork left out, now that the sequence's pages are there.
 *
 * MX_MIXER_ABI counts incompatible changes; a module of another version is refused. A module
 * exports `const struct mx_mixer_ops *mx_mixer_module_v2(void)`. Versions:
 * - 1 (2026-11): the first.
 * - 2 (2026-11): host vectors in create; prepare; resume; workspace for settle; the longest span;
 *   struct mx_kept and parents of draft tokens; slices of weights; the rank of a layer; the output
 *   type of a product; quantised matrices; outputs that are added, and norms left to the mixer;
 *   pages that several ranks share.
 */
#ifndef MX_MIXERS_MIXER_H
#define MX_MIXERS_MIXER_H

#include "base/status.h"
#include "device/comm.h"
#include "device/device.h"
#include "mixers/params.h"
#include "mixers/share.h"

#define MX_MIXER_ABI           2
#define MX_MIXER_MODULE_SYMBOL "mx_mixer_module_v2"

/* One layer as its mixer sees it before anything is allocated. */
struct mx_layer_desc {
	uint32_t index, n_layers; /* number of this layer, of how many in the model */
	uint32_t width;           /* hidden size */
	uint32_t max_context;     /* longest sequence, in tokens */
	uint32_t max_rows;        /* most rows of a step */
	uint32_t max_spans;       /* most spans of a step */
	uint32_t max_draft;       /* most tokens of a draft span; 0 = there are no draft spans */
	/* This device's share of the layer: rank of ranks; 0 of 1 = all of it. Others only with
	 * MX_MIXER_RANKS: the mixer then takes the parts of tensors that belong to its share (heads,
	 * channels), and its y is a summand: the engine adds up those of all ranks. */
	uint32_t rank, ranks;
	/* The ranks that share a page; above 1 only with MX_MIXER_CONTEXT. Groups of `contexts`
	 * neighbouring ranks then have the same heads, and each rank of a group stores an equal number
	 * of the tokens of every page; which ones is the mixer's choice. y stays a summand of all
	 * ranks. Draft spans have no parents then. 0 or 1 = every rank stores whole pages. */
	uint32_t contexts;
	enum mx_dtype weight_dtype; /* the checkpoint's */
	enum mx_dtype state_dtype;  /* as configured for per-token states such as keys and values */
	struct mx_params params;    /* the mixer's own parameters, see its README */
};

/* Returns the ranks that share a page of the layer. */
static inline uint32_t mx_layer_contexts(const struct mx_layer_desc *layer)
{
	return layer->contexts > 1 ? layer->contexts : 1;
}

/* ---- what a mixer declares, as pure functions of the layer ---- */

enum mx_weight_form {
	MX_WEIGHT_MATRIX, /* an operand of mx_ops.linear; quantised if the operator wants or the
	                   * checkpoint is */
	MX_WEIGHT_VECTOR, /* converted to f32 */
	MX_WEIGHT_PLAIN,  /* a matrix whose elements the mixer reads itself: never quantised */
};

/* Indices [first, first + n) of one axis of a tensor. */
struct mx_weight_slice {
	uint32_t axis;
	uint64_t first, n;
};

#define MX_WEIGHT_MAX_SLICES 8

/* A tensor, or a part of one, that the layer needs. */
struct mx_weight_spec {
	/* Name below the layer's prefix, e.g. "q_proj.weight". A leading '/' makes it a name in the
	 * whole model, e.g. "/model.lower_bounds". Static, or owned by params. */
	const char *name;
	enum mx_weight_form form;
	uint32_t ndim;
	uint64_t shape[4]; /* of the tensor in the file, whatever part is wanted */
	bool optional;     /* an absent tensor gives a NULL pointer instead of an error */
	/* The parts that are wanted, one behind the other; none = the whole tensor. Several specs may
	 * name parts of one tensor. The engine takes one slice of axis 0 and, of a matrix with two
	 * axes, one of axis 1; it refuses others with MX_E_UNSUPPORTED. */
	uint32_t n_slices;
	struct mx_weight_slice slices[MX_WEIGHT_MAX_SLICES];
};

#define MX_MIXER_MAX_WEIGHTS 32

/* The spec of a whole tensor: MX_WEIGHT_SPEC("conv1d.weight", VECTOR, {channels, 1, taps}). */
#define MX_WEIGHT_SPEC(tensor, kind, ...)                                                          \
	((struct mx_weight_spec){.name = (tensor),                                                     \
	                         .form = MX_WEIGHT_##kind,                                             \
	                         .ndim = sizeof((uint64_t[])__VA_ARGS__) / sizeof(uint64_t),           \
	                         .shape = __VA_ARGS__})

/* `spec` for indices [first, first + n) of one axis of its tensor only; as it is, if that is all.
 */
static inline struct mx_weight_spec mx_weight_spec_part(struct mx_weight_spec spec, uint32_t axis,
                                                        uint64_t first, uint64_t n)
{
	if (n < spec.shape[axis])
		spec.slices[spec.n_slices++] = (struct mx_weight_slice){axis, first, n};
	return spec;
}

/* `spec` for rows [first, first + n) of its tensor only. */
static inline struct mx_weight_spec mx_weight_spec_rows(struct mx_weight_spec spec, uint64_t first,
                                                        uint64_t n)
{
	spec.slices[spec.n_slices++] = (struct mx_weight_slice){0, first, n};
	return spec;
}

/* Returns a rank's share of the tensor that `whole` is the spec of without ranks. own: the rank's
 * heads (or channels, or groups) of the layer. share: the same spec, with the sizes of these heads
 * in its shape, or in its slice of rows. */
static inline struct mx_weight_spec mx_weight_spec_share(struct mx_weight_spec whole,
                                                         const struct mx_weight_spec *share,
                                                         struct mx_share own)
{
	if (whole.n_slices) {
		const uint64_t n = share->slices[0].n;
		whole.slices[0].n = n;
		whole.slices[0].first += n / own.n * own.first;
		return whole;
	}
	for (uint32_t i = 0; i < whole.ndim; i++) {
		const uint64_t n = share->shape[i];
		whole = mx_weight_spec_part(whole, i, n / own.n * own.first, n);
	}
	return whole;
}

struct mx_state_spec {
	size_t bytes_per_token; /* bytes of one token in the layer's part of a page; 0 = no pages */
	size_t fixed_bytes;     /* bytes of the layer's part of a slot; 0 = no slots */
	uint32_t page_multiple; /* init->page_tokens must be a multiple of this; 0 = any */
	size_t scratch_bytes;   /* of step->scratch: workspace of one call, shared by all layers */
	size_t settle_bytes;    /* of init->settle_scratch: workspace of settle; see there */
	size_t snapshot_bytes;  /* of a saved slot; 0 = cannot be saved, or there is no slot */
	size_t
		instance_bytes;  /* that create and prepare allocate and keep, in the device's memory if it
	                      * has its own; what is small beside the weights need not be counted */
	size_t create_bytes; /* that create allocates besides and frees, for one layer at a time */
};

enum {
	MX_MIXER_CPU = 1u << 0,   /* runs on CPU devices */
	MX_MIXER_CUDA = 1u << 1,  /* runs on CUDA devices */
	MX_MIXER_DRAFT = 1u << 2, /* takes draft spans, and commit of fewer tokens than computed */
	MX_MIXER_SHARE_PAGES = 1u << 3, /* full pages of a common prefix can be shared */
	MX_MIXER_FORK = 1u << 4,        /* a slot can be copied to another sequence */
	MX_MIXER_SETTLE = 1u << 5,      /* has work in settle */
	MX_MIXER_SNAPSHOT = 1u << 6,    /* a slot can be saved and loaded */
	MX_MIXER_EXTENT = 1u << 7,      /* needs other pages than those of the sequence's tokens */
	MX_MIXER_RESUME = 1u << 8,      /* has work in resume */
	MX_MIXER_TREE = 1u << 9,        /* takes draft spans whose tokens have parents */
	MX_MIXER_RANKS = 1u << 10,      /* a layer can be one of several ranks' shares */
	MX_MIXER_ADD = 1u << 11,        /* obeys step->add */
	MX_MIXER_NORM = 1u << 12,       /* obeys step->norm */
	MX_MIXER_CONTEXT = 1u << 13,    /* a page of a layer can be shared by several ranks */
};

/* ---- a step ---- */

enum mx_span_kind {
	MX_SPAN_PREFILL, /* tokens of a prompt; all of them stay */
	MX_SPAN_DECODE,  /* one token, which stays */
	MX_SPAN_DRAFT,   /* 1 .. max_draft tokens, of which commit keeps some or none */
};

/* The new tokens of one sequence: rows row .. row + n - 1 of the step. */
struct mx_span {
	uint32_t row, n;
	uint32_t pos;     /* absolute position of the first token; earlier tokens are committed */
	uint32_t max_len; /* the sequence will never be longer than this */
	enum mx_span_kind kind;
	uint32_t slot; /* index of the sequence's slot */
	/* [n_pages] page numbers in order of position: at least those that extent asks for at pos + n
	 * tokens. Pages that extent does not ask for at pos may be gone: UINT32_MAX. */
	const uint32_t *pages;
	uint32_t n_pages;
	/* [n], only with MX_MIXER_TREE and at most MX_TREE_TOKENS tokens: each token's parent, an
	 * earlier token of the span, or UINT32_MAX for the token before the span. A token sees its
	 * ancestors only, and its position is one more than its parent's. What it leaves before commit
	 * belongs where token i of a chain would leave it, pos + i. NULL: each token's parent is the
	 * token before it. */
	const uint32_t *parent;
};

/* Most tokens of a span with parents. */
#define MX_TREE_TOKENS 16

/* A span as a kernel reads it. */
struct mx_device_span {
	uint32_t row, n; /* n = 0: padding of a recorded step; nothing may be written for it */
	uint32_t pos, slot;
	uint32_t page_begin, n_pages; /* the span's part of mx_device_tables.pages */
	uint32_t max_len, kind;
	uint32_t parent_begin; /* the span's part of mx_device_tables.parents; UINT32_MAX = NULL */
};

/* The arrays of a step in the memory of a device that has its own (info.own_memory), at addresses
 * that never change. A recorded step is captured once, with the numbers of rows and spans that it
 * was recorded for, and replayed with other contents: so kernels read all that differs between
 * steps from these tables, and take only n_rows, n_spans and longest from the call. */
struct mx_device_tables {
	const uint32_t *pos;                /* [n_rows] absolute position of each row */
	const uint32_t *row_span;           /* [n_rows] index of the row's span */
	const struct mx_device_span *spans; /* [n_spans] */
	const uint32_t *pages;              /* page lists: a span's begins at its page_begin */
	const uint32_t *parents;            /* the spans' parents, likewise; NULL = no span has any */
};

struct mx_step {
	const struct mx_span *spans; /* [n_spans] */
	uint32_t n_spans, n_rows;
	uint32_t longest;    /* tokens of the longest span */
	const uint32_t *pos; /* [n_rows] absolute position of each row, in host memory */
	void *scratch;       /* scratch_bytes, dirty, aligned to the device's info.align */
	const struct mx_device_tables *tables; /* NULL if the host's memory is the device's */
	bool recording; /* the step is being captured: the spans' contents come with each replay */
	bool add;       /* MX_MIXER_ADD: forward adds its outputs to y */
	/* MX_MIXER_NORM: x stands for rmsnorm(x) * norm, for the device's linear_normed, which the
	 * device has then. norm_room: [n_rows, width] for it. norm NULL = x as it is. */
	const float *norm;
	float norm_eps;
	void *norm_room;
};

/* The tokens of a span that stay. */
struct mx_kept {
	uint32_t n;
	/* [n] the tokens that stay, numbers within the span, each the parent of the next; token path[j]
	 * then has position pos + j. NULL: the first n; always so for a span without parents. */
	const uint32_t *path;
};

/* ---- an instance ---- */

struct mx_mixer; /* the module's own; its first member must be struct mx_mixer_base */

struct mx_mixer_base {
	const struct mx_mixer_ops *ops;
	uint32_t layer;
};

/* The arguments of create. Weights and state memory outlive the instance. */
struct mx_mixer_init {
	const struct mx_layer_desc *layer; /* valid during create only */
	struct mx_device *device;
	/* [specs] in the order of the specs: struct mx_weight * of a matrix, float * of a vector, in
	 * the device's memory; NULL if absent. */
	const void *const *weights;
	/* [specs] the vectors once more, in the host's memory, valid during create only: for values
	 * that create computes. NULL for matrices and absent tensors. */
	const float *const *host_vectors;
	/* Page p of this layer begins at page_base + p * page_stride and holds page_tokens *
	 * bytes_per_token bytes; slot s begins at slot_base + s * slot_stride. Aligned to info.align.
	 * page_tokens are the tokens of a page that this rank stores: all, or with layer->contexts its
	 * part. */
	unsigned char *page_base;
	size_t page_stride;
	uint32_t page_tokens;
	unsigned char *slot_base;
	size_t slot_stride;
	/* Workspace for settle, the most that any layer of the module asked for: one for all layers of
	 * the module, not used by other modules. step->scratch is reused by the next forward, which may
	 * begin before settle's work on another stream is done; this is not. NULL if none asked for
	 * any. */
	void *settle_scratch;
	/* With the layer's other ranks, for sums over the whole layer; NULL = there are none. Every
	 * rank makes the same calls in forward. */
	struct mx_comm *comm;
	/* With the group of ranks that share pages, in the order of their numbers; NULL =
	 * layer->contexts is not above 1. */
	struct mx_comm *context;
};

struct mx_mixer_ops {
	uint32_t abi;         /* MX_MIXER_ABI */
	uint32_t struct_size; /* sizeof(struct mx_mixer_ops) when the module was built */
	const char *name;     /* as in configs: "attention" */
	const char *summary;  /* one line for people */
	uint32_t caps;        /* MX_MIXER_* */

	/* Checks the layer's parameters; *err says which one is wrong. Pure. Any thread. */
	mx_status (*probe)(const struct mx_layer_desc *layer, const struct mx_device *device,
	                   struct mx_err *err);

	/* Lists the tensors that the layer needs: specs [MX_MIXER_MAX_WEIGHTS] is zeroed, *out_n
	 * receives their number. Pure; called only after probe succeeded. */
	mx_status (*weights)(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
	                     size_t *out_n);

	/* Tells the memory that the layer needs on that device; *out is zeroed. Pure; called only after
	 * probe succeeded. */
	mx_status (*state)(const struct mx_layer_desc *layer, const struct mx_device *device,
	                   struct mx_state_spec *out);

	/* MX_MIXER_EXTENT, for layers with pages. For a sequence that will never be longer than
	 * max_len: before a step that ends at n tokens it must have pages for positions < *out_end;
	 * once n tokens are committed it needs those of positions < *out_first no more. Neither falls
	 * as n grows; 1 <= n <= max_len and *out_first <= n <= *out_end <= max_len. While a sequence
	 * runs, the engine frees pages only if it was computed from its beginning and is neither saved
	 * nor forked. Pure. */
	void (*extent)(const struct mx_layer_desc *layer, uint32_t n, uint32_t max_len,
	               uint32_t *out_first, uint32_t *out_end);

	/* Creates the instance of one layer. May allocate and take its time. *out only on MX_OK. */
	mx_status (*create)(const struct mx_mixer_init *init, struct mx_mixer **out,
	                    struct mx_err *err);

	/* Called once, after the last create and before the first step is recorded or run, with all
	 * layers of the module in layer order: for what layers share (tables, plans, kernels'
	 * attributes). May allocate and take its time. */
	mx_status (*prepare)(struct mx_mixer *const *layers, uint32_t n_layers, struct mx_err *err);

	/* Destroys an instance. Takes NULL and half-built ones. */
	void (*destroy)(struct mx_mixer *m);

	/* y[n_rows, width] from x[n_rows, width], both of the device's activation dtype and never the
	 * same memory. Must not allocate, sleep or log. An error fails the step's requests. */
	mx_status (*forward)(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

	/* kept[i] lists the tokens of step->spans[i] that stay. There is an entry for every span, also
	 * for one whose tokens all stay. */
	mx_status (*commit)(struct mx_mixer *const *layers, uint32_t n_layers,
	                    const struct mx_step *step, const struct mx_kept *kept);

	/* MX_MIXER_SETTLE: deferred work, once a step, after commit. On CPUs the step's tokens are
	 * drawn by then but not yet delivered: time spent here delays them. */
	mx_status (*settle)(struct mx_mixer *const *layers, uint32_t n_layers,
	                    const struct mx_step *step, const struct mx_kept *kept);

	/* MX_MIXER_FORK: copies the slot of one sequence to that of another, at the position reached.
	 * Between steps. The engine does not fork yet: further answers to a prompt load its snapshot.
	 */
	mx_status (*fork)(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
	                  uint32_t to_slot);

	/* MX_MIXER_SNAPSHOT: copies slot `slot` to snapshots: out[i] takes layer i's snapshot_bytes,
	 * every one of which is written. pos >= 1 is the number of committed tokens. After a load at
	 * pos - 1 at least one token has been committed since. Between steps. */
	mx_status (*save)(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
	                  uint32_t pos, void *const *out);

	/* MX_MIXER_SNAPSHOT: fills slot `slot`, whatever it holds, from the snapshots in[i]. The
	 * sequence goes on at `pos`: the position of the save, or one less. Between steps. */
	mx_status (*load)(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
	                  uint32_t pos, const void *const *in);

	/* MX_MIXER_RESUME: rebuilds what load or fork left out, for the sequences of step->spans.
	 * Called before the first forward of each such sequence, never while recording. The step has no
	 * rows: each span has n = 0, pos is where the sequence goes on, and pages are those of the
	 * forward that follows. A call may do a part of the work. *progress is 0 at the first call;
	 * each call changes it, to MX_RESUMED when all is done, else to a number that the mixer
	 * chooses. The engine calls again with the same spans until all is done; in between, it may run
	 * steps of other sequences. */
	mx_status (*resume)(struct mx_mixer *const *layers, uint32_t n_layers,
	                    const struct mx_step *step, uint32_t *progress);

	/* Writes one line about the instance and the kernels it chose, for logs: at most cap bytes with
	 * the NUL. */
	void (*describe)(const struct mx_mixer *m, char *text, size_t cap);
};

#define MX_RESUMED UINT32_MAX

typedef const struct mx_mixer_ops *mx_mixer_module_f(void);

/* ---- defaults: a table is complete; a mixer puts these where it has nothing to do ---- */

/* A page for every token, as long as the sequence lives. */
static inline void mx_mixer_extent_all(const struct mx_layer_desc *layer, uint32_t n,
                                       uint32_t max_len, uint32_t *out_first, uint32_t *out_end)
{
	(void)layer, (void)max_len;
	*out_first = 0;
	*out_end = n;
}

static inline mx_status mx_mixer_prepare_nothing(struct mx_mixer *const *layers, uint32_t n_layers,
                                                 struct mx_err *err)
{
	(void)layers, (void)n_layers, (void)err;
	return MX_OK;
}

static inline mx_status mx_mixer_commit_nothing(struct mx_mixer *const *layers, uint32_t n_layers,
                                                const struct mx_step *step,
                                                const struct mx_kept *kept)
{
	(void)layers, (void)n_layers, (void)step, (void)kept;
	return MX_OK;
}

static inline mx_status mx_mixer_settle_nothing(struct mx_mixer *const *layers, uint32_t n_layers,
                                                const struct mx_step *step,
                                                const struct mx_kept *kept)
{
	(void)layers, (void)n_layers, (void)step, (void)kept;
	return MX_OK;
}

static inline mx_status mx_mixer_fork_unsupported(struct mx_mixer *const *layers, uint32_t n_layers,
                                                  uint32_t from_slot, uint32_t to_slot)
{
	(void)layers, (void)n_layers, (void)from_slot, (void)to_slot;
	return MX_E_UNSUPPORTED;
}

static inline mx_status mx_mixer_save_unsupported(struct mx_mixer *const *layers, uint32_t n_layers,
                                                  uint32_t slot, uint32_t pos, void *const *out)
{
	(void)layers, (void)n_layers, (void)slot, (void)pos, (void)out;
	return MX_E_UNSUPPORTED;
}

static inline mx_status mx_mixer_load_unsupported(struct mx_mixer *const *layers, uint32_t n_layers,
                                                  uint32_t slot, uint32_t pos,
                                                  const void *const *in)
{
	(void)layers, (void)n_layers, (void)slot, (void)pos, (void)in;
	return MX_E_UNSUPPORTED;
}

static inline mx_status mx_mixer_resume_nothing(struct mx_mixer *const *layers, uint32_t n_layers,
                                                const struct mx_step *step, uint32_t *progress)
{
	(void)layers, (void)n_layers, (void)step;
	*progress = MX_RESUMED;
	return MX_OK;
}

#endif
