/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers the figures of all models once a scrape, then writes family by family
 * from the tables below, which have one line for each metric. Nothing here waits
 * for a model step: the figures come from counters of the engine threads.
 */
#include "daemon/metrics.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/serve/load_report.h"
#include "daemon/serve/metrics_text.h"

/* One model's figures at the time of the scrape. */
struct figures {
	char labels[300]; /* model_name="...",engine="0" */
	const struct mx_served *model;
	bool loaded;
	struct mx_engine_info info;
	struct mx_engine_usage usage;
	struct mx_sched_stats s;
};

struct mx_metrics {
	struct mx_service *service;
	struct mx_cluster *cluster;
	bool vllm_names;
	const struct mx_front *fronts[MX_METRICS_FRONTS]; /* [n_fronts] */
	_Atomic unsigned n_fronts;
	double start_s; /* start of the process, seconds since the epoch */
	pthread_mutex_t lock;
	struct mx_served_set models; /* of this scrape; under the lock, as what follows */
	struct figures *figures;     /* [cap] of the models */
	size_t cap;
};

struct mx_metrics *mx_metrics_create(struct mx_service *service, bool vllm_names,
                                     struct mx_cluster *cluster)
{
	struct mx_metrics *m = mx_calloc(1, sizeof *m);
	if (!m)
		return NULL;
	m->service = service;
	m->cluster = cluster;
	m->vllm_names = vllm_names;
	m->start_s = (double)mx_wall_ns() / 1e9;
	pthread_mutex_init(&m->lock, NULL);
	return m;
}

void mx_metrics_destroy(struct mx_metrics *m)
{
	if (!m)
		return;
	pthread_mutex_destroy(&m->lock);
	free(m->figures);
	free(m);
}

void mx_metrics_add_front(struct mx_metrics *m, const struct mx_front *front)
{
	unsigned n = atomic_load(&m->n_fronts);
	if (n == MX_METRICS_FRONTS)
		return;
	m->fronts[n] = front;
	atomic_store(&m->n_fronts, n + 1);
}

/* ---- tables of metrics with one value for each model ---- */

#define VALUE(name, expression)                                                                    \
	static double name(const struct figures *f)                                                    \
	{                                                                                              \
		return (double)(expression);                                                               \
	}

VALUE(running, f->s.running)
VALUE(waiting, f->s.waiting)
VALUE(kv_usage, mx_kv_usage(&f->info, &f->usage))
VALUE(prompt_tokens, f->s.prompt_tokens)
VALUE(cached_tokens, f->s.cached_prompt_tokens)
VALUE(output_tokens, f->s.output_tokens)
VALUE(preemptions, f->s.preemptions)
VALUE(drafts, f->s.drafts)
VALUE(draft_tokens, f->s.draft_tokens)
VALUE(accepted_drafts, f->s.accepted_drafts)
VALUE(draft_length, f->s.draft_length)
VALUE(prefix_queries, f->usage.prefix_queries)
VALUE(prefix_hits, f->usage.prefix_hits)
VALUE(prefix_evictions, f->usage.prefix_evictions)
VALUE(pages, f->info.n_pages)
VALUE(pages_used, f->usage.pages_used)
VALUE(pages_cached, f->usage.pages_cached)
VALUE(pages_free, f->usage.pages_free)
VALUE(page_tokens, f->info.page_tokens)
VALUE(page_bytes, f->info.page_bytes)
VALUE(weight_bytes, f->info.weight_bytes)
VALUE(slots, f->info.max_sequences)
VALUE(slots_used, f->usage.slots_used)
VALUE(slot_bytes, f->info.slot_bytes)
VALUE(snapshots, f->info.n_snapshots)
VALUE(snapshots_used, f->usage.snapshots_used)
VALUE(snapshot_bytes, f->info.snapshot_bytes)
VALUE(snapshot_saves, f->usage.snapshot_saves)
VALUE(snapshot_evictions, f->usage.snapshot_evictions)
VALUE(scratch_bytes, f->info.scratch_bytes)
VALUE(steps, f->s.steps)
VALUE(principals, f->s.principals)
VALUE(share_preemptions, f->s.share_preemptions)
VALUE(oldest_wait, f->s.oldest_wait_s)
VALUE(longest_gap, f->s.longest_gap_s)
VALUE(stream_events, atomic_load(&f->model->stream_events))
VALUE(stream_joined, atomic_load(&f->model->stream_joined))

