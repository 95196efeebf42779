/* SPDX-License-Identifier: Apache-2.0 */
/* See config.h. The tables below are the only place where a key is defined. */
#include "daemon/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/address.h"
#include "daemon/config_read.h"
#include "device/comm.h"
#include "device/hosts/hosts.h"
#include "device/open.h"
#include "proto/tools/formats.h"
#include "engine/load.h"

#define MAX_MODELS 64
#define MAX_LIST   256

static const struct mx_config_choice log_levels[] = {{"error", MX_LOG_ERROR},
                                                     {"warning", MX_LOG_WARNING},
                                                     {"info", MX_LOG_INFO},
                                                     {"debug", MX_LOG_DEBUG},
                                                     {NULL, 0}};
static const struct mx_config_choice log_formats[] = {
	{"text", MX_LOG_TEXT}, {"json", MX_LOG_JSON}, {NULL, 0}};
/* The values of enum mx_access. */
static const struct mx_config_choice log_accesses[] = {
	{"off", 0}, {"errors", 1}, {"all", 2}, {NULL, 0}};
static const struct mx_config_choice dtypes[] = {
	{"auto", -1}, {"f32", MX_F32}, {"f16", MX_F16}, {"bf16", MX_BF16}, {NULL, 0}};
static const struct mx_config_choice weight_choices[] = {
	{"auto", MX_WEIGHTS_MAPPED}, {"mapped", MX_WEIGHTS_MAPPED}, {"copied", MX_WEIGHTS_COPIED},
	{"int8", MX_WEIGHTS_INT8},   {"int4", MX_WEIGHTS_INT4},     {NULL, 0}};
static const struct mx_config_choice kv_dtypes[] = {{"auto", -1},      {"f32", MX_F32},
                                                    {"bf16", MX_BF16}, {"fp8", MX_F8E4M3},
                                                    {"int8", MX_I8},   {NULL, 0}};
static const struct mx_config_choice speculations[] = {{"none", MX_SPECULATION_NONE},
                                                       {"ngram", MX_SPECULATION_NGRAM},
                                                       {"draft", MX_SPECULATION_DRAFT},
                                                       {"mtp", MX_SPECULATION_MTP},
                                                       {0}};
static const struct mx_config_choice poolings[] = {{"auto", -1},
                                                   {"last", MX_POOLING_LAST},
                                                   {"mean", MX_POOLING_MEAN},
                                                   {"none", MX_POOLING_NONE},
                                                   {NULL, 0}};
static const struct mx_config_choice unknown_fields[] = {
	{"refuse", false}, {"warn", true}, {NULL, 0}};

static const struct mx_config_choice tls_versions[] = {{"1.2", 12}, {"1.3", 13}, {NULL, 0}};

/* The values of enum mx_kv_encoding. */
static const struct mx_config_choice kv_encodings[] = {{"maps", 0}, {"arrays", 1}, {NULL, 0}};

static const char *check_listen(const char *address)
{
	char host[MX_ADDRESS_HOST];
	const char *port;
	return mx_address_split(address, host, &port);
}

#define H(f) offsetof(struct mx_config, http.f)
static const struct mx_config_key http_tls_keys[] = {
	{"cert", K_STRING, H(tls.cert), .automatic = true},
	{"key", K_STRING, H(tls.key), .automatic = true},
	{"client_ca", K_STRING, H(tls.client_ca), .automatic = true},
	{"min_version", K_CHOICE, H(tls.min_version), .choices = tls_versions},
	{0}};
static const struct mx_config_key http_cors_keys[] = {
	{"origins", K_STRINGS, H(cors_origins), .min = 0, .max = MAX_LIST, .reloadable = true}, {0}};
