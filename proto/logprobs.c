/* SPDX-License-Identifier: Apache-2.0 */
/* The two forms of log-probabilities: of completions and of chats. */
#include <stdio.h>
#include <string.h>

#include "proto/json_out.h"
#include "proto/pieces.h"

static bool is_utf8(const char *s, size_t len)
{
	for (size_t i = 0; i < len;) {
		size_t k = mx_utf8_sequence((const unsigned char *)s + i, len - i);
		if (!k)
			return false;
		i += k;
	}
	return true;
}

/* Appends a token's raw bytes to *out. A failure is remembered in b, the buffer being written. */
static void add_bytes(struct mx_buf *b, const struct mx_api_vocab *vocab, int32_t id,
                      struct mx_buf *out)
{
	vocab->bytes(vocab->arg, id, out);
	b->failed = b->failed || out->failed;
}

/* Appends the legacy name of a token to *out: its text or, if its bytes are not valid UTF-8,
 * OpenAI's spelling of them: bytes:\xe2\x80. */
static void add_name(struct mx_buf *b, const struct mx_api_vocab *vocab, int32_t id,
                     struct mx_buf *out)
{
	static const char hex[] = "0123456789abcdef";
	size_t from = out->len;
	add_bytes(b, vocab, id, out);
	size_t n = out->len - from;
	if (is_utf8(mx_buf_str(out) + from, n))
		return;
	/* the spelling is longer than the bytes: it is made behind them and then moved over them */
	mx_buf_puts(out, "bytes:");
	for (size_t i = 0; i < n && !out->failed; i++) {
		unsigned char c = (unsigned char)out->data[from + i];
		mx_buf_append(out, (const char[]){'\\', 'x', hex[c >> 4], hex[c & 15]}, 4);
	}
	b->failed = b->failed || out->failed;
	memmove(out->data + from, out->data + from + n, out->len - from - n);
	out->len -= n;
}

/* Appends the legacy name of a token as JSON. */
static void write_name(struct mx_pieces *p, const struct mx_api_choice *c, size_t i)
{
	mx_buf_clear(&p->name);
	add_name(p->b, c->vocab, c->tokens[i].id, &p->name);
	mx_json_string(p->b, mx_buf_str(&p->name), p->name.len);
}

/* Writes {"name":logprob,...}. Two ids may share a name. A client that parses equal keys gets the
 * last one, which is the less likely token, so only the first is written. */
static void write_top(struct mx_pieces *p, const struct mx_api_choice *c, size_t token)
{
	const struct mx_api_token *t = &c->tokens[token];
	const struct mx_top_token *top = c->top + token * c->top_stride;
	size_t ends[MX_MAX_TOP_LOGPROBS + 2] = {0}; /* name i of p->name ends at ends[i + 1] */
	uint32_t n_top = t->n_top < MX_MAX_TOP_LOGPROBS ? t->n_top : MX_MAX_TOP_LOGPROBS;
	uint32_t n = 0;
	bool found = false;
	mx_buf_clear(&p->name);
	mx_buf_putc(p->b, '{');
	for (uint32_t i = 0; i <= n_top; i++) {
		bool self = i == n_top; /* last, unless it was among the others */
		if (self && found)
			break;
		int32_t id = self ? t->id : top[i].token;
		found = found || id == t->id;
		add_name(p->b, c->vocab, id, &p->name);
		const char *name = mx_buf_str(&p->name) + ends[n];
		size_t len = p->name.len - ends[n];
		bool twice = false;
		for (uint32_t j = 0; j < n && !twice; j++)
			twice =
				ends[j + 1] - ends[j] == len && !memcmp(mx_buf_str(&p->name) + ends[j], name, len);
		if (twice) {
			p->name.len = ends[n];
			continue;
		}
		if (n)
			mx_buf_putc(p->b, ',');
		mx_json_string(p->b, name, len);
		mx_buf_putc(p->b, ':');
		mx_json_float(p->b, self ? t->logprob : top[i].logprob);
		ends[++n] = p->name.len;
	}
	mx_buf_putc(p->b, '}');
}

