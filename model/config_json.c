/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config_json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* ---- text ---- */

static mx_status slurp_fd(int fd, const char *path, size_t max, char **out, size_t *out_len,
                          struct mx_err *err)
{
	struct stat st;
	if (fstat(fd, &st))
		return mx_fail_at(err, MX_E_IO, path, "cannot be read: %s", strerror(errno));
	if (!S_ISREG(st.st_mode))
		return mx_fail_at(err, MX_E_IO, path, "is not a regular file");
	if (st.st_size < 0 || (uintmax_t)st.st_size > max)
		return mx_fail_at(err, MX_E_LIMIT, path, "is %jd bytes long, more than %zu",
		                  (intmax_t)st.st_size, max);

	size_t size = (size_t)st.st_size, got = 0;
	char *text = mx_calloc(size + 1, 1);
	if (!text)
		return mx_fail_at(err, MX_E_NOMEM, path, "no memory for %zu bytes", size);
	while (got < size) {
		ssize_t n = read(fd, text + got, size - got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			mx_fail_at(err, MX_E_IO, path, "cannot be read: %s", strerror(errno));
			free(text);
			return MX_E_IO;
		}
		if (n == 0)
			break; /* the file became shorter meanwhile */
		got += (size_t)n;
	}
	text[got] = 0;
	*out = text;
	*out_len = got;
	return MX_OK;
}

