/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/mixers/attention/cuda/attention_rig.h"

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/pin.h"

#define GUARD_BYTES 256

void att_check(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
	exit(1);
}

static void die(const char *what)
{
	fprintf(stderr, "%s\n", what);
	exit(1);
}

bool att_gpu(void)
{
	int n = 0;
	return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

int att_sm(void)
{
	struct cudaDeviceProp prop;
	ATT_CUDA(cudaGetDeviceProperties(&prop, 0));
	return prop.major * 10 + prop.minor;
}

double att_frequency(uint32_t head_dim, uint32_t i)
{
	return pow(10000, -2.0 * i / head_dim);
}

float att_sink(uint32_t head)
{
	return 3 - 0.5f * (float)(head % 8);
}

float att_norm_weight(uint32_t i)
{
	return 1 + 0.25f * (float)((int)(i % 5) - 2);
}

/* ---- the device ---- */

static struct att_rig *rig_of(struct mx_device *d)
{
	return (struct att_rig *)d;
}

/* Of queries, keys and values: columns of x, which is [n, ld]. Of the output: all columns. */
static mx_status copies(struct mx_device *d, const void *x, size_t ldx, size_t n,
                        const struct mx_linear_out *out, size_t n_out)
{
	struct att_rig *r = rig_of(d);
	const unsigned char *from = x;
	if (!r->products)
		return MX_OK;
	for (size_t i = 0; i < n_out; i++) {
		size_t width = out[i].w->rows * r->element;
		ATT_CUDA(cudaMemcpy2DAsync(out[i].y, out[i].ldy * r->element, from, ldx * r->element, width,
		                           n, cudaMemcpyDeviceToDevice, (cudaStream_t)r->base.stream));
		from += width;
	}
	return MX_OK;
}

static mx_status dev_alloc(struct mx_device *d, size_t bytes, void **out)
{
	(void)d;
	return cudaMalloc(out, bytes) == cudaSuccess ? MX_OK : MX_E_NOMEM;
}

static void dev_release(struct mx_device *d, void *p)
{
	(void)d;
	cudaFree(p);
}

static mx_status zero(struct mx_device *d, void *to, size_t bytes)
{
	cudaStream_t stream = (cudaStream_t)mx_cuda_base(d)->stream;
	return cudaMemsetAsync(to, 0, bytes, stream) == cudaSuccess ? MX_OK : MX_E_DEVICE;
}

/* Of the types that need no conversion. */
static mx_status load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                      enum mx_dtype dtype, size_t n)
{
	(void)d;
	size_t bytes = n * mx_dtype_size(dtype);
	if (to_dtype != dtype)
		return MX_E_UNSUPPORTED;
	return cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess ? MX_OK : MX_E_DEVICE;
}

static mx_status wait_all(struct mx_device *d)
{
	cudaStream_t stream = (cudaStream_t)mx_cuda_base(d)->stream;
	return cudaStreamSynchronize(stream) == cudaSuccess ? MX_OK : MX_E_DEVICE;
}

/* The rig's device is the first, which is every thread's at the start. */
static mx_status bind(struct mx_device *d)
{
	(void)d;
	return MX_OK;
}

static mx_status check(struct mx_device *d, int error, const char *what)
{
	(void)d;
	if (error == cudaSuccess)
		return MX_OK;
	fprintf(stderr, "%s: %s\n", what, cudaGetErrorString((cudaError_t)error));
	return MX_E_DEVICE;
}

static void open_device(struct att_rig *r)
{
	struct cudaDeviceProp prop;
	cudaStream_t stream;
	ATT_CUDA(cudaGetDeviceProperties(&prop, 0));
	ATT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	r->device_ops = (struct mx_ops){
		.struct_size = sizeof(struct mx_ops),
		.linear = copies,
		.alloc = dev_alloc,
		.release = dev_release,
		.zero = zero,
		.wait = wait_all,
		.load = load,
	};
	r->base = (struct mx_cuda_base){
		.device = {.ops = &r->device_ops,
	               .info = {.kind = MX_DEVICE_CUDA,
	                        .name = "cuda:0",
	                        .act_dtype = r->c->act,
	                        .align = 256,
	                        .deterministic = r->limits.deterministic}},
		.sms = prop.multiProcessorCount,
		.sm = prop.major * 10 + prop.minor,
		.smem = prop.sharedMemPerBlockOptin,
		.stream = stream,
		.check = check,
		.bind = bind,
	};
	if (!mx_cuda_pin(&r->base.sm, &r->base.smem))
		die("MIXD_CUDA_CAPABILITY");
}

