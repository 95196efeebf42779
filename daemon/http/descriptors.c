/* SPDX-License-Identifier: Apache-2.0 */
/* Room for file descriptors: one for each connection, and the daemon's own. */
#include <dirent.h>
#include <sys/resource.h>

#include "base/log.h"
#include "daemon/http/impl.h"

/* Descriptors that the daemon opens after this: epoll sets and event descriptors of the HTTP
 * threads (two each), listening sockets, and the files of models that are being loaded. */
#define OWN_DESCRIPTORS 64

/* The number of descriptors that are open; 0 if that cannot be known. */
static unsigned n_open(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

void mx_http_reserve_descriptors(unsigned max_connections)
{
	struct rlimit limit;
	rlim_t need = (rlim_t)max_connections + n_open() + OWN_DESCRIPTORS;
	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
	    limit.rlim_cur >= need)
		return;
	rlim_t soft = limit.rlim_cur;
	limit.rlim_cur =
		limit.rlim_max == RLIM_INFINITY || limit.rlim_max > need ? need : limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		limit.rlim_cur = soft;
	if (limit.rlim_cur < need)
		mx_warning(
			"http",
			"at most %llu files may be open (RLIMIT_NOFILE), but http.max_connections %u needs "
			"%llu: raise the limit (LimitNOFILE= of the unit) or lower max_connections",
			(unsigned long long)limit.rlim_cur, max_connections, (unsigned long long)need);
}