static const struct mx_config_key http_keys[] = {
	{"listen", K_STRINGS, H(listen), .min = 1, .max = 16, .check = check_listen},
	{"tls", K_MAP, .keys = http_tls_keys},
	{"max_body_bytes", K_BYTES, H(max_body_bytes), .min = 1024, .max = 1 << 30},
	{"body_memory", K_BYTES, H(body_memory), .min = 1024, .max = 0x1p50, .automatic = true},
	{"answer_memory", K_BYTES, H(answer_memory), .min = 1 << 20, .max = 0x1p50},
	{"max_connections", K_UINT, H(max_connections), .min = 1, .max = 1 << 20},
	{"idle_timeout_s", K_UINT, H(idle_timeout_s), .min = 1, .max = 86400},
	{"header_timeout_s", K_UINT, H(header_timeout_s), .min = 1, .max = 86400},
	{"threads", K_UINT, H(threads), .min = 1, .max = 64},
	{"workers", K_UINT, H(workers), .min = 1, .max = 64},
	{"keep_alive_s", K_NUMBER, H(keep_alive_s), .min = 0.1, .max = 3600},
	{"stall_s", K_NUMBER, H(stall_s), .min = 1, .max = 86400},
	{"unknown_fields", K_CHOICE, H(allow_unknown_fields), .choices = unknown_fields},
	{"cors", K_MAP, .keys = http_cors_keys},
	{"page", K_BOOL, H(page), .reloadable = true},
	{0}};

#define G(f) offsetof(struct mx_config, grpc.f)
static const struct mx_config_key grpc_tls_keys[] = {
	{"cert", K_STRING, G(tls.cert), .automatic = true},
	{"key", K_STRING, G(tls.key), .automatic = true},
	{"client_ca", K_STRING, G(tls.client_ca), .automatic = true},
	{"min_version", K_CHOICE, G(tls.min_version), .choices = tls_versions},
	{0}};
static const struct mx_config_key grpc_keys[] = {
	{"listen", K_STRINGS, G(listen), .min = 0, .max = 16, .check = check_listen},
	{"tls", K_MAP, .keys = grpc_tls_keys},
	{"memory", K_BYTES, G(memory), .min = 1 << 20, .max = 0x1p50},
	{"max_calls", K_UINT, G(max_calls), .min = 1, .max = 1 << 20},
	{"idle_timeout_s", K_UINT, G(idle_timeout_s), .min = 1, .max = 86400},
	{"min_ping_s", K_UINT, G(min_ping_s), .min = 1, .max = 86400},
	{"threads", K_UINT, G(threads), .min = 1, .max = 64},
	{0}};

#define K(f) offsetof(struct mx_config, kv_events.f)
static const struct mx_config_key kv_events_keys[] = {
	{"endpoint", K_STRING, K(endpoint), .automatic = true},
	{"replay_endpoint", K_STRING, K(replay_endpoint), .automatic = true},
	{"topic", K_STRING, K(topic), .automatic = true},
	{"encoding", K_CHOICE, K(encoding), .choices = kv_encodings},
	{"buffer_steps", K_UINT, K(buffer_steps), .min = 1, .max = 1 << 20},
	{"hwm", K_UINT, K(hwm), .min = 1, .max = 1 << 20},
	{0}};

#define L(f) offsetof(struct mx_config, log.f)
static const struct mx_config_key log_keys[] = {
	{"level", K_CHOICE, L(level), .choices = log_levels, .reloadable = true},
	{"format", K_CHOICE, L(format), .choices = log_formats, .reloadable = true},
	{"access", K_CHOICE, L(access), .choices = log_accesses, .reloadable = true},
	{0}};

#define S(f) offsetof(struct mx_config, scheduler.f)
static const struct mx_config_key scheduler_keys[] = {
	{"max_sequences", K_UINT, S(max_sequences), .min = 1, .max = 4096},
	{"step_tokens", K_UINT, S(step_tokens), .min = 16, .max = 65536},
	{"queue", K_UINT, S(queue), .min = 1, .max = 1 << 20, .reloadable = true},
	{"max_step_stretch", K_NUMBER, S(max_step_stretch), .min = 1, .max = 1e6},
	{0}};

#define D(f) offsetof(struct mx_config, shutdown.f)
static const struct mx_config_key shutdown_keys[] = {
	{"notice_s", K_NUMBER, D(notice_s), .min = 0, .max = 86400},
	{"drain_s", K_NUMBER, D(drain_s), .min = 0, .max = 86400, .reloadable = true},
	{0}};

