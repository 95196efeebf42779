/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grpc.health.v1: the health of the server ("", and the name of each service) and of
 * each model (its name or an alias). SERVING means that a new request is taken.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/front_impl.h"
#include "proto/pb/grpc/health/v1/health.pb-c.h"

#define SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define NO_SERVICE  GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

/* Returns true if a path's service has that name. */
static bool is_service(const char *path, const char *name, size_t len)
{
	return !strncmp(path + 1, name, len) && path[1 + len] == '/';
}

/* Returns the status of a server, service or model of that name. */
static int status_of(const struct mx_grpc *g, const char *name, size_t len)
{
	struct mx_service *s = g->service;
	struct mx_served *m = len ? mx_service_take(s, name, len) : NULL;
	if (m) {
		bool takes = mx_served_takes(s, m);
		mx_served_release(m);
		return takes ? SERVING : NOT_SERVING;
	}
	bool known = len == 0;
	for (size_t i = 0; i < g->n_methods && !known; i++)
		known = is_service(g->methods[i]->path, name, len);
	if (!known)
		return NO_SERVICE;
	return mx_service_ready(s, NULL) ? SERVING : NOT_SERVING;
}

/* What a call asks for. */
struct watch {
	char *name; /* [len] */
	size_t len;
	int said; /* the status that was sent last, -1 = none */
};

static void write_status(int status, struct mx_buf *out)
{
	Grpc__Health__V1__HealthCheckResponse m = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
	m.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
	mx_pb_pack(&m.base, out);
}

static void take_check(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	struct mx_api_error err;
	struct mx_buf reply = {0};
	Grpc__Health__V1__HealthCheckRequest *r = (void *)mx_grpc_unpack(
		c, &grpc__health__v1__health_check_request__descriptor, message, n, &arena);
	int status = r ? status_of(mx_rpc_arg(c), (const char *)r->service.data, r->service.len) : 0;
	if (r && status == NO_SERVICE) {
		mx_api_fail(&err, MX_FAULT_NOT_FOUND, "model_not_found", "service",
		            "no model or service is called '%.*s'",
		            (int)(r->service.len < 200 ? r->service.len : 200),
		            (const char *)r->service.data);
		mx_rpc_fail_api(c, &err, 0);
	} else if (r) {
		write_status(status, &reply);
		mx_rpc_reply(c, &reply);
	}
	mx_buf_free(&reply);
	mx_arena_free(&arena);
}

static void take_watch(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	struct mx_arena arena = {0};
	Grpc__Health__V1__HealthCheckRequest *r = (void *)mx_grpc_unpack(
		c, &grpc__health__v1__health_check_request__descriptor, message, n, &arena);
	struct watch *w = r ? mx_calloc(1, sizeof(*w) + r->service.len) : NULL;
	if (w) {
		w->name = (char *)(w + 1);
		w->len = r->service.len;
		w->said = -1;
		if (w->len)
			memcpy(w->name, r->service.data, w->len);
		mx_rpc_set_state(c, w);
	} else if (r) {
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
	}
	mx_arena_free(&arena);
}

static enum mx_rpc_next next_watch(struct mx_rpc_call *c, struct mx_buf *out)
{
	struct watch *w = mx_rpc_state(c);
	int status = status_of(mx_rpc_arg(c), w->name, w->len);
	if (status == w->said)
		return MX_RPC_WAIT;
	w->said = status;
	write_status(status, out);
	return MX_RPC_MESSAGE;
}

static void end_watch(struct mx_rpc_call *c, enum mx_rpc_code code)
{
	(void)code;
	free(mx_rpc_state(c));
}

static void take_list(struct mx_rpc_call *c, const uint8_t *message, size_t n)
{
	(void)message;
	(void)n;
	const struct mx_grpc *g = mx_rpc_arg(c);
	struct mx_served_set models;
	mx_service_take_all(g->service, &models);
	size_t count = models.n + 1;
	Grpc__Health__V1__HealthListResponse m = GRPC__HEALTH__V1__HEALTH_LIST_RESPONSE__INIT;
	struct mx_arena arena = {0};
	struct mx_buf reply = {0};
	Grpc__Health__V1__HealthListResponse__StatusesEntry *entries =
		mx_arena_alloc(&arena, count * sizeof(*entries));
	Grpc__Health__V1__HealthCheckResponse *values = mx_arena_alloc(&arena, count * sizeof(*values));
	m.statuses = mx_arena_alloc(&arena, count * sizeof(*m.statuses));
	if (entries && values && m.statuses) {
		for (size_t i = 0; i < count; i++) {
			const char *name = i ? models.items[i - 1]->name : "";
			grpc__health__v1__health_list_response__statuses_entry__init(&entries[i]);
			grpc__health__v1__health_check_response__init(&values[i]);
			entries[i].key = (char *)(uintptr_t)name;
			entries[i].value = &values[i];
			values[i].status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status_of(
				g, name, strlen(name));
			m.statuses[i] = &entries[i];
		}
		m.n_statuses = count;
		mx_pb_pack(&m.base, &reply);
		mx_rpc_reply(c, &reply);
	} else {
		mx_rpc_fail(c, MX_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
	}
	mx_served_set_release(&models);
	mx_arena_free(&arena);
}

const struct mx_rpc_method mx_grpc_health_check = {
	.path = "/grpc.health.v1.Health/Check", .quick = true, .take = take_check};
const struct mx_rpc_method mx_grpc_health_list = {
	.path = "/grpc.health.v1.Health/List", .quick = true, .take = take_list};
const struct mx_rpc_method mx_grpc_health_watch = {.path = "/grpc.health.v1.Health/Watch",
                                                   .server_streams = true,
                                                   .quick = true,
                                                   .ticks = true,
                                                   .take = take_watch,
                                                   .next = next_watch,
                                                   .end = end_watch};
