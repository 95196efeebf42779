/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the CUDA device: its struct and its operators by file. Activations are bf16, or f32
 * for f32 checkpoints; products and sums are f32.
 */
#ifndef MX_DEVICE_CUDA_IMPL_H
#define MX_DEVICE_CUDA_IMPL_H

#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "device/cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mx_cuda_product; /* linear.h */
struct mx_cuda_linear;  /* linear.c: plans of cuBLASLt, workspace */
struct mx_cuda_sampler; /* sampler.c */
struct mx_cuda_staging; /* memory.c */

struct mx_cuda {
	struct mx_cuda_base base;
	struct mx_cuda_limits limits;
	bool lost;
	struct mx_cuda_linear *linear;
	struct mx_cuda_sampler *sampler;
	struct mx_cuda_staging *staging;
};

static inline struct mx_cuda *mx_cuda(struct mx_device *d)
{
	return (struct mx_cuda *)d;
}

/* bind.c: makes the device the calling thread's current one. Every entry of the device does so
 * before it calls the CUDA runtime: by mx_cuda_bind, or by mx_cuda_stream for what goes to the
 * stream. cudaSetDevice is called nowhere else. set_current is for a device that is not there yet.
 */
mx_status mx_cuda_bind(struct mx_device *d);
cudaError_t mx_cuda_set_current(int ordinal);

/* The device's stream; makes the device current. If that fails, so does what is then asked of the
 * stream, and the device is lost. */
static inline cudaStream_t mx_cuda_stream(struct mx_device *d)
{
	(void)mx_cuda_bind(d);
	return (cudaStream_t)mx_cuda(d)->base.stream;
}

static inline bool mx_cuda_bf16(const struct mx_device *d)
{
	return d->info.act_dtype == MX_BF16;
}

/* error.c: returns the status of a CUDA error and logs the error with `what`. MX_E_DEVICE if
 * nothing can be done on the device any more: it is then marked lost. Else MX_E_NOMEM or
 * MX_E_INVALID, never MX_E_INTERNAL, which means that a row's logits are not finite. */
mx_status mx_cuda_check(struct mx_device *d, cudaError_t e, const char *what);

/* memory.c */
mx_status mx_cuda_staging_create(struct mx_device *d, struct mx_err *err);
void mx_cuda_staging_destroy(struct mx_device *d);
mx_status mx_cuda_alloc(struct mx_device *d, size_t bytes, void **out);
void mx_cuda_release(struct mx_device *d, void *p);
mx_status mx_cuda_host_alloc(struct mx_device *d, size_t bytes, void **out);
void mx_cuda_host_release(struct mx_device *d, void *p);
mx_status mx_cuda_upload(struct mx_device *d, void *to, const void *from, size_t bytes);
mx_status mx_cuda_download(struct mx_device *d, void *to, const void *from, size_t bytes);
mx_status mx_cuda_copy(struct mx_device *d, void *to, const void *from, size_t bytes);
mx_status mx_cuda_zero(struct mx_device *d, void *to, size_t bytes);
mx_status mx_cuda_wait(struct mx_device *d);
mx_status mx_cuda_load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                       enum mx_dtype dtype, size_t n);

/* graph.c */
mx_status mx_cuda_record(struct mx_device *d);
mx_status mx_cuda_recorded(struct mx_device *d, struct mx_recording **out);
mx_status mx_cuda_replay(struct mx_device *d, struct mx_recording *r);
void mx_cuda_forget(struct mx_device *d, struct mx_recording *r);

/* linear.c, linear_few.cu, linear_chain.cu, linear_exact.cu. create allocates everything that
 * linear needs. product: with weights of the activations' type. is_few: true if `few` computes it,
 * in bf16 and in any order. expanded: memory of MX_CUDA_EXPANDED bytes for these, if the limits
 * have `quantised`. */
mx_status mx_cuda_linear_create(struct mx_device *d, struct mx_err *err);
void mx_cuda_linear_destroy(struct mx_device *d);
size_t mx_cuda_linear_bytes(const struct mx_cuda_limits *l); /* bytes of device memory of create */
mx_status mx_cuda_linear_product(struct mx_device *d, const struct mx_cuda_product *p);
bool mx_cuda_linear_is_few(struct mx_device *d, const struct mx_cuda_product *p);
void *mx_cuda_linear_expanded(struct mx_device *d);
/* The counter of the next launch of a kernel whose thread blocks take tiles from one: 0, and 0
 * again when the kernel ends. Launches have counters by turns, since kernels ask before their wait,
 * when the one or two before may still run: each of these kernels fills the chip. */
uint32_t *mx_cuda_linear_counter(struct mx_device *d);

/* True if mx_cuda_quant_one has kernels for the GPU. */
bool mx_cuda_linear_has_one(struct mx_device *d);

/* Returns true if the product, which is launched next, is to be a wide one (MX_CUDA_WIDE): every
 * other one, at most, and none with a norm, since thread blocks of attention need room beside those
 * of q, k and v. */
