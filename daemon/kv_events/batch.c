/* SPDX-License-Identifier: Apache-2.0 */
/* The formats: vllm/distributed/kv_events.py of vLLM 0.26 (maps) and 0.19 (arrays); msgpack's at
 * https://github.com/msgpack/msgpack/blob/master/spec.md. */
#include "daemon/kv_events/batch.h"

#include <stdio.h>
#include <string.h>

/* The tier of memory. vLLM says so of its main memory for keys and values, whatever the device. */
#define MEDIUM "GPU"

/* ---- msgpack ---- */

/* Appends a byte and the lowest `bytes` bytes of v, the highest first. */
static void put(struct mx_buf *out, unsigned first, uint64_t v, unsigned bytes)
{
	char text[9] = {(char)first};
	for (unsigned i = 0; i < bytes; i++)
		text[1 + i] = (char)(v >> (8 * (bytes - 1 - i)));
	mx_buf_append(out, text, 1 + bytes);
}

static void put_uint(struct mx_buf *out, uint64_t v)
{
	if (v < 0x80)
		put(out, (unsigned)v, 0, 0);
	else if (v <= UINT8_MAX)
		put(out, 0xcc, v, 1);
	else if (v <= UINT16_MAX)
		put(out, 0xcd, v, 2);
	else if (v <= UINT32_MAX)
		put(out, 0xce, v, 4);
	else
		put(out, 0xcf, v, 8);
}

static void put_nil(struct mx_buf *out)
{
	mx_buf_putc(out, (char)0xc0);
}

static void put_double(struct mx_buf *out, double v)
{
	uint64_t bits;
	memcpy(&bits, &v, sizeof(bits));
	put(out, 0xcb, bits, 8);
}

/* At most 255 bytes. */
static void put_text(struct mx_buf *out, const char *s)
{
	size_t n = strlen(s);
	if (n < 32)
		put(out, 0xa0 | (unsigned)n, 0, 0);
	else
		put(out, 0xd9, n, 1);
	mx_buf_append(out, s, n);
}

/* n values follow. */
static void put_array(struct mx_buf *out, uint32_t n)
{
	if (n < 16)
		put(out, 0x90 | n, 0, 0);
	else
		put(out, 0xdd, n, 4);
}

/* n < 16 keys follow, each with its value. */
static void put_map(struct mx_buf *out, uint32_t n)
{
	put(out, 0x80 | n, 0, 0);
}

/* ---- events ---- */

/* An event of n_fields fields, its type first: a map has their names, an array has not. */
static void begin_event(struct mx_buf *out, enum mx_kv_encoding encoding, uint32_t n_fields,
                        const char *type)
{
	if (encoding == MX_KV_MAPS) {
		put_map(out, n_fields);
		put_text(out, "type");
	} else {
		put_array(out, n_fields);
	}
	put_text(out, type);
}

static void name_field(struct mx_buf *out, enum mx_kv_encoding encoding, const char *name)
{
	if (encoding == MX_KV_MAPS)
		put_text(out, name);
}

static void put_hashes(struct mx_buf *out, const struct mx_kv_event *e, uint32_t n)
{
	put_array(out, n);
	for (uint32_t i = 0; i < n; i++)
		put_uint(out, e[i].hash);
}

/* The keys besides tokens that tell blocks apart: for a first block its salt, for others none. */
static void put_extra_keys(struct mx_buf *out, const struct mx_kv_event *e, uint32_t n)
{
	char salt[33];
	put_array(out, n);
	put_array(out, 1);
	snprintf(salt, sizeof(salt), "%016llx%016llx", (unsigned long long)e->salt[0],
	         (unsigned long long)e->salt[1]);
	put_text(out, salt);
	for (uint32_t i = 1; i < n; i++)
		put_nil(out);
}

static void put_stored(struct mx_buf *out, enum mx_kv_encoding encoding,
                       const struct mx_kv_event *e, uint32_t n, uint32_t block_tokens)
{
	bool salted = !e->parent && (e->salt[0] || e->salt[1]);
	begin_event(out, encoding, salted ? 9 : 8, "BlockStored");
	name_field(out, encoding, "block_hashes");
	put_hashes(out, e, n);
	name_field(out, encoding, "parent_block_hash");
	if (e->parent)
		put_uint(out, e->parent);
	else
		put_nil(out);
	name_field(out, encoding, "token_ids");
	put_array(out, n * block_tokens);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t t = 0; t < block_tokens; t++)
			put_uint(out, (uint32_t)e[i].tokens[t]);
	name_field(out, encoding, "block_size");
	put_uint(out, block_tokens);
	name_field(out, encoding, "lora_id");
	put_nil(out);
	name_field(out, encoding, "medium");
	put_text(out, MEDIUM);
	name_field(out, encoding, "lora_name");
	put_nil(out);
	if (salted) {
		name_field(out, encoding, "extra_keys");
		put_extra_keys(out, e, n);
	}
}

static void put_removed(struct mx_buf *out, enum mx_kv_encoding encoding,
                        const struct mx_kv_event *e, uint32_t n)
{
	begin_event(out, encoding, 3, "BlockRemoved");
	name_field(out, encoding, "block_hashes");
	put_hashes(out, e, n);
	name_field(out, encoding, "medium");
	put_text(out, MEDIUM);
}

/* Returns how many events become one with the first. */
static uint32_t joined(const struct mx_kv_event *e, uint32_t n)
{
	uint32_t i = 1;
	while (i < n && e->kind != MX_KV_CLEARED && e[i].kind == e->kind &&
	       (e->kind == MX_KV_REMOVED || e[i].parent == e[i - 1].hash))
		i++;
	return i;
}

void mx_kv_batch_write(struct mx_buf *out, double time, const struct mx_kv_event *events,
                       uint32_t n, uint32_t block_tokens, enum mx_kv_encoding encoding)
{
	uint32_t n_joined = 0;
	for (uint32_t i = 0; i < n; i += joined(events + i, n - i))
		n_joined++;
	put_array(out, 3);
	put_double(out, time);
	put_array(out, n_joined);
	for (uint32_t i = 0, k; i < n; i += k) {
		k = joined(events + i, n - i);
		switch (events[i].kind) {
		case MX_KV_STORED: put_stored(out, encoding, events + i, k, block_tokens); break;
		case MX_KV_REMOVED: put_removed(out, encoding, events + i, k); break;
		case MX_KV_CLEARED: begin_event(out, encoding, 1, "AllBlocksCleared"); break;
		}
	}
	put_uint(out, 0); /* the rank among replicas of one server: there is one */
}
