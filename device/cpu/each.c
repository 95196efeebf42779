/* SPDX-License-Identifier: Apache-2.0 */
/* linear_each: products of one shape, each with an input of its own (the heads of a layer), shared
 * by the threads as one operator. The kernels are those of linear, so the bits are. */
#include "base/mem.h"
#include "device/cpu/impl.h"

/* Packing fewer elements takes less time than waking another thread. */
#define INLINE_ELEMENTS 16384

struct each_call {
	struct mx_cpu *c;
	const struct mx_gemm *g;
	const struct mx_linear_each *each;
	size_t n;             /* rows of each input */
	size_t rows, cols;    /* of each weight */
	size_t groups, parts; /* tasks of one product: packing, multiplying */
	size_t task_rows;     /* weight rows of a task, a multiple of MX_TASK_ROWS */
	size_t packed;        /* bytes from one packed input to the next; 0 = all have the same one */
};

static void pack_task(void *arg, size_t task, unsigned worker)
{
	const struct each_call *l = arg;
	const size_t i = task / l->groups, first = task % l->groups * MX_PACK_ROWS;
	const size_t count = l->n - first < MX_PACK_ROWS ? l->n - first : MX_PACK_ROWS;
	(void)worker;
	l->g->pack(l->each[i].x, l->each[i].ldx, l->n, l->cols, first, count,
	           l->c->packed + i * l->packed);
}

static void product_task(void *arg, size_t task, unsigned worker)
{
	const struct each_call *l = arg;
	const size_t i = task / l->parts, r0 = task % l->parts * l->task_rows;
	const size_t r1 = r0 + l->task_rows < l->rows ? r0 + l->task_rows : l->rows;
	const struct mx_linear_each *e = &l->each[i];
	const struct mx_product p = {
		.w = e->w,
		.y = e->y,
		.ldy = e->ldy,
		.x = e->x,
		.ldx = e->ldx,
		.packed = l->c->packed + i * l->packed,
		.n = l->n,
	};
	l->g->run(&p, r0, r1, l->c->scratch + worker * l->c->scratch_stride);
}

mx_status mx_cpu_linear_each(struct mx_device *d, size_t n, const struct mx_linear_each *each,
                             size_t n_each)
{
	struct mx_cpu *c = mx_cpu_of(d);
	if (!n || !n_each)
		return MX_OK;
	const struct mx_weight *w = each->w;
	struct each_call l = {.c = c, .n = n, .rows = w->rows, .cols = w->cols};
	if (n > c->max_rows || l.cols > c->max_width)
		return MX_E_RANGE;
	bool same = true;
	for (size_t i = 0; i < n_each; i++) {
		same &= each[i].x == each->x && each[i].ldx == each->ldx;
		if (each[i].w->rows != l.rows || each[i].w->cols != l.cols ||
		    each[i].w->dtype != w->dtype || !c->k.gemm[w->dtype].run || each[i].ldx < l.cols ||
		    each[i].ldy < l.rows)
			return MX_E_INVALID;
	}
	l.g = &c->k.gemm[w->dtype];
	/* About eight tasks a thread, as in linear. */
	size_t task_rows = n_each * l.rows / (8 * mx_pool_size(c->pool));
	task_rows = task_rows < l.rows ? task_rows : l.rows;
	l.task_rows = mx_round_up(task_rows < MX_TASK_ROWS ? MX_TASK_ROWS : task_rows, MX_TASK_ROWS);
	l.parts = (l.rows + l.task_rows - 1) / l.task_rows;
	l.groups = (n + MX_PACK_ROWS - 1) / MX_PACK_ROWS;
	size_t fit = n_each;
	if (l.g->pack && !same) {
		l.packed = mx_round_up(l.g->packed_bytes(n, l.cols), 64);
		fit = l.packed < c->packed_bytes ? c->packed_bytes / l.packed : 1;
	}
	for (size_t i = 0; i < n_each; i += fit) {
		const size_t count = n_each - i < fit ? n_each - i : fit;
		l.each = each + i;
		const size_t packs = l.g->pack ? (same ? 1 : count) * l.groups : 0;
		if (packs * MX_PACK_ROWS * l.cols <= INLINE_ELEMENTS)
			for (size_t t = 0; t < packs; t++)
				pack_task(&l, t, 0);
		else
			mx_cpu_run(c, packs, pack_task, &l);
		mx_cpu_run(c, count * l.parts, product_task, &l);
	}
	return MX_OK;
}
