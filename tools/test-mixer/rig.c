/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/test-mixer/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cpu/cpu.h"
#include "device/open.h"

#define GUARD      0xa5 /* what must not change */
#define POISON     0xff /* NaN in every float format: what must not be read */
#define GUARD_SIZE 4096

/* The address sanitizer sees reads of what nobody was given, too. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(p, n) __asan_poison_memory_region((p), (n))
#define ALLOW(p, n)  __asan_unpoison_memory_region((p), (n))
#else
#define FORBID(p, n) ((void)(p), (void)(n))
#define ALLOW(p, n)  ((void)(p), (void)(n))
#endif

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);
	assert_non_null(p);
	return p;
}

void rig_fail(const struct rig *r, const char *fmt, ...)
{
	char text[256];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fail_msg("%s, %s, %s, %u threads, drafts of %u: %s: %s (MIXD_TEST_SEED=%llu)", r->ops->name,
	         r->c->label, r->device->info.isa, r->device->info.threads, r->layer.max_draft, r->what,
	         text, (unsigned long long)r->seed);
	abort(); /* not reached */
}

/* ---- memory ---- */

void block_alloc(struct block *b, struct mx_device *of, size_t size, size_t align)
{
	size_t before = GUARD_SIZE + align, all = before + size + GUARD_SIZE;
	b->size = size;
	b->of = of;
	if (of)
		assert_int_equal(of->ops->host_alloc(of, all, (void **)&b->all), MX_OK);
	else
		assert_int_equal(posix_memalign((void **)&b->all, GUARD_SIZE, all), 0);
	memset(b->all, GUARD, all);
	b->p = b->all + before;
	FORBID(b->all, before);
	FORBID(b->p + size, GUARD_SIZE);
}

static bool is_guard(const unsigned char *p, size_t n)
{
	return n == 0 || (p[0] == GUARD && !memcmp(p, p + 1, n - 1));
}

/* The address sanitizer watches guards by itself. */
static void check_guard(const unsigned char *p, size_t n, const char *what)
{
#ifdef __SANITIZE_ADDRESS__
	(void)p, (void)n, (void)what;
#else
	if (!is_guard(p, n))
		fail_msg("wrote to memory around %s", what);
#endif
}

void block_check(const struct block *b, const char *what)
{
	check_guard(b->all, (size_t)(b->p - b->all), what);
	check_guard(b->p + b->size, GUARD_SIZE, what);
}

void block_free(struct block *b)
{
	if (b->all)
		ALLOW(b->all, (size_t)(b->p - b->all) + b->size + GUARD_SIZE);
	if (b->of)
		b->of->ops->host_release(b->of, b->all);
	else
		free(b->all);
	*b = (struct block){0};
}

static unsigned char *pool_at(const struct pool *p, uint32_t i, int layer)
{
	return p->mem.p + ((size_t)i * RUN_LAYERS + (size_t)layer) * p->part;
}

static void pool_open(struct pool *p, struct mx_device *of, size_t bytes, uint32_t n, size_t align)
{
	p->bytes = bytes;
	p->part = round_up(bytes + 64, align);
	p->n = n;
	p->refs = allocate(n, sizeof(*p->refs));
	block_alloc(&p->mem, of, p->part * n * RUN_LAYERS, align);
	for (uint32_t i = 0; i < n; i++)
		for (int l = 0; l < RUN_LAYERS; l++)
			memset(pool_at(p, i, l), POISON, bytes);
	FORBID(p->mem.p, p->mem.size);
}

static void pool_check(const struct pool *p, const char *what)
{
	block_check(&p->mem, what);
	for (uint32_t i = 0; i < p->n; i++)
		for (int l = 0; l < RUN_LAYERS; l++)
			check_guard(pool_at(p, i, l) + p->bytes, p->part - p->bytes, what);
}

static void pool_close(struct pool *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		assert_int_equal(p->refs[i], 0);
	free(p->refs);
	block_free(&p->mem);
}

