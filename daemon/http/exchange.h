/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange: one request on one connection, and its answer.
 *
 * It belongs to the libmicrohttpd thread of its connection, which alone reads
 * the body and sends the answer. While there is nothing to do the connection is
 * suspended. Three other threads may touch an exchange meanwhile: a worker that
 * computes its answer (the exchange is busy then, and the connection's thread
 * leaves it alone), the engine thread through mx_pump_wake, and the pump. What
 * they share is guarded by the pump's lock.
 */
#ifndef MX_DAEMON_HTTP_EXCHANGE_H
#define MX_DAEMON_HTTP_EXCHANGE_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "daemon/serve/generate.h"
#include "daemon/serve/request_id.h"
#include "daemon/serve/tokens.h"
#include "daemon/http/access.h"
#include "daemon/http/framing.h"
#include "daemon/http/impl.h"
#include "daemon/http/writer.h"
#include "proto/response.h"
#include "proto/request.h"

enum mx_exchange_state {
	MX_X_BODY,    /* the body is being received */
	MX_X_RUNNING, /* the generation runs; a whole answer will follow */
	MX_X_STREAM,  /* the generation was accepted: the event stream is to begin */
	MX_X_ANSWER,  /* status and answer are complete */
};

/* What the answer to /tokenize or /detokenize is written from, while it is sent. */
struct mx_held {
	struct mx_token_answer answer;
	bool spellings; /* token_strs is wanted */
	struct mx_api_cursor cursor;
};

struct mx_exchange {
	struct mx_http *http;
	struct MHD_Connection *conn;
	const struct mx_route *route;
	const char *tail; /* rest of the path, for routes that are a prefix; all of an unknown one */
	enum mx_http_method method;
	const char *method_text;  /* as the client sent it; libmicrohttpd's, while the request lasts */
	bool post;                /* the body is wanted: for the route's `post` */
	bool begun;               /* the header is complete; false: only the fields above are valid */
	struct mx_principal *who; /* whose key it has; NULL: no key is wanted */
	bool refused;             /* it has no good key, and gets `refusal` */
	bool entered;             /* it counts as one of the principal's */
	bool dropped;             /* we had libmicrohttpd close the connection */
	uint64_t start_ns;
	char id[MX_REQUEST_ID_LEN + 1];
	struct mx_framing framing;

	struct mx_buf body;
	uint64_t received;       /* bytes, discarded ones too */
	bool too_large;          /* the body is being discarded */
	struct mx_upload upload; /* its share of http->bodies */
	_Atomic int state;       /* enum mx_exchange_state */
	unsigned sent_status;    /* of the answer that was queued, 0 = none */
	struct mx_generation *gen;
	struct mx_writer *writer; /* of gen's output; NULL as long as there is no gen */

	/* The answer. */
	unsigned status;
	struct mx_buf answer;
	const char *content_type;
	const struct mx_page_file *file; /* the answer is this; NULL = none */
	const char *allow;               /* for 405 */
	bool preflight;                  /* the answer says what a web page may send */
	struct mx_access_cause cause;    /* of an error, for the log */
	bool retry;                      /* with Retry-After */
	unsigned retry_s;                /* its seconds; 0 = the server's usual */
	struct mx_api_error refusal;
	/* The answer says Connection: close. For http->closing as it was before the answer: a 200 of
	 * /readyz never says so. */
	bool closing;
	/* Appends the next piece of an answer whose first piece is in `answer`. True after the last.
	 * NULL: `answer` is the whole. */
	bool (*more)(struct mx_exchange *x, struct mx_buf *out);
	struct mx_held held;  /* for `more` */
	struct mx_buf stream; /* piece or events being sent */
	size_t stream_at;     /* bytes of `stream` that were sent */
	bool stream_ended;    /* nothing follows what is in `stream` */

	_Atomic bool aborted; /* set by mx_pump_abort_all, whoever has the exchange; a wake follows */

	/* Under the pump's lock. */
	struct mx_pump_conn *entry; /* of its connection; NULL if the table was full */
	bool suspended; /* libmicrohttpd has suspended the connection, and not resumed it yet */
	bool waiting;   /* from the suspension until its thread looks again */
	bool busy;      /* a worker has it */
	bool missed;    /* a wake came while it was busy */
	bool woken, queued, streaming;
	struct mx_exchange *next_wake; /* in the pump's queue */

