/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the communicator of ranks on GPUs: sums beside those of the host in the order of the ranks,
 * bit for bit, of 1 element to a million, f32 and bf16; sums with the norm behind them; copies;
 * partials of attention that are folded, by all ranks and by groups of them;
 * thousands of repetitions while ranks are late by random times; recordings; a rank that is lost.
 * All ranks are on cuda:0, or on the GPUs that MIXD_TEST_DEVICES lists ("cuda:0,cuda:1"), by turns.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/comm.h"
#include "device/convert.h"
#include "device/cuda/cuda.h"
#include "device/open.h"
#include "tests/rank_devices.h"
#include "tests/rng.h"

#define CHECK(condition)                                                                           \
	do {                                                                                           \
		if (!(condition)) {                                                                        \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
			exit(1);                                                                               \
		}                                                                                          \
	} while (0)

/* Says what is wrong and ends the test. */
#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"), exit(1))

int launch_delay(void *stream, uint32_t us); /* comm_delay.cu */

enum { MAX_RANKS = 4, MOST = 1 << 20 };

static const size_t sizes[] = {1,     3,     8,       100,           4095,    4096,     4097, 8192,
                               65536, 99999, 1 << 17, (1 << 17) + 8, 1 << 19, MOST - 5, MOST};

struct rig {
	uint32_t ranks;
	enum mx_dtype dtype;
	size_t size; /* of an element */
	struct mx_device *d[MAX_RANKS];
	struct mx_comm *c[MAX_RANKS];
	unsigned char *x[MAX_RANKS], *from[MAX_RANKS]; /* [MOST + 16] in device memory */
	unsigned char *host;                           /* pinned, likewise */
	unsigned char *want;
	struct rng rng;
};

/* Ends the test, saying which call failed, with what status and how long after the rig was opened:
 * after 4 s a rank waited in vain. */
#define must(call) must_at(call, #call, __LINE__)

static uint64_t opened;

static void must_at(mx_status st, const char *call, int line)
{
	if (st != MX_OK)
		FAIL("test_comm.c:%d: %s after %.2f s: %s", line, mx_status_str(st),
		     (double)(mx_now_ns() - opened) * 1e-9, call);
}

static void open_rig(struct rig *r, uint32_t ranks, enum mx_dtype dtype)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = dtype, .max_samples = 2, .vocab = 100}};
	const char *names[MAX_RANKS];
	struct mx_err err = {0};
	opened = mx_now_ns();
	*r = (struct rig){.ranks = ranks, .dtype = dtype, .size = mx_dtype_size(dtype)};
	r->rng = (struct rng){7};
	rank_devices("cuda:0", names, ranks);
	for (uint32_t i = 0; i < ranks; i++)
		if (mx_device_open(names[i], &options, &r->d[i], &err) != MX_OK)
			FAIL("%s", err.text);
	if (mx_device_comm(r->d, ranks, r->c, &err) != MX_OK)
		FAIL("%s", err.text);
	for (uint32_t i = 0; i < ranks; i++) {
		must(r->d[i]->ops->alloc(r->d[i], (MOST + 16) * sizeof(float), (void **)&r->x[i]));
		must(r->d[i]->ops->alloc(r->d[i], (MOST + 16) * sizeof(float), (void **)&r->from[i]));
	}
	must(r->d[0]->ops->host_alloc(r->d[0], (MOST + 16) * sizeof(float), (void **)&r->host));
	r->want = calloc(MOST + 16, sizeof(float));
	CHECK(r->want);
}

static void close_rig(struct rig *r)
{
	free(r->want);
	r->d[0]->ops->host_release(r->d[0], r->host);
	for (uint32_t i = 0; i < r->ranks; i++) {
		r->d[i]->ops->release(r->d[i], r->x[i]);
		r->d[i]->ops->release(r->d[i], r->from[i]);
	}
	for (uint32_t i = 0; i < r->ranks; i++)
		r->c[i]->ops->destroy(r->c[i]);
	for (uint32_t i = 0; i < r->ranks; i++)
		r->d[i]->ops->destroy(r->d[i]);
}

