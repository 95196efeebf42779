/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what is in front of a file's data: magic, version, counts, key-value pairs, tensors. All of
 * it is untrusted: each length is compared with the bytes that are left before it is used.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/file.h"

#define MAX_NAME   255 /* bytes of a tensor's name; ggml itself has 63 */
#define MAX_KEY    65535
#define MIN_PAIR   (8 + 4 + 1)             /* bytes of the shortest key-value pair */
#define MIN_TENSOR (8 + 1 + 4 + 8 + 4 + 8) /* bytes of the shortest description of a tensor */

/* The state of reading one file. */
struct reader {
	const unsigned char *data;
	uint64_t size, at;
	const char *file; /* its name, in the arena */
	struct mx_gguf *g;
	struct mx_err *err;
};

/* Fills the place of *err: byte `at` of the file. */
static mx_status place(const struct reader *r, uint64_t at, mx_status s)
{
	if (r->err) {
		r->err->offset = at;
		r->err->line = r->err->column = 0;
	}
	return s;
}

#define FAIL(r, at, status, ...) place(r, at, mx_fail_at((r)->err, status, (r)->file, __VA_ARGS__))

static mx_status no_memory(const struct reader *r)
{
	return FAIL(r, r->at, MX_E_NOMEM, "no memory for the table of tensors");
}

/* Reads an integer of `bytes` bytes, little-endian. */
static mx_status take(struct reader *r, unsigned bytes, const char *what, uint64_t *out)
{
	uint64_t v = 0;
	if (r->size - r->at < bytes)
		return FAIL(r, r->at, MX_E_FORMAT, "ends at byte %" PRIu64 ", within %s", r->size, what);
	for (unsigned i = 0; i < bytes; i++)
		v |= (uint64_t)r->data[r->at + i] << 8 * i;
	r->at += bytes;
	*out = v;
	return MX_OK;
}

static mx_status take_string(struct reader *r, const char *what, struct mx_gguf_string *out)
{
	uint64_t begin = r->at, n = 0;
	mx_status s = take(r, 8, what, &n);
	if (s)
		return s;
	if (n > r->size - r->at)
		return FAIL(r, begin, MX_E_FORMAT,
		            "%s is %" PRIu64 " bytes long, the rest of the file %" PRIu64, what, n,
		            r->size - r->at);
	*out = (struct mx_gguf_string){(const char *)r->data + r->at, (size_t)n};
	r->at += n;
	return MX_OK;
}

/* Returns the bytes of a value of fixed size, 0 for strings and arrays; -1 if there is no such
 * kind. */
static int size_of(uint64_t kind)
{
	static const signed char sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
	return kind < sizeof sizes ? sizes[kind] : -1;
}

/* Passes the n elements of an array. */
static mx_status pass_elements(struct reader *r, const char *key, struct mx_gguf_value *v)
{
	int size = size_of(v->element);
	struct mx_gguf_string text;
	if (v->element == MX_GGUF_ARRAY)
		return FAIL(r, r->at, MX_E_UNSUPPORTED, "key '%.100s': is an array of arrays", key);
	if (v->n > (r->size - r->at) / (size ? (uint64_t)size : 8))
		return FAIL(r, r->at, MX_E_FORMAT,
		            "key '%.100s': has %" PRIu64
		            " elements, more than the rest of the file can have",
		            key, v->n);
	v->at = r->data + r->at;
	if (size) {
		r->at += v->n * (uint64_t)size;
		return MX_OK;
	}
	for (uint64_t i = 0; i < v->n; i++) {
		mx_status s = take_string(r, "a string of an array", &text);
		if (s)
			return s;
	}
	return MX_OK;
}

