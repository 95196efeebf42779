/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP status of a fault. */
#include "daemon/http/exchange.h"

unsigned mx_http_status(enum mx_fault fault)
{
	switch (fault) {
	case MX_FAULT_NONE: return 200;
	case MX_FAULT_INVALID: return 400;
	case MX_FAULT_UNAUTHENTICATED: return 401;
	case MX_FAULT_FORBIDDEN: return 403;
	case MX_FAULT_NOT_FOUND: return 404;
	case MX_FAULT_TOO_LARGE: return 413;
	case MX_FAULT_RATE_LIMITED: return 429;
	case MX_FAULT_INTERNAL: return 500;
	case MX_FAULT_EXHAUSTED:
	case MX_FAULT_UNAVAILABLE: return 503;
	}
	return 500;
}