/* A free item, with NaN in it or what was there. */
static uint32_t pool_take(struct rig *r, struct pool *p)
{
	uint32_t i = rng_below(&r->rng, p->n);
	bool poison = rng_below(&r->rng, 2);
	for (uint32_t tries = 0; p->refs[i]; i = (i + 1) % p->n)
		assert_true(tries++ < p->n);
	p->refs[i] = 1;
	for (int l = 0; l < RUN_LAYERS; l++) {
		ALLOW(pool_at(p, i, l), p->bytes);
		if (poison)
			memset(pool_at(p, i, l), POISON, p->bytes);
	}
	return i;
}

static void pool_drop(struct pool *p, uint32_t i)
{
	assert_true(p->refs[i] > 0);
	if (--p->refs[i] == 0)
		for (int l = 0; l < RUN_LAYERS; l++)
			FORBID(pool_at(p, i, l), p->bytes);
}

/* Of everything that several sequences hold (FNV-1a over words). */
static uint64_t pool_sum_shared(const struct pool *p)
{
	uint64_t sum = 0xcbf29ce484222325ull, word;
	for (uint32_t i = 0; i < p->n; i++)
		for (int l = 0; p->refs[i] > 1 && l < RUN_LAYERS; l++)
			for (size_t j = 0; j + 8 <= p->bytes; j += 8) {
				memcpy(&word, pool_at(p, i, l) + j, 8);
				sum = (sum ^ word) * 0x100000001b3ull;
			}
	return sum;
}

/* ---- one mixer on one device ---- */

/* Memory of this device is ours too; all others are given memory that both can reach. */
static struct mx_device *memory_of(const struct rig *r)
{
	return r->device->info.kind == MX_DEVICE_CPU ? NULL : r->device;
}

static float get(const struct rig *r, const struct block *b, size_t i)
{
	return r->element == 4 ? ((const float *)b->p)[i] : mx_bf16_to_f32(((const uint16_t *)b->p)[i]);
}

static void put(const struct rig *r, struct block *b, size_t i, float v)
{
	if (r->element == 4)
		((float *)b->p)[i] = v;
	else
		((uint16_t *)b->p)[i] = mx_f32_to_bf16(v);
}

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

/* Matrices (cols > 0) keep the size of a row and vectors are about 1, unless the case says. */
static float weight_element(const struct mixer_weight *w, uint64_t cols, struct rng *g)
{
	if (w)
		return w->mean + w->spread * rng_normal(g);
	return cols ? rng_normal(g) * 1.5f / sqrtf((float)cols) : 1 + 0.3f * rng_normal(g);
}

static void make_weight(struct rig *r, const struct mx_weight_spec *spec, struct rng *g,
                        struct run_weight *w)
{
	const struct mixer_case *c = r->c;
	bool matrix = spec->form == MX_WEIGHT_MATRIX;
	enum mx_dtype type = !matrix        ? MX_F32
	                     : memory_of(r) ? r->device->info.act_dtype
	                                    : c->weight_dtype;
	const struct mixer_weight *as = drawn_as(c, spec->name);
	uint64_t rows = spec->n_slices ? spec->slices[0].n : spec->shape[0], cols = 1;
	for (uint32_t i = 1; i < spec->ndim; i++)
		cols *= spec->shape[i];
	uint64_t n = rows * cols;
	w->f32 = allocate(n, 4);
	block_alloc(&w->data, memory_of(r), n * mx_dtype_size(type), 64);
	for (uint64_t i = 0; i < n; i++) {
		float f = weight_element(as, matrix ? cols : 0, g);
		if (type == MX_BF16) {
			((uint16_t *)w->data.p)[i] = mx_f32_to_bf16(f);
			f = mx_bf16_to_f32(((uint16_t *)w->data.p)[i]);
		} else if (type == MX_F16) {
			((uint16_t *)w->data.p)[i] = f32_to_f16(f);
			f = mx_f16_to_f32(((uint16_t *)w->data.p)[i]);
		} else {
			((float *)w->data.p)[i] = f;
		}
		w->f32[i] = f;
	}
	w->matrix = (struct mx_weight){type, (uint32_t)rows, (uint32_t)cols, w->data.p};
}

