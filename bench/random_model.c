/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/random_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"

struct tensor {
	char name[96];
	uint32_t rows, cols; /* cols = 0: a vector of ones */
};

struct list {
	struct tensor *items;
	size_t n;
};

static void add(struct list *l, uint32_t rows, uint32_t cols, const char *fmt, uint32_t layer)
{
	struct tensor *t = &l->items[l->n++];
	char name[96];
	t->rows = rows;
	t->cols = cols;
	snprintf(name, sizeof name, "model.layers.%u.%s", layer, fmt);
	snprintf(t->name, sizeof t->name, "%s", layer == UINT32_MAX ? fmt : name);
}

static void add_mixer(struct list *l, const struct mx_random_model *m, uint32_t i)
{
	uint32_t kv = m->kv_heads * (m->width / m->heads), w = m->width;
	if (m->hybrid && i % 2) {
		add(l, w, w, "mixer.in_proj.weight", i);
		add(l, w, w, "mixer.out_proj.weight", i);
		add(l, w, 0, "mixer.gate", i);
		return;
	}
	add(l, w, w, m->hybrid ? "mixer.q_proj.weight" : "self_attn.q_proj.weight", i);
	add(l, kv, w, m->hybrid ? "mixer.k_proj.weight" : "self_attn.k_proj.weight", i);
	add(l, kv, w, m->hybrid ? "mixer.v_proj.weight" : "self_attn.v_proj.weight", i);
	add(l, w, w, m->hybrid ? "mixer.o_proj.weight" : "self_attn.o_proj.weight", i);
}

static mx_status list_tensors(const struct mx_random_model *m, struct list *out)
{
	struct list l = {.items = calloc(3 + 9 * (size_t)m->layers, sizeof *l.items)};
	if (!l.items)
		return MX_E_NOMEM;
	uint32_t w = m->width;
	add(&l, m->vocab, w, "model.embed_tokens.weight", UINT32_MAX);
	if (!m->tied)
		add(&l, m->vocab, w, "lm_head.weight", UINT32_MAX);
	for (uint32_t i = 0; i < m->layers; i++) {
		add(&l, w, 0, "input_layernorm.weight", i);
		add_mixer(&l, m, i);
		add(&l, w, 0, "post_attention_layernorm.weight", i);
		add(&l, m->intermediate, w, "mlp.gate_proj.weight", i);
		add(&l, m->intermediate, w, "mlp.up_proj.weight", i);
		add(&l, w, m->intermediate, "mlp.down_proj.weight", i);
	}
	add(&l, w, 0, "model.norm.weight", UINT32_MAX);
	*out = l;
	return MX_OK;
}

static size_t elements(const struct tensor *t)
{
	return (size_t)t->rows * (t->cols ? t->cols : 1);
}

uint64_t mx_random_model_parameters(const struct mx_random_model *m)
{
	struct list l;
	uint64_t n = 0;
	if (list_tensors(m, &l) != MX_OK)
		return 0;
	for (size_t i = 0; i < l.n; i++)
		n += elements(&l.items[i]);
	free(l.items);
	return n;
}

static FILE *create(const char *dir, const char *name, struct mx_err *err)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, "we");
	if (!f)
		mx_fail_at(err, MX_E_IO, path, "cannot be written: %s", strerror(errno));
	return f;
}

static mx_status finish(FILE *f, bool ok, struct mx_err *err)
{
	if (fclose(f) || !ok)
		return mx_fail(err, MX_E_IO, "the model cannot be written: %s", strerror(errno));
	return MX_OK;
}

static mx_status write_config(const char *dir, const struct mx_random_model *m, struct mx_err *err)
{
	FILE *f = create(dir, "config.json", err);
	if (!f)
		return MX_E_IO;
	fprintf(f, "{\"model_type\": \"%s\",\n", m->hybrid ? "mixd" : "llama");
	for (uint32_t i = 0; m->hybrid && i < m->layers; i++)
		fprintf(f, "%s{\"mixer\": \"%s\"}%s", i ? ", " : " \"mixd_layers\": [",
		        i % 2 ? "ema" : "attention", i + 1 == m->layers ? "],\n" : "");
	int n =
		fprintf(f,
	            " \"hidden_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": %u,\n"
	            " \"num_key_value_heads\": %u, \"intermediate_size\": %u, \"vocab_size\": %u,\n"
	            " \"max_position_embeddings\": %u, \"rms_norm_eps\": 1e-05,\n"
	            " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
	            " \"tie_word_embeddings\": %s}\n",
	            m->width, m->layers, m->heads, m->kv_heads, m->intermediate, m->vocab,
	            m->max_context, m->tied ? "true" : "false");
	return finish(f, n > 0, err);
}

