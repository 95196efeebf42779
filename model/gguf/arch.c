/* SPDX-License-Identifier: Apache-2.0 */
/* The architectures that there are. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/closest.h"
#include "model/gguf/arch.h"
#include "model/gguf/texts.h"

static const struct mx_gguf_arch *const groups[] = {
	mx_gguf_attention_archs, mx_gguf_gemma4_archs, mx_gguf_dense_archs,
	mx_gguf_expert_archs,    mx_gguf_hybrid_archs, mx_gguf_mamba_archs,
	mx_gguf_deepseek_archs,  mx_gguf_gpt_archs,    mx_gguf_rwkv_archs};
#define N_GROUPS  (sizeof groups / sizeof *groups)
#define MAX_ARCHS 100

/* Returns the i-th architecture of all groups; NULL behind the last one. */
static const struct mx_gguf_arch *arch_at(size_t i)
{
	for (size_t k = 0; k < N_GROUPS; k++)
		for (const struct mx_gguf_arch *a = groups[k]; a->name; a++)
			if (!i--)
				return a;
	return NULL;
}

/* True if `word` is one of those in `list`, which blanks separate. */
static bool has_word(const char *list, const char *word)
{
	for (const char *p = list; *p;) {
		size_t n = strcspn(p, " ");
		if (n == strlen(word) && !memcmp(p, word, n))
			return true;
		p += n + (p[n] == ' ');
	}
	return false;
}

void mx_gguf_names_of_family(const char *model_type, struct mx_buf *out)
{
	const struct mx_gguf_arch *a;
	bool any = false;
	for (size_t i = 0; (a = arch_at(i)); i++)
		if (!strcmp(a->model_type, model_type) || (a->also && has_word(a->also, model_type))) {
			mx_buf_printf(out, "%s%s", any ? ", " : "", a->name);
			any = true;
		}
}

/* The names of all architectures are longer than a message may be. */
static mx_status unknown(const struct mx_gguf *g, struct mx_gguf_string name, struct mx_err *err)
{
	const char *known[MAX_ARCHS], *near;
	char own[64];
	size_t n = 0;
	for (const struct mx_gguf_arch *a; n < MAX_ARCHS && (a = arch_at(n)); n++)
		known[n] = a->name;
	snprintf(own, sizeof own, "%.*s", name.n < 60 ? (int)name.n : 60, name.s);
	near = mx_closest(own, known, n);
	return mx_fail_at(err, MX_E_UNSUPPORTED, mx_gguf_name(g),
	                  "general.architecture '%s' is not supported%s%s%s; mixd --list-models says "
	                  "which are: give the folder of the checkpoint that it was made from, in "
	                  "Hugging Face form",
	                  own, near ? " (the nearest that is: '" : "", near ? near : "",
	                  near ? "')" : "");
}

mx_status mx_gguf_arch_of(const struct mx_gguf *g, const struct mx_gguf_arch **out,
                          struct mx_err *err)
{
	struct mx_gguf_string name = {"", 0};
	const struct mx_gguf_arch *a;
	bool there = false;
	mx_status s = mx_gguf_text(g, "general.architecture", &name, &there, err);
	if (s)
		return s;
	if (!there)
		return mx_fail_at(err, MX_E_FORMAT, mx_gguf_name(g),
		                  "key 'general.architecture' is missing");
	for (size_t i = 0; (a = arch_at(i)); i++)
		if (strlen(a->name) == name.n && !memcmp(a->name, name.s, name.n)) {
			*out = a;
			return MX_OK;
		}
	return unknown(g, name, err);
}
