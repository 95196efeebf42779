/* SPDX-License-Identifier: Apache-2.0 */
/* See config_read.h. */
#include "daemon/config_read.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/closest.h"

mx_status mx_config_fail(struct mx_config_reader *p, const yaml_node_t *n, const char *fmt, ...)
{
	char text[sizeof p->err->text], where[sizeof p->err->where];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	unsigned line = (unsigned)n->start_mark.line + 1, column = (unsigned)n->start_mark.column + 1;
	snprintf(where, sizeof where, "%s:%u:%u: %s", p->file, line, column,
	         p->path[0] ? p->path : "(top level)");
	mx_fail_at(p->err, MX_E_INVALID, where, "%s", text);
	if (p->err) {
		p->err->line = line;
		p->err->column = column;
	}
	return MX_E_INVALID;
}

const char *mx_config_kind_of(const yaml_node_t *n)
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
static mx_status scalar(struct mx_config_reader *p, const yaml_node_t *n, bool plain,
                        const char *want, const char **out)
{
	const char *s = (const char *)n->data.scalar.value;
	if (n->type != YAML_SCALAR_NODE || (plain && n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE))
		return mx_config_fail(p, n, "must be %s, not %s", want, mx_config_kind_of(n));
	if (strlen(s) != n->data.scalar.length)
		return mx_config_fail(p, n, "contains a NUL character");
	*out = s;
	return MX_OK;
}

static mx_status in_range(struct mx_config_reader *p, const yaml_node_t *n,
                          const struct mx_config_key *k, double v)
{
	if (v >= k->min && v <= k->max)
		return MX_OK;
	return mx_config_fail(p, n, "%.15g is out of range: must be %.15g to %.15g", v, k->min, k->max);
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

static mx_status read_uint(struct mx_config_reader *p, const yaml_node_t *n,
                           const struct mx_config_key *k, uint64_t *out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, true, "a whole number", &s);
	if (st)
		return st;
	if (is_automatic(k, s, out))
		return MX_OK;
	if (!*s || strspn(s, "0123456789") != strlen(s) || strlen(s) > 15)
		return mx_config_fail(p, n, "must be a whole number%s, not \"%.40s\"", or_auto(k), s);
	uint64_t v = strtoull(s, NULL, 10);
	st = in_range(p, n, k, (double)v);
	if (st == MX_OK)
		*out = v;
	return st;
}

/* Parses a number of bytes: "2GiB", "512 MiB", "1.5GB", "8388608". */
static mx_status read_bytes(struct mx_config_reader *p, const yaml_node_t *n,
                            const struct mx_config_key *k, uint64_t *out)
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
		return mx_config_fail(p, n, "must be a size such as 2GiB%s, not \"%.40s\"", or_auto(k), s);
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
	return mx_config_fail(p, n, "unknown unit \"%.20s\": use KiB, MiB, GiB, TiB, kB, MB, GB or TB",
	                      end);
}

static mx_status read_number(struct mx_config_reader *p, const yaml_node_t *n,
                             const struct mx_config_key *k, double *out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, true, "a number", &s);
	if (st)
		return st;
	char *end;
	double v = strtod(s, &end);
	if (!*s || *end || !isfinite(v) || strspn(s, "0123456789.eE+-") != strlen(s))
		return mx_config_fail(p, n, "must be a number, not \"%.40s\"", s);
	st = in_range(p, n, k, v);
	if (st == MX_OK)
		*out = v;
	return st;
}

static mx_status read_bool(struct mx_config_reader *p, const yaml_node_t *n, bool *out)
{
	const char *s = NULL;
	mx_status st = scalar(p, n, true, "true or false", &s);
	if (st)
		return st;
	bool yes = !strcmp(s, "true");
	if (!yes && strcmp(s, "false"))
		return mx_config_fail(p, n, "must be true or false, not \"%.40s\"", s);
	*out = yes;
	return MX_OK;
}

static mx_status read_string(struct mx_config_reader *p, const yaml_node_t *n,
                             const struct mx_config_key *k, const char **out)
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
		return mx_config_fail(p, n, "must not be empty");
	const char *copy = mx_arena_strndup(p->arena, s, strlen(s));
	if (!copy)
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	*out = copy;
	return MX_OK;
}

/* Reads a list of strings, or one string as a list of one. */
static mx_status read_strings(struct mx_config_reader *p, const yaml_node_t *n,
                              const struct mx_config_key *k, struct mx_strings *out)
{
	struct mx_strings list = {0};
	size_t n_items = 1;
	if (n->type == YAML_SEQUENCE_NODE)
		n_items = (size_t)(n->data.sequence.items.top - n->data.sequence.items.start);
	if ((double)n_items < k->min || (double)n_items > k->max)
		return mx_config_fail(p, n, "must have %.0f to %.0f entries, not %zu", k->min, k->max,
		                      n_items);
	list.items = mx_arena_alloc(p->arena, (n_items + 1) * sizeof *list.items);
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
			st = mx_config_fail(p, item, "\"%.60s\": %s", list.items[i], why);
		if (st)
			return st;
		list.n++;
	}
	p->path[parent] = 0;
	*out = list;
	return MX_OK;
}

