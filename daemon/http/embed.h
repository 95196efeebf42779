/* SPDX-License-Identifier: Apache-2.0 */
/* Writes embeddings, scores and ranks of a generation, in pieces as daemon/http/writer.h says. They
 * are never streamed. */
#ifndef MX_DAEMON_HTTP_EMBED_H
#define MX_DAEMON_HTTP_EMBED_H

#include "daemon/http/writer.h"
#include "daemon/serve/generate.h"
#include "proto/embed/request.h"

/* Makes the writer of the answer to a request of that route (MX_EMBED_*). Takes what it needs of
 * the request. NULL: out of memory. */
struct mx_writer *mx_embed_writer(unsigned route, const struct mx_embed_request *r, const char *id,
                                  struct mx_generation *g);

#endif
