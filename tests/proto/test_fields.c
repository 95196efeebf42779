/* SPDX-License-Identifier: Apache-2.0 */
/* Which fields a request may have: read, ignored, refused by name, unknown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "proto/request.h"

enum route { COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE };

/* Parses a body of the route that has one more member, with single quotes for double ones. */
static mx_status take(enum route route, const char *member, struct mx_api_unknown *unknown,
                      struct mx_api_error *err)
{
	static const char *const bodies[] = {"{'prompt':'a',%s}",
	                                     "{'messages':[{'role':'user','content':'a'}],%s}",
	                                     "{'prompt':'a',%s}", "{'tokens':[1],%s}"};
	char body[1024];
	int n = snprintf(body, sizeof(body), bodies[route], member);
	for (int i = 0; i < n; i++)
		body[i] = body[i] == '\'' ? '"' : body[i];
	struct mx_api_request r = {0};
	struct mx_api_tokenize t = {0};
	struct mx_api_detokenize d = {0};
	mx_status s;
	*err = (struct mx_api_error){0};
	switch (route) {
	case TOKENIZE: s = mx_api_parse_tokenize(body, (size_t)n, unknown, &t, err); break;
	case DETOKENIZE: s = mx_api_parse_detokenize(body, (size_t)n, unknown, &d, err); break;
	default:
		s = mx_api_parse(route == CHAT ? MX_API_CHAT : MX_API_COMPLETION, body, (size_t)n, unknown,
		                 &r, err);
	}
	mx_api_request_free(&r);
	mx_api_tokenize_free(&t);
	mx_api_detokenize_free(&d);
	return s;
}

/* On success the member was taken; else the error names `param`, and its message has `part`. */
static void check_refused(enum route route, const char *member, const char *code, const char *param,
                          const char *part)
{
	struct mx_api_error e;
	if (take(route, member, NULL, &e) == MX_OK)
		fail_msg("accepted: %s", member);
	if (e.fault != MX_FAULT_INVALID || strcmp(e.code, code) || strcmp(e.param, param) ||
	    !strstr(e.message, part))
		fail_msg("%s: %d, %s, %s, %s", member, (int)e.fault, e.code, e.param, e.message);
}

