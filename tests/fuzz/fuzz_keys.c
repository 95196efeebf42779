/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the file of keys: all its principals are known then, or there is an error with
 * a place and nothing has changed. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "daemon/keys_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mx_keys *keys = NULL;
	struct mx_err err = {0};
	if (mx_keys_create(&keys))
		return 0;
	mx_status st = mx_keys_file_parse("f.yaml", (const char *)data, size, keys, &err);
	if ((st == MX_OK) != mx_keys_wanted(keys) || (st && !err.text[0]))
		abort();
	mx_keys_destroy(keys);
	return 0;
}
