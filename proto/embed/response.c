/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/embed/response.h"

#include <string.h>

#include "proto/json_out.h"
#include "proto/pieces.h"

static void write_float(struct mx_pieces *p, const void *arg, size_t i)
{
	mx_json_float(p->b, ((const float *)arg)[i]);
}

/* Writes bytes in base64, padded if they are no multiple of 3. */
static void write_base64(struct mx_buf *b, const unsigned char *s, size_t n)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	for (size_t i = 0; i < n; i += 3) {
		size_t left = n - i < 3 ? n - i : 3;
		unsigned long v = (unsigned long)s[i] << 16;
		v |= left > 1 ? (unsigned long)s[i + 1] << 8 : 0;
		v |= left > 2 ? s[i + 2] : 0;
		const char out[4] = {digits[v >> 18], digits[v >> 12 & 63],
		                     left > 1 ? digits[v >> 6 & 63] : '=', left > 2 ? digits[v & 63] : '='};
		mx_buf_append(b, out, sizeof(out));
	}
}

/* Floats that are written between two looks at the piece's end: a multiple of 3, so that none but
 * the last run is padded. */
#define RUN 192

/* Writes floats in base64, with quotes around them. */
static bool write_floats(struct mx_pieces *p, const float *v, size_t n)
{
	struct mx_api_cursor *at = p->at;
	if (!at->at)
		mx_buf_putc(p->b, '"');
	for (bool first = true; at->at < n; first = false) {
		unsigned char bytes[RUN * 4];
		size_t k = n - at->at < RUN ? n - at->at : RUN;
		if (!first && p->b->len >= p->end)
			return false;
		for (size_t i = 0; i < k; i++) {
			uint32_t bits;
			memcpy(&bits, &v[at->at + i], sizeof(bits));
			for (unsigned j = 0; j < 4; j++)
				bytes[4 * i + j] = (unsigned char)(bits >> 8 * j);
		}
		write_base64(p->b, bytes, 4 * k);
		at->at += k;
	}
	mx_buf_putc(p->b, '"');
	at->at = 0;
	return true;
}

bool mx_embed_write_vector(struct mx_buf *b, const float *v, size_t n, bool base64, size_t max,
                           struct mx_api_cursor *at)
{
	struct mx_pieces p = mx_pieces_begin(b, max, at);
	bool all = base64 ? write_floats(&p, v, n) : mx_pieces_array(&p, n, write_float, v);
	mx_pieces_end(&p);
	return all;
}

void mx_embed_write_begin(struct mx_buf *b, const char *id, int64_t created, const char *model)
{
	mx_buf_puts(b, "{\"id\":");
	mx_json_cstring(b, id);
	mx_buf_puts(b, ",\"object\":\"list\",\"created\":");
	mx_json_int(b, created);
	mx_buf_puts(b, ",\"model\":");
	mx_json_cstring(b, model);
	mx_buf_puts(b, ",\"data\":[");
}

static void begin_element(struct mx_buf *b, uint32_t index, const char *object)
{
	if (index)
		mx_buf_putc(b, ',');
	mx_buf_puts(b, "{\"index\":");
	mx_json_int(b, index);
	mx_buf_puts(b, ",\"object\":");
	mx_json_cstring(b, object);
}

bool mx_embed_write_embedding(struct mx_buf *b, uint32_t index, const float *v, size_t n,
                              bool base64, size_t max, struct mx_api_cursor *at)
{
	if (!at->part) {
		begin_element(b, index, "embedding");
		mx_buf_puts(b, ",\"embedding\":");
		at->part = 1;
	}
	if (!mx_embed_write_vector(b, v, n, base64, max, at))
		return false;
	mx_buf_putc(b, '}');
	at->part = 0;
	return true;
}

void mx_embed_write_score(struct mx_buf *b, uint32_t index, float score)
{
	begin_element(b, index, "score");
	mx_buf_puts(b, ",\"score\":");
	mx_json_float(b, score);
	mx_buf_putc(b, '}');
}

/* Writes the member `usage`. */
static void write_usage(struct mx_buf *b, const struct mx_api_usage *usage)
{
	mx_buf_puts(b, ",\"usage\":{\"prompt_tokens\":");
	mx_json_int(b, (int64_t)usage->prompt);
	mx_buf_puts(b, ",\"total_tokens\":");
	mx_json_int(b, (int64_t)usage->prompt);
	mx_buf_puts(b, ",\"prompt_tokens_details\":{\"cached_tokens\":");
	mx_json_int(b, (int64_t)usage->cached);
	mx_buf_puts(b, "}}");
}

void mx_embed_write_end(struct mx_buf *b, const struct mx_api_usage *usage)
{
	mx_buf_putc(b, ']');
	write_usage(b, usage);
	mx_buf_putc(b, '}');
}

void mx_embed_write_ranks_begin(struct mx_buf *b, const char *id, const char *model)
{
	mx_buf_puts(b, "{\"id\":");
	mx_json_cstring(b, id);
	mx_buf_puts(b, ",\"model\":");
	mx_json_cstring(b, model);
	mx_buf_puts(b, ",\"results\":[");
}

bool mx_embed_write_rank(struct mx_buf *b, const struct mx_embed_rank *r, bool first, size_t max,
                         struct mx_api_cursor *at)
{
	if (!at->part) {
		mx_buf_puts(b, first ? "{\"index\":" : ",{\"index\":");
		mx_json_int(b, r->index);
		mx_buf_puts(b, ",\"relevance_score\":");
		mx_json_float(b, r->score);
		if (r->text)
			mx_buf_puts(b, ",\"document\":{\"text\":");
		at->part = 1;
	}
	if (r->text) {
		struct mx_pieces p = mx_pieces_begin(b, max, at);
		bool all = mx_pieces_string(&p, r->text, r->len);
		mx_pieces_end(&p);
		if (!all)
			return false;
		mx_buf_putc(b, '}');
	}
	mx_buf_putc(b, '}');
	at->part = 0;
	return true;
}
