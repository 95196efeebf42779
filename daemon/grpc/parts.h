/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of a generation in the parts that messages carry: what is new of one
 * choice, as packed numbers. While the client keeps up a part is one step's; when it
 * lags the steps that it missed are one part, of bounded size.
 */
#ifndef MX_DAEMON_GRPC_PARTS_H
#define MX_DAEMON_GRPC_PARTS_H

#include "daemon/serve/generate.h"

/* Numbers one behind the other, in the order of memory. */
struct mx_numbers {
	struct mx_buf bytes;
};
static inline size_t mx_numbers_n(const struct mx_numbers *v)
{
	return v->bytes.len / sizeof(uint32_t);
}
static inline uint32_t *mx_numbers_u32(const struct mx_numbers *v)
{
	return (uint32_t *)(void *)v->bytes.data;
}
static inline float *mx_numbers_f32(const struct mx_numbers *v)
{
	return (float *)(void *)v->bytes.data;
}

/* Most tokens with log-probabilities of a part. */
#define MX_PART_TOKENS ((size_t)128)

struct mx_part {
	uint32_t index; /* of the choice */
	struct mx_buf text, reasoning;
	/* [n_calls] of tool calls; borrowed from the generation until the next part */
	const struct mx_api_call *calls;
	size_t n_calls;
	struct mx_numbers ids, prompt_ids; /* u32, if the request wants them */
	/* Log-probabilities, if wanted: of tokens (echoed ones too), and counts[i] alternatives of
	 * token i. The value of a prompt's first token is not a number. */
	struct mx_numbers lp_ids, lp_values, lp_counts, top_ids, top_values;
	/* The end of the choice; NULL, or "stop", "length" or "tool_calls". */
	const char *finish_reason;
	struct mx_buf stop_text; /* the stop string that was found; empty if none */
	int32_t stop_token;      /* the stop token, -1 = none */
};

struct mx_parts {
	struct mx_generation *gen;
	struct mx_gen_event event; /* being read, from `at` */
	bool has_event;
	struct {
		size_t text, reasoning, tokens, ids, prompt_ids;
	} at;
	struct mx_part part;
};

/* Reads the next part into p->part, which stays valid until the next call. */
enum mx_gen_next mx_parts_next(struct mx_parts *p, struct mx_api_error *err);
/* Frees the part's memory; the generation is the caller's. Takes zeroed ones. */
void mx_parts_free(struct mx_parts *p);

#endif
