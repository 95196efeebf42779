/* SPDX-License-Identifier: Apache-2.0 */
/* experts: workspace, and which kernels compute a call. */
#include "device/cuda/experts.h"

#include "device/cuda/impl.h"

#define ALIGN 256
#define MANY  24 /* links of an expert from which on `many` is faster */

static void *take(unsigned char **at, size_t bytes)
{
	void *p = *at;
	*at += (bytes + ALIGN - 1) / ALIGN * ALIGN;
	return p;
}

/* True if `few` and `many` support the shape. */
static bool has_units(const struct mx_experts *m, bool bf16)
{
	return bf16 && m->cols % 8 == 0 && m->width % 8 == 0;
}

/* Returns the links of a tile: enough that most experts' links are one tile, so that their matrices
 * are read once; with as many links as rows of a matrix arithmetic is the limit. */
static uint32_t tile_of(const struct mx_experts *m, size_t links, bool many)
{
	const size_t each = links / m->n;
	if (many && each >= MANY)
		return each >= 96 ? 128 : 64;
	return links <= m->n ? 8 : each < 6 ? 16 : 32;
}

static void divide_work(struct mx_cuda_experts *p, void *work, size_t size)
{
	const size_t links = (size_t)p->n * p->m.rule.chosen;
	unsigned char *at = work;
	p->max_tiles = (uint32_t)((links < p->m.n ? links : p->m.n) + links / p->tile);
	p->choices = take(&at, links * sizeof *p->choices);
	p->order = take(&at, links * sizeof *p->order);
	p->n_tiles = take(&at, sizeof *p->n_tiles);
	p->tiles = take(&at, p->max_tiles * sizeof *p->tiles);
	p->product = take(&at, links * p->m.width * size);
	p->out = take(&at, links * p->m.cols * size);
}

static mx_status run(struct mx_device *d, const struct mx_cuda_experts *p, bool bf16)
{
	cudaStream_t stream = mx_cuda_stream(d);
	mx_status st = mx_cuda_check(d, mx_cuda_experts_route(p, stream), "routing of experts");
	if (st != MX_OK)
		return st;
	cudaError_t e = !has_units(&p->m, bf16) ? mx_cuda_experts_any(p, bf16, stream)
	                : p->tile > 32          ? mx_cuda_experts_many(p, stream)
	                                        : mx_cuda_experts_few(p, mx_cuda(d)->base.sms, stream);
	st = mx_cuda_check(d, e, "products of experts");
	return st == MX_OK
	           ? mx_cuda_check(d, mx_cuda_experts_combine(p, bf16, stream), "sum of experts")
	           : st;
}

mx_status mx_cuda_experts(struct mx_device *d, const struct mx_experts *m,
                          const struct mx_experts_call *call)
{
	const bool bf16 = mx_cuda_bf16(d);
	const size_t size = bf16 ? 2 : 4;
	mx_status st = MX_OK;
	if (m->n > MX_EXPERTS_MAX || m->rule.chosen > MX_EXPERTS_MAX_CHOSEN || m->rule.chosen > m->n)
		return MX_E_UNSUPPORTED;
	for (size_t first = 0; first < call->n && st == MX_OK; first += MX_EXPERTS_ROWS) {
		const size_t left = call->n - first, n = left < MX_EXPERTS_ROWS ? left : MX_EXPERTS_ROWS;
		struct mx_cuda_experts p = {
			.m = *m,
			.logits = call->logits + first * m->n,
			.x = (const unsigned char *)call->x + first * m->cols * size,
			.y = (unsigned char *)call->y + first * m->cols * size,
			.share = call->share ? call->share + first : NULL,
			.add = call->add,
			.n = (uint32_t)n,
			.tile = tile_of(m, n * m->rule.chosen, has_units(m, bf16) && !d->info.deterministic),
		};
		divide_work(&p, call->work, size);
		st = run(d, &p, bf16);
	}
	return st;
}
