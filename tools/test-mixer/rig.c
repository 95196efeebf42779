/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/rig.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cpu/cpu.h"
#include "device/open.h"

void rig_fail(const struct rig *r, const char *fmt, ...)
{
	char text[256];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (r->o.begin && r->check) /* begin was told the rest */
		test_fail("%s", text);
	test_fail("%s, %s, %s, %u threads, drafts of %u: %s: %s (MIXD_TEST_SEED=%llu)", r->o.mixer,
	          r->c->label, r->o.device ? r->o.device : mx_isa_name(r->o.isa), r->o.threads,
	          r->layer.max_draft, r->check ? r->check : "opening", text,
	          (unsigned long long)r->o.seed);
}

void rig_check(const struct rig *r, const char *call, mx_status st)
{
	if (st != MX_OK)
		rig_fail(r, "%s: %s", call, mx_status_str(st));
	if (r->device->ops->wait(r->device) != MX_OK)
		rig_fail(r, "after %s: the device is lost", call);
}

void rig_begin(struct rig *r, const char *check)
{
	r->check = check;
	if (r->o.begin)
		r->o.begin(r, check);
}

/* ---- activations ---- */

struct mx_device *rig_memory(const struct rig *r)
{
	return r->device->info.kind == MX_DEVICE_CPU ? NULL : r->device;
}

float rig_get(const struct rig *r, const struct block *b, size_t i)
{
	return r->element == 4 ? ((const float *)b->p)[i] : mx_bf16_to_f32(((const uint16_t *)b->p)[i]);
}

void rig_put(const struct rig *r, struct block *b, size_t i, float v)
{
	if (r->element == 4)
		((float *)b->p)[i] = v;
	else
		((uint16_t *)b->p)[i] = mx_f32_to_bf16(v);
}

/* ---- weights ---- */

static uint16_t f32_to_f16(float f) /* for numbers of ordinary size */
{
	uint32_t u;
	memcpy(&u, &f, 4);
	int exp = (int)(u >> 23 & 255) - 112;
	if (exp <= 0)
		return (uint16_t)(u >> 16 & 0x8000);
	return (uint16_t)((u >> 16 & 0x8000) | (uint32_t)exp << 10 | (u >> 13 & 0x3ff));
}

static const struct mixer_weight *drawn_as(const struct mixer_case *c, const char *name)
{
	for (const struct mixer_weight *w = c->weights; w && w->name; w++)
		if (!strcmp(w->name, name))
			return w;
	return NULL;
}

/* Draws one element. Without `w`, those of matrices (cols > 0) keep the size of a row and those of
 * vectors are around 1. */
static float weight_element(const struct mixer_weight *w, uint64_t cols, struct rng *g)
{
	if (w)
		return w->mean + w->spread * rng_normal(g);
	return cols ? rng_normal(g) * 1.5f / sqrtf((float)cols) : 1 + 0.3f * rng_normal(g);
}

/* Stores f as element i and returns the value after rounding. */
static float store(void *data, enum mx_dtype type, uint64_t i, float f)
{
	if (type == MX_BF16)
		return mx_bf16_to_f32(((uint16_t *)data)[i] = mx_f32_to_bf16(f));
	if (type == MX_F16)
		return mx_f16_to_f32(((uint16_t *)data)[i] = f32_to_f16(f));
	return ((float *)data)[i] = f;
}

/* Returns memory of the device with a copy of the weight, which the host cannot read. */
static void *copy_to_device(struct rig *r, const void *data, enum mx_dtype type, uint64_t n)
{
	const struct mx_ops *ops = r->device->ops;
	void *to = NULL;
	rig_check(r, "device memory", ops->alloc(r->device, n * mx_dtype_size(type), &to));
	rig_check(r, "load", ops->load(r->device, to, type, data, type, n));
	rig_check(r, "wait", ops->wait(r->device));
	return to;
}

