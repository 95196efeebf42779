/* SPDX-License-Identifier: Apache-2.0 */
/* The two forms of log-probabilities: of completions and of chats. */
#include <stdio.h>
#include <string.h>

#include "proto/json_out.h"
#include "proto/response.h"

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

/* Reads a token's raw bytes into *out. A failure is remembered in b, the buffer being written. */
static void token_bytes(struct mx_buf *b, const struct mx_api_vocab *vocab, int32_t id,
                        struct mx_buf *out)
{
	mx_buf_clear(out);
	vocab->bytes(vocab->arg, id, out);
	b->failed = b->failed || out->failed;
}

/* Writes the legacy name of a token to *out: its text or, if its bytes are not valid UTF-8,
 * OpenAI's spelling of them: bytes:\xe2\x80. */
static void legacy_name(struct mx_buf *b, const struct mx_api_vocab *vocab, int32_t id,
                        struct mx_buf *out)
{
	token_bytes(b, vocab, id, out);
	if (is_utf8(mx_buf_str(out), out->len))
		return;
	struct mx_buf raw = *out;
	*out = (struct mx_buf){0};
	mx_buf_puts(out, "bytes:");
	for (size_t i = 0; i < raw.len; i++)
		mx_buf_printf(out, "\\x%02x", (unsigned char)raw.data[i]);
	mx_buf_free(&raw);
	b->failed = b->failed || out->failed;
}

/* Writes {"name":logprob,...}. Two ids may share a name. A client that parses equal keys gets the
 * last one, which is the less likely token, so only the first is written. */
static void write_top(struct mx_buf *b, const struct mx_api_vocab *vocab,
                      const struct mx_api_token *t)
{
	struct mx_buf names[MX_MAX_TOP_LOGPROBS + 1] = {{0}};
	uint32_t n_top = t->n_top < MX_MAX_TOP_LOGPROBS ? t->n_top : MX_MAX_TOP_LOGPROBS;
	uint32_t n = 0;
	bool found = false;
	mx_buf_putc(b, '{');
	for (uint32_t i = 0; i <= n_top; i++) {
		bool self = i == n_top; /* last, unless it was among the others */
		if (self && found)
			break;
		int32_t id = self ? t->id : t->top[i].token;
		found = found || id == t->id;
		legacy_name(b, vocab, id, &names[n]);
		bool twice = false;
		for (uint32_t j = 0; j < n && !twice; j++)
			twice = names[j].len == names[n].len &&
			        !memcmp(mx_buf_str(&names[j]), mx_buf_str(&names[n]), names[n].len);
		if (twice)
			continue;
		if (n)
			mx_buf_putc(b, ',');
		mx_json_string(b, mx_buf_str(&names[n]), names[n].len);
		mx_buf_putc(b, ':');
		mx_json_float(b, self ? t->logprob : t->top[i].logprob);
		n++;
	}
	mx_buf_putc(b, '}');
	for (uint32_t i = 0; i <= MX_MAX_TOP_LOGPROBS; i++)
		mx_buf_free(&names[i]);
}

void mx_api_write_legacy_logprobs(struct mx_buf *b, const struct mx_api_vocab *vocab,
                                  const struct mx_api_token *tokens, size_t n)
{
	struct mx_buf name = {0};
	mx_buf_puts(b, "{\"tokens\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			mx_buf_putc(b, ',');
		legacy_name(b, vocab, tokens[i].id, &name);
		mx_json_string(b, mx_buf_str(&name), name.len);
	}
	mx_buf_puts(b, "],\"token_logprobs\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			mx_buf_putc(b, ',');
		if (tokens[i].first)
			mx_buf_puts(b, "null");
		else
			mx_json_float(b, tokens[i].logprob);
	}
	mx_buf_puts(b, "],\"top_logprobs\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			mx_buf_putc(b, ',');
		if (tokens[i].first)
			mx_buf_puts(b, "null");
		else
			write_top(b, vocab, &tokens[i]);
	}
	mx_buf_puts(b, "],\"text_offset\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			mx_buf_putc(b, ',');
		mx_json_int(b, tokens[i].text_offset);
	}
	mx_buf_puts(b, "]}");
	mx_buf_free(&name);
}

/* Writes "token":...,"logprob":...,"bytes":[...]. */
static void write_entry(struct mx_buf *b, const struct mx_api_vocab *vocab, int32_t id,
                        float logprob, struct mx_buf *bytes)
{
	token_bytes(b, vocab, id, bytes);
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

void mx_api_write_chat_logprobs(struct mx_buf *b, const struct mx_api_vocab *vocab,
                                const struct mx_api_token *tokens, size_t n)
{
	struct mx_buf bytes = {0};
	mx_buf_puts(b, "{\"content\":[");
	for (size_t i = 0; i < n; i++) {
		if (i)
			mx_buf_putc(b, ',');
		write_entry(b, vocab, tokens[i].id, tokens[i].logprob, &bytes);
		mx_buf_puts(b, ",\"top_logprobs\":[");
		for (uint32_t j = 0; j < tokens[i].n_top; j++) {
			if (j)
				mx_buf_putc(b, ',');
			write_entry(b, vocab, tokens[i].top[j].token, tokens[i].top[j].logprob, &bytes);
			mx_buf_putc(b, '}');
		}
		mx_buf_puts(b, "]}");
	}
	mx_buf_puts(b, "]}");
	mx_buf_free(&bytes);
}
