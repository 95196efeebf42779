/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote procedure calls over HTTP/2, by gRPC's C core. core*.c alone touch the
 * library: its surface serves other languages' bindings and is not promised to be
 * stable.
 *
 * A server has a table of methods. A method takes a message of the client and then
 * writes its own, one after the other, while the client reads: it is asked for the
 * next when there may be one (after mx_rpc_wake) and the last one has left. So a
 * client that does not read costs the memory of one message, and what the method
 * itself holds.
 *
 * Threads: a few poll the library's completion queues; a pump serves wakes and
 * watches for clients that do not read; the service's workers run `take`, which may be long. A
 * call is never in two functions of its method at once.
 */
#ifndef MX_DAEMON_GRPC_CORE_H
#define MX_DAEMON_GRPC_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "daemon/serve/tls_files.h"

struct mx_rpc_server;
struct mx_rpc_call;

/* gRPC's status codes. */
enum mx_rpc_code {
	MX_RPC_OK = 0,
	MX_RPC_CANCELLED = 1,
	MX_RPC_UNKNOWN = 2,
	MX_RPC_INVALID_ARGUMENT = 3,
	MX_RPC_DEADLINE_EXCEEDED = 4,
	MX_RPC_NOT_FOUND = 5,
	MX_RPC_PERMISSION_DENIED = 7,
	MX_RPC_RESOURCE_EXHAUSTED = 8,
	MX_RPC_FAILED_PRECONDITION = 9,
	MX_RPC_OUT_OF_RANGE = 11,
	MX_RPC_UNIMPLEMENTED = 12,
	MX_RPC_INTERNAL = 13,
	MX_RPC_UNAVAILABLE = 14,
	MX_RPC_UNAUTHENTICATED = 16,
	MX_RPC_CODES = 17
};
/* Returns the name of a code as metrics write it ("InvalidArgument"). */
const char *mx_rpc_code_name(enum mx_rpc_code code);

/* What `next` returns: a set of flags. */
enum mx_rpc_next {
	MX_RPC_WAIT = 0,    /* nothing to say before the next wake */
	MX_RPC_MESSAGE = 1, /* a message was appended */
	/* All is said that the client's message asks for: the call ends, or the client's next message
	 * is read if the method takes several. */
	MX_RPC_DONE = 2
};

struct mx_rpc_method {
	const char *path;    /* "/grpc.health.v1.Health/Check" */
	bool client_streams; /* the client may send several messages */
	bool server_streams; /* the answer may be several messages; for metrics */
	bool quick;          /* `take` does no long work: it runs on a thread of the library's queue */
	size_t quick_bytes;  /* a message of at most so many bytes is as quick */
	bool ticks;          /* the call is woken four times a second */
	/* Takes a message of n bytes, valid during the call. */
	void (*take)(struct mx_rpc_call *c, const uint8_t *message, size_t n);
	/* Appends the next message to the empty buffer *out. NULL: the answer is what `take` gave to
	 * mx_rpc_reply. */
	enum mx_rpc_next (*next)(struct mx_rpc_call *c, struct mx_buf *out);
	/* The call has ended, by its status or by the client, who may have left at any time. Frees the
	 * state. May be NULL. */
	void (*end)(struct mx_rpc_call *c, enum mx_rpc_code code);
};

struct mx_rpc_config {
	const char *const *listen; /* [n_listen] "127.0.0.1:50051"; port 0 = any free port */
	size_t n_listen;
	struct mx_tls_paths tls;
	size_t max_message_bytes; /* of a client's message */
	uint64_t memory;          /* bytes that the library may take for its buffers; 0 = no bound */
	unsigned max_calls;       /* at once; more are refused with RESOURCE_EXHAUSTED */
	unsigned idle_timeout_s;  /* a client that takes nothing of a message for so long is cut */
	unsigned threads;         /* that poll; 0 = 2 */
	unsigned min_ping_s;      /* shortest time between a client's pings; 0 = 5 */
	const struct mx_rpc_method *const *methods; /* [n_methods] must outlive the server */
	size_t n_methods;
	/* Has a worker run fn(job), for a message of n bytes. False if too many wait. */
	bool (*push)(void *arg, size_t n, void (*fn)(void *job), void *job);
	/* A call begins, with its metadata and no message yet: may end it with mx_rpc_fail, and give it
	 * a caller. Must not wait. May be NULL. */
	void (*admit)(struct mx_rpc_call *c);
	/* The first message of an answer, or the status, is about to be sent: may add metadata. Must
	 * not wait. May be NULL. */
	void (*answers)(struct mx_rpc_call *c);
	/* A call has ended after `ns`; its method's `end` follows. `text` is the status's. */
	void (*ended)(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text, uint64_t ns);
	void *arg; /* for mx_rpc_arg */
};

