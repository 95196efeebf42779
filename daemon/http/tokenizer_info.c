/* SPDX-License-Identifier: Apache-2.0 */
/* GET /tokenizer_info: what a client needs to tokenise and render as the server does. The route and
 * its fields are vLLM's; lm-eval's remote tokenizer asks for it before it uses /tokenize. */
#include "daemon/http/exchange.h"
#include "daemon/serve/prompt.h"
#include "proto/json_out.h"

#include <string.h>

static void put_token(struct mx_buf *b, const struct mx_tokenizer *t, const char *name)
{
	mx_buf_printf(b, ",\"%s\":", name);
	mx_json_cstring(b, mx_tokenizer_special(t, name));
}

void mx_api_get_tokenizer_info(struct mx_exchange *x)
{
	struct mx_api_error err;
	struct mx_served *m = NULL;
	const char *name = MHD_lookup_connection_value(x->conn, MHD_GET_ARGUMENT_KIND, "model");
	const struct mx_api_text wanted = {.s = name, .len = name ? strlen(name) : 0};
	if (mx_prompt_take_model(x->http->service, x->who, &wanted, false, &m, &err) != MX_OK) {
		mx_exchange_fail(x, &err);
		return;
	}
	struct mx_buf *b = &x->answer;
	mx_buf_puts(b, "{\"tokenizer_class\":");
	mx_json_cstring(b, mx_tokenizer_class(m->tokenizer));
	put_token(b, m->tokenizer, "bos_token");
	put_token(b, m->tokenizer, "eos_token");
	put_token(b, m->tokenizer, "pad_token");
	put_token(b, m->tokenizer, "unk_token");
	mx_buf_printf(b, ",\"model_max_length\":%u", m->info.max_context);
	if (m->chat_template) {
		size_t n;
		const char *source = mx_chat_template_source(m->chat_template, &n);
		mx_buf_puts(b, ",\"chat_template\":");
		mx_json_string(b, source, n);
	}
	mx_buf_putc(b, '}');
	mx_served_release(m);
	mx_exchange_answer(x, 200, "application/json");
}