static mx_status read_value(struct reader *r, const char *key, uint64_t kind,
                            struct mx_gguf_value *v)
{
	uint64_t begin = r->at, element = 0;
	struct mx_gguf_string text;
	int size = size_of(kind);
	mx_status s;
	if (size < 0)
		return FAIL(r, begin, MX_E_FORMAT, "key '%.100s': has the unknown type %" PRIu64, key,
		            kind);
	v->kind = (enum mx_gguf_kind)kind;
	if (kind == MX_GGUF_STRING) {
		if ((s = take_string(r, "a string", &text)))
			return s;
		v->at = (const unsigned char *)text.s;
		v->n = text.n;
		return MX_OK;
	}
	if (kind == MX_GGUF_ARRAY) {
		s = take(r, 4, "an array", &element);
		if (!s)
			s = take(r, 8, "an array", &v->n);
		if (!s && size_of(element) < 0)
			return FAIL(r, begin, MX_E_FORMAT,
			            "key '%.100s': has elements of the unknown type %" PRIu64, key, element);
		v->element = (enum mx_gguf_kind)element;
		return s ? s : pass_elements(r, key, v);
	}
	v->at = r->data + r->at;
	if ((uint64_t)size > r->size - r->at)
		return FAIL(r, begin, MX_E_FORMAT, "ends within the value of key '%.100s'", key);
	r->at += (uint64_t)size;
	return MX_OK;
}

static int by_key(const void *a, const void *b)
{
	const struct mx_gguf_value *x = a, *y = b;
	size_t n = x->key.n < y->key.n ? x->key.n : y->key.n;
	int d = memcmp(x->key.s, y->key.s, n);
	return d ? d : (x->key.n > y->key.n) - (x->key.n < y->key.n);
}

static mx_status read_pair(struct reader *r, struct mx_gguf_value *v)
{
	uint64_t begin = r->at, kind = 0;
	char key[101];
	mx_status s = take_string(r, "a key", &v->key);
	if (s)
		return s;
	if (!v->key.n || v->key.n > MAX_KEY || memchr(v->key.s, 0, v->key.n))
		return FAIL(r, begin, MX_E_FORMAT, "a key is empty, too long or holds a zero byte");
	size_t n = v->key.n < sizeof key ? v->key.n : sizeof key - 1;
	memcpy(key, v->key.s, n);
	key[n] = 0;
	s = take(r, 4, "the type of a key", &kind);
	return s ? s : read_value(r, key, kind, v);
}

/* Reads the key-value pairs into *out, sorted; the caller frees it. */
static mx_status read_pairs(struct reader *r, uint64_t n, struct mx_gguf_value **out)
{
	if (n > (r->size - r->at) / MIN_PAIR)
		return FAIL(r, 16, MX_E_FORMAT,
		            "says that it has %" PRIu64 " key-value pairs, more than fit into it", n);
	struct mx_gguf_value *v = mx_calloc((size_t)n + 1, sizeof *v);
	mx_status s = v ? MX_OK : no_memory(r);
	for (uint64_t i = 0; !s && i < n; i++)
		s = read_pair(r, &v[i]);
	if (!s)
		qsort(v, (size_t)n, sizeof *v, by_key);
	for (uint64_t i = 1; !s && i < n; i++)
		if (!by_key(&v[i - 1], &v[i]))
			s = FAIL(r, (uint64_t)((const unsigned char *)v[i].key.s - r->data), MX_E_FORMAT,
			         "key '%.*s' is there twice", v[i].key.n < 100 ? (int)v[i].key.n : 100,
			         v[i].key.s);
	if (s) {
		free(v);
		return s;
	}
	*out = v;
	return MX_OK;
}

/* Reads the dimensions, fastest first, and computes the bytes of the data. */
static mx_status read_shape(struct reader *r, struct mx_gguf_tensor *t, uint64_t begin)
{
	uint64_t n_dims = 0, type = 0, n = 1;
	mx_status s = take(r, 4, "a tensor", &n_dims);
	if (s)
		return s;
	if (n_dims > MX_GGUF_MAX_DIMS)
		return FAIL(r, begin, MX_E_FORMAT,
		            "tensor '%.160s': has %" PRIu64 " dimensions, more than %d", t->name, n_dims,
		            MX_GGUF_MAX_DIMS);
	t->ndim = (uint32_t)n_dims;
	for (uint32_t i = t->ndim; !s && i-- > 0;)
		s = take(r, 8, "a tensor's shape", &t->shape[i]);
	if (!s)
		s = take(r, 4, "a tensor's type", &type);
	if (s)
		return s;
	const struct mx_gguf_type_info *info = mx_gguf_type_info((uint32_t)type);
	if (!info)
		return FAIL(r, begin, MX_E_UNSUPPORTED,
		            "tensor '%.160s': GGUF type %" PRIu64 " is not known; use Q4_K_M or Q8_0",
		            t->name, type);
	t->type = info->type;
	for (uint32_t i = 0; i < t->ndim; i++)
		if (__builtin_mul_overflow(n, t->shape[i], &n))
			return FAIL(r, begin, MX_E_FORMAT,
			            "tensor '%.160s': has more elements than can be counted", t->name);
	uint64_t row = t->ndim ? t->shape[t->ndim - 1] : 1;
	if (row % info->block)
		return FAIL(r, begin, MX_E_FORMAT,
		            "tensor '%.160s': its rows of %" PRIu64 " are no whole blocks of %u (%s)",
		            t->name, row, info->block, info->name);
	uint64_t bytes;
	if (__builtin_mul_overflow(n / info->block, (uint64_t)info->bytes, &bytes) || bytes > r->size)
		return FAIL(r, begin, MX_E_FORMAT,
		            "tensor '%.160s': is larger than the file, which has %" PRIu64 " bytes",
		            t->name, r->size);
	t->bytes = (size_t)bytes;
	return MX_OK;
}

