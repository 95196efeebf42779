/* SPDX-License-Identifier: Apache-2.0 */
/* How a token is drawn from a row of logits, and what is reported of it: the structs that requests,
 * the scheduler, the engine and devices share. Installed for mixers with device.h. */
#ifndef MX_DEVICE_SAMPLING_H
#define MX_DEVICE_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

/* Temperatures below this are taken as 0, as vLLM does. */
#define MX_MIN_TEMPERATURE 1e-5f

/* How often a token occurs in a sequence. */
struct mx_token_count {
	int32_t token;
	uint32_t prompt, output; /* occurrences in the prompt and in the generated text */
};

struct mx_logit_bias {
	int32_t token;
	float bias;
};

/* Sampling parameters of a sequence. */
struct mx_sampling {
	float temperature;        /* 0 = greedy */
	float top_p;              /* (0, 1]; 1 = off */
	float min_p;              /* [0, 1]; 0 = off */
	int32_t top_k;            /* 0 = off */
	float repetition_penalty; /* > 0; 1 = off; applies to prompt and output tokens */
	float presence_penalty, frequency_penalty; /* apply to output tokens */
	uint64_t seed;                             /* with `position`, the only source of randomness */
	const struct mx_logit_bias *bias;
	size_t n_bias;
};

/* A set of tokens is an array of words: token t is bit t % 32 of word t / 32. */

/* Returns the words of a set of tokens. */
static inline size_t mx_mask_words(uint32_t vocab)
{
	return ((size_t)vocab + 31) / 32;
}

/* How a draft model guesses which token another model draws, with the same sampling at the same
 * position. The other distribution is known only to be like this one. */
struct mx_guess {
	/* How closely it follows this one, > 0: the concentration of a Dirichlet distribution around
	 * it. From MX_GUESS_SAME on they are taken for the same. */
	float agreement;
	/* Output: the estimated probability that the guess is that token; where the temperature is 0,
	 * the guess's own probability. */
	float probability;
};

#define MX_GUESS_SAME 1e4f

/* One row of logits to draw a token from. The operator reads what the pointers point to only during
 * the call; after sample_prepare, until the tokens are drawn. */
struct mx_sample_row {
	const struct mx_sampling *sampling;
	uint64_t position; /* index of the token being drawn in its sequence */
	const struct mx_token_count
		*counts; /* tokens seen so far, each once, any order; only if a penalty is on */
	size_t n_counts;
	const int32_t *banned; /* tokens that must not be drawn (EOS before min_tokens) */
	size_t n_banned;
	/* [mx_mask_words] the only tokens that may be drawn; NULL = all. Of the vocabulary that the
	 * device was opened for, which is not smaller than that of the call. */
	const uint32_t *allowed;
	/* If not NULL, the token is guessed. A device that cannot draws one, and writes nothing to it.
	 */
	struct mx_guess *guess;
};

struct mx_top_token {
	int32_t token;
	float logprob;
};

#define MX_MAX_TOP_LOGPROBS 20

/* A token and its log-probability under the model itself: log-softmax of the raw logits, before
 * penalties, bias and temperature. */
struct mx_logprob {
	int32_t token;
	float logprob;
	int32_t rank; /* 1 = the likeliest token; ties count the lower id first */
	uint32_t n_top;
	struct mx_top_token top[MX_MAX_TOP_LOGPROBS]; /* likeliest first, ties by lower id */
};

#endif
