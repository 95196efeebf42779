/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests of the model engine: checkpoints, engines loaded with the modules of the build
 * tree, and sequences that run on them. */
#ifndef MX_TESTS_ENGINE_UTIL_H
#define MX_TESTS_ENGINE_UTIL_H

#include "bench/engine/random_model.h"
#include "engine/load.h"
#include "tests/set_constraint.h"

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

/* From here on modules are loaded from a folder with the CPU's attention, gla and mla and, in the
 * place of their CUDA modules, those of the device in tests/fake, which "cuda:0" is then. */
void fake_device_use(void);
/* Removes that folder. */
void fake_device_forget(void);

/* Loads only the modules: those of the build tree, or of the folder that MIXD_TEST_MODULES names,
 * and those of tests/mixers/modules. */
void loaded_modules(struct loaded *out);
/* Opens modules, plan and checkpoint. Fails the running test if one of them cannot be opened. */
void loaded_open(const char *dir, struct loaded *out);
/* Opens the same and loads the engine. `config` NULL: loaded_config(). */
void loaded_start(const char *dir, const struct mx_engine_config *config, struct loaded *out);
void loaded_close(struct loaded *l);
/* Returns the usual configuration: one thread, 16 sequences, 512 rows, prefix cache on, a snapshot
 * every 48 tokens, KV in the checkpoint's dtype. The device is the one that MIXD_TEST_DEVICE names,
 * if it is set, and is deterministic. */
struct mx_engine_config loaded_config(void);

/* The result of one sequence, compared byte for byte. */
struct outcome {
	int32_t *tokens; /* [n] prompt and output */
	uint32_t n, n_prompt;
	struct mx_logprob *logprobs; /* [n], one a token; for prompt tokens if asked; [0] is 0 */
	uint32_t drafted, accepted;  /* drafts that were checked; that were kept */
	uint32_t cached;             /* tokens found in the prefix cache at first */
	uint32_t prompt_seen;        /* prompt log-probabilities received */
	float *vector;               /* [n_vector] with pooling */
	uint32_t n_vector;
	bool ended;       /* its constraint ended it */
	mx_status status; /* of its end */
	const char *cause;
};
void outcome_free(struct outcome *o);
/* Fails the running test unless tokens and log-probabilities of the output are the same bits. The
 * log-probabilities of the prompt are compared if both results have them. */
void assert_same(const struct outcome *a, const struct outcome *b);

/* A sequence to run. run_jobs runs several together. */
struct job {
	const int32_t *prompt;
	uint32_t n_prompt, total; /* total: prompt and output tokens, or n_prompt to score only */
	struct mx_sampling sampling;
	int32_t logprobs, prompt_logprobs;
	uint32_t start;   /* step at which it joins */
	uint32_t preempt; /* steps between two preemptions (release, attach); 0 = never */
	const char *salt;
	bool no_prefix_cache;
	uint32_t min_tokens;
	const int32_t *stop;
	size_t n_stop;
	enum mx_pooling pooling;
	const int32_t *pooled;
	size_t n_pooled;
	/* [total] guesses of the sequence's tokens: drafts are those, of random lengths, most of them
	 * unchanged. NULL = there are no drafts. */
	const int32_t *guess;
	bool propose; /* drafts are those of the engine's source, of random lengths; with `guess` most
	               * of them are replaced by guesses */
	/* The source is never wrong: of some proposals one draft is changed, and exactly those in front
	 * of it must be kept. */
	bool certain;
	const int32_t *ends; /* [n_ends] that no draft may be kept behind */
	size_t n_ends;
	const struct set_constraint *constraint; /* copied when it joins; NULL = none */
};

/* Fills out[n] with pseudo-random tokens below vocab. */
void make_tokens(int32_t *out, uint32_t n, uint32_t vocab, uint32_t seed);
/* Returns a job that samples at temperature 1 and reports five alternatives a token. The prompt is
 * not copied. */
struct job make_job(const int32_t *prompt, uint32_t n, uint32_t total);
/* Likewise without log-probabilities, so that its steps are recorded ones. */
struct job make_quiet_job(const int32_t *prompt, uint32_t n, uint32_t total);

/* Runs the jobs to their end. A chunk of a prompt has at most `chunk` tokens and ends where the
 * engine takes a snapshot; a step has at most step_tokens rows. out[n]. */
void run_jobs(struct mx_engine *e, const struct job *jobs, uint32_t n, uint32_t chunk,
              struct outcome *out);
/* Runs one. */
struct outcome run_job(struct mx_engine *e, struct job job, uint32_t chunk);

#endif
