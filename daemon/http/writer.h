/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the exchange knows of an API: how a generation is written for its clients, and
 * how an error is. Each API has a writer (openai.h is the example) and a dialect.
 *
 * A writer is for one thread at a time, the reader of the generation, which it does
 * not own.
 */
#ifndef MX_DAEMON_HTTP_WRITER_H
#define MX_DAEMON_HTTP_WRITER_H

#include <stdbool.h>

#include "base/buf.h"
#include "proto/error.h"

#define MX_STREAM_SSE "text/event-stream; charset=utf-8"

struct mx_writer;

struct mx_writer_ops {
	/* Appends the output that is ready as a stream, at most about MX_API_PIECE bytes. True after
	 * the end. False with bytes appended: there may be more, so it is to be called again. */
	bool (*stream)(struct mx_writer *w, struct mx_buf *out);
	/* Appends the next piece of the answer of a finished generation. *end: it was the last. Fails
	 * at the first piece with the error that ended the generation, and later only if memory runs
	 * out. */
	mx_status (*response)(struct mx_writer *w, struct mx_buf *out, bool *end,
	                      struct mx_api_error *err);
	void (*destroy)(struct mx_writer *w);
	const char *stream_type; /* Content-Type of a stream */
	const char *ping;        /* sent in a stream that is silent; NULL = nothing can be */
};

/* The first member of an API's own writer. */
struct mx_writer {
	const struct mx_writer_ops *ops;
};

/* How an API says errors. */
struct mx_dialect {
	/* Appends the error as a JSON object. `id`: of the request. */
	void (*error)(struct mx_buf *b, const struct mx_api_error *err, unsigned status,
	              const char *id);
	/* Returns the HTTP status of a fault. */
	unsigned (*status)(enum mx_fault fault);
	const char *id_header; /* another name of the header X-Request-Id; NULL = none */
};

#endif
