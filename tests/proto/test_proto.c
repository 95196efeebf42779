/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenAI codec: what is accepted, how the rest is refused, and what is written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <malloc.h>
#include <stdio.h>
#include <math.h>
#include <string.h>

#include <cmocka.h>

#include "proto/json_out.h"
#include "proto/parse_cost.h"
#include "proto/pieces.h"
#include "proto/request.h"
#include "proto/response.h"

/* Parses with single quotes standing for double ones. */
static mx_status parse(enum mx_api_kind kind, const char *text, struct mx_api_request *r,
                       struct mx_api_error *err)
{
	char body[4096];
	size_t n = strlen(text);
	assert_true(n < sizeof(body));
	for (size_t i = 0; i <= n; i++)
		body[i] = text[i] == '\'' ? '"' : text[i];
	*err = (struct mx_api_error){0};
	return mx_api_parse(kind, body, n, NULL, r, err);
}

static void silent_request_has_documented_defaults(void **state)
{
	(void)state;
	struct mx_api_request r;
	struct mx_api_error e;
	assert_int_equal(parse(MX_API_COMPLETION, "{'prompt':'a\\u0000b'}", &r, &e), MX_OK);
	assert_null(r.model.s);
	assert_int_equal(r.n_prompts, 1);
	assert_int_equal(r.prompts[0].text.len, 3);
	assert_memory_equal(r.prompts[0].text.s, "a\0b", 3);
	assert_null(r.prompts[0].ids);
	assert_int_equal(r.max_tokens, 16);
	assert_int_equal(r.n, 1);
	assert_int_equal(r.logprobs, -1);
	assert_true(isnan(r.temperature) && isnan(r.top_p) && isnan(r.min_p));
	assert_int_equal(r.top_k, MX_API_UNSET);
	assert_false(r.has_seed || r.stream || r.echo || r.ignore_eos);
	assert_true(r.add_special && r.skip_special);
	mx_api_request_free(&r);

	assert_int_equal(parse(MX_API_CHAT, "{'messages':[{'role':'user','content':'hi'}]}", &r, &e),
	                 MX_OK);
	assert_int_equal(r.max_tokens, -1);
	assert_false(r.add_special);
	assert_true(r.add_generation_prompt);
	mx_api_request_free(&r);
}

static void every_field_arrives(void **state)
{
	(void)state;
	struct mx_api_request r;
	struct mx_api_error e;
	assert_int_equal(
		parse(MX_API_COMPLETION,
	          "{'model':'m','prompt':[[1,2],[3]],'echo':true,'n':2,'best_of':2,'max_tokens':0,"
	          "'temperature':0.5,'top_p':0.9,'top_k':-1,'min_p':0.1,'repeat_penalty':1.1,"
	          "'presence_penalty':-2,'frequency_penalty':2,'logit_bias':{'5':-100,'7':1.5},"
	          "'seed':-7,'stop':['a','bc'],'stop_token_ids':[9],'ignore_eos':true,"
	          "'include_stop_str_in_output':true,'logprobs':20,'stream':true,"
	          "'stream_options':{'include_usage':true,'continuous_usage_stats':true},"
	          "'return_token_ids':true,'priority':-3,'cache_salt':'s','user':'u',"
	          "'add_special_tokens':false,'skip_special_tokens':false,'suffix':null}",
	          &r, &e),
		MX_OK);
	assert_int_equal(r.n_prompts, 2);
	assert_int_equal(r.prompts[0].n_ids, 2);
	assert_int_equal(r.prompts[1].ids[0], 3);
	assert_true(r.echo && r.ignore_eos && r.include_stop && r.return_token_ids && r.stream);
	assert_true(r.include_usage && r.continuous_usage);
	assert_false(r.add_special || r.skip_special);
	assert_int_equal(r.max_tokens, 0);
	assert_float_equal(r.temperature, 0.5, 0);
	assert_float_equal(r.repetition_penalty, 1.1f, 0);
	assert_float_equal(r.presence_penalty, -2, 0);
	assert_int_equal(r.top_k, 0);
	assert_int_equal(r.n_bias, 2);
	for (int i = 0; i < 2; i++)
		assert_float_equal(r.bias[i].bias, r.bias[i].token == 5 ? -100.0f : 1.5f, 0);
	assert_true(r.has_seed && r.seed == (uint64_t)-7);
	assert_int_equal(r.n_stops, 2);
	assert_string_equal(r.stops[1].s, "bc");
	assert_int_equal(r.stop_ids[0], 9);
	assert_int_equal(r.logprobs, 20);
	assert_int_equal(r.priority, -3);
	assert_string_equal(r.cache_salt.s, "s");
	mx_api_request_free(&r);
}

static void synonyms_mean_the_same(void **state)
{
	(void)state;
	struct mx_api_request r;
	struct mx_api_error e;
	assert_int_equal(parse(MX_API_COMPLETION, "{'prompt':'a','n_predict':7}", &r, &e), MX_OK);
	assert_int_equal(r.max_tokens, 7);
	mx_api_request_free(&r);
	assert_int_equal(parse(MX_API_COMPLETION, "{'prompt':'a','n_predict':-1,'seed':-1}", &r, &e),
	                 MX_OK);
	assert_int_equal(r.max_tokens, -1);
	assert_false(r.has_seed);
	mx_api_request_free(&r);
	assert_int_equal(parse(MX_API_CHAT,
	                       "{'messages':[{'role':'user','content':'a'}],'max_tokens':5,"
	                       "'max_completion_tokens':6,'logprobs':true,'top_logprobs':3}",
	                       &r, &e),
	                 MX_OK);
	assert_int_equal(r.max_tokens, 6);
	assert_int_equal(r.logprobs, 3);
	mx_api_request_free(&r);
}

static void text_parts_are_kept_and_arguments_opened(void **state)
{
	(void)state;
	struct mx_api_request r;
	struct mx_api_error e;
	assert_int_equal(
		parse(MX_API_CHAT,
	          "{'messages':[{'role':'user','content':[{'type':'text','text':'a'},"
	          "{'type':'text','text':'b'}]},{'role':'assistant','tool_calls':[{'function':"
	          "{'name':'f','arguments':'{\\'x\\':1}'}}]}],'tools':[{'type':'function',"
	          "'function':{'name':'f'}}],'tool_choice':'none'}",
	          &r, &e),
		MX_OK);
	json_t *first = json_array_get(r.messages, 0);
	assert_int_equal(json_array_size(json_object_get(first, "content")), 2);
	json_t *call = json_array_get(json_object_get(json_array_get(r.messages, 1), "tool_calls"), 0);
	json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
	assert_int_equal(json_integer_value(json_object_get(arguments, "x")), 1);
	assert_null(r.tools);
	mx_api_request_free(&r);
}