static void wait_all(const struct rig *r)
{
	for (uint32_t i = 0; i < r->ranks; i++)
		must(r->d[i]->ops->wait(r->d[i]));
}

static float element(const struct rig *r, const unsigned char *x, size_t i)
{
	return r->dtype == MX_F32 ? ((const float *)(const void *)x)[i]
	                          : mx_bf16_to_f32(((const uint16_t *)(const void *)x)[i]);
}

static void set_element(const struct rig *r, unsigned char *x, size_t i, float v)
{
	if (r->dtype == MX_F32)
		((float *)(void *)x)[i] = v;
	else
		mx_convert((uint16_t *)(void *)x + i, MX_BF16, &v, MX_F32, 1);
}

/* Gives every rank n random elements in `from`, and computes their sums in the order of the ranks.
 */
static void fill(struct rig *r, size_t n)
{
	float *sums = calloc(n, sizeof *sums);
	CHECK(sums);
	for (uint32_t k = 0; k < r->ranks; k++) {
		for (size_t i = 0; i < n; i++) {
			set_element(r, r->host, i, (float)rng_normal(&r->rng));
			const float v = element(r, r->host, i);
			sums[i] = k ? sums[i] + v : v;
		}
		must(r->d[k]->ops->upload(r->d[k], r->from[k], r->host, n * r->size));
		must(r->d[k]->ops->wait(r->d[k]));
	}
	for (size_t i = 0; i < n; i++)
		set_element(r, r->want, i, sums[i]);
	free(sums);
}

/* Compares x of every rank, from element `at`, with the sums. */
static void check_sums(struct rig *r, size_t at, size_t n)
{
	for (uint32_t k = 0; k < r->ranks; k++) {
		must(r->d[k]->ops->download(r->d[k], r->host, r->x[k] + at * r->size, n * r->size));
		must(r->d[k]->ops->wait(r->d[k]));
		if (!memcmp(r->host, r->want, n * r->size))
			continue;
		size_t i = 0;
		while (!memcmp(r->host + i * r->size, r->want + i * r->size, r->size))
			i++;
		FAIL("%u ranks, %zu elements: element %zu of rank %u is %g and not %g", r->ranks, n, i, k,
		     (double)element(r, r->host, i), (double)element(r, r->want, i));
	}
}

/* Has every rank sum a copy of `from`, at element `at` of x; some come late. */
static void sum(struct rig *r, size_t at, size_t n, bool late)
{
	for (uint32_t i = 0; i < r->ranks; i++) {
		struct mx_device *d = r->d[i];
		if (late && rng_next(&r->rng) % 3 == 0) {
			must(mx_cuda_base(d)->bind(d));
			CHECK(!launch_delay(mx_cuda_base(d)->stream, (uint32_t)(rng_next(&r->rng) % 40)));
		}
		must(d->ops->copy(d, r->x[i] + at * r->size, r->from[i], n * r->size));
		must(r->c[i]->ops->all_reduce(r->c[i], r->x[i] + at * r->size, n));
	}
}

static void check_sizes(uint32_t ranks, enum mx_dtype dtype)
{
	struct rig r;
	open_rig(&r, ranks, dtype);
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		fill(&r, sizes[s]);
		for (size_t at = 0; at < 2; at++) { /* aligned, and not */
			sum(&r, at, sizes[s], false);
			wait_all(&r);
			check_sums(&r, at, sizes[s]);
		}
	}
	must(r.c[0]->ops->check(r.c[0]));
	for (uint32_t i = 0; i < ranks; i++) { /* their time is counted, and is a part of all */
		const uint64_t ns = r.c[i]->ops->spent_ns(r.c[i]);
		CHECK(ns > 0 && ns < mx_now_ns() - opened);
	}
	close_rig(&r);
}

static void test_sums(void)
{
	for (uint32_t ranks = 2; ranks <= 4; ranks++) {
		check_sizes(ranks, MX_F32);
		check_sizes(ranks, MX_BF16);
	}
}

