/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU device: splits each operator into tasks for the thread pool, which run
 * the kernels. mx_cpu_create allocates all memory. One engine thread calls it.
 *
 * How an operator is split never changes its results: kernels compute a row of
 * output from that row's inputs alone, in a fixed order.
 */
#include "config.h"

#include "device/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lanes.h"
#include "base/mem.h"
#include "device/cpu/impl.h"
#include "device/quant.h"

/* An operator on fewer elements takes less time than waking another thread. */
#define INLINE_ELEMENTS 16384

static void *worker_scratch(struct mx_cpu *c, unsigned worker)
{
	return c->scratch + worker * c->scratch_stride;
}

/* ---- linear ---- */

struct linear_call {
	struct mx_cpu *c;
	const struct mx_gemm *g;
	const float *x;
	size_t ldx, n, cols;
	const struct mx_linear_out *out;
	size_t n_out;
	enum mx_dtype dtype;
	/* Units of MX_TASK_ROWS weight rows or the last ones of a matrix; most of a task. */
	struct mx_lanes lanes;
	size_t longest;
};

static void pack_task(void *arg, size_t task, unsigned worker)
{
	struct linear_call *l = arg;
	(void)worker;
	size_t first = task * MX_PACK_ROWS;
	size_t count = l->n - first < MX_PACK_ROWS ? l->n - first : MX_PACK_ROWS;
	l->g->pack(l->x, l->ldx, l->n, l->cols, first, count, l->c->packed);
}

static size_t units_of(const struct linear_call *l, const struct mx_linear_out *o)
{
	return o->w->dtype == l->dtype ? (o->w->rows + MX_TASK_ROWS - 1) / MX_TASK_ROWS : 0;
}

/* Computes units `at` .. end - 1, matrix by matrix. */
static void linear_units(struct linear_call *l, size_t at, size_t end, unsigned worker)
{
	size_t units;
	for (const struct mx_linear_out *o = l->out; end; o++) {
		units = units_of(l, o);
		if (at < units) {
			const size_t last = end < units ? end : units;
			const size_t r1 = last * MX_TASK_ROWS;
			struct mx_product p = {
				.w = o->w,
				.bias = o->bias,
				.y = o->y,
				.ldy = o->ldy,
				.accumulate = o->accumulate,
				.x = l->x,
				.ldx = l->ldx,
				.packed = l->c->packed,
				.n = l->n,
			};
			l->g->run(&p, at * MX_TASK_ROWS, r1 < o->w->rows ? r1 : o->w->rows,
			          worker_scratch(l->c, worker));
		}
		at = at > units ? at - units : 0;
		end = end > units ? end - units : 0;
	}
}

static void lane_task(void *arg, size_t first, unsigned worker)
{
	struct linear_call *l = arg;
	const size_t lanes = l->lanes.n_lanes;
	size_t at, n;
	for (size_t i = 0; i < lanes; i++)
		while ((n = mx_lanes_take(&l->lanes, (first + i) % lanes, l->longest, &at)))
			linear_units(l, at, at + n, worker);
}

/* Computes all outputs whose weights have one dtype: they share the packed input. */
static void linear_dtype(struct linear_call *l)
{
	size_t rows = 0, threads = mx_pool_size(l->c->pool);
	for (size_t i = 0; i < l->n_out; i++)
		rows += l->out[i].w->dtype == l->dtype ? l->out[i].w->rows : 0;
	if (!rows)
		return;
	l->g = &l->c->k.gemm[l->dtype];
	if (l->g->pack) {
		size_t groups = (l->n + MX_PACK_ROWS - 1) / MX_PACK_ROWS;
		if (l->n * l->cols <= INLINE_ELEMENTS)
			for (size_t t = 0; t < groups; t++)
				pack_task(l, t, 0);
		else
			mx_cpu_run(l->c, groups, pack_task, l);
	}
	size_t units = 0;
	for (size_t i = 0; i < l->n_out; i++)
		units += units_of(l, &l->out[i]);
	mx_lanes_init(&l->lanes, units, threads);
	l->longest = units / (4 * threads) + 1; /* so that one slow thread delays the others little */
	mx_cpu_run(l->c, l->lanes.n_lanes, lane_task, l);
}

