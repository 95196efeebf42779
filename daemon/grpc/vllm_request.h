/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the GenerateRequest of vllm.grpc.engine.VllmEngine. What is absent, or 0 where the protocol
 * has no absence, has vLLM's defaults, not the model's: who sends it has applied those. */
#ifndef MX_DAEMON_GRPC_VLLM_REQUEST_H
#define MX_DAEMON_GRPC_VLLM_REQUEST_H

#include "proto/pb/vllm/vllm_engine.pb-c.h"
#include "proto/request.h"

struct mx_vllm_request {
	struct mx_api_request api; /* with log-probabilities for the larger of both wishes */
	/* Alternatives of each token of the output and of the prompt; -1 = no log-probabilities. */
	int32_t logprobs, prompt_logprobs;
};

/* Most bytes of a request_id. */
#define MX_VLLM_MAX_ID 1024

/* Fills a request, which borrows from the message: it must stay until
 * mx_api_request_free(&out->api). Fails with 400 and the name of the field, also for what the
 * gateway may ask of others (media, transfers of caches) and for fields that are not
 * known. */
mx_status mx_vllm_read(const Vllm__Grpc__Engine__GenerateRequest *m, struct mx_vllm_request *out,
                       struct mx_api_error *err);

#endif
