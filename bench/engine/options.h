/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes and command lines of the two benchmarks of the engine: engine.c (CPUs) and cuda/engine.c.
 */
#ifndef MX_BENCH_ENGINE_OPTIONS_H
#define MX_BENCH_ENGINE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/engine/random_model.h"

struct shape {
	const char *name;
	struct mx_random_model model; /* its dtype is --dtype's */
	uint32_t deepest;             /* longest prompt and deepest context to measure, in tokens */
	/* config.json of a model that is not Llama. NULL: `model` says all. Otherwise `model` has only
	 * the members that the benchmark itself needs. */
	const char *config;
	/* Recurrent layers, all of them together: f32 operations of a token, and bytes of state that
	 * a decoded token cannot do without. */
	double mixer_ops, state_bytes; /* 0: not counted; the engine's slot and pages */
};

struct options {
	const struct shape *shape; /* --shape; the first one */
	enum mx_dtype dtype;       /* --dtype of the weights: bf16 */
	int kv;                    /* --kv, an enum mx_dtype; -1: as the engine chooses */
	int weight_bits;           /* --weight-bits that weights are rounded to; 0: they are not */
	const char *device;        /* --device */
	unsigned threads;          /* --threads; 0: all CPUs */
	uint32_t tensor, context;  /* --tensor and --context of ranks; 0: one device */
	uint32_t page_tokens;      /* --page-tokens; 0: as the engine chooses */
	unsigned long reps;        /* --reps of short tests, 1 to 16: 3 */
	const char *only; /* --only: parts of the names of the tests to run, with commas; NULL: all */
	uint32_t steps;   /* --steps of decoding; 0: as the program chooses */
	const char *dir;  /* --dir of the checkpoint */
	bool deterministic, unrecorded;
	bool copied; /* --copied: weights are copied to huge pages */
};

/* Reads the command line. `taken` lists the options that the program has. Prints the usage and ends
 * the program after --help (status 0) and after what the program does not take (status 2). */
struct options options_read(int argc, char **argv, const char *const *taken,
                            const struct shape *shapes, size_t n_shapes, const char *usage);

/* True if the test is to be run. */
bool options_want(const struct options *o, const char *test);

#endif
