/* SPDX-License-Identifier: Apache-2.0 */
/* HMAC-SHA256 (RFC 2104), and the comparison of secrets. */
#ifndef MX_BASE_HMAC_H
#define MX_BASE_HMAC_H

#include <stdbool.h>

#include "base/sha256.h"

struct mx_hmac {
	struct mx_sha256 inner;
	uint8_t outer_pad[64];
};

/* Begins with a key of any length. */
void mx_hmac_begin(struct mx_hmac *h, const void *key, size_t len);
void mx_hmac_add(struct mx_hmac *h, const void *data, size_t n);
void mx_hmac_end(struct mx_hmac *h, uint8_t out[MX_SHA256_BYTES]);

/* True if a[n] and b[n] are equal; takes as long wherever they differ. */
bool mx_same_secret(const uint8_t *a, const uint8_t *b, size_t n);

#endif