static mx_status write_header(FILE *f, const struct mx_random_model *m, const struct list *l,
                              struct mx_err *err)
{
	static const char *const names[] = {"F32", "F16", "BF16"};
	struct mx_buf b = {0};
	size_t at = 0;
	mx_buf_puts(&b, "{");
	for (size_t i = 0; i < l->n; i++) {
		const struct tensor *t = &l->items[i];
		size_t end = at + elements(t) * mx_dtype_size(m->dtype);
		mx_buf_printf(&b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u", i ? "," : "", t->name,
		              names[m->dtype], t->rows);
		if (t->cols)
			mx_buf_printf(&b, ",%u", t->cols);
		mx_buf_printf(&b, "],\"data_offsets\":[%zu,%zu]}", at, end);
		at = end;
	}
	mx_buf_puts(&b, "}");
	while (b.len % 64 != 56) /* data aligned to 64 behind the 8 bytes of length */
		mx_buf_putc(&b, ' ');
	uint64_t len = b.len;
	unsigned char le[8];
	for (int i = 0; i < 8; i++)
		le[i] = (unsigned char)(len >> (8 * i));
	bool ok = !b.failed && fwrite(le, 8, 1, f) == 1 && fwrite(b.data, b.len, 1, f) == 1;
	mx_buf_free(&b);
	return ok ? MX_OK : mx_fail(err, MX_E_IO, "the header cannot be written");
}

/* Fills n elements of dtype: uniform in +-scale, or ones for scale 0. */
static void fill(void *out, size_t n, enum mx_dtype dtype, float scale, uint64_t *state)
{
	for (size_t i = 0; i < n; i++) {
		*state ^= *state << 13; /* xorshift64 */
		*state ^= *state >> 7;
		*state ^= *state << 17;
		float u = (float)((int64_t)*state >> 40) * 0x1p-23f; /* [-1, 1) */
		float v = scale > 0 ? u * scale : 1;
		if (dtype == MX_F32)
			((float *)out)[i] = v;
		else
			((uint16_t *)out)[i] = mx_f32_to_bf16(v);
	}
}

static bool write_tensor(FILE *f, const struct tensor *t, enum mx_dtype dtype, uint64_t *state)
{
	enum { CHUNK = 1 << 16 };
	float *block = malloc(CHUNK * sizeof *block);
	float scale = t->cols ? sqrtf(3.0f / (float)t->cols) : 0; /* variance 1 / cols */
	bool ok = block != NULL;
	for (size_t left = elements(t); ok && left;) {
		size_t n = left < CHUNK ? left : CHUNK;
		fill(block, n, dtype, scale, state);
		ok = fwrite(block, mx_dtype_size(dtype), n, f) == n;
		left -= n;
	}
	free(block);
	return ok;
}

mx_status mx_random_model_write(const char *dir, const struct mx_random_model *m,
                                struct mx_err *err)
{
	struct list l;
	if (m->dtype == MX_F16)
		return mx_fail(err, MX_E_UNSUPPORTED, "random models are F32 or BF16");
	mx_status st = write_config(dir, m, err);
	if (st != MX_OK)
		return st;
	if (list_tensors(m, &l) != MX_OK)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	FILE *f = create(dir, "model.safetensors", err);
	if (!f) {
		free(l.items);
		return MX_E_IO;
	}
	uint64_t state = m->seed * 0x9e3779b97f4a7c15u | 1;
	st = write_header(f, m, &l, err);
	bool ok = st == MX_OK;
	for (size_t i = 0; ok && i < l.n; i++)
		ok = write_tensor(f, &l.items[i], m->dtype, &state);
	free(l.items);
	return finish(f, ok, err);
}

void mx_random_model_remove(const char *dir)
{
	static const char *const names[] = {"config.json", "model.safetensors"};
	char path[4096];
	for (size_t i = 0; i < 2; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, names[i]);
		unlink(path);
	}
	rmdir(dir);
}
