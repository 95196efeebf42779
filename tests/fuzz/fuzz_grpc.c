/* SPDX-License-Identifier: Apache-2.0 */
/* Takes any bytes as the message of a method of gRPC, which the first byte chooses: it is read into
 * bounded memory, and then into a request of the API. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/fill.h"
#include "daemon/grpc/inference_request.h"
#include "daemon/grpc/oip_request.h"
#include "daemon/grpc/vllm_request.h"
#include "proto/pb/grpc/health/v1/health.pb-c.h"
#include "proto/pb/grpc/reflection/v1/reflection.pb-c.h"
#include "proto/pb/vllm/common.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const struct mx_api_text *t)
{
	static volatile unsigned sum;
	for (size_t i = 0; i < t->len; i++) /* all of it can be read */
		sum += (unsigned char)t->s[i];
}

/* Checks that an accepted request obeys the limits on which later code relies. */
static void check(const struct mx_api_request *r)
{
	if (r->n < 1 || r->n > MX_API_MAX_CHOICES || r->n_stops > MX_API_MAX_STOPS ||
	    r->logprobs > MX_MAX_TOP_LOGPROBS || r->max_tokens < -1 || r->max_tokens > INT32_MAX ||
	    r->temperature < 0 || r->top_p <= 0 || r->n_bias > MX_API_MAX_BIAS ||
	    r->repetition_penalty < 0.0099f || r->n_stop_ids > MX_API_MAX_STOPS ||
	    strlen(r->cache_salt.s ? r->cache_salt.s : "") != r->cache_salt.len)
		abort();
	if (r->kind == MX_API_COMPLETION && (r->n_prompts < 1 || r->n_prompts > MX_API_MAX_PROMPTS))
		abort();
	if (r->kind == MX_API_CHAT && json_array_size(r->messages) < 1)
		abort();
	check_text(&r->model);
	for (uint32_t i = 0; i < r->n_prompts; i++) {
		check_text(&r->prompts[i].text);
		for (uint32_t j = 0; j < r->prompts[i].n_ids; j++)
			if (r->prompts[i].ids[j] < 0)
				abort();
	}
	for (uint32_t i = 0; i < r->n_stops; i++) {
		check_text(&r->stops[i]);
		if (r->stops[i].len == 0 || r->stops[i].len > MX_API_MAX_STOP_LEN)
			abort();
	}
	for (uint32_t i = 0; i < r->n_bias; i++)
		if (r->bias[i].token < 0)
			abort();
}

static const ProtobufCMessageDescriptor *const types[] = {
	&mixd__v1__complete_request__descriptor,
	&mixd__v1__chat_request__descriptor,
	&mixd__v1__score_request__descriptor,
	&inference__model_infer_request__descriptor,
	&vllm__grpc__engine__generate_request__descriptor,
	/* read, and used as they are */
	&mixd__v1__tokenize_request__descriptor,
	&mixd__v1__detokenize_request__descriptor,
	&vllm__grpc__engine__abort_request__descriptor,
	&inference__model_ready_request__descriptor,
	&inference__model_metadata_request__descriptor,
	&smg__grpc__common__subscribe_kv_events_request__descriptor,
	&grpc__health__v1__health_check_request__descriptor,
	&grpc__reflection__v1__server_reflection_request__descriptor,
};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

/* Reads a message into a request, if that is what it becomes. */
static mx_status read_message(unsigned type, const ProtobufCMessage *m, struct mx_api_request *out,
                              struct mx_api_error *err)
{
	struct mx_oip_request oip;
	struct mx_vllm_request vllm;
	const Mixd__V1__TokenizeRequest *t = (const void *)m;
	mx_status st;
	switch (type) {
	case 0: return mx_inference_complete((const void *)m, out, err);
	case 1: return mx_inference_chat((const void *)m, out, err);
	case 2: return mx_inference_score((const void *)m, out, err);
	case 3:
		st = mx_oip_read((const void *)m, &oip, err);
		if (st == MX_OK)
			*out = oip.api;
		return st;
	case 4:
		st = mx_vllm_read((const void *)m, &vllm, err);
		if (st == MX_OK)
			*out = vllm.api;
		return st;
	case 5:
		if (t->input_case == MIXD__V1__TOKENIZE_REQUEST__INPUT_CHAT)
			return mx_inference_chat(t->chat, out, err);
		break;
	default: break;
	}
	return mx_fill_invalid(err, "message", "it is not one of requests");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	unsigned type = data[0] % N_TYPES;
	struct mx_arena arena = {0};
	struct mx_api_error err = {0};
	struct mx_api_request r;
	ProtobufCMessage *m;
	mx_status st = mx_pb_unpack(types[type], data + 1, size - 1, &arena, &m, &err);
	if (st == MX_OK)
		st = read_message(type, m, &r, &err);
	if (st == MX_OK) {
		check(&r);
		mx_api_request_free(&r);
	} else if (err.fault == MX_FAULT_NONE || !err.message[0]) {
		abort();
	}
	mx_arena_free(&arena);
	return 0;
}
