/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every mixer promises (mixers/mixer.h), for every module of a directory,
 * every configuration of mixer_cases.h and every instruction set of this host:
 * the result is near the reference where there is one, and is the same to the
 * bit however the tokens are cut into steps, in whatever company, with how many
 * threads, on whichever pages, after drafts were taken back, and on dirty
 * memory; nothing outside the given memory is written.
 *
 *   test_mixer [DIR[:DIR...] [TEST]]   modules, default mixers/.libs; name of one test
 * MX_SEED=n repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device/cpu/cpu.h"
#include "mixer_cases.h"
#include "mixers/registry.h"

#define GUARD      0xa5 /* what must not change */
#define POISON     0xff /* NaN in every float format: what must not be read */
#define GUARD_SIZE 4096
#define N_SEQS     3
#define MAX_SPANS  8
#define MAX_DRAFT  8

static struct mx_registry *registry;
static uint64_t seed;

static uint64_t rng_state;

static uint32_t rng(void) /* xorshift64* */
{
	rng_state ^= rng_state >> 12;
	rng_state ^= rng_state << 25;
	rng_state ^= rng_state >> 27;
	return (uint32_t)(rng_state * 0x2545f4914f6cdd1dull >> 32);
}

static uint32_t rng_below(uint32_t n)
{
	return (uint32_t)((uint64_t)rng() * n >> 32);
}

