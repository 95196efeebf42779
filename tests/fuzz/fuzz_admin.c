/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a line of the admin socket. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/admin/command.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mx_admin_command c;
	struct mx_err err = {0};
	memset(&c, 0xa5, sizeof c);
	if (mx_admin_parse((const char *)data, size, &c, &err) != MX_OK) {
		if (!err.text[0] || strchr(err.text, '\n'))
			abort();
		return 0;
	}
	if (size > MX_ADMIN_LINE || c.kind > MX_ADMIN_LOG || strlen(c.model) >= sizeof c.model ||
	    strlen(c.id) >= sizeof c.id || c.level > MX_LOG_DEBUG)
		abort();
	if ((c.kind == MX_ADMIN_CANCEL) != (c.id[0] != 0))
		abort();
	return 0;
}
