/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for embeddings, scores and ranks: OpenAI's /v1/embeddings, vLLM's /v1/score, and
 * /v1/rerank as Cohere, Jina and vLLM have it.
 */
#ifndef MX_PROTO_EMBED_REQUEST_H
#define MX_PROTO_EMBED_REQUEST_H

#include "proto/fields.h"
#include "proto/request.h"

struct mx_embed_request {
	struct mx_api_request api; /* MX_API_EMBEDDING or MX_API_SCORE */
	bool base64;               /* embeddings: as text instead of lists of numbers */
	/* Ranks. */
	int64_t top_n;         /* -1 = all documents */
	bool return_documents; /* with their texts */
};

/* Routes of the table of fields. */
enum {
	MX_EMBED_EMBEDDINGS = 1,
	MX_EMBED_SCORE = 2,
	MX_EMBED_RERANK = 4,
};
extern const struct mx_field_table mx_embed_fields;

/* Parses a body of one of the routes. On failure *err is filled and *out is not touched. */
mx_status mx_embed_parse(unsigned route, const char *body, size_t len,
                         struct mx_api_unknown *unknown, struct mx_embed_request *out,
                         struct mx_api_error *err);
void mx_embed_request_free(struct mx_embed_request *r); /* takes NULL and zeroed requests */

#endif
