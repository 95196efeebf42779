/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over two ranks: of two processes that talk over TCP on loopback, without TLS and with it,
 * and beside them of two threads of one process. Prints the median microseconds of a sum.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "device/cpu/comm.h"
#include "device/cpu/cpu.h"
#include "device/hosts/comm.h"
#include "device/hosts/tcp.h"
#include "device/hosts/tls.h"

#define MOST ((size_t)1 << 20) /* floats */

static const size_t sizes[] = {768, 4096, 16384, 65536, MOST};
#define N_SIZES (sizeof sizes / sizeof *sizes)

static float x[2][MOST];
static const uint8_t secret[16] = "of the benchmark";

static void die(const char *what)
{
	fprintf(stderr, "bench/device/hosts: %s\n", what);
	exit(1);
}

static int by_value(const void *a, const void *b)
{
	const double p = *(const double *)a, q = *(const double *)b;
	return p < q ? -1 : p > q;
}

/* Writes the median microseconds of a sum of each size. */
static void run(struct mx_comm *c, float *own, double us[N_SIZES])
{
	for (size_t s = 0; s < N_SIZES; s++) {
		const size_t n = sizes[s] < 65536 ? 2000 : 60;
		double *times = calloc(n, sizeof *times);
		if (!times)
			die("out of memory");
		for (size_t i = 0; i < n; i++) {
			const uint64_t begin = mx_now_ns();
			if (c->ops->all_reduce(c, own, sizes[s]) != MX_OK)
				die("a sum failed");
			times[i] = (double)(mx_now_ns() - begin) / 1e3;
		}
		qsort(times, n, sizeof *times, by_value);
		us[s] = times[n / 2];
		free(times);
	}
}

/* Connects two sockets to another process, which listens at `name`. */
static void connect_pair(int fds[2], const char *name)
{
	struct mx_err err = {0};
	for (int i = 0; i < 2; i++)
		if (mx_tcp_connect(name, mx_now_ns() + 5000000000u, &fds[i], &err))
			die(err.text);
}

static int accept_one(int listener)
{
	char name[MX_TCP_NAME];
	int fd = -1;
	while (fd < 0)
		fd = mx_tcp_accept(listener, name);
	return fd;
}

static struct mx_device *open_device(void)
{
	struct mx_device *d;
	if (mx_cpu_create(1, mx_cpu_isa(), 1, 64, &d, NULL) != MX_OK)
		die("no device");
	return d;
}

/* Runs a host of one rank. */
static void run_host(uint32_t host, int data, int control, bool tls, double us[N_SIZES])
{
	struct mx_channel d_channel = mx_channel_of(data), c_channel = mx_channel_of(control);
	struct mx_err err = {0};
	const uint64_t until = mx_now_ns() + 5000000000u;
	if (tls && (mx_hosts_tls(&d_channel, !host, secret, sizeof secret, until, &err) ||
	            mx_hosts_tls(&c_channel, !host, secret, sizeof secret, until, &err)))
		die(err.text);
	struct mx_device *d = open_device();
	struct mx_hosts *hosts;
	struct mx_comm *local, *c;
	if (mx_hosts_of_channels(host, 2, &d_channel, &c_channel, NULL, &hosts) != MX_OK ||
	    mx_cpu_comm_create(&d, 1, &local) != MX_OK ||
	    mx_hosts_comm_create(hosts, &local, 1, &c) != MX_OK)
		die("no communicator");
	run(c, x[0], us);
	mx_hosts_end(hosts);
	c->ops->destroy(c);
	local->ops->destroy(local);
	mx_hosts_destroy(hosts);
	d->ops->destroy(d);
}

static void *thread_main(void *arg)
{
	double us[N_SIZES];
	run(arg, x[1], us);
	return NULL;
}

static void run_threads(double us[N_SIZES])
{
	struct mx_device *d[2] = {open_device(), open_device()};
	struct mx_comm *c[2];
	pthread_t thread;
	if (mx_cpu_comm_create(d, 2, c) != MX_OK || pthread_create(&thread, NULL, thread_main, c[1]))
		die("no threads");
	run(c[0], x[0], us);
	pthread_join(thread, NULL);
	for (int i = 0; i < 2; i++) {
		c[i]->ops->destroy(c[i]);
		d[i]->ops->destroy(d[i]);
	}
}

/* Runs two hosts, of which one is another process. */
static void run_hosts(bool tls, double us[N_SIZES])
{
	char name[MX_TCP_NAME];
	struct mx_err err = {0};
	int listener;
	if (mx_tcp_listen("127.0.0.1:0", &listener, name, &err) != MX_OK)
		die(err.text);
	const pid_t child = fork();
	if (child < 0)
		die("cannot fork");
	if (!child) {
		int fds[2];
		connect_pair(fds, name);
		run_host(1, fds[0], fds[1], tls, us);
		exit(0);
	}
	const int data = accept_one(listener), control = accept_one(listener);
	run_host(0, data, control, tls, us);
	waitpid(child, NULL, 0);
	close(listener);
}

int main(void)
{
	double hosts[N_SIZES], tls[N_SIZES], threads[N_SIZES];
	run_hosts(false, hosts);
	if (mx_hosts_have_tls())
		run_hosts(true, tls);
	run_threads(threads);
	printf("%12s %14s %14s %14s\n", "bytes", "2 hosts, us", "with TLS, us", "2 threads, us");
	for (size_t s = 0; s < N_SIZES; s++)
		printf("%12zu %14.1f %14.1f %14.1f\n", sizes[s] * sizeof(float), hosts[s],
		       mx_hosts_have_tls() ? tls[s] : 0, threads[s]);
	return 0;
}