/* Starts serving. MX_E_IO with the address in err->where if it cannot be bound. */
mx_status mx_rpc_server_create(const struct mx_rpc_config *config, struct mx_rpc_server **out,
                               struct mx_err *err);
/* Returns address i as "host:port" with the port that was bound; NULL if there is none. */
const char *mx_rpc_server_address(const struct mx_rpc_server *s, size_t i);
/* Lets connections go on only until their calls have ended, and accepts no others. Idempotent. */
void mx_rpc_server_stop_accepting(struct mx_rpc_server *s);
/* Returns the number of calls that have not ended. */
unsigned mx_rpc_server_active(const struct mx_rpc_server *s);
/* Cancels the calls that have not ended, and frees the server. Takes NULL. */
void mx_rpc_server_destroy(struct mx_rpc_server *s);
/* Reads the files of TLS again; connections that follow use them. On failure nothing changes. */
mx_status mx_rpc_server_reload_tls(struct mx_rpc_server *s, struct mx_err *err);

/* ---- for methods ---- */

void *mx_rpc_arg(const struct mx_rpc_call *c);
const struct mx_rpc_method *mx_rpc_method(const struct mx_rpc_call *c); /* NULL: an unknown one */
/* The method's own data of a call. */
void mx_rpc_set_state(struct mx_rpc_call *c, void *state);
void *mx_rpc_state(const struct mx_rpc_call *c);
/* Who makes the call, as `admit` found out; NULL until then. */
void mx_rpc_set_caller(struct mx_rpc_call *c, void *caller);
void *mx_rpc_caller(const struct mx_rpc_call *c);
/* The call's name in logs, "" at first; given by the front end, of at most MX_RPC_MAX_NAME bytes.
 */
#define MX_RPC_MAX_NAME 128
void mx_rpc_set_name(struct mx_rpc_call *c, const char *name);
const char *mx_rpc_name(const struct mx_rpc_call *c);
/* Marks of the front end's own; a call has none at first. */
#define MX_RPC_MARK(i) (1u << (i))
void mx_rpc_mark(struct mx_rpc_call *c, unsigned mark);
bool mx_rpc_is_marked(const struct mx_rpc_call *c, unsigned mark);
/* Gives the only message of an answer; takes over the buffer's memory. */
void mx_rpc_reply(struct mx_rpc_call *c, struct mx_buf *message);
/* Sets the status with which the call ends; OK if it is never set. `details` ([n] bytes of a
 * google.rpc.Status, may be NULL) is sent beside it. All is copied. The call ends when `take` or
 * `next` returns next. */
void mx_rpc_fail(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text,
                 const void *details, size_t n);
/* Asks for the next message. Any thread that knows that the call has not ended; never waits. */
void mx_rpc_wake(struct mx_rpc_call *c);
/* Returns the value of the client's metadata `key` (lower case), or NULL. Valid until `end`. */
const char *mx_rpc_metadata(const struct mx_rpc_call *c, const char *key, size_t *out_len);
/* Adds metadata to what is sent in front of the first message. For `take`; both are copied. */
void mx_rpc_add_metadata(struct mx_rpc_call *c, const char *key, const char *value);
/* Writes the client's address: "127.0.0.1:40312". */
void mx_rpc_peer(const struct mx_rpc_call *c, char *out, size_t cap);

/* ---- figures ---- */

#define MX_RPC_DURATION_BOUNDS 11

struct mx_rpc_method_stats {
	uint64_t started, received, sent;              /* calls; messages */
	uint64_t handled[MX_RPC_CODES];                /* calls that have ended, by code */
	uint64_t duration[MX_RPC_DURATION_BOUNDS + 1]; /* not cumulative */
	double duration_sum;
};
extern const double mx_rpc_duration_bounds[MX_RPC_DURATION_BOUNDS]; /* seconds */
/* Reads the figures of method i of the configuration's table. */
void mx_rpc_server_stats(const struct mx_rpc_server *s, size_t i, struct mx_rpc_method_stats *out);

#endif
