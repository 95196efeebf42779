/* SPDX-License-Identifier: Apache-2.0 */
/*
 * linear: makes one product of outputs whose weights and columns of y are adjacent, and products
 * with quantised weights of kernels that read them or expand them first.
 */
#include <string.h>

#include "base/mem.h"
#include "device/cuda/impl.h"
#include "device/cuda/linear_quant_stream.h"
#include "device/quant_pack.h"

#define MOST_OF_MANY 64 /* rows of x up to which `many` is faster than expanding W */

/* ---- quantised weights ---- */

static uint32_t log2_of(uint32_t n)
{
	uint32_t k = 0;
	while (n >>= 1)
		k++;
	return k;
}

struct mx_cuda_quant mx_cuda_quant_form(const struct mx_quant *q)
{
	const struct mx_quant_layout l = mx_quant_layout_of(q);
	return (struct mx_cuda_quant){.super_bytes = (uint32_t)l.bytes,
	                              .second = (uint32_t)l.second,
	                              .minima = (uint32_t)l.minima,
	                              .second_minima = (uint32_t)l.second_minima,
	                              .zeros = (uint32_t)l.zeros,
	                              .codes = (uint32_t)l.codes,
	                              .group_shift = log2_of(q->group),
	                              .center = q->codes == MX_CODES_4 ? (uint32_t)q->center : 0,
	                              .codes_as = q->codes,
	                              .scales = q->scales,
	                              .offset = q->offset};
}

static bool streams(const struct mx_cuda_product *p)
{
	return p->bf16 && (uintptr_t)p->x % 16 == 0 && p->ldx % 8 == 0;
}

/* Rows of x first .. first + n - 1. */
static struct mx_cuda_product rows_of(const struct mx_cuda_product *p, uint32_t first, uint32_t n)
{
	struct mx_cuda_product part = *p;
	part.x = (const char *)p->x + first * p->ldx * (p->bf16 ? 2 : 4);
	part.y = (char *)p->y + first * p->ldy * (p->bf16_out ? 2 : 4);
	part.n = n;
	return part;
}