/* ---- other ranks ---- */

/* Takes a copy of the partials: the caller folds them. */
static mx_status take_partials(struct mx_comm *comm, const struct mx_partials *p)
{
	struct att_rig *r =
		(struct att_rig *)(void *)((unsigned char *)comm - offsetof(struct att_rig, comm));
	const size_t n = (size_t)comm->ranks * p->rows * p->heads * (p->dim + 4);
	ATT_CUDA(cudaStreamSynchronize((cudaStream_t)r->base.stream));
	free(r->told);
	r->told = malloc(n * sizeof(float));
	r->dim = p->dim;
	if (!r->told)
		return MX_E_NOMEM;
	ATT_CUDA(cudaMemcpy(r->told, p->x, n * sizeof(float), cudaMemcpyDeviceToHost));
	return MX_OK;
}

static const struct mx_comm_ops rank_ops = {
	.struct_size = sizeof(struct mx_comm_ops),
	.fold_partials = take_partials,
};

/* ---- the layer ---- */

static void *take(struct att_rig *r, size_t bytes)
{
	void *p;
	ATT_CUDA(cudaMalloc(&p, bytes ? bytes : 1));
	r->owned[r->n_owned++] = p;
	return p;
}

static void *take_zeroed(size_t n, size_t size)
{
	void *p = calloc(n, size);
	if (!p)
		die("out of memory");
	return p;
}

static void open_module(struct att_rig *r, const char *modules)
{
	char path[4096];
	snprintf(path, sizeof(path), "%s/attention-cuda.so", modules);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays: the driver has its kernels */
	void *symbol = lib ? dlsym(lib, MX_MIXER_MODULE_SYMBOL) : NULL;
	if (!symbol)
		die(dlerror());
	mx_mixer_module_f *module;
	memcpy(&module, &symbol, sizeof(module));
	r->ops = module();
}

/* The layer's parameters, to params[16]; returns their number. freq [256] stays as long as they. */
static size_t make_params(const struct att_case *c, double *freq, struct mx_param *params)
{
	size_t n = 0;
	for (uint32_t i = 0; i < 256; i++)
		freq[i] = att_frequency(c->head_dim, i);
#define INT(key, value)                                                                            \
	params[n++] = (struct mx_param){.name = key, .type = MX_PARAM_INT, .i = value}
#define BOOL(key, value)                                                                           \
	params[n++] = (struct mx_param)                                                                \
	{                                                                                              \
		.name = key, .type = MX_PARAM_BOOL, .i = value                                             \
	}
	INT("heads", c->heads);
	INT("kv_heads", c->kv_heads);
	INT("head_dim", c->head_dim);
	INT("window", c->window);
	BOOL("qk_norm", c->norm);
	BOOL("sinks", c->sinks);
	BOOL("skip_first", c->skip_first);
	BOOL("rope_pairs", c->pairs);
#undef INT
#undef BOOL
	params[n++] = (struct mx_param){.name = "softcap", .type = MX_PARAM_FLOAT, .f = c->cap};
	params[n++] = (struct mx_param){
		.name = "rope", .type = MX_PARAM_STRING, .s = c->rope ? "default" : "none"};
	params[n++] = (struct mx_param){
		.name = "rope_inv_freq", .type = MX_PARAM_FLOATS, .v = freq, .n = c->head_dim / 2};
	return n;
}

/* Device memory with the values of a vector. */
static const void *take_vector(struct att_rig *r, const float *from, size_t n)
{
	void *to = take(r, n * sizeof(*from));
	ATT_CUDA(cudaMemcpy(to, from, n * sizeof(*from), cudaMemcpyHostToDevice));
	return to;
}

