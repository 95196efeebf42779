/* SPDX-License-Identifier: Apache-2.0 */
/* From the configuration to a model's publisher. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/module.h"
#include "daemon/kv_events/publisher.h"

mx_status mx_kv_publisher_load(const struct mx_kv_publisher_table **out, struct mx_err *err)
{
	static const struct mx_module module = {
		.file = "events-zmq.so",
		.variable = "MIXD_FRONT_PATH",
		.folders = MIXD_FRONT_DIR,
		.symbol = MX_KV_PUBLISHER_SYMBOL,
		.what = "the publisher of cache events",
		.needed = "kv_events.endpoint needs",
		.built = "where ZeroMQ's development files are",
	};
	void *symbol = NULL;
	mx_status st = mx_module_load(&module, &symbol, err);
	if (st)
		return st;
	const struct mx_kv_publisher_table *t = symbol;
	if (t->struct_size < sizeof(*t))
		return mx_fail(err, MX_E_UNSUPPORTED, "events-zmq.so is not one of this version");
	*out = t;
	return MX_OK;
}

void mx_kv_endpoint(struct mx_buf *out, const char *endpoint, size_t index)
{
	const char *colon = strrchr(endpoint, ':');
	if (!index) {
		mx_buf_puts(out, endpoint);
	} else if (!strncmp(endpoint, "tcp://", 6) && colon[1] &&
	           !colon[1 + strspn(colon + 1, "0123456789")]) {
		mx_buf_append(out, endpoint, (size_t)(colon + 1 - endpoint));
		mx_buf_printf(out, "%llu", strtoull(colon + 1, NULL, 10) + index);
	} else {
		mx_buf_printf(out, "%s_%zu", endpoint, index);
	}
}

void mx_kv_topic(struct mx_buf *out, const char *topic, const char *model, const char *host)
{
	while (*topic) {
		const struct {
			const char *name, *value;
		} words[] = {{"{model}", model}, {"{host}", host}};
		size_t i = 0;
		while (i < 2 && strncmp(topic, words[i].name, strlen(words[i].name)) != 0)
			i++;
		if (i < 2) {
			mx_buf_puts(out, words[i].value);
			topic += strlen(words[i].name);
		} else {
			mx_buf_putc(out, *topic++);
		}
	}
}

/* As vLLM does: addresses that stand for no single host are bound, others connected to. */
static bool connects(const char *endpoint)
{
	return !strchr(endpoint, '*') && !strstr(endpoint, "::") &&
	       strncmp(endpoint, "ipc://", 6) != 0 && strncmp(endpoint, "inproc://", 9) != 0;
}

/* The module, once it was loaded. It is never unloaded. */
static const struct mx_kv_publisher_table *_Atomic table;

mx_status mx_kv_publish(const struct mx_kv_publisher_config *config, size_t index,
                        struct mx_kv_events *events, struct mx_kv_publisher **out,
                        struct mx_err *err)
{
	*out = NULL;
	if (!config->endpoint)
		return MX_OK;
	if (!events) {
		mx_warning("kv_events", "%s: there is no prefix cache of pages whose changes could be told",
		           config->model);
		return MX_OK;
	}
	const struct mx_kv_publisher_table *t = NULL;
	mx_status st = mx_kv_publisher_load(&t, err);
	if (st)
		return st;
	table = t;
	char host[256] = "";
	gethostname(host, sizeof(host) - 1);
	struct mx_buf endpoint = {0}, replay = {0}, topic = {0};
	mx_kv_endpoint(&endpoint, config->endpoint, index);
	if (config->replay_endpoint)
		mx_kv_endpoint(&replay, config->replay_endpoint, index);
	mx_kv_topic(&topic, config->topic ? config->topic : "", config->model, host);
	struct mx_kv_publisher_config own = *config;
	own.endpoint = mx_buf_str(&endpoint);
	own.connect = connects(config->endpoint);
	own.replay_endpoint = config->replay_endpoint ? mx_buf_str(&replay) : NULL;
	own.topic = mx_buf_str(&topic);
	if (endpoint.failed || replay.failed || topic.failed)
		st = mx_fail(err, MX_E_NOMEM, "out of memory");
	else
		st = t->start(&own, events, out, err);
	mx_buf_free(&endpoint);
	mx_buf_free(&replay);
	mx_buf_free(&topic);
	return st;
}

void mx_kv_unpublish(struct mx_kv_publisher *p)
{
	if (p)
		table->stop(p);
}
