/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the tokenizer share: the files of tests/golden/tokenizer, and comparisons that
 * fail the test with the text concerned. */
#ifndef MX_TESTS_TOKENIZER_UTIL_H
#define MX_TESTS_TOKENIZER_UTIL_H

#include <jansson.h>

#include "model/tokenizer/tokenizer.h"

/* Writes the path of a file of the golden folder. */
void golden_path(char *out, size_t size, const char *name);
/* Reads a JSON file of the golden folder. The caller owns the value. */
json_t *golden_json(const char *name);
/* Reads a file of the golden folder. The caller frees the buffer. */
struct mx_buf golden_file(const char *name);

/* Parses tokenizer.json and, unless NULL, tokenizer_config.json. */
struct mx_tokenizer *parse_tokenizer(const char *json, const char *config);
/* Loads NAME.json of the golden folder, with a tokenizer_config.json unless NULL. */
struct mx_tokenizer *golden_tokenizer_with(const char *name, const json_t *config);
struct mx_tokenizer *golden_tokenizer(const char *name);
/* Encodes without a limit. The caller frees the tokens. */
struct mx_tokens encode(const struct mx_tokenizer *t, const char *s, size_t n, bool special);

/* Compares ids with three lists of integers, one after another. Each list may be NULL. */
void check_ids(const char *family, const char *text, const struct mx_tokens *got,
               const json_t *before, const json_t *want, const json_t *after);
/* Decodes at once and as a stream, and compares both with n_want bytes. */
void check_decode(const struct mx_tokenizer *t, const char *family, const int32_t *ids, size_t n,
                  bool skip, const char *want, size_t n_want);

#endif
