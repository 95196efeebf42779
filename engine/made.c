/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices that a checkpoint stores in another form than they are used in: transposed (GPT-2's
 * Conv1D, gpt-oss's experts), with rows in another order (GGUF's q and k), and columns of matrices
 * that are split over ranks. Copies of them are made once at load, in the host's
 * memory; with copy_weights of all others too, since memory on huge pages is read faster than a
 * file's mapping.
 */
#include <string.h>

#include "base/pool.h"
#include "device/convert.h"
#include "engine/resolver.h"
#include "engine/touch.h"

#define TILE 32 /* elements: rows and columns of a tile both stay in the cache */

/* Adds a matrix that is made of a tensor; NULL if out of memory. */
static struct mx_model_made *add(struct mx_model *m, const struct mx_tensor *t)
{
	struct mx_model_made *x = mx_arena_alloc(&m->arena, sizeof *x);
	if (!x)
		return NULL;
	*x = (struct mx_model_made){.made = *t, .from = t, .chained = !t->data};
	x->made.data = NULL;
	*(m->made_end ? m->made_end : &m->made) = x;
	m->made_end = &x->next;
	return x;
}

/* Finds the matrix that was made of a tensor already; else adds one, whose shape the caller sets.
 * NULL if out of memory. */
static struct mx_model_made *made_of(struct mx_resolver *r, const struct mx_tensor *t,
                                     bool *out_new)
{
	struct mx_model *m = r->model;
	for (struct mx_model_made *x = m->made; x; x = x->next)
		if (x->from == t && !x->row_bytes) {
			*out_new = false;
			return x;
		}
	*out_new = true;
	return add(m, t);
}

/* Sets the size of a matrix from its shape and type, and counts it. */
static void count(struct mx_model *m, struct mx_tensor *made)
{
	made->bytes = mx_dtype_size(made->dtype);
	for (uint32_t i = 0; i < made->ndim; i++)
		made->bytes *= made->shape[i];
	m->made_bytes += mx_round_up(made->bytes, MX_VECTOR_ALIGN);
}

mx_status mx_resolve_copied(struct mx_resolver *r, const struct mx_tensor *t,
                            const struct mx_tensor **out)
{
	bool is_new;
	struct mx_model_made *x = made_of(r, t, &is_new);
	if (!x)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*out = &x->made;
	if (!is_new)
		return MX_OK;
	x->same = true;
	count(r->model, &x->made);
	return MX_OK;
}

mx_status mx_resolve_transposed(struct mx_resolver *r, const struct mx_tensor *t, bool pairs,
                                const struct mx_tensor **out)
{
	bool is_new;
	if (t->dtype == MX_QUANT) /* its rows are blocks of several columns */
		return mx_fail(r->err, MX_E_UNSUPPORTED,
		               "tensor %s: quantised, and stored transposed, which is not supported",
		               t->name);
	struct mx_model_made *x = made_of(r, t, &is_new);
	if (!x)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*out = &x->made;
	if (!is_new)
		return MX_OK;
	x->pairs = pairs;
	x->made.shape[t->ndim - 2] = t->shape[t->ndim - 1];
	x->made.shape[t->ndim - 1] = t->shape[t->ndim - 2];
	count(r->model, &x->made);
	return MX_OK;
}

mx_status mx_resolve_ordered(struct mx_resolver *r, const struct mx_tensor *t,
                             const struct mx_tensor **out)
{
	bool is_new;
	struct mx_model_made *x = made_of(r, t, &is_new);
	if (!x)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	*out = &x->made;
	if (!is_new)
		return MX_OK;
	x->order = t->order;
	x->made.order.n = 0;
	r->model->made_bytes += mx_round_up(t->bytes, MX_VECTOR_ALIGN);
	return MX_OK;
}

mx_status mx_resolve_part(struct mx_resolver *r, const struct mx_tensor *t, uint64_t n_cols,
                          const struct mx_weight_slice *rows, const struct mx_weight_slice *cols,
                          const struct mx_tensor **out)
{
	const uint64_t block = t->dtype == MX_QUANT ? mx_quant_block_elements(t->format) : 1;
	if (cols->first % block || cols->n % block)
		return mx_fail_at(
			r->err, MX_E_UNSUPPORTED, t->file,
			"tensor '%.160s' is of %s: its %llu columns cannot be split into blocks of "
			"%llu for each rank",
			t->name, mx_quant_format_name(t->format), (unsigned long long)n_cols,
			(unsigned long long)block);
	struct mx_model_made *x = add(r->model, t);
	if (!x)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	const bool quant = t->dtype == MX_QUANT;
	const size_t size = quant ? 0 : mx_dtype_size(t->dtype);
	const size_t part = quant ? mx_quant_row_bytes(t->format, cols->n) : cols->n * size;
	x->row_bytes = quant ? mx_quant_row_bytes(t->format, n_cols) : n_cols * size;
	x->first = rows->first * x->row_bytes +
	           (quant ? mx_quant_row_bytes(t->format, cols->first) : cols->first * size);
	x->made.ndim = 2;
	x->made.shape[0] = rows->n;
	x->made.shape[1] = cols->n;
	x->made.bytes = rows->n * part;
	r->model->made_bytes += mx_round_up(x->made.bytes, MX_VECTOR_ALIGN);
	*out = &x->made;
	return MX_OK;
}