static const struct mx_config_key metrics_keys[] = {
	{"vllm_names", K_BOOL, offsetof(struct mx_config, metrics.vllm_names), .min = 0}, {0}};

static const struct mx_config_key admin_keys[] = {
	{"listen", K_STRINGS, offsetof(struct mx_config, admin.listen), .min = 0, .max = 16,
     .check = check_listen},
	{"socket", K_STRING, offsetof(struct mx_config, admin.socket), .automatic = true},
	{0}};

static const struct mx_config_key cluster_keys[] = {
	{"hosts", K_UINT, offsetof(struct mx_config, cluster.hosts), .min = 1, .max = MX_MAX_HOSTS},
	{"listen", K_STRING, offsetof(struct mx_config, cluster.listen), .min = 0},
	{"secret", K_STRING, offsetof(struct mx_config, cluster.secret), .automatic = true},
	{"tls", K_BOOL, offsetof(struct mx_config, cluster.tls), .min = 0},
	{"join_s", K_NUMBER, offsetof(struct mx_config, cluster.join_s), .min = 1, .max = 86400},
	{0}};

const struct mx_config_key mx_config_top_keys[] = {
	{"http", K_MAP, .keys = http_keys},
	{"grpc", K_MAP, .keys = grpc_keys},
	{"kv_events", K_MAP, .keys = kv_events_keys},
	{"log", K_MAP, .keys = log_keys},
	{"scheduler", K_MAP, .keys = scheduler_keys},
	{"shutdown", K_MAP, .keys = shutdown_keys},
	{"metrics", K_MAP, .keys = metrics_keys},
	{"admin", K_MAP, .keys = admin_keys},
	{"cluster", K_MAP, .keys = cluster_keys},
	{"keys", K_STRING, offsetof(struct mx_config, keys), .automatic = true, .reloadable = true},
	{"modules", K_STRINGS, offsetof(struct mx_config, modules), .min = 0, .max = 64},
	{"models", K_MODELS, 0, .required = true},
	{0}};

#define M(f) offsetof(struct mx_config_model, f)
static const struct mx_config_key speculation_keys[] = {
	{"source", K_CHOICE, M(speculation.source), .choices = speculations},
	{"model", K_STRING, M(speculation.model), .automatic = true},
	{"tokens", K_UINT, M(speculation.tokens), .min = 1, .max = MX_MAX_DRAFT},
	{"tree", K_BOOL, M(speculation.tree), .min = 0},
	{0}};

static const struct mx_config_key parallel_keys[] = {
	{"tensor", K_UINT, M(parallel.tensor), .min = 1, .max = MX_MAX_RANKS},
	{"context", K_UINT, M(parallel.context), .min = 1, .max = MX_MAX_RANKS},
	{0}};

const struct mx_config_key mx_config_model_keys[] = {
	{"name", K_STRING, M(name), .required = true},
	{"path", K_STRING, M(path), .required = true},
	{"aliases", K_STRINGS, M(aliases), .min = 0, .max = MAX_LIST, .reloadable = true},
	{"device", K_STRINGS, M(device), .min = 1, .max = MX_MAX_RANKS},
	{"parallel", K_MAP, .keys = parallel_keys},
	{"deterministic", K_BOOL, M(deterministic), .min = 0},
	{"threads", K_UINT, M(threads), .min = 0, .max = 1024},
	{"max_context", K_UINT, M(max_context), .min = 0, .max = 1 << 30},
	{"memory", K_BYTES, M(memory), .min = 0, .max = 0x1p50},
	{"page_tokens", K_UINT, M(page_tokens), .min = 0, .max = 4096},
	{"dtype", K_CHOICE, M(dtype), .choices = dtypes},
	{"weights", K_CHOICE, M(weights), .choices = weight_choices},
	{"kv_dtype", K_CHOICE, M(kv_dtype), .choices = kv_dtypes},
	{"prefix_cache", K_BOOL, M(prefix_cache), .min = 0},
	{"layers", K_LAYERS, M(layers), .min = 0, .max = 64},
	{"snapshot_memory", K_BYTES, M(snapshot_memory), .max = 0x1p50, .automatic = true},
	{"snapshot_every", K_UINT, M(snapshot_every), .max = 1 << 30, .automatic = true},
	{"speculation", K_MAP, .keys = speculation_keys},
	{"tool_parser", K_STRING, M(tool_parser), .min = 0},
	{"reasoning_parser", K_STRING, M(reasoning_parser), .min = 0},
	{"pooling", K_CHOICE, M(pooling), .choices = poolings},
	{"reranker", K_STRING, M(reranker), .automatic = true},
	{"reranker_tokens", K_STRINGS, M(reranker_tokens), .min = 2, .max = 2},
	{0}};

