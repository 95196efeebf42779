/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/ollama/response.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "proto/json_out.h"
#include "proto/pieces.h"

void mx_ollama_write_error(struct mx_buf *b, const struct mx_api_error *err, unsigned status,
                           const char *id)
{
	(void)status;
	(void)id;
	mx_buf_puts(b, "{\"error\":");
	mx_json_cstring(b, err->message);
	mx_buf_putc(b, '}');
}

/* Writes a time in RFC 3339, with nanoseconds and quotes. */
static void write_time(struct mx_buf *b, uint64_t wall_ns)
{
	time_t s = (time_t)(wall_ns / 1000000000);
	struct tm tm;
	char text[40];
	gmtime_r(&s, &tm);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	mx_buf_printf(b, "\"%s.%09uZ\"", text, (unsigned)(wall_ns % 1000000000));
}

/* ---- the parts of an object, in order ---- */

/* Writes the text of all items of a kind as one string. */
static bool write_texts(struct mx_pieces *p, const struct mx_ollama_part *o,
                        enum mx_api_item_kind kind, size_t *item)
{
	for (; *item < o->n_items; (*item)++) {
		struct mx_api_item i = o->item(o->arg, *item);
		if (i.kind == kind && !mx_pieces_escaped(p, i.text, i.len))
			return false;
	}
	*item = 0;
	return true;
}

static size_t count(const struct mx_ollama_part *o, enum mx_api_item_kind kind)
{
	size_t n = 0;
	for (size_t i = 0; i < o->n_items; i++)
		n += o->item(o->arg, i).kind == kind;
	return n;
}

/* Appends a text as it is, in pieces. */
static bool write_plain(struct mx_pieces *p, const char *s, size_t len)
{
	size_t n = p->end > p->b->len ? p->end - p->b->len : 1;
	n = n < len - p->at->at ? n : len - p->at->at;
	mx_buf_append(p->b, s + p->at->at, n);
	p->at->at += n;
	if (p->at->at < len)
		return false;
	p->at->at = 0;
	return true;
}

/* Writes the calls. Their arguments are JSON already; those of a call that was cut off are not. */
static bool write_calls(struct mx_pieces *p, const struct mx_ollama_part *o, size_t *item,
                        size_t *section)
{
	for (; *item < o->n_items; (*item)++) {
		struct mx_api_item i = o->item(o->arg, *item);
		if (i.kind != MX_API_ITEM_CALL)
			continue;
		if (!p->at->at) {
			mx_buf_puts(p->b, (*section)++ ? ",{\"id\":" : "{\"id\":");
			mx_json_cstring(p->b, i.call_id);
			mx_buf_puts(p->b, ",\"function\":{\"name\":");
			mx_json_cstring(p->b, i.name);
			mx_buf_puts(p->b, ",\"arguments\":");
		}
		bool object = i.len && i.text[0] == '{' && !i.cut;
		if (!write_plain(p, object ? i.text : "{}", object ? i.len : 2))
			return false;
		mx_buf_puts(p->b, "}}");
	}
	*item = *section = 0;
	return true;
}

static void write_number(struct mx_buf *b, const char *name, uint64_t v)
{
	mx_buf_puts(b, ",\"");
	mx_buf_puts(b, name);
	mx_buf_puts(b, "\":");
	mx_json_int(b, (int64_t)v);
}

static void write_end(struct mx_buf *b, const struct mx_ollama_figures *f)
{
	if (!f) {
		mx_buf_puts(b, ",\"done\":false}");
		return;
	}
	mx_buf_puts(b, ",\"done\":true,\"done_reason\":");
	mx_json_cstring(b, f->done_reason);
	write_number(b, "total_duration", f->total_ns);
	write_number(b, "load_duration", 0);
	write_number(b, "prompt_eval_count", f->prompt_tokens);
	write_number(b, "prompt_eval_duration", f->prompt_ns);
	write_number(b, "eval_count", f->eval_tokens);
	write_number(b, "eval_duration", f->eval_ns);
	mx_buf_putc(b, '}');
}

enum { BEGIN, CONTENT, AFTER_CONTENT, THINKING, AFTER_THINKING, CALLS, END, N_PARTS };

