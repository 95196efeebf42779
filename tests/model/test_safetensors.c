/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that every kind of damage to a safetensors file or its index is refused with the stated
 * message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/safetensors.h"

/* ---- one file in memory ---- */

/* Makes a file of that header and `payload` bytes 0, 1, 2, ... after it. The caller frees it. */
static unsigned char *file_of(const char *header, size_t header_len, size_t payload,
                              uint64_t claimed_len, size_t *out_size)
{
	size_t size = 8 + header_len + payload;
	unsigned char *p = malloc(size);
	assert_non_null(p);
	for (int i = 0; i < 8; i++)
		p[i] = (unsigned char)(claimed_len >> 8 * i);
	memcpy(p + 8, header, header_len);
	for (size_t i = 0; i < payload; i++)
		p[8 + header_len + i] = (unsigned char)i;
	*out_size = size;
	return p;
}

static mx_status check(const char *header, size_t payload, struct mx_err *err)
{
	size_t size, n = strlen(header);
	unsigned char *p = file_of(header, n, payload, n, &size);
	mx_status s = mx_safetensors_check(p, size, err);
	free(p);
	return s;
}

#define T(name, dtype, shape, offsets)                                                             \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void sound_headers_are_taken(void **state)
{
	(void)state;
	static const struct {
		const char *header;
		size_t payload;
	} cases[] = {
		{"{}", 0},
		{"{\"__metadata__\":{\"format\":\"pt\"}}", 0},
		{"{" T("a", "F32", "[2,3]", "[0,24]") "}", 24},
		{"{" T("a", "F32", "[]", "[0,4]") "}", 4},
		{"{" T("a", "F32", "[0,7]", "[0,0]") "}", 0},
		{"{" T("a", "F32", "[1]", "[0,4]") "}    ", 4}, /* padded with spaces */
		{"{" T("b", "BF16", "[4]", "[4,12]") "," T("a", "F16", "[2]", "[0,4]") "}", 12},
		{"{" T("z", "F32", "[0]", "[4,4]") "," T("a", "F16", "[2]", "[0,4]") "}", 4},
		{"{" T("a", "F4", "[4]", "[0,2]") "," T("b", "F6_E2M3", "[4]", "[2,5]") "}", 5},
		{"{" T("a", "I64", "[1]", "[0,8]") "," T("b", "BOOL", "[3]", "[8,11]") "}", 11},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_err err = {0};
		if (check(cases[i].header, cases[i].payload, &err))
			fail_msg("%s: %s", cases[i].header, err.text);
	}
}

