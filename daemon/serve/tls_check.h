/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the files of TLS are usable, found out by GnuTLS before anything is given to a front end.
 */
#ifndef MX_DAEMON_SERVE_TLS_CHECK_H
#define MX_DAEMON_SERVE_TLS_CHECK_H

#include "daemon/serve/tls_files.h"

struct gnutls_certificate_credentials_st;

/* Reads the files into credentials of GnuTLS, which the caller frees. Fails with the path in
 * err->where if a file cannot be read, cert and key do not belong together, or client_ca has no
 * certificate. Only in builds with GnuTLS. */
mx_status mx_tls_credentials(const struct mx_tls_paths *paths,
                             struct gnutls_certificate_credentials_st **out, struct mx_err *err);

/* Fails as mx_tls_credentials does, for any front end's files; without GnuTLS only if one cannot be
 * read. Takes paths without a cert. `who`: the part of the log that warns of a certificate that
 * clients are going to refuse; NULL: none does. */
mx_status mx_tls_check(const struct mx_tls_paths *paths, const char *who, struct mx_err *err);

#endif
