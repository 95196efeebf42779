/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/hosted_draft.h"

#include <stdlib.h>
#include <string.h>

/* Returns a token's text for messages. */
static const char *text_of(const struct mx_tokenizer *t, int32_t id)
{
	const char *piece = mx_tokenizer_piece(t, id);
	return piece ? piece : "";
}

/* Fails unless both tokenizers have the same tokens under the same ids. */
static mx_status compare_tokens(const struct mx_tokenizer *t, const struct mx_tokenizer *draft,
                                struct mx_err *err)
{
	size_t n = mx_tokenizer_size(t), m = mx_tokenizer_size(draft);
	for (size_t i = 0; i < n && i < m; i++) {
		const char *a = text_of(t, (int32_t)i), *b = text_of(draft, (int32_t)i);
		if (strcmp(a, b) != 0)
			return mx_fail(err, MX_E_UNSUPPORTED,
			               "a draft model must have the model's tokenizer, but token %zu is "
			               "\"%.80s\" here and \"%.80s\" in the model",
			               i, b, a);
	}
	if (n != m)
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "a draft model must have the model's tokenizer, but it has %zu tokens and "
		               "the model %zu: token %zu, \"%.80s\", is only in the %s",
		               m, n, n < m ? n : m,
		               n < m ? text_of(draft, (int32_t)n) : text_of(t, (int32_t)m),
		               n < m ? "draft model" : "model");
	return MX_OK;
}

mx_status mx_hosted_draft_open(struct mx_hosted *h, struct mx_err *err)
{
	const char *path = h->settings->speculation.model;
	struct mx_tokenizer *t = NULL;
	struct mx_err cause = {0};
	h->draft_folder = realpath(path, NULL);
	mx_status st = mx_plan_load(path, &h->draft_plan, &cause);
	if (st == MX_OK)
		st = mx_checkpoint_open(path, &h->draft_checkpoint, &cause);
	if (st == MX_OK)
		st = mx_tokenizer_load(path, &t, &cause);
	if (st == MX_OK)
		st = compare_tokens(h->tokenizer, t, &cause);
	mx_tokenizer_destroy(t);
	if (st == MX_OK)
		return MX_OK;
	bool names = !strncmp(cause.where, path, strlen(path));
	return mx_fail_at(err, st, "speculation.model", "%s%s%s%s%s", names ? "" : path,
	                  names ? "" : ": ", cause.where, cause.where[0] ? ": " : "", cause.text);
}