mx_status mx_json_slurp(const char *path, size_t max, char **out, size_t *out_len,
                        struct mx_err *err)
{
	/* O_NONBLOCK: a FIFO of that name must not hang the start. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return mx_fail_at(err, errno == ENOENT || errno == ENOTDIR ? MX_E_NOTFOUND : MX_E_IO, path,
		                  "cannot be opened: %s", strerror(errno));
	mx_status s = slurp_fd(fd, path, max, out, out_len, err);
	close(fd);
	return s;
}

/* Python's bare words for numbers are replaced by strings of the same length, so that positions in
 * messages stay right. The strings begin with DEL, as no key or value of a config does. */
static const struct {
	const char *word, *marker;
	size_t len;
} number_words[] = {
	{"-Infinity", "\"\x7f-inf__\"", 9},
	{"Infinity", "\"\x7f+inf_\"", 8},
	{"NaN", "\"\x7f\"", 3},
};

static void mark_number_words(char *text, size_t len)
{
	bool in_string = false;
	for (size_t i = 0; i < len; i++) {
		if (in_string) {
			if (text[i] == '\\')
				i++;
			else if (text[i] == '"')
				in_string = false;
			continue;
		}
		if (text[i] == '"') {
			in_string = true;
			continue;
		}
		for (size_t w = 0; w < sizeof number_words / sizeof *number_words; w++) {
			size_t n = number_words[w].len;
			if (len - i >= n && !memcmp(text + i, number_words[w].word, n)) {
				memcpy(text + i, number_words[w].marker, n);
				i += n - 1;
				break;
			}
		}
	}
}

mx_status mx_json_failed(const json_error_t *je, const char *where, const char *what, uint64_t base,
                         struct mx_err *err)
{
	/* jansson reports out of memory with a code, or with no text at all. */
	if (!je->text[0] || json_error_code(je) == json_error_out_of_memory)
		return mx_fail_at(err, MX_E_NOMEM, where, "no memory for its JSON");
	if (err) {
		err->line = je->line > 0 ? (uint32_t)je->line : 0;
		err->column = je->column > 0 ? (uint32_t)je->column : 0;
		err->offset = base + (je->position > 0 ? (uint64_t)je->position : 0);
	}
	return mx_fail_at(err, MX_E_FORMAT, where, "%snot valid JSON at line %d, column %d: %s", what,
	                  je->line, je->column, je->text);
}

mx_status mx_json_parse(const char *text, size_t len, const char *where, json_t **out,
                        struct mx_err *err)
{
	json_error_t je;
	char *copy = mx_calloc(len + 1, 1);
	if (!copy)
		return mx_fail_at(err, MX_E_NOMEM, where, "no memory for %zu bytes", len);
	if (len)
		memcpy(copy, text, len);
	mark_number_words(copy, len);
	json_t *v = json_loadb(copy, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
	free(copy);
	if (!v)
		return mx_json_failed(&je, where, "", 0, err);
	if (!json_is_object(v)) {
		json_decref(v);
		return mx_fail_at(err, MX_E_FORMAT, where, "is not a JSON object");
	}
	*out = v;
	return MX_OK;
}

bool mx_json_number(const json_t *v, double *out)
{
	if (json_is_number(v)) {
		*out = json_number_value(v);
		return true;
	}
	const char *s = json_string_value(v);
	if (s && s[0] == '\x7f') {
		*out = s[1] == '+' ? INFINITY : s[1] == '-' ? -INFINITY : NAN;
		return true;
	}
	s = json_string_value(json_object_get(v, "__float__"));
	if (!s || json_object_size(v) != 1)
		return false;
	if (!strcmp(s, "Infinity") || !strcmp(s, "inf"))
		*out = INFINITY;
	else if (!strcmp(s, "-Infinity") || !strcmp(s, "-inf"))
		*out = -INFINITY;
	else if (!strcmp(s, "NaN") || !strcmp(s, "nan"))
		*out = NAN;
	else
		return false;
	return true;
}

/* ---- scopes ---- */

static const json_t *written(const struct mx_scope *s, const char *key)
{
	const json_t *v = json_object_get(s->inner, key);
	return v ? v : json_object_get(s->outer, key);
}

const json_t *mx_scope_get(const struct mx_scope *s, const char *key)
{
	const json_t *v = written(s, key);
	return json_is_null(v) ? NULL : v;
}

bool mx_scope_has(const struct mx_scope *s, const char *key)
{
	return written(s, key) != NULL;
}

static const char *type_name(const json_t *v)
{
	double d;
	if (mx_json_number(v, &d))
		return "a number";
	switch (json_typeof(v)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "a list";
	case JSON_STRING: return "a string";
	case JSON_TRUE:
	case JSON_FALSE: return "a boolean";
	default: return "null";
	}
}

static mx_status wrong_type(const struct mx_scope *s, const char *key, const char *want,
                            const json_t *v, struct mx_err *err)
{
	return mx_fail(err, MX_E_INVALID, "%s%s: must be %s, not %s", s->where, key, want,
	               type_name(v));
}

mx_status mx_scope_int(const struct mx_scope *s, const char *key, int64_t lo, int64_t hi,
                       int64_t def, int64_t *out, struct mx_err *err)
{
	const json_t *v = mx_scope_get(s, key);
	double d;
	int64_t i;
	if (!v) {
		*out = def;
		return MX_OK;
	}
	if (json_is_integer(v)) {
		i = json_integer_value(v);
	} else if (mx_json_number(v, &d)) {
		/* 2^53: above it a double cannot represent every integer. */
		if (!(fabs(d) <= 9007199254740992.0) || d != floor(d))
			return wrong_type(s, key, "an integer", v, err);
		i = (int64_t)d;
	} else {
		return wrong_type(s, key, "an integer", v, err);
	}
	if (i < lo || i > hi)
		return mx_fail(err, MX_E_RANGE, "%s%s: %" PRId64 " is outside %" PRId64 " to %" PRId64,
		               s->where, key, i, lo, hi);
	*out = i;
	return MX_OK;
}

mx_status mx_scope_need_int(const struct mx_scope *s, const char *key, int64_t lo, int64_t hi,
                            int64_t *out, struct mx_err *err)
{
	if (!mx_scope_get(s, key))
		return mx_fail(err, MX_E_INVALID, "%s%s: is missing", s->where, key);
	return mx_scope_int(s, key, lo, hi, 0, out, err);
}

mx_status mx_scope_float(const struct mx_scope *s, const char *key, double lo, double hi,
                         double def, double *out, struct mx_err *err)
{
	const json_t *v = mx_scope_get(s, key);
	double d;
	if (!v) {
		*out = def;
		return MX_OK;
	}
	if (!mx_json_number(v, &d))
		return wrong_type(s, key, "a number", v, err);
	if (!(d >= lo && d <= hi))
		return mx_fail(err, MX_E_RANGE, "%s%s: %g is outside %g to %g", s->where, key, d, lo, hi);
	*out = d;
	return MX_OK;
}

mx_status mx_scope_bool(const struct mx_scope *s, const char *key, bool def, bool *out,
                        struct mx_err *err)
{
	const json_t *v = mx_scope_get(s, key);
	if (v && !json_is_boolean(v))
		return wrong_type(s, key, "true or false", v, err);
	*out = v ? json_is_true(v) : def;
	return MX_OK;
}

mx_status mx_scope_string(const struct mx_scope *s, const char *key, const char *def,
                          const char **out, struct mx_err *err)
{
	const json_t *v = mx_scope_get(s, key);
	if (v && !json_is_string(v))
		return wrong_type(s, key, "a string", v, err);
	*out = v ? json_string_value(v) : def;
	return MX_OK;
}

mx_status mx_scope_only_int(const struct mx_scope *s, const char *key, int64_t only,
                            struct mx_err *err)
{
	int64_t v = only;
	mx_status st = mx_scope_int(s, key, INT64_MIN, INT64_MAX, only, &v, err);
	if (!st && v != only)
		st = mx_fail(err, MX_E_UNSUPPORTED, "%s%s: %" PRId64 " is not supported, only %" PRId64,
		             s->where, key, v, only);
	return st;
}

mx_status mx_scope_only_bool(const struct mx_scope *s, const char *key, bool only,
                             struct mx_err *err)
{
	bool v = only;
	mx_status st = mx_scope_bool(s, key, only, &v, err);
	if (!st && v != only)
		st = mx_fail(err, MX_E_UNSUPPORTED, "%s%s: %s is not supported", s->where, key,
		             v ? "true" : "false");
	return st;
}

mx_status mx_scope_only_string(const struct mx_scope *s, const char *key, const char *only,
                               struct mx_err *err)
{
	const char *v = only;
	mx_status st = mx_scope_string(s, key, only, &v, err);
	if (!st && strcmp(v, only))
		st = mx_fail(err, MX_E_UNSUPPORTED, "%s%s: '%.60s' is not supported, only %s", s->where,
		             key, v, only);
	return st;
}
