/* SPDX-License-Identifier: Apache-2.0 */
/* See keys_file.h. */
#include "daemon/keys_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "daemon/config_read.h"
#include "scheduler/scheduler.h"

#define MIN_KEY    16 /* characters of a key that is worth hashing */
#define MADE_BYTES 32 /* random bytes of a key that is made */

/* An entry as it is read. */
struct entry {
	const char *name, *sha256;
	struct mx_strings models;
	double priority;
	uint64_t requests_per_minute, tokens_per_minute, concurrent, weight;
	int cache; /* 1 = private */
	bool router;
};

static const struct mx_config_choice caches[] = {{"shared", 0}, {"private", 1}, {NULL, 0}};

#define E(f) offsetof(struct entry, f)
static const struct mx_config_key principal_keys[] = {
	{"name", K_STRING, E(name), .required = true},
	{"sha256", K_STRING, E(sha256), .required = true},
	{"models", K_STRINGS, E(models), .min = 0, .max = 256},
	{"priority", K_NUMBER, E(priority), .min = -1000, .max = 1000},
	{"requests_per_minute", K_UINT, E(requests_per_minute), .min = 1, .max = 1e12},
	{"tokens_per_minute", K_UINT, E(tokens_per_minute), .min = 1, .max = 1e12},
	{"concurrent", K_UINT, E(concurrent), .min = 1, .max = 1e9},
	{"weight", K_UINT, E(weight), .min = 1, .max = MX_MAX_WEIGHT},
	{"cache", K_CHOICE, E(cache), .choices = caches},
	{"router", K_BOOL, E(router), .min = 0},
	{0}};

