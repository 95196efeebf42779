/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4). */
#ifndef MX_BASE_SHA256_H
#define MX_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define MX_SHA256_BYTES 32

struct mx_sha256 {
	uint32_t state[8];
	uint64_t n; /* bytes so far */
	uint8_t block[64];
};

void mx_sha256_begin(struct mx_sha256 *h);
/* Adds n bytes; data may be NULL if n is 0. */
void mx_sha256_add(struct mx_sha256 *h, const void *data, size_t n);
/* Writes the digest of all that was added; *h is to be begun anew. */
void mx_sha256_end(struct mx_sha256 *h, uint8_t out[MX_SHA256_BYTES]);

#endif
