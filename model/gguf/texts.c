/* SPDX-License-Identifier: Apache-2.0 */
/* See texts.h. */
#include "model/gguf/texts.h"

#include <string.h>

#include "model/gguf/arch.h"

static mx_status dump(const struct mx_gguf *g, json_t *v, char **out, size_t *out_len,
                      struct mx_err *err)
{
	char *text = json_dumps(v, JSON_INDENT(1));
	json_decref(v);
	if (!text)
		return mx_fail_at(err, MX_E_NOMEM, mx_gguf_name(g), "out of memory");
	*out = text;
	*out_len = strlen(text);
	return MX_OK;
}

/* Makes the sampling defaults, which some files have. */
static mx_status generation(const struct mx_gguf *g, json_t **out, struct mx_err *err)
{
	static const char *const keys[][2] = {
		{"general.sampling.temp", "temperature"},
		{"general.sampling.top_p", "top_p"},
		{"general.sampling.min_p", "min_p"},
		{"general.sampling.penalty_repeat", "repetition_penalty"}};
	json_t *o = json_object();
	bool there = false;
	int64_t k = 0;
	mx_status s = mx_gguf_int(g, "general.sampling.top_k", &k, &there, err);
	if (there)
		json_object_set_new(o, "top_k", json_integer(k));
	for (size_t i = 0; !s && i < sizeof keys / sizeof *keys; i++) {
		double v = 0;
		s = mx_gguf_float(g, keys[i][0], &v, &there, err);
		if (there)
			json_object_set_new(o, keys[i][1], json_real(v));
	}
	if (!s && !json_object_size(o))
		s = mx_fail_at(err, MX_E_NOTFOUND, mx_gguf_name(g), "has no sampling defaults");
	if (s) {
		json_decref(o);
		return s;
	}
	*out = o;
	return MX_OK;
}

mx_status mx_gguf_make(const struct mx_gguf *g, const char *name, char **out, size_t *out_len,
                       struct mx_err *err)
{
	json_t *v = NULL;
	mx_status s;
	if (!strcmp(name, "tokenizer.json") || !strcmp(name, "tokenizer_config.json"))
		return mx_gguf_make_tokenizer(g, strlen(name) > 14, out, out_len, err);
	if (!strcmp(name, "rwkv_vocab_v20230424.txt"))
		return mx_gguf_make_world(g, out, out_len, err);
	if (!strcmp(name, "config.json"))
		s = mx_gguf_config(g, &v, err);
	else if (!strcmp(name, "generation_config.json"))
		s = generation(g, &v, err);
	else
		s = mx_fail_at(err, MX_E_NOTFOUND, mx_gguf_name(g), "has no %s", name);
	return s ? s : dump(g, v, out, out_len, err);
}

mx_status mx_gguf_file(const char *path, const char *name, char **out, size_t *out_len,
                       struct mx_err *err)
{
	struct mx_gguf *g = NULL;
	mx_status s = mx_gguf_open(path, &g, err);
	if (!s)
		s = mx_gguf_make(g, name, out, out_len, err);
	mx_gguf_close(g);
	return s;
}
