/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes rwkv_vocab_v20230424.txt of the metadata: tokenizer.ggml.model "rwkv" has its tokens as
 * Python writes bytes, without the quotes. Id 0 ends a text and is not in that file.
 */
#include <stdlib.h>
#include <string.h>

#include "model/gguf/arch.h"
#include "model/gguf/tokens.h"

/* Returns the bytes that a token stands for; *out_quote: the one that it must stand between. */
static size_t bytes_of(struct mx_gguf_string s, char *out_quote)
{
	size_t n = 0;
	*out_quote = '\'';
	for (size_t i = 0; i < s.n; i++, n++) {
		if (s.s[i] == '\'')
			*out_quote = '"';
		if (s.s[i] == '\\' && i + 1 < s.n)
			i += s.s[i + 1] == 'x' ? 3 : 1;
	}
	return n;
}

mx_status mx_gguf_make_world(const struct mx_gguf *g, char **out, size_t *out_len,
                             struct mx_err *err)
{
	static const char key[] = "tokenizer.ggml.model";
	struct mx_gguf_string model = {"", 0};
	struct mx_gguf_token *tokens = NULL;
	struct mx_buf text = {0};
	uint32_t n = 0;
	mx_status s = mx_gguf_text(g, key, &model, NULL, err);
	if (!s && !(model.n == 4 && !memcmp(model.s, "rwkv", 4)))
		s = mx_fail_at(err, MX_E_NOTFOUND, mx_gguf_name(g), "%s is not \"rwkv\"", key);
	if (!s)
		s = mx_gguf_tokens(g, &tokens, &n, err);
	for (uint32_t i = 1; !s && i < n; i++) {
		char quote;
		const size_t bytes = bytes_of(tokens[i].text, &quote);
		if (tokens[i].type == MX_GGUF_TOKEN_UNUSED)
			continue;
		mx_buf_printf(&text, "%u b%c", i, quote);
		mx_buf_append(&text, tokens[i].text.s, tokens[i].text.n);
		mx_buf_printf(&text, "%c %zu\n", quote, bytes);
	}
	free(tokens);
	mx_buf_putc(&text, 0);
	if (!s && text.failed)
		s = mx_fail_at(err, MX_E_NOMEM, mx_gguf_name(g), "out of memory");
	if (s) {
		mx_buf_free(&text);
		return s;
	}
	*out_len = text.len - 1;
	*out = text.data;
	return MX_OK;
}
