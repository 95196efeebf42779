/* SPDX-License-Identifier: Apache-2.0 */
/* The dci mixer: its parameters, its layout of pages, its instance. See README.md. */
#ifndef MX_MIXERS_DCI_DCI_H
#define MX_MIXERS_DCI_DCI_H

#include "mixers/dci/dci_kernels.h"
#include "mixers/mixer.h"
#include "mixers/softmax/heads.h"

#define DCI_MAX_VISITS     16384 /* keys that a query scores: bounds the workers' memory */
#define DCI_MAX_EXACT      65536 /* first and recent tokens */
#define DCI_MAX_DIRECTIONS 2048
#define DCI_AUTO           0
#define DCI_LINE           64

struct dci_params {
	struct attn_params heads;
	uint32_t top_k;  /* keys that a query attends to besides first and recent ones, or DCI_AUTO */
	uint32_t visits; /* keys that it scores to find these, or DCI_AUTO */
	double alpha;    /* of DCI_AUTO, see dci_top_k */
	uint32_t first;  /* tokens at the beginning that are always attended to, whole runs */
	uint32_t recent; /* tokens before a row that are */
	uint32_t directions; /* bits of a key's code, a multiple of `rotated` */
	uint32_t rotated;    /* dimension of a rotation: head_dim rounded up to a power of two */
	bool rest;           /* keys of a run that a query does not attend to count as their mean */
	uint64_t seed;
};

/* dci_params.c */

/* Reads and checks a layer's parameters; *err tells which one is wrong. */
mx_status dci_params_read(const struct mx_layer_desc *layer, struct dci_params *out,
                          struct mx_err *err);
/* Returns how many of n indexed keys a query attends to, or scores: at most n. */
uint32_t dci_top_k(const struct dci_params *p, uint32_t n);
uint32_t dci_visits(const struct dci_params *p, uint32_t n);

/* The part of a page that a key head has: the runs' indices, then keys [page_tokens, dim], then
 * values. A run's index: codes [directions / 8][DCI_RUN], factors f32 [DCI_RUN], the centre [dim];
 * with `rest` the mean of the values [dim] and, in DCI_LINE bytes, the spread f32: the mean of |k -
 * centre|^2 over dim. */
struct dci_layout {
	uint32_t dim; /* head_dim rounded up to 32; the padding is zero */
	enum mx_dtype dtype;
	size_t row;                     /* bytes of a key or value */
	size_t factors, centre, spread; /* bytes from a run's index */
	size_t index;                   /* bytes of a run's index */
	size_t token;                   /* bytes of a token and key head, index included */
};

void dci_layout_of(const struct dci_params *p, struct dci_layout *out);

/* What a query needs at most, and how many share a tile. */
struct dci_bounds {
	uint32_t visits; /* keys that are found */
	uint32_t exact;  /* keys that all queries of a row attend to */
	uint32_t list;   /* keys and centres that a query attends to, and room for a vector */
	uint32_t recent; /* exact keys before a row */
	uint32_t runs;   /* of the context */
	uint32_t rows;   /* rows of a tile */
};

struct mx_mixer {
	struct mx_mixer_base base;
	struct attn_heads heads;
	struct dci_params params;
	struct dci_layout layout;
	struct dci_bounds bounds;
	const struct dci_search *search;
	const struct dci_rows *rows;
	float *signs; /* [kv_heads][directions / rotated][3][rotated], owned */
	unsigned char *page_base;
	size_t page_stride, head_bytes;
	uint32_t page_tokens;
	size_t values; /* bytes from a key to its value */

	size_t items_bytes, worker_bytes;
};

/* Returns the key of a token. */
static inline unsigned char *dci_key(const struct mx_mixer *m, const uint32_t *pages,
                                     uint32_t kv_head, uint32_t pos)
{
	uint32_t page = pages[pos / m->page_tokens], at = pos % m->page_tokens;
	size_t runs = m->page_tokens / DCI_RUN;
	return m->page_base + page * m->page_stride + kv_head * m->head_bytes + runs * m->layout.index +
	       at * m->layout.row;
}

/* Returns the index of the run that holds a token. */
static inline unsigned char *dci_index(const struct mx_mixer *m, const uint32_t *pages,
                                       uint32_t kv_head, uint32_t pos)
{
	uint32_t page = pages[pos / m->page_tokens], run = pos % m->page_tokens / DCI_RUN;
	return m->page_base + page * m->page_stride + kv_head * m->head_bytes + run * m->layout.index;
}

static inline const float *dci_signs(const struct mx_mixer *m, uint32_t kv_head)
{
	return m->signs + (size_t)kv_head * 3 * m->params.directions;
}

/* dci_index.c */

/* Fills signs [kv_heads][3 * directions] of +1 and -1: a function of seed, layer and head. */
void dci_signs_fill(const struct dci_params *p, uint32_t layer, float *signs);
/* Projects x [dim] on the directions of a head: out [directions]. */
void dci_project(const struct mx_mixer *m, uint32_t kv_head, const float *x, float *out);
/* Appends the keys and values of a step's rows to the pages, and indexes the runs that they end. */
void dci_append(const struct mx_mixer *m, const struct mx_step *step, const struct attn_rows *rows);

/* dci_attend.c */

struct dci_bounds dci_bounds_of(const struct dci_params *p, uint32_t max_context);
/* Returns the bytes of scratch memory for rows of a step, and of them for each worker. */
size_t dci_items_bytes(const struct mx_layer_desc *layer);
size_t dci_worker_bytes(const struct dci_params *p, const struct dci_bounds *b);
/* Attends: an output takes the place of its query. */
void dci_attend(const struct mx_mixer *m, const struct mx_step *step, unsigned char *scratch,
                float *q);

#endif
