/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what a configuration needs beside its models: files of keys and of TLS, modules. */
#ifndef MX_DAEMON_FILES_CHECK_H
#define MX_DAEMON_FILES_CHECK_H

#include "daemon/config.h"

/* Fails, with the file in err->where, if a start with these files would fail, or a reload would use
 * only some of them. Warns of certificates that are out of date, and of
 * models that a principal may use and that are not there. */
mx_status mx_files_check(const struct mx_config *c, struct mx_err *err);

#endif
