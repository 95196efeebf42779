/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the messages of mixd.v1.Inference into requests of the API. */
#ifndef MX_DAEMON_GRPC_INFERENCE_REQUEST_H
#define MX_DAEMON_GRPC_INFERENCE_REQUEST_H

#include "proto/pb/mixd/v1/inference.pb-c.h"
#include "proto/request.h"

/* Each fills a request, which borrows from the message: it must stay until the request is freed.
 * Fails with 400 and the field's path ("sampling.top_p"). */
mx_status mx_inference_complete(const Mixd__V1__CompleteRequest *m, struct mx_api_request *out,
                                struct mx_api_error *err);
mx_status mx_inference_chat(const Mixd__V1__ChatRequest *m, struct mx_api_request *out,
                            struct mx_api_error *err);
mx_status mx_inference_score(const Mixd__V1__ScoreRequest *m, struct mx_api_request *out,
                             struct mx_api_error *err);

#endif