static void open_weights(struct rig *r)
{
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS] = {0};
	struct rng g = {0x9e3779b97f4a7c15ull}; /* the same for every rig of a case */
	assert_int_equal(r->ops->weights(&r->layer, specs, &r->n_weights), MX_OK);
	assert_in_range(r->n_weights, 0, MX_MIXER_MAX_WEIGHTS);
	for (size_t i = 0; i < r->n_weights; i++) {
		if (specs[i].n_slices > 1 || (specs[i].n_slices && specs[i].slices[0].axis))
			rig_fail(r, "tensor %s: the engine takes at most one slice, of axis 0", specs[i].name);
		const struct mixer_weight *as = drawn_as(r->c, specs[i].name);
		if (specs[i].optional && as && as->spread < 0)
			continue;
		make_weight(r, &specs[i], &g, &r->weights[i]);
		r->f32_ptrs[i] = r->weights[i].f32;
		r->weights[i].vector = specs[i].form == MX_WEIGHT_VECTOR;
		r->weight_ptrs[i] =
			r->weights[i].vector ? (void *)r->weights[i].data.p : (void *)&r->weights[i].matrix;
	}
}

/* The host's copies of the vectors, which end with create. */
static void open_host_vectors(const struct rig *r, float *out[MX_MIXER_MAX_WEIGHTS])
{
	for (size_t i = 0; i < r->n_weights; i++) {
		const struct run_weight *w = &r->weights[i];
		out[i] = NULL;
		if (!w->vector)
			continue;
		out[i] = allocate(w->data.size, 1);
		memcpy(out[i], w->f32, w->data.size);
	}
}

static void close_host_vectors(const struct rig *r, float *vectors[MX_MIXER_MAX_WEIGHTS])
{
	for (size_t i = 0; i < r->n_weights; i++) {
		if (vectors[i])
			memset(vectors[i], POISON, r->weights[i].data.size);
		free(vectors[i]);
	}
}

static size_t tables_bytes(const struct rig *r)
{
	return 2 * r->layer.max_rows * sizeof(uint32_t) + RUN_SPANS * sizeof(struct mx_device_span) +
	       (size_t)RUN_SPANS * r->max_pages * sizeof(uint32_t);
}

static void open_memory(struct rig *r)
{
	size_t align = r->device->info.align, rows = r->layer.max_rows;
	struct mx_device *of = memory_of(r);
	uint32_t multiple = r->state.page_multiple ? r->state.page_multiple : 16;

	r->page_tokens = of ? multiple : multiple * r->device->info.threads; /* any size is the same */
	r->max_pages = (r->c->tokens + r->page_tokens - 1) / r->page_tokens + 1;
	if (!r->state.bytes_per_token)
		r->page_tokens = r->max_pages = 0;
	pool_open(&r->pages, of, r->page_tokens * r->state.bytes_per_token, RUN_SLOTS * r->max_pages,
	          align);
	pool_open(&r->slots, of, r->state.fixed_bytes, RUN_SLOTS, align);
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

/* The widest input of a product is a mixer's own affair; this is enough for these cases. */
static void open_device(struct rig *r, const struct rig_options *o)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = r->c->weight_dtype == MX_F32 ? MX_F32 : MX_BF16,
	             .max_samples = 1,
	             .vocab = 64,
	             .deterministic = true}};
	struct mx_err err = {0};
	mx_status st =
		o->device ? mx_device_open(o->device, &options, &r->device, &err)
				  : mx_cpu_create(o->threads, o->isa, r->layer.max_rows, 4096, &r->device, &err);
	if (st != MX_OK)
		fail_msg("%s: %s", o->device ? o->device : mx_isa_name(o->isa), err.text);
	r->element = mx_dtype_size(r->device->info.act_dtype);
}

/* ---- pages ---- */

static uint32_t pages_for(const struct rig *r, uint32_t n_tokens)
{
	return r->max_pages ? (n_tokens + r->page_tokens - 1) / r->page_tokens : 0;
}

