/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration file: strict YAML into one struct.
 *
 * The tables of config.c list every key with its type, limits and default. An
 * unknown key, a wrong type, a value out of range or a duplicate is an error with
 * file, line, column, the key's path and the closest valid key.
 */
#ifndef MX_DAEMON_CONFIG_H
#define MX_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "model/plan.h"

/* Value of a number that the engine is to choose. */
#define MX_CONFIG_AUTO UINT64_MAX

/* A list of strings, in order. */
struct mx_strings {
	const char **items;
	size_t n;
};

/* Mixers that take the place of others in some layers, in order. */
struct mx_config_layers {
	struct mx_plan_override *items; /* origin: "FILE:LINE:COLUMN: KEY.PATH" of each */
	size_t n;
};

struct mx_config_tls {
	const char *cert, *key, *client_ca; /* made absolute; NULL = none */
	int min_version;                    /* 12 or 13, for 1.2 or 1.3 */
};

struct mx_config_http {
	struct mx_strings listen;
	bool listen_given; /* it is in the file */
	uint64_t max_body_bytes;
	uint64_t body_memory; /* MX_CONFIG_AUTO: mx_http_body_memory */
	uint64_t answer_memory;
	uint64_t max_connections, idle_timeout_s, header_timeout_s, threads, workers;
	double keep_alive_s, stall_s;
	int allow_unknown_fields; /* 0 or 1 */
	struct mx_strings cors_origins;
	bool page;
	struct mx_config_tls tls;
};

struct mx_config_grpc {
	struct mx_strings listen; /* empty: not served */
	uint64_t max_calls, memory, idle_timeout_s, min_ping_s, threads;
	struct mx_config_tls tls;
};

struct mx_config_kv_events {
	const char *endpoint;        /* NULL: events are not published */
	const char *replay_endpoint; /* NULL: no replay */
	const char *topic;           /* NULL = "" */
	int encoding;                /* enum mx_kv_encoding */
	uint64_t buffer_steps, hwm;
};

struct mx_config_log {
	int level;  /* enum mx_log_level */
	int format; /* enum mx_log_format */
	int access; /* which requests are logged: 0 = off, 1 = errors, 2 = all */
};

struct mx_config_scheduler {
	uint64_t max_sequences, step_tokens, queue;
	double max_step_stretch;
};

struct mx_config_shutdown {
	double notice_s, drain_s;
};

struct mx_config_metrics {
	bool vllm_names;
};

/* The hosts that compute the model together. */
struct mx_config_cluster {
	uint64_t hosts;     /* 1 = only this one */
	const char *listen; /* where host 0 waits for the others */
	const char *secret; /* a file, made absolute; NULL = none */
	bool tls;           /* what they say to each other is encrypted */
	double join_s;      /* how long hosts wait for each other */
};

struct mx_config_admin {
	struct mx_strings listen; /* of probes and /metrics; empty: http.listen has them */
	const char *socket;       /* a path, made absolute; MX_CONFIG_SOCKET_AUTO; NULL = none */
};
/* The socket is admin.sock in the folder that the service manager made for sockets, if it did. */
#define MX_CONFIG_SOCKET_AUTO "auto"

/* models[].weights. The values of the last two are the bits of a weight. */
enum mx_config_weights {
	MX_WEIGHTS_MAPPED = 0,
	MX_WEIGHTS_COPIED = 1,
	MX_WEIGHTS_INT4 = 4,
	MX_WEIGHTS_INT8 = 8,
};

struct mx_config_model {
	const char *name;
	const char *path; /* made absolute against the folder of the file */
	struct mx_strings aliases;
	struct mx_strings device; /* names that mx_device_parse knows; several: one model on all, and
	                             those of all hosts */
	struct {
		uint64_t tensor, context; /* devices that share layers, and pages: all in their product */
	} parallel;
	bool deterministic;
	uint64_t threads;
	uint64_t max_context; /* 0 = the model's own */
	uint64_t memory;      /* bytes; 0 = automatic */
	uint64_t page_tokens; /* 0 = automatic */
	int dtype;            /* enum mx_dtype; -1 = auto */
	int weights;          /* enum mx_config_weights */
	int kv_dtype;         /* enum mx_dtype; -1 = auto */
	bool prefix_cache;
	struct mx_config_layers layers;
	uint64_t snapshot_memory;          /* bytes, or MX_CONFIG_AUTO */
	uint64_t snapshot_every;           /* tokens, or MX_CONFIG_AUTO */
	const char *tool_parser;           /* "auto", "none" or a name of mx_tool_format_named */
	const char *reasoning_parser;      /* the same of mx_reasoning_format_named */
	int pooling;                       /* enum mx_pooling; -1 = auto */
	const char *reranker;              /* "qwen3" or a prompt; NULL = it is none */
	struct mx_strings reranker_tokens; /* yes, no */
	struct {
		int source;        /* enum mx_speculation */
		const char *model; /* the draft model's folder; NULL = none is named */
		uint64_t tokens;   /* most drafts of a sequence in a step */
		bool tree;         /* drafts may be trees */
	} speculation;
	unsigned line; /* line of the model in the file, for later messages */
};

struct mx_config {
	const char *file; /* name as given, for messages */
	struct mx_config_http http;
	struct mx_config_grpc grpc;
	struct mx_config_kv_events kv_events;
	struct mx_config_log log;
	struct mx_config_scheduler scheduler;
	struct mx_config_shutdown shutdown;
	struct mx_config_metrics metrics;
	struct mx_config_admin admin;
	struct mx_config_cluster cluster;
	const char *keys;          /* file of keys, made absolute; NULL: requests need none */
	struct mx_strings modules; /* folders of mixer modules, besides the built-in one */
	struct mx_config_model *models;
	size_t n_models;
	struct mx_arena arena; /* holds everything above */
};

/* Reads a file. On failure *err has the reason in one line, and err->where is
 * "FILE:LINE:COLUMN: KEY.PATH". The caller frees *out with mx_config_free. */
mx_status mx_config_load(const char *file, struct mx_config **out, struct mx_err *err);

/* Parses text in memory. `file` is used in messages and as the base of relative paths. */
mx_status mx_config_parse(const char *file, const char *text, size_t len, struct mx_config **out,
                          struct mx_err *err);

/* Appends the paths of the keys that `b` has otherwise than `a`: "http.threads, modules". Either
 * those that a reload applies, or those that take effect only at a restart. Of models, only their
 * aliases: "models[demo].aliases". */
void mx_config_compare(const struct mx_config *a, const struct mx_config *b, bool reloadable,
                       struct mx_buf *out);
/* Returns the model of that name, or NULL. */
const struct mx_config_model *mx_config_find(const struct mx_config *c, const char *name);
/* Returns the GPUs of a model that several compute, as bits: bit N % 64 is cuda:N; of any other
 * model 0. Two such models must not share a GPU: a kernel of one that waits there for its peers
 * would keep out the kernel that the other's peers wait for. */
uint64_t mx_config_gpus(const struct mx_config_model *m);
/* True if the two differ in nothing but aliases and their places in the files. */
bool mx_config_same_model(const struct mx_config_model *a, const struct mx_config_model *b);

void mx_config_free(struct mx_config *c); /* takes NULL */

#endif
