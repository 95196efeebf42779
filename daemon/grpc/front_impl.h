/* SPDX-License-Identifier: Apache-2.0 */
/* What the services of the gRPC front end share. */
#ifndef MX_DAEMON_GRPC_FRONT_IMPL_H
#define MX_DAEMON_GRPC_FRONT_IMPL_H

#include "daemon/grpc/core.h"
#include "daemon/grpc/errors.h"
#include "daemon/grpc/front.h"
#include "daemon/grpc/messages.h"
#include "daemon/serve/request_id.h"
#include "daemon/serve/service.h"

struct mx_reflection;

struct mx_grpc {
	struct mx_front front;
	struct mx_service *service;
	const struct mx_rpc_method *const *methods; /* [n_methods] all that are served */
	size_t n_methods;
	struct mx_rpc_server *server;
	struct mx_reflection *reflection;
	unsigned retry_after; /* seconds, for RetryInfo */
	uint64_t start_ns;    /* by mx_now_ns */
};

/* ---- calls.c ---- */

/* Reads a message. On failure ends the call with the error and returns NULL. */
ProtobufCMessage *mx_grpc_unpack(struct mx_rpc_call *c, const ProtobufCMessageDescriptor *type,
                                 const uint8_t *data, size_t n, struct mx_arena *arena);

/* Writes the request's id: the client's x-request-id or the trace id of its traceparent, or a new
 * one.
 */
void mx_grpc_request_id(const struct mx_rpc_call *c, char out[MX_REQUEST_ID_LEN + 1]);

/* ---- access.c ---- */

/* Logs a call that has ended, as log.access says. */
void mx_grpc_log(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text, uint64_t ns);

/* Gives the only message of an answer, for which memory of the service's budget of answers is taken
 * until the call ends: the method's `end` must be mx_grpc_reply_end, and it has no other state.
 * Takes over the buffer. */
void mx_grpc_reply(struct mx_rpc_call *c, struct mx_buf *message);
void mx_grpc_reply_end(struct mx_rpc_call *c, enum mx_rpc_code code);

/* Ends a call with an error, or does nothing if st is MX_OK. Returns true if it was. */
bool mx_grpc_fine(struct mx_rpc_call *c, mx_status st, const struct mx_api_error *err);

/* ---- the methods, by service ---- */

extern const struct mx_rpc_method mx_grpc_complete, mx_grpc_chat, mx_grpc_score, mx_grpc_tokenize,
	mx_grpc_detokenize, mx_grpc_list_models;
extern const struct mx_rpc_method mx_grpc_health_check, mx_grpc_health_list, mx_grpc_health_watch;
extern const struct mx_rpc_method mx_grpc_reflection_v1, mx_grpc_reflection_v1alpha;

/* ---- metrics.c ---- */

void mx_grpc_write_metrics(const struct mx_grpc *g, struct mx_metrics_writer *w);

/* ---- reflection.c ---- */

/* Reads the descriptions of all services, which are part of the program. */
mx_status mx_reflection_create(struct mx_reflection **out, struct mx_err *err);
void mx_reflection_destroy(struct mx_reflection *r); /* takes NULL */

#endif
