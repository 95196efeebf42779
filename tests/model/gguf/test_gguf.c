/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that sound GGUF files are read, and that every kind of damage is refused with its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "model/gguf/names.h"
#include "model/gguf/texts.h"
#include "model/safetensors.h"
#include "tests/model/gguf/gguf_util.h"

static struct mx_gguf *parsed(const struct mx_buf *b)
{
	struct mx_gguf *g = NULL;
	struct mx_err err = {0};
	assert_false(b->failed);
	if (mx_gguf_parse(b->data, b->len, "m.gguf", &g, &err))
		fail_msg("%s: %s", err.where, err.text);
	return g;
}

/* Expects a file to be refused at byte `offset`, and frees it. */
static void refused(struct mx_buf *b, mx_status status, uint64_t offset, const char *text)
{
	struct mx_gguf *g = NULL;
	struct mx_err err = {0};
	char *exact = malloc(b->len ? b->len : 1); /* so that a read beyond it is seen */
	assert_non_null(exact);
	if (b->len)
		memcpy(exact, b->data, b->len);
	mx_status s = mx_gguf_parse(exact, b->len, "m.gguf", &g, &err);
	if (s != status || !strstr(err.text, text) || err.offset != offset)
		fail_msg("status %d at %llu: %s; not %d at %llu: %s", s, (unsigned long long)err.offset,
		         err.text, status, (unsigned long long)offset, text);
	assert_string_equal(err.where, "m.gguf");
	free(exact);
	mx_buf_free(b);
}

static void values_are_read(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	put_head(&b, 2, 7);
	put_key_text(&b, "text", "one");
	put_key_int(&b, "int", 7);
	put_key(&b, "negative", MX_GGUF_I16);
	put_int(&b, 0xfffe, 2);
	put_key(&b, "yes", MX_GGUF_BOOL);
	put_int(&b, 1, 1);
	put_key(&b, "half", MX_GGUF_F32);
	put_int(&b, 0x3f000000, 4);
	put_key(&b, "numbers", MX_GGUF_ARRAY);
	put_int(&b, MX_GGUF_I32, 4);
	put_int(&b, 2, 8);
	put_int(&b, 5, 4);
	put_int(&b, 0xffffffff, 4);
	put_key(&b, "texts", MX_GGUF_ARRAY);
	put_int(&b, MX_GGUF_STRING, 4);
	put_int(&b, 2, 8);
	put_text(&b, "a");
	put_text(&b, "bc");
	put_tensor(&b, "z", 3, 2, MX_GGUF_TYPE_F32, 0);
	put_tensor(&b, "a", 64, 0, MX_GGUF_TYPE_Q8_0, 32);
	put_data(&b, 32 + 68);
	struct mx_gguf *g = parsed(&b);

	struct mx_gguf_string s = {0};
	struct mx_err err = {0};
	int64_t i = 0;
	double f = 0, e = 0;
	bool there = false, yes = false;
	assert_int_equal(mx_gguf_text(g, "text", &s, &there, &err), MX_OK);
	assert_true(there && s.n == 3 && !memcmp(s.s, "one", 3));
	assert_int_equal(mx_gguf_int(g, "int", &i, &there, &err), MX_OK);
	assert_int_equal(i, 7);
	assert_int_equal(mx_gguf_int(g, "negative", &i, NULL, &err), MX_OK);
	assert_int_equal(i, -2);
	assert_int_equal(mx_gguf_int(g, "absent", &i, &there, &err), MX_OK);
	assert_true(!there && i == -2);
	assert_int_equal(mx_gguf_bool(g, "yes", &yes, NULL, &err), MX_OK);
	assert_true(yes);
	assert_int_equal(mx_gguf_float(g, "half", &f, NULL, &err), MX_OK);
	assert_true(f == 0.5);
	assert_int_equal(mx_gguf_int(g, "half", &i, NULL, &err), MX_E_FORMAT);
	assert_string_equal(err.text, "key 'half': must be an integer");
	assert_int_equal(mx_gguf_bool(g, "int", &yes, NULL, &err), MX_E_FORMAT);
	assert_int_equal(mx_gguf_text(g, "int", &s, NULL, &err), MX_E_FORMAT);
	const struct mx_gguf_value *v = mx_gguf_find(g, "numbers");
	assert_true(mx_gguf_element(v, 1, &e) && e == -1);
	assert_false(mx_gguf_element(v, 2, &e));
	v = mx_gguf_find(g, "texts");
	const unsigned char *at = v->at;
	assert_int_equal(mx_gguf_next(&at).n, 1);
	s = mx_gguf_next(&at);
	assert_true(s.n == 2 && !memcmp(s.s, "bc", 2));

	assert_int_equal(mx_gguf_count(g), 2);
	const struct mx_gguf_tensor *t = mx_gguf_tensor(g, "z");
	assert_true(t && t->ndim == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->bytes == 24);
	assert_int_equal(*(const unsigned char *)t->data, 0);
	t = mx_gguf_at(g, 0);
	assert_string_equal(t->name, "a");
	assert_int_equal(t->bytes, 68);
	assert_int_equal(*(const unsigned char *)t->data, 32);
	assert_null(mx_gguf_tensor(g, "b"));
	mx_gguf_close(g);
	mx_buf_free(&b);
}