struct metric {
	const char *name;
	enum mx_metric_type type;
	double (*value)(const struct figures *f);
	const char *help;
};

static const struct metric vllm_metrics[] = {
	{"vllm:num_requests_running", MX_METRIC_GAUGE, running, "Requests in the running batch."},
	{"vllm:num_requests_waiting", MX_METRIC_GAUGE, waiting, "Requests waiting to be scheduled."},
	{"vllm:kv_cache_usage_perc", MX_METRIC_GAUGE, kv_usage,
     "Share of the pages that running requests hold; for models without pages, of the slots; 0 to "
     "1."},
	{"vllm:prompt_tokens", MX_METRIC_COUNTER, prompt_tokens, "Prompt tokens processed."},
	{"vllm:prompt_tokens_cached", MX_METRIC_COUNTER, cached_tokens,
     "Prompt tokens taken from the prefix cache."},
	{"vllm:generation_tokens", MX_METRIC_COUNTER, output_tokens, "Tokens generated."},
	{"vllm:num_preemptions", MX_METRIC_COUNTER, preemptions, "Preemptions."},
	{"vllm:prefix_cache_queries", MX_METRIC_COUNTER, prefix_queries,
     "Tokens looked up in the prefix cache."},
	{"vllm:prefix_cache_hits", MX_METRIC_COUNTER, prefix_hits, "Tokens found in the prefix cache."},
	{"vllm:spec_decode_num_drafts", MX_METRIC_COUNTER, drafts, "Drafts, of one token or more."},
	{"vllm:spec_decode_num_draft_tokens", MX_METRIC_COUNTER, draft_tokens, "Tokens of drafts."},
	{"vllm:spec_decode_num_accepted_tokens", MX_METRIC_COUNTER, accepted_drafts,
     "Tokens of drafts that were kept."},
};

static const struct metric own_metrics[] = {
	{"mixd_steps", MX_METRIC_COUNTER, steps, "Engine steps."},
	{"mixd_principals", MX_METRIC_GAUGE, principals,
     "Keys that have unfinished requests; all requests without one count as one."},
	{"mixd_draft_length", MX_METRIC_GAUGE, draft_length,
     "Tokens drafted for a decoding sequence in the last step, on average."},
	{"mixd_share_preemptions", MX_METRIC_COUNTER, share_preemptions,
     "Of the preemptions: so that another principal gets its share of sequences or pages."},
	{"mixd_pages", MX_METRIC_GAUGE, pages, "Pages of the pool."},
	{"mixd_pages_used", MX_METRIC_GAUGE, pages_used, "Pages held by running requests."},
	{"mixd_pages_cached", MX_METRIC_GAUGE, pages_cached,
     "Pages held by the prefix cache alone, free on demand."},
	{"mixd_pages_free", MX_METRIC_GAUGE, pages_free, "Pages that are free."},
	{"mixd_page_tokens", MX_METRIC_GAUGE, page_tokens, "Tokens of a page."},
	{"mixd_page_bytes", MX_METRIC_GAUGE, page_bytes, "Bytes of a page."},
	{"mixd_prefix_cache_evictions", MX_METRIC_COUNTER, prefix_evictions,
     "Cached pages dropped to make room."},
	{"mixd_weight_bytes", MX_METRIC_GAUGE, weight_bytes, "Memory of the weights."},
	{"mixd_slots", MX_METRIC_GAUGE, slots, "Slots: the most sequences that can run at a time."},
	{"mixd_slots_used", MX_METRIC_GAUGE, slots_used, "Slots held by running requests."},
	{"mixd_slot_bytes", MX_METRIC_GAUGE, slot_bytes, "Bytes of a slot."},
	{"mixd_snapshots", MX_METRIC_GAUGE, snapshots, "Most snapshots that fit."},
	{"mixd_snapshots_used", MX_METRIC_GAUGE, snapshots_used, "Snapshots that are held."},
	{"mixd_snapshot_bytes", MX_METRIC_GAUGE, snapshot_bytes,
     "Bytes of a snapshot: a slot and a partially filled page."},
	{"mixd_snapshot_saves", MX_METRIC_COUNTER, snapshot_saves,
     "Snapshots taken for the prefix cache."},
	{"mixd_snapshot_evictions", MX_METRIC_COUNTER, snapshot_evictions,
     "Snapshots dropped to make room."},
	{"mixd_scratch_bytes", MX_METRIC_GAUGE, scratch_bytes, "Memory of activations and work space."},
	{"mixd_queue_oldest_seconds", MX_METRIC_GAUGE, oldest_wait,
     "How long the oldest waiting request has waited."},
	{"mixd_longest_token_gap_seconds", MX_METRIC_GAUGE, longest_gap,
     "Longest time between two tokens of one request since the start."},
	{"mixd_stream_events", MX_METRIC_COUNTER, stream_events,
     "Events of streams that carried output tokens."},
	{"mixd_stream_joined_events", MX_METRIC_COUNTER, stream_joined,
     "Those that carried several tokens, because the client lagged."},
};