static mx_status linear(struct mx_device *d, const void *x, size_t ldx, size_t n,
                        const struct mx_linear_out *out, size_t n_out)
{
	struct mx_cpu *c = mx_cpu_of(d);
	if (!n || !n_out)
		return MX_OK;
	struct linear_call l;
	l.c = c, l.x = x, l.ldx = ldx, l.n = n, l.cols = out[0].w->cols, l.out = out, l.n_out = n_out;
	if (n > c->max_rows || l.cols > c->max_width || ldx < l.cols)
		return MX_E_RANGE;
	for (size_t i = 0; i < n_out; i++)
		if (out[i].w->cols != l.cols || out[i].ldy < out[i].w->rows ||
		    !c->k.gemm[out[i].w->dtype].run)
			return MX_E_INVALID;
	for (int t = MX_F32; t <= MX_QUANT; t++) {
		l.dtype = (enum mx_dtype)t;
		linear_dtype(&l);
	}
	return MX_OK;
}

/* ---- operators on rows ---- */

/* An operator on rows, split into tasks of about INLINE_ELEMENTS / 4 elements each. */
struct rows_call {
	struct mx_cpu *c;
	void (*row)(const struct rows_call *r, size_t i);
	size_t n, per_task;
	float *x, *y;
	const float *a, *b, *bias;
	enum mx_act act;
	size_t ld_a, ld_b, ld_y, width;
	float eps;
	const struct mx_rope *rope;
	const uint32_t *pos;
	uint32_t n_heads, head_dim;
	const struct mx_weight *table;
	const int32_t *ids;
	const struct mx_row_move *moves;
	size_t bytes;
};

static void rows_task(void *arg, size_t task, unsigned worker)
{
	const struct rows_call *r = arg;
	(void)worker;
	size_t end = (task + 1) * r->per_task < r->n ? (task + 1) * r->per_task : r->n;
	for (size_t i = task * r->per_task; i < end; i++)
		r->row(r, i);
}

static void run_rows(struct rows_call *r, size_t width)
{
	size_t per = INLINE_ELEMENTS / 4 / (width ? width : 1);
	r->per_task = r->n * width <= INLINE_ELEMENTS ? r->n : per ? per : 1;
	if (r->n)
		mx_cpu_run(r->c, (r->n + r->per_task - 1) / r->per_task, rows_task, r);
}

static void rmsnorm_row(const struct rows_call *r, size_t i)
{
	size_t at = i * r->width;
	r->c->k.rmsnorm(r->x + at, r->a ? r->a + at : NULL, r->b, r->eps, r->width, r->y + at);
}

static mx_status add_rmsnorm(struct mx_device *d, void *x, const void *res, const float *weight,
                             float eps, size_t n, size_t width, void *y)
{
	struct rows_call r = {.c = mx_cpu_of(d),
	                      .row = rmsnorm_row,
	                      .n = n,
	                      .x = x,
	                      .a = res,
	                      .b = weight,
	                      .eps = eps,
	                      .width = width,
	                      .y = y};
	run_rows(&r, width);
	return MX_OK;
}

static mx_status rmsnorm(struct mx_device *d, const void *x, const float *weight, float eps,
                         size_t n, size_t width, void *y)
{
	/* without a residual x is only read */
	return add_rmsnorm(d, (void *)(uintptr_t)x, NULL, weight, eps, n, width, y);
}

static void layernorm_row(const struct rows_call *r, size_t i)
{
	size_t at = i * r->width;
	r->c->k.layernorm(r->x + at, r->a ? r->a + at : NULL, r->b, r->bias, r->eps, r->width,
	                  r->y + at);
}

static mx_status layernorm(struct mx_device *d, void *x, const void *res, const float *weight,
                           const float *bias, float eps, size_t n, size_t width, void *y)
{
	struct rows_call r = {.c = mx_cpu_of(d),
	                      .row = layernorm_row,
	                      .n = n,
	                      .x = x,
	                      .a = res,
	                      .b = weight,
	                      .bias = bias,
	                      .eps = eps,
	                      .width = width,
	                      .y = y};
	run_rows(&r, width);
	return MX_OK;
}

static void act_mul_row(const struct rows_call *r, size_t i)
{
	r->c->k.act_mul(r->act, r->a + i * r->ld_a, r->b ? r->b + i * r->ld_b : NULL, r->width,
	                r->y + i * r->ld_y);
}

