/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/host.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/paths.h"
#include "daemon/request_plan.h"
#include "device/open.h"
#include "engine/load.h"
#include "model/plan.h"
#include "model/safetensors.h"

/* Memory that a warm process takes besides its models: program and libraries, stacks, connections,
 * heap. Measured; nearly all of it are pages of files. */
#define PROCESS_BYTES ((size_t)13 << 19)

/* Everything that belongs to one model, in the order in which it is built. */
struct hosted {
	const struct mx_config *config;
	const struct mx_config_model *model_config;
	const struct mx_registry *mixers;
	struct mx_served *model;

	struct mx_plan *plan;
	struct mx_checkpoint *checkpoint;
	struct mx_tokenizer *tokenizer;
	struct mx_chat_template *chat_template;
	struct mx_engine *engine;
	struct mx_sched *sched;
	int32_t fallback_eos;

	pthread_t thread;
	bool thread_started;
};

struct mx_host {
	struct hosted *models;
	size_t n_models;
};

static bool wants_cuda(const struct mx_config *config)
{
	enum mx_device_kind kind;
	for (size_t i = 0; i < config->n_models; i++)
		if (mx_device_parse(config->models[i].device, &kind, NULL) && kind == MX_DEVICE_CUDA)
			return true;
	return false;
}

mx_status mx_host_modules(const struct mx_config *config, struct mx_registry **out,
                          struct mx_err *err)
{
	struct mx_registry *r = NULL;
	mx_status st = mx_registry_create(&r);
	if (st)
		return mx_fail(err, st, "out of memory");
	const char *dirs = mx_paths_of("MIXD_MODULE_PATH", MIXD_MODULE_DIR);
	char dir[4096];
	while (st == MX_OK && mx_paths_next(&dirs, dir, sizeof dir))
		st = mx_registry_load_dir(r, dir, err);
	for (size_t i = 0; st == MX_OK && i < config->modules.n; i++)
		st = mx_registry_load_dir(r, config->modules.items[i], err);
	if (st == MX_OK && wants_cuda(config))
		st = mx_registry_load_cuda(r, err);
	if (st) {
		mx_registry_destroy(r);
		return st;
	}
	*out = r;
	return MX_OK;
}

/* Makes a model's engine configuration. The process's own memory is counted as part of the first
 * model's. */
static struct mx_engine_config engine_config(const struct hosted *h)
{
	const struct mx_config *c = h->config;
	const struct mx_config_model *m = h->model_config;
	return (struct mx_engine_config){
		.name = m->name,
		.device = m->device,
		.deterministic = m->deterministic,
		.threads = (unsigned)m->threads,
		.max_context = (uint32_t)m->max_context,
		.memory = m->memory,
		.outside = (m == c->models ? PROCESS_BYTES : 0) + mx_tokenizer_bytes(h->tokenizer),
		.max_sequences = (uint32_t)c->scheduler.max_sequences,
		.step_tokens = (uint32_t)c->scheduler.step_tokens,
		.page_tokens = (uint32_t)m->page_tokens,
		.kv_dtype = m->kv_dtype,
		.prefix_cache = m->prefix_cache,
		.snapshot_memory = m->snapshot_memory == MX_CONFIG_AUTO ? MX_SNAPSHOT_MEMORY_AUTO
	                                                            : (size_t)m->snapshot_memory,
		.snapshot_every = m->snapshot_every == MX_CONFIG_AUTO ? MX_SNAPSHOT_EVERY_AUTO
	                                                          : (uint32_t)m->snapshot_every,
	};
}

/* Fails if the tokenizer has ids for which the embedding has no row: no prompt may name such a row.
 * More rows than tokens are fine, since vocabularies are padded. */
static mx_status check_vocabulary(const struct hosted *h, struct mx_err *err)
{
	size_t n = mx_tokenizer_size(h->tokenizer);
	if (n <= h->plan->vocab)
		return MX_OK;
	const char *piece = mx_tokenizer_piece(h->tokenizer, (int32_t)(n - 1));
	return mx_fail_at(err, MX_E_FORMAT, "tokenizer.json",
	                  "token \"%.80s\" has id %zu, but config.json's vocab_size is %u",
	                  piece ? piece : "", n - 1, h->plan->vocab);
}

