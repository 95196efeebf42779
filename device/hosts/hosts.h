/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hosts that compute one model together: processes, on one machine or several, each with as
 * many ranks. Host 0 listens, and each other host joins it by two connections: one carries the data
 * of the ranks (link.h), the other is for control. On that one a thread of each host says twice a
 * second that the host is alive, however long its ranks compute. A host that says nothing for
 * MX_HOSTS_SILENCE_NS, or whose connection ends, is lost, and all hosts with it: their links end,
 * and so does what their ranks wait for.
 */
#ifndef MX_DEVICE_HOSTS_HOSTS_H
#define MX_DEVICE_HOSTS_HOSTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/hosts/link.h"

#define MX_MAX_HOSTS        64
#define MX_HOSTS_BEAT_NS    500000000ull
#define MX_HOSTS_SILENCE_NS 4000000000ull
#define MX_HOSTS_NAME       80
#define MX_HOSTS_WHY        256 /* bytes of a reason, NUL included */

struct mx_hosts;

struct mx_hosts_setup {
	uint32_t n_hosts;      /* 2 .. MX_MAX_HOSTS */
	const char *version;   /* of the program: the same everywhere */
	const uint8_t *secret; /* [secret_bytes], likewise */
	size_t secret_bytes;
	bool tls;                /* all connections are encrypted (tls.h); likewise */
	const char *terms;       /* lines "name: value", likewise; less than 8 KiB */
	uint32_t wanted;         /* of a host that joins: its number, 1 .. n_hosts - 1; 0 = any */
	uint64_t patience_ns;    /* until all hosts have joined */
	const atomic_bool *stop; /* ends the wait when it is set; NULL = nobody does */
};

/* Host 0: waits at a listening socket, which it closes, until all others have joined. Of a host
 * that is refused the log says why, and the wait goes on. MX_E_LIMIT: not all have come in time;
 * MX_E_CANCELLED: it was stopped. */
mx_status mx_hosts_gather(const struct mx_hosts_setup *setup, int listener, struct mx_hosts **out,
                          struct mx_err *err);
/* Another host: joins host 0 at "host:port", and waits until all have. Tries again while nobody
 * listens there. MX_E_INVALID: it was refused. */
mx_status mx_hosts_join(const struct mx_hosts_setup *setup, const char *address,
                        struct mx_hosts **out, struct mx_err *err);

/* Returns this host's number, and how many there are. */
uint32_t mx_hosts_number(const struct mx_hosts *h);
uint32_t mx_hosts_count(const struct mx_hosts *h);
/* Returns the link to a host: of host 0 to any other, of another host to host 0. */
struct mx_link *mx_hosts_link(struct mx_hosts *h, uint32_t host);
/* Returns the address of that host as text. */
const char *mx_hosts_name(const struct mx_hosts *h, uint32_t host);

/* From now on `f` is called once, by any thread, when the hosts are lost; at once if they are.
 * NULL: nobody is called any more. */
void mx_hosts_on_lost(struct mx_hosts *h, void (*f)(void *arg), void *arg);
/* Ends all communication of this host with the others, which are told why; the first reason stays.
 * Any thread. */
void mx_hosts_abort(struct mx_hosts *h, const char *why);
/* The same, for what a call of a link has found wrong. */
void mx_hosts_link_failed(struct mx_hosts *h, uint32_t host, mx_status st);
/* From now on the others may leave: they are not lost. Tells them the same. */
void mx_hosts_end(struct mx_hosts *h);
/* True if the hosts are lost; why, unless NULL, is the reason. */
bool mx_hosts_lost(struct mx_hosts *h, char why[MX_HOSTS_WHY]);

/* What has been exchanged with a host since the start. */
struct mx_hosts_figures {
	uint64_t sent, received; /* bytes of its link */
};
void mx_hosts_figures(struct mx_hosts *h, uint32_t host, struct mx_hosts_figures *out);
/* Adds to the time that this host's ranks have waited for others, or exchanged with them; returns
 * it. Nanoseconds. */
void mx_hosts_add_ns(struct mx_hosts *h, uint64_t ns);
uint64_t mx_hosts_ns(const struct mx_hosts *h);

/* Closes the connections. Takes NULL. No call of a link runs. */
void mx_hosts_destroy(struct mx_hosts *h);

/* Makes the hosts of connections: those for data and control of host `host`, as host 0
 * [n_hosts - 1], else [1], and the peers' names, at most MX_HOSTS_NAME bytes each (NULL: they have
 * none). They are closed by destroy, or on failure. */
mx_status mx_hosts_of_channels(uint32_t host, uint32_t n_hosts, const struct mx_channel *data,
                               const struct mx_channel *control, const char *const *names,
                               struct mx_hosts **out);
/* The same of connected sockets, without TLS. */
mx_status mx_hosts_of_sockets(uint32_t host, uint32_t n_hosts, const int *data, const int *control,
                              const char *const *names, struct mx_hosts **out);

#endif
