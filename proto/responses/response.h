/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of /v1/responses: the response object, and the events of its stream.
 *
 * All functions write in pieces (proto/response.h) and append to a buffer whose
 * `failed` the caller checks at the end.
 */
#ifndef MX_PROTO_RESPONSES_RESPONSE_H
#define MX_PROTO_RESPONSES_RESPONSE_H

#include "proto/error.h"
#include "proto/items.h"

enum mx_responses_status {
	MX_RESPONSES_IN_PROGRESS,
	MX_RESPONSES_COMPLETED,
	MX_RESPONSES_INCOMPLETE, /* the limit of tokens was reached */
	MX_RESPONSES_FAILED
};

/* A response as it is at the moment. All is borrowed. */
struct mx_responses_state {
	const char *id; /* of the request; ids of the response and of its items contain it */
	int64_t created, completed; /* seconds since the epoch; completed 0 = not yet */
	const char *model;
	const struct mx_buf *echo; /* of mx_responses_parse */
	enum mx_responses_status status;
	const struct mx_api_error *error; /* of FAILED */
	/* Gives item i of the answer so far. */
	struct mx_api_item (*item)(const void *arg, size_t i);
	const void *arg;
	size_t n_items;
	const struct mx_api_usage *usage; /* NULL: not known yet */
};

struct mx_responses_cursor {
	unsigned part;
	size_t item;
	struct mx_api_cursor inner;
};

/* Writes the response object. */
bool mx_responses_write(struct mx_buf *b, const struct mx_responses_state *s, size_t max,
                        struct mx_responses_cursor *at);

/* The events of a stream, in an order of theirs for each item. */
enum mx_responses_event {
	/* of the response */
	MX_RESPONSES_EV_CREATED,
	MX_RESPONSES_EV_IN_PROGRESS,
	MX_RESPONSES_EV_END, /* completed, incomplete or failed, by its status */
	/* of an item */
	MX_RESPONSES_EV_ITEM_ADDED,
	MX_RESPONSES_EV_PART_ADDED, /* not of a call */
	MX_RESPONSES_EV_DELTA,
	MX_RESPONSES_EV_DONE,
	MX_RESPONSES_EV_PART_DONE, /* not of a call */
	MX_RESPONSES_EV_ITEM_DONE,
};

/* Writes an event. `sequence`: its number in the stream. Of an item: `index` is its place in the
 * answer, and `delta` (of EV_DELTA; else NULL) what is new of it. */
bool mx_responses_write_event(struct mx_buf *b, const struct mx_responses_state *s,
                              enum mx_responses_event event, uint64_t sequence, size_t index,
                              const struct mx_api_item *delta, size_t max,
                              struct mx_responses_cursor *at);

#endif