/* Loads the parts of a model that --check needs too. */
static mx_status open_checkpoint(struct hosted *h, struct mx_err *err)
{
	const char *path = h->model_config->path;
	mx_status st = mx_plan_load(path, &h->plan, err);
	if (st == MX_OK)
		st = mx_checkpoint_open(path, &h->checkpoint, err);
	if (st == MX_OK && h->model_config->dtype >= 0) {
		const struct mx_tensor *t = NULL;
		st = mx_checkpoint_find(h->checkpoint, h->plan->embed, &t, err);
		if (st == MX_OK && (int)t->dtype != h->model_config->dtype)
			st = mx_fail_at(err, MX_E_UNSUPPORTED, "dtype",
			                "%s is asked for, but the checkpoint holds %s: use dtype: auto",
			                mx_dtype_name((enum mx_dtype)h->model_config->dtype),
			                mx_dtype_name(t->dtype));
	}
	if (st == MX_OK)
		st = mx_tokenizer_load(path, &h->tokenizer, err);
	if (st == MX_OK)
		st = check_vocabulary(h, err);
	return st;
}

static mx_status open_template(struct hosted *h, char *why, size_t cap)
{
	struct mx_err err = {0};
	mx_status st = mx_chat_template_load(h->model_config->path, &h->chat_template, &err);
	if (st == MX_E_NOTFOUND)
		snprintf(why, cap, "this model has no chat template");
	else if (st && err.line)
		snprintf(why, cap, "this model's chat template cannot be used: line %u, column %u: %s",
		         err.line, err.column, err.text);
	else if (st)
		snprintf(why, cap, "this model's chat template cannot be used: %s", err.text);
	return st;
}

static void close_hosted(struct hosted *h)
{
	mx_sched_destroy(h->sched);
	if (h->engine)
		h->engine->ops->destroy(h->engine);
	mx_chat_template_destroy(h->chat_template);
	mx_tokenizer_destroy(h->tokenizer);
	mx_checkpoint_close(h->checkpoint);
	mx_plan_destroy(h->plan);
}

static double mib(size_t bytes)
{
	return (double)bytes / 0x1p20;
}

/* Prints "room for 4 sequences of 8192 tokens, 16 of 2048, 64 of 512", up to the most sequences
 * that can run. */
static void print_concurrency(FILE *out, const struct mx_memory_plan *mp, uint32_t max_context)
{
	uint32_t fit = mx_memory_sequences(mp, max_context);
	fprintf(out, "  room for %u sequences of %u tokens", fit, max_context);
	for (uint32_t n = max_context / 4; n >= 256 && fit < mp->n_slots; n /= 4) {
		fit = mx_memory_sequences(mp, n);
		fprintf(out, ", %u of %u", fit, n);
	}
	fprintf(out, "\n");
}

/* Prints the memory for states of sequences and for the buffers of a step. */
static void print_states(FILE *out, const struct mx_config_model *m, uint32_t max_context,
                         const struct mx_memory_plan *mp)
{
	if (mp->page_bytes)
		fprintf(out, "  pages               %10.1f MiB  %u of %u tokens, %zu bytes each\n",
		        mib(mp->pages), mp->n_pages, mp->page_tokens, mp->page_bytes);
	if (mp->page_bytes && m->page_tokens && m->page_tokens != mp->page_tokens)
		fprintf(out, "    page_tokens %u is rounded up to what the mixers can do: %u\n",
		        (uint32_t)m->page_tokens, mp->page_tokens);
	if (mp->slot_bytes)
		fprintf(out, "  slots               %10.1f MiB  %u, %zu bytes each\n", mib(mp->slots),
		        mp->n_slots, mp->slot_bytes);
	if (mp->n_snapshots)
		fprintf(out, "  snapshots           %10.1f MiB  %u, %zu bytes each%s", mib(mp->snapshots),
		        mp->n_snapshots, mp->snapshot_bytes, mp->snapshot_every ? "" : "\n");
	if (mp->snapshot_every)
		fprintf(out, ", also every %u tokens\n", mp->snapshot_every);
	if (mp->snapshots_short)
		fprintf(
			out,
			"    warning: snapshot_every is so short that one sequence of %u tokens would evict "
			"states of its own\n",
			max_context);
	fprintf(out, "  scratch             %10.1f MiB\n", mib(mp->scratch));
}

