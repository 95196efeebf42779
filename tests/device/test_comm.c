/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the communication of ranks that are threads: sums in the order of the ranks whichever comes
 * first, copies, messages, and that nobody waits for a rank that has given up. Random inputs come
 * from one seed, printed; MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "device/cpu/comm.h"
#include "device/cpu/cpu.h"
#include "tests/rng.h"

#define RANKS 5

struct rank {
	struct mx_comm *comm;
	struct mx_comm *all; /* of all ranks, where comm is that of a part */
	uint32_t ranks;
	mx_status (*run)(struct rank *r);
	mx_status status;
	struct rng rng; /* of the rank's delays */
	float *x, *y;
	size_t n;
	pthread_t thread;
};

static struct mx_device *devices[RANKS];
static uint64_t seed;

static int setup(void **state)
{
	const char *given = getenv("MIXD_TEST_SEED");
	(void)state;
	seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < RANKS; i++) /* the first has a worker beside it */
		assert_int_equal(mx_cpu_create(i ? 1 : 2, mx_cpu_isa(), 1, 64, &devices[i], NULL), MX_OK);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < RANKS; i++)
		devices[i]->ops->destroy(devices[i]);
	return 0;
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	r->status = r->run(r);
	return NULL;
}

/* Comes late now and then: by so much that the others sleep. */
static void dawdle(struct rank *r)
{
	if (rng_next(&r->rng) % 16)
		return;
	const struct timespec t = {.tv_nsec = (long)(rng_next(&r->rng) % 200000)};
	nanosleep(&t, NULL);
}

/* Runs ranks [n] of n floats each, which the caller has filled, to their end. */
static void run_ranks(struct rank *ranks, uint32_t n, mx_status (*run)(struct rank *r))
{
	struct mx_comm *comms[RANKS];
	assert_int_equal(mx_cpu_comm_create(devices, n, comms), MX_OK);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(comms[i]->rank, i);
		assert_int_equal(comms[i]->ranks, n);
		ranks[i].comm = comms[i];
		ranks[i].ranks = n;
		ranks[i].run = run;
		ranks[i].rng.state = seed + i + 1;
	}
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(ranks[i].thread, NULL);
	for (uint32_t i = 0; i < n; i++)
		comms[i]->ops->destroy(comms[i]);
}

static float *floats(size_t n)
{
	float *p = malloc((n + 1) * sizeof *p);
	assert_non_null(p);
	return p;
}

/* ---- sums ---- */

#define SUMS 40

static mx_status sum(struct rank *r)
{
	mx_status st = MX_OK;
	for (int i = 0; i < SUMS && st == MX_OK; i++) {
		memcpy(r->y, r->x, r->n * sizeof *r->x);
		dawdle(r);
		st = r->comm->ops->all_reduce(r->comm, r->y, r->n);
	}
	return st;
}

static void test_all_reduce(void **state)
{
	static const size_t sizes[] = {0, 1, 15, 64, 1025, 40000};
	struct rng rng = {.state = seed};
	(void)state;
	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
		for (uint32_t n_ranks = 1; n_ranks <= RANKS; n_ranks++) {
			struct rank ranks[RANKS];
			size_t n = sizes[s];
			for (uint32_t i = 0; i < n_ranks; i++) {
				ranks[i] = (struct rank){.x = floats(n), .y = floats(n), .n = n};
				for (size_t k = 0; k < n; k++) /* so that the order of a sum shows */
					ranks[i].x[k] = rng_normal(&rng) * (k % 3 ? 1 : 1e4F);
			}
			run_ranks(ranks, n_ranks, sum);
			for (size_t k = 0; k < n; k++) {
				volatile float want = ranks[0].x[k];
				for (uint32_t i = 1; i < n_ranks; i++)
					want += ranks[i].x[k];
				for (uint32_t i = 0; i < n_ranks; i++)
					assert_true(ranks[i].y[k] == want);
			}
			for (uint32_t i = 0; i < n_ranks; i++) {
				assert_int_equal(ranks[i].status, MX_OK);
				free(ranks[i].x);
				free(ranks[i].y);
			}
		}
}

/* ---- copies ---- */

