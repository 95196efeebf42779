/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes any bytes as a chat template and, after the first NUL, the JSON of its variables: the
 * template is refused with a message, or renders to UTF-8 within limits.
 */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "model/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char usual[] =
	"{\"messages\":[{\"role\":\"system\",\"content\":\"Sys \\\"q\\\"\"},{\"role\":\"user\","
	"\"content\":\"Gr\\u00fc\\u00dfe\\n\\ud83c\\udf89\"},{\"role\":\"assistant\",\"content\":null,"
	"\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":\"function\",\"function\":{\"name\":\"f\","
	"\"arguments\":{\"a\":[1,2.5,null,true]}}}]},{\"role\":\"tool\",\"content\":\"ok\"},{\"role\":"
	"\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}],\"tools\":[{\"type\":\"function\","
	"\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"a\":{\"type\":\"array\"}}}}}],\"add_generation_prompt\":true,"
	"\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"i\":7,\"n\":-3,\"f\":2.5,\"s\":\"Hello World\","
	"\"u\":\"\\u65e5\\u672c x\",\"l\":[3,1,2],\"m\":[\"b\",\"A\",\"c\"],\"d\":{\"b\":1,\"a\":[2]}}";

static void require(int yes)
{
	if (!yes)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data, *nul = size ? memchr(text, 0, size) : NULL;
	size_t len = nul ? (size_t)(nul - text) : size;
	struct mx_chat_template *t = NULL;
	struct mx_err err = {0};
	if (mx_chat_template_parse(text, len, &t, &err)) {
		require(err.text[0] && !t);
		return 0;
	}
	json_t *vars = nul ? json_loadb(nul + 1, size - len - 1, 0, NULL)
	                   : json_loadb(usual, sizeof usual - 1, 0, NULL);
	if (!vars)
		vars = json_object();
	struct mx_chat_limits limits = {.max_steps = 100000, .max_output = 1 << 18};
	struct mx_buf out = {0};
	if (mx_chat_template_render(t, vars, 1700000000, &limits, &out, &err)) {
		json_t *message = json_string(err.text);
		require(message && err.status && err.status != MX_E_INTERNAL && !out.len);
		json_decref(message);
	} else {
		json_t *s = json_stringn(mx_buf_str(&out), out.len);
		require(s && out.len <= limits.max_output); /* jansson takes only UTF-8 */
		json_decref(s);
	}
	mx_buf_free(&out);
	json_decref(vars);
	mx_chat_template_destroy(t);
	return 0;
}