struct histogram {
	const char *name;
	size_t offset; /* in struct mx_sched_stats */
	const char *help;
};

#define HIST(f) offsetof(struct mx_sched_stats, f)

static const struct histogram vllm_histograms[] = {
	{"vllm:time_to_first_token_seconds", HIST(ttft), "Arrival to first token."},
	{"vllm:inter_token_latency_seconds", HIST(itl), "Time between two tokens of a request."},
	{"vllm:request_time_per_output_token_seconds", HIST(tpot),
     "Mean time per output token after the first, by request."},
	{"vllm:e2e_request_latency_seconds", HIST(e2e), "Arrival to end."},
	{"vllm:request_queue_time_seconds", HIST(queue_time), "Arrival to first step."},
	{"vllm:request_inference_time_seconds", HIST(inference_time), "First step to end."},
	{"vllm:request_prefill_time_seconds", HIST(prefill_time), "First step to first token."},
	{"vllm:request_decode_time_seconds", HIST(decode_time), "First token to end."},
	{"vllm:iteration_tokens_total", HIST(step_tokens), "Tokens computed by a step."},
	{"vllm:request_prompt_tokens", HIST(request_prompt), "Prompt tokens of a request."},
	{"vllm:request_generation_tokens", HIST(request_output), "Generated tokens of a request."},
	{"vllm:request_max_num_generation_tokens", HIST(request_max_tokens),
     "Most tokens that a request may generate."},
	{"vllm:request_params_max_tokens", HIST(request_max_tokens), "The max_tokens of a request."},
};

static const struct histogram own_histograms[] = {
	{"mixd_step_idle_seconds", HIST(step_idle),
     "Host time of a step that the device waits for: from the end of the step before, or the "
     "arrival of work, to the start of this one."},
};

/* ---- writing ---- */

static void write_metrics(struct mx_metrics *m, struct mx_metrics_writer *w,
                          const struct metric *table, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		mx_metrics_family(w, table[i].name, table[i].type, table[i].help);
		for (size_t k = 0; k < m->models.n; k++)
			if (m->figures[k].loaded)
				mx_metrics_sample(w, m->figures[k].labels, table[i].value(&m->figures[k]));
	}
}

static const struct mx_hist *hist_of(const struct figures *f, size_t offset)
{
	return (const struct mx_hist *)((const char *)&f->s + offset);
}

