/* SPDX-License-Identifier: Apache-2.0 */
/* The fields that say what the output must look like, in the spellings of several servers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "proto/request.h"

/* Parses a completion with one more member, with single quotes for double ones. */
static mx_status take(const char *member, struct mx_api_request *out, struct mx_api_error *err)
{
	char body[1024];
	int n = snprintf(body, sizeof(body), "{'prompt':'a',%s}", member);
	for (int i = 0; i < n; i++)
		body[i] = body[i] == '\'' ? '"' : body[i];
	*out = (struct mx_api_request){0};
	*err = (struct mx_api_error){0};
	return mx_api_parse(MX_API_COMPLETION, body, (size_t)n, NULL, out, err);
}

static bool is(const struct mx_api_text *t, const char *s)
{
	return t->len == strlen(s) && !memcmp(t->s, s, t->len);
}

static void every_spelling_is_read(void **state)
{
	(void)state;
	static const struct {
		const char *member;
		enum mx_constraint_kind kind;
		const char *field, *text;
	} cases[] = {
		{"'response_format':{'type':'json_object'}", MX_CONSTRAINT_JSON_OBJECT, "response_format",
	     NULL},
		{"'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':true,"
	     "'description':'d','schema':{'type':'object'}}}",
	     MX_CONSTRAINT_JSON_SCHEMA, "response_format.json_schema.schema", NULL},
		{"'response_format':{'type':'json_object','schema':{'type':'object'}}",
	     MX_CONSTRAINT_JSON_SCHEMA, "response_format.schema", NULL},
		{"'structured_outputs':{'json':{'type':'object'}}", MX_CONSTRAINT_JSON_SCHEMA,
	     "structured_outputs.json", NULL},
		{"'structured_outputs':{'json':'{}'}", MX_CONSTRAINT_JSON_SCHEMA, "structured_outputs.json",
	     "{}"},
		{"'structured_outputs':{'json_object':true}", MX_CONSTRAINT_JSON_OBJECT,
	     "structured_outputs.json_object", NULL},
		{"'structured_outputs':{'regex':'a+','json':null,'disable_fallback':true}",
	     MX_CONSTRAINT_REGEX, "structured_outputs.regex", "a+"},
		{"'structured_outputs':{'choice':['a','b']}", MX_CONSTRAINT_CHOICE,
	     "structured_outputs.choice", NULL},
		{"'structured_outputs':{'grammar':'g'}", MX_CONSTRAINT_GRAMMAR,
	     "structured_outputs.grammar", "g"},
		{"'guided_json':{}", MX_CONSTRAINT_JSON_SCHEMA, "guided_json", NULL},
		{"'guided_json':true", MX_CONSTRAINT_JSON_SCHEMA, "guided_json", NULL},
		{"'guided_regex':'x'", MX_CONSTRAINT_REGEX, "guided_regex", "x"},
		{"'guided_choice':['a','b']", MX_CONSTRAINT_CHOICE, "guided_choice", NULL},
		{"'guided_grammar':'g'", MX_CONSTRAINT_GRAMMAR, "guided_grammar", "g"},
		{"'guided_json_object':true", MX_CONSTRAINT_JSON_OBJECT, "guided_json_object", NULL},
		{"'grammar':'g'", MX_CONSTRAINT_GRAMMAR, "grammar", "g"},
		{"'ebnf':'g'", MX_CONSTRAINT_GRAMMAR, "ebnf", "g"},
		{"'regex':'r'", MX_CONSTRAINT_REGEX, "regex", "r"},
		{"'json_schema':{'type':'null'}", MX_CONSTRAINT_JSON_SCHEMA, "json_schema", NULL},
		{"'json_schema':'{}','grammar':null", MX_CONSTRAINT_JSON_SCHEMA, "json_schema", "{}"},
		/* what clients send that ask for nothing */
		{"'response_format':{'type':'text'}", MX_CONSTRAINT_NONE, NULL, NULL},
		{"'response_format':null,'structured_outputs':{}", MX_CONSTRAINT_NONE, NULL, NULL},
		{"'grammar':null,'regex':null,'guided_choice':null,'guided_json_object':false,"
	     "'guided_json':null,'structured_outputs':{'choice':null,'json_object':false}",
	     MX_CONSTRAINT_NONE, NULL, NULL},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mx_api_request r;
		struct mx_api_error e;
		if (take(cases[i].member, &r, &e) != MX_OK)
			fail_msg("%s: %s", cases[i].member, e.message);
		const struct mx_api_constraint *c = &r.constraint;
		assert_int_equal(c->kind, cases[i].kind);
		if (c->kind != MX_CONSTRAINT_NONE)
			assert_string_equal(c->field, cases[i].field);
		if (cases[i].text)
			assert_true(is(&c->text, cases[i].text) && !c->schema);
		if (c->kind == MX_CONSTRAINT_JSON_SCHEMA && !cases[i].text)
			assert_non_null(c->schema);
		if (c->kind == MX_CONSTRAINT_CHOICE) {
			assert_int_equal(c->n_choices, 2);
			assert_true(is(&c->choices[0], "a") && is(&c->choices[1], "b"));
		}
		mx_api_request_free(&r);
	}
}

