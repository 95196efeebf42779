/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/load_report.h"

#include <stdio.h>
#include <strings.h>

#include "daemon/serve/generate_impl.h"

double mx_kv_usage(const struct mx_engine_info *info, const struct mx_engine_usage *usage)
{
	if (!info->n_pages)
		return (double)usage->slots_used / info->max_sequences;
	return (double)usage->pages_used / info->n_pages;
}

bool mx_load_report(const struct mx_generation *g, const char *format, char out[MX_LOAD_REPORT_MAX])
{
	const char *form = NULL;
	if (!strcasecmp(format, "text"))
		form = "TEXT named_metrics.kv_cache_usage_perc=%.6f, "
			   "named_metrics.num_requests_waiting=%u";
	else if (!strcasecmp(format, "json"))
		form = "JSON {\"named_metrics\": {\"kv_cache_usage_perc\": %.6f, "
			   "\"num_requests_waiting\": %u}}";
	if (!form)
		return false;
	const struct mx_served *m = g->model;
	struct mx_sched_stats stats;
	struct mx_engine_usage usage;
	mx_sched_stats(m->sched, &stats);
	m->engine->ops->usage(m->engine, &usage);
	snprintf(out, MX_LOAD_REPORT_MAX, form, mx_kv_usage(&m->info, &usage), stats.waiting);
	return true;
}
