/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/hosted.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "daemon/cluster_terms.h"
#include "daemon/hosted_draft.h"
#include "daemon/map_json.h"
#include "daemon/hosted_pooling.h"

/* Memory that a warm process takes besides its models: program and libraries, stacks, connections,
 * heap. Measured; nearly all of it are pages of files. */
#define PROCESS_BYTES ((size_t)13 << 19)

/* The engine's settings. The first model's plan counts the process itself, each its tokenizer. */
static struct mx_engine_config engine_config(const struct mx_hosted *h)
{
	const struct mx_config_model *m = h->settings;
	struct mx_hosts *hosts = mx_cluster_hosts(h->cluster);
	return (struct mx_engine_config){
		.name = m->name,
		.device = m->device.items[0],
		.devices = m->device.n > 1 ? m->device.items : NULL,
		.tensor = (uint32_t)m->parallel.tensor,
		.context = (uint32_t)m->parallel.context,
		.n_hosts = h->cluster_config ? (uint32_t)h->cluster_config->hosts : 1,
		.host = hosts ? mx_hosts_number(hosts) : 0,
		.hosts = hosts,
		.deterministic = m->deterministic,
		.threads = (unsigned)m->threads,
		.max_context = (uint32_t)m->max_context,
		.memory = m->memory,
		.outside = (h->first ? PROCESS_BYTES : 0) + mx_tokenizer_bytes(h->tokenizer),
		.max_sequences = (uint32_t)h->scheduler.max_sequences,
		.step_tokens = (uint32_t)h->scheduler.step_tokens,
		.page_tokens = (uint32_t)m->page_tokens,
		.weight_bits = m->weights == MX_WEIGHTS_COPIED ? 0 : m->weights,
		.kv_dtype = m->kv_dtype,
		.copy_weights = m->weights == MX_WEIGHTS_COPIED,
		.prefix_cache = m->prefix_cache,
		.kv_events = h->tells,
		.speculation = (enum mx_speculation)m->speculation.source,
		.draft_tokens = (uint32_t)m->speculation.tokens,
		.draft_tree = m->speculation.tree,
		.draft_plan = h->draft_plan,
		.draft_checkpoint = h->draft_checkpoint,
		.snapshot_memory = m->snapshot_memory == MX_CONFIG_AUTO ? MX_SNAPSHOT_MEMORY_AUTO
	                                                            : (size_t)m->snapshot_memory,
		.snapshot_every = m->snapshot_every == MX_CONFIG_AUTO ? MX_SNAPSHOT_EVERY_AUTO
	                                                          : (uint32_t)m->snapshot_every,
	};
}

/* Fails if the tokenizer has ids for which the embedding has no row: no prompt may name such a row.
 * More rows than tokens are fine, since vocabularies are padded. */
static mx_status check_vocabulary(const struct mx_hosted *h, struct mx_err *err)
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
static mx_status open_checkpoint(struct mx_hosted *h, struct mx_err *err)
{
	const char *path = h->settings->path;
	h->folder = realpath(path, NULL);
	mx_status st = mx_plan_load(path, &h->plan, err);
	for (size_t i = 0; i < h->settings->layers.n && st == MX_OK; i++)
		st = mx_plan_override(h->plan, &h->settings->layers.items[i], err);
	if (st == MX_OK)
		st = mx_checkpoint_open(path, &h->checkpoint, err);
	if (st == MX_OK && h->settings->dtype >= 0) {
		const struct mx_tensor *t = NULL;
		st = mx_checkpoint_find(h->checkpoint, h->plan->embed, &t, err);
		if (st == MX_OK && (int)t->dtype != h->settings->dtype)
			st = mx_fail_at(err, MX_E_UNSUPPORTED, "dtype",
			                "%s is asked for, but the checkpoint holds %s: use dtype: auto",
			                mx_dtype_name((enum mx_dtype)h->settings->dtype),
			                mx_dtype_name(t->dtype));
	}
	if (st == MX_OK)
		st = mx_tokenizer_load(path, &h->tokenizer, err);
	if (st == MX_OK)
		st = check_vocabulary(h, err);
	if (st == MX_OK && h->settings->speculation.model)
		st = mx_hosted_draft_open(h, err);
	return st;
}

/* False if `path` leads elsewhere than to `opened`, which may be NULL. */
static bool leads_to(const char *path, const char *opened)
{
	char *folder = path ? realpath(path, NULL) : NULL;
	bool other = folder && opened && strcmp(folder, opened) != 0;
	free(folder);
	return !other;
}

