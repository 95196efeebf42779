/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves the relative references of $id and $ref (RFC 3986, section 5.2). */
#ifndef MX_GRAMMAR_JSON_SCHEMA_URI_H
#define MX_GRAMMAR_JSON_SCHEMA_URI_H

#include <stddef.h>

/* Writes what `ref` means where `base` is the document's address, without its fragment, to
 * out[size]; cut if it is too long. Returns the fragment in `ref`, behind its #, or NULL. */
const char *js_uri_resolve(const char *base, const char *ref, char *out, size_t size);
/* Replaces %XX by the byte, in place. */
void js_uri_decode(char *text);

#endif
