/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA device: its table of operators, its creation and its end. */
#include "config.h"

#include "device/cuda/comm.h"
#include "device/cuda/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define MIN_SM 80
/* Bytes of shared memory that the kernels for few rows (linear_few.cu, linear_quant_few.cu) take.
 */
#define LEAST_SMEM (115 * 1024)

/* The device has no workers: runs the tasks in the calling thread. */
static void parallel(struct mx_device *d, size_t n_tasks, mx_parallel_f *fn, void *arg)
{
	(void)d;
	for (size_t i = 0; i < n_tasks; i++)
		fn(arg, i, 0);
}

static void destroy(struct mx_device *d)
{
	if (!d)
		return;
	struct mx_cuda *c = mx_cuda(d);
	(void)mx_cuda_bind(d);
	if (c->base.stream && !c->lost)
		cudaStreamSynchronize(mx_cuda_stream(d));
	mx_cuda_sampler_destroy(d);
	mx_cuda_linear_destroy(d);
	mx_cuda_staging_destroy(d);
	if (c->base.stream)
		cudaStreamDestroy(mx_cuda_stream(d));
	free(c);
}

static mx_status linear_each(struct mx_device *d, size_t n, const struct mx_linear_each *each,
                             size_t n_each)
{
	mx_status st = MX_OK;
	for (size_t i = 0; i < n_each && st == MX_OK; i++) {
		const struct mx_linear_out out = {.w = each[i].w, .y = each[i].y, .ldy = each[i].ldy};
		st = mx_cuda_linear_run(d, each[i].x, each[i].ldx, n, &out, 1);
	}
	return st;
}

static const struct mx_ops cuda_ops = {
	.struct_size = sizeof(struct mx_ops),
	.linear = mx_cuda_linear_run,
	.rmsnorm = mx_cuda_rmsnorm,
	.add_rmsnorm = mx_cuda_add_rmsnorm,
	.silu_mul = mx_cuda_silu_mul,
	.rope = mx_cuda_rope,
	.embed = mx_cuda_linear_embed,
	.sample = mx_cuda_sample,
	.logprobs = mx_cuda_logprobs,
	.parallel = parallel,
	.destroy = destroy,
	.alloc = mx_cuda_alloc,
	.release = mx_cuda_release,
	.host_alloc = mx_cuda_host_alloc,
	.host_release = mx_cuda_host_release,
	.upload = mx_cuda_upload,
	.download = mx_cuda_download,
	.copy = mx_cuda_copy,
	.zero = mx_cuda_zero,
	.wait = mx_cuda_wait,
	.load = mx_cuda_load,
	.scale = mx_cuda_scale,
	.add_scaled = mx_cuda_add_scaled,
	.scale_logits = mx_cuda_scale_logits,
	.gather = mx_cuda_gather,
	.sample_prepare = mx_cuda_sample_prepare,
	.sample_draw = mx_cuda_sample_draw,
	.sample_drawn = mx_cuda_sample_drawn,
	.record = mx_cuda_record,
	.recorded = mx_cuda_recorded,
	.replay = mx_cuda_replay,
	.forget = mx_cuda_forget,
	.layernorm = mx_cuda_layernorm,
	.gelu_tanh = mx_cuda_gelu_tanh,
	.act_mul = mx_cuda_act_mul,
	.softcap_logits = mx_cuda_softcap_logits,
	.linear_each = linear_each,
	.experts = mx_cuda_experts,
	.linear_gated = mx_cuda_linear_gated,
	.linear_normed = mx_cuda_linear_normed,
	.move_rows = mx_cuda_move_rows,
	.put = mx_cuda_put,
};

/* True if the kernels are compiled for compute capability `sm` (90 = 9.0). Code for 8.x would also
 * run on newer devices, but it is launched with attributes (clusters, programmatic dependent
 * launch) that it was not compiled for. */
static bool has_code(int sm)
{
	const int least = sm < 90 ? MIN_SM : 90;
	int at, n, ptx = 0; /* ptx: the last one without a letter, which is also compiled to PTX */
	bool found = false;
	for (const char *p = CUDA_ARCHS; sscanf(p, "%d%n", &n, &at) == 1;
	     p += at + strcspn(p + at, " ")) {
		bool letter = p[at] && p[at] != ' ';
		if (!letter)
			ptx = n;
		found |= letter ? n == sm : n >= least && n <= sm && n / 10 == sm / 10;
	}
	return found || (ptx >= least && ptx <= sm);
}

/* Checks that the device exists and can run this code. */
static mx_status find(int ordinal, struct mx_err *err)
{
	int driver = 0, n = 0, major = 0, minor = 0;
	if (cudaDriverGetVersion(&driver) != cudaSuccess || !driver)
		return mx_fail(err, MX_E_DEVICE, "cuda:%d: this host has no NVIDIA driver", ordinal);
	cudaError_t e = cudaGetDeviceCount(&n);
	if (e == cudaErrorInsufficientDriver)
		return mx_fail(err, MX_E_DEVICE,
		               "cuda:%d: the NVIDIA driver is for CUDA %d.%d; %d.%d is needed", ordinal,
		               driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
		               CUDART_VERSION % 1000 / 10);
	if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
		return mx_fail(err, MX_E_DEVICE, "cuda:%d: this host has no CUDA GPU", ordinal);
	if (e != cudaSuccess)
		return mx_fail(err, MX_E_DEVICE, "cuda:%d: %s", ordinal, cudaGetErrorString(e));
	if (ordinal < 0 || ordinal >= n)
		return mx_fail(err, MX_E_NOTFOUND, "cuda:%d: this host has %d CUDA GPU%s, from cuda:0",
		               ordinal, n, n == 1 ? "" : "s");
	e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
	if (e != cudaSuccess)
		return mx_fail(err, MX_E_DEVICE, "cuda:%d: %s", ordinal, cudaGetErrorString(e));
	if (major * 10 + minor < MIN_SM)
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "cuda:%d: compute capability %d.%d is too old; %d.%d is needed", ordinal,
		               major, minor, MIN_SM / 10, MIN_SM % 10);
	if (!has_code(major * 10 + minor))
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "cuda:%d: this build has kernels for %s, not for compute capability %d.%d: "
		               "configure --with-cuda-arch",
		               ordinal, CUDA_ARCHS, major, minor);
	return MX_OK;
}

