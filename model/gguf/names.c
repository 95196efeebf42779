/* SPDX-License-Identifier: Apache-2.0 */
/* See names.h. */
#include "model/gguf/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/arch.h"

#define MAX_EXPERTS 4096

/* The state of naming the tensors of a file. */
struct namer {
	const struct mx_gguf *g;
	const struct mx_gguf_arch *arch;
	mx_status (*each)(void *arg, const struct mx_gguf_named *t);
	void *arg;
	struct mx_err *err;
	uint64_t layers; /* without those that predict further tokens; UINT64_MAX = there are none */
};

static mx_status bad(const struct namer *n, const struct mx_gguf_tensor *t, const char *what)
{
	return mx_fail_at(n->err, MX_E_FORMAT, t->file, "tensor '%.160s': %s", t->name, what);
}

/* Returns the length of the stem: what comes before ".weight" or ".bias", or all of it. */
static size_t stem_of(const char *name)
{
	size_t n = strlen(name);
	if (n > 7 && !strcmp(name + n - 7, ".weight"))
		return n - 7;
	return n > 5 && !strcmp(name + n - 5, ".bias") ? n - 5 : n;
}

/* Finds the entry of a table for a name; NULL = there is none. */
static const struct mx_gguf_rename *find_in(const struct mx_gguf_rename *table, const char *name)
{
	size_t stem = stem_of(name);
	for (const struct mx_gguf_rename *r = table; r->from; r++)
		if (r->whole ? !strcmp(r->from, name)
		             : strlen(r->from) == stem && !strncmp(r->from, name, stem))
			return r;
	return NULL;
}

/* Finds the entry for a name behind "blk.N."; NULL = there is none. */
static const struct mx_gguf_rename *find(const struct mx_gguf_arch *a, const char *name)
{
	const struct mx_gguf_rename *r = NULL;
	for (const struct mx_gguf_rename *const *table = a->renames; *table && !r; table++)
		r = find_in(*table, name);
	return r;
}

/* Reads the integer of a key of the architecture, 0 if it is absent. */
static mx_status get_int(const struct namer *n, const char *key, int64_t *out)
{
	char k[128];
	snprintf(k, sizeof k, "%s.%s", n->arch->name, key);
	*out = 0;
	return mx_gguf_int(n->g, k, out, NULL, n->err);
}

/* Returns the order of the rows of a delta net's tensors. */
static mx_status value_rows(const struct namer *n, const struct mx_gguf_tensor *t,
                            enum mx_gguf_rows rows, struct mx_row_order *out)
{
	int64_t keys, values, inner, state;
	mx_status s = get_int(n, "ssm.group_count", &keys);
	if (!s)
		s = get_int(n, "ssm.time_step_rank", &values);
	if (!s)
		s = get_int(n, "ssm.inner_size", &inner);
	if (!s)
		s = get_int(n, "ssm.state_size", &state);
	if (s)
		return s;
	if (keys < 1 || values < keys || values % keys || inner < values || inner % values ||
	    state < 1 || inner > INT32_MAX || state > INT32_MAX || keys > INT32_MAX / 2 / state)
		return bad(n, t, "the file's ssm.* are no whole heads of keys and values");
	const int64_t each = values / keys, dim = inner / values;
	const bool ba = rows == MX_GGUF_ROWS_BA;
	const int64_t first = rows == MX_GGUF_ROWS_QKV ? 2 * keys * state : 0;
	const int64_t run = ba ? each : rows == MX_GGUF_ROWS_HEADS ? 1 : dim;
	const int64_t all = first + (ba ? 2 : 1) * run * (ba ? keys : values);
	if (!t->ndim || t->shape[0] != (uint64_t)all)
		return bad(n, t, "its rows are not those of the heads that ssm.* describe");
	if (keys > 1 && (ba || each > 1))
		*out = (struct mx_row_order){.first = (uint32_t)first,
		                             .n = (uint32_t)(ba ? 2 : keys),
		                             .m = (uint32_t)(ba ? keys : each),
		                             .run = (uint32_t)run};
	return MX_OK;
}

