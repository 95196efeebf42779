/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message is a sequence of numbers of 32 bits: those of struct head, then for each span those of
 * struct span_head, the part of its list of pages that has changed, and its parents; then what else
 * the head says is there.
 */
#include "engine/rank_wire.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { HAS_POS = 1, HAS_IDS = 2, HAS_KEPT = 4, HAS_ROWS = 8 };

struct head {
	uint32_t run; /* number of the function + 1; 0 = the end */
	uint32_t n_spans, n_rows, longest;
	uint32_t has;
	uint32_t n, slot, pos, page, block, begins;
};

struct span_head {
	uint32_t row, n, pos, max_len, kind, slot, n_pages;
	uint32_t from; /* pages [from, n_pages) of the list follow */
	uint32_t parents;
};

/* What is known at both ends of a slot's list of pages. */
struct list {
	uint32_t *ids; /* [limits.list] */
	uint32_t n;
};

struct mx_rank_wire {
	struct mx_hosts *hosts;
	struct mx_rank_wire_limits limits;
	mx_rank_run_f *const *runs;
	uint32_t n_runs;
	struct list *lists; /* [slots] */
	uint32_t *all_ids;  /* [slots, list] */
	uint32_t *words;    /* [n_words] a message */
	size_t n_words;
	/* another host: what a call points to */
	struct mx_span *spans;   /* [spans] */
	uint32_t *pos, *parents; /* [rows] */
	int32_t *ids;            /* [rows] */
	uint32_t *rows;          /* [rows] */
	struct mx_kept *kept;    /* [spans] */
	uint32_t *paths;         /* [spans, kept] */
};

#define WORDS(type) (sizeof(type) / sizeof(uint32_t))

mx_status mx_rank_wire_create(struct mx_hosts *hosts, const struct mx_rank_wire_limits *limits,
                              mx_rank_run_f *const *runs, uint32_t n_runs,
                              struct mx_rank_wire **out)
{
	const struct mx_rank_wire_limits *l = limits;
	struct mx_rank_wire *w = mx_calloc(1, sizeof *w);
	if (!w)
		return MX_E_NOMEM;
	*w = (struct mx_rank_wire){.hosts = hosts, .limits = *l, .runs = runs, .n_runs = n_runs};
	w->n_words = WORDS(struct head) + 4 * (size_t)l->rows +
	             (size_t)l->spans * (WORDS(struct span_head) + l->list + 2 + l->kept);
	w->lists = mx_calloc(l->slots, sizeof *w->lists);
	w->all_ids = mx_calloc((size_t)l->slots * l->list + 1, sizeof *w->all_ids);
	w->words = mx_calloc(w->n_words, sizeof *w->words);
	w->spans = mx_calloc(l->spans, sizeof *w->spans);
	w->pos = mx_calloc(l->rows, sizeof *w->pos);
	w->parents = mx_calloc(l->rows, sizeof *w->parents);
	w->ids = mx_calloc(l->rows, sizeof *w->ids);
	w->rows = mx_calloc(l->rows, sizeof *w->rows);
	w->kept = mx_calloc(l->spans, sizeof *w->kept);
	w->paths = mx_calloc((size_t)l->spans * l->kept, sizeof *w->paths);
	if (!w->lists || !w->all_ids || !w->words || !w->spans || !w->pos || !w->parents || !w->ids ||
	    !w->rows || !w->kept || !w->paths) {
		mx_rank_wire_destroy(w);
		return MX_E_NOMEM;
	}
	for (uint32_t i = 0; i < l->slots; i++)
		w->lists[i].ids = w->all_ids + (size_t)i * l->list;
	*out = w;
	return MX_OK;
}

void mx_rank_wire_destroy(struct mx_rank_wire *w)
{
	if (!w)
		return;
	free(w->lists);
	free(w->all_ids);
	free(w->words);
	free(w->spans);
	free(w->pos);
	free(w->parents);
	free(w->ids);
	free(w->rows);
	free(w->kept);
	free(w->paths);
	free(w);
}

/* ---- writing ---- */

static uint32_t *put(uint32_t *to, const void *words, size_t n)
{
	if (n)
		memcpy(to, words, n * sizeof *to);
	return to + n;
}

