/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/mixers/hyena/machine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "bench/machine/roof.h"
#include "device/cpu/cpu.h"

#define ROOF_BYTES ((size_t)512 << 20)

/* Reads the value (after ':') of the first line of a file of /proc that begins with `key`. */
static void proc_line(const char *path, const char *key, char *out, size_t cap)
{
	char line[256];
	FILE *f = fopen(path, "r");
	snprintf(out, cap, "unknown");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, key, strlen(key)) && strchr(line, ':')) {
			line[strcspn(line, "\n")] = 0;
			snprintf(out, cap, "%s", strchr(line, ':') + 1 + strspn(strchr(line, ':') + 1, " \t"));
			break;
		}
	if (f)
		fclose(f);
}

static size_t available(void)
{
	char text[64];
	unsigned long long kib = 0;
	proc_line("/proc/meminfo", "MemAvailable", text, sizeof text);
	if (sscanf(text, "%llu", &kib) != 1)
		conv_die("cannot read how much memory is available: say it");
	return (size_t)kib * 1024 / 10 * 9;
}

void machine_roofs(const struct machine *m, struct roofs *r)
{
	struct mx_pool *p;
	if (mx_pool_create(m->device->info.threads, &p) != MX_OK)
		conv_die("cannot start threads");
	void *data = roof_data(p, ROOF_BYTES);
	if (!data)
		conv_die("out of memory");
	r->read = fmax(r->read, roof_read(p, data, ROOF_BYTES));
	r->fma = fmax(r->fma, roof_arithmetic(p, ROOF_F32_FMA));
	mx_unmap(data, ROOF_BYTES);
	mx_pool_destroy(p);
}

void machine_open(const struct options *o, uint32_t max_channels, uint32_t max_rows,
                  struct machine *out)
{
	struct mx_err err = {0};
	char cpu[96];
	if (mx_cpu_create(o->threads, mx_cpu_isa(), max_rows, 2 * (size_t)max_channels, &out->device,
	                  &err) != MX_OK)
		conv_die(err.text);
	out->memory = o->gigabytes > 0 ? (size_t)(o->gigabytes * 1e9) : available();
	out->roofs = (struct roofs){0};
	machine_roofs(out, &out->roofs);
	proc_line("/proc/cpuinfo", "model name", cpu, sizeof cpu);
	printf("%s, %u threads, kernels %s, memory up to %.1f GB, seed %llu\n", cpu,
	       out->device->info.threads, out->device->info.isa, (double)out->memory * 1e-9,
	       (unsigned long long)o->seed);
	printf("roofs: read %.1f GB/s, f32 FMA %.0f GFLOP/s\n\n", out->roofs.read, out->roofs.fma);
	fflush(stdout);
}

void machine_close(struct machine *m)
{
	mx_cpu_destroy(m->device);
}

uint32_t machine_fits(const struct machine *m, const struct conv_ops *ops, struct conv_shape shape,
                      uint32_t max_log, size_t other)
{
	for (uint32_t k = max_log; k > 0; k--) {
		shape.len = 1u << k;
		if (ops->bytes(ops, &shape, m->device) + other <= m->memory)
			return k;
	}
	return 0;
}