static void tools_are_checked(void **state)
{
	(void)state;
#define FN(name) "{'type':'function','function':{'name':'" name "'}}"
#define LONG     "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"
	static const struct {
		const char *tools, *param; /* NULL: they are right */
	} cases[] = {
		{FN(LONG), NULL},
		{FN("a.b:c/d_e-1") "," FN("a"), NULL},
		{"{'type':'function','function':{'name':'f','parameters':null}}", NULL},
		{"{'type':'function','function':{'name':'f','parameters':{}}}", NULL},
		{"{'type':'function','function':{'name':'f','parameters':[]}}",
	     "tools[0].function.parameters"},
		{"3", "tools[0]"},
		{"{}", "tools[0].type"},
		{"{'type':'retrieval'}", "tools[0].type"},
		{"{'type':'function','name':'f'}", "tools[0].function"},
		{"{'type':'function','function':{}}", "tools[0].function.name"},
		{"{'type':'function','function':{'name':3}}", "tools[0].function.name"},
		{FN(""), "tools[0].function.name"},
		{FN(LONG "x"), "tools[0].function.name"},
		{FN("a") "," FN("a b"), "tools[1].function.name"},
		{FN("\u00e4"), "tools[0].function.name"},
		{FN("a\\u0000"), "tools[0].function.name"},
		{FN("b") "," FN("a") "," FN("c") "," FN("a"), "tools[3].function.name"},
	};
	static const char *const choices[] = {"auto", "none", "required"};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		for (size_t k = 0; k < 4; k++) {
			char body[512];
			struct mx_api_request r;
			struct mx_api_error e = {0};
			snprintf(body, sizeof(body),
			         "{'messages':[{'role':'user','content':'a'}],'tools':[%s]%s%s%s}",
			         cases[i].tools, k < 3 ? ",'tool_choice':'" : "", k < 3 ? choices[k] : "",
			         k < 3 ? "'" : "");
			struct mx_api_tokenize t;
			for (char *c = body; *c; c++)
				*c = *c == '\'' ? '"' : *c;
			mx_status s = k < 3 ? mx_api_parse(MX_API_CHAT, body, strlen(body), NULL, &r, &e)
			                    : mx_api_parse_tokenize(body, strlen(body), NULL, &t, &e);
			if ((s == MX_OK) != !cases[i].param || (s != MX_OK && strcmp(e.param, cases[i].param)))
				fail_msg("%s: %s: %s", body, e.param, e.message);
			if (s == MX_OK && k < 3)
				mx_api_request_free(&r);
			if (s == MX_OK && k == 3)
				mx_api_tokenize_free(&t);
		}
}

struct refusal {
	enum mx_api_kind kind;
	const char *body, *param, *code, *message; /* message: a part of it */
};

static void check_refusal(const struct refusal *c)
{
	struct mx_api_request r = {0};
	struct mx_api_error e;
	if (parse(c->kind, c->body, &r, &e) == MX_OK)
		fail_msg("accepted: %s", c->body);
	assert_int_equal(e.fault, MX_FAULT_INVALID);
	if (strcmp(e.param, c->param) || strcmp(e.code, c->code) || !strstr(e.message, c->message))
		fail_msg("%s: %s, %s, %s", c->body, e.param, e.code, e.message);
}