/* Returns the order of the rows of q or k, of which neighbours are a pair. */
static mx_status pair_rows(const struct namer *n, const struct mx_gguf_tensor *t, const char *key,
                           struct mx_row_order *out)
{
	char k[128];
	int64_t heads = 0;
	bool there = false;
	snprintf(k, sizeof k, "%s.attention.head_count", n->arch->name);
	mx_status s = mx_gguf_int(n->g, k, &heads, NULL, n->err);
	snprintf(k, sizeof k, "%s.attention.%s", n->arch->name, key);
	const struct mx_gguf_value *v = mx_gguf_find(n->g, k);
	double first;
	if (!s && v && v->kind == MX_GGUF_ARRAY) { /* equal ones; 0 in layers without attention */
		first = 0;
		for (uint64_t i = 0; !(first >= 1) && mx_gguf_element(v, i, &first); i++)
			;
		heads = first >= 1 && first < 1e6 ? (int64_t)first : 0;
	} else if (!s)
		s = mx_gguf_int(n->g, k, &heads, &there, n->err);
	if (s)
		return s;
	uint64_t rows = t->ndim ? t->shape[0] : 0;
	if (heads < 1 || rows % (uint64_t)heads || rows / (uint64_t)heads % 2 ||
	    rows / (uint64_t)heads > UINT32_MAX)
		return bad(n, t, "its rows are no whole heads");
	*out = (struct mx_row_order){.n = 2, .m = (uint32_t)(rows / (uint64_t)heads / 2), .run = 1};
	return MX_OK;
}

/* Returns the order of the rows of q, k and v of all heads, which a checkpoint has head by head. */
static mx_status rows_by_part(const struct namer *n, const struct mx_gguf_tensor *t,
                              struct mx_row_order *out)
{
	int64_t heads = 0;
	mx_status s = get_int(n, "attention.head_count", &heads);
	uint64_t rows = t->ndim ? t->shape[0] : 0;
	if (s)
		return s;
	if (heads < 1 || heads > INT32_MAX / 3 || !rows || rows % (3 * (uint64_t)heads) ||
	    rows > INT32_MAX)
		return bad(n, t, "its rows are not those of q, k and v of attention.head_count heads");
	*out = (struct mx_row_order){
		.n = (uint32_t)heads, .m = 3, .run = (uint32_t)(rows / (3 * (uint64_t)heads))};
	return MX_OK;
}

static mx_status order_of(const struct namer *n, const struct mx_gguf_tensor *t,
                          enum mx_gguf_rows rows, struct mx_row_order *out)
{
	switch (rows) {
	case MX_GGUF_ROWS_SAME: return MX_OK;
	case MX_GGUF_ROWS_PAIRS_Q: return n->arch->pairs ? pair_rows(n, t, "head_count", out) : MX_OK;
	case MX_GGUF_ROWS_PAIRS_K:
		return n->arch->pairs ? pair_rows(n, t, "head_count_kv", out) : MX_OK;
	case MX_GGUF_ROWS_HEADS:
	case MX_GGUF_ROWS_VALUES:
	case MX_GGUF_ROWS_QKV:
	case MX_GGUF_ROWS_BA: return value_rows(n, t, rows, out);
	case MX_GGUF_ROWS_BY_PART: return rows_by_part(n, t, out);
	}
	return MX_OK;
}

static void flatten(struct mx_gguf_named *o)
{
	uint64_t n = 1;
	for (uint32_t i = 0; i < o->ndim; i++)
		n *= o->shape[i];
	o->ndim = 1;
	o->shape[0] = n;
}

/* Gives each expert's part of [experts, rows, cols] its name; `parts` matrices of equal shape lie
 * behind each other in the part of an expert. */
