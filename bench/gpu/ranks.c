/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/gpu/ranks times what the ranks of one model do together, on cuda:0, cuda:1 ...: sums of
 * bf16 (tensor parallel), alone and with the residual add and the norm behind them, partials of
 * attention (context parallel), states that one rank hands to the next, and the columns of logits.
 * Each is recorded many times in a row and replayed on every GPU, as in a step; the time is the
 * wall clock's, of all ranks, for one of them.
 *
 *   bench/gpu/ranks [RANKS]     2 by default
 *
 * Ranks share a GPU if there are fewer: then CUDA_MODULE_LOADING=EAGER is needed, and the times say
 * nothing.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/comm.h"
#include "device/open.h"
#include "tests/rank_devices.h"

enum { MAX_RANKS = 8, REPEATS = 200, TIMES = 9, WIDTH = 4096, VOCAB = 128256 };

#define BYTES ((size_t)128 << 20) /* more than 64 rows of logits */

struct rig {
	uint32_t ranks;
	struct mx_device *d[MAX_RANKS];
	struct mx_comm *c[MAX_RANKS];
	unsigned char *x[MAX_RANKS], *h[MAX_RANKS]; /* [BYTES] */
};

static void must(mx_status st, const char *what)
{
	if (st == MX_OK)
		return;
	fprintf(stderr, "ranks: %s: %s\n", what, mx_status_str(st));
	exit(1);
}

typedef mx_status call_f(const struct rig *r, uint32_t rank, size_t n);

static mx_status sum(const struct rig *r, uint32_t rank, size_t bytes)
{
	return r->c[rank]->ops->all_reduce(r->c[rank], r->x[rank], bytes / 2);
}

static mx_status sum_norm(const struct rig *r, uint32_t rank, size_t rows)
{
	const float *weights = (const float *)(const void *)(r->x[rank] + BYTES / 2);
	return r->c[rank]->ops->all_reduce_norm(r->c[rank], r->x[rank], r->h[rank], weights, 1e-5f,
	                                        rows, WIDTH, r->h[rank] + BYTES / 2);
}

/* The sum, then the norm as an operator of its own. */
static mx_status sum_then_norm(const struct rig *r, uint32_t rank, size_t rows)
{
	const float *weights = (const float *)(const void *)(r->x[rank] + BYTES / 2);
	mx_status st = sum(r, rank, rows * WIDTH * 2);
	return st == MX_OK ? r->d[rank]->ops->add_rmsnorm(r->d[rank], r->h[rank], r->x[rank], weights,
	                                                  1e-5f, rows, WIDTH, r->h[rank] + BYTES / 2)
	                   : st;
}

static mx_status logits(const struct rig *r, uint32_t rank, size_t rows)
{
	float *x = (float *)(void *)r->x[rank];
	const size_t cols = VOCAB / r->ranks, first = rank * cols;
	return r->c[rank]->ops->gather_columns(r->c[rank], 0, rank ? x : x + first, VOCAB, rows, first,
	                                       cols, x, VOCAB);
}

/* Partials of heads of 128, of which each rank finishes its part. n: of all ranks together. */
static mx_status fold(const struct rig *r, uint32_t rank, size_t heads)
{
	const struct mx_partials p = {.x = (const float *)(const void *)r->x[rank],
	                              .rows = heads > 16 ? heads / 16 : 1,
	                              .heads = (heads > 16 ? 16 : (uint32_t)heads) / r->ranks,
	                              .dim = 128,
	                              .y = r->h[rank],
	                              .ldy = 16 * 128 / r->ranks,
	                              .out = 128};
	return r->c[rank]->ops->fold_partials(r->c[rank], &p);
}

/* Each rank but the first receives from the one before it, each but the last sends to the next: so
 * many hops, one behind the other. */
static mx_status hand_on(const struct rig *r, uint32_t rank, size_t bytes)
{
	struct mx_comm *c = r->c[rank];
	mx_status st = rank ? c->ops->recv(c, rank - 1, r->x[rank], bytes) : MX_OK;
	return st == MX_OK && rank + 1 < r->ranks ? c->ops->send(c, rank + 1, r->x[rank], bytes) : st;
}

