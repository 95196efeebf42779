/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of one safetensors file: eight bytes of little-endian length, a
 * JSON object of tensors, then the data. The tensors must cover the data without
 * gap or overlap (the rules of github.com/huggingface/safetensors). The header is
 * untrusted: every field is checked before it is used.
 */
#include "model/safetensors_file.h"
#include "model/config_json.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The limit of the format. */
#define MAX_HEADER 100000000u

static const struct {
	const char *name;
	unsigned bits;
	int dtype; /* enum mx_dtype, or -1 */
} dtypes[] = {
	{"F32", 32, MX_F32},    {"F16", 16, MX_F16},    {"BF16", 16, MX_BF16}, {"F64", 64, -1},
	{"I64", 64, -1},        {"U64", 64, -1},        {"I32", 32, -1},       {"U32", 32, -1},
	{"I16", 16, -1},        {"U16", 16, -1},        {"I8", 8, -1},         {"U8", 8, -1},
	{"BOOL", 8, -1},        {"F8_E5M2", 8, -1},     {"F8_E4M3", 8, -1},    {"F8_E8M0", 8, -1},
	{"F8_E5M2FNUZ", 8, -1}, {"F8_E4M3FNUZ", 8, -1}, {"F6_E2M3", 6, -1},    {"F6_E3M2", 6, -1},
	{"F4", 4, -1},          {"C64", 64, -1},
};
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

/* The state of reading one file. */
struct reader {
	const unsigned char *payload; /* the bytes after the header */
	uint64_t payload_size;
	const char *where; /* file name for messages */
	const char *file;  /* the same name in the arena */
	struct mx_arena *arena;
	struct mx_err *err;
};

static mx_status bad_tensor(const struct reader *r, const char *name, const char *what)
{
	return mx_fail_at(r->err, MX_E_FORMAT, r->where, "tensor '%.160s': %s", name, what);
}

/* Reads a non-negative integer, which must be written as an integer. */
static bool get_u64(const json_t *v, uint64_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*out = (uint64_t)json_integer_value(v);
	return true;
}

static mx_status read_shape(const struct reader *r, const char *name, const json_t *shape,
                            struct mx_tensor *t, uint64_t *out_elements)
{
	uint64_t n = 1;
	if (!json_is_array(shape))
		return bad_tensor(r, name, "'shape' is missing or not a list");
	if (json_array_size(shape) > MX_TENSOR_MAX_DIMS)
		return mx_fail_at(r->err, MX_E_UNSUPPORTED, r->where,
		                  "tensor '%.160s': has %zu dimensions, more than %d", name,
		                  json_array_size(shape), MX_TENSOR_MAX_DIMS);
	t->ndim = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < t->ndim; i++) {
		if (!get_u64(json_array_get(shape, i), &t->shape[i]))
			return bad_tensor(r, name, "'shape' holds something other than whole numbers >= 0");
		if (__builtin_mul_overflow(n, t->shape[i], &n))
			return bad_tensor(r, name, "'shape' has more elements than can be counted");
	}
	*out_elements = n;
	return MX_OK;
}

static mx_status read_tensor(const struct reader *r, const char *name, const json_t *info,
                             struct mx_st_entry *out)
{
	struct mx_tensor *t = &out->tensor;
	uint64_t elements = 0, bits, begin, end;

	if (!json_is_object(info))
		return bad_tensor(r, name, "its entry is not an object");
	const char *dtype = json_string_value(json_object_get(info, "dtype"));
	if (!dtype)
		return bad_tensor(r, name, "'dtype' is missing or not a string");
	size_t d = 0;
	while (d < N_DTYPES && strcmp(dtypes[d].name, dtype))
		d++;
	if (d == N_DTYPES)
		return mx_fail_at(r->err, MX_E_FORMAT, r->where, "tensor '%.160s': unknown dtype '%.40s'",
		                  name, dtype);

	mx_status s = read_shape(r, name, json_object_get(info, "shape"), t, &elements);
	if (s)
		return s;
	if (__builtin_mul_overflow(elements, (uint64_t)dtypes[d].bits, &bits) || bits % 8)
		return bad_tensor(r, name, "'shape' does not come to a whole number of bytes");

	const json_t *offsets = json_object_get(info, "data_offsets");
	if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
	    !get_u64(json_array_get(offsets, 0), &begin) || !get_u64(json_array_get(offsets, 1), &end))
		return bad_tensor(r, name, "'data_offsets' is not a pair of whole numbers >= 0");
	if (begin > end || end > r->payload_size)
		return mx_fail_at(r->err, MX_E_FORMAT, r->where,
		                  "tensor '%.160s': bytes %" PRIu64 " to %" PRIu64
		                  " are outside the file's %" PRIu64 " bytes of data",
		                  name, begin, end, r->payload_size);
	if (end - begin != bits / 8)
		return mx_fail_at(r->err, MX_E_FORMAT, r->where,
		                  "tensor '%.160s': its shape needs %" PRIu64
		                  " bytes, its offsets span %" PRIu64,
		                  name, bits / 8, end - begin);

	t->name = mx_arena_strndup(r->arena, name, strlen(name));
	if (!t->name)
		return mx_fail_at(r->err, MX_E_NOMEM, r->where, "no memory for the table of tensors");
	t->dtype = dtypes[d].dtype < 0 ? MX_F32 : (enum mx_dtype)dtypes[d].dtype;
	t->data = r->payload + begin;
	t->bytes = (size_t)(end - begin);
	t->file = r->file;
	out->other = dtypes[d].dtype < 0 ? dtypes[d].name : NULL;
	return MX_OK;
}

