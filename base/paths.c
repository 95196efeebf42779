/* SPDX-License-Identifier: Apache-2.0 */
#include "base/paths.h"

#include <stdlib.h>
#include <string.h>

const char *mx_paths_of(const char *name, const char *fallback)
{
	const char *value = getenv(name);
	return value && *value ? value : fallback;
}

bool mx_paths_next(const char **list, char *out, size_t cap)
{
	while (**list) {
		const char *folder = *list;
		size_t n = strcspn(folder, ":");
		*list = folder + n + (folder[n] == ':');
		if (n == 0 || n >= cap)
			continue;
		memcpy(out, folder, n);
		out[n] = '\0';
		return true;
	}
	return false;
}
