/* SPDX-License-Identifier: Apache-2.0 */
/* Ollama's API, so that editors and desktop clients that know no other find the models. */
#ifndef MX_DAEMON_HTTP_OLLAMA_H
#define MX_DAEMON_HTTP_OLLAMA_H

#include "daemon/http/writer.h"

struct mx_exchange;
struct mx_served;
struct mx_service;

extern const struct mx_dialect mx_ollama_dialect;

/* Handlers of routes (mx_route_f): /api/chat, /api/generate, /api/embed, and its old form,
 * /api/embeddings. */
void mx_ollama_post_chat(struct mx_exchange *x);
void mx_ollama_post_generate(struct mx_exchange *x);
void mx_ollama_post_embed(struct mx_exchange *x);
void mx_ollama_post_embeddings(struct mx_exchange *x);

/* ---- ollama_models.c ---- */

/* Returns the model that a client calls `name`, held; NULL if there is none. *len becomes the
 * length of the name by which it is served: clients add a tag, as in "demo:latest". */
struct mx_served *mx_ollama_take(struct mx_service *s, const char *name, size_t *len);

/* Likewise: /api/show, /api/tags, /api/ps, /api/version. */
void mx_ollama_post_show(struct mx_exchange *x);
void mx_ollama_get_tags(struct mx_exchange *x);
void mx_ollama_get_ps(struct mx_exchange *x);
void mx_ollama_get_version(struct mx_exchange *x);

#endif