static void write_histograms(struct mx_metrics *m, struct mx_metrics_writer *w,
                             const struct histogram *table, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		mx_metrics_family(w, table[i].name, MX_METRIC_HISTOGRAM, table[i].help);
		for (size_t k = 0; k < m->models.n; k++) {
			if (!m->figures[k].loaded)
				continue;
			const struct mx_hist *h = hist_of(&m->figures[k], table[i].offset);
			mx_metrics_histogram(w, m->figures[k].labels, h->bounds, h->n_bounds, h->count, h->sum);
		}
	}
}

/* Writes a sample with one more label after the model's. */
static void sample_with(struct mx_metrics_writer *w, const struct figures *f, const char *label,
                        const char *value, double v)
{
	char labels[400];
	snprintf(labels, sizeof labels, "%s,%s=\"%s\"", f->labels, label, value);
	mx_metrics_sample(w, labels, v);
}

static void write_vllm_by_reason(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	static const char *const finishes[] = {"stop", "length", "abort", "error"};
	mx_metrics_family(w, "vllm:request_success", MX_METRIC_COUNTER, "Requests ended, by reason.");
	for (size_t k = 0; k < m->models.n; k++)
		for (size_t r = 0; m->figures[k].loaded && r < 4; r++)
			sample_with(w, &m->figures[k], "finished_reason", finishes[r],
			            (double)m->figures[k].s.finished[r]);
	mx_metrics_family(w, "vllm:spec_decode_num_accepted_tokens_per_pos", MX_METRIC_COUNTER,
	                  "Tokens of drafts that were kept, by their place in the draft.");
	for (size_t k = 0; k < m->models.n; k++)
		for (uint32_t i = 0; m->figures[k].loaded && i < m->figures[k].info.max_draft; i++) {
			char place[16];
			snprintf(place, sizeof place, "%u", i);
			sample_with(w, &m->figures[k], "position", place,
			            (double)m->figures[k].s.accepted_at[i]);
		}
	mx_metrics_family(w, "vllm:cache_config_info", MX_METRIC_GAUGE,
	                  "Settings of the page pool, as labels; always 1.");
	for (size_t k = 0; k < m->models.n; k++) {
		const struct figures *f = &m->figures[k];
		char labels[500];
		snprintf(labels, sizeof labels,
		         "%s,block_size=\"%u\",num_gpu_blocks=\"%u\",enable_prefix_caching=\"%s\"",
		         f->labels, f->info.page_tokens, f->info.n_pages,
		         f->info.prefix_cache ? "True" : "False");
		if (f->loaded)
			mx_metrics_sample(w, labels, 1);
	}
}

static double mixer_layers(const struct mx_engine_mixer *x)
{
	return x->layers;
}

static double mixer_pages(const struct mx_engine_mixer *x)
{
	return (double)x->page_bytes;
}

static double mixer_slots(const struct mx_engine_mixer *x)
{
	return (double)x->slot_bytes;
}

static double mixer_snapshots(const struct mx_engine_mixer *x)
{
	return (double)x->snapshot_bytes;
}

/* Writes the memory that each kind of mixer takes. */
static void write_own_by_mixer(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	static const struct {
		const char *name, *help;
		double (*value)(const struct mx_engine_mixer *x);
	} table[] = {
		{"mixd_mixer_layers", "Layers that have this mixer.", mixer_layers},
		{"mixd_mixer_page_bytes", "This mixer's part of mixd_page_bytes.", mixer_pages},
		{"mixd_mixer_slot_bytes", "This mixer's part of mixd_slot_bytes.", mixer_slots},
		{"mixd_mixer_snapshot_bytes", "This mixer's part of mixd_snapshot_bytes.", mixer_snapshots},
	};
	for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
		mx_metrics_family(w, table[t].name, MX_METRIC_GAUGE, table[t].help);
		for (size_t k = 0; k < m->models.n; k++) {
			const struct figures *f = &m->figures[k];
			for (uint32_t i = 0; f->loaded && i < f->info.n_mixers; i++)
				sample_with(w, f, "mixer", f->info.mixers[i].name,
				            table[t].value(&f->info.mixers[i]));
		}
	}
}