/* Writes a span. Of its pages only those behind the first one that the others do not know. */
static uint32_t *put_span(struct mx_rank_wire *w, const struct mx_span *s, uint32_t *to)
{
	struct list *l = &w->lists[s->slot];
	uint32_t from = 0;
	while (from < l->n && from < s->n_pages && l->ids[from] == s->pages[from])
		from++;
	const struct span_head h = {.row = s->row,
	                            .n = s->n,
	                            .pos = s->pos,
	                            .max_len = s->max_len,
	                            .kind = (uint32_t)s->kind,
	                            .slot = s->slot,
	                            .n_pages = s->n_pages,
	                            .from = from,
	                            .parents = s->parent != NULL};
	to = put(to, &h, WORDS(struct span_head));
	to = put(to, s->pages ? s->pages + from : NULL, s->n_pages - from);
	put(l->ids + from, s->pages ? s->pages + from : NULL, s->n_pages - from);
	l->n = s->n_pages;
	return s->parent ? put(to, s->parent, s->n) : to;
}

static uint32_t number_of(const struct mx_rank_wire *w, const struct mx_rank_call *c)
{
	uint32_t i = 0;
	while (c->run && i < w->n_runs && w->runs[i] != c->run)
		i++;
	return c->run ? i + 1 : 0;
}

const void *mx_rank_wire_write(struct mx_rank_wire *w, const struct mx_rank_call *c, size_t *bytes)
{
	const struct mx_step *s = &c->step;
	const struct head h = {.run = number_of(w, c),
	                       .n_spans = s->n_spans,
	                       .n_rows = s->n_rows,
	                       .longest = s->longest,
	                       .has = (s->pos ? HAS_POS : 0U) | (c->ids ? HAS_IDS : 0U) |
	                              (c->kept ? HAS_KEPT : 0U) | (c->rows ? HAS_ROWS : 0U),
	                       .n = (uint32_t)c->n,
	                       .slot = c->slot,
	                       .pos = c->pos,
	                       .page = c->page,
	                       .block = c->block,
	                       .begins = c->begins};
	uint32_t *to = put(w->words, &h, WORDS(struct head));
	for (uint32_t i = 0; i < s->n_spans; i++)
		to = put_span(w, &s->spans[i], to);
	to = put(to, s->pos, s->pos ? s->n_rows : 0);
	to = put(to, c->ids, c->ids ? s->n_rows : 0);
	to = put(to, c->rows, c->rows ? s->n_rows : 0);
	for (uint32_t i = 0; c->kept && i < s->n_spans; i++) {
		const struct mx_kept *k = &c->kept[i];
		*to++ = k->n;
		*to++ = k->path != NULL;
		to = put(to, k->path, k->path ? k->n : 0);
	}
	*bytes = (size_t)(to - w->words) * sizeof *to;
	return w->words;
}

mx_status mx_rank_wire_send(struct mx_rank_wire *w, const struct mx_rank_call *c)
{
	size_t bytes;
	const void *message = mx_rank_wire_write(w, c, &bytes);
	const struct mx_frame head = {.kind = MX_FRAME_CALL, .bytes = bytes};
	mx_status st = MX_OK;
	for (uint32_t h = 1; h < mx_hosts_count(w->hosts) && st == MX_OK; h++) {
		st = mx_link_send(mx_hosts_link(w->hosts, h), head, message);
		if (st != MX_OK)
			mx_hosts_link_failed(w->hosts, h, st);
	}
	return st == MX_OK ? MX_OK : MX_E_DEVICE;
}

void mx_rank_wire_end(struct mx_rank_wire *w)
{
	if (!w || mx_hosts_number(w->hosts))
		return;
	mx_hosts_end(w->hosts);
	const struct mx_rank_call end = {0};
	(void)mx_rank_wire_send(w, &end);
}

/* ---- reading ---- */

/* What is left of a message. */
struct reader {
	const uint32_t *at, *end;
};

/* Returns the next n numbers; NULL: they are not there. */
static const uint32_t *get(struct reader *r, size_t n)
{
	const uint32_t *at = r->at;
	if ((size_t)(r->end - at) < n)
		return NULL;
	r->at += n;
	return at;
}

/* Copies the next n numbers. */
static bool get_to(struct reader *r, void *to, size_t n)
{
	const uint32_t *words = get(r, n);
	if (words && n)
		memcpy(to, words, n * sizeof *words);
	return words;
}