/* mx_cuda_check for modules: cuda.h does not know cudaError_t. */
static mx_status check(struct mx_device *d, int error, const char *what)
{
	return mx_cuda_check(d, (cudaError_t)error, what);
}

/* Creates the context and the stream, and reads the properties of the GPU. */
static cudaError_t start(struct mx_cuda *c, int ordinal)
{
	struct mx_cuda_base *b = &c->base;
	int major = 0, minor = 0, smem = 0;
	cudaStream_t stream = NULL;
	cudaError_t e = mx_cuda_set_current(ordinal);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&b->sms, cudaDevAttrMultiProcessorCount, ordinal);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
	if (e == cudaSuccess)
		e = cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
	if (e == cudaSuccess)
		e = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	b->ordinal = ordinal;
	b->sm = major * 10 + minor;
	b->smem = (size_t)smem;
	b->stream = stream;
	return e;
}

/* Refuses a GPU whose thread blocks have too little shared memory for the products of few rows. */
static mx_status has_room(const struct mx_cuda_base *b, struct mx_err *err)
{
	if (b->smem >= LEAST_SMEM)
		return MX_OK;
	return mx_fail(
		err, MX_E_UNSUPPORTED,
		"cuda:%d: compute capability %d.%d is not supported: a thread block has %zu KiB of "
		"shared memory, and the kernels need %d (8.0 and 9.0 have that)",
		b->ordinal, b->sm / 10, b->sm % 10, b->smem / 1024, LEAST_SMEM / 1024);
}

static mx_status create(int ordinal, const struct mx_cuda_limits *limits, struct mx_device **out,
                        struct mx_err *err)
{
	mx_status st = find(ordinal, err);
	if (st != MX_OK)
		return st;
	if (limits->act_dtype != MX_BF16 && limits->act_dtype != MX_F32)
		return mx_fail(err, MX_E_INVALID, "cuda:%d: activations are bf16 or f32", ordinal);
	struct mx_cuda *c = calloc(1, sizeof *c);
	if (!c)
		return mx_fail(err, MX_E_NOMEM, "no memory for the CUDA device");
	struct mx_device *d = &c->base.device;
	c->limits = *limits;
	c->base.check = check;
	c->base.bind = mx_cuda_bind;
	d->ops = &cuda_ops;
	d->info = (struct mx_device_info){.kind = MX_DEVICE_CUDA,
	                                  .act_dtype = limits->act_dtype,
	                                  .threads = 1,
	                                  .align = 256,
	                                  .own_memory = true,
	                                  .async = true,
	                                  .records = true,
	                                  .deterministic = limits->deterministic};
	snprintf(d->info.name, sizeof d->info.name, "cuda:%d", ordinal);
	cudaError_t e = start(c, ordinal);
	d->info.fused_rows = mx_cuda_linear_fused_rows(d, limits->quantised);
	d->info.packs_experts = limits->act_dtype == MX_BF16 && c->base.sm >= 90;
	snprintf(d->info.isa, sizeof d->info.isa, "sm_%d", c->base.sm);
	st = e == cudaSuccess
	         ? has_room(&c->base, err)
	         : mx_fail(err, MX_E_DEVICE, "%s: %s", d->info.name, cudaGetErrorString(e));
	if (st == MX_OK)
		st = mx_cuda_staging_create(d, err);
	if (st == MX_OK)
		st = mx_cuda_linear_create(d, err);
	if (st == MX_OK)
		st = mx_cuda_sampler_create(d, err);
	size_t total;
	if (st == MX_OK && (e = cudaMemGetInfo(&d->info.memory, &total)) != cudaSuccess)
		st = mx_fail(err, MX_E_DEVICE, "%s: %s", d->info.name, cudaGetErrorString(e));
	if (st != MX_OK) {
		destroy(d);
		return st;
	}
	*out = d;
	return MX_OK;
}

static size_t own_bytes(const struct mx_cuda_limits *limits)
{
	return mx_cuda_linear_bytes(limits) + mx_cuda_sampler_bytes(limits);
}

mx_cuda_device_f mx_cuda_device_v4;

const struct mx_cuda_device_ops *mx_cuda_device_v4(void)
{
	static const struct mx_cuda_device_ops ops = {.struct_size = sizeof ops,
	                                              .create = create,
	                                              .own_bytes = own_bytes,
	                                              .log_to = mx_log_forward,
	                                              .comm_create = mx_cuda_comm_create,
	                                              .comm_part = mx_cuda_comm_part};
	return &ops;
}