/* Sums of f32 where activations are bf16: of squares, in mixers. */
static void test_sums_of_f32(void)
{
	struct rig r;
	float *x, *want;
	open_rig(&r, 2, MX_BF16);
	x = (float *)(void *)r.host;
	want = (float *)(void *)r.want;
	for (uint32_t k = 0; k < 2; k++) {
		for (size_t i = 0; i < 1000; i++) {
			x[i] = (float)rng_normal(&r.rng);
			want[i] = k ? want[i] + x[i] : x[i];
		}
		must(r.d[k]->ops->upload(r.d[k], r.x[k], x, 1000 * sizeof *x));
		must(r.d[k]->ops->wait(r.d[k]));
	}
	for (uint32_t k = 0; k < 2; k++)
		must(r.c[k]->ops->all_reduce_f32(r.c[k], (float *)(void *)r.x[k], 1000));
	for (uint32_t k = 0; k < 2; k++) {
		must(r.d[k]->ops->download(r.d[k], x, r.x[k], 1000 * sizeof *x));
		must(r.d[k]->ops->wait(r.d[k]));
		CHECK(!memcmp(x, want, 1000 * sizeof *x));
	}
	close_rig(&r);
}

/* Has every rank add the sums of `from` to its `from`, with the norm behind it, at once or
 * as two operators. */
static void sum_norm(struct rig *r, float *const *weights, size_t rows, size_t width, bool at_once,
                     unsigned char *const *h, unsigned char *const *out)
{
	const size_t bytes = rows * width * r->size;
	for (uint32_t i = 0; i < r->ranks; i++) {
		struct mx_device *d = r->d[i];
		must(d->ops->copy(d, h[i], r->from[i], bytes));
		must(d->ops->copy(d, r->x[i], r->from[i], bytes));
		if (at_once) {
			must(r->c[i]->ops->all_reduce_norm(r->c[i], r->x[i], h[i], weights[i], 1e-5f, rows,
			                                   width, out[i]));
			continue;
		}
		must(r->c[i]->ops->all_reduce(r->c[i], r->x[i], rows * width));
		must(d->ops->add_rmsnorm(d, h[i], r->x[i], weights[i], 1e-5f, rows, width, out[i]));
	}
	wait_all(r);
}

/* The sum with its norm has the bits of the two operators, for rows of all shapes that the kernel
 * tells apart, and of others. */
static void check_norms(uint32_t ranks, enum mx_dtype dtype)
{
	static const struct {
		size_t rows, width;
	} shapes[] = {{1, 4096}, {1, 64},    {3, 1000}, {2, 1001}, {64, 4096},
	              {70, 896}, {2, 16384}, {5, 5120}, {9, 8192}, {128, 4096}};
	struct rig r;
	unsigned char *h[2][MAX_RANKS], *out[2][MAX_RANKS];
	float *weights[MAX_RANKS];
	open_rig(&r, ranks, dtype);
	for (uint32_t i = 0; i < ranks; i++) {
		const struct mx_ops *o = r.d[i]->ops;
		for (int k = 0; k < 2; k++) {
			must(o->alloc(r.d[i], MOST * sizeof(float), (void **)&h[k][i]));
			must(o->alloc(r.d[i], MOST * sizeof(float), (void **)&out[k][i]));
		}
		must(o->alloc(r.d[i], 16384 * sizeof(float), (void **)&weights[i]));
		for (int k = 0; k < 16384; k++)
			((float *)(void *)r.host)[k] = (float)(k % 13 + 1) / 8;
		must(o->upload(r.d[i], weights[i], r.host, 16384 * sizeof(float)));
		must(o->wait(r.d[i]));
	}
	for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
		const size_t n = shapes[s].rows * shapes[s].width;
		fill(&r, n);
		for (int k = 0; k < 2; k++)
			for (int again = 0; again < 5; again++)
				sum_norm(&r, weights, shapes[s].rows, shapes[s].width, k, h[k], out[k]);
		for (uint32_t i = 0; i < ranks; i++)
			for (int what = 0; what < 2; what++) {
				unsigned char *const *const two[] = {what ? out[0] : h[0], what ? out[1] : h[1]};
				must(r.d[i]->ops->download(r.d[i], r.want, two[0][i], n * r.size));
				must(r.d[i]->ops->download(r.d[i], r.host, two[1][i], n * r.size));
				must(r.d[i]->ops->wait(r.d[i]));
				for (size_t k = 0; k < n; k++)
					if (memcmp(r.host + k * r.size, r.want + k * r.size, r.size))
						FAIL("%s of %zu x %zu, %u ranks: element %zu of rank %u is %g and not %g",
						     what ? "norm" : "sum", shapes[s].rows, shapes[s].width, ranks, k, i,
						     (double)element(&r, r.host, k), (double)element(&r, r.want, k));
			}
	}
	for (uint32_t i = 0; i < ranks; i++) {
		for (int k = 0; k < 2; k++) {
			r.d[i]->ops->release(r.d[i], h[k][i]);
			r.d[i]->ops->release(r.d[i], out[k][i]);
		}
		r.d[i]->ops->release(r.d[i], weights[i]);
	}
	must(r.c[0]->ops->check(r.c[0]));
	close_rig(&r);
}

