/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how hosts find and lose each other: greetings over loopback, with every byte of them
 * changed in turn, cut off at every place, and of a host with another secret; frames that are not
 * due; hosts that end, hang, or say what no host says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/hosts/greet.h"
#include "device/hosts/hosts.h"
#include "device/hosts/tcp.h"
#include "device/hosts/tls.h"

static const struct mx_greeter greeter = {.version = "1.2.3",
                                          .secret = (const uint8_t *)"sixteen bytes...",
                                          .secret_bytes = 16,
                                          .terms = "a: 1\nb: 2\n",
                                          .n_hosts = 2};

static void pair(int fds[2])
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
}

/* ---- greetings ---- */

/* What the first host does with a connection. */
struct first {
	struct mx_channel channel;
	const struct mx_greeter *as;
	mx_status status;
	struct mx_err err;
	pthread_t thread;
};

static void *first_main(void *arg)
{
	struct first *f = arg;
	struct mx_greeting greeting;
	const uint8_t session[MX_GREET_SESSION] = {7};
	f->status = mx_greet_receive(f->as, &f->channel, &greeting, &f->err);
	if (f->status == MX_OK)
		f->status = mx_greet_accept(f->as, &f->channel, &greeting, 1, session);
	if (f->status == MX_OK)
		f->status = mx_greet_compare(f->as, &f->channel, 1, &f->err);
	if (f->status != MX_OK)
		mx_channel_close(&f->channel); /* as host 0 does */
	return NULL;
}

static void start_first(struct first *f, int fd, const struct mx_greeter *as)
{
	*f = (struct first){.channel = mx_channel_of(fd), .as = as};
	assert_int_equal(pthread_create(&f->thread, NULL, first_main, f), 0);
}

/* A host that joins as `g` says, a first host that is as `first` says. Returns its result. */
static mx_status join_as(const struct mx_greeter *first, const struct mx_greeter *g,
                         struct first *f, struct mx_err *err)
{
	int fds[2];
	uint8_t session[MX_GREET_SESSION];
	uint32_t host = 0;
	pair(fds);
	struct mx_channel c = mx_channel_of(fds[1]);
	start_first(f, fds[0], first);
	mx_status st = mx_greet_send(g, &c, MX_GREET_CONTROL, 0, session, &host, err);
	if (st == MX_OK) {
		assert_int_equal(host, 1);
		assert_int_equal(session[0], 7);
		st = mx_greet_offer(g, &c, err);
	}
	mx_channel_close(&c);
	pthread_join(f->thread, NULL);
	mx_channel_close(&f->channel);
	return st;
}

static void expect_refusal(const struct mx_greeter *first, const struct mx_greeter *g,
                           const char *there, const char *here)
{
	struct first f;
	struct mx_err err = {0};
	assert_int_not_equal(join_as(first, g, &f, &err), MX_OK);
	assert_int_not_equal(f.status, MX_OK);
	if (!strstr(f.err.text, there) || !strstr(err.text, here))
		fail_msg("\"%s\", \"%s\"", f.err.text, err.text);
}

static void greet_with(bool tls)
{
	struct first f;
	struct mx_err err = {0};
	struct mx_greeter one = greeter;
	one.tls = tls;
	assert_int_equal(join_as(&one, &one, &f, &err), MX_OK);
	assert_int_equal(f.status, MX_OK);
	struct mx_greeter g = one;
	g.secret = (const uint8_t *)"sixteen bytes..!";
	expect_refusal(&one, &g, "its secret is another one", "its secret is another one");
	g = one;
	g.n_hosts = 3;
	expect_refusal(&one, &g, "it is one of 3 hosts", "it is one of 3 hosts, and this one of 2");
	g = one;
	g.terms = "a: 1\nb: 3\n";
	expect_refusal(&one, &g, "\"b: 2\" on host 0, \"b: 3\" on host 1",
	               "\"b: 2\" on host 0, \"b: 3\"");
	g.terms = "a: 1\n";
	expect_refusal(&one, &g, "\"b: 2\" on host 0, \"\" on host 1", "the hosts differ");
	g = one;
	g.version = "1.2.4";
	expect_refusal(&one, &g, "it has mixd 1.2.4 (protocol 2), and this",
	               "it has mixd 1.2.3 (protocol 2), and this");
	g = one;
	g.tls = !tls;
	if (mx_hosts_have_tls())
		expect_refusal(&one, &g,
		               tls ? "it does not want TLS, and this host does"
		                   : "it wants TLS, and this host does not",
		               tls ? "it wants TLS, and this host does not"
		                   : "it does not want TLS, and this host does");
}