static mx_status read_choice(struct mx_config_reader *p, const yaml_node_t *n,
                             const struct mx_config_key *k, int *out)
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
	st = mx_config_fail(p, n, "unknown value \"%.40s\": must be one of %s", s, mx_buf_str(&names));
	mx_buf_free(&names);
	return st;
}

#define MAX_PARAMS 16 /* of an entry of a list of layers */

static mx_status no_memory(struct mx_config_reader *p)
{
	return mx_fail(p->err, MX_E_NOMEM, "out of memory");
}

/* Reads a key of an entry of a list of layers: "layers", "mixer", else a parameter of the mixer. */
static mx_status read_layers_key(struct mx_config_reader *p, const char *key, const yaml_node_t *n,
                                 struct mx_plan_override *out)
{
	static const struct mx_config_key plain = {0};
	const char *s = NULL;
	bool layers = !strcmp(key, "layers"), mixer = !strcmp(key, "mixer");
	if (layers || mixer)
		return read_string(p, n, &plain, layers ? &out->layers : &out->mixer);
	mx_status st = scalar(p, n, false, "a number, a word, true or false", &s);
	if (st != MX_OK)
		return st;
	if (out->params.n == MAX_PARAMS)
		return mx_config_fail(p, n, "the mixer has more than %d parameters", MAX_PARAMS);
	key = mx_arena_strndup(p->arena, key, strlen(key));
	s = mx_arena_strndup(p->arena, s, strlen(s));
	if (!key || !s)
		return no_memory(p);
	/* The list was allocated by read_layers_entry. */
	mx_param_of_text(key, s, (struct mx_param *)&out->params.items[out->params.n++]);
	return MX_OK;
}

static mx_status read_layers_entry(struct mx_config_reader *p, const yaml_node_t *n,
                                   struct mx_plan_override *out)
{
	if (n->type != YAML_MAPPING_NODE)
		return mx_config_fail(p, n, "must be a mapping, not %s", mx_config_kind_of(n));
	struct mx_buf origin = {.limit = 512};
	mx_buf_printf(&origin, "%s:%zu:%zu: %s", p->file, n->start_mark.line + 1,
	              n->start_mark.column + 1, p->path);
	out->origin = mx_arena_strndup(p->arena, mx_buf_str(&origin), origin.len);
	mx_buf_free(&origin);
	out->params.items = mx_arena_alloc(p->arena, MAX_PARAMS * sizeof *out->params.items);
	if (!out->origin || !out->params.items)
		return no_memory(p);
	size_t parent = strlen(p->path);
	for (const yaml_node_pair_t *pair = n->data.mapping.pairs.start;
	     pair < n->data.mapping.pairs.top; pair++) {
		const yaml_node_t *kn = yaml_document_get_node(p->doc, pair->key);
		const char *name = NULL;
		mx_status st = scalar(p, kn, false, "a key", &name);
		if (st != MX_OK)
			return st;
		snprintf(p->path + parent, sizeof p->path - parent, ".%.60s", name);
		if (mx_param_find(&out->params, name) || (!strcmp(name, "layers") && out->layers) ||
		    (!strcmp(name, "mixer") && out->mixer))
			return mx_config_fail(p, kn, "duplicate key");
		st = read_layers_key(p, name, yaml_document_get_node(p->doc, pair->value), out);
		if (st != MX_OK)
			return st;
		p->path[parent] = 0;
	}
	if (!out->layers || !out->mixer)
		return mx_config_fail(p, n, "the key \"%s\" is missing", out->layers ? "mixer" : "layers");
	return MX_OK;
}

/* Reads a list of mixers for layers: mappings of "layers", "mixer" and the mixer's parameters. */
static mx_status read_layers(struct mx_config_reader *p, const yaml_node_t *n,
                             const struct mx_config_key *k, struct mx_config_layers *out)
{
	if (n->type != YAML_SEQUENCE_NODE)
		return mx_config_fail(p, n, "must be a list, not %s", mx_config_kind_of(n));
	size_t n_items = (size_t)(n->data.sequence.items.top - n->data.sequence.items.start);
	if ((double)n_items > k->max)
		return mx_config_fail(p, n, "must have at most %.0f entries, not %zu", k->max, n_items);
	out->items = mx_arena_alloc(p->arena, (n_items + 1) * sizeof *out->items);
	if (!out->items)
		return no_memory(p);
	size_t parent = strlen(p->path);
	for (out->n = 0; out->n < n_items; out->n++) {
		const yaml_node_t *item =
			yaml_document_get_node(p->doc, n->data.sequence.items.start[out->n]);
		snprintf(p->path + parent, sizeof p->path - parent, "[%zu]", out->n);
		mx_status st = read_layers_entry(p, item, &out->items[out->n]);
		if (st != MX_OK)
			return st;
	}
	p->path[parent] = 0;
	return MX_OK;
}