/* Near enough to a normal distribution with variance 1. */
static float rng_normal(void)
{
	double sum = 0;
	for (int i = 0; i < 12; i++)
		sum += rng() * 0x1p-32;
	return (float)(sum - 6);
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

/* ---- memory with guards ---- */

struct block {
	unsigned char *all, *p;
	size_t size;
};

static void block_alloc(struct block *b, size_t size)
{
	b->size = size;
	assert_int_equal(posix_memalign((void **)&b->all, 4096, size + 2 * GUARD_SIZE), 0);
	memset(b->all, GUARD, size + 2 * GUARD_SIZE);
	b->p = b->all + GUARD_SIZE;
}

static void assert_all(const unsigned char *p, size_t n, unsigned char value, const char *what)
{
	if (n && (p[0] != value || memcmp(p, p + 1, n - 1)))
		fail_msg("wrote to %s", what);
}

static void block_check(const struct block *b, const char *what)
{
	assert_all(b->all, GUARD_SIZE, GUARD, what);
	assert_all(b->p + b->size, GUARD_SIZE, GUARD, what);
}

static void block_free(struct block *b)
{
	free(b->all);
}

/* ---- one layer on one device ---- */

struct weight {
	struct mx_weight matrix;
	void *data;
	float *f32;
};

struct rig {
	const struct mixer_case *c;
	const struct mx_mixer_ops *ops;
	struct mx_device *device;
	struct mx_layer_desc layer;
	struct mx_state_spec state;
	struct mx_mixer *mixer;
	struct weight weights[MX_MIXER_MAX_WEIGHTS];
	const void *weight_ptrs[MX_MIXER_MAX_WEIGHTS];
	const float *f32_ptrs[MX_MIXER_MAX_WEIGHTS];
	size_t n_weights;
	uint32_t page_tokens, n_pages, max_pages; /* max_pages: of one sequence */
	size_t page_bytes, page_stride, slot_stride;
	struct block pages, slots, scratch, x, y;
	uint32_t *free_pages;
	uint32_t n_free;
};

struct seq {
	uint32_t len, computed, slot;
	const float *x; /* [len, width] */
	float *y;       /* [len, width] what came out */
	uint32_t *pages, n_pages;
	bool shares; /* its first pages belong to another */
};

/* Rows of matrices keep the size of their input and vectors are about 1, unless the case says. */
static float weight_element(const struct mixer_case *c, const char *name, uint32_t cols)
{
	for (const struct mixer_weight *w = c->weights; w && w->name; w++)
		if (!strcmp(w->name, name))
			return w->mean + w->spread * rng_normal();
	return cols ? rng_normal() * 1.5f / sqrtf((float)cols) : 1 + 0.3f * rng_normal();
}

static void make_weight(struct rig *r, const struct mx_weight_spec *spec, struct weight *w)
{
	uint64_t rows = spec->shape[0], cols = 1, n;
	for (uint32_t i = 1; i < spec->ndim; i++)
		cols *= spec->shape[i];
	n = rows * cols;
	bool matrix = spec->form == MX_WEIGHT_MATRIX;
	enum mx_dtype type = matrix ? r->c->weight_dtype : MX_F32;
	w->f32 = malloc(n * 4);
	assert_int_equal(posix_memalign(&w->data, 64, (n * mx_dtype_size(type) + 63) & ~63ull), 0);
	for (uint64_t i = 0; i < n; i++) {
		float f = weight_element(r->c, spec->name, matrix ? (uint32_t)cols : 0);
		if (type == MX_BF16) {
			((uint16_t *)w->data)[i] = mx_f32_to_bf16(f);
			f = mx_bf16_to_f32(((uint16_t *)w->data)[i]);
		} else if (type == MX_F16) {
			((uint16_t *)w->data)[i] = f32_to_f16(f);
			f = mx_f16_to_f32(((uint16_t *)w->data)[i]);
		} else {
			((float *)w->data)[i] = f;
		}
		w->f32[i] = f;
	}
	w->matrix = (struct mx_weight){type, (uint32_t)rows, (uint32_t)cols, w->data};
}

static void rig_memory(struct rig *r, struct mx_mixer_init *init)
{
	uint32_t multiple = r->state.page_multiple ? r->state.page_multiple : 16;
	r->page_tokens = 2 * multiple;
	r->max_pages = (r->c->tokens + r->page_tokens - 1) / r->page_tokens;
	r->n_pages = (N_SEQS + 1) * r->max_pages + 5;
	r->page_bytes = r->page_tokens * r->state.bytes_per_token;
	r->page_stride = (r->page_bytes + 127) & ~(size_t)63; /* at least 64 bytes of guard */
	r->slot_stride = (r->state.fixed_bytes + 127) & ~(size_t)63;
	block_alloc(&r->pages, r->page_stride * r->n_pages);
	block_alloc(&r->slots, r->slot_stride * (N_SEQS + 1));
	block_alloc(&r->scratch, r->state.scratch_bytes);
	block_alloc(&r->x, (size_t)r->layer.max_rows * r->layer.width * 4);
	block_alloc(&r->y, (size_t)r->layer.max_rows * r->layer.width * 4);
	for (uint32_t p = 0; p < r->n_pages; p++)
		memset(r->pages.p + p * r->page_stride, POISON, r->page_bytes);
	init->page_base = r->pages.p;
	init->page_stride = r->page_stride;
	init->page_tokens = r->page_tokens;
	init->slot_base = r->slots.p;
	init->slot_stride = r->slot_stride;
}

static void rig_open(struct rig *r, const char *mixer, const struct mixer_case *c, enum mx_isa isa,
                     unsigned threads)
{
	struct mx_err err = {0};
	struct mx_weight_spec specs[MX_MIXER_MAX_WEIGHTS];

	memset(r, 0, sizeof(*r));
	r->c = c;
	r->ops = mx_registry_find(registry, mixer, &err);
	if (!r->ops)
		fail_msg("%s", err.text);
	r->layer = (struct mx_layer_desc){
		.index = MIXER_LAYER,
		.n_layers = MIXER_LAYERS,
		.width = c->width,
		.max_context = c->tokens,
		.max_rows = 2 * c->tokens + 50,
		.max_spans = MAX_SPANS,
		.max_draft = MAX_DRAFT,
		.weight_dtype = c->weight_dtype,
		.state_dtype = c->state_dtype,
		.params = {c->params, c->n_params},
	};
	/* The widest input of a product is a mixer's own affair; this is enough for these cases. */
	if (mx_cpu_create(threads, isa, r->layer.max_rows, 4096, &r->device, &err) != MX_OK)
		fail_msg("%s: %s", mx_isa_name(isa), err.text);
	if (r->ops->probe(&r->layer, r->device, &err) != MX_OK)
		fail_msg("%s: %s", c->label, err.text);
	assert_int_equal(r->ops->weights(&r->layer, specs, &r->n_weights), MX_OK);
	assert_in_range(r->n_weights, 0, MX_MIXER_MAX_WEIGHTS);
	assert_int_equal(r->ops->state(&r->layer, r->device, &r->state), MX_OK);
	rng_state = 0x9e3779b97f4a7c15ull; /* the same weights for every rig of a case */
	for (size_t i = 0; i < r->n_weights; i++) {
		make_weight(r, &specs[i], &r->weights[i]);
		r->f32_ptrs[i] = r->weights[i].f32;
		r->weight_ptrs[i] = specs[i].form == MX_WEIGHT_MATRIX ? (void *)&r->weights[i].matrix
		                                                      : (void *)r->weights[i].f32;
	}
	struct mx_mixer_init init = {
		.layer = &r->layer, .device = r->device, .weights = r->weight_ptrs};
	rig_memory(r, &init);
	if (r->ops->create(&init, &r->mixer, &err) != MX_OK)
		fail_msg("%s: %s", c->label, err.text);
	r->free_pages = calloc(r->n_pages, sizeof(uint32_t));
	for (uint32_t p = 0; p < r->n_pages; p++)
		r->free_pages[r->n_free++] = p;
}

static void rig_close(struct rig *r)
{
	assert_int_equal(r->n_free, r->n_pages);
	r->ops->destroy(r->mixer);
	mx_cpu_destroy(r->device);
	for (size_t i = 0; i < r->n_weights; i++) {
		free(r->weights[i].data);
		free(r->weights[i].f32);
	}
	block_free(&r->pages);
	block_free(&r->slots);
	block_free(&r->scratch);
	block_free(&r->x);
	block_free(&r->y);
	free(r->free_pages);
}

static void seq_open(struct rig *r, struct seq *s, uint32_t len, uint32_t slot, const float *x)
{
	*s = (struct seq){.len = len, .slot = slot, .x = x};
	s->pages = calloc(r->max_pages, sizeof(uint32_t));
	s->y = calloc((size_t)len * r->layer.width, sizeof(float));
	memset(r->slots.p + slot * r->slot_stride, 0, r->state.fixed_bytes);
}

/* Pages go back as they are, dirty. */
static void seq_close(struct rig *r, struct seq *s)
{
	if (!s->shares)
		for (uint32_t i = 0; i < s->n_pages; i++)
			r->free_pages[r->n_free++] = s->pages[i];
	free(s->pages);
	free(s->y);
}

static void seq_reserve(struct rig *r, struct seq *s, uint32_t n_tokens)
{
	while (s->n_pages * r->page_tokens < n_tokens) {
		uint32_t i = rng_below(r->n_free);
		s->pages[s->n_pages++] = r->free_pages[i];
		r->free_pages[i] = r->free_pages[--r->n_free];
	}
}

/* ---- a step ---- */

/* Tokens [computed, computed + n) of a sequence, of which the first `keep` are its own and stay;
 * the others (drafts only) are different from what the sequence will see there. */
struct item {
	struct seq *seq;
	uint32_t n, keep;
	enum mx_span_kind kind;
};

static void check_guards(const struct rig *r, uint32_t rows)
{
	size_t row = (size_t)r->layer.width * 4;
	block_check(&r->pages, "memory around the pages");
	block_check(&r->slots, "memory around the slots");
	block_check(&r->scratch, "memory around the scratch memory");
	block_check(&r->y, "memory around y");
	assert_all(r->y.p + rows * row, r->y.size - rows * row, GUARD, "rows of y beyond the last");
	for (uint32_t p = 0; p < r->n_pages; p++)
		assert_all(r->pages.p + p * r->page_stride + r->page_bytes, r->page_stride - r->page_bytes,
		           GUARD, "memory between pages");
	for (uint32_t s = 0; s <= N_SEQS; s++)
		assert_all(r->slots.p + s * r->slot_stride + r->state.fixed_bytes,
		           r->slot_stride - r->state.fixed_bytes, GUARD, "memory between slots");
}

static void rig_step(struct rig *r, const struct item *items, uint32_t n_items)
{
	struct mx_span spans[MAX_SPANS];
	uint32_t kept[MAX_SPANS], n_rows = 0, width = r->layer.width;
	uint32_t *pos = calloc(r->layer.max_rows, sizeof(*pos));
	float *x = (float *)r->x.p, *x_copy;

	memset(r->y.p, GUARD, r->y.size);
	if (rng_below(16) ==
	    0) /* else it holds what the last step left, which must not matter either */
		memset(r->scratch.p, POISON, r->scratch.size);
	for (uint32_t i = 0; i < n_items; i++) {
		struct seq *s = items[i].seq;
		assert_true(s->computed + items[i].n <= s->len);
		seq_reserve(r, s, s->computed + items[i].n);
		spans[i] = (struct mx_span){n_rows,        items[i].n, s->computed, s->len,
		                            items[i].kind, s->slot,    s->pages,    s->n_pages};
		kept[i] = items[i].keep;
		for (uint32_t t = 0; t < items[i].n; t++, n_rows++) {
			pos[n_rows] = s->computed + t;
			float *to = x + (size_t)n_rows * width;
			memcpy(to, s->x + (size_t)pos[n_rows] * width, width * 4);
			for (uint32_t j = 0; t >= items[i].keep && j < width; j++)
				to[j] = 3 * rng_normal();
		}
	}
	x_copy = malloc((size_t)n_rows * width * 4);
	memcpy(x_copy, x, (size_t)n_rows * width * 4);
	struct mx_step step = {spans, n_items, n_rows, pos, r->scratch.p};
	assert_int_equal(r->ops->forward(r->mixer, &step, x, r->y.p), MX_OK);
	check_guards(r, n_rows);
	assert_memory_equal(x, x_copy, (size_t)n_rows * width * 4);
	for (uint32_t i = 0; i < n_items; i++) {
		struct seq *s = items[i].seq;
		memcpy(s->y + (size_t)s->computed * width, (float *)r->y.p + (size_t)spans[i].row * width,
		       (size_t)items[i].keep * width * 4);
		s->computed += items[i].keep;
	}
	struct mx_mixer *const layers[] = {r->mixer};
	assert_int_equal(r->ops->commit(layers, 1, &step, kept), MX_OK);
	assert_int_equal(r->ops->settle(layers, 1, &step, kept), MX_OK);
	check_guards(r, n_rows);
	free(x_copy);
	free(pos);
}

/* ---- the sequences of a case, and what one-shot runs make of them ---- */

struct text {
	uint32_t len[N_SEQS];
	float *x[N_SEQS], *y[N_SEQS];
};

static void one_shot(struct rig *r, struct seq *s, uint32_t len, uint32_t slot, const float *x)
{
	seq_open(r, s, len, slot, x);
	rig_step(r, &(struct item){s, len, len, MX_SPAN_PREFILL}, 1);
}

static void text_make(struct rig *r, struct text *t)
{
	const uint32_t n = r->c->tokens, width = r->layer.width;
	const uint32_t len[N_SEQS] = {n, n * 2 / 3, 37};
	rng_state = 12345;
	for (int i = 0; i < N_SEQS; i++) {
		struct seq s;
		t->len[i] = len[i];
		t->x[i] = calloc((size_t)len[i] * width, 4);
		t->y[i] = calloc((size_t)len[i] * width, 4);
		for (size_t j = 0; j < (size_t)len[i] * width; j++)
			t->x[i][j] = rng_normal();
		one_shot(r, &s, len[i], 0, t->x[i]);
		memcpy(t->y[i], s.y, (size_t)len[i] * width * 4);
		seq_close(r, &s);
	}
}

static void text_free(struct text *t)
{
	for (int i = 0; i < N_SEQS; i++) {
		free(t->x[i]);
		free(t->y[i]);
	}
}

static void compare(const struct rig *r, const struct seq *s, const float *expected, uint32_t from,
                    const char *what)
{
	size_t width = r->layer.width;
	for (uint32_t t = from; t < s->len; t++)
		for (uint32_t j = 0; j < width; j++) {
			size_t i = t * width + j;
			if (memcmp(&s->y[i], &expected[i], 4))
				fail_msg("%s, %s: %s: token %u, column %u: %.9g is not %.9g (MX_SEED=%llu)",
				         r->c->label, r->device->info.isa, what, t, j, (double)s->y[i],
				         (double)expected[i], (unsigned long long)seed);
		}
}

/* ---- the promises ---- */

static void check_reference(struct rig *r, const struct text *t)
{
	size_t n = (size_t)t->len[0] * r->layer.width;
	double top = 0, worst = 0;
	if (!r->c->reference)
		return;
	float *y = calloc(n, 4);
	r->c->reference(r->c, t->len[0], t->x[0], r->f32_ptrs, y);
	for (size_t i = 0; i < n; i++) {
		assert_true(isfinite(t->y[0][i]));
		top = fmax(top, fabs(y[i]));
		worst = fmax(worst, fabs((double)y[i] - t->y[0][i]));
	}
	if (!(worst <= r->c->tolerance * top))
		fail_msg("%s, %s: error %g of %g, allowed %g", r->c->label, r->device->info.isa, worst, top,
		         r->c->tolerance * top);
	free(y);
}

enum { COMPANY = 1, DRAFTS = 2 };

/* A span for a sequence: `chunk` tokens, or with 0 a random number of them. */
static struct item make_item(const struct rig *r, struct seq *s, uint32_t chunk, int flags)
{
	static const uint32_t limits[] = {1, 1, 5, 33, 300};
	uint32_t left = s->len - s->computed;
	uint32_t n = chunk ? chunk : 1 + rng_below(limits[rng_below(5)]);
	struct item it = {s, n < left ? n : left, 0, MX_SPAN_PREFILL};
	it.keep = it.n;
	if (it.n == 1)
		it.kind = MX_SPAN_DECODE;
	if (flags & DRAFTS && r->ops->caps & MX_MIXER_DRAFT && rng_below(2)) {
		it.kind = MX_SPAN_DRAFT;
		it.n = it.n < MAX_DRAFT ? it.n : MAX_DRAFT;
		it.keep = rng_below(it.n + 1);
	}
	return it;
}

/* Plays the texts through steps of random shape and compares with the one-shot results. */
static void play(struct rig *r, const struct text *t, uint32_t chunk, int flags, const char *what)
{
	struct seq seqs[N_SEQS];
	int n = flags & COMPANY ? N_SEQS : 1;
	for (int i = 0; i < n; i++)
		seq_open(r, &seqs[i], t->len[i], (uint32_t)(N_SEQS - i), t->x[i]);
	for (;;) {
		struct item items[MAX_SPANS];
		uint32_t n_items = 0, first = rng_below(N_SEQS), open = 0;
		for (int i = 0; i < n; i++) {
			struct seq *s = &seqs[(first + i) % n];
			if (s->computed == s->len)
				continue;
			open++;
			if (rng_below(4))
				items[n_items++] = make_item(r, s, chunk, flags);
		}
		if (!open)
			break;
		if (n_items)
			rig_step(r, items, n_items);
	}
	for (int i = 0; i < n; i++)
		compare(r, &seqs[i], t->y[i], 0, what);
	for (int i = 0; i < n; i++)
		seq_close(r, &seqs[i]);
}

/* Every outcome of a draft of four tokens, at borders of pages and blocks. */
static void check_drafts(struct rig *r, const struct text *t)
{
	static const uint32_t starts[] = {1, 29, 31, 62, 63, 127, 254, 255};
	if (!(r->ops->caps & MX_MIXER_DRAFT))
		return;
	for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++)
		for (uint32_t keep = 0; keep <= 4; keep++) {
			struct seq s;
			if (starts[i] + 12 > t->len[0])
				continue;
			seq_open(r, &s, starts[i] + 12, 1, t->x[0]);
			rig_step(r, &(struct item){&s, starts[i], starts[i], MX_SPAN_PREFILL}, 1);
			rig_step(r, &(struct item){&s, 4, keep, MX_SPAN_DRAFT}, 1);
			while (s.computed < s.len)
				rig_step(r, &(struct item){&s, 1, 1, MX_SPAN_DECODE}, 1);
			compare(r, &s, t->y[0], 0, "after a draft");
			seq_close(r, &s);
		}
}

