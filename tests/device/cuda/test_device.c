/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device without its operators: memory, loading with conversion, recording and replaying,
 * errors that pass and errors that do not. The kernels are in another module than the device, as
 * those of mixers are.
 *
 * Random inputs come from one seed, printed; MIXD_TEST_SEED replays it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "device/convert.h"
#include "device/cuda/cuda.h"
#include "device/open.h"
#include "tests/rng.h"

int launch_add_one(void *stream, float *x, size_t n);
int launch_die(void *stream);

#define CHECK(condition)                                                                           \
	do {                                                                                           \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

#define N ((size_t)1 << 20)

static struct mx_device *d;
static const struct mx_ops *o;
static struct rng rng;

static void *device_memory(size_t bytes)
{
	void *p = NULL;
	CHECK(o->alloc(d, bytes, &p) == MX_OK);
	CHECK((uintptr_t)p % d->info.align == 0);
	return p;
}

/* Pinned, and full of what no test writes. */
static void *host_memory(size_t bytes)
{
	void *p = NULL;
	CHECK(o->host_alloc(d, bytes, &p) == MX_OK);
	memset(p, 0xff, bytes);
	return p;
}

static void fill(float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = rng_normal(&rng);
}

static void test_memory(void)
{
	float *a = device_memory(N * 4), *b = device_memory(N * 4);
	float *from = host_memory(N * 4), *to = host_memory(N * 4);
	fill(from, N);
	CHECK(o->upload(d, a, from, N * 4) == MX_OK);
	CHECK(o->copy(d, b, a, N * 4) == MX_OK);
	CHECK(o->zero(d, b + 100, 28) == MX_OK);
	CHECK(o->download(d, to, b, N * 4) == MX_OK);
	CHECK(o->wait(d) == MX_OK);
	for (size_t i = 0; i < N; i++)
		CHECK(to[i] == (i >= 100 && i < 107 ? 0 : from[i]));
	o->release(d, a);
	o->release(d, b);
	o->release(d, NULL);
	o->host_release(d, from);
	o->host_release(d, to);
	o->host_release(d, NULL);
}

/* Single words, more than one launch takes, between others that stay; the list may change at once.
 */
static void test_put(void)
{
	enum { WORDS = 1000, STEP = 7 };
	static struct mx_word words[WORDS];
	uint32_t *to = device_memory(WORDS * STEP * 4), *got = host_memory(WORDS * STEP * 4);
	for (size_t n = 1; n <= WORDS; n = n * 3 + 1) {
		CHECK(o->zero(d, to, WORDS * STEP * 4) == MX_OK);
		for (uint32_t i = 0; i < n; i++)
			words[i] = (struct mx_word){(i * 389 % WORDS) * STEP, i + 1};
		CHECK(o->put(d, to, words, n) == MX_OK);
		memset(words, 0xff, sizeof words);
		CHECK(o->download(d, got, to, WORDS * STEP * 4) == MX_OK);
		CHECK(o->wait(d) == MX_OK);
		for (uint32_t i = 0; i < n; i++)
			CHECK(got[(i * 389 % WORDS) * STEP] == i + 1);
		size_t others = 0;
		for (uint32_t i = 0; i < WORDS * STEP; i++)
			others += got[i] != 0;
		CHECK(others == n);
	}
	CHECK(o->put(d, to, NULL, 0) == MX_OK);
	o->release(d, to);
	o->host_release(d, got);
}

/* Every pair of types, of several buffers' length, from an odd address; what lies behind stays. */
static void test_load(void)
{
	size_t n = ((size_t)40 << 20) / 4 + 12345;
	unsigned char *file = malloc(n * 4 + 1), *want = malloc(n * 4), *got = host_memory(n * 4 + 64);
	unsigned char *to = device_memory(n * 4 + 64);
	CHECK(file && want);
	for (size_t i = 0; i < n * 4 + 1; i++)
		file[i] = (unsigned char)rng_next(&rng);
	for (int from_dtype = MX_F32; from_dtype <= MX_BF16; from_dtype++)
		for (int to_dtype = MX_F32; to_dtype <= MX_BF16; to_dtype++) {
			enum mx_dtype in = (enum mx_dtype)from_dtype, out = (enum mx_dtype)to_dtype;
			size_t bytes = n * mx_dtype_size(out);
			CHECK(o->zero(d, to, n * 4 + 64) == MX_OK);
			mx_status st = o->load(d, to, out, file + 1, in, n);
			CHECK(st == (mx_converts(out, in) ? MX_OK : MX_E_UNSUPPORTED));
			if (st != MX_OK)
				continue;
			CHECK(o->download(d, got, to, n * 4 + 64) == MX_OK);
			CHECK(o->wait(d) == MX_OK);
			mx_convert(want, out, file + 1, in, n);
			CHECK(!memcmp(want, got, bytes));
			for (size_t i = bytes; i < bytes + 64; i++)
				CHECK(got[i] == 0);
		}
	o->release(d, to);
	o->host_release(d, got);
	free(want);
	free(file);
}

/* Not a test: how fast weights arrive. */
static void measure_load(enum mx_dtype from_dtype)
{
	size_t bytes = (size_t)2 << 30, n = bytes / mx_dtype_size(from_dtype);
	unsigned char *file = malloc(bytes);
	CHECK(file);
	for (size_t i = 0; i < bytes; i += 4096)
		file[i] = (unsigned char)i;
	void *to = device_memory(n * 2);
	for (int round = 0; round < 2; round++) {
		uint64_t begin = mx_now_ns();
		CHECK(o->load(d, to, MX_BF16, file, from_dtype, n) == MX_OK);
		CHECK(o->wait(d) == MX_OK);
		printf("load %s as bf16: %.1f GB/s of file\n", mx_dtype_name(from_dtype),
		       (double)bytes / (double)(mx_now_ns() - begin));
	}
	o->release(d, to);
	free(file);
}

/* b = a + 3 by copies and kernels that overlap, again and again with other contents. */
static void test_record(void)
{
	void *stream = mx_cuda_base(d)->stream;
	float *a = device_memory(N * 4), *b = device_memory(N * 4);
	float *from = host_memory(N * 4), *to = host_memory(N * 4);
	struct mx_recording *r = NULL;
	CHECK(d->info.records);
	CHECK(launch_add_one(stream, a, N) == 0); /* loads the kernel */
	CHECK(o->wait(d) == MX_OK);
	CHECK(o->record(d) == MX_OK);
	CHECK(o->copy(d, b, a, N * 4) == MX_OK);
	for (int i = 0; i < 3; i++)
		CHECK(launch_add_one(stream, b, N) == 0);
	CHECK(o->recorded(d, &r) == MX_OK);
	for (int round = 0; round < 3; round++) {
		fill(from, N);
		CHECK(o->upload(d, a, from, N * 4) == MX_OK);
		CHECK(o->replay(d, r) == MX_OK);
		CHECK(o->download(d, to, b, N * 4) == MX_OK);
		CHECK(o->wait(d) == MX_OK);
		for (size_t i = 0; i < N; i++)
			CHECK(to[i] == from[i] + 1 + 1 + 1);
	}
	o->forget(d, r);
	o->forget(d, NULL);
	o->release(d, a);
	o->release(d, b);
	o->host_release(d, from);
	o->host_release(d, to);
}

/* What must not be recorded spoils the recording, and nothing else. */
static void test_spoiled(void)
{
	struct mx_recording *r = NULL;
	void *p = NULL;
	CHECK(o->record(d) == MX_OK);
	CHECK(o->alloc(d, 1 << 20, &p) == MX_E_INVALID);
	CHECK(o->recorded(d, &r) == MX_E_INVALID);
	CHECK(!r);
	CHECK(o->wait(d) == MX_OK);
	test_record();
}

static void test_too_much(void)
{
	void *p = NULL;
	CHECK(o->alloc(d, (size_t)1 << 50, &p) == MX_E_NOMEM);
	CHECK(!p);
	test_memory();
}

static void *on_a_thread(void *unused)
{
	(void)unused;
	test_memory();
	test_put();
	test_record();
	return NULL;
}

/* The thread that drives a device need not be the one that made it. */
static void test_thread(void)
{
	pthread_t t;
	CHECK(pthread_create(&t, NULL, on_a_thread, NULL) == 0);
	CHECK(pthread_join(t, NULL) == 0);
}

/* One of two devices that a thread drives by turns. */
struct turn {
	struct mx_device *d;
	struct mx_recording *r;
	float *x;        /* each turn adds 2 to what it gets */
	uint16_t *power; /* eight in bf16, doubled by every turn */
};

static void record_turn(struct turn *t)
{
	void *stream = mx_cuda_base(t->d)->stream;
	CHECK(mx_cuda_base(t->d)->bind(t->d) == MX_OK);
	CHECK(launch_add_one(stream, t->x, N) == 0); /* loads the kernels */
	CHECK(o->scale(t->d, t->power, 8, 1) == MX_OK);
	CHECK(o->wait(t->d) == MX_OK);
	CHECK(o->record(t->d) == MX_OK);
	CHECK(launch_add_one(stream, t->x, N) == 0);
	CHECK(o->scale(t->d, t->power, 8, 2) == MX_OK);
	CHECK(o->recorded(t->d, &t->r) == MX_OK);
}

static void take_turn(struct turn *t, float *from, float *to, float power)
{
	fill(from, N);
	CHECK(o->upload(t->d, t->x, from, N * 4) == MX_OK);
	CHECK(mx_cuda_base(t->d)->bind(t->d) == MX_OK);
	CHECK(launch_add_one(mx_cuda_base(t->d)->stream, t->x, N) == 0);
	CHECK(o->replay(t->d, t->r) == MX_OK);
	CHECK(o->download(t->d, to, t->x, N * 4) == MX_OK);
	CHECK(o->wait(t->d) == MX_OK);
	for (size_t i = 0; i < N; i++)
		CHECK(to[i] == from[i] + 1 + 1);
	CHECK(o->download(t->d, to, t->power, 16) == MX_OK);
	CHECK(o->wait(t->d) == MX_OK);
	for (size_t i = 0; i < 8; i++)
		CHECK(mx_bf16_to_f32(((uint16_t *)to)[i]) == power);
}

/* A thread may drive two devices by turns: what is asked of one never reaches the other. Not tried
 * where there is one GPU. */
static void test_two(const struct mx_device_options *options)
{
	struct turn turns[2] = {{.d = d}, {0}};
	struct mx_err err = {0};
	if (mx_device_open("cuda:1", options, &turns[1].d, &err) != MX_OK) {
		printf("two GPUs: not tried: %s\n", err.text);
		return;
	}
	float *from = host_memory(N * 4), *to = host_memory(N * 4);
	for (int i = 0; i < 2; i++) {
		void *x, *power;
		CHECK(o->alloc(turns[i].d, N * 4, &x) == MX_OK);
		CHECK(o->alloc(turns[i].d, 16, &power) == MX_OK);
		turns[i].x = x, turns[i].power = power;
		for (int k = 0; k < 8; k++)
			((uint16_t *)from)[k] = mx_f32_to_bf16(1);
		CHECK(o->upload(turns[i].d, power, from, 16) == MX_OK);
		CHECK(o->zero(turns[i].d, x, N * 4) == MX_OK);
		CHECK(o->wait(turns[i].d) == MX_OK);
	}
	for (int i = 0; i < 2; i++)
		record_turn(&turns[i]);
	for (int round = 0; round < 4; round++)
		take_turn(&turns[round % 2], from, to, round < 2 ? 2 : 4);
	for (int i = 0; i < 2; i++) {
		o->forget(turns[i].d, turns[i].r);
		o->release(turns[i].d, turns[i].x);
		o->release(turns[i].d, turns[i].power);
	}
	o->destroy(turns[1].d);
	o->host_release(d, from);
	o->host_release(d, to);
}

/* The last test: nothing works afterwards in this process. */
static void test_lost(void)
{
	float *a = device_memory(64), *from = host_memory(64);
	struct mx_recording *r = NULL;
	CHECK(o->record(d) == MX_OK);
	CHECK(o->zero(d, a, 64) == MX_OK);
	CHECK(o->recorded(d, &r) == MX_OK);
	(void)launch_die(mx_cuda_base(d)->stream);
	CHECK(o->wait(d) == MX_E_DEVICE);
	CHECK(o->wait(d) == MX_E_DEVICE);
	CHECK(o->upload(d, a, from, 64) == MX_E_DEVICE);
	CHECK(o->download(d, from, a, 64) == MX_E_DEVICE);
	CHECK(o->zero(d, a, 64) == MX_E_DEVICE);
	CHECK(o->replay(d, r) == MX_E_DEVICE);
	CHECK(o->record(d) == MX_E_DEVICE);
	void *p = NULL;
	CHECK(o->alloc(d, 64, &p) == MX_E_DEVICE);
	CHECK(o->load(d, a, MX_F32, "0123456789abcdef", MX_F32, 4) == MX_E_DEVICE);
	o->forget(d, r);
	o->release(d, a);
	o->host_release(d, from);
}

int main(void)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = MX_BF16, .max_samples = 8, .vocab = 1024}};
	struct mx_err err = {0};
	mx_status st = mx_device_open("cuda:0", &options, &d, &err);
	if (st == MX_E_DEVICE) {
		puts(err.text);
		return 77;
	}
	if (st != MX_OK) {
		fprintf(stderr, "%s %s\n", err.where, err.text);
		return 1;
	}
	o = d->ops;
	const char *seed = getenv("MIXD_TEST_SEED");
	rng.state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	printf("%s, %s, %d multiprocessors, %.1f GB free, MIXD_TEST_SEED=%llu\n", d->info.name,
	       d->info.isa, mx_cuda_base(d)->sms, (double)d->info.memory / 1e9,
	       (unsigned long long)rng.state);
	CHECK(d->info.kind == MX_DEVICE_CUDA && d->info.act_dtype == MX_BF16 && d->info.memory > 0);
	struct mx_device *none = NULL;
	CHECK(mx_device_open("cuda:63", &options, &none, &err) == MX_E_NOTFOUND);
	CHECK(!none);
	test_memory();
	test_put();
	test_load();
	test_record();
	test_spoiled();
	test_too_much();
	test_thread();
	test_two(&options);
	measure_load(MX_BF16);
	measure_load(MX_F16);
	measure_load(MX_F32);
	test_lost();
	o->destroy(d);
	puts("all as it should be");
	return 0;
}