/* What a document becomes. */
struct list {
	struct mx_key_settings *items;
	size_t n;
};

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads 64 digits; capitals are allowed, as other programs print them. */
static bool read_hash(const char *text, uint8_t out[MX_KEYS_HASH_SIZE])
{
	if (strlen(text) != 2 * (size_t)MX_KEYS_HASH_SIZE)
		return false;
	for (size_t i = 0; i < MX_KEYS_HASH_SIZE; i++) {
		int high = digit((char)(text[2 * i] | 0x20)), low = digit((char)(text[2 * i + 1] | 0x20));
		if (high < 0 || low < 0)
			return false;
		out[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

static bool is_name(const char *s)
{
	static const char allowed[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@";
	return strlen(s) <= MX_KEYS_MAX_NAME && strspn(s, allowed) == strlen(s);
}

/* Checks an entry and makes the next of the list of it. */
static mx_status take(struct mx_config_reader *r, const yaml_node_t *n, const struct entry *e,
                      bool has_models)
{
	struct list *list = r->out;
	struct mx_key_settings s = {
		.name = e->name,
		.models = e->models.items,
		.n_models = e->models.n,
		.all_models = !has_models,
		.priority = (int32_t)e->priority,
		.requests_per_minute = e->requests_per_minute,
		.tokens_per_minute = e->tokens_per_minute,
		.concurrent = e->concurrent,
		.weight = (uint32_t)e->weight,
		.private_cache = e->cache,
		.router = e->router,
	};
	if (!is_name(e->name))
		return mx_config_fail(
			r, n, "the name \"%.80s\" must have at most %d letters, digits and \"-_.@\"", e->name,
			MX_KEYS_MAX_NAME);
	if (!read_hash(e->sha256, s.hash))
		return mx_config_fail(r, n,
		                      "sha256 of %s must have 64 hexadecimal digits: mixd --hash-key "
		                      "prints them",
		                      e->name);
	if (e->priority != floor(e->priority))
		return mx_config_fail(r, n, "priority of %s must be a whole number", e->name);
	for (size_t i = 0; i < list->n; i++) {
		if (!strcmp(list->items[i].name, s.name))
			return mx_config_fail(r, n, "the name \"%s\" is used twice", s.name);
		if (!memcmp(list->items[i].hash, s.hash, sizeof s.hash))
			return mx_config_fail(r, n, "%s and %s have the same key", list->items[i].name, s.name);
	}
	list->items[list->n++] = s;
	return MX_OK;
}

static mx_status read_root(struct mx_config_reader *r, const yaml_node_t *root)
{
	static const char *unset[1];
	struct list *list = r->out;
	if (root->type != YAML_SEQUENCE_NODE)
		return mx_config_fail(r, root, "must be a list of principals, not %s",
		                      mx_config_kind_of(root));
	size_t n = (size_t)(root->data.sequence.items.top - root->data.sequence.items.start);
	if (n > MX_KEYS_MAX)
		return mx_config_fail(r, root, "must have at most %d entries, not %zu", MX_KEYS_MAX, n);
	list->items = mx_arena_alloc(r->arena, (n + 1) * sizeof *list->items);
	if (!list->items)
		return mx_fail(r->err, MX_E_NOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const yaml_node_t *item =
			yaml_document_get_node(r->doc, root->data.sequence.items.start[i]);
		struct entry e = {.weight = 1, .models = {unset, 0}};
		snprintf(r->path, sizeof r->path, "[%zu]", i);
		mx_status st = mx_config_read_map(r, item, principal_keys, (char *)&e);
		if (st == MX_OK)
			st = take(r, item, &e, e.models.items != unset);
		if (st != MX_OK)
			return st;
	}
	return MX_OK;
}

mx_status mx_keys_file_parse(const char *file, const char *text, size_t len, struct mx_keys *keys,
                             struct mx_err *err)
{
	struct mx_arena arena = {0};
	struct list list = {0};
	struct mx_config_reader r = {
		.file = file, .arena = &arena, .err = err, .read_root = read_root, .out = &list};
	mx_status st = mx_config_read(&r, text, len);
	if (st == MX_OK && keys && (st = mx_keys_set(keys, list.items, list.n, true)) != MX_OK)
		mx_fail_at(err, st, file,
		           st == MX_E_LIMIT ? "too many names since the start: restart mixd"
		                            : "out of memory");
	mx_arena_free(&arena);
	return st;
}

/* Refuses a file that others can read, or that is no file. */
static mx_status check_owner(const char *file, FILE *f, struct mx_err *err)
{
	struct stat s;
	if (fstat(fileno(f), &s))
		return mx_fail_at(err, MX_E_IO, file, "cannot be read: %s", strerror(errno));
	if (!S_ISREG(s.st_mode))
		return mx_fail_at(err, MX_E_INVALID, file, "is not a file");
	if (s.st_mode & 027)
		return mx_fail_at(err, MX_E_INVALID, file,
		                  "others can read it, or its group can write it (mode %03o): chmod 640",
		                  (unsigned)s.st_mode & 0777);
	return MX_OK;
}

mx_status mx_keys_file_load(const char *file, struct mx_keys *keys, struct mx_err *err)
{
	uint8_t hash[MX_KEYS_HASH_SIZE];
	if (mx_key_hash("", 0, hash) != MX_OK)
		return mx_fail_at(err, MX_E_UNSUPPORTED, "keys",
		                  "mixd was built without GnuTLS (libgnutls28-dev), which hashes keys");
	FILE *f = fopen(file, "re");
	if (!f)
		return mx_fail_at(err, MX_E_IO, file, "cannot be opened: %s", strerror(errno));
	struct mx_buf text = {0};
	mx_status st = check_owner(file, f, err);
	if (st == MX_OK)
		st = mx_config_read_file(file, f, &text, err);
	fclose(f);
	if (st == MX_OK)
		st = mx_keys_file_parse(file, mx_buf_str(&text), text.len, keys, err);
	mx_buf_free(&text);
	return st;
}

/* ---- mixd --hash-key ---- */

/* Makes a key: "mx-" and 43 characters with 6 random bits each. */
static bool make_key(char *out, size_t cap)
{
	static const char alphabet[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	uint8_t bytes[MADE_BYTES + 1] = {0};
	if (getrandom(bytes, MADE_BYTES, 0) != MADE_BYTES)
		return false;
	size_t at = (size_t)snprintf(out, cap, "mx-");
	for (unsigned bit = 0; bit < MADE_BYTES * 8; bit += 6) {
		unsigned word = (unsigned)bytes[bit / 8] << 8 | bytes[bit / 8 + 1];
		out[at++] = alphabet[word >> (10 - bit % 8) & 63];
	}
	out[at] = 0;
	return true;
}

int mx_hash_key(FILE *in, FILE *out)
{
	char key[MX_KEYS_MAX_KEY + 3] = "";
	uint8_t hash[MX_KEYS_HASH_SIZE];
	if (in && fgets(key, sizeof key, in))
		key[strcspn(key, "\r\n")] = 0;
	bool made = !key[0];
	if (made && !make_key(key, sizeof key)) {
		fputs("mixd: no random numbers\n", stderr);
		return 1;
	}
	size_t n = strlen(key);
	if (n < MIN_KEY || n > MX_KEYS_MAX_KEY || strchr(key, ' ')) {
		fprintf(stderr, "mixd: a key has %d to %d characters without spaces\n", MIN_KEY,
		        MX_KEYS_MAX_KEY);
		return 2;
	}
	if (mx_key_hash(key, n, hash) != MX_OK) {
		fputs("mixd: built without GnuTLS, which hashes keys\n", stderr);
		return 1;
	}
	if (made)
		fprintf(out, "# the key, for its client alone (it is not kept): %s\n", key);
	fputs("sha256: ", out);
	for (size_t i = 0; i < sizeof hash; i++)
		fprintf(out, "%02x", hash[i]);
	fputc('\n', out);
	return 0;
}
