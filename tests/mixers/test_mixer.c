/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every mixer promises (mixers/mixer.h), for every module of a directory,
 * every case of mixer_cases.h and every instruction set of this host. The texts
 * of a case go through in one piece first, near to the reference if there is
 * one; after that every row of every other run must be the same to the bit:
 * whatever the cuts, company, order, threads, pages and limits; after drafts
 * were taken back, after preemption; saved and loaded, or forked, and then
 * going another way. mixer_run.h is the engine's part.
 *
 *   test_mixer [DIR[:DIR...] [TEST]]   modules, default mixers/.libs; name of one test
 * MIXD_TEST_SEED=n repeats a run. MIXD_TEST_DEVICE=cuda:0 tries the modules for CUDA devices there,
 * with `deterministic` on, and nothing else (tests/gpu/test_mixer).
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
#include <unistd.h>

#include "device/cpu/cpu.h"
#include "device/open.h"
#include "tools/test-mixer/rig.h"

static struct mx_registry *registry;
static const char *gpu; /* MIXD_TEST_DEVICE: only this one, not the CPU */
static uint64_t seed;
/* At the highest level of this host, without sanitizers: the others have other kernels, but the
 * same code around them, and get a part of the trials. */
static bool thorough;

/* ---- the texts of a case ---- */

#define N_TEXTS 3
#define LAST    10 /* tokens of a text that come one by one even after large chunks */
#define REACH   40 /* a state that forgets within so many tokens tests nothing */

/* 0 is the long one, 1 begins with the same `common` tokens, 2 is short. */
struct texts {
	struct text t[N_TEXTS];
	uint32_t common;
};

static struct text text_make(const struct rig *r, uint32_t len, struct rng *g)
{
	size_t n = (size_t)len * r->layer.width;
	struct text t = {len, calloc(n, 4), {0}};
	for (size_t i = 0; i < n; i++)
		t.x[i] = rng_normal(g);
	for (int l = 0; l < RUN_LAYERS; l++)
		t.y[l] = calloc(n, 4);
	return t;
}

static void text_free(struct text *t)
{
	for (int l = 0; l < RUN_LAYERS; l++)
		free(t->y[l]);
	free(t->x);
}

static void one_shot(struct rig *r, struct text *t)
{
	struct seq s;
	seq_open(r, &s, t);
	s.record = true;
	struct item it = item_prefill(&s, t->len);
	rig_step(r, &it, 1);
	seq_close(r, &s);
}

static void texts_make(struct rig *r, struct texts *x)
{
	struct rng g = {12345}; /* the same in every run, as the tolerances are */
	uint32_t n = r->c->tokens, width = r->layer.width;
	r->what = "in one piece";
	x->common = n / 2;
	x->t[0] = text_make(r, n, &g);
	x->t[1] = text_make(r, n * 2 / 3, &g);
	x->t[2] = text_make(r, 50, &g);
	memcpy(x->t[1].x, x->t[0].x, (size_t)x->common * width * 4);
	for (int i = 0; i < N_TEXTS; i++)
		one_shot(r, &x->t[i]);
	for (int l = 0; l < RUN_LAYERS; l++)
		if (memcmp(x->t[0].y[l], x->t[1].y[l], (size_t)x->common * width * 4))
			rig_fail(r, "outputs depend on later tokens");
}

static void texts_free(struct texts *x)
{
	for (int i = 0; i < N_TEXTS; i++)
		text_free(&x->t[i]);
}

/* A text that begins with the first n tokens of `t`. */
static struct text *text_after(struct rig *r, struct texts *x, struct text *t, uint32_t n)
{
	return t == &x->t[2] || n > x->common ? t : &x->t[rng_below(&r->rng, 2)];
}

/* ---- distance to the reference, and whether the case means anything ---- */

static void check_reference(struct rig *r, const struct texts *x)
{
	const struct text *t = &x->t[0];
	size_t n = (size_t)t->len * r->layer.width;
	double top = 0, worst = 0;
	float *y = calloc(n, 4);
	for (size_t i = 0; i < n; i++)
		if (!isfinite(t->y[0][i]))
			rig_fail(r, "token %zu is not finite", i / r->layer.width);
	if (r->c->reference)
		r->c->reference(r->c, t->len, t->x, r->f32_ptrs, y);
	for (size_t i = 0; r->c->reference && i < n; i++) {
		top = fmax(top, fabs(y[i]));
		worst = fmax(worst, fabs((double)y[i] - t->y[0][i]));
	}
	/* Activations in bf16 are rounded where those of the case's tolerance are not. */
	double tolerance = r->element == 2 ? fmax(r->c->tolerance, ROUNDED) : r->c->tolerance;
	if (!(worst <= tolerance * top))
		rig_fail(r, "error %g of %g, allowed %g", worst, top, tolerance * top);
	free(y);
}

