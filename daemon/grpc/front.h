/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gRPC front end. It is a module (front-grpc.so) that the daemon loads if the
 * configuration has a section `grpc`: gRPC's library is large, and who does not serve
 * it needs none of it.
 */
#ifndef MX_DAEMON_GRPC_FRONT_H
#define MX_DAEMON_GRPC_FRONT_H

#include "daemon/serve/front.h"
#include "daemon/serve/service.h"
#include "daemon/serve/tls_files.h"

struct mx_grpc_config {
	const char *const *listen; /* [n_listen] "127.0.0.1:50051"; port 0 = any free port */
	size_t n_listen;
	struct mx_tls_paths tls;
	size_t max_message_bytes; /* of a request */
	uint64_t memory;          /* bytes of the library's buffers together */
	unsigned max_calls;       /* at once */
	unsigned idle_timeout_s;  /* for a client that does not read */
	unsigned min_ping_s;      /* shortest time between a client's pings; 0 = 5 */
	unsigned threads;         /* 0 = 2 */
	unsigned retry_after;     /* seconds, where a call is refused for now */
};

/* What the module exports, by the name MX_GRPC_SYMBOL. */
struct mx_grpc_table {
	size_t struct_size;
	/* Starts serving. The service must outlive the front end. MX_E_IO with the address in
	 * err->where if it cannot be bound. */
	mx_status (*create)(const struct mx_grpc_config *config, struct mx_service *service,
	                    struct mx_front **out, struct mx_err *err);
	/* Reads the files of TLS again; connections that follow use them. On failure nothing changes.
	 */
	mx_status (*reload_tls)(struct mx_front *f, struct mx_err *err);
};
#define MX_GRPC_SYMBOL "mx_grpc_v1"

/* Loads the module. */
mx_status mx_grpc_load(const struct mx_grpc_table **out, struct mx_err *err);

#endif