static mx_status act_mul(struct mx_device *d, enum mx_act act, const void *gate, size_t ld_gate,
                         const void *up, size_t ld_up, size_t n, size_t width, void *y, size_t ld_y)
{
	struct rows_call r = {.c = mx_cpu_of(d),
	                      .row = act_mul_row,
	                      .n = n,
	                      .act = act,
	                      .a = gate,
	                      .ld_a = ld_gate,
	                      .b = up,
	                      .ld_b = ld_up,
	                      .width = width,
	                      .y = y,
	                      .ld_y = ld_y};
	run_rows(&r, 2 * width);
	return MX_OK;
}

static mx_status silu_mul(struct mx_device *d, const void *gate, size_t ld_gate, const void *up,
                          size_t ld_up, size_t n, size_t width, void *y, size_t ld_y)
{
	return act_mul(d, MX_ACT_SILU, gate, ld_gate, up, ld_up, n, width, y, ld_y);
}

static void rope_table_row(const struct rows_call *r, size_t i)
{
	size_t half = r->rope->dim / 2;
	r->c->k.rope_table(r->pos[i], r->rope->inv_freq, half, r->rope->scale,
	                   r->c->rope.table + i * 2 * half);
}

static void rope_row(const struct rows_call *r, size_t i)
{
	size_t half = r->rope->dim / 2;
	for (uint32_t h = 0; h < r->n_heads; h++) {
		float *x = r->x + i * r->ld_a + (size_t)h * r->head_dim;
		if (r->b)
			r->c->k.rmsnorm(x, NULL, r->b, r->eps, r->head_dim, x);
		r->c->k.rope_head(x, r->c->rope.table + i * 2 * half, half);
	}
}

/* Fills the table for these positions, unless the last call already did. */
static void rope_prepare(struct rows_call *r)
{
	struct mx_rope_cache *t = &r->c->rope;
	const struct mx_rope *rope = r->rope;
	size_t half = rope->dim / 2;
	if (t->half == half && !memcmp(&t->scale, &rope->scale, sizeof t->scale) && t->n >= r->n &&
	    !memcmp(t->inv_freq, rope->inv_freq, half * sizeof *t->inv_freq) &&
	    !memcmp(t->pos, r->pos, r->n * sizeof *t->pos))
		return;
	t->half = half;
	t->scale = rope->scale;
	t->n = r->n;
	memcpy(t->inv_freq, rope->inv_freq, half * sizeof *t->inv_freq);
	memcpy(t->pos, r->pos, r->n * sizeof *t->pos);
	r->row = rope_table_row;
	run_rows(r, 16 * half);
}

static mx_status rope(struct mx_device *d, void *x, size_t ld, size_t n, uint32_t n_heads,
                      uint32_t head_dim, const struct mx_rope *rp, const uint32_t *pos,
                      const float *norm, float eps)
{
	struct mx_cpu *c = mx_cpu_of(d);
	if (n > c->max_rows)
		return MX_E_RANGE;
	if (rp->dim > MX_ROPE_MAX_DIM || rp->dim % 2 || rp->dim > head_dim)
		return MX_E_UNSUPPORTED;
	struct rows_call r = {.c = c,
	                      .n = n,
	                      .x = x,
	                      .ld_a = ld,
	                      .b = norm,
	                      .eps = eps,
	                      .rope = rp,
	                      .pos = pos,
	                      .n_heads = n_heads,
	                      .head_dim = head_dim};
	rope_prepare(&r);
	r.row = rope_row;
	run_rows(&r, (size_t)n_heads * head_dim);
	return MX_OK;
}

static void embed_row(const struct rows_call *r, size_t i)
{
	size_t cols = r->table->cols;
	if (r->table->dtype == MX_QUANT) {
		mx_quant_row(r->table, (size_t)r->ids[i], r->y + i * cols);
		return;
	}
	const unsigned char *src = (const unsigned char *)r->table->data +
	                           (size_t)r->ids[i] * cols * mx_dtype_size(r->table->dtype);
	r->c->k.convert(src, r->table->dtype, cols, r->y + i * cols);
}

static mx_status embed(struct mx_device *d, const struct mx_weight *table, const int32_t *ids,
                       size_t n, void *y)
{
	for (size_t i = 0; i < n; i++)
		if (ids[i] < 0 || (uint32_t)ids[i] >= table->rows)
			return MX_E_RANGE;
	struct rows_call r = {
		.c = mx_cpu_of(d), .row = embed_row, .n = n, .table = table, .ids = ids, .y = y};
	run_rows(&r, table->cols);
	return MX_OK;
}

