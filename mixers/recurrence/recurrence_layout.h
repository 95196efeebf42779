/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of the recurrence's part of a slot. A snapshot has the same layout.
 *
 *   head  64 bytes: struct recur_head
 *   S     [heads] [blocks of RECUR_COLS columns] [k_dim] [columns of the block], as of the border;
 *         v_dim padded to ldv, so the last block may be narrower
 *   k     [k_heads] [cap] [ldk]         the tokens since the border, position p at p % cap
 *   u     [heads or v_heads] [cap] [ldv]
 *   a     [a_heads] [cap] [lda]
 *   beta  [heads] [cap] [1]             with gain only
 *   b     [k_heads] [cap] [ldk]         with removal only
 *   p     [heads] [cap] [ldv]           with removal only
 *
 * All f32, padding zero. MX_RECUR_CHANNEL: k_dim is 1, there is no k, u is v.
 */
#ifndef MX_MIXERS_RECURRENCE_LAYOUT_H
#define MX_MIXERS_RECURRENCE_LAYOUT_H

#include "mixers/recurrence/recurrence_kernels.h"

struct recur_head {
	uint32_t border; /* S includes the tokens before this position */
};

struct recur_layout {
	uint32_t chunk; /* tokens: MX_RECUR_CHUNK, or 1 */
	uint32_t cap;
	uint32_t k_dim, ldk, ldv, lda;
	uint32_t u_heads;
	uint32_t pairs;                /* of a key and a value that a token has: 2 with removal */
	size_t S, k, u, a, beta, b, p; /* offsets in bytes */
	size_t bytes;                  /* of all */
};

void recur_layout(const struct mx_recur_spec *s, struct recur_layout *out);

/* Returns which of n shared heads head h of `heads` uses. */
static inline uint32_t recur_shared(uint32_t h, uint32_t heads, uint32_t n)
{
	return h / (heads / n);
}

/* Returns the entry of a position in one of the rings. */
static inline float *recur_ring(const unsigned char *slot, size_t offset, uint32_t cap, uint32_t ld,
                                uint32_t head, uint32_t pos)
{
	return (float *)(slot + offset) + ((size_t)head * cap + pos % cap) * ld;
}

#endif
