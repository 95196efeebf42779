/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS of the REST front end, by GnuTLS: the certificate, the key and the rules by
 * which libmicrohttpd's sessions shake hands. The files can be read again at any
 * time: sessions that have begun go on with what they began with.
 */
#ifndef MX_DAEMON_HTTP_TLS_H
#define MX_DAEMON_HTTP_TLS_H

#include <stdbool.h>

#include "base/status.h"
#include "daemon/serve/tls_files.h"

struct mx_tls;
struct mx_tls_files_used; /* what a session was begun with */

/* Reads the files. min_version: the oldest version of TLS that clients may speak, 12 or 13 for 1.2
 * or 1.3. Fails with the path in err->where if a file is not usable; MX_E_UNSUPPORTED: mixd or
 * libmicrohttpd was built without TLS. */
mx_status mx_tls_create(const struct mx_tls_paths *paths, int min_version, struct mx_tls **out,
                        struct mx_err *err);
void mx_tls_destroy(struct mx_tls *t); /* no session may be left; takes NULL */
/* Reads the files again, for the sessions that follow. On failure nothing changes. Any thread. */
mx_status mx_tls_reload(struct mx_tls *t, struct mx_err *err);

/* Gives a new session (a gnutls_session_t) the files and rules. Returns what mx_tls_end takes once
 * the session is gone; NULL if that failed, and then the handshake will fail. */
struct mx_tls_files_used *mx_tls_begin(struct mx_tls *t, void *session);
void mx_tls_end(struct mx_tls *t, struct mx_tls_files_used *used); /* takes NULL */

/* Reads what a client has sent, for a session: `read` is called in place of recv. */
typedef long mx_tls_read_f(void *arg, void *out, unsigned long n);
void mx_tls_set_read(void *session, int fd, mx_tls_read_f *read, void *arg);

#endif