/* Reads the description of a tensor; *offset: of its data, from the data's begin. */
static mx_status read_tensor(struct reader *r, struct mx_gguf_tensor *t, uint64_t *offset)
{
	uint64_t begin = r->at;
	struct mx_gguf_string name;
	mx_status s = take_string(r, "a tensor's name", &name);
	if (s)
		return s;
	if (!name.n || name.n > MAX_NAME || memchr(name.s, 0, name.n))
		return FAIL(r, begin, MX_E_FORMAT,
		            "a tensor's name is empty, too long or holds a zero byte");
	t->name = mx_arena_strndup(&r->g->arena, name.s, name.n);
	if (!t->name)
		return no_memory(r);
	t->file = r->file;
	s = read_shape(r, t, begin);
	return s ? s : take(r, 8, "a tensor's offset", offset);
}

static mx_status make_room(struct reader *r, uint64_t n)
{
	struct mx_gguf *g = r->g;
	if (n > (r->size - r->at) / MIN_TENSOR)
		return FAIL(r, 8, MX_E_FORMAT,
		            "says that it has %" PRIu64 " tensors, more than fit into it", n);
	struct mx_gguf_tensor *t = mx_realloc(g->tensors, g->n_tensors + (size_t)n + 1, sizeof *t);
	if (!t)
		return no_memory(r);
	g->tensors = t;
	return MX_OK;
}

/* Returns the alignment of the data: general.alignment, else 32. */
static mx_status alignment_of(const struct reader *r, const struct mx_gguf_value *pairs, uint64_t n,
                              uint64_t *out)
{
	static const char key[] = "general.alignment";
	const struct mx_gguf_value want = {.key = {key, sizeof key - 1}};
	const struct mx_gguf_value *v =
		n ? bsearch(&want, pairs, (size_t)n, sizeof want, by_key) : NULL;
	*out = 32;
	if (!v)
		return MX_OK;
	uint64_t a = 0;
	if (v->kind == MX_GGUF_U32)
		for (int i = 0; i < 4; i++)
			a |= (uint64_t)v->at[i] << 8 * i;
	if (!a || (a & (a - 1)))
		return FAIL(r, (uint64_t)(v->at - r->data), MX_E_FORMAT,
		            "general.alignment is no power of two");
	*out = a;
	return MX_OK;
}

/* Reads the descriptions of n tensors. Their data lies in the same order, without gaps but for the
 * alignment. */