	/* Written by the pump under its lock and by the connection's thread without. */
	_Atomic bool ping;        /* the stream needs a keep-alive comment */
	_Atomic uint64_t last_ns; /* time of the last write to the stream */
	/* Written by the connection's thread, see mx_pump_handed; the first is read by the pump. */
	_Atomic uint64_t read_due_ns; /* when the client must have taken what it can; 0 = it has */
	uint64_t read_behind_ns;      /* how far it is behind the least rate of reading */
};

/* ---- exchange.c: libmicrohttpd's callbacks ---- */

/* A request line has come. Returns the exchange, which is the `context` of the others; NULL if out
 * of memory. */
void *mx_exchange_announced(void *arg, const char *target, struct MHD_Connection *c);

/* libmicrohttpd calls this for the header, for each part of the body, at its end, and whenever a
 * suspended connection was resumed. MHD_NO closes the connection. */
enum MHD_Result mx_exchange_handle(void *arg, struct MHD_Connection *c, const char *url,
                                   const char *method, const char *version, const char *data,
                                   size_t *data_size, void **context);
/* The exchange is over, whether it was answered or not: logs and frees it. */
void mx_exchange_completed(void *arg, struct MHD_Connection *c, void **context,
                           enum MHD_RequestTerminationCode code);

/* ---- receive.c: the header and the body ---- */

/* Begins a request whose header is complete. */
void mx_exchange_begin(struct mx_exchange *x, const char *url, const char *method,
                       const char *version);
/* Notes that libmicrohttpd has refused the request by itself. */
void mx_exchange_refused(struct mx_exchange *x);
/* Refuses a header that is not well framed, and a body that is announced as too large before the
 * client sends it. */
enum MHD_Result mx_exchange_begin_body(struct mx_exchange *x);
/* Takes n bytes of the body, or discards them. MHD_NO closes the connection. */
enum MHD_Result mx_exchange_take_body(struct mx_exchange *x, const char *data, size_t n);
/* Makes the answer 413. */
void mx_exchange_too_large(struct mx_exchange *x);

/* ---- send.c: hands what is ready to libmicrohttpd ---- */

/* Sends status and answer. MHD_NO if out of memory, which closes the connection. */
enum MHD_Result mx_exchange_send_answer(struct mx_exchange *x);
/* Begins the event stream of x->gen. */
enum MHD_Result mx_exchange_send_stream(struct mx_exchange *x);

/* ---- answer.c: for whoever computes the answer ---- */

/* Completes the answer with what was written to x->answer. */
void mx_exchange_answer(struct mx_exchange *x, unsigned status, const char *content_type);
/* Answers 200 with JSON that `more` writes in pieces; the first one is written at once. */
void mx_exchange_answer_pieces(struct mx_exchange *x,
                               bool (*more)(struct mx_exchange *x, struct mx_buf *out));
/* Frees what the answer was written from. */
void mx_exchange_drop_held(struct mx_exchange *x);
/* Makes the answer an error. */
void mx_exchange_fail(struct mx_exchange *x, const struct mx_api_error *err);
/* The same for an error whose status only HTTP has. */
void mx_exchange_fail_as(struct mx_exchange *x, unsigned status, const struct mx_api_error *err);
/* The same for an error of that status, code and text. */
void mx_exchange_fail_with(struct mx_exchange *x, unsigned status, const char *code,
                           const char *text);
/* Frees the body, which is not needed any more. */
void mx_exchange_drop_body(struct mx_exchange *x);

/* ---- admit.c ---- */

/* Finds out who asks; sets x->refused if that is nobody and the route wants a key. */
void mx_exchange_identify(struct mx_exchange *x);
/* Counts the request among those of its principal. False if a limit refuses it: then the answer is
 * made. */
bool mx_exchange_enter(struct mx_exchange *x);
void mx_exchange_leave(struct mx_exchange *x);
/* Adds what is left of the principal's limits, and how to show a key. */
void mx_admit_add_headers(const struct mx_exchange *x, struct MHD_Response *r);

