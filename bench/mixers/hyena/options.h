/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines of the benchmarks of this folder. An argument that is not allowed ends the
 * program with status 2 and a line on stderr that says what is allowed. */
#ifndef MX_BENCH_HYENA_OPTIONS_H
#define MX_BENCH_HYENA_OPTIONS_H

#include <stdint.h>

#include "device/dtype.h"

/* Options that several programs have. An option that is not given leaves its value unchanged. */
struct options {
	unsigned threads; /* -t; 0 = all CPUs */
	double gigabytes; /* -m; 0 = nine tenths of what is available */
	uint64_t seed;    /* -s */
	uint32_t log;     /* -k: log2 of a length, from min_log to OPTIONS_MAX_LOG */
	uint32_t min_log;
	uint32_t channels;     /* -d, in sixteens */
	enum mx_dtype weights; /* -f f32 or bf16 */
};

#define OPTIONS_COMMON  "t:m:s:k:d:f:" /* for getopt */
#define OPTIONS_MAX_LOG 24

/* Reads optarg for option o of OPTIONS_COMMON. Ends with the usage lines if o is none of them. */
void options_take(struct options *out, int o, const char *usage);

/* Returns optarg as a number for option o. */
uint32_t options_number(int o, uint32_t min, uint32_t max);

/* Checks a bound that depends on other options. */
void options_check(int o, uint32_t value, uint32_t min, uint32_t max);

_Noreturn void options_bad(int o, const char *allowed);
_Noreturn void options_usage(const char *usage);

#endif
