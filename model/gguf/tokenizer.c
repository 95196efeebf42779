/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes tokenizer.json and tokenizer_config.json of the metadata. model "gpt2" is a byte-level BPE
 * with merges, "llama" SentencePiece's BPE with scores, "gemma4" the latter with merges; of "rwkv"
 * the vocabulary is a file of its own (world.c).
 *
 * What tokenizer.json says of an added token beside its text (blanks beside it that it takes along)
 * is not in the file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/arch.h"
#include "model/gguf/tokens.h"

#define SPACE "\\u2581"

/* The state of making the two. */
struct maker {
	const struct mx_gguf *g;
	struct mx_gguf_token *tokens; /* [n] */
	uint32_t n;
	struct mx_buf out;
	struct mx_err *err;
};

static bool is(struct mx_gguf_string s, const char *text)
{
	return s.n == strlen(text) && !memcmp(s.s, text, s.n);
}

static mx_status refuse(const struct maker *m, const char *key, struct mx_gguf_string value,
                        const char *have)
{
	return mx_fail_at(m->err, MX_E_UNSUPPORTED, mx_gguf_name(m->g), "%s \"%.*s\" is unknown%s", key,
	                  value.n < 60 ? (int)value.n : 60, value.s, have);
}

static bool is_added(const struct mx_gguf_token *t)
{
	return t->text.n && (t->type == MX_GGUF_TOKEN_CONTROL || t->type == MX_GGUF_TOKEN_USER ||
	                     t->type == MX_GGUF_TOKEN_UNKNOWN);
}

/* Returns the id of a special token, -1 if there is none. */
static mx_status special(const struct maker *m, const char *key, int64_t def, int64_t *out)
{
	char k[64];
	*out = def;
	snprintf(k, sizeof k, "tokenizer.ggml.%s_token_id", key);
	mx_status s = mx_gguf_int(m->g, k, out, NULL, m->err);
	if (!s && *out >= (int64_t)m->n)
		s = mx_fail_at(m->err, MX_E_RANGE, mx_gguf_name(m->g),
		               "key '%s': %lld is beyond the last token, %u", k, (long long)*out, m->n - 1);
	return s;
}

static void put_token(struct maker *m, int64_t id)
{
	mx_gguf_put(&m->out, m->tokens[id].text.s, m->tokens[id].text.n);
}

static void put_added(struct maker *m)
{
	bool any = false;
	mx_buf_puts(&m->out, "\"added_tokens\":[");
	for (uint32_t i = 0; i < m->n; i++) {
		if (!is_added(&m->tokens[i]))
			continue;
		mx_buf_printf(&m->out, "%s{\"id\":%u,\"content\":", any ? "," : "", i);
		put_token(m, i);
		mx_buf_printf(&m->out,
		              ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
		              "\"normalized\":false,\"special\":%s}",
		              m->tokens[i].type == MX_GGUF_TOKEN_USER ? "false" : "true");
		any = true;
	}
	mx_buf_puts(&m->out, "],");
}

/* Appends the vocabulary: all tokens, since an added token has the id that its text has there. */
static void put_vocab(struct maker *m)
{
	mx_buf_puts(&m->out, "\"vocab\":{");
	for (uint32_t i = 0; i < m->n; i++) {
		if (i)
			mx_buf_putc(&m->out, ',');
		put_token(m, i);
		mx_buf_printf(&m->out, ":%u", i);
	}
	mx_buf_puts(&m->out, "}");
}

