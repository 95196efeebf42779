/* SPDX-License-Identifier: Apache-2.0 */
/* See config.h. The tables below are the only place where a key is defined. */
#include "daemon/config.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/buf.h"
#include "base/address.h"
#include "base/closest.h"
#include "daemon/config_keys.h"
#include "device/open.h"

#define MAX_FILE   ((size_t)1 << 20)
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
static const struct mx_config_choice kv_dtypes[] = {
	{"auto", -1}, {"f32", MX_F32}, {"bf16", MX_BF16}, {"fp8", MX_F8E4M3}, {NULL, 0}};
static const struct mx_config_choice unknown_fields[] = {
	{"refuse", false}, {"warn", true}, {NULL, 0}};

static const char *check_listen(const char *address)
{
	char host[MX_ADDRESS_HOST];
	const char *port;
	return mx_address_split(address, host, &port);
}

#define H(f) offsetof(struct mx_config, http.f)
static const struct mx_config_key http_keys[] = {
	{"listen", K_STRINGS, H(listen), .min = 1, .max = 16, .check = check_listen},
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
	{"cors_origins", K_STRINGS, H(cors_origins), .min = 0, .max = MAX_LIST},
	{0}};

#define G(f) offsetof(struct mx_config, grpc.f)
static const struct mx_config_key grpc_tls_keys[] = {
	{"cert", K_STRING, G(tls.cert), .automatic = true},
	{"key", K_STRING, G(tls.key), .automatic = true},
	{"client_ca", K_STRING, G(tls.client_ca), .automatic = true},
	{0}};
static const struct mx_config_key grpc_keys[] = {
	{"listen", K_STRINGS, G(listen), .min = 0, .max = 16, .check = check_listen},
	{"tls", K_MAP, .keys = grpc_tls_keys},
	{"memory", K_BYTES, G(memory), .min = 1 << 20, .max = 0x1p50},
	{"max_calls", K_UINT, G(max_calls), .min = 1, .max = 1 << 20},
	{"idle_timeout_s", K_UINT, G(idle_timeout_s), .min = 1, .max = 86400},
	{"threads", K_UINT, G(threads), .min = 1, .max = 64},
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
	{"queue", K_UINT, S(queue), .min = 1, .max = 1 << 20},
	{"max_step_stretch", K_NUMBER, S(max_step_stretch), .min = 1, .max = 1e6},
	{0}};

static const struct mx_config_key shutdown_keys[] = {
	{"drain_s", K_NUMBER, offsetof(struct mx_config, shutdown.drain_s), .min = 0, .max = 86400},
	{0}};

static const struct mx_config_key metrics_keys[] = {
	{"vllm_names", K_BOOL, offsetof(struct mx_config, metrics.vllm_names), .min = 0}, {0}};

const struct mx_config_key mx_config_top_keys[] = {
	{"http", K_MAP, .keys = http_keys},
	{"grpc", K_MAP, .keys = grpc_keys},
	{"log", K_MAP, .keys = log_keys},
	{"scheduler", K_MAP, .keys = scheduler_keys},
	{"shutdown", K_MAP, .keys = shutdown_keys},
	{"metrics", K_MAP, .keys = metrics_keys},
	{"modules", K_STRINGS, offsetof(struct mx_config, modules), .min = 0, .max = 64},
	{"models", K_MODELS, 0, .required = true},
	{0}};

#define M(f) offsetof(struct mx_config_model, f)
const struct mx_config_key mx_config_model_keys[] = {
	{"name", K_STRING, M(name), .required = true},
	{"path", K_STRING, M(path), .required = true},
	{"aliases", K_STRINGS, M(aliases), .min = 0, .max = MAX_LIST, .reloadable = true},
	{"device", K_STRING, M(device), .min = 0},
	{"deterministic", K_BOOL, M(deterministic), .min = 0},
	{"threads", K_UINT, M(threads), .min = 0, .max = 1024},
	{"max_context", K_UINT, M(max_context), .min = 0, .max = 1 << 30},
	{"memory", K_BYTES, M(memory), .min = 0, .max = 0x1p50},
	{"page_tokens", K_UINT, M(page_tokens), .min = 0, .max = 4096},
	{"dtype", K_CHOICE, M(dtype), .choices = dtypes},
	{"kv_dtype", K_CHOICE, M(kv_dtype), .choices = kv_dtypes},
	{"prefix_cache", K_BOOL, M(prefix_cache), .min = 0},
	{"snapshot_memory", K_BYTES, M(snapshot_memory), .max = 0x1p50, .automatic = true},
	{"snapshot_every", K_UINT, M(snapshot_every), .max = 1 << 30, .automatic = true},
	{0}};

