/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mixers/hyena/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mixers/hyena/kernels.h"

#define MAX_CHANNELS 65536
#define MAX_THREADS  1024

_Noreturn void options_bad(int o, const char *allowed)
{
	fprintf(stderr, "bench/mixers/hyena: -%c is %s\n", o, allowed);
	exit(2);
}

_Noreturn void options_usage(const char *usage)
{
	fprintf(stderr, "usage: %s\n", usage);
	exit(2);
}

void options_check(int o, uint32_t value, uint32_t min, uint32_t max)
{
	char allowed[64];
	snprintf(allowed, sizeof allowed, "a number from %u to %u here, not %u", min, max, value);
	if (value < min || value > max)
		options_bad(o, allowed);
}

/* True if all of the text is a number. A sign is not allowed, so that -1 is not taken for a large
 * number. */
static bool is_number(const char *text, const char *end)
{
	return *text >= '0' && *text <= '9' && !*end;
}

uint32_t options_number(int o, uint32_t min, uint32_t max)
{
	char *end, allowed[64];
	unsigned long long value = strtoull(optarg, &end, 10);
	snprintf(allowed, sizeof allowed, "a number from %u to %u", min, max);
	if (!is_number(optarg, end) || value < min || value > max)
		options_bad(o, allowed);
	return (uint32_t)value;
}

static uint32_t channels(int o)
{
	char allowed[64];
	uint32_t n = options_number(o, LC_LANES, MAX_CHANNELS);
	snprintf(allowed, sizeof allowed, "a multiple of %d channels", LC_LANES);
	if (n % LC_LANES)
		options_bad(o, allowed);
	return n;
}

static double gigabytes(int o)
{
	char *end;
	double value = strtod(optarg, &end);
	if (!is_number(optarg, end) || !(value > 0))
		options_bad(o, "a number of gigabytes above 0");
	return value;
}

static uint64_t seed(int o)
{
	char *end;
	uint64_t value = strtoull(optarg, &end, 0);
	if (!is_number(optarg, end))
		options_bad(o, "a whole number");
	return value;
}

static enum mx_dtype weights(int o)
{
	if (strcmp(optarg, "f32") && strcmp(optarg, "bf16"))
		options_bad(o, "f32 or bf16");
	return strcmp(optarg, "bf16") ? MX_F32 : MX_BF16;
}

void options_take(struct options *out, int o, const char *usage)
{
	switch (o) {
	case 't': out->threads = options_number(o, 1, MAX_THREADS); break;
	case 'm': out->gigabytes = gigabytes(o); break;
	case 's': out->seed = seed(o); break;
	case 'k': out->log = options_number(o, out->min_log, OPTIONS_MAX_LOG); break;
	case 'd': out->channels = channels(o); break;
	case 'f': out->weights = weights(o); break;
	default: options_usage(usage);
	}
}