/* A sequence that begins with the full pages of another. */
static void check_sharing(struct rig *r, const struct text *t)
{
	struct seq owner, s;
	if (!(r->ops->caps & MX_MIXER_SHARE_PAGES))
		return;
	one_shot(r, &owner, t->len[0], 0, t->x[0]);
	for (uint32_t pages = 1; pages * r->page_tokens < t->len[0]; pages += 1 + rng_below(3)) {
		seq_open(r, &s, t->len[0], 1, t->x[0]);
		memcpy(s.pages, owner.pages, pages * sizeof(uint32_t));
		s.n_pages = pages;
		s.computed = pages * r->page_tokens;
		while (s.computed < s.len) {
			struct item it = make_item(r, &s, 0, 0);
			rig_step(r, &it, 1);
		}
		compare(r, &s, t->y[0], pages * r->page_tokens, "on shared pages");
		memmove(s.pages, s.pages + pages, (s.n_pages - pages) * sizeof(uint32_t));
		s.n_pages -= pages;
		seq_close(r, &s);
	}
	/* The owner still has what it had. */
	compare(r, &owner, t->y[0], 0, "owner of shared pages");
	seq_close(r, &owner);
}

static void check_case(const char *mixer, const struct mixer_case *c, enum mx_isa isa)
{
	struct rig one, many;
	struct text t;

	rig_open(&one, mixer, c, isa, 1);
	text_make(&one, &t);
	check_reference(&one, &t);
	rng_state = seed;
	play(&one, &t, 0, 0, "in random chunks");
	play(&one, &t, 16, 0, "in chunks of 16");
	play(&one, &t, 1, 0, "token by token");
	play(&one, &t, 0, COMPANY, "in company");
	rig_close(&one);

	rig_open(&many, mixer, c, isa, 3);
	rng_state = seed + 1;
	play(&many, &t, 100000, 0, "with three threads");
	play(&many, &t, 0, COMPANY, "in company, with three threads");
	play(&many, &t, 1, COMPANY, "token by token in company, with three threads");
	play(&many, &t, 0, COMPANY | DRAFTS, "with drafts");
	check_drafts(&many, &t);
	check_sharing(&many, &t);
	rig_close(&many);
	text_free(&t);
}

