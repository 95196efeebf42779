/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that blocks of GGUF's types expand to the bits of gguf-py (tests/golden/gguf-types.txt,
 * from tools/export-gguf.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/quant.h"

#define VALUES 512

/* Reads hexadecimal digits up to a blank; returns the number of bytes. */
static size_t read_hex(FILE *f, unsigned char *out, size_t cap)
{
	size_t n = 0;
	unsigned byte;
	assert_int_equal(fscanf(f, " "), 0);
	while (n < cap && fscanf(f, "%2x", &byte) == 1) {
		out[n++] = (unsigned char)byte;
		int c = fgetc(f);
		if (c == ' ' || c == '\n' || c == EOF)
			break;
		ungetc(c, f);
	}
	return n;
}

static enum mx_quant_format format_named(const char *name)
{
	for (int i = MX_QUANT_Q4_0; i <= MX_QUANT_MXFP4; i++)
		if (!strcmp(mx_quant_format_name((enum mx_quant_format)i), name))
			return (enum mx_quant_format)i;
	fail_msg("%s: no such format", name);
	return MX_QUANT_PLAIN;
}

static void blocks_are_those_of_gguf_py(void **state)
{
	static unsigned char blocks[4096], bytes[VALUES * 4];
	const char *src = getenv("srcdir");
	char path[4096], name[32];
	int seen = 0;
	(void)state;
	snprintf(path, sizeof path, "%s/tests/golden/gguf-types.txt", src ? src : ".");
	FILE *f = fopen(path, "r");
	assert_non_null(f);
	while (fscanf(f, "%31s", name) == 1) {
		const struct mx_quant_source s = {
			.format = format_named(name), .rows = 1, .cols = VALUES, .codes = blocks};
		float want[VALUES], got[VALUES];
		assert_int_equal(read_hex(f, blocks, sizeof blocks), mx_quant_row_bytes(s.format, VALUES));
		assert_int_equal(read_hex(f, bytes, sizeof bytes), sizeof bytes);
		memcpy(want, bytes, sizeof bytes); /* little-endian, as this machine */
		mx_quant_expand(&s, 0, got);
		/* a product and a sum may be fused: an error of half the product's last bit */
		for (size_t i = 0; i < VALUES; i++)
			if (fabsf(got[i] - want[i]) > 1e-6f * fabsf(want[i]) + 1e-6f)
				fail_msg("%s: element %zu is %.9g, not %.9g", name, i, (double)got[i],
				         (double)want[i]);
		seen++;
	}
	fclose(f);
	assert_int_equal(seen, 22);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_are_those_of_gguf_py)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
