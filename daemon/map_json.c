/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/map_json.h"

#include "engine/model_map.h"
#include "proto/json_out.h"

static void put_string(struct mx_buf *b, const char *name, const char *value)
{
	mx_buf_printf(b, "\"%s\":", name);
	mx_json_cstring(b, value);
}

static void put_count(struct mx_buf *b, const char *name, uint64_t n)
{
	mx_buf_printf(b, ",\"%s\":%llu", name, (unsigned long long)n);
}

static void put_part(struct mx_buf *b, const struct mx_model_map_part *p)
{
	mx_buf_putc(b, '{');
	switch (p->kind) {
	case MX_BLOCK_MIXER:
		put_string(b, "mixer", p->mixer);
		mx_buf_putc(b, ',');
		put_string(b, "kernels", p->kernels);
		put_count(b, "bytes_per_token", p->bytes_per_token);
		put_count(b, "bytes_per_sequence", p->bytes_per_sequence);
		break;
	case MX_BLOCK_MLP:
	case MX_BLOCK_ASIDE:
	case MX_BLOCK_EXPERTS:
		put_string(b, "feed_forward", p->n_experts ? "experts" : "dense");
		put_count(b, "width", p->width);
		if (p->n_experts) {
			put_count(b, "experts", p->n_experts);
			put_count(b, "chosen", p->n_chosen);
		}
		break;
	}
	put_count(b, "weight_bytes", p->weight_bytes);
	mx_buf_putc(b, '}');
}

static void put_layers(struct mx_buf *b, const struct mx_engine *e)
{
	struct mx_model_map_cursor at = {0};
	struct mx_model_map_part p;
	uint32_t layer = UINT32_MAX;
	mx_buf_puts(b, ",\"layers\":[");
	while (mx_model_map_next(e, &at, &p)) {
		if (p.layer != layer)
			mx_buf_puts(b, layer == UINT32_MAX ? "[" : "],[");
		else
			mx_buf_putc(b, ',');
		layer = p.layer;
		put_part(b, &p);
	}
	mx_buf_puts(b, layer == UINT32_MAX ? "]" : "]]");
}

static void put_mixers(struct mx_buf *b, const struct mx_memory_plan *m)
{
	mx_buf_puts(b, ",\"mixers\":[");
	for (uint32_t i = 0; i < m->n_mixers; i++) {
		const struct mx_engine_mixer *x = &m->mixers[i];
		mx_buf_puts(b, i ? ",{" : "{");
		put_string(b, "mixer", x->name);
		put_count(b, "layers", x->layers);
		put_count(b, "bytes_per_token", x->page_bytes / m->page_tokens);
		put_count(b, "bytes_per_sequence", x->slot_bytes);
		put_count(b, "bytes_per_snapshot", x->snapshot_bytes);
		mx_buf_putc(b, '}');
	}
	mx_buf_putc(b, ']');
}

/* Writes what takes memory, and where: on the device, if it has memory of its own, or on the host,
 * where weights may be pages of a file. */
static void put_memory(struct mx_buf *b, const struct mx_memory_plan *m)
{
	const char *device = m->own_memory ? "device" : "host";
	const struct {
		const char *name, *where;
		size_t bytes;
		uint32_t n; /* so many of equal size; 0 = it is one */
	} parts[] = {
		{"weights", m->own_memory ? "device" : "file",
	     m->own_memory ? m->weights_device : m->weights_mapped, 0},
		{"converted weights", device, m->weights_private + m->weights_made, 0},
		{"mixers' own", device, m->instances, 0},
		{"pages", device, m->pages, m->page_bytes ? m->n_pages : 0},
		{"slots", device, m->slots, m->slot_bytes ? m->n_slots : 0},
		{"snapshots", device, m->snapshots, m->n_snapshots},
		{"scratch", device, m->scratch, 0},
		{"draft model", "host", m->draft, 0},
		{"tables, tokenizer", "host", m->other, 0},
	};
	mx_buf_puts(b, ",\"memory\":[");
	bool first = true;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (!parts[i].bytes)
			continue;
		mx_buf_puts(b, first ? "{" : ",{");
		first = false;
		put_string(b, "part", parts[i].name);
		mx_buf_putc(b, ',');
		put_string(b, "where", parts[i].where);
		put_count(b, "bytes", parts[i].bytes);
		if (parts[i].n)
			put_count(b, "n", parts[i].n);
		mx_buf_putc(b, '}');
	}
	mx_buf_putc(b, ']');
	put_count(b, "host_bytes", mx_host_memory());
	if (m->own_memory)
		put_count(b, "device_bytes", m->device_free);
	put_count(b, "page_tokens", m->page_bytes ? m->page_tokens : 0);
}

void mx_map_json(const struct mx_engine *e, struct mx_buf *out)
{
	struct mx_model_map m;
	mx_model_map_get(e, &m);
	put_string(out, "isa", m.isa);
	mx_buf_putc(out, ',');
	put_string(out, "weights", mx_dtype_name(m.weights));
	mx_buf_putc(out, ',');
	put_string(out, "activations", mx_dtype_name(m.act));
	put_count(out, "threads", m.threads);
	mx_buf_printf(out, ",\"deterministic\":%s", m.deterministic ? "true" : "false");
	put_count(out, "width", m.width);
	put_count(out, "vocabulary", m.vocab);
	put_count(out, "embedding_bytes", m.embed_bytes);
	put_count(out, "head_bytes", m.head_bytes);
	put_mixers(out, m.memory);
	put_layers(out, e);
	put_memory(out, m.memory);
}
