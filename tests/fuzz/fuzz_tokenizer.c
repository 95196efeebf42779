/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the bytes up to the first NUL as tokenizer.json (none: there is no such file), those up to
 * the second as tokenizer_config.json, and the rest as a text. If the first byte is 1 or 2, the
 * rest is a text for a built-in tokenizer, byte-level or SentencePiece-style, and must survive
 * encoding and decoding. If it is 3, the bytes up to the first NUL are lines of RWKV's vocabulary,
 * after those of the single bytes, and the rest is a text that must survive likewise.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool yes)
{
	if (!yes)
		abort();
}

/* Writes GPT-2's character for a byte as a JSON escape. */
static unsigned stand_in(unsigned byte)
{
	static unsigned table[256], n;
	if (!n)
		for (unsigned b = 0; b < 256; b++) {
			bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
			table[b] = plain ? b : 256 + n;
			n += !plain;
		}
	return table[byte];
}

static struct mx_tokenizer *built_in(bool byte_level)
{
	struct mx_buf j = {0};
	struct mx_tokenizer *t = NULL;
	mx_buf_puts(&j, "{\"added_tokens\":[{\"id\":300,\"content\":\"<x>\",\"special\":true},"
	                "{\"id\":301,\"content\":\"<xy>\"}],\"model\":{\"vocab\":{");
	for (unsigned b = 0; b < 256; b++)
		mx_buf_printf(&j, byte_level ? "\"\\u%04x\":%u," : "\"<0x%02X>\":%u,",
		              byte_level ? stand_in(b) : b, b);
	if (byte_level)
		mx_buf_puts(&j, "\"\\u0120a\":256,\"aa\":257,\"aaaa\":258,\"\\u00e2\\u0122\":259},"
		                "\"merges\":[\"\\u0120 a\",\"a a\",\"aa aa\",\"\\u00e2 \\u0122\"]},"
		                "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
		                "\"decoder\":{\"type\":\"ByteLevel\"}}");
	else
		mx_buf_puts(&j,
		            "\"\\u2581\":256,\"a\":257,\"\\u2581a\":258,\"aa\":259,\"<unk>\":260},"
		            "\"merges\":[[\"\\u2581\",\"a\"],[\"a\",\"a\"]],\"byte_fallback\":true,"
		            "\"unk_token\":\"<unk>\",\"fuse_unk\":true},"
		            "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
		            "\"content\":\"\\u2581\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
		            "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},\"content\":\" \"},"
		            "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}}");
	require(mx_tokenizer_parse(mx_buf_str(&j), j.len, NULL, 0, &t, NULL) == MX_OK);
	mx_buf_free(&j);
	return t;
}

static bool is_utf8_without_mark(const char *s, size_t n)
{
	struct mx_buf b = {0};
	mx_buf_append(&b, s, n);
	/* U+FFFD replaces invalid bytes, and the mark replaces a space */
	bool ok = !strstr(mx_buf_str(&b), "\xef\xbf\xbd") && !strstr(mx_buf_str(&b), "\xe2\x96\x81");
	mx_buf_free(&b);
	return ok && !memchr(s, 0, n);
}

static void check_text(const struct mx_tokenizer *t, const char *text, size_t n, bool exact)
{
	struct mx_tokens ids = {0}, again = {0};
	struct mx_buf out = {0};
	struct mx_err err = {0};
	mx_status st = mx_tokenizer_encode(t, text, n, true, 0, &ids, &err);
	if (st != MX_OK) {
		require(!exact && err.text[0] && !ids.n);
		return;
	}
	for (size_t i = 0; i < ids.n; i++)
		require(ids.ids[i] >= 0);
	if (ids.n > 1) /* 0 is no limit */
		require(mx_tokenizer_encode(t, text, n, true, ids.n - 1, &again, &err) == MX_E_RANGE);
	require(mx_tokenizer_decode(t, ids.ids, ids.n, false, &out) == MX_OK || !exact);
	if (exact && is_utf8_without_mark(text, n) && !strstr(mx_buf_str(&out), "\xef\xbf\xbd"))
		require(out.len == n && !memcmp(mx_buf_str(&out), text, n));
	for (size_t i = 0; i < ids.n && i < 50; i++) {
		mx_buf_clear(&out);
		(void)mx_tokenizer_token_bytes(t, ids.ids[i], &out);
		const char *piece = mx_tokenizer_piece(t, ids.ids[i]);
		if (piece)
			require(mx_tokenizer_id(t, piece) >= 0);
	}
	mx_tokens_free(&ids);
	mx_tokens_free(&again);
	mx_buf_free(&out);
}