static void damage_is_refused_with_its_place(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	refused(&b, MX_E_FORMAT, 0, "does not begin with \"GGUF\"");
	mx_buf_puts(&b, "GGUF\3");
	refused(&b, MX_E_FORMAT, 4, "ends at byte 5, within the version");
	mx_buf_append(&b, "GGUF\0\0\0\3", 8);
	refused(&b, MX_E_UNSUPPORTED, 4, "big-endian");
	mx_buf_append(&b, "GGUF\1\0\0\0", 8);
	refused(&b, MX_E_UNSUPPORTED, 4, "GGUF version 1");
	put_head(&b, 0, 1u << 30);
	refused(&b, MX_E_FORMAT, 16, "1073741824 key-value pairs");
	put_head(&b, UINT64_MAX, 0);
	refused(&b, MX_E_FORMAT, 8, "18446744073709551615 tensors");

	put_head(&b, 0, 1);
	put_int(&b, UINT64_MAX, 8);
	put_data(&b, 64);
	refused(&b, MX_E_FORMAT, 24, "a key is 18446744073709551615 bytes long");
	put_head(&b, 0, 1);
	put_key(&b, "k", 13);
	put_data(&b, 64);
	refused(&b, MX_E_FORMAT, 37, "key 'k': has the unknown type 13");
	put_head(&b, 0, 1);
	put_key(&b, "k", MX_GGUF_ARRAY);
	put_int(&b, MX_GGUF_ARRAY, 4);
	put_int(&b, 1, 8);
	put_data(&b, 64);
	refused(&b, MX_E_UNSUPPORTED, 49, "array of arrays");
	put_head(&b, 0, 1);
	put_key(&b, "k", MX_GGUF_ARRAY);
	put_int(&b, MX_GGUF_U64, 4);
	put_int(&b, UINT64_MAX / 8 + 1, 8);
	put_data(&b, 64);
	refused(&b, MX_E_FORMAT, 49, "elements, more than the rest");
	put_head(&b, 0, 2);
	put_key_int(&b, "k", 1);
	put_key_int(&b, "k", 2);
	refused(&b, MX_E_FORMAT, 49, "key 'k' is there twice");
	put_head(&b, 1, 1);
	put_key_int(&b, "general.alignment", 24);
	put_data(&b, 64);
	refused(&b, MX_E_FORMAT, 53, "no power of two");
}

/* A file of one tensor. */
static struct mx_buf of_tensor(uint64_t ne0, uint64_t ne1, uint32_t type, uint64_t offset,
                               size_t data)
{
	struct mx_buf b = {0};
	put_head(&b, 1, 0);
	put_tensor(&b, "t", ne0, ne1, type, offset);
	put_data(&b, data);
	return b;
}

