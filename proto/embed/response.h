/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers with embeddings, scores and ranks, written in pieces as proto/response.h says.
 */
#ifndef MX_PROTO_EMBED_RESPONSE_H
#define MX_PROTO_EMBED_RESPONSE_H

#include "proto/response.h"

/* Writes the numbers of a vector as a list, or in base64: their bytes, little-endian. */
bool mx_embed_write_vector(struct mx_buf *b, const float *v, size_t n, bool base64, size_t max,
                           struct mx_api_cursor *at);

/* Writes {"id":...,"object":"list","created":...,"model":...,"data":[. */
void mx_embed_write_begin(struct mx_buf *b, const char *id, int64_t created, const char *model);
/* Writes an element of `data`: an embedding, n numbers. */
bool mx_embed_write_embedding(struct mx_buf *b, uint32_t index, const float *v, size_t n,
                              bool base64, size_t max, struct mx_api_cursor *at);
/* The same: a score. */
void mx_embed_write_score(struct mx_buf *b, uint32_t index, float score);
/* Writes what follows `data` or `results`. */
void mx_embed_write_end(struct mx_buf *b, const struct mx_api_usage *usage);

/* A document and its rank. */
struct mx_embed_rank {
	uint32_t index;
	float score;
	const char *text; /* [len]; NULL = is not to be written */
	size_t len;
};
/* Writes {"id":...,"model":...,"results":[. */
void mx_embed_write_ranks_begin(struct mx_buf *b, const char *id, const char *model);
bool mx_embed_write_rank(struct mx_buf *b, const struct mx_embed_rank *r, bool first, size_t max,
                         struct mx_api_cursor *at);

#endif