static void damaged_headers_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *header;
		size_t payload;
		mx_status status;
		const char *message;
	} cases[] = {
		{"", 4, MX_E_FORMAT, "header is not valid JSON at line 1, column 0"},
		{"{\"a\":", 4, MX_E_FORMAT, "header is not valid JSON at line 1, column 5"},
		{"{} x", 0, MX_E_FORMAT, "header is not valid JSON"},
		{"[]", 0, MX_E_FORMAT, "header is not a JSON object"},
		{"{\"__metadata__\":3}", 0, MX_E_FORMAT, "'__metadata__' is not an object"},
		{"{\"__metadata__\":{\"k\":3}}", 0, MX_E_FORMAT, "'__metadata__': the value of 'k'"},
		{"{\"a\":7}", 0, MX_E_FORMAT, "tensor 'a': its entry is not an object"},
		{"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, MX_E_FORMAT,
	     "tensor 'a': 'dtype' is missing"},
		{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, MX_E_FORMAT,
	     "tensor 'a': 'shape' is missing"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, MX_E_FORMAT,
	     "tensor 'a': 'data_offsets' is not a pair"},
		{"{" T("a", "F31", "[1]", "[0,4]") "}", 4, MX_E_FORMAT, "tensor 'a': unknown dtype 'F31'"},
		{"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, MX_E_FORMAT,
	     "tensor 'a': 'shape' holds something other than whole numbers"},
		{"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, MX_E_FORMAT, "'shape' holds something other"},
		{"{" T("a", "F32", "{}", "[0,4]") "}", 4, MX_E_FORMAT, "'shape' is missing or not a list"},
		{"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, MX_E_UNSUPPORTED,
	     "tensor 'a': has 9 dimensions"},
		{"{" T("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, MX_E_FORMAT,
	     "tensor 'a': 'shape' has more elements than can be counted"},
		/* 2^62 elements of 32 bits overflow only when counted in bits. */
		{"{" T("a", "F32", "[4611686018427387904]", "[0,4]") "}", 4, MX_E_FORMAT,
	     "tensor 'a': 'shape' does not come to a whole number of bytes"},
		{"{" T("a", "F4", "[3]", "[0,1]") "}", 1, MX_E_FORMAT, "whole number of bytes"},
		{"{" T("a", "F32", "[18446744073709551616]", "[0,4]") "}", 4, MX_E_FORMAT,
	     "too big integer"},
		{"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, MX_E_FORMAT, "is not a pair"},
		{"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, MX_E_FORMAT, "is not a pair"},
		{"{" T("a", "F32", "[1]", "[4,0]") "}", 4, MX_E_FORMAT,
	     "tensor 'a': bytes 4 to 0 are outside the file's 4 bytes of data"},
		{"{" T("a", "F32", "[2]", "[0,8]") "}", 4, MX_E_FORMAT,
	     "tensor 'a': bytes 0 to 8 are outside the file's 4 bytes of data"},
		{"{" T("a", "F32", "[2]", "[0,4]") "}", 4, MX_E_FORMAT,
	     "tensor 'a': its shape needs 8 bytes, its offsets span 4"},
		{"{" T("a", "F32", "[0]", "[0,4]") "}", 4, MX_E_FORMAT, "needs 0 bytes"},
		{"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, MX_E_FORMAT,
	     "tensor 'b': overlaps tensor 'a'"},
		{"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, MX_E_FORMAT,
	     "overlaps tensor"},
		{"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12, MX_E_FORMAT,
	     "tensor 'b': begins at byte 8 of the data, but byte 4 belongs to no tensor"},
		{"{" T("a", "F32", "[1]", "[0,4]") "}", 8, MX_E_FORMAT,
	     "the tensors end at byte 4 of the data, the file at 8"},
		{"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, MX_E_FORMAT,
	     "duplicate"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_err err = {0};
		mx_status s = check(cases[i].header, cases[i].payload, &err);
		if (s != cases[i].status || !strstr(err.text, cases[i].message))
			fail_msg("%s gave %d '%s', not %d '%s'", cases[i].header, s, err.text, cases[i].status,
			         cases[i].message);
		assert_string_equal(err.where, "model.safetensors");
	}
}

static void absurd_header_lengths_are_refused(void **state)
{
	(void)state;
	static const struct {
		uint64_t length;
		const char *message;
	} cases[] = {
		{3, "header length 3 is more than the rest of the file (2 bytes)"},
		{0x7ff8000000000000u, "more than the rest of the file"}, /* a NaN, read as a length */
		{UINT64_MAX, "more than the rest of the file"},
		{UINT64_MAX - 7, "more than the rest of the file"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct mx_err err = {0};
		size_t size;
		unsigned char *p = file_of("{}", 2, 0, cases[i].length, &size);
		assert_int_equal(mx_safetensors_check(p, size, &err), MX_E_FORMAT);
		free(p);
		if (!strstr(err.text, cases[i].message))
			fail_msg("%s", err.text);
	}
	struct mx_err err = {0};
	assert_int_equal(mx_safetensors_check("1234567", 7, &err), MX_E_FORMAT);
	assert_non_null(strstr(err.text, "too short for a header"));
}

/* A download may stop at any byte. */
static void every_truncation_is_refused(void **state)
{
	(void)state;
	static const char header[] =
		"{" T("b", "BF16", "[4]", "[4,12]") "," T("a", "F16", "[2]", "[0,4]") "}";
	size_t size;
	unsigned char *p = file_of(header, sizeof header - 1, 12, sizeof header - 1, &size);
	assert_int_equal(mx_safetensors_check(p, size, NULL), MX_OK);
	for (size_t n = 0; n < size; n++) {
		unsigned char *cut = malloc(n + 1); /* its own block: a read past the end is seen */
		assert_non_null(cut);
		memcpy(cut, p, n);
		struct mx_err err = {0};
		if (mx_safetensors_check(cut, n, &err) != MX_E_FORMAT)
			fail_msg("taken when cut to %zu bytes", n);
		assert_true(err.text[0] != 0);
		free(cut);
	}
	free(p);
}

static void error_positions_count_from_the_start_of_the_file(void **state)
{
	(void)state;
	struct mx_err err = {0};
	assert_int_equal(check("{\"a\": nonsense}", 0, &err), MX_E_FORMAT);
	assert_int_equal(err.line, 1);
	assert_true(err.offset > 8 && err.offset < 8 + 15);
}

/* ---- folders ---- */

struct folder {
	char path[64];
};

static int make_folder(void **state)
{
	struct folder *f = calloc(1, sizeof *f);
	if (!f)
		return -1;
	strcpy(f->path, "test_safetensors.XXXXXX");
	*state = f;
	return mkdtemp(f->path) ? 0 : -1;
}

static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "s1",
                                    "s2"};

static int remove_folder(void **state)
{
	struct folder *f = *state;
	char path[160];
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", f->path, names[i]);
		unlink(path);
	}
	int rc = rmdir(f->path);
	free(f);
	return rc;
}

static void put(const struct folder *f, const char *name, const void *data, size_t n)
{
	char path[160];
	snprintf(path, sizeof path, "%s/%s", f->path, name);
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, n, file), n);
	assert_int_equal(fclose(file), 0);
}

static void put_tensors(const struct folder *f, const char *name, const char *header,
                        size_t payload)
{
	size_t size, n = strlen(header);
	unsigned char *p = file_of(header, n, payload, n, &size);
	put(f, name, p, size);
	free(p);
}

static void put_text(const struct folder *f, const char *name, const char *text)
{
	put(f, name, text, strlen(text));
}

static void refused(const struct folder *f, mx_status status, const char *where,
                    const char *message)
{
	struct mx_checkpoint *c = NULL;
	struct mx_err err = {0};
	mx_status s = mx_checkpoint_open(f->path, &c, &err);
	assert_null(c);
	if (s != status || !strstr(err.text, message) || strcmp(err.where, where))
		fail_msg("gave %d '%s: %s', not %d '%s: %s'", s, err.where, err.text, status, where,
		         message);
}

static void a_single_file_is_found_by_name(void **state)
{
	struct folder *f = *state;
	put_tensors(f, "model.safetensors",
	            "{" T("i", "I64", "[1]", "[12,20]") "," T("b", "BF16", "[2,2]", "[4,12]") "," T(
					"a", "F16", "[2]", "[0,4]") "}",
	            20);
	struct mx_checkpoint *c = NULL;
	const struct mx_tensor *t = NULL;
	struct mx_err err = {0};
	assert_int_equal(mx_checkpoint_open(f->path, &c, &err), MX_OK);
	assert_int_equal(mx_checkpoint_count(c), 2);
	assert_true(mx_checkpoint_bytes(c) > 20);

	assert_int_equal(mx_checkpoint_find(c, "b", &t, &err), MX_OK);
	assert_int_equal(t->dtype, MX_BF16);
	assert_int_equal(t->ndim, 2);
	assert_int_equal(t->shape[0], 2);
	assert_int_equal(t->bytes, 8);
	assert_int_equal(((const unsigned char *)t->data)[0], 4);
	assert_string_equal(t->file, "model.safetensors");
	assert_ptr_equal(mx_checkpoint_at(c, 1), t);
	assert_null(mx_checkpoint_at(c, 2));

	t = NULL;
	assert_int_equal(mx_checkpoint_find(c, "nothing", &t, &err), MX_E_NOTFOUND);
	assert_string_equal(err.text, "tensor 'nothing' is missing");
	assert_int_equal(mx_checkpoint_find(c, "i", &t, &err), MX_E_UNSUPPORTED);
	assert_string_equal(err.text, "tensor 'i': dtype I64 is not F32, F16 or BF16");
	assert_null(t);
	mx_checkpoint_close(c);
}

static void folders_without_sound_files_are_refused(void **state)
{
	struct folder *f = *state;
	refused(f, MX_E_NOTFOUND, f->path,
	        "holds neither model.safetensors nor model.safetensors.index.json");
	put_text(f, "model.safetensors", "");
	refused(f, MX_E_FORMAT, "model.safetensors", "is 0 bytes long, too short for a header");
	put_text(f, "model.safetensors", "version https://git-lfs.github.com/spec/v1");
	refused(f, MX_E_FORMAT, "model.safetensors", "header length");

	char path[160];
	snprintf(path, sizeof path, "%s/model.safetensors", f->path);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0); /* opening it must not wait for a writer */
	refused(f, MX_E_IO, "model.safetensors", "is not a regular file");
	mx_checkpoint_close(NULL);
}

