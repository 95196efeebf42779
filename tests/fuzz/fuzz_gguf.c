/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a GGUF file: it is refused with a message, or every tensor lies in the input;
 * then what is made of its metadata, and the names of its tensors. */
#include <stdint.h>
#include <stdlib.h>

#include "model/gguf/names.h"
#include "model/gguf/texts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *begin, *end;

static void check(const void *p, size_t bytes)
{
	const uint8_t *at = p;
	if (at < begin || at > end || bytes > (size_t)(end - at))
		abort();
}

static mx_status named(void *arg, const struct mx_gguf_named *t)
{
	(void)arg;
	check(t->data, t->bytes);
	if (t->values)
		check(t->values->data, t->values->bytes);
	return t->name[0] ? MX_OK : MX_E_INTERNAL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
	                                    "tokenizer_config.json", "rwkv_vocab_v20230424.txt"};
	struct mx_gguf *g = NULL;
	struct mx_err err = {0};
	begin = data;
	end = data + size;
	if (mx_gguf_parse(data, size, "fuzz", &g, &err)) {
		if (!err.text[0])
			abort();
		return 0;
	}
	for (size_t i = 0; i < mx_gguf_count(g); i++)
		check(mx_gguf_at(g, i)->data, mx_gguf_at(g, i)->bytes);
	err = (struct mx_err){0};
	if (mx_gguf_names(g, named, NULL, &err) && !err.text[0])
		abort();
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		char *text = NULL;
		size_t n = 0;
		err = (struct mx_err){0};
		if (mx_gguf_make(g, files[i], &text, &n, &err) && !err.text[0])
			abort();
		free(text);
	}
	mx_gguf_close(g);
	return 0;
}
