/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: see core.h. */
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/grpc/core_impl.h"

const double mx_rpc_duration_bounds[MX_RPC_DURATION_BOUNDS] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                               0.5,   1,    2.5,   5,    10};

const char *mx_rpc_code_name(enum mx_rpc_code code)
{
	static const char *const names[MX_RPC_CODES] = {
		"OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
		"NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
		"Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
		"DataLoss", "Unauthenticated"};
	return (unsigned)code < MX_RPC_CODES ? names[code] : "Unknown";
}

/* ---- calls ---- */

void mx_rpc_unref(struct mx_rpc_call *c)
{
	if (atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	if (c->incoming)
		grpc_byte_buffer_destroy(c->incoming);
	for (size_t i = 0; i < c->n_added; i++) {
		grpc_slice_unref(c->added[i].key);
		grpc_slice_unref(c->added[i].value);
	}
	grpc_metadata_array_destroy(&c->metadata);
	grpc_call_details_destroy(&c->details);
	if (c->call)
		grpc_call_unref(c->call);
	mx_buf_free(&c->reply);
	mx_buf_free(&c->status_details);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* Starts operations that end with `tag`. False if the library refuses them, which is a bug of ours.
 */
static bool start(struct mx_rpc_call *c, const grpc_op *ops, size_t n, struct mx_rpc_tag *tag)
{
	atomic_fetch_add(&c->refs, 1);
	mx_rpc_give(tag);
	grpc_call_error e = grpc_call_start_batch(c->call, ops, n, tag, NULL);
	if (e == GRPC_CALL_OK)
		return true;
	mx_error("grpc", "the library refuses an operation of a call (%d)", (int)e);
	mx_rpc_unref(c);
	return false;
}

static void enlist(struct mx_rpc_call *c)
{
	struct mx_rpc_server *s = c->server;
	pthread_mutex_lock(&s->lock);
	c->next = s->calls;
	if (c->next)
		c->next->previous = c;
	s->calls = c;
	pthread_mutex_unlock(&s->lock);
}

static void delist(struct mx_rpc_call *c)
{
	struct mx_rpc_server *s = c->server;
	pthread_mutex_lock(&s->lock);
	if (c->next)
		c->next->previous = c->previous;
	*(c->previous ? &c->previous->next : &s->calls) = c->next;
	pthread_mutex_unlock(&s->lock);
}

static void count_end(struct mx_rpc_call *c, uint64_t ns)
{
	double seconds = (double)ns * 1e-9;
	unsigned i = 0;
	while (i < MX_RPC_DURATION_BOUNDS && seconds > mx_rpc_duration_bounds[i])
		i++;
	atomic_fetch_add(&c->figures->duration[i], 1);
	atomic_fetch_add(&c->figures->duration_ns, ns);
	atomic_fetch_add(&c->figures->handled[c->code], 1);
}

/* Tells the method of the end, once no function of it runs. Under the call's lock. */
static void end_if_over(struct mx_rpc_call *c)
{
	if (c->ended || c->taking || !(c->left || (c->ending && !c->sending)))
		return;
	c->ended = true;
	if (c->left && !c->ending) {
		gpr_timespec now = gpr_now(c->details.deadline.clock_type);
		bool late = gpr_time_cmp(c->details.deadline, now) <= 0;
		c->code = late ? MX_RPC_DEADLINE_EXCEEDED : MX_RPC_CANCELLED;
	}
	uint64_t ns = mx_now_ns() - c->start_ns;
	c->server->config.ended(c, c->code, c->text, ns);
	if (c->method && c->method->end)
		c->method->end(c, c->code);
	count_end(c, ns);
	delist(c);
	atomic_fetch_sub(&c->server->active, 1);
	mx_rpc_unref(c);
}

/* Reads the client's next message. Under the lock. */
static void receive(struct mx_rpc_call *c)
{
	grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &c->incoming};
	c->taking = start(c, &op, 1, &c->received);
	c->left = c->left || !c->taking;
}

/* Adds the operation that sends the status. */
static grpc_op status_op(struct mx_rpc_call *c, grpc_slice *text, grpc_metadata *trailer)
{
	grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
	op.data.send_status_from_server.status = (grpc_status_code)c->code;
	if (c->code != MX_RPC_OK) {
		*text = grpc_slice_from_copied_string(c->text);
		op.data.send_status_from_server.status_details = text;
	}
	if (c->status_details.len) {
		*trailer = (grpc_metadata){
			.key = grpc_slice_from_static_string("grpc-status-details-bin"),
			.value = grpc_slice_from_copied_buffer(c->status_details.data, c->status_details.len)};
		op.data.send_status_from_server.trailing_metadata = trailer;
		op.data.send_status_from_server.trailing_metadata_count = 1;
	}
	c->ending = true;
	return op;
}

/* Sends a message, the status if the call is `done`, and in front of the first of both the
 * metadata. Under the lock. */
static void send(struct mx_rpc_call *c, const struct mx_buf *message, bool done)
{
	grpc_op ops[3];
	size_t n = 0;
	grpc_slice text = grpc_empty_slice();
	grpc_metadata trailer = {.value = grpc_empty_slice()};
	grpc_byte_buffer *bytes = NULL;
	if (!c->begun) {
		if (c->server->config.answers)
			c->server->config.answers(c);
		ops[n] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
		ops[n].data.send_initial_metadata.count = c->n_added;
		ops[n++].data.send_initial_metadata.metadata = c->added;
		c->begun = true;
	}
	if (message) {
		grpc_slice slice = grpc_slice_from_copied_buffer(mx_buf_str(message), message->len);
		bytes = grpc_raw_byte_buffer_create(&slice, 1);
		grpc_slice_unref(slice);
		ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
		ops[n++].data.send_message.send_message = bytes;
		atomic_fetch_add(&c->figures->sent, 1);
	}
	if (done)
		ops[n++] = status_op(c, &text, &trailer);
	atomic_store(&c->sending_since, mx_now_ns());
	c->sending = start(c, ops, n, &c->sent);
	c->left = c->left || !c->sending;
	if (bytes)
		grpc_byte_buffer_destroy(bytes);
	grpc_slice_unref(text);
	grpc_slice_unref(trailer.value);
}

/* Asks the method what is to be sent. Under the lock. */
static enum mx_rpc_next ask(struct mx_rpc_call *c, struct mx_buf *out)
{
	enum mx_rpc_next what = MX_RPC_DONE;
	if (c->failed)
		return what;
	if (c->method->next) {
		what = c->method->next(c, out);
	} else if (c->replied) {
		mx_buf_free(out);
		*out = c->reply;
		c->reply = (struct mx_buf){0};
		c->replied = false;
		what = MX_RPC_MESSAGE | MX_RPC_DONE;
	}
	if (out->failed)
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
	return c->failed ? MX_RPC_DONE : what;
}

/* Does what there is to do: sends the next message or the status, or reads the client's next one.
 */
void mx_rpc_advance(struct mx_rpc_call *c)
{
	pthread_mutex_lock(&c->lock);
	while (!c->left && !c->sending && !c->taking && !c->ending) {
		struct mx_buf out = {0};
		enum mx_rpc_next what = ask(c, &out);
		bool done = (what & MX_RPC_DONE) && (c->failed || !c->method->client_streams);
		if ((what & MX_RPC_MESSAGE) || done)
			send(c, (what & MX_RPC_MESSAGE) ? &out : NULL, done);
		mx_buf_free(&out);
		if ((what & MX_RPC_DONE) && !done)
			receive(c);
		if (what == MX_RPC_WAIT)
			break;
	}
	end_if_over(c);
	pthread_mutex_unlock(&c->lock);
}

/* Gives the received message to the method. `c->taking` keeps all others out. */
static void take(void *arg)
{
	struct mx_rpc_call *c = arg;
	grpc_byte_buffer_reader reader;
	if (grpc_byte_buffer_reader_init(&reader, c->incoming)) {
		grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
		c->method->take(c, GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
		grpc_slice_unref(slice);
		grpc_byte_buffer_reader_destroy(&reader);
	} else {
		mx_rpc_fail(c, MX_RPC_INTERNAL, "the message cannot be read", NULL, 0);
	}
	grpc_byte_buffer_destroy(c->incoming);
	c->incoming = NULL;
	pthread_mutex_lock(&c->lock);
	c->taking = false;
	pthread_mutex_unlock(&c->lock);
	mx_rpc_advance(c);
	mx_rpc_unref(c);
}

/* A message has come, or the client has no more. */
static void on_received(struct mx_rpc_call *c)
{
	bool refused = false;
	if (c->incoming && c->method && !c->failed) {
		c->n_received++;
		atomic_fetch_add(&c->figures->received, 1);
		atomic_fetch_add(&c->refs, 1);
		size_t n = grpc_byte_buffer_length(c->incoming);
		if (c->method->quick || n <= c->method->quick_bytes)
			take(c);
		else
			refused = !c->server->config.push(c->server->config.arg, n, take, c);
		if (!refused)
			return;
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "too many requests wait to be read", NULL, 0);
		mx_rpc_unref(c);
	}
	pthread_mutex_lock(&c->lock);
	c->taking = false;
	if (!c->incoming && !c->failed && !(c->method->client_streams && c->n_received))
		mx_rpc_fail(c, MX_RPC_INVALID_ARGUMENT, "the call has no message", NULL, 0);
	if (!c->left && !c->ending && !c->sending)
		send(c, NULL, true);
	end_if_over(c);
	pthread_mutex_unlock(&c->lock);
}

/* ---- new calls ---- */

/* Waits for the next call on a queue. */
void mx_rpc_request(struct mx_rpc_server *s, grpc_completion_queue *q)
{
	struct mx_rpc_call *c = mx_calloc(1, sizeof(*c));
	if (!c) {
		mx_error("grpc", "out of memory: one call less is waited for");
		return;
	}
	c->server = s;
	c->queue = q;
	c->fresh = (struct mx_rpc_tag){MX_RPC_TAG_NEW, c};
	c->received = (struct mx_rpc_tag){MX_RPC_TAG_RECEIVED, c};
	c->sent = (struct mx_rpc_tag){MX_RPC_TAG_SENT, c};
	c->closed = (struct mx_rpc_tag){MX_RPC_TAG_CLOSED, c};
	pthread_mutex_init(&c->lock, NULL);
	grpc_call_details_init(&c->details);
	grpc_metadata_array_init(&c->metadata);
	atomic_init(&c->refs, 1);
	mx_rpc_give(&c->fresh);
	if (grpc_server_request_call(s->server, &c->call, &c->details, &c->metadata, q, q, &c->fresh) !=
	    GRPC_CALL_OK)
		mx_rpc_unref(c);
}

static void find_method(struct mx_rpc_call *c)
{
	const struct mx_rpc_config *config = &c->server->config;
	const char *path = (const char *)GRPC_SLICE_START_PTR(c->details.method);
	size_t len = GRPC_SLICE_LENGTH(c->details.method), i = 0;
	for (; i < config->n_methods; i++) {
		const char *known = config->methods[i]->path;
		if (strlen(known) == len && !memcmp(known, path, len))
			break;
	}
	c->figures = &c->server->figures[i];
	c->method = i < config->n_methods ? config->methods[i] : NULL;
}

/* Fails a call that is not to be served. */
static void check(struct mx_rpc_call *c)
{
	struct mx_rpc_server *s = c->server;
	unsigned active = atomic_fetch_add(&s->active, 1) + 1;
	char text[256];
	if (!c->method) {
		snprintf(text, sizeof(text), "there is no method %.*s",
		         (int)GRPC_SLICE_LENGTH(c->details.method),
		         (const char *)GRPC_SLICE_START_PTR(c->details.method));
		mx_rpc_fail(c, MX_RPC_UNIMPLEMENTED, text, NULL, 0);
	} else if (active > s->config.max_calls) {
		snprintf(text, sizeof(text), "%u calls are being served (grpc.max_calls)",
		         s->config.max_calls);
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, text, NULL, 0);
	} else if (s->config.admit) {
		s->config.admit(c);
	}
}