static mx_status list(const struct namer *n, const struct mx_gguf_tensor *t, const char *prefix,
                      const struct mx_gguf_rename *r, uint32_t parts)
{
	static const char *const words[] = {"gate", "up"};
	struct mx_gguf_named o = {.tensor = t};
	const char *suffix = t->name + stem_of(t->name);
	bool bias = t->ndim == 2;
	uint64_t count = t->shape[0];
	if (t->ndim != 3 && !bias)
		return bad(n, t, "is not of three dimensions");
	if (count < 1 || count > MAX_EXPERTS || t->shape[1] % parts)
		return bad(n, t, "has too many experts, none, or half rows");
	o.ndim = t->ndim - 1;
	o.shape[0] = t->shape[1] / parts;
	o.shape[1] = t->shape[2];
	o.bytes = t->bytes / (size_t)count / parts;
	for (uint64_t i = 0; i < count * parts; i++) {
		char part[128] = "";
		const char *percent = strstr(r->to, "%u"), *word = strstr(r->to, "%s");
		const char *end = percent + 2;
		if (word)
			snprintf(part, sizeof part, "%.*s%s%s", (int)(word - end), end, words[i % parts],
			         word + 2);
		else
			snprintf(part, sizeof part, "%s", end);
		snprintf(o.name, sizeof o.name, "%s%.*s%" PRIu64 "%s%s", prefix, (int)(percent - r->to),
		         r->to, i / parts, part, suffix);
		o.data = (const char *)t->data + i * o.bytes;
		mx_status s = n->each(n->arg, &o);
		if (s)
			return s;
	}
	return MX_OK;
}

/* Gives the rows of q, of k and of v, which lie behind each other, their names. */
static mx_status split_qkv(const struct namer *n, const struct mx_gguf_tensor *t,
                           const char *prefix, const struct mx_gguf_rename *r)
{
	static const char *const words[] = {"q", "k", "v"};
	struct mx_gguf_named o = {.tensor = t, .ndim = t->ndim, .data = t->data};
	const char *suffix = t->name + stem_of(t->name), *word = strstr(r->to, "%s");
	int64_t heads = 0, keys = 0;
	mx_status s = get_int(n, "attention.head_count", &heads);
	if (!s)
		s = get_int(n, "attention.head_count_kv", &keys);
	keys = keys ? keys : heads;
	const uint64_t rows = t->ndim ? t->shape[0] : 0;
	if (s)
		return s;
	if (heads < 1 || keys < 1 || heads > 1 << 20 || keys > heads || !rows ||
	    rows % (uint64_t)(heads + 2 * keys))
		return bad(n, t, "its rows are no whole heads of q, k and v");
	const uint64_t dim = rows / (uint64_t)(heads + 2 * keys);
	memcpy(o.shape, t->shape, sizeof o.shape);
	for (size_t i = 0; !s && i < 3; i++) {
		o.shape[0] = dim * (uint64_t)(i ? keys : heads);
		o.bytes = t->bytes / rows * o.shape[0];
		snprintf(o.name, sizeof o.name, "%s%.*s%s%s%s", prefix, (int)(word - r->to), r->to,
		         words[i], word + 2, suffix);
		s = n->each(n->arg, &o);
		o.data = (const char *)o.data + o.bytes;
	}
	return s;
}

/* Finds the tensor of the same layer that is called `other` where t is called `own`. */
static const struct mx_gguf_tensor *beside(const struct namer *n, const struct mx_gguf_tensor *t,
                                           const char *own, const char *other)
{
	char name[160];
	const char *at = strstr(t->name, own);
	if (!at)
		return NULL;
	snprintf(name, sizeof name, "%.*s%s%s", (int)(at - t->name), t->name, other, at + strlen(own));
	return mx_gguf_tensor(n->g, name);
}

/* Joins k_b [heads, rank, nope] and v_b [heads, v, rank] to the checkpoint's kv_b [heads (nope +
 * v), rank]. Files from before the two have kv_b itself, some have all three. */