bool mx_cuda_linear_wide(struct mx_device *d, const struct mx_cuda_product *p);

/* The product of e4m3 rows of W and of x [n, cols], which w_scales [rows] and x_scales [n]
 * multiply; MX_E_UNSUPPORTED, and nothing done, where cuBLASLt has none. */
mx_status mx_cuda_linear_scaled(struct mx_device *d, const struct mx_cuda_product *p,
                                const float *w_scales, const float *x_scales);

/* linear_run.c */
mx_status mx_cuda_linear_embed(struct mx_device *d, const struct mx_weight *table,
                               const int32_t *ids, size_t n, void *y); /* any table */
mx_status mx_cuda_linear_run(struct mx_device *d, const void *x, size_t ldx, size_t n,
                             const struct mx_linear_out *out, size_t n_out);
uint32_t mx_cuda_linear_fused_rows(const struct mx_device *d, bool quantised); /* info.fused_rows */
mx_status mx_cuda_linear_normed(struct mx_device *d, const struct mx_linear_in *in, size_t n,
                                const struct mx_linear_out *out, size_t n_out);
mx_status mx_cuda_linear_gated(struct mx_device *d, const struct mx_linear_in *in, size_t n,
                               const struct mx_weight *gate, const struct mx_weight *up, void *y,
                               size_t ldy);

/* rows.cu: the operators on rows of device.h */
mx_status mx_cuda_rmsnorm(struct mx_device *d, const void *x, const float *weight, float eps,
                          size_t n, size_t width, void *y);
mx_status mx_cuda_add_rmsnorm(struct mx_device *d, void *x, const void *r, const float *weight,
                              float eps, size_t n, size_t width, void *y);
mx_status mx_cuda_silu_mul(struct mx_device *d, const void *gate, size_t ld_gate, const void *up,
                           size_t ld_up, size_t n, size_t width, void *y, size_t ld_y);
mx_status mx_cuda_rope(struct mx_device *d, void *x, size_t ld, size_t n, uint32_t n_heads,
                       uint32_t head_dim, const struct mx_rope *rope, const uint32_t *pos,
                       const float *norm, float eps);
mx_status mx_cuda_embed(struct mx_device *d, const struct mx_weight *table, const int32_t *ids,
                        size_t n, void *y); /* no packed table */
mx_status mx_cuda_scale(struct mx_device *d, void *y, size_t n, float scale);
mx_status mx_cuda_add_scaled(struct mx_device *d, void *y, const void *a, size_t n, float scale);
mx_status mx_cuda_scale_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                               float scale);
mx_status mx_cuda_gather(struct mx_device *d, const void *x, const uint32_t *rows, size_t n,
                         size_t width, void *y);
mx_status mx_cuda_move_rows(struct mx_device *d, const struct mx_row_move *moves, size_t n,
                            size_t bytes);

/* put.cu: likewise */
mx_status mx_cuda_put(struct mx_device *d, uint32_t *to, const struct mx_word *list, size_t n);

/* experts.c: likewise */
mx_status mx_cuda_experts(struct mx_device *d, const struct mx_experts *m,
                          const struct mx_experts_call *call);

/* acts.cu: likewise */
mx_status mx_cuda_layernorm(struct mx_device *d, void *x, const void *r, const float *weight,
                            const float *bias, float eps, size_t n, size_t width, void *y);
mx_status mx_cuda_act_mul(struct mx_device *d, enum mx_act act, const void *gate, size_t ld_gate,
                          const void *up, size_t ld_up, size_t n, size_t width, void *y,
                          size_t ld_y);
mx_status mx_cuda_gelu_tanh(struct mx_device *d, void *y, size_t n);
mx_status mx_cuda_softcap_logits(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
                                 float cap);

/* sampler.c, sample.cu, logprobs.cu */
mx_status mx_cuda_sampler_create(struct mx_device *d, struct mx_err *err);
void mx_cuda_sampler_destroy(struct mx_device *d);
size_t mx_cuda_sampler_bytes(const struct mx_cuda_limits *l); /* bytes of device memory of create */
mx_status mx_cuda_sample(struct mx_device *d, float *logits, size_t ld, size_t n, uint32_t vocab,
                         const struct mx_sample_row *rows, int32_t *out_tokens);
mx_status mx_cuda_sample_prepare(struct mx_device *d, const struct mx_sample_row *rows, size_t n);
mx_status mx_cuda_sample_draw(struct mx_device *d, float *logits, size_t ld, size_t n,
                              uint32_t vocab);
mx_status mx_cuda_sample_drawn(struct mx_device *d, size_t n, int32_t *out_tokens);
mx_status mx_cuda_logprobs(struct mx_device *d, const float *logits, size_t ld, size_t n,
                           uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
                           struct mx_logprob *out);

#ifdef __cplusplus
}
#endif

#endif
