/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fields of embeddings, scores and ranks. Sources, read in November 2026: openai-python 3.54
 * (types/embedding_create_params.py), the documentations of vLLM (pooling models) and of Cohere's
 * and Jina's rerankers, llama.cpp (tools/server/README.md).
 */
#include "proto/embed/request.h"

/* Routes. */
enum {
	E = MX_EMBED_EMBEDDINGS,
	S = MX_EMBED_SCORE,
	R = MX_EMBED_RERANK,
	A = E | S | R,
};

#define NO_MEDIA "this server takes text only"
#define AS_MODEL "the model's own pooling and normalisation are used (models[].pooling)"
#define SHORTEN  "shorten the texts; POST /tokenize counts their tokens"

static const struct mx_field fields[] = {
	MX_READ("model", A),
	MX_READ("input", E),
	MX_READ("encoding_format", E),
	MX_READ("dimensions", E),
	MX_READ("text_1", S),
	MX_READ("text_2", S),
	MX_READ("queries", S),
	MX_READ("documents", S | R),
	MX_READ("query", R),
	MX_READ("top_n", R),
	MX_READ("return_documents", R),
	MX_READ("return_text", R),
	MX_READ("instruction", S | R),
	MX_READ("priority", A),
	MX_READ("cache_salt", A),
	MX_READ("add_special_tokens", E),

	MX_IGNORED("user", A),
	MX_IGNORED("metadata", A),
	MX_IGNORED("request_id", A),
	MX_IGNORED("rid", A),
	MX_IGNORED("safety_identifier", A),
	MX_IGNORED("input_type", E),
	MX_IGNORED("keep_alive", A),

	MX_REFUSED("prompt", E, 0, "use 'input'"),
	MX_REFUSED("content", E, 0, "use 'input'"),
	MX_REFUSED("messages", E, MX_NEUTRAL_NONE, "send the text as 'input'"),
	MX_REFUSED("texts", R, 0, "use 'documents'"),
	MX_REFUSED("normalize", E, MX_NEUTRAL_YES, AS_MODEL),
	MX_REFUSED("embd_normalize", E, MX_NEUTRAL_ZERO, AS_MODEL),
	MX_REFUSED("use_activation", S | R, MX_NEUTRAL_YES, "scores are between 0 and 1, or cosines"),
	MX_REFUSED("activation", S | R, MX_NEUTRAL_YES, "scores are between 0 and 1, or cosines"),
	MX_REFUSED_BUT("embed_dtype", E, MX_NEUTRAL_NONE, "float32", "vectors are of float32"),
	MX_REFUSED_BUT("output_dtype", E, MX_NEUTRAL_NONE, "float", "vectors are of float32"),
	MX_REFUSED_BUT("endianness", E, MX_NEUTRAL_NONE, "little", "base64 holds little-endian floats"),
	MX_REFUSED("truncate_prompt_tokens", A, 0, SHORTEN),
	MX_REFUSED("truncate", A, MX_NEUTRAL_NO, SHORTEN),
	MX_REFUSED("max_tokens_per_doc", R, 0, SHORTEN),
	MX_REFUSED("max_chunks_per_doc", R, 0, SHORTEN),
	MX_REFUSED("rank_fields", R, MX_NEUTRAL_NONE, "send the text of each document"),
	MX_REFUSED("late_chunking", E, MX_NEUTRAL_NO, "each input has one vector"),
	MX_REFUSED("mm_processor_kwargs", A, MX_NEUTRAL_NONE, NO_MEDIA),
	MX_REFUSED("image", E, MX_NEUTRAL_NONE, NO_MEDIA),
	MX_REFUSED("task", E, 0, "write the task into the input, as the model's authors say"),
};

const struct mx_field_table mx_embed_fields = {fields, sizeof(fields) / sizeof(*fields)};