static void bad_requests_name_their_field(void **state)
{
	(void)state;
	static const struct refusal cases[] = {
		{MX_API_COMPLETION, "", "", "invalid_json", "the body is empty"},
		{MX_API_COMPLETION, "{\n 'prompt': }", "", "invalid_json", "line 2, column 12"},
		{MX_API_COMPLETION, "[1]", "", "invalid_type", "an array"},
		{MX_API_COMPLETION, "{'prompt':'a'} x", "", "invalid_json", "line 1"},
		{MX_API_COMPLETION, "{}", "prompt", "missing_required_parameter", "required"},
		{MX_API_COMPLETION, "{'prompt':7}", "prompt", "invalid_type", "an integer"},
		{MX_API_COMPLETION, "{'prompt':[]}", "prompt", "invalid_value", "empty"},
		{MX_API_COMPLETION, "{'prompt':[[]]}", "prompt", "invalid_value", "no tokens"},
		{MX_API_COMPLETION, "{'prompt':[1,'a']}", "prompt", "invalid_type", "element 1"},
		{MX_API_COMPLETION, "{'prompt':['a',1]}", "prompt", "invalid_type", "an integer"},
		{MX_API_COMPLETION, "{'prompt':[-1]}", "prompt", "invalid_value", "no token id"},
		{MX_API_COMPLETION, "{'prompt':[4294967296]}", "prompt", "invalid_value", "no token id"},
		{MX_API_COMPLETION, "{'prompt':'a','model':1}", "model", "invalid_type", "a string"},
		{MX_API_COMPLETION, "{'prompt':'a','temperature':'1'}", "temperature", "invalid_type",
	     "a number"},
		{MX_API_COMPLETION, "{'prompt':'a','temperature':2.5}", "temperature", "invalid_value",
	     "at most 2"},
		{MX_API_COMPLETION, "{'prompt':'a','temperature':-1}", "temperature", "invalid_value", "0"},
		{MX_API_COMPLETION, "{'prompt':'a','top_p':0}", "top_p", "invalid_value", "above 0"},
		{MX_API_COMPLETION, "{'prompt':'a','top_k':-2}", "top_k", "invalid_value", "-1"},
		{MX_API_COMPLETION, "{'prompt':'a','min_p':1.5}", "min_p", "invalid_value", "1"},
		{MX_API_COMPLETION, "{'prompt':'a','presence_penalty':3}", "presence_penalty",
	     "invalid_value", "2"},
		{MX_API_COMPLETION, "{'prompt':'a','repetition_penalty':0}", "repetition_penalty",
	     "invalid_value", "at least 0.01"},
		{MX_API_COMPLETION, "{'prompt':'a','repetition_penalty':1e-38}", "repetition_penalty",
	     "invalid_value", "at least 0.01"},
		{MX_API_COMPLETION, "{'prompt':'a','repeat_penalty':101}", "repeat_penalty",
	     "invalid_value", "at most 100"},
		{MX_API_COMPLETION, "{'prompt':'a','cache_salt':''}", "cache_salt", "invalid_value",
	     "between 1 and 1024 bytes"},
		{MX_API_COMPLETION, "{'prompt':'a','cache_salt':'a\\u0000b'}", "cache_salt",
	     "invalid_value", "NUL"},
		{MX_API_COMPLETION, "{'prompt':'a','n':0}", "n", "invalid_value", "between 1"},
		{MX_API_COMPLETION, "{'prompt':'a','n':129}", "n", "invalid_value", "128"},
		{MX_API_COMPLETION, "{'prompt':'a','n':1.5}", "n", "invalid_type", "an integer"},
		{MX_API_COMPLETION, "{'prompt':'a','best_of':2}", "best_of", "unsupported_parameter", "n"},
		{MX_API_COMPLETION, "{'prompt':'a','max_tokens':0}", "max_tokens", "invalid_value", "echo"},
		{MX_API_COMPLETION, "{'prompt':'a','max_tokens':-1}", "max_tokens", "invalid_value", "0"},
		{MX_API_COMPLETION, "{'prompt':'a','max_tokens':3000000000}", "max_tokens", "invalid_value",
	     "3000000000"},
		{MX_API_COMPLETION, "{'prompt':'a','max_tokens':4,'min_tokens':5}", "min_tokens",
	     "invalid_value", "above"},
		{MX_API_COMPLETION, "{'prompt':'a','logprobs':21}", "logprobs", "invalid_value", "20"},
		{MX_API_COMPLETION, "{'prompt':'a','logprobs':true}", "logprobs", "invalid_type",
	     "a boolean"},
		{MX_API_COMPLETION, "{'prompt':'a','stream':1}", "stream", "invalid_type", "a boolean"},
		{MX_API_COMPLETION, "{'prompt':'a','stream_options':{}}", "stream_options", "invalid_value",
	     "'stream'"},
		{MX_API_COMPLETION, "{'prompt':'a','stream':true,'stream_options':{'include_usage':'x'}}",
	     "stream_options.include_usage", "invalid_type", "'stream_options.include_usage'"},
		{MX_API_COMPLETION,
	     "{'prompt':'a','stream':true,'stream_options':{'continuous_usage_stats':1}}",
	     "stream_options.continuous_usage_stats", "invalid_type", "an integer"},
		{MX_API_COMPLETION, "{'prompt':'a','response_format':{'type':1}}", "response_format.type",
	     "invalid_type", "a string"},
		{MX_API_COMPLETION, "{'prompt':'a','n_predict':0}", "n_predict", "invalid_value",
	     "'n_predict'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'max_tokens':5,'max_completion_tokens':0}",
	     "max_completion_tokens", "invalid_value", "'max_completion_tokens'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'max_completion_tokens':2,'min_tokens':3}",
	     "min_tokens", "invalid_value", "'max_completion_tokens'"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':'a'}],'max_tokens':0}", "max_tokens",
	     "invalid_value", "'max_tokens'"},
		{MX_API_COMPLETION, "{'prompt':'a','stop':['']}", "stop", "invalid_value", "1 and"},
		{MX_API_COMPLETION, "{'prompt':'a','stop':[1]}", "stop", "invalid_type", "an integer"},
		{MX_API_COMPLETION, "{'prompt':'a','stop':{}}", "stop", "invalid_type", "an object"},
		{MX_API_COMPLETION, "{'prompt':'a','stop_token_ids':['x']}", "stop_token_ids",
	     "invalid_type", "a string"},
		{MX_API_COMPLETION, "{'prompt':'a','logit_bias':{'x':1}}", "logit_bias", "invalid_value",
	     "'x'"},
		{MX_API_COMPLETION, "{'prompt':'a','logit_bias':{'99999999999':1}}", "logit_bias",
	     "invalid_value", "no token id"},
		{MX_API_COMPLETION, "{'prompt':'a','logit_bias':{'1':101}}", "logit_bias", "invalid_value",
	     "100"},
		{MX_API_COMPLETION, "{'prompt':'a','logit_bias':[1]}", "logit_bias", "invalid_type",
	     "an object"},
		{MX_API_COMPLETION, "{'prompt':'a','suffix':'b'}", "suffix", "unsupported_parameter", ""},
		{MX_API_COMPLETION, "{'prompt':'a','response_format':{'type':'xml'}}", "response_format",
	     "unsupported_parameter", "'json_schema'"},
		{MX_API_CHAT, "{}", "messages", "missing_required_parameter", "required"},
		{MX_API_CHAT, "{'messages':[]}", "messages", "invalid_value", "empty"},
		{MX_API_CHAT, "{'messages':['a']}", "messages", "invalid_type", "a string"},
		{MX_API_CHAT, "{'messages':[{'role':'user'}]}", "messages", "missing_required_parameter",
	     "messages[0] has no 'content'"},
		{MX_API_CHAT, "{'messages':[{'role':'user','contnt':'a'}]}", "messages",
	     "missing_required_parameter", "did you mean it by 'contnt'?"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'},{'role':'assistant','content':null,"
	     "'tool_calls':[]}]}",
	     "messages", "missing_required_parameter", "messages[1] has no 'content'"},
		{MX_API_COMPLETION, "{'prompt':'a','seed':1,'seed':2}", "", "invalid_json", "seed"},
		{MX_API_COMPLETION, "{'prompt':'a','user':1e999,'n':1,'n':2}", "", "invalid_json",
	     "duplicate"},
		{MX_API_CHAT, "{'messages':[{'content':'a'}]}", "messages", "invalid_type", "role"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':1}]}", "messages", "invalid_type",
	     "message 0"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':[{'type':'image_url'}]}]}", "messages",
	     "unsupported_parameter", "image_url"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':'a'}],'top_logprobs':2}",
	     "top_logprobs", "invalid_value", "logprobs"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':'a'}],'logprobs':3}", "logprobs",
	     "invalid_type", "an integer"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':'a'}],'tool_choice':'required'}",
	     "tool_choice", "invalid_value", "no 'tools'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f'}}],'tool_"
	     "choice':'maybe'}",
	     "tool_choice", "invalid_value", "'required' or a tool"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f'}}],'tool_"
	     "choice':3}",
	     "tool_choice", "invalid_type", "an object"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f'}}],'tool_"
	     "choice':{'type':'function','function':{'name':'g'}}}",
	     "tool_choice", "invalid_value", "not among"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f'}}],'tool_"
	     "choice':{'type':'function'}}",
	     "tool_choice", "invalid_value", "the name of a tool"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f'}}],'tool_"
	     "choice':{'type':'allowed_tools'}}",
	     "tool_choice", "unsupported_parameter", "'function'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':"
	     "{'name':'f'}}],'parallel_tool_calls':0}",
	     "parallel_tool_calls", "invalid_type", "a boolean"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':'a'}],'reasoning_format':'x'}",
	     "reasoning_format", "invalid_value", "'deepseek'"},
		{MX_API_CHAT, "{'messages':[{'role':'user','content':'a'}],'chat_template':'x'}",
	     "chat_template", "unsupported_parameter", ""},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		check_refusal(&cases[i]);
}

static void salt_is_taken_whole_or_refused(void **state)
{
	(void)state;
	for (size_t n = MX_API_MAX_SALT; n <= MX_API_MAX_SALT + 1; n++) {
		char body[MX_API_MAX_SALT + 64];
		int len =
			snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"cache_salt\":\"%0*d\"}", (int)n, 7);
		struct mx_api_request r = {0};
		struct mx_api_error e = {0};
		mx_status s = mx_api_parse(MX_API_COMPLETION, body, (size_t)len, NULL, &r, &e);
		if (n <= MX_API_MAX_SALT) {
			assert_int_equal(s, MX_OK);
			assert_int_equal(strlen(r.cache_salt.s), n);
			mx_api_request_free(&r);
		} else {
			assert_int_equal(s, MX_E_INVALID);
			assert_int_equal(e.fault, MX_FAULT_INVALID);
			assert_string_equal(e.param, "cache_salt");
		}
	}
}

