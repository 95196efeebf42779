/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/hosted_pooling.h"

#include <stdio.h>
#include <string.h>

#include "model/embedding.h"

/* The prompt of Qwen3-Reranker, as its card has it (huggingface.co/Qwen/Qwen3-Reranker-0.6B). */
static const char qwen3[] =
	"<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
	"the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
	"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
	"<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

static mx_status find_reranker(const struct mx_config_model *c, const struct mx_tokenizer *t,
                               struct mx_served_pooling *p, struct mx_err *err)
{
	p->prompt = strcmp(c->reranker, "qwen3") ? c->reranker : qwen3;
	if (!strstr(p->prompt, "{query}") || !strstr(p->prompt, "{document}"))
		return mx_fail_at(err, MX_E_INVALID, "reranker",
		                  "must be 'qwen3', or a prompt with {query} and {document}");
	for (int i = 0; i < 2; i++) {
		const char *token = c->reranker_tokens.items[i];
		p->answers[i] = mx_tokenizer_id(t, token);
		if (p->answers[i] < 0)
			return mx_fail_at(err, MX_E_INVALID, "reranker_tokens",
			                  "the model's tokenizer has no token '%.80s'", token);
	}
	return MX_OK;
}

mx_status mx_hosted_pooling(const struct mx_config_model *settings, const struct mx_tokenizer *t,
                            struct mx_served_pooling *out, struct mx_err *err)
{
	struct mx_served_pooling p = {.kind = MX_POOLING_LAST, .normalize = true};
	struct mx_embedding e;
	struct mx_err why = {0};
	mx_status st = mx_embedding_load(settings->path, &e, &why);
	if (st == MX_OK) {
		p.kind = e.pooling == MX_EMBEDDING_MEAN ? MX_POOLING_MEAN : MX_POOLING_LAST;
		p.normalize = e.normalize;
	}
	if (settings->pooling >= 0) {
		p.kind = (enum mx_pooling)settings->pooling;
		if (p.kind == MX_POOLING_NONE)
			snprintf(p.why, sizeof p.why, "models[].pooling is none");
	} else if (st != MX_OK && st != MX_E_NOTFOUND) {
		const char *slash = strrchr(why.where, '/');
		p.kind = MX_POOLING_NONE;
		snprintf(p.why, sizeof p.why, "%.60s: %.200s", slash ? slash + 1 : why.where, why.text);
	}
	if (settings->reranker) {
		st = find_reranker(settings, t, &p, err);
		if (st != MX_OK)
			return st;
	}
	*out = p;
	return MX_OK;
}