static void test_greeting(void **state)
{
	(void)state;
	greet_with(false);
	if (mx_hosts_have_tls())
		greet_with(true);
}

/* What the host that joins sends before the answer. */
struct said {
	struct mx_greet_hello hello;
	struct mx_greet_claim claim;
};

/* Takes n bytes of what a host that joins says, of which byte `wrong` is changed, to a first host.
 * Returns the first one's result. */
static mx_status said_with(size_t n, size_t wrong, struct mx_err *err)
{
	struct first f;
	struct said said;
	struct mx_greet_hello hello;
	int fds[2], relay[2];
	uint8_t session[MX_GREET_SESSION];
	uint32_t host;
	const uint64_t soon = mx_now_ns() + MX_NS_PER_S;
	pair(fds);
	pair(relay);
	struct mx_channel to_first = mx_channel_of(fds[1]), to_other = mx_channel_of(relay[0]),
					  other = mx_channel_of(relay[1]);
	start_first(&f, fds[0], &greeter);
	assert_int_equal(mx_channel_read(&to_first, &hello, sizeof hello, soon), MX_OK);
	assert_int_equal(mx_channel_write(&to_other, &hello, sizeof hello, soon), MX_OK);
	assert_int_equal(shutdown(relay[0], SHUT_WR), 0);
	(void)mx_greet_send(&greeter, &other, MX_GREET_CONTROL, 0, session, &host, NULL);
	mx_channel_close(&other);
	assert_int_equal(mx_channel_read(&to_other, &said, sizeof said, soon), MX_OK);
	mx_channel_close(&to_other);
	if (wrong < sizeof said)
		((unsigned char *)&said)[wrong] ^= 1;
	(void)mx_channel_write(&to_first, &said, n, soon); /* which may have hung up */
	shutdown(fds[1], SHUT_WR);
	pthread_join(f.thread, NULL);
	*err = f.err;
	mx_channel_close(&f.channel);
	mx_channel_close(&to_first);
	return f.status;
}

static void test_changed_greetings(void **state)
{
	struct mx_err err;
	(void)state;
	for (size_t i = 0; i < sizeof(struct said); i++) {
		assert_int_not_equal(said_with(sizeof(struct said), i, &err), MX_OK);
		assert_null(strstr(err.text, "what it has loaded")); /* it did not come that far */
	}
	for (size_t n = 0; n < sizeof(struct said); n += 9)
		assert_int_equal(said_with(n, SIZE_MAX, &err), MX_E_IO);
	/* unchanged, it is accepted, and fails only for want of terms */
	assert_int_equal(said_with(sizeof(struct said), SIZE_MAX, &err), MX_E_IO);
	assert_non_null(strstr(err.text, "what it has loaded"));
}

/* A first host without the secret is found out by the one that joins. */
static void test_false_first_host(void **state)
{
	int fds[2];
	uint8_t session[MX_GREET_SESSION];
	uint32_t host;
	struct mx_err err = {0};
	struct mx_greet_hello hello = {.protocol = MX_HOSTS_PROTOCOL};
	struct mx_greet_answer answer = {.host = 1};
	(void)state;
	memcpy(hello.magic, "mixdhost", 8);
	snprintf(hello.version, sizeof hello.version, "%s", greeter.version);
	pair(fds);
	struct mx_channel c = mx_channel_of(fds[1]);
	assert_int_equal(write(fds[0], &hello, sizeof hello), sizeof hello);
	assert_int_equal(write(fds[0], &answer, sizeof answer), sizeof answer);
	assert_int_equal(mx_greet_send(&greeter, &c, MX_GREET_CONTROL, 0, session, &host, &err),
	                 MX_E_INVALID);
	assert_string_equal(err.text, "its secret is another one");
	close(fds[0]);
	mx_channel_close(&c);
}

/* Terms of more bytes than any host has. */
static void test_long_terms(void **state)
{
	static char lines[2 * MX_HOSTS_TERMS];
	struct mx_greeter g = greeter;
	struct first f;
	struct mx_err err = {0};
	(void)state;
	memset(lines, 'a', sizeof lines - 1);
	g.terms = lines;
	assert_int_not_equal(join_as(&greeter, &g, &f, &err), MX_OK);
	assert_int_equal(f.status, MX_E_IO);
}

