/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of calls and servers, for the files core*.c.
 */
#ifndef MX_DAEMON_GRPC_CORE_IMPL_H
#define MX_DAEMON_GRPC_CORE_IMPL_H

#include <grpc/grpc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "daemon/grpc/core.h"

#define MX_RPC_MAX_LISTEN   16
#define MX_RPC_MAX_METADATA 16 /* that a method adds */

struct mx_rpc_figures {
	_Atomic uint64_t started, received, sent;
	_Atomic uint64_t handled[MX_RPC_CODES];
	_Atomic uint64_t duration[MX_RPC_DURATION_BOUNDS + 1];
	_Atomic uint64_t duration_ns;
};

/* What a completion belongs to. */
enum mx_rpc_tag_kind {
	MX_RPC_TAG_NEW,
	MX_RPC_TAG_RECEIVED,
	MX_RPC_TAG_SENT,
	MX_RPC_TAG_CLOSED,
	MX_RPC_TAG_SHUTDOWN
};
struct mx_rpc_tag {
	enum mx_rpc_tag_kind kind;
	struct mx_rpc_call *call;
};

struct mx_rpc_call {
	struct mx_rpc_server *server;
	grpc_completion_queue *queue;
	grpc_call *call;
	grpc_call_details details;
	grpc_metadata_array metadata;
	struct mx_rpc_tag fresh, received, sent, closed;
	int cancelled; /* written by the library with `closed` */
	grpc_byte_buffer *incoming;

	const struct mx_rpc_method *method; /* NULL = there is none of that name */
	struct mx_rpc_figures *figures;     /* of the method, or of all unknown ones */
	uint64_t start_ns;
	void *state, *caller;
	unsigned marks;
	grpc_metadata added[MX_RPC_MAX_METADATA];
	size_t n_added;
	char name[MX_RPC_MAX_NAME + 1];

	/* References: operations of the library, the queue of wakes, and the call until its end. */
	_Atomic unsigned refs;
	_Atomic bool woken; /* in the queue of wakes */
	struct mx_rpc_call *next_wake;
	struct mx_rpc_call *next, *previous; /* calls of the server; under its lock */

	pthread_mutex_t lock; /* of all below */
	bool taking;          /* a message is being received or taken */
	bool sending;         /* an operation of `sent` is under way */
	_Atomic uint64_t sending_since;
	uint64_t n_received; /* messages of the client */
	bool begun;          /* the metadata was sent */
	bool ending;         /* the status was sent */
	bool left;           /* the client has left, or the call was cut */
	bool ended;          /* the method has heard of the end */
	struct mx_buf reply;
	bool replied, failed;
	enum mx_rpc_code code;
	char text[768];
	struct mx_buf status_details;
};

struct mx_rpc_server {
	struct mx_rpc_config config;
	grpc_server *server;
	grpc_resource_quota *quota;
	char *addresses[MX_RPC_MAX_LISTEN];
	struct mx_rpc_figures *figures; /* [n_methods + 1] the last for unknown methods */

	grpc_completion_queue **queues; /* [n_queues], a thread each */
	pthread_t *threads;
	unsigned n_queues, n_threads;

	pthread_t pump;
	bool pump_runs;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t more;
	struct mx_rpc_call *wakes, **wakes_end;
	struct mx_rpc_call *calls; /* those that have begun and not ended */
	bool stop, stopped_accepting, shut_down;
	struct mx_rpc_tag shutdown;
	struct mx_tls_files files; /* of TLS, if there is any */
	bool files_new;            /* they were not given to the library yet */
	_Atomic unsigned active;
};

/* What is given to the library with a tag comes back with it, to another thread. The library orders
 * the two; the thread sanitizer, which does not see how, is told. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define mx_rpc_give(tag)  __tsan_release(tag)
#define mx_rpc_taken(tag) __tsan_acquire(tag)
#else
#define mx_rpc_give(tag)  ((void)(tag))
#define mx_rpc_taken(tag) ((void)(tag))
#endif

/* ---- core.c ---- */

/* Waits for the next call on a queue. */
void mx_rpc_request(struct mx_rpc_server *s, grpc_completion_queue *q);
/* Does what follows from an operation that has ended. */
void mx_rpc_complete(const struct mx_rpc_tag *tag, bool success);
/* Does what there is to do: sends the next message or the status, or reads the client's next one.
 */
void mx_rpc_advance(struct mx_rpc_call *c);
/* Drops a reference; the last one frees the call. */
void mx_rpc_unref(struct mx_rpc_call *c);

#endif