static mx_status join_kv_b(const struct namer *n, const struct mx_gguf_tensor *t,
                           const char *prefix, const struct mx_gguf_rename *r)
{
	struct mx_gguf_named o = {.tensor = t, .ndim = 2, .data = t->data, .bytes = t->bytes};
	if (beside(n, t, "attn_k_b", "attn_kv_b"))
		return MX_OK;
	const struct mx_gguf_tensor *v = beside(n, t, "attn_k_b", "attn_v_b");
	int64_t dim = 0, rope = 0, heads = 0, v_dim = 0;
	mx_status s = get_int(n, "attention.key_length_mla", &dim);
	if (!s)
		s = get_int(n, "rope.dimension_count", &rope);
	if (!s)
		s = get_int(n, "attention.head_count", &heads);
	if (!s)
		s = get_int(n, "attention.value_length_mla", &v_dim);
	if (s)
		return s;
	if (!v)
		return bad(n, t, "attn_v_b of the same layer is missing");
	if (t->ndim != 3 || v->ndim != 3 || v->shape[0] != t->shape[0] || v->shape[2] != t->shape[1] ||
	    !t->shape[0] || t->shape[0] > INT32_MAX || t->shape[2] > INT32_MAX ||
	    v->shape[1] > INT32_MAX)
		return bad(n, t,
		           "it and attn_v_b are not [heads, rank, qk_nope_head_dim] and [heads, "
		           "v_head_dim, rank]");
	if (rope < 1 || dim <= rope || dim - rope != (int64_t)t->shape[2])
		return bad(n, t, "its columns are not attention.key_length_mla less rope.dimension_count");
	if (heads != (int64_t)t->shape[0])
		return bad(n, t, "its heads are not attention.head_count");
	if (v_dim != (int64_t)v->shape[1])
		return bad(n, v, "its rows are not attention.value_length_mla");
	o.values = v;
	o.shape[0] = t->shape[0] * (t->shape[2] + v->shape[1]);
	o.shape[1] = t->shape[1];
	snprintf(o.name, sizeof o.name, "%s%s", prefix, r->to);
	return n->each(n->arg, &o);
}

/* Gives [n] the shape [n / size, size] of wkv.head_size. */
static mx_status part_heads(const struct namer *n, struct mx_gguf_named *o)
{
	int64_t size = 0;
	mx_status s = get_int(n, "wkv.head_size", &size);
	if (s)
		return s;
	flatten(o);
	if (size < 1 || o->shape[0] % (uint64_t)size)
		return bad(n, o->tensor, "its elements are no whole heads of wkv.head_size");
	o->ndim = 2;
	o->shape[0] /= (uint64_t)size;
	o->shape[1] = (uint64_t)size;
	return MX_OK;
}

static void squeeze(struct mx_gguf_named *o)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < o->ndim; i++)
		if (o->shape[i] != 1)
			o->shape[n++] = o->shape[i];
	o->ndim = n;
}

/* Names a tensor behind "blk.N."; prefix is "model.layers.N.". */
static mx_status name_in_layer(const struct namer *n, const struct mx_gguf_tensor *t,
                               const char *rest, const char *prefix)
{
	struct mx_gguf_named o = {.tensor = t, .ndim = t->ndim, .data = t->data, .bytes = t->bytes};
	const struct mx_gguf_rename *r = find(n->arch, rest);
	mx_status s = MX_OK;
	memcpy(o.shape, t->shape, sizeof o.shape);
	if (!r) { /* nobody asks for this name, and the engine says so */
		snprintf(o.name, sizeof o.name, "%s", t->name);
		return n->each(n->arg, &o);
	}
	switch (r->form) {
	case MX_GGUF_SAME: break;
	case MX_GGUF_CONV:
		if (o.ndim > 2)
			squeeze(&o);
		if (o.ndim != 2)
			return bad(n, t, "is not of two dimensions");
		o.ndim = 3;
		o.shape[2] = o.shape[1];
		o.shape[1] = 1;
		break;
	case MX_GGUF_ROW:
		if (o.ndim == 1) {
			o.ndim = 2;
			o.shape[1] = o.shape[0];
			o.shape[0] = 1;
		}
		break;
	case MX_GGUF_MINUS_EXP:
		o.minus_exp = true;
		flatten(&o);
		break;
	case MX_GGUF_MINUS_EXP_HEADS:
		o.minus_exp = true;
		flatten(&o);
		o.ndim = 4;
		o.shape[2] = o.shape[0];
		o.shape[0] = o.shape[1] = o.shape[3] = 1;
		break;
	case MX_GGUF_MINUS_EXP_ALL: o.minus_exp = true; break;
	case MX_GGUF_FLAT: flatten(&o); break;
	case MX_GGUF_LIST: return list(n, t, prefix, r, 1);
	case MX_GGUF_LIST_TWO: return list(n, t, prefix, r, 2);
	case MX_GGUF_QKV: return split_qkv(n, t, prefix, r);
	case MX_GGUF_KV_B: return join_kv_b(n, t, prefix, r);
	case MX_GGUF_V_B:
		return beside(n, t, "attn_v_b", "attn_k_b") || beside(n, t, "attn_v_b", "attn_kv_b")
		           ? MX_OK
		           : bad(n, t, "attn_k_b of the same layer is missing");
	case MX_GGUF_SQUEEZED: squeeze(&o); break;
	case MX_GGUF_HEADS: s = part_heads(n, &o); break;
	case MX_GGUF_LATER:
		if (!strncmp(t->name, "blk.0.", 6))
			return MX_OK;
		break;
	case MX_GGUF_DROPPED: return MX_OK;
	}
	if (!s)
		s = order_of(n, t, r->rows, &o.order);
	if (s)
		return s;
	snprintf(o.name, sizeof o.name, "%s%s%s", prefix, r->to, r->whole ? "" : rest + stem_of(rest));
	return n->each(n->arg, &o);
}

