/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/mixers/mla/cuda/mla_rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/pin.h"
#include "tests/rng.h"

void rig_check(cudaError_t e, const char *what)
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

bool rig_gpu(void)
{
	int n = 0;
	return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}

/* ---- the device ---- */

static mx_status dev_linear(struct mx_device *d, const void *x, size_t ldx, size_t n,
                            const struct mx_linear_out *out, size_t n_out)
{
	struct rig *r = (struct rig *)d;
	const uint16_t *from = x;
	const size_t ld = x == r->x ? r->columns : ldx;
	for (size_t i = 0; r->products && i < n_out; i++) {
		RIG_CUDA(cudaMemcpy2DAsync(out[i].y, out[i].ldy * 2, from, ld * 2, out[i].w->rows * 2, n,
		                           cudaMemcpyDeviceToDevice, (cudaStream_t)r->base.stream));
		from += out[i].w->rows;
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

static mx_status dev_load(struct mx_device *d, void *to, enum mx_dtype to_dtype, const void *from,
                          enum mx_dtype dtype, size_t n)
{
	(void)d;
	if (to_dtype != dtype)
		return MX_E_UNSUPPORTED;
	RIG_CUDA(cudaMemcpy(to, from, n * mx_dtype_size(dtype), cudaMemcpyHostToDevice));
	return MX_OK;
}

static mx_status dev_wait(struct mx_device *d)
{
	RIG_CUDA(cudaStreamSynchronize((cudaStream_t)mx_cuda_base(d)->stream));
	return MX_OK;
}

static mx_status dev_bind(struct mx_device *d)
{
	(void)d; /* the first device is every thread's at the start */
	return MX_OK;
}

static mx_status dev_check(struct mx_device *d, int error, const char *what)
{
	(void)d;
	rig_check((cudaError_t)error, what);
	return MX_OK;
}

static void open_device(struct rig *r, bool deterministic)
{
	struct cudaDeviceProp prop;
	cudaStream_t stream;
	RIG_CUDA(cudaGetDeviceProperties(&prop, 0));
	RIG_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	r->ops = (struct mx_ops){
		.struct_size = sizeof(r->ops),
		.linear = dev_linear,
		.alloc = dev_alloc,
		.release = dev_release,
		.load = dev_load,
		.wait = dev_wait,
	};
	r->base = (struct mx_cuda_base){
		.device = {.ops = &r->ops,
	               .info = {.kind = MX_DEVICE_CUDA,
	                        .name = "cuda:0",
	                        .act_dtype = MX_BF16,
	                        .align = 256,
	                        .deterministic = deterministic}},
		.sms = prop.multiProcessorCount,
		.sm = prop.major * 10 + prop.minor,
		.smem = prop.sharedMemPerBlockOptin,
		.stream = stream,
		.check = dev_check,
		.bind = dev_bind,
	};
	if (!mx_cuda_pin(&r->base.sm, &r->base.smem))
		die("MIXD_CUDA_CAPABILITY");
}

/* ---- the layer ---- */

static void *own(struct rig *r, size_t bytes)
{
	void *p = NULL;
	RIG_CUDA(cudaMalloc(&p, bytes));
	RIG_CUDA(cudaMemset(p, 0xff, bytes)); /* NaN */
	if (r->n_owned == sizeof(r->owned) / sizeof(*r->owned))
		die("too many arrays");
	return r->owned[r->n_owned++] = p;
}

/* Makes the weights; of the matrices only kv_b has values. */
static void make_weights(struct rig *r, const struct mx_weight_spec *specs, size_t n,
                         const void **weights)
{
	struct rng g = {42};
	for (size_t i = 0; i < n; i++) {
		const uint32_t rows = (uint32_t)specs[i].shape[0];
		const uint32_t cols = specs[i].ndim > 1 ? (uint32_t)specs[i].shape[1] : 1;
		const bool matrix = specs[i].form != MX_WEIGHT_VECTOR;
		const size_t size = (size_t)rows * cols;
		r->matrices[i] = (struct mx_weight){MX_BF16, rows, cols, NULL, NULL};
		weights[i] = &r->matrices[i];
		if (matrix && !strstr(specs[i].name, "kv_b"))
			continue;
		uint16_t *half = calloc(size, sizeof *half);
		float *full = calloc(size, sizeof *full);
		for (size_t k = 0; k < size; k++) {
			full[k] = matrix ? 0.05f * rng_normal(&g) : 1 + 0.2f * rng_normal(&g);
			half[k] = mx_f32_to_bf16(full[k]);
		}
		void *to = own(r, size * (matrix ? 2 : 4));
		RIG_CUDA(cudaMemcpy(to, matrix ? (void *)half : (void *)full, size * (matrix ? 2 : 4),
		                    cudaMemcpyHostToDevice));
		r->matrices[i].data = to;
		if (!matrix)
			weights[i] = to;
		free(half);
		free(full);
	}
}

static void open_module(struct rig *r, const char *folder)
{
	char path[4096];
	mx_mixer_module_f *module;
	snprintf(path, sizeof path, "%s/mla-cuda.so", folder);
	r->module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	void *symbol = r->module ? dlsym(r->module, MX_MIXER_MODULE_SYMBOL) : NULL;
	if (!symbol)
		die(dlerror());
	memcpy(&module, &symbol, sizeof module);
	r->mixer = module();
}

static struct mx_param number(const char *name, uint32_t value)
{
	return (struct mx_param){.name = name, .type = MX_PARAM_INT, .i = value};
}

void rig_open(struct rig *r, const char *folder, const struct rig_layer *l)
{
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	const void *weights[MX_MIXER_MAX_WEIGHTS] = {0};
	const float *host[MX_MIXER_MAX_WEIGHTS] = {0};
	const struct mx_param params[] = {
		number("heads", l->heads),           number("kv_lora_rank", l->rank),
		number("qk_nope_head_dim", l->nope), number("qk_rope_head_dim", l->rope),
		number("v_head_dim", l->v),          {"skip_first", MX_PARAM_BOOL, .i = l->skip_first},
	};
	const struct mx_layer_desc layer = {
		.n_layers = 1,
		.width = l->heads * l->v,
		.max_context = l->max_context,
		.max_rows = l->max_rows,
		.max_spans = RIG_SPANS,
		.max_draft = 8,
		.ranks = 1,
		.weight_dtype = MX_BF16,
		.state_dtype = MX_BF16,
		.params = {params, sizeof params / sizeof *params},
	};
	struct mx_err err = {0};
	size_t n = 0;
	*r = (struct rig){.products = true,
	                  .width = layer.width,
	                  .columns = l->rank + l->rope + l->heads * (l->nope + l->rope)};
	open_device(r, l->deterministic);
	open_module(r, folder);
	if (r->mixer->probe(&layer, &r->base.device, &err) != MX_OK ||
	    r->mixer->weights(&layer, specs, &n) != MX_OK ||
	    r->mixer->state(&layer, &r->base.device, &r->state) != MX_OK)
		die(err.text);
	make_weights(r, specs, n, weights);
	const size_t page = (r->state.bytes_per_token * RIG_PAGE + 255) / 256 * 256;
	r->pages = own(r, page * l->n_pages);
	r->scratch = own(r, r->state.scratch_bytes);
	r->x = own(r, (size_t)l->max_rows * r->columns * 2);
	r->y = own(r, (size_t)l->max_rows * r->width * 2);
	r->table = own(r, (RIG_SPANS * 16 + 2 * (size_t)l->max_rows + l->n_pages) * 4);
	const struct mx_mixer_init init = {
		.layer = &layer,
		.device = &r->base.device,
		.weights = weights,
		.host_vectors = host,
		.page_base = r->pages,
		.page_stride = page,
		.page_tokens = RIG_PAGE,
	};
	if (r->mixer->create(&init, &r->m, &err) != MX_OK || r->mixer->prepare(&r->m, 1, &err) != MX_OK)
		die(err.text);
	RIG_CUDA(cudaDeviceSynchronize());
}

void rig_close(struct rig *r)
{
	RIG_CUDA(cudaDeviceSynchronize());
	r->mixer->destroy(r->m);
	while (r->n_owned)
		RIG_CUDA(cudaFree(r->owned[--r->n_owned]));
	RIG_CUDA(cudaStreamDestroy((cudaStream_t)r->base.stream));
	dlclose(r->module);
}

/* ---- steps ---- */

void rig_tables(struct rig *r, const struct rig_span *spans, uint32_t n)
{
	struct mx_device_span *to = calloc(RIG_SPANS, sizeof *to);
	uint32_t rows = 0, pages = 0;
	for (uint32_t i = 0; i < n; i++) {
		rows += spans[i].n;
		pages += spans[i].n_pages;
	}
	uint32_t *row_span = calloc(rows + 1, sizeof *row_span), *pos = calloc(rows + 1, sizeof *pos);
	uint32_t *list = calloc(pages + 1, sizeof *list);
	if (n > RIG_SPANS || !to || !row_span || !pos || !list)
		die("too many spans");
	rows = pages = 0;
	for (uint32_t i = 0; i < n; i++) {
		to[i] = (struct mx_device_span){.row = rows,
		                                .n = spans[i].n,
		                                .pos = spans[i].pos,
		                                .page_begin = pages,
		                                .n_pages = spans[i].n_pages,
		                                .parent_begin = UINT32_MAX};
		for (uint32_t k = 0; k < spans[i].n; k++, rows++) {
			row_span[rows] = i;
			pos[rows] = spans[i].pos + k;
		}
		for (uint32_t k = 0; k < spans[i].n_pages; k++)
			list[pages++] = spans[i].pages[k];
	}
	uint32_t *at = r->table;
	RIG_CUDA(cudaMemcpy(at, to, n * sizeof *to, cudaMemcpyHostToDevice));
	r->tables.spans = (const struct mx_device_span *)at;
	at += RIG_SPANS * 16;
	RIG_CUDA(cudaMemcpy(at, row_span, rows * 4, cudaMemcpyHostToDevice));
	r->tables.row_span = at;
	at += rows;
	RIG_CUDA(cudaMemcpy(at, pos, rows * 4, cudaMemcpyHostToDevice));
	r->tables.pos = at;
	at += rows;
	RIG_CUDA(cudaMemcpy(at, list, pages * 4, cudaMemcpyHostToDevice));
	r->tables.pages = at;
	free(to);
	free(row_span);
	free(pos);
	free(list);
}

void rig_forward(struct rig *r, const struct rig_span *spans, uint32_t n, bool recording)
{
	struct mx_span *host = calloc(n, sizeof *host);
	struct mx_step step = {.spans = host,
	                       .n_spans = n,
	                       .scratch = r->scratch,
	                       .tables = &r->tables,
	                       .recording = recording};
	for (uint32_t i = 0; host && i < n; i++) {
		host[i] = (struct mx_span){.row = step.n_rows, .n = spans[i].n, .pos = spans[i].pos};
		step.n_rows += spans[i].n;
		step.longest = spans[i].n > step.longest ? spans[i].n : step.longest;
	}
	if (r->mixer->forward(r->m, &step, r->x, r->y) != MX_OK)
		die("forward failed");
	free(host);
}
