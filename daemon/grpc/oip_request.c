/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/grpc/oip_request.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/grpc/fill.h"

typedef Inference__ModelInferRequest__InferInputTensor tensor;

#define TEXT "text_input"

/* ---- values of tensors ---- */

enum kind { K_BOOL, K_SIGNED, K_UNSIGNED, K_FLOAT, K_BYTES };

struct type {
	const char *name;
	enum kind kind;
	size_t size; /* bytes of an element in raw contents; of BYTES: of its length */
};
static const struct type types[] = {
	{"BYTES", K_BYTES, 4},  {"BOOL", K_BOOL, 1},       {"INT32", K_SIGNED, 4},
	{"INT64", K_SIGNED, 8}, {"UINT32", K_UNSIGNED, 4}, {"UINT64", K_UNSIGNED, 8},
	{"FP32", K_FLOAT, 4},   {"FP64", K_FLOAT, 8},      {"INT8", K_SIGNED, 1},
	{"INT16", K_SIGNED, 2}, {"UINT8", K_UNSIGNED, 1},  {"UINT16", K_UNSIGNED, 2},
};

static const struct type *type_of(const ProtobufCBinaryData *name)
{
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (mx_pb_is(name, types[i].name))
			return &types[i];
	return NULL;
}

static json_t *from_unsigned(uint64_t v)
{
	return v > INT64_MAX ? NULL : json_integer((json_int_t)v);
}

/* Reads a number of 1, 2, 4 or 8 bytes, little endian as the protocol and all machines that mixd
 * runs on have it. */
static json_t *from_raw(const struct type *t, const uint8_t *p)
{
	uint64_t u = 0;
	float f;
	double d;
	memcpy(&u, p, t->size);
	switch (t->kind) {
	case K_BOOL: return json_boolean(u);
	case K_UNSIGNED: return from_unsigned(u);
	case K_SIGNED: {
		unsigned unused = 64 - 8 * (unsigned)t->size;
		return json_integer((int64_t)(u << unused) >> unused);
	}
	default: break;
	}
	memcpy(&f, p, sizeof(f));
	if (t->size == sizeof(f))
		return json_real(f);
	memcpy(&d, p, sizeof(d));
	return json_real(d);
}

/* Elements of a tensor that are being read: of raw contents, or of `contents`. */
struct source {
	const struct type *type;
	const ProtobufCBinaryData *raw; /* NULL: `m` is read */
	size_t at;                      /* bytes of `raw` that were read */
	const Inference__InferTensorContents *m;
	size_t n; /* elements of `m` */
};

static json_t *next_raw(struct source *s)
{
	size_t left = s->raw->len - s->at;
	if (left < s->type->size)
		return NULL;
	const uint8_t *p = s->raw->data + s->at;
	s->at += s->type->size;
	if (s->type->kind != K_BYTES)
		return from_raw(s->type, p);
	uint32_t len;
	memcpy(&len, p, sizeof(len));
	if (left - sizeof(len) < len)
		return NULL;
	s->at += len;
	return json_stringn((const char *)p + sizeof(len), len);
}

/* Contents are in the field of their type's widest form. */
static size_t count(const struct type *t, const Inference__InferTensorContents *m)
{
	switch (t->kind) {
	case K_BOOL: return m->n_bool_contents;
	case K_BYTES: return m->n_bytes_contents;
	case K_SIGNED: return t->size == 8 ? m->n_int64_contents : m->n_int_contents;
	case K_UNSIGNED: return t->size == 8 ? m->n_uint64_contents : m->n_uint_contents;
	default: return t->size == 8 ? m->n_fp64_contents : m->n_fp32_contents;
	}
}

static json_t *element(const struct source *s, size_t i)
{
	const Inference__InferTensorContents *m = s->m;
	const ProtobufCBinaryData *b;
	bool wide = s->type->size == 8;
	switch (s->type->kind) {
	case K_BOOL: return json_boolean(m->bool_contents[i]);
	case K_BYTES: b = &m->bytes_contents[i]; return json_stringn((const char *)b->data, b->len);
	case K_SIGNED: return json_integer(wide ? m->int64_contents[i] : m->int_contents[i]);
	case K_UNSIGNED: return from_unsigned(wide ? m->uint64_contents[i] : m->uint_contents[i]);
	default: return json_real(wide ? m->fp64_contents[i] : (double)m->fp32_contents[i]);
	}
}