static void misspelt_fields_get_the_closest_name(void **state)
{
	(void)state;
	static const struct {
		enum route route;
		const char *member, *param, *part;
	} cases[] = {
		{COMPLETIONS, "'temperatur':0.5", "temperatur", "did you mean 'temperature'?"},
		{CHAT, "'max_token':5", "max_token", "did you mean 'max_tokens'?"},
		{CHAT, "'maxTokens':5", "maxTokens", "did you mean 'max_tokens'?"},
		{CHAT, "'tool_choise':'auto'", "tool_choise", "did you mean 'tool_choice'?"},
		{COMPLETIONS, "'Temperature':1", "Temperature", "did you mean 'temperature'?"},
		{COMPLETIONS, "'frobnicate':{'x':[1]}", "frobnicate", "unknown field 'frobnicate'"},
		{COMPLETIONS, "'':1", "", "unknown field ''"},
		{COMPLETIONS, "'stream':true,'stream_options':{'include_usag':true}",
	     "stream_options.include_usag", "did you mean 'include_usage'?"},
		{TOKENIZE, "'add_special_token':true", "add_special_token", "'add_special_tokens'?"},
		{TOKENIZE, "'temperature':1", "temperature", "this route does not take the field"},
		{COMPLETIONS, "'tokens':[1]", "tokens", "this route does not take the field"},
		{DETOKENIZE, "'skip_special_token':true", "skip_special_token", "'skip_special_tokens'?"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		check_refused(cases[i].route, cases[i].member, "unknown_parameter", cases[i].param,
		              cases[i].part);
	/* no name is close to no or one letter */
	struct mx_api_error e;
	for (int i = 0; i < 2; i++) {
		assert_int_equal(take(COMPLETIONS, i ? "'x':1" : "'':1", NULL, &e), MX_E_INVALID);
		assert_null(strstr(e.message, "did you mean"));
	}
	/* names of any length and content */
	char member[512];
	snprintf(member, sizeof(member), "'%0300d':1", 7);
	assert_int_equal(take(CHAT, member, NULL, &e), MX_E_INVALID);
	assert_string_equal(e.code, "unknown_parameter");
}

static void fields_that_change_the_meaning_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		enum route route;
		const char *member, *param, *part;
	} cases[] = {
		{COMPLETIONS, "'allowed_token_ids':[1]", "allowed_token_ids", "'logit_bias'"},
		{CHAT, "'bad_words':['a']", "bad_words", "'logit_bias'"},
		{CHAT, "'prompt_logprobs':0", "prompt_logprobs", "'echo'"},
		{COMPLETIONS, "'use_beam_search':true", "use_beam_search", "'n'"},
		{COMPLETIONS, "'truncate_prompt_tokens':-1", "truncate_prompt_tokens", "/tokenize"},
		{COMPLETIONS, "'typical_p':0.9", "typical_p", "samplers"},
		{CHAT, "'functions':[{'name':'f'}]", "functions", "'tools'"},
		{CHAT, "'function_call':{'name':'f'}", "function_call", "'tools'"},
		{CHAT, "'echo':true", "echo", "/v1/completions"},
		{CHAT, "'continue_final_message':true", "continue_final_message", "/v1/completions"},
		{COMPLETIONS, "'reasoning_effort':'low'", "reasoning_effort", "/v1/chat/completions"},
		{CHAT, "'reasoning':{'effort':'low'}", "reasoning", "'chat_template_kwargs'"},
		{CHAT, "'modalities':['text','audio']", "modalities", "text only"},
		{CHAT, "'modalities':['audio']", "modalities", "text only"},
		{CHAT, "'verbosity':'low'", "verbosity", "messages"},
		{COMPLETIONS, "'n_probs':5", "n_probs", "'logprobs'"},
		{COMPLETIONS, "'mirostat':2", "mirostat", "samplers"},
		{COMPLETIONS, "'max_new_tokens':5", "max_new_tokens", "'max_tokens'"},
		{COMPLETIONS, "'structural_tag':{'x':1}", "structural_tag", "from its first token"},
		{CHAT, "'grammar_lazy':true", "grammar_lazy", "from its first token"},
		{CHAT, "'structured_outputs':{'regex':'a','whitespace_pattern':' '}",
	     "structured_outputs.whitespace_pattern", "whitespace"},
		{CHAT, "'format':'json'", "format", "'response_format'"},
		{COMPLETIONS, "'messages':[{'role':'user'}]", "messages", "/v1/chat/completions"},
		{CHAT, "'prompt':'a'", "prompt", "/v1/completions"},
		{COMPLETIONS, "'repeat_last_n':64", "repeat_last_n", "-1"},
		{COMPLETIONS, "'stream':true,'stream_options':{'include_obfuscation':true}",
	     "stream_options.include_obfuscation", "padded"},
		{TOKENIZE, "'parse_special':false", "parse_special", "special"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		check_refused(cases[i].route, cases[i].member, "unsupported_parameter", cases[i].param,
		              cases[i].part);
}

static void harmless_fields_and_neutral_values_are_taken(void **state)
{
	(void)state;
	static const struct {
		enum route route;
		const char *member;
	} cases[] = {
		{CHAT, "'metadata':{'a':'b'},'user':'u','store':true,'service_tier':'flex',"
	           "'safety_identifier':'x','prompt_cache_key':'k','prompt_cache_retention':'24h',"
	           "'prompt_cache_options':{},'request_id':'r','prediction':{'type':'content','content'"
	           ":'x'}"},
		/* what clients send as defaults */
		{CHAT, "'use_beam_search':false,'best_of':1,'truncate_prompt_tokens':null,'typical_p':1,"
	           "'functions':[],'bad_words':[],'prompt_logprobs':null,'length_penalty':1.0,"
	           "'guided_json':null,'response_format':{'type':'text'},'modalities':['text'],"
	           "'parallel_tool_calls':false,'audio':null,'function_call':'none',"
	           "'verbosity':'medium','tool_choice':'auto','tools':[],'documents':[]"},
		{CHAT, "'allowed_token_ids':null,'echo':false,'continue_final_message':false,"
	           "'chat_template':null,'return_hidden_states':false,'logprob_token_ids':[],"
	           "'spaces_between_special_tokens':true,'include_reasoning':true,'lora_path':null,"
	           "'separate_reasoning':false,'reasoning_effort':null,'web_search_options':null"},
		/* what the SGLang model gateway adds to every request */
		{CHAT, "'logprobs':false,'no_stop_trim':false,'ignore_eos':false,"
	           "'continue_final_message':false,'skip_special_tokens':true,"
	           "'separate_reasoning':true,'stream_reasoning':true,'return_hidden_states':false"},
		{COMPLETIONS, "'echo':false,'no_stop_trim':false,'ignore_eos':false,"
	                  "'skip_special_tokens':true,'return_hidden_states':false"},
		/* llama-server's web page and its friends */
		{COMPLETIONS, "'cache_prompt':true,'n_keep':0,'repeat_last_n':-1,'mirostat':0,"
	                  "'mirostat_tau':5,'dry_multiplier':0,'dry_base':1.75,'xtc_probability':0,"
	                  "'xtc_threshold':0.1,'dynatemp_range':0,'dynatemp_exponent':1,'n_probs':0,"
	                  "'min_keep':0,'grammar':'','samplers':[],'id_slot':-1,'typical_p':1.0,"
	                  "'top_n_sigma':-1,'t_max_predict_ms':0,'timings_per_token':false"},
		{COMPLETIONS, "'suffix':'','n':2,'best_of':2,'stream':true,"
	                  "'stream_options':{'include_usage':true,'include_obfuscation':false}"},
		{TOKENIZE, "'parse_special':true,'add_special':false,'with_pieces':false,'user':'u'"},
		{DETOKENIZE, "'skip_special_tokens':true,'spaces_between_special_tokens':false"},
		/* null is "absent", whatever the name */
		{COMPLETIONS, "'temperatur':null"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mx_api_error e;
		struct mx_api_unknown unknown = {.allow = true};
		if (take(cases[i].route, cases[i].member, NULL, &e) != MX_OK)
			fail_msg("%s: %s", cases[i].member, e.message);
		assert_int_equal(take(cases[i].route, cases[i].member, &unknown, &e), MX_OK);
		assert_string_equal(unknown.text, "");
	}
}

/* Unknown fields may be let through; known ones that ask for something else may not. */
static void unknown_fields_may_be_allowed(void **state)
{
	(void)state;
	struct mx_api_error e;
	for (enum route route = COMPLETIONS; route <= DETOKENIZE; route++) {
		struct mx_api_unknown unknown = {.allow = true};
		assert_int_equal(take(route, "'frob':1,'mode':2", &unknown, &e), MX_OK);
		assert_non_null(strstr(unknown.text, "unknown field '"));
		unknown = (struct mx_api_unknown){0};
		assert_int_equal(take(route, "'frob':1", &unknown, &e), MX_E_INVALID);
	}
	struct mx_api_unknown unknown = {.allow = true};
	assert_int_equal(take(COMPLETIONS, "'use_beam_search':true", &unknown, &e), MX_E_INVALID);
	unknown = (struct mx_api_unknown){.allow = true};
	assert_int_equal(take(CHAT, "'stream':true,'stream_options':{'frob':1}", &unknown, &e), MX_OK);
	assert_non_null(strstr(unknown.text, "'stream_options.frob'"));
}

static bool reads_thinking(void *arg, const char *name)
{
	(void)arg;
	return !strcmp(name, "thinking") || !strcmp(name, "my_own");
}

/* Checks a message with that member beside role and content. */
static mx_status take_member(const char *member, struct mx_api_unknown *unknown,
                             struct mx_api_error *err)
{
	static const struct mx_api_reader reader = {reads_thinking, NULL};
	char text[256];
	int n = snprintf(text, sizeof(text), "{'role':'user','content':'a',%s}", member);
	for (int i = 0; i < n; i++)
		text[i] = text[i] == '\'' ? '"' : text[i];
	json_t *message = json_loads(text, 0, NULL);
	assert_non_null(message);
	*err = (struct mx_api_error){0};
	mx_status s = mx_api_check_message(message, "messages[7]", &reader, unknown, err);
	json_decref(message);
	return s;
}

static void members_of_messages_are_checked(void **state)
{
	(void)state;
	static const char *const good[] = {
		"'name':'n','tool_call_id':'c','tool_calls':[]",
		/* an answer of OpenAI's, sent back */
		"'refusal':null,'annotations':[],'audio':null,'function_call':null,'parsed':null",
		"'cache_control':{'type':'ephemeral'}",
		"'prefix':false,'partial':false,'images':[]",
		/* what this template reads */
		"'thinking':'so','my_own':{'x':1}",
		"'frobnicate':null",
	};
	static const struct {
		const char *member, *code, *param, *part;
	} bad[] = {
		{"'nam':'n'", "unknown_parameter", "messages[7].nam", "did you mean 'name'?"},
		{"'toolcalls':[]", "unknown_parameter", "messages[7].toolcalls", "'tool_calls'?"},
		{"'frobnicate':1", "unknown_parameter", "messages[7].frobnicate", "unknown field"},
		{"'temperature':1", "unknown_parameter", "messages[7].temperature", "does not take"},
		{"'reasoning_content':'so'", "unsupported_parameter", "messages[7].reasoning_content",
	     "chat template never looks at it"},
		{"'images':['x']", "unsupported_parameter", "messages[7].images", "text only"},
		{"'prefix':true", "unsupported_parameter", "messages[7].prefix", "/v1/completions"},
	};
	struct mx_api_error e;
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		if (take_member(good[i], NULL, &e) != MX_OK)
			fail_msg("%s: %s", good[i], e.message);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (take_member(bad[i].member, NULL, &e) == MX_OK)
			fail_msg("accepted: %s", bad[i].member);
		if (e.fault != MX_FAULT_INVALID || strcmp(e.code, bad[i].code) ||
		    strcmp(e.param, bad[i].param) || !strstr(e.message, bad[i].part))
			fail_msg("%s: %s, %s, %s", bad[i].member, e.code, e.param, e.message);
	}
	struct mx_api_unknown unknown = {.allow = true};
	assert_int_equal(take_member("'nam':'n'", &unknown, &e), MX_OK);
	assert_non_null(strstr(unknown.text, "'messages[7].nam'"));
	assert_int_equal(take_member("'prefix':true", &unknown, &e), MX_E_INVALID);
}

static void reasoning_effort_is_a_string_and_there_once(void **state)
{
	(void)state;
	check_refused(CHAT, "'reasoning_effort':1", "invalid_type", "reasoning_effort", "a string");
	check_refused(CHAT,
	              "'reasoning_effort':'low','chat_template_kwargs':{'reasoning_effort':'high'}",
	              "invalid_value", "reasoning_effort", "twice");
	struct mx_api_error e;
	assert_int_equal(take(CHAT, "'reasoning_effort':'low'", NULL, &e), MX_OK);
	assert_int_equal(take(TOKENIZE, "'reasoning_effort':'low'", NULL, &e), MX_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(misspelt_fields_get_the_closest_name),
		cmocka_unit_test(fields_that_change_the_meaning_are_refused_by_name),
		cmocka_unit_test(harmless_fields_and_neutral_values_are_taken),
		cmocka_unit_test(unknown_fields_may_be_allowed),
		cmocka_unit_test(members_of_messages_are_checked),
		cmocka_unit_test(reasoning_effort_is_a_string_and_there_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
