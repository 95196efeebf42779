/* SPDX-License-Identifier: Apache-2.0 */
#include "device/hosts/tls.h"

#include <gnutls/gnutls.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "base/mem.h"
#include "device/hosts/tcp.h"

#define KEY    32
#define RECORD 16384 /* most bytes of a record */
/* A pre-shared key is tied to a hash, SHA-256: to the ciphers that have it. */
#define RULES                                                                                      \
	"NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:-CIPHER-ALL:+AES-128-GCM:+CHACHA20-POLY1305"

static const char who[] = "mixd hosts";

struct mx_channel_tls {
	gnutls_session_t session;
	gnutls_psk_server_credentials_t server; /* one of the two */
	gnutls_psk_client_credentials_t client;
	uint8_t key[KEY];
	bool unsent;                /* of the last record */
	unsigned char room[RECORD]; /* where the pieces of a record come together */
};

bool mx_hosts_have_tls(void)
{
	return true;
}

/* ---- once hands are shaken ---- */

static ssize_t failed(int rc, const char **why)
{
	if (rc == GNUTLS_E_AGAIN || rc == GNUTLS_E_INTERRUPTED)
		return 0;
	if (rc == GNUTLS_E_PREMATURE_TERMINATION || rc == GNUTLS_E_PULL_ERROR ||
	    rc == GNUTLS_E_PUSH_ERROR || !rc)
		*why = "has closed the connection";
	else if (rc == GNUTLS_E_UNEXPECTED_PACKET_LENGTH)
		*why = "has closed the connection in the middle of a message";
	else if (rc == GNUTLS_E_DECRYPTION_FAILED || rc == GNUTLS_E_UNEXPECTED_PACKET ||
	         rc == GNUTLS_E_RECORD_OVERFLOW || rc == GNUTLS_E_UNSUPPORTED_VERSION_PACKET)
		*why = "sent what was changed on its way (TLS)";
	else
		*why = gnutls_strerror(rc);
	return -1;
}

/* A record is taken as a whole, by gnutls_record_send: what the kernel does not take of it yet goes
 * with a later call. */
static ssize_t tls_send(struct mx_channel_tls *t, const struct iovec v[2], const char **why)
{
	if (t->unsent) {
		const ssize_t rc = gnutls_record_send(t->session, NULL, 0);
		if (rc < 0)
			return failed((int)rc, why);
		t->unsent = false;
	}
	const size_t first = v[0].iov_len < RECORD ? v[0].iov_len : RECORD;
	const size_t second = v[1].iov_len < RECORD - first ? v[1].iov_len : RECORD - first;
	const void *x = first ? v[0].iov_base : v[1].iov_base;
	if (first && second) {
		memcpy(t->room, v[0].iov_base, first);
		memcpy(t->room + first, v[1].iov_base, second);
		x = t->room;
	}
	if (!first && !second)
		return 0;
	const ssize_t rc = gnutls_record_send(t->session, x, first + second);
	t->unsent = rc == GNUTLS_E_AGAIN || rc == GNUTLS_E_INTERRUPTED;
	if (t->unsent)
		return (ssize_t)(first + second);
	return rc < 0 ? failed((int)rc, why) : rc;
}

static ssize_t tls_recv(struct mx_channel_tls *t, void *y, size_t n, const char **why)
{
	const ssize_t rc = gnutls_record_recv(t->session, y, n);
	return rc > 0 ? rc : failed((int)rc, why);
}

static bool tls_unsent(const struct mx_channel_tls *t)
{
	return t->unsent;
}

static void tls_close(struct mx_channel_tls *t)
{
	if (t->session)
		gnutls_deinit(t->session);
	if (t->server)
		gnutls_psk_free_server_credentials(t->server);
	if (t->client)
		gnutls_psk_free_client_credentials(t->client);
	explicit_bzero(t, sizeof *t);
	free(t);
}

static const struct mx_channel_ops tls_ops = {
	.send = tls_send,
	.recv = tls_recv,
	.unsent = tls_unsent,
	.close = tls_close,
};

/* ---- the handshake ---- */

/* Gives GnuTLS the key of a peer. */
static int find_key(gnutls_session_t session, const char *name, gnutls_datum_t *out)
{
	const struct mx_channel_tls *t = gnutls_session_get_ptr(session);
	if (strcmp(name, who) != 0)
		return -1;
	out->data = gnutls_malloc(KEY);
	out->size = KEY;
	if (!out->data)
		return -1;
	memcpy(out->data, t->key, KEY);
	return 0;
}

/* Writes to the socket. GnuTLS has such a function too; with one of our own it does not leave the
 * records to the kernel (kTLS, where the host's configuration says so), whose retries are others
 * than those of tls_send. */