static mx_status read_value(struct mx_config_reader *p, const yaml_node_t *n,
                            const struct mx_config_key *k, char *base)
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
	case K_MAP: return mx_config_read_map(p, n, k->keys, base);
	case K_MODELS: return p->read_models(p, n);
	case K_LAYERS: return read_layers(p, n, k, at);
	}
	return MX_E_INTERNAL;
}

static mx_status unknown_key(struct mx_config_reader *p, const yaml_node_t *n,
                             const struct mx_config_key *keys, const char *name)
{
	const char *names[32];
	size_t n_names = 0;
	for (const struct mx_config_key *k = keys; k->name; k++)
		names[n_names++] = k->name;
	const char *closest = mx_closest(name, names, n_names);
	if (closest)
		return mx_config_fail(p, n, "unknown key; did you mean \"%s\"?", closest);
	struct mx_buf all = {.limit = 400};
	for (size_t i = 0; i < n_names; i++)
		mx_buf_printf(&all, "%s%s", i ? ", " : "", names[i]);
	mx_status st = mx_config_fail(p, n, "unknown key; valid keys here: %s", mx_buf_str(&all));
	mx_buf_free(&all);
	return st;
}

mx_status mx_config_read_map(struct mx_config_reader *p, const yaml_node_t *n,
                             const struct mx_config_key *keys, char *base)
{
	if (n->type != YAML_MAPPING_NODE)
		return mx_config_fail(p, n, "must be a mapping, not %s", mx_config_kind_of(n));
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
			return mx_config_fail(p, kn, "duplicate key; it stands at line %u already",
			                      seen_line[k - keys]);
		seen_line[k - keys] = (unsigned)kn->start_mark.line + 1;
		st = read_value(p, vn, k, base);
		if (st)
			return st;
		p->path[parent] = 0;
	}
	for (const struct mx_config_key *k = keys; k->name; k++)
		if (k->required && !seen_line[k - keys])
			return mx_config_fail(p, n, "the key \"%s\" is missing", k->name);
	return MX_OK;
}

static mx_status yaml_fault(const char *file, const yaml_parser_t *y, struct mx_err *err)
{
	unsigned line = (unsigned)y->problem_mark.line + 1;
	unsigned column = (unsigned)y->problem_mark.column + 1;
	char where[sizeof err->where];
	snprintf(where, sizeof where, "%s:%u:%u", file, line, column);
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
static mx_status expect_end(struct mx_config_reader *p, yaml_parser_t *y)
{
	yaml_document_t more;
	if (!yaml_parser_load(y, &more))
		return yaml_fault(p->file, y, p->err);
	const yaml_node_t *root = yaml_document_get_root_node(&more);
	p->path[0] = 0;
	mx_status st =
		root ? mx_config_fail(p, root, "a second YAML document begins here: one is allowed")
			 : MX_OK;
	yaml_document_delete(&more);
	return st;
}

mx_status mx_config_read(struct mx_config_reader *p, const char *text, size_t len)
{
	yaml_parser_t y;
	yaml_document_t doc;
	if (!yaml_parser_initialize(&y))
		return mx_fail(p->err, MX_E_NOMEM, "out of memory");
	yaml_parser_set_input_string(&y, (const unsigned char *)text, len);
	if (!yaml_parser_load(&y, &doc)) {
		mx_status st = yaml_fault(p->file, &y, p->err);
		yaml_parser_delete(&y);
		return st;
	}
	p->doc = &doc;
	yaml_node_t *root = yaml_document_get_root_node(&doc);
	mx_status st = root ? p->read_root(p, root)
	                    : mx_fail_at(p->err, MX_E_INVALID, p->file, "the file is empty");
	if (st == MX_OK)
		st = expect_end(p, &y);
	yaml_document_delete(&doc);
	yaml_parser_delete(&y);
	return st;
}

mx_status mx_config_read_file(const char *file, FILE *f, struct mx_buf *out, struct mx_err *err)
{
	struct mx_buf text = {.limit = MX_CONFIG_MAX_FILE};
	char block[4096];
	size_t n;
	while ((n = fread(block, 1, sizeof block, f)) > 0)
		mx_buf_append(&text, block, n);
	mx_status st = MX_OK;
	if (ferror(f))
		st = mx_fail_at(err, MX_E_IO, file, "cannot be read: %s", strerror(errno));
	else if (text.failed)
		st = mx_fail_at(err, MX_E_LIMIT, file, "is larger than %zu bytes", MX_CONFIG_MAX_FILE);
	if (st == MX_OK)
		*out = text;
	else
		mx_buf_free(&text);
	return st;
}
