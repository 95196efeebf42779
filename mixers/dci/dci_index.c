/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys, values and the index in the pages.
 *
 * A run of DCI_RUN keys is indexed when its last key is there. The index is a function of these
 * keys alone, whatever the steps that brought them: a draft that is taken back is written again,
 * and the run indexed again.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "mixers/dci/dci.h"

/* SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

void dci_signs_fill(const struct dci_params *p, uint32_t layer, float *signs)
{
	for (uint64_t h = 0; h < p->heads.kv_heads; h++) {
		uint64_t key =
			mixed(mixed(p->seed + 1) ^ mixed((uint64_t)layer << 32 | (p->heads.first_kv_head + h)));
		for (uint64_t i = 0; i < 3 * (uint64_t)p->directions; i++)
			*signs++ = mixed(key + i * 0x9e3779b97f4a7c15u) >> 63 ? 1.0f : -1.0f;
	}
}

void dci_project(const struct mx_mixer *m, uint32_t kv_head, const float *x, float *out)
{
	const struct dci_params *p = &m->params;
	uint32_t dim = p->heads.head_dim, n = p->rotated;
	const float *signs = dci_signs(m, kv_head);
	for (uint32_t r = 0; r < p->directions / n; r++, signs += 3 * n, out += n) {
		memcpy(out, x, dim * sizeof *out);
		memset(out + dim, 0, (n - dim) * sizeof *out);
		m->search->rotate(n, signs, out);
	}
}

static void write_row(const struct dci_layout *l, uint32_t dim, const float *x, unsigned char *to)
{
	memset(to, 0, l->row);
	if (l->dtype == MX_F32)
		memcpy(to, x, dim * sizeof *x);
	else
		for (uint32_t i = 0; i < dim; i++)
			((uint16_t *)to)[i] = mx_f32_to_bf16(x[i]);
}

static void read_row(const struct dci_layout *l, const unsigned char *from, float *x)
{
	if (l->dtype == MX_F32)
		memcpy(x, from, l->row);
	else
		for (uint32_t i = 0; i < l->dim; i++)
			x[i] = mx_bf16_to_f32(((const uint16_t *)from)[i]);
}

static double squares(uint32_t n, const float *x)
{
	double sum = 0;
	for (uint32_t i = 0; i < n; i++)
		sum += (double)x[i] * x[i];
	return sum;
}

/* Returns the median of the lengths of a run's keys that are finite; 0 if none is. */
static float median(const float *length)
{
	float sorted[DCI_RUN];
	uint32_t n = 0;
	for (uint32_t i = 0; i < DCI_RUN; i++) {
		if (!isfinite(length[i]))
			continue;
		uint32_t at = n++;
		for (; at && sorted[at - 1] > length[i]; at--)
			sorted[at] = sorted[at - 1];
		sorted[at] = length[i];
	}
	return n ? sorted[n / 2] : 0;
}

/* Writes the centre of a run: the mean of its keys, of which longer ones are cut to the median
 * length so that one huge key does not spoil the others' codes, and those that are not finite are
 * left out. centre [dim] is what was written. */
static void write_centre(const struct dci_layout *l, const unsigned char *keys, const float *length,
                         unsigned char *to, float *centre)
{
	float most = median(length), x[512];
	double sum[512] = {0};
	uint32_t n = 0;
	for (uint32_t j = 0; j < DCI_RUN; j++) {
		if (!isfinite(length[j]))
			continue;
		read_row(l, keys + j * l->row, x);
		double factor = length[j] > most ? (double)most / length[j] : 1;
		for (uint32_t i = 0; i < l->dim; i++)
			sum[i] += factor * x[i];
		n++;
	}
	for (uint32_t i = 0; i < l->dim; i++)
		x[i] = n ? (float)(sum[i] / n) : 0;
	write_row(l, l->dim, x, to);
	read_row(l, to, centre);
}

/* Writes the mean of a run's values, of the keys that are finite. */
static void write_mean(const struct dci_layout *l, const unsigned char *values, const float *length,
                       unsigned char *to)
{
	float x[512], sum[512] = {0};
	uint32_t n = 0;
	for (uint32_t j = 0; j < DCI_RUN; j++) {
		if (!isfinite(length[j]))
			continue;
		read_row(l, values + j * l->row, x);
		for (uint32_t i = 0; i < l->dim; i++)
			sum[i] += x[i];
		n++;
	}
	for (uint32_t i = 0; i < l->dim; i++)
		sum[i] = n ? sum[i] / (float)n : 0;
	write_row(l, l->dim, sum, to);
}

