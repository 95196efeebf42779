/* SPDX-License-Identifier: Apache-2.0 */
/* The module events-zmq.so. */
#include "daemon/kv_events/publisher.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/kv_events/replay.h"

/* Milliseconds between two looks at the engine's events, if there are none. */
#define LOOK_MS 20
#define BIND_NS ((uint64_t)MX_NS_PER_S)
/* Bytes that are kept for replay, at most. */
#define REPLAY_BYTES ((size_t)64 << 20)
/* Between two times that the whole content is sent because a subscriber missed what is kept no
 * more. */
#define RESTART_NS (10 * (uint64_t)MX_NS_PER_S)

struct mx_kv_publisher {
	struct mx_kv_publisher_config config;
	char *strings[4]; /* the config's own copies */
	struct mx_kv_reader *reader;
	uint32_t block_tokens;

	void *context, *pub, *router; /* router: NULL = no replay */
	bool pub_open, router_open;
	uint64_t tried_ns;     /* when a bind failed last */
	uint64_t restarted_ns; /* when the content was sent anew last, because of a request */
	uint64_t overflows;    /* of the reader, as far as they were logged */
	struct mx_kv_replay kept;

	pthread_t thread;
	atomic_bool stop;
};

/* ---- sockets ---- */

/* Opens an endpoint. MX_E_IO: it is in use. */
static mx_status open_socket(const struct mx_kv_publisher *p, void *socket, const char *endpoint,
                             bool connect, struct mx_err *err)
{
	if (!(connect ? zmq_connect(socket, endpoint) : zmq_bind(socket, endpoint))) {
		char bound[256] = "";
		size_t n = sizeof(bound);
		if (!connect)
			zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &n);
		mx_info("kv_events", "%s: %s %s", p->config.model, connect ? "sending to" : "listening on",
		        connect ? endpoint : bound);
		return MX_OK;
	}
	return mx_fail_at(err, errno == EADDRINUSE ? MX_E_IO : MX_E_INVALID, endpoint, "%s",
	                  zmq_strerror(errno));
}

/* Opens what is not open yet. */
static mx_status open_sockets(struct mx_kv_publisher *p, struct mx_err *err)
{
	mx_status st = MX_OK;
	if (!p->pub_open) {
		st = open_socket(p, p->pub, p->config.endpoint, p->config.connect, err);
		p->pub_open = st == MX_OK;
	}
	if (st == MX_OK && p->router && !p->router_open) {
		st = open_socket(p, p->router, p->config.replay_endpoint, false, err);
		p->router_open = st == MX_OK;
	}
	return st;
}

static bool is_open(const struct mx_kv_publisher *p)
{
	return p->pub_open && (p->router_open || !p->router);
}

/* Tries again to bind, once a second. */
static void retry(struct mx_kv_publisher *p)
{
	struct mx_err err = {0};
	if (mx_now_ns() - p->tried_ns < BIND_NS)
		return;
	p->tried_ns = mx_now_ns();
	mx_status st = open_sockets(p, &err);
	if (st && st != MX_E_IO)
		mx_error("kv_events", "%s: %s: %s", p->config.model, err.where, err.text);
	if (st == MX_OK)
		mx_kv_reader_restart(p->reader);
}

/* ---- messages ---- */