static mx_status not_fitting(struct mx_api_error *err, const char *name)
{
	return mx_fill_invalid(err, name, "the contents are not the elements that its shape has");
}

/* Returns the number of elements of a shape, 0 if it is none that is served. */
static size_t elements(const tensor *t)
{
	size_t n = 1;
	for (size_t i = 0; i < t->n_shape; i++) {
		if (t->shape[i] < 1 || t->shape[i] > MX_OIP_MAX_ELEMENTS)
			return 0;
		n *= (size_t)t->shape[i];
		if (n > MX_OIP_MAX_ELEMENTS)
			return 0;
	}
	return n;
}

/* Reads a tensor as a JSON value: one element as itself, several as a list. */
static mx_status read_tensor(const tensor *t, const ProtobufCBinaryData *raw, const char *name,
                             json_t **out, struct mx_api_error *err)
{
	struct source s = {.type = type_of(&t->datatype), .raw = raw, .m = t->contents};
	size_t n = elements(t);
	if (!s.type)
		return mx_fill_invalid(err, name,
		                       "its datatype is none of BYTES, BOOL, INT*, UINT*, FP32, "
		                       "FP64: this server takes and gives text only");
	if (!n)
		return mx_fill_invalid(err, name, "its shape must have 1 to 2048 elements");
	if (!raw && (!s.m || count(s.type, s.m) != n))
		return not_fitting(err, name);
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++) {
		if (json_array_append_new(list, raw ? next_raw(&s) : element(&s, i))) {
			json_decref(list);
			return mx_fill_invalid(err, name, "an element is missing, no UTF-8, or not finite");
		}
	}
	*out = n == 1 ? json_incref(json_array_get(list, 0)) : json_incref(list);
	json_decref(list);
	if (raw && s.at != raw->len) {
		json_decref(*out);
		return not_fitting(err, name);
	}
	return MX_OK;
}

/* ---- fields of the request ---- */

/* What is being read. */
struct reading {
	json_t *body; /* of /v1/completions */
	bool finish_reason;
};

/* Names of other servers' fields. */
static const char *const renamed[][2] = {
	{"stop_words", "stop"}, {"random_seed", "seed"}, {"min_length", "min_tokens"}};
/* Parameters that say nothing about the answer: the last message of a stream is always marked. */
static const char *const ignored[] = {"triton_enable_empty_final_response"};
/* Fields with numbers, which Triton's clients write as texts too. */
static const char *const numeric[] = {"temperature",
                                      "top_p",
                                      "top_k",
                                      "min_p",
                                      "max_tokens",
                                      "min_tokens",
                                      "n",
                                      "seed",
                                      "presence_penalty",
                                      "frequency_penalty",
                                      "repetition_penalty",
                                      "priority",
                                      "ignore_eos"};

#define IS_IN(list, name) is_in(list, sizeof(list) / sizeof((list)[0]), name)
static bool is_in(const char *const *list, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(list[i], name))
			return true;
	return false;
}

/* Sets a field; takes over the value. */
static mx_status set(struct reading *r, const char *name, json_t *value, struct mx_api_error *err)
{
	if (!strcmp(name, "exclude_input_in_output") || !strcmp(name, "return_finish_reason")) {
		bool on = json_is_true(value), fine = json_is_boolean(value);
		json_decref(value);
		if (!fine)
			return mx_fill_invalid(err, name, "it must be BOOL");
		if (name[0] == 'r')
			r->finish_reason = on;
		else
			json_object_set_new(r->body, "echo", json_boolean(!on));
		return MX_OK;
	}
	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
		if (!strcmp(renamed[i][0], name))
			name = renamed[i][1];
	if (IS_IN(ignored, name)) {
		json_decref(value);
		return MX_OK;
	}
	bool own = !strcmp(name, "model") || !strcmp(name, "prompt");
	if (own || json_object_get(r->body, name)) {
		json_decref(value);
		return mx_fill_invalid(err, name,
		                       own ? "the prompt is the tensor " TEXT
		                             ", and the model is model_name"
		                           : "it is given twice");
	}
	return json_object_set_new(r->body, name, value)
	           ? mx_fill_invalid(err, name, "it is no value that JSON has")
	           : MX_OK;
}

