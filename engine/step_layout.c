/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/step_layout.h"

#include <string.h>

#include "engine/page_table.h"

/* Writes positions and parents of the rows of an item whose drafts are a tree: row 0 is the
 * sequence's last token. */
static void lay_out_tree(const struct mx_step_item *item, uint32_t *pos, uint32_t *parents)
{
	parents[0] = UINT32_MAX;
	for (uint32_t k = 0; k < item->n_draft; k++) {
		parents[1 + k] = item->parent[k] == MX_NO_DRAFT ? 0 : 1 + item->parent[k];
		pos[1 + k] = pos[parents[1 + k]] + 1;
	}
}

struct mx_span mx_span_of(const struct mx_seq *q, uint32_t row, uint32_t n)
{
	return (struct mx_span){
		.row = row,
		.n = n,
		.pos = q->computed,
		.max_len = q->params.max_len,
		.kind = n == 1 ? MX_SPAN_DECODE : MX_SPAN_PREFILL,
		.slot = q->slot,
		.pages = q->pages.ids,
		.n_pages = q->pages.n,
	};
}

uint32_t mx_lay_out_resumed(struct mx_model_engine *e)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < e->core.n_items; i++) {
		struct mx_seq *q = e->core.items[i].seq;
		if (q->resumes && e->model.resumes)
			e->scratch.spans[n++] = mx_span_of(q, 0, 0);
		q->resumes = false;
	}
	return n;
}

uint32_t mx_lay_out_rows(struct mx_model_engine *e, const struct mx_tables *to,
                         uint32_t *out_longest)
{
	struct mx_span *spans = e->scratch.spans;
	uint32_t row = 0, longest = 0;
	for (uint32_t i = 0; i < e->core.n_items; i++) {
		const struct mx_step_item *item = &e->core.items[i];
		const struct mx_seq *q = item->seq;
		uint32_t n = item->n + item->n_draft;
		spans[i] = mx_span_of(q, row, n);
		if (item->n_draft || item->tentative)
			spans[i].kind = MX_SPAN_DRAFT;
		longest = n > longest ? n : longest;
		mx_seq_tokens_copy(&q->tokens, q->computed, q->computed + item->n, to->ids + row);
		for (uint32_t k = 0; k < item->n_draft; k++)
			to->ids[row + item->n + k] = item->draft[k];
		for (uint32_t k = 0; k < n; k++)
			to->pos[row + k] = q->computed + k;
		if (item->n_draft && item->parent) {
			spans[i].parent = e->scratch.parents + row;
			lay_out_tree(item, to->pos + row, e->scratch.parents + row);
		}
		row += n;
	}
	*out_longest = longest;
	return row;
}

struct mx_device_tables mx_device_tables_of(const struct mx_model_engine *e,
                                            const struct mx_tables *t)
{
	return (struct mx_device_tables){.pos = t->pos,
	                                 .row_span = t->row_span,
	                                 .spans = t->spans,
	                                 .pages = e->scratch.page_table,
	                                 .parents = e->trees ? t->parents : NULL};
}

void mx_lay_out_spans(const struct mx_model_engine *e, uint32_t n_spans, const struct mx_tables *to)
{
	const struct mx_span *spans = e->scratch.spans;
	for (uint32_t i = 0; i < n_spans; i++) {
		const struct mx_span *s = &spans[i];
		to->spans[i] = (struct mx_device_span){
			.row = s->row,
			.n = s->n,
			.pos = s->pos,
			.slot = s->slot,
			.page_begin = mx_page_table_at(e, s->slot),
			.n_pages = s->n_pages,
			.max_len = s->max_len,
			.kind = s->kind,
			.parent_begin = s->parent ? s->row : UINT32_MAX,
		};
		for (uint32_t k = 0; k < s->n; k++)
			to->row_span[s->row + k] = i;
		if (s->parent)
			memcpy(to->parents + s->row, s->parent, s->n * sizeof *s->parent);
	}
}

void mx_lay_out_padding(const struct mx_tables *to, uint32_t n_rows, uint32_t n_spans,
                        uint32_t rows, uint32_t spans)
{
	for (uint32_t i = n_spans; i <= spans; i++)
		to->spans[i] = (struct mx_device_span){
			.row = i, .max_len = 1, .kind = MX_SPAN_DECODE, .parent_begin = UINT32_MAX};
	for (uint32_t i = n_rows; i < rows; i++) { /* n_rows >= n_spans */
		to->ids[i] = 0;
		to->pos[i] = 0;
		to->row_span[i] = i < spans ? i : spans;
	}
}
