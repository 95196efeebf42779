/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The served models as the front ends see them.
 *
 * A model's loader thread fills the fields marked "loaded" and then publishes them
 * with mx_served_set_state(READY). A front end reads them only after mx_served_state
 * has returned READY or DRAINING.
 *
 * The list of models and their aliases may be replaced at run time
 * (mx_service_publish). So whoever looks a model up holds it, until
 * mx_served_release; a model that is not listed any more lives until nobody holds
 * it. The lock of the list is held for as long as a look-up takes, never longer.
 */
#ifndef MX_DAEMON_SERVE_SERVICE_H
#define MX_DAEMON_SERVE_SERVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/buf.h"
#include "base/status.h"
#include "daemon/serve/bodies.h"
#include "daemon/serve/budget.h"
#include "daemon/serve/grammars.h"
#include "daemon/serve/keys.h"
#include "daemon/serve/workers.h"
#include "engine/engine.h"
#include "model/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "proto/tools/formats.h"
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

/* How the vectors of prompts are made, for embeddings and scores. */
struct mx_served_pooling {
	enum mx_pooling kind; /* LAST or MEAN; NONE: the model gives no vectors, see `why` */
	bool normalize;       /* to a length of 1 */
	char why[320];        /* for the 400 */
	/* A reranker: the score of a document is the probability of answers[0] beside answers[1] as the
	 * next token of `prompt`, in which {instruction}, {query} and {document} stand for the texts.
	 */
	const char *prompt; /* NULL: it is none, and scores are cosines of vectors */
	int32_t answers[2]; /* the tokens for yes and for no */
};

/* Most models that can be listed. */
#define MX_SERVICE_MODELS 64

struct mx_served {
	char name[128];        /* the model's id in /v1/models and in a request's `model` */
	int64_t created;       /* seconds since the epoch, for /v1/models */
	_Atomic unsigned held; /* by how many; see mx_served_release */

	/* Guarded by the service's lock. */
	char **aliases;
	size_t n_aliases;

	/* Loaded. The loader (host.c) owns them; they live as long as anybody holds the model. */
	char folder[4096];  /* of the checkpoint; empty = there is none */
	const char *family; /* model_type of config.json; NULL = unknown */
	const struct mx_tokenizer *tokenizer;
	const struct mx_chat_template *chat_template; /* NULL: see chat_template_error */
	char chat_template_error[640];                /* why there is none, for the 400 of a chat */
	const struct mx_tool_format *calls;           /* that its answers have; NULL: not looked for */
	const struct mx_reasoning_format *reasoning;  /* the same */
	int32_t bos;                                  /* -1 = none */
	const int32_t *eos;                           /* [n_eos] ids that end a text */
	size_t n_eos;
	struct mx_sampling_defaults sampling;
	struct mx_served_pooling pooling;
	struct mx_engine_info info;
	size_t max_token_bytes; /* of the longest token; set by mx_served_set_state */
	struct mx_sched *sched;
	struct mx_engine *engine; /* for its `usage` only: the scheduler calls all else */
	const char *map;          /* members of a JSON object that describe it; NULL = none */

	/* For constrained output; vocabulary.h. */
	pthread_mutex_t vocabulary_lock;
	struct mx_grammar_vocab *vocabulary;        /* NULL = nobody has asked for it yet */
	struct mx_grammar_vocab *marked_vocabulary; /* the same; with marks */

	/* For the functions below. */
	_Atomic int state;
	_Atomic uint64_t load_done, load_all; /* bytes */
	char failure[512];                    /* written once, before FAILED is published */

	/* Events of streams that carried output tokens; those of them that carried several. */
	_Atomic uint64_t stream_events, stream_joined;
};

/* Generations that have a name; live.h. */
struct mx_generation;
struct mx_live {
	pthread_mutex_t lock;
	TAILQ_HEAD(mx_live_head, mx_generation) list;
	size_t n;
};