static mx_status read_tensors(struct reader *r, uint64_t n, uint64_t align)
{
	struct mx_gguf *g = r->g;
	const size_t first = g->n_tensors;
	uint64_t expected = 0;
	mx_status s = make_room(r, n);
	for (uint64_t i = 0; !s && i < n; i++) {
		struct mx_gguf_tensor *t = &g->tensors[g->n_tensors];
		uint64_t begin = r->at, offset = 0;
		*t = (struct mx_gguf_tensor){0};
		s = read_tensor(r, t, &offset);
		if (s)
			return s;
		if (offset != expected)
			return FAIL(r, begin, MX_E_FORMAT,
			            "tensor '%.160s': begins at byte %" PRIu64
			            " of the data, but the one before it ends at %" PRIu64,
			            t->name, offset, expected);
		if (__builtin_add_overflow(expected, t->bytes + (align - t->bytes % align) % align,
		                           &expected))
			return FAIL(r, begin, MX_E_FORMAT, "tensor '%.160s': is too large", t->name);
		t->data = (const void *)(uintptr_t)offset; /* until the data's begin is known */
		g->n_tensors++;
	}
	if (s)
		return s;
	uint64_t begin = r->at + (align - r->at % align) % align;
	for (size_t i = first; i < g->n_tensors; i++) {
		struct mx_gguf_tensor *t = &g->tensors[i];
		uint64_t offset = (uint64_t)(uintptr_t)t->data;
		if (begin > r->size || offset > r->size - begin || t->bytes > r->size - begin - offset)
			return FAIL(r, r->size, MX_E_FORMAT,
			            "tensor '%.160s': bytes %" PRIu64 " to %" PRIu64
			            " are beyond the file's end, %" PRIu64
			            ": the file is not whole; download it again",
			            t->name, begin + offset, begin + offset + t->bytes, r->size);
		t->data = r->data + begin + offset;
	}
	return MX_OK;
}

static mx_status read_head(struct reader *r, uint64_t *n_tensors, uint64_t *n_pairs)
{
	uint64_t version = 0;
	if (r->size < 4 || memcmp(r->data, "GGUF", 4) != 0)
		return FAIL(r, 0, MX_E_FORMAT, "does not begin with \"GGUF\"");
	r->at = 4;
	mx_status s = take(r, 4, "the version", &version);
	if (s)
		return s;
	if (!(version & 0xffff))
		return FAIL(r, 4, MX_E_UNSUPPORTED, "is a GGUF file of big-endian machines");
	if (version != 2 && version != 3)
		return FAIL(r, 4, MX_E_UNSUPPORTED, "is of GGUF version %" PRIu64 ", not 2 or 3", version);
	s = take(r, 8, "the number of tensors", n_tensors);
	return s ? s : take(r, 8, "the number of key-value pairs", n_pairs);
}

mx_status mx_gguf_read(struct mx_gguf *g, const void *data, size_t size, const char *name,
                       struct mx_err *err)
{
	struct reader r = {.data = data, .size = size, .g = g, .err = err};
	struct mx_gguf_value *pairs = NULL;
	uint64_t n_tensors = 0, n_pairs = 0, align = 32;
	r.file = mx_arena_strndup(&g->arena, name, strlen(name));
	if (!r.file)
		return mx_fail_at(err, MX_E_NOMEM, name, "no memory for the table of tensors");
	mx_status s = read_head(&r, &n_tensors, &n_pairs);
	if (!s)
		s = read_pairs(&r, n_pairs, &pairs);
	if (!s)
		s = alignment_of(&r, pairs, n_pairs, &align);
	if (!s)
		s = read_tensors(&r, n_tensors, align);
	if (s || g->values) {
		free(pairs);
		return s;
	}
	g->name = r.file;
	g->values = pairs;
	g->n_values = (size_t)n_pairs;
	return MX_OK;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct mx_gguf_tensor *)a)->name,
	              ((const struct mx_gguf_tensor *)b)->name);
}

mx_status mx_gguf_index(struct mx_gguf *g, struct mx_err *err)
{
	if (g->n_tensors)
		qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
	for (size_t i = 1; i < g->n_tensors; i++)
		if (!by_name(&g->tensors[i - 1], &g->tensors[i]))
			return mx_fail_at(err, MX_E_FORMAT, g->tensors[i].file,
			                  "tensor '%.160s' is there twice", g->tensors[i].name);
	return MX_OK;
}

const struct mx_gguf_tensor *mx_gguf_tensor(const struct mx_gguf *g, const char *name)
{
	const struct mx_gguf_tensor want = {.name = name};
	return g->n_tensors ? bsearch(&want, g->tensors, g->n_tensors, sizeof want, by_name) : NULL;
}

const struct mx_gguf_value *mx_gguf_find(const struct mx_gguf *g, const char *key)
{
	const struct mx_gguf_value want = {.key = {key, strlen(key)}};
	return g->n_values ? bsearch(&want, g->values, g->n_values, sizeof want, by_key) : NULL;
}
