/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the CUDA device, copies, and the loading of weights.
 *
 * Reading from the page cache limits the loading of a checkpoint. So several threads fill pinned
 * buffers, converting on the way, while the copy engine empties the buffers that were filled
 * before.
 */
#include "device/cuda/impl.h"

#include <stdlib.h>

#include "base/pool.h"
#include "device/convert.h"

#define STAGES      4
#define STAGE_BYTES ((size_t)16 << 20)
#define TASK_BYTES  ((size_t)512 << 10)
#define MAX_THREADS 8

struct mx_cuda_staging {
	struct mx_pool *pool;
	unsigned char *buffers;    /* [STAGES][STAGE_BYTES], pinned */
	cudaEvent_t empty[STAGES]; /* recorded after the last copy from a buffer */
	unsigned next;
};

mx_status mx_cuda_staging_create(struct mx_device *d, struct mx_err *err)
{
	struct mx_cuda_staging *s = calloc(1, sizeof *s);
	if (!s)
		return mx_fail(err, MX_E_NOMEM, "%s: out of memory", d->info.name);
	mx_cuda(d)->staging = s;
	unsigned threads = mx_pool_default_size();
	mx_status st = mx_pool_create(threads < MAX_THREADS ? threads : MAX_THREADS, &s->pool);
	if (st != MX_OK)
		return mx_fail(err, st, "%s: cannot start the threads that load weights", d->info.name);
	cudaError_t e = cudaMallocHost((void **)&s->buffers, STAGES * STAGE_BYTES);
	for (int i = 0; i < STAGES && e == cudaSuccess; i++)
		e = cudaEventCreateWithFlags(&s->empty[i], cudaEventDisableTiming);
	if (e != cudaSuccess)
		return mx_fail(err, MX_E_NOMEM, "%s: staging buffers: %s", d->info.name,
		               cudaGetErrorString(e));
	return MX_OK;
}

void mx_cuda_staging_destroy(struct mx_device *d)
{
	struct mx_cuda_staging *s = mx_cuda(d)->staging;
	if (!s)
		return;
	for (int i = 0; i < STAGES; i++)
		if (s->empty[i])
			cudaEventDestroy(s->empty[i]);
	if (s->buffers)
		cudaFreeHost(s->buffers);
	mx_pool_destroy(s->pool);
	free(s);
}

/* ---- allocation ---- */

mx_status mx_cuda_alloc(struct mx_device *d, size_t bytes, void **out)
{
	void *p = NULL;
	mx_status st = mx_cuda_bind(d);
	if (st == MX_OK)
		st = mx_cuda_check(d, cudaMalloc(&p, bytes), "allocating memory");
	if (st == MX_OK)
		*out = p;
	return st;
}

void mx_cuda_release(struct mx_device *d, void *p)
{
	if (p && mx_cuda_bind(d) == MX_OK)
		(void)mx_cuda_check(d, cudaFree(p), "releasing memory");
}

mx_status mx_cuda_host_alloc(struct mx_device *d, size_t bytes, void **out)
{
	void *p = NULL;
	mx_status st = mx_cuda_bind(d);
	if (st == MX_OK)
		st = mx_cuda_check(d, cudaMallocHost(&p, bytes), "allocating pinned memory");
	if (st == MX_OK)
		*out = p;
	return st;
}

void mx_cuda_host_release(struct mx_device *d, void *p)
{
	if (p && mx_cuda_bind(d) == MX_OK)
		(void)mx_cuda_check(d, cudaFreeHost(p), "releasing pinned memory");
}

/* ---- copies ---- */

static mx_status copy(struct mx_device *d, void *to, const void *from, size_t bytes,
                      enum cudaMemcpyKind kind, const char *what)
{
	mx_status st = mx_cuda_bind(d);
	if (st != MX_OK || !bytes)
		return st;
	return mx_cuda_check(d, cudaMemcpyAsync(to, from, bytes, kind, mx_cuda_stream(d)), what);
}

mx_status mx_cuda_upload(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	return copy(d, to, from, bytes, cudaMemcpyHostToDevice, "copying to the device");
}

mx_status mx_cuda_download(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	return copy(d, to, from, bytes, cudaMemcpyDeviceToHost, "copying from the device");
}

mx_status mx_cuda_copy(struct mx_device *d, void *to, const void *from, size_t bytes)
{
	return copy(d, to, from, bytes, cudaMemcpyDefault, "copying within the device");
}

mx_status mx_cuda_zero(struct mx_device *d, void *to, size_t bytes)
{
	mx_status st = mx_cuda_bind(d);
	if (st != MX_OK || !bytes)
		return st;
	return mx_cuda_check(d, cudaMemsetAsync(to, 0, bytes, mx_cuda_stream(d)), "clearing memory");
}

/* Polls: a thread that sleeps until the device interrupts it wakes tens of microseconds late, which
 * is one per cent of a step of a few milliseconds. */
mx_status mx_cuda_wait(struct mx_device *d)
{
	mx_status st = mx_cuda_bind(d);
	if (st != MX_OK)
		return st;
	cudaError_t e;
	while ((e = cudaStreamQuery(mx_cuda_stream(d))) == cudaErrorNotReady) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#endif
	}
	return mx_cuda_check(d, e, "waiting for the device");
}

/* ---- loading ---- */

struct fill {
	unsigned char *to;
	const unsigned char *from;
	enum mx_dtype to_dtype, dtype;
	size_t n, per_task; /* elements */
};

static void fill_task(void *arg, size_t task, unsigned worker)
{
	const struct fill *f = arg;
	size_t begin = task * f->per_task, left = f->n - begin;
	(void)worker;
	mx_convert(f->to + begin * mx_dtype_size(f->to_dtype), f->to_dtype,
	           f->from + begin * mx_dtype_size(f->dtype), f->dtype,
	           left < f->per_task ? left : f->per_task);
}

/* Loads one buffer: waits until it is empty, fills it and starts its copy. */
static mx_status load_piece(struct mx_device *d, unsigned char *to, struct fill *f)
{
	struct mx_cuda_staging *s = mx_cuda(d)->staging;
	unsigned stage = s->next;
	s->next = (stage + 1) % STAGES;
	mx_status st =
		mx_cuda_check(d, cudaEventSynchronize(s->empty[stage]), "waiting for a staging buffer");
	if (st != MX_OK)
		return st;
	f->to = s->buffers + stage * STAGE_BYTES;
	mx_pool_run(s->pool, (f->n + f->per_task - 1) / f->per_task, fill_task, f);
	st = mx_cuda_upload(d, to, f->to, f->n * mx_dtype_size(f->to_dtype));
	if (st != MX_OK)
		return st;
	return mx_cuda_check(d, cudaEventRecord(s->empty[stage], mx_cuda_stream(d)),
	                     "copying to the device");
}

mx_status mx_cuda_load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                       enum mx_dtype dtype, size_t n)
{
	if (!mx_converts(to_dtype, dtype))
		return MX_E_UNSUPPORTED;
	size_t out_size = mx_dtype_size(to_dtype), in_size = mx_dtype_size(dtype);
	size_t per_piece = STAGE_BYTES / out_size;
	struct fill f = {.to_dtype = to_dtype, .dtype = dtype, .per_task = TASK_BYTES / in_size};
	mx_status st = mx_cuda_bind(d);
	for (size_t i = 0; i < n && st == MX_OK; i += per_piece) {
		f.from = (const unsigned char *)from + i * in_size;
		f.n = n - i < per_piece ? n - i : per_piece;
		st = load_piece(d, (unsigned char *)to + i * out_size, &f);
	}
	return st;
}
