/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static struct mx_prompt *copy_prompt(const int32_t *ids, uint32_t n)
{
	struct mx_prompt *p = malloc(sizeof *p + n * sizeof *p->ids);
	if (!p)
		return NULL;
	p->refs = 0;
	memcpy(p->ids, ids, n * sizeof *p->ids);
	return p;
}

/* Copies n elements to *at, advances *at behind them and returns the copy; NULL if n is 0. */
static void *put(unsigned char **at, const void *from, size_t n, size_t size)
{
	void *p = *at;
	if (n)
		memcpy(p, from, n * size);
	*at += n * size;
	return n ? p : NULL;
}

struct mx_req *mx_req_copy(const struct mx_request *r, struct mx_prompt *prompt)
{
	const struct mx_seq_params *q = &r->params;
	size_t salt = q->cache_salt ? strlen(q->cache_salt) + 1 : 0;
	struct mx_req *c = calloc(
		1, sizeof *c + q->sampling.n_bias * sizeof *q->sampling.bias +
			   (r->n_stop_tokens + q->n_stop + q->n_pooled + q->n_prediction) * sizeof(int32_t) +
			   salt);
	if (c)
		c->prompt = prompt ? prompt : copy_prompt(r->prompt, r->n_prompt);
	if (!c || !c->prompt) {
		free(c);
		return NULL;
	}
	c->prompt->refs++;
	c->n_prompt = c->n_tokens = r->n_prompt;
	c->max_tokens = r->max_tokens;
	c->sink = r->sink;
	c->params = *q;
	c->params.max_len = r->n_prompt + r->max_tokens;
	unsigned char *at = (unsigned char *)(c + 1); /* each array needs an alignment of 4 or none */
	c->params.sampling.bias =
		put(&at, q->sampling.bias, q->sampling.n_bias, sizeof *q->sampling.bias);
	c->stop_tokens = put(&at, r->stop_tokens, r->n_stop_tokens, sizeof *r->stop_tokens);
	c->n_stop_tokens = r->n_stop_tokens;
	c->params.ends = c->stop_tokens;
	c->params.n_ends = c->n_stop_tokens;
	c->params.stop = put(&at, q->stop, q->n_stop, sizeof *q->stop);
	c->params.pooled = put(&at, q->pooled, q->n_pooled, sizeof *q->pooled);
	c->params.prediction = put(&at, q->prediction, q->n_prediction, sizeof *q->prediction);
	c->params.cache_salt = put(&at, q->cache_salt, salt, 1);
	c->fresh = true;
	c->arrival_ns = mx_now_ns();
	return c;
}

void mx_req_free(struct mx_req *r)
{
	if (!--r->prompt->refs)
		free(r->prompt);
	free(r);
}
