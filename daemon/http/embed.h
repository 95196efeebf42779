/* SPDX-License-Identifier: Apache-2.0 */
/* Writes embeddings, scores and ranks of a generation, in pieces as daemon/http/writer.h says. They
 * are never streamed. */
#ifndef MX_DAEMON_HTTP_EMBED_H
#define MX_DAEMON_HTTP_EMBED_H

#include "daemon/http/writer.h"
#include "daemon/serve/generate.h"
#include "proto/embed/request.h"

#endif