/* Writes a figure of each rank of the models that have several. */
static void write_rank_figure(struct mx_metrics *m, struct mx_metrics_writer *w, const char *name,
                              enum mx_metric_type type, const char *help,
                              double (*value)(const struct mx_engine_rank *r))
{
	bool named = false;
	for (size_t k = 0; k < m->models.n; k++) {
		const struct figures *f = &m->figures[k];
		const struct mx_engine *e = f->model->engine;
		struct mx_engine_rank r;
		for (uint32_t i = 0; f->loaded && e->ops->rank(e, i, &r); i++) {
			char labels[420];
			if (!named)
				mx_metrics_family(w, name, type, help);
			named = true;
			snprintf(labels, sizeof labels, "%s,rank=\"%u\",device=\"%s\"", f->labels, r.rank,
			         r.device);
			mx_metrics_sample(w, labels, value(&r));
		}
	}
}

static double rank_memory(const struct mx_engine_rank *r)
{
	return (double)r->memory;
}

static double rank_exchange(const struct mx_engine_rank *r)
{
	return r->exchange_s;
}

static void write_ranks(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	write_rank_figure(m, w, "mixd_rank_memory_bytes", MX_METRIC_GAUGE,
	                  "Memory that a rank takes of its device; on CPUs without weights that are "
	                  "used where the file is mapped.",
	                  rank_memory);
	write_rank_figure(
		m, w, "mixd_rank_exchange_seconds", MX_METRIC_COUNTER,
		"Time of a rank in sums over the ranks and other exchanges with them, waiting "
		"included.",
		rank_exchange);
}

static void write_own_by_reason(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	static const char *const why[] = {"client", "api", "shutdown"};
	static const char *const phase[] = {"waiting", "running"};
	size_t n = m->models.n;
	mx_metrics_family(w, "mixd_requests_rejected", MX_METRIC_COUNTER,
	                  "Requests refused for lack of room, by reason.");
	for (size_t k = 0; k < n; k++) {
		const struct figures *f = &m->figures[k];
		if (!f->loaded)
			continue;
		sample_with(w, f, "reason", "queue_full", (double)f->s.rejected_queue);
		sample_with(w, f, "reason", "too_long", (double)f->s.rejected_length);
		sample_with(w, f, "reason", "draining", (double)f->s.rejected_draining);
	}
	static const char *const outcomes[MX_LOOKUP_N] = {
		[MX_LOOKUP_HIT] = "hit",
		[MX_LOOKUP_MISS] = "miss",
		[MX_LOOKUP_NO_SNAPSHOT] = "no_snapshot",
		[MX_LOOKUP_EVICTED] = "evicted",
		[MX_LOOKUP_UNSUPPORTED] = "unsupported",
	};
	mx_metrics_family(
		w, "mixd_prefix_cache_lookups", MX_METRIC_COUNTER,
		"Look-ups in the prefix cache by outcome: hit, a prefix need not be computed; miss, no "
		"prefix "
		"was computed before; no_snapshot, a prefix was computed before but no snapshot taken "
		"there; "
		"evicted, the snapshot taken there was dropped; unsupported, a mixer cannot resume.");
	for (size_t k = 0; k < n; k++)
		for (int o = 0; m->figures[k].loaded && o < MX_LOOKUP_N; o++)
			sample_with(w, &m->figures[k], "outcome", outcomes[o],
			            (double)m->figures[k].usage.prefix_lookups[o]);
	mx_metrics_family(w, "mixd_requests_cancelled", MX_METRIC_COUNTER,
	                  "Requests cancelled, by reason and phase.");
	for (size_t k = 0; k < n; k++)
		for (size_t r = 0; m->figures[k].loaded && r < 6; r++) {
			char labels[400];
			snprintf(labels, sizeof labels, "%s,reason=\"%s\",phase=\"%s\"", m->figures[k].labels,
			         why[r / 2], phase[r % 2]);
			mx_metrics_sample(w, labels, (double)m->figures[k].s.cancelled[r / 2][r % 2]);
		}
	mx_metrics_family(w, "mixd_step_phase_seconds", MX_METRIC_HISTOGRAM,
	                  "Time of a step by phase; forward includes the work of mixers after the "
	                  "draw, host is planning and delivery.");
	static const struct {
		const char *name;
		size_t offset;
	} phases[] = {
		{"forward", HIST(step_forward)}, {"sample", HIST(step_sample)}, {"host", HIST(step_host)}};
	for (size_t k = 0; k < n; k++)
		for (size_t p = 0; m->figures[k].loaded && p < 3; p++) {
			const struct mx_hist *h = hist_of(&m->figures[k], phases[p].offset);
			char labels[400];
			snprintf(labels, sizeof labels, "%s,phase=\"%s\"", m->figures[k].labels,
			         phases[p].name);
			mx_metrics_histogram(w, labels, h->bounds, h->n_bounds, h->count, h->sum);
		}
}

