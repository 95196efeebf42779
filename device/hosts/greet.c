/* SPDX-License-Identifier: Apache-2.0 */
#include "device/hosts/greet.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "device/hosts/tls.h"

static const char magic[8] = "mixdhost";

static uint64_t deadline(void)
{
	return mx_now_ns() + MX_GREET_PATIENCE_NS;
}

mx_status mx_greet_random(uint8_t *out, size_t n)
{
	return getrandom(out, n, 0) == (ssize_t)n ? MX_OK : MX_E_IO;
}

/* Makes a peer's text fit for a log: n bytes with the NUL. */
static void clean(char *text, size_t n)
{
	text[n - 1] = 0;
	for (size_t i = 0; text[i]; i++)
		text[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
}

static void set_version(const struct mx_greeter *g, char out[MX_HOSTS_VERSION])
{
	memset(out, 0, MX_HOSTS_VERSION);
	memcpy(out, g->version, strnlen(g->version, MX_HOSTS_VERSION - 1));
}

/* Fails if the peer's hello is not of this protocol, version and encryption. */
static mx_status check_hello(const struct mx_greet_hello *mine, const struct mx_greet_hello *peer,
                             struct mx_err *err)
{
	char theirs[MX_HOSTS_VERSION];
	memcpy(theirs, peer->version, sizeof theirs);
	clean(theirs, sizeof theirs);
	if (memcmp(peer->magic, magic, sizeof magic) != 0)
		return mx_fail(err, MX_E_FORMAT, "it is no mixd");
	if (peer->protocol != MX_HOSTS_PROTOCOL ||
	    memcmp(mine->version, peer->version, sizeof mine->version) != 0)
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "it has mixd %s (protocol %u), and this host %s (protocol %d): all hosts "
		               "must have the same",
		               theirs, peer->protocol, mine->version, MX_HOSTS_PROTOCOL);
	if (peer->tls != mine->tls)
		return mx_fail(err, MX_E_INVALID,
		               mine->tls ? "it does not want TLS, and this host does (cluster.tls)"
		                         : "it wants TLS, and this host does not (cluster.tls)");
	return MX_OK;
}