static void test_norms(void)
{
	for (uint32_t ranks = 2; ranks <= 4; ranks++) {
		check_norms(ranks, MX_F32);
		check_norms(ranks, MX_BF16);
	}
}

/* Small and large sums by turns, ranks that come late, and a look at the sums at times. */
static void test_late_ranks(void)
{
	static const size_t mix[] = {8, 4096, 300000, 100, 1 << 16, 700, 1 << 18};
	for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
		struct rig r;
		open_rig(&r, ranks, MX_BF16);
		fill(&r, 300000);
		for (uint32_t i = 0; i < 3000; i++) {
			const size_t n = mix[i % 7];
			sum(&r, 0, n, true);
			if (i % 50)
				continue;
			wait_all(&r);
			check_sums(&r, 0, n);
		}
		wait_all(&r);
		must(r.c[0]->ops->check(r.c[0]));
		close_rig(&r);
	}
}

static void test_recordings(void)
{
	struct mx_recording *recordings[MAX_RANKS];
	for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
		struct rig r;
		open_rig(&r, ranks, MX_BF16);
		for (uint32_t i = 0; i < ranks; i++) {
			struct mx_device *d = r.d[i];
			must(d->ops->record(d));
			must(d->ops->copy(d, r.x[i], r.from[i], 4096 * r.size));
			for (int k = 0; k < 3; k++) /* the last sum is of the copy */
				must(r.c[i]->ops->all_reduce(r.c[i], r.x[i], k ? 4096 : 300000));
			must(d->ops->copy(d, r.x[i], r.from[i], 4096 * r.size));
			must(r.c[i]->ops->all_reduce(r.c[i], r.x[i], 4096));
			must(d->ops->recorded(d, &recordings[i]));
		}
		for (uint32_t k = 0; k < 1000; k++) {
			if (k % 100 == 0) {
				wait_all(&r);
				fill(&r, 4096);
			}
			for (uint32_t i = 0; i < ranks; i++) {
				if (rng_next(&r.rng) % 4 == 0) {
					must(mx_cuda_base(r.d[i])->bind(r.d[i]));
					CHECK(!launch_delay(mx_cuda_base(r.d[i])->stream, 30));
				}
				must(r.d[i]->ops->replay(r.d[i], recordings[i]));
			}
			if (k % 100 != 99)
				continue;
			wait_all(&r);
			check_sums(&r, 0, 4096);
		}
		sum(&r, 0, 4096, false); /* behind recordings */
		wait_all(&r);
		check_sums(&r, 0, 4096);
		for (uint32_t i = 0; i < ranks; i++)
			r.d[i]->ops->forget(r.d[i], recordings[i]);
		must(r.c[0]->ops->check(r.c[0]));
		close_rig(&r);
	}
}

