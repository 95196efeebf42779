/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of keys (the setting `keys`): a YAML list of principals, see mixd.yaml(5).
 * And what makes a line of it: mixd --hash-key.
 */
#ifndef MX_DAEMON_KEYS_FILE_H
#define MX_DAEMON_KEYS_FILE_H

#include <stdio.h>

#include "base/status.h"
#include "daemon/serve/keys.h"

/* Reads the file and replaces all principals of the table; NULL: only checks the file. On failure
 * nothing has changed, and err->where is "FILE:LINE:COLUMN: KEY.PATH". A file that others than its
 * owner can open is refused. */
mx_status mx_keys_file_load(const char *file, struct mx_keys *keys, struct mx_err *err);
/* The same of a text in memory. */
mx_status mx_keys_file_parse(const char *file, const char *text, size_t len, struct mx_keys *keys,
                             struct mx_err *err);

/* Reads a key from `in`, one line, and prints the line "sha256: ..." of the file. Makes a key and
 * prints it too if `in` is NULL or empty. Returns an exit status. */
int mx_hash_key(FILE *in, FILE *out);

#endif