/* Numbers that do not fit an int64 or a double are errors only in fields that are read. */
static void huge_numbers_are_no_syntax_error(void **state)
{
	(void)state;
	struct mx_api_request r = {0};
	struct mx_api_error e = {0};
	static const char fine[] =
		"{'prompt':'a \\\\\\' 99999999999999999999','metadata':{'id':12345678901234567890123,"
		"'b':[-9223372036854775809,9223372036854775808,0.99999999999999999999,"
		"1e-0000000000000000000001,-99999999999999999999e2]},'seed':9223372036854775807,"
		"'user':'\\u00e4 18446744073709551616'}";
	if (parse(MX_API_COMPLETION, fine, &r, &e) != MX_OK)
		fail_msg("%s", e.message);
	assert_true(r.seed == INT64_MAX); /* exact */
	assert_string_equal(r.prompts[0].text.s, "a \\\" 99999999999999999999");
	assert_string_equal(json_string_value(json_object_get(r.root, "user")),
	                    "\xc3\xa4 18446744073709551616");
	const json_t *m = json_object_get(r.root, "metadata");
	assert_true(json_real_value(json_object_get(m, "id")) == 12345678901234567890123.0);
	const json_t *b = json_object_get(m, "b");
	assert_true(json_real_value(json_array_get(b, 0)) == -0x1p63);
	assert_true(json_real_value(json_array_get(b, 1)) == 0x1p63);
	assert_true(json_real_value(json_array_get(b, 3)) == 0.1);
	mx_api_request_free(&r);
	char body[4096], digits[401];
	memset(digits, '9', 400);
	digits[400] = 0;
	snprintf(body, sizeof(body),
	         "{'prompt':'%s 1e999 \\' %s','user':%s,'metadata':[-%s,1e400,-2E+999,1e-999,0.%s,"
	         "{'x':%s.%se-1}],'seed':5}",
	         digits, digits, digits, digits, digits, digits, digits);
	if (parse(MX_API_COMPLETION, body, &r, &e) != MX_OK)
		fail_msg("%s", e.message);
	assert_int_equal(r.prompts[0].text.len, 400 + 9 + 400);
	assert_true(json_real_value(json_object_get(r.root, "user")) == 1e308);
	const json_t *list = json_object_get(r.root, "metadata");
	assert_true(json_real_value(json_array_get(list, 0)) == -1e308);
	assert_true(json_real_value(json_array_get(list, 2)) == -1e308);
	assert_true(json_real_value(json_array_get(list, 3)) == 0);
	assert_true(json_real_value(json_array_get(list, 4)) == 1);
	assert_int_equal(r.seed, 5);
	mx_api_request_free(&r);
	static const struct refusal cases[] = {
		{MX_API_COMPLETION, "{'prompt':'a','seed':-1e999}", "seed", "invalid_value",
	     "but it is a number beyond 1e308"},
		{MX_API_COMPLETION, "{'prompt':'a','top_p':1e999}", "top_p", "invalid_value",
	     "at most 1, but it is a number beyond 1e308"},
		{MX_API_COMPLETION, "{'prompt':'a','logit_bias':{'5':-1e999}}", "logit_bias",
	     "invalid_value", "but it is a number beyond 1e308"},
		{MX_API_COMPLETION, "{'prompt':[1e999]}", "prompt", "invalid_value",
	     "a number beyond 64 bits at element 0"},
		{MX_API_COMPLETION, "{'prompt':'a','user':1e999-1}", "", "invalid_json", "line 1"},
		{MX_API_COMPLETION, "{'prompt':'a','user':01e999}", "", "invalid_json", "line 1"},
		{MX_API_COMPLETION, "{'prompt':'a','user':1e999.}", "", "invalid_json", "line 1"},
		{MX_API_COMPLETION, "{'prompt':'a','user':1e999,\n?}", "", "invalid_json", "line 2"},
		/* a template would see another number than was sent */
		{MX_API_CHAT, "{'messages':[{'role':'user','content':'a','n':{'big':[1,1e999]}}]}",
	     "messages", "invalid_value", "'big'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f','parameters':{'max':18446744073709551615}}}],'user'"
	     ":1e999}",
	     "tools", "invalid_value", "'max'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'documents':[18446744073709551615]}",
	     "documents", "invalid_value", "64 bits"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'chat_template_kwargs':{'k':-"
	     "9223372036854775809}}",
	     "chat_template_kwargs", "invalid_value", "'k'"},
		{MX_API_COMPLETION, "{'prompt':'a','seed':9223372036854775808}", "seed", "invalid_value",
	     "between"},
		{MX_API_COMPLETION, "{'prompt':'a','seed':-9223372036854775809}", "seed", "invalid_value",
	     "between"},
		{MX_API_COMPLETION, "{'prompt':'a','max_tokens':99999999999999999999}", "max_tokens",
	     "invalid_value", "2147483647"},
		{MX_API_COMPLETION, "{'prompt':'a','temperature':99999999999999999999}", "temperature",
	     "invalid_value", "at most 2"},
		{MX_API_COMPLETION, "{'prompt':[5,99999999999999999999]}", "prompt", "invalid_value",
	     "element 1"},
		{MX_API_COMPLETION, "{'prompt':'a','x':99999999999999999999,}", "", "invalid_json",
	     "line 1"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		check_refusal(&cases[i]);
}

static void invalid_utf8_is_refused_with_its_position(void **state)
{
	(void)state;
	static const char body[] = "{\"prompt\":\"a\xff\"}";
	struct mx_api_request r;
	struct mx_api_error e = {0};
	assert_int_equal(mx_api_parse(MX_API_COMPLETION, body, sizeof(body) - 1, NULL, &r, &e),
	                 MX_E_INVALID);
	assert_string_equal(e.code, "invalid_json");
	assert_non_null(strstr(e.message, "byte 12"));
}

static void tokenize_bodies(void **state)
{
	(void)state;
	struct mx_api_tokenize t;
	struct mx_api_detokenize d;
	struct mx_api_error e = {0};
#define BODY(s) s, strlen(s)
	assert_int_equal(mx_api_parse_tokenize(BODY("{\"prompt\":\"a\"}"), NULL, &t, &e), MX_OK);
	assert_true(t.add_special && !t.pieces);
	mx_api_tokenize_free(&t);
	assert_int_equal(
		mx_api_parse_tokenize(BODY("{\"content\":\"a\",\"with_pieces\":true}"), NULL, &t, &e),
		MX_OK);
	assert_true(!t.add_special && t.pieces);
	mx_api_tokenize_free(&t);
	assert_int_equal(
		mx_api_parse_tokenize(BODY("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"), NULL,
	                          &t, &e),
		MX_OK);
	assert_non_null(t.messages);
	mx_api_tokenize_free(&t);
	assert_int_equal(mx_api_parse_tokenize(BODY("{}"), NULL, &t, &e), MX_E_INVALID);
	assert_int_equal(mx_api_parse_detokenize(BODY("{\"tokens\":[1,2]}"), NULL, &d, &e), MX_OK);
	assert_int_equal(d.n_ids, 2);
	mx_api_detokenize_free(&d);
	assert_int_equal(mx_api_parse_detokenize(BODY("{\"tokens\":\"x\"}"), NULL, &d, &e),
	                 MX_E_INVALID);
	assert_string_equal(e.param, "tokens");
	assert_int_equal(mx_api_parse_detokenize(BODY("{}"), NULL, &d, &e), MX_E_INVALID);
#undef BODY
}

static void strings_are_always_valid_json(void **state)
{
	(void)state;
	struct mx_buf b = {0};
	mx_json_string(&b, "a\"\\\n\t\x01\x7f\xc3\xa9\xff\xf0\x9f\x98\x80\xe2\x82z\0", 18);
	assert_string_equal(mx_buf_str(&b),
	                    "\"a\\\"\\\\\\n\\t\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\xf0\x9f\x98\x80"
	                    "\xef\xbf\xbd\xef\xbf\xbdz\\u0000\"");
	mx_buf_clear(&b);
	/* surrogates, overlong forms and beyond U+10FFFF are malformed byte by byte */
	mx_json_escape(&b, "\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80", 9);
	assert_int_equal(b.len, 9 * 3);
	assert_int_equal(mx_utf8_count(b.data, b.len), 9);
	mx_buf_clear(&b);
	mx_json_int(&b, INT64_MIN);
	mx_buf_putc(&b, ' ');
	mx_json_float(&b, -INFINITY);
	mx_buf_putc(&b, ' ');
	mx_json_float(&b, NAN);
	mx_buf_putc(&b, ' ');
	mx_json_float(&b, -0.1f);
	assert_string_equal(mx_buf_str(&b), "-9223372036854775808 -9999 null -0.100000001");
	mx_buf_free(&b);
}

static void error_has_openai_shape(void **state)
{
	(void)state;
	struct mx_api_error e;
	struct mx_buf b = {0};
	assert_int_equal(
		mx_api_fail(&e, MX_FAULT_NOT_FOUND, "model_not_found", "model", "no \"%s\"", "x"),
		MX_E_NOTFOUND);
	mx_api_error_write(&b, &e);
	assert_string_equal(
		mx_buf_str(&b),
		"{\"error\":{\"message\":\"no \\\"x\\\"\",\"type\":\"invalid_request_error\","
		"\"param\":\"model\",\"code\":\"model_not_found\"}}");
	mx_buf_clear(&b);
	mx_api_fail(&e, MX_FAULT_INVALID, "context_length_exceeded", NULL, "long");
	e.n_prompt_tokens = 5000;
	e.n_ctx = 2048;
	mx_api_error_write(&b, &e);
	assert_non_null(strstr(mx_buf_str(&b), "\"param\":null"));
	assert_non_null(strstr(mx_buf_str(&b), "\"n_prompt_tokens\":5000,\"n_ctx\":2048"));
	mx_buf_free(&b);
}

/* A vocabulary for the tests: id 0 is half a character, 1 and 2 are both "a", the rest letters. */
static void token_bytes(void *arg, int32_t id, struct mx_buf *out)
{
	(void)arg;
	if (id == 0)
		mx_buf_append(out, "\xe2\x80", 2);
	else
		mx_buf_putc(out, id <= 2 ? 'a' : (char)('a' + id));
}

static json_t *load(const struct mx_buf *b)
{
	assert_false(b->failed);
	json_error_t e;
	json_t *v = json_loadb(mx_buf_str(b), b->len, JSON_REJECT_DUPLICATES, &e);
	if (!v)
		fail_msg("%s: %s", e.text, mx_buf_str(b));
	return v;
}

static void legacy_logprobs_serve_lm_eval(void **state)
{
	(void)state;
	const struct mx_api_vocab vocab = {token_bytes, NULL};
	const struct mx_top_token top[12] = {[3] = {1, -0.25f}, {2, -1}, {0, -2}, {1, -0.25f}};
	const struct mx_api_token tokens[] = {
		{.id = 5, .first = true},
		{.id = 1, .logprob = -0.25f, .text_offset = 1, .n_top = 3},
		{.id = 7, .logprob = -INFINITY, .text_offset = 2, .n_top = 1},
		{.id = 0, .logprob = -3, .text_offset = 3},
	};
	const struct mx_api_choice c = {
		.vocab = &vocab, .tokens = tokens, .n_tokens = 4, .top = top, .top_stride = 3};
	struct mx_api_cursor at = {0};
	struct mx_buf b = {0};
	struct mx_pieces p = mx_pieces_begin(&b, SIZE_MAX, &at);
	assert_true(mx_pieces_legacy_logprobs(&p, &c));
	mx_pieces_end(&p);
	json_t *v = load(&b);
	json_t *expected =
		json_loads("{\"tokens\":[\"f\",\"a\",\"h\",\"bytes:\\\\xe2\\\\x80\"],"
	               "\"token_logprobs\":[null,-0.25,-9999,-3],"
	               "\"top_logprobs\":[null,{\"a\":-0.25,\"bytes:\\\\xe2\\\\x80\":-2},"
	               "{\"a\":-0.25,\"h\":-9999},{\"bytes:\\\\xe2\\\\x80\":-3}],"
	               "\"text_offset\":[0,1,2,3]}",
	               0, NULL);
	assert_non_null(expected);
	if (!json_equal(v, expected))
		fail_msg("%s", mx_buf_str(&b));
	json_decref(v);
	json_decref(expected);
	mx_buf_free(&b);
}

static void chat_logprobs_carry_bytes(void **state)
{
	(void)state;
	const struct mx_api_vocab vocab = {token_bytes, NULL};
	const struct mx_top_token top[] = {{0, -0.5f}};
	const struct mx_api_token tokens[] = {{.id = 0, .logprob = -0.5f, .n_top = 1}};
	const struct mx_api_choice c = {
		.vocab = &vocab, .tokens = tokens, .n_tokens = 1, .top = top, .top_stride = 1};
	struct mx_api_cursor at = {0};
	struct mx_buf b = {0};
	struct mx_pieces p = mx_pieces_begin(&b, SIZE_MAX, &at);
	assert_true(mx_pieces_chat_logprobs(&p, &c));
	mx_pieces_end(&p);
	assert_string_equal(mx_buf_str(&b),
	                    "{\"content\":[{\"token\":\"\xef\xbf\xbd\xef\xbf\xbd\",\"logprob\":-0.5,"
	                    "\"bytes\":[226,128],\"top_logprobs\":[{\"token\":\"\xef\xbf\xbd\xef\xbf"
	                    "\xbd\",\"logprob\":-0.5,\"bytes\":[226,128]}]}]}");
	mx_buf_free(&b);
}

static void calls_and_reasoning_are_members_of_their_own(void **state)
{
	(void)state;
	const struct mx_api_call calls[] = {{.begins = true,
	                                     .ends = true,
	                                     .id = "i1",
	                                     .id_len = 2,
	                                     .name = "f",
	                                     .name_len = 1,
	                                     .arguments = "{\"a\":1}",
	                                     .len = 7},
	                                    {.index = 1,
	                                     .begins = true,
	                                     .id = "i2",
	                                     .id_len = 2,
	                                     .name = "g",
	                                     .name_len = 1,
	                                     .arguments = "{}",
	                                     .len = 2}};
	struct mx_api_choice c = {.text = "",
	                          .calls = calls,
	                          .n_calls = 2,
	                          .reasoning = "why",
	                          .reasoning_len = 3,
	                          .finish_reason = "tool_calls",
	                          .stop_token = -1};
	struct mx_api_head h;
	struct mx_buf b = {0};
	mx_api_head_init(&h, true, false, "id", 1, "m");
	mx_api_write_choice(&b, &h, &c, true, 0, NULL);
	assert_string_equal(mx_buf_str(&b),
	                    "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":null,"
	                    "\"reasoning_content\":\"why\",\"reasoning\":\"why\",\"tool_calls\":["
	                    "{\"id\":\"i1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
	                    "\"arguments\":\"{\\\"a\\\":1}\"}},"
	                    "{\"id\":\"i2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
	                    "\"arguments\":\"{}\"}}]},"
	                    "\"logprobs\":null,\"finish_reason\":\"tool_calls\",\"stop_reason\":null}");
	mx_buf_clear(&b);
	mx_buf_clear(&h.prefix);
	const struct mx_api_call parts[] = {
		{.index = 1, .begins = true, .id = "i2", .id_len = 2, .name = "g", .name_len = 1},
		{.index = 1, .arguments = "{}", .len = 2},
		{.index = 1, .ends = true}};
	static const char *const expected[] = {
		"{\"tool_calls\":[{\"index\":1,\"id\":\"i2\",\"type\":\"function\",\"function\":{"
		"\"name\":\"g\",\"arguments\":\"\"}}]}",
		"{\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]}", "{}"};
	for (size_t i = 0; i < 3; i++) {
		c = (struct mx_api_choice){.text = "", .calls = &parts[i], .n_calls = 1, .stop_token = -1};
		mx_buf_clear(&b);
		mx_api_write_event(&b, &h, &c, MX_USAGE_ABSENT, NULL, 0, NULL);
		char whole[256];
		snprintf(whole, sizeof(whole),
		         "data: {\"index\":0,\"delta\":%s,\"logprobs\":null,\"finish_reason\":null}]}\n\n",
		         expected[i]);
		assert_string_equal(mx_buf_str(&b), whole);
	}
	mx_buf_clear(&b);
	c = (struct mx_api_choice){.text = "", .reasoning = "so", .reasoning_len = 2, .stop_token = -1};
	mx_api_write_event(&b, &h, &c, MX_USAGE_ABSENT, NULL, 0, NULL);
	assert_string_equal(
		mx_buf_str(&b),
		"data: {\"index\":0,\"delta\":{\"reasoning_content\":\"so\",\"reasoning\":\"so\"},"
		"\"logprobs\":null,\"finish_reason\":null}]}\n\n");
	mx_buf_free(&b);
	mx_api_head_free(&h);
}

/* ---- pieces ---- */

/* A choice with everything that can be long. */
struct long_choice {
	struct mx_api_vocab vocab;
	struct mx_api_token tokens[700];
	struct mx_top_token top[700 * 20];
	int32_t ids[3000];
	struct mx_buf text;
	struct mx_api_call calls[200];
	struct mx_api_choice c;
};

static void make_long(struct long_choice *l)
{
	*l = (struct long_choice){.vocab = {token_bytes, NULL}};
	for (uint32_t i = 0; i < 700; i++) {
		l->tokens[i] = (struct mx_api_token){.id = (int32_t)(i % 26),
		                                     .logprob = -1.0f / (float)(i + 3),
		                                     .text_offset = i,
		                                     .n_top = (uint8_t)(i % 21),
		                                     .first = i == 0};
		for (uint32_t j = 0; j < 20; j++)
			l->top[i * 20 + j] = (struct mx_top_token){(int32_t)((i + j) % 26), -(float)j};
	}
	for (int32_t i = 0; i < 3000; i++)
		l->ids[i] = i * 7919;
	/* characters of every length, escapes, and bytes that are no UTF-8, at every alignment */
	static const char *const bits[] = {
		"a",    "\xc3\xa4", "\xe2\x82\xac",         "\xf0\x9f\x98\x80", "\"",
		"\x01", "\xff",     "\x80\x80\x80\x80\x80", "\xf0\x9f"};
	for (int i = 0; i < 9000; i++)
		mx_buf_puts(&l->text, bits[(i * 5 + i / 9) % 9]);
	for (uint32_t i = 0; i < 200; i++)
		l->calls[i] = (struct mx_api_call){.index = i,
		                                   .begins = true,
		                                   .id = "call_x",
		                                   .id_len = 6,
		                                   .name = "name",
		                                   .name_len = 4,
		                                   .arguments = l->text.data,
		                                   .len = i * 7 % 3000};
	l->c = (struct mx_api_choice){.index = 3,
	                              .reasoning = l->text.data,
	                              .reasoning_len = l->text.len / 2,
	                              .calls = l->calls,
	                              .n_calls = 200,
	                              .text = l->text.data,
	                              .len = l->text.len,
	                              .vocab = &l->vocab,
	                              .tokens = l->tokens,
	                              .n_tokens = 700,
	                              .top = l->top,
	                              .top_stride = 20,
	                              .finish_reason = "length",
	                              .stop_token = -1,
	                              .ids = l->ids,
	                              .n_ids = 3000,
	                              .prompt_ids = l->ids,
	                              .n_prompt_ids = 2999};
}

static const char *spelling(void *arg, int32_t id)
{
	(void)arg;
	return id % 3 ? "\xc4\xa0piece" : NULL;
}

/* Writes answer `kind` into b, in pieces of at most about `max` bytes, or at once if max is 0. */
static bool write_kind(int kind, const struct long_choice *l, struct mx_buf *b, size_t max,
                       struct mx_api_cursor *at)
{
	const struct mx_api_usage usage = {.prompt = 1, .cached = 2, .completion = 3};
	struct mx_api_head h;
	mx_api_head_init(&h, kind % 2, kind < 4, "id", 1, "m");
	const struct mx_api_tokens tokens = {l->ids, 3000, 7, kind == 6 ? spelling : NULL, NULL};
	struct mx_api_choice c = l->c;
	bool all = false;
	switch (kind) {
	case 0:
	case 1: all = mx_api_write_choice(b, &h, &c, false, max, at); break;
	case 2: all = mx_api_write_event(b, &h, &c, MX_USAGE_COUNTS, &usage, max, at); break;
	case 3:
		c.finish_reason = NULL;
		all = mx_api_write_event(b, &h, &c, MX_USAGE_COUNTS, &usage, max, at);
		break;
	case 4: /* of a completion there is none, but nobody minds */
	case 5: all = mx_api_write_role(b, &h, &c, MX_USAGE_NULL, NULL, max, at); break;
	case 6:
	case 7: all = mx_api_write_tokens(b, &tokens, max, at); break;
	default: all = mx_api_write_text(b, c.text, c.len, max, at);
	}
	mx_api_head_free(&h);
	return all;
}

static void pieces_are_small_and_make_the_whole(void **state)
{
	(void)state;
	struct long_choice *l = malloc(sizeof(*l));
	assert_non_null(l);
	make_long(l);
	for (int kind = 0; kind <= 8; kind++) {
		struct mx_buf whole = {0};
		assert_true(write_kind(kind, l, &whole, 0, NULL));
		for (size_t max = 1; max <= 65536; max *= 16) {
			struct mx_buf b = {0}, piece = {0};
			struct mx_api_cursor at = {0};
			bool all = false;
			size_t n = 0;
			while (!all) {
				mx_buf_clear(&piece);
				all = write_kind(kind, l, &piece, max, &at);
				mx_buf_append(&b, mx_buf_str(&piece), piece.len);
				assert_true(all || piece.len > 0);
				/* an element, or a slice of 1024 characters of which each may become six */
				assert_true(piece.len <= max + 6 * 1024 + 256);
				assert_true(++n < 100000);
			}
			assert_int_equal(at.part + at.section + at.at, 0);
			assert_true(n >= whole.len / (max + 6 * 1024 + 256));
			assert_false(b.failed);
			assert_string_equal(mx_buf_str(&b), mx_buf_str(&whole));
			mx_buf_free(&b);
			mx_buf_free(&piece);
		}
		mx_buf_free(&whole);
	}
	mx_buf_free(&l->text);
	free(l);
}

/* ---- the cost of parsing ---- */

static size_t heap, peak; /* bytes that jansson has, and the most that it had */

static void *counting_malloc(size_t n)
{
	void *p = malloc(n);
	heap += p ? malloc_usable_size(p) + 8 : 0;
	peak = heap > peak ? heap : peak;
	return p;
}

static void counting_free(void *p)
{
	heap -= p ? malloc_usable_size(p) + 8 : 0;
	free(p);
}

/* Parses a body as each route does, and compares what jansson took with what was foretold. */
static double check_cost(const struct mx_buf *body)
{
	heap = peak = 0;
	json_set_alloc_funcs(counting_malloc, counting_free);
	uint64_t cost = mx_parse_cost(body->data, body->len);
	struct mx_api_error e;
	struct mx_api_request r;
	struct mx_api_unknown u = {.allow = true};
	struct mx_api_detokenize d;
	size_t arena = 0;
	if (mx_api_parse(MX_API_COMPLETION, body->data, body->len, &u, &r, &e) == MX_OK) {
		arena = r.arena.used;
		mx_api_request_free(&r);
	}
	if (mx_api_parse(MX_API_CHAT, body->data, body->len, &u, &r, &e) == MX_OK)
		mx_api_request_free(&r);
	if (mx_api_parse_detokenize(body->data, body->len, &u, &d, &e) == MX_OK)
		mx_api_detokenize_free(&d);
	json_set_alloc_funcs(malloc, free);
	assert_int_equal(heap, 0);
	if (peak + arena > cost)
		fail_msg("%.40s...: %zu bytes, cost %llu, taken %zu", body->data, body->len,
		         (unsigned long long)cost, peak + arena);
	return (double)cost / (double)(peak + arena);
}

static void parsing_costs_what_was_foretold(void **state)
{
	(void)state;
	static const struct {
		const char *head, *unit, *tail;
	} shapes[] = {
		{"{\"prompt\":[1", ",1", "]}"},
		{"{\"prompt\":[12345", ", 12345", "]}"},
		{"{\"prompt\":[1", ",-1.5e3", "]}"},
		{"{\"prompt\":[[1]", ",[1]", "]}"},
		{"{\"prompt\":[\"\"", ",\"\"", "]}"},
		{"{\"prompt\":[\"\"", ",\"some words\"", "]}"},
		{"{\"prompt\":[true", ",true", "]}"},
		{"{\"prompt\":[{}", ",{}", "]}"},
		{"{\"prompt\":[[]", ",[]", "]}"},
		{"{\"prompt\":[{}", ",{\"a\":[{\"b\":\"\"}]}", "]}"},
		{"{\"prompt\":\"", "x", "\"}"},
		{"{\"prompt\":\"", "\\u00e4\\n", "\"}"},
		{"{\"tokens\":[1", ",2", "]}"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[", "", "]}]}"},
		{"{\"messages\":[{\"role\":\"user\"}", ",{\"role\":\"user\",\"content\":\"x\"}", "]}"},
		{"{\"prompt\":[1", ",1", ""},
		{"", "[", ""},
		{"", "{\"a\":", ""},
	};
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
		double loosest = 0;
		for (int n = 1; n < 300000; n = n * 3 + 1) {
			struct mx_buf b = {0};
			mx_buf_puts(&b, shapes[i].head);
			for (int k = 0; k < n; k++)
				mx_buf_puts(&b, shapes[i].unit);
			mx_buf_puts(&b, shapes[i].tail);
			loosest = check_cost(&b);
			mx_buf_free(&b);
		}
		print_message("%s%s: foretold %.1f times what was taken\n", shapes[i].head, shapes[i].unit,
		              loosest);
	}
	/* different keys: buckets grow */
	struct mx_buf b = {0};
	mx_buf_puts(&b, "{\"prompt\":\"\"");
	for (int k = 0; k < 100000; k++)
		mx_buf_printf(&b, ",\"%x\":%d", k, k);
	mx_buf_putc(&b, '}');
	check_cost(&b);
	mx_buf_free(&b);
}