/* Reads a span of a step of n_rows rows. */
static bool get_span(struct mx_rank_wire *w, struct reader *r, uint32_t n_rows, struct mx_span *out)
{
	const struct mx_rank_wire_limits *limits = &w->limits;
	struct span_head h;
	if (!get_to(r, &h, WORDS(struct span_head)) || h.slot >= limits->slots || h.row > n_rows ||
	    h.n > n_rows - h.row || h.n_pages > limits->list || h.kind > MX_SPAN_DRAFT)
		return false;
	struct list *l = &w->lists[h.slot];
	if (h.from > l->n || h.from > h.n_pages || !get_to(r, l->ids + h.from, h.n_pages - h.from) ||
	    (h.parents && !get_to(r, w->parents + h.row, h.n)))
		return false;
	l->n = h.n_pages;
	for (uint32_t i = h.from; i < h.n_pages; i++)
		if (l->ids[i] >= limits->pages && l->ids[i] != UINT32_MAX)
			return false;
	for (uint32_t i = 0; h.parents && i < h.n; i++)
		if (w->parents[h.row + i] >= i && w->parents[h.row + i] != UINT32_MAX)
			return false;
	*out = (struct mx_span){.row = h.row,
	                        .n = h.n,
	                        .pos = h.pos,
	                        .max_len = h.max_len,
	                        .kind = (enum mx_span_kind)h.kind,
	                        .slot = h.slot,
	                        .pages = l->ids,
	                        .n_pages = h.n_pages,
	                        .parent = h.parents ? w->parents + h.row : NULL};
	return true;
}

/* Reads what is kept of span i. */
static bool get_kept(struct mx_rank_wire *w, struct reader *r, uint32_t i)
{
	uint32_t *path = w->paths + (size_t)i * w->limits.kept;
	const uint32_t *k = get(r, 2), n = w->spans[i].n;
	if (!k || k[0] > n || (k[1] && (k[0] > w->limits.kept || !get_to(r, path, k[0]))))
		return false;
	for (uint32_t j = 0; k[1] && j < k[0]; j++)
		if (path[j] >= n)
			return false;
	w->kept[i] = (struct mx_kept){.n = k[0], .path = k[1] ? path : NULL};
	return true;
}

static bool get_call(struct mx_rank_wire *w, struct reader *r, struct mx_rank_call *out)
{
	const struct mx_rank_wire_limits *l = &w->limits;
	struct head h;
	if (!get_to(r, &h, WORDS(struct head)) || h.run > w->n_runs || h.n_spans > l->spans ||
	    h.n_rows > l->rows || h.longest > h.n_rows || h.n > l->rows || h.slot >= l->slots ||
	    h.page > l->pages || h.block > l->blocks)
		return false;
	for (uint32_t i = 0; i < h.n_spans; i++)
		if (!get_span(w, r, h.n_rows, &w->spans[i]))
			return false;
	if ((h.has & HAS_POS && !get_to(r, w->pos, h.n_rows)) ||
	    (h.has & HAS_IDS && !get_to(r, w->ids, h.n_rows)) ||
	    (h.has & HAS_ROWS && !get_to(r, w->rows, h.n_rows)))
		return false;
	for (uint32_t i = 0; h.has & HAS_KEPT && i < h.n_spans; i++)
		if (!get_kept(w, r, i))
			return false;
	if (r->at != r->end)
		return false;
	*out = (struct mx_rank_call){.run = h.run ? w->runs[h.run - 1] : NULL,
	                             .step = {.spans = w->spans,
	                                      .n_spans = h.n_spans,
	                                      .n_rows = h.n_rows,
	                                      .longest = h.longest,
	                                      .pos = h.has & HAS_POS ? w->pos : NULL},
	                             .ids = h.has & HAS_IDS ? w->ids : NULL,
	                             .kept = h.has & HAS_KEPT ? w->kept : NULL,
	                             .rows = h.has & HAS_ROWS ? w->rows : NULL,
	                             .n = h.n,
	                             .slot = h.slot,
	                             .pos = h.pos,
	                             .page = h.page,
	                             .block = h.block,
	                             .begins = h.begins};
	return true;
}

mx_status mx_rank_wire_read(struct mx_rank_wire *w, const void *message, size_t bytes,
                            struct mx_rank_call *out)
{
	struct reader r = {message, (const uint32_t *)message + bytes / sizeof(uint32_t)};
	return bytes % sizeof(uint32_t) == 0 && get_call(w, &r, out) ? MX_OK : MX_E_FORMAT;
}

mx_status mx_rank_wire_receive(struct mx_rank_wire *w, struct mx_rank_call *out)
{
	struct mx_link *l = mx_hosts_link(w->hosts, 0);
	struct mx_frame head;
	mx_status st = mx_link_head(l, MX_FRAME_CALL, w->n_words * sizeof *w->words, &head);
	if (st == MX_OK)
		st = mx_link_body(l, w->words, head.bytes);
	if (st != MX_OK) {
		mx_hosts_link_failed(w->hosts, 0, st);
		return MX_E_DEVICE;
	}
	if (mx_rank_wire_read(w, w->words, head.bytes, out) == MX_OK)
		return MX_OK;
	mx_hosts_abort(w->hosts, "a call was sent that cannot be one of this model");
	return MX_E_DEVICE;
}
