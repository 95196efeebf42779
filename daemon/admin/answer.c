/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/answer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "daemon/serve/live.h"
#include "proto/json_out.h"

static void put_string(struct mx_buf *b, const char *name, const char *value)
{
	mx_buf_printf(b, "\"%s\":", name);
	mx_json_cstring(b, value);
}

static void put_count(struct mx_buf *b, const char *name, uint64_t n)
{
	mx_buf_printf(b, ",\"%s\":%llu", name, (unsigned long long)n);
}

static const char *bool_of(bool v)
{
	return v ? "true" : "false";
}

/* Writes the gaps between tokens as a histogram: seconds, and one count more than bounds. */
static void put_gaps(struct mx_buf *b, const struct mx_hist *h)
{
	mx_buf_puts(b, ",\"gaps\":{\"bounds\":[");
	for (uint32_t i = 0; i < h->n_bounds; i++)
		mx_buf_printf(b, "%s%.9g", i ? "," : "", h->bounds[i]);
	mx_buf_puts(b, "],\"counts\":[");
	for (uint32_t i = 0; i <= h->n_bounds; i++)
		mx_buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)h->count[i]);
	mx_buf_puts(b, "]}");
}

/* Writes what is known of a model that is loaded. */
static void put_figures(struct mx_buf *b, const struct mx_served *m)
{
	const struct mx_engine_info *info = &m->info;
	struct mx_sched_stats v;
	struct mx_engine_usage usage;
	mx_sched_stats(m->sched, &v);
	m->engine->ops->usage(m->engine, &usage);
	bool pages = info->page_bytes != 0;
	mx_buf_putc(b, ',');
	put_string(b, "device", info->device);
	put_count(b, "max_context", info->max_context);
	put_count(b, "weight_bytes", info->weight_bytes);
	put_count(b, "host_bytes", info->host_bytes);
	put_count(b, "running", v.running);
	put_count(b, "waiting", v.waiting);
	put_count(b, "queue", mx_sched_max_requests(m->sched));
	mx_buf_printf(b, ",\"oldest_wait_s\":%.3f", v.oldest_wait_s);
	put_count(b, "prompt_tokens", v.prompt_tokens);
	put_count(b, "cached_prompt_tokens", v.cached_prompt_tokens);
	put_count(b, "output_tokens", v.output_tokens);
	put_count(b, "finished", v.finished[MX_FINISH_STOP] + v.finished[MX_FINISH_LENGTH]);
	put_count(b, "failed", v.finished[MX_FINISH_ERROR]);
	put_count(b, "cancelled", v.finished[MX_FINISH_ABORT]);
	put_count(b, "preemptions", v.preemptions);
	put_count(b, "steps", v.steps);
	put_count(b, "pages", pages ? info->n_pages : 0);
	put_count(b, "pages_used", pages ? usage.pages_used : 0);
	put_count(b, "pages_cached", pages ? usage.pages_cached : 0);
	put_count(b, "slots", info->max_sequences);
	put_count(b, "slots_used", usage.slots_used);
	put_count(b, "snapshots", info->n_snapshots);
	put_count(b, "snapshots_used", usage.snapshots_used);
	mx_buf_printf(b, ",\"longest_gap_s\":%.6f", v.longest_gap_s);
	put_gaps(b, &v.itl);
}

/* Writes the names of a model that are not its own. */
static void put_aliases(struct mx_buf *b, const struct mx_listed *listed, size_t n,
                        const char *name)
{
	size_t written = 0;
	mx_buf_puts(b, ",\"aliases\":[");
	for (size_t i = 0; i < n; i++) {
		if (strcmp(listed[i].root, name) || !strcmp(listed[i].id, name))
			continue;
		mx_buf_puts(b, written++ ? "," : "");
		mx_json_cstring(b, listed[i].id);
	}
	mx_buf_putc(b, ']');
}

static void put_models(struct mx_service *service, struct mx_buf *b)
{
	struct mx_served_set models;
	struct mx_listed *listed = NULL;
	size_t n = 0;
	if (mx_service_list(service, &listed, &n))
		n = 0;
	mx_service_take_all(service, &models);
	mx_buf_puts(b, ",\"models\":[");
	for (size_t i = 0; i < models.n; i++) {
		const struct mx_served *m = models.items[i];
		enum mx_served_state state = mx_served_state(m);
		mx_buf_puts(b, i ? ",{" : "{");
		put_string(b, "name", m->name);
		put_aliases(b, listed, n, m->name);
		mx_buf_putc(b, ',');
		put_string(b, "state", mx_served_state_name(m));
		mx_buf_printf(b, ",\"progress\":%.3f", mx_served_progress(m));
		if (state == MX_SERVED_FAILED) {
			mx_buf_putc(b, ',');
			put_string(b, "failure", m->failure);
		}
		if (state == MX_SERVED_READY || state == MX_SERVED_DRAINING)
			put_figures(b, m);
		mx_buf_putc(b, '}');
	}
	mx_buf_putc(b, ']');
	mx_served_set_release(&models);
	free(listed);
}

static void put_retired(struct mx_host *host, struct mx_buf *b)
{
	struct mx_retired retired[MX_SERVICE_MODELS];
	size_t n = mx_host_retired(host, retired, MX_SERVICE_MODELS);
	mx_buf_puts(b, ",\"retired\":[");
	for (size_t i = 0; i < n; i++) {
		mx_buf_puts(b, i ? ",{" : "{");
		put_string(b, "name", retired[i].name);
		put_count(b, "requests", retired[i].held);
		mx_buf_putc(b, '}');
	}
	mx_buf_putc(b, ']');
}

void mx_admin_write_status(const struct mx_admin_setup *s, uint64_t start_ns, struct mx_buf *out)
{
	struct mx_buf why = {0};
	uint64_t now = mx_now_ns();
	bool ready = mx_service_ready(s->service, &why);
	mx_buf_putc(out, '{');
	put_string(out, "version", s->service->version);
	put_count(out, "pid", (uint64_t)getpid());
	put_count(out, "time_ns", now);
	mx_buf_printf(out, ",\"uptime_s\":%.1f,\"ready\":%s,", (double)(now - start_ns) / 1e9,
	              bool_of(ready));
	put_string(out, "reason", mx_buf_str(&why));
	mx_buf_printf(out, ",\"draining\":%s,\"reloading\":%s",
	              bool_of(atomic_load(&s->service->draining)), bool_of(mx_reload_busy(s->reload)));
	put_count(out, "requests", s->active(s->arg));
	put_models(s->service, out);
	put_retired(s->host, out);
	mx_buf_putc(out, '}');
	mx_buf_free(&why);
}

void mx_admin_write_requests(const struct mx_admin_setup *s, struct mx_buf *out)
{
	mx_live_write(s->service, NULL, out);
}

void mx_admin_write_reload(const struct mx_reload_result *r, struct mx_buf *out)
{
	const struct {
		const char *name, *value;
	} lists[] = {{"applied", r->applied},   {"added", r->added}, {"removed", r->removed},
	             {"replaced", r->replaced}, {"read", r->read},   {"restart", r->restart}};
	if (!r->ok) {
		mx_admin_write_error(r->error, out);
		return;
	}
	mx_buf_puts(out, "{\"ok\":true");
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		mx_buf_putc(out, ',');
		put_string(out, lists[i].name, lists[i].value);
	}
	mx_buf_putc(out, '}');
}

void mx_admin_write_error(const char *text, struct mx_buf *out)
{
	mx_buf_putc(out, '{');
	put_string(out, "error", text);
	mx_buf_putc(out, '}');
}