static void bad_tensors_are_refused(void **state)
{
	(void)state;
	struct mx_buf b = of_tensor(4, 2, MX_GGUF_TYPE_F32, 0, 31);
	refused(&b, MX_E_FORMAT, b.len, "the file is not whole");
	b = of_tensor(4, 2, MX_GGUF_TYPE_F32, 32, 64);
	refused(&b, MX_E_FORMAT, 24, "begins at byte 32 of the data");
	b = of_tensor(33, 2, MX_GGUF_TYPE_Q4_0, 0, 64);
	refused(&b, MX_E_FORMAT, 24, "rows of 33 are no whole blocks of 32 (Q4_0)");
	b = of_tensor(1ull << 40, 1ull << 40, MX_GGUF_TYPE_F32, 0, 64);
	refused(&b, MX_E_FORMAT, 24, "more elements than can be counted");
	b = of_tensor(1ull << 40, 2, MX_GGUF_TYPE_F32, 0, 64);
	refused(&b, MX_E_FORMAT, 24, "larger than the file");
	b = of_tensor(32, 2, 38, 0, 64);
	refused(&b, MX_E_UNSUPPORTED, 24, "tensor 't': GGUF type 38 is not known");
	put_head(&b, 1, 0);
	put_text(&b, "t");
	put_int(&b, 5, 4);
	put_data(&b, 64);
	refused(&b, MX_E_FORMAT, 24, "5 dimensions");
	put_head(&b, 2, 0);
	put_tensor(&b, "t", 8, 0, MX_GGUF_TYPE_F32, 0);
	put_tensor(&b, "t", 8, 0, MX_GGUF_TYPE_F32, 32);
	put_data(&b, 64);
	refused(&b, MX_E_FORMAT, 0, "tensor 't' is there twice");
}

/* ---- what is made of a file ---- */

static void make_fails(struct mx_buf *b, const char *name, mx_status status, const char *text)
{
	struct mx_gguf *g = parsed(b);
	struct mx_err err = {0};
	char *out = NULL;
	size_t n = 0;
	mx_status s = mx_gguf_make(g, name, &out, &n, &err);
	if (s != status || !strstr(err.text, text))
		fail_msg("status %d: %s; not %d: %s", s, err.text, status, text);
	assert_null(out);
	mx_gguf_close(g);
	mx_buf_free(b);
}

static void what_is_not_known_is_named(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	put_head(&b, 0, 1);
	put_key_text(&b, "general.architecture", "whisper");
	make_fails(
		&b, "config.json", MX_E_UNSUPPORTED,
		"general.architecture 'whisper' is not supported; mixd --list-models says which are");
	put_head(&b, 0, 0);
	make_fails(&b, "config.json", MX_E_FORMAT, "key 'general.architecture' is missing");
	put_head(&b, 0, 1);
	put_key_text(&b, "general.architecture", "llama");
	make_fails(&b, "config.json", MX_E_FORMAT, "tensor 'token_embd.weight' is missing");
	put_head(&b, 1, 1);
	put_key_text(&b, "general.architecture", "llama");
	put_tensor(&b, "token_embd.weight", 4, 2, MX_GGUF_TYPE_F32, 0);
	put_data(&b, 32);
	make_fails(&b, "config.json", MX_E_FORMAT, "key 'llama.block_count' is missing");
	put_head(&b, 0, 0);
	make_fails(&b, "tokenizer.json", MX_E_NOTFOUND, "has no tokenizer");
	for (int i = 0; i < 3; i++) {
		put_head(&b, 0, 3);
		put_key_text(&b, "tokenizer.ggml.model", i == 0 ? "bert" : "gpt2");
		put_key_text(&b, "tokenizer.ggml.pre", i == 1 ? "nobody" : "qwen2");
		put_key(&b, "tokenizer.ggml.tokens", MX_GGUF_ARRAY);
		put_int(&b, MX_GGUF_STRING, 4);
		put_int(&b, 1, 8);
		put_text(&b, i == 2 ? "\xff" : "a");
		make_fails(&b, "tokenizer.json", i == 2 ? MX_E_FORMAT : MX_E_UNSUPPORTED,
		           i == 0   ? "tokenizer.ggml.model \"bert\" is unknown"
		           : i == 1 ? "tokenizer.ggml.pre \"nobody\" is unknown"
		                    : "token 0: is not valid UTF-8");
	}
}

