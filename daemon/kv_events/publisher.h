/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishes the events of a model's prefix cache by ZeroMQ. The publisher is a module
 * (events-zmq.so) that the daemon loads if the configuration has kv_events.endpoint.
 */
#ifndef MX_DAEMON_KV_EVENTS_PUBLISHER_H
#define MX_DAEMON_KV_EVENTS_PUBLISHER_H

#include "daemon/kv_events/batch.h"

struct mx_kv_publisher;

struct mx_kv_publisher_config {
	const char *model;           /* for messages */
	const char *endpoint;        /* of the PUB socket: "tcp://127.0.0.1:5557" */
	bool connect;                /* to it; else bind */
	const char *replay_endpoint; /* bound; NULL = no replay */
	const char *topic;           /* NULL = "" */
	enum mx_kv_encoding encoding;
	uint64_t buffer_steps; /* batches kept for replay */
	uint64_t hwm;          /* batches queued for a subscriber that is slow */
};

/* What the module exports, by the name MX_KV_PUBLISHER_SYMBOL. */
struct mx_kv_publisher_table {
	size_t struct_size;
	/* Starts the publisher's thread. `events` must outlive it; the config is copied. An address
	 * that is in use is tried again every second, with a warning: the server that is replaced may
	 * have it still. MX_E_INVALID with the endpoint in err->where if it is not one. */
	mx_status (*start)(const struct mx_kv_publisher_config *config, struct mx_kv_events *events,
	                   struct mx_kv_publisher **out, struct mx_err *err);
	/* Ends the thread and closes the sockets. Takes NULL. */
	void (*stop)(struct mx_kv_publisher *p);
};
#define MX_KV_PUBLISHER_SYMBOL "mx_kv_publisher_v1"
/* Loads the module; it stays loaded. */
mx_status mx_kv_publisher_load(const struct mx_kv_publisher_table **out, struct mx_err *err);

/* Loads the module and starts the publisher of the model configured as number `index`, by the
 * configuration of all models: its ports are `index` higher, as vLLM's by rank, and `connect`
 * follows from the endpoint. *out = NULL if config->endpoint is NULL, or `events` is NULL, which is
 * warned of. */
mx_status mx_kv_publish(const struct mx_kv_publisher_config *config, size_t index,
                        struct mx_kv_events *events, struct mx_kv_publisher **out,
                        struct mx_err *err);
/* Takes NULL. */
void mx_kv_unpublish(struct mx_kv_publisher *p);

/* Appends the endpoint of model `index` to *out: a port of "tcp://HOST:PORT" is `index` higher, to
 * another endpoint "_INDEX" is appended if it is not 0. */
void mx_kv_endpoint(struct mx_buf *out, const char *endpoint, size_t index);
/* Appends the topic to *out: "{model}" is the model's name, "{host}" the machine's. */
void mx_kv_topic(struct mx_buf *out, const char *topic, const char *model, const char *host);

#endif