/* ---- copies ---- */

static void download(struct rig *r, uint32_t rank, size_t bytes)
{
	must(r->d[rank]->ops->download(r->d[rank], r->host, r->x[rank], bytes));
	must(r->d[rank]->ops->wait(r->d[rank]));
}

/* Puts bytes that tell rank and place into `from`. */
static void fill_bytes(struct rig *r, size_t bytes)
{
	for (uint32_t k = 0; k < r->ranks; k++) {
		for (size_t i = 0; i < bytes; i++)
			r->host[i] = (unsigned char)(i * 7 + i / 251 + k * 31);
		must(r->d[k]->ops->upload(r->d[k], r->from[k], r->host, bytes));
		must(r->d[k]->ops->wait(r->d[k]));
	}
}

static void check_bytes(const unsigned char *x, uint32_t rank, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (x[i] != (unsigned char)(i * 7 + i / 251 + rank * 31))
			FAIL("byte %zu of rank %u", i, rank);
}

static void check_copies(struct rig *r, size_t bytes)
{
	fill_bytes(r, bytes);
	for (uint32_t i = 0; i < r->ranks; i++)
		must(r->c[i]->ops->all_gather(r->c[i], r->from[i], bytes, r->x[i]));
	for (uint32_t i = 0; i < r->ranks; i++) {
		download(r, i, r->ranks * bytes);
		for (uint32_t k = 0; k < r->ranks; k++)
			check_bytes(r->host + k * bytes, k, bytes);
	}
	for (uint32_t i = 0; i < r->ranks; i++) {
		must(r->d[i]->ops->copy(r->d[i], r->x[i], r->from[i], bytes));
		must(r->c[i]->ops->broadcast(r->c[i], 1, r->x[i], bytes));
	}
	for (uint32_t i = 0; i < r->ranks; i++) {
		download(r, i, bytes);
		check_bytes(r->host, 1, bytes);
	}
	for (uint32_t i = 1; i < r->ranks; i++) { /* all to rank 0, by turns */
		must(r->c[i]->ops->send(r->c[i], 0, r->from[i], bytes));
		must(r->c[0]->ops->recv(r->c[0], i, r->x[0], bytes));
		download(r, 0, bytes);
		check_bytes(r->host, i, bytes);
	}
	for (uint32_t i = 0; i < r->ranks; i++)
		must(r->c[i]->ops->barrier(r->c[i]));
	wait_all(r);
}

/* Columns of unequal numbers, as logits have them. */
static void check_columns(struct rig *r, size_t n, size_t cols)
{
	const size_t ld = (cols + 15) / 16 * 16;
	float *host = (float *)(void *)r->host;
	for (uint32_t i = 0; i < r->ranks; i++) {
		const size_t first = cols * i / r->ranks, end = cols * (i + 1) / r->ranks;
		for (size_t row = 0; row < n; row++)
			for (size_t k = first; k < end; k++)
				host[row * ld + k - first] = (float)(row * cols + k);
		must(r->d[i]->ops->upload(r->d[i], r->x[i], host, n * ld * sizeof *host));
		must(r->d[i]->ops->wait(r->d[i]));
	}
	for (uint32_t i = 0; i < r->ranks; i++) {
		const size_t first = cols * i / r->ranks, end = cols * (i + 1) / r->ranks;
		float *x = (float *)(void *)r->x[i];
		must(r->c[i]->ops->gather_columns(r->c[i], 0, x, ld, n, first, end - first, x, ld));
	}
	wait_all(r);
	download(r, 0, n * ld * sizeof *host);
	for (size_t row = 0; row < n; row++)
		for (size_t k = 0; k < cols; k++)
			CHECK(host[row * ld + k] == (float)(row * cols + k));
}