/* Begins a file of one layer with two heads, of `more` further keys. */
static void put_small(struct mx_buf *b, const char *arch, uint32_t more)
{
	static const char *const keys[] = {"block_count", "embedding_length", "attention.head_count"};
	static const uint32_t values[] = {1, 8, 2};
	put_head(b, 1, 4 + more);
	put_key_text(b, "general.architecture", arch);
	for (uint32_t i = 0; i < 3; i++) {
		char key[64];
		snprintf(key, sizeof key, "%s.%s", arch, keys[i]);
		put_key_int(b, key, values[i]);
	}
}

static void put_small_tensor(struct mx_buf *b)
{
	put_tensor(b, "token_embd.weight", 8, 2, MX_GGUF_TYPE_F32, 0);
	put_data(b, 64);
}

/* What a file leaves out or means otherwise is refused, since its numbers would be wrong. */
static void what_would_be_wrong_is_refused(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	put_small(&b, "minicpm", 0);
	put_small_tensor(&b);
	make_fails(&b, "config.json", MX_E_UNSUPPORTED,
	           "key 'minicpm.embedding_scale' is missing: convert the model anew");
	for (int sections = 0; sections < 2; sections++) {
		put_small(&b, "glm4", 1);
		put_key(&b, "glm4.rope.dimension_sections", MX_GGUF_ARRAY);
		put_int(&b, MX_GGUF_I32, 4);
		put_int(&b, 4, 8);
		put_int(&b, sections ? 2 : 0, 4);
		put_int(&b, 0, 8);
		put_int(&b, 0, 4);
		put_small_tensor(&b);
		if (sections) {
			make_fails(&b, "config.json", MX_E_UNSUPPORTED,
			           "glm4.rope.dimension_sections: the text");
			break;
		}
		struct mx_gguf *g = parsed(&b);
		struct mx_err err = {0};
		char *text = NULL;
		size_t n = 0;
		if (mx_gguf_make(g, "config.json", &text, &n, &err))
			fail_msg("%s", err.text);
		free(text);
		mx_gguf_close(g);
		mx_buf_free(&b);
	}
	for (int i = 0; i < 2; i++) { /* only architectures that read its factors */
		put_small(&b, i ? "llama" : "phi3", 1);
		put_key_text(&b, i ? "llama.rope.scaling.type" : "phi3.rope.scaling.type", "longrope");
		put_small_tensor(&b);
		if (i) {
			make_fails(&b, "config.json", MX_E_UNSUPPORTED,
			           "llama.rope.scaling.type 'longrope' is none of linear, yarn");
		} else {
			make_fails(&b, "config.json", MX_E_FORMAT, "rope_factors_long.weight: is missing");
		}
	}
}

static char *config_of(struct mx_buf *b)
{
	struct mx_gguf *g = parsed(b);
	struct mx_err err = {0};
	char *text = NULL;
	size_t n = 0;
	if (mx_gguf_make(g, "config.json", &text, &n, &err))
		fail_msg("%s", err.text);
	mx_gguf_close(g);
	mx_buf_free(b);
	return text;
}

/* The epsilon of norms has no default that fits: it is read under either name, or is missing. */
static void epsilons_are_read_or_missed(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	static const char *const archs[] = {"exaone", "internlm2"};
	for (int i = 0; i < 2; i++) {
		char message[96];
		put_small(&b, archs[i], 0);
		put_small_tensor(&b);
		snprintf(message, sizeof message, "key '%s.attention.layer_norm_rms_epsilon' is missing",
		         archs[i]);
		make_fails(&b, "config.json", MX_E_FORMAT, message);
	}
	put_small(&b, "exaone", 1);
	put_key_float(&b, "exaone.attention.layer_norm_epsilon", 0.25f);
	put_small_tensor(&b);
	char *text = config_of(&b);
	assert_non_null(strstr(text, "\"rms_norm_eps\": 0.25"));
	free(text);
}