/* ---- status.c ---- */

/* Returns the HTTP status of a fault. */
unsigned mx_http_status(enum mx_fault fault);

/* ---- cors.c ---- */

/* True if a browser asks whether a web page that is allowed may send a request. */
bool mx_cors_is_preflight(const struct mx_exchange *x);
/* Adds what lets the web pages of http.cors.origins see the answer. */
void mx_cors_add_headers(const struct mx_exchange *x, struct MHD_Response *r);

/* ---- load_report.c ---- */

/* Adds the load of the generation's model to its answer, if the client asks for it. */
void mx_exchange_add_load_report(const struct mx_exchange *x, struct MHD_Response *r);

/* ---- unknown_fields.c ---- */

/* Logs, not too often, that a parser took unknown fields; does nothing if it met none. */
void mx_exchange_warn_unknown(struct mx_exchange *x, const struct mx_api_unknown *unknown);

/* ---- routes.c ---- */

/* Computes the answer or starts the generation, and sets the state. */
typedef void mx_route_f(struct mx_exchange *x);

struct mx_route {
	enum mx_http_route id;
	const char *path;
	bool prefix;      /* `path` is the beginning of the path, and anything may follow */
	mx_route_f *get;  /* must be quick; NULL = not allowed, as for post */
	mx_route_f *post; /* takes a JSON body; may run on a worker */
	const char *allow;
	const struct mx_dialect *dialect; /* of its errors; NULL: OpenAI's */
};

/* Finds the route of a path, if the server has it, and the rest of the path behind it. Never
 * returns NULL: unknown paths have a route without path and handlers, and all of the path is the
 * rest. */
const struct mx_route *mx_route_find(const struct mx_http *h, const char *path,
                                     const char **out_tail);
/* Lists the paths that the server has of at most `cap` routes that are no prefix; returns their
 * number. */
#define MX_ROUTES_MAX 64
size_t mx_route_paths(const struct mx_http *h, const char **out, size_t cap);

/* ---- not_served.c ---- */

/* Makes the answer of a path without a route: 404 with what to use instead. */
void mx_exchange_not_served(struct mx_exchange *x);

/* ---- media_type.c ---- */

/* Returns true if the complete body is to be taken as JSON. */
bool mx_exchange_is_json(struct mx_exchange *x);

/* ---- api.c: handlers of the routes that take a body ---- */

/* Fails if the parsed body, `times` over, would take more memory than a worker may. */
mx_status mx_api_check_cost(struct mx_exchange *x, unsigned times, struct mx_api_error *err);
/* Returns what a parser does with unknown fields: http.unknown_fields. */
struct mx_api_unknown mx_api_unknown_fields(const struct mx_exchange *x);
/* Starts the generation of a request, as x->gen. */
mx_status mx_api_generate(struct mx_exchange *x, const struct mx_api_request *r,
                          struct mx_api_error *err);
/* Counts the tokens of the prompt of a chat. */
mx_status mx_api_count(struct mx_exchange *x, const struct mx_api_request *r, uint64_t *out,
                       struct mx_api_error *err);
void mx_api_post_completions(struct mx_exchange *x);
void mx_api_post_chat(struct mx_exchange *x);
void mx_api_post_tokenize(struct mx_exchange *x);
void mx_api_post_detokenize(struct mx_exchange *x);

/* ---- page.c: handlers of the page and its files, for whom nothing is computed ---- */

void mx_page_get(struct mx_exchange *x);
void mx_page_get_file(struct mx_exchange *x);
/* Adds what a browser may do with x->file, and how long it is good for. */
void mx_page_add_headers(const struct mx_exchange *x, struct MHD_Response *r);

/* ---- map.c ---- */

/* GET /v1/models/ID/map: what the model consists of, and how far it is loaded. `id` has n bytes. */
void mx_map_get(struct mx_exchange *x, const char *id, size_t n);

/* ---- embed.c ---- */

void mx_api_post_embeddings(struct mx_exchange *x);
void mx_api_post_score(struct mx_exchange *x);
void mx_api_post_rerank(struct mx_exchange *x);

/* ---- tokenizer_info.c ---- */

void mx_api_get_tokenizer_info(struct mx_exchange *x);

#endif
