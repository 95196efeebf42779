/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects that a program loads when it first needs them. */
#ifndef MX_BASE_MODULE_H
#define MX_BASE_MODULE_H

#include "base/status.h"

struct mx_module {
	const char *file;     /* "device-cuda.so" */
	const char *variable; /* environment variable with folders to search, separated by colons */
	const char *folders;  /* searched if the variable is not set */
	const char *symbol;   /* what the object exports for us */
	const char *what;     /* for messages: "the module of CUDA devices" */
	const char *needed;   /* for messages: "CUDA devices need" */
	const char *built;    /* for messages: "where a CUDA toolkit is" */
};

/* Loads the object from the first folder that has it, and returns the address of its symbol in
 * *out. It is never unloaded. MX_E_NOTFOUND: no folder has it, or it cannot be loaded;
 * MX_E_UNSUPPORTED: it has no such symbol. */
mx_status mx_module_load(const struct mx_module *m, void **out, struct mx_err *err);

#endif
