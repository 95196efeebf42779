/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the communication of ranks of several hosts, here threads of one process that are connected
 * by pairs of sockets, with TLS too: sums of the ranks of a host, then of the hosts, in their
 * orders, whichever comes first; copies; that nobody waits for a rank or a host that has given up.
 * Random inputs come from one seed, printed; MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "device/cpu/comm.h"
#include "device/cpu/cpu.h"
#include "device/hosts/comm.h"
#include "tests/device/tls_pair.h"
#include "tests/rng.h"

#define MOST 6 /* ranks */

/* Hosts and ranks of each. */
static const uint32_t layouts[][2] = {{2, 1}, {2, 2}, {3, 1}, {3, 2}, {4, 1}, {2, 3}, {6, 1}};
#define N_LAYOUTS (sizeof layouts / sizeof *layouts)

struct rank {
	struct mx_comm *comm;
	uint32_t ranks, each;
	struct mx_hosts *hosts;
	mx_status (*run)(struct rank *r);
	mx_status status;
	struct rng rng;
	float *x, *y;
	size_t n;
	pthread_t thread;
};

static struct mx_device *devices[MOST];
static uint64_t seed;
static bool with_tls;

static int setup(void **state)
{
	const char *given = getenv("MIXD_TEST_SEED");
	(void)state;
	seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < MOST; i++)
		assert_int_equal(mx_cpu_create(1, mx_cpu_isa(), 1, 64, &devices[i], NULL), MX_OK);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < MOST; i++)
		devices[i]->ops->destroy(devices[i]);
	return 0;
}

static void connect_two(struct mx_channel out[2])
{
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	out[0] = mx_channel_of(fds[0]);
	out[1] = mx_channel_of(fds[1]);
	if (with_tls)
		assert_int_equal(tls_pair(fds, out), MX_OK);
}

/* Makes n hosts that are connected with host 0. */
static void connect_hosts(uint32_t n, struct mx_hosts **out)
{
	struct mx_channel data[MOST], control[MOST];
	for (uint32_t i = 1; i < n; i++) {
		struct mx_channel d[2], c[2];
		connect_two(d);
		connect_two(c);
		data[i - 1] = d[0];
		control[i - 1] = c[0];
		assert_int_equal(mx_hosts_of_channels(i, n, &d[1], &c[1], NULL, &out[i]), MX_OK);
	}
	assert_int_equal(mx_hosts_of_channels(0, n, data, control, NULL, &out[0]), MX_OK);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;
	r->status = r->run(r);
	return NULL;
}

static void dawdle(struct rank *r)
{
	if (rng_next(&r->rng) % 16)
		return;
	const struct timespec t = {.tv_nsec = (long)(rng_next(&r->rng) % 200000)};
	nanosleep(&t, NULL);
}

/* Runs `hosts` hosts of `each` ranks to their end. The caller has filled ranks[]. */
static void run_hosts(struct rank *ranks, uint32_t hosts, uint32_t each,
                      mx_status (*run)(struct rank *r))
{
	struct mx_hosts *h[MOST];
	struct mx_comm *local[MOST], *comms[MOST];
	const uint32_t n = hosts * each;
	connect_hosts(hosts, h);
	for (uint32_t i = 0; i < n; i += each) {
		assert_int_equal(mx_cpu_comm_create(devices + i, each, local + i), MX_OK);
		assert_int_equal(mx_hosts_comm_create(h[i / each], local + i, each, comms + i), MX_OK);
	}
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(comms[i]->rank, i);
		assert_int_equal(comms[i]->ranks, n);
		ranks[i].comm = comms[i];
		ranks[i].ranks = n;
		ranks[i].each = each;
		ranks[i].hosts = h[i / each];
		ranks[i].run = run;
		ranks[i].rng.state = seed + i + 1;
	}
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(ranks[i].thread, NULL);
	for (uint32_t i = 0; i < n; i++)
		comms[i]->ops->destroy(comms[i]);
	for (uint32_t i = 0; i < n; i++)
		local[i]->ops->destroy(local[i]);
	for (uint32_t i = 0; i < hosts; i++)
		mx_hosts_end(h[i]);
	for (uint32_t i = 0; i < hosts; i++)
		mx_hosts_destroy(h[i]);
}

static float *floats(size_t n)
{
	float *p = malloc((n + 1) * sizeof *p);
	assert_non_null(p);
	return p;
}

/* ---- sums ---- */

#define SUMS 4

static mx_status sum(struct rank *r)
{
	mx_status st = MX_OK;
	for (int i = 0; i < SUMS && st == MX_OK; i++) {
		memcpy(r->y, r->x, r->n * sizeof *r->x);
		dawdle(r);
		st = i % 2 ? r->comm->ops->all_reduce_f32(r->comm, r->y, r->n)
		           : r->comm->ops->all_reduce(r->comm, r->y, r->n);
	}
	return st;
}

