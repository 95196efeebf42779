/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/pending.h"

#include <stdlib.h>

#include "base/mem.h"

size_t mx_pending_bytes(const struct mx_pending *p, int32_t logprobs)
{
	size_t n_top = logprobs > 0 ? (size_t)logprobs : 0;
	return p->text.cap + p->reasoning.cap + p->calls.cap + p->cap_segments * sizeof(*p->segments) +
	       p->cap_tokens * (sizeof(*p->tokens) + n_top * sizeof(*p->top)) +
	       p->cap_ids * sizeof(*p->ids);
}

void mx_pending_clear(struct mx_pending *p)
{
	mx_buf_clear(&p->text);
	mx_buf_clear(&p->reasoning);
	mx_buf_clear(&p->calls);
	p->n_segments = 0;
	p->n_tokens = p->n_ids = 0;
	p->n_cuts = 0;
}

void mx_pending_free(struct mx_pending *p)
{
	mx_buf_free(&p->text);
	mx_buf_free(&p->reasoning);
	mx_buf_free(&p->calls);
	free(p->segments);
	free(p->tokens);
	free(p->top);
	free(p->ids);
	free(p->cuts);
	*p = (struct mx_pending){0};
}

static struct mx_segment *add_segment(struct mx_pending *p, const struct mx_tool_event *e)
{
	if (p->n_segments == p->cap_segments) {
		size_t cap = p->cap_segments ? p->cap_segments * 2 : 8;
		struct mx_segment *all = mx_realloc(p->segments, cap, sizeof(*all));
		if (!all)
			return NULL;
		p->segments = all;
		p->cap_segments = cap;
	}
	struct mx_segment *s = &p->segments[p->n_segments++];
	*s = (struct mx_segment){.call = e->call, .kind = (uint8_t)e->kind};
	return s;
}

/* Adds a part of the text *b: to the last one if it goes on. */
static bool append(struct mx_pending *p, struct mx_buf *b, const struct mx_tool_event *e)
{
	struct mx_segment *last = p->n_segments ? &p->segments[p->n_segments - 1] : NULL;
	bool goes_on = last && last->kind == e->kind && e->kind != MX_TOOL_CALL_BEGIN &&
	               e->kind != MX_TOOL_CALL_END && e->kind != MX_TOOL_CALL_BROKEN &&
	               e->kind != MX_TOOL_CALL_CUT;
	struct mx_segment *s = goes_on ? last : add_segment(p, e);
	if (!s)
		return false;
	if (e->kind == MX_TOOL_CALL_BEGIN) {
		s->id_len = (uint16_t)e->id_len;
		mx_buf_append(b, e->id, e->id_len);
	}
	if (e->kind != MX_TOOL_CALL_BROKEN)
		mx_buf_append(b, e->text, e->len);
	s->end = b->len;
	return !b->failed;
}

/* Takes back the last call: its text is content. */
static bool take_back(struct mx_pending *p, const struct mx_tool_event *e)
{
	while (p->n_segments && p->segments[p->n_segments - 1].call == e->call)
		p->n_segments--;
	p->calls.len = p->n_segments ? p->segments[p->n_segments - 1].end : 0;
	mx_buf_append(&p->text, e->text, e->len);
	return !p->text.failed;
}

bool mx_pending_add(struct mx_pending *p, const struct mx_tool_event *e, bool stream)
{
	if (stream)
		return append(p, &p->text, e);
	switch (e->kind) {
	case MX_TOOL_CONTENT: mx_buf_append(&p->text, e->text, e->len); return !p->text.failed;
	case MX_TOOL_REASONING:
		mx_buf_append(&p->reasoning, e->text, e->len);
		return !p->reasoning.failed;
	case MX_TOOL_CALL_BROKEN: return take_back(p, e);
	default: return append(p, &p->calls, e);
	}
}