static bool write_section(struct mx_pieces *p, const struct mx_ollama_part *o,
                          struct mx_ollama_cursor *at)
{
	struct mx_buf *b = p->b;
	size_t section = at->inner.section;
	bool all;
	switch (at->part) {
	case BEGIN:
		mx_buf_puts(b, "{\"model\":");
		mx_json_cstring(b, o->model);
		mx_buf_puts(b, ",\"created_at\":");
		write_time(b, o->wall_ns);
		mx_buf_puts(b, o->chat ? ",\"message\":{\"role\":\"assistant\",\"content\":\""
		                       : ",\"response\":\"");
		return true;
	case CONTENT: return write_texts(p, o, MX_API_ITEM_TEXT, &at->item);
	case AFTER_CONTENT:
		mx_buf_putc(b, '"');
		at->part += count(o, MX_API_ITEM_REASONING) ? 0 : 2; /* no thinking */
		if (at->part == AFTER_CONTENT)
			mx_buf_puts(b, ",\"thinking\":\"");
		return true;
	case THINKING: return write_texts(p, o, MX_API_ITEM_REASONING, &at->item);
	case AFTER_THINKING: mx_buf_putc(b, '"'); return true;
	case CALLS:
		if (!o->chat || !count(o, MX_API_ITEM_CALL))
			return true;
		if (!at->item && !at->inner.at)
			mx_buf_puts(b, ",\"tool_calls\":[");
		all = write_calls(p, o, &at->item, &section);
		at->inner.section = (unsigned)section;
		if (all)
			mx_buf_putc(b, ']');
		return all;
	default:
		if (o->chat)
			mx_buf_putc(b, '}');
		write_end(b, o->end);
		return true;
	}
}

bool mx_ollama_write_part(struct mx_buf *b, const struct mx_ollama_part *o, size_t max,
                          struct mx_ollama_cursor *at)
{
	struct mx_pieces p = mx_pieces_begin(b, max, &at->inner);
	while (at->part < N_PARTS && write_section(&p, o, at))
		at->part++;
	mx_pieces_end(&p);
	if (at->part < N_PARTS)
		return false;
	*at = (struct mx_ollama_cursor){0};
	return true;
}

/* ---- models ---- */

/* Sixty-four digits that look like a digest, and are the same for the same name. */
static void write_digest(struct mx_buf *b, const char *name)
{
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
	for (const char *c = name; *c; c++)
		h = (h ^ (unsigned char)*c) * 0x100000001b3u;
	for (int i = 0; i < 4; i++, h = h * 0x9e3779b97f4a7c15u + 1)
		mx_buf_printf(b, "%016llx", (unsigned long long)h);
}

static void write_details(struct mx_buf *b, const struct mx_ollama_model *m)
{
	mx_buf_puts(b, "{\"parent_model\":\"\",\"format\":\"safetensors\",\"family\":");
	mx_json_cstring(b, m->family ? m->family : "");
	mx_buf_puts(b, ",\"families\":[");
	mx_json_cstring(b, m->family ? m->family : "");
	mx_buf_puts(b, "],\"parameter_size\":\"\",\"quantization_level\":\"\"}");
}

/* Writes a name as clients of Ollama expect it: with a tag. */
static void write_name(struct mx_buf *b, const char *name)
{
	mx_buf_putc(b, '"');
	mx_json_escape(b, name, strlen(name));
	mx_buf_puts(b, strchr(name, ':') ? "\"" : ":latest\"");
}

void mx_ollama_write_model(struct mx_buf *b, const struct mx_ollama_model *m, bool runs)
{
	mx_buf_puts(b, "{\"name\":");
	write_name(b, m->name);
	mx_buf_puts(b, ",\"model\":");
	write_name(b, m->name);
	mx_buf_puts(b, runs ? ",\"expires_at\":\"9999-12-31T23:59:59Z\"" : ",\"modified_at\":");
	if (!runs)
		write_time(b, (uint64_t)m->created * 1000000000);
	write_number(b, "size", m->size);
	if (runs)
		write_number(b, "size_vram", m->size);
	if (runs)
		write_number(b, "context_length", m->context);
	mx_buf_puts(b, ",\"digest\":\"");
	write_digest(b, m->name);
	mx_buf_puts(b, "\",\"details\":");
	write_details(b, m);
	mx_buf_putc(b, '}');
}

void mx_ollama_write_show(struct mx_buf *b, const struct mx_ollama_model *m)
{
	const char *family = m->family ? m->family : "unknown";
	mx_buf_puts(b, "{\"modelfile\":\"\",\"parameters\":\"\",\"template\":");
	mx_json_cstring(b, m->template ? m->template : "{{ .Prompt }}");
	mx_buf_puts(b, ",\"details\":");
	write_details(b, m);
	mx_buf_puts(b, ",\"model_info\":{\"general.architecture\":");
	mx_json_cstring(b, family);
	const struct {
		const char *name;
		uint32_t v;
	} numbers[] = {
		{"context_length", m->context}, {"embedding_length", m->width}, {"vocab_size", m->vocab}};
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		mx_buf_puts(b, ",\"");
		mx_json_escape(b, family, strlen(family));
		mx_buf_printf(b, ".%s\":%u", numbers[i].name, numbers[i].v);
	}
	mx_buf_puts(b, "},\"modified_at\":");
	write_time(b, (uint64_t)m->created * 1000000000);
	mx_buf_puts(b, ",\"capabilities\":[\"completion\"");
	mx_buf_puts(b, m->tools ? ",\"tools\"" : "");
	mx_buf_puts(b, m->thinking ? ",\"thinking\"" : "");
	mx_buf_puts(b, m->embeds ? ",\"embedding\"" : "");
	mx_buf_puts(b, "]}");
}
