/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the page at "/", which are part of the program: `embed` makes C of them at build
 * time. */
#ifndef MX_DAEMON_PAGE_FILES_H
#define MX_DAEMON_PAGE_FILES_H

#include <stddef.h>

struct mx_page_file {
	const char *name; /* "talk.js" */
	const char *type; /* the media type */
	const char *etag; /* a part of the SHA-256 of its content, in quotes */
	const unsigned char *data;
	size_t n; /* bytes */
};

extern const struct mx_page_file mx_page_files[]; /* [mx_page_n_files] */
extern const size_t mx_page_n_files;

/* Returns the file of that name, or NULL. */
const struct mx_page_file *mx_page_find(const char *name);

#endif
