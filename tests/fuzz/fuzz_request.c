/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the JSON body of a route, which the first byte chooses, as it does whether
 * unknown fields are refused. */
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json_out.h"
#include "proto/parse_cost.h"
#include "proto/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Checks that an accepted request obeys the limits on which later code relies. */
static void check(const struct mx_api_request *r)
{
	if (r->n < 1 || r->n > MX_API_MAX_CHOICES || r->n_stops > MX_API_MAX_STOPS ||
	    r->logprobs > MX_MAX_TOP_LOGPROBS || r->max_tokens < -1 || r->temperature < 0 ||
	    r->top_p <= 0 || r->repetition_penalty < 0.0099f ||
	    strlen(r->cache_salt.s ? r->cache_salt.s : "") != r->cache_salt.len)
		abort();
	if (r->kind == MX_API_COMPLETION && (r->n_prompts < 1 || r->n_prompts > MX_API_MAX_PROMPTS))
		abort();
	for (uint32_t i = 0; i < r->n_prompts; i++)
		for (uint32_t j = 0; j < r->prompts[i].n_ids; j++)
			if (r->prompts[i].ids[j] < 0)
				abort();
	for (uint32_t i = 0; i < r->n_stops; i++)
		if (r->stops[i].len == 0)
			abort();
}

/* Checks that a refusal has a fault and can be written as JSON. */
static void check_error(const struct mx_api_error *err)
{
	struct mx_buf b = {0};
	mx_api_error_write(&b, err);
	json_t *v = json_loadb(mx_buf_str(&b), b.len, 0, NULL);
	if (err->fault == MX_FAULT_NONE || !v)
		abort();
	json_decref(v);
	mx_buf_free(&b);
}

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

/* Checks that parsing took no more than mx_parse_cost says. */
static void check_cost(const char *body, size_t len)
{
	json_set_alloc_funcs(count_malloc, count_free);
	heap = peak = 0;
	json_decref(json_loadb(body, len, JSON_ALLOW_NUL, NULL));
	if (peak > mx_parse_cost(body, len))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	const char *body = (const char *)data + 1;
	check_cost(body, size - 1);
	struct mx_api_error err = {0};
	struct mx_api_unknown unknown = {.allow = true}, *u = data[0] & 4 ? &unknown : NULL;
	mx_status s;
	if (data[0] % 4 == 2) {
		struct mx_api_tokenize t;
		s = mx_api_parse_tokenize(body, size - 1, u, &t, &err);
		if (s == MX_OK)
			mx_api_tokenize_free(&t);
	} else if (data[0] % 4 == 3) {
		struct mx_api_detokenize d;
		s = mx_api_parse_detokenize(body, size - 1, u, &d, &err);
		if (s == MX_OK)
			mx_api_detokenize_free(&d);
	} else {
		struct mx_api_request r;
		s = mx_api_parse(data[0] % 4 ? MX_API_CHAT : MX_API_COMPLETION, body, size - 1, u, &r,
		                 &err);
		if (s == MX_OK) {
			check(&r);
			mx_api_request_free(&r);
		}
	}
	if (s != MX_OK)
		check_error(&err);
	return 0;
}
