/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device holds a model's weights and states and runs its operators.
 *
 * Installed for mixers, which reach every operator through the table below and
 * link against nothing. A table is complete: an operator that a device lacks
 * returns MX_E_UNSUPPORTED.
 *
 * Determinism: an operator computes each row of its output in a fixed order of
 * operations that depends only on that row's inputs: not on the number of rows
 * in the call, nor on the other rows, nor on the number of threads. Therefore
 * log-probabilities are bit-equal whether a sequence runs alone, batched, in
 * chunks, from the prefix cache or recomputed.
 *
 * Threads: one engine thread at a time drives a device.
 */
#ifndef MX_DEVICE_DEVICE_H
#define MX_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "device/dtype.h"
#include "device/experts.h"
#include "device/sampling.h"

struct mx_device;
struct mx_recording;

enum mx_device_kind { MX_DEVICE_CPU = 0, MX_DEVICE_CUDA = 1 };

struct mx_quant; /* device/quant.h, private to engine and devices */

/* A weight matrix [rows, cols], row-major: y[rows] = W x[cols]. */
struct mx_weight {
	enum mx_dtype dtype;
	uint32_t rows, cols;
	/* Device memory, lives as long as the model: rows * cols elements, no padding. With MX_QUANT
	 * packed panels, for the device alone: a mixer that reads elements asks for the tensor as
	 * MX_WEIGHT_PLAIN. */
	const void *data;
	const struct mx_quant *quant; /* MX_QUANT: how it is packed */
};

/* Returns rows first .. first + n - 1 of a weight, which is not MX_QUANT; they share its memory. */
static inline struct mx_weight mx_weight_rows(const struct mx_weight *w, uint32_t first, uint32_t n)
{
	struct mx_weight part = *w;
	part.rows = n;
	part.data = (const char *)w->data + (size_t)first * w->cols * mx_dtype_size(w->dtype);
	return part;
}

/* The rows of x that linear_normed and linear_gated multiply. */
struct mx_linear_in {
	const void *x; /* [n, ldx] */
	size_t ldx;
	const float
		*norm; /* [cols] x stands for rmsnorm(x) * norm; ldx is then cols. NULL = x as it is */
	float norm_eps;
	void *room; /* [n, cols] with a norm: for a device that computes it apart */
};

/* A word of an array: of mx_ops.put. */
struct mx_word {
	uint32_t at, value;
};

/* One output of mx_ops.linear. */
struct mx_linear_out {
	const struct mx_weight *w; /* [rows, cols] */
	const float *bias;         /* [rows] f32, or NULL */
	void *y;                   /* [n, ldy]; columns 0..rows-1 are written */
	size_t ldy;                /* elements between rows of y, >= w->rows */
	bool accumulate;           /* y += W x + b instead of y = */
	bool y_f32;                /* y is f32 whatever the activation dtype; else activation dtype */
};

/* One product of mx_ops.linear_each: y[n, ldy] = W x. */
struct mx_linear_each {
	const struct mx_weight *w; /* [rows, cols] */
	const void *x;             /* [n, ldx] */
	size_t ldx;                /* elements between rows of x, >= w->cols */
	void *y;                   /* [n, ldy]; columns 0..rows-1 are written */
	size_t ldy;                /* elements between rows of y, >= w->rows */
};

/* One row that mx_ops.move_rows copies. */
struct mx_row_move {
	const void *from; /* NULL = zeros */
	void *to;         /* NULL = there is nothing to copy */
};

typedef void mx_parallel_f(void *arg, size_t task, unsigned worker);

/* Parameters of a rotary embedding, prepared once per layer: inverse frequencies with the scaling
 * applied. */
struct mx_rope {
	const float *inv_freq; /* [dim / 2] */
	uint32_t dim;          /* rotated dimensions of each head, half-split pairing */
	float scale;           /* multiplies cos and sin (yarn's attention factor) */
};

struct mx_ops {
	uint32_t struct_size;

	/* Several products that share one input: x [n, ldx] with the columns of every out[i].w. Sums
	 * are f32; each output chooses the type of its y. */
	mx_status (*linear)(struct mx_device *d, const void *x, size_t ldx, size_t n,
	                    const struct mx_linear_out *out, size_t n_out);