/* Sends this host's hello, receives that of the peer, and shakes hands. serves: as the first. */
static mx_status open_greeting(const struct mx_greeter *g, struct mx_channel *c, bool serves,
                               uint64_t until, struct mx_greeting *out, struct mx_err *err)
{
	struct mx_greet_hello *mine = serves ? &out->first : &out->other;
	struct mx_greet_hello *peer = serves ? &out->other : &out->first;
	memset(out, 0, sizeof *out);
	memcpy(mine->magic, magic, sizeof magic);
	mine->protocol = MX_HOSTS_PROTOCOL;
	mine->tls = g->tls;
	set_version(g, mine->version);
	if (mx_greet_random(mine->nonce, sizeof mine->nonce) != MX_OK)
		return mx_fail(err, MX_E_IO, "there are no random numbers");
	if (mx_channel_write(c, mine, sizeof *mine, until) != MX_OK ||
	    mx_channel_read(c, peer, sizeof *peer, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "it does not greet");
	mx_status st = check_hello(mine, peer, err);
	if (st == MX_OK && g->tls)
		st = mx_hosts_tls(c, serves, g->secret, g->secret_bytes, until, err);
	return st;
}

/* Begins the HMAC of a message, which is of both hellos too. */
static void begin_mac(const struct mx_greeter *g, const struct mx_greeting *greeting,
                      const char *name, struct mx_hmac *out)
{
	mx_hmac_begin(out, g->secret, g->secret_bytes);
	mx_hmac_add(out, name, strlen(name));
	mx_hmac_add(out, &greeting->first, sizeof greeting->first);
	mx_hmac_add(out, &greeting->other, sizeof greeting->other);
}

static void mac_of_claim(const struct mx_greeter *g, const struct mx_greeting *greeting,
                         uint8_t out[32])
{
	struct mx_hmac h;
	begin_mac(g, greeting, "claim", &h);
	mx_hmac_add(&h, &greeting->claim, offsetof(struct mx_greet_claim, mac));
	mx_hmac_end(&h, out);
}

static void mac_of_answer(const struct mx_greeter *g, const struct mx_greeting *greeting,
                          const struct mx_greet_answer *a, uint8_t out[32])
{
	struct mx_hmac h;
	begin_mac(g, greeting, "answer", &h);
	mx_hmac_add(&h, &greeting->claim, sizeof greeting->claim);
	mx_hmac_add(&h, a, offsetof(struct mx_greet_answer, mac));
	mx_hmac_end(&h, out);
}

/* ---- the first host ---- */

void mx_greet_refuse(const struct mx_channel *c, const char *why)
{
	struct mx_greet_answer a = {.refused = 1};
	snprintf(a.text, sizeof a.text, "%s", why);
	(void)mx_channel_write(c, &a, sizeof a, deadline());
}

/* Fails, with the reason in err, if a claim cannot be accepted. */
static mx_status check_claim(const struct mx_greeter *g, const struct mx_greeting *greeting,
                             struct mx_err *err)
{
	const struct mx_greet_claim *c = &greeting->claim;
	uint8_t mac[32];
	mac_of_claim(g, greeting, mac);
	if (!mx_same_secret(mac, c->mac, sizeof mac))
		return mx_fail(err, MX_E_INVALID, "its secret is another one");
	if (c->role != MX_GREET_CONTROL && c->role != MX_GREET_DATA)
		return mx_fail(err, MX_E_FORMAT, "it wants connection %u", c->role);
	if (c->n_hosts != g->n_hosts)
		return mx_fail(err, MX_E_INVALID, "it is one of %u hosts, and this one of %u", c->n_hosts,
		               g->n_hosts);
	return MX_OK;
}

mx_status mx_greet_receive(const struct mx_greeter *g, struct mx_channel *c,
                           struct mx_greeting *out, struct mx_err *err)
{
	const uint64_t until = deadline();
	struct mx_greeting greeting;
	struct mx_err fault = {0};
	mx_status st = open_greeting(g, c, true, until, &greeting, err);
	if (st != MX_OK)
		return st;
	if (mx_channel_read(c, &greeting.claim, sizeof greeting.claim, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "it did not say what it wants");
	st = check_claim(g, &greeting, &fault);
	if (st != MX_OK) {
		char why[256];
		snprintf(why, sizeof why, "the first host says: %.200s", fault.text);
		mx_greet_refuse(c, why);
		return mx_fail(err, st, "%s", fault.text);
	}
	*out = greeting;
	return MX_OK;
}

mx_status mx_greet_accept(const struct mx_greeter *g, const struct mx_channel *c,
                          const struct mx_greeting *greeting, uint32_t host,
                          const uint8_t session[MX_GREET_SESSION])
{
	struct mx_greet_answer a = {.host = host};
	memcpy(a.session, session, sizeof a.session);
	mac_of_answer(g, greeting, &a, a.mac);
	return mx_channel_write(c, &a, sizeof a, deadline());
}

/* Returns the length of the line at s. */
static int line_of(const char *s)
{
	return (int)strcspn(s, "\n");
}

/* Finds the first line in which two terms differ. */
static void tell_difference(const char *mine, const char *theirs, uint32_t host, struct mx_err *err)
{
	while (*mine && *theirs && line_of(mine) == line_of(theirs) &&
	       !strncmp(mine, theirs, (size_t)line_of(mine))) {
		mine += line_of(mine);
		theirs += line_of(theirs);
		mine += *mine == '\n';
		theirs += *theirs == '\n';
	}
	mx_fail(err, MX_E_INVALID, "the hosts differ: \"%.*s\" on host 0, \"%.*s\" on host %u",
	        line_of(mine) < 80 ? line_of(mine) : 80, mine,
	        line_of(theirs) < 80 ? line_of(theirs) : 80, theirs, host);
}

mx_status mx_greet_compare(const struct mx_greeter *g, const struct mx_channel *c, uint32_t host,
                           struct mx_err *err)
{
	const uint64_t until = deadline();
	char theirs[MX_HOSTS_TERMS];
	uint32_t n;
	if (mx_channel_read(c, &n, sizeof n, until) != MX_OK || n >= sizeof theirs ||
	    mx_channel_read(c, theirs, n, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "it did not say what it has loaded");
	theirs[n] = 0;
	if (strcmp(theirs, g->terms) != 0) {
		tell_difference(g->terms, theirs, host, err);
		clean(err->text, sizeof err->text);
		mx_greet_refuse(c, err->text);
		return MX_E_INVALID;
	}
	const struct mx_greet_answer fine = {.host = host};
	return mx_channel_write(c, &fine, sizeof fine, until) == MX_OK
	           ? MX_OK
	           : mx_fail(err, MX_E_IO, "it has left");
}

/* ---- the others ---- */

/* Reads an answer, and fails if it is a refusal. */
static mx_status read_answer(const struct mx_channel *c, uint64_t until,
                             struct mx_greet_answer *out, struct mx_err *err)
{
	if (mx_channel_read(c, out, sizeof *out, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "the first host does not answer");
	if (out->refused)
		clean(out->text, sizeof out->text);
	return out->refused ? mx_fail(err, MX_E_INVALID, "refused: %s", out->text) : MX_OK;
}

mx_status mx_greet_send(const struct mx_greeter *g, struct mx_channel *c, enum mx_greet_role role,
                        uint32_t wanted, uint8_t session[MX_GREET_SESSION], uint32_t *out_host,
                        struct mx_err *err)
{
	const uint64_t until = deadline();
	struct mx_greeting greeting;
	struct mx_greet_answer a;
	uint8_t mac[32];
	mx_status st = open_greeting(g, c, false, until, &greeting, err);
	if (st != MX_OK)
		return st;
	greeting.claim.role = role;
	greeting.claim.wanted = wanted;
	greeting.claim.n_hosts = g->n_hosts;
	if (role == MX_GREET_DATA)
		memcpy(greeting.claim.session, session, MX_GREET_SESSION);
	mac_of_claim(g, &greeting, greeting.claim.mac);
	if (mx_channel_write(c, &greeting.claim, sizeof greeting.claim, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "the first host has closed the connection");
	if ((st = read_answer(c, until, &a, err)) != MX_OK)
		return st;
	mac_of_answer(g, &greeting, &a, mac);
	if (!mx_same_secret(mac, a.mac, sizeof mac))
		return mx_fail(err, MX_E_INVALID, "its secret is another one");
	memcpy(session, a.session, sizeof a.session);
	*out_host = a.host;
	return MX_OK;
}

mx_status mx_greet_offer(const struct mx_greeter *g, const struct mx_channel *c, struct mx_err *err)
{
	const uint64_t until = deadline();
	const uint32_t n = (uint32_t)strlen(g->terms);
	struct mx_greet_answer a;
	if (mx_channel_write(c, &n, sizeof n, until) != MX_OK ||
	    mx_channel_write(c, g->terms, n, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "the first host has closed the connection");
	return read_answer(c, until, &a, err);
}
