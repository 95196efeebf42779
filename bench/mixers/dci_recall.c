/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dci finds of the keys of trained models, layer by layer: the share of the largest products,
 * and of the softmax's probability.
 *
 *   bench/mixers/dci_recall [-d head_dim] [-n tokens] [-k top_k] [-v visits] [-r recent] PREFIX...
 *
 * PREFIX-keys.f32 [tokens, head_dim] and PREFIX-queries.f32 [64, head_dim] are from
 * bench/mixers/dci_keys.py. Queries are those of the last token. A line of a prefix: the share of
 * the top_k largest products among the searched keys that is found; the share of probability on the
 * first and recent tokens, which are exact; that on the top_k largest of the searched keys, and
 * that on those which are found; the probability that is missing.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/cpu/cpu.h"
#include "mixers/dci/dci.h"

#define PAGE    64
#define QUERIES 64
#define GROUP   16 /* queries at a time: two elements of a value for each */
#define FIRST   64

struct options {
	uint32_t dim, tokens, top_k, visits, recent;
};

struct rig {
	struct options o;
	struct mx_device *device;
	struct mx_mixer *m;
	unsigned char *pages, *scratch;
	uint32_t *order;
	float *k, *v, *q, *s; /* [tokens][dim], [tokens][dim], [QUERIES][dim], [tokens] */
};

struct figures {
	double recall, exact, largest, found;
};

mx_mixer_module_f mx_mixer_module_v2;

_Noreturn static void die(const char *what)
{
	fprintf(stderr, "bench/mixers/dci_recall: %s\n", what);
	exit(1);
}

static void *zeroed(size_t n)
{
	void *p = mx_map(n);
	if (!p)
		die("out of memory");
	return p;
}

static void read_file(const char *prefix, const char *name, float *x, size_t n)
{
	char path[4096];
	snprintf(path, sizeof path, "%s-%s.f32", prefix, name);
	FILE *f = fopen(path, "re");
	if (!f || fread(x, sizeof *x, n, f) != n)
		die(path);
	fclose(f);
}

/* A layer that counts all keys alike which it attends to. */
static void rig_open(struct rig *r, const struct options *o)
{
	const struct mx_param params[] = {
		{.name = "heads", .type = MX_PARAM_INT, .i = GROUP},
		{.name = "kv_heads", .type = MX_PARAM_INT, .i = 1},
		{.name = "head_dim", .type = MX_PARAM_INT, .i = o->dim},
		{.name = "scale", .type = MX_PARAM_FLOAT, .f = 1e-30},
		{.name = "first", .type = MX_PARAM_INT, .i = FIRST},
		{.name = "recent", .type = MX_PARAM_INT, .i = o->recent},
		{.name = "rest", .type = MX_PARAM_BOOL, .i = 0},
		{.name = "top_k", .type = MX_PARAM_INT, .i = o->top_k},
		{.name = "visits", .type = MX_PARAM_INT, .i = o->visits},
	};
	const struct mx_layer_desc layer = {
		.n_layers = 1,
		.width = o->dim,
		.max_context = o->tokens,
		.max_rows = o->tokens,
		.max_spans = 1,
		.state_dtype = MX_BF16,
		.params = {params, sizeof params / sizeof *params - !o->visits}};
	const void *weights[MX_MIXER_MAX_WEIGHTS] = {0};
	const struct mx_mixer_ops *ops = mx_mixer_module_v2();
	struct mx_state_spec spec = {0};
	struct mx_err err = {0};
	*r = (struct rig){.o = *o};
	if (mx_cpu_create(1, mx_cpu_isa(), 16, o->dim, &r->device, &err) != MX_OK ||
	    ops->probe(&layer, r->device, &err) != MX_OK ||
	    ops->state(&layer, r->device, &spec) != MX_OK)
		die(err.text);
	uint32_t n_pages = o->tokens / PAGE;
	r->pages = zeroed(spec.bytes_per_token * o->tokens);
	r->scratch = zeroed(spec.scratch_bytes);
	r->order = zeroed(n_pages * sizeof *r->order);
	for (uint32_t i = 0; i < n_pages; i++)
		r->order[i] = i;
	r->k = zeroed((size_t)o->tokens * o->dim * sizeof *r->k);
	r->v = zeroed((size_t)o->tokens * o->dim * sizeof *r->v);
	r->q = zeroed((size_t)QUERIES * o->dim * sizeof *r->q);
	r->s = zeroed(o->tokens * sizeof *r->s);
	const struct mx_mixer_init init = {.layer = &layer,
	                                   .device = r->device,
	                                   .weights = weights,
	                                   .page_base = r->pages,
	                                   .page_stride = spec.bytes_per_token * PAGE,
	                                   .page_tokens = PAGE};
	if (ops->create(&init, &r->m, &err) != MX_OK)
		die(err.text);
}

