/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "daemon/page/files.h"

const struct mx_page_file *mx_page_find(const char *name)
{
	for (size_t i = 0; i < mx_page_n_files; i++)
		if (!strcmp(mx_page_files[i].name, name))
			return &mx_page_files[i];
	return NULL;
}