static void run_isa(enum mx_isa isa)
{
	if (isa > mx_cpu_isa())
		skip();
#if defined(__SANITIZE_THREAD__)
	if (isa < mx_cpu_isa())
		skip(); /* an order slower, and threads are the same at every level */
#endif
	for (const struct mixer_set *const *set = mixer_sets; *set; set++)
		for (size_t i = 0; i < (*set)->n_cases; i++)
			if (mx_registry_find(registry, (*set)->mixer, NULL))
				check_case((*set)->mixer, &(*set)->cases[i], isa);
}

#define TEST_ISA(name, isa)                                                                        \
	static void test_##name(void **state)                                                          \
	{                                                                                              \
		(void)state;                                                                               \
		run_isa(isa);                                                                              \
	}
TEST_ISA(portable, MX_ISA_PORTABLE)
TEST_ISA(avx2, MX_ISA_AVX2)
TEST_ISA(avx512, MX_ISA_AVX512)
TEST_ISA(avx512_bf16, MX_ISA_AVX512_BF16)
TEST_ISA(amx_bf16, MX_ISA_AMX_BF16)

/* ---- the registry, and tables ---- */

static void test_tables(void **state)
{
	const char *path;
	const struct mx_mixer_ops *ops;
	(void)state;
	assert_non_null(mx_registry_at(registry, 0, NULL));
	for (size_t i = 0; (ops = mx_registry_at(registry, i, &path)); i++) {
		struct mx_err err = {0};
		assert_int_equal(ops->abi, MX_MIXER_ABI);
		assert_ptr_equal(mx_registry_find(registry, ops->name, NULL), ops);
		ops->destroy(NULL);
		/* A layer without parameters or with wrong ones is refused with words, not with a crash. */
		struct mx_device device = {.info = {.kind = MX_DEVICE_CPU, .threads = 1, .align = 64}};
		struct mx_layer_desc layer = {.n_layers = 1, .width = 64, .max_context = 64};
		device.info.kind = MX_DEVICE_CUDA;
		if (!(ops->caps & MX_MIXER_CUDA)) {
			assert_int_not_equal(ops->probe(&layer, &device, &err), MX_OK);
			assert_true(*err.text);
		}
		print_message("%s: %s (%s)\n", ops->name, ops->summary, path);
	}
}

