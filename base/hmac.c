/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hmac.h"

#include <string.h>

#define BLOCK 64

void mx_hmac_begin(struct mx_hmac *h, const void *key, size_t len)
{
	uint8_t k[BLOCK] = {0}, pad[BLOCK];
	if (len > BLOCK) {
		mx_sha256_begin(&h->inner);
		mx_sha256_add(&h->inner, key, len);
		mx_sha256_end(&h->inner, k);
	} else if (len) {
		memcpy(k, key, len);
	}
	for (int i = 0; i < BLOCK; i++) {
		pad[i] = k[i] ^ 0x36;
		h->outer_pad[i] = k[i] ^ 0x5c;
	}
	mx_sha256_begin(&h->inner);
	mx_sha256_add(&h->inner, pad, BLOCK);
}

void mx_hmac_add(struct mx_hmac *h, const void *data, size_t n)
{
	mx_sha256_add(&h->inner, data, n);
}

void mx_hmac_end(struct mx_hmac *h, uint8_t out[MX_SHA256_BYTES])
{
	uint8_t digest[MX_SHA256_BYTES];
	struct mx_sha256 outer;
	mx_sha256_end(&h->inner, digest);
	mx_sha256_begin(&outer);
	mx_sha256_add(&outer, h->outer_pad, BLOCK);
	mx_sha256_add(&outer, digest, sizeof digest);
	mx_sha256_end(&outer, out);
}

bool mx_same_secret(const uint8_t *a, const uint8_t *b, size_t n)
{
	volatile uint8_t differ = 0;
	for (size_t i = 0; i < n; i++)
		differ |= a[i] ^ b[i];
	return !differ;
}