/* YaRN's magnitude, where the file has it. */
static void the_scale_of_yarn_is_read(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	put_small(&b, "llama", 5);
	put_key_text(&b, "llama.rope.scaling.type", "yarn");
	put_key_float(&b, "llama.rope.scaling.factor", 16);
	put_key_int(&b, "llama.rope.scaling.original_context_length", 8192);
	put_key_float(&b, "llama.rope.scaling.yarn_attn_factor", 1.25f);
	put_key_float(&b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
	put_small_tensor(&b);
	char *text = config_of(&b);
	assert_non_null(strstr(text, "\"attention_factor\": 1.25"));
	free(text);
}

/* Makes a file of Gemma 4 with two layers, of which the first has a window. */
static void put_gemma4(struct mx_buf *b, uint32_t shared, uint32_t kv_heads, bool rope)
{
	static const char *const keys[] = {"embedding_length",     "attention.head_count",
	                                   "attention.key_length", "attention.key_length_swa",
	                                   "feed_forward_length",  "attention.sliding_window",
	                                   "block_count"};
	static const uint32_t values[] = {8, 2, 8, 4, 16, 32, 2};
	put_head(b, rope ? 2 : 1, 4 + sizeof values / sizeof *values);
	put_key_text(b, "general.architecture", "gemma4");
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		char key[64];
		snprintf(key, sizeof key, "gemma4.%s", keys[i]);
		put_key_int(b, key, values[i]);
	}
	put_key_int(b, "gemma4.attention.shared_kv_layers", shared);
	put_key(b, "gemma4.attention.sliding_window_pattern", MX_GGUF_ARRAY);
	put_int(b, MX_GGUF_BOOL, 4);
	put_int(b, 2, 8);
	put_int(b, 1, 1);
	put_int(b, 0, 1);
	put_key(b, "gemma4.attention.head_count_kv", MX_GGUF_ARRAY);
	put_int(b, MX_GGUF_U32, 4);
	put_int(b, 2, 8);
	put_int(b, 2, 4);
	put_int(b, kv_heads, 4);
	put_tensor(b, "token_embd.weight", 8, 2, MX_GGUF_TYPE_F32, 0);
	if (rope)
		put_tensor(b, "rope_freqs.weight", 4, 0, MX_GGUF_TYPE_F32, 64);
	put_data(b, rope ? 64 : 80);
	if (rope) {
		const float factors[] = {1, 1, 1e30f, 1e30f};
		mx_buf_append(b, (const char *)factors, sizeof factors);
	}
}

static void layers_of_gemma4_have_heads_of_their_own(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	struct mx_err err = {0};
	char *text = NULL;
	size_t n = 0;
	put_gemma4(&b, 2, 1, true);
	make_fails(&b, "config.json", MX_E_RANGE,
	           "attention.shared_kv_layers: 2 layers are not from 0 to 1");
	put_gemma4(&b, 0, 1, false);
	make_fails(&b, "config.json", MX_E_FORMAT, "rope_freqs.weight: is missing, or not half of");
	put_gemma4(&b, 0, 1, true);
	((float *)(void *)(b.data + b.len))[-1] = 2;
	make_fails(&b, "config.json", MX_E_UNSUPPORTED,
	           "rope_freqs.weight: element 3 is neither 1 nor as large as 1e30");
	put_gemma4(&b, 0, 1, true);
	struct mx_gguf *g = parsed(&b);
	assert_int_equal(mx_gguf_make(g, "config.json", &text, &n, &err), MX_OK);
	json_t *c = json_loads(text, 0, NULL);
	const json_t *types = json_object_get(c, "layer_types");
	const json_t *rope = json_object_get(json_object_get(c, "rope_parameters"), "full_attention");
	assert_string_equal(json_string_value(json_array_get(types, 0)), "sliding_attention");
	assert_string_equal(json_string_value(json_array_get(types, 1)), "full_attention");
	assert_int_equal(json_integer_value(json_object_get(c, "num_key_value_heads")), 2);
	assert_int_equal(json_integer_value(json_object_get(c, "num_global_key_value_heads")), 1);
	assert_int_equal(json_integer_value(json_object_get(c, "head_dim")), 4);
	assert_int_equal(json_integer_value(json_object_get(c, "global_head_dim")), 8);
	assert_true(json_is_true(json_object_get(c, "attention_k_eq_v")));
	assert_true(json_number_value(json_object_get(rope, "partial_rotary_factor")) == 0.5);
	json_decref(c);
	free(text);
	mx_gguf_close(g);
	mx_buf_free(&b);
}

