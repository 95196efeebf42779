/* SPDX-License-Identifier: Apache-2.0 */
/* The output of a choice that was not yet written to the client. Not thread safe. */
#ifndef MX_DAEMON_SERVE_PENDING_H
#define MX_DAEMON_SERVE_PENDING_H

#include "base/buf.h"
#include "proto/response.h"
#include "proto/tools/parser.h"

/* A place between two tokens of the output: how much of a pending output is before it. */
struct mx_cut {
	size_t text;       /* bytes */
	size_t n_segments; /* that have begun */
	size_t n_tokens, n_ids;
	uint32_t n_output; /* tokens of the choice's output */
};

/* Most events that a stream's backlog makes: tokens beyond that are joined in the last one. A
 * client that reads at least every 32nd token gets one event a token. */
#define MX_MAX_CUTS 32

/* A part of an output that a parser has told apart. */
struct mx_segment {
	size_t end;      /* bytes of the text up to its end */
	uint32_t call;   /* index of the call */
	uint16_t id_len; /* of CALL_BEGIN: its text is the id and then the name */
	uint8_t kind;    /* enum mx_tool_event_kind */
};

/* Output that is ready to be written. Without a parser of calls and reasoning it is all `text`.
 * With one, that of a stream is all in `text` too, and segments say what it is; otherwise the
 * content is in `text`, and segments are of `calls`. */
struct mx_pending {
	struct mx_buf text;
	struct mx_buf reasoning, calls;
	struct mx_segment *segments; /* [n_segments] */
	size_t n_segments, cap_segments;
	struct mx_api_token *tokens; /* [n_tokens], if log-probabilities are wanted */
	struct mx_top_token *top;    /* [cap_tokens * alternatives of a token]; likeliest first */
	size_t n_tokens, cap_tokens;
	int32_t *ids; /* [n_ids], if token ids are wanted */
	size_t n_ids, cap_ids;
	struct mx_cut *cuts; /* [n_cuts] the end of each event, if the output is streamed */
	uint32_t n_cuts;
};

/* Returns the bytes of heap that it has. `logprobs`: as in the rules. */
size_t mx_pending_bytes(const struct mx_pending *p, int32_t logprobs);
void mx_pending_clear(struct mx_pending *p);
void mx_pending_free(struct mx_pending *p);
/* Adds what a parser has told of an answer. `stream`: see struct mx_pending. False if memory ran
 * out. */
bool mx_pending_add(struct mx_pending *p, const struct mx_tool_event *e, bool stream);

#endif