/* Returns the number or truth value that a text is, or the value itself. */
static json_t *unquote(json_t *value)
{
	const char *s = json_string_value(value);
	json_t *v = s && strlen(s) < 64 ? json_loads(s, JSON_DECODE_ANY, NULL) : NULL;
	if (!v && s && !strcmp(s, "True"))
		v = json_true();
	if (!v && s && !strcmp(s, "False"))
		v = json_false();
	return v ? v : json_incref(value);
}

/* Sets the fields of a JSON text; takes over the value. */
static mx_status set_all(struct reading *r, const char *name, json_t *text,
                         struct mx_api_error *err)
{
	size_t n = json_string_length(text);
	json_t *o = n ? json_loadb(json_string_value(text), n, 0, NULL) : NULL, *value;
	bool empty = json_is_string(text) && !n;
	mx_status st = MX_OK;
	const char *key;
	json_decref(text);
	if (!empty && !json_is_object(o))
		st = mx_fill_invalid(err, name, "it must be the text of a JSON object");
	if (st == MX_OK && o) {
		json_object_foreach(o, key, value)
		{
			st = set(r, key, IS_IN(numeric, key) ? unquote(value) : json_incref(value), err);
			if (st != MX_OK)
				break;
		}
	}
	json_decref(o);
	return st;
}

static mx_status set_prompt(struct reading *r, json_t *value, struct mx_api_error *err)
{
	bool fine =
		json_is_string(value) || (json_is_array(value) && json_is_string(json_array_get(value, 0)));
	if (fine && !json_object_get(r->body, "prompt"))
		return json_object_set_new(r->body, "prompt", value) ? mx_fill_no_memory(err) : MX_OK;
	json_decref(value);
	return mx_fill_invalid(err, TEXT, fine ? "it is given twice" : "its datatype must be BYTES");
}

/* ---- the request ---- */

static mx_status read_parameters(struct reading *r, const Inference__ModelInferRequest *m,
                                 struct mx_api_error *err)
{
	mx_status st = MX_OK;
	for (size_t i = 0; i < m->n_parameters && st == MX_OK; i++) {
		const char *key = m->parameters[i]->key;
		const Inference__InferParameter *p = m->parameters[i]->value;
		json_t *v = NULL;
		switch (p ? p->parameter_choice_case : 0) {
		case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM:
			v = json_boolean(p->bool_param);
			break;
		case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM:
			v = json_integer(p->int64_param);
			break;
		case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM:
			v = from_unsigned(p->uint64_param);
			break;
		case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM:
			v = json_real(p->double_param);
			break;
		case INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM:
			v = json_stringn((const char *)p->string_param.data, p->string_param.len);
			break;
		default: break;
		}
		st = v ? set(r, key, v, err)
		       : mx_fill_invalid(err, "parameters", "a value is missing, no UTF-8 or not finite");
	}
	return st;
}

