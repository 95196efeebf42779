/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/zip.h"

#include <stdio.h>
#include <string.h>

#define SIZES_FOLLOW 8      /* flag: they are behind the data */
#define DATE         0x0021 /* 1 January 1980, the first there is */

static void put16(struct mx_buf *b, uint32_t v)
{
	mx_buf_putc(b, (char)(v & 255));
	mx_buf_putc(b, (char)(v >> 8 & 255));
}

static void put32(struct mx_buf *b, uint64_t v)
{
	put16(b, (uint32_t)v & 0xffff);
	put16(b, (uint32_t)(v >> 16) & 0xffff);
}

void mx_zip_init(struct mx_zip *z)
{
	*z = (struct mx_zip){.n = 0};
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;
		for (int bit = 0; bit < 8; bit++)
			c = c & 1 ? 0xedb88320 ^ c >> 1 : c >> 1;
		z->crc_table[i] = c;
	}
}

void mx_zip_free(struct mx_zip *z)
{
	mx_buf_free(&z->directory);
}

/* Writes what the headers of a file have in common. */
static void put_header(struct mx_zip *z, bool known, struct mx_buf *b)
{
	put16(b, 20); /* version that is needed: 2.0 */
	put16(b, SIZES_FOLLOW);
	put16(b, 0); /* stored */
	put16(b, 0); /* time */
	put16(b, DATE);
	put32(b, known ? z->crc : 0);
	put32(b, known ? z->size : 0);
	put32(b, known ? z->size : 0);
	put16(b, (uint32_t)strlen(z->name));
	put16(b, 0); /* extra */
}

void mx_zip_begin(struct mx_zip *z, const char *name, struct mx_buf *out)
{
	size_t before = out->len;
	snprintf(z->name, sizeof(z->name), "%s", name);
	z->crc = 0xffffffff;
	z->at = z->n;
	z->size = 0;
	mx_buf_puts(out, "PK\3\4");
	put_header(z, false, out);
	mx_buf_puts(out, z->name);
	z->n += out->len - before;
}

void mx_zip_data(struct mx_zip *z, const void *data, size_t n, struct mx_buf *out)
{
	const uint8_t *p = data;
	for (size_t i = 0; i < n; i++)
		z->crc = z->crc_table[(z->crc ^ p[i]) & 255] ^ z->crc >> 8;
	z->size += n;
	z->n += n;
	mx_buf_append(out, data, n);
}

void mx_zip_end(struct mx_zip *z, struct mx_buf *out)
{
	size_t before = out->len;
	struct mx_buf *d = &z->directory;
	z->crc = ~z->crc;
	z->n_files++;
	mx_buf_puts(out, "PK\7\10");
	put32(out, z->crc);
	put32(out, z->size);
	put32(out, z->size);
	z->n += out->len - before;
	mx_buf_puts(d, "PK\1\2");
	put16(d, 20); /* version that made it */
	put_header(z, true, d);
	put16(d, 0); /* comment */
	put16(d, 0); /* disk */
	put16(d, 0); /* attributes */
	put32(d, 0);
	put32(d, z->at);
	mx_buf_puts(d, z->name);
}

void mx_zip_finish(struct mx_zip *z, struct mx_buf *out)
{
	uint64_t at = z->n;
	mx_buf_append(out, mx_buf_str(&z->directory), z->directory.len);
	out->failed = out->failed || z->directory.failed;
	mx_buf_puts(out, "PK\5\6");
	put32(out, 0); /* disks */
	put16(out, z->n_files);
	put16(out, z->n_files);
	put32(out, z->directory.len);
	put32(out, at);
	put16(out, 0); /* comment */
}
