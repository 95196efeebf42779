/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a ModelInferRequest of the Open Inference Protocol: the prompt is the tensor
 * text_input, as Triton's backends for language models have it; every other tensor and
 * parameter, and every member of the JSON text sampling_parameters, is a field of
 * /v1/completions, checked as that route does.
 */
#ifndef MX_DAEMON_GRPC_OIP_REQUEST_H
#define MX_DAEMON_GRPC_OIP_REQUEST_H

#include "proto/pb/kserve/grpc_predict_v2.pb-c.h"
#include "proto/request.h"

struct mx_oip_request {
	struct mx_api_request api; /* owns its memory */
	bool finish_reason;        /* the output finish_reason is wanted */
};

/* Most elements of a tensor, and most bytes of a request's id. */
#define MX_OIP_MAX_ELEMENTS MX_API_MAX_PROMPTS
#define MX_OIP_MAX_ID       1024

/* Fails with 400 and the name of the tensor or parameter; mx_api_request_free(&out->api) is to be
 * called on success only. */
mx_status mx_oip_read(const Inference__ModelInferRequest *m, struct mx_oip_request *out,
                      struct mx_api_error *err);

#endif
