/* SPDX-License-Identifier: Apache-2.0 */
/* What a part that is not built answers: any real definition takes the place of these. */
#include "device/cuda/impl.h"

#define WEAK __attribute__((weak))

WEAK mx_status mx_cuda_staging_create(struct mx_device *d, struct mx_err *err)
{
	(void)d;
	(void)err;
	return MX_OK;
}

WEAK void mx_cuda_staging_destroy(struct mx_device *d)
{
	(void)d;
}

WEAK mx_status mx_cuda_alloc(struct mx_device *d, size_t bytes, void **out)
{
	(void)d;
	(void)bytes;
	(void)out;
	return MX_E_UNSUPPORTED;
}

WEAK void mx_cuda_release(struct mx_device *d, void *p)
{
	(void)d;
	(void)p;
}

WEAK mx_status mx_cuda_host_alloc(struct mx_device *d, size_t bytes, void **out)
{
	(void)d;
	(void)bytes;
	(void)out;
	return MX_E_UNSUPPORTED;
}

WEAK void mx_cuda_host_release(struct mx_device *d, void *p)
{
	(void)d;
	(void)p;
}

WEAK mx_status mx_cuda_upload(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	(void)d;
	(void)to;
	(void)from;
	(void)bytes;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_download(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	(void)d;
	(void)to;
	(void)from;
	(void)bytes;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_copy(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	(void)d;
	(void)to;
	(void)from;
	(void)bytes;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_zero(struct mx_device *d, void *to, size_t bytes)
{
	(void)d;
	(void)to;
	(void)bytes;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_wait(struct mx_device *d)
{
	(void)d;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                            enum mx_dtype dtype, size_t n)
{
	(void)d;
	(void)to;
	(void)to_dtype;
	(void)from;
	(void)dtype;
	(void)n;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_record(struct mx_device *d)
{
	(void)d;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_recorded(struct mx_device *d, struct mx_recording **out)
{
	(void)d;
	(void)out;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_replay(struct mx_device *d, struct mx_recording *r)
{
	(void)d;
	(void)r;
	return MX_E_UNSUPPORTED;
}

WEAK void mx_cuda_forget(struct mx_device *d, struct mx_recording *r)
{
	(void)d;
	(void)r;
}

WEAK mx_status mx_cuda_rmsnorm(struct mx_device *d, const void *x, const float *weight, float eps,
                               size_t n, size_t width, void *y)
{
	(void)d;
	(void)x;
	(void)weight;
	(void)eps;
	(void)n;
	(void)width;
	(void)y;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_add_rmsnorm(struct mx_device *d, void *x, const void *r, const float *weight,
                                   float eps, size_t n, size_t width, void *y)
{
	(void)d;
	(void)x;
	(void)r;
	(void)weight;
	(void)eps;
	(void)n;
	(void)width;
	(void)y;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_silu_mul(struct mx_device *d, const void *gate, size_t ld_gate,
                                const void *up, size_t ld_up, size_t n, size_t width, void *y,
                                size_t ld_y)
{
	(void)d;
	(void)gate;
	(void)ld_gate;
	(void)up;
	(void)ld_up;
	(void)n;
	(void)width;
	(void)y;
	(void)ld_y;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_rope(struct mx_device *d, void *x, size_t ld, size_t n, uint32_t n_heads,
                            uint32_t head_dim, const struct mx_rope *rope, const uint32_t *pos,
                            const float *norm, float eps)
{
	(void)d;
	(void)x;
	(void)ld;
	(void)n;
	(void)n_heads;
	(void)head_dim;
	(void)rope;
	(void)pos;
	(void)norm;
	(void)eps;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_embed(struct mx_device *d, const struct mx_weight *table, const int32_t *ids,
                             size_t n, void *y)
{
	(void)d;
	(void)table;
	(void)ids;
	(void)n;
	(void)y;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_scale(struct mx_device *d, void *y, size_t n, float scale)
{
	(void)d;
	(void)y;
	(void)n;
	(void)scale;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_add_scaled(struct mx_device *d, void *y, const void *a, size_t n,
                                  float scale)
{
	(void)d;
	(void)y;
	(void)a;
	(void)n;
	(void)scale;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_scale_logits(struct mx_device *d, float *y, size_t ld, size_t n,
                                    uint32_t vocab, float scale)
{
	(void)d;
	(void)y;
	(void)ld;
	(void)n;
	(void)vocab;
	(void)scale;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_gather(struct mx_device *d, const void *x, const uint32_t *rows, size_t n,
                              size_t width, void *y)
{
	(void)d;
	(void)x;
	(void)rows;
	(void)n;
	(void)width;
	(void)y;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_sampler_create(struct mx_device *d, struct mx_err *err)
{
	(void)d;
	(void)err;
	return MX_OK;
}

WEAK void mx_cuda_sampler_destroy(struct mx_device *d)
{
	(void)d;
}

WEAK size_t mx_cuda_sampler_bytes(const struct mx_cuda_limits *l)
{
	(void)l;
	return 0;
}

WEAK mx_status mx_cuda_sample(struct mx_device *d, float *logits, size_t ld, size_t n,
                              uint32_t vocab, const struct mx_sample_row *rows, int32_t *out_tokens)
{
	(void)d;
	(void)logits;
	(void)ld;
	(void)n;
	(void)vocab;
	(void)rows;
	(void)out_tokens;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_sample_prepare(struct mx_device *d, const struct mx_sample_row *rows,
                                      size_t n)
{
	(void)d;
	(void)rows;
	(void)n;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_sample_draw(struct mx_device *d, float *logits, size_t ld, size_t n,
                                   uint32_t vocab)
{
	(void)d;
	(void)logits;
	(void)ld;
	(void)n;
	(void)vocab;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_sample_drawn(struct mx_device *d, size_t n, int32_t *out_tokens)
{
	(void)d;
	(void)n;
	(void)out_tokens;
	return MX_E_UNSUPPORTED;
}

WEAK mx_status mx_cuda_logprobs(struct mx_device *d, const float *logits, size_t ld, size_t n,
                                uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
                                struct mx_logprob *out)
{
	(void)d;
	(void)logits;
	(void)ld;
	(void)n;
	(void)vocab;
	(void)tokens;
	(void)n_top;
	(void)out;
	return MX_E_UNSUPPORTED;
}