/* Begins a call that a client has made. It has the reference of the request. */
static void begin(struct mx_rpc_call *c)
{
	pthread_mutex_lock(&c->lock);
	c->start_ns = mx_now_ns();
	find_method(c);
	atomic_fetch_add(&c->figures->started, 1);
	enlist(c);
	check(c);
	grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
	close.data.recv_close_on_server.cancelled = &c->cancelled;
	c->left = !start(c, &close, 1, &c->closed);
	if (c->failed && !c->left)
		send(c, NULL, true);
	else if (!c->left)
		receive(c);
	end_if_over(c);
	pthread_mutex_unlock(&c->lock);
}

static void on_new(struct mx_rpc_call *c, bool success)
{
	if (!success) { /* the server is being shut down */
		mx_rpc_unref(c);
		return;
	}
	mx_rpc_request(c->server, c->queue);
	begin(c);
}

static void on_sent(struct mx_rpc_call *c, bool success)
{
	pthread_mutex_lock(&c->lock);
	c->sending = false;
	atomic_store(&c->sending_since, 0);
	c->left = c->left || !success;
	pthread_mutex_unlock(&c->lock);
	mx_rpc_advance(c);
}

/* The call is over for the library: its status has left, or the client has. */
static void on_closed(struct mx_rpc_call *c)
{
	pthread_mutex_lock(&c->lock);
	c->left = c->left || c->cancelled;
	end_if_over(c);
	pthread_mutex_unlock(&c->lock);
}

