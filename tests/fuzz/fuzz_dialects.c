/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the body of a route for embeddings, scores or ranks, or of one of Ollama's.
 * The first byte chooses the route, and whether unknown fields are refused and models have
 * templates. What is accepted obeys the limits on which later code relies, and is written as an
 * answer. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/embed/request.h"
#include "proto/embed/response.h"
#include "proto/json_out.h"
#include "proto/ollama/request.h"
#include "proto/ollama/response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_json(struct mx_buf *b)
{
	json_t *v = json_loadb(mx_buf_str(b), b->len, JSON_ALLOW_NUL, NULL);
	if (!v || b->failed)
		abort();
	json_decref(v);
	mx_buf_free(b);
}

static void check_error(const struct mx_api_error *err)
{
	struct mx_buf b = {0};
	if (err->fault == MX_FAULT_NONE || !err->message[0])
		abort();
	mx_ollama_write_error(&b, err, 400, "");
	check_json(&b);
}

static void check_request(const struct mx_api_request *r)
{
	bool pooled = mx_api_is_pooled(r->kind);
	if (r->n < 1 || r->n > MX_API_MAX_CHOICES || r->n_stops > MX_API_MAX_STOPS ||
	    (pooled && (r->max_tokens || r->echo || r->stream)) || r->dimensions == 0)
		abort();
	if (r->kind != MX_API_CHAT && (r->n_prompts < 1 || r->n_prompts > MX_API_MAX_PROMPTS))
		abort();
	if (r->kind == MX_API_SCORE && (r->n_queries < 1 || r->n_queries >= r->n_prompts ||
	                                (r->n_queries > 1 && r->n_prompts != 2 * r->n_queries)))
		abort();
	for (uint32_t i = 0; pooled && i < r->n_prompts; i++)
		if (r->kind == MX_API_SCORE ? !r->prompts[i].text.len
		                            : !r->prompts[i].ids && !r->prompts[i].text.len)
			abort();
}

static void take_embed(unsigned route, const char *body, size_t len, struct mx_api_unknown *unknown)
{
	struct mx_embed_request r;
	struct mx_api_error err = {0};
	if (mx_embed_parse(route, body, len, unknown, &r, &err) != MX_OK) {
		check_error(&err);
		return;
	}
	check_request(&r.api);
	struct mx_buf b = {0};
	struct mx_api_cursor at = {0};
	const struct mx_api_usage usage = {.prompt = 1};
	mx_embed_write_ranks_begin(&b, "id", "model");
	for (uint32_t i = 0; i < r.api.n_prompts; i++) {
		const struct mx_api_text *t = &r.api.prompts[i].text;
		const struct mx_embed_rank rank = {.index = i, .text = t->s, .len = t->len};
		while (!mx_embed_write_rank(&b, &rank, !i, 5, &at))
			;
	}
	mx_embed_write_end(&b, &usage);
	check_json(&b);
	mx_embed_request_free(&r);
}

static bool find(void *arg, const char *name, size_t len, char *out, size_t cap, bool *has_template)
{
	*has_template = *(const bool *)arg;
	if (!len || len >= cap || !strncmp(name, "none", 4))
		return false;
	memcpy(out, name, len);
	out[len] = 0;
	return true;
}

static struct mx_api_item item(const void *arg, size_t i)
{
	const struct mx_api_text *t = arg;
	return (struct mx_api_item){.kind = (enum mx_api_item_kind)(i % 3),
	                            .text = i % 3 == MX_API_ITEM_CALL ? "{\"a\":1}" : t->s,
	                            .len = i % 3 == MX_API_ITEM_CALL ? 7 : t->len,
	                            .call_id = "call_1",
	                            .name = "f"};
}

static void take_ollama(unsigned route, const char *body, size_t len, bool template,
                        struct mx_api_unknown *unknown)
{
	const struct mx_ollama_models models = {find, &template};
	struct mx_ollama_request r;
	struct mx_api_error err = {0};
	if (mx_ollama_parse(route, body, len, &models, unknown, &r, &err) != MX_OK) {
		check_error(&err);
		return;
	}
	if (!r.loads)
		check_request(&r.api);
	const struct mx_api_text text = {body, len};
	const struct mx_ollama_figures end = {.done_reason = "stop"};
	const struct mx_ollama_part part = {.model = r.model,
	                                    .chat = route == MX_OLLAMA_CHAT,
	                                    .item = item,
	                                    .arg = &text,
	                                    .n_items = 1 + len % 5,
	                                    .end = len % 2 ? &end : NULL};
	struct mx_buf b = {0};
	struct mx_ollama_cursor at = {0};
	while (!mx_ollama_write_part(&b, &part, 1 + len % 64, &at))
		;
	check_json(&b);
	mx_ollama_request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const unsigned embed[] = {MX_EMBED_EMBEDDINGS, MX_EMBED_SCORE, MX_EMBED_RERANK};
	static const unsigned ollama[] = {MX_OLLAMA_CHAT, MX_OLLAMA_GENERATE, MX_OLLAMA_EMBED,
	                                  MX_OLLAMA_EMBEDDINGS};
	if (size < 1)
		return 0;
	const char *body = (const char *)data + 1;
	unsigned route = data[0] % 8;
	struct mx_api_unknown unknown = {.allow = data[0] & 16};
	struct mx_api_error err = {0};
	char *name;
	if (route < 3)
		take_embed(embed[route], body, size - 1, &unknown);
	else if (route < 7)
		take_ollama(ollama[route - 3], body, size - 1, data[0] & 8, &unknown);
	else if (mx_ollama_parse_show(body, size - 1, &name, &err) == MX_OK)
		free(name);
	else
		check_error(&err);
	return 0;
}
