/* SPDX-License-Identifier: Apache-2.0 */
/* Translates Oniguruma's regular expressions to PCRE2's. */
#ifndef MX_MODEL_TOK_REGEX_H
#define MX_MODEL_TOK_REGEX_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/status.h"

/* Appends to *out the PCRE2 spelling (UTF, UCP, MULTILINE, newline LF) of a regex written for
 * Oniguruma with its default (Ruby) syntax and UTF-8. Constructs that mean something else in PCRE2
 * and cannot be translated are refused with MX_E_UNSUPPORTED. newer: \p{..} includes the characters
 * of Unicode 15 and 16. */
mx_status mx_tok_regex_translate(const char *regex, size_t n, bool newer, const char *path,
                                 struct mx_buf *out, struct mx_err *err);

#endif