static mx_status name_one(const struct namer *n, const struct mx_gguf_tensor *t)
{
	const struct mx_gguf_arch *a = n->arch;
	const struct {
		const char *from, *to;
	} outside[] = {{"token_embd", a->embed},
	               {"output_norm", a->final_norm},
	               {"token_embd_norm", a->hybrid ? a->final_norm : "token_embd_norm"}, /* of LFM2 */
	               {"output", a->lm_head}};
	const char *rest;
	char *end, prefix[64];
	size_t stem = stem_of(t->name);
	struct mx_gguf_named o = {.tensor = t, .ndim = t->ndim, .data = t->data, .bytes = t->bytes};
	if (!strncmp(t->name, "blk.", 4) && t->name[4] >= '0' && t->name[4] <= '9') {
		unsigned long layer = strtoul(t->name + 4, &end, 10);
		if (*end == '.' && layer < 100000) {
			rest = end + 1;
			const bool head = a->head && layer >= n->layers;
			const struct mx_gguf_rename *r = head ? find_in(a->head, rest) : NULL;
			if (r) {
				memcpy(o.shape, t->shape, sizeof o.shape);
				snprintf(o.name, sizeof o.name, "%s%s", r->to, rest + stem_of(rest));
				return n->each(n->arg, &o);
			}
			snprintf(prefix, sizeof prefix, "%s%lu.", head ? a->head_layers : a->layers,
			         head ? layer - (unsigned long)n->layers : layer);
			if (!head &&
			    layer >= n->layers) { /* of a head that is not read: the family skips its layer */
				memcpy(o.shape, t->shape, sizeof o.shape);
				snprintf(o.name, sizeof o.name, "%s%s", prefix, rest);
				return n->each(n->arg, &o);
			}
			return name_in_layer(n, t, rest, prefix);
		}
	}
	if (!strcmp(t->name, "rope_freqs.weight"))
		return MX_OK;
	memcpy(o.shape, t->shape, sizeof o.shape);
	snprintf(o.name, sizeof o.name, "%s", t->name);
	const struct mx_gguf_rename *own = a->outside ? find_in(a->outside, t->name) : NULL;
	if (own && own->form == MX_GGUF_DROPPED)
		return MX_OK;
	if (own) {
		snprintf(o.name, sizeof o.name, "%s%s", own->to, own->whole ? "" : t->name + stem);
		return n->each(n->arg, &o);
	}
	for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
		if (strlen(outside[i].from) == stem && !strncmp(outside[i].from, t->name, stem))
			snprintf(o.name, sizeof o.name, "%s%s", outside[i].to, t->name + stem);
	return n->each(n->arg, &o);
}

mx_status mx_gguf_names(const struct mx_gguf *g,
                        mx_status (*each)(void *arg, const struct mx_gguf_named *t), void *arg,
                        struct mx_err *err)
{
	struct namer n = {.g = g, .each = each, .arg = arg, .err = err};
	int64_t layers = 0, heads = 0;
	mx_status s = mx_gguf_arch_of(g, &n.arch, err);
	if (!s)
		s = get_int(&n, "block_count", &layers);
	if (!s)
		s = get_int(&n, "nextn_predict_layers", &heads);
	n.layers = heads <= 0 ? UINT64_MAX : layers > heads ? (uint64_t)(layers - heads) : 0;
	for (size_t i = 0; !s && i < mx_gguf_count(g); i++)
		s = name_one(&n, mx_gguf_at(g, i));
	return s;
}
