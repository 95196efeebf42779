/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of Anthropic's /v1/messages: the message, the events of its stream, and
 * errors.
 *
 * Functions with a cursor write in pieces (proto/response.h). All append to a buffer
 * whose `failed` the caller checks at the end.
 */
#ifndef MX_PROTO_MESSAGES_RESPONSE_H
#define MX_PROTO_MESSAGES_RESPONSE_H

#include "proto/error.h"
#include "proto/items.h"

/* A message as it is at the moment. All is borrowed. */
struct mx_messages_state {
	const char *id; /* of the request; the message's contains it */
	const char *model;
	const struct mx_api_ending *ending; /* NULL: not known yet */
	bool called;                        /* an item is a call */
	/* Gives item i of the answer so far. */
	struct mx_api_item (*item)(const void *arg, size_t i);
	const void *arg;
	size_t n_items;
	struct mx_api_usage usage;
};

struct mx_messages_cursor {
	unsigned part;
	size_t item;
	struct mx_api_cursor inner;
};

/* Writes the message. Arguments of calls are JSON objects. */
bool mx_messages_write(struct mx_buf *b, const struct mx_messages_state *s, size_t max,
                       struct mx_messages_cursor *at);

/* Events. Begin and end are short. */
void mx_messages_write_start(struct mx_buf *b, const struct mx_messages_state *s);
void mx_messages_write_block_start(struct mx_buf *b, size_t index, const struct mx_api_item *m);
/* Writes what is new of block `index`. */
bool mx_messages_write_delta(struct mx_buf *b, size_t index, const struct mx_api_item *delta,
                             size_t max, struct mx_api_cursor *at);
void mx_messages_write_block_stop(struct mx_buf *b, size_t index);
/* Writes message_delta and message_stop. */
void mx_messages_write_end(struct mx_buf *b, const struct mx_messages_state *s);
#define MX_MESSAGES_PING "event: ping\ndata: {\"type\":\"ping\"}\n\n"

/* Appends an error as a JSON object. `id`: of the request. */
void mx_messages_write_error(struct mx_buf *b, const struct mx_api_error *err, unsigned status,
                             const char *id);
/* Appends it as an event. */
void mx_messages_write_error_event(struct mx_buf *b, const struct mx_api_error *err,
                                   const char *id);

#endif