/* The sum of element k: the ranks of each host in their order, then the hosts. */
static float want_sum(const struct rank *ranks, uint32_t hosts, uint32_t each, size_t k)
{
	volatile float all = 0;
	for (uint32_t h = 0; h < hosts; h++) {
		volatile float own = ranks[h * each].x[k];
		for (uint32_t i = 1; i < each; i++)
			own += ranks[h * each + i].x[k];
		all = h ? all + own : own;
	}
	return all;
}

static void test_all_reduce(void **state)
{
	struct rng rng = {.state = seed};
	(void)state;
	for (size_t l = 0; l < N_LAYOUTS; l++) {
		const uint32_t hosts = layouts[l][0], each = layouts[l][1], n_ranks = hosts * each;
		/* the last is more than one stage of 1 MiB, and not a multiple */
		const size_t sizes[] = {0, 1, 15, 64, rng_next(&rng) % 5000, 300001};
		for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
			struct rank ranks[MOST];
			const size_t n = sizes[s];
			for (uint32_t i = 0; i < n_ranks; i++) {
				ranks[i] = (struct rank){.x = floats(n), .y = floats(n), .n = n};
				for (size_t k = 0; k < n; k++) /* so that the order of a sum shows */
					ranks[i].x[k] = rng_normal(&rng) * (k % 3 ? 1 : 1e4F);
			}
			run_hosts(ranks, hosts, each, sum);
			for (uint32_t i = 0; i < n_ranks; i++)
				assert_int_equal(ranks[i].status, MX_OK);
			for (size_t k = 0; k < n; k++) {
				const float want = want_sum(ranks, hosts, each, k);
				for (uint32_t i = 0; i < n_ranks; i++)
					assert_true(ranks[i].y[k] == want);
			}
			for (uint32_t i = 0; i < n_ranks; i++) {
				free(ranks[i].x);
				free(ranks[i].y);
			}
		}
	}
}

/* ---- copies ---- */

/* Element k of what rank r has for rank `to`. */
static uint32_t word_of(uint32_t r, uint32_t to, size_t k)
{
	return (r * 31 + to) * 1000003u + (uint32_t)k * 7;
}

/* r->n words of each rank, in every way. */
static mx_status copy(struct rank *r)
{
	const struct mx_comm_ops *ops = r->comm->ops;
	const uint32_t me = r->comm->rank, ranks = r->ranks;
	const size_t n = r->n, bytes = n * sizeof(uint32_t);
	uint32_t *own = malloc(ranks * bytes + 4), *all = malloc(ranks * bytes + 4);
	mx_status st = own && all ? MX_OK : MX_E_NOMEM;
	for (size_t i = 0; i < ranks * n && st == MX_OK; i++)
		own[i] = word_of(me, (uint32_t)(i / n), i % n);
	dawdle(r);
	if (st == MX_OK)
		st = ops->all_gather(r->comm, own, bytes, all);
	for (size_t i = 0; i < ranks * n && st == MX_OK; i++)
		st = all[i] == word_of((uint32_t)(i / n), 0, i % n) ? MX_OK : MX_E_INTERNAL;
	dawdle(r);
	if (st == MX_OK)
		st = ops->all_to_all(r->comm, own, bytes, all);
	for (size_t i = 0; i < ranks * n && st == MX_OK; i++)
		st = all[i] == word_of((uint32_t)(i / n), me, i % n) ? MX_OK : MX_E_INTERNAL;
	for (uint32_t root = 0; root < ranks && st == MX_OK; root++) {
		memcpy(all, own, bytes);
		dawdle(r);
		st = ops->broadcast(r->comm, root, all, bytes);
		for (size_t i = 0; i < n && st == MX_OK; i++)
			st = all[i] == word_of(root, 0, i) ? MX_OK : MX_E_INTERNAL;
	}
	free(own);
	free(all);
	return st == MX_OK ? ops->barrier(r->comm) : st;
}

/* Each rank has 3 columns, the last only 1, of 5 rows; every rank is the root once. The root's x is
 * in its y, as the engine has it. */
static mx_status columns(struct rank *r)
{
	enum { ROWS = 5, LD = 3 * MOST + 2 };
	const struct mx_comm_ops *ops = r->comm->ops;
	const uint32_t me = r->comm->rank;
	const size_t cols = me + 1 == r->ranks ? 1 : 3;
	mx_status st = MX_OK;
	for (uint32_t root = 0; root < r->ranks && st == MX_OK; root++) {
		float y[ROWS * LD], own[ROWS * 4];
		for (size_t i = 0; i < ROWS * LD; i++)
			y[i] = -1;
		for (size_t i = 0; i < ROWS; i++)
			for (size_t k = 0; k < cols; k++)
				own[i * 4 + k] = y[i * LD + 3 * me + k] =
					(float)(me * 1000 + root * 100 + i * 10 + k);
		dawdle(r);
		st = me == root
		         ? ops->gather_columns(r->comm, root, y + 3 * me, LD, ROWS, 3 * me, cols, y, LD)
		         : ops->gather_columns(r->comm, root, own, 4, ROWS, 3 * me, cols, NULL, 0);
		for (size_t i = 0; i < ROWS && me == root && st == MX_OK; i++)
			for (size_t k = 0; k < LD; k++) {
				const float want = k < 3 * (r->ranks - 1) + 1
				                       ? (float)(k / 3 * 1000 + root * 100 + i * 10 + k % 3)
				                       : -1;
				st = st == MX_OK && y[i * LD + k] == want ? MX_OK : MX_E_INTERNAL;
			}
	}
	return st;
}

