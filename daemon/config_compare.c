/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two configurations over the tables of keys. */
#include <stdio.h>
#include <string.h>

#include "daemon/config_keys.h"

static void add(struct mx_buf *out, const char *prefix, const char *name)
{
	mx_buf_printf(out, "%s%s%s", out->len ? ", " : "", prefix, name);
}

static bool same_strings(const struct mx_strings *a, const struct mx_strings *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->items[i], b->items[i]))
			return false;
	return true;
}

static bool same_params(const struct mx_params *a, const struct mx_params *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++) {
		const struct mx_param *x = &a->items[i], *y = mx_param_find(b, x->name);
		if (!y || x->type != y->type)
			return false;
		if (x->type == MX_PARAM_STRING ? strcmp(x->s, y->s) != 0
		                               : x->i != y->i || memcmp(&x->f, &y->f, sizeof x->f))
			return false;
	}
	return true;
}

static bool same_layers(const struct mx_config_layers *a, const struct mx_config_layers *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->items[i].layers, b->items[i].layers) ||
		    strcmp(a->items[i].mixer, b->items[i].mixer) ||
		    !same_params(&a->items[i].params, &b->items[i].params))
			return false;
	return true;
}

/* Strings of keys that may be left empty are NULL then. */
static bool same_string(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

static bool same_value(enum mx_config_kind kind, const void *a, const void *b)
{
	switch (kind) {
	case K_BOOL: return *(const bool *)a == *(const bool *)b;
	case K_UINT:
	case K_BYTES: return *(const uint64_t *)a == *(const uint64_t *)b;
	case K_NUMBER: return !memcmp(a, b, sizeof(double));
	case K_STRING: return same_string(*(const char *const *)a, *(const char *const *)b);
	case K_STRINGS: return same_strings(a, b);
	case K_LAYERS: return same_layers(a, b);
	case K_CHOICE: return *(const int *)a == *(const int *)b;
	case K_MAP:
	case K_MODELS: break; /* compare_keys goes into them */
	}
	return true;
}

static void compare_keys(const struct mx_config_key *keys, const char *prefix, const char *a,
                         const char *b, bool reloadable, struct mx_buf *out)
{
	for (const struct mx_config_key *k = keys; k->name; k++) {
		if (k->kind == K_MAP) {
			char path[64];
			snprintf(path, sizeof path, "%s%s.", prefix, k->name);
			compare_keys(k->keys, path, a, b, reloadable, out);
		} else if (k->reloadable == reloadable &&
		           !same_value(k->kind, a + k->offset, b + k->offset)) {
			add(out, prefix, k->name);
		}
	}
}

const struct mx_config_model *mx_config_find(const struct mx_config *c, const char *name)
{
	for (size_t i = 0; i < c->n_models; i++)
		if (!strcmp(c->models[i].name, name))
			return &c->models[i];
	return NULL;
}

bool mx_config_same_model(const struct mx_config_model *a, const struct mx_config_model *b)
{
	struct mx_buf differ = {.limit = 1500};
	compare_keys(mx_config_model_keys, "", (const char *)a, (const char *)b, false, &differ);
	bool same = !differ.len && !differ.failed;
	mx_buf_free(&differ);
	return same;
}

void mx_config_compare(const struct mx_config *a, const struct mx_config *b, bool reloadable,
                       struct mx_buf *out)
{
	char path[160];
	compare_keys(mx_config_top_keys, "", (const char *)a, (const char *)b, reloadable, out);
	for (size_t i = 0; reloadable && i < a->n_models; i++) {
		const struct mx_config_model *m = &a->models[i], *other = mx_config_find(b, m->name);
		if (!other)
			continue;
		snprintf(path, sizeof path, "models[%.130s].", m->name);
		compare_keys(mx_config_model_keys, path, (const char *)m, (const char *)other, true, out);
	}
}