/* ---- elements of the legacy arrays ---- */

static void legacy_token(struct mx_pieces *p, const void *arg, size_t i)
{
	write_name(p, arg, i);
}

static void legacy_logprob(struct mx_pieces *p, const void *arg, size_t i)
{
	const struct mx_api_token *t = &((const struct mx_api_choice *)arg)->tokens[i];
	if (t->first)
		mx_buf_puts(p->b, "null");
	else
		mx_json_float(p->b, t->logprob);
}

static void legacy_top(struct mx_pieces *p, const void *arg, size_t i)
{
	const struct mx_api_choice *c = arg;
	if (c->tokens[i].first)
		mx_buf_puts(p->b, "null");
	else
		write_top(p, c, i);
}

static void legacy_offset(struct mx_pieces *p, const void *arg, size_t i)
{
	mx_json_int(p->b, ((const struct mx_api_choice *)arg)->tokens[i].text_offset);
}

bool mx_pieces_legacy_logprobs(struct mx_pieces *p, const struct mx_api_choice *c)
{
	static const struct {
		const char *name;
		void (*element)(struct mx_pieces *p, const void *arg, size_t i);
	} arrays[] = {{"{\"tokens\":", legacy_token},
	              {",\"token_logprobs\":", legacy_logprob},
	              {",\"top_logprobs\":", legacy_top},
	              {",\"text_offset\":", legacy_offset}};
	for (; p->at->section < 4; p->at->section++) {
		if (p->at->at == 0)
			mx_buf_puts(p->b, arrays[p->at->section].name);
		if (!mx_pieces_array(p, c->n_tokens, arrays[p->at->section].element, c))
			return false;
	}
	p->at->section = 0;
	mx_buf_putc(p->b, '}');
	return true;
}

/* Writes {"token":...,"logprob":...,"bytes":[...], without the closing brace. */
static void write_entry(struct mx_pieces *p, const struct mx_api_vocab *vocab, int32_t id,
                        float logprob)
{
	struct mx_buf *b = p->b, *bytes = &p->name;
	mx_buf_clear(bytes);
	add_bytes(b, vocab, id, bytes);
	mx_buf_puts(b, "{\"token\":");
	mx_json_string(b, mx_buf_str(bytes), bytes->len);
	mx_buf_puts(b, ",\"logprob\":");
	mx_json_float(b, logprob);
	mx_buf_puts(b, ",\"bytes\":[");
	for (size_t i = 0; i < bytes->len; i++) {
		if (i)
			mx_buf_putc(b, ',');
		mx_json_int(b, (unsigned char)bytes->data[i]);
	}
	mx_buf_putc(b, ']');
}

static void chat_token(struct mx_pieces *p, const void *arg, size_t i)
{
	const struct mx_api_choice *c = arg;
	const struct mx_api_token *t = &c->tokens[i];
	const struct mx_top_token *top = c->top + i * c->top_stride;
	write_entry(p, c->vocab, t->id, t->logprob);
	mx_buf_puts(p->b, ",\"top_logprobs\":[");
	for (uint32_t j = 0; j < t->n_top; j++) {
		if (j)
			mx_buf_putc(p->b, ',');
		write_entry(p, c->vocab, top[j].token, top[j].logprob);
		mx_buf_putc(p->b, '}');
	}
	mx_buf_puts(p->b, "]}");
}

bool mx_pieces_chat_tokens(struct mx_pieces *p, const struct mx_api_choice *c)
{
	return mx_pieces_array(p, c->n_tokens, chat_token, c);
}

bool mx_pieces_chat_logprobs(struct mx_pieces *p, const struct mx_api_choice *c)
{
	if (p->at->at == 0)
		mx_buf_puts(p->b, "{\"content\":");
	if (!mx_pieces_chat_tokens(p, c))
		return false;
	mx_buf_putc(p->b, '}');
	return true;
}