/* Operators without a row length split their elements into pieces of this size. */
#define PIECE ((size_t)INLINE_ELEMENTS / 4)

static void run_pieces(struct rows_call *r, size_t n)
{
	r->n = (n + PIECE - 1) / PIECE;
	r->width = n % PIECE ? n % PIECE : PIECE; /* size of the last piece */
	run_rows(r, PIECE);
}

static size_t piece_size(const struct rows_call *r, size_t i)
{
	return i + 1 < r->n ? PIECE : r->width;
}

static void gelu_tanh_piece(const struct rows_call *r, size_t i)
{
	float *y = r->y + i * PIECE;
	r->c->k.act_mul(MX_ACT_GELU_TANH, y, NULL, piece_size(r, i), y);
}

static mx_status gelu_tanh(struct mx_device *d, void *y, size_t n)
{
	struct rows_call r = {.c = mx_cpu_of(d), .row = gelu_tanh_piece, .y = y};
	run_pieces(&r, n);
	return MX_OK;
}

/* y *= scale; with a, y += scale * a. */
static void scale_piece(const struct rows_call *r, size_t i)
{
	float *y = r->y + i * PIECE;
	size_t n = piece_size(r, i);
	for (size_t k = 0; k < n && !r->a; k++)
		y[k] *= r->eps;
	for (size_t k = 0; k < n && r->a; k++)
		y[k] += r->eps * r->a[i * PIECE + k];
}

static mx_status add_scaled(struct mx_device *d, void *y, const void *a, size_t n, float factor)
{
	struct rows_call r = {.c = mx_cpu_of(d), .row = scale_piece, .y = y, .a = a, .eps = factor};
	run_pieces(&r, n);
	return MX_OK;
}

static mx_status scale(struct mx_device *d, void *y, size_t n, float factor)
{
	return add_scaled(d, y, NULL, n, factor);
}

static mx_status scale_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                              float factor)
{
	for (size_t i = 0; i < n; i++)
		scale(d, y + i * ld, vocab, factor);
	return MX_OK;
}

static void softcap_row(const struct rows_call *r, size_t i)
{
	r->c->k.softcap(r->y + i * r->ld_y, r->width, r->eps);
}

static mx_status softcap_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                                float cap)
{
	struct rows_call r = {.c = mx_cpu_of(d),
	                      .row = softcap_row,
	                      .n = n,
	                      .y = y,
	                      .ld_y = ld,
	                      .width = vocab,
	                      .eps = cap};
	run_rows(&r, vocab);
	return MX_OK;
}

static void gather_row(const struct rows_call *r, size_t i)
{
	memcpy(r->y + i * r->width, r->a + r->pos[i] * r->width, r->width * sizeof *r->y);
}

static mx_status gather(struct mx_device *d, const void *x, const uint32_t *rows, size_t n,
                        size_t width, void *y)
{
	struct rows_call r = {
		.c = mx_cpu_of(d), .row = gather_row, .n = n, .a = x, .pos = rows, .width = width, .y = y};
	run_rows(&r, width);
	return MX_OK;
}

static void move_row(const struct rows_call *r, size_t i)
{
	const struct mx_row_move *m = &r->moves[i];
	if (m->to && m->from)
		memcpy(m->to, m->from, r->bytes);
	else if (m->to)
		memset(m->to, 0, r->bytes);
}

static mx_status move_rows(struct mx_device *d, const struct mx_row_move *moves, size_t n,
                           size_t bytes)
{
	struct rows_call r = {
		.c = mx_cpu_of(d), .row = move_row, .n = n, .moves = moves, .bytes = bytes};
	run_rows(&r, bytes / sizeof(float));
	return MX_OK;
}

static void parallel(struct mx_device *d, size_t n_tasks, mx_parallel_f *fn, void *arg)
{
	mx_cpu_run(mx_cpu_of(d), n_tasks, fn, arg);
}

/* The engine computes mixtures of experts on CPUs. */
static mx_status no_experts(struct mx_device *d, const struct mx_experts *m,
                            const struct mx_experts_call *call)
{
	(void)d;
	(void)m;
	(void)call;
	return MX_E_UNSUPPORTED;
}

