/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/pooled.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

mx_status mx_pooled_create(const struct mx_seq_params *params, uint32_t width,
                           struct mx_pooled *out)
{
	struct mx_pooled p = {.kind = params->pooling, .n = width};
	if (p.kind == MX_POOLING_NONE)
		return MX_OK;
	if (p.kind == MX_POOLING_TOKENS)
		p.n = (uint32_t)params->n_pooled;
	p.vector = mx_calloc(p.n, sizeof *p.vector);
	if (p.kind == MX_POOLING_MEAN)
		p.sum = mx_calloc(p.n, sizeof *p.sum);
	if (!p.vector || (p.kind == MX_POOLING_MEAN && !p.sum)) {
		mx_pooled_destroy(&p);
		return MX_E_NOMEM;
	}
	*out = p;
	return MX_OK;
}

void mx_pooled_destroy(struct mx_pooled *p)
{
	free(p->sum);
	free(p->vector);
	*p = (struct mx_pooled){0};
}

uint32_t mx_pooled_from(const struct mx_pooled *p, uint32_t first, uint32_t n, uint32_t n_prompt)
{
	if (p->kind == MX_POOLING_NONE)
		return first + n;
	if (p->kind == MX_POOLING_MEAN)
		return first;
	return first + n == n_prompt ? n_prompt - 1 : first + n;
}

void mx_pooled_add(struct mx_pooled *p, uint32_t pos, const float *row)
{
	if (p->kind == MX_POOLING_LAST) {
		memcpy(p->vector, row, p->n * sizeof *row);
		return;
	}
	if (!pos) {
		memset(p->sum, 0, p->n * sizeof *p->sum);
		p->rows = 0;
	}
	for (uint32_t i = 0; i < p->n; i++)
		p->sum[i] += (double)row[i];
	p->rows++;
}

const float *mx_pooled_end(struct mx_pooled *p)
{
	for (uint32_t i = 0; p->kind == MX_POOLING_MEAN && i < p->n; i++)
		p->vector[i] = (float)(p->sum[i] / p->rows);
	return p->vector;
}
