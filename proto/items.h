/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An answer as the APIs of agents have it: a list of items, which are texts, reasoning
 * and calls of tools, in the order in which the model made them.
 */
#ifndef MX_PROTO_ITEMS_H
#define MX_PROTO_ITEMS_H

#include "proto/response.h"

enum mx_api_item_kind { MX_API_ITEM_TEXT, MX_API_ITEM_REASONING, MX_API_ITEM_CALL };

/* An item, or what an event adds to one. */
struct mx_api_item {
	enum mx_api_item_kind kind;
	const char *text; /* [len] the text, the reasoning, or a call's arguments as JSON */
	size_t len;
	const char *call_id, *name; /* of a call */
	/* Of a text: its log-probabilities; vocab NULL = none are wanted. See struct mx_api_choice. */
	const struct mx_api_vocab *vocab;
	const struct mx_api_token *tokens; /* [n_tokens] */
	size_t n_tokens;
	const struct mx_top_token *top;
	uint32_t top_stride;
	bool cut; /* the limit of tokens ended it */
};

/* How an answer has ended. */
struct mx_api_ending {
	enum {
		MX_API_ENDED_STOP,   /* the model had said all */
		MX_API_ENDED_TEXT,   /* a stop string came: stop_text */
		MX_API_ENDED_LENGTH, /* the limit of tokens that the request set */
		MX_API_ENDED_CONTEXT /* the model's context was full before that limit */
	} how;
	const char *stop_text; /* [stop_len] */
	size_t stop_len;
};

#endif
