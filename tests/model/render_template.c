/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renders chat templates for tools/compare-chat-templates.py. Each line of the standard input is
 * an object {"template": text, "cases": [variables, ...]}, each line of the output a list
 * of [status, text or message], one a case.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "model/chat_template.h"

enum { NOW = 1700000000 }; /* seconds since the epoch, as in tools/chat_conversations.py */

static json_t *render(const struct mx_chat_template *t, const json_t *vars)
{
	struct mx_buf out = {0};
	struct mx_err err = {0};
	mx_status st = mx_chat_template_render(t, vars, NOW, NULL, &out, &err);
	json_t *answer =
		st ? json_pack("[is]", st, err.text) : json_pack("[is%]", st, mx_buf_str(&out), out.len);
	mx_buf_free(&out);
	return answer;
}

static json_t *render_all(const json_t *line)
{
	const json_t *source = json_object_get(line, "template"), *vars;
	struct mx_chat_template *t = NULL;
	struct mx_err err = {0};
	json_t *answers = json_array();
	size_t i;
	mx_status st =
		mx_chat_template_parse(json_string_value(source), json_string_length(source), &t, &err);
	json_array_foreach(json_object_get(line, "cases"), i, vars)
	{
		json_array_append_new(answers, st ? json_pack("[is]", st, err.text) : render(t, vars));
	}
	mx_chat_template_destroy(t);
	return answers;
}

int main(void)
{
	char *text = NULL;
	size_t room = 0;
	for (ssize_t n; (n = getline(&text, &room, stdin)) > 0;) {
		json_error_t je;
		json_t *line = json_loadb(text, (size_t)n, JSON_ALLOW_NUL, &je);
		if (!json_is_object(line)) {
			fprintf(stderr, "not a line of cases: %s\n", je.text);
			return 1;
		}
		json_t *answers = render_all(line);
		json_decref(line);
		json_dumpf(answers, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
		json_decref(answers);
		putchar('\n');
		fflush(stdout);
	}
	free(text);
	return 0;
}