static void put_number(unsigned char out[8], uint64_t v)
{
	for (int i = 0; i < 8; i++)
		out[i] = (unsigned char)(v >> (8 * (7 - i)));
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Sends and keeps a batch. A PUB socket never blocks: it drops what a subscriber does not take. */
static void publish(struct mx_kv_publisher *p, const struct mx_kv_event *events, uint32_t n,
                    struct mx_buf *batch)
{
	unsigned char number[8];
	mx_buf_clear(batch);
	mx_kv_batch_write(batch, now_s(), events, n, p->block_tokens, p->config.encoding);
	if (batch->failed) { /* a part is lost: all is sent again */
		mx_buf_free(batch);
		mx_kv_reader_restart(p->reader);
		return;
	}
	put_number(number, p->kept.end);
	mx_kv_replay_add(&p->kept, batch->data, batch->len);
	(void)(zmq_send(p->pub, p->config.topic, strlen(p->config.topic), ZMQ_SNDMORE) >= 0 &&
	       zmq_send(p->pub, number, sizeof(number), ZMQ_SNDMORE) >= 0 &&
	       zmq_send(p->pub, batch->data, batch->len, 0) >= 0);
}

/* Sends one message of a replay. False if the subscriber has gone or takes no more. */
static bool reply(void *router, const void *id, size_t id_len, uint64_t number, const void *data,
                  size_t len)
{
	unsigned char text[8];
	put_number(text, number);
	return zmq_send(router, id, id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
	       zmq_send(router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
	       zmq_send(router, text, sizeof(text), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
	       zmq_send(router, data, len, ZMQ_DONTWAIT) >= 0;
}

static void replay(struct mx_kv_publisher *p, const void *id, size_t id_len, uint64_t from)
{
	struct mx_kv_replay *k = &p->kept;
	uint64_t now = mx_now_ns();
	if (from < k->first && now - p->restarted_ns >= RESTART_NS) {
		p->restarted_ns = now;
		mx_kv_reader_restart(p->reader);
	}
	bool sent = true;
	for (uint64_t i = from > k->first ? from : k->first; sent && i < k->end; i++) {
		const struct mx_kv_kept *b = mx_kv_replay_get(k, i);
		sent = reply(p->router, id, id_len, i, b->data, b->len);
	}
	if (sent)
		reply(p->router, id, id_len, UINT64_MAX, "", 0);
}

/* Receives one request for a replay: [client, empty, first number]. Others are ignored. False if
 * there is none. */
static bool serve_replay(struct mx_kv_publisher *p)
{
	unsigned char id[256], number[8], rest[1];
	int id_len = zmq_recv(p->router, id, sizeof(id), ZMQ_DONTWAIT);
	if (id_len < 0)
		return false;
	int parts = 1, empty_len = -1, number_len = -1, more = 1;
	for (size_t n = sizeof(more); !zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &n) && more;) {
		parts++;
		int len = parts == 3 ? zmq_recv(p->router, number, sizeof(number), 0)
		                     : zmq_recv(p->router, rest, sizeof(rest), 0);
		if (parts == 2)
			empty_len = len;
		if (parts == 3)
			number_len = len;
	}
	if (parts != 3 || empty_len != 0 || number_len != 8 || id_len > (int)sizeof(id))
		return true;
	uint64_t from = 0;
	for (int i = 0; i < 8; i++)
		from = from << 8 | number[i];
	replay(p, id, (size_t)id_len, from);
	return true;
}

/* ---- the thread ---- */

/* Waits until a request for a replay comes, or until the engine's events are to be looked at. */
static void wait_a_while(struct mx_kv_publisher *p)
{
	if (p->router_open) {
		zmq_pollitem_t item = {.socket = p->router, .events = ZMQ_POLLIN};
		zmq_poll(&item, 1, LOOK_MS);
	} else {
		struct timespec t = {.tv_nsec = LOOK_MS * 1000000L};
		nanosleep(&t, NULL);
	}
}

static void warn_of_overflow(struct mx_kv_publisher *p)
{
	uint64_t n = mx_kv_reader_overflows(p->reader);
	if (n != p->overflows)
		mx_warning("kv_events", "%s: events came faster than they could be sent: all is sent again",
		           p->config.model);
	p->overflows = n;
}

static void *publisher_main(void *arg)
{
	struct mx_kv_publisher *p = arg;
	struct mx_kv_event events[MX_KV_READ];
	struct mx_buf batch = {0};
	while (!atomic_load(&p->stop)) {
		if (!is_open(p))
			retry(p);
		if (p->router_open)
			serve_replay(p);
		uint32_t n = is_open(p) ? mx_kv_reader_read(p->reader, events) : 0;
		if (n) {
			publish(p, events, n, &batch);
			warn_of_overflow(p);
		} else {
			wait_a_while(p);
		}
	}
	mx_buf_free(&batch);
	return NULL;
}

/* ---- start and stop ---- */

static void stop(struct mx_kv_publisher *p)
{
	if (!p)
		return;
	if (p->thread) {
		atomic_store(&p->stop, true);
		pthread_join(p->thread, NULL);
	}
	if (p->pub)
		zmq_close(p->pub);
	if (p->router)
		zmq_close(p->router);
	if (p->context)
		zmq_ctx_term(p->context);
	mx_kv_replay_fini(&p->kept);
	mx_kv_reader_close(p->reader);
	for (int i = 0; i < 4; i++)
		free(p->strings[i]);
	free(p);
}

/* Copies the strings of the configuration. */
static bool copy_config(struct mx_kv_publisher *p, const struct mx_kv_publisher_config *c)
{
	const char **const texts[] = {&p->config.model, &p->config.endpoint, &p->config.topic,
	                              &p->config.replay_endpoint};
	p->config = *c;
	for (int i = 0; i < 4; i++) {
		if (!*texts[i])
			continue;
		p->strings[i] = strdup(*texts[i]);
		if (!p->strings[i])
			return false;
		*texts[i] = p->strings[i];
	}
	return true;
}

static void *new_socket(struct mx_kv_publisher *p, int type, uint64_t hwm)
{
	void *s = zmq_socket(p->context, type);
	int queue = (int)hwm, none = 0;
	if (s) {
		zmq_setsockopt(s, ZMQ_SNDHWM, &queue, sizeof(queue));
		zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof(none));
		int small = 1024; /* a request for a replay has a few bytes */
		int64_t longest = 256;
		zmq_setsockopt(s, ZMQ_RCVHWM, &small, sizeof(small));
		zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &longest, sizeof(longest));
	}
	return s;
}

static mx_status start(const struct mx_kv_publisher_config *config, struct mx_kv_events *events,
                       struct mx_kv_publisher **out, struct mx_err *err)
{
	struct mx_kv_publisher *p = mx_calloc(1, sizeof(*p));
	mx_status st = p && copy_config(p, config) ? MX_OK : MX_E_NOMEM;
	if (st == MX_OK) {
		p->block_tokens = mx_kv_events_block_tokens(events);
		p->context = zmq_ctx_new();
		st = mx_kv_reader_open(events, &p->reader);
	}
	if (st == MX_OK)
		st = mx_kv_replay_init(&p->kept, config->buffer_steps, REPLAY_BYTES);
	if (st == MX_OK && p->context) {
		p->pub = new_socket(p, ZMQ_PUB, config->hwm);
		/* the whole replay of one request, and its end */
		if (config->replay_endpoint)
			p->router = new_socket(p, ZMQ_ROUTER, config->buffer_steps + 1);
	}
	if (st || !p->pub || (config->replay_endpoint && !p->router)) {
		stop(p);
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	st = open_sockets(p, err);
	if (st == MX_E_IO)
		mx_warning("kv_events", "%s: %s: %s; trying again every second", p->config.model,
		           err ? err->where : "", err ? err->text : "");
	else if (st) {
		stop(p);
		return st;
	}
	p->tried_ns = mx_now_ns();
	int rc = pthread_create(&p->thread, NULL, publisher_main, p);
	if (rc) {
		p->thread = 0;
		stop(p);
		return mx_fail(err, MX_E_NOMEM, "cannot start publishing events: %s", strerror(rc));
	}
	*out = p;
	return MX_OK;
}

extern const struct mx_kv_publisher_table mx_kv_publisher_v1;
const struct mx_kv_publisher_table mx_kv_publisher_v1 = {
	.struct_size = sizeof(mx_kv_publisher_v1), .start = start, .stop = stop};