static void an_index_joins_shards(void **state)
{
	struct folder *f = *state;
	put_tensors(f, "s1", "{" T("a", "F32", "[1]", "[0,4]") "," T("x", "F32", "[1]", "[4,8]") "}",
	            8);
	put_tensors(f, "s2", "{" T("b", "F32", "[2]", "[0,8]") "," T("x", "F32", "[1]", "[8,12]") "}",
	            12);
	put_text(f, "model.safetensors.index.json",
	         "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"b\":\"s2\",\"a\":\"s1\",\"x\":"
	         "\"s2\"}}");
	struct mx_checkpoint *c = NULL;
	const struct mx_tensor *t = NULL;
	assert_int_equal(mx_checkpoint_open(f->path, &c, NULL), MX_OK);
	assert_int_equal(mx_checkpoint_count(c), 3);
	assert_int_equal(mx_checkpoint_find(c, "x", &t, NULL), MX_OK);
	assert_string_equal(t->file, "s2"); /* of the two, the one the index names */
	assert_int_equal(((const unsigned char *)t->data)[0], 8);
	mx_checkpoint_close(c);
}

static void damaged_indexes_are_refused(void **state)
{
	struct folder *f = *state;
	static const char index[] = "model.safetensors.index.json";
	static const struct {
		const char *text;
		mx_status status;
		const char *where, *message;
	} cases[] = {
		{"{", MX_E_FORMAT, index, "not valid JSON at line 1, column 1"},
		{"[]", MX_E_FORMAT, index, "is not a JSON object"},
		{"{}", MX_E_FORMAT, index, "'weight_map' is missing or not an object"},
		{"{\"weight_map\":[]}", MX_E_FORMAT, index, "'weight_map' is missing or not an object"},
		{"{\"weight_map\":{\"a\":1}}", MX_E_FORMAT, index,
	     "tensor 'a': its shard is not the plain name of a file"},
		{"{\"weight_map\":{\"a\":\"../s1\"}}", MX_E_FORMAT, index, "is not the plain name"},
		{"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", MX_E_FORMAT, index, "is not the plain name"},
		{"{\"weight_map\":{\"a\":\"..\"}}", MX_E_FORMAT, index, "is not the plain name"},
		{"{\"weight_map\":{\"a\":\"\"}}", MX_E_FORMAT, index, "is not the plain name"},
		{"{\"weight_map\":{\"a\":\"s1\",\"a\":\"s2\"}}", MX_E_FORMAT, index, "duplicate"},
		{"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s9\"}}", MX_E_NOTFOUND, index,
	     "tensor 'b': its shard 's9' is missing"},
		{"{\"weight_map\":{\"b\":\"s1\"}}", MX_E_FORMAT, index,
	     "tensor 'b': is not in its shard 's1'"},
		{"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s2\"}}", MX_E_FORMAT, "s2",
	     "tensor 'b': unknown dtype 'F99'"},
	};
	put_tensors(f, "s1", "{" T("a", "F32", "[1]", "[0,4]") "}", 4);
	put_tensors(f, "s2", "{" T("b", "F99", "[1]", "[0,4]") "}", 4);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		put_text(f, index, cases[i].text);
		refused(f, cases[i].status, cases[i].where, cases[i].message);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sound_headers_are_taken),
		cmocka_unit_test(damaged_headers_are_refused),
		cmocka_unit_test(absurd_header_lengths_are_refused),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(error_positions_count_from_the_start_of_the_file),
		cmocka_unit_test_setup_teardown(a_single_file_is_found_by_name, make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(folders_without_sound_files_are_refused, make_folder,
	                                    remove_folder),
		cmocka_unit_test_setup_teardown(an_index_joins_shards, make_folder, remove_folder),
		cmocka_unit_test_setup_teardown(damaged_indexes_are_refused, make_folder, remove_folder),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