static ssize_t push(gnutls_transport_ptr_t fd, const void *from, size_t bytes)
{
	return send((int)(intptr_t)fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int set_up(struct mx_channel_tls *t, int fd, bool serves)
{
	const gnutls_datum_t key = {t->key, KEY};
	int rc = gnutls_init(&t->session, (serves ? GNUTLS_SERVER : GNUTLS_CLIENT) | GNUTLS_NONBLOCK |
	                                      GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS);
	if (rc < 0)
		return rc;
	gnutls_session_set_ptr(t->session, t);
	gnutls_transport_set_int(t->session, fd);
	gnutls_transport_set_push_function(t->session, push);
	gnutls_handshake_set_timeout(t->session, 0); /* the deadline is ours */
	rc = gnutls_priority_set_direct(t->session, RULES, NULL);
	if (rc < 0)
		return rc;
	if (serves) {
		if ((rc = gnutls_psk_allocate_server_credentials(&t->server)) < 0)
			return rc;
		gnutls_psk_set_server_credentials_function(t->server, find_key);
		return gnutls_credentials_set(t->session, GNUTLS_CRD_PSK, t->server);
	}
	if ((rc = gnutls_psk_allocate_client_credentials(&t->client)) < 0 ||
	    (rc = gnutls_psk_set_client_credentials(t->client, who, &key, GNUTLS_PSK_KEY_RAW)) < 0)
		return rc;
	return gnutls_credentials_set(t->session, GNUTLS_CRD_PSK, t->client);
}

/* Says what is wrong with a peer. Of a pre-shared key that is not the same GnuTLS says "illegal
 * parameter": host 0 finds it out, and sends it as an alert. */
static mx_status explain(const struct mx_channel_tls *t, int rc, struct mx_err *err)
{
	static const char other[] = "its secret is another one";
	const bool alert = rc == GNUTLS_E_FATAL_ALERT_RECEIVED;
	const gnutls_alert_description_t what = alert ? gnutls_alert_get(t->session) : 0;
	const char *name = alert ? gnutls_alert_get_name(what) : NULL;
	if (rc == GNUTLS_E_RECEIVED_ILLEGAL_PARAMETER ||
	    (alert && (what == GNUTLS_A_ILLEGAL_PARAMETER || what == GNUTLS_A_DECRYPT_ERROR)))
		return mx_fail(err, MX_E_INVALID, "%s", other);
	if (rc == GNUTLS_E_PREMATURE_TERMINATION || rc == GNUTLS_E_UNEXPECTED_PACKET_LENGTH ||
	    rc == GNUTLS_E_PULL_ERROR || rc == GNUTLS_E_PUSH_ERROR)
		return mx_fail(err, MX_E_IO, "it has left while hands were shaken (TLS)");
	if (alert)
		return mx_fail(err, MX_E_FORMAT, "it ends the handshake of TLS: %s", name ? name : "?");
	return mx_fail(err, MX_E_FORMAT, "the handshake of TLS fails: %s", gnutls_strerror(rc));
}

static mx_status shake(struct mx_channel_tls *t, int fd, uint64_t deadline, struct mx_err *err)
{
	int rc;
	while ((rc = gnutls_handshake(t->session)) < 0 && !gnutls_error_is_fatal(rc)) {
		const short events = gnutls_record_get_direction(t->session) ? POLLOUT : POLLIN;
		if (rc == GNUTLS_E_AGAIN ? !mx_tcp_wait(fd, events, deadline) : mx_now_ns() >= deadline)
			return mx_fail(err, MX_E_IO, "it did not shake hands (TLS) in time");
	}
	if (rc >= 0)
		return MX_OK;
	(void)gnutls_alert_send_appropriate(t->session, rc);
	return explain(t, rc, err);
}

mx_status mx_hosts_tls(struct mx_channel *c, bool serves, const uint8_t *secret, size_t bytes,
                       uint64_t deadline, struct mx_err *err)
{
	struct mx_channel_tls *t = mx_calloc(1, sizeof *t);
	struct mx_hmac h;
	if (!t)
		return mx_fail(err, MX_E_NOMEM, "out of memory");
	mx_hmac_begin(&h, secret, bytes);
	mx_hmac_add(&h, "tls", 3); /* a key of its own: the greeting uses the secret otherwise */
	mx_hmac_end(&h, t->key);
	const int rc = set_up(t, c->fd, serves);
	mx_status st = rc < 0 ? mx_fail(err, MX_E_INTERNAL, "TLS: %s", gnutls_strerror(rc))
	                      : shake(t, c->fd, deadline, err);
	if (st != MX_OK) {
		tls_close(t);
		return st;
	}
	c->ops = &tls_ops;
	c->tls = t;
	return MX_OK;
}
