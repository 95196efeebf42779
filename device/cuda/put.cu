/* SPDX-License-Identifier: Apache-2.0 */
/* Changes single words of an array in the device's memory: they come as arguments of the kernel. */
#include <string.h>

#include "device/cuda/impl.h"
#include "device/cuda/launch.cuh"

#define WORDS 256 /* of a launch: 2 KiB of the 4 that arguments may take */

namespace
{

struct words {
	struct mx_word list[WORDS];
};

__global__ void __launch_bounds__(WORDS) put(uint32_t *to, const words w, const uint32_t n)
{
	mx_pdl_launch();
	mx_pdl_wait();
	if (threadIdx.x < n)
		to[w.list[threadIdx.x].at] = w.list[threadIdx.x].value;
}

} // namespace

mx_status mx_cuda_put(struct mx_device *d, uint32_t *to, const struct mx_word *list, size_t n)
{
	mx_status st = MX_OK;
	for (size_t at = 0; at < n && st == MX_OK; at += WORDS) {
		const size_t part = n - at < WORDS ? n - at : WORDS;
		words w;
		memcpy(w.list, list + at, part * sizeof *list);
		memset(w.list + part, 0, (WORDS - part) * sizeof *list);
		st = mx_cuda_check(
			d, mx_launch(put, dim3(1), dim3(WORDS), 0, mx_cuda_stream(d), to, w, (uint32_t)part),
			"put");
	}
	return st;
}
