/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mixer contract, version 1. Installed; a mixer out of tree needs this
 * header, those of device/ and base/ that it includes, and `pkg-config mixd`.
 *
 * A mixer instance belongs to one layer of one model. It takes the layer's
 * normalised hidden states [rows, width] and returns the same shape; the
 * residual, the norm before it and the feed-forward after it are the engine's.
 *
 * A step has three phases, called by the engine thread of the model only:
 *   forward  outputs of this step's rows, layer by layer. What a draft span
 *            writes to the state is tentative.
 *   commit   of each span the first n tokens stay; the sequence must from then
 *            on behave as one that only ever saw those.
 *   settle   work whose inputs are now final, for all layers of the module at
 *            once: after commit, before the step's tokens are delivered.
 *
 * Equalities every mixer must keep, bit for bit (tests/mixers/test_mixer.c):
 *   one-shot = chunked at any cut = token by token; alone = in any company;
 *   after commit(n) = never saw the rest; released and recomputed = kept;
 *   saved and loaded, or forked, = never interrupted.
 * So: reduce in a fixed order per row, with block borders at absolute
 * positions, never relative to the span, the batch or the thread count.
 *
 * A mixer allocates in create() only, what instance_bytes and create_bytes say.
 * The engine owns all state memory:
 *   pages   bytes_per_token * page_tokens each, listed per sequence in order
 *           of position; a full page may be shared, read-only, by sequences
 *           with the same prefix (MX_MIXER_SHARE_PAGES). A page is full when
 *           all of its tokens are committed; those ahead of the position, which
 *           a mixer may ask for (extent), are the sequence's own.
 *   slot    fixed_bytes per sequence, zeroed when a sequence begins.
 * Memory is handed out dirty except where said; a mixer must not read what it
 * has not written.
 *
 * A mixer with a slot can be part of a prefix cache if its state can be saved:
 *   save    writes what the committed tokens 0 .. pos-1 have made of a slot,
 *           in snapshot_bytes, for the engine to keep.
 *   load    makes any slot that state, at pos or at pos - 1: the last token of
 *           a prompt that is known to its end must be computed again, for its
 *           logits. Keep one token more than the state needs, uncommitted to it.
 *           What was loaded at pos - 1 is saved again only after pos is reached.
 *
 * Versions: MX_MIXER_ABI counts incompatible changes; struct_size lets tables
 * grow at the end. A module exports
 *     const struct mx_mixer_ops *mx_mixer_module_v1(void);
 * Slots of the table that came later may be left empty, and have a default then.
 * Changes: 1 (2026-11) first version; with extent, instance_bytes
 * and create_bytes at the ends.
 */
#ifndef MX_MIXERS_MIXER_H
#define MX_MIXERS_MIXER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "device/device.h"

#define MX_MIXER_ABI           1
#define MX_MIXER_MODULE_SYMBOL "mx_mixer_module_v1"

/* mx_fail for modules, which link against nothing: fills *err (may be NULL), returns `status`. */
static inline mx_status mx_mixer_fail(struct mx_err *err, mx_status status, const char *fmt, ...)
	MX_PRINTF(3, 4);
static inline mx_status mx_mixer_fail(struct mx_err *err, mx_status status, const char *fmt, ...)
{
	if (err) {
		va_list args;
		va_start(args, fmt);
		err->status = status;
		vsnprintf(err->text, sizeof(err->text), fmt, args);
		va_end(args);
	}
	return status;
}

/* ---- parameters: what the checkpoint's config says of one layer ---- */

enum mx_param_type {
	MX_PARAM_BOOL,
	MX_PARAM_INT,
	MX_PARAM_FLOAT,
	MX_PARAM_STRING,
	MX_PARAM_FLOATS
};

struct mx_param {
	const char *name;
	enum mx_param_type type;
	int64_t i;       /* BOOL, INT */
	double f;        /* FLOAT; INT has it too */
	const char *s;   /* STRING */
	const double *v; /* FLOATS */
	size_t n;
};

struct mx_params {
	const struct mx_param *items;
	size_t n;
};