static void faults_name_the_field(void **state)
{
	(void)state;
	static const struct {
		const char *member, *code, *param, *part;
	} cases[] = {
		{"'grammar':'a','guided_regex':'b'", "invalid_value", "guided_regex", "'grammar'"},
		{"'response_format':{'type':'json_object'},'structured_outputs':{'regex':'a'}",
	     "invalid_value", "structured_outputs.regex", "'response_format'"},
		{"'structured_outputs':{'regex':'a','choice':['b']}", "invalid_value",
	     "structured_outputs.choice", "'structured_outputs.regex'"},
		{"'structured_outputs':{'regexp':'a'}", "unknown_parameter", "structured_outputs.regexp",
	     "did you mean 'regex'?"},
		{"'structured_outputs':'a'", "invalid_type", "structured_outputs", "a string"},
		{"'guided_choice':'a'", "invalid_type", "guided_choice", "a list of strings"},
		{"'guided_choice':['a',1]", "invalid_type", "guided_choice", "a list of strings"},
		{"'guided_json':[1]", "invalid_type", "guided_json", "a JSON schema"},
		{"'grammar':{}", "invalid_type", "grammar", "a string"},
		{"'guided_choice':[]", "invalid_value", "guided_choice", "must not be empty"},
		{"'structured_outputs':{'choice':[]}", "invalid_value", "structured_outputs.choice",
	     "must not be empty"},
		{"'structured_outputs':{'json':''}", "invalid_value", "structured_outputs.json",
	     "send a JSON schema"},
		{"'guided_regex':''", "invalid_value", "guided_regex", "send a regex"},
		{"'guided_grammar':''", "invalid_value", "guided_grammar", "send a grammar"},
		{"'guided_json_object':1", "invalid_type", "guided_json_object", "a boolean"},
		{"'response_format':{}", "missing_required_parameter", "response_format.type", "required"},
		{"'response_format':{'type':'json_schema'}", "missing_required_parameter",
	     "response_format.json_schema.schema", "'schema'"},
		{"'response_format':{'type':'json_schema','json_schema':{'name':'n'}}",
	     "missing_required_parameter", "response_format.json_schema.schema", "'schema'"},
		{"'response_format':{'type':'json_schema','json_schema':'x'}", "invalid_type",
	     "response_format.json_schema", "an object"},
		{"'response_format':{'type':'json_schema','json_schema':{'schem':{}}}", "unknown_parameter",
	     "response_format.json_schema.schem", "did you mean 'schema'?"},
		{"'echo':true,'max_tokens':0,'grammar':'g'", "invalid_value", "grammar", "no output"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct mx_api_request r;
		struct mx_api_error e;
		if (take(cases[i].member, &r, &e) == MX_OK)
			fail_msg("accepted: %s", cases[i].member);
		if (e.fault != MX_FAULT_INVALID || strcmp(e.code, cases[i].code) ||
		    strcmp(e.param, cases[i].param) || !strstr(e.message, cases[i].part))
			fail_msg("%s: %s, %s, %s", cases[i].member, e.code, e.param, e.message);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_spelling_is_read),
		cmocka_unit_test(faults_name_the_field),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