void mx_rpc_complete(const struct mx_rpc_tag *tag, bool success)
{
	struct mx_rpc_call *c = tag->call;
	switch (tag->kind) {
	case MX_RPC_TAG_NEW: on_new(c, success); return; /* the reference is the call's now */
	case MX_RPC_TAG_RECEIVED: on_received(c); break;
	case MX_RPC_TAG_SENT: on_sent(c, success); break;
	case MX_RPC_TAG_CLOSED: on_closed(c); break;
	case MX_RPC_TAG_SHUTDOWN: return;
	}
	mx_rpc_unref(c);
}

void mx_rpc_wake(struct mx_rpc_call *c)
{
	struct mx_rpc_server *s = c->server;
	if (atomic_exchange(&c->woken, true))
		return;
	atomic_fetch_add(&c->refs, 1);
	pthread_mutex_lock(&s->lock);
	c->next_wake = NULL;
	bool first = !s->wakes;
	*s->wakes_end = c;
	s->wakes_end = &c->next_wake;
	if (first)
		pthread_cond_signal(&s->more);
	pthread_mutex_unlock(&s->lock);
}

/* ---- for methods ---- */

void *mx_rpc_arg(const struct mx_rpc_call *c)
{
	return c->server->config.arg;
}

void mx_rpc_set_caller(struct mx_rpc_call *c, void *caller)
{
	c->caller = caller;
}

