/* SPDX-License-Identifier: Apache-2.0 */
/* experts: workspace, and which kernels compute a call. */
#include "device/cuda/experts.h"

#include "device/cuda/experts_quant.h"
#include "device/cuda/impl.h"

#define ALIGN       256
#define MANY        24 /* links of an expert from which on `many` is faster */
#define PACKED_MANY 12 /* likewise of packed matrices */
#define PACKED_FEW  16 /* most links of a tile of packed matrices' `few` */

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
	if (m->up_quant)
		return links <= m->n ? 8 : many && each >= PACKED_MANY ? 32 : PACKED_FEW;
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

static cudaError_t products(struct mx_device *d, const struct mx_cuda_experts *p, bool bf16,
                            cudaStream_t stream)
{
	const struct mx_cuda_base *gpu = &mx_cuda(d)->base;
	if (p->m.up_quant) {
		const struct mx_cuda_quant up = mx_cuda_quant_form(p->m.up_quant);
		const struct mx_cuda_quant down = mx_cuda_quant_form(p->m.down_quant);
		return p->tile > PACKED_FEW
		           ? mx_cuda_experts_quant_many(p, &up, &down, stream)
		           : mx_cuda_experts_quant_few(p, &up, &down, gpu->sms, gpu->smem, stream);
	}
	return !has_units(&p->m, bf16) ? mx_cuda_experts_any(p, bf16, stream)
	       : p->tile > 32          ? mx_cuda_experts_many(p, stream)
	                               : mx_cuda_experts_few(p, gpu->sms, gpu->smem, stream);
}

static mx_status run(struct mx_device *d, const struct mx_cuda_experts *p, bool bf16)
{
	cudaStream_t stream = mx_cuda_stream(d);
	mx_status st = mx_cuda_check(d, mx_cuda_experts_route(p, stream), "routing of experts");
	if (st != MX_OK)
		return st;
	st = mx_cuda_check(d, products(d, p, bf16, stream), "products of experts");
	return st == MX_OK
	           ? mx_cuda_check(d, mx_cuda_experts_combine(p, bf16, stream), "sum of experts")
	           : st;
}

mx_status mx_cuda_experts(struct mx_device *d, const struct mx_experts *m,
                          const struct mx_experts_call *call)
{
	const bool bf16 = mx_cuda_bf16(d);
	const size_t size = bf16 ? 2 : 4;
	const bool own_order = has_units(m, bf16) && !d->info.deterministic;
	const bool many = own_order && (!m->up_quant || mx_cuda(d)->base.sm == 90);
	mx_status st = MX_OK;
	if (!m->up_quant != !m->down_quant || (m->up_quant && !d->info.packs_experts))
		return MX_E_UNSUPPORTED;
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
			.tile = tile_of(m, n * m->rule.chosen, many),
		};
		divide_work(&p, call->work, size);
		st = run(d, &p, bf16);
	}
	return st;
}
