/* SPDX-License-Identifier: Apache-2.0 */
/* An implicit filter on the device: lags for the window, spectra for tiles. It is computed on the
 * host, once. */
#include <stdlib.h>
#include <string.h>

#include "mixers/hyena/cuda/hyena_cuda.h"
#include "mixers/hyena/lc.h"

uint32_t hyc_lags(uint32_t max_len, uint32_t filter_len)
{
	const uint32_t levels = lc_levels(max_len);
	const uint32_t lags = levels ? 4 * LCG_BLOCK << (levels - 1) : 2 * LCG_BLOCK;
	return lags < filter_len ? lags : filter_len;
}

/* Blocks of outputs take inputs at distance 2, and 3 if a sequence reaches a block of odd number.
 */
static uint32_t distances(uint32_t level, uint32_t max_len)
{
	return ((uint64_t)3 * LCG_BLOCK << level) < max_len ? 2 : 1;
}

static size_t level_bytes(uint32_t channels, uint32_t level, uint32_t max_len)
{
	return distances(level, max_len) * ((size_t)channels * LCG_BLOCK << level) * 2 * sizeof(float);
}

size_t hyc_spectra_bytes(uint32_t channels, uint32_t max_len)
{
	size_t bytes = 0;
	for (uint32_t level = 0; level < lc_levels(max_len); level++)
		bytes += level_bytes(channels, level, max_len);
	return bytes;
}

/* The first 2 LCG_BLOCK lags. */
static mx_status upload_window(struct mx_mixer *m, const float *h, uint32_t n_lags)
{
	const size_t n = n_lags < 2 * LCG_BLOCK ? n_lags : 2 * LCG_BLOCK;
	float *lags = calloc(2 * LCG_BLOCK, m->channels * sizeof *lags);
	if (!lags)
		return MX_E_NOMEM;
	memcpy(lags, h, n * m->channels * sizeof *lags);
	mx_status status = mx_upload_array(m->device, lags, m->sizes.window, (void **)&m->layer.window);
	free(lags);
	return status;
}

/* New spectra of a side's distances first .. first + n - 1, from lags in the device's memory. */
static mx_status spectra_of(struct mx_mixer *m, uint32_t log2_n, uint32_t first, uint32_t n,
                            const void *h, uint32_t n_lags, const float **out)
{
	const struct mx_cuda_base *cuda = mx_cuda_base(m->device);
	void *to = NULL;
	mx_status status = m->device->ops->alloc(
		m->device, n * ((size_t)m->channels << log2_n) * 2 * sizeof(float), &to);
	if (status != MX_OK)
		return status;
	*out = to;
	return cuda->check(
		m->device,
		lcg_spectra((cudaStream_t)cuda->stream, m->channels, log2_n, first, n, h, n_lags, to),
		"spectra of a long convolution");
}

static mx_status make_spectra(struct mx_mixer *m, uint32_t max_len, const float *h, uint32_t n_lags)
{
	void *on_device = NULL;
	mx_status status =
		mx_upload_array(m->device, h, (size_t)n_lags * m->channels * sizeof *h, &on_device);
	for (uint32_t level = 0; status == MX_OK && level < m->shape.n_levels; level++)
		status = spectra_of(m, level + LCG_LOG2_BLOCK, 2, distances(level, max_len), on_device,
		                    n_lags, &m->layer.spectra[level]);
	if (status == MX_OK && m->sizes.near)
		status = spectra_of(m, LCG_LOG2_POINTS, 0, 2, on_device, n_lags, &m->layer.near);
	if (status == MX_OK)
		status = m->device->ops->wait(m->device);
	m->device->ops->release(m->device, on_device);
	return status;
}

mx_status hyc_filter_create(struct mx_mixer *m, uint32_t max_len, const float *const *vectors)
{
	const uint32_t n_lags = hyc_lags(max_len, m->params.filter_len);
	float *h = calloc(n_lags, (size_t)m->channels * sizeof *h);
	mx_status status =
		h ? hyena_implicit_lags(&m->params, m->channels, m->device, vectors, n_lags, h)
		  : MX_E_NOMEM;
	if (status == MX_OK)
		status = upload_window(m, h, n_lags);
	if (status == MX_OK)
		status = make_spectra(m, max_len, h, n_lags);
	free(h);
	return status;
}

void hyc_filter_destroy(struct mx_mixer *m)
{
	const struct mx_ops *ops = m->device->ops;
	ops->release(m->device, (void *)m->layer.window);
	ops->release(m->device, (void *)m->layer.near);
	for (uint32_t i = 0; i < LCG_MAX_LEVELS; i++)
		ops->release(m->device, (void *)m->layer.spectra[i]);
}