static void test_copies(void)
{
	for (uint32_t ranks = 2; ranks <= 4; ranks += 2) {
		struct rig r;
		open_rig(&r, ranks, MX_F32);
		check_copies(&r, 1);
		check_copies(&r, 1000);
		check_copies(&r, 64 << 10);
		check_copies(&r, 1000004);
		check_columns(&r, 1, 320);
		check_columns(&r, 5, 1001);
		check_columns(&r, 16, 32000);
		must(r.c[0]->ops->check(r.c[0]));
		close_rig(&r);
	}
}

/* ---- partials of attention ---- */

struct shape {
	uint32_t rows, heads, dim, out;
	bool sinks;
};

static size_t record_at(const struct shape *s, uint32_t to, uint32_t i)
{
	return ((size_t)to * s->rows * s->heads + i) * (s->dim + 4);
}

/* Gives the ranks `of` random partials in `from`, of which some have no keys, and computes in
 * `want` [ranks][rows][heads][out] what they are to find. The first ranks have sinks behind them.
 */
static void fill_partials(struct rig *r, const struct shape *s, uint32_t first, uint32_t ranks,
                          double *want)
{
	const uint32_t all = s->rows * s->heads;
	const size_t n = record_at(s, ranks, 0);
	float *x[MAX_RANKS];
	CHECK(n + s->heads <= MOST);
	for (uint32_t k = 0; k < ranks; k++) {
		x[k] = calloc(n + s->heads, sizeof(float));
		CHECK(x[k]);
		for (size_t i = 0; i < n; i++)
			x[k][i] = (float)rng_normal(&r->rng);
		for (uint32_t i = 0; i < ranks * all; i++) {
			float *o = x[k] + record_at(s, 0, i), *m = o + s->dim;
			m[0] *= 20;
			m[1] = 1 + m[1] * m[1];
			if ((k + i) % ranks && rng_next(&r->rng) % 4 == 0) { /* no keys */
				memset(o, 0, s->dim * sizeof *o);
				m[0] = -INFINITY;
				m[1] = 0;
			}
		}
		for (uint32_t h = 0; h < s->heads; h++)
			x[k][n + h] = (float)h - 2;
		memcpy(r->host, x[k], (n + s->heads) * sizeof(float));
		struct mx_device *d = r->d[first + k];
		must(d->ops->upload(d, r->x[first + k], r->host, (n + s->heads) * sizeof(float)));
		must(d->ops->wait(d));
	}
	for (uint32_t to = 0; to < ranks; to++)
		for (uint32_t i = 0; i < all; i++) {
			const size_t at = record_at(s, to, i);
			double top = -INFINITY, l = 0;
			for (uint32_t k = 0; k < ranks; k++)
				top = fmax(top, (double)x[k][at + s->dim]);
			for (uint32_t k = 0; k < ranks; k++)
				l += (double)x[k][at + s->dim + 1] * exp2((double)x[k][at + s->dim] - top);
			if (s->sinks)
				l += exp2(((double)(i % s->heads) - 2) * 1.4426950408889634 - top);
			for (uint32_t e = 0; e < s->out; e++) {
				double o = 0;
				for (uint32_t k = 0; k < ranks; k++)
					o += (double)x[k][at + e] * exp2((double)x[k][at + s->dim] - top);
				want[((size_t)to * all + i) * s->out + e] = o / l;
			}
		}
	for (uint32_t k = 0; k < ranks; k++)
		free(x[k]);
}

static void fold(struct rig *r, const struct shape *s, uint32_t first, uint32_t ranks,
                 struct mx_comm *const *comms)
{
	for (uint32_t k = 0; k < ranks; k++) {
		const float *x = (const float *)(void *)r->x[first + k];
		const struct mx_partials p = {.x = x,
		                              .rows = s->rows,
		                              .heads = s->heads,
		                              .dim = s->dim,
		                              .sinks = s->sinks ? x + record_at(s, ranks, 0) : NULL,
		                              .y = r->from[first + k],
		                              .ldy = s->heads * s->out + 3,
		                              .out = s->out};
		struct mx_device *d = r->d[first + k];
		if (rng_next(&r->rng) % 3 == 0) {
			must(mx_cuda_base(d)->bind(d));
			CHECK(!launch_delay(mx_cuda_base(d)->stream, (uint32_t)(rng_next(&r->rng) % 40)));
		}
		must(comms[k]->ops->fold_partials(comms[k], &p));
	}
}

