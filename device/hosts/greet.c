/* SPDX-License-Identifier: Apache-2.0 */
#include "device/hosts/greet.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hmac.h"
#include "device/hosts/tcp.h"

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

/* Fails if what the peer sent is not of this protocol and version. */
static mx_status check_version(const struct mx_greeter *g, const char peer_magic[8],
                               uint32_t protocol, const char version[MX_HOSTS_VERSION],
                               struct mx_err *err)
{
	char mine[MX_HOSTS_VERSION], theirs[MX_HOSTS_VERSION];
	set_version(g, mine);
	memcpy(theirs, version, sizeof theirs);
	clean(theirs, sizeof theirs);
	if (memcmp(peer_magic, magic, sizeof magic) != 0)
		return mx_fail(err, MX_E_FORMAT, "it is no mixd");
	if (protocol != MX_HOSTS_PROTOCOL || memcmp(mine, version, sizeof mine) != 0)
		return mx_fail(err, MX_E_UNSUPPORTED,
		               "it has mixd %s (protocol %u), and this host %s (protocol %d): all hosts "
		               "must have the same",
		               theirs, protocol, mine, MX_HOSTS_PROTOCOL);
	return MX_OK;
}

static void mac_of_claim(const struct mx_greeter *g, const struct mx_greet_hello *hello,
                         const struct mx_greet_claim *c, uint8_t out[32])
{
	struct mx_hmac h;
	mx_hmac_begin(&h, g->secret, g->secret_bytes);
	mx_hmac_add(&h, "claim", 5);
	mx_hmac_add(&h, hello, sizeof *hello);
	mx_hmac_add(&h, c, offsetof(struct mx_greet_claim, mac));
	mx_hmac_end(&h, out);
}

static void mac_of_answer(const struct mx_greeter *g, const struct mx_greet_hello *hello,
                          const struct mx_greet_claim *c, const struct mx_greet_answer *a,
                          uint8_t out[32])
{
	struct mx_hmac h;
	mx_hmac_begin(&h, g->secret, g->secret_bytes);
	mx_hmac_add(&h, "answer", 6);
	mx_hmac_add(&h, hello, sizeof *hello);
	mx_hmac_add(&h, c, sizeof *c);
	mx_hmac_add(&h, a, offsetof(struct mx_greet_answer, mac));
	mx_hmac_end(&h, out);
}

/* ---- the first host ---- */

void mx_greet_refuse(int fd, const char *why)
{
	struct mx_greet_answer a = {.refused = 1};
	snprintf(a.text, sizeof a.text, "%s", why);
	(void)mx_tcp_write(fd, &a, sizeof a, deadline());
}

