/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes items (proto/items.h) of what a generation gives, and says step by step what
 * happens to them: an item opens, gets more, closes. The writers of agents' APIs
 * write each step as events of theirs, or wait for the end.
 *
 * What is kept of items is charged to the service's budget of answers. For one
 * thread at a time, the reader of the generation.
 */
#ifndef MX_DAEMON_HTTP_ITEMS_H
#define MX_DAEMON_HTTP_ITEMS_H

#include "daemon/serve/generate.h"
#include "proto/items.h"

enum mx_items_step {
	MX_ITEMS_WAIT,  /* there is nothing new */
	MX_ITEMS_OPEN,  /* the last item is new and empty */
	MX_ITEMS_DELTA, /* it has got `delta` */
	MX_ITEMS_CLOSE, /* it is complete */
	MX_ITEMS_END,   /* the answer is: `ending` is set */
	MX_ITEMS_ERROR, /* the answer has ended with `error` */
};

struct mx_kept_item;

struct mx_items {
	struct mx_generation *gen; /* not owned */
	bool keep;                 /* items are kept whole, else only what they are */
	bool objects;              /* arguments of kept calls are made JSON objects */
	bool empty_text;           /* an answer without items gets an empty text */
	int64_t max_tokens;        /* of the request, -1 = none */
	struct mx_hold hold;
	uint64_t own_bytes; /* of the writer */

	struct mx_kept_item *list; /* [n] */
	size_t n, cap;
	uint64_t earlier_bytes; /* of all items but the last */
	bool open;              /* the last item may get more */

	struct mx_gen_event event; /* the last one that was read */
	bool has_event;            /* it is not done with */
	size_t unit;               /* of it, the next: reasoning, text, then its calls */
	bool call_begun;           /* the call that is next has its item */
	bool call_taken;           /* and its arguments there */
	bool finished;             /* it was the last */
	const struct mx_api_vocab *vocab;
	uint32_t top_stride;

	struct mx_api_item delta; /* borrowed from `event` */
	struct mx_api_ending ending;
	struct mx_api_error error;
};

/* Begins with the answer to a request. `own_bytes` are charged to the budget besides the items.
 * Fails with a 503 if they are not free. mx_items_free is to be called in any case. */
mx_status mx_items_init(struct mx_items *it, struct mx_service *s, struct mx_generation *g,
                        int64_t max_tokens, uint64_t own_bytes, struct mx_api_error *err);
void mx_items_free(struct mx_items *it); /* takes zeroed ones */

/* Takes the next step. In a stream a text's log-probabilities are those of the tokens that gave it;
 * a whole answer's are those of all its tokens, marks of calls and reasoning too. After
 * MX_ITEMS_END or MX_ITEMS_ERROR there is none. */
enum mx_items_step mx_items_next(struct mx_items *it);
/* Describes item i: all that is kept of it. `arg`: struct mx_items. */
struct mx_api_item mx_items_get(const void *arg, size_t i);

#endif
