/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/limit_headers.h"

#include <math.h>
#include <stdio.h>

static void write_time(double seconds, char *out, size_t cap)
{
	unsigned long long ms = (unsigned long long)ceil(seconds * 1000), s = (ms + 999) / 1000;
	if (ms < 1000)
		snprintf(out, cap, "%llums", ms);
	else if (s < 60)
		snprintf(out, cap, "%llus", s);
	else
		snprintf(out, cap, "%llum%llus", s / 60, s % 60);
}

static void add_limit(const char *what, const struct mx_left *left,
                      void (*add)(void *arg, const char *name, const char *value), void *arg)
{
	char name[48], value[48];
	if (!left->limit)
		return;
	snprintf(name, sizeof(name), "x-ratelimit-limit-%s", what);
	snprintf(value, sizeof(value), "%llu", (unsigned long long)left->limit);
	add(arg, name, value);
	snprintf(name, sizeof(name), "x-ratelimit-remaining-%s", what);
	snprintf(value, sizeof(value), "%llu", (unsigned long long)left->left);
	add(arg, name, value);
	snprintf(name, sizeof(name), "x-ratelimit-reset-%s", what);
	write_time(left->reset_s, value, sizeof(value));
	add(arg, name, value);
}

void mx_limit_headers(struct mx_principal *p,
                      void (*add)(void *arg, const char *name, const char *value), void *arg)
{
	struct mx_left requests, tokens;
	mx_principal_left(p, &requests, &tokens);
	add_limit("requests", &requests, add, arg);
	add_limit("tokens", &tokens, add, arg);
}
