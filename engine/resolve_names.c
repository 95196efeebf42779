/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tensors: the roots they may have, and those that the model leaves out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/convert.h"
#include "engine/resolver.h"

/* Longest name of a tensor, NUL included. */
#define MAX_NAME 512

/* What every checkpoint may have beside its model: buffers that earlier versions of transformers
 * saved. */
static const char *const always_skipped[] = {"*.rotary_emb.inv_freq", NULL};

/* What a quantised one may have beside that: static scales of activations, which are scaled as they
 * come here, and of keys and values, which are not stored in 8 bits. */
static const char *const quantised_skipped[] = {"*.input_scale", "*.k_scale", "*.v_scale",
                                                "*.activation_scale", NULL};

/* Writes the name that a tensor of the plan has below `root`. */
static void below(const struct mx_plan *p, const char *root, const char *name, char *out)
{
	const char *own = p->roots ? p->roots[0] : "";
	size_t n = strlen(own);
	if (p->roots && !strncmp(name, own, n))
		snprintf(out, MAX_NAME, "%s%s", root, name + n);
	else
		snprintf(out, MAX_NAME, "%s", name);
}

mx_status mx_resolve_embed(const struct mx_plan *p, const struct mx_checkpoint *checkpoint,
                           const char **out_root, const struct mx_tensor **out, struct mx_err *err)
{
	for (size_t i = 0; p->roots && p->roots[i]; i++) {
		char name[MAX_NAME];
		below(p, p->roots[i], p->embed, name);
		if (mx_checkpoint_find(checkpoint, name, out, NULL) == MX_OK) {
			*out_root = p->roots[i];
			return MX_OK;
		}
	}
	*out_root = p->roots ? p->roots[0] : NULL;
	return mx_checkpoint_find(checkpoint, p->embed, out, err);
}

mx_status mx_resolve_root(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	const struct mx_tensor *t;
	m->used = mx_arena_alloc(&m->arena, mx_checkpoint_count(m->checkpoint) + 1);
	if (!m->used)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	return mx_resolve_embed(m->plan, m->checkpoint, &m->root, &t, r->err);
}

/* Finds a tensor by its name in the checkpoint; `dtype` as for mx_checkpoint_find_raw, or NULL. */
static mx_status find(const struct mx_checkpoint *c, const char *name, const char *dtype,
                      const struct mx_tensor **out, struct mx_err *err)
{
	return dtype ? mx_checkpoint_find_raw(c, name, dtype, out, err)
	             : mx_checkpoint_find(c, name, out, err);
}

/* Finds a tensor that is not below the root, such as lm_head: as it is, or below the first part of
 * the root ("language_model." of "language_model.model."). */
static mx_status find_beside(const struct mx_resolver *r, const char *name, const char *dtype,
                             const struct mx_tensor **out, struct mx_err *err)
{
	const struct mx_model *m = r->model;
	char other[MAX_NAME];
	mx_status st = find(m->checkpoint, name, dtype, out, err);
	const char *dot = m->root ? strchr(m->root, '.') : NULL;
	if (st != MX_E_NOTFOUND || !dot)
		return st;
	snprintf(other, sizeof other, "%.*s%s", (int)(dot + 1 - m->root), m->root, name);
	if (find(m->checkpoint, other, dtype, out, NULL) != MX_OK)
		return st;
	if (err)
		*err = (struct mx_err){0};
	return MX_OK;
}

/* Finds a tensor by the plan's name. */
static mx_status find_named(const struct mx_resolver *r, const char *name, const char *dtype,
                            const struct mx_tensor **out, struct mx_err *err)
{
	const struct mx_model *m = r->model;
	const char *own = m->root ? m->plan->roots[0] : NULL;
	char file[MAX_NAME];
	if (!own || strncmp(name, own, strlen(own)) != 0)
		return find_beside(r, name, dtype, out, err);
	below(m->plan, m->root, name, file);
	return find(m->checkpoint, file, dtype, out, err);
}

