/* SPDX-License-Identifier: Apache-2.0 */
/* The files of TLS: certificate, key and the authority of clients, as text in PEM form. */
#ifndef MX_DAEMON_SERVE_TLS_FILES_H
#define MX_DAEMON_SERVE_TLS_FILES_H

#include "base/status.h"

/* Paths. */
struct mx_tls_paths {
	const char *cert, *key; /* NULL = no TLS */
	const char *client_ca;  /* NULL = clients need no certificate */
};

/* Their contents; NULL where there is no path. */
struct mx_tls_files {
	char *cert, *key, *client_ca;
};

/* Reads the files. Fails with the path in err->where if one cannot be read, is larger than 1 MiB,
 * or has nothing in PEM form. */
mx_status mx_tls_files_read(const struct mx_tls_paths *paths, struct mx_tls_files *out,
                            struct mx_err *err);
/* Overwrites the key and frees all. Takes zeroed ones. */
void mx_tls_files_free(struct mx_tls_files *f);

#endif