static void make_weight(struct rig *r, struct rng *g, struct run_weight *w)
{
	const struct mx_weight_spec *spec = &w->spec;
	const struct mixer_weight *as = drawn_as(r->c, spec->name);
	bool matrix = spec->form != MX_WEIGHT_VECTOR;
	enum mx_dtype type = MX_F32;
	if (matrix)
		type = rig_memory(r) ? r->device->info.act_dtype : r->c->weight_dtype;
	uint64_t rows = spec->n_slices ? spec->slices[0].n : spec->shape[0], cols = 1;
	for (uint32_t i = 1; i < spec->ndim; i++)
		cols *= spec->shape[i];
	uint64_t n = rows * cols;
	w->present = true;
	w->f32 = allocate(n, 4);
	block_alloc(&w->data, NULL, n * mx_dtype_size(type), 64);
	for (uint64_t i = 0; i < n; i++)
		w->f32[i] = store(w->data.p, type, i, weight_element(as, matrix ? cols : 0, g));
	w->used = w->data.p;
	if (rig_memory(r))
		w->used = w->device = copy_to_device(r, w->data.p, type, n);
	w->matrix = (struct mx_weight){type, (uint32_t)rows, (uint32_t)cols, w->used, NULL};
}

static void check_spec(const struct rig *r, const struct mx_weight_spec *s)
{
	if (!s->name || !s->ndim || s->ndim > 4)
		rig_fail(r, "weights: a tensor without a name, or with %u axes", s->ndim);
	if (s->n_slices > 1 || (s->n_slices && s->slices[0].axis))
		rig_fail(r, "tensor %s: the engine takes at most one slice, of axis 0", s->name);
	if (s->n_slices && s->slices[0].first + s->slices[0].n > s->shape[0])
		rig_fail(r, "tensor %s: the slice ends after the tensor", s->name);
}

/* Ends the test if the case draws a tensor that the mixer does not ask for. */
static void check_drawn(const struct rig *r)
{
	for (const struct mixer_weight *w = r->c->weights; w && w->name; w++) {
		size_t i = 0;
		while (i < r->n_weights && strcmp(r->weights[i].spec.name, w->name))
			i++;
		if (i == r->n_weights)
			rig_fail(r, "the case names tensor %s, which the mixer does not ask for", w->name);
	}
}

static void open_weights(struct rig *r)
{
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	struct rng g = {0x9e3779b97f4a7c15ull}; /* the same for every rig of a case */
	size_t n = 0;
	rig_check(r, "weights", r->ops->weights(&r->layer, specs, &n));
	MUST(n <= MX_MIXER_MAX_WEIGHTS);
	r->n_weights = n;
	for (size_t i = 0; i < n; i++) {
		struct run_weight *w = &r->weights[i];
		check_spec(r, &specs[i]);
		w->spec = specs[i];
		const struct mixer_weight *as = drawn_as(r->c, specs[i].name);
		if (as && as->spread < 0 && specs[i].optional)
			continue;
		if (as && as->spread < 0)
			rig_fail(r, "tensor %s is absent in the case, but not optional", specs[i].name);
		make_weight(r, &g, w);
		r->f32_ptrs[i] = w->f32;
		r->weight_ptrs[i] = w->spec.form == MX_WEIGHT_VECTOR ? w->used : (void *)&w->matrix;
	}
	if (r->o.strict)
		check_drawn(r);
}

/* Copies the vectors for init->host_vectors. */
static void open_host_vectors(const struct rig *r, float *out[MX_MIXER_MAX_WEIGHTS])
{
	for (size_t i = 0; i < r->n_weights; i++) {
		const struct run_weight *w = &r->weights[i];
		out[i] = NULL;
		if (!w->present || w->spec.form != MX_WEIGHT_VECTOR)
			continue;
		out[i] = allocate(w->data.size, 1);
		memcpy(out[i], w->f32, w->data.size);
	}
}

/* Spoils and frees the copies: they are valid during create only. */
static void close_host_vectors(const struct rig *r, float *vectors[MX_MIXER_MAX_WEIGHTS])
{
	for (size_t i = 0; i < r->n_weights; i++) {
		if (vectors[i])
			memset(vectors[i], POISON, r->weights[i].data.size);
		free(vectors[i]);
	}
}

/* ---- memory and device ---- */

static size_t tables_bytes(const struct rig *r)
{
	return 3 * r->layer.max_rows * sizeof(uint32_t) + RUN_SPANS * sizeof(struct mx_device_span) +
	       (size_t)RUN_SPANS * r->max_pages * sizeof(uint32_t);
}