struct parser {
	struct mx_config *config;
	yaml_document_t *doc;
	struct mx_err *err;
	char path[160]; /* of the key being read */
};

static mx_status fail(struct parser *p, const yaml_node_t *n, const char *fmt, ...) MX_PRINTF(3, 4);

static mx_status fail(struct parser *p, const yaml_node_t *n, const char *fmt, ...)
{
	char text[sizeof p->err->text], where[sizeof p->err->where];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	unsigned line = (unsigned)n->start_mark.line + 1, column = (unsigned)n->start_mark.column + 1;
	snprintf(where, sizeof where, "%s:%u:%u: %s", p->config->file, line, column,
	         p->path[0] ? p->path : "(top level)");
	mx_fail_at(p->err, MX_E_INVALID, where, "%s", text);
	if (p->err) {
		p->err->line = line;
		p->err->column = column;
	}
	return MX_E_INVALID;
}

static const char *kind_of(const yaml_node_t *n)
{
	switch (n->type) {
	case YAML_MAPPING_NODE: return "a mapping";
	case YAML_SEQUENCE_NODE: return "a list";
	case YAML_SCALAR_NODE:
		return n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? "a plain value" : "a string";
	default: return "nothing";
	}
}

/* Returns the text of a scalar. A node with NUL bytes is refused. */
static mx_status scalar(struct parser *p, const yaml_node_t *n, bool plain, const char *want,
                        const char **out)
{
	const char *s = (const char *)n->data.scalar.value;
	if (n->type != YAML_SCALAR_NODE || (plain && n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE))
		return fail(p, n, "must be %s, not %s", want, kind_of(n));
	if (strlen(s) != n->data.scalar.length)
		return fail(p, n, "contains a NUL character");
	*out = s;
	return MX_OK;
}

static mx_status in_range(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                          double v)
{
	if (v >= k->min && v <= k->max)
		return MX_OK;
	return fail(p, n, "%.15g is out of range: must be %.15g to %.15g", v, k->min, k->max);
}

/* True if the engine is to choose the number. */
static bool is_automatic(const struct mx_config_key *k, const char *s, uint64_t *out)
{
	if (!k->automatic || strcmp(s, "auto"))
		return false;
	*out = MX_CONFIG_AUTO;
	return true;
}

static const char *or_auto(const struct mx_config_key *k)
{
	return k->automatic ? " or auto" : "";
}

static mx_status read_uint(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                           uint64_t *out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, true, "a whole number", &s);
	if (st)
		return st;
	if (is_automatic(k, s, out))
		return MX_OK;
	if (!*s || strspn(s, "0123456789") != strlen(s) || strlen(s) > 15)
		return fail(p, n, "must be a whole number%s, not \"%.40s\"", or_auto(k), s);
	uint64_t v = strtoull(s, NULL, 10);
	st = in_range(p, n, k, (double)v);
	if (st == MX_OK)
		*out = v;
	return st;
}

