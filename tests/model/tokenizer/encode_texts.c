/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes texts for tools/compare-tokenizers.py: encode_texts FOLDER. Each line of the standard
 * input is a JSON string, each line of the output a list of the ids and of the texts that
 * they decode to, with special tokens and without.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "model/tokenizer/tokenizer.h"

static int answer(const struct mx_tokenizer *t, const json_t *text)
{
	struct mx_tokens ids = {0};
	struct mx_err err = {0};
	mx_status st = mx_tokenizer_encode(t, json_string_value(text), json_string_length(text), true,
	                                   0, &ids, &err);
	json_t *line = json_array(), *list = json_array();
	if (st) {
		json_array_append_new(line, json_string(err.text));
	} else {
		for (size_t i = 0; i < ids.n; i++)
			json_array_append_new(list, json_integer(ids.ids[i]));
		json_array_append(line, list);
		for (int skip = 0; skip < 2; skip++) {
			struct mx_buf out = {0};
			if (mx_tokenizer_decode(t, ids.ids, ids.n, skip, &out))
				return 1;
			json_array_append_new(line, json_stringn(mx_buf_str(&out), out.len));
			mx_buf_free(&out);
		}
	}
	json_dumpf(line, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
	putchar('\n');
	json_decref(list);
	json_decref(line);
	mx_tokens_free(&ids);
	return 0;
}

int main(int argc, char **argv)
{
	struct mx_tokenizer *t = NULL;
	struct mx_err err = {0};
	char *line = NULL;
	size_t room = 0;
	int bad = argc != 2;
	if (bad || mx_tokenizer_load(argv[1], &t, &err)) {
		fprintf(stderr, "%s: %s\n", err.where, err.text);
		return 1;
	}
	for (ssize_t n; !bad && (n = getline(&line, &room, stdin)) > 0;) {
		json_t *text = json_loadb(line, (size_t)n, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
		bad = !json_is_string(text) || answer(t, text);
		json_decref(text);
	}
	free(line);
	mx_tokenizer_destroy(t);
	return bad;
}
