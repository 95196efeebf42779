/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h> /* not ours: the build's */

#include "daemon/serve/tls_check.h"

#ifdef HAVE_GNUTLS
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "base/log.h"

/* The keys and strings of gnutls_datum_t are never written. */
static gnutls_datum_t datum(const char *text)
{
	return (gnutls_datum_t){(unsigned char *)(uintptr_t)text, (unsigned)strlen(text)};
}

/* Warns of a certificate that clients are going to refuse. */
static void check_time(const char *who, const char *path, const gnutls_datum_t *pem)
{
	gnutls_x509_crt_t crt;
	if (gnutls_x509_crt_init(&crt) != GNUTLS_E_SUCCESS)
		return;
	time_t now = time(NULL);
	if (gnutls_x509_crt_import(crt, pem, GNUTLS_X509_FMT_PEM) == GNUTLS_E_SUCCESS) {
		if (gnutls_x509_crt_get_expiration_time(crt) < now)
			mx_warning(who, "%s: the certificate has expired", path);
		else if (gnutls_x509_crt_get_activation_time(crt) > now)
			mx_warning(who, "%s: the certificate is not valid yet", path);
	}
	gnutls_x509_crt_deinit(crt);
}

static mx_status fill(gnutls_certificate_credentials_t c, const struct mx_tls_paths *paths,
                      const struct mx_tls_files *files, const char *who, struct mx_err *err)
{
	gnutls_datum_t cert = datum(files->cert), key = datum(files->key);
	int rc = gnutls_certificate_set_x509_key_mem2(c, &cert, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
	if (rc < 0)
		return mx_fail_at(err, MX_E_FORMAT, paths->cert, "not usable with the key %s: %s",
		                  paths->key, gnutls_strerror(rc));
	if (who)
		check_time(who, paths->cert, &cert);
	if (!files->client_ca)
		return MX_OK;
	gnutls_datum_t ca = datum(files->client_ca);
	rc = gnutls_certificate_set_x509_trust_mem(c, &ca, GNUTLS_X509_FMT_PEM);
	if (rc <= 0)
		return mx_fail_at(err, MX_E_FORMAT, paths->client_ca, "has no usable certificate%s%s",
		                  rc ? ": " : "", rc ? gnutls_strerror(rc) : "");
	return MX_OK;
}

static mx_status use(const struct mx_tls_paths *paths, const struct mx_tls_files *files,
                     const char *who, gnutls_certificate_credentials_t *out, struct mx_err *err)
{
	gnutls_certificate_credentials_t c;
	if (gnutls_certificate_allocate_credentials(&c) != GNUTLS_E_SUCCESS)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	mx_status st = fill(c, paths, files, who, err);
	if (st == MX_OK)
		*out = c;
	else
		gnutls_certificate_free_credentials(c);
	return st;
}

mx_status mx_tls_credentials(const struct mx_tls_paths *paths,
                             struct gnutls_certificate_credentials_st **out, struct mx_err *err)
{
	struct mx_tls_files files = {0};
	mx_status st = mx_tls_files_read(paths, &files, err);
	if (st == MX_OK)
		st = use(paths, &files, NULL, out, err);
	mx_tls_files_free(&files);
	return st;
}

static mx_status check(const struct mx_tls_paths *paths, const struct mx_tls_files *files,
                       const char *who, struct mx_err *err)
{
	gnutls_certificate_credentials_t c;
	mx_status st = use(paths, files, who, &c, err);
	if (st == MX_OK)
		gnutls_certificate_free_credentials(c);
	return st;
}
#else
static mx_status check(const struct mx_tls_paths *paths, const struct mx_tls_files *files,
                       const char *who, struct mx_err *err)
{
	(void)paths;
	(void)files;
	(void)who;
	(void)err;
	return MX_OK;
}
#endif

mx_status mx_tls_check(const struct mx_tls_paths *paths, const char *who, struct mx_err *err)
{
	struct mx_tls_files files = {0};
	if (!paths->cert)
		return MX_OK;
	mx_status st = mx_tls_files_read(paths, &files, err);
	if (st == MX_OK)
		st = check(paths, &files, who, err);
	mx_tls_files_free(&files);
	return st;
}