static struct mx_config *config_of(const struct mx_config_reader *p)
{
	return p->out;
}

/* Makes a path absolute: relative paths begin at the folder of the configuration file. */
static mx_status make_absolute(struct mx_config_reader *p, const char **path)
{
	const char *slash = strrchr(p->file, '/');
	if (**path == '/' || !slash)
		return MX_OK;
	struct mx_buf b = {.limit = 8192};
	mx_buf_append(&b, p->file, (size_t)(slash - p->file) + 1);
	mx_buf_puts(&b, *path);
	char *copy = b.failed ? NULL : mx_arena_strndup(p->arena, b.data, b.len);
	mx_buf_free(&b);
	if (!copy)
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	*path = copy;
	return MX_OK;
}

/* Sets p->path to a key of a mapping that was read, or to an entry of its list. Returns the value's
 * node. */
static const yaml_node_t *go_to(struct mx_config_reader *p, const yaml_node_t *map, const char *key,
                                size_t entry)
{
	const yaml_node_t *at = map;
	for (const yaml_node_pair_t *pair = map->data.mapping.pairs.start;
	     pair < map->data.mapping.pairs.top; pair++) {
		const yaml_node_t *kn = yaml_document_get_node(p->doc, pair->key);
		if (!strcmp((const char *)kn->data.scalar.value, key))
			at = yaml_document_get_node(p->doc, pair->value);
	}
	size_t n = strlen(p->path);
	if (at->type == YAML_SEQUENCE_NODE) {
		snprintf(p->path + n, sizeof p->path - n, ".%s[%zu]", key, entry);
		return yaml_document_get_node(p->doc, at->data.sequence.items.start[entry]);
	}
	snprintf(p->path + n, sizeof p->path - n, ".%s", key);
	return at;
}

/* Returns the node of a model's name (a = 0) or of its alias a - 1. */
static const yaml_node_t *name_node(struct mx_config_reader *p, const yaml_node_t *model, size_t a)
{
	return a ? go_to(p, model, "aliases", a - 1) : go_to(p, model, "name", 0);
}

/* Checks that names and aliases of all models differ: they share one name space. */
static mx_status check_names(struct mx_config_reader *p, const yaml_node_t *n, size_t n_models)
{
	const struct mx_config_model *models = config_of(p)->models;
	const struct mx_config_model *m = &models[n_models - 1];
	for (size_t a = 0; a <= m->aliases.n; a++) {
		const char *name = a ? m->aliases.items[a - 1] : m->name;
		if (strlen(name) > 120)
			return mx_config_fail(p, name_node(p, n, a),
			                      "the name \"%.40s...\" is longer than 120 bytes", name);
		for (size_t i = 0; i < n_models; i++)
			for (size_t b = 0; b <= models[i].aliases.n; b++) {
				const char *other = b ? models[i].aliases.items[b - 1] : models[i].name;
				if (!(i == n_models - 1 && a == b) && !strcmp(name, other))
					return mx_config_fail(p, name_node(p, n, a), "the name \"%s\" is used twice",
					                      name);
			}
	}
	return MX_OK;
}