/* Returns the row of the copy that row r of n of the stored matrix becomes. */
static size_t row_of(const struct mx_model_made *x, size_t r, size_t n)
{
	return x->pairs ? r / 2 + (r & 1) * (n / 2) : r;
}

/* Fills a tile of a transposed matrix: rows [r0, r0 + TILE), columns [c0, c0 + TILE), before rows
 * that are pairs are parted. */
static void transpose_tile(const struct mx_model_made *x, const unsigned char *from,
                           unsigned char *to, size_t r0, size_t c0)
{
	const uint64_t *shape = x->made.shape + x->made.ndim - 2;
	size_t rows = shape[0], cols = shape[1], size = mx_dtype_size(x->made.dtype);
	for (size_t r = r0; r < rows && r < r0 + TILE; r++)
		for (size_t c = c0; c < cols && c < c0 + TILE; c++)
			memcpy(to + (row_of(x, r, rows) * cols + c) * size, from + (c * rows + r) * size, size);
}

/* Copies the rows to their places. */
static void order_rows(const struct mx_model_made *x, unsigned char *to)
{
	const unsigned char *from = x->from->data;
	const size_t rows = x->made.shape[0], size = x->made.bytes / rows;
	for (size_t r = 0; r < rows; r++)
		memcpy(to + mx_row_of(&x->order, r) * size, from + r * size, size);
}

/* A matrix of a tensor that is made: all of it, or of [n, rows, cols] one of n. */
struct making {
	const struct mx_model_made *x;
	unsigned char *to;
};

static void make_one(void *arg, size_t task, unsigned worker)
{
	const struct making *g = arg;
	const struct mx_model_made *x = g->x;
	const uint64_t *shape = x->made.shape + x->made.ndim - 2;
	const size_t rows = shape[0], cols = shape[1], size = mx_dtype_size(x->made.dtype);
	unsigned char *to = g->to + task * rows * cols * size;
	(void)worker;
	if (x->order.n) {
		order_rows(x, g->to);
		return;
	}
	const unsigned char *from = (const unsigned char *)x->from->data + task * rows * cols * size;
	for (size_t r = 0; r < rows; r += TILE)
		for (size_t c = 0; c < cols; c += TILE)
			transpose_tile(x, from, to, r, c);
}

/* Bytes that one task copies: some milliseconds of work. */
#define COPY_BYTES ((size_t)16 << 20)

static void copy_one(void *arg, size_t task, unsigned worker)
{
	const struct making *g = arg;
	const size_t at = task * COPY_BYTES, left = g->x->made.bytes - at;
	(void)worker;
	memcpy(g->to + at, (const unsigned char *)g->x->from->data + at,
	       left < COPY_BYTES ? left : COPY_BYTES);
}

/* Rows of a part that one task copies. */
#define PART_ROWS 256

static void copy_part(void *arg, size_t task, unsigned worker)
{
	const struct making *g = arg;
	const struct mx_model_made *x = g->x;
	const size_t rows = x->made.shape[0], bytes = x->made.bytes / rows,
				 end = (task + 1) * PART_ROWS;
	(void)worker;
	for (size_t r = task * PART_ROWS; r < end && r < rows; r++)
		memcpy(g->to + r * bytes,
		       (const unsigned char *)x->from->data + x->first + r * x->row_bytes, bytes);
}

/* Runs the tasks by the pool, or by the device's threads if there is none. */
static void run(struct mx_device *d, struct mx_pool *pool, size_t n, mx_parallel_f *fn, void *arg)
{
	if (pool)
		mx_pool_run(pool, n, fn, arg);
	else
		d->ops->parallel(d, n, fn, arg);
}

mx_status mx_model_make(struct mx_model *m, struct mx_device *d)
{
	if (!m->made)
		return MX_OK;
	m->made_map = mx_map(m->made_bytes);
	if (!m->made_map)
		return MX_E_NOMEM;
	/* a device with memory of its own has no threads for this */
	struct mx_pool *pool = NULL;
	mx_status st = d->info.own_memory ? mx_pool_create(0, &pool) : MX_OK;
	if (st != MX_OK)
		return st;
	unsigned char *at = m->made_map;
	for (struct mx_model_made *x = m->made; x; x = x->next) {
		struct making g = {x, at};
		size_t n = x->made.ndim == 3 ? x->made.shape[0] : 1;
		if (x->row_bytes)
			run(d, pool, (x->made.shape[0] + PART_ROWS - 1) / PART_ROWS, copy_part, &g);
		else if (x->same)
			run(d, pool, (x->made.bytes + COPY_BYTES - 1) / COPY_BYTES, copy_one, &g);
		else
			run(d, pool, n, make_one, &g);
		x->made.data = at;
		at += mx_round_up(x->made.bytes, MX_VECTOR_ALIGN);
		if (!x->chained) /* else it is anonymous memory, which would be zero then */
			mx_touch_forget(x->from->data, x->from->bytes);
	}
	mx_pool_destroy(pool);
	for (size_t i = 0; i < m->n_uses; i++) {
		struct mx_weight *w = m->uses[i].weight;
		if (!w->data)
			w->data = (const unsigned char *)m->uses[i].tensor->data +
			          (size_t)m->uses[i].first * w->cols * mx_dtype_size(w->dtype);
	}
	return MX_OK;
}
