/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/proto/tools/record.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void mx_record_free(struct mx_record *r)
{
	mx_buf_free(&r->events);
	mx_buf_free(&r->text);
	mx_buf_free(&r->arguments);
}

/* Adds a text: to the last event if it is of the same kind. */
static void add(struct mx_record *r, char kind, const char *s, size_t n)
{
	if (r->kind == kind)
		r->events.data[--r->events.len] = 0;
	else
		mx_buf_printf(&r->events, "%c(", kind);
	mx_buf_append(&r->events, s, n);
	mx_buf_putc(&r->events, ')');
}

static void on_event(void *arg, const struct mx_tool_event *e)
{
	struct mx_record *r = arg;
	char kind = "CRBAEXT"[e->kind];
	bool open = r->n_begins > r->n_ends + r->n_broken + r->n_cut;
	r->bad = r->bad || open != (kind == 'A' || kind == 'E' || kind == 'X' || kind == 'T');
	r->bad = r->bad || (!e->len && strchr("CRA", kind));
	if (strchr("BAEXT", kind))
		r->bad = r->bad || e->call != r->n_begins - (kind != 'B');
	switch (e->kind) {
	case MX_TOOL_CONTENT:
	case MX_TOOL_CALL_BROKEN: mx_buf_append(&r->text, e->text, e->len); break;
	case MX_TOOL_CALL_CUT: mx_buf_putc(&r->events, 'T'); break;
	case MX_TOOL_REASONING: r->reasoned = true; break;
	case MX_TOOL_CALL_BEGIN:
		r->n_begins++;
		mx_buf_clear(&r->arguments);
		bool made = e->id_len == 29 && !memcmp(e->id, "call_", 5);
		made = made || (e->id_len == 9 && !memchr(e->id, '_', 9));
		mx_buf_printf(&r->events, "B(%.*s,", made ? 1 : (int)e->id_len, made ? "*" : e->id);
		mx_buf_append(&r->events, e->text, e->len);
		mx_buf_putc(&r->events, ')');
		break;
	case MX_TOOL_CALL_ARGUMENTS: mx_buf_append(&r->arguments, e->text, e->len); break;
	case MX_TOOL_CALL_END: {
		json_error_t err;
		json_t *v = json_loadb(mx_buf_str(&r->arguments), r->arguments.len, JSON_ALLOW_NUL, &err);
		/* Whether bytes are characters and numbers fit is not the parser's affair, and that jansson
		 * has no names with NUL neither. */
		bool other = !v && (json_error_code(&err) == json_error_invalid_utf8 ||
		                    json_error_code(&err) == json_error_null_byte_in_key ||
		                    json_error_code(&err) == json_error_numeric_overflow);
		r->bad = r->bad || !(json_is_object(v) || other);
		json_decref(v);
		r->n_ends++;
		mx_buf_putc(&r->events, 'E');
		break;
	}
	}
	r->n_broken += kind == 'X';
	r->n_cut += kind == 'T';
	if (strchr("CRAX", kind))
		add(r, kind, e->text, e->len);
	r->kind = kind;
}

void mx_record(const struct mx_tool_parser_options *o, const char *text, size_t n, size_t cut,
               size_t step, bool cut_off, struct mx_record *out)
{
	struct mx_tool_parser *p = NULL;
	*out = (struct mx_record){0};
	if (mx_tool_parser_create(o, (struct mx_tool_sink){on_event, out}, &p) != MX_OK)
		abort();
	for (size_t at = 0; at < n;) {
		size_t len = at == 0 && cut ? cut : step;
		len = len < n - at ? len : n - at;
		/* a copy of its own, so that the address sanitizer sees its end */
		char *piece = malloc(len + 1);
		memcpy(piece, text + at, len);
		piece = realloc(piece, len);
		mx_tool_parser_feed(p, piece, len);
		free(piece);
		at += len;
	}
	mx_tool_parser_finish(p, cut_off);
	out->bad = out->bad || mx_tool_parser_failed(p) ||
	           out->n_begins != out->n_ends + out->n_broken + out->n_cut ||
	           (out->n_cut && !cut_off);
	mx_tool_parser_free(p);
}