mx_status mx_greet_receive(const struct mx_greeter *g, int fd, struct mx_greet_hello *hello,
                           struct mx_greet_claim *out, struct mx_err *err)
{
	const uint64_t until = deadline();
	struct mx_greet_claim c;
	uint8_t mac[32];
	struct mx_err fault = {0};
	memset(hello, 0, sizeof *hello);
	memcpy(hello->magic, magic, sizeof magic);
	hello->protocol = MX_HOSTS_PROTOCOL;
	set_version(g, hello->version);
	if (mx_greet_random(hello->nonce, sizeof hello->nonce) != MX_OK)
		return mx_fail(err, MX_E_IO, "there are no random numbers");
	if (mx_tcp_write(fd, hello, sizeof *hello, until) != MX_OK ||
	    mx_tcp_read(fd, &c, sizeof c, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "it did not say what it wants");
	mx_status st = check_version(g, c.magic, c.protocol, c.version, &fault);
	mac_of_claim(g, hello, &c, mac);
	if (st == MX_OK && !mx_same_secret(mac, c.mac, sizeof mac))
		st = mx_fail(&fault, MX_E_INVALID, "its secret is another one");
	if (st == MX_OK && c.role != MX_GREET_CONTROL && c.role != MX_GREET_DATA)
		st = mx_fail(&fault, MX_E_FORMAT, "it wants connection %u", c.role);
	if (st == MX_OK && c.n_hosts != g->n_hosts)
		st = mx_fail(&fault, MX_E_INVALID, "it is one of %u hosts, and this one of %u", c.n_hosts,
		             g->n_hosts);
	if (st != MX_OK) {
		char why[256];
		snprintf(why, sizeof why, "the first host says: %.200s", fault.text);
		mx_greet_refuse(fd, why);
		return mx_fail(err, st, "%s", fault.text);
	}
	*out = c;
	return MX_OK;
}

mx_status mx_greet_accept(const struct mx_greeter *g, int fd, const struct mx_greet_hello *hello,
                          const struct mx_greet_claim *claim, uint32_t host,
                          const uint8_t session[MX_GREET_SESSION])
{
	struct mx_greet_answer a = {.host = host};
	memcpy(a.session, session, sizeof a.session);
	mac_of_answer(g, hello, claim, &a, a.mac);
	return mx_tcp_write(fd, &a, sizeof a, deadline());
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

mx_status mx_greet_compare(const struct mx_greeter *g, int fd, uint32_t host, struct mx_err *err)
{
	const uint64_t until = deadline();
	char theirs[MX_HOSTS_TERMS];
	uint32_t n;
	if (mx_tcp_read(fd, &n, sizeof n, until) != MX_OK || n >= sizeof theirs ||
	    mx_tcp_read(fd, theirs, n, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "it did not say what it has loaded");
	theirs[n] = 0;
	if (strcmp(theirs, g->terms) != 0) {
		tell_difference(g->terms, theirs, host, err);
		clean(err->text, sizeof err->text);
		mx_greet_refuse(fd, err->text);
		return MX_E_INVALID;
	}
	const struct mx_greet_answer fine = {.host = host};
	return mx_tcp_write(fd, &fine, sizeof fine, until) == MX_OK
	           ? MX_OK
	           : mx_fail(err, MX_E_IO, "it has left");
}

/* ---- the others ---- */

/* Reads an answer, and fails if it is a refusal. */
static mx_status read_answer(int fd, uint64_t until, struct mx_greet_answer *out,
                             struct mx_err *err)
{
	if (mx_tcp_read(fd, out, sizeof *out, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "the first host does not answer");
	if (out->refused)
		clean(out->text, sizeof out->text);
	return out->refused ? mx_fail(err, MX_E_INVALID, "refused: %s", out->text) : MX_OK;
}

mx_status mx_greet_send(const struct mx_greeter *g, int fd, enum mx_greet_role role,
                        uint32_t wanted, uint8_t session[MX_GREET_SESSION], uint32_t *out_host,
                        struct mx_err *err)
{
	const uint64_t until = deadline();
	struct mx_greet_hello hello;
	struct mx_greet_answer a;
	uint8_t mac[32];
	if (mx_tcp_read(fd, &hello, sizeof hello, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "it does not greet");
	mx_status st = check_version(g, hello.magic, hello.protocol, hello.version, err);
	if (st != MX_OK)
		return st;
	struct mx_greet_claim c;
	memset(&c, 0, sizeof c);
	memcpy(c.magic, magic, sizeof magic);
	c.protocol = MX_HOSTS_PROTOCOL;
	c.role = role;
	c.wanted = wanted;
	c.n_hosts = g->n_hosts;
	set_version(g, c.version);
	if (role == MX_GREET_DATA)
		memcpy(c.session, session, sizeof c.session);
	if (mx_greet_random(c.nonce, sizeof c.nonce) != MX_OK)
		return mx_fail(err, MX_E_IO, "there are no random numbers");
	mac_of_claim(g, &hello, &c, c.mac);
	if (mx_tcp_write(fd, &c, sizeof c, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "the first host has closed the connection");
	if ((st = read_answer(fd, until, &a, err)) != MX_OK)
		return st;
	mac_of_answer(g, &hello, &c, &a, mac);
	if (!mx_same_secret(mac, a.mac, sizeof mac))
		return mx_fail(err, MX_E_INVALID, "its secret is another one");
	memcpy(session, a.session, sizeof a.session);
	*out_host = a.host;
	return MX_OK;
}

mx_status mx_greet_offer(const struct mx_greeter *g, int fd, struct mx_err *err)
{
	const uint64_t until = deadline();
	const uint32_t n = (uint32_t)strlen(g->terms);
	struct mx_greet_answer a;
	if (mx_tcp_write(fd, &n, sizeof n, until) != MX_OK ||
	    mx_tcp_write(fd, g->terms, n, until) != MX_OK)
		return mx_fail(err, MX_E_IO, "the first host has closed the connection");
	return read_answer(fd, until, &a, err);
}
