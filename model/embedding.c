/* SPDX-License-Identifier: Apache-2.0 */
#include "model/embedding.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config_json.h"
#include "model/gguf/gguf.h"

#define MAX_FILE ((size_t)1 << 20) /* bytes */

/* Reads a JSON file; *out may be of any type. */
static mx_status read_json(const char *path, json_t **out, struct mx_err *err)
{
	char *text;
	size_t len;
	json_error_t je;
	mx_status st = mx_json_slurp(path, MAX_FILE, &text, &len, err);
	if (st != MX_OK)
		return st;
	*out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &je);
	free(text);
	return *out ? MX_OK : mx_json_failed(&je, path, "", 0, err);
}

/* Finds the kind of pooling: one switch "pooling_mode_..." of several, or the name "pooling_mode".
 */
static mx_status read_pooling(const char *path, enum mx_embedding_pooling *out, struct mx_err *err)
{
	static const char prefix[] = "pooling_mode_";
	json_t *root, *v;
	const char *key, *mode;
	size_t n = 0;
	char found[64] = "";
	mx_status st = read_json(path, &root, err);
	if (st != MX_OK)
		return st;
	mode = json_string_value(json_object_get(root, "pooling_mode"));
	if (mode)
		n = (size_t)snprintf(found, sizeof found, "%s", mode) > 0;
	json_object_foreach(root, key,
	                    v) if (json_is_true(v) && !strncmp(key, prefix, sizeof prefix - 1))
	{
		snprintf(found, sizeof found, "%s", key + sizeof prefix - 1);
		n++;
	}
	bool prompts = !json_is_false(json_object_get(root, "include_prompt"));
	json_decref(root);
	if (n == 1 &&
	    (!strcmp(found, "lasttoken") || !strcmp(found, "mean_tokens") || !strcmp(found, "mean"))) {
		*out = found[0] == 'l' ? MX_EMBEDDING_LAST : MX_EMBEDDING_MEAN;
		if (prompts || *out == MX_EMBEDDING_LAST)
			return MX_OK;
		return mx_fail_at(err, MX_E_UNSUPPORTED, path,
		                  "means that leave out the prompt are not supported");
	}
	return mx_fail_at(err, MX_E_UNSUPPORTED, path,
	                  "only the last token or the mean of all are supported as pooling, not %s",
	                  n > 1    ? "several kinds together"
	                  : n == 1 ? found
	                           : "none");
}

/* Takes a step of modules.json. *pools: a pooling step has come. */
static mx_status take_module(const char *dir, const char *file, const json_t *module, bool *pools,
                             struct mx_embedding *out, struct mx_err *err)
{
	char path[4096];
	const char *type = json_string_value(json_object_get(module, "type"));
	const char *folder = json_string_value(json_object_get(module, "path"));
	const char *dot = type ? strrchr(type, '.') : NULL;
	const char *name = dot ? dot + 1 : type;
	if (!name || !folder)
		return mx_fail_at(err, MX_E_FORMAT, file, "a module without 'type' and 'path'");
	if (!strcmp(name, "Transformer") && !*folder)
		return MX_OK;
	if (!strcmp(name, "Pooling") && !*pools) {
		if (strstr(folder, "..") || *folder == '/')
			return mx_fail_at(err, MX_E_FORMAT, file, "the folder '%.80s' is outside", folder);
		snprintf(path, sizeof path, "%s/%s/config.json", dir, folder);
		*pools = true;
		return read_pooling(path, &out->pooling, err);
	}
	if (!strcmp(name, "Normalize") && *pools) {
		out->normalize = true;
		return MX_OK;
	}
	return mx_fail_at(err, MX_E_UNSUPPORTED, file, "the module %.80s is not supported here", type);
}

/* Reads a GGUF file's ARCHITECTURE.pooling_type. */
static mx_status load_gguf(const char *path, struct mx_embedding *out, struct mx_err *err)
{
	enum { NONE, MEAN, CLS, LAST }; /* llama.cpp's numbers */
	struct mx_gguf *g = NULL;
	struct mx_gguf_string arch = {"", 0};
	int64_t kind = NONE;
	bool there = false;
	char key[128];
	mx_status st = mx_gguf_open(path, &g, err);
	if (st == MX_OK)
		st = mx_gguf_text(g, "general.architecture", &arch, NULL, err);
	snprintf(key, sizeof key, "%.*s.pooling_type", arch.n < 60 ? (int)arch.n : 60, arch.s);
	if (st == MX_OK)
		st = mx_gguf_int(g, key, &kind, &there, err);
	mx_gguf_close(g);
	if (st != MX_OK)
		return st;
	if (!there || kind == NONE)
		return mx_fail_at(err, MX_E_NOTFOUND, path, "key '%s' is missing, or 0", key);
	if (kind != MEAN && kind != LAST)
		return mx_fail_at(err, MX_E_UNSUPPORTED, path,
		                  "%s %lld is neither the mean of all tokens (1) nor the last one (3)", key,
		                  (long long)kind);
	*out = (struct mx_embedding){.pooling = kind == MEAN ? MX_EMBEDDING_MEAN : MX_EMBEDDING_LAST,
	                             .normalize = true};
	return MX_OK;
}

mx_status mx_embedding_load(const char *dir, struct mx_embedding *out, struct mx_err *err)
{
	char path[4096];
	json_t *root;
	struct mx_embedding e = {0};
	bool pools = false;
	if (mx_gguf_is(dir))
		return load_gguf(dir, out, err);
	snprintf(path, sizeof path, "%s/modules.json", dir);
	mx_status st = read_json(path, &root, err);
	if (st != MX_OK)
		return st;
	if (!json_is_array(root))
		st = mx_fail_at(err, MX_E_FORMAT, path, "not a list of modules");
	for (size_t i = 0; i < json_array_size(root) && st == MX_OK; i++)
		st = take_module(dir, path, json_array_get(root, i), &pools, &e, err);
	json_decref(root);
	if (st == MX_OK && !pools)
		st = mx_fail_at(err, MX_E_UNSUPPORTED, path, "no module pools the hidden states");
	if (st == MX_OK)
		*out = e;
	return st;
}
