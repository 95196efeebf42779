/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes and the error record that parsers fill.
 *
 * Every fallible function returns mx_status; outputs are written only on MX_OK.
 * Functions that read untrusted input also take a struct mx_err, which says in
 * one line what is wrong and where. Library code (base, model, proto) never
 * logs: it fills the record, and the caller decides whether to log.
 */
#ifndef MX_BASE_STATUS_H
#define MX_BASE_STATUS_H

#include <stdint.h>

#if defined(__GNUC__)
#define MX_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MX_MUST_CHECK        __attribute__((warn_unused_result))
#else
#define MX_PRINTF(fmt, args)
#define MX_MUST_CHECK
#endif

typedef enum mx_status {
	MX_OK = 0,
	MX_E_INVALID = -1,     /* argument or request field is wrong */
	MX_E_NOMEM = -2,       /* out of memory, or out of pages */
	MX_E_IO = -3,          /* a system call failed */
	MX_E_FORMAT = -4,      /* a file is damaged */
	MX_E_UNSUPPORTED = -5, /* well formed, but not supported */
	MX_E_NOTFOUND = -6,
	MX_E_RANGE = -7, /* value outside its limits */
	MX_E_BUSY = -8,  /* queue full: try again later */
	MX_E_CANCELLED = -9,
	MX_E_LIMIT = -10,  /* a resource limit set on purpose was reached */
	MX_E_DEVICE = -11, /* the device is lost */
	MX_E_SHUTDOWN = -12,
	MX_E_INTERNAL = -13,
} mx_status;

/* An error: what went wrong and where. Zero-initialise; a zero line or column means "not known". */
struct mx_err {
	mx_status status;
	uint32_t line, column; /* 1-based position in a text, or 0 */
	uint64_t offset;       /* byte offset in the input, for binary inputs */
	char where[192];       /* file, tensor or key path, may be empty */
	char text[512];        /* the message, one line, no trailing period or newline */
};

/* Short lower-case name of a status ("out of memory"); never NULL. */
const char *mx_status_str(mx_status s);

/* Sets the status and a formatted message in *err (which may be NULL); `where` and the position are
 * not changed. Returns `status`, so that callers can `return mx_fail(...)`. */
mx_status mx_fail(struct mx_err *err, mx_status status, const char *fmt, ...) MX_PRINTF(3, 4);

/* As mx_fail, and also sets `where`. */
mx_status mx_fail_at(struct mx_err *err, mx_status status, const char *where, const char *fmt, ...)
	MX_PRINTF(4, 5);

#endif