/* Checks only the form of the devices' names; the engine finds out if they exist. */
static mx_status check_device(struct mx_config_reader *p, const yaml_node_t *n,
                              const struct mx_config_model *m)
{
	enum mx_device_kind kind = MX_DEVICE_CPU;
	for (size_t i = 0; i < m->device.n; i++) {
		enum mx_device_kind first = kind;
		const char *name = m->device.items[i];
		if (!mx_device_parse(name, &kind, NULL))
			return mx_config_fail(p, go_to(p, n, "device", i),
			                      "no device \"%.40s\": must be cpu, cuda or cuda:N", name);
		if (i && kind != first)
			return mx_config_fail(p, go_to(p, n, "device", i),
			                      "%.40s: a model's devices must be of one kind", name);
	}
	if (kind == MX_DEVICE_CPU && m->kv_dtype == MX_F8E4M3)
		return mx_config_fail(p, go_to(p, n, "kv_dtype", 0), "fp8 needs device: cuda");
	if (kind != MX_DEVICE_CPU && m->kv_dtype == MX_I8)
		return mx_config_fail(p, go_to(p, n, "kv_dtype", 0), "int8 needs device: cpu");
	if (kind != MX_DEVICE_CPU && (m->weights == MX_WEIGHTS_INT8 || m->weights == MX_WEIGHTS_INT4))
		return mx_config_fail(p, go_to(p, n, "weights", 0), "int%d needs device: cpu", m->weights);
	return MX_OK;
}

/* Returns the node of a key of a mapping, or NULL. */
static const yaml_node_t *value_of(struct mx_config_reader *p, const yaml_node_t *map,
                                   const char *key)
{
	const bool is_map = map && map->type == YAML_MAPPING_NODE;
	for (const yaml_node_pair_t *pair = is_map ? map->data.mapping.pairs.start : NULL;
	     is_map && pair < map->data.mapping.pairs.top; pair++) {
		const yaml_node_t *kn = yaml_document_get_node(p->doc, pair->key);
		if (kn->type == YAML_SCALAR_NODE && !strcmp((const char *)kn->data.scalar.value, key))
			return yaml_document_get_node(p->doc, pair->value);
	}
	return NULL;
}

/* Returns cluster.hosts, which may stand behind the models; 1 if that is no number, for which there
 * will be an error. */
static uint64_t hosts_of(struct mx_config_reader *p)
{
	const yaml_node_t *root = yaml_document_get_root_node(p->doc);
	const yaml_node_t *n = value_of(p, value_of(p, root, "cluster"), "hosts");
	const long hosts =
		n && n->type == YAML_SCALAR_NODE ? strtol((const char *)n->data.scalar.value, NULL, 10) : 1;
	return hosts >= 1 && hosts <= MX_MAX_HOSTS ? (uint64_t)hosts : 1;
}

/* Sets how many devices share layers, and pages: those of all hosts. By default all share layers.
 */
static mx_status check_parallel(struct mx_config_reader *p, const yaml_node_t *n,
                                struct mx_config_model *m)
{
	const uint64_t hosts = hosts_of(p), devices = m->device.n * hosts;
	if (!m->parallel.context)
		m->parallel.context = 1;
	if (!m->parallel.tensor)
		m->parallel.tensor = devices > m->parallel.context ? devices / m->parallel.context : 1;
	if (m->parallel.tensor * m->parallel.context == devices)
		return MX_OK;
	if (hosts > 1)
		return mx_config_fail(p, go_to(p, n, "parallel", 0),
		                      "tensor %u times context %u is not the number of devices of all "
		                      "hosts, %u times %u",
		                      (unsigned)m->parallel.tensor, (unsigned)m->parallel.context,
		                      (unsigned)hosts, (unsigned)m->device.n);
	return mx_config_fail(p, go_to(p, n, "parallel", 0),
	                      "tensor %u times context %u is not the number of devices, %u",
	                      (unsigned)m->parallel.tensor, (unsigned)m->parallel.context,
	                      (unsigned)devices);
}

