/* SPDX-License-Identifier: Apache-2.0 */
/* What the services of the gRPC front end share. */
#ifndef MX_DAEMON_GRPC_FRONT_IMPL_H
#define MX_DAEMON_GRPC_FRONT_IMPL_H

#include <pthread.h>

#include "daemon/grpc/core.h"
#include "daemon/grpc/errors.h"
#include "daemon/grpc/front.h"
#include "daemon/grpc/messages.h"
#include "daemon/serve/limit_headers.h"
#include "daemon/serve/request_id.h"
#include "daemon/serve/service.h"

struct mx_reflection;
struct mx_vllm_call;

struct mx_grpc {
	struct mx_front front;
	struct mx_service *service;
	const struct mx_rpc_method *const *methods; /* [n_methods] all that are served */
	size_t n_methods;
	struct mx_rpc_server *server;
	struct mx_reflection *reflection;
	unsigned retry_after; /* seconds, for RetryInfo */
	uint64_t start_ns;    /* by mx_now_ns */
	/* Calls of VllmEngine's Generate, for its Abort. */
	pthread_mutex_t vllm_lock;
	struct mx_vllm_call *vllm_calls;
};

/* ---- calls.c ---- */

/* Reads a message. On failure ends the call with the error and returns NULL. */
ProtobufCMessage *mx_grpc_unpack(struct mx_rpc_call *c, const ProtobufCMessageDescriptor *type,
                                 const uint8_t *data, size_t n, struct mx_arena *arena);

/* Copies the client's metadata `key`. Returns `out`; NULL if there is none or it is too long. */
const char *mx_grpc_metadata(const struct mx_rpc_call *c, const char *key, char *out, size_t cap);

/* Returns the request's id: the client's x-request-id or the trace id of its traceparent, or a new
 * one. */
const char *mx_grpc_request_id(struct mx_rpc_call *c);

/* Ends a call with an error, or does nothing if st is MX_OK. Returns true if it was. */
bool mx_grpc_fine(struct mx_rpc_call *c, mx_status st, const struct mx_api_error *err);

/* Returns the first model of the configuration, held, for services that have no names of models. If
 * it is not loaded ends the call and returns NULL. */
struct mx_served *mx_grpc_first_model(struct mx_rpc_call *c);

/* ---- admit.c ---- */

/* Mark of a call that has a place of its principal's, until mx_grpc_leave. */
#define MX_GRPC_ENTERED MX_RPC_MARK(1)

/* Finds out who makes a call, and fails it if it has no good key or is over a limit. */
void mx_grpc_admit(struct mx_rpc_call *c);
/* Adds the metadata that all answers have: the request's id, and what is left of limits. */
void mx_grpc_answers(struct mx_rpc_call *c);
/* Returns the principal; NULL = keys are not wanted. */
struct mx_principal *mx_grpc_who(const struct mx_rpc_call *c);
/* Returns true if a call may act for all principals: its own is a router, or no key is wanted. */
bool mx_grpc_is_router(const struct mx_rpc_call *c);
/* The call has ended. */
void mx_grpc_leave(struct mx_rpc_call *c);

/* ---- access.c ---- */

/* Logs a call that has ended, as log.access says. */
void mx_grpc_log(struct mx_rpc_call *c, enum mx_rpc_code code, const char *text, uint64_t ns);

/* ---- the methods, by service ---- */

/* Bytes of a prompt that is tokenised in less than a millisecond, where a hand-over to another
 * thread would cost more than it. Not for chats: a template may take long over a short text. */
#define MX_GRPC_QUICK_PROMPT ((size_t)1 << 10)

extern const struct mx_rpc_method mx_grpc_complete, mx_grpc_chat, mx_grpc_score, mx_grpc_tokenize,
	mx_grpc_detokenize, mx_grpc_list_models;
extern const struct mx_rpc_method mx_grpc_health_check, mx_grpc_health_list, mx_grpc_health_watch;
extern const struct mx_rpc_method mx_oip_live, mx_oip_ready, mx_oip_model_ready, mx_oip_metadata,
	mx_oip_model_metadata, mx_oip_infer, mx_oip_stream;
extern const struct mx_rpc_method mx_vllm_generate, mx_vllm_abort, mx_vllm_health, mx_vllm_model,
	mx_vllm_server, mx_vllm_loads, mx_vllm_tokenizer, mx_vllm_events;
extern const struct mx_rpc_method mx_grpc_reflection_v1, mx_grpc_reflection_v1alpha;

/* ---- metrics.c ---- */

void mx_grpc_write_metrics(const struct mx_grpc *g, struct mx_metrics_writer *w);

/* ---- reflection.c ---- */

/* Reads the descriptions of all services, which are part of the program. */
mx_status mx_reflection_create(struct mx_reflection **out, struct mx_err *err);
void mx_reflection_destroy(struct mx_reflection *r); /* takes NULL */

#endif