	/* y[n, width] = rmsnorm(x) * weight. x and y may be the same. weight f32 [width]. */
	mx_status (*rmsnorm)(struct mx_device *d, const void *x, const float *weight, float eps,
	                     size_t n, size_t width, void *y);

	/* x += r, then y = rmsnorm(x) * weight, all [n, width]. */
	mx_status (*add_rmsnorm)(struct mx_device *d, void *x, const void *r, const float *weight,
	                         float eps, size_t n, size_t width, void *y);

	/* act_mul with MX_ACT_SILU and `up`; in the table for modules that were built for it. */
	mx_status (*silu_mul)(struct mx_device *d, const void *gate, size_t ld_gate, const void *up,
	                      size_t ld_up, size_t n, size_t width, void *y, size_t ld_y);

	/* Rotates the first rope->dim elements of each of n_heads heads of x [n, ld] by positions
	 * pos[n], in place. A head begins every head_dim elements. With norm (f32 [head_dim]), each
	 * head goes through rmsnorm(eps) * norm first (Qwen3's qk-norm). */
	mx_status (*rope)(struct mx_device *d, void *x, size_t ld, size_t n, uint32_t n_heads,
	                  uint32_t head_dim, const struct mx_rope *rope, const uint32_t *pos,
	                  const float *norm, float eps);

	/* y[n, cols] = rows ids[n] of the table, converted to the activation dtype. */
	mx_status (*embed)(struct mx_device *d, const struct mx_weight *table, const int32_t *ids,
	                   size_t n, void *y);

	/* Draws one token per row from logits f32 [n, ld], of which vocab columns are used, into
	 * out_tokens[n]. Overwrites the logits. The same logits, sampling and position give the same
	 * token. MX_E_INTERNAL if the largest logit of a row is not finite (NaN, or all tokens banned):
	 * the token of that row is -1, those of the other rows are valid. */
	mx_status (*sample)(struct mx_device *d, float *logits, size_t ld, size_t n, uint32_t vocab,
	                    const struct mx_sample_row *rows, int32_t *out_tokens);

	/* Log-probabilities of tokens[i] under row i of raw logits, with the n_top[i] likeliest
	 * (at most MX_MAX_TOP_LOGPROBS). Does not change the logits. MX_E_INTERNAL if the result of a
	 * row is not a number. */
	mx_status (*logprobs)(struct mx_device *d, const float *logits, size_t ld, size_t n,
	                      uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
	                      struct mx_logprob *out);

	/* CPU devices: runs fn on tasks 0 .. n_tasks - 1 by the device's threads and waits. Any worker
	 * may run any task; worker < info.threads. */
	void (*parallel)(struct mx_device *d, size_t n_tasks, mx_parallel_f *fn, void *arg);

	/* ---- memory, asynchronous devices. If info.async, operators run in the order of the calls
	 * after the calls have returned; only those that say so wait. On CPUs everything is done on
	 * return.
	 * ---- */

	/* Frees the device. Takes NULL. */
	void (*destroy)(struct mx_device *d);

	/* Allocates memory of the device, aligned to info.align, not cleared. At load only. */
	mx_status (*alloc)(struct mx_device *d, size_t bytes, void **out);
	void (*release)(struct mx_device *d, void *p); /* takes NULL */

	/* Allocates host memory that the device copies from and to asynchronously (pinned). At load
	 * only. */
	mx_status (*host_alloc)(struct mx_device *d, size_t bytes, void **out);
	void (*host_release)(struct mx_device *d, void *p); /* takes NULL */

	/* Copies. `from` of upload and `to` of download are memory of host_alloc and in use until wait
	 * returns. copy and zero work within the device's memory. */
	mx_status (*upload)(struct mx_device *d, void *to, const void *from, size_t bytes);
	mx_status (*download)(struct mx_device *d, void *to, const void *from, size_t bytes);
	mx_status (*copy)(struct mx_device *d, void *to, const void *from, size_t bytes);
	mx_status (*zero)(struct mx_device *d, void *to, size_t bytes);