/* Pages of a sequence of n tokens: how many, and the first that is still needed. */
static uint32_t extent_of(const struct rig *r, uint32_t n, uint32_t max_len, uint32_t *out_first)
{
	uint32_t first = 0, end = 0;
	if (n)
		r->ops->extent(&r->layer, n, max_len, &first, &end);
	*out_first = r->max_pages ? first / r->page_tokens : 0;
	return pages_for(r, end);
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

void rig_open(struct rig *r, const struct mx_registry *registry, const struct mixer_case *c,
              const struct rig_options *o)
{
	struct mx_err err = {0};
	*r = (struct rig){.c = c, .what = "opening", .seed = o->seed, .rng = {o->seed}};
	r->ops = mx_registry_find(registry, o->mixer, o->device ? MX_DEVICE_CUDA : MX_DEVICE_CPU, &err);
	if (!r->ops)
		fail_msg("%s", err.text);
	r->layer = (struct mx_layer_desc){
		.index = MIXER_LAYER,
		.n_layers = MIXER_LAYERS,
		.width = c->width,
		.max_context = c->tokens,
		.max_rows = c->tokens > RUN_ROWS ? c->tokens : RUN_ROWS,
		.max_spans = RUN_SPANS,
		.max_draft = r->ops->caps & MX_MIXER_DRAFT ? o->max_draft : 0,
		.ranks = 1,
		.weight_dtype = c->weight_dtype,
		.state_dtype = c->state_dtype,
		.params = {c->params, c->n_params},
	};
	open_device(r, o);
	if (r->ops->probe(&r->layer, r->device, &err) != MX_OK)
		rig_fail(r, "%s", err.text);
	assert_int_equal(r->ops->state(&r->layer, r->device, &r->state), MX_OK);
	open_weights(r);
	open_memory(r);
	for (int l = 0; l < RUN_LAYERS; l++) {
		r->layer.index = (uint32_t)(MIXER_LAYER + 2 * l); /* references are of the first */
		float *host[MX_MIXER_MAX_WEIGHTS];
		open_host_vectors(r, host);
		struct mx_mixer_init init = {
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
			rig_fail(r, "%s", err.text);
		assert_int_equal(((struct mx_mixer_base *)r->mixers[l])->layer, r->layer.index);
		close_host_vectors(r, host);
	}
	if (r->ops->prepare(r->mixers, RUN_LAYERS, &err) != MX_OK)
		rig_fail(r, "%s", err.text);
	check_extent(r, c->tokens);
	check_extent(r, 1 + rng_below(&r->rng, c->tokens));
	uint32_t caps = r->ops->caps;
	bool share = !r->state.bytes_per_token || caps & MX_MIXER_SHARE_PAGES;
	r->can_fork = share && (!r->state.fixed_bytes || caps & MX_MIXER_FORK);
	r->can_resume = share && (!r->state.fixed_bytes || caps & MX_MIXER_SNAPSHOT);
	if (r->state.fixed_bytes && !(caps & MX_MIXER_SNAPSHOT) != !r->state.snapshot_bytes)
		rig_fail(r, "snapshots of %zu bytes, against its capabilities", r->state.snapshot_bytes);
}

void rig_close(struct rig *r)
{
	for (int l = 0; l < RUN_LAYERS; l++)
		r->ops->destroy(r->mixers[l]);
	for (size_t i = 0; i < r->n_weights; i++) {
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

/* ---- sequences ---- */

/* A slot in any condition and no pages. */
static void seq_init(struct rig *r, struct seq *s, struct text *text)
{
	uint32_t spare = r->layer.max_context - text->len;
	*s = (struct seq){.text = text, .save_from = 1, .slot = pool_take(r, &r->slots)};
	s->max_len = text->len + rng_below(&r->rng, spare + 1);
	if (r->max_pages) {
		s->pages = allocate(r->max_pages, sizeof(*s->pages));
		memset(s->pages, 0xff, r->max_pages * sizeof(*s->pages));
		s->shown = allocate(r->max_pages, sizeof(*s->shown));
	}
}

void seq_open(struct rig *r, struct seq *s, struct text *text)
{
	seq_init(r, s, text);
	s->drops = rng_below(&r->rng, 2);
	for (int l = 0; l < RUN_LAYERS; l++)
		memset(pool_at(&r->slots, s->slot, l), 0, r->slots.bytes);
}

static void seq_trim(struct rig *r, struct seq *s, uint32_t n_pages)
{
	while (s->n_pages > n_pages) {
		pool_drop(&r->pages, s->pages[--s->n_pages]);
		s->pages[s->n_pages] = UINT32_MAX;
	}
}

void seq_close(struct rig *r, struct seq *s)
{
	seq_trim(r, s, 0);
	pool_drop(&r->slots, s->slot);
	free(s->pages);
	free(s->shown);
	*s = (struct seq){0};
}

/* Pages of the first n_tokens: full ones are shared, the one that is not is copied. */
static uint32_t share_pages(struct rig *r, const uint32_t *from, uint32_t n_tokens, uint32_t *to)
{
	uint32_t n = pages_for(r, n_tokens);
	for (uint32_t i = 0; i < n; i++) {
		if ((i + 1) * r->page_tokens <= n_tokens) {
			to[i] = from[i];
			r->pages.refs[to[i]]++;
			continue;
		}
		to[i] = pool_take(r, &r->pages);
		for (int l = 0; l < RUN_LAYERS; l++)
			memcpy(pool_at(&r->pages, to[i], l), pool_at(&r->pages, from[i], l), r->pages.bytes);
	}
	return n;
}

void seq_fork(struct rig *r, const struct seq *from, struct seq *to, struct text *text)
{
	seq_init(r, to, text);
	to->computed = from->computed;
	to->save_from = from->save_from;
	to->n_pages = share_pages(r, from->pages, from->computed, to->pages);
	if (r->state.fixed_bytes)
		assert_int_equal(r->ops->fork(r->mixers, RUN_LAYERS, from->slot, to->slot), MX_OK);
	to->resumes = r->state.fixed_bytes && r->ops->caps & MX_MIXER_RESUME;
	pool_check(&r->slots, "slots, in fork");
}

void seq_save(struct rig *r, const struct seq *s, struct saved *out)
{
	*out = (struct saved){.text = s->text, .pos = s->computed};
	assert_true(s->computed >= s->save_from);
	if (r->max_pages)
		out->pages = allocate(r->max_pages, sizeof(*out->pages));
	out->n_pages = share_pages(r, s->pages, s->computed, out->pages);
	if (!r->state.fixed_bytes)
		return;
	struct block second[RUN_LAYERS];
	void *to[2][RUN_LAYERS];
	for (int l = 0; l < RUN_LAYERS; l++) {
		block_alloc(&out->bytes[l], memory_of(r), r->state.snapshot_bytes, r->device->info.align);
		block_alloc(&second[l], memory_of(r), r->state.snapshot_bytes, r->device->info.align);
		memset(out->bytes[l].p, 0, out->bytes[l].size);
		memset(second[l].p, POISON, second[l].size);
		to[0][l] = out->bytes[l].p;
		to[1][l] = second[l].p;
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(r->ops->save(r->mixers, RUN_LAYERS, s->slot, s->computed, to[i]), MX_OK);
	for (int l = 0; l < RUN_LAYERS; l++) {
		block_check(&out->bytes[l], "a snapshot");
		block_check(&second[l], "a snapshot");
		for (size_t i = 0; i < second[l].size; i++)
			if (out->bytes[l].p[i] != second[l].p[i])
				rig_fail(r, "save at %u: two saves differ at byte %zu, or did not write it",
				         s->computed, i);
		block_free(&second[l]);
	}
	pool_check(&r->slots, "slots, in save");
}

void saved_drop(struct rig *r, struct saved *v)
{
	for (uint32_t i = 0; i < v->n_pages; i++)
		pool_drop(&r->pages, v->pages[i]);
	for (int l = 0; l < RUN_LAYERS; l++)
		block_free(&v->bytes[l]);
	free(v->pages);
	*v = (struct saved){0};
}

void seq_resume(struct rig *r, struct seq *s, const struct saved *v, struct text *text, uint32_t at)
{
	assert_true(at == v->pos || at + 1 == v->pos);
	seq_init(r, s, text);
	s->computed = at;
	s->save_from = v->pos;
	s->n_pages = share_pages(r, v->pages, at, s->pages);
	if (!r->state.fixed_bytes)
		return;
	/* The snapshot lies elsewhere when it is loaded, and nowhere afterwards. */
	struct block copy[RUN_LAYERS];
	const void *in[RUN_LAYERS];
	for (int l = 0; l < RUN_LAYERS; l++) {
		block_alloc(&copy[l], memory_of(r), v->bytes[l].size, r->device->info.align);
		memcpy(copy[l].p, v->bytes[l].p, copy[l].size);
		in[l] = copy[l].p;
	}
	assert_int_equal(r->ops->load(r->mixers, RUN_LAYERS, s->slot, at, in), MX_OK);
	for (int l = 0; l < RUN_LAYERS; l++) {
		assert_memory_equal(copy[l].p, v->bytes[l].p, copy[l].size);
		memset(copy[l].p, POISON, copy[l].size);
		block_free(&copy[l]);
	}
	s->resumes = r->ops->caps & MX_MIXER_RESUME;
	pool_check(&r->slots, "slots, in load");
}

/* ---- a step ---- */

static struct item item_make(struct seq *s, enum mx_span_kind kind, uint32_t n)
{
	uint32_t left = s->text->len - s->computed;
	n = n < left ? n : left;
	return (struct item){s, kind, n, n, n};
}

struct item item_prefill(struct seq *s, uint32_t n)
{
	return item_make(s, MX_SPAN_PREFILL, n);
}

struct item item_decode(struct seq *s)
{
	return item_make(s, MX_SPAN_DECODE, 1);
}

struct item item_draft(struct rig *r, struct seq *s, uint32_t n, uint32_t keep)
{
	struct item it = item_make(s, MX_SPAN_DRAFT, n);
	it.keep = keep < it.n ? keep : it.n;
	/* Mostly the first that is taken back is wrong, as with a real draft. */
	if (rng_below(&r->rng, 4))
		it.truth = it.keep;
	else
		it.truth = it.keep + rng_below(&r->rng, it.n - it.keep + 1);
	return it;
}

struct item item_random(struct rig *r, struct seq *s, uint32_t most)
{
	static const uint32_t limits[] = {1, 1, 5, 33, 100};
	uint32_t n = 1 + rng_below(&r->rng, limits[rng_below(&r->rng, 5)]), draft = r->layer.max_draft;
	if (draft > most)
		draft = most;
	if (draft && rng_below(&r->rng, 2)) {
		n = 1 + rng_below(&r->rng, draft);
		return item_draft(r, s, n, rng_below(&r->rng, n + 1));
	}
	n = n < most ? n : most;
	return n == 1 && rng_below(&r->rng, 2) ? item_decode(s) : item_prefill(s, n);
}

static void check_guards(const struct rig *r)
{
	pool_check(&r->pages, "pages");
	pool_check(&r->slots, "slots");
	block_check(&r->scratch, "the scratch memory");
	block_check(&r->settle, "the workspace of settle");
	block_check(&r->x, "x");
	block_check(&r->y, "y");
}

/* Rows of x, and pages for them. Returns the number of rows so far. */
static uint32_t add_span(struct rig *r, const struct item *it, uint32_t row, struct mx_span *out)
{
	struct seq *s = it->seq;
	uint32_t width = r->layer.width, end = s->computed + it->n, first;
	assert_true(it->n > 0 && end <= s->text->len && row + it->n <= r->layer.max_rows);
	uint32_t n_pages = extent_of(r, end, s->max_len, &first);
	while (s->n_pages < n_pages)
		s->pages[s->n_pages++] = pool_take(r, &r->pages);
	extent_of(r, s->computed, s->max_len, &first);
	for (uint32_t i = 0; i < s->n_pages; i++)
		s->shown[i] = s->drops && i < first ? UINT32_MAX : s->pages[i];
	*out = (struct mx_span){
		.row = row,
		.n = it->n,
		.pos = s->computed,
		.max_len = s->max_len,
		.kind = it->kind,
		.slot = s->slot,
		.pages = s->shown,
		.n_pages = s->n_pages,
	};
	for (uint32_t t = 0; t < it->n; t++) {
		const float *x = s->text->x + (size_t)(s->computed + t) * width;
		r->pos[row + t] = s->computed + t;
		for (uint32_t j = 0; j < width; j++)
			put(r, &r->x, (size_t)(row + t) * width + j,
			    t < it->truth ? x[j] : 3 * rng_normal(&r->rng));
	}
	return row + it->n;
}

/* Compares, or records, what came out of a layer for one span. */
static void check_rows(const struct rig *r, const struct item *it, uint32_t row, int layer)
{
	static const char *const kinds[] = {"prefill", "decode", "draft"};
	const struct seq *s = it->seq;
	size_t width = r->layer.width, at = s->computed * width, n = it->truth * width;
	float *expected = s->text->y[layer] + at;
	for (size_t i = 0; i < n; i++) {
		float y = get(r, &r->y, row * width + i);
		if (s->record)
			expected[i] = y;
		if (memcmp(&y, &expected[i], 4))
			rig_fail(r,
			         "%s of %u tokens at %u, %u kept: token %zu, column %zu of layer %d: "
			         "%.9g is not %.9g",
			         kinds[it->kind], it->n, s->computed, it->keep, s->computed + i / width,
			         i % width, layer, (double)y, (double)expected[i]);
	}
}

/* Workspace as a call finds it: NaN, or what another layer or step left. */
static void soil(struct rig *r, struct block *b)
{
	if (rng_below(&r->rng, 2))
		memset(b->p, POISON, b->size);
}

static void soil_scratch(struct rig *r)
{
	soil(r, &r->scratch);
}

static void forward(struct rig *r, const struct mx_step *step, int layer)
{
	size_t used = (size_t)step->n_rows * r->layer.width * r->element;
	memcpy(r->x_copy, r->x.p, used);
	memset(r->x.p + used, POISON, r->x.size - used);
	memset(r->y.p, GUARD, r->y.size);
	soil_scratch(r);
	if (r->ops->forward(r->mixers[layer], step, r->x.p, r->y.p) != MX_OK)
		rig_fail(r, "forward failed");
	if (r->device->ops->wait(r->device) != MX_OK)
		rig_fail(r, "the device is lost");
	check_guards(r);
	if (memcmp(r->x.p, r->x_copy, used))
		rig_fail(r, "forward wrote to x");
	if (!is_guard(r->y.p + used, r->y.size - used))
		rig_fail(r, "forward wrote rows of y beyond the last");
}

/* The step's arrays once more, where the device reads them. */
static struct mx_device_tables lay_out_tables(struct rig *r, const struct mx_span *spans,
                                              uint32_t n_spans)
{
	uint32_t rows = r->layer.max_rows, *pos = (uint32_t *)r->tables.p, *row_span = pos + rows;
	struct mx_device_span *to = (struct mx_device_span *)(row_span + rows);
	uint32_t *pages = (uint32_t *)(to + RUN_SPANS), n_pages = 0;
	memset(r->tables.p, POISON, r->tables.size);
	for (uint32_t i = 0; i < n_spans; i++) {
		const struct mx_span *s = &spans[i];
		to[i] = (struct mx_device_span){
			.row = s->row,
			.n = s->n,
			.pos = s->pos,
			.slot = s->slot,
			.page_begin = n_pages,
			.n_pages = s->n_pages,
			.max_len = s->max_len,
			.kind = s->kind,
			.parent_begin = UINT32_MAX,
		};
		if (s->n_pages)
			memcpy(pages + n_pages, s->pages, s->n_pages * sizeof *pages);
		n_pages += s->n_pages;
		for (uint32_t t = 0; t < s->n; t++) {
			pos[s->row + t] = s->pos + t;
			row_span[s->row + t] = i;
		}
	}
	return (struct mx_device_tables){.pos = pos, .row_span = row_span, .spans = to, .pages = pages};
}

/* Resumes those of the items' sequences that were loaded or forked, and have not run since. */
static void resume(struct rig *r, const struct item *items, const struct mx_span *spans,
                   uint32_t n_items)
{
	struct mx_span resumed[RUN_SPANS];
	uint32_t n = 0, progress = 0;
	for (uint32_t i = 0; i < n_items; i++)
		if (items[i].seq->resumes) {
			items[i].seq->resumes = false;
			resumed[n] = spans[i];
			resumed[n++].n = 0;
		}
	if (!n)
		return;
	const struct mx_device_tables tables = lay_out_tables(r, resumed, n);
	const struct mx_step step = {
		.spans = resumed,
		.n_spans = n,
		.scratch = r->scratch.p,
		.tables = memory_of(r) ? &tables : NULL,
	};
	while (progress != MX_RESUMED) {
		soil_scratch(r);
		if (r->ops->resume(r->mixers, RUN_LAYERS, &step, &progress) != MX_OK)
			rig_fail(r, "resume failed");
		check_guards(r);
	}
	if (r->device->ops->wait(r->device) != MX_OK)
		rig_fail(r, "the device is lost");
}

void rig_step(struct rig *r, struct item *items, uint32_t n_items)
{
	struct mx_span spans[RUN_SPANS];
	struct mx_kept kept[RUN_SPANS];
	uint32_t n_rows = 0, longest = 0;

	assert_true(n_items <= RUN_SPANS);
	for (uint32_t i = n_items; i > 1; i--) {
		uint32_t j = rng_below(&r->rng, i);
		struct item other = items[j];
		items[j] = items[i - 1];
		items[i - 1] = other;
	}
	for (uint32_t i = 0; i < n_items; i++) {
		n_rows = add_span(r, &items[i], n_rows, &spans[i]);
		kept[i] = (struct mx_kept){.n = items[i].keep};
		longest = items[i].n > longest ? items[i].n : longest;
	}
	uint64_t shared = pool_sum_shared(&r->pages);
	resume(r, items, spans, n_items);
	const struct mx_device_tables tables = lay_out_tables(r, spans, n_items);
	const struct mx_step step = {
		.spans = spans,
		.n_spans = n_items,
		.n_rows = n_rows,
		.longest = longest,
		.pos = r->pos,
		.scratch = r->scratch.p,
		.tables = memory_of(r) ? &tables : NULL,
	};
	for (int l = 0; l < RUN_LAYERS; l++) {
		forward(r, &step, l);
		for (uint32_t i = 0; i < n_items; i++)
			check_rows(r, &items[i], spans[i].row, l);
		for (size_t i = 0; i < (size_t)n_rows * r->layer.width; i++)
			put(r, &r->x, i, get(r, &r->x, i) + get(r, &r->y, i)); /* what the next layer sees */
	}
	soil_scratch(r);
	soil(r, &r->settle);
	assert_int_equal(r->ops->commit(r->mixers, RUN_LAYERS, &step, kept), MX_OK);
	if (r->ops->caps & MX_MIXER_SETTLE)
		assert_int_equal(r->ops->settle(r->mixers, RUN_LAYERS, &step, kept), MX_OK);
	check_guards(r);
	if (pool_sum_shared(&r->pages) != shared)
		rig_fail(r, "wrote to a page that sequences share");
	for (uint32_t i = 0; i < n_items; i++) {
		struct seq *s = items[i].seq;
		uint32_t first;
		s->computed += items[i].keep;
		if (rng_below(&r->rng, 2)) /* pages that hold nothing may go */
			seq_trim(r, s, extent_of(r, s->computed, s->max_len, &first));
	}
}