/* The parameter of that name, or NULL. */
static inline const struct mx_param *mx_param_find(const struct mx_params *p, const char *name)
{
	for (size_t i = 0; i < p->n; i++)
		if (!strcmp(p->items[i].name, name))
			return &p->items[i];
	return NULL;
}

/* Value, or `def` if absent or of another type. */
static inline int64_t mx_param_int(const struct mx_params *p, const char *name, int64_t def)
{
	const struct mx_param *q = mx_param_find(p, name);
	return q && (q->type == MX_PARAM_INT || q->type == MX_PARAM_BOOL) ? q->i : def;
}

static inline double mx_param_float(const struct mx_params *p, const char *name, double def)
{
	const struct mx_param *q = mx_param_find(p, name);
	return q && (q->type == MX_PARAM_FLOAT || q->type == MX_PARAM_INT) ? q->f : def;
}

static inline const char *mx_param_string(const struct mx_params *p, const char *name,
                                          const char *def)
{
	const struct mx_param *q = mx_param_find(p, name);
	return q && q->type == MX_PARAM_STRING ? q->s : def;
}

/* For probe: MX_OK if every parameter is one of `names` [n], else an error that says which is not.
 * A misspelt key must not leave a layer with a default. */
static inline mx_status mx_params_known(const struct mx_params *p, const char *const *names,
                                        size_t n, const char *mixer, struct mx_err *err)
{
	for (size_t i = 0; i < p->n; i++) {
		size_t k = 0;
		while (k < n && strcmp(p->items[i].name, names[k]))
			k++;
		if (k == n)
			return mx_mixer_fail(err, MX_E_INVALID, "%s: unknown parameter '%.60s'", mixer,
			                     p->items[i].name);
	}
	return MX_OK;
}

/* One layer as its mixer sees it before anything is allocated. */
struct mx_layer_desc {
	uint32_t index, n_layers;   /* layer of the model */
	uint32_t width;             /* hidden size */
	uint32_t max_context;       /* longest sequence, tokens */
	uint32_t max_rows;          /* most rows of a step */
	uint32_t max_spans;         /* most spans of a step */
	uint32_t max_draft;         /* most tokens of a draft span; 0 = none will come */
	enum mx_dtype weight_dtype; /* the checkpoint's */
	enum mx_dtype state_dtype;  /* wanted for token states such as KV */
	struct mx_params params;    /* names are the mixer's own, see its README */
};

/* ---- what a mixer declares, as pure functions of the layer ---- */

enum mx_weight_form {
	MX_WEIGHT_MATRIX, /* as stored in the checkpoint, for mx_ops.linear */
	MX_WEIGHT_VECTOR, /* converted to f32 */
};

struct mx_weight_spec {
	/* Under the layer's prefix, e.g. "q_proj.weight"; with a '/' in front, the tensor of that name
	 * in the model, e.g. "/model.lower_bounds". Static or in params. */
	const char *name;
	enum mx_weight_form form;
	uint32_t ndim;
	uint64_t shape[4];
	bool optional; /* absent tensors give a NULL pointer */
};

#define MX_MIXER_MAX_WEIGHTS 32

struct mx_state_spec {
	size_t bytes_per_token; /* in pages; 0 = none */
	size_t fixed_bytes;     /* in the slot; 0 = none */
	uint32_t page_multiple; /* page_tokens must be a multiple of this, 0 = any */
	size_t scratch_bytes;   /* workspace during a call, shared by all layers */
	size_t snapshot_bytes;  /* of a saved slot; 0 = cannot be saved, or there is no slot */
	size_t instance_bytes;  /* about what create() allocates, of the device's memory if it has its
	                         * own; what is small beside the weights need not be counted */
	size_t create_bytes;    /* what create() needs besides and gives back: of one layer at a time */
};

enum {
	MX_MIXER_CPU = 1u << 0,         /* runs on CPU devices */
	MX_MIXER_CUDA = 1u << 1,        /* runs on CUDA devices */
	MX_MIXER_DRAFT = 1u << 2,       /* takes draft spans and commit of fewer tokens */
	MX_MIXER_SHARE_PAGES = 1u << 3, /* full pages of a common prefix can be shared */
	MX_MIXER_FORK = 1u << 4,        /* slot state can be copied to another sequence */
	MX_MIXER_SETTLE = 1u << 5,      /* has work in settle */
	MX_MIXER_SNAPSHOT = 1u << 6,    /* slot state can be saved and loaded */
	MX_MIXER_EXTENT = 1u << 7,      /* wants other pages than those of its tokens */
};