/* Writes the code of key j, of which x [directions] are the projections less those of the centre,
 * and returns its factor: with it the estimate of the key's product with itself is exact (RaBitQ:
 * Gao and Long 2024, arXiv:2405.12497). */
static float write_code(const struct dci_params *p, uint32_t j, const float *x, double length,
                        unsigned char *codes)
{
	uint32_t place = j < DCI_RUN / 2 ? 2 * j : 2 * (j - DCI_RUN / 2) + 1;
	double all = 0;
	for (uint32_t b = 0; b < p->directions / 8; b++) {
		unsigned char byte = 0;
		for (uint32_t i = 0; i < 8; i++) {
			float f = x[b * 8 + i];
			byte |= (unsigned char)((f > 0) << i);
			all += fabsf(f);
		}
		codes[b * DCI_RUN + place] = byte;
	}
	double factor = all > 0 ? length / all : 0;
	return isfinite(factor) && factor < (double)FLT_MAX ? (float)factor : 0;
}

static void index_run(const struct mx_mixer *m, uint32_t kv_head, const unsigned char *keys,
                      unsigned char *index)
{
	const struct dci_layout *l = &m->layout;
	float length[DCI_RUN], centre[512], x[512], projected[DCI_MAX_DIRECTIONS];
	double spread = 0;
	uint32_t finite = 0;
	for (uint32_t j = 0; j < DCI_RUN; j++) {
		read_row(l, keys + j * l->row, x);
		length[j] = (float)sqrt(squares(l->dim, x));
	}
	write_centre(l, keys, length, index + l->centre, centre);
	if (m->params.rest)
		write_mean(l, keys + m->values, length, index + l->centre + l->row);
	for (uint32_t j = 0; j < DCI_RUN; j++) {
		read_row(l, keys + j * l->row, x);
		for (uint32_t i = 0; i < l->dim; i++)
			x[i] -= centre[i];
		dci_project(m, kv_head, x, projected);
		double far = squares(l->dim, x);
		float factor = write_code(&m->params, j, projected, far, index);
		((float *)(index + l->factors))[j] = isfinite(length[j]) ? factor : 0;
		spread += isfinite(length[j]) ? far : 0;
		finite += isfinite(length[j]);
	}
	if (m->params.rest)
		*(float *)(void *)(index + l->spread) =
			finite ? (float)(spread / finite / m->params.heads.head_dim) : 0;
}

struct append_run {
	const struct mx_mixer *m;
	const struct mx_step *step;
	const struct attn_rows *rows;
};

static void append_task(void *arg, size_t task, unsigned worker)
{
	const struct append_run *run = arg;
	const struct mx_mixer *m = run->m;
	const struct attn_params *p = &m->params.heads;
	const struct mx_span *span = &run->step->spans[task / p->kv_heads];
	uint32_t head = (uint32_t)(task % p->kv_heads), dim = p->head_dim;
	(void)worker;
	for (uint32_t i = 0; i < span->n; i++) {
		size_t from = ((size_t)(span->row + i) * p->kv_heads + head) * dim;
		uint32_t pos = span->pos + i;
		unsigned char *key = dci_key(m, span->pages, head, pos);
		write_row(&m->layout, dim, run->rows->k + from, key);
		write_row(&m->layout, dim, run->rows->v + from, key + m->values);
		if (pos % DCI_RUN == DCI_RUN - 1)
			index_run(m, head, dci_key(m, span->pages, head, pos - (DCI_RUN - 1)),
			          dci_index(m, span->pages, head, pos));
	}
}

void dci_append(const struct mx_mixer *m, const struct mx_step *step, const struct attn_rows *rows)
{
	struct append_run run = {m, step, rows};
	size_t n = (size_t)step->n_spans * m->params.heads.kv_heads;
	/* Waking the threads costs more than appending a few rows. */
	if (step->n_rows <= 2)
		for (size_t i = 0; i < n; i++)
			append_task(&run, i, 0);
	else
		m->heads.device->ops->parallel(m->heads.device, n, append_task, &run);
}