struct mx_service {
	const char *version;   /* "0.1.0" */
	_Atomic bool leaving;  /* not ready any more; requests are still taken, unless it drains too */
	_Atomic bool draining; /* no new requests, on any model */
	struct mx_keys *keys; /* of clients; NULL: everybody may do everything. Constant once started */
	struct mx_budget answers;    /* requests that were admitted, and answers until they are sent */
	struct mx_grammars grammars; /* of constrained output */
	pthread_rwlock_t lock;       /* of the list and of the aliases */
	bool initialised;
	struct mx_live live;
	struct mx_served *models[MX_SERVICE_MODELS]; /* [n_models] the list; under the lock */
	size_t n_models;

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

/* Makes a service without models. `version` must outlive it. */
mx_status mx_service_init(struct mx_service *s, const char *version);
/* Starts the workers and opens the room for bodies. To be called once, before any front end starts.
 */
mx_status mx_service_start(struct mx_service *s, const struct mx_service_limits *limits,
                           struct mx_err *err);
/* Runs the jobs that are queued and ends the workers; no job is taken any more. A front end calls
 * it when it is destroyed, before it frees what its jobs use. Idempotent; for one thread. */
void mx_service_stop_work(struct mx_service *s);
/* Ends the workers; frees the listed models, but not what was loaded. Takes a zeroed service. */
void mx_service_destroy(struct mx_service *s);

/* Makes a model that is not listed, in state LOADING with default sampling; NULL if out of memory.
 * A longer name than the field is cut off. */
struct mx_served *mx_served_create(const char *name);
/* Frees a model that is not listed and that nobody holds, but not what was loaded. Takes NULL. */
void mx_served_free(struct mx_served *m);

/* A model as it is to be listed. */
struct mx_listing {
	struct mx_served *model;
	const char *const *aliases; /* [n_aliases] copied */
	size_t n_aliases;
};
/* Replaces the list of models, and all aliases, at once. Requests that follow see the new list;
 * those that hold a model go on with it. The service frees what is listed at its own end; a model
 * that is not listed any more is the caller's. MX_E_NOMEM, MX_E_LIMIT: nothing changes. */
mx_status mx_service_publish(struct mx_service *s, const struct mx_listing *list, size_t n);

/* Returns the model of that name or alias, held; NULL if there is none. */
struct mx_served *mx_service_take(struct mx_service *s, const char *name, size_t len);
/* Returns the model, held, if just one is listed; else NULL. *out_n: the number of models. */
struct mx_served *mx_service_take_only(struct mx_service *s, size_t *out_n);
/* Ends a hold; the model may be gone afterwards. Any thread, the engine's too. Takes NULL. */
void mx_served_release(struct mx_served *m);
/* True if anybody holds the model. Once false for a model that is not listed, it stays so. */
bool mx_served_is_held(const struct mx_served *m);

/* The models of a moment, each of them held. */
struct mx_served_set {
	struct mx_served *items[MX_SERVICE_MODELS];
	size_t n;
};
void mx_service_take_all(struct mx_service *s, struct mx_served_set *out);
void mx_served_set_release(struct mx_served_set *set);

/* A name under which a model is served. */
struct mx_listed {
	const char *id;
	const char *root;     /* the model's own name when id is an alias of it */
	int64_t created;      /* seconds since the epoch */
	uint32_t max_context; /* tokens; 0 = not known yet */
	bool ready;
};
/* Lists all names, the models' own first; free(*out), which holds the strings too. */
mx_status mx_service_list(struct mx_service *s, struct mx_listed **out, size_t *out_n);
/* Describes a model under one of its names, which *out points to. */
struct mx_listed mx_served_describe(const struct mx_served *m, const char *id);

enum mx_served_state mx_served_state(const struct mx_served *m);
/* Returns the state for people: loading, failed, draining, ready, or lost (its engine is). */
const char *mx_served_state_name(const struct mx_served *m);
/* True if clients should send new requests of the model: it is ready, its engine is not lost, and
 * the service neither drains nor is about to. */
bool mx_served_takes(const struct mx_service *s, const struct mx_served *m);
/* Sets the state. READY publishes the loaded fields. */
void mx_served_set_state(struct mx_served *m, enum mx_served_state state);
/* `done` of `all` bytes are loaded. */
void mx_served_set_progress(struct mx_served *m, uint64_t done, uint64_t all);
void mx_served_progress_bytes(const struct mx_served *m, uint64_t *out_done, uint64_t *out_all);
double mx_served_progress(const struct mx_served *m); /* 0 to 1 */
void mx_served_set_failed(struct mx_served *m, const char *why);

/* Refuses new requests and lets the schedulers finish those that they have. */
void mx_service_drain(struct mx_service *s);
/* Makes the service say that it is not ready, so that load balancers send no more requests; those
 * that come still are served. */
void mx_service_leave(struct mx_service *s);
/* True if no scheduler has an unfinished request. */
bool mx_service_idle(struct mx_service *s);
/* True if every model is ready, none has lost its engine, and the service does not drain. If false,
 * one line with the reason is appended to *why (which may be NULL). */
bool mx_service_ready(struct mx_service *s, struct mx_buf *why);
/* True if a model is loading that is to be served from the start. */
bool mx_service_loading(struct mx_service *s);
/* True if a model has lost its engine. */
bool mx_service_lost(struct mx_service *s);
/* False if an engine is lost, or has had work for longer than `stall_s` seconds without finishing a
 * step. */
bool mx_service_alive(struct mx_service *s, double stall_s);

#endif