/* ---- a step ---- */

enum mx_span_kind {
	MX_SPAN_PREFILL, /* a chunk of known tokens */
	MX_SPAN_DECODE,  /* one token */
	MX_SPAN_DRAFT,   /* 1 .. max_draft tokens, of which commit keeps the first 0 .. n */
};

/* Consecutive tokens of one sequence, rows row .. row+n-1 of the step. */
struct mx_span {
	uint32_t row, n;
	uint32_t pos;     /* absolute position of the first token */
	uint32_t max_len; /* the sequence will never be longer than this */
	enum mx_span_kind kind;
	uint32_t slot; /* index of the sequence's slot */
	/* [n_pages] in order of position, up to what extent says of pos + n tokens at least. Pages that
	 * it has no need for at pos may be gone: UINT32_MAX. */
	const uint32_t *pages;
	uint32_t n_pages;
};

/* A span as the device sees it. */
struct mx_device_span {
	uint32_t row, n; /* n = 0: a row that fills a recorded step up; nothing may be written for it */
	uint32_t pos, slot;
	uint32_t page_begin, n_pages; /* into mx_device_tables.pages */
	uint32_t max_len, kind;
};

/* What the arrays of a step say once more, in the memory of a device that has its own, at addresses
 * that stay the same for every step. A step that is recorded is launched with n_rows = n_spans =
 * the number recorded and later replayed with other contents: kernels read everything that differs
 * between steps from here, and take only n_rows and n_spans from the call. */
struct mx_device_tables {
	const uint32_t *pos;                /* [rows] */
	const uint32_t *row_span;           /* [rows] index of the row's span */
	const struct mx_device_span *spans; /* [n_spans] */
	const uint32_t *pages;              /* the spans' pages, one list behind the other */
};

struct mx_step {
	const struct mx_span *spans;
	uint32_t n_spans;
	uint32_t n_rows;
	const uint32_t *pos; /* [n_rows] absolute position of each row */
	void *scratch;       /* state spec's scratch_bytes, dirty, aligned as the device says */
	const struct mx_device_tables *tables; /* NULL on CPUs */
	bool recording; /* spans say only how many there are; their contents come with each replay */
};

/* ---- an instance ---- */

struct mx_mixer; /* the module's own; its first member must be struct mx_mixer_base */

struct mx_mixer_base {
	const struct mx_mixer_ops *ops;
	uint32_t layer;
};

/* Everything create() gets. Weights and state memory outlive the instance. */
struct mx_mixer_init {
	const struct mx_layer_desc *layer; /* valid during create() only */
	struct mx_device *device;
	const void *const *weights; /* in the order of the specs: struct mx_weight * or float * */
	/* Page p of this layer begins at page_base + p * page_stride and holds page_tokens *
	 * bytes_per_token bytes; likewise slots. Aligned as the device says. */
	unsigned char *page_base;
	size_t page_stride;
	uint32_t page_tokens;
	unsigned char *slot_base;
	size_t slot_stride;
};

struct mx_mixer_ops {
	uint32_t abi;         /* MX_MIXER_ABI */
	uint32_t struct_size; /* sizeof of the table the module was built with */
	const char *name;     /* as in configs: "attention" */
	const char *summary;  /* one line for people */
	uint32_t caps;        /* MX_MIXER_* */

	/* Checks the parameters; says in *err which one is wrong. Pure. Any thread. */
	mx_status (*probe)(const struct mx_layer_desc *layer, const struct mx_device *device,
	                   struct mx_err *err);

	/* Fills up to MX_MIXER_MAX_WEIGHTS specs and their number. Pure; after probe said yes. */
	mx_status (*weights)(const struct mx_layer_desc *layer, struct mx_weight_spec *specs,
	                     size_t *out_n);

	/* Memory the layer needs on that device; *out is zeroed. Pure; after probe said yes. */
	mx_status (*state)(const struct mx_layer_desc *layer, const struct mx_device *device,
	                   struct mx_state_spec *out);