/* Prints the time of a call. */
static void bench(const struct rig *r, const char *name, call_f *call, size_t n)
{
	struct mx_recording *recordings[MAX_RANKS];
	double best = 1e9;
	for (uint32_t i = 0; i < r->ranks; i++) {
		must(r->d[i]->ops->record(r->d[i]), "record");
		for (int k = 0; k < REPEATS; k++)
			must(call(r, i, n), name);
		must(r->d[i]->ops->recorded(r->d[i], &recordings[i]), "record");
	}
	for (int t = 0; t < TIMES; t++) {
		const uint64_t begin = mx_now_ns();
		for (uint32_t i = 0; i < r->ranks; i++)
			must(r->d[i]->ops->replay(r->d[i], recordings[i]), "replay");
		for (uint32_t i = 0; i < r->ranks; i++)
			must(r->d[i]->ops->wait(r->d[i]), name);
		const double us = (double)(mx_now_ns() - begin) * 1e-3 / REPEATS;
		best = us < best ? us : best;
	}
	must(r->c[0]->ops->check(r->c[0]), name);
	printf("%-24s %8zu %9.2f us\n", name, n, best);
	fflush(stdout);
	for (uint32_t i = 0; i < r->ranks; i++)
		r->d[i]->ops->forget(r->d[i], recordings[i]);
}

static void open_rig(struct rig *r, uint32_t ranks)
{
	static const char *const apart[MAX_RANKS] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3",
	                                             "cuda:4", "cuda:5", "cuda:6", "cuda:7"};
	const struct mx_device_options options = {
		.cuda = {.act_dtype = MX_BF16, .max_samples = 2, .vocab = 100}};
	const char *given[MAX_RANKS];
	struct mx_err err = {0};
	mx_status st = MX_OK;
	*r = (struct rig){.ranks = ranks};
	rank_devices(NULL, given, MAX_RANKS);
	for (uint32_t i = 0; i < ranks && st == MX_OK; i++)
		st = mx_device_open(given[i] ? given[i] : apart[i], &options, &r->d[i], &err);
	if (st == MX_OK)
		st = mx_device_comm(r->d, ranks, r->c, &err);
	if (st != MX_OK) {
		fprintf(stderr, "ranks: %s\n", err.text);
		exit(1);
	}
	for (uint32_t i = 0; i < ranks; i++) {
		const struct mx_ops *o = r->d[i]->ops;
		must(o->alloc(r->d[i], BYTES, (void **)&r->x[i]), "memory");
		must(o->alloc(r->d[i], BYTES, (void **)&r->h[i]), "memory");
		must(o->zero(r->d[i], r->x[i], BYTES), "memory");
		must(o->zero(r->d[i], r->h[i], BYTES), "memory");
	}
}

static void close_rig(struct rig *r)
{
	for (uint32_t i = 0; i < r->ranks; i++) {
		r->d[i]->ops->release(r->d[i], r->x[i]);
		r->d[i]->ops->release(r->d[i], r->h[i]);
	}
	for (uint32_t i = 0; i < r->ranks; i++)
		r->c[i]->ops->destroy(r->c[i]);
	for (uint32_t i = 0; i < r->ranks; i++)
		r->d[i]->ops->destroy(r->d[i]);
}

int main(int argc, char **argv)
{
	static const size_t bytes[] = {8 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10,
	                               1 << 20, 2 << 20,  16 << 20, 64 << 20,  128 << 20};
	static const size_t states[] = {64 << 10, 2 << 20, 16 << 20, 64 << 20};
	static const size_t rows[] = {1, 4, 16, 32, 64};
	const unsigned long ranks = argc > 1 ? strtoul(argv[1], NULL, 10) : 2;
	struct rig r;
	if (argc > 2 || ranks < 2 || ranks > MAX_RANKS) {
		fprintf(stderr, "usage: bench/gpu/ranks [RANKS], 2 .. %d\n", MAX_RANKS);
		return 2;
	}
	mx_log_set_level(MX_LOG_WARNING);
	open_rig(&r, (uint32_t)ranks);
	printf("%lu ranks, one call of %d in a recording\n", ranks, REPEATS);
	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
		bench(&r, "sum, bytes", sum, bytes[i]);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		bench(&r, "sum + norm, rows", sum_then_norm, rows[i]);
		if (r.c[0]->ops->all_reduce_norm)
			bench(&r, "sum and norm, rows", sum_norm, rows[i]);
	}
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		bench(&r, "partials, rows of 16", fold, 16 * rows[i]);
	bench(&r, "partials, rows of 16", fold, 16 * 512);
	bench(&r, "partials, rows of 16", fold, 16 * 2048);
	for (size_t i = 0; i < sizeof states / sizeof *states; i++)
		bench(&r, "states, bytes", hand_on, states[i]);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		bench(&r, "columns of logits, rows", logits, rows[i]);
	close_rig(&r);
	return 0;
}