/* The matrices, which have no data, then the vectors of norms and sinks, in the module's order. */
static void make_weights(struct att_rig *r, uint32_t contexts, const void *weights[7])
{
	const struct att_case *c = r->c;
	const uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
	const uint32_t rows[4] = {q, kv, kv, q / contexts};
	int n = 4;
	for (int i = 0; i < 4; i++) {
		r->w[i] = (struct mx_weight){c->act, rows[i], r->ld, NULL, NULL};
		weights[i] = &r->w[i];
	}
	if (c->norm) {
		float norm[512];
		for (uint32_t i = 0; i < 512; i++)
			norm[i] = att_norm_weight(i);
		weights[4] = weights[5] = take_vector(r, norm, 512);
		n = 6;
	}
	if (c->sinks) {
		float sinks[64];
		for (uint32_t h = 0; h < 64; h++)
			sinks[h] = att_sink(h);
		weights[n] = take_vector(r, sinks, 64);
	}
}

/* Poisoned pages with guards behind them. */
static void make_pages(struct att_rig *r)
{
	r->page_bytes = r->state.bytes_per_token * r->c->page_tokens;
	r->page_stride = r->page_bytes + GUARD_BYTES;
	r->pages_bytes = r->page_stride * r->limits.n_pages;
	r->pages = take(r, r->pages_bytes);
	ATT_CUDA(cudaMemset(r->pages, ATT_POISON, r->pages_bytes));
	ATT_CUDA(cudaMemset2D(r->pages + r->page_bytes, r->page_stride, ATT_GUARD, GUARD_BYTES,
	                      r->limits.n_pages));
}

static void open_mixer(struct att_rig *r)
{
	const struct att_case *c = r->c;
	const uint32_t contexts = r->limits.contexts ? r->limits.contexts : 1;
	double freq[256];
	struct mx_param params[16];
	const size_t n_params = make_params(c, freq, params);
	r->comm = (struct mx_comm){&rank_ops, r->limits.context, contexts};
	struct mx_layer_desc layer = {
		.n_layers = 1,
		.width = r->ld,
		.max_context = r->limits.max_context,
		.max_rows = r->limits.max_rows,
		.max_spans = r->limits.max_spans,
		.max_draft = r->limits.max_draft,
		.rank = r->limits.context,
		.ranks = contexts,
		.contexts = contexts,
		.weight_dtype = c->act,
		.state_dtype = c->kv,
		.params = {params, n_params},
	};
	struct mx_err err = {0};
	if (r->ops->probe(&layer, &r->base.device, &err) != MX_OK)
		die(err.text);
	if (r->ops->state(&layer, &r->base.device, &r->state) != MX_OK)
		die("state");
	const void *weights[7];
	make_weights(r, contexts, weights);
	make_pages(r);
	struct mx_mixer_init init = {
		.layer = &layer,
		.device = &r->base.device,
		.weights = weights,
		.page_base = r->pages,
		.page_stride = r->page_stride,
		.page_tokens = c->page_tokens,
		.context = contexts > 1 ? &r->comm : NULL,
	};
	if (r->ops->create(&init, &r->mixer, &err) != MX_OK)
		die(err.text);
	if (r->ops->prepare(&r->mixer, 1, &err) != MX_OK)
		die(err.text);
}

void att_open(struct att_rig *r, const char *modules, const struct att_case *c,
              const struct att_limits *l)
{
	*r = (struct att_rig){.c = c, .limits = *l, .products = true};
	r->ld = (c->heads + 2 * c->kv_heads) * c->head_dim;
	r->element = mx_dtype_size(c->act);
	open_device(r);
	open_module(r, modules);
	open_mixer(r);
	size_t rows = (size_t)l->max_rows * r->ld * r->element;
	r->x = take(r, rows);
	r->y = take(r, rows);
	r->scratch = take(r, r->state.scratch_bytes);
	ATT_CUDA(cudaMemset(r->scratch, ATT_POISON, r->state.scratch_bytes));
	r->max_page_list = l->max_spans * (l->max_context / c->page_tokens + 2);
	r->pos = take_zeroed(l->max_rows, sizeof(*r->pos));
	r->row_span = take_zeroed(l->max_rows, sizeof(*r->row_span));
	r->spans = take_zeroed(l->max_spans, sizeof(*r->spans));
	r->host_spans = take_zeroed(l->max_spans, sizeof(*r->host_spans));
	r->page_list = take_zeroed(r->max_page_list, sizeof(*r->page_list));
	r->tables = (struct mx_device_tables){
		.pos = take(r, l->max_rows * sizeof(*r->pos)),
		.row_span = take(r, l->max_rows * sizeof(*r->row_span)),
		.spans = take(r, l->max_spans * sizeof(*r->spans)),
		.pages = take(r, r->max_page_list * sizeof(*r->page_list)),
	};
	ATT_CUDA(cudaDeviceSynchronize());
}

