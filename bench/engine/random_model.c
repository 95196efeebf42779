/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/engine/random_model.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/pool.h"

struct list {
	struct mx_random_tensor *items;
	size_t n;
};

/* Adds a matrix, or with cols 0 a vector of ones. `layer` UINT32_MAX: it belongs to no layer. */
static void add(struct list *l, uint32_t rows, uint32_t cols, const char *name, uint32_t layer)
{
	struct mx_random_tensor *t = &l->items[l->n++];
	if (layer == UINT32_MAX)
		snprintf(t->name, sizeof t->name, "%s", name);
	else
		snprintf(t->name, sizeof t->name, "model.layers.%u.%s", layer, name);
	t->ndim = cols ? 2 : 1;
	t->shape[0] = rows;
	t->shape[1] = cols;
	t->scale = cols ? mx_random_scale(cols) : 0;
	t->offset = cols ? 0 : 1;
}

static mx_status list_tensors(const struct mx_random_model *m, struct list *out)
{
	struct list l = {.items = calloc(3 + 9 * (size_t)m->layers, sizeof *l.items)};
	if (!l.items)
		return MX_E_NOMEM;
	uint32_t w = m->width, kv = m->kv_heads * (m->width / m->heads);
	add(&l, m->vocab, w, "model.embed_tokens.weight", UINT32_MAX);
	if (!m->tied)
		add(&l, m->vocab, w, "lm_head.weight", UINT32_MAX);
	for (uint32_t i = 0; i < m->layers; i++) {
		add(&l, w, 0, "input_layernorm.weight", i);
		add(&l, w, w, "self_attn.q_proj.weight", i);
		add(&l, kv, w, "self_attn.k_proj.weight", i);
		add(&l, kv, w, "self_attn.v_proj.weight", i);
		add(&l, w, w, "self_attn.o_proj.weight", i);
		add(&l, w, 0, "post_attention_layernorm.weight", i);
		add(&l, m->intermediate, w, "mlp.gate_proj.weight", i);
		add(&l, m->intermediate, w, "mlp.up_proj.weight", i);
		add(&l, w, m->intermediate, "mlp.down_proj.weight", i);
	}
	add(&l, w, 0, "model.norm.weight", UINT32_MAX);
	*out = l;
	return MX_OK;
}

static size_t elements(const struct mx_random_tensor *t)
{
	size_t n = 1;
	for (uint32_t i = 0; i < t->ndim; i++)
		n *= t->shape[i];
	return n;
}

/* ---- config.json ---- */

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

mx_status mx_random_config_write(const char *dir, const char *text, struct mx_err *err)
{
	FILE *f = create(dir, "config.json", err);
	if (!f)
		return MX_E_IO;
	return finish(f, fputs(text, f) >= 0, err);
}

static mx_status write_config(const char *dir, const struct mx_random_model *m, struct mx_err *err)
{
	char text[1024];
	snprintf(text, sizeof text,
	         "{\"model_type\": \"llama\",\n"
	         " \"hidden_size\": %u, \"num_hidden_layers\": %u, \"num_attention_heads\": %u,\n"
	         " \"num_key_value_heads\": %u, \"intermediate_size\": %u, \"vocab_size\": %u,\n"
	         " \"max_position_embeddings\": %u, \"rms_norm_eps\": 1e-05,\n"
	         " \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
	         " \"tie_word_embeddings\": %s}\n",
	         m->width, m->layers, m->heads, m->kv_heads, m->intermediate, m->vocab, m->max_context,
	         m->tied ? "true" : "false");
	return mx_random_config_write(dir, text, err);
}

/* ---- model.safetensors ---- */

