/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages are laid out as in the engine: a page has a part for each layer, a sequence has a list of
 * pages (here all that its length needs), a slot has a part for each layer.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/mixers/hyena/paged.h"
#include "bench/mixers/hyena/tiles.h"
#include "mixers/hyena/lc.h"

#define PAGE_TOKENS LC_BLOCK /* as in the engine by default */
#define PROMPT_ROWS 512      /* of a step */

struct paged {
	struct conv base;
	struct lc_spec spec;
	struct lc **layers;
	unsigned char *pages, *slots, *scratch;
	size_t page_bytes, slot_bytes; /* of a layer */
	uint32_t *tables;              /* [batch][pages of a sequence] */
	uint32_t direct;
	uint32_t max_len; /* of the sequences */
	/* the steps to come: sequences, and their positions at step 0 */
	uint32_t n, *which, *from;
	struct mx_span *spans; /* [batch] */
	uint32_t *pos;
	struct mx_kept *kept;
	struct mx_step step;
};

static struct lc_spec spec_of(const struct conv_shape *s, unsigned threads)
{
	return (struct lc_spec){.channels = s->channels, .max_len = s->len, .threads = threads};
}

static uint32_t pages_of(const struct conv_shape *s)
{
	return (s->len - 1) / PAGE_TOKENS + 1;
}

static size_t all_pages(const struct paged *c)
{
	const struct conv_shape *s = &c->base.shape;
	return (size_t)s->batch * pages_of(s) * s->layers * c->page_bytes;
}

static size_t all_slots(const struct paged *c)
{
	return (size_t)c->base.shape.batch * c->base.shape.layers * c->slot_bytes;
}

/* The last two are for the creation of layers: a layer's filter, and all lags of a group for each
 * thread. */
static size_t paged_bytes(const struct conv_ops *ops, const struct conv_shape *s,
                          const struct mx_device *d)
{
	struct lc_spec spec = spec_of(s, d->info.threads);
	size_t sequence = (size_t)s->len * lc_bytes_per_token(&spec) + lc_slot_bytes(&spec);
	(void)ops;
	return s->layers * (lc_instance_bytes(&spec) + s->batch * sequence) + lc_scratch_bytes(&spec) +
	       (size_t)s->len * s->channels * sizeof(float) + lc_create_bytes(&spec);
}

/* ---- steps ---- */

void paged_choose(struct conv *base, uint32_t n, const uint32_t *which, const uint32_t *from)
{
	struct paged *c = (struct paged *)base;
	c->n = n;
	memcpy(c->which, which, n * sizeof *which);
	memcpy(c->from, from, n * sizeof *from);
}

static void set_span(struct paged *c, uint32_t i, uint32_t sequence, uint32_t pos, uint32_t n,
                     enum mx_span_kind kind)
{
	const struct conv_shape *s = &c->base.shape;
	c->spans[i] = (struct mx_span){
		.row = i,
		.n = n,
		.pos = pos,
		.max_len = c->max_len,
		.kind = kind,
		.slot = sequence,
		.pages = c->tables + (size_t)sequence * pages_of(s),
		.n_pages = pages_of(s),
	};
	c->kept[i] = (struct mx_kept){.n = n};
	for (uint32_t k = 0; k < n; k++)
		c->pos[i + k] = pos + k;
}

static void set_step(struct paged *c, uint32_t n_spans, uint32_t n_rows)
{
	c->step = (struct mx_step){
		.spans = c->spans,
		.n_spans = n_spans,
		.n_rows = n_rows,
		.longest = n_rows / (n_spans ? n_spans : 1),
		.pos = c->pos,
		.scratch = c->scratch,
	};
}

static void paged_begin(struct conv *base, uint32_t t)
{
	struct paged *c = (struct paged *)base;
	for (uint32_t i = 0; i < c->n; i++)
		set_span(c, i, c->which[i], c->from[i] + t, 1, MX_SPAN_DECODE);
	set_step(c, c->n, c->n);
}

static void paged_layer(struct conv *base, uint32_t layer, uint32_t t, const float *z, float *y)
{
	struct paged *c = (struct paged *)base;
	(void)t;
	if (lc_forward(c->layers[layer], &c->step, z, base->shape.channels, y, base->shape.channels) !=
	    MX_OK)
		conv_die("lc_forward");
}

static void paged_end(struct conv *base, uint32_t t)
{
	struct paged *c = (struct paged *)base;
	(void)t;
	lc_settle(c->layers, base->shape.layers, &c->step, c->kept, c->scratch);
}

