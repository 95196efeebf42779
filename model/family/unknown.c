/* SPDX-License-Identifier: Apache-2.0 */
/* The message for a model_type that no family has: which parts of the model are missing here, as
 * far as its config.json names them, and how else it may be described. */
#include <stdio.h>
#include <string.h>

#include "base/closest.h"
#include "model/family/family.h"

/* Keys whose presence, other than as false, 0 or null, means a part that is not here. */
static const struct {
	const char *key, *part;
} parts[] = {
	{"text_config", "a model inside a larger one"},
	{"vision_config", "images"},
	{"audio_config", "sound"},
	{"is_encoder_decoder", "an encoder"},
	{"index_topk", "sparse attention"},
	{"alibi", "ALiBi positions"},
	{"clip_qkv", "clipped q, k, v"},
};

/* Keys with values that are known here; any other means a part that is not. */
static const struct {
	const char *key, *part;
	const char *known[8];
} choices[] = {
	{"hidden_act",
     "activation",
     {"silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu2"}},
	{"hidden_activation",
     "activation",
     {"silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu2"}},
	{"activation_function",
     "activation",
     {"silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu2"}},
	{"scoring_func", "router of experts", {"softmax", "sigmoid"}},
	{"position_embedding_type", "positions", {"rope", "absolute"}},
};

static const char *const rope_types[] = {"default", "linear",   "dynamic", "llama3",
                                         "yarn",    "longrope", NULL};

/* A list for people, cut where it is full. */
struct list {
	char text[170];
	size_t n;
};

static void add(struct list *l, const char *key, const char *value, const char *part)
{
	char item[160];
	int n = snprintf(item, sizeof item, "%s%s (%s%s%.40s%s)", l->n ? ", " : "", part, key,
	                 value ? " '" : "", value ? value : "", value ? "'" : "");
	if (n < 0 || l->n + (size_t)n >= sizeof l->text)
		return;
	memcpy(l->text + l->n, item, (size_t)n + 1);
	l->n += (size_t)n;
}

static bool is_one_of(const char *s, const char *const *list)
{
	while (*list && strcmp(*list, s))
		list++;
	return *list != NULL;
}

/* Adds the kind of rope scaling, which stands under one of two keys, if it is not known. */
static void add_rope(struct list *l, const json_t *config)
{
	static const char *const dicts[] = {"rope_scaling", "rope_parameters"};
	for (size_t i = 0; i < 2; i++) {
		const json_t *d = json_object_get(config, dicts[i]);
		const char *type = json_string_value(json_object_get(d, "rope_type"));
		if (!type)
			type = json_string_value(json_object_get(d, "type"));
		if (type && !is_one_of(type, rope_types)) {
			add(l, dicts[i], type, "rope scaling");
			return;
		}
	}
}

static void list_missing(struct list *l, const json_t *config)
{
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		const json_t *v = json_object_get(config, parts[i].key);
		if (v && !json_is_null(v) && !json_is_false(v) &&
		    !(json_is_number(v) && json_number_value(v) == 0))
			add(l, parts[i].key, NULL, parts[i].part);
	}
	for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
		const char *v = json_string_value(json_object_get(config, choices[i].key));
		if (v && !is_one_of(v, choices[i].known))
			add(l, choices[i].key, v, choices[i].part);
	}
	add_rope(l, config);
}

mx_status mx_family_unknown(const struct mx_plan_build *b, const char *type,
                            const char *const *names, size_t n)
{
	struct list missing = {0};
	list_missing(&missing, b->config);
	const char *near = mx_closest(type, names, n);
	return mx_fail(
		b->err, MX_E_UNSUPPORTED,
		"model_type: '%.30s' is not supported%s%s%s; mixd --list-models names those that are. "
		"%s%s. A model made of the mixers here can be described with model_type: mixd "
		"(docs/model-format.md)",
		type, near ? " (is it like '" : "", near ? near : "", near ? "'?)" : "",
		missing.n ? "Missing here: " : "Its config.json does not say what is missing here",
		missing.text);
}
