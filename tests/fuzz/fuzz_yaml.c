/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the configuration file: they give a configuration, or an error with a place.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "daemon/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mx_config *c = NULL;
	struct mx_err err = {0};
	mx_status st = mx_config_parse("f.yaml", (const char *)data, size, &c, &err);
	if ((st == MX_OK) != (c != NULL) || (st && !err.text[0]))
		abort();
	mx_config_free(c);
	return 0;
}
