/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The served models as the front ends see them.
 *
 * main fills one mx_service before any front end starts. A model's loader thread
 * fills the fields marked "loaded" and then publishes them with
 * mx_served_set_state(READY). A front end reads them only after mx_served_state
 * has returned READY or DRAINING. They are valid until the process ends.
 *
 * Every request looks up a name or an alias, and aliases may be replaced at run
 * time; mx_service_find and mx_service_set_aliases lock.
 */
#ifndef MX_DAEMON_SERVE_SERVICE_H
#define MX_DAEMON_SERVE_SERVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/status.h"
#include "daemon/serve/bodies.h"
#include "daemon/serve/budget.h"
#include "daemon/serve/workers.h"
#include "engine/engine.h"
#include "model/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "scheduler/scheduler.h"

enum mx_served_state { MX_SERVED_LOADING, MX_SERVED_READY, MX_SERVED_FAILED, MX_SERVED_DRAINING };

/* Sampling parameters for what a request leaves out. */
struct mx_sampling_defaults {
	float temperature, top_p, min_p, repetition_penalty;
	int32_t top_k;
};
/* OpenAI's own defaults: 1, 1, 0, 1, 0. */
#define MX_SAMPLING_DEFAULTS                                                                       \
	(struct mx_sampling_defaults)                                                                  \
	{                                                                                              \
		.temperature = 1, .top_p = 1, .repetition_penalty = 1                                      \
	}

struct mx_served {
	char name[128];  /* the model's id in /v1/models and in a request's `model` */
	int64_t created; /* seconds since the epoch, for /v1/models */

	/* Guarded by the service's lock. */
	char **aliases;
	size_t n_aliases;

	/* Loaded. The loader (host.c) owns them; they must outlive every front end. */
	const struct mx_tokenizer *tokenizer;
	const struct mx_chat_template *chat_template; /* NULL: see chat_template_error */
	char chat_template_error[640];                /* why there is none, for the 400 of a chat */
	int32_t bos;                                  /* -1 = none */
	const int32_t *eos;                           /* [n_eos] ids that end a text */
	size_t n_eos;
	struct mx_sampling_defaults sampling;
	struct mx_engine_info info;
	size_t max_token_bytes; /* of the longest token; set by mx_served_set_state */
	struct mx_sched *sched;
	struct mx_engine *engine; /* for its `usage` only: the scheduler calls all else */

	/* For the functions below. */
	_Atomic int state;
	_Atomic uint64_t load_done, load_all; /* bytes */
	char failure[512];                    /* written once, before FAILED is published */

	/* Events of streams that carried output tokens; those of them that carried several. */
	_Atomic uint64_t stream_events, stream_joined;
};

struct mx_service {
	const char *version; /* "0.1.0" */
	struct mx_served *models;
	size_t n_models;
	_Atomic bool draining;    /* no new requests, on any model */
	struct mx_budget answers; /* requests that were admitted, and answers until they are sent */
	pthread_rwlock_t lock;    /* of the aliases */

	/* What all front ends share, from mx_service_start on. */
	bool started;
	struct mx_bodies bodies;     /* requests that are being received, or wait to be parsed */
	struct mx_workers work;      /* parse, render and tokenise short requests */
	struct mx_workers long_work; /* and long ones */
};

struct mx_service_limits {
	unsigned workers, long_workers; /* threads */
	unsigned max_uploads;           /* requests that are being received at once */
	uint64_t body_memory;           /* bytes of their bodies together */
};

/* Bytes of a new service's budget of answers. */
#define MX_SERVICE_ANSWERS ((uint64_t)64 << 20)

/* Makes n_models zeroed models in state LOADING with default sampling. `version` must outlive the
 * service. */
mx_status mx_service_init(struct mx_service *s, const char *version, size_t n_models);
/* Starts the workers and opens the room for bodies. To be called once, before any front end starts.
 */
mx_status mx_service_start(struct mx_service *s, const struct mx_service_limits *limits,
                           struct mx_err *err);
/* Runs the jobs that are queued and ends the workers; no job is taken any more. A front end calls
 * it when it is destroyed, before it frees what its jobs use. Idempotent; for one thread. */
void mx_service_stop_work(struct mx_service *s);
/* Ends the workers; frees aliases and models, but not what was loaded. Takes a zeroed service. */
void mx_service_destroy(struct mx_service *s);

/* Replaces the aliases of a model, at any time. The strings are copied. */
mx_status mx_service_set_aliases(struct mx_service *s, struct mx_served *m,
                                 const char *const *aliases, size_t n);
/* Returns the model of that name or alias, or NULL. */
struct mx_served *mx_service_find(struct mx_service *s, const char *name, size_t len);

/* A name under which a model is served. */
struct mx_listed {
	const char *id;
	const char *root;     /* the model's own name when id is an alias of it */
	int64_t created;      /* seconds since the epoch */
	uint32_t max_context; /* tokens; 0 = not known yet */
	bool ready;
};
/* Lists all names, the models' own first; free(*out), which holds the strings too, but for root. */
mx_status mx_service_list(struct mx_service *s, struct mx_listed **out, size_t *out_n);
/* Describes a model under one of its names, which *out points to. */
struct mx_listed mx_served_describe(const struct mx_served *m, const char *id);

enum mx_served_state mx_served_state(const struct mx_served *m);
/* Sets the state. READY publishes the loaded fields. */
void mx_served_set_state(struct mx_served *m, enum mx_served_state state);
/* `done` of `all` bytes are loaded. */
void mx_served_set_progress(struct mx_served *m, uint64_t done, uint64_t all);
void mx_served_progress_bytes(const struct mx_served *m, uint64_t *out_done, uint64_t *out_all);
double mx_served_progress(const struct mx_served *m); /* 0 to 1 */
void mx_served_set_failed(struct mx_served *m, const char *why);

/* Refuses new requests and lets the schedulers finish those that they have. */
void mx_service_drain(struct mx_service *s);
/* True if no scheduler has an unfinished request. */
bool mx_service_idle(const struct mx_service *s);
/* True if every model is ready, none has lost its engine, and the service does not drain. If false,
 * one line with the reason is appended to *why (which may be NULL). */
bool mx_service_ready(const struct mx_service *s, struct mx_buf *why);
/* False if an engine is lost, or has had work for longer than `stall_s` seconds without finishing a
 * step. */
bool mx_service_alive(const struct mx_service *s, double stall_s);

#endif