static void responses_and_events(void **state)
{
	(void)state;
	struct mx_api_head h;
	struct mx_buf b = {0};
	const struct mx_api_usage usage = {.prompt = 7, .cached = 4, .completion = 3};
	struct mx_api_choice c = {.text = "x", .len = 1, .finish_reason = "stop", .stop_token = 2};

	mx_api_head_init(&h, false, false, "cmpl-1", 5, "m");
	mx_api_write_begin(&b, &h);
	mx_api_write_choice(&b, &h, &c, true, 0, NULL);
	c.index = 1;
	c.stop_text = "END";
	c.stop_len = 3;
	mx_api_write_choice(&b, &h, &c, false, 0, NULL);
	mx_api_write_end(&b, &usage);
	json_t *v = load(&b);
	const char *id, *object, *t1, *reason;
	int created, stop0, total, cached;
	assert_int_equal(json_unpack(v, "{s:s,s:s,s:i,s:[{s:i},{s:s,s:s}],s:{s:i,s:{s:i}}}", "id", &id,
	                             "object", &object, "created", &created, "choices", "stop_reason",
	                             &stop0, "text", &t1, "stop_reason", &reason, "usage",
	                             "total_tokens", &total, "prompt_tokens_details", "cached_tokens",
	                             &cached),
	                 0);
	assert_string_equal(object, "text_completion");
	assert_string_equal(reason, "END");
	assert_int_equal(stop0, 2);
	assert_int_equal(total, 10);
	assert_int_equal(cached, 4);
	json_decref(v);
	mx_api_head_free(&h);

	mx_buf_clear(&b);
	mx_api_head_init(&h, true, true, "chatcmpl-1", 5, "m");
	c = (struct mx_api_choice){.stop_token = -1, .text = "\"", .len = 1};
	mx_api_write_role(&b, &h, &c, MX_USAGE_NULL, NULL, 0, NULL);
	mx_api_write_event(&b, &h, &c, MX_USAGE_ABSENT, NULL, 0, NULL);
	c.finish_reason = "length";
	mx_api_write_event(&b, &h, &c, MX_USAGE_NULL, NULL, 0, NULL);
	mx_api_write_usage_event(&b, &h, &usage);
	assert_string_equal(
		mx_buf_str(&b),
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
		"\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\\\"\"},\"logprobs\":null,"
		"\"finish_reason\":null}]}\n\n"
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":"
		"\"length\",\"stop_reason\":null}],\"usage\":null}\n\n"
		"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":"
		"\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,"
		"\"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n");
	mx_api_head_free(&h);
	mx_buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(silent_request_has_documented_defaults),
		cmocka_unit_test(every_field_arrives),
		cmocka_unit_test(synonyms_mean_the_same),
		cmocka_unit_test(text_parts_are_kept_and_arguments_opened),
		cmocka_unit_test(tools_are_checked),
		cmocka_unit_test(bad_requests_name_their_field),
		cmocka_unit_test(salt_is_taken_whole_or_refused),
		cmocka_unit_test(huge_numbers_are_no_syntax_error),
		cmocka_unit_test(invalid_utf8_is_refused_with_its_position),
		cmocka_unit_test(tokenize_bodies),
		cmocka_unit_test(strings_are_always_valid_json),
		cmocka_unit_test(error_has_openai_shape),
		cmocka_unit_test(legacy_logprobs_serve_lm_eval),
		cmocka_unit_test(chat_logprobs_carry_bytes),
		cmocka_unit_test(calls_and_reasoning_are_members_of_their_own),
		cmocka_unit_test(pieces_are_small_and_make_the_whole),
		cmocka_unit_test(parsing_costs_what_was_foretold),
		cmocka_unit_test(responses_and_events),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
