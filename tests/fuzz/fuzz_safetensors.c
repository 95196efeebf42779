/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as a safetensors file: its header is refused, or every tensor lies in the
 * input. */
#include <stdint.h>
#include <stdlib.h>

#include "model/safetensors_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mx_arena arena = {0};
	struct mx_st_entry *e = NULL;
	struct mx_err err = {0};
	size_t n;
	if (!mx_st_read(data, size, "fuzz", &arena, &e, &n, &err))
		for (size_t i = 0; i < n; i++) {
			const uint8_t *p = e[i].tensor.data;
			if (p < data || p > data + size || e[i].tensor.bytes > (size_t)(data + size - p))
				abort();
		}
	else if (!err.text[0])
		abort();
	free(e);
	mx_arena_free(&arena);
	return 0;
}