	/* May allocate and take its time. *out only on MX_OK. */
	mx_status (*create)(const struct mx_mixer_init *init, struct mx_mixer **out,
	                    struct mx_err *err);

	/* Takes NULL and half-built instances. */
	void (*destroy)(struct mx_mixer *m);

	/* y[n_rows, width] from x[n_rows, width], activation dtype of the device; never the same
	 * memory. Engine thread; must not allocate, sleep or log. An error fails the step's requests.
	 */
	mx_status (*forward)(struct mx_mixer *m, const struct mx_step *step, const void *x, void *y);

	/* Of step->spans[i] the first kept[i] tokens stay, for all layers of the module. Spans that
	 * keep everything are listed too. */
	mx_status (*commit)(struct mx_mixer *const *layers, uint32_t n_layers,
	                    const struct mx_step *step, const uint32_t *kept);

	/* Called once per step after commit if MX_MIXER_SETTLE. */
	mx_status (*settle)(struct mx_mixer *const *layers, uint32_t n_layers,
	                    const struct mx_step *step, const uint32_t *kept);

	/* Copies the slot state of one sequence to another, at the position reached (MX_MIXER_FORK). */
	mx_status (*fork)(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t from_slot,
	                  uint32_t to_slot);

	/* MX_MIXER_SNAPSHOT, between steps: out[i] takes layer i's snapshot_bytes, all of them written.
	 * pos >= 1 tokens are committed, at least one of them since a load one token before the end. */
	mx_status (*save)(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
	                  uint32_t pos, void *const *out);

	/* The reverse, into a slot in any condition. The sequence goes on at `pos`, which is that of
	 * save or one less. */
	mx_status (*load)(struct mx_mixer *const *layers, uint32_t n_layers, uint32_t slot,
	                  uint32_t pos, const void *const *in);

	/* Adds a line about the kernels chosen to `text` (for logs), at most cap bytes with the NUL. */
	void (*describe)(const struct mx_mixer *m, char *text, size_t cap);

	/* ---- from here on a slot may be empty ---- */

	/* MX_MIXER_EXTENT, of layers with bytes_per_token: which pages a sequence needs that will never
	 * be longer than max_len: those of positions < *out_end before a step that ends at n tokens,
	 * those of positions < *out_first no more once n tokens are committed. 1 <= n <= max_len,
	 * *out_first <= n <= *out_end <= max_len, and both never fall as n grows. Pages are given back
	 * while a sequence lives only of one that was computed from its beginning and is neither saved
	 * nor forked. Pure. Empty: mx_mixer_extent_all. */
	void (*extent)(const struct mx_layer_desc *layer, uint32_t n, uint32_t max_len,
	               uint32_t *out_first, uint32_t *out_end);
};

/* The least table there may be. */
#define MX_MIXER_OPS_MIN offsetof(struct mx_mixer_ops, extent)

typedef const struct mx_mixer_ops *mx_mixer_module_f(void);

/* Defaults for slots a mixer has no use for. */
static inline mx_status mx_mixer_commit_nothing(struct mx_mixer *const *layers, uint32_t n_layers,
                                                const struct mx_step *step, const uint32_t *kept)
{
	(void)layers, (void)n_layers, (void)step, (void)kept;
	return MX_OK;
}

static inline mx_status mx_mixer_settle_nothing(struct mx_mixer *const *layers, uint32_t n_layers,
                                                const struct mx_step *step, const uint32_t *kept)
{
	(void)layers, (void)n_layers, (void)step, (void)kept;
	return MX_OK;
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

static inline mx_status mx_mixer_fork_unsupported(struct mx_mixer *const *layers, uint32_t n_layers,
                                                  uint32_t from_slot, uint32_t to_slot)
{
	(void)layers, (void)n_layers, (void)from_slot, (void)to_slot;
	return MX_E_UNSUPPORTED;
}

/* A page for every token there is, as long as the sequence lives. */
static inline void mx_mixer_extent_all(const struct mx_layer_desc *layer, uint32_t n,
                                       uint32_t max_len, uint32_t *out_first, uint32_t *out_end)
{
	(void)layer, (void)max_len;
	*out_first = 0;
	*out_end = n;
}

#endif