static void open_memory(struct rig *r)
{
	size_t align = r->device->info.align, rows = r->layer.max_rows;
	struct mx_device *of = rig_memory(r);
	uint32_t multiple = r->state.page_multiple ? r->state.page_multiple : 16;

	r->page_tokens =
		of ? multiple : multiple * r->device->info.threads; /* outputs must not depend on it */
	r->max_pages = (r->c->tokens + r->page_tokens - 1) / r->page_tokens + 1;
	if (!r->state.bytes_per_token)
		r->page_tokens = r->max_pages = 0;
	pool_open(&r->pages, of, r->page_tokens * r->state.bytes_per_token, RUN_SLOTS * r->max_pages,
	          RUN_LAYERS, align);
	pool_open(&r->slots, of, r->state.fixed_bytes, RUN_SLOTS, RUN_LAYERS, align);
	block_alloc(&r->scratch, of, r->state.scratch_bytes, align);
	memset(r->scratch.p, POISON, r->scratch.size);
	block_alloc(&r->settle, of, r->state.settle_bytes, align);
	memset(r->settle.p, POISON, r->settle.size);
	block_alloc(&r->x, of, rows * r->layer.width * r->element, align);
	block_alloc(&r->y, of, rows * r->layer.width * r->element, align);
	block_alloc(&r->tables, of, tables_bytes(r), align);
	r->x_copy = allocate(rows * r->layer.width, r->element);
	r->pos = allocate(rows, sizeof(*r->pos));
}

/* The CPU takes the widest input of a product in advance. The engine knows it from the tensors;
 * here a multiple of the width must do. */
static size_t widest_input(const struct rig *r)
{
	return r->layer.width > 512 ? 8 * (size_t)r->layer.width : 4096;
}

static void open_device(struct rig *r)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = r->c->weight_dtype == MX_F32 ? MX_F32 : MX_BF16,
	             .max_samples = 1,
	             .vocab = 64,
	             .deterministic = !r->o.loose}};
	struct mx_err err = {0};
	mx_status st = r->o.device ? mx_device_open(r->o.device, &options, &r->device, &err)
	                           : mx_cpu_create(r->o.threads, r->o.isa, r->layer.max_rows,
	                                           widest_input(r), &r->device, &err);
	if (st != MX_OK)
		rig_fail(r, "%s", err.text);
	r->element = mx_dtype_size(r->device->info.act_dtype);
}

/* ---- pages ---- */

uint32_t rig_pages(const struct rig *r, uint32_t n_tokens)
{
	return r->max_pages ? (n_tokens + r->page_tokens - 1) / r->page_tokens : 0;
}

uint32_t rig_extent(const struct rig *r, uint32_t n, uint32_t max_len, uint32_t *out_first)
{
	uint32_t first = 0, end = 0;
	if (n)
		r->ops->extent(&r->layer, n, max_len, &first, &end);
	*out_first = r->max_pages ? first / r->page_tokens : 0;
	return rig_pages(r, end);
}

static void check_extent(const struct rig *r, uint32_t max_len)
{
	uint32_t last[2] = {0};
	for (uint32_t n = 1; n <= max_len; n++) {
		uint32_t first = UINT32_MAX, end = UINT32_MAX;
		r->ops->extent(&r->layer, n, max_len, &first, &end);
		if (first > n || end < n || end > max_len || first < last[0] || end < last[1])
			rig_fail(r, "at %u tokens of %u the extent is %u .. %u, after %u .. %u", n, max_len,
			         first, end, last[0], last[1]);
		if ((first || end > n) && !(r->ops->caps & MX_MIXER_EXTENT))
			rig_fail(r, "at %u tokens the extent is %u .. %u, against its capabilities", n, first,
			         end);
		last[0] = first;
		last[1] = end;
	}
}

/* ---- opening and closing ---- */

static struct mx_layer_desc layer_of(const struct rig *r)
{
	const struct mixer_case *c = r->c;
	return (struct mx_layer_desc){
		.index = CASE_LAYER,
		.n_layers = CASE_LAYERS,
		.width = c->width,
		.max_context = c->tokens,
		.max_rows = c->tokens > RUN_ROWS ? c->tokens : RUN_ROWS,
		.max_spans = RUN_SPANS,
		.max_draft = r->ops->caps & MX_MIXER_DRAFT ? r->o.max_draft : 0,
		.ranks = 1,
		.weight_dtype = c->weight_dtype,
		.state_dtype = c->state_dtype,
		.params = {c->params, c->n_params},
	};
}