/* Parses a number of bytes: "2GiB", "512 MiB", "1.5GB", "8388608". */
static mx_status read_bytes(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                            uint64_t *out)
{
	static const struct {
		const char *name;
		double factor;
	} units[] = {{"", 1},         {"B", 1},     {"kB", 1e3},     {"KB", 1e3},
	             {"KiB", 0x1p10}, {"MB", 1e6},  {"MiB", 0x1p20}, {"GB", 1e9},
	             {"GiB", 0x1p30}, {"TB", 1e12}, {"TiB", 0x1p40}};
	const char *s = NULL;
	mx_status st = scalar(p, n, false, "a size such as 2GiB", &s);
	if (st)
		return st;
	if (is_automatic(k, s, out))
		return MX_OK;
	size_t digits = strspn(s, "0123456789.");
	char *end = NULL;
	double v = digits && digits < 20 ? strtod(s, &end) : NAN;
	if (!digits || end != s + digits)
		return fail(p, n, "must be a size such as 2GiB%s, not \"%.40s\"", or_auto(k), s);
	while (*end == ' ')
		end++;
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (strcmp(end, units[i].name))
			continue;
		v = floor(v * units[i].factor);
		st = in_range(p, n, k, v);
		if (st == MX_OK)
			*out = (uint64_t)v;
		return st;
	}
	return fail(p, n, "unknown unit \"%.20s\": use KiB, MiB, GiB, TiB, kB, MB, GB or TB", end);
}

static mx_status read_number(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                             double *out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, true, "a number", &s);
	if (st)
		return st;
	char *end;
	double v = strtod(s, &end);
	if (!*s || *end || !isfinite(v) || strspn(s, "0123456789.eE+-") != strlen(s))
		return fail(p, n, "must be a number, not \"%.40s\"", s);
	st = in_range(p, n, k, v);
	if (st == MX_OK)
		*out = v;
	return st;
}

static mx_status read_bool(struct parser *p, const yaml_node_t *n, bool *out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, true, "true or false", &s);
	if (st)
		return st;
	bool yes = !strcmp(s, "true");
	if (!yes && strcmp(s, "false"))
		return fail(p, n, "must be true or false, not \"%.40s\"", s);
	*out = yes;
	return MX_OK;
}

static mx_status read_string(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                             const char **out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, false, "a string", &s);
	if (st)
		return st;
	if (!*s && k->automatic) {
		*out = NULL;
		return MX_OK;
	}
	if (!*s)
		return fail(p, n, "must not be empty");
	const char *copy = mx_arena_strndup(&p->config->arena, s, strlen(s));
	if (!copy)
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	*out = copy;
	return MX_OK;
}

/* Reads a list of strings, or one string as a list of one. */
static mx_status read_strings(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                              struct mx_strings *out)
{
	struct mx_strings list = {0};
	size_t n_items = 1;
	if (n->type == YAML_SEQUENCE_NODE)
		n_items = (size_t)(n->data.sequence.items.top - n->data.sequence.items.start);
	if ((double)n_items < k->min || (double)n_items > k->max)
		return fail(p, n, "must have %.0f to %.0f entries, not %zu", k->min, k->max, n_items);
	list.items = mx_arena_alloc(&p->config->arena, (n_items + 1) * sizeof *list.items);
	if (!list.items)
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	size_t parent = strlen(p->path);
	for (size_t i = 0; i < n_items; i++) {
		const yaml_node_t *item = n;
		if (n->type == YAML_SEQUENCE_NODE) {
			item = yaml_document_get_node(p->doc, n->data.sequence.items.start[i]);
			snprintf(p->path + parent, sizeof p->path - parent, "[%zu]", i);
		}
		const char *why = NULL;
		mx_status st = read_string(p, item, k, &list.items[i]);
		if (st == MX_OK && k->check && (why = k->check(list.items[i])))
			st = fail(p, item, "\"%.60s\": %s", list.items[i], why);
		if (st)
			return st;
		list.n++;
	}
	p->path[parent] = 0;
	*out = list;
	return MX_OK;
}

static mx_status read_choice(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                             int *out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, false, "a word", &s);
	if (st)
		return st;
	struct mx_buf names = {.limit = 200};
	for (const struct mx_config_choice *c = k->choices; c->name; c++) {
		if (!strcmp(s, c->name)) {
			*out = c->value;
			mx_buf_free(&names);
			return MX_OK;
		}
		mx_buf_printf(&names, "%s%s", names.len ? ", " : "", c->name);
	}
	st = fail(p, n, "unknown value \"%.40s\": must be one of %s", s, mx_buf_str(&names));
	mx_buf_free(&names);
	return st;
}

static mx_status read_map(struct parser *p, const yaml_node_t *n, const struct mx_config_key *keys,
                          char *base);
static mx_status read_models(struct parser *p, const yaml_node_t *n);

