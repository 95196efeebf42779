/* SPDX-License-Identifier: Apache-2.0 */
/* See tls.h. */
#include "daemon/http/tls.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/tls_check.h"

struct mx_tls_files_used {
	gnutls_certificate_credentials_t credentials;
	unsigned refs; /* the sessions', and one while these are the newest; under the lock */
	bool ask_client;
};

struct mx_tls {
	struct mx_tls_paths paths;
	gnutls_priority_t versions;
	pthread_mutex_t lock;
	struct mx_tls_files_used *newest;
};

/* The keys and strings of gnutls_datum_t are never written. */
static gnutls_datum_t datum(const char *text)
{
	return (gnutls_datum_t){(unsigned char *)(uintptr_t)text, (unsigned)strlen(text)};
}

static void drop(struct mx_tls_files_used *u)
{
	if (u) {
		gnutls_certificate_free_credentials(u->credentials);
		free(u);
	}
}

static mx_status read_files(const struct mx_tls *t, struct mx_tls_files_used **out,
                            struct mx_err *err)
{
	struct mx_tls_files_used *u = mx_calloc(1, sizeof(*u));
	if (!u)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	u->refs = 1;
	u->ask_client = t->paths.client_ca != NULL;
	mx_status st = mx_tls_credentials(&t->paths, &u->credentials, err);
	if (st == MX_OK)
		*out = u;
	else
		free(u);
	return st;
}

mx_status mx_tls_create(const struct mx_tls_paths *paths, int min_version, struct mx_tls **out,
                        struct mx_err *err)
{
	/* behind what the system's administrator has set for all programs */
	const char *versions =
		min_version >= 13 ? "-VERS-ALL:+VERS-TLS1.3" : "-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";
	if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "http.tls: this machine's libmicrohttpd was built without TLS");
	struct mx_tls *t = mx_calloc(1, sizeof(*t));
	if (!t)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	pthread_mutex_init(&t->lock, NULL);
	t->paths = *paths;
	mx_status st = MX_OK;
	if (gnutls_priority_init2(&t->versions, versions, NULL, GNUTLS_PRIORITY_INIT_DEF_APPEND) !=
	    GNUTLS_E_SUCCESS) {
		t->versions = NULL;
		st = mx_fail(err, MX_E_UNSUPPORTED, "http.tls: GnuTLS does not take the versions \"%s\"",
		             versions);
	}
	if (st == MX_OK)
		st = mx_tls_reload(t, err);
	if (st == MX_OK)
		*out = t;
	else
		mx_tls_destroy(t);
	return st;
}

void mx_tls_destroy(struct mx_tls *t)
{
	if (!t)
		return;
	drop(t->newest);
	if (t->versions)
		gnutls_priority_deinit(t->versions);
	pthread_mutex_destroy(&t->lock);
	free(t);
}

void mx_tls_end(struct mx_tls *t, struct mx_tls_files_used *used)
{
	if (!used)
		return;
	pthread_mutex_lock(&t->lock);
	bool last = --used->refs == 0;
	pthread_mutex_unlock(&t->lock);
	if (last)
		drop(used);
}

mx_status mx_tls_reload(struct mx_tls *t, struct mx_err *err)
{
	struct mx_tls_files_used *fresh = NULL;
	mx_status st = read_files(t, &fresh, err);
	if (st != MX_OK)
		return st;
	pthread_mutex_lock(&t->lock);
	struct mx_tls_files_used *old = t->newest;
	t->newest = fresh;
	pthread_mutex_unlock(&t->lock);
	mx_tls_end(t, old);
	return MX_OK;
}

static bool set_up(struct mx_tls *t, gnutls_session_t s, struct mx_tls_files_used *u)
{
	static const char http[] = "http/1.1";
	const gnutls_datum_t alpn = datum(http);
	if (gnutls_credentials_set(s, GNUTLS_CRD_CERTIFICATE, u->credentials) != GNUTLS_E_SUCCESS ||
	    gnutls_priority_set(s, t->versions) != GNUTLS_E_SUCCESS ||
	    gnutls_alpn_set_protocols(s, &alpn, 1, 0) != GNUTLS_E_SUCCESS)
		return false;
	gnutls_certificate_server_set_request(s,
	                                      u->ask_client ? GNUTLS_CERT_REQUIRE : GNUTLS_CERT_IGNORE);
	if (u->ask_client)
		gnutls_session_set_verify_cert(s, NULL, 0);
	return true;
}

struct mx_tls_files_used *mx_tls_begin(struct mx_tls *t, void *session)
{
	pthread_mutex_lock(&t->lock);
	struct mx_tls_files_used *u = t->newest;
	u->refs++;
	pthread_mutex_unlock(&t->lock);
	if (set_up(t, session, u))
		return u;
	mx_tls_end(t, u);
	return NULL;
}

void mx_tls_set_read(void *session, int fd, mx_tls_read_f *read, void *arg)
{
	gnutls_transport_set_ptr2(session, arg, (gnutls_transport_ptr_t)(intptr_t)fd);
	gnutls_transport_set_pull_function(session, read);
}