/* Another first token must show REACH tokens later: else a lost state would not. */
static void check_reach(struct rig *r, const struct texts *x)
{
	struct rng g = {54321};
	uint32_t width = r->layer.width;
	if (!r->state.fixed_bytes)
		return;
	struct text t = text_make(r, REACH + 1, &g);
	memcpy(t.x + width, x->t[0].x + width, (size_t)REACH * width * 4);
	one_shot(r, &t);
	if (!memcmp(t.y[0] + (size_t)REACH * width, x->t[0].y[0] + (size_t)REACH * width, width * 4))
		rig_fail(r, "forgets within %d tokens; the case should say how its weights are drawn",
		         REACH);
	text_free(&t);
}

/* ---- cuts ---- */

/* All cuts of a short text in two, or a third of them. */
static void check_cuts(struct rig *r, struct texts *x)
{
	struct text *t = &x->t[2];
	uint32_t each = thorough ? 1 : 3, room = r->layer.max_rows / t->len, cut = 1;
	r->what = "cut in two";
	while (cut < t->len) {
		struct seq seqs[RUN_SPANS];
		struct item items[RUN_SPANS];
		uint32_t n = 0;
		for (; n < room && n < RUN_SPANS && cut < t->len; n++, cut += each) {
			seq_open(r, &seqs[n], t);
			items[n] = item_prefill(&seqs[n], cut);
		}
		rig_step(r, items, n);
		for (uint32_t i = 0; i < n; i++)
			items[i] = item_prefill(&seqs[i], t->len);
		rig_step(r, items, n);
		for (uint32_t i = 0; i < n; i++)
			seq_close(r, &seqs[i]);
	}
}

/* Texts first .. 2 together, `chunk` tokens a step, the last ones alone. */
static void check_chunks(struct rig *r, struct texts *x, int first, uint32_t chunk,
                         const char *what)
{
	struct seq seqs[N_TEXTS];
	r->what = what;
	for (int i = first; i < N_TEXTS; i++)
		seq_open(r, &seqs[i], &x->t[i]);
	for (;;) {
		struct item items[N_TEXTS];
		uint32_t n = 0;
		for (int i = first; i < N_TEXTS; i++) {
			uint32_t left = x->t[i].len - seqs[i].computed;
			if (left > LAST)
				items[n++] = item_prefill(&seqs[i], chunk < left - LAST ? chunk : left - LAST);
			else if (left)
				items[n++] = item_decode(&seqs[i]);
		}
		if (!n)
			break;
		rig_step(r, items, n);
	}
	for (int i = first; i < N_TEXTS; i++)
		seq_close(r, &seqs[i]);
}

/* ---- drafts ---- */

/* What comes after a draft: another one at once, a decode, or a chunk. */
static bool after_draft(struct rig *r, struct seq *s, uint32_t round, struct item *out)
{
	if (round % 4 == 0 || s->computed == s->text->len)
		return false;
	*out = round % 4 == 2 ? item_prefill(s, 1 + rng_below(&r->rng, 17)) : item_decode(s);
	return true;
}

/* One sequence for each number 0 .. m of tokens that drafts of m keep, over some borders of blocks
 * and pages. Sequences begin at 1 .. 16, or go on from there on a saved state. */
static void draft_walk(struct rig *r, struct text *t, uint32_t m, const struct saved *from)
{
	struct seq seqs[RUN_SPANS];
	struct item items[RUN_SPANS];
	uint32_t open = m + 1, end = (from ? from->pos : 0) + 40;
	for (uint32_t i = 0; i <= m; i++) {
		if (from)
			seq_resume(r, &seqs[i], from, t, from->pos - rng_below(&r->rng, 2));
		else
			seq_open(r, &seqs[i], t);
		items[i] = item_prefill(&seqs[i], 1 + rng_below(&r->rng, 16));
	}
	rig_step(r, items, m + 1);
	for (uint32_t round = 0; open; round++) {
		uint32_t n = open = 0;
		for (uint32_t i = 0; i <= m; i++)
			if (seqs[i].computed < end && seqs[i].computed < t->len)
				items[open++] = item_draft(r, &seqs[i], m, i);
		if (open)
			rig_step(r, items, open);
		for (uint32_t i = 0; i <= m; i++)
			if (after_draft(r, &seqs[i], round + i, &items[n]))
				n++;
		if (n)
			rig_step(r, items, n);
	}
	for (uint32_t i = 0; i <= m; i++)
		seq_close(r, &seqs[i]);
}

