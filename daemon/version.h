/* SPDX-License-Identifier: Apache-2.0 */
/* mixd --version. */
#ifndef MX_DAEMON_VERSION_H
#define MX_DAEMON_VERSION_H

#include <stdio.h>

/* Prints "mixd VERSION", and in lines of their own what the build has, and its compiler. */
void mx_version_print(FILE *out);

#endif