static mx_status read_value(struct parser *p, const yaml_node_t *n, const struct mx_config_key *k,
                            char *base)
{
	void *at = base + k->offset;
	switch (k->kind) {
	case K_BOOL: return read_bool(p, n, at);
	case K_UINT: return read_uint(p, n, k, at);
	case K_BYTES: return read_bytes(p, n, k, at);
	case K_NUMBER: return read_number(p, n, k, at);
	case K_STRING: return read_string(p, n, k, at);
	case K_STRINGS: return read_strings(p, n, k, at);
	case K_CHOICE: return read_choice(p, n, k, at);
	case K_MAP: return read_map(p, n, k->keys, base);
	case K_MODELS: return read_models(p, n);
	}
	return MX_E_INTERNAL;
}

static mx_status unknown_key(struct parser *p, const yaml_node_t *n,
                             const struct mx_config_key *keys, const char *name)
{
	const char *names[32];
	size_t n_names = 0;
	for (const struct mx_config_key *k = keys; k->name; k++)
		names[n_names++] = k->name;
	const char *closest = mx_closest(name, names, n_names);
	if (closest)
		return fail(p, n, "unknown key; did you mean \"%s\"?", closest);
	struct mx_buf all = {.limit = 400};
	for (size_t i = 0; i < n_names; i++)
		mx_buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
	mx_status st = fail(p, n, "unknown key; valid keys here: %s", mx_buf_str(&all));
	mx_buf_free(&all);
	return st;
}

/* Reads a mapping by its table. Each key may come at most once. */
static mx_status read_map(struct parser *p, const yaml_node_t *n, const struct mx_config_key *keys,
                          char *base)
{
	if (n->type != YAML_MAPPING_NODE)
		return fail(p, n, "must be a mapping, not %s", kind_of(n));
	unsigned seen_line[32] = {0};
	size_t parent = strlen(p->path);
	for (const yaml_node_pair_t *pair = n->data.mapping.pairs.start;
	     pair < n->data.mapping.pairs.top; pair++) {
		const yaml_node_t *kn = yaml_document_get_node(p->doc, pair->key);
		const yaml_node_t *vn = yaml_document_get_node(p->doc, pair->value);
		const char *name;
		mx_status st = scalar(p, kn, false, "a key", &name);
		if (st)
			return st;
		snprintf(p->path + parent, sizeof p->path - parent, "%s%.60s", parent ? "." : "", name);
		const struct mx_config_key *k = keys;
		while (k->name && strcmp(k->name, name))
			k++;
		if (!k->name)
			return unknown_key(p, kn, keys, name);
		if (seen_line[k - keys])
			return fail(p, kn, "duplicate key; it stands at line %u already", seen_line[k - keys]);
		seen_line[k - keys] = (unsigned)kn->start_mark.line + 1;
		st = read_value(p, vn, k, base);
		if (st)
			return st;
		p->path[parent] = 0;
	}
	for (const struct mx_config_key *k = keys; k->name; k++)
		if (k->required && !seen_line[k - keys])
			return fail(p, n, "the key \"%s\" is missing", k->name);
	return MX_OK;
}

/* Makes a path absolute: relative paths begin at the folder of the configuration file. */
static mx_status make_absolute(struct parser *p, const char **path)
{
	const char *slash = strrchr(p->config->file, '/');
	if (**path == '/' || !slash)
		return MX_OK;
	struct mx_buf b = {.limit = 8192};
	mx_buf_append(&b, p->config->file, (size_t)(slash - p->config->file) + 1);
	mx_buf_puts(&b, *path);
	char *copy = b.failed ? NULL : mx_arena_strndup(&p->config->arena, b.data, b.len);
	mx_buf_free(&b);
	if (!copy)
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	*path = copy;
	return MX_OK;
}

/* Sets p->path to a key of a mapping that was read, or to an entry of its list. Returns the value's
 * node. */