static void check_drafts(struct rig *r, struct texts *x)
{
	uint32_t far = 230, last = r->layer.max_draft < RUN_SPANS ? r->layer.max_draft : RUN_SPANS - 1;
	struct text *t = &x->t[0];
	r->what = "drafts";
	for (uint32_t m = 1; m <= last; m += thorough ? 1 : 2)
		draft_walk(r, t, m, NULL);
	if (!r->can_resume || t->len < far + 40)
		return;
	struct seq s;
	struct saved v;
	r->what = "drafts, far into a text";
	seq_open(r, &s, t);
	struct item it = item_prefill(&s, far);
	rig_step(r, &it, 1);
	seq_save(r, &s, &v);
	seq_close(r, &s);
	draft_walk(r, t, last, &v);
	saved_drop(r, &v);
}

/* ---- saved states and forks ---- */

/* Takes steps of any kind to exactly position `to`. */
static void go_to(struct rig *r, struct seq *s, uint32_t to)
{
	while (s->computed < to) {
		struct item it = item_random(r, s, to - s->computed);
		rig_step(r, &it, 1);
	}
}

/* The sequences in company, each for `n` tokens more if its text has them. */
static void go_on(struct rig *r, struct seq *seqs, uint32_t n_seqs, uint32_t n)
{
	uint32_t ends[RUN_SPANS];
	for (uint32_t i = 0; i < n_seqs; i++) {
		uint32_t end = seqs[i].computed + n;
		ends[i] = end < seqs[i].text->len ? end : seqs[i].text->len;
	}
	for (;;) {
		struct item items[RUN_SPANS];
		uint32_t open = 0;
		for (uint32_t i = 0; i < n_seqs; i++)
			if (seqs[i].computed < ends[i])
				items[open++] = item_random(r, &seqs[i], ends[i] - seqs[i].computed);
		if (!open)
			break;
		rig_step(r, items, open);
	}
}

/* At every position of interest, now and then just after a draft of which nothing stayed: save, go
 * on from there and from one before, save what was loaded, and fork; each goes its own way, and so
 * does the one that was saved. */
static void check_saves(struct rig *r, struct texts *x)
{
	static const uint32_t at[] = {1,  2,  15, 16, 17, 18, 31,  32,  33,  48,
	                              49, 64, 65, 95, 96, 97, 128, 129, 256, 257};
	struct seq s;
	if (!r->can_resume && !r->can_fork)
		return;
	r->what = "saved, loaded and forked";
	seq_open(r, &s, &x->t[0]);
	for (size_t i = 0; i < sizeof(at) / sizeof(*at) && at[i] < x->t[0].len; i++) {
		struct seq seqs[4];
		struct saved v, again;
		uint32_t n = 0;
		if (!thorough && rng_below(&r->rng, 2))
			continue;
		go_to(r, &s, at[i]);
		if (r->layer.max_draft && rng_below(&r->rng, 2)) {
			struct item it = item_draft(r, &s, 1 + rng_below(&r->rng, r->layer.max_draft), 0);
			rig_step(r, &it, 1);
		}
		if (r->can_fork)
			seq_fork(r, &s, &seqs[n++], text_after(r, x, s.text, at[i]));
		if (r->can_resume) {
			seq_save(r, &s, &v);
			seq_resume(r, &seqs[n++], &v, text_after(r, x, s.text, at[i]), at[i]);
			seq_resume(r, &seqs[n++], &v, text_after(r, x, s.text, at[i] - 1), at[i] - 1);
			seq_save(r, &seqs[n - 2], &again);
			saved_drop(r, &v);
			seq_resume(r, &seqs[n], &again, text_after(r, x, s.text, at[i] - 1),
			           at[i] - rng_below(&r->rng, 2));
			n++;
			saved_drop(r, &again);
		}
		go_on(r, seqs, n, 17);
		while (n)
			seq_close(r, &seqs[--n]);
	}
	seq_close(r, &s);
}

/* ---- everything at once ---- */

#define N_LIVE  5
#define N_SAVED 3

struct life {
	struct seq seqs[N_LIVE];
	bool live[N_LIVE];
	struct saved saved[N_SAVED];
};

