/* SPDX-License-Identifier: Apache-2.0 */
/* bench/machine/roof: prints the roofs of this machine, for one thread and for all. */
#include <stdio.h>

#include "base/mem.h"
#include "bench/machine/roof.h"
#include "device/cpu/kernels.h"

static int report(struct mx_pool *p)
{
	static const size_t sizes[] = {32, 117, 219, 2048};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
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

int main(void)
{
	printf("instruction set: %s\n", mx_isa_name(mx_cpu_isa_max()));
	unsigned all = mx_pool_default_size();
	for (unsigned threads = 1;; threads = all) {
		struct mx_pool *p;
		if (mx_pool_create(threads, &p) != MX_OK) {
			fprintf(stderr, "roof: cannot start %u threads\n", threads);
			return 1;
		}
		int rc = report(p);
		mx_pool_destroy(p);
		if (rc || threads == all)
			return rc;
	}
}