void *mx_rpc_caller(const struct mx_rpc_call *c)
{
	return c->caller;
}

void mx_rpc_mark(struct mx_rpc_call *c, unsigned mark)
{
	c->marks |= mark;
}

bool mx_rpc_is_marked(const struct mx_rpc_call *c, unsigned mark)
{
	return c->marks & mark;
}

const struct mx_rpc_method *mx_rpc_method(const struct mx_rpc_call *c)
{
	return c->method;
}

void mx_rpc_set_state(struct mx_rpc_call *c, void *state)
{
	c->state = state;
}

void *mx_rpc_state(const struct mx_rpc_call *c)
{
	return c->state;
}

void mx_rpc_reply(struct mx_rpc_call *c, struct mx_buf *message)
{
	mx_buf_free(&c->reply);
	c->reply = *message;
	*message = (struct mx_buf){0};
	c->replied = true;
	if (c->reply.failed)
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
}

void mx_rpc_fail(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text,
                 const void *details, size_t n)
{
	c->failed = true;
	c->code = code;
	snprintf(c->text, sizeof(c->text), "%s", text);
	mx_buf_clear(&c->status_details);
	mx_buf_append(&c->status_details, details, n);
}

const char *mx_rpc_metadata(const struct mx_rpc_call *c, const char *key, size_t *out_len)
{
	for (size_t i = 0; i < c->metadata.count; i++) {
		const grpc_metadata *m = &c->metadata.metadata[i];
		if (grpc_slice_str_cmp(m->key, key))
			continue;
		*out_len = GRPC_SLICE_LENGTH(m->value);
		return (const char *)GRPC_SLICE_START_PTR(m->value);
	}
	return NULL;
}

void mx_rpc_set_name(struct mx_rpc_call *c, const char *name)
{
	snprintf(c->name, sizeof(c->name), "%s", name);
}

const char *mx_rpc_name(const struct mx_rpc_call *c)
{
	return c->name;
}

void mx_rpc_add_metadata(struct mx_rpc_call *c, const char *key, const char *value)
{
	if (c->n_added < MX_RPC_MAX_METADATA && !c->begun)
		c->added[c->n_added++] = (grpc_metadata){.key = grpc_slice_from_copied_string(key),
		                                         .value = grpc_slice_from_copied_string(value)};
}

void mx_rpc_peer(const struct mx_rpc_call *c, char *out, size_t cap)
{
	char *peer = grpc_call_get_peer(c->call);
	const char *address = peer ? peer : "";
	if (!strncmp(address, "ipv4:", 5) || !strncmp(address, "ipv6:", 5))
		address += 5;
	snprintf(out, cap, "%s", address);
	gpr_free(peer);
}