/* Checks the name of a parser. */
static mx_status check_parser(struct mx_config_reader *p, const yaml_node_t *n, const char *key,
                              const char *name, bool known, const char *(*name_at)(size_t i))
{
	if (known || !strcmp(name, "auto") || !strcmp(name, "none"))
		return MX_OK;
	struct mx_buf names = {0};
	const char *other;
	for (size_t i = 0; (other = name_at(i)); i++)
		mx_buf_printf(&names, ", %s", other);
	mx_status st =
		mx_config_fail(p, go_to(p, n, key, 0), "no parser \"%.40s\": must be auto, none%s", name,
	                   mx_buf_str(&names));
	mx_buf_free(&names);
	return st;
}

static mx_status check_parsers(struct mx_config_reader *p, const yaml_node_t *n,
                               const struct mx_config_model *m)
{
	mx_status st = check_parser(p, n, "tool_parser", m->tool_parser,
	                            mx_tool_format_named(m->tool_parser), mx_tool_format_name_at);
	if (st == MX_OK)
		st = check_parser(p, n, "reasoning_parser", m->reasoning_parser,
		                  mx_reasoning_format_named(m->reasoning_parser),
		                  mx_reasoning_format_name_at);
	return st;
}

/* A draft model is named if, and only if, there is to be one; trees are for prompt lookup. */
static mx_status check_speculation(struct mx_config_reader *p, const yaml_node_t *n,
                                   struct mx_config_model *m)
{
	bool draft = m->speculation.source == MX_SPECULATION_DRAFT;
	if (draft && !m->speculation.model)
		return mx_config_fail(p, go_to(p, n, "speculation", 0),
		                      "source: draft needs the folder of a draft model: model");
	if (!draft && m->speculation.model)
		return mx_config_fail(p, go_to(p, n, "speculation", 0),
		                      "a draft model is named, but source is not draft");
	if (m->speculation.tree && m->speculation.source != MX_SPECULATION_NGRAM)
		return mx_config_fail(p, go_to(p, n, "speculation", 0),
		                      "tree: true is for source: ngram only, so far");
	return draft ? make_absolute(p, &m->speculation.model) : MX_OK;
}

static const char *default_answers[] = {"yes", "no"};
static const char *default_device[] = {"cpu"};

static mx_status read_models(struct mx_config_reader *p, const yaml_node_t *n)
{
	struct mx_config *c = config_of(p);
	if (n->type != YAML_SEQUENCE_NODE)
		return mx_config_fail(p, n, "must be a list of models, not %s", mx_config_kind_of(n));
	size_t n_models = (size_t)(n->data.sequence.items.top - n->data.sequence.items.start);
	if (n_models < 1 || n_models > MAX_MODELS)
		return mx_config_fail(p, n, "must have 1 to %d entries, not %zu", MAX_MODELS, n_models);
	c->models = mx_arena_alloc(&c->arena, n_models * sizeof *c->models);
	if (!c->models)
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	size_t parent = strlen(p->path);
	for (size_t i = 0; i < n_models; i++) {
		const yaml_node_t *item = yaml_document_get_node(p->doc, n->data.sequence.items.start[i]);
		struct mx_config_model *m = &c->models[i];
		*m = (struct mx_config_model){.device = {default_device, 1},
		                              .dtype = -1,
		                              .kv_dtype = -1,
		                              .prefix_cache = true,
		                              .tool_parser = "auto",
		                              .reasoning_parser = "auto",
		                              .snapshot_memory = MX_CONFIG_AUTO,
		                              .snapshot_every = MX_CONFIG_AUTO,
		                              .pooling = -1,
		                              .speculation = {MX_SPECULATION_NONE, NULL, 4, false},
		                              .reranker_tokens = {default_answers, 2},
		                              .line = (unsigned)item->start_mark.line + 1};
		snprintf(p->path + parent, sizeof p->path - parent, "[%zu]", i);
		mx_status st = mx_config_read_map(p, item, mx_config_model_keys, (char *)m);
		if (st == MX_OK)
			st = check_device(p, item, m);
		if (st == MX_OK)
			st = check_parallel(p, item, m);
		if (st == MX_OK)
			st = check_parsers(p, item, m);
		if (st == MX_OK)
			st = check_speculation(p, item, m);
		if (st == MX_OK)
			st = make_absolute(p, &m->path);
		if (st == MX_OK)
			st = check_names(p, item, i + 1);
		if (st)
			return st;
	}
	p->path[parent] = 0;
	c->n_models = n_models;
	return MX_OK;
}

