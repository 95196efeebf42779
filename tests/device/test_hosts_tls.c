/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests TLS between hosts, through a network that lies: every byte of a handshake and of what
 * follows is changed in turn, or is the last that comes. Whatever happens, no byte arrives that was
 * not sent. Other secrets, peers that are silent or speak something else, bytes that come one by
 * one, and frames of all sizes that go both ways through small buffers. Random inputs come from one
 * seed, printed; MIXD_TEST_SEED replays it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "device/hosts/link.h"
#include "tests/device/tls_pair.h"
#include "tests/rng.h"

#define PATIENCE (20 * MX_NS_PER_S)
#define NEVER    SIZE_MAX

static const char secret[] = "a secret of the tests";
static uint64_t seed;

static int setup(void **state)
{
	const char *given = getenv("MIXD_TEST_SEED");
	(void)state;
	seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	print_message("MIXD_TEST_SEED=%llu\n", (unsigned long long)seed);
	return 0;
}

static void pair(int fds[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
}

/* ---- a network that lies ---- */

/* One way of a connection. */
struct way {
	int from, to;
	size_t change, cut; /* the byte that is changed, and the first that does not come */
	uint8_t by;         /* xor */
	size_t most;        /* bytes at a time */
	size_t n;           /* bytes so far */
};

struct network {
	struct way ways[2];
	int ends[2]; /* of the two hosts */
	pthread_t thread;
};

/* Hands on what is there. False: the way has ended. */
static bool carry(struct way *w)
{
	uint8_t bytes[4096];
	ssize_t n = recv(w->from, bytes, w->most, MSG_DONTWAIT);
	if (n <= 0)
		return false;
	if (w->cut - w->n <= (size_t)n)
		n = (ssize_t)(w->cut - w->n);
	if (w->change >= w->n && w->change - w->n < (size_t)n)
		bytes[w->change - w->n] ^= w->by;
	for (ssize_t at = 0; at < n;) {
		const ssize_t k = send(w->to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
		if (k <= 0)
			return false;
		at += k;
	}
	w->n += (size_t)n;
	return w->n < w->cut;
}

static void *network_main(void *arg)
{
	struct network *net = arg;
	for (bool on = true; on;) {
		struct pollfd p[2];
		for (int i = 0; i < 2; i++)
			p[i] = (struct pollfd){.fd = net->ways[i].from, .events = POLLIN};
		assert_true(poll(p, 2, -1) > 0);
		for (int i = 0; i < 2 && on; i++)
			on = !p[i].revents || carry(&net->ways[i]);
	}
	close(net->ways[0].from);
	close(net->ways[1].from);
	return NULL;
}

/* ways[i] is the way from end i; the caller has said what happens on it. */
static void start_network(struct network *net)
{
	for (int i = 0; i < 2; i++) {
		int fds[2];
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
		assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
		net->ends[i] = fds[0];
		net->ways[i].from = net->ways[!i].to = fds[1];
		net->ways[i].most = net->ways[i].most ? net->ways[i].most : 4096;
	}
	assert_int_equal(pthread_create(&net->thread, NULL, network_main, net), 0);
}

static struct network honest(void)
{
	return (struct network){
		.ways = {{.change = NEVER, .cut = NEVER}, {.change = NEVER, .cut = NEVER}}};
}

/* What came of a connection through a network. */
struct outcome {
	mx_status hands[2], data[2]; /* of the first host, and of the other */
	size_t n[2];                 /* bytes from each */
};

struct talk {
	struct tls_end end;
	mx_status status;
};

/* Shakes hands, and exchanges a message of 2000 bytes if that works. A network that swallows bytes
 * ends it soon. */
static void *talk_main(void *arg)
{
	struct talk *t = arg;
	uint8_t mine[2000], theirs[2000];
	(void)tls_end_main(&t->end);
	t->status = t->end.status;
	for (size_t i = 0; i < sizeof mine; i++) {
		mine[i] = (uint8_t)(i * 7 + t->end.serves);
		theirs[i] = 0;
	}
	if (t->status == MX_OK)
		t->status = mx_channel_write(&t->end.channel, mine, sizeof mine, t->end.deadline);
	if (t->status == MX_OK)
		t->status = mx_channel_read(&t->end.channel, theirs, sizeof theirs, t->end.deadline);
	for (size_t i = 0; i < sizeof theirs && t->status == MX_OK; i++)
		if (theirs[i] != (uint8_t)(i * 7 + !t->end.serves))
			t->status = MX_E_INTERNAL; /* the one thing that must not happen */
	mx_channel_close(&t->end.channel);
	return NULL;
}

static struct outcome talk(struct network *net, uint64_t patience_ns)
{
	struct talk talks[2];
	struct outcome out;
	start_network(net);
	for (int i = 0; i < 2; i++) {
		talks[i].end = (struct tls_end){.channel = mx_channel_of(net->ends[i]),
		                                .serves = !i,
		                                .secret = secret,
		                                .deadline = mx_now_ns() + patience_ns};
		assert_int_equal(pthread_create(&talks[i].end.thread, NULL, talk_main, &talks[i]), 0);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(talks[i].end.thread, NULL);
	pthread_join(net->thread, NULL);
	for (int i = 0; i < 2; i++) {
		out.hands[i] = talks[i].end.status;
		out.data[i] = talks[i].status;
		out.n[i] = net->ways[i].n;
		if (out.hands[i] != MX_OK)
			assert_true(talks[i].end.err.text[0] && talks[i].end.channel.fd < 0);
	}
	return out;
}

static void test_bytes_one_by_one(void **state)
{
	struct network net = honest();
	(void)state;
	net.ways[0].most = net.ways[1].most = 1;
	const struct outcome o = talk(&net, PATIENCE);
	for (int i = 0; i < 2; i++)
		assert_int_equal(o.data[i], MX_OK);
}

/* Every byte of a connection, in turn. A few of them mean nothing (the version of a record, say):
 * then all goes well. */
static void test_changed_bytes(void **state)
{
	struct rng rng = {.state = seed};
	struct network net = honest();
	const struct outcome whole = talk(&net, PATIENCE);
	size_t changed = 0, refused = 0;
	(void)state;
	for (int way = 0; way < 2; way++) {
		assert_true(whole.n[way] > 2000);
		for (size_t i = 0; i < whole.n[way]; i += i < whole.n[way] - 2000 ? 1 : 37) {
			net = honest();
			net.ways[way].change = i;
			net.ways[way].by = (uint8_t)(1u << rng_next(&rng) % 8);
			const struct outcome o = talk(&net, MX_NS_PER_S / 10);
			for (int k = 0; k < 2; k++)
				assert_int_not_equal(o.data[k], MX_E_INTERNAL);
			changed++;
			refused += o.data[!way] != MX_OK;
		}
	}
	print_message("%zu bytes were changed, %zu connections ended by it\n", changed, refused);
	assert_true(refused > changed * 9 / 10);
}

static void test_cut_off(void **state)
{
	struct network net = honest();
	const struct outcome whole = talk(&net, PATIENCE);
	(void)state;
	for (int way = 0; way < 2; way++)
		for (size_t i = 0; i < whole.n[way]; i += 1 + i / 50) {
			net = honest();
			net.ways[way].cut = i;
			const struct outcome o = talk(&net, PATIENCE);
			assert_int_equal(o.data[!way], MX_E_IO);
		}
}

/* ---- who is refused ---- */

static void test_another_secret(void **state)
{
	struct tls_end ends[2];
	int fds[2];
	(void)state;
	pair(fds);
	tls_end_start(&ends[0], fds[0], true, secret, PATIENCE);
	tls_end_start(&ends[1], fds[1], false, "another secret, as long", PATIENCE);
	for (int i = 0; i < 2; i++) {
		pthread_join(ends[i].thread, NULL);
		assert_int_equal(ends[i].status, MX_E_INVALID);
		assert_string_equal(ends[i].err.text, "its secret is another one");
		mx_channel_close(&ends[i].channel);
	}
}

/* A peer that sends n bytes and says no more, or leaves. */
static void strange(bool serves, const void *x, size_t n, bool leaves, mx_status status)
{
	struct tls_end end;
	int fds[2];
	pair(fds);
	assert_int_equal(send(fds[1], x, n, 0), n);
	if (leaves)
		shutdown(fds[1], SHUT_WR);
	tls_end_start(&end, fds[0], serves, secret, MX_NS_PER_S / 5);
	pthread_join(end.thread, NULL);
	assert_int_equal(end.status, status);
	assert_true(mx_now_ns() < end.deadline + 5 * MX_NS_PER_S);
	mx_channel_close(&end.channel);
	close(fds[1]);
}

/* A peer sends bytes and leaves: whatever they are taken for, it is refused. */
static void refused(bool serves, const uint8_t *x, size_t n)
{
	struct tls_end end;
	int fds[2];
	pair(fds);
	assert_int_equal(send(fds[1], x, n, 0), n);
	shutdown(fds[1], SHUT_WR);
	tls_end_start(&end, fds[0], serves, secret, PATIENCE);
	pthread_join(end.thread, NULL);
	assert_int_not_equal(end.status, MX_OK);
	mx_channel_close(&end.channel);
	close(fds[1]);
}

static void test_strangers(void **state)
{
	static const char http[] = "GET / HTTP/1.1\r\n\r\n";
	static const uint8_t half[] = {22, 3, 1, 2, 0, 1, 0, 1, 252}; /* the head of a hello */
	static const uint8_t warnings[] = {21, 3, 3, 0, 2, 1, 90, 21, 3, 3, 0, 2, 1, 90};
	struct rng rng = {.state = seed};
	(void)state;
	for (int serves = 0; serves < 2; serves++) {
		strange(serves, "", 0, false, MX_E_IO);
		strange(serves, "", 0, true, MX_E_IO);
		strange(serves, half, sizeof half, false, MX_E_IO);
		strange(serves, half, sizeof half, true, MX_E_IO);
		strange(serves, http, sizeof http, false, MX_E_FORMAT);
		for (int i = 0; i < 200; i++) {
			uint8_t x[300];
			for (size_t k = 0; k < sizeof x; k++)
				x[k] = (uint8_t)rng_next(&rng);
			if (i % 2)
				memcpy(x, half, 5);
			refused(serves, x, sizeof x);
		}
	}
	for (int serves = 0; serves < 2; serves++)
		refused(serves, warnings, sizeof warnings);
}

/* ---- frames ---- */

#define FRAMES 60
#define LARGE  300001

static size_t frame_bytes(int i)
{
	struct rng r = {.state = seed + (uint64_t)i};
	const size_t n = (size_t)rng_next(&r);
	return i % 4 == 0 ? n % 40 : i % 4 == 1 ? 16384 - 50 + n % 100 : n % LARGE;
}

struct talker {
	struct mx_link link;
	uint8_t number;
	mx_status status;
	pthread_t thread;
};

/* Exchanges frames; every third goes one way, and back. */
static void *talker_main(void *arg)
{
	struct talker *t = arg;
	uint8_t *x = malloc(LARGE), *y = malloc(LARGE);
	t->status = x && y ? MX_OK : MX_E_NOMEM;
	for (int i = 0; i < FRAMES && t->status == MX_OK; i++) {
		const size_t n = frame_bytes(i);
		const struct mx_frame head = {.kind = MX_FRAME_COPY, .bytes = n};
		memset(x, i * 2 + t->number, n);
		memset(y, 0xee, n);
		if (i % 3) {
			t->status = mx_link_exchange(&t->link, MX_FRAME_SUM, x, y, n);
		} else {
			for (int k = 0; k < 2 && t->status == MX_OK; k++)
				t->status = k == t->number ? mx_link_send(&t->link, head, x)
				                           : mx_link_recv(&t->link, MX_FRAME_COPY, y, n);
		}
		for (size_t k = 0; k < n && t->status == MX_OK; k++)
			if (y[k] != (uint8_t)(i * 2 + !t->number))
				t->status = MX_E_INTERNAL;
	}
	free(x);
	free(y);
	return NULL;
}

/* Both ends send more than the buffers of the connection hold, at the same time. */
static void test_frames(void **state)
{
	struct talker t[2];
	struct mx_channel channels[2];
	const int small = 4096;
	int fds[2];
	(void)state;
	pair(fds);
	for (int i = 0; i < 2; i++)
		assert_int_equal(setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
	assert_int_equal(tls_pair(fds, channels), MX_OK);
	for (int i = 0; i < 2; i++) {
		t[i] = (struct talker){.number = (uint8_t)i};
		mx_link_init(&t[i].link, channels[i]);
		assert_int_equal(pthread_create(&t[i].thread, NULL, talker_main, &t[i]), 0);
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(t[i].thread, NULL);
		assert_int_equal(t[i].status, MX_OK);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(atomic_load(&t[i].link.sent), atomic_load(&t[!i].link.received));
		mx_link_close(&t[i].link);
	}
}

/* Whoever waits in a link is woken when it is ended, or the peer is gone. */
static void test_ends(void **state)
{
	struct mx_channel channels[2];
	struct mx_link l;
	char byte;
	int fds[2];
	(void)state;
	pair(fds);
	assert_int_equal(tls_pair(fds, channels), MX_OK);
	mx_link_init(&l, channels[0]);
	mx_channel_close(&channels[1]);
	assert_int_equal(mx_link_recv(&l, MX_FRAME_SUM, &byte, 1), MX_E_IO);
	assert_string_equal(l.why, "has closed the connection");
	mx_link_end(&l);
	assert_int_equal(mx_link_recv(&l, MX_FRAME_SUM, &byte, 1), MX_E_DEVICE);
	mx_link_close(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_one_by_one),
		cmocka_unit_test(test_changed_bytes),
		cmocka_unit_test(test_cut_off),
		cmocka_unit_test(test_another_secret),
		cmocka_unit_test(test_strangers),
		cmocka_unit_test(test_frames),
		cmocka_unit_test(test_ends),
	};
	return mx_hosts_have_tls() ? cmocka_run_group_tests(tests, setup, NULL) : 77;
}
