/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the vocabulary, and which of its tokens end a text. */
#include "model/gguf/tokens.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void mx_gguf_put(struct mx_buf *b, const char *s, size_t n)
{
	size_t from = 0;
	mx_buf_putc(b, '"');
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		if (c >= 0x20 && c != '"' && c != '\\')
			continue;
		mx_buf_append(b, s + from, i - from);
		mx_buf_printf(b, "\\u%04x", c);
		from = i + 1;
	}
	mx_buf_append(b, s + from, n - from);
	mx_buf_putc(b, '"');
}

/* Returns the bytes of the character at s, 0 if it is none. */
static size_t character(const unsigned char *s, size_t n)
{
	size_t len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
	if (!len || len > n || s[0] > 0xf4 || !s[0])
		return 0;
	for (size_t i = 1; i < len; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	bool bad = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	           (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
	return len > 1 && bad ? 0 : len;
}

bool mx_gguf_valid(struct mx_gguf_string s)
{
	for (size_t i = 0; i < s.n;) {
		size_t len = character((const unsigned char *)s.s + i, s.n - i);
		if (!len)
			return false;
		i += len;
	}
	return true;
}

/* Returns an array of n elements, or NULL if the key is absent. */
static mx_status array(const struct mx_gguf *g, const char *key, bool strings, uint64_t n,
                       const struct mx_gguf_value **out, struct mx_err *err)
{
	double first;
	*out = mx_gguf_find(g, key);
	if (!*out)
		return MX_OK;
	const struct mx_gguf_value *v = *out;
	if (v->kind != MX_GGUF_ARRAY || (v->element == MX_GGUF_STRING) != strings ||
	    (!strings && v->n && !mx_gguf_element(v, 0, &first)))
		return mx_fail_at(err, MX_E_FORMAT, mx_gguf_name(g), "key '%s': must be a list of %s", key,
		                  strings ? "strings" : "numbers");
	if (n && v->n != n)
		return mx_fail_at(err, MX_E_FORMAT, mx_gguf_name(g),
		                  "key '%s': has %" PRIu64 " elements, tokenizer.ggml.tokens %" PRIu64, key,
		                  v->n, n);
	return MX_OK;
}

mx_status mx_gguf_tokens(const struct mx_gguf *g, struct mx_gguf_token **out, uint32_t *n,
                         struct mx_err *err)
{
	const struct mx_gguf_value *texts, *types = NULL, *scores = NULL;
	mx_status s = array(g, "tokenizer.ggml.tokens", true, 0, &texts, err);
	if (!s && (!texts || !texts->n))
		return mx_fail_at(err, MX_E_NOTFOUND, mx_gguf_name(g),
		                  "has no tokenizer (key 'tokenizer.ggml.tokens')");
	if (!s && texts->n > MX_GGUF_MAX_TOKENS)
		s = mx_fail_at(err, MX_E_LIMIT, mx_gguf_name(g), "has more than %u tokens",
		               MX_GGUF_MAX_TOKENS);
	if (!s)
		s = array(g, "tokenizer.ggml.token_type", false, texts->n, &types, err);
	if (!s)
		s = array(g, "tokenizer.ggml.scores", false, texts->n, &scores, err);
	if (s)
		return s;
	struct mx_gguf_token *t = mx_calloc((size_t)texts->n, sizeof *t);
	if (!t)
		return mx_fail_at(err, MX_E_NOMEM, mx_gguf_name(g), "out of memory");
	const unsigned char *at = texts->at;
	for (uint64_t i = 0; !s && i < texts->n; i++) {
		double type = MX_GGUF_TOKEN_NORMAL, score = 0;
		t[i].text = mx_gguf_next(&at);
		if (types)
			mx_gguf_element(types, i, &type);
		if (scores)
			mx_gguf_element(scores, i, &score);
		t[i].type = type >= 1 && type <= 6 ? (enum mx_gguf_token_type)type : MX_GGUF_TOKEN_NORMAL;
		t[i].score = (float)score;
		if (!mx_gguf_valid(t[i].text))
			s = mx_fail_at(err, MX_E_FORMAT, mx_gguf_name(g),
			               "token %" PRIu64 ": is not valid UTF-8", i);
		else if (!isfinite(score))
			s = mx_fail_at(err, MX_E_FORMAT, mx_gguf_name(g),
			               "token %" PRIu64 ": its score is not finite", i);
	}
	if (s) {
		free(t);
		return s;
	}
	*out = t;
	*n = (uint32_t)texts->n;
	return MX_OK;
}

/* Texts of tokens that end a turn, in models whose metadata names another one. */
static bool ends_turn(struct mx_gguf_string s)
{
	static const char *const known[] = {"<|im_end|>",      "<|eot_id|>",
	                                    "<|eom_id|>",      "<|end|>",
	                                    "<end_of_turn>",   "<|endoftext|>",
	                                    "<|return|>",      "<|call|>",
	                                    "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>",
	                                    "<turn|>",         "<|tool_response>"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i]) == s.n && !memcmp(known[i], s.s, s.n))
			return true;
	return false;
}

static void add(int32_t *ids, size_t *n, int64_t id)
{
	for (size_t i = 0; i < *n; i++)
		if (ids[i] == id)
			return;
	if (*n < MX_GGUF_MAX_ENDS)
		ids[(*n)++] = (int32_t)id;
}

mx_status mx_gguf_ends(const struct mx_gguf *g, int32_t *ids, size_t *n, int32_t *bos,
                       struct mx_err *err)
{
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
	                                   "tokenizer.ggml.eom_token_id",
	                                   "tokenizer.ggml.bos_token_id"};
	struct mx_gguf_token *t = NULL;
	struct mx_gguf_string model = {"", 0};
	uint32_t count = 0;
	*n = 0;
	*bos = -1;
	if (!mx_gguf_find(g, "tokenizer.ggml.tokens"))
		return MX_OK;
	mx_status s = mx_gguf_text(g, "tokenizer.ggml.model", &model, NULL, err);
	if (!s)
		s = mx_gguf_tokens(g, &t, &count, err);
	bool spm = model.n == 5 && !memcmp(model.s, "llama", 5);
	for (size_t i = 0; !s && i < 4; i++) {
		int64_t id = !spm ? -1 : i == 0 ? 2 : i == 3 ? 1 : -1; /* SentencePiece's defaults */
		s = mx_gguf_int(g, keys[i], &id, NULL, err);
		if (!s && id >= (int64_t)count)
			s = mx_fail_at(err, MX_E_RANGE, mx_gguf_name(g),
			               "key '%s': %" PRId64 " is beyond the last token, %u", keys[i], id,
			               count - 1);
		if (!s && id >= 0 && i < 3)
			add(ids, n, id);
		else if (!s && id >= 0)
			*bos = (int32_t)id;
	}
	for (uint32_t i = 0; !s && i < count; i++)
		if ((t[i].type == MX_GGUF_TOKEN_CONTROL || t[i].type == MX_GGUF_TOKEN_USER) &&
		    ends_turn(t[i].text))
			add(ids, n, i);
	free(t);
	return s;
}