	/* Waits until all operators called so far are done. Returns MX_E_DEVICE if the device is
	 * lost, whichever call lost it; all later calls then fail too. */
	mx_status (*wait)(struct mx_device *d);

	/* Copies n_elements of pageable host memory (a mapped file) to the device through its own
	 * staging buffers, several at a time. At load only. Returns before the last copy is done, see
	 * wait. Converts the elements from `dtype` to `to_dtype` on the way: f32, f16 and bf16 to bf16
	 * or f32; any other type only to itself. */
	mx_status (*load)(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
	                  enum mx_dtype dtype, size_t n_elements);

	/* scale: y[i] *= scale. add_scaled: y[i] += scale * a[i]. n elements of the activation dtype.
	 */
	mx_status (*scale)(struct mx_device *d, void *y, size_t n, float scale);
	mx_status (*add_scaled)(struct mx_device *d, void *y, const void *a, size_t n, float scale);

	/* As scale, for f32 logits [n, ld] of which vocab columns are used. */
	mx_status (*scale_logits)(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
	                          float scale);

	/* y[i] = row rows[i] of x, for n rows of `width`; `rows` is device memory; y is not x. */
	mx_status (*gather)(struct mx_device *d, const void *x, const uint32_t *rows, size_t n,
	                    size_t width, void *y);

	/* `sample` in three parts, so that the second can be recorded. prepare: takes the rows, whose
	 * contents must not change until drawn; may be called while an earlier step runs. draw: like
	 * sample, but leaves the tokens on the device. drawn: waits and returns the n tokens;
	 * MX_E_INTERNAL as for sample. */
	mx_status (*sample_prepare)(struct mx_device *d, const struct mx_sample_row *rows, size_t n);
	mx_status (*sample_draw)(struct mx_device *d, float *logits, size_t ld, size_t n,
	                         uint32_t vocab);
	mx_status (*sample_drawn)(struct mx_device *d, size_t n, int32_t *out_tokens);

	/* Only if info.records. Calls between record and recorded are recorded instead of run; replay
	 * runs them all at the same addresses. The same calls must have been made once before, since
	 * kernels are loaded when they are first called. Only operators and copies within the device
	 * may be recorded. If a call fails, the recording is invalid: recorded must still be called,
	 * and fails. */
	mx_status (*record)(struct mx_device *d);
	mx_status (*recorded)(struct mx_device *d, struct mx_recording **out);
	mx_status (*replay)(struct mx_device *d, struct mx_recording *r);
	void (*forget)(struct mx_device *d, struct mx_recording *r); /* takes NULL */

	/* x += r unless r is NULL, then y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, var the
	 * mean of the squared distances from the mean; all [n, width]. Without r, x is only read and
	 * may be y. weight and bias f32 [width]; bias may be NULL. */
	mx_status (*layernorm)(struct mx_device *d, void *x, const void *r, const float *weight,
	                       const float *bias, float eps, size_t n, size_t width, void *y);

	/* act_mul with MX_ACT_GELU_TANH and without `up`, of n elements in place; in the table for
	 * modules that were built for it. */
	mx_status (*gelu_tanh)(struct mx_device *d, void *y, size_t n);

	/* y[n, width] = act(gate) * up, or act(gate) if up is NULL; strides in elements; y may be gate.
	 */
	mx_status (*act_mul)(struct mx_device *d, enum mx_act act, const void *gate, size_t ld_gate,
	                     const void *up, size_t ld_up, size_t n, size_t width, void *y,
	                     size_t ld_y);

	/* y = cap * tanh(y / cap), for f32 logits [n, ld] of which vocab columns are used. */
	mx_status (*softcap_logits)(struct mx_device *d, float *y, size_t ld, size_t n, uint32_t vocab,
	                            float cap);

	/* Products of one shape and type, each with an input of its own, n rows each: the heads of a
	 * layer. The bits of linear. x and y are of the activation dtype. */
	mx_status (*linear_each)(struct mx_device *d, size_t n, const struct mx_linear_each *each,
	                         size_t n_each);