static mx_status copy(struct rank *r)
{
	const struct mx_comm_ops *ops = r->comm->ops;
	const uint32_t me = r->comm->rank;
	float own[7], all[RANKS * 7], shared[3], wide[4 * 20];
	for (int i = 0; i < 7; i++)
		own[i] = (float)(me * 100 + (unsigned)i);
	mx_status st = ops->all_gather(r->comm, own, sizeof own, all);
	for (uint32_t i = 0; i < r->ranks * 7 && st == MX_OK; i++)
		st = all[i] == (float)(i / 7 * 100 + i % 7) ? MX_OK : MX_E_INTERNAL;
	for (uint32_t root = 0; root < r->ranks && st == MX_OK; root++) {
		memcpy(shared, own, sizeof shared);
		dawdle(r);
		st = ops->broadcast(r->comm, root, shared, sizeof shared);
		if (st == MX_OK && shared[2] != (float)(root * 100 + 2))
			st = MX_E_INTERNAL;
	}
	float to[RANKS][3], from[RANKS][3];
	for (uint32_t i = 0; i < r->ranks; i++)
		for (uint32_t k = 0; k < 3; k++)
			to[i][k] = (float)(me * 100 + i * 10 + k);
	dawdle(r);
	if (st == MX_OK)
		st = ops->all_to_all(r->comm, to, sizeof to[0], from);
	for (uint32_t i = 0; i < r->ranks * 3 && st == MX_OK; i++)
		st = from[i / 3][i % 3] == (float)(i / 3 * 100 + me * 10 + i % 3) ? MX_OK : MX_E_INTERNAL;
	/* rank r has columns 3 r .. 3 r + 2, or 3 r only if it is the last, of 2 rows */
	const size_t cols = me + 1 == r->ranks ? 1 : 3, root = r->ranks / 2;
	memset(wide, 0, sizeof wide);
	if (st == MX_OK)
		st = ops->gather_columns(r->comm, (uint32_t)root, own, 4, 2, 3 * me, cols, wide, 20);
	for (uint32_t i = 0; i < 3 * (r->ranks - 1) + 1 && me == root && st == MX_OK; i++)
		for (unsigned row = 0; row < 2; row++)
			if (wide[row * 20 + i] != (float)(i / 3 * 100 + row * 4 + i % 3))
				st = MX_E_INTERNAL;
	return st == MX_OK ? ops->barrier(r->comm) : st;
}

/* Each rank but the last begins with a send to the next; the last one's message closes the ring. */
static mx_status ring(struct rank *r)
{
	const struct mx_comm_ops *ops = r->comm->ops;
	const uint32_t me = r->comm->rank, next = (me + 1) % r->ranks;
	const uint32_t before = (me + r->ranks - 1) % r->ranks;
	mx_status st = MX_OK;
	for (unsigned i = 0; i < 20 && st == MX_OK; i++) {
		uint32_t mine = me * 1000 + i, got = 0;
		bool first = me + 1 < r->ranks;
		dawdle(r);
		if (first)
			st = ops->send(r->comm, next, &mine, sizeof mine);
		if (st == MX_OK)
			st = ops->recv(r->comm, before, &got, sizeof got);
		if (st == MX_OK && !first)
			st = ops->send(r->comm, next, &mine, sizeof mine);
		if (st == MX_OK && got != before * 1000 + i)
			st = MX_E_INTERNAL;
	}
	return st;
}

/* What rank 0 sends is longer than what rank 1 expects; then both agree. */
static mx_status differ(struct rank *r)
{
	const struct mx_comm_ops *ops = r->comm->ops;
	char bytes[8] = {0};
	if (ops->send(r->comm, r->comm->rank, bytes, 1) != MX_E_INVALID ||
	    ops->recv(r->comm, r->ranks, bytes, 1) != MX_E_INVALID)
		return MX_E_INTERNAL;
	mx_status st =
		r->comm->rank ? ops->recv(r->comm, 0, bytes, 4) : ops->send(r->comm, 1, bytes, 8);
	if (st != MX_E_INVALID)
		return MX_E_INTERNAL;
	return r->comm->rank ? ops->recv(r->comm, 0, bytes, 8) : ops->send(r->comm, 1, bytes, 8);
}

static void expect_ok(uint32_t n, mx_status (*run)(struct rank *r))
{
	struct rank ranks[RANKS] = {0};
	run_ranks(ranks, n, run);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(ranks[i].status, MX_OK);
}

static void test_copies(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= RANKS; n++)
		expect_ok(n, copy);
}

static void test_messages(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= RANKS; n++)
		expect_ok(n, ring);
	expect_ok(2, differ);
}

/* ---- a rank that gives up ---- */

/* The last rank aborts instead of the third sum, when the others wait already; the others then try
 * once more. */
