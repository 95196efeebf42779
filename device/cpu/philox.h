/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox4x32-10, a counter-based random generator (Salmon et al., "Parallel random numbers: as easy
 * as 1, 2, 3", 2011): the n-th draw of a key is computed without any state.
 */
#ifndef MX_DEVICE_CPU_PHILOX_H
#define MX_DEVICE_CPU_PHILOX_H

#include <stdint.h>

static inline void mx_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
	uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
	uint32_t k0 = key[0], k1 = key[1];
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
		uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
		c[1] = (uint32_t)p1;
		c[3] = (uint32_t)p0;
		c[0] = n0;
		c[2] = n2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	for (int i = 0; i < 4; i++)
		out[i] = c[i];
}

/* Returns draw number `position` of the stream `seed`: uniform in [0, 1), with 53 bits. */
static inline double mx_uniform(uint64_t seed, uint64_t position)
{
	const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
	const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
	uint32_t r[4];
	mx_philox4x32(counter, key, r);
	return (double)(((uint64_t)r[0] << 32 | r[1]) >> 11) * 0x1p-53;
}

#endif