bool mx_hosted_is_at(const struct mx_hosted *h, const struct mx_config_model *settings)
{
	return leads_to(settings->path, h->folder) &&
	       leads_to(settings->speculation.model, h->draft_folder);
}

mx_status mx_hosted_plan(struct mx_hosted *h, const struct mx_registry *mixers,
                         struct mx_memory_plan *out, struct mx_err *err)
{
	mx_status st = h->tokenizer ? MX_OK : open_checkpoint(h, err);
	if (st)
		return st;
	struct mx_engine_config ec = engine_config(h);
	return mx_engine_plan(h->plan, h->checkpoint, mixers, &ec, out, err);
}

/* Returns the name that the settings give, NULL if the template's text is to say it. */
static const char *set_format(const char *setting)
{
	return strcmp(setting, "auto") ? setting : NULL;
}

/* Chooses how calls and reasoning are told from the rest of the answers. The template for
 * conversations with tools counts first. */
static void choose_formats(struct mx_hosted *h)
{
	const char *calls = set_format(h->settings->tool_parser);
	const char *reasoning = set_format(h->settings->reasoning_parser);
	const struct mx_chat_template *templates[] = {mx_chat_template_tools(h->chat_template),
	                                              h->chat_template};
	h->calls = calls ? mx_tool_format_named(calls) : NULL;
	h->reasoning = reasoning ? mx_reasoning_format_named(reasoning) : NULL;
	for (size_t i = 0; i < 2; i++) {
		size_t len = 0;
		const char *text = templates[i] ? mx_chat_template_source(templates[i], &len) : "";
		if (!calls && !h->calls)
			h->calls = mx_tool_format_of(text, len);
		if (!reasoning && !h->reasoning)
			h->reasoning = mx_reasoning_format_of(text, len);
	}
}

