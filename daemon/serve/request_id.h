/* SPDX-License-Identifier: Apache-2.0 */
/* The id of a request: the client's own, so that its log and ours can be compared, else one that no
 * other request has. Any thread. */
#ifndef MX_DAEMON_SERVE_REQUEST_ID_H
#define MX_DAEMON_SERVE_REQUEST_ID_H

#define MX_REQUEST_ID_LEN 128 /* longest id of a client that is taken */

/* Writes an id. given: what the client calls its request (x-request-id), taken if it is printable
 * ASCII without spaces and not too long; else trace: the W3C header traceparent, whose trace id is
 * taken if it is well formed; else a new id. Both may be NULL. */
void mx_request_id(const char *given, const char *trace, char out[MX_REQUEST_ID_LEN + 1]);

#endif