static const yaml_node_t *go_to(struct parser *p, const yaml_node_t *map, const char *key,
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
static const yaml_node_t *name_node(struct parser *p, const yaml_node_t *model, size_t a)
{
	return a ? go_to(p, model, "aliases", a - 1) : go_to(p, model, "name", 0);
}

/* Checks that names and aliases of all models differ: they share one name space. */
static mx_status check_names(struct parser *p, const yaml_node_t *n, size_t n_models)
{
	const struct mx_config_model *models = p->config->models;
	const struct mx_config_model *m = &models[n_models - 1];
	for (size_t a = 0; a <= m->aliases.n; a++) {
		const char *name = a ? m->aliases.items[a - 1] : m->name;
		if (strlen(name) > 120)
			return fail(p, name_node(p, n, a), "the name \"%.40s...\" is longer than 120 bytes",
			            name);
		for (size_t i = 0; i < n_models; i++)
			for (size_t b = 0; b <= models[i].aliases.n; b++) {
				const char *other = b ? models[i].aliases.items[b - 1] : models[i].name;
				if (!(i == n_models - 1 && a == b) && !strcmp(name, other))
					return fail(p, name_node(p, n, a), "the name \"%s\" is used twice", name);
			}
	}
	return MX_OK;
}

/* Checks only the form of a device's name; the engine finds out if the device exists. */
static mx_status check_device(struct parser *p, const yaml_node_t *n,
                              const struct mx_config_model *m)
{
	enum mx_device_kind kind;
	if (!mx_device_parse(m->device, &kind, NULL))
		return fail(p, go_to(p, n, "device", 0), "no device \"%.40s\": must be cpu, cuda or cuda:N",
		            m->device);
	if (kind == MX_DEVICE_CPU && m->kv_dtype == MX_F8E4M3)
		return fail(p, go_to(p, n, "kv_dtype", 0), "fp8 needs device: cuda");
	return MX_OK;
}

static mx_status read_models(struct parser *p, const yaml_node_t *n)
{
	struct mx_config *c = p->config;
	if (n->type != YAML_SEQUENCE_NODE)
		return fail(p, n, "must be a list of models, not %s", kind_of(n));
	size_t n_models = (size_t)(n->data.sequence.items.top - n->data.sequence.items.start);
	if (n_models < 1 || n_models > MAX_MODELS)
		return fail(p, n, "must have 1 to %d entries, not %zu", MAX_MODELS, n_models);
	c->models = mx_arena_alloc(&c->arena, n_models * sizeof *c->models);
	if (!c->models)
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	size_t parent = strlen(p->path);
	for (size_t i = 0; i < n_models; i++) {
		const yaml_node_t *item = yaml_document_get_node(p->doc, n->data.sequence.items.start[i]);
		struct mx_config_model *m = &c->models[i];
		*m = (struct mx_config_model){.device = "cpu",
		                              .dtype = -1,
		                              .kv_dtype = -1,
		                              .prefix_cache = true,
		                              .snapshot_memory = MX_CONFIG_AUTO,
		                              .snapshot_every = MX_CONFIG_AUTO,
		                              .line = (unsigned)item->start_mark.line + 1};
		snprintf(p->path + parent, sizeof p->path - parent, "[%zu]", i);
		mx_status st = read_map(p, item, mx_config_model_keys, (char *)m);
		if (st == MX_OK)
			st = check_device(p, item, m);
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
	                                  .stall_s = 60};
	c->grpc = (struct mx_config_grpc){
		.memory = 64 << 20, .max_calls = 1024, .idle_timeout_s = 75, .threads = 2};
	c->log = (struct mx_config_log){.level = MX_LOG_INFO, .format = MX_LOG_TEXT, .access = 2};
	c->scheduler = (struct mx_config_scheduler){
		.max_sequences = 64, .step_tokens = 512, .queue = 1024, .max_step_stretch = 1.6};
	c->shutdown.drain_s = 30;
	c->metrics.vllm_names = true;
}

/* Checks that concern more than one key. */
static mx_status check_whole(struct parser *p, const yaml_node_t *root)
{
	const struct mx_config *c = p->config;
	p->path[0] = 0;
	if (c->http.body_memory < c->http.max_body_bytes)
		return fail(p, root,
		            "http.body_memory (%llu) is below http.max_body_bytes (%llu): no such body "
		            "could be received",
		            (unsigned long long)c->http.body_memory,
		            (unsigned long long)c->http.max_body_bytes);
	if (!c->grpc.tls.cert != !c->grpc.tls.key || (c->grpc.tls.client_ca && !c->grpc.tls.cert))
		return fail(p, root, "grpc.tls needs both cert and key");
	if (c->scheduler.max_sequences > c->scheduler.step_tokens)
		return fail(p, root,
		            "scheduler.max_sequences (%llu) is above scheduler.step_tokens (%llu): every "
		            "sequence needs a token in each step",
		            (unsigned long long)c->scheduler.max_sequences,
		            (unsigned long long)c->scheduler.step_tokens);
	return MX_OK;
}

static mx_status yaml_fault(struct mx_config *c, const yaml_parser_t *y, struct mx_err *err)
{
	unsigned line = (unsigned)y->problem_mark.line + 1;
	unsigned column = (unsigned)y->problem_mark.column + 1;
	char where[sizeof err->where];
	snprintf(where, sizeof where, "%s:%u:%u", c->file, line, column);
	mx_fail_at(err, MX_E_INVALID, where, "not valid YAML: %s%s%s",
	           y->problem ? y->problem : "unknown problem", y->context ? ", " : "",
	           y->context ? y->context : "");
	if (err) {
		err->line = line;
		err->column = column;
	}
	return MX_E_INVALID;
}

/* Checks that nothing follows the first document. */
static mx_status expect_end(struct parser *p, yaml_parser_t *y)
{
	yaml_document_t more;
	if (!yaml_parser_load(y, &more))
		return yaml_fault(p->config, y, p->err);
	const yaml_node_t *root = yaml_document_get_root_node(&more);
	p->path[0] = 0;
	mx_status st =
		root ? fail(p, root, "a second YAML document begins here: one is allowed") : MX_OK;
	yaml_document_delete(&more);
	return st;
}

static mx_status parse_text(struct mx_config *c, const char *text, size_t len, struct mx_err *err)
{
	yaml_parser_t y;
	yaml_document_t doc;
	if (!yaml_parser_initialize(&y))
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	yaml_parser_set_input_string(&y, (const unsigned char *)text, len);
	if (!yaml_parser_load(&y, &doc)) {
		mx_status st = yaml_fault(c, &y, err);
		yaml_parser_delete(&y);
		return st;
	}
	struct parser p = {.config = c, .doc = &doc, .err = err};
	yaml_node_t *root = yaml_document_get_root_node(&doc);
	mx_status st;
	if (!root) {
		st = mx_fail_at(err, MX_E_INVALID, c->file, "the file is empty");
	} else {
		st = read_map(&p, root, mx_config_top_keys, (char *)c);
		for (size_t i = 0; st == MX_OK && i < c->modules.n; i++)
			st = make_absolute(&p, &c->modules.items[i]);
		const char **const files[] = {&c->grpc.tls.cert, &c->grpc.tls.key, &c->grpc.tls.client_ca};
		for (size_t i = 0; st == MX_OK && i < sizeof files / sizeof files[0]; i++)
			st = *files[i] ? make_absolute(&p, files[i]) : MX_OK;
		if (st == MX_OK)
			st = check_whole(&p, root);
		if (st == MX_OK)
			st = expect_end(&p, &y);
	}
	c->http.listen_given = c->http.listen.items != default_listen;
	yaml_document_delete(&doc);
	yaml_parser_delete(&y);
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
	mx_status st =
		c->file ? parse_text(c, text, len, err) : mx_fail(err, MX_E_NOMEM, "out of memory");
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
	struct mx_buf text = {.limit = MAX_FILE};
	char block[4096];
	size_t n;
	while ((n = fread(block, 1, sizeof block, f)) > 0)
		mx_buf_append(&text, block, n);
	bool bad = ferror(f) != 0;
	fclose(f);
	mx_status st;
	if (bad)
		st = mx_fail_at(err, MX_E_IO, file, "cannot be read: %s", strerror(errno));
	else if (text.failed)
		st = mx_fail_at(err, MX_E_LIMIT, file, "is larger than %zu bytes", MAX_FILE);
	else
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