static void write_file(const char *path, const struct mx_buf *b)
{
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(b->data, 1, b->len, f), b->len);
	assert_int_equal(fclose(f), 0);
}

static void types_are_refused_by_name(void **state)
{
	(void)state;
	char path[] = "/tmp/mixd-gguf-XXXXXX";
	struct mx_buf b = {0};
	struct mx_checkpoint *c = NULL;
	struct mx_err err = {0};
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	put_head(&b, 1, 1);
	put_key_text(&b, "general.architecture", "llama");
	put_tensor(&b, "blk.3.ffn_down.weight", 64, 1, 40, 0);
	put_data(&b, 36);
	write_file(path, &b);
	assert_true(mx_gguf_is(path));
	assert_int_equal(mx_checkpoint_open(path, &c, &err), MX_E_UNSUPPORTED);
	assert_string_equal(err.text, "tensor 'blk.3.ffn_down.weight': GGUF type 40 (NVFP4) is not "
	                              "supported; use Q4_K_M or Q8_0");
	unlink(path);
	mx_buf_free(&b);
}

/* ---- names ---- */

static mx_status note(void *arg, const struct mx_gguf_named *t)
{
	struct mx_buf *b = arg;
	mx_buf_printf(b, "%s [", t->name);
	for (uint32_t i = 0; i < t->ndim; i++)
		mx_buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)t->shape[i]);
	mx_buf_printf(b, "] %d%s %d\n", (int)(t->order.n * t->order.m * t->order.run),
	              t->minus_exp ? " exp" : "", *(const unsigned char *)t->data);
	return MX_OK;
}

static void experts_are_parted(void **state)
{
	(void)state;
	struct mx_buf b = {0}, names = {0};
	struct mx_err err = {0};
	put_head(&b, 2, 3);
	put_key_text(&b, "general.architecture", "llama");
	put_key_int(&b, "llama.attention.head_count", 4);
	put_key_int(&b, "llama.attention.head_count_kv", 2);
	put_tensor(&b, "blk.1.attn_k.weight", 1, 8, MX_GGUF_TYPE_F32, 0);
	put_text(&b, "blk.1.ffn_up_exps.weight");
	put_int(&b, 3, 4);
	put_int(&b, 2, 8);
	put_int(&b, 3, 8);
	put_int(&b, 2, 8);
	put_int(&b, MX_GGUF_TYPE_F32, 4);
	put_int(&b, 32, 8);
	put_data(&b, 32 + 48);
	struct mx_gguf *g = parsed(&b);
	assert_int_equal(mx_gguf_names(g, note, &names, &err), MX_OK);
	assert_string_equal(mx_buf_str(&names),
	                    "model.layers.1.self_attn.k_proj.weight [8,1] 4 0\n"
	                    "model.layers.1.block_sparse_moe.experts.0.w3.weight [3,2] 0 32\n"
	                    "model.layers.1.block_sparse_moe.experts.1.w3.weight [3,2] 0 56\n");
	mx_gguf_close(g);
	mx_buf_free(&names);
	mx_buf_free(&b);
}

/* ---- latent attention ---- */

