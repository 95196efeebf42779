/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of Ollama's API: /api/chat, /api/generate, /api/embed and /api/embeddings.
 *
 * A chat, and a generation that is not `raw`, becomes the request for chat completions
 * that means the same (proto/translate.h); its `options` become sampling parameters.
 * What is left out there has the model's own default, not Ollama's. Source:
 * github.com/ollama/ollama, docs/api.md (version 0.12), and ollama-python 0.6.
 */
#ifndef MX_PROTO_OLLAMA_REQUEST_H
#define MX_PROTO_OLLAMA_REQUEST_H

#include "proto/fields.h"
#include "proto/request.h"

/* Objects whose members have meanings of their own: routes of the table of fields. */
enum {
	MX_OLLAMA_CHAT = 1,
	MX_OLLAMA_GENERATE = 2,
	MX_OLLAMA_EMBED = 4,
	MX_OLLAMA_EMBEDDINGS = 8, /* the older form: one `prompt` */
	MX_OLLAMA_MESSAGE = 16,
	MX_OLLAMA_OPTIONS = 32,
};
extern const struct mx_field_table mx_ollama_fields;

struct mx_ollama_request {
	struct mx_api_request api; /* not if `loads` */
	char model[256];           /* as the client calls it; cut off if it is longer */
	bool loads;                /* nothing is asked for but that the model be loaded */
	bool unloads;              /* or unloaded: keep_alive is 0 */
};

/* What the parser has to know of the served models. */
struct mx_ollama_models {
	/* Writes the name by which a model is served that a client calls [len] `name`, to out[cap]:
	 * clients add a tag, as in "demo:latest". False: there is none. */
	bool (*find)(void *arg, const char *name, size_t len, char *out, size_t cap,
	             bool *out_has_template);
	void *arg;
};

/* Parses a body. On failure *err is filled, with the client's names, and *out is not touched. */
mx_status mx_ollama_parse(unsigned route, const char *body, size_t len,
                          const struct mx_ollama_models *models, struct mx_api_unknown *unknown,
                          struct mx_ollama_request *out, struct mx_api_error *err);
void mx_ollama_request_free(struct mx_ollama_request *r); /* takes NULL and zeroed requests */

/* Puts the names of this API into an error of a request's generation. */
void mx_ollama_rename_error(struct mx_api_error *err);

/* Returns the model that the body of /api/show names; free() it. */
mx_status mx_ollama_parse_show(const char *body, size_t len, char **out, struct mx_api_error *err);

#endif
