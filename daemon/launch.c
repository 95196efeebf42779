/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/address.h"
#include "device/hosts/hosts.h"

/* The variables of a launcher. */
struct launcher {
	const char *number;   /* of this process, from 0 */
	const char *count;    /* how many there are */
	const char *first[2]; /* host 0's name, the first that is set */
	bool list;            /* which is that of the first of a list */
};

static const struct launcher launchers[] = {
	{"MIXD_HOST", "MIXD_HOSTS", {"MIXD_FIRST_HOST", NULL}, false},
	{"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", {"LWS_LEADER_ADDRESS", NULL}, false},
	{"SLURM_PROCID", "SLURM_NTASKS", {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}, true},
};

bool mx_launch_first_node(const char *list, char *out, size_t cap)
{
	const size_t plain = strcspn(list, "[,"), inside = plain + (list[plain] == '[');
	const size_t digits = list[plain] == '[' ? strcspn(list + inside, "-,]") : 0;
	const int n = snprintf(out, cap, "%.*s%.*s", (int)plain, list, (int)digits, list + inside);
	return n > 0 && (size_t)n < cap && (list[plain] != '[' || digits);
}

/* Reads a number 0 .. most - 1 of a variable or an option. */
static mx_status read_number(const char *name, const char *text, uint64_t most, uint32_t *out,
                             struct mx_err *err)
{
	char *end = NULL;
	errno = 0;
	const unsigned long n = text ? strtoul(text, &end, 10) : 0;
	if (!text)
		return mx_fail_at(err, MX_E_NOTFOUND, name, "is not set");
	if (errno || end == text || *end || text[0] == '-' || n >= most)
		return mx_fail_at(err, MX_E_RANGE, name, "\"%.40s\" is not a number of 0 to %llu", text,
		                  (unsigned long long)most - 1);
	*out = (uint32_t)n;
	return MX_OK;
}

static mx_status set_join(const char *host, const char *listen, struct mx_launch *out,
                          struct mx_err *err)
{
	char ignored[MX_ADDRESS_HOST];
	const char *port;
	const char *fault = mx_address_split(listen, ignored, &port);
	if (fault)
		return mx_fail_at(err, MX_E_INVALID, "cluster.listen", "%s", fault);
	const bool six = strchr(host, ':') && host[0] != '[';
	const int n = snprintf(out->join, sizeof out->join, "%s%s%s:%s", six ? "[" : "", host,
	                       six ? "]" : "", port);
	return n > 0 && (size_t)n < sizeof out->join
	           ? MX_OK
	           : mx_fail(err, MX_E_RANGE, "the first host's name is too long");
}

static mx_status by_launcher(const struct launcher *l, const char *listen, uint64_t hosts,
                             struct mx_launch *out, struct mx_err *err)
{
	char node[256];
	uint32_t count;
	const char *given = getenv(l->count), *which = l->first[0];
	mx_status st = read_number(l->number, getenv(l->number), hosts, &out->number, err);
	if (st == MX_OK && given)
		st = read_number(l->count, given, MX_MAX_HOSTS + 1, &count, err);
	if (st == MX_OK && given && count != hosts)
		st = mx_fail_at(err, MX_E_INVALID, l->count, "is %u, and cluster.hosts %llu", count,
		                (unsigned long long)hosts);
	out->worker = out->number > 0;
	if (st != MX_OK || !out->worker)
		return st;
	if (!getenv(which) && l->first[1])
		which = l->first[1];
	const char *first = getenv(which);
	if (!first || !*first)
		return mx_fail_at(err, MX_E_NOTFOUND, which, "is not set: it names the first host");
	if (l->list && !mx_launch_first_node(first, node, sizeof node))
		return mx_fail_at(err, MX_E_INVALID, which, "\"%.60s\" is no list of hosts", first);
	return set_join(l->list ? node : first, listen, out, err);
}

mx_status mx_launch_find(const struct mx_launch_options *o, const char *listen, uint64_t hosts,
                         struct mx_launch *out, struct mx_err *err)
{
	char host[MX_ADDRESS_HOST];
	const char *port, *fault;
	struct mx_launch l = {.worker = o->worker};
	mx_status st = MX_OK;
	if (hosts < 2)
		return mx_fail_at(err, MX_E_INVALID, "cluster.hosts",
		                  "must be 2 or more where there are workers");
	if (o->launched) {
		size_t i = 0, n = sizeof launchers / sizeof *launchers;
		while (i < n && !getenv(launchers[i].number))
			i++;
		if (i == n)
			return mx_fail(err, MX_E_NOTFOUND,
			               "--launched: no launcher has set MIXD_HOST, LWS_WORKER_INDEX or "
			               "SLURM_PROCID");
		st = by_launcher(&launchers[i], listen, hosts, &l, err);
	} else if (o->worker) {
		if (!o->join)
			return mx_fail(err, MX_E_INVALID, "--worker needs --join HOST:PORT");
		if ((fault = mx_address_split(o->join, host, &port)) || !host[0])
			return mx_fail_at(err, MX_E_INVALID, "--join", "\"%.60s\": %s", o->join,
			                  fault ? fault : "names no host");
		snprintf(l.join, sizeof l.join, "%.300s", o->join);
		if (o->host)
			st = read_number("--host", o->host, hosts, &l.number, err);
		if (st == MX_OK && o->host && !l.number)
			st = mx_fail_at(err, MX_E_RANGE, "--host", "0 is the one that serves requests");
	}
	if (st == MX_OK)
		*out = l;
	return st;
}