/* Compares what the ranks found; what lies between the rows is not written. */
static void check_folds(struct rig *r, const struct shape *s, uint32_t first, uint32_t ranks,
                        const double *want)
{
	const size_t ld = s->heads * s->out + 3, n = s->rows * ld;
	for (uint32_t k = 0; k < ranks; k++) {
		struct mx_device *d = r->d[first + k];
		must(d->ops->download(d, r->host, r->from[first + k], n * r->size));
		must(d->ops->wait(d));
		for (size_t i = 0; i < n; i++) {
			const size_t row = i / ld, e = i % ld;
			const double got = (double)element(r, r->host, i);
			if (e >= ld - 3) {
				CHECK(isnan(got));
				continue;
			}
			const double to = want[(k * s->rows + row) * s->heads * s->out + e];
			const double most = (r->dtype == MX_F32 ? 2e-5 : 5e-3) * (1 + fabs(to));
			if (!(fabs(got - to) <= most))
				FAIL("%u ranks, %u x %u x %u: row %zu, element %zu of rank %u is %g and not %g",
				     ranks, s->rows, s->heads, s->dim, row, e, k, got, to);
		}
	}
}

static void check_partials(struct rig *r, const struct shape *s, uint32_t first, uint32_t ranks,
                           struct mx_comm *const *comms)
{
	const size_t n = (size_t)s->rows * (s->heads * s->out + 3) * r->size;
	double *want = calloc((size_t)ranks * s->rows * s->heads * s->out, sizeof *want);
	unsigned char *before = malloc(n);
	CHECK(want && before);
	fill_partials(r, s, first, ranks, want);
	for (uint32_t k = 0; k < ranks; k++) {
		memset(r->host, 0xff, n);
		must(r->d[first + k]->ops->upload(r->d[first + k], r->from[first + k], r->host, n));
		must(r->d[first + k]->ops->wait(r->d[first + k]));
	}
	for (int again = 0; again < 5; again++) { /* the same bits, whoever comes late */
		fold(r, s, first, ranks, comms);
		for (uint32_t k = 0; k < ranks; k++)
			must(r->d[first + k]->ops->wait(r->d[first + k]));
		must(r->d[first]->ops->download(r->d[first], r->host, r->from[first], n));
		must(r->d[first]->ops->wait(r->d[first]));
		CHECK(!again || !memcmp(before, r->host, n));
		memcpy(before, r->host, n);
	}
	check_folds(r, s, first, ranks, want);
	must(comms[0]->ops->check(comms[0]));
	free(before);
	free(want);
}

static void test_partials(void)
{
	static const struct shape shapes[] = {{1, 8, 128, 128, false}, {1, 1, 4, 3, true},
	                                      {3, 5, 64, 64, true},    {7, 2, 256, 250, false},
	                                      {2, 3, 512, 512, true},  {300, 4, 128, 128, false},
	                                      {600, 2, 128, 120, true}};
	for (uint32_t ranks = 2; ranks <= 4; ranks++)
		for (int narrow = 0; narrow < 2; narrow++) {
			struct rig r;
			open_rig(&r, ranks, narrow ? MX_BF16 : MX_F32);
			for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
				check_partials(&r, &shapes[i], 0, ranks, r.c);
			close_rig(&r);
		}
}