static void create_layer(struct rig *r, uint32_t l)
{
	struct mx_err err = {0};
	float *host[MX_MIXER_MAX_WEIGHTS];
	r->layer.index = CASE_LAYER + 2 * l;
	open_host_vectors(r, host);
	const struct mx_mixer_init init = {
		.layer = &r->layer,
		.device = r->device,
		.weights = r->weight_ptrs,
		.host_vectors = (const float *const *)host,
		.settle_scratch = r->settle.size ? r->settle.p : NULL,
		.page_base = pool_at(&r->pages, 0, l),
		.page_stride = RUN_LAYERS * r->pages.part,
		.page_tokens = r->page_tokens,
		.slot_base = pool_at(&r->slots, 0, l),
		.slot_stride = RUN_LAYERS * r->slots.part,
	};
	if (r->ops->create(&init, &r->mixers[l], &err) != MX_OK)
		rig_fail(r, "create: %s", err.text);
	const struct mx_mixer_base *base = (const struct mx_mixer_base *)r->mixers[l];
	if (base->layer != r->layer.index || !base->ops)
		rig_fail(r, "create did not fill struct mx_mixer_base");
	close_host_vectors(r, host);
}

static void check_caps(struct rig *r)
{
	uint32_t caps = r->ops->caps;
	bool share = !r->state.bytes_per_token || caps & MX_MIXER_SHARE_PAGES;
	if (caps & MX_MIXER_TREE && !(caps & MX_MIXER_DRAFT))
		rig_fail(r, "takes trees of drafts, but no drafts");
	if (caps & MX_MIXER_TREE)
		r->max_tree = r->layer.max_draft < MX_TREE_TOKENS ? r->layer.max_draft : MX_TREE_TOKENS;
	r->can_fork = share && (!r->state.fixed_bytes || caps & MX_MIXER_FORK);
	r->can_resume = share && (!r->state.fixed_bytes || caps & MX_MIXER_SNAPSHOT);
	if (r->state.fixed_bytes && !(caps & MX_MIXER_SNAPSHOT) != !r->state.snapshot_bytes)
		rig_fail(r, "snapshots of %zu bytes, against its capabilities", r->state.snapshot_bytes);
}

/* Opens the device and asks the module whether it takes the layer. */
static mx_status probe(struct rig *r, const struct mixer_case *c, const struct rig_options *o,
                       struct mx_err *err)
{
	*r = (struct rig){.c = c, .o = *o, .rng = {o->seed}};
	r->ops = o->ops;
	if (!r->ops)
		r->ops = mx_registry_find(o->registry, o->mixer, o->device ? MX_DEVICE_CUDA : MX_DEVICE_CPU,
		                          err);
	if (!r->ops)
		rig_fail(r, "%s", err->text);
	r->layer = layer_of(r);
	open_device(r);
	return r->ops->probe(&r->layer, r->device, err);
}

void rig_refuses(const struct mixer_case *c, const struct rig_options *o)
{
	struct mx_err err = {0};
	struct rig r;
	if (probe(&r, c, o, &err) != MX_E_UNSUPPORTED || !*err.text)
		rig_fail(&r, "probe must refuse the layer as unsupported, with a message");
	r.device->ops->destroy(r.device);
}

void rig_open(struct rig *r, const struct mixer_case *c, const struct rig_options *o)
{
	struct mx_err err = {0};
	if (probe(r, c, o, &err) != MX_OK)
		rig_fail(r, "probe: %s", err.text);
	rig_check(r, "state", r->ops->state(&r->layer, r->device, &r->state));
	open_weights(r);
	open_memory(r);
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		create_layer(r, l);
	if (r->ops->prepare(r->mixers, RUN_LAYERS, &err) != MX_OK)
		rig_fail(r, "prepare: %s", err.text);
	check_extent(r, c->tokens);
	check_extent(r, 1 + rng_below(&r->rng, c->tokens));
	check_caps(r);
}

bool rig_can_open(const char *device)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = MX_F32, .max_samples = 1, .vocab = 64}};
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	if (mx_device_open(device, &options, &d, &err) != MX_OK) {
		printf("%s\n", err.text);
		return false;
	}
	d->ops->destroy(d);
	return true;
}

void rig_close(struct rig *r)
{
	for (uint32_t l = 0; l < RUN_LAYERS; l++)
		r->ops->destroy(r->mixers[l]);
	for (size_t i = 0; i < r->n_weights; i++) {
		r->device->ops->release(r->device, r->weights[i].device);
		block_free(&r->weights[i].data);
		free(r->weights[i].f32);
	}
	pool_close(&r->pages);
	pool_close(&r->slots);
	block_free(&r->scratch);
	block_free(&r->settle);
	block_free(&r->x);
	block_free(&r->y);
	block_free(&r->tables);
	free(r->x_copy);
	free(r->pos);
	r->device->ops->destroy(r->device);
}
