/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/engine/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct option all[] = {
	{"shape", required_argument, NULL, 's'},   {"dtype", required_argument, NULL, 't'},
	{"kv", required_argument, NULL, 'k'},      {"device", required_argument, NULL, 'd'},
	{"threads", required_argument, NULL, 'j'}, {"reps", required_argument, NULL, 'r'},
	{"only", required_argument, NULL, 'o'},    {"steps", required_argument, NULL, 'n'},
	{"dir", required_argument, NULL, 'f'},     {"deterministic", no_argument, NULL, 'e'},
	{"unrecorded", no_argument, NULL, 'u'},    {"weight-bits", required_argument, NULL, 'w'},
	{"copied", no_argument, NULL, 'c'},        {"tensor", required_argument, NULL, 'T'},
	{"context", required_argument, NULL, 'C'}, {"page-tokens", required_argument, NULL, 'p'},
};
enum { N_OPTIONS = sizeof all / sizeof *all };

static const struct shape *find_shape(const struct shape *shapes, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(name, shapes[i].name))
			return &shapes[i];
	return NULL;
}

/* Returns an enum mx_dtype, or -1. */
static int find_dtype(const char *name)
{
	static const struct {
		const char *name;
		enum mx_dtype dtype;
	} dtypes[] = {{"bf16", MX_BF16}, {"f32", MX_F32}, {"fp8", MX_F8E4M3}, {"int8", MX_I8}};
	for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
		if (!strcmp(name, dtypes[i].name))
			return (int)dtypes[i].dtype;
	return -1;
}

static _Noreturn void end(const char *usage, int status)
{
	fputs(usage, status ? stderr : stdout);
	exit(status);
}

/* The table of getopt_long: --help and the options that are taken. */
static void choose(const char *const *taken, struct option out[N_OPTIONS + 2])
{
	size_t n = 0;
	for (; *taken; taken++)
		for (size_t i = 0; i < N_OPTIONS; i++)
			if (!strcmp(*taken, all[i].name))
				out[n++] = all[i];
	out[n++] = (struct option){"help", no_argument, NULL, 'h'};
	out[n] = (struct option){0};
}

struct options options_read(int argc, char **argv, const char *const *taken,
                            const struct shape *shapes, size_t n_shapes, const char *usage)
{
	struct option longs[N_OPTIONS + 2];
	struct options o = {
		.shape = &shapes[0], .dtype = MX_BF16, .kv = -1, .device = NULL, .threads = 0, .reps = 3};
	int dtype = MX_BF16;
	bool ok = true;
	choose(taken, longs);
	for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
		switch (c) {
		case 's': ok &= (o.shape = find_shape(shapes, n_shapes, optarg)) != NULL; break;
		case 't': ok &= (dtype = find_dtype(optarg)) == MX_BF16 || dtype == MX_F32; break;
		case 'k': ok &= (o.kv = find_dtype(optarg)) >= 0; break;
		case 'd': o.device = optarg; break;
		case 'j': o.threads = (unsigned)strtoul(optarg, NULL, 10); break;
		case 'T': o.tensor = (uint32_t)strtoul(optarg, NULL, 10); break;
		case 'C': o.context = (uint32_t)strtoul(optarg, NULL, 10); break;
		case 'p': o.page_tokens = (uint32_t)strtoul(optarg, NULL, 10); break;
		case 'r': o.reps = strtoul(optarg, NULL, 10); break;
		case 'o': o.only = optarg; break;
		case 'n': o.steps = (uint32_t)strtoul(optarg, NULL, 10); break;
		case 'f': o.dir = optarg; break;
		case 'e': o.deterministic = true; break;
		case 'u': o.unrecorded = true; break;
		case 'w': o.weight_bits = (int)strtoul(optarg, NULL, 10); break;
		case 'c': o.copied = true; break;
		case 'h': end(usage, 0);
		default: end(usage, 2);
		}
	}
	if (!ok || optind != argc || o.reps < 1 || o.reps > 16)
		end(usage, 2);
	o.dtype = (enum mx_dtype)dtype;
	return o;
}

bool options_want(const struct options *o, const char *test)
{
	if (!o->only)
		return true;
	for (const char *p = o->only; *p; p += strcspn(p, ","), p += *p == ',') {
		char part[32];
		snprintf(part, sizeof part, "%.*s", (int)strcspn(p, ","), p);
		if (strstr(test, part))
			return true;
	}
	return false;
}