static int by_place(const void *a, const void *b)
{
	const struct mx_tensor *x = a, *y = b; /* first member of mx_st_entry */
	if (x->data != y->data)
		return (const char *)x->data < (const char *)y->data ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct mx_tensor *)a)->name, ((const struct mx_tensor *)b)->name);
}

/* Checks that the tensors cover the data exactly once. */
static mx_status check_cover(const struct reader *r, struct mx_st_entry *e, size_t n)
{
	uint64_t at = 0;
	qsort(e, n, sizeof *e, by_place);
	for (size_t i = 0; i < n; i++) {
		uint64_t begin = (uint64_t)((const unsigned char *)e[i].tensor.data - r->payload);
		if (begin < at)
			return mx_fail_at(r->err, MX_E_FORMAT, r->where,
			                  "tensor '%.160s': overlaps tensor '%.160s'", e[i].tensor.name,
			                  e[i - 1].tensor.name);
		if (begin > at)
			return mx_fail_at(r->err, MX_E_FORMAT, r->where,
			                  "tensor '%.160s': begins at byte %" PRIu64
			                  " of the data, but byte %" PRIu64 " belongs to no tensor",
			                  e[i].tensor.name, begin, at);
		at += e[i].tensor.bytes;
	}
	if (at != r->payload_size)
		return mx_fail_at(r->err, MX_E_FORMAT, r->where,
		                  "the tensors end at byte %" PRIu64 " of the data, the file at %" PRIu64,
		                  at, r->payload_size);
	return MX_OK;
}

static mx_status check_metadata(const struct reader *r, json_t *meta)
{
	const char *key;
	json_t *v;
	if (!json_is_object(meta))
		return mx_fail_at(r->err, MX_E_FORMAT, r->where, "'__metadata__' is not an object");
	json_object_foreach(meta, key, v) if (!json_is_string(v)) return mx_fail_at(
		r->err, MX_E_FORMAT, r->where, "'__metadata__': the value of '%.160s' is not a string",
		key);
	return MX_OK;
}

static mx_status read_table(struct reader *r, json_t *header, struct mx_st_entry **out,
                            size_t *out_n)
{
	struct mx_st_entry *e = mx_calloc(json_object_size(header) + 1, sizeof *e);
	mx_status s = MX_OK;
	const char *name;
	json_t *info;
	size_t n = 0;

	if (!e)
		return mx_fail_at(r->err, MX_E_NOMEM, r->where, "no memory for the table of tensors");
	json_object_foreach(header, name, info)
	{
		if (!strcmp(name, "__metadata__"))
			s = check_metadata(r, info);
		else
			s = read_tensor(r, name, info, &e[n++]);
		if (s)
			goto fail;
	}
	s = check_cover(r, e, n);
	if (s)
		goto fail;
	qsort(e, n, sizeof *e, by_name);
	*out = e;
	*out_n = n;
	return MX_OK;
fail:
	free(e);
	return s;
}

mx_status mx_st_read(const void *data, size_t size, const char *file, struct mx_arena *arena,
                     struct mx_st_entry **out, size_t *out_n, struct mx_err *err)
{
	const unsigned char *p = data;
	uint64_t n = 0;
	json_error_t je;

	if (size < 8)
		return mx_fail_at(err, MX_E_FORMAT, file, "is %zu bytes long, too short for a header",
		                  size);
	for (int i = 0; i < 8; i++)
		n |= (uint64_t)p[i] << 8 * i;
	if (n > MAX_HEADER || n > size - 8)
		return mx_fail_at(err, MX_E_FORMAT, file,
		                  "header length %" PRIu64 " is more than %s (%" PRIu64 " bytes)", n,
		                  n > size - 8 ? "the rest of the file" : "the format allows",
		                  n > size - 8 ? (uint64_t)size - 8 : (uint64_t)MAX_HEADER);
	json_t *header = json_loadb((const char *)p + 8, (size_t)n, JSON_REJECT_DUPLICATES, &je);
	if (!header)
		return mx_json_failed(&je, file, "header is ", 8, err);

	struct reader r = {
		.payload = p + 8 + n,
		.payload_size = size - 8 - n,
		.where = file,
		.file = mx_arena_strndup(arena, file, strlen(file)),
		.arena = arena,
		.err = err,
	};
	mx_status s;
	if (!r.file)
		s = mx_fail_at(err, MX_E_NOMEM, file, "no memory for the table of tensors");
	else if (!json_is_object(header))
		s = mx_fail_at(err, MX_E_FORMAT, file, "header is not a JSON object");
	else
		s = read_table(&r, header, out, out_n);
	json_decref(header);
	return s;
}

mx_status mx_safetensors_check(const void *data, size_t size, struct mx_err *err)
{
	struct mx_arena arena = {0};
	struct mx_st_entry *e = NULL;
	size_t n;
	mx_status s = mx_st_read(data, size, "model.safetensors", &arena, &e, &n, err);
	free(e);
	mx_arena_free(&arena);
	return s;
}