/* Appends the tokens around a text. */
static mx_status put_post(struct maker *m, bool bos_default, int64_t bos_id, int64_t eos_id)
{
	const struct {
		const char *key;
		int64_t id;
		bool def;
	} ends[] = {{"bos", bos_id, bos_default}, {"eos", eos_id, false}};
	bool wanted[2];
	for (size_t i = 0; i < 2; i++) {
		char key[64];
		int64_t id = -1;
		wanted[i] = ends[i].def;
		snprintf(key, sizeof key, "tokenizer.ggml.add_%s_token", ends[i].key);
		mx_status s = mx_gguf_bool(m->g, key, &wanted[i], NULL, m->err);
		if (!s)
			s = special(m, ends[i].key, ends[i].id, &id);
		if (s)
			return s;
		wanted[i] = wanted[i] && id >= 0;
		if (i == 0)
			bos_id = id;
		else
			eos_id = id;
	}
	if (!wanted[0] && !wanted[1]) {
		mx_buf_puts(&m->out, "\"post_processor\":null,");
		return MX_OK;
	}
	const int64_t ids[] = {bos_id, eos_id};
	mx_buf_puts(&m->out, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
	for (size_t i = 0; i < 3; i++) { /* bos, the text, eos */
		if (i == 1) {
			mx_buf_printf(&m->out, "%s{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}",
			              wanted[0] ? "," : "");
		} else if (wanted[i / 2]) {
			mx_buf_printf(&m->out, "%s{\"SpecialToken\":{\"id\":", i ? "," : "");
			put_token(m, ids[i / 2]);
			mx_buf_puts(&m->out, ",\"type_id\":0}}");
		}
	}
	mx_buf_puts(&m->out, "],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":"
	                     "{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{");
	for (size_t i = 0; i < 2; i++) {
		if (!wanted[i] || (i && wanted[0] && ids[0] == ids[1]))
			continue;
		mx_buf_puts(&m->out, i && wanted[0] ? "," : "");
		put_token(m, ids[i]);
		mx_buf_puts(&m->out, ":{\"id\":");
		put_token(m, ids[i]);
		mx_buf_printf(&m->out, ",\"ids\":[%lld],\"tokens\":[", (long long)ids[i]);
		put_token(m, ids[i]);
		mx_buf_puts(&m->out, "]}");
	}
	mx_buf_puts(&m->out, "}},");
	return MX_OK;
}

/* Appends the merges "a b" of the metadata. A part may begin with a blank, but not end with one. */
static mx_status put_listed_merges(struct maker *m)
{
	static const char key[] = "tokenizer.ggml.merges";
	const struct mx_gguf_value *v = mx_gguf_find(m->g, key);
	if (!v || v->kind != MX_GGUF_ARRAY || v->element != MX_GGUF_STRING)
		return mx_fail_at(m->err, MX_E_FORMAT, mx_gguf_name(m->g),
		                  "key '%s': is missing or not a list of strings", key);
	const unsigned char *at = v->at;
	mx_buf_putc(&m->out, '[');
	for (uint64_t i = 0; i < v->n; i++) {
		struct mx_gguf_string s = mx_gguf_next(&at);
		const char *blank = s.n > 1 ? memchr(s.s + 1, ' ', s.n - 1) : NULL;
		if (!blank || !mx_gguf_valid(s))
			return mx_fail_at(m->err, MX_E_FORMAT, mx_gguf_name(m->g),
			                  "key '%s': element %llu is not two texts with a blank between them",
			                  key, (unsigned long long)i);
		size_t n = (size_t)(blank - s.s);
		mx_buf_puts(&m->out, i ? ",[" : "[");
		mx_gguf_put(&m->out, s.s, n);
		mx_buf_putc(&m->out, ',');
		mx_gguf_put(&m->out, blank + 1, s.n - n - 1);
		mx_buf_putc(&m->out, ']');
	}
	mx_buf_putc(&m->out, ']');
	return MX_OK;
}

static mx_status byte_level(struct maker *m)
{
	static const char key[] = "tokenizer.ggml.pre";
	struct mx_gguf_string name = {"", 0};
	bool there = false;
	mx_status s = mx_gguf_text(m->g, key, &name, &there, m->err);
	if (s)
		return s;
	if (!there)
		return mx_fail_at(m->err, MX_E_UNSUPPORTED, mx_gguf_name(m->g),
		                  "key '%s' is missing: the file is too old to say how texts are cut; "
		                  "convert the model anew",
		                  key);
	const struct mx_gguf_pre *pre = mx_gguf_pre_named(name);
	if (!pre)
		return refuse(m, key, name,
		              ": give the folder of the checkpoint that the file was made from");
	put_added(m);
	mx_buf_printf(&m->out, "\"normalizer\":%s,\"pre_tokenizer\":%s,",
	              pre->normalizer ? pre->normalizer : "null", pre->pre_tokenizer);
	s = put_post(m, pre->add_bos, -1, -1);
	if (s)
		return s;
	mx_buf_printf(&m->out,
	              "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
	              "\"ignore_merges\":%s,",
	              pre->ignore_merges ? "true" : "false");
	put_vocab(m);
	mx_buf_puts(&m->out, ",\"merges\":");
	s = put_listed_merges(m);
	mx_buf_puts(&m->out, "}");
	return s;
}

/* listed: the file has the merges, else they are made of the scores. */
static mx_status sentence_piece(struct maker *m, bool listed)
{
	static const char replace[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
								  "\"content\":\"" SPACE "\"}";
	static const char lines[] = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[^\\n]+|[\\n]+\"},"
								"\"behavior\":\"Isolated\",\"invert\":false}";
	bool prefix = !listed, bytes = false;
	int64_t unknown = listed ? -1 : 0;
	mx_status s = mx_gguf_bool(m->g, "tokenizer.ggml.add_space_prefix", &prefix, NULL, m->err);
	if (!s)
		s = special(m, "unknown", unknown, &unknown);
	if (s)
		return s;
	for (uint32_t i = 0; i < m->n; i++)
		bytes |= m->tokens[i].type == MX_GGUF_TOKEN_BYTE;
	put_added(m);
	mx_buf_printf(&m->out,
	              "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[%s%s]},"
	              "\"pre_tokenizer\":%s,",
	              prefix ? "{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"}," : "", replace,
	              listed ? lines : "null");
	s = listed ? put_post(m, true, -1, -1) : put_post(m, true, 1, 2);
	if (s)
		return s;
	mx_buf_printf(&m->out,
	              "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\","
	              "\"pattern\":{\"String\":\"" SPACE "\"},\"content\":\" \"},"
	              "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}%s]},",
	              prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}" : "");
	mx_buf_printf(&m->out, "\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":%s,",
	              bytes ? "true" : "false");
	if (unknown >= 0) {
		mx_buf_puts(&m->out, "\"unk_token\":");
		put_token(m, unknown);
		mx_buf_putc(&m->out, ',');
	}
	put_vocab(m);
	mx_buf_puts(&m->out, ",\"merges\":");
	s = listed ? put_listed_merges(m) : mx_gguf_put_merges(&m->out, m->tokens, m->n, m->err);
	mx_buf_puts(&m->out, "}");
	return s;
}

static mx_status make_tokenizer(struct maker *m)
{
	static const char key[] = "tokenizer.ggml.model";
	struct mx_gguf_string model = {"", 0};
	mx_status s = mx_gguf_text(m->g, key, &model, NULL, m->err);
	mx_buf_puts(&m->out, "{\"version\":\"1.0\",");
	if (!s && is(model, "gpt2"))
		s = byte_level(m);
	else if (!s && (is(model, "llama") || is(model, "gemma4")))
		s = sentence_piece(m, is(model, "gemma4"));
	else if (!s)
		s = refuse(m, key, model, " (have gpt2, llama, gemma4, rwkv)");
	mx_buf_puts(&m->out, "}");
	return s;
}

/* Appends "chat_template": a string, or a list of those for conversations without tools and with
 * them. */
static mx_status put_templates(struct maker *m)
{
	struct mx_gguf_string plain = {NULL, 0}, tools = {NULL, 0};
	mx_status s = mx_gguf_text(m->g, "tokenizer.chat_template", &plain, NULL, m->err);
	if (!s)
		s = mx_gguf_text(m->g, "tokenizer.chat_template.tool_use", &tools, NULL, m->err);
	if (!s && (!mx_gguf_valid(plain) || !mx_gguf_valid(tools)))
		s = mx_fail_at(m->err, MX_E_FORMAT, mx_gguf_name(m->g),
		               "key 'tokenizer.chat_template': is not valid UTF-8");
	if (s || !plain.s)
		return s;
	mx_buf_puts(&m->out, ",\"chat_template\":");
	if (!tools.s) {
		mx_gguf_put(&m->out, plain.s, plain.n);
		return MX_OK;
	}
	mx_buf_puts(&m->out, "[{\"name\":\"default\",\"template\":");
	mx_gguf_put(&m->out, plain.s, plain.n);
	mx_buf_puts(&m->out, "},{\"name\":\"tool_use\",\"template\":");
	mx_gguf_put(&m->out, tools.s, tools.n);
	mx_buf_puts(&m->out, "}]");
	return MX_OK;
}

static mx_status make_config(struct maker *m)
{
	static const char *const keys[][2] = {{"bos", "bos"},
	                                      {"eos", "eos"},
	                                      {"unknown", "unk"},
	                                      {"padding", "pad"},
	                                      {"seperator", "sep"}}; /* so in the format */
	struct mx_gguf_string model = {"", 0};
	mx_status s = mx_gguf_text(m->g, "tokenizer.ggml.model", &model, NULL, m->err);
	bool spm = is(model, "llama");
	mx_buf_puts(&m->out, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"");
	for (size_t i = 0; !s && i < sizeof keys / sizeof *keys; i++) {
		int64_t id = -1;
		s = special(m, keys[i][0], !spm ? -1 : i == 0 ? 1 : i == 1 ? 2 : i == 2 ? 0 : -1, &id);
		if (s || id < 0)
			continue;
		mx_buf_printf(&m->out, ",\"%s_token\":", keys[i][1]);
		put_token(m, id);
	}
	if (!s && is(model, "rwkv") && m->n) { /* the other file has no name for it */
		mx_buf_puts(&m->out, ",\"added_tokens_decoder\":{\"0\":{\"content\":");
		put_token(m, 0);
		mx_buf_puts(&m->out, "}}");
	}
	if (!s)
		s = put_templates(m);
	mx_buf_puts(&m->out, "}");
	return s;
}

mx_status mx_gguf_make_tokenizer(const struct mx_gguf *g, bool config, char **out, size_t *out_len,
                                 struct mx_err *err)
{
	struct maker m = {.g = g, .err = err};
	mx_status s = mx_gguf_tokens(g, &m.tokens, &m.n, err);
	if (!s)
		s = config ? make_config(&m) : make_tokenizer(&m);
	if (!s && m.out.failed)
		s = mx_fail_at(err, MX_E_NOMEM, mx_gguf_name(g), "out of memory");
	free(m.tokens);
	if (s) {
		mx_buf_free(&m.out);
		return s;
	}
	*out = m.out.data;
	*out_len = m.out.len;
	return MX_OK;
}
