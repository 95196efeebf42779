/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two hosts recognise each other on a new connection. Each proves that it has the secret, by an
 * HMAC over the other's random number: the secret itself is never sent. Then they compare the
 * terms: lines "name: value" of all that must be the same on both. What comes from the peer has a
 * fixed size, and a time by which it must be there.
 *
 *   first host   hello    its version and a random number
 *   other host   claim    its version, a random number, what it wants, the HMAC of it all
 *   first host   answer   the host's number, or why it is refused; an HMAC too
 *
 * and on the connection that is for control, behind it: the other host's terms, and the answer to
 * them. Nothing is encrypted.
 */
#ifndef MX_DEVICE_HOSTS_GREET_H
#define MX_DEVICE_HOSTS_GREET_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define MX_HOSTS_PROTOCOL    1
#define MX_HOSTS_TERMS       8192 /* most bytes of the terms, NUL included */
#define MX_HOSTS_VERSION     24
#define MX_GREET_SESSION     16
#define MX_GREET_NONCE       32
#define MX_GREET_PATIENCE_NS 3000000000ull /* for each greeting as a whole */

enum mx_greet_role {
	MX_GREET_CONTROL = 1, /* a host joins */
	MX_GREET_DATA,        /* its other connection */
};

/* What this host says of itself. */
struct mx_greeter {
	const char *version;
	const uint8_t *secret;
	size_t secret_bytes;
	const char *terms; /* less than MX_HOSTS_TERMS bytes */
	uint32_t n_hosts;
};

/* Messages as they are sent, in the byte order of both hosts: another one has another protocol. */
struct mx_greet_hello {
	char magic[8];
	uint32_t protocol;
	char version[MX_HOSTS_VERSION];
	uint8_t nonce[MX_GREET_NONCE];
};
struct mx_greet_claim {
	char magic[8];
	uint32_t protocol, role;
	uint32_t wanted; /* number of the host that joins; 0 = any */
	uint32_t n_hosts;
	char version[MX_HOSTS_VERSION];
	uint8_t session[MX_GREET_SESSION]; /* MX_GREET_DATA: of the host's other connection */
	uint8_t nonce[MX_GREET_NONCE];
	uint8_t mac[32];
};
struct mx_greet_answer {
	uint32_t refused; /* `text` says why */
	uint32_t host;    /* the number that the host gets */
	uint8_t session[MX_GREET_SESSION];
	char text[256];
	uint8_t mac[32]; /* not of a refusal */
};

/* First host: sends hello and receives a claim, whose secret and version it checks. On failure the
 * peer has been told why, if it spoke the protocol at all. */
mx_status mx_greet_receive(const struct mx_greeter *g, int fd, struct mx_greet_hello *hello,
                           struct mx_greet_claim *out, struct mx_err *err);
/* First host: accepts the claim. */
mx_status mx_greet_accept(const struct mx_greeter *g, int fd, const struct mx_greet_hello *hello,
                          const struct mx_greet_claim *claim, uint32_t host,
                          const uint8_t session[MX_GREET_SESSION]);
/* First host: refuses it, or the terms. */
void mx_greet_refuse(int fd, const char *why);
/* First host: compares the terms of a host that was accepted with its own, and tells it. */
mx_status mx_greet_compare(const struct mx_greeter *g, int fd, uint32_t host, struct mx_err *err);

/* Other host: greets, and proves that it has the secret. session: written by MX_GREET_CONTROL, else
 * read. MX_E_INVALID: refused, and the message says why. */
mx_status mx_greet_send(const struct mx_greeter *g, int fd, enum mx_greet_role role,
                        uint32_t wanted, uint8_t session[MX_GREET_SESSION], uint32_t *out_host,
                        struct mx_err *err);
/* Other host: has its terms compared. */
mx_status mx_greet_offer(const struct mx_greeter *g, int fd, struct mx_err *err);

/* Fills n random bytes. */
mx_status mx_greet_random(uint8_t *out, size_t n);

#endif