static const struct mx_ops cpu_ops = {
	.struct_size = sizeof(struct mx_ops),
	.linear = linear,
	.rmsnorm = rmsnorm,
	.add_rmsnorm = add_rmsnorm,
	.silu_mul = silu_mul,
	.rope = rope,
	.embed = embed,
	.sample = mx_cpu_sample,
	.logprobs = mx_cpu_logprobs,
	.parallel = parallel,
	.destroy = mx_cpu_destroy,
	.alloc = mx_cpu_alloc,
	.release = mx_cpu_release,
	.host_alloc = mx_cpu_alloc,
	.host_release = mx_cpu_release,
	.upload = mx_cpu_copy,
	.download = mx_cpu_copy,
	.copy = mx_cpu_copy,
	.zero = mx_cpu_zero,
	.wait = mx_cpu_wait,
	.load = mx_cpu_load,
	.scale = scale,
	.add_scaled = add_scaled,
	.scale_logits = scale_logits,
	.gather = gather,
	.sample_prepare = mx_cpu_sample_prepare,
	.sample_draw = mx_cpu_sample_draw,
	.sample_drawn = mx_cpu_sample_drawn,
	.record = mx_cpu_record,
	.recorded = mx_cpu_recorded,
	.replay = mx_cpu_replay,
	.forget = mx_cpu_forget,
	.layernorm = layernorm,
	.gelu_tanh = gelu_tanh,
	.act_mul = act_mul,
	.softcap_logits = softcap_logits,
	.linear_each = mx_cpu_linear_each,
	.experts = no_experts,
	.move_rows = move_rows,
	.put = mx_cpu_put,
};

/* ---- life ---- */

void mx_kernels_of(struct mx_kernels *k, enum mx_isa isa)
{
	mx_kernels_ref(k);
	mx_kernels_portable(k);
	mx_quant_gemm_portable(&k->gemm[MX_QUANT]);
#ifdef MX_X86_64
	if (isa >= MX_ISA_AVX2)
		mx_kernels_avx2(k);
	if (isa >= MX_ISA_AVX512)
		mx_kernels_avx512(k);
	if (isa >= MX_ISA_AVX512_BF16)
		mx_kernels_avx512_bf16(k);
	if (isa >= MX_ISA_AMX_BF16)
		mx_kernels_amx_bf16(k);
	if (isa >= MX_ISA_AVX2)
		mx_quant_gemm_avx2(&k->gemm[MX_QUANT]);
	if (isa >= MX_ISA_AVX512 && mx_cpu_has_vnni())
		mx_quant_gemm_vnni(&k->gemm[MX_QUANT]);
#else
	(void)isa;
#endif
}

/* Sizes of the parts of the device's memory, each a multiple of 64. */
struct layout {
	size_t packed, scratch, rope_table, rope_pos, rope_freq, tokens;
};

static void lay_out(const struct mx_kernels *k, size_t max_rows, size_t max_width, struct layout *l)
{
	*l = (struct layout){.scratch = mx_cpu_sample_scratch()};
	for (int t = 0; t <= MX_QUANT; t++) {
		const struct mx_gemm *g = &k->gemm[t];
		size_t packed = g->packed_bytes ? g->packed_bytes(max_rows, max_width) : 0;
		size_t scratch = g->scratch_bytes ? g->scratch_bytes(max_rows, max_width) : 0;
		l->packed = packed > l->packed ? packed : l->packed;
		l->scratch = scratch > l->scratch ? scratch : l->scratch;
	}
	l->packed = mx_round_up(l->packed, 64);
	l->scratch = mx_round_up(l->scratch, 64);
	l->rope_table = mx_round_up(max_rows * MX_ROPE_MAX_DIM * sizeof(float), 64);
	l->rope_pos = mx_round_up(max_rows * sizeof(uint32_t), 64);
	l->rope_freq = MX_ROPE_MAX_DIM / 2 * sizeof(float);
	l->tokens = mx_round_up(max_rows * sizeof(int32_t), 64);
}

static size_t layout_bytes(const struct layout *l, unsigned n_threads)
{
	return l->packed + l->scratch * n_threads + l->rope_table + l->rope_pos + l->rope_freq +
	       l->tokens;
}

