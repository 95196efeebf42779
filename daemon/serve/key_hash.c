/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes keys, by GnuTLS where it is. */
#include <config.h> /* not ours: the build's */

#ifdef HAVE_GNUTLS
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#endif

#include "daemon/serve/keys.h"

mx_status mx_key_hash(const char *key, size_t n, uint8_t out[MX_KEYS_HASH_SIZE])
{
#ifdef HAVE_GNUTLS
	return gnutls_hash_fast(GNUTLS_DIG_SHA256, key, n, out) < 0 ? MX_E_INTERNAL : MX_OK;
#else
	(void)key;
	(void)n;
	(void)out;
	return MX_E_UNSUPPORTED;
#endif
}