/* Begins a sequence: from nothing, from a saved state, or from another sequence. */
static void begin(struct rig *r, struct texts *x, struct life *life, int i)
{
	struct seq *s = &life->seqs[i];
	const struct saved *v = &life->saved[rng_below(&r->rng, N_SAVED)];
	uint32_t j = rng_below(&r->rng, N_LIVE), how = rng_below(&r->rng, 3);
	if (how == 0 && v->text) {
		uint32_t at = v->pos - rng_below(&r->rng, 2);
		seq_resume(r, s, v, text_after(r, x, v->text, at), at);
	} else if (how == 1 && r->can_fork && life->live[j]) {
		const struct seq *from = &life->seqs[j];
		seq_fork(r, from, s, text_after(r, x, from->text, from->computed));
	} else {
		seq_open(r, s, &x->t[rng_below(&r->rng, N_TEXTS)]);
	}
	life->live[i] = true;
}

/* One step of some of the sequences. */
static void live(struct rig *r, struct life *life)
{
	struct item items[N_LIVE];
	uint32_t n = 0, room = r->layer.max_rows;
	for (int i = 0; i < N_LIVE; i++) {
		struct seq *s = &life->seqs[i];
		if (life->live[i] && s->computed < s->text->len && room && rng_below(&r->rng, 4)) {
			items[n] = item_random(r, s, room);
			room -= items[n++].n;
		}
	}
	if (n)
		rig_step(r, items, n);
}

static void check_random(struct rig *r, struct texts *x, int steps)
{
	struct life life = {0};
	r->what = "at random";
	while (steps--) {
		for (int i = 0; i < N_LIVE; i++)
			if (!life.live[i] && rng_below(&r->rng, 2))
				begin(r, x, &life, i);
		live(r, &life);
		for (int i = 0; i < N_LIVE; i++) {
			struct seq *s = &life.seqs[i];
			struct saved *v = &life.saved[rng_below(&r->rng, N_SAVED)];
			if (life.live[i] && r->can_resume && s->computed >= s->save_from &&
			    !rng_below(&r->rng, 6)) {
				saved_drop(r, v);
				seq_save(r, s, v);
			}
			/* finished, or preempted */
			if (life.live[i] && (s->computed == s->text->len || !rng_below(&r->rng, 25))) {
				seq_close(r, s);
				life.live[i] = false;
			}
		}
	}
	for (int i = 0; i < N_LIVE; i++)
		if (life.live[i])
			seq_close(r, &life.seqs[i]);
	for (int i = 0; i < N_SAVED; i++)
		saved_drop(r, &life.saved[i]);
}

/* ---- all of it ---- */

static void check_describe(const struct rig *r)
{
	struct block text;
	block_alloc(&text, NULL, 16, 64);
	r->ops->describe(r->mixers[0], (char *)text.p, text.size);
	block_check(&text, "the text of describe");
	assert_non_null(memchr(text.p, 0, text.size));
	block_free(&text);
}

#define LONG_DRAFT 20 /* longer than a block of anything that has blocks of 16 */

static void check_case(const struct mixer_set *set, const struct mixer_case *c, enum mx_isa isa)
{
	const char *mixer = set->mixer;
	uint32_t draft = set->max_draft && set->max_draft < LONG_DRAFT ? set->max_draft : LONG_DRAFT;
	struct rig r;
	struct texts x;

	rig_open(&r, registry, c, &(struct rig_options){mixer, gpu, isa, 1, 0, seed});
	texts_make(&r, &x);
	check_reference(&r, &x);
	check_reach(&r, &x);
	check_describe(&r);
	check_cuts(&r, &x);
	check_chunks(&r, &x, thorough ? 0 : 1, 1, "token by token");
	if (thorough)
		check_chunks(&r, &x, 0, 16, "in chunks of 16");
	rig_close(&r);

	rig_open(&r, registry, c, &(struct rig_options){mixer, gpu, isa, 1, 5, seed});
	check_drafts(&r, &x);
	check_saves(&r, &x);
	rig_close(&r);

	for (unsigned threads = thorough ? 2 : 3; threads <= 3; threads++) {
		rig_open(&r, registry, c, &(struct rig_options){mixer, gpu, isa, threads, draft, seed});
		check_random(&r, &x, thorough ? 40 : 20);
		check_chunks(&r, &x, 0, 61, "in chunks of 61");
		rig_close(&r);
	}
	texts_free(&x);
}