static void test_registry_refuses(void **state)
{
	struct mx_err err = {0};
	(void)state;
	assert_null(mx_registry_find(registry, "no such mixer", &err));
	assert_int_equal(err.status, MX_E_NOTFOUND);
	assert_non_null(strstr(err.text, mx_registry_at(registry, 0, NULL)->name));
	assert_int_equal(mx_registry_load_dir(registry, "no/such/folder", &err), MX_E_IO);
	/* The same modules a second time. */
	const char *path;
	mx_registry_at(registry, 0, &path);
	char dir[4096];
	snprintf(dir, sizeof(dir), "%s", path);
	*strrchr(dir, '/') = 0;
	assert_int_equal(mx_registry_load_dir(registry, dir, &err), MX_E_INVALID);
	assert_non_null(strstr(err.text, "already loaded"));
}

/* Probe names the parameter that is wrong. */
static void test_probe(void **state)
{
	struct mx_device device = {
		.info = {.kind = MX_DEVICE_CPU, .act_dtype = MX_F32, .threads = 1, .align = 64}};
	(void)state;
	for (const struct mixer_set *const *set = mixer_sets; *set; set++) {
		const struct mx_mixer_ops *ops = mx_registry_find(registry, (*set)->mixer, NULL);
		for (size_t i = 0; ops && i < (*set)->n_wrongs; i++) {
			const struct mixer_case *c = &(*set)->cases[0];
			const struct mixer_wrong *wrong = &(*set)->wrongs[i];
			struct mx_param params[25];
			struct mx_err err = {0};
			struct mx_layer_desc layer = {.width = c->width,
			                              .max_context = 64,
			                              .max_rows = 8,
			                              .max_spans = 2,
			                              .params = {params, c->n_params}};
			size_t at = 0;
			memcpy(params, c->params, sizeof(c->params));
			while (at < c->n_params && strcmp(params[at].name, wrong->param.name))
				at++;
			layer.params.n += at == c->n_params;
			params[at] = wrong->param;
			assert_int_not_equal(ops->probe(&layer, &device, &err), MX_OK);
			if (!strstr(err.text, wrong->says))
				fail_msg("%s, %s = %g: \"%s\"", ops->name, wrong->param.name, wrong->param.f,
				         err.text);
		}
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables),      cmocka_unit_test(test_registry_refuses),
		cmocka_unit_test(test_probe),       cmocka_unit_test(test_portable),
		cmocka_unit_test(test_avx2),        cmocka_unit_test(test_avx512),
		cmocka_unit_test(test_avx512_bf16), cmocka_unit_test(test_amx_bf16),
	};
	const char *dirs = argc > 1 ? argv[1] : "mixers/.libs", *s = getenv("MX_SEED");
	struct mx_err err = {0};

	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
	seed = seed ? seed : 1; /* xorshift never leaves 0 */
	printf("MX_SEED=%llu\n", (unsigned long long)seed);
	if (mx_registry_create(&registry) != MX_OK)
		return 1;
	for (const char *dir = dirs; *dir; dir += strcspn(dir, ":"), dir += *dir == ':') {
		char name[4096];
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(dir, ":"), dir);
		if (mx_registry_load_dir(registry, name, &err) != MX_OK) {
			fprintf(stderr, "%s: %s\n", err.where, err.text);
			return 1;
		}
	}
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	mx_registry_destroy(registry);
	return failed;
}