mx_status mx_hosted_template(struct mx_hosted *h, char *why, size_t cap)
{
	struct mx_err err = {0};
	mx_status st = mx_chat_template_load(h->settings->path, &h->chat_template, &err);
	if (st == MX_E_NOTFOUND)
		snprintf(why, cap, "this model has no chat template");
	else if (st && err.line)
		snprintf(why, cap, "this model's chat template cannot be used: line %u, column %u: %s",
		         err.line, err.column, err.text);
	else if (st)
		snprintf(why, cap, "this model's chat template cannot be used: %s", err.text);
	else
		choose_formats(h);
	return st;
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

static void take_tokens(struct mx_hosted *h)
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

static void on_progress(void *arg, size_t done, size_t all)
{
	mx_served_set_progress(arg, done, all);
}

static mx_status publish_events(struct mx_hosted *h, struct mx_err *err)
{
	const struct mx_config_kv_events *c = h->kv_events;
	const struct mx_kv_publisher_config pc = {
		.model = h->settings->name,
		.endpoint = c->endpoint,
		.replay_endpoint = c->replay_endpoint,
		.topic = c->topic,
		.encoding = (enum mx_kv_encoding)c->encoding,
		.buffer_steps = c->buffer_steps,
		.hwm = c->hwm,
	};
	struct mx_kv_events *events = h->engine->ops->kv_events(h->engine);
	return mx_kv_publish(&pc, h->index, events, &h->publisher, err);
}

/* Meets the other hosts, if there are any. */
static mx_status meet_hosts(struct mx_hosted *h, struct mx_err *err)
{
	struct mx_buf terms = {.limit = 8000};
	if (!h->cluster)
		return MX_OK;
	mx_cluster_terms(h->cluster_config, &h->scheduler, h->settings, h->plan, h->checkpoint, &terms);
	mx_status st = terms.failed ? mx_fail(err, MX_E_NOMEM, "out of memory")
	                            : mx_cluster_connect(h->cluster, mx_buf_str(&terms), err);
	mx_buf_free(&terms);
	return st;
}

mx_status mx_hosted_load_part(struct mx_hosted *h, const struct mx_registry *mixers,
                              struct mx_err *err)
{
	mx_status st = open_checkpoint(h, err);
	if (st == MX_OK)
		st = meet_hosts(h, err);
	if (st != MX_OK)
		return st;
	struct mx_engine_config ec = engine_config(h);
	return mx_engine_load(h->plan, h->checkpoint, mixers, &ec, NULL, NULL, &h->engine, err);
}

static mx_status load(struct mx_hosted *h, const struct mx_registry *mixers, struct mx_err *err)
{
	struct mx_served *m = h->model;
	mx_status st = h->tokenizer ? MX_OK : open_checkpoint(h, err);
	if (st == MX_OK)
		st = meet_hosts(h, err);
	if (st == MX_OK) {
		struct mx_engine_config ec = engine_config(h);
		st = mx_engine_load(h->plan, h->checkpoint, mixers, &ec, on_progress, m, &h->engine, err);
	}
	if (st)
		return st;
	mx_cluster_loaded(h->cluster);
	if (mx_hosted_template(h, m->chat_template_error, sizeof m->chat_template_error))
		mx_warning("model", "%s: %s", m->name, m->chat_template_error);

	else if (!h->calls && mx_chat_template_reads(h->chat_template, "tools"))
		mx_info("model",
		        "%s: the chat template shows tools, but no format of tool calls is known for it: "
		        "calls stay in the text of the answer (tool_parser names one)",
		        m->name);

	h->engine->ops->info(h->engine, &m->info);
	struct mx_sched_config sc = {
		.max_sequences = (uint32_t)h->scheduler.max_sequences,
		.step_tokens = (uint32_t)h->scheduler.step_tokens,
		.queue = (uint32_t)h->scheduler.queue,
		.max_step_stretch = h->scheduler.max_step_stretch,
	};
	if (sc.max_sequences > m->info.max_sequences)
		sc.max_sequences = m->info.max_sequences;
	st = publish_events(h, err);
	if (st)
		return st;
	st = mx_sched_create(h->engine, &sc, &h->sched);
	if (st)
		return mx_fail(err, st, "the scheduler cannot start: %s", mx_status_str(st));
	snprintf(m->folder, sizeof m->folder, "%s", h->settings->path);
	m->family = h->plan->family;
	m->tokenizer = h->tokenizer;
	m->chat_template = h->chat_template;
	m->calls = h->calls;
	m->reasoning = h->reasoning;
	m->sched = h->sched;
	m->engine = h->engine;
	mx_map_json(h->engine, &h->map);
	m->map = h->map.failed ? NULL : mx_buf_str(&h->map);
	st = mx_hosted_pooling(h->settings, h->tokenizer, &m->pooling, err);
	if (st)
		return st;
	if (m->pooling.why[0] && h->settings->pooling)
		mx_warning("model", "%s gives no embeddings: %s", m->name, m->pooling.why);
	take_tokens(h);
	take_sampling(&m->sampling, h->plan);
	mx_heap_trim(); /* the parsed JSON of the tokenizer was many times as large as the tokenizer */
	return MX_OK;
}

static double mib(size_t bytes)
{
	return (double)bytes / 0x1p20;
}

mx_status mx_hosted_load(struct mx_hosted *h, const struct mx_registry *mixers, struct mx_err *err)
{
	uint64_t begin = mx_now_ns();
	mx_status st = load(h, mixers, err);
	if (st)
		return st;
	const struct mx_engine_info *i = &h->model->info;
	mx_info(
		"model",
		"%s: ready in %.0f ms: %.1f MiB of weights, %.1f MiB of pages, %.1f MiB of slots, at most "
		"%u sequences, context %u",
		h->model->name, (double)(mx_now_ns() - begin) / 1e6, mib(i->weight_bytes),
		mib((size_t)i->n_pages * i->page_bytes), mib((size_t)i->max_sequences * i->slot_bytes),
		i->max_sequences, i->max_context);
	mx_served_set_state(h->model, MX_SERVED_READY);
	return MX_OK;
}

void mx_hosted_unpublish(struct mx_hosted *h)
{
	mx_kv_unpublish(h->publisher);
	h->publisher = NULL;
}

void mx_hosted_close(struct mx_hosted *h)
{
	mx_sched_destroy(h->sched);
	mx_hosted_unpublish(h);
	if (h->engine)
		h->engine->ops->destroy(h->engine);
	mx_chat_template_destroy(h->chat_template);
	mx_tokenizer_destroy(h->tokenizer);
	mx_checkpoint_close(h->draft_checkpoint);
	mx_plan_destroy(h->draft_plan);
	mx_checkpoint_close(h->checkpoint);
	mx_plan_destroy(h->plan);
	mx_buf_free(&h->map);
	free(h->folder);
	free(h->draft_folder);
}