/* What is changed of a sound file. */
struct latent {
	const char *without, *tensor; /* a key and a tensor that are left out */
	uint32_t nope, scoring, rank_of_values, v, heads;
	bool whole; /* attn_kv_b is there too */
};

static void put_tensor_3d(struct mx_buf *b, const char *name, const uint64_t ne[3], uint64_t offset)
{
	put_text(b, name);
	put_int(b, 3, 4);
	for (int i = 0; i < 3; i++)
		put_int(b, ne[i], 8);
	put_int(b, MX_GGUF_TYPE_F32, 4);
	put_int(b, offset, 8);
}

/* Makes a file of one layer: two heads with nope 3, rope 2, v 4, of rank 4. */
static void put_latent(struct mx_buf *b, const struct latent *l)
{
	static const struct {
		const char *key;
		uint32_t v;
	} ints[] = {{"block_count", 1},
	            {"embedding_length", 8},
	            {"attention.head_count", 2},
	            {"attention.head_count_kv", 1},
	            {"attention.key_length", 6},
	            {"attention.value_length", 4},
	            {"attention.key_length_mla", 5},
	            {"attention.value_length_mla", 4},
	            {"attention.kv_lora_rank", 4},
	            {"rope.dimension_count", 2},
	            {"expert_count", 4},
	            {"expert_used_count", 2},
	            {"expert_feed_forward_length", 8},
	            {"expert_gating_func", 0}};
	const size_t n_ints = sizeof ints / sizeof *ints;
	const uint64_t heads = l->heads ? l->heads : 2;
	const uint64_t keys[] = {l->nope ? l->nope : 3, 4, heads};
	const uint64_t values[] = {l->rank_of_values ? l->rank_of_values : 4, l->v ? l->v : 4, heads};
	put_head(b, (l->tensor ? 2 : 3) + l->whole, 1 + n_ints - (l->without ? 1 : 0));
	put_key_text(b, "general.architecture", "deepseek2");
	for (size_t i = 0; i < n_ints; i++) {
		char key[64];
		snprintf(key, sizeof key, "deepseek2.%s", ints[i].key);
		if (!l->without || strcmp(l->without, ints[i].key) != 0)
			put_key_int(b, key, i == n_ints - 1 ? (l->scoring ? l->scoring : 2) : ints[i].v);
	}
	put_tensor(b, "token_embd.weight", 8, 2, MX_GGUF_TYPE_F32, 0);
	uint64_t at = 64;
	if (!l->tensor || strcmp(l->tensor, "attn_k_b") != 0) {
		put_tensor_3d(b, "blk.0.attn_k_b.weight", keys, at);
		at += (keys[0] * keys[1] * keys[2] * 4 + 31) / 32 * 32;
	}
	if (!l->tensor || strcmp(l->tensor, "attn_v_b") != 0) {
		put_tensor_3d(b, "blk.0.attn_v_b.weight", values, at);
		at += (values[0] * values[1] * values[2] * 4 + 31) / 32 * 32;
	}
	if (l->whole) {
		put_tensor(b, "blk.0.attn_kv_b.weight", 4, 14, MX_GGUF_TYPE_F32, at);
		at += 224;
	}
	put_data(b, at);
}

static void names_of_latent(const struct latent *l, const char *text, bool fails)
{
	struct mx_buf b = {0}, names = {0};
	struct mx_err err = {0};
	put_latent(&b, l);
	struct mx_gguf *g = parsed(&b);
	mx_status s = mx_gguf_names(g, note, &names, &err);
	assert_int_equal(s, fails ? MX_E_FORMAT : MX_OK);
	if (!strstr(fails ? err.text : mx_buf_str(&names), text))
		fail_msg("%s: not %s", fails ? err.text : mx_buf_str(&names), text);
	mx_gguf_close(g);
	mx_buf_free(&names);
	mx_buf_free(&b);
}

