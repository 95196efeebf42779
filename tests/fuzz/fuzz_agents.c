/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the body of /v1/responses or /v1/messages, which the first byte chooses, as it
 * does whether unknown fields are refused. */
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/messages/request.h"
#include "proto/messages/response.h"
#include "proto/parse_cost.h"
#include "proto/responses/request.h"
#include "proto/translate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Bytes of heap that jansson has. */
static size_t heap, peak;

static void *count_malloc(size_t n)
{
	void *p = malloc(n);
	heap += p ? malloc_usable_size(p) + 8 : 0;
	peak = heap > peak ? heap : peak;
	return p;
}

static void count_free(void *p)
{
	heap -= p ? malloc_usable_size(p) + 8 : 0;
	free(p);
}

static void check_json(const struct mx_buf *b)
{
	json_t *v = json_loadb(mx_buf_str(b), b->len, JSON_ALLOW_NUL, NULL);
	if (!json_is_object(v))
		abort();
	json_decref(v);
}

/* Checks that an accepted request is a chat on which later code can rely. */
static void check(const struct mx_api_request *r)
{
	if (r->kind != MX_API_CHAT || r->n != 1 || !json_array_size(r->messages) ||
	    !r->may_drop_reasoning || r->max_tokens < -1)
		abort();
	for (size_t i = 0; i < json_array_size(r->messages); i++) {
		const json_t *m = json_array_get(r->messages, i);
		const json_t *content = json_object_get(m, "content");
		if (!json_is_string(json_object_get(m, "role")) ||
		    !(json_is_string(content) || json_is_array(content) ||
		      (json_is_null(content) && json_object_get(m, "tool_calls"))))
			abort();
	}
}

/* Checks that what a response repeats is JSON. */
static void check_echo(const struct mx_buf *echo)
{
	struct mx_buf b = {0};
	mx_buf_puts(&b, "{");
	mx_buf_append(&b, mx_buf_str(echo), echo->len);
	mx_buf_puts(&b, "\"end\":0}");
	check_json(&b);
	mx_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	const char *body = (const char *)data + 1;
	struct mx_api_error err = {0};
	struct mx_api_unknown unknown = {.allow = true}, *u = data[0] & 4 ? &unknown : NULL;
	struct mx_api_request r;
	struct mx_buf echo = {0}, text = {0};
	bool messages = data[0] & 1;
	json_set_alloc_funcs(count_malloc, count_free);
	heap = peak = 0;
	mx_status s = messages ? mx_messages_parse(body, size - 1, data[0] & 2, u, &r, &err)
	                       : mx_responses_parse(body, size - 1, u, &r, &echo, &err);
	if (peak > MX_TRANSLATION_COST * mx_parse_cost(body, size - 1))
		abort();
	if (s == MX_OK) {
		check(&r);
		if (!messages)
			check_echo(&echo);
		mx_api_request_free(&r);
	} else if (err.fault == MX_FAULT_NONE) {
		abort();
	} else {
		mx_messages_write_error(&text, &err, 400, "id");
		check_json(&text);
	}
	if (heap)
		abort();
	mx_buf_free(&echo);
	mx_buf_free(&text);
	return 0;
}