/* ---- joining ---- */

struct joiner {
	struct mx_hosts_setup setup;
	const char *address;
	struct mx_hosts *hosts;
	struct mx_err err;
	mx_status status;
	pthread_t thread;
};

static void *join_main(void *arg)
{
	struct joiner *j = arg;
	j->status = mx_hosts_join(&j->setup, j->address, &j->hosts, &j->err);
	return NULL;
}

static void join_with(bool tls)
{
	enum { N = 4 };
	const struct mx_hosts_setup setup = {.n_hosts = N,
	                                     .version = "1",
	                                     .secret = (const uint8_t *)"0123456789abcdef",
	                                     .secret_bytes = 16,
	                                     .tls = tls,
	                                     .terms = "x: y\n",
	                                     .patience_ns = 30000000000u};
	struct mx_hosts *first = NULL;
	struct mx_err err = {0};
	struct joiner joiners[N - 1];
	char name[MX_TCP_NAME];
	int listener;
	assert_int_equal(mx_tcp_listen("127.0.0.1:0", &listener, name, &err), MX_OK);
	for (uint32_t i = 0; i < N - 1; i++) {
		joiners[i] = (struct joiner){.setup = setup, .address = name};
		joiners[i].setup.wanted = i == 1 ? 3 : 0; /* the others take what is left */
		assert_int_equal(pthread_create(&joiners[i].thread, NULL, join_main, &joiners[i]), 0);
	}
	mx_status st = mx_hosts_gather(&setup, listener, &first, &err);
	uint32_t seen = 0;
	for (uint32_t i = 0; i < N - 1; i++) {
		pthread_join(joiners[i].thread, NULL);
		if (joiners[i].status == MX_OK)
			seen |= 1u << mx_hosts_number(joiners[i].hosts);
	}
	assert_int_equal(st, MX_OK);
	assert_int_equal(seen, 0xe);
	assert_int_equal(mx_hosts_number(joiners[1].hosts), 3);
	for (uint32_t i = 0; i < N - 1; i++) {
		char byte = 0;
		const uint32_t number = mx_hosts_number(joiners[i].hosts);
		const struct mx_frame head = {.kind = MX_FRAME_MESSAGE, .bytes = 1};
		assert_int_equal(mx_link_send(mx_hosts_link(first, number), head, "x"), MX_OK);
		assert_int_equal(
			mx_link_recv(mx_hosts_link(joiners[i].hosts, 0), MX_FRAME_MESSAGE, &byte, 1), MX_OK);
		assert_int_equal(byte, 'x');
	}
	mx_hosts_end(first);
	for (uint32_t i = 0; i < N - 1; i++)
		mx_hosts_destroy(joiners[i].hosts);
	mx_hosts_destroy(first);
}

static void test_joining(void **state)
{
	(void)state;
	join_with(false);
	if (mx_hosts_have_tls())
		join_with(true);
}

/* ---- frames ---- */

static void test_frames(void **state)
{
	static const struct mx_frame wrong[] = {
		{.kind = MX_FRAME_SHARE, .bytes = 4},
		{.kind = MX_FRAME_SUM, .bytes = 5},
		{.kind = MX_FRAME_SUM, .bytes = UINT64_MAX},
		{.kind = MX_FRAME_SUM, .zero = 1, .bytes = 4},
		{.kind = 0},
	};
	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		int fds[2];
		char bytes[5] = "....";
		struct mx_link l;
		pair(fds);
		mx_link_init(&l, mx_channel_of(fds[0]));
		assert_int_equal(write(fds[1], &wrong[i], sizeof wrong[i]), sizeof wrong[i]);
		assert_int_equal(write(fds[1], "abcd", 4), 4);
		assert_int_equal(mx_link_recv(&l, MX_FRAME_SUM, bytes, 4), MX_E_FORMAT);
		assert_string_equal(bytes, "...."); /* nothing is written before the head is checked */
		assert_non_null(strstr(l.why, "was due"));
		mx_link_close(&l);
		close(fds[1]);
	}
	const struct mx_frame right = {.kind = MX_FRAME_SUM, .bytes = 4};
	for (size_t n = 0; n < sizeof right + 4; n++) { /* cut off at every place */
		int fds[2];
		char bytes[4];
		struct mx_link l;
		pair(fds);
		mx_link_init(&l, mx_channel_of(fds[0]));
		const size_t head = n < sizeof right ? n : sizeof right;
		assert_int_equal(write(fds[1], &right, head), head);
		assert_int_equal(write(fds[1], "abcd", n - head), n - head);
		close(fds[1]);
		assert_int_equal(mx_link_recv(&l, MX_FRAME_SUM, bytes, 4), MX_E_IO);
		mx_link_close(&l);
	}
}