static const char *default_listen[] = {"127.0.0.1:8080"};

static void set_defaults(struct mx_config *c)
{
	c->http = (struct mx_config_http){.listen = {default_listen, 1},
	                                  .max_body_bytes = 8388608,
	                                  .body_memory = MX_CONFIG_AUTO,
	                                  .answer_memory = 64 << 20,
	                                  .max_connections = 1024,
	                                  .idle_timeout_s = 75,
	                                  .header_timeout_s = 10,
	                                  .threads = 2,
	                                  .workers = 2,
	                                  .keep_alive_s = 5,
	                                  .stall_s = 60,
	                                  .page = true,
	                                  .tls.min_version = 12};
	c->grpc = (struct mx_config_grpc){.memory = 64 << 20,
	                                  .max_calls = 1024,
	                                  .idle_timeout_s = 75,
	                                  .threads = 2,
	                                  .tls.min_version = 12};
	c->kv_events = (struct mx_config_kv_events){.buffer_steps = 10000, .hwm = 10000};
	c->log = (struct mx_config_log){.level = MX_LOG_INFO, .format = MX_LOG_TEXT, .access = 2};
	c->scheduler = (struct mx_config_scheduler){
		.max_sequences = 64, .step_tokens = 512, .queue = 1024, .max_step_stretch = 1.6};
	c->shutdown.drain_s = 30;
	c->metrics.vllm_names = true;
	c->admin.socket = MX_CONFIG_SOCKET_AUTO;
	c->cluster = (struct mx_config_cluster){
		.hosts = 1, .listen = "127.0.0.1:7411", .tls = true, .join_s = 600};
}

/* Checks what is said of hosts. */
static mx_status check_cluster(struct mx_config_reader *p, const yaml_node_t *root)
{
	const struct mx_config *c = config_of(p);
	const char *fault = check_listen(c->cluster.listen);
	if (fault)
		return mx_config_fail(p, root, "cluster.listen: %s", fault);
	if (c->cluster.hosts < 2)
		return MX_OK;
	if (!c->cluster.secret)
		return mx_config_fail(p, root, "cluster.secret: several hosts need a file with a secret");
	if (c->n_models > 1)
		return mx_config_fail(p, root, "cluster.hosts: several hosts serve one model, so far");
	return MX_OK;
}

uint64_t mx_config_gpus(const struct mx_config_model *m)
{
	uint64_t gpus = 0;
	for (size_t i = 0; m->device.n > 1 && i < m->device.n; i++) {
		enum mx_device_kind kind;
		int number;
		if (mx_device_parse(m->device.items[i], &kind, &number) && kind == MX_DEVICE_CUDA)
			gpus |= 1ull << number % 64;
	}
	return gpus;
}

/* Fails if two models that several GPUs compute share one. */
static mx_status check_gpus(struct mx_config_reader *p, const yaml_node_t *root)
{
	const struct mx_config *c = config_of(p);
	for (size_t i = 0; i < c->n_models; i++)
		for (size_t k = 0; k < i; k++) {
			const uint64_t both = mx_config_gpus(&c->models[i]) & mx_config_gpus(&c->models[k]);
			if (both)
				return mx_config_fail(
					p, root,
					"models %.60s and %.60s are both on several GPUs, with cuda:%d in common, "
					"where each could wait for the other until both are lost: give them GPUs of "
					"their own, or one of them a single GPU",
					c->models[k].name, c->models[i].name, __builtin_ctzll(both));
		}
	return MX_OK;
}

