/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the roofs of this machine, for one thread and for all.
 *
 *   bench/machine/roof [-q]
 *     -q  with all threads only, reading 219 MB only: a second, to measure beside something else
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/machine/roof.h"
#include "device/cpu/kernels.h"

static int report(struct mx_pool *p, const size_t *sizes, size_t n_sizes)
{
	for (size_t i = 0; i < n_sizes; i++) {
		size_t bytes = sizes[i] * 1000000;
		void *data = roof_data(p, bytes);
		if (!data) {
			fprintf(stderr, "roof: no memory for %zu MB\n", sizes[i]);
			return 1;
		}
		printf("%2u threads  read %4zu MB       %8.1f GB/s\n", mx_pool_size(p), sizes[i],
		       roof_read(p, data, bytes));
		fflush(stdout);
		mx_unmap(data, mx_round_up(bytes, (size_t)1 << 20));
	}
	for (int k = 0; k < ROOF_KINDS; k++)
		if (roof_has((enum roof_kind)k))
			printf("%2u threads  %-18s %8.1f Gop/s\n", mx_pool_size(p),
			       roof_name((enum roof_kind)k), roof_arithmetic(p, (enum roof_kind)k));
	return 0;
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {32, 117, 219, 2048};
	bool quick = argc == 2 && !strcmp(argv[1], "-q");
	if (argc > 1 && !quick) {
		fputs("usage: roof [-q]\n", stderr);
		return 2;
	}
	printf("instruction set: %s\n", mx_isa_name(mx_cpu_isa_max()));
	unsigned all = mx_pool_default_size();
	for (unsigned threads = quick ? all : 1;; threads = all) {
		struct mx_pool *p;
		if (mx_pool_create(threads, &p) != MX_OK) {
			fprintf(stderr, "roof: cannot start %u threads\n", threads);
			return 1;
		}
		int rc = quick ? report(p, &sizes[2], 1) : report(p, sizes, sizeof sizes / sizeof *sizes);
		mx_pool_destroy(p);
		if (rc || threads == all)
			return rc;
	}
}
