/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenAI codec: what is accepted, and how the rest is refused. test_response.c has what is
 * written.
 */
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
#include "proto/request.h"

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

/* allowed_tools leaves those tools, and asks for one of them or not. */
static void allowed_tools_remain(void **state)
{
	(void)state;
	for (int required = 0; required < 2; required++) {
		struct mx_api_request r;
		struct mx_api_error e;
		char body[512];
		snprintf(body, sizeof(body),
		         "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function',"
		         "'function':{'name':'f'}},{'type':'function','function':{'name':'g'}}],"
		         "'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'%s','tools':"
		         "[{'type':'function','function':{'name':'g'}}]}}}",
		         required ? "required" : "auto");
		assert_int_equal(parse(MX_API_CHAT, body, &r, &e), MX_OK);
		assert_int_equal(json_array_size(r.tools), 1);
		const json_t *function = json_object_get(json_array_get(r.tools, 0), "function");
		assert_string_equal(json_string_value(json_object_get(function, "name")), "g");
		assert_int_equal(r.must_call, required);
		assert_null(r.call_name);
		mx_api_request_free(&r);
	}
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
	     "choice':{'type':'custom'}}",
	     "tool_choice", "unsupported_parameter", "'function'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f'}}],'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'any'}}}",
	     "tool_choice.allowed_tools.mode", "invalid_value", "'required'"},
		{MX_API_CHAT,
	     "{'messages':[{'role':'user','content':'a'}],'tools':[{'type':'function','function':{'"
	     "name':'f'}}],'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'auto',"
	     "'tools':[{'type':'function','function':{'name':'g'}}]}}}",
	     "tool_choice.allowed_tools.tools", "invalid_value", "'g'"},
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
		for (int n = 1; n < 100000; n = n * 3 + 1) {
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
	for (int k = 0; k < 30000; k++)
		mx_buf_printf(&b, ",\"%x\":%d", k, k);
	mx_buf_putc(&b, '}');
	check_cost(&b);
	mx_buf_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(silent_request_has_documented_defaults),
		cmocka_unit_test(every_field_arrives),
		cmocka_unit_test(synonyms_mean_the_same),
		cmocka_unit_test(text_parts_are_kept_and_arguments_opened),
		cmocka_unit_test(allowed_tools_remain),
		cmocka_unit_test(tools_are_checked),
		cmocka_unit_test(bad_requests_name_their_field),
		cmocka_unit_test(salt_is_taken_whole_or_refused),
		cmocka_unit_test(huge_numbers_are_no_syntax_error),
		cmocka_unit_test(invalid_utf8_is_refused_with_its_position),
		cmocka_unit_test(tokenize_bodies),
		cmocka_unit_test(parsing_costs_what_was_foretold),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
