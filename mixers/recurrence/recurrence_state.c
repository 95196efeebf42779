/* SPDX-License-Identifier: Apache-2.0 */
/* A slot of the recurrence: layout, save, load and commit. */
#include "mixers/recurrence/recurrence_layout.h"

#include <string.h>

void recur_layout(const struct mx_recur_spec *s, struct recur_layout *out)
{
	bool channel = s->decay == MX_RECUR_CHANNEL;
	struct recur_layout l = {
		.chunk = channel ? 1 : MX_RECUR_CHUNK,
		.k_dim = channel ? 1 : s->k_dim,
		.ldk = channel ? 0 : recur_pad(s->k_dim),
		.ldv = recur_pad(s->v_dim),
		.u_heads = s->delta ? s->heads : s->v_heads,
		.pairs = s->removal ? 2 : 1,
	};
	/* Room for a chunk that is not folded into S yet, and for a draft after it. */
	l.cap = l.chunk + s->max_draft;
	l.lda = s->decay == MX_RECUR_NO_DECAY ? 0
	        : s->decay == MX_RECUR_SCALAR ? 1
	        : s->decay == MX_RECUR_VECTOR ? l.ldk
	                                      : l.ldv;
	l.S = recur_align(sizeof(struct recur_head));
	l.k = l.S + recur_align((size_t)s->heads * l.k_dim * l.ldv * sizeof(float));
	l.u = l.k + recur_align((size_t)s->k_heads * l.cap * l.ldk * sizeof(float));
	l.a = l.u + recur_align((size_t)l.u_heads * l.cap * l.ldv * sizeof(float));
	l.beta = l.a + recur_align((size_t)s->a_heads * l.cap * l.lda * sizeof(float));
	l.b = l.beta + recur_align(s->gain ? (size_t)s->heads * l.cap * sizeof(float) : 0);
	l.p = l.b + (s->removal ? l.u - l.k : 0);
	l.bytes = l.p + recur_align(s->removal ? (size_t)s->heads * l.cap * l.ldv * sizeof(float) : 0);
	*out = l;
}

size_t mx_recur_slot_bytes(const struct mx_recur_spec *s)
{
	struct recur_layout l;
	recur_layout(s, &l);
	return l.bytes;
}

size_t mx_recur_snapshot_bytes(const struct mx_recur_spec *s)
{
	return mx_recur_slot_bytes(s);
}

/* Copies the tokens `from` .. pos - 1 of one ring. */
static void save_ring(const struct recur_layout *l, const unsigned char *slot, unsigned char *out,
                      size_t offset, uint32_t heads, uint32_t ld, uint32_t from, uint32_t pos)
{
	for (uint32_t h = 0; h < heads; h++)
		for (uint32_t p = from; p < pos; p++)
			memcpy(recur_ring(out, offset, l->cap, ld, h, p),
			       recur_ring(slot, offset, l->cap, ld, h, p), ld * sizeof(float));
}

void mx_recur_save(const struct mx_recur_spec *s, const void *slot, uint32_t pos, void *out)
{
	const struct recur_head *head = slot;
	struct recur_layout l;
	recur_layout(s, &l);
	memcpy(out, slot, l.k);
	memset((unsigned char *)out + l.k, 0, l.bytes - l.k);
	save_ring(&l, slot, out, l.k, s->k_heads, l.ldk, head->border, pos);
	save_ring(&l, slot, out, l.u, l.u_heads, l.ldv, head->border, pos);
	save_ring(&l, slot, out, l.a, s->a_heads, l.lda, head->border, pos);
	if (s->gain)
		save_ring(&l, slot, out, l.beta, s->heads, 1, head->border, pos);
	if (s->removal) {
		save_ring(&l, slot, out, l.b, s->k_heads, l.ldk, head->border, pos);
		save_ring(&l, slot, out, l.p, s->heads, l.ldv, head->border, pos);
	}
}

/* The border is at most pos - 1, so a sequence can go on at pos or at pos - 1. */
void mx_recur_load(const struct mx_recur_spec *s, void *slot, uint32_t pos, const void *in)
{
	(void)pos;
	memcpy(slot, in, mx_recur_snapshot_bytes(s));
}

/* Moves the kept tokens of one ring to the entries of their positions. */
static void move_ring(const struct recur_layout *l, const unsigned char *slot, size_t offset,
                      uint32_t heads, uint32_t ld, uint32_t pos, const struct mx_kept *kept)
{
	for (uint32_t h = 0; h < heads; h++)
		for (uint32_t k = 0; k < kept->n; k++) /* ascending: path[k] >= k */
			if (kept->path[k] != k)
				memcpy(recur_ring(slot, offset, l->cap, ld, h, pos + k),
				       recur_ring(slot, offset, l->cap, ld, h, pos + kept->path[k]),
				       ld * sizeof(float));
}

void mx_recur_commit(const struct mx_recur_spec *s, void *slot, uint32_t pos,
                     const struct mx_kept *kept)
{
	struct recur_layout l;
	recur_layout(s, &l);
	move_ring(&l, slot, l.k, s->k_heads, l.ldk, pos, kept);
	move_ring(&l, slot, l.u, l.u_heads, l.ldv, pos, kept);
	move_ring(&l, slot, l.a, s->a_heads, l.lda, pos, kept);
	if (s->gain)
		move_ring(&l, slot, l.beta, s->heads, 1, pos, kept);
	if (s->removal) {
		move_ring(&l, slot, l.b, s->k_heads, l.ldk, pos, kept);
		move_ring(&l, slot, l.p, s->heads, l.ldv, pos, kept);
	}
}