/* Appends tokens first .. end - 1; attends with their queries unless q is NULL. */
static void append(const struct rig *r, uint32_t first, uint32_t end, float *q)
{
	size_t at = (size_t)first * r->o.dim;
	const struct mx_span span = {.n = end - first,
	                             .pos = first,
	                             .max_len = r->o.tokens,
	                             .pages = r->order,
	                             .n_pages = r->o.tokens / PAGE};
	const struct mx_step step = {.spans = &span, .n_spans = 1, .n_rows = span.n};
	const struct attn_rows rows = {.k = r->k + at, .v = r->v + at};
	dci_append(r->m, &step, &rows);
	if (q)
		dci_attend(r->m, &step, r->scratch, q);
}

static int descending(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x < y) - (x > y);
}

/* Marks, in elements 2 h and 2 h + 1 of the values of the searched keys first .. end - 1, the top_k
 * largest products with query q and the keys' probabilities; adds what does not depend on the
 * search to *f. */
static void mark(struct rig *r, const float *q, uint32_t h, uint32_t end, struct figures *f)
{
	const uint32_t n = r->o.tokens, dim = r->o.dim, count = end - FIRST;
	float *sorted = zeroed(count * sizeof *sorted), most = -INFINITY;
	double sum = 0, exact = 0, largest = 0;
	for (uint32_t j = 0; j < n; j++) {
		r->s[j] = 0;
		for (uint32_t i = 0; i < dim; i++)
			r->s[j] += q[i] * r->k[(size_t)j * dim + i];
		most = r->s[j] > most ? r->s[j] : most;
	}
	memcpy(sorted, r->s + FIRST, count * sizeof *sorted);
	qsort(sorted, count, sizeof *sorted, descending);
	float bound = sorted[r->o.top_k - 1], scale = 1 / sqrtf((float)dim);
	for (uint32_t j = 0; j < n; j++)
		sum += exp((double)(r->s[j] - most) * scale);
	for (uint32_t j = 0; j < n; j++) {
		double p = exp((double)(r->s[j] - most) * scale) / sum;
		bool searched = j >= FIRST && j < end;
		exact += searched ? 0 : p;
		largest += searched && r->s[j] >= bound ? p : 0;
		r->v[(size_t)j * dim + 2 * h] = searched && r->s[j] >= bound;
		r->v[(size_t)j * dim + 2 * h + 1] = searched ? (float)p : 0;
	}
	f->exact += exact / QUERIES;
	f->largest += largest / QUERIES;
	mx_unmap(sorted, count * sizeof *sorted);
}

static struct figures measure(struct rig *r)
{
	struct figures f = {0};
	uint32_t n = r->o.tokens, dim = r->o.dim, end = (n - r->o.recent) / DCI_RUN * DCI_RUN;
	uint32_t top_k = r->o.top_k;
	double attended = FIRST + n - end + top_k;
	for (uint32_t p = 0; p < QUERIES; p += GROUP) {
		float *q = r->q + (size_t)p * dim;
		for (uint32_t h = 0; h < GROUP; h++)
			mark(r, q + (size_t)h * dim, h, end, &f);
		append(r, 0, n - 1, NULL);
		append(r, n - 1, n, q);
		for (uint32_t h = 0; h < GROUP; h++) {
			f.recall += (double)q[h * dim + 2 * h] * attended / top_k / QUERIES;
			f.found += (double)q[h * dim + 2 * h + 1] * attended / QUERIES;
		}
	}
	return f;
}

int main(int argc, char **argv)
{
	struct options o = {.dim = 64, .tokens = 16384, .top_k = 128, .recent = 256};
	for (int c; (c = getopt(argc, argv, "d:n:k:v:r:")) != -1;) {
		uint32_t *x = c == 'd'   ? &o.dim
		              : c == 'n' ? &o.tokens
		              : c == 'k' ? &o.top_k
		              : c == 'v' ? &o.visits
		              : c == 'r' ? &o.recent
		                         : NULL;
		if (!x)
			return 2;
		*x = (uint32_t)strtoul(optarg, NULL, 10);
	}
	if (o.dim < 2 * GROUP || o.tokens % PAGE || !o.top_k ||
	    o.tokens < FIRST + o.recent + DCI_RUN + o.top_k)
		die("head_dim, tokens or top_k cannot be measured");
	struct rig r;
	rig_open(&r, &o);
	printf("keys                      recall    exact  largest    found  missing\n");
	for (int i = optind; i < argc; i++) {
		const char *name = strrchr(argv[i], '/');
		read_file(argv[i], "keys", r.k, (size_t)o.tokens * o.dim);
		read_file(argv[i], "queries", r.q, (size_t)QUERIES * o.dim);
		struct figures f = measure(&r);
		printf("%-24s %7.4f  %7.4f  %7.4f  %7.4f  %7.4f\n", name ? name + 1 : argv[i], f.recall,
		       f.exact, f.largest, f.found, 1 - f.exact - f.found);
	}
	return 0;
}
