/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over keys that several ranks share (context parallel). Each rank attends over its own
 * keys; what it gets is a partial of each row and head: the maximum m, the sum l, the weighted
 * values o. A fold of partials is associative but for rounding, and is done in the order of the
 * ranks, so that the bits depend on nothing but the row. Heads are divided: a rank folds the
 * partials of its own, so that one exchange a layer suffices and each partial is sent once.
 *
 * A message to a rank: m [n_rows, own], l [n_rows, own], o [n_rows, own, vpad], of its `own` heads.
 */
#include <math.h>
#include <string.h>

#include "mixers/softmax/softmax.h"

static uint32_t padded_values(const struct mx_softmax_shape *shape)
{
	return (shape->value_dim + ATTN_DIM_MULTIPLE - 1) / ATTN_DIM_MULTIPLE * ATTN_DIM_MULTIPLE;
}

size_t mx_softmax_partials_bytes(const struct mx_softmax_shape *shape, uint32_t n_rows)
{
	return (size_t)n_rows * shape->heads * (padded_values(shape) + 2) * sizeof(float);
}

void mx_softmax_keep(const struct mx_softmax *s, float *sent, uint32_t n_rows, uint32_t row,
                     uint32_t head, float m, float l, const float *o)
{
	const size_t own = s->shape.heads / s->shape.contexts, all = n_rows * own;
	const size_t at = row * own + head % own;
	float *to = sent + head / own * all * (s->vpad + 2);
	to[at] = m;
	to[all + at] = l;
	memcpy(to + 2 * all + at * s->vpad, o, s->vpad * sizeof *o);
}

struct folding {
	const struct mx_softmax *s;
	size_t n; /* rows times own heads */
	float *received, *q;
};

/* Folds a tile of rows in the message of the first rank, and finishes it. */
static void fold_task(void *arg, size_t task, unsigned worker)
{
	const struct folding *f = arg;
	const struct mx_softmax *s = f->s;
	const struct mx_softmax_shape *p = &s->shape;
	const size_t own = p->heads / p->contexts, message = f->n * (s->vpad + 2);
	const size_t first = task * ATTN_TILE;
	const uint32_t rows = f->n - first < ATTN_TILE ? (uint32_t)(f->n - first) : ATTN_TILE;
	float *m = f->received + first, *l = m + f->n;
	float *o = f->received + 2 * f->n + first * s->vpad;
	(void)worker;
	s->kernels->begin();
	for (uint32_t r = 1; r < p->contexts; r++)
		s->kernels->fold(rows, s->vpad, m, l, o, m + r * message, l + r * message, o + r * message);
	s->kernels->end();
	for (size_t i = 0; i < rows; i++) {
		const size_t row = (first + i) / own, head = p->context * own + (first + i) % own;
		float sum = l[i];
		if (s->sinks) /* a key of this score, whose value is 0 */
			sum += exp2f(s->sinks[head] * (float)MX_SOFTMAX_LOG2E - m[i]);
		s->kernels->finish(p->value_dim, sum, o + i * s->vpad,
		                   f->q + (row * p->heads + head) * p->key_dim);
	}
}

mx_status mx_softmax_exchange(const struct mx_softmax *s, uint32_t n_rows, const float *sent,
                              float *received, float *q)
{
	const size_t bytes = mx_softmax_partials_bytes(&s->shape, n_rows) / s->shape.contexts;
	struct folding f = {
		.s = s,
		.n = (size_t)n_rows * (s->shape.heads / s->shape.contexts),
		.received = received,
		.q = q,
	};
	mx_status st = s->comm->ops->all_to_all(s->comm, sent, bytes, received);
	const size_t tasks = (f.n + ATTN_TILE - 1) / ATTN_TILE;
	if (st == MX_OK)
		s->device->ops->parallel(s->device, tasks, fold_task, &f);
	return st;
}
