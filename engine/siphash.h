/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SipHash-2-4 with 128 bits of output (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast
 * short-input PRF", 2012; the 128-bit variant is the authors' own extension).
 *
 * The hash is keyed, so that a client cannot choose prompts that fall into one bucket, and has 128
 * bits, so that different salts have different hashes.
 */
#ifndef MX_ENGINE_SIPHASH_H
#define MX_ENGINE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct mx_siphash {
	uint64_t v[4];
	uint64_t tail; /* bytes not yet mixed in, little-endian */
	size_t len;
};

static inline uint64_t mx_sip_rotl(uint64_t x, int b)
{
	return x << b | x >> (64 - b);
}

static inline void mx_sip_round(uint64_t v[4])
{
	v[0] += v[1], v[1] = mx_sip_rotl(v[1], 13) ^ v[0], v[0] = mx_sip_rotl(v[0], 32);
	v[2] += v[3], v[3] = mx_sip_rotl(v[3], 16) ^ v[2];
	v[0] += v[3], v[3] = mx_sip_rotl(v[3], 21) ^ v[0];
	v[2] += v[1], v[1] = mx_sip_rotl(v[1], 17) ^ v[2], v[2] = mx_sip_rotl(v[2], 32);
}

static inline void mx_siphash_word(struct mx_siphash *h, uint64_t m)
{
	h->v[3] ^= m;
	mx_sip_round(h->v);
	mx_sip_round(h->v);
	h->v[0] ^= m;
}

static inline void mx_siphash_init(struct mx_siphash *h, const uint64_t key[2])
{
	h->v[0] = key[0] ^ 0x736f6d6570736575u;
	h->v[1] = key[1] ^ 0x646f72616e646f6du ^ 0xee;
	h->v[2] = key[0] ^ 0x6c7967656e657261u;
	h->v[3] = key[1] ^ 0x7465646279746573u;
	h->tail = 0;
	h->len = 0;
}

static inline void mx_siphash_update(struct mx_siphash *h, const void *data, size_t n)
{
	const unsigned char *p = data;
	while (n && h->len % 8) {
		h->tail |= (uint64_t)*p++ << (8 * (h->len++ % 8)), n--;
		if (h->len % 8 == 0)
			mx_siphash_word(h, h->tail), h->tail = 0;
	}
	for (; n >= 8; n -= 8, p += 8, h->len += 8) {
		uint64_t m = 0;
		for (int i = 0; i < 8; i++)
			m |= (uint64_t)p[i] << (8 * i);
		mx_siphash_word(h, m);
	}
	for (; n; n--)
		h->tail |= (uint64_t)*p++ << (8 * (h->len++ % 8));
}

static inline void mx_siphash_final(struct mx_siphash *h, uint64_t out[2])
{
	mx_siphash_word(h, h->tail | (uint64_t)(h->len & 0xff) << 56);
	h->v[2] ^= 0xee;
	for (int i = 0; i < 4; i++)
		mx_sip_round(h->v);
	out[0] = h->v[0] ^ h->v[1] ^ h->v[2] ^ h->v[3];
	h->v[1] ^= 0xdd;
	for (int i = 0; i < 4; i++)
		mx_sip_round(h->v);
	out[1] = h->v[0] ^ h->v[1] ^ h->v[2] ^ h->v[3];
}

#endif
