/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the API as gRPC's statuses. */
#ifndef MX_DAEMON_GRPC_ERRORS_H
#define MX_DAEMON_GRPC_ERRORS_H

#include "daemon/grpc/core.h"
#include "proto/error.h"

/* Mark of a call that mx_rpc_fail_api ended for a fault of its client: for one status there are
 * faults of both sides. */
#define MX_RPC_CLIENTS_FAULT MX_RPC_MARK(0)

/* Ends a call with an error of the API. The status says in its details: the error's code
 * (google.rpc.ErrorInfo), the request's field (BadRequest), and after how many seconds another try
 * may succeed (RetryInfo). */
void mx_rpc_fail_api(struct mx_rpc_call *c, const struct mx_api_error *err, unsigned retry_after);

#endif