static void print_memory(FILE *out, const struct mx_config_model *m, uint32_t max_context,
                         const struct mx_memory_plan *mp, const char *process)
{
	if (mp->own_memory)
		fprintf(out, "  weights             %10.1f MiB\n", mib(mp->weights_device));
	else
		fprintf(out, "  weights, mapped     %10.1f MiB\n", mib(mp->weights_mapped));
	fprintf(out, "  weights, converted  %10.1f MiB\n", mib(mp->weights_private + mp->weights_made));
	if (mp->instances)
		fprintf(out, "  mixers' own         %10.1f MiB\n", mib(mp->instances));
	print_states(out, m, max_context, mp);
	if (mp->own_memory)
		fprintf(out, "  total on %-10s %10.1f MiB  of %.1f MiB\n", mp->device,
		        mib(mp->device_total), mib(mp->device_free));
	fprintf(out, "  other               %10.1f MiB  tables, tokenizer%s\n", mib(mp->other),
	        process);
	fprintf(out, "  total%s %10.1f MiB\n", mp->own_memory ? " on the host  " : "              ",
	        mib(mp->total));
}

static void print_plan(FILE *out, const struct mx_config_model *m, const struct mx_plan *plan,
                       const struct mx_memory_plan *mp, const char *process)
{
	uint32_t max_context = m->max_context ? (uint32_t)m->max_context : plan->max_context;
	char layers[1024];
	fprintf(out, "model %s (%s, %u layers, width %u, vocabulary %u) from %s\n", m->name,
	        plan->family, plan->n_layers, plan->width, plan->vocab, m->path);
	mx_plan_describe_layers(plan, layers, sizeof layers);
	fprintf(out, "  layers %s\n", layers);
	print_memory(out, m, max_context, mp, process);
	for (uint32_t i = 0; i < mp->n_mixers; i++) {
		const struct mx_engine_mixer *x = &mp->mixers[i];
		fprintf(out, "  mixer %-16s %3u layers, %zu bytes a token, %zu bytes a sequence\n", x->name,
		        x->layers, x->page_bytes / mp->page_tokens, x->slot_bytes);
	}
	print_concurrency(out, mp, max_context);
}

mx_status mx_host_check(const struct mx_config *config, const struct mx_registry *mixers, FILE *out,
                        struct mx_err *err)
{
	uint64_t total = 0;
	for (size_t i = 0; i < config->n_models; i++) {
		const struct mx_config_model *m = &config->models[i];
		struct hosted h = {.config = config, .model_config = m};
		struct mx_memory_plan mp;
		char why[640] = "";
		mx_status st = open_checkpoint(&h, err);
		if (st == MX_OK) {
			struct mx_engine_config ec = engine_config(&h);
			st = mx_engine_plan(h.plan, h.checkpoint, mixers, &ec, &mp, err);
		}
		if (st == MX_OK) {
			print_plan(out, m, h.plan, &mp, i ? "" : ", the process itself");
			total += mp.total;
			if (open_template(&h, why, sizeof why))
				fprintf(out, "  no chat: %s\n", why);
		} else {
			char where[sizeof err->where];
			snprintf(where, sizeof where, "%s%s%.100s", m->name, err->where[0] ? ": " : "",
			         err->where);
			memcpy(err->where, where, sizeof where);
		}
		close_hosted(&h);
		if (st)
			return st;
	}
	mx_request_plan_print(config, total, out);
	return MX_OK;
}

static void on_progress(void *arg, size_t done, size_t all)
{
	mx_served_set_progress(arg, done, all);
}

/* Replaces OpenAI's defaults by the values of generation_config.json. */
static void take_sampling(struct mx_sampling_defaults *s, const struct mx_plan *p)
{
	if (!isnan(p->temperature))
		s->temperature = p->temperature;
	if (!isnan(p->top_p))
		s->top_p = p->top_p;
	if (!isnan(p->min_p))
		s->min_p = p->min_p;
	if (!isnan(p->repetition_penalty))
		s->repetition_penalty = p->repetition_penalty;
	if (p->top_k >= 0)
		s->top_k = p->top_k;
}

static void take_tokens(struct hosted *h)
{
	struct mx_served *m = h->model;
	m->bos = h->plan->bos;
	m->eos = h->plan->eos;
	m->n_eos = h->plan->n_eos;
	if (m->n_eos)
		return;
	const char *eos = mx_tokenizer_special(h->tokenizer, "eos_token");
	h->fallback_eos = eos ? mx_tokenizer_id(h->tokenizer, eos) : -1;
	if (h->fallback_eos >= 0) {
		m->eos = &h->fallback_eos;
		m->n_eos = 1;
	}
}