static void write_models(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	mx_metrics_family(w, "mixd_build_info", MX_METRIC_GAUGE, "The version; always 1.");
	char labels[200];
	snprintf(labels, sizeof labels, "version=\"%s\"", m->service->version);
	mx_metrics_sample(w, labels, 1);
	mx_metrics_family(w, "mixd_model_ready", MX_METRIC_GAUGE, "1 if the model serves requests.");
	for (size_t k = 0; k < m->models.n; k++)
		mx_metrics_sample(w, m->figures[k].labels, m->figures[k].loaded);
	mx_metrics_family(w, "mixd_log_lines", MX_METRIC_COUNTER, "Log lines written, by level.");
	mx_metrics_sample(w, "level=\"error\"", (double)mx_log_count(MX_LOG_ERROR));
	mx_metrics_sample(w, "level=\"warning\"", (double)mx_log_count(MX_LOG_WARNING));
	mx_metrics_family(w, "mixd_log_lines_lost", MX_METRIC_COUNTER,
	                  "Log lines that were lost because standard error was not read.");
	mx_metrics_sample(w, "", (double)mx_log_lost());
}

static void write_fronts(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	unsigned n = atomic_load(&m->n_fronts);
	for (unsigned i = 0; i < n; i++)
		m->fronts[i]->ops->stats(m->fronts[i], w);
	mx_keys_write_metrics(m->service->keys, w);
	mx_grammars_write_metrics(&m->service->grammars, w);
}