static mx_status few(struct mx_device *d, const struct mx_cuda_quant_product *p)
{
	const struct mx_cuda_base *gpu = &mx_cuda(d)->base;
	for (uint32_t i = 0; i < p->p.n; i += MX_CUDA_QUANT_FEW) {
		const uint32_t left = p->p.n - i;
		const struct mx_cuda_quant_product part = {
			rows_of(&p->p, i, left < MX_CUDA_QUANT_FEW ? left : MX_CUDA_QUANT_FEW), p->q};
		mx_status st = mx_cuda_check(d,
		                             mx_cuda_quant_few(&part, mx_cuda_linear_counter(d), gpu->sms,
		                                               gpu->smem, mx_cuda_stream(d)),
		                             "linear, few rows, quantised");
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* Expands as many rows of W at a time as there is room for. */
static mx_status expanded(struct mx_device *d, const struct mx_cuda_quant_product *p)
{
	const size_t row = p->p.cols * (size_t)(p->p.bf16 ? 2 : 4), fit = MX_CUDA_EXPANDED / row;
	const uint32_t most = (uint32_t)(fit < p->p.rows ? fit : p->p.rows);
	const uint32_t step = (most + MX_QUANT_ROWS - 1) / MX_QUANT_ROWS * MX_QUANT_ROWS;
	void *w = mx_cuda_linear_expanded(d);
	if (!w || fit < MX_QUANT_ROWS)
		return MX_E_UNSUPPORTED;
	const uint32_t at_a_time = step > fit ? step - MX_QUANT_ROWS : step;
	for (uint32_t i = 0; i < p->p.rows; i += at_a_time) {
		struct mx_cuda_product part = p->p;
		part.w = w;
		part.rows = p->p.rows - i < at_a_time ? p->p.rows - i : at_a_time;
		part.bias = p->p.bias ? p->p.bias + i : NULL;
		part.y = (char *)p->p.y + (size_t)i * (p->p.bf16_out ? 2 : 4);
		mx_status st = mx_cuda_check(d,
		                             mx_cuda_quant_expand(&p->q, p->p.w, p->p.cols, i, part.rows,
		                                                  p->p.bf16, w, mx_cuda_stream(d)),
		                             "expanding weights");
		if (st == MX_OK)
			st = mx_cuda_linear_product(d, &part);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

/* Products in fp8: rows of x are rounded to it, and W unpacked beside them. MX_E_UNSUPPORTED, and
 * nothing done, where there is no room or no such product. */
static mx_status in_fp8(struct mx_device *d, const struct mx_cuda_quant_product *p)
{
	const size_t cols = p->p.cols, rows = p->p.rows, n = p->p.n, y_size = p->p.bf16_out ? 2 : 4;
	const size_t x_bytes = mx_round_up(n * (cols + sizeof(float)), 256);
	cudaStream_t stream = mx_cuda_stream(d);
	unsigned char *x = mx_cuda_linear_expanded(d);
	if (!x || x_bytes + rows * (cols + sizeof(float)) > MX_CUDA_EXPANDED || cols % 16 ||
	    rows % 16 || (uintptr_t)p->p.y % 16 || p->p.ldy * y_size % 16)
		return MX_E_UNSUPPORTED;
	struct mx_cuda_product part = p->p;
	float *x_scales = (float *)(void *)(x + n * cols);
	unsigned char *w = x + x_bytes;
	float *w_scales = (float *)(void *)(w + rows * cols);
	mx_status st = mx_cuda_check(
		d, mx_cuda_quant_round(p->p.x, p->p.ldx, p->p.cols, p->p.n, x, x_scales, stream),
		"rounding to fp8");
	if (st == MX_OK)
		st = mx_cuda_check(
			d, mx_cuda_quant_e4m3(&p->q, p->p.w, p->p.cols, 0, p->p.rows, w, w_scales, stream),
			"unpacking fp8");
	part.w = w;
	part.x = x;
	part.ldx = cols;
	return st == MX_OK ? mx_cuda_linear_scaled(d, &part, w_scales, x_scales) : st;
}

/* True if `stream` computes this product fastest. It arranges x first, some 2 us: with few tiles of
 * W `few` is faster up to its most rows. */
static bool is_streamed(struct mx_device *d, const struct mx_cuda_quant_product *p)
{
	const bool large = p->p.rows / MX_CUDA_QUANT_TILE >= (uint32_t)mx_cuda(d)->base.sms;
	return p->p.n > (large ? MX_CUDA_QUANT_FEW / 2 : MX_CUDA_QUANT_FEW) &&
	       p->p.n <= MX_CUDA_QUANT_STREAM && mx_cuda_quant_stream_can(&p->q) &&
	       mx_cuda_linear_expanded(d) &&
	       mx_cuda_quant_stream_bytes(p->p.n, p->p.cols) <= MX_CUDA_EXPANDED;
}

static mx_status quantised(struct mx_device *d, const struct mx_cuda_product *p,
                           const struct mx_quant *q)
{
	const struct mx_cuda_quant_product a = {*p, mx_cuda_quant_form(q)};
	if (!q->fragments)
		return MX_E_INVALID;
	if (p->n == 0 || p->rows == 0)
		return MX_OK;
	const bool free_order = streams(p) && !d->info.deterministic && mx_cuda(d)->base.sm == 90;
	if (p->n == 1 && streams(p) && !d->info.deterministic && mx_cuda_linear_has_one(d) &&
	    mx_cuda_quant_one_can(&a.q))
		return mx_cuda_check(d,
		                     mx_cuda_quant_one(&a, mx_cuda_linear_counter(d), mx_cuda(d)->base.sms,
		                                       mx_cuda_stream(d)),
		                     "linear, one row, quantised");
	if (free_order && is_streamed(d, &a))
		return mx_cuda_check(d,
		                     mx_cuda_quant_stream(&a, mx_cuda_linear_expanded(d),
		                                          mx_cuda(d)->base.sms, mx_cuda_stream(d)),
		                     "linear, streamed, quantised");
	if (free_order && p->n > MX_CUDA_QUANT_FEW && p->n <= MOST_OF_MANY)
		return mx_cuda_check(d, mx_cuda_quant_many(&a, mx_cuda(d)->base.sms, mx_cuda_stream(d)),
		                     "linear, many rows, quantised");
	if (free_order && p->n > MX_CUDA_QUANT_FP8 && q->codes == MX_CODES_E4M3 && q->whole) {
		const mx_status st = in_fp8(d, &a);
		if (st != MX_E_UNSUPPORTED)
			return st;
	}
	/* on a deterministic device the choice must not depend on n */
	return streams(p) && (p->n <= MX_CUDA_QUANT_FEW || d->info.deterministic) ? few(d, &a)
	                                                                          : expanded(d, &a);
}

mx_status mx_cuda_linear_embed(struct mx_device *d, const struct mx_weight *table,
                               const int32_t *ids, size_t n, void *y)
{
	if (!table->quant || !n)
		return mx_cuda_embed(d, table, ids, n, y);
	const struct mx_cuda_quant q = mx_cuda_quant_form(table->quant);
	return mx_cuda_check(d,
	                     mx_cuda_quant_rows(&q, table->data, table->rows, table->cols, ids, n,
	                                        mx_cuda_bf16(d), y, mx_cuda_stream(d)),
	                     "embed");
}

/* ---- outputs ---- */

static bool same_form(const struct mx_quant *a, const struct mx_quant *b)
{
	return a && b ? a->codes == b->codes && a->scales == b->scales && a->offset == b->offset &&
	                    a->group == b->group && a->center == b->center && a->whole == b->whole
	              : a == b;
}

/* Bytes of `rows` rows of W, which has `w_size` bytes an element; SIZE_MAX if they end within a
 * panel. */
static size_t bytes_of(const struct mx_weight *w, size_t rows, size_t w_size)
{
	if (!w->quant)
		return rows * w->cols * w_size;
	return rows % MX_QUANT_ROWS ? SIZE_MAX : rows / MX_QUANT_ROWS * w->quant->panel_bytes;
}

/* True if output `b` follows `a`, which has `rows` rows of W so far, in memory: b's weight rows
 * start after a's, and b's columns of y start after a's. Both have `w_size` bytes an element of W
 * and, since their types must be equal, `y_size` bytes an element of y. */
static bool continues(const struct mx_linear_out *a, size_t rows, const struct mx_linear_out *b,
                      size_t w_size, size_t y_size)
{
	const size_t before = bytes_of(a->w, rows, w_size);
	return b->w->dtype == a->w->dtype && b->w->cols == a->w->cols && b->ldy == a->ldy &&
	       b->accumulate == a->accumulate && b->y_f32 == a->y_f32 &&
	       same_form(a->w->quant, b->w->quant) && before != SIZE_MAX &&
	       (const char *)b->w->data == (const char *)a->w->data + before &&
	       (char *)b->y == (char *)a->y + rows * y_size &&
	       (a->bias ? b->bias == a->bias + rows : !b->bias);
}

/* Returns the product of out[*i] and of those behind it that continue it, with x as it is, and
 * moves *i behind them. */
static struct mx_cuda_product product_of(struct mx_device *d, const void *x, size_t ldx, size_t n,
                                         const struct mx_linear_out *out, size_t n_out, size_t *i)
{
	const struct mx_linear_out *o = &out[*i];
	const enum mx_dtype dtype = d->info.act_dtype, y_dtype = o->y_f32 ? MX_F32 : dtype;
	const size_t w_size = mx_dtype_size(dtype), y_size = mx_dtype_size(y_dtype);
	size_t rows = 0;
	do
		rows += out[(*i)++].w->rows;
	while (*i < n_out && rows + out[*i].w->rows <= o->ldy &&
	       continues(o, rows, &out[*i], w_size, y_size));
	return (struct mx_cuda_product){.w = o->w->data,
	                                .x = x,
	                                .bias = o->bias,
	                                .y = o->y,
	                                .ldx = ldx,
	                                .ldy = o->ldy,
	                                .rows = (uint32_t)rows,
	                                .cols = o->w->cols,
	                                .n = (uint32_t)n,
	                                .accumulate = o->accumulate,
	                                .bf16 = dtype == MX_BF16,
	                                .bf16_out = y_dtype == MX_BF16};
}

/* Takes the next outputs as the second product of `p`, if its kernel computes it, and moves *i
 * behind them: a product in f32 beside one in bf16, of so few rows of x that its launch is most of
 * its cost. Both have the bits that they have apart. */
static void add_second(struct mx_device *d, struct mx_cuda_product *p, const struct mx_quant *q,
                       const struct mx_linear_out *out, size_t n_out, size_t *i)
{
	const struct mx_linear_out *o = &out[*i];
	size_t next = *i;
	if (q || *i >= n_out || !o->y_f32 || !p->bf16_out || p->rows == 0 || o->w->dtype != MX_BF16 ||
	    o->w->cols != p->cols || o->accumulate || (uintptr_t)o->w->data % 16 ||
	    !mx_cuda_linear_is_few(d, p))
		return;
	const struct mx_cuda_product s = product_of(d, p->x, p->ldx, p->n, out, n_out, &next);
	p->second =
		(struct mx_cuda_second){.w = s.w, .bias = s.bias, .y = s.y, .ldy = s.ldy, .rows = s.rows};
	*i = next;
}

static mx_status run_product(struct mx_device *d, const struct mx_cuda_product *p,
                             const struct mx_quant *q)
{
	struct mx_cuda_product a = *p;
	a.wide = mx_cuda_linear_wide(d, p);
	return q ? quantised(d, &a, q) : mx_cuda_linear_product(d, &a);
}

mx_status mx_cuda_linear_run(struct mx_device *d, const void *x, size_t ldx, size_t n,
                             const struct mx_linear_out *out, size_t n_out)
{
	for (size_t i = 0; i < n_out;) {
		const struct mx_weight *w = out[i].w;
		if (w->dtype != (w->quant ? MX_QUANT : d->info.act_dtype))
			return MX_E_INVALID;
		struct mx_cuda_product p = product_of(d, x, ldx, n, out, n_out, &i);
		add_second(d, &p, w->quant, out, n_out, &i);
		mx_status rc = run_product(d, &p, w->quant);
		if (rc != MX_OK)
			return rc;
	}
	return MX_OK;
}

/* ---- fused with the norm of x, or gated ---- */

/* Most rows of products of weights as they are that `few` computes where `chain` could. */
static uint32_t most_few(const struct mx_cuda *c)
{
	return mx_cuda_linear_chain_can(c->base.sm) ? MX_CUDA_CHAIN_MIN - 1 : MX_CUDA_PAIR;
}

uint32_t mx_cuda_linear_fused_rows(const struct mx_device *d, bool quantised)
{
	return quantised               ? MX_CUDA_PAIR
	       : d->info.deterministic ? 0
	                               : most_few((const struct mx_cuda *)d);
}

/* True if the kernels for few rows compute this product, with its norm and gated. Of weights as
 * they are, others compute it on a deterministic device, with other bits. */
static bool is_fused(struct mx_device *d, const struct mx_cuda_product *p, const struct mx_quant *q)
{
	if (!streams(p) || p->cols % 8 ||
	    (p->norm && !mx_cuda_linear_few_can_norm(p, mx_cuda(d)->base.smem)) ||
	    (p->gated && p->rows % MX_QUANT_ROWS))
		return false;
	if (q)
		return q->fragments && p->n <= MX_CUDA_PAIR;
	return !d->info.deterministic && p->n <= most_few(mx_cuda(d)) && (uintptr_t)p->w % 16 == 0;
}

/* True if `chain` computes this gated product. */
static bool is_chained(struct mx_device *d, const struct mx_cuda_product *p,
                       const struct mx_quant *q)
{
	return !q && streams(p) && mx_cuda_linear_chain_can(mx_cuda(d)->base.sm) &&
	       (d->info.deterministic || (p->rows > MX_CUDA_CHAIN_ROWS && p->n >= MX_CUDA_CHAIN_MIN &&
	                                  p->n <= MX_CUDA_CHAIN_MAX)) &&
	       (uintptr_t)p->w % 16 == 0 && (uintptr_t)p->y % 16 == 0 && p->cols % 8 == 0 &&
	       p->ldy % 8 == 0 && p->rows % 8 == 0;
}

/* Writes the norm of x to in->room. */
static mx_status norm_apart(struct mx_device *d, const struct mx_linear_in *in, size_t n,
                            uint32_t cols)
{
	return mx_cuda_rmsnorm(d, in->x, in->norm, in->norm_eps, n, cols, in->room);
}

mx_status mx_cuda_linear_normed(struct mx_device *d, const struct mx_linear_in *in, size_t n,
                                const struct mx_linear_out *out, size_t n_out)
{
	const uint32_t cols = n_out ? out[0].w->cols : 0;
	bool all = true;
	if (n_out == 0 || n == 0)
		return MX_OK;
	for (int pass = 0; pass < 2 && all; pass++)
		for (size_t i = 0; i < n_out && all;) {
			const struct mx_weight *w = out[i].w;
			if (w->dtype != (w->quant ? MX_QUANT : d->info.act_dtype))
				return MX_E_INVALID;
			struct mx_cuda_product p = product_of(d, in->x, in->ldx, n, out, n_out, &i);
			p.norm = in->norm;
			p.norm_eps = in->norm_eps;
			mx_status rc = MX_OK;
			if (pass) {
				add_second(d, &p, w->quant, out, n_out, &i);
				rc = run_product(d, &p, w->quant);
			} else
				all = is_fused(d, &p, w->quant);
			if (rc != MX_OK)
				return rc;
		}
	if (all)
		return MX_OK;
	mx_status rc = norm_apart(d, in, n, cols);
	return rc == MX_OK ? mx_cuda_linear_run(d, in->room, cols, n, out, n_out) : rc;
}

mx_status mx_cuda_linear_gated(struct mx_device *d, const struct mx_linear_in *in, size_t n,
                               const struct mx_weight *gate, const struct mx_weight *up, void *y,
                               size_t ldy)
{
	const struct mx_quant *q = gate->quant;
	const struct mx_cuda_product bare = {.w = gate->data,
	                                     .x = in->x,
	                                     .y = y,
	                                     .ldx = in->ldx,
	                                     .ldy = ldy,
	                                     .rows = gate->rows,
	                                     .cols = gate->cols,
	                                     .n = (uint32_t)n,
	                                     .bf16 = mx_cuda_bf16(d),
	                                     .bf16_out = true,
	                                     .gated = true};
	struct mx_cuda_product p = bare;
	p.norm = in->norm;
	p.norm_eps = in->norm_eps;
	const size_t before = bytes_of(gate, gate->rows, 2);
	if (!mx_cuda_bf16(d) || gate->dtype != (q ? MX_QUANT : MX_BF16) || up->dtype != gate->dtype ||
	    up->rows != gate->rows || up->cols != gate->cols || !same_form(q, up->quant) ||
	    before == SIZE_MAX || (const char *)up->data != (const char *)gate->data + before)
		return MX_E_UNSUPPORTED;
	if (in->norm && !is_fused(d, &p, q)) {
		p = bare;
		p.x = in->room;
		p.ldx = gate->cols;
	}
	if (!is_fused(d, &p, q) && !is_chained(d, &p, q))
		return MX_E_UNSUPPORTED;
	if (n == 0)
		return MX_OK;
	mx_status rc = in->norm && !p.norm ? norm_apart(d, in, n, gate->cols) : MX_OK;
	return rc == MX_OK ? run_product(d, &p, q) : rc;
}