void paged_prompt(struct conv *base, uint32_t sequence, uint32_t n)
{
	struct paged *c = (struct paged *)base;
	size_t floats = (size_t)PROMPT_ROWS * base->shape.channels;
	float *z = conv_floats(2 * floats), *y = z + floats;
	conv_noise(base->shape.seed + sequence, floats, z);
	for (uint32_t pos = 0; pos < n; pos += PROMPT_ROWS) {
		uint32_t rows = n - pos < PROMPT_ROWS ? n - pos : PROMPT_ROWS;
		set_span(c, 0, sequence, pos, rows, MX_SPAN_PREFILL);
		set_step(c, 1, rows);
		for (uint32_t l = 0; l < base->shape.layers; l++)
			paged_layer(base, l, 0, z, y);
		paged_end(base, 0);
	}
	conv_free(z, 2 * floats);
}

size_t paged_snapshot_bytes(const struct conv *base)
{
	return base->shape.layers * lc_snapshot_bytes(&((const struct paged *)base)->spec);
}

void paged_save(struct conv *base, uint32_t sequence, uint32_t pos, void *out)
{
	struct paged *c = (struct paged *)base;
	for (uint32_t l = 0; l < base->shape.layers; l++)
		lc_save(c->layers[l], sequence, pos,
		        (unsigned char *)out + l * lc_snapshot_bytes(&c->spec));
}

void paged_load(struct conv *base, uint32_t sequence, uint32_t pos, const void *in)
{
	struct paged *c = (struct paged *)base;
	for (uint32_t l = 0; l < base->shape.layers; l++)
		lc_load(c->layers[l], sequence, pos,
		        (const unsigned char *)in + l * lc_snapshot_bytes(&c->spec));
	set_span(c, 0, sequence, pos, 0, MX_SPAN_DECODE);
	set_step(c, 1, 0);
	for (uint32_t progress = 0; progress != MX_RESUMED;)
		lc_resume(c->layers, base->shape.layers, &c->step, &progress);
}

static uint32_t paged_limit(struct conv *base, uint32_t len, uint32_t groups)
{
	(void)groups;
	((struct paged *)base)->max_len = len;
	return base->shape.layers * base->groups;
}

void paged_work(const struct conv *base, double *out)
{
	const struct paged *c = (const struct paged *)base;
	const uint32_t len = base->shape.len;
	memset(out, 0, len * sizeof *out);
	for (uint32_t i = 0; i < base->shape.layers; i++)
		for (uint32_t k = 0; k < c->layers[i]->n_levels; k++) {
			const struct lc_level *l = &c->layers[i]->levels[k];
			for (uint32_t unit = 0; unit < base->groups * l->parts; unit++)
				for (uint32_t o = 2; o * l->n < len; o++)
					out[(o - 1) * l->n + l->due[unit] - 1] +=
						LC_LANES * tiles_operations(l->n, c->direct, o % 2 ? 2 : 1, o % 2 ? 3 : 2) /
						l->parts;
		}
}

/* ---- memory ---- */

static void paged_rewind(struct conv *base)
{
	struct paged *c = (struct paged *)base;
	memset(c->slots, 0, all_slots(c));
	c->max_len = base->shape.len;
	c->n = base->shape.batch;
	for (uint32_t b = 0; b < base->shape.batch; b++) {
		c->which[b] = b;
		c->from[b] = 0;
	}
}

struct filter_call {
	const struct conv *c;
	uint32_t layer;
	float *h; /* [len, channels] */
};

/* Copies the rows of groups to the rows of the layer, in blocks that fit in L1. */
static void filter_task(void *arg, size_t task, unsigned worker)
{
	struct filter_call *f = arg;
	const struct conv_shape *s = &f->c->shape;
	float rows[LC_BLOCK * LC_LANES];
	(void)worker;
	for (uint32_t g = 0; g < f->c->groups; g++) {
		uint32_t first = (uint32_t)task * LC_BLOCK;
		conv_filter(s, f->layer, g, first, LC_BLOCK, rows);
		for (uint32_t t = 0; t < LC_BLOCK; t++)
			memcpy(f->h + (size_t)(first + t) * s->channels + g * LC_LANES, rows + t * LC_LANES,
			       LC_LANES * sizeof(float));
	}
}