void att_close(struct att_rig *r)
{
	ATT_CUDA(cudaDeviceSynchronize());
	r->ops->destroy(r->mixer);
	for (int i = 0; i < r->n_owned; i++)
		ATT_CUDA(cudaFree(r->owned[i]));
	free(r->told);
	free(r->pos);
	free(r->row_span);
	free(r->spans);
	free(r->host_spans);
	free(r->page_list);
	ATT_CUDA(cudaStreamDestroy((cudaStream_t)r->base.stream));
}

/* ---- a step ---- */

static void to_device(struct att_rig *r, const void *to, const void *from, size_t bytes)
{
	ATT_CUDA(cudaMemcpyAsync((void *)to, from, bytes, cudaMemcpyHostToDevice,
	                         (cudaStream_t)r->base.stream));
}

uint32_t att_tables(struct att_rig *r, const struct att_span *spans, uint32_t n_spans)
{
	uint32_t row = 0, list = 0;
	r->longest = 0;
	if (n_spans > r->limits.max_spans)
		die("too many spans");
	for (uint32_t s = 0; s < n_spans; s++) {
		const struct att_span *in = &spans[s];
		uint32_t rows = in->n ? in->n : 1;
		if (row + rows > r->limits.max_rows || list + in->n_pages > r->max_page_list)
			die("a step that is too large");
		r->spans[s] = (struct mx_device_span){
			.row = row,
			.n = in->n,
			.pos = in->pos,
			.page_begin = list,
			.n_pages = in->n_pages,
			.max_len = r->limits.max_context,
			.kind = in->n > 1 ? MX_SPAN_PREFILL : MX_SPAN_DECODE,
			.parent_begin = UINT32_MAX,
		};
		r->longest = in->n > r->longest ? in->n : r->longest;
		r->host_spans[s] = (struct mx_span){
			.row = row,
			.n = in->n,
			.pos = in->pos,
			.max_len = r->limits.max_context,
			.kind = in->n > 1 ? MX_SPAN_PREFILL : MX_SPAN_DECODE,
			.pages = in->pages,
			.n_pages = in->n_pages,
		};
		for (uint32_t i = 0; i < in->n_pages; i++)
			r->page_list[list++] = in->pages[i];
		for (uint32_t i = 0; i < rows; i++) {
			r->pos[row] = in->pos + i;
			r->row_span[row++] = s;
		}
	}
	to_device(r, r->tables.pos, r->pos, row * sizeof(*r->pos));
	to_device(r, r->tables.row_span, r->row_span, row * sizeof(*r->row_span));
	to_device(r, r->tables.spans, r->spans, n_spans * sizeof(*r->spans));
	to_device(r, r->tables.pages, r->page_list, list * sizeof(*r->page_list));
	return row;
}

void att_forward(struct att_rig *r, uint32_t n_rows, uint32_t n_spans, bool recording)
{
	const struct mx_step step = {
		.spans = recording ? NULL : r->host_spans,
		.n_spans = n_spans,
		.n_rows = n_rows,
		.longest = recording ? 1 : r->longest,
		.pos = recording ? NULL : r->pos,
		.scratch = r->scratch,
		.tables = &r->tables,
		.recording = recording,
	};
	if (r->ops->forward(r->mixer, &step, r->x, r->y) != MX_OK)
		die("forward failed");
	ATT_CUDA(cudaGetLastError());
}