static mx_status give_up(struct rank *r)
{
	const struct mx_comm_ops *ops = r->comm->ops;
	const struct timespec late = {.tv_nsec = 20000000};
	float x[64] = {0};
	for (int i = 0; i < 2; i++)
		if (ops->all_reduce(r->comm, x, 64) != MX_OK)
			return MX_E_INTERNAL;
	if (r->comm->rank + 1 == r->ranks) {
		nanosleep(&late, NULL);
		ops->abort(r->comm);
	} else if (ops->all_reduce(r->comm, x, 64) != MX_E_DEVICE) {
		return MX_E_INTERNAL;
	}
	return ops->broadcast(r->comm, 0, x, sizeof x);
}

/* The same while one waits for a message. */
static mx_status give_up_message(struct rank *r)
{
	const struct mx_comm_ops *ops = r->comm->ops;
	const struct timespec late = {.tv_nsec = 20000000};
	char byte = 0;
	if (!r->comm->rank)
		return ops->recv(r->comm, 1, &byte, 1);
	if (r->comm->rank == 2)
		return ops->send(r->comm, 1, &byte, 1);
	nanosleep(&late, NULL);
	ops->abort(r->comm);
	return MX_E_DEVICE;
}

/* ---- parts ---- */

static mx_status (*part_run)(struct rank *r);

/* Four ranks are two parts of two: rank 0 makes their communicators, and hands them out. */
static mx_status in_parts(struct rank *r)
{
	struct mx_comm *own[4] = {0}, *parts[4], **at = parts;
	own[r->comm->rank] = r->comm;
	mx_status st = MX_OK;
	for (uint32_t i = 0; i < 4 && st == MX_OK; i++)
		st = r->comm->ops->broadcast(r->comm, i, &own[i], sizeof own[i]);
	for (uint32_t i = 0; i < 4 && st == MX_OK && !r->comm->rank; i += 2)
		st = mx_cpu_comm_part(own + i, 2, parts + i);
	if (st == MX_OK)
		st = r->comm->ops->broadcast(r->comm, 0, &at, sizeof(struct mx_comm **));
	struct mx_comm *part = st == MX_OK ? at[r->comm->rank] : NULL;
	if (st == MX_OK) /* `parts` belongs to rank 0's stack */
		st = r->comm->ops->barrier(r->comm);
	if (st == MX_OK && (part->rank != r->comm->rank % 2 || part->ranks != 2))
		st = MX_E_INTERNAL;
	struct rank inner = *r;
	inner.comm = part;
	inner.all = r->comm;
	if (st == MX_OK)
		st = part_run(&inner);
	if (part)
		part->ops->destroy(part);
	return st;
}

/* Sums within the part and over all, by turns. */
static mx_status sum_by_turns(struct rank *r)
{
	struct mx_comm *all = r->all;
	mx_status st = MX_OK;
	for (int i = 0; i < 50 && st == MX_OK; i++) {
		float x = (float)(all->rank + 1), y = x;
		dawdle(r);
		st = r->comm->ops->all_reduce(r->comm, &x, 1);
		if (st == MX_OK && i % 3 == 0)
			st = all->ops->all_reduce(all, &y, 1);
		if (st == MX_OK && (x != (all->rank < 2 ? 3 : 7) || (i % 3 == 0 && y != 10)))
			st = MX_E_INTERNAL;
	}
	return st;
}

/* One rank of the second part gives up while its neighbour waits in the part, another in the other
 * part, and the last one in that of all. */
static mx_status give_up_part(struct rank *r)
{
	struct mx_comm *all = r->all;
	const struct timespec late = {.tv_nsec = 20000000};
	float x = 1;
	if (all->rank == 0)
		return all->ops->all_reduce(all, &x, 1);
	if (all->rank < 3)
		return r->comm->ops->all_reduce(r->comm, &x, 1);
	nanosleep(&late, NULL);
	r->comm->ops->abort(r->comm);
	return all->ops->barrier(all);
}

static void expect_device(uint32_t n, mx_status (*run)(struct rank *r))
{
	struct rank ranks[RANKS] = {0};
	uint64_t begin = mx_now_ns();
	run_ranks(ranks, n, run);
	assert_true(mx_now_ns() - begin < 5000000000u);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(ranks[i].status, MX_E_DEVICE);
}

static void test_abort(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= RANKS; n++)
		expect_device(n, give_up);
	expect_device(3, give_up_message);
}

static void test_parts(void **state)
{
	(void)state;
	part_run = sum_by_turns;
	expect_ok(4, in_parts);
	part_run = give_up_part;
	expect_device(4, in_parts);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_reduce), cmocka_unit_test(test_copies),
		cmocka_unit_test(test_messages),   cmocka_unit_test(test_abort),
		cmocka_unit_test(test_parts),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