/* Ranks 0, 1 and 2, 3 have communicators of their own, which end with that of all. */
static void test_parts(void)
{
	static const struct shape one = {2, 8, 128, 128, true};
	struct mx_comm *parts[4];
	struct mx_err err = {0};
	struct rig r;
	open_rig(&r, 4, MX_BF16);
	for (uint32_t i = 0; i < 4; i += 2)
		if (mx_device_comm_part(MX_DEVICE_CUDA, r.c + i, 2, parts + i, &err) != MX_OK)
			FAIL("%s", err.text);
	for (uint32_t i = 0; i < 4; i++)
		CHECK(parts[i]->rank == i % 2 && parts[i]->ranks == 2);
	for (int again = 0; again < 20; again++) {
		check_partials(&r, &one, again % 2 * 2, 2, parts + again % 2 * 2);
		fill(&r, 4096);
		sum(&r, 0, 4096, true);
		wait_all(&r);
		check_sums(&r, 0, 4096);
	}
	r.c[3]->ops->abort(r.c[3]);
	for (uint32_t i = 0; i < 4; i++) {
		CHECK(parts[i]->ops->check(parts[i]) == MX_E_DEVICE);
		parts[i]->ops->destroy(parts[i]);
	}
	close_rig(&r);
}

/* ---- a rank that is lost ---- */

/* What is asked for before and behind the end returns, soon and without results. */
static void check_end(struct rig *r, uint64_t begin, double most_s)
{
	wait_all(r);
	const double s = (double)(mx_now_ns() - begin) * 1e-9;
	printf("  ended after %.3f s\n", s);
	CHECK(s < most_s);
	CHECK(r->c[0]->ops->check(r->c[0]) == MX_E_DEVICE);
	CHECK(r->c[1]->ops->all_reduce(r->c[1], r->x[1], 8) == MX_E_DEVICE);
	close_rig(r);
}

static void test_lost_rank(void)
{
	struct rig r;
	open_rig(&r, 2, MX_BF16);
	uint64_t begin = mx_now_ns();
	for (int i = 0; i < 50; i++) /* rank 1 never comes */
		must(r.c[0]->ops->all_reduce(r.c[0], r.x[0], i % 2 ? 4096 : 300000));
	check_end(&r, begin, 5);

	open_rig(&r, 2, MX_BF16);
	begin = mx_now_ns();
	must(r.c[0]->ops->all_reduce(r.c[0], r.x[0], 4096));
	must(r.c[0]->ops->all_gather(r.c[0], r.x[0], 4096, r.from[0]));
	r.c[1]->ops->abort(r.c[1]);
	check_end(&r, begin, 0.5);

	open_rig(&r, 2, MX_BF16); /* messages of unequal sizes */
	begin = mx_now_ns();
	must(r.c[0]->ops->send(r.c[0], 1, r.x[0], 4096));
	must(r.c[1]->ops->recv(r.c[1], 0, r.x[1], 4000));
	check_end(&r, begin, 0.5);
}

/* Runs the delay once. The test's kernel is loaded by its first launch, which waits until the GPU
 * is idle: never, while a rank waits for one that is to be late. */
static void load_delay(struct mx_device *d)
{
	must(mx_cuda_base(d)->bind(d));
	CHECK(!launch_delay(mx_cuda_base(d)->stream, 1));
	must(d->ops->wait(d));
}

int main(void)
{
	const struct mx_device_options options = {
		.cuda = {.act_dtype = MX_F32, .max_samples = 2, .vocab = 100}};
	const char *names[MAX_RANKS];
	struct mx_device *d;
	struct mx_err err = {0};
	setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	mx_log_set_level(MX_LOG_ERROR);
	const size_t n = rank_devices("cuda:0", names, MAX_RANKS);
	for (size_t i = 0; i < n && i < MAX_RANKS; i++) {
		if (mx_device_open(names[i], &options, &d, &err) != MX_OK) {
			printf("no GPU: %s\n", err.text);
			return 77;
		}
		load_delay(d);
		d->ops->destroy(d);
	}
	test_sums();
	test_sums_of_f32();
	printf("sums are right\n");
	test_norms();
	printf("sums with norms are right\n");
	test_copies();
	printf("copies are right\n");
	test_partials();
	printf("partials are right\n");
	test_parts();
	printf("communicators of some ranks are right\n");
	test_late_ranks();
	printf("sums are right while ranks are late\n");
	test_recordings();
	printf("recordings are right\n");
	test_lost_rank();
	return 0;
}
