/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment variable MIXD_CUDA_CAPABILITY, which has a GPU taken for one of another compute
 * capability, with the shared memory of that one's thread blocks, as MIXD_ISA pins an instruction
 * set on CPUs: so that tests on one GPU see which kernels another one takes. The GPU must be able
 * to run the code that is compiled for that capability.
 */
#ifndef MX_DEVICE_CUDA_PIN_H
#define MX_DEVICE_CUDA_PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* sm: compute capability, 90 = 9.0; smem: most shared memory of a thread block, in bytes. Both are
 * replaced if the variable is set; smem never by more. False, and nothing done, if the variable has
 * no capability that is known. */
static inline bool mx_cuda_pin(int *sm, size_t *smem)
{
	/* KiB: CUDA C++ Programming Guide, Technical Specifications per Compute Capability */
	static const struct {
		int sm;
		size_t room;
	} known[] = {{80, 163}, {86, 99}, {87, 163}, {89, 99}, {90, 227}, {100, 227}, {120, 99}};
	const char *text = getenv("MIXD_CUDA_CAPABILITY");
	int major, minor, end = 0;
	if (!text || !*text)
		return true;
	if (sscanf(text, "%d.%d%n", &major, &minor, &end) != 2 || text[end])
		return false;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].sm / 10 == major && known[i].sm % 10 == minor) {
			*sm = known[i].sm;
			*smem = *smem < known[i].room * 1024 ? *smem : known[i].room * 1024;
			return true;
		}
	return false;
}

#endif