/* Checks that concern more than one key. */
static mx_status check_whole(struct mx_config_reader *p, const yaml_node_t *root)
{
	const struct mx_config *c = config_of(p);
	p->path[0] = 0;
	if (c->http.body_memory < c->http.max_body_bytes)
		return mx_config_fail(
			p, root,
			"http.body_memory (%llu) is below http.max_body_bytes (%llu): no such body "
			"could be received",
			(unsigned long long)c->http.body_memory, (unsigned long long)c->http.max_body_bytes);
	const struct {
		const char *name;
		const struct mx_config_tls *tls;
	} tls[] = {{"http", &c->http.tls}, {"grpc", &c->grpc.tls}};
	for (size_t i = 0; i < sizeof tls / sizeof tls[0]; i++)
		if (!tls[i].tls->cert != !tls[i].tls->key || (tls[i].tls->client_ca && !tls[i].tls->cert))
			return mx_config_fail(p, root, "%s.tls needs both cert and key", tls[i].name);
	if (c->grpc.tls.min_version > 12)
		return mx_config_fail(
			p, root,
			"grpc.tls.min_version: gRPC's library takes TLS 1.2 and 1.3, and no setting of "
			"its C surface refuses 1.2");
	if (c->scheduler.max_sequences > c->scheduler.step_tokens)
		return mx_config_fail(
			p, root,
			"scheduler.max_sequences (%llu) is above scheduler.step_tokens (%llu): every "
			"sequence needs a token in each step",
			(unsigned long long)c->scheduler.max_sequences,
			(unsigned long long)c->scheduler.step_tokens);
	return MX_OK;
}

static mx_status read_root(struct mx_config_reader *p, const yaml_node_t *root)
{
	struct mx_config *c = config_of(p);
	mx_status st = mx_config_read_map(p, root, mx_config_top_keys, (char *)c);
	for (size_t i = 0; st == MX_OK && i < c->modules.n; i++)
		st = make_absolute(p, &c->modules.items[i]);
	const char **const files[] = {&c->http.tls.cert, &c->http.tls.key,  &c->http.tls.client_ca,
	                              &c->grpc.tls.cert, &c->grpc.tls.key,  &c->grpc.tls.client_ca,
	                              &c->keys,          &c->cluster.secret};
	for (size_t i = 0; st == MX_OK && i < sizeof files / sizeof files[0]; i++)
		st = *files[i] ? make_absolute(p, files[i]) : MX_OK;
	if (st == MX_OK && c->admin.socket && strcmp(c->admin.socket, MX_CONFIG_SOCKET_AUTO) != 0)
		st = make_absolute(p, &c->admin.socket);
	if (st == MX_OK)
		st = check_whole(p, root);
	if (st == MX_OK)
		st = check_cluster(p, root);
	if (st == MX_OK)
		st = check_gpus(p, root);
	return st;
}

mx_status mx_config_parse(const char *file, const char *text, size_t len, struct mx_config **out,
                          struct mx_err *err)
{
	struct mx_config *c = mx_calloc(1, sizeof *c);
	if (!c)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	c->file = mx_arena_strndup(&c->arena, file, strlen(file));
	set_defaults(c);
	struct mx_config_reader r = {.file = c->file,
	                             .arena = &c->arena,
	                             .err = err,
	                             .read_root = read_root,
	                             .read_models = read_models,
	                             .out = c};
	mx_status st =
		c->file ? mx_config_read(&r, text, len) : mx_fail(err, MX_E_NOMEM, "out of memory");
	c->http.listen_given = c->http.listen.items != default_listen;
	if (st) {
		mx_config_free(c);
		return st;
	}
	*out = c;
	return MX_OK;
}

mx_status mx_config_load(const char *file, struct mx_config **out, struct mx_err *err)
{
	FILE *f = fopen(file, "rb");
	if (!f)
		return mx_fail_at(err, MX_E_IO, file, "cannot be opened: %s", strerror(errno));
	struct mx_buf text = {0};
	mx_status st = mx_config_read_file(file, f, &text, err);
	fclose(f);
	if (st == MX_OK)
		st = mx_config_parse(file, mx_buf_str(&text), text.len, out, err);
	mx_buf_free(&text);
	return st;
}

void mx_config_free(struct mx_config *c)
{
	if (!c)
		return;
	struct mx_arena arena = c->arena;
	mx_arena_free(&arena);
	free(c);
}
