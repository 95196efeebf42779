/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the CPU device: its struct, and the operators that are not in cpu.c. */
#ifndef MX_DEVICE_CPU_IMPL_H
#define MX_DEVICE_CPU_IMPL_H

#include "base/pool.h"
#include "device/cpu/kernels.h"

/* Cosines and sines of the positions of the last rope call: the layers of a step share them. */
struct mx_rope_cache {
	float *table; /* [max_rows][2 * half] */
	uint32_t *pos;
	float *inv_freq; /* [half] */
	float scale;
	size_t n, half; /* n = 0: empty */
};

#define MX_ROPE_MAX_DIM 512

/* Largest vocabulary that is sampled from. */
#define MX_MAX_VOCAB (1u << 20)

struct mx_cpu {
	struct mx_device base;
	struct mx_pool *pool;
	struct mx_kernels k;
	size_t max_rows, max_width;
	struct mx_rope_cache rope;
	unsigned char *packed;  /* x of the current product */
	unsigned char *scratch; /* [threads][scratch_stride] */
	size_t packed_bytes, scratch_stride;
	int32_t *tokens; /* [max_rows] of the last draw */
	mx_status drawn; /* status of the last draw */
	const struct mx_sample_row *rows;
	size_t n_rows;
	void *map; /* the workspace */
	size_t map_bytes;
};

static inline struct mx_cpu *mx_cpu_of(struct mx_device *d)
{
	return (struct mx_cpu *)d;
}

/* Runs fn on tasks 0 .. n_tasks - 1 by the device's threads and waits until all are done. */
static inline void mx_cpu_run(struct mx_cpu *c, size_t n_tasks, mx_task_f *fn, void *arg)
{
	mx_pool_run(c->pool, n_tasks, fn, arg);
}

/* device/cpu/sample.c */
mx_status mx_cpu_sample(struct mx_device *d, float *logits, size_t ld, size_t n, uint32_t vocab,
                        const struct mx_sample_row *rows, int32_t *out_tokens);
mx_status mx_cpu_sample_prepare(struct mx_device *d, const struct mx_sample_row *rows, size_t n);
mx_status mx_cpu_sample_draw(struct mx_device *d, float *logits, size_t ld, size_t n,
                             uint32_t vocab);
mx_status mx_cpu_sample_drawn(struct mx_device *d, size_t n, int32_t *out_tokens);
/* device/cpu/logprobs.c */
mx_status mx_cpu_logprobs(struct mx_device *d, const float *logits, size_t ld, size_t n,
                          uint32_t vocab, const int32_t *tokens, const uint32_t *n_top,
                          struct mx_logprob *out);
/* device/cpu/each.c */
mx_status mx_cpu_linear_each(struct mx_device *d, size_t n, const struct mx_linear_each *each,
                             size_t n_each);
/* device/cpu/memory.c */
mx_status mx_cpu_alloc(struct mx_device *d, size_t bytes, void **out);
void mx_cpu_release(struct mx_device *d, void *p);
mx_status mx_cpu_copy(struct mx_device *d, void *to, const void *from, size_t bytes);
mx_status mx_cpu_put(struct mx_device *d, uint32_t *to, const struct mx_word *words, size_t n);
mx_status mx_cpu_zero(struct mx_device *d, void *to, size_t bytes);
mx_status mx_cpu_wait(struct mx_device *d);
mx_status mx_cpu_load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                      enum mx_dtype dtype, size_t n);
mx_status mx_cpu_record(struct mx_device *d);
mx_status mx_cpu_recorded(struct mx_device *d, struct mx_recording **out);
mx_status mx_cpu_replay(struct mx_device *d, struct mx_recording *r);
void mx_cpu_forget(struct mx_device *d, struct mx_recording *r);
/* Returns the bytes of a worker's scratch that sampling and log-probabilities need. */
size_t mx_cpu_sample_scratch(void);

#endif