static double open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	if (!d)
		return NAN;
	double n = -3; /* ".", ".." and the directory itself */
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void write_process(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	FILE *f = fopen("/proc/self/statm", "r");
	unsigned long long size = 0, resident = 0;
	if (f) {
		if (fscanf(f, "%llu %llu", &size, &resident) != 2)
			size = resident = 0;
		fclose(f);
	}
	struct timespec cpu;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	double page = (double)sysconf(_SC_PAGESIZE);
	const struct {
		const char *name, *help;
		enum mx_metric_type type;
		double value;
	} table[] = {
		{"process_cpu_seconds", "CPU time, user and system.", MX_METRIC_COUNTER,
	     (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9},
		{"process_resident_memory_bytes", "Resident memory.", MX_METRIC_GAUGE,
	     (double)resident * page},
		{"process_virtual_memory_bytes", "Virtual memory.", MX_METRIC_GAUGE, (double)size * page},
		{"process_open_fds", "Open file descriptors.", MX_METRIC_GAUGE, open_fds()},
		{"process_start_time_seconds", "Start, seconds since the epoch.", MX_METRIC_GAUGE,
	     m->start_s},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		mx_metrics_family(w, table[i].name, table[i].type, table[i].help);
		mx_metrics_sample(w, "", table[i].value);
	}
}

/* Writes what was exchanged with other hosts. */
static void write_hosts(struct mx_metrics *m, struct mx_metrics_writer *w)
{
	struct mx_hosts *hosts = mx_cluster_hosts(m->cluster);
	if (!hosts)
		return;
	mx_metrics_family(w, "mixd_hosts", MX_METRIC_GAUGE, "Hosts that compute the model.");
	mx_metrics_sample(w, "", mx_hosts_count(hosts));
	mx_metrics_family(
		w, "mixd_hosts_exchange_seconds", MX_METRIC_COUNTER,
		"Time that this host's ranks waited for other hosts, or exchanged with them.");
	mx_metrics_sample(w, "", (double)mx_hosts_ns(hosts) / 1e9);
	for (int received = 0; received < 2; received++) {
		mx_metrics_family(w, received ? "mixd_host_received_bytes" : "mixd_host_sent_bytes",
		                  MX_METRIC_COUNTER,
		                  received ? "Bytes received from a host." : "Bytes sent to a host.");
		for (uint32_t i = 1; i < mx_hosts_count(hosts); i++) {
			struct mx_hosts_figures f;
			char label[32];
			mx_hosts_figures(hosts, i, &f);
			snprintf(label, sizeof label, "host=\"%u\"", i);
			mx_metrics_sample(w, label, (double)(received ? f.received : f.sent));
		}
	}
}

/* Takes the models and their figures; without memory for these, no models. */
static void gather(struct mx_metrics *m)
{
	mx_service_take_all(m->service, &m->models);
	if (m->models.n > m->cap) {
		struct figures *more = mx_realloc(m->figures, m->models.n, sizeof *more);
		if (!more) {
			mx_served_set_release(&m->models);
			return;
		}
		m->figures = more;
		m->cap = m->models.n;
	}
	for (size_t k = 0; k < m->models.n; k++) {
		struct figures *f = &m->figures[k];
		const struct mx_served *model = m->models.items[k];
		char name[260];
		mx_metrics_escape(name, sizeof name, model->name);
		snprintf(f->labels, sizeof f->labels, "model_name=\"%s\",engine=\"0\"", name);
		f->model = model;
		enum mx_served_state state = mx_served_state(model);
		f->loaded = state == MX_SERVED_READY || state == MX_SERVED_DRAINING;
		if (!f->loaded)
			continue;
		f->info = model->info;
		mx_sched_stats(model->sched, &f->s);
		model->engine->ops->usage(model->engine, &f->usage);
		if (!f->info.page_bytes) { /* the engine's pages have no bytes then */
			f->info.n_pages = f->info.page_tokens = 0;
			f->usage.pages_used = f->usage.pages_cached = f->usage.pages_free = 0;
		}
	}
}

const char *mx_metrics_text(void *arg, const char *accept, struct mx_buf *out)
{
	struct mx_metrics *m = arg;
	struct mx_metrics_writer w = {
		.out = out, .openmetrics = accept && strstr(accept, "application/openmetrics-text")};
	pthread_mutex_lock(&m->lock);
	gather(m);
	write_models(m, &w);
	write_metrics(m, &w, own_metrics, sizeof own_metrics / sizeof *own_metrics);
	write_histograms(m, &w, own_histograms, sizeof own_histograms / sizeof *own_histograms);
	write_own_by_mixer(m, &w);
	write_own_by_reason(m, &w);
	write_ranks(m, &w);
	if (m->vllm_names) {
		write_metrics(m, &w, vllm_metrics, sizeof vllm_metrics / sizeof *vllm_metrics);
		write_histograms(m, &w, vllm_histograms, sizeof vllm_histograms / sizeof *vllm_histograms);
		write_vllm_by_reason(m, &w);
	}
	write_fronts(m, &w);
	write_hosts(m, &w);
	write_process(m, &w);
	mx_metrics_end(&w);
	mx_served_set_release(&m->models);
	pthread_mutex_unlock(&m->lock);
	return w.openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
	                     : "text/plain; version=0.0.4; charset=utf-8";
}
