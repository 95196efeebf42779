/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict framing: refuses requests whose beginning or end another program on the
 * way may see elsewhere, so that nobody can smuggle a request past a proxy
 * (RFC 9112, sections 2.2, 3.2, 5.1, 5.2, 6.1 and 6.3; RFC 9110, section 7.2).
 *
 * libmicrohttpd before 1.0 accepts bare line feeds, folded lines, NULs and spaces
 * before colons, and hands out what it understood. But it cuts the header up in
 * place, so the pieces that it hands out have to lie one behind the other with
 * the right separators in between, and add up to the size of the header. Later
 * versions refuse these by themselves.
 */
#ifndef MX_DAEMON_HTTP_FRAMING_H
#define MX_DAEMON_HTTP_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>

/* Looks at the request target before libmicrohttpd decodes it: notes in the connection's entry of
 * the pump's table where it ends, or that it is refused. Removes a query of too many arguments. */
void mx_framing_note_target(struct MHD_Connection *c, const char *target);

struct mx_framing {
	unsigned status; /* 0 = the request is well framed; 400 or 501 = it is not, for this reason: */
	const char *why; /* a static text */
	bool chunked;    /* the body comes in chunks */
};

/* Checks a request whose header is complete. The strings are those of libmicrohttpd's first call of
 * the access handler, not copies. */
struct mx_framing mx_framing_check(struct MHD_Connection *c, const char *method, const char *url,
                                   const char *version);

/* True if libmicrohttpd checks line ends and spaces by itself when it is told to be strict. */
bool mx_framing_by_library(void);

#endif
