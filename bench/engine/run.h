/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences and figures of the two benchmarks of the engine: engine.c (CPUs) and cuda/engine.c. */
#ifndef MX_BENCH_ENGINE_RUN_H
#define MX_BENCH_ENGINE_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/engine/options.h"
#include "engine/engine.h"
#include "tools/open_model.h"

enum { RUN_MAX_BATCH = 512 };

/* Writes the checkpoint of a shape, of m's dtype and seed, to a folder that exists. Modules are
 * those of MIXD_MODULE_PATH or the installed ones. */
mx_status run_write_model(const char *dir, const struct shape *shape,
                          const struct mx_random_model *m, struct mx_err *err);

/* Ends the program with a line on stderr unless the status is MX_OK. */
void must(mx_status st, const char *what);

/* Returns the median of v[n], and sorts v. */
double median(double *v, size_t n);

void random_tokens(int32_t *out, uint32_t n, uint32_t vocab, uint32_t seed);

/* Opens a greedy sequence with pages for its prompt and `more` tokens. */
struct mx_seq *run_open(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t more,
                        bool prefix_cache);
/* The same, but returns NULL if there are not enough pages. */
struct mx_seq *run_try_open(struct mx_engine *e, const int32_t *prompt, uint32_t n, uint32_t more,
                            bool prefix_cache);
/* Runs one step of at most RUN_MAX_BATCH sequences. Adds its times to *sum. Returns its nanoseconds
 * as seen from outside. */
uint64_t run_step(struct mx_engine *e, const struct mx_step_item *items, uint32_t n,
                  struct mx_step_times *sum);
/* Computes what is left of the prompt, in chunks of at most `chunk` tokens, and draws one token. */
uint64_t run_prefill(struct mx_engine *e, struct mx_seq *s, uint32_t chunk,
                     struct mx_step_times *sum);

/* Returns the number of weights in the matrices of the layers; the vectors beside them are few.
 * *out_all: the number in all tensors. */
double run_layer_params(const struct opened_model *m, double *out_all);
/* Returns whether the checkpoint is a GGUF file with quantised matrices. */
bool run_is_quantised(const struct opened_model *m);

#endif