/* Ids that no text encodes to. */
static void check_ids(const struct mx_tokenizer *t, const uint8_t *data, size_t size)
{
	struct mx_buf whole = {0}, stream = {0};
	int32_t ids[256];
	size_t n = size < 256 ? size : 256;
	struct mx_decoder d;
	for (size_t i = 0; i < n; i++)
		ids[i] = data[i];
	mx_decoder_init(&d, t, true);
	mx_status st = mx_tokenizer_decode(t, ids, n, true, &whole), pushed = MX_OK;
	for (size_t i = 0; i < n && pushed == MX_OK; i++)
		pushed = mx_decoder_push(&d, ids[i], &stream);
	if (pushed == MX_OK)
		pushed = mx_decoder_finish(&d, &stream);
	require(st == pushed);
	require(whole.len == stream.len && !memcmp(mx_buf_str(&whole), mx_buf_str(&stream), whole.len));
	mx_decoder_free(&d);
	mx_buf_free(&whole);
	mx_buf_free(&stream);
}

static void check_world(const char *lines, size_t size)
{
	const char *nul = memchr(lines, 0, size), *text = nul ? nul + 1 : "a b\xc3\xa9";
	const size_t n = nul ? (size_t)(nul - lines) : size;
	const size_t n_text = nul ? size - n - 1 : strlen(text);
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	struct mx_buf b = {0};
	for (unsigned c = 0; c < 256; c++)
		mx_buf_printf(&b, "%u b'\\x%02x' 1\n", c + 1, c);
	mx_buf_append(&b, lines, n);
	if (mx_tokenizer_parse_world(b.data, b.len, NULL, 0, &t, &err) == MX_OK) {
		check_text(t, text, n_text, true);
		check_ids(t, (const uint8_t *)text, n_text);
	} else {
		require(err.text[0] && !t);
	}
	mx_tokenizer_destroy(t);
	mx_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] == 3) {
		check_world((const char *)data + 1, size - 1);
		return 0;
	}
	static struct mx_tokenizer *fixed[2];
	if (size && (data[0] == 1 || data[0] == 2)) {
		struct mx_tokenizer **t = &fixed[data[0] - 1];
		if (!*t)
			*t = built_in(data[0] == 1);
		check_text(*t, (const char *)data + 1, size - 1, true);
		check_ids(*t, data + 1, size - 1);
		return 0;
	}
	const char *json = (const char *)data, *config = NULL, *text = "Hello, World! 1 \xc3\xa9\xff";
	size_t n = size, n_config = 0, n_text = strlen(text);
	const char *nul = size ? memchr(json, 0, size) : NULL;
	if (nul) {
		config = nul + 1;
		n = (size_t)(nul - json);
		n_config = size - n - 1;
		nul = n_config ? memchr(config, 0, n_config) : NULL;
		if (nul) {
			text = nul + 1;
			n_text = n_config - (size_t)(nul - config) - 1;
			n_config = (size_t)(nul - config);
		}
		if (!n_config)
			config = NULL;
	}
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	if (mx_tokenizer_parse(n || !config ? json : NULL, n, config, n_config, &t, &err) != MX_OK) {
		require(err.text[0] && !t);
		return 0;
	}
	check_text(t, text, n_text, false);
	check_ids(t, (const uint8_t *)text, n_text);
	mx_tokenizer_destroy(t);
	return 0;
}