size_t mx_cpu_scratch_bytes(unsigned n_threads, enum mx_isa isa, size_t max_rows, size_t max_width)
{
	struct mx_kernels k;
	struct layout l;
	mx_kernels_of(&k, isa);
	lay_out(&k, max_rows, max_width, &l);
	return layout_bytes(&l, n_threads ? n_threads : mx_pool_default_size());
}

/* As mx_cpu_create_kernels, with the threads of `other` if that is not NULL. */
static mx_status create(struct mx_device *other, unsigned n_threads, const struct mx_kernels *k,
                        enum mx_isa isa, size_t max_rows, size_t max_width, struct mx_device **out,
                        struct mx_err *err)
{
	mx_status st = MX_OK;
	struct layout l;
	struct mx_cpu *c = aligned_alloc(64, mx_round_up(sizeof *c, 64));
	if (!c)
		return mx_fail(err, MX_E_NOMEM, "no memory for the CPU device");
	*c = (struct mx_cpu){.k = *k, .max_rows = max_rows, .max_width = max_width};
	if (other)
		c->pool = mx_pool_share(mx_cpu_of(other)->pool);
	else
		st = mx_pool_create(n_threads, &c->pool);
	if (st != MX_OK) {
		mx_fail(err, st, "cannot start the threads of the CPU device");
		goto fail;
	}
	c->base.ops = &cpu_ops;
	c->base.info = (struct mx_device_info){.kind = MX_DEVICE_CPU,
	                                       .name = "cpu",
	                                       .act_dtype = MX_F32,
	                                       .threads = mx_pool_size(c->pool),
	                                       .align = 64,
	                                       .own_memory = false,
	                                       .async = false,
	                                       .deterministic = true};
	snprintf(c->base.info.isa, sizeof c->base.info.isa, "%s", mx_isa_name(isa));
	lay_out(k, max_rows, max_width, &l);
	c->map_bytes = layout_bytes(&l, c->base.info.threads);
	c->map = mx_map(c->map_bytes);
	if (!c->map) {
		st = mx_fail(err, MX_E_NOMEM, "no memory for %zu bytes of CPU workspace", c->map_bytes);
		goto fail;
	}
	unsigned char *p = c->map;
	c->packed = p;
	c->packed_bytes = l.packed;
	c->scratch = p += l.packed;
	c->scratch_stride = l.scratch;
	c->rope.table = (float *)(p += l.scratch * c->base.info.threads);
	c->rope.pos = (uint32_t *)(p += l.rope_table);
	c->rope.inv_freq = (float *)(p += l.rope_pos);
	c->tokens = (int32_t *)(p += l.rope_freq);
	*out = &c->base;
	return MX_OK;
fail:
	mx_cpu_destroy(&c->base);
	return st;
}

mx_status mx_cpu_create_kernels(unsigned n_threads, const struct mx_kernels *k, enum mx_isa isa,
                                size_t max_rows, size_t max_width, struct mx_device **out,
                                struct mx_err *err)
{
	return create(NULL, n_threads, k, isa, max_rows, max_width, out, err);
}

static mx_status create_at(struct mx_device *other, unsigned n_threads, enum mx_isa isa,
                           size_t max_rows, size_t max_width, struct mx_device **out,
                           struct mx_err *err)
{
	struct mx_kernels k;
	if (isa > mx_cpu_isa_max())
		return mx_fail(err, MX_E_UNSUPPORTED, "this processor has no %s", mx_isa_name(isa));
	mx_kernels_of(&k, isa);
	return create(other, n_threads, &k, isa, max_rows, max_width, out, err);
}

mx_status mx_cpu_create(unsigned n_threads, enum mx_isa isa, size_t max_rows, size_t max_width,
                        struct mx_device **out, struct mx_err *err)
{
	return create_at(NULL, n_threads, isa, max_rows, max_width, out, err);
}

mx_status mx_cpu_create_beside(struct mx_device *other, enum mx_isa isa, size_t max_rows,
                               size_t max_width, struct mx_device **out, struct mx_err *err)
{
	return create_at(other, 0, isa, max_rows, max_width, out, err);
}

void mx_cpu_destroy(struct mx_device *d)
{
	struct mx_cpu *c = mx_cpu_of(d);
	if (!c)
		return;
	mx_pool_destroy(c->pool);
	if (c->map)
		mx_unmap(c->map, c->map_bytes);
	free(c);
}