static void run_isa(enum mx_isa isa)
{
	if (isa > mx_cpu_isa())
		skip();
#if defined(__SANITIZE_THREAD__)
	if (isa < mx_cpu_isa())
		skip(); /* an order slower, and threads are the same at every level */
#endif
	thorough = isa == mx_cpu_isa() && !RUN_SLOWLY;
	for (const struct mixer_set *const *set = mixer_sets; *set; set++)
		for (size_t i = 0; i < (*set)->n_cases; i++)
			if (mx_registry_find(registry, (*set)->mixer, MX_DEVICE_CPU, NULL))
				check_case(*set, &(*set)->cases[i], isa);
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

/* Modules for another device than the CPU, if one was asked for. */
static void test_device(void **state)
{
	(void)state;
	if (!gpu)
		skip();
	thorough = false;
	for (const struct mixer_set *const *set = mixer_sets; *set; set++)
		for (size_t i = 0; i < (*set)->n_cases; i++)
			if (mx_registry_find(registry, (*set)->mixer, MX_DEVICE_CUDA, NULL)) {
				print_message("%s, %s\n", (*set)->mixer, (*set)->cases[i].label);
				check_case(*set, &(*set)->cases[i], MX_ISA_PORTABLE);
			}
}

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
		assert_ptr_equal(mx_registry_find(registry, ops->name, MX_DEVICE_CPU, NULL), ops);
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
	assert_null(mx_registry_find(registry, "no such mixer", MX_DEVICE_CPU, &err));
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

/* A module for CUDA is seen, but opened only when asked. */
static void test_registry_cuda(void **state)
{
	(void)state;
	struct mx_err err = {0};
	struct mx_registry *r = NULL;
	const char *path;
	char dir[] = "test_mixer.XXXXXX", link[64], *target;
	assert_non_null(mx_registry_at(registry, 0, &path));
	assert_non_null(target = realpath(path, NULL));
	assert_non_null(mkdtemp(dir));
	snprintf(link, sizeof link, "%s/some-cuda.so", dir);
	assert_int_equal(symlink(target, link), 0);
	assert_int_equal(mx_registry_create(&r), MX_OK);
	assert_int_equal(mx_registry_load_dir(r, dir, &err), MX_OK);
	assert_null(mx_registry_at(r, 0, NULL));
	assert_int_equal(mx_registry_load_cuda(r, &err), MX_OK);
	const struct mx_mixer_ops *ops = mx_registry_at(r, 0, NULL);
	assert_non_null(ops);
	/* what it can do is what its table says, whatever the file is called */
	assert_true(ops->caps & MX_MIXER_CPU);
	assert_ptr_equal(mx_registry_find(r, ops->name, MX_DEVICE_CPU, &err), ops);
	assert_null(mx_registry_find(r, ops->name, MX_DEVICE_CUDA, &err));
	assert_non_null(strstr(err.text, "CUDA"));
	assert_int_equal(mx_registry_load_cuda(r, &err), MX_OK);
	assert_null(mx_registry_at(r, 1, NULL));
	mx_registry_destroy(r);
	free(target);
	unlink(link);
	rmdir(dir);
}

/* Probe names the parameter that is wrong. */
static void test_probe(void **state)
{
	struct mx_device device = {
		.info = {.kind = MX_DEVICE_CPU, .act_dtype = MX_F32, .threads = 1, .align = 64}};
	(void)state;
	for (const struct mixer_set *const *set = mixer_sets; *set; set++) {
		const struct mx_mixer_ops *ops =
			mx_registry_find(registry, (*set)->mixer, MX_DEVICE_CPU, NULL);
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

static bool no_device(void)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = MX_F32, .max_samples = 1, .vocab = 64}};
	struct mx_device *d = NULL;
	struct mx_err err = {0};
	if (mx_device_open(gpu, &options, &d, &err) != MX_OK) {
		printf("%s\n", err.text);
		return true;
	}
	d->ops->destroy(d);
	return false;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tables),        cmocka_unit_test(test_registry_refuses),
		cmocka_unit_test(test_registry_cuda), cmocka_unit_test(test_probe),
		cmocka_unit_test(test_portable),      cmocka_unit_test(test_avx2),
		cmocka_unit_test(test_avx512),        cmocka_unit_test(test_avx512_bf16),
		cmocka_unit_test(test_amx_bf16),      cmocka_unit_test(test_device),
	};
	const char *dirs = argc > 1 ? argv[1] : "mixers/.libs", *s = getenv("MIXD_TEST_SEED");
	struct mx_err err = {0};

	seed = s ? strtoull(s, NULL, 10) : (uint64_t)time(NULL);
	seed = seed ? seed : 1; /* xorshift never leaves 0 */
	printf("seed %llu (MIXD_TEST_SEED repeats it)\n", (unsigned long long)seed);
	gpu = getenv("MIXD_TEST_DEVICE");
	if (gpu && no_device())
		return 77;
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
	if (gpu && mx_registry_load_cuda(registry, &err) != MX_OK) {
		fprintf(stderr, "%s: %s\n", err.where, err.text);
		return 1;
	}
	if (argc > 2 || gpu)
		cmocka_set_test_filter(gpu ? "test_device" : argv[2]);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	mx_registry_destroy(registry);
	return failed;
}