mx_status mx_resolve_find_raw(struct mx_resolver *r, const char *name, const char *dtype,
                              const struct mx_tensor **out, struct mx_err *err)
{
	const char *const *also = r->model->plan->also;
	mx_status st = find_named(r, name, dtype, out, err);
	for (; st == MX_E_NOTFOUND && also && *also; also += 2) {
		const char *part = strstr(name, also[0]);
		char other[MAX_NAME];
		if (!part)
			continue;
		snprintf(other, sizeof other, "%.*s%s%s", (int)(part - name), name, also[1],
		         part + strlen(also[0]));
		if (find_named(r, other, dtype, out, NULL) != MX_OK) {
			size_t n = err ? strlen(err->text) : 0;
			if (err)
				snprintf(err->text + n, sizeof err->text - n, ", and so is '%.160s'", other);
			continue;
		}
		if (err)
			*err = (struct mx_err){0};
		return MX_OK;
	}
	return st;
}

mx_status mx_resolve_find(struct mx_resolver *r, const char *name, const struct mx_tensor **out,
                          struct mx_err *err)
{
	struct mx_model *m = r->model;
	mx_status st = mx_resolve_find_raw(r, name, NULL, out, err);
	if (st == MX_OK)
		m->used[*out - mx_checkpoint_at(m->checkpoint, 0)] = true;
	return st;
}

/* Matches a name with a pattern that may begin and end with '*'. */
static bool matches(const char *pattern, const char *name)
{
	size_t n = strlen(name);
	if (pattern[0] != '*') {
		size_t k = strcspn(pattern, "*");
		return pattern[k] ? !strncmp(pattern, name, k) : !strcmp(pattern, name);
	}
	size_t k = strcspn(++pattern, "*");
	if (!pattern[k])
		return n >= k && !strcmp(pattern, name + n - k);
	for (size_t i = 0; i + k <= n; i++)
		if (!strncmp(pattern, name + i, k))
			return true;
	return false;
}

static bool in_list(const char *const *list, const char *name)
{
	for (; list && *list; list++)
		if (matches(*list, name))
			return true;
	return false;
}

bool mx_resolve_is_one(const struct mx_resolver *r, const char *name)
{
	return in_list(r->model->plan->ones, name);
}

/* Returns the number of the layer that a tensor belongs to, or -1. */
static long layer_of(const struct mx_model *m, const char *name)
{
	char prefix[MAX_NAME];
	below(m->plan, m->root ? m->root : "", m->plan->layer_prefix, prefix);
	size_t len = strlen(prefix);
	if (strncmp(name, prefix, len))
		return -1;
	const char *digits = name + len;
	size_t n = strspn(digits, "0123456789");
	return n && digits[n] == '.' ? strtol(digits, NULL, 10) : -1;
}

mx_status mx_resolve_unused(struct mx_resolver *r)
{
	struct mx_model *m = r->model;
	const struct mx_plan *p = m->plan;
	for (size_t i = 0; i < mx_checkpoint_count(m->checkpoint); i++) {
		const struct mx_tensor *t = mx_checkpoint_at(m->checkpoint, i);
		if (m->used[i])
			continue;
		long layer = layer_of(m, t->name);
		bool more = layer >= (long)p->n_layers;
		if (more && !p->skips_layers)
			return mx_fail_at(r->err, MX_E_FORMAT, t->file,
			                  "tensor '%.160s' is of layer %ld, but config.json's "
			                  "num_hidden_layers is %u",
			                  t->name, layer, p->n_layers);
		/* a tied model may have a copy of its embedding */
		bool head = p->lm_head == p->embed && matches("*lm_head.weight", t->name);
		bool of_head =
			m->head.on && matches(p->head.tensors, t->name) && !in_list(p->head.unused, t->name);
		bool scale = p->quant.method && in_list(quantised_skipped, t->name);
		if (of_head && !scale && !in_list(always_skipped, t->name))
			return mx_fail_at(r->err, MX_E_FORMAT, t->file,
			                  "tensor '%.160s' is not of a head for multi-token prediction that "
			                  "config.json describes (%s)",
			                  t->name, p->family);
		if (!more && !head && !scale && !in_list(always_skipped, t->name) &&
		    !in_list(p->skipped, t->name))
			return mx_fail_at(r->err, MX_E_FORMAT, t->file,
			                  "tensor '%.160s' is not of a model that config.json describes (%s)",
			                  t->name, p->family);
		if (!m->n_skipped++)
			m->skipped = t->name;
	}
	return MX_OK;
}