static mx_status load(struct hosted *h, struct mx_err *err)
{
	struct mx_served *m = h->model;
	mx_status st = open_checkpoint(h, err);
	if (st == MX_OK) {
		struct mx_engine_config ec = engine_config(h);
		st =
			mx_engine_load(h->plan, h->checkpoint, h->mixers, &ec, on_progress, m, &h->engine, err);
	}
	if (st)
		return st;
	if (open_template(h, m->chat_template_error, sizeof m->chat_template_error))
		mx_warning("model", "%s: %s", m->name, m->chat_template_error);

	h->engine->ops->info(h->engine, &m->info);
	struct mx_sched_config sc = {
		.max_sequences = (uint32_t)h->config->scheduler.max_sequences,
		.step_tokens = (uint32_t)h->config->scheduler.step_tokens,
		.queue = (uint32_t)h->config->scheduler.queue,
		.max_step_stretch = h->config->scheduler.max_step_stretch,
	};
	if (sc.max_sequences > m->info.max_sequences)
		sc.max_sequences = m->info.max_sequences;
	st = mx_sched_create(h->engine, &sc, &h->sched);
	if (st)
		return mx_fail(err, st, "the scheduler cannot start: %s", mx_status_str(st));
	m->tokenizer = h->tokenizer;
	m->chat_template = h->chat_template;
	m->sched = h->sched;
	m->engine = h->engine;
	take_tokens(h);
	take_sampling(&m->sampling, h->plan);
	mx_heap_trim(); /* the parsed JSON of the tokenizer was many times as large as the tokenizer */
	return MX_OK;
}

static void *loader_main(void *arg)
{
	struct hosted *h = arg;
	struct mx_err err = {0};
	uint64_t begin = mx_now_ns();
	mx_status st = load(h, &err);
	if (st) {
		char why[800];
		snprintf(why, sizeof why, "%s%s%s", err.where, err.where[0] ? ": " : "", err.text);
		mx_error("model", "%s: %s", h->model->name, why);
		mx_served_set_failed(h->model, why);
		return NULL;
	}
	const struct mx_engine_info *i = &h->model->info;
	mx_info(
		"model",
		"%s: ready in %.0f ms: %.1f MiB of weights, %.1f MiB of pages, %.1f MiB of slots, at most "
		"%u sequences, context %u",
		h->model->name, (double)(mx_now_ns() - begin) / 1e6, mib(i->weight_bytes),
		mib((size_t)i->n_pages * i->page_bytes), mib((size_t)i->max_sequences * i->slot_bytes),
		i->max_sequences, i->max_context);
	mx_served_set_state(h->model, MX_SERVED_READY);
	return NULL;
}

mx_status mx_host_name(const struct mx_config *config, struct mx_service *service)
{
	for (size_t i = 0; i < config->n_models; i++) {
		const struct mx_config_model *mc = &config->models[i];
		struct mx_served *m = &service->models[i];
		snprintf(m->name, sizeof m->name, "%s", mc->name);
		mx_status st = mx_service_set_aliases(service, m, mc->aliases.items, mc->aliases.n);
		if (st)
			return st;
	}
	return MX_OK;
}

mx_status mx_host_start(const struct mx_config *config, const struct mx_registry *mixers,
                        struct mx_service *service, struct mx_host **out, struct mx_err *err)
{
	struct mx_host *host = mx_calloc(1, sizeof *host);
	if (host)
		host->models = mx_calloc(config->n_models, sizeof *host->models);
	if (!host || !host->models) {
		mx_host_destroy(host);
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	}
	host->n_models = config->n_models;
	for (size_t i = 0; i < config->n_models; i++) {
		struct hosted *h = &host->models[i];
		const struct mx_config_model *mc = &config->models[i];
		*h = (struct hosted){
			.config = config, .model_config = mc, .mixers = mixers, .model = &service->models[i]};
		int rc = pthread_create(&h->thread, NULL, loader_main, h);
		if (rc) {
			mx_host_destroy(host);
			return mx_fail_at(err, MX_E_NOMEM, mc->name, "cannot start loading: %s", strerror(rc));
		}
		h->thread_started = true;
	}
	*out = host;
	return MX_OK;
}

void mx_host_destroy(struct mx_host *h)
{
	if (!h)
		return;
	for (size_t i = 0; i < h->n_models; i++)
		if (h->models[i].thread_started)
			pthread_join(h->models[i].thread, NULL);
	for (size_t i = 0; i < h->n_models; i++)
		close_hosted(&h->models[i]);
	free(h->models);
	free(h);
}