static mx_status write_header(FILE *f, const struct mx_random_tensor *tensors, size_t n,
                              enum mx_dtype dtype, struct mx_err *err)
{
	static const char *const names[] = {"F32", "F16", "BF16"};
	struct mx_buf b = {0};
	size_t at = 0;
	mx_buf_puts(&b, "{");
	for (size_t i = 0; i < n; i++) {
		const struct mx_random_tensor *t = &tensors[i];
		size_t end = at + elements(t) * mx_dtype_size(dtype);
		mx_buf_printf(&b, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name,
		              names[dtype]);
		for (uint32_t k = 0; k < t->ndim; k++)
			mx_buf_printf(&b, "%s%llu", k ? "," : "", (unsigned long long)t->shape[k]);
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

/* Fills n elements of dtype: uniform in offset +- scale. */
static void fill(void *out, size_t n, enum mx_dtype dtype, float scale, float offset,
                 uint64_t *state)
{
	for (size_t i = 0; i < n; i++) {
		*state ^= *state << 13; /* xorshift64 */
		*state ^= *state >> 7;
		*state ^= *state << 17;
		float u = (float)((int64_t)*state >> 40) * 0x1p-23f; /* [-1, 1) */
		float v = u * scale + offset;
		if (dtype == MX_F32)
			((float *)out)[i] = v;
		else
			((uint16_t *)out)[i] = mx_f32_to_bf16(v);
	}
}

static bool write_tensor(FILE *f, const struct mx_random_tensor *t, enum mx_dtype dtype,
                         uint64_t *state)
{
	enum { CHUNK = 1 << 16 };
	float *block = malloc(CHUNK * sizeof *block);
	bool ok = block != NULL;
	for (size_t left = elements(t); ok && left;) {
		size_t n = left < CHUNK ? left : CHUNK;
		fill(block, n, dtype, t->scale, t->offset, state);
		ok = fwrite(block, mx_dtype_size(dtype), n, f) == n;
		left -= n;
	}
	free(block);
	return ok;
}

/* ---- large models: by all threads ---- */

/* The number of elements from which on a model is large. */
#define LARGE ((size_t)1 << 28)

enum { PART = 1 << 20 };

struct parts {
	const struct mx_random_tensor *t;
	enum mx_dtype dtype;
	int fd;
	off_t at;
	uint64_t seed;
	atomic_bool failed;
};

static void write_part(void *arg, size_t task, unsigned worker)
{
	struct parts *p = arg;
	size_t first = task * PART, left = elements(p->t) - first, n = left < PART ? left : PART;
	size_t size = mx_dtype_size(p->dtype);
	uint64_t state = (p->seed + task) * 0x9e3779b97f4a7c15u | 1;
	void *block = malloc(n * size);
	(void)worker;
	if (block)
		fill(block, n, p->dtype, p->t->scale, p->t->offset, &state);
	if (!block ||
	    pwrite(p->fd, block, n * size, p->at + (off_t)(first * size)) != (ssize_t)(n * size))
		atomic_store(&p->failed, true);
	free(block);
}

static bool write_large(FILE *f, const struct mx_random_tensor *tensors, size_t n,
                        enum mx_dtype dtype, uint64_t seed)
{
	struct mx_pool *pool;
	struct parts p = {.dtype = dtype, .fd = fileno(f)};
	if (fflush(f) || (p.at = ftello(f)) < 0 || mx_pool_create(0, &pool) != MX_OK)
		return false;
	for (size_t i = 0; i < n; i++) {
		p.t = &tensors[i];
		p.seed = seed + (i << 32);
		mx_pool_run(pool, (elements(p.t) + PART - 1) / PART, write_part, &p);
		p.at += (off_t)(elements(p.t) * mx_dtype_size(dtype));
	}
	mx_pool_destroy(pool);
	return !atomic_load(&p.failed);
}

mx_status mx_random_tensors_write(const char *dir, const struct mx_random_tensor *tensors, size_t n,
                                  enum mx_dtype dtype, uint64_t seed, struct mx_err *err)
{
	if (dtype == MX_F16)
		return mx_fail(err, MX_E_UNSUPPORTED, "random models are F32 or BF16");
	FILE *f = create(dir, "model.safetensors", err);
	if (!f)
		return MX_E_IO;
	uint64_t state = seed * 0x9e3779b97f4a7c15u | 1;
	bool ok = write_header(f, tensors, n, dtype, err) == MX_OK;
	size_t all = 0;
	for (size_t i = 0; i < n; i++)
		all += elements(&tensors[i]);
	if (ok && all >= LARGE)
		ok = write_large(f, tensors, n, dtype, seed);
	for (size_t i = 0; ok && all < LARGE && i < n; i++)
		ok = write_tensor(f, &tensors[i], dtype, &state);
	return finish(f, ok, err);
}

float mx_random_scale(uint64_t cols)
{
	return sqrtf(3.0f / (float)cols);
}

mx_status mx_random_model_write(const char *dir, const struct mx_random_model *m,
                                struct mx_err *err)
{
	struct list l;
	mx_status st = write_config(dir, m, err);
	if (st != MX_OK)
		return st;
	if (list_tensors(m, &l) != MX_OK)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	st = mx_random_tensors_write(dir, l.items, l.n, m->dtype, m->seed, err);
	free(l.items);
	return st;
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