	/* A mixture of experts for devices with memory of their own: chooses each row's experts and
	 * adds the sum of their outputs, each times its weight, in order of expert. The order of a
	 * row's sums does not depend on the other rows if the device is deterministic. */
	mx_status (*experts)(struct mx_device *d, const struct mx_experts *m,
	                     const struct mx_experts_call *call);

	/* y[n, gate's rows] = silu(gate x) * (up x), in one pass over the weights: the bits of linear
	 * and act_mul, and of rmsnorm if there is a norm. MX_E_UNSUPPORTED if the device has no kernel
	 * for these operands; nothing was done then. NULL if it has none at all. */
	mx_status (*linear_gated)(struct mx_device *d, const struct mx_linear_in *in, size_t n,
	                          const struct mx_weight *gate, const struct mx_weight *up, void *y,
	                          size_t ldy);

	/* rmsnorm and linear, with their bits, in one kernel if there is one for these operands. NULL
	 * if there is none for any. */
	mx_status (*linear_normed)(struct mx_device *d, const struct mx_linear_in *in, size_t n,
	                           const struct mx_linear_out *out, size_t n_out);

	/* Copies rows of `bytes` bytes, each from and to a place of its own, as moves [n] say; these
	 * are in the device's memory. No row is one that another move writes. Addresses are multiples
	 * of the largest power of two, at most 16, that divides `bytes`. */
	mx_status (*move_rows)(struct mx_device *d, const struct mx_row_move *moves, size_t n,
	                       size_t bytes);

	/* to[words[i].at] = words[i].value for all i < n; no `at` twice. words is the host's memory and
	 * read before the call returns; `to` is the device's. Not while a step is recorded. */
	mx_status (*put)(struct mx_device *d, uint32_t *to, const struct mx_word *words, size_t n);
};

struct mx_device_info {
	enum mx_device_kind kind;
	char name[64];           /* "cpu", "cuda:0" */
	char isa[32];            /* CPU: the kernels in use, e.g. "avx512-bf16"; CUDA: e.g. "sm_90" */
	enum mx_dtype act_dtype; /* activations; MX_F32 on CPUs */
	unsigned threads;        /* CPU: workers of `parallel` */
	size_t align;            /* alignment of every pointer the engine passes, >= 64 */
	size_t memory;           /* free bytes of the device; 0 = its memory is the host's */
	/* The device has its own memory, which the host cannot read; the engine copies weights there.
	 */
	bool own_memory;
	bool async;         /* operators return before they are done; only those that say so wait */
	bool records;       /* steps can be recorded and replayed */
	bool deterministic; /* a row's bits depend on that row alone; always true on CPUs */
	/* Most rows of a step for which linear_normed is faster than its parts, and a product that is
	 * added to the residual stream no slower than one that is not. */
	uint32_t fused_rows;
	bool packs_experts; /* `experts` reads packed matrices (device/quant.h) */
};

/* First member of every device. */
struct mx_device {
	const struct mx_ops *ops;
	struct mx_device_info info;
};

/* CPU: instruction-set levels, in ascending order. Each includes those before it. */
enum mx_isa { MX_ISA_PORTABLE, MX_ISA_AVX2, MX_ISA_AVX512, MX_ISA_AVX512_BF16, MX_ISA_AMX_BF16 };

#define MX_ISA_NAMES                                                                               \
	{                                                                                              \
		"portable", "avx2", "avx512", "avx512-bf16", "amx-bf16"                                    \
	}

/* Returns the name of a level, as in mx_device_info.isa. */
static inline const char *mx_isa_name(enum mx_isa isa)
{
	static const char *const names[] = MX_ISA_NAMES;
	return names[isa];
}

/* Returns the level of a name; MX_ISA_PORTABLE for an unknown one. Mixers choose their kernels by
 * the device's level, so that one setting governs all. */
static inline enum mx_isa mx_isa_parse(const char *name)
{
	static const char *const names[] = MX_ISA_NAMES;
	for (int i = MX_ISA_AMX_BF16; i > 0; i--)
		if (!strcmp(name, names[i]))
			return (enum mx_isa)i;
	return MX_ISA_PORTABLE;
}

#endif