static mx_status read_inputs(struct reading *r, const Inference__ModelInferRequest *m,
                             struct mx_api_error *err)
{
	if (m->n_raw_input_contents && m->n_raw_input_contents != m->n_inputs)
		return mx_fill_invalid(err, "raw_input_contents", "there must be one for each of 'inputs'");
	for (size_t i = 0; i < m->n_inputs; i++) {
		const tensor *t = m->inputs[i];
		struct mx_api_text given = {0};
		char name[64];
		json_t *v = NULL;
		mx_status st = mx_fill_text(&t->name, "inputs.name", &given, err);
		if (st == MX_OK && (given.len == 0 || given.len >= sizeof(name)))
			st = mx_fill_invalid(err, "inputs.name",
			                     "a tensor has no name, or one that is too long");
		if (st != MX_OK)
			return st;
		memcpy(name, given.s, given.len);
		name[given.len] = 0;
		st = read_tensor(t, m->n_raw_input_contents ? &m->raw_input_contents[i] : NULL, name, &v,
		                 err);
		if (st != MX_OK)
			return st;
		if (!strcmp(name, TEXT))
			st = set_prompt(r, v, err);
		else if (!strcmp(name, "sampling_parameters") || !strcmp(name, "parameters"))
			st = set_all(r, name, v, err);
		else
			st = set(r, name, v, err);
		if (st != MX_OK)
			return st;
	}
	return json_object_get(r->body, "prompt")
	           ? MX_OK
	           : mx_fill_invalid(err, TEXT, "this tensor, the prompt, is missing");
}

static mx_status read_outputs(struct reading *r, const Inference__ModelInferRequest *m,
                              struct mx_api_error *err)
{
	for (size_t i = 0; i < m->n_outputs; i++) {
		const ProtobufCBinaryData *name = &m->outputs[i]->name;
		if (mx_pb_is(name, "finish_reason"))
			r->finish_reason = true;
		else if (!mx_pb_is(name, "text_output"))
			return mx_fill_invalid(err, "outputs", "the outputs are text_output and finish_reason");
	}
	return MX_OK;
}

static mx_status read_names(struct reading *r, const Inference__ModelInferRequest *m,
                            struct mx_api_error *err)
{
	struct mx_api_text text = {0};
	if (m->model_version.len && !mx_pb_is(&m->model_version, "1"))
		return mx_fill_invalid(err, "model_version", "models have one version, which is 1");
	if (m->id.len > MX_OIP_MAX_ID)
		return mx_fill_invalid(err, "id", "it has more than 1024 bytes");
	mx_status st = mx_fill_text(&m->id, "id", &text, err);
	if (st == MX_OK)
		st = mx_fill_text(&m->model_name, "model_name", &text, err);
	if (st == MX_OK && m->model_name.len &&
	    json_object_set_new(r->body, "model",
	                        json_stringn((const char *)m->model_name.data, m->model_name.len)))
		st = mx_fill_no_memory(err);
	return st;
}

/* Triton's backend for vLLM puts the prompt in front of an answer that is not streamed. */
static mx_status set_defaults(struct reading *r, struct mx_api_error *err)
{
	bool echo = !json_is_true(json_object_get(r->body, "stream"));
	if (!json_object_get(r->body, "echo") &&
	    json_object_set_new(r->body, "echo", json_boolean(echo)))
		return mx_fill_no_memory(err);
	return MX_OK;
}

static mx_status parse(const struct reading *r, struct mx_api_request *out,
                       struct mx_api_error *err)
{
	size_t n = json_dumpb(r->body, NULL, 0, JSON_COMPACT);
	char *text = malloc(n + 1);
	if (!text)
		return mx_fill_no_memory(err);
	json_dumpb(r->body, text, n, JSON_COMPACT);
	mx_status st = mx_api_parse(MX_API_COMPLETION, text, n, NULL, out, err);
	free(text);
	if (st != MX_OK || (out->logprobs < 0 && !out->return_token_ids))
		return st;
	mx_api_request_free(out);
	return mx_fill_invalid(err, "logprobs", "this protocol's answers are text only");
}

mx_status mx_oip_read(const Inference__ModelInferRequest *m, struct mx_oip_request *out,
                      struct mx_api_error *err)
{
	struct reading r = {.body = json_object()};
	mx_status st = r.body ? read_inputs(&r, m, err) : mx_fill_no_memory(err);
	if (st == MX_OK)
		st = read_names(&r, m, err);
	if (st == MX_OK)
		st = read_parameters(&r, m, err);
	if (st == MX_OK)
		st = read_outputs(&r, m, err);
	if (st == MX_OK)
		st = set_defaults(&r, err);
	if (st == MX_OK)
		st = parse(&r, &out->api, err);
	out->finish_reason = r.finish_reason;
	json_decref(r.body);
	return st;
}
