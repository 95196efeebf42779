/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two hosts recognise each other on a new connection. Each proves that it has the secret, by an
 * HMAC over the other's random number: the secret itself is never sent. Then they compare the
 * terms: lines "name: value" of all that must be the same on both. What comes from the peer has a
 * fixed size, and a time by which it must be there.
 *
 *   both         hello    version, whether it wants TLS, a random number
 *   both                  the handshake of TLS, if both want it: all behind it is encrypted
 *   other host   claim    what it wants, and the HMAC of it all
 *   first host   answer   the host's number, or why it is refused; an HMAC too
 *
 * and on the connection that is for control, behind it: the other host's terms, and the answer to
 * them. The hellos are not encrypted, so that each end can say what is wrong with the other; the
 * HMACs are of them too. A host that wants TLS goes on with no other.
 */
#ifndef MX_DEVICE_HOSTS_GREET_H
#define MX_DEVICE_HOSTS_GREET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/hosts/channel.h"

#define MX_HOSTS_PROTOCOL    2
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
	bool tls;
};

/* Messages as they are sent, in the byte order of both hosts: another one has another protocol. */
struct mx_greet_hello {
	char magic[8];
	uint32_t protocol;
	uint32_t tls; /* 1 = wanted */
	char version[MX_HOSTS_VERSION];
	uint8_t nonce[MX_GREET_NONCE];
};
struct mx_greet_claim {
	uint32_t role;
	uint32_t wanted; /* number of the host that joins; 0 = any */
	uint32_t n_hosts;
	uint8_t session[MX_GREET_SESSION]; /* MX_GREET_DATA: of the host's other connection */
	uint8_t mac[32];
};
struct mx_greet_answer {
	uint32_t refused; /* `text` says why */
	uint32_t host;    /* the number that the host gets */
	uint8_t session[MX_GREET_SESSION];
	char text[256];
	uint8_t mac[32]; /* not of a refusal */
};

/* What was said before the answer. */
struct mx_greeting {
	struct mx_greet_hello first, other; /* of the first host, of the other one */
	struct mx_greet_claim claim;
};

/* First host: greets on a plain connection, which is one of TLS then if that is wanted, and
 * receives a claim, whose secret it checks. On failure the peer has been told why, if it spoke the
 * protocol at all. */
mx_status mx_greet_receive(const struct mx_greeter *g, struct mx_channel *c,
                           struct mx_greeting *out, struct mx_err *err);
/* First host: accepts the claim. */
mx_status mx_greet_accept(const struct mx_greeter *g, const struct mx_channel *c,
                          const struct mx_greeting *greeting, uint32_t host,
                          const uint8_t session[MX_GREET_SESSION]);
/* First host: refuses it, or the terms. */
void mx_greet_refuse(const struct mx_channel *c, const char *why);
/* First host: compares the terms of a host that was accepted with its own, and tells it. */
mx_status mx_greet_compare(const struct mx_greeter *g, const struct mx_channel *c, uint32_t host,
                           struct mx_err *err);

/* Other host: greets, as above, and proves that it has the secret. session: written by
 * MX_GREET_CONTROL, else read. MX_E_INVALID: refused, and the message says why. */
mx_status mx_greet_send(const struct mx_greeter *g, struct mx_channel *c, enum mx_greet_role role,
                        uint32_t wanted, uint8_t session[MX_GREET_SESSION], uint32_t *out_host,
                        struct mx_err *err);
/* Other host: has its terms compared. */
mx_status mx_greet_offer(const struct mx_greeter *g, const struct mx_channel *c,
                         struct mx_err *err);

/* Fills n random bytes. */
mx_status mx_greet_random(uint8_t *out, size_t n);

#endif
