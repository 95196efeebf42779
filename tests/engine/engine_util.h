/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the model engine: a checkpoint folder loaded with the modules of the build tree. */
#ifndef MX_TESTS_ENGINE_UTIL_H
#define MX_TESTS_ENGINE_UTIL_H

#include "bench/engine/random_model.h"
#include "engine/load.h"

struct loaded {
	struct mx_registry *mixers;
	struct mx_plan *plan;
	struct mx_checkpoint *checkpoint;
	struct mx_engine *engine;
};

/* Makes an empty folder below TMPDIR or /tmp. */
void make_dir(char dir[64]);
/* Makes a folder with a checkpoint of random weights: of the model that `config`, the text of a
 * config.json, describes, or of Llama's shape. mx_random_model_remove() removes it. */
void make_checkpoint(char dir[64], const char *config, enum mx_dtype dtype, uint64_t seed);
void make_llama(char dir[64], const struct mx_random_model *m);

/* Only the modules, of the build tree (or else of the folder MIXD_TEST_MODULES) and of
 * tests/modules. */
void loaded_modules(struct loaded *out);
/* Fails the running test if something cannot be opened. */
void loaded_open(const char *dir, struct loaded *out);
/* Loads the engine too. `config` NULL: loaded_config(). */
void loaded_start(const char *dir, const struct mx_engine_config *config, struct loaded *out);
void loaded_close(struct loaded *l);
/* One thread, 16 sequences, 512 rows, prefix cache on, states saved every 48 tokens, KV as the
 * checkpoint; on the device that MIXD_TEST_DEVICE names, if it is set, and deterministic there. */
struct mx_engine_config loaded_config(void);

/* What came of one sequence, compared byte for byte. */
struct outcome {
	int32_t *tokens; /* [n] prompt and output */
	uint32_t n, n_prompt;
	struct mx_logprob *logprobs; /* [n] of each token; of prompt tokens if asked for; [0] is zero */
	uint32_t cached;             /* covered by the prefix cache at first */
	uint32_t prompt_seen;        /* prompt log-probabilities received */
};
void outcome_free(struct outcome *o);
/* Fails the running test unless tokens and log-probabilities of the output are the same bits; those
 * of the prompt where both have them. */
void assert_same(const struct outcome *a, const struct outcome *b);

/* One sequence to be run; several are run together. */
struct job {
	const int32_t *prompt;
	uint32_t n_prompt, total; /* total: prompt and output tokens, or n_prompt to score only */
	struct mx_sampling sampling;
	int32_t logprobs, prompt_logprobs;
	uint32_t start;   /* step at which it joins */
	uint32_t preempt; /* release and attach again at every so many steps; 0 = never */
	const char *salt;
	bool no_prefix_cache;
	uint32_t min_tokens;
	const int32_t *stop;
	size_t n_stop;
};

/* Pseudo-random tokens below vocab. */
void make_tokens(int32_t *out, uint32_t n, uint32_t vocab, uint32_t seed);
/* Sampled at temperature 1 with five alternatives a token. The prompt is not copied. */
struct job make_job(const int32_t *prompt, uint32_t n, uint32_t total);

/* Runs the jobs to their end, prompts in chunks of at most `chunk` tokens and cut where the engine
 * saves states, a step at most step_tokens rows. out[n]. */
void run_jobs(struct mx_engine *e, const struct job *jobs, uint32_t n, uint32_t chunk,
              struct outcome *out);

#endif
