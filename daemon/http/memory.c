/* SPDX-License-Identifier: Apache-2.0 */
/* What requests may take of memory, from the configuration alone. */
#include "daemon/http/server.h"

#include "daemon/serve/bodies.h"
#include "model/chat_template.h"
#include "model/tokenizer/tokenizer.h"

#define MIB ((uint64_t)1 << 20)

/* Bytes of a short body once it is parsed: at most about a hundred for each of its bytes. */
#define SHORT_PARSED (7 * MIB)

/* Bytes of a connection's TLS: 10 KiB of keys and state with GnuTLS 3.7, a record that comes and
 * one that leaves. */
#define TLS_SESSION (48u << 10)

uint64_t mx_http_body_memory(uint64_t max_body_bytes)
{
	return max_body_bytes * 8 > 64 * MIB ? max_body_bytes * 8 : 64 * MIB;
}

unsigned mx_http_long_workers(unsigned workers)
{
	return workers > 2 ? workers / 2 : 1;
}

uint64_t mx_http_parse_limit(uint64_t max_body_bytes)
{
	return max_body_bytes * 12 > SHORT_PARSED ? max_body_bytes * 12 : SHORT_PARSED;
}

/* Returns the most bytes for rendering and tokenising a body of at most n bytes. */
static uint64_t prompt_work(uint64_t n)
{
	uint64_t text = mx_chat_template_max_output(n);
	if (text < n)
		text = n;
	uint64_t tokenise = text + mx_tokenizer_encode_memory(text);
	uint64_t render = text + MX_CHAT_MEMORY;
	return tokenise > render ? tokenise : render;
}

void mx_http_memory(const struct mx_http_config *c, struct mx_http_memory *out)
{
	/* besides a connection's buffer: a piece with room to grow, and our own structs */
	const uint64_t connection =
		MX_HTTP_CONNECTION_MEMORY + (32 << 10) + 4096 + (c->tls.cert ? TLS_SESSION : 0);
	struct mx_http_memory m = {
		.bodies = (c->body_memory ? c->body_memory : mx_http_body_memory(c->max_body_bytes)) +
	              mx_bodies_free_total(c->max_connections),
		.short_work = SHORT_PARSED + prompt_work(MX_HTTP_SHORT_BODY),
		.long_work = mx_http_parse_limit(c->max_body_bytes) + prompt_work(c->max_body_bytes),
		.connections = c->max_connections * connection,
		.n_short = c->workers,
		.n_long = mx_http_long_workers(c->workers),
	};
	m.total = m.bodies + m.n_short * m.short_work + m.n_long * m.long_work + m.connections;
	*out = m;
}