static void the_parts_of_kv_b_are_one_tensor(void **state)
{
	(void)state;
	names_of_latent(&(struct latent){0},
	                "model.layers.0.self_attn.kv_b_proj.weight [14,4] 0 64\nmodel.embed", false);
	names_of_latent(&(struct latent){.whole = true},
	                "model.layers.0.self_attn.kv_b_proj.weight [14,4] 0 32\nmodel.embed", false);
	names_of_latent(&(struct latent){.whole = true, .tensor = "attn_k_b"},
	                "kv_b_proj.weight [14,4]", false);
	names_of_latent(&(struct latent){.tensor = "attn_k_b"},
	                "'blk.0.attn_v_b.weight': attn_k_b of the same layer is missing", true);
	names_of_latent(&(struct latent){.tensor = "attn_v_b"},
	                "'blk.0.attn_k_b.weight': attn_v_b of the same layer is missing", true);
	names_of_latent(&(struct latent){.nope = 4},
	                "its columns are not attention.key_length_mla less rope.dimension_count", true);
	names_of_latent(&(struct latent){.rank_of_values = 6},
	                "it and attn_v_b are not [heads, rank, qk_nope_head_dim]", true);
	/* 7 rows times 2 as the metadata has it, in heads of other sizes */
	names_of_latent(&(struct latent){.heads = 1, .v = 11},
	                "'blk.0.attn_k_b.weight': its heads are not attention.head_count", true);
	names_of_latent(&(struct latent){.v = 8},
	                "'blk.0.attn_v_b.weight': its rows are not attention.value_length_mla", true);
}

static void latent_attention_is_of_one_of_three_families(void **state)
{
	static const struct {
		struct latent l;
		const char *has;
	} cases[] = {{{0}, "\"model_type\": \"deepseek_v3\""},
	             {{.scoring = 1}, "\"model_type\": \"deepseek_v2\""},
	             {{.without = "expert_gating_func"}, "\"model_type\": \"deepseek_v2\""},
	             {{.without = "expert_count"}, "\"model_type\": \"youtu\""},
	             /* of files from before the parts, key_length is that of heads */
	             {{.without = "attention.key_length_mla"}, "\"qk_nope_head_dim\": 4"}};
	(void)state;
	struct mx_buf b = {0};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_err err = {0};
		char *text = NULL;
		size_t n = 0;
		put_latent(&b, &cases[i].l);
		struct mx_gguf *g = parsed(&b);
		if (mx_gguf_make(g, "config.json", &text, &n, &err))
			fail_msg("%s", err.text);
		if (!strstr(text, cases[i].has))
			fail_msg("%s: not %s", text, cases[i].has);
		free(text);
		mx_gguf_close(g);
		mx_buf_free(&b);
	}
	put_latent(&b, &(struct latent){.scoring = 4});
	make_fails(&b, "config.json", MX_E_UNSUPPORTED,
	           "deepseek2.expert_gating_func 4 is neither softmax (1) nor sigmoid (2)");
	put_latent(&b, &(struct latent){.without = "attention.kv_lora_rank"});
	make_fails(&b, "config.json", MX_E_FORMAT, "key 'deepseek2.attention.kv_lora_rank' is missing");
	put_latent(&b, &(struct latent){.without = "rope.dimension_count"});
	make_fails(&b, "config.json", MX_E_FORMAT, "key 'deepseek2.rope.dimension_count' is missing");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_are_read),
		cmocka_unit_test(damage_is_refused_with_its_place),
		cmocka_unit_test(bad_tensors_are_refused),
		cmocka_unit_test(what_is_not_known_is_named),
		cmocka_unit_test(what_would_be_wrong_is_refused),
		cmocka_unit_test(epsilons_are_read_or_missed),
		cmocka_unit_test(the_scale_of_yarn_is_read),
		cmocka_unit_test(types_are_refused_by_name),
		cmocka_unit_test(experts_are_parted),
		cmocka_unit_test(the_parts_of_kv_b_are_one_tensor),
		cmocka_unit_test(latent_attention_is_of_one_of_three_families),
		cmocka_unit_test(layers_of_gemma4_have_heads_of_their_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
