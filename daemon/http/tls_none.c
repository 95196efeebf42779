/* SPDX-License-Identifier: Apache-2.0 */
/* Stands for tls.c in builds without GnuTLS. */
#include "daemon/http/tls.h"

#include <stddef.h>

mx_status mx_tls_create(const struct mx_tls_paths *paths, int min_version, struct mx_tls **out,
                        struct mx_err *err)
{
	(void)paths;
	(void)min_version;
	(void)out;
	return mx_fail(err, MX_E_UNSUPPORTED,
	               "http.tls: mixd was built without TLS: libgnutls28-dev was missing");
}

mx_status mx_tls_reload(struct mx_tls *t, struct mx_err *err)
{
	(void)t;
	return mx_fail(err, MX_E_UNSUPPORTED, "there is no TLS");
}

void mx_tls_destroy(struct mx_tls *t)
{
	(void)t;
}

struct mx_tls_files_used *mx_tls_begin(struct mx_tls *t, void *session)
{
	(void)t;
	(void)session;
	return NULL;
}

void mx_tls_end(struct mx_tls *t, struct mx_tls_files_used *used)
{
	(void)t;
	(void)used;
}

void mx_tls_set_read(void *session, int fd, mx_tls_read_f *read, void *arg)
{
	(void)session;
	(void)fd;
	(void)read;
	(void)arg;
}