/* ---- losing hosts ---- */

/* Makes host 0 of two; its peer's sockets are the test's. */
static struct mx_hosts *host_with(int *data, int *control)
{
	int d[2], c[2];
	struct mx_hosts *h = NULL;
	const char *name = "peer";
	pair(d);
	pair(c);
	assert_int_equal(mx_hosts_of_sockets(0, 2, &d[0], &c[0], &name, &h), MX_OK);
	*data = d[1];
	*control = c[1];
	return h;
}

static void note_lost(void *arg)
{
	++*(int *)arg;
}

/* Waits until the hosts are lost; returns the milliseconds. */
static double wait_lost(struct mx_hosts *h, char why[MX_HOSTS_WHY])
{
	const struct timespec tick = {.tv_nsec = 1000000};
	const uint64_t begin = mx_now_ns();
	while (!mx_hosts_lost(h, why)) {
		assert_true(mx_now_ns() - begin < 20 * MX_NS_PER_S);
		nanosleep(&tick, NULL);
	}
	return (double)(mx_now_ns() - begin) / 1e6;
}

static void lose_by(const void *note, size_t n, bool closes, const char *says, double least_ms)
{
	int data, control, called = 0;
	char why[MX_HOSTS_WHY], byte;
	struct mx_hosts *h = host_with(&data, &control);
	mx_hosts_on_lost(h, note_lost, &called);
	if (n)
		assert_int_equal(write(control, note, n), n);
	if (closes)
		close(control);
	const double ms = wait_lost(h, why);
	if (!strstr(why, says) || !strstr(why, "host 1 (peer)"))
		fail_msg("\"%s\" does not say \"%s\"", why, says);
	assert_true(ms >= least_ms && ms < 5000);
	/* what waits for the link ends at once, and always */
	assert_int_equal(mx_link_recv(mx_hosts_link(h, 1), MX_FRAME_SUM, &byte, 1), MX_E_DEVICE);
	assert_int_equal(called, 1);
	mx_hosts_abort(h, "another reason");
	assert_true(mx_hosts_lost(h, why));
	assert_non_null(strstr(why, says)); /* the first stays */
	mx_hosts_on_lost(h, note_lost, &called);
	assert_int_equal(called, 2); /* at once, since they are lost */
	mx_hosts_destroy(h);
	close(data);
	if (!closes)
		close(control);
}

static void test_lost(void **state)
{
	static const unsigned char lost[] = {2, 3, 'w', '\n', 'y'}, strange[] = {9, 0};
	(void)state;
	lose_by(NULL, 0, true, "has closed the connection", 0);
	lose_by(lost, sizeof lost, false, "has ended: w?y", 0);
	lose_by(strange, sizeof strange, false, "says what no mixd says", 0);
	lose_by(NULL, 0, false, "does not answer", 3900); /* it hangs */
}

/* A host whose thread says that it is alive is waited for. */
static void test_slow(void **state)
{
	int d[2], c[2];
	struct mx_hosts *a, *b;
	const struct timespec longer = {.tv_sec = 5};
	(void)state;
	pair(d);
	pair(c);
	assert_int_equal(mx_hosts_of_sockets(0, 2, &d[0], &c[0], NULL, &a), MX_OK);
	assert_int_equal(mx_hosts_of_sockets(1, 2, &d[1], &c[1], NULL, &b), MX_OK);
	nanosleep(&longer, NULL);
	assert_false(mx_hosts_lost(a, NULL) || mx_hosts_lost(b, NULL));
	mx_hosts_end(a); /* then it may leave */
	mx_hosts_destroy(a);
	nanosleep(&(const struct timespec){.tv_nsec = 600000000}, NULL);
	assert_false(mx_hosts_lost(b, NULL));
	mx_hosts_destroy(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_greeting),
		cmocka_unit_test(test_changed_greetings),
		cmocka_unit_test(test_false_first_host),
		cmocka_unit_test(test_long_terms),
		cmocka_unit_test(test_joining),
		cmocka_unit_test(test_frames),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_slow),
	};
	mx_log_set_level(MX_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