static void open_layers(struct paged *c)
{
	const struct conv_shape *s = &c->base.shape;
	struct mx_device *d = c->base.device;
	size_t floats = (size_t)s->len * s->channels;
	float *h = conv_floats(floats);
	for (uint32_t l = 0; l < s->layers; l++) {
		const struct lc_memory memory = {
			.page_base = c->pages + l * c->page_bytes,
			.slot_base = c->slots + l * c->slot_bytes,
			.page_stride = s->layers * c->page_bytes,
			.slot_stride = s->layers * c->slot_bytes,
			.page_tokens = PAGE_TOKENS,
		};
		struct filter_call f = {&c->base, l, h};
		d->ops->parallel(d, s->len / LC_BLOCK, filter_task, &f);
		if (lc_create(&c->spec, d, &memory, h, 0, l, &c->layers[l]) != MX_OK)
			conv_die("lc_create");
		if (c->base.ops == &conv_at_once)
			lc_at_once(c->layers[l]);
	}
	conv_free(h, floats);
}

static struct conv *paged_open(const struct conv_ops *ops, const struct conv_shape *s,
                               struct mx_device *d)
{
	struct paged *c = (struct paged *)conv_new(sizeof *c, ops, s, d);
	uint32_t rows = s->batch > PROMPT_ROWS ? s->batch : PROMPT_ROWS;
	c->spec = spec_of(s, d->info.threads);
	c->direct = lc_crossing(lc_kernels_find(mx_isa_parse(d->info.isa)), NULL);
	c->page_bytes = PAGE_TOKENS * lc_bytes_per_token(&c->spec);
	c->slot_bytes = lc_slot_bytes(&c->spec);
	c->pages = (unsigned char *)conv_floats(all_pages(c) / sizeof(float));
	c->slots = (unsigned char *)conv_floats(all_slots(c) / sizeof(float));
	c->scratch = (unsigned char *)conv_floats(lc_scratch_bytes(&c->spec) / sizeof(float));
	c->layers = mx_calloc(s->layers, sizeof *c->layers);
	c->tables = mx_calloc((size_t)s->batch * pages_of(s), sizeof *c->tables);
	c->which = mx_calloc(s->batch, sizeof *c->which);
	c->from = mx_calloc(s->batch, sizeof *c->from);
	c->spans = mx_calloc(s->batch, sizeof *c->spans);
	c->kept = mx_calloc(s->batch, sizeof *c->kept);
	c->pos = mx_calloc(rows, sizeof *c->pos);
	if (!c->layers || !c->tables || !c->which || !c->from || !c->spans || !c->kept || !c->pos)
		conv_die("out of memory");
	for (uint32_t i = 0; i < s->batch * pages_of(s); i++)
		c->tables[i] = i;
	memset(c->pages, 0, all_pages(c)); /* touched */
	open_layers(c);
	paged_rewind(&c->base);
	return &c->base;
}

static void paged_close(struct conv *base)
{
	struct paged *c = (struct paged *)base;
	for (uint32_t l = 0; l < base->shape.layers; l++)
		lc_destroy(c->layers[l]);
	conv_free((float *)c->pages, all_pages(c) / sizeof(float));
	conv_free((float *)c->slots, all_slots(c) / sizeof(float));
	conv_free((float *)c->scratch, lc_scratch_bytes(&c->spec) / sizeof(float));
	free(c->layers);
	free(c->tables);
	free(c->which);
	free(c->from);
	free(c->spans);
	free(c->kept);
	free(c->pos);
	free(c);
}

static double no_traffic(const struct conv *c, uint32_t len)
{
	(void)c, (void)len;
	return 0;
}

static double operations(const struct conv *base, uint32_t len)
{
	const struct conv_shape *s = &base->shape;
	return tiles_slack(len, ((const struct paged *)base)->direct) * s->layers * s->channels *
	       s->batch;
}

#define PAGED(title, how, late_f)                                                                  \
	{                                                                                              \
		.name = title, .cost = how, .late = late_f, .bytes = paged_bytes, .open = paged_open,      \
		.close = paged_close, .begin = paged_begin, .layer = paged_layer, .end = paged_end,        \
		.limit = paged_limit, .rewind = paged_rewind, .traffic = no_traffic,                       \
		.operations = operations,                                                                  \
	}

const struct conv_ops conv_spread = PAGED("slack, spread", CONV_SPREAD, 0);
const struct conv_ops conv_at_once = PAGED("slack, at once", CONV_TILES, 1);
