/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a zip archive (APPNOTE 6.3) of stored files as a stream: each file's size and checksum
 * follow it. The same files give the same bytes. */
#ifndef MX_DAEMON_GRPC_ZIP_H
#define MX_DAEMON_GRPC_ZIP_H

#include "base/buf.h"

struct mx_zip {
	uint32_t crc_table[256];
	uint64_t n; /* bytes of the archive so far */
	/* The file that is being written. */
	char name[64];
	uint32_t crc;
	uint64_t at, size; /* of its header; of its data so far */
	uint32_t n_files;
	struct mx_buf directory;
};

void mx_zip_init(struct mx_zip *z);
void mx_zip_free(struct mx_zip *z); /* takes a zeroed one */
/* Each appends to *out. A file is begin, data any number of times, end; its name has less than 64
 * bytes. finish ends an archive of less than 4 GiB. */
void mx_zip_begin(struct mx_zip *z, const char *name, struct mx_buf *out);
void mx_zip_data(struct mx_zip *z, const void *data, size_t n, struct mx_buf *out);
void mx_zip_end(struct mx_zip *z, struct mx_buf *out);
void mx_zip_finish(struct mx_zip *z, struct mx_buf *out);

#endif