/* Messages are for ranks of one host. */
static mx_status messages(struct rank *r)
{
	const struct mx_comm_ops *ops = r->comm->ops;
	const uint32_t me = r->comm->rank, first = me / r->each * r->each;
	uint32_t word = me;
	if (ops->send(r->comm, me, &word, 4) != MX_E_INVALID ||
	    ops->recv(r->comm, r->ranks, &word, 4) != MX_E_INVALID ||
	    ops->send(r->comm, (me + r->each) % r->ranks, &word, 4) != MX_E_UNSUPPORTED ||
	    ops->recv(r->comm, (me + r->each) % r->ranks, &word, 4) != MX_E_UNSUPPORTED)
		return MX_E_INTERNAL;
	if (r->each < 2 || me - first > 1)
		return MX_OK;
	if (me == first)
		return ops->send(r->comm, first + 1, &word, 4);
	mx_status st = ops->recv(r->comm, first, &word, 4);
	return st == MX_OK && word != first ? MX_E_INTERNAL : st;
}

static void expect(uint32_t hosts, uint32_t each, size_t n, mx_status (*run)(struct rank *r),
                   mx_status status)
{
	struct rank ranks[MOST] = {0};
	const uint64_t begin = mx_now_ns();
	for (uint32_t i = 0; i < MOST; i++)
		ranks[i].n = n;
	run_hosts(ranks, hosts, each, run);
	for (uint32_t i = 0; i < hosts * each; i++)
		assert_int_equal(ranks[i].status, status);
	if (status != MX_OK)
		assert_true(mx_now_ns() - begin < 5000000000u);
}

static void test_copies(void **state)
{
	(void)state;
	for (size_t l = 0; l < N_LAYOUTS; l++) {
		expect(layouts[l][0], layouts[l][1], 1, copy, MX_OK);
		expect(layouts[l][0], layouts[l][1], 1000, copy, MX_OK);
		expect(layouts[l][0], layouts[l][1], 0, columns, MX_OK);
		expect(layouts[l][0], layouts[l][1], 0, messages, MX_OK);
	}
	expect(3, 2, 300001, copy, MX_OK); /* more than the stage holds */
}

/* ---- who gives up ---- */

/* The last rank gives up while the others wait for it: those of its host, and the other hosts. */
static mx_status give_up(struct rank *r)
{
	const struct timespec late = {.tv_nsec = 20000000};
	float x = 1;
	mx_status st = r->comm->ops->all_reduce(r->comm, &x, 1);
	if (st != MX_OK)
		return st;
	if (r->comm->rank + 1 < r->ranks)
		return r->comm->ops->all_reduce(r->comm, &x, 1);
	nanosleep(&late, NULL);
	r->comm->ops->abort(r->comm);
	return r->comm->ops->barrier(r->comm);
}

/* The hosts are lost while ranks wait for those of their own host only. */
static mx_status host_gives_up(struct rank *r)
{
	const struct timespec late = {.tv_nsec = 20000000};
	if (r->comm->rank + 1 == r->ranks) {
		nanosleep(&late, NULL);
		mx_hosts_abort(r->hosts, "a test");
	} else if (r->comm->rank % r->each == 0) {
		while (!mx_hosts_lost(r->hosts, NULL))
			nanosleep(&late, NULL);
	}
	return r->comm->ops->barrier(r->comm) == MX_E_DEVICE ? r->comm->ops->check(r->comm)
	                                                     : MX_E_INTERNAL;
}

static mx_status columns_that_are_not_there(struct rank *r)
{
	float x[4] = {0}, y[8] = {0};
	return r->comm->ops->gather_columns(r->comm, 0, x, 2, 2, r->comm->rank ? 3 : 0, 2, y, 4) ==
	               MX_E_DEVICE
	           ? MX_E_DEVICE
	           : r->comm->ops->barrier(r->comm);
}

static void test_abort(void **state)
{
	(void)state;
	for (size_t l = 0; l < N_LAYOUTS; l++) {
		expect(layouts[l][0], layouts[l][1], 0, give_up, MX_E_DEVICE);
		expect(layouts[l][0], layouts[l][1], 0, host_gives_up, MX_E_DEVICE);
	}
	expect(2, 1, 0, columns_that_are_not_there, MX_E_DEVICE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_reduce),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_abort),
	};
	int rc = cmocka_run_group_tests(tests, setup, teardown);
	if (!rc && mx_hosts_have_tls()) {
		print_message("with TLS:\n");
		with_tls = true;
		rc = cmocka_run_group_tests(tests, setup, teardown);
	}
	return rc;
}
