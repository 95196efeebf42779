/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF, llama.cpp's file of a whole model: metadata (key-value pairs, the tokenizer among them) and
 * tensors, memory-mapped; one file or its shards.
 *
 * The format: docs/gguf.md of github.com/ggml-org/ggml, versions 2 and 3. Everything in front of
 * the data is checked before a pointer is handed out. Read-only; thread safe once open.
 */
#ifndef MX_MODEL_GGUF_GGUF_H
#define MX_MODEL_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

#define MX_GGUF_MAX_DIMS 4

/* The format's numbers of value types. */
enum mx_gguf_kind {
	MX_GGUF_U8 = 0,
	MX_GGUF_I8 = 1,
	MX_GGUF_U16 = 2,
	MX_GGUF_I16 = 3,
	MX_GGUF_U32 = 4,
	MX_GGUF_I32 = 5,
	MX_GGUF_F32 = 6,
	MX_GGUF_BOOL = 7,
	MX_GGUF_STRING = 8,
	MX_GGUF_ARRAY = 9,
	MX_GGUF_U64 = 10,
	MX_GGUF_I64 = 11,
	MX_GGUF_F64 = 12,
};

/* Types of tensors, by the format's numbers; types.c has the others, which are known by name only.
 */
enum mx_gguf_type {
	MX_GGUF_TYPE_F32 = 0,
	MX_GGUF_TYPE_F16 = 1,
	MX_GGUF_TYPE_Q4_0 = 2,
	MX_GGUF_TYPE_Q4_1 = 3,
	MX_GGUF_TYPE_Q5_0 = 6,
	MX_GGUF_TYPE_Q5_1 = 7,
	MX_GGUF_TYPE_Q8_0 = 8,
	MX_GGUF_TYPE_Q2_K = 10,
	MX_GGUF_TYPE_Q3_K = 11,
	MX_GGUF_TYPE_Q4_K = 12,
	MX_GGUF_TYPE_Q5_K = 13,
	MX_GGUF_TYPE_Q6_K = 14,
	MX_GGUF_TYPE_IQ2_XXS = 16,
	MX_GGUF_TYPE_IQ2_XS = 17,
	MX_GGUF_TYPE_IQ3_XXS = 18,
	MX_GGUF_TYPE_IQ1_S = 19,
	MX_GGUF_TYPE_IQ4_NL = 20,
	MX_GGUF_TYPE_IQ3_S = 21,
	MX_GGUF_TYPE_IQ2_S = 22,
	MX_GGUF_TYPE_IQ4_XS = 23,
	MX_GGUF_TYPE_IQ1_M = 29,
	MX_GGUF_TYPE_BF16 = 30,
	MX_GGUF_TYPE_TQ1_0 = 34,
	MX_GGUF_TYPE_TQ2_0 = 35,
	MX_GGUF_TYPE_MXFP4 = 39,
};

/* A string of the file, not NUL-terminated. */
struct mx_gguf_string {
	const char *s;
	size_t n;
};

/* The value of a key. `at` points to its bytes: of a string behind its length, of an array to its
 * elements. */
struct mx_gguf_value {
	struct mx_gguf_string key;
	enum mx_gguf_kind kind;
	enum mx_gguf_kind element; /* of an array */
	uint64_t n;                /* bytes of a string, elements of an array */
	const unsigned char *at;
};

struct mx_gguf_tensor {
	const char *name; /* NUL-terminated */
	uint32_t type;    /* one of mx_gguf_types */
	uint32_t ndim;
	uint64_t shape[MX_GGUF_MAX_DIMS]; /* slowest dimension first, the reverse of the file's */
	const void *data;                 /* in the mapping */
	size_t bytes;
	const char *file; /* base name of the shard */
};

struct mx_gguf;

/* True if `path` is a regular file that begins with GGUF's magic. */
bool mx_gguf_is(const char *path);
/* Maps a file, and the other shards if it is the first one of several (-00001-of-0000N.gguf). */
mx_status mx_gguf_open(const char *path, struct mx_gguf **out, struct mx_err *err);
/* Reads the bytes of one file, which must outlive *out. For tests and fuzzing. */
mx_status mx_gguf_parse(const void *data, size_t size, const char *name, struct mx_gguf **out,
                        struct mx_err *err);
void mx_gguf_close(struct mx_gguf *g); /* takes NULL */

/* Returns the base name of the (first) file. */
const char *mx_gguf_name(const struct mx_gguf *g);
/* Returns the bytes of all mappings. */
size_t mx_gguf_bytes(const struct mx_gguf *g);

/* ---- tensors, sorted by name ---- */

size_t mx_gguf_count(const struct mx_gguf *g);
const struct mx_gguf_tensor *mx_gguf_at(const struct mx_gguf *g, size_t i);
/* NULL = there is none. */
const struct mx_gguf_tensor *mx_gguf_tensor(const struct mx_gguf *g, const char *name);

/* ---- metadata ---- */

/* Returns the value of a key; NULL if it is absent. */
const struct mx_gguf_value *mx_gguf_find(const struct mx_gguf *g, const char *key);
/* These set *out if the key is there (*there, which may be NULL) and leave it as it is if not.
 * MX_E_FORMAT for a value of another type: any integer or boolean is an integer that fits, any
 * number is a float. */
mx_status mx_gguf_int(const struct mx_gguf *g, const char *key, int64_t *out, bool *there,
                      struct mx_err *err);
mx_status mx_gguf_float(const struct mx_gguf *g, const char *key, double *out, bool *there,
                        struct mx_err *err);
mx_status mx_gguf_bool(const struct mx_gguf *g, const char *key, bool *out, bool *there,
                       struct mx_err *err);
mx_status mx_gguf_text(const struct mx_gguf *g, const char *key, struct mx_gguf_string *out,
                       bool *there, struct mx_err *err);
/* Returns element i of an array of numbers or booleans; false if it has none, or is of others. */
bool mx_gguf_element(const struct mx_gguf_value *v, uint64_t i, double *out);
/* Returns the string at *at, which goes on to the next one. Of an array of strings v start with
 * v->at, and call it v->n times at most. */
struct mx_gguf_string mx_gguf_next(const unsigned char **at);

/* ---- types.c ---- */

struct mx_gguf_type_info {
	uint32_t type;
	const char *name;      /* "Q4_K" */
	uint32_t block, bytes; /* elements and bytes of a block */
};
/* NULL for a number that is not known. */
const struct mx_gguf_type_info *mx_gguf_type_info(uint32_t type);

#endif
